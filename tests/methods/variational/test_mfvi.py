"""Mean-field variational inference against closed forms, NumPyro's bound and its own estimators."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from marks import quick_first
from numpyro import handlers
from numpyro.infer import Predictive, Trace_ELBO
from scipy.stats import multivariate_normal
from targets import NOISE, PRIOR_MEANS, PRIOR_SDS, linear_regression

import bnn_ppl as bnn
from bnn_ppl.storage.arviz_versions import draws_of_arrays
from bnn_ppl.storage.inference_data import dataset_of, with_groups

X, Y = np.random.default_rng(0).normal(size=(24, 3)), np.random.default_rng(1).normal(size=24)


def fit(posterior, method, num_warmup=4000, **options):
    options = {"num_draws": 2, "thin": 0, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, num_warmup=num_warmup, **options)


def falling(rate, num_steps):
    return optax.cosine_decay_schedule(rate, num_steps)


@pytest.mark.statistical
@pytest.mark.parametrize("tempered", ["posterior", "likelihood"])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_optimum_on_a_linear_model_has_the_exact_means_and_conditional_sds(
    temperature, tempered
):
    """The known mean-field optimum: variances are 1 over the diagonal of the precision."""
    target = linear_regression(temperature, tempered)
    posterior = bnn.condition(target.model, target.data, temperature=temperature, tempered=tempered)
    method = bnn.mfvi(posterior, learning_rate=falling(0.03, 4000), num_samples=8)
    fitted = fit(posterior, method).fitted
    sds = np.diag(np.linalg.inv(target.covariance["weights"])) ** -0.5
    error = (fitted["weights.loc"][0] - target.means["weights"]) / sds
    np.testing.assert_allclose(error, 0, atol=0.1)
    np.testing.assert_allclose(fitted["weights.scale"][0], sds, rtol=0.05)


def bound(method, state, posterior, num=2000):
    """Estimate the evidence lower bound of a state without moving it."""
    keys = jax.random.split(jax.random.key(1), num)
    info = jax.lax.map(lambda key: method.step(key, state, posterior.data)[1], keys)
    return float(info["elbo"].mean()), float(info["elbo"].std() / num**0.5)


def test_the_bound_lies_below_the_exact_evidence_by_the_divergence_to_the_posterior():
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    x, y = target.data
    evidence = multivariate_normal(
        x @ PRIOR_MEANS, NOISE**2 * np.eye(len(y)) + x @ np.diag(PRIOR_SDS**2) @ x.T
    ).logpdf(y)
    mean, precision = target.means["weights"], np.linalg.inv(target.covariance["weights"])
    sd = np.diag(precision) ** -0.5
    divergence = 0.5 * (
        np.trace(precision @ np.diag(sd**2))
        - len(sd)
        - np.linalg.slogdet(precision)[1]
        - 2 * np.log(sd).sum()
    )
    method = bnn.mfvi(posterior, learning_rate=1e-3)
    state = method.init(jax.random.key(0), {"weights": jnp.asarray(mean)}, posterior.data)
    state = state._replace(log_std={"weights": jnp.log(sd)})
    found, error = bound(method, state, posterior)
    assert divergence > 0.1  # the weights are correlated
    assert abs(found - (evidence - divergence)) < 5 * error + 1e-3


@pytest.mark.statistical
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_optimum_at_a_weight_is_that_of_a_likelihood_at_its_inverse(weight):
    """E log p(D|w) - c KL is c times the bound of a likelihood at temperature c."""
    target = linear_regression(weight, "likelihood")
    posterior = bnn.condition(target.model, target.data)
    method = bnn.mfvi(posterior, learning_rate=falling(0.03, 4000), num_samples=8, kl_weight=weight)
    fitted = fit(posterior, method).fitted
    sds = np.diag(np.linalg.inv(target.covariance["weights"])) ** -0.5
    error = (fitted["weights.loc"][0] - target.means["weights"]) / sds
    np.testing.assert_allclose(error, 0, atol=0.1)
    np.testing.assert_allclose(fitted["weights.scale"][0], sds, rtol=0.05)


@pytest.mark.thorough
def test_a_step_descends_the_bound_at_the_weight_of_its_count():
    _, posterior = small_net(bnn.priors.laplace(0.7))  # whose expectation is estimated at a draw
    sgd, seen = optax.sgd(1.0), []
    for options in ({"kl_weight": bnn.schedules.rising(4, 0.2)}, {}, {"kl_weight": 1e-9}):
        method = bnn.mfvi(posterior, sgd, **options)
        state = method.init(jax.random.key(0), posterior.init(jax.random.key(1)), posterior.data)
        state = state._replace(num_steps=jnp.asarray(2))  # half-way: 0.6
        new, info = method.step(jax.random.key(2), state, posterior.data)
        seen.append((new.mean["net.layers.0.kernel"] - state.mean["net.layers.0.kernel"], info))
        assert int(new.num_steps) == 3
    (half, info), (whole, usual), (none, _) = seen
    np.testing.assert_allclose(half, 0.6 * whole + 0.4 * none, rtol=1e-4, atol=1e-6)
    assert np.abs(whole - none).max() > 1e-2
    assert info["elbo"] == usual["elbo"]  # recorded at weight 1


def test_the_weight_rises_along_a_line():
    values = [float(bnn.schedules.rising(4, 0.2)(jnp.asarray(n))) for n in (0, 1, 2, 4, 9)]
    np.testing.assert_allclose(values, [0.2, 0.4, 0.6, 1, 1], rtol=1e-6)


def small_net(prior, noise=0.5, **options):
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    model = bnn.models.regressor(net, prior, noise)
    return model, bnn.condition(model, (X, Y), **options)


@pytest.mark.statistical
@pytest.mark.parametrize("prior", [bnn.priors.normal(0.7), bnn.priors.mixture((1.0, 0.2))])
@pytest.mark.parametrize("noise", [0.5, dist.HalfNormal(1.0)])
def test_the_fitted_guide_has_the_same_bound_in_numpyro(prior, noise):
    """Any prior, and a constrained site: closed forms, draws and Jacobians agree with NumPyro's."""
    model, posterior = small_net(prior, noise)
    method = bnn.mfvi(posterior, learning_rate=1e-3, init_std=0.2)
    draws = fit(posterior, method, num_warmup=1)
    guide = bnn.guide(posterior, draws)
    x, y = map(jnp.asarray, (X, Y))
    keys = jax.random.split(jax.random.key(2), 4000)
    theirs = -jax.lax.map(lambda key: Trace_ELBO().loss(key, {}, model, guide, x, y), keys)
    fitted = draws.fitted.isel(chain=0)
    parts = {
        part: {s: jnp.asarray(fitted[f"{s}.{part}"].values) for s in posterior.prior_std}
        for part in ("loc", "scale")
    }
    state = method.init(jax.random.key(0), parts["loc"], posterior.data)
    state = state._replace(log_std=jax.tree.map(jnp.log, parts["scale"]))
    found, error = bound(method, state, posterior, 4000)
    error = np.hypot(error, float(theirs.std()) / 4000**0.5)
    assert abs(found - float(theirs.mean())) < 5 * error


@pytest.mark.thorough
def test_the_guide_predicts_in_numpyro_and_is_refused_where_nothing_was_fitted():
    model, posterior = small_net(bnn.priors.normal(0.7))
    draws = fit(posterior, bnn.mfvi(posterior), num_warmup=5)
    guide = bnn.guide(posterior, draws)
    samples = Predictive(model, guide=guide, num_samples=5)(jax.random.key(0), X)
    assert samples["y"].shape == (5, 24)
    point = fit(posterior, bnn.descent(posterior), num_warmup=5)
    with pytest.raises(ValueError, match="got draws of descent"):
        bnn.guide(posterior, point)


class Normalised(nnx.Module):
    """A network whose batch normalisation is in train mode."""

    def __init__(self, rngs):
        self.out, self.norm = nnx.Linear(3, 1, rngs=rngs), nnx.BatchNorm(1, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.out(x))


def test_a_guide_takes_networks_with_batch_normalisation():
    model = bnn.models.regressor(Normalised, bnn.priors.normal(1.0), 0.5)
    posterior = bnn.condition(model, (X, Y))
    values = {site: np.ones((1, 1, *a)) for site, a in posterior.sites.value_shapes().items()}
    fitted = {f"{site}.{part}": a[0] for site, a in values.items() for part in ("loc", "scale")}
    draws = draws_of_arrays({"posterior": values}, {"draws_from": "gaussian"})
    guide = bnn.guide(posterior, with_groups(draws, fitted=dataset_of(fitted, ("chain",))))
    found = handlers.trace(handlers.seed(guide, jax.random.key(0))).get_trace(X, Y)
    assert set(values) <= set(found)


def gradients(posterior, estimator, num=3000):
    """Gradients of the bound by the means at one state, (estimate, weight)."""
    seen = optax.GradientTransformation(lambda p: (), lambda g, s, p: (g, s))
    method = bnn.mfvi(posterior, seen, estimator=estimator, init_std=0.5)
    start = posterior.init(jax.random.key(0))
    state = method.init(jax.random.key(0), start, posterior.data)

    def one(key):
        moved = method.step(key, state, posterior.data)[0].mean
        change = jax.tree.map(lambda a, b: a - b, moved, start)
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(change)])

    return np.asarray(jax.lax.map(one, jax.random.split(jax.random.key(3), num)))


class Convolutions(bnn.nets.LeNet):
    """A strided convolution and a dense layer on three axes, for small images."""

    def __init__(self, *, rngs):
        from flax import nnx

        self.conv = nnx.Conv(2, 3, (2, 2), strides=2, padding="VALID", rngs=rngs)
        self.dense = nnx.Linear(3, 2, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.dense(jnp.tanh(self.conv(x))).sum((1, 2))


def conv_net():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(16, 4, 4, 2)), rng.integers(0, 2, 16)
    return bnn.condition(bnn.models.classifier(Convolutions, bnn.priors.normal(1.0)), data)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("build", "estimator", "gain"),
    [
        (lambda: small_net(bnn.priors.normal(0.7))[1], "local_reparametrisation", 2.0),
        (lambda: small_net(bnn.priors.mixture((1.0, 0.2)))[1], "flipout", 1.2),
        (conv_net, "flipout", 1.2),
        (conv_net, "local_reparametrisation", 1.2),
    ],
)
def test_estimators_agree_with_weight_draws_in_mean_and_vary_less(build, estimator, gain):
    posterior = build()
    plain, other = gradients(posterior, "weights"), gradients(posterior, estimator)
    error = np.sqrt((plain.var(0) + other.var(0)) / len(plain))
    assert (np.abs(plain.mean(0) - other.mean(0)) < 5 * error + 1e-6).all()
    assert plain.var(0).sum() > gain * other.var(0).sum()


@pytest.mark.thorough
def test_layers_with_noise_of_their_own_are_those_that_the_network_calls():
    """A layer passed by, and a site outside the network, are drawn once for a batch."""
    net = partial(bnn.nets.MLP, 3, (4,), 1, features_first=True)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(0.7)), (X, Y))
    plain, local = (gradients(posterior, e, 5) for e in ("weights", "local_reparametrisation"))
    np.testing.assert_allclose(plain, local, rtol=1e-4, atol=1e-6)


def flattened(x, y=None):
    """Call a layer on rows and positions in one axis, as no layer by layer noise can be."""
    net = bnn.random_network("net", partial(bnn.nets.MLP, 1, (), 1), bnn.priors.normal(0.7))
    f = net(x.reshape(-1, 1)).reshape(len(x), 3).sum(1)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(f, 0.5), obs=y)


def positive(x, y=None):
    net = bnn.random_network("net", partial(bnn.nets.MLP, 3, (), 1), dist.HalfNormal(0.7))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(net(x)[:, 0], 0.5), obs=y)


@quick_first("model", [flattened, positive])
def test_layers_that_rows_do_not_go_through_one_by_one_are_drawn_once_for_a_batch(model):
    posterior = bnn.condition(model, (X, Y))
    plain, local = (gradients(posterior, e, 5) for e in ("weights", "local_reparametrisation"))
    np.testing.assert_allclose(plain, local, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_start_at_a_point_estimate_is_where_the_means_begin():
    _, posterior = small_net(bnn.priors.normal(0.7))
    point = fit(posterior, bnn.descent(posterior), num_warmup=5, num_draws=1)
    draws = fit(posterior, bnn.mfvi(posterior, learning_rate=1e-12), num_warmup=1, init=point)
    site = "net.layers.0.kernel"
    np.testing.assert_allclose(draws.fitted[f"{site}.loc"][0], point.posterior[site][0, 0])
    np.testing.assert_allclose(draws.fitted[f"{site}.scale"], 0.01, rtol=1e-5)


@pytest.mark.thorough
def test_draws_are_of_the_fitted_gaussian():
    _, posterior = small_net(bnn.priors.normal(0.7))
    method = bnn.mfvi(posterior, learning_rate=1e-3, init_std=0.3)
    draws = fit(posterior, method, num_warmup=1, num_draws=4000)
    site = "net.layers.0.kernel"
    z = (draws.posterior[site] - draws.fitted[f"{site}.loc"].values[:, None]) / 0.3
    np.testing.assert_allclose(z.mean("draw"), 0, atol=5 / 4000**0.5)
    np.testing.assert_allclose(z.std("draw"), 1, atol=0.06)


@pytest.mark.thorough
@pytest.mark.parametrize("estimator", ["weights", "local_reparametrisation", "flipout"])
def test_an_interrupted_run_is_bit_identical(tmp_path, estimator):
    _, posterior = small_net(bnn.priors.normal(0.7))
    method = bnn.mfvi(posterior, estimator=estimator)
    options = {"num_chains": 2, "num_warmup": 5, "thin": 2, "batch_size": 8}
    whole = fit(posterior, method, num_draws=9, **options)
    fit(posterior, method, num_draws=4, folder=tmp_path, **options)
    resumed = fit(posterior, method, num_draws=9, folder=tmp_path, **options)
    for group in ("posterior", "sample_stats", "fitted"):
        for name, values in whole[group].items():
            np.testing.assert_array_equal(resumed[group][name], values, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": "wieghts"},
        {"init_std": 0.0},
        {"num_samples": 0},
        {"num_samples": 1.5},
        {"learning_rate": -1.0},
        {"kl_weight": 0.0, "learning_rate": 0.1},
        {"kl_weight": 0.5},
    ],
)
def test_arguments_out_of_range_are_refused(options):
    _, posterior = small_net(bnn.priors.normal(0.7))
    with pytest.raises(ValueError, match="got .*expected"):
        bnn.mfvi(posterior, **options)
