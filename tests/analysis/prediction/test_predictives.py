"""What draws predict with: the network itself, one linearised about each chain, a closed form."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from marks import quick_first
from numpyro import handlers
from numpyro.contrib.module import random_nnx_module
from numpyro.infer.reparam import LocScaleReparam

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS
from bnn_ppl.storage.inference_data import inference_data, with_groups

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
REAL = X[:, 0].astype(np.float32)
CHAINS, DRAWS = 2, 4


def network(y=REAL):
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 0.5), (X, y))


def gaussian_draws(posterior, spread=0.5, method="laplace"):
    """Make up draws about a mean of each chain, far from the other's."""
    fitted, values = {}, {}
    for site, shape in posterior.sites.value_shapes().items():
        loc = RNG.normal(size=(CHAINS, *shape)).astype(np.float32)
        noise = RNG.normal(size=(CHAINS, DRAWS, *shape)).astype(np.float32)
        fitted[f"{site}.loc"], values[site] = loc, loc[:, None] + spread * noise
    return inference_data(values, {}, None, {"method": method, "thin": 0}, fitted)


@pytest.fixture(scope="module")
def laplace():
    posterior = network()
    return posterior, gaussian_draws(posterior)


def of_each_chain(posterior, draws, function):
    """Call a function with each chain and the posterior linearised about it alone."""
    chains = [draws.isel(chain=[chain]) for chain in range(CHAINS)]
    return [function(bnn.linearised(posterior, chain), chain) for chain in chains]


def test_a_method_says_what_its_draws_predict_with():
    assert {name for name, each in METHODS.items() if each.predictive != "sampled"} == {"laplace"}
    assert METHODS["laplace"].predictive == "linearised"


@pytest.mark.thorough
def test_laplace_draws_predict_by_default_linearised_about_their_chain(laplace):
    posterior, draws = laplace
    functions = of_each_chain(
        posterior, draws, lambda *one: bnn.function_draws(*one, X).posterior["mean"].values
    )
    expected = np.concatenate(functions)
    for form in (None, "linearised"):
        found = bnn.function_draws(posterior, draws, X, predictive=form).posterior["mean"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        found = bnn.predict(posterior, draws, (X, REAL), predictive=form, batch_size=5)
        np.testing.assert_allclose(found["mean"], expected.mean((0, 1)), rtol=1e-4, atol=1e-5)
        each = of_each_chain(posterior, draws, lambda *one: bnn.predict(*one, (X, REAL)))
        mixed = np.logaddexp(*(one["log_prob"].values for one in each)) - np.log(CHAINS)
        np.testing.assert_allclose(found["log_prob"], mixed, rtol=1e-4)
    sampled = bnn.predict(posterior, draws, X, predictive="sampled")["mean"]
    assert np.abs(sampled - expected.mean((0, 1))).max() > 0.05


@pytest.mark.thorough
def test_so_do_quantiles_draws_of_y_attacks_and_correlations(laplace):
    posterior, draws = laplace
    about = bnn.linearised(posterior, draws)
    key = jax.random.key(0)
    for function in (
        lambda p, **form: bnn.predict_quantiles(p, draws, X, 0.9, **form),
        lambda p, **form: bnn.predictive_draws(key, p, draws, **form).posterior_predictive["y"],
        lambda p: bnn.adversarial.fgsm(p, draws, (X, REAL), 0.1),
        lambda p: bnn.correlations.function_correlations(p, draws, X),
        lambda p: bnn.chain_budget(p, draws, (X, REAL), num_chains=[2], num_draws=[4]),
    ):
        np.testing.assert_array_equal(function(posterior), function(about))
    sampled = bnn.predict_quantiles(posterior, draws, X, 0.9, predictive="sampled")
    assert np.abs(sampled - bnn.predict_quantiles(about, draws, X, 0.9)).max() > 0.05


@pytest.mark.thorough
def test_the_verdict_is_of_the_default_predictive():
    # The means fit exactly, and the draws about them are in pairs: the linearised network, of which
    # a pair averages to the mean, fits too, and the network itself does not.
    posterior = network()
    loc = {site: RNG.normal(size=shape) for site, shape in posterior.sites.value_shapes().items()}
    posterior = network(np.asarray(posterior.predictive(loc, X).mean))
    away = {site: 4 * RNG.normal(size=(CHAINS, 20, *own.shape)) for site, own in loc.items()}
    values = {
        site: np.concatenate([own + away[site], own - away[site]], 1) for site, own in loc.items()
    }
    fitted = {f"{site}.loc": np.stack([own] * CHAINS) for site, own in loc.items()}
    facts = {"thin": 0, "draws_from": "gaussian"}
    found = {
        method: inference_data(values, {}, None, facts | {"method": method}, fitted)
        for method in ("laplace", "mfvi")
    }
    assert "WORSE THAN PREDICTING" in bnn.verdict(posterior, found["mfvi"]).text
    assert "WORSE THAN PREDICTING" not in bnn.verdict(posterior, found["laplace"]).text
    about = bnn.linearised(posterior, found["laplace"])
    assert (
        bnn.verdict(about, found["laplace"]).text == bnn.verdict(posterior, found["laplace"]).text
    )


def test_others_predict_with_the_network_itself_unless_asked(laplace):
    posterior, draws = laplace
    sampled = bnn.predict(posterior, draws, X, predictive="sampled")
    linear = bnn.predict(posterior, draws, X)
    mfvi = gaussian_draws(posterior, method="mfvi")
    mfvi = with_groups(mfvi, posterior=draws["posterior"], fitted=draws["fitted"])
    np.testing.assert_array_equal(bnn.predict(posterior, mfvi, X)["mean"], sampled["mean"])
    found = bnn.predict(posterior, mfvi, X, predictive="linearised")
    np.testing.assert_array_equal(found["mean"], linear["mean"])


def without_fitted(draws):
    return inference_data({k: v.values for k, v in draws.posterior.items()}, {}, None, draws.attrs)


def test_draws_without_their_mean_are_warned_of_or_refused(laplace):
    posterior, draws = laplace
    bare = without_fitted(draws)
    with pytest.warns(UserWarning, match="got draws of laplace without the fitted mean"):
        found = bnn.predict(posterior, bare, X)
    np.testing.assert_array_equal(
        found["mean"], bnn.predict(posterior, draws, X, predictive="sampled")["mean"]
    )
    with pytest.raises(ValueError, match="got predictive='linearised' for draws of laplace with"):
        bnn.predict(posterior, bare, X, predictive="linearised")


def test_forms_that_do_not_fit_are_refused(laplace):
    posterior, draws = laplace
    about = bnn.linearised(posterior, draws)
    for call, words in (
        (
            lambda: bnn.function_draws(posterior, draws, X, predictive="closed_form"),
            "got predictive='closed_form' where each draw predicts, expected 'linearised'",
        ),
        (
            lambda: bnn.predict(about, draws, X, predictive="sampled"),
            "got predictive='sampled' with a linearised posterior",
        ),
        (
            lambda: bnn.predict(about, draws.isel(chain=[1]), X),
            "got draws of 1 chains for a posterior linearised about 2, expected as many",
        ),
        (
            lambda: about.predictive(posterior.prior.draw(jax.random.key(0)), X),
            "got values of a draw for a posterior linearised about 2 chains",
        ),
        (
            lambda: bnn.predict(posterior, draws, X, predictive="mean"),
            "got predictive='mean', expected one of 'linearised', 'closed_form', 'sampled'",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_matched_and_pruned_draws_keep_a_mean_of_their_own(laplace):
    posterior, draws = laplace
    matched = bnn.symmetry.matched(posterior, draws)
    kernel = "net.layers.0.kernel"
    assert np.abs(matched.posterior[kernel] - draws.posterior[kernel]).max() > 0.1
    found, expected = (bnn.predict(posterior, each, X)["mean"] for each in (matched, draws))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    pruned = bnn.pruning.pruned(posterior, draws, 0.5)
    gone = (pruned.posterior[kernel] == 0).all("draw").values
    assert gone.any() and not gone.all()
    loc = np.where(gone, 0, draws.fitted[f"{kernel}.loc"])
    np.testing.assert_array_equal(pruned.fitted[f"{kernel}.loc"], loc)


@quick_first("structure", ["full", "kronecker"])
def test_chains_of_a_run_average_their_closed_forms(structure):
    posterior = network()
    start = gaussian_draws(posterior, spread=0.0)
    start = start.isel(draw=[0])
    method = bnn.laplace(posterior, structure)
    options = {"num_chains": CHAINS, "num_draws": 3, "init": start, "progress": False}
    draws = bnn.run(jax.random.key(0), posterior, method, **options)
    one_by_one = [
        bnn.predict_closed_form(posterior, draws.isel(chain=[chain]), (X, REAL))
        for chain in range(CHAINS)
    ]
    means, variances = (
        np.stack([one[name].values for one in one_by_one]) for name in ("mean", "variance")
    )
    for found in (
        bnn.predict_closed_form(posterior, draws, (X, REAL)),
        bnn.predict(posterior, draws, (X, REAL), predictive="closed_form", batch_size=5),
    ):
        np.testing.assert_allclose(found["mean"], means.mean(0), rtol=1e-5)
        np.testing.assert_allclose(found["variance"], variances.mean(0) + means.var(0), rtol=1e-4)
        mixed = np.logaddexp(*(one["log_prob"].values for one in one_by_one)) - np.log(CHAINS)
        np.testing.assert_allclose(found["log_prob"], mixed, rtol=1e-4)
    middle = bnn.predict_quantiles(posterior, draws, X, (0.1, 0.9), predictive="closed_form")
    assert middle.shape == (2, len(X))
    assert (middle[0] < means.mean(0)).all() and (means.mean(0) < middle[1]).all()


def own_model(x, y=None, of_numpyro=False, likelihood=dist.Normal):
    if of_numpyro:
        layers = [nnx.Linear(3, 4, rngs=nnx.Rngs(0)), jnp.tanh, nnx.Linear(4, 1, rngs=nnx.Rngs(0))]
        f = random_nnx_module("net", nnx.Sequential(*layers), dist.Normal())
    else:
        net = partial(bnn.nets.MLP, 3, (4,), 1, activation=jnp.tanh)
        f = bnn.random_network("net", net, bnn.priors.normal())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", likelihood(f(x)[:, 0]), obs=y)


MODELS = {
    "scoped": handlers.scope(own_model, prefix="m"),
    "of numpyro": partial(own_model, of_numpyro=True),
    "log-normal": partial(own_model, of_numpyro=True, likelihood=dist.LogNormal),
    "reparametrised": handlers.reparam(own_model, {"net.layers.1.kernel": LocScaleReparam(0.0)}),
}


@pytest.mark.parametrize("name", MODELS)
def test_networks_are_linearised_whatever_their_sites_are_called(name):
    posterior = bnn.condition(MODELS[name], (X, np.exp(REAL)))
    at, away = (
        {site: RNG.normal(size=shape) for site, shape in posterior.sites.value_shapes().items()}
        for _ in range(2)
    )

    def location(values, posterior=posterior):
        distribution = posterior.predictive(values, X)
        return distribution.icdf(0.5) if name != "log-normal" else jnp.log(distribution.icdf(0.5))

    def on_the_way(share):  # from the centre to a draw
        return location({site: at[site] + share * away[site] for site in at})

    expected = jax.jvp(on_the_way, (0.0,), (1.0,))
    draw = {site: at[site] + away[site] for site in at}
    found = location(draw, bnn.linearised(posterior, at))
    np.testing.assert_allclose(found, sum(expected), rtol=1e-4, atol=1e-4)
    assert np.abs(found - location(draw)).max() > 0.1


@pytest.mark.parametrize("is_inflated", [False, True])
def test_all_of_a_negative_binomial_has_the_linearised_logits(is_inflated):
    def law(logits):
        inner = dist.NegativeBinomialLogits(2.0, logits)
        return dist.ZeroInflatedDistribution(inner, gate=0.2) if is_inflated else inner

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", law((x @ w) ** 2), obs=y)

    posterior = bnn.condition(model, (X, np.arange(12)))
    at, w = RNG.normal(size=(2, 3))
    found = bnn.linearised(posterior, {"w": at}).predictive({"w": w}, X)
    expected = law((X @ at) ** 2 + 2 * (X @ at) * (X @ (w - at)))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4)
    np.testing.assert_allclose(found.log_prob(2), expected.log_prob(2), rtol=1e-4)


def test_each_of_several_observed_sites_is_linearised():
    def model(x, y=None):
        y = y or {}
        w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("a", dist.Normal((x @ w) ** 2, 1.0), obs=y.get("a"))
            numpyro.sample("b", dist.Bernoulli(logits=(x @ w) ** 3), obs=y.get("b"))
            numpyro.sample("c", dist.Poisson((x @ w) ** 2), obs=y.get("c"))

    counts = np.arange(12)
    posterior = bnn.condition(model, (X, {"a": REAL, "b": counts % 2, "c": counts}))
    at, w = RNG.normal(size=(2, 3))
    with pytest.warns(UserWarning, match="not linearised: .* its Poisson no loc"):
        found = bnn.linearised(posterior, {"w": at}).predictive({"w": w}, X).parts
    there, away = X @ at, X @ (w - at)
    probs = nnx.sigmoid(there**3 + 3 * there**2 * away)
    expected = [there**2 + 2 * there * away, probs, (X @ w) ** 2]
    np.testing.assert_allclose([part.mean for part in found], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "scoped"])
def test_a_network_whose_weights_are_sites_is_run_no_more_often_linearised(name, monkeypatch):
    calls, call = [], bnn.nets.MLP.__call__

    def counted(*arguments):
        calls.append(1)
        return call(*arguments)

    posterior = bnn.condition(MODELS.get(name, own_model), (X, REAL))
    at = {site: np.zeros(shape) for site, shape in posterior.sites.value_shapes().items()}
    about = bnn.linearised(posterior, at)
    monkeypatch.setattr(bnn.nets.MLP, "__call__", counted)
    posterior.predictive(at, X)
    alone = len(calls)
    about.predictive(at, X)
    assert len(calls) == 2 * alone


def test_fixed_networks_of_one_name_keep_their_own_weights():
    fixed = [bnn.nets.MLP(3, (4,), 3, rngs=nnx.Rngs(seed)) for seed in range(2)]
    head = partial(bnn.nets.MLP, 3, (4,), 1)

    def model(x, y=None):
        for prefix, net in zip("ab", fixed, strict=True):
            with handlers.scope(prefix=prefix):
                x = bnn.random_network("f", net, {"*": "fixed"})(x)
        location = bnn.random_network("net", head, bnn.priors.normal())(x)[:, 0]
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(location, 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    at = posterior.constrain(posterior.init(jax.random.key(0)))
    found, expected = (p.predictive(at, X).mean for p in (bnn.linearised(posterior, at), posterior))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_model_with_nothing_to_linearise_is_warned_of():
    def rates(x):
        return dist.Poisson(jnp.exp(x))

    model = partial(own_model, of_numpyro=True, likelihood=rates)
    posterior = bnn.condition(model, (X, np.arange(12)))
    draws = gaussian_draws(posterior)
    with pytest.warns(UserWarning, match="predictions are not linearised: .* its Poisson no loc"):
        found = bnn.predict(posterior, draws, X)
    sampled = bnn.predict(posterior, draws, X, predictive="sampled")
    np.testing.assert_array_equal(found["mean"], sampled["mean"])
