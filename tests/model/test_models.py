"""Ready-made models: likelihoods against SciPy, and every one of them under NumPyro's inference."""

from functools import partial

import arviz
import jax
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from flax import nnx
from marks import quick_first
from numpyro import handlers
from numpyro.infer import HMC, MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

import bnn_ppl as bnn

ROWS = 8
X = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
REAL = (X[:, 0] - 0.5 * X[:, 1]).astype(np.float32)
LABELS = np.arange(ROWS) % 3
PRIOR = bnn.priors.normal(0.7)


def net(num_outputs, hidden=(3,)):
    return partial(bnn.nets.MLP, 2, hidden, num_outputs)


def classifier(**wide):
    return bnn.models.classifier(net(3, **wide), PRIOR)


def regressor(*noise, num_outputs=1, **wide):
    return bnn.models.regressor(net(num_outputs, **wide), PRIOR, *noise)


# name: how to build it, its y, the sites beside the network's.
MODELS = {
    "classifier": (classifier, LABELS, set()),
    "known noise": (partial(regressor, 0.4), REAL, set()),
    "learnt noise": (partial(regressor, dist.LogNormal(-1.0, 0.5)), REAL, {"noise"}),
    "heteroscedastic": (
        partial(regressor, "heteroscedastic", num_outputs=2),
        REAL,
        {"noise", "noise_amplitude"},
    ),
    "softplus": (partial(regressor, "softplus", num_outputs=2), REAL, set()),
    "noise by default": (regressor, REAL, {"noise"}),
}
WEIGHTS = {f"net.layers.{i}.{part}" for i in (0, 1) for part in ("bias", "kernel")}
LINEAR_WEIGHTS = {"net.layers.0.bias", "net.layers.0.kernel"}
every_model = pytest.mark.parametrize("name", MODELS)
every_likelihood = pytest.mark.parametrize("name", [n for n in MODELS if "default" not in n])


def trace_of(model, *args, values=None):
    seeded = handlers.seed(handlers.substitute(model, values or {}), jax.random.key(0))
    sites = handlers.trace(seeded).get_trace(*args)
    return {name: site for name, site in sites.items() if site["type"] == "sample"}


def numpy_pass(values, x):
    w = {name.removeprefix("net.layers."): np.asarray(value) for name, value in values.items()}
    return np.maximum(x @ w["0.kernel"] + w["0.bias"], 0) @ w["1.kernel"] + w["1.bias"]


@every_model
def test_likelihood_equals_scipy(name):
    build, y, others = MODELS[name]
    sites = trace_of(build(), X, y)
    assert set(sites) == WEIGHTS | others | {"y"}
    output = numpy_pass({site: sites[site]["value"] for site in WEIGHTS}, X)
    if name == "classifier":
        probs = np.exp(output) / np.exp(output).sum(1, keepdims=True)
        expected = np.log(probs[np.arange(ROWS), y])
    elif name == "heteroscedastic":
        level, amplitude = (float(sites[site]["value"]) for site in ("noise", "noise_amplitude"))
        std = 0.02 + level * np.exp(amplitude * output[:, 1])
        expected = st.norm(output[:, 0], std).logpdf(y)
    elif name == "softplus":
        expected = st.norm(output[:, 0], np.log1p(np.exp(output[:, 1]))).logpdf(y)
    else:
        std = float(sites["noise"]["value"]) if others else 0.4
        expected = st.norm(output[:, 0], std).logpdf(y)
    np.testing.assert_allclose(sites["y"]["fn"].log_prob(y), expected, rtol=2e-4, atol=1e-5)
    assert sites["y"]["is_observed"]


TWO = np.stack([REAL, X[:, 0] ** 2], 1)


@quick_first(
    ("noise", "covariance", "others"),
    [
        (None, "diagonal", {"noise"}),
        ((0.4, 0.2), "diagonal", set()),
        (np.array([0.4, 0.2]), "diagonal", set()),
        ("softplus", "diagonal", set()),
        ("heteroscedastic", "diagonal", {"noise", "noise_amplitude"}),
        (None, "full", {"noise", "correlation"}),
        (0.4, "full", {"correlation"}),
    ],
)
def test_several_outputs_are_one_event_with_the_density_of_scipy(noise, covariance, others):
    width = 4 if isinstance(noise, str) else 2
    model = bnn.models.regressor(net(width), PRIOR, noise, num_outputs=2, covariance=covariance)
    sites = trace_of(model, X, TWO)
    assert set(sites) == WEIGHTS | others | {"y"}
    output = numpy_pass({site: sites[site]["value"] for site in WEIGHTS}, X)
    std = np.asarray(sites["noise"]["value"] if "noise" in others else 0.4)
    if isinstance(noise, str) and noise == "softplus":
        std = np.log1p(np.exp(output[:, 2:]))
    elif isinstance(noise, str):
        std = 0.02 + std * np.exp(np.asarray(sites["noise_amplitude"]["value"]) * output[:, 2:])
    elif noise is not None:
        std = np.asarray(noise)
    correlation = np.asarray(sites["correlation"]["value"]) if covariance == "full" else np.eye(2)
    assert covariance == "diagonal" or abs(correlation[1, 0]) > 0.01
    stds = np.broadcast_to(std, (ROWS, 2))
    expected = [
        st.multivariate_normal(mean, np.outer(s, s) * (correlation @ correlation.T)).logpdf(row)
        for mean, s, row in zip(output[:, :2], stds, TWO, strict=True)
    ]
    np.testing.assert_allclose(sites["y"]["fn"].log_prob(TWO), expected, rtol=2e-4, atol=1e-4)


@pytest.mark.thorough
def test_correlated_noise_is_learnt_and_predicted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    noise = rng.multivariate_normal([0, 0], [[0.25, -0.2], [-0.2, 0.25]], size=200)
    y = (x @ [[1.0, 0.0], [0.5, -1.0]] + noise).astype(np.float32)
    linear = partial(bnn.nets.MLP, 2, (), 2)
    model = bnn.models.regressor(linear, PRIOR, num_outputs=2, covariance="full")
    posterior = bnn.condition(model, (x, y))
    method = bnn.hmc(posterior, 0.03, 0.3)
    draws = bnn.run(
        jax.random.key(0), posterior, method, num_warmup=200, num_draws=200, progress=False
    )
    factor = draws.posterior["correlation"].values[0]
    assert factor.shape == (200, 2, 2)
    residuals = y - x @ np.linalg.lstsq(x, y)[0]
    assert factor[:, 1, 0].mean() == pytest.approx(np.corrcoef(residuals.T)[0, 1], abs=0.04)
    prediction = bnn.predict(posterior, draws, (x, y))
    assert np.isfinite(prediction["expected_entropy"]).all()
    table = bnn.metrics.summary(prediction, y, scale=[2.0, 3.0], digits=None)
    # Correlated errors are more probable together than one by one.
    assert table["nll"] < table["gaussian_nll"] - 0.3
    assert table["nll"] == pytest.approx(np.log(6.0) - float(prediction["log_prob"].mean()))
    assert table["gaussian_nll"] == pytest.approx(
        table["gaussian_nll[0]"] + table["gaussian_nll[1]"]
    )


@every_model
def test_a_model_without_y_samples_it(name):
    site = trace_of(MODELS[name][0](), X)["y"]
    assert not site["is_observed"]
    assert site["value"].shape == (ROWS,)
    assert np.issubdtype(site["value"].dtype, np.integer) == (name == "classifier")


@every_likelihood
def test_predictive_has_the_parameters_that_numpyro_has(name):
    build, y, _ = MODELS[name]
    model = build()
    posterior = bnn.condition(model, (X, y))
    values = posterior.constrain(posterior.init(jax.random.key(1)))
    new = X[:3] + 1
    got, expected = (
        posterior.predictive(values, new),
        trace_of(model, new, values=values)["y"]["fn"],
    )
    assert type(got) is type(expected)
    for parameter in ("logits",) if name == "classifier" else ("mean", "variance"):
        assert getattr(got, parameter).shape[0] == 3
        np.testing.assert_array_equal(getattr(got, parameter), getattr(expected, parameter))


# NumPyro compiles for seconds, whatever the network: a linear one is enough.


@pytest.mark.thorough
@every_likelihood
def test_numpyro_samples_it_with_nuts_and_predicts(name):
    build, y, others = MODELS[name]
    model = build(hidden=())
    # Small steps: from NumPyro's start the noise may be far below the residuals.
    kernel = NUTS(
        model, step_size=0.001, max_tree_depth=3, adapt_step_size=False, adapt_mass_matrix=False
    )
    mcmc = MCMC(kernel, num_warmup=0, num_samples=4, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y)
    draws = mcmc.get_samples()
    assert set(draws) == LINEAR_WEIGHTS | others
    assert draws["net.layers.0.kernel"].shape[:2] == (4, 2)
    assert all(np.isfinite(values).all() for values in draws.values())
    assert np.ptp(draws["net.layers.0.kernel"], axis=0).min() > 0
    predicted = Predictive(model, draws)(jax.random.key(1), X[:5])["y"]
    assert predicted.shape == (4, 5)
    assert np.isfinite(predicted).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["classifier", "learnt noise", "heteroscedastic"])
def test_numpyro_fits_it_with_svi(name):
    build, y, others = MODELS[name]
    model = build(hidden=())
    guide = AutoNormal(model)
    svi = SVI(model, guide, Adam(0.02), Trace_ELBO())
    result = svi.run(jax.random.key(0), 20, X, y, progress_bar=False)
    assert np.isfinite(result.losses).all()
    medians = guide.median(result.params)
    assert set(medians) == LINEAR_WEIGHTS | others
    assert medians["net.layers.0.kernel"].shape[0] == 2


def test_rows_may_be_images():
    factory = partial(bnn.nets.LeNet, (15, 15, 1), 4)
    model = bnn.models.classifier(factory, bnn.priors.fan_in(2**0.5))
    images = np.zeros((2, 15, 15, 1), np.float32)
    posterior = bnn.condition(model, (images, np.array([0, 3])))
    position = jax.eval_shape(posterior.init, jax.random.key(0))
    density = jax.eval_shape(posterior.log_likelihood, position, posterior.data)
    assert density.shape == (2,)


def test_noise_of_a_network_of_its_own_has_the_density_of_scipy():
    model = bnn.models.regressor(
        net(2), PRIOR, "heteroscedastic", num_outputs=2, noise_net=net(2), noise_floor=[0.1, 0.2]
    )
    sites = trace_of(model, X, TWO)
    own = {site.replace("net", "noise_net", 1) for site in WEIGHTS}
    assert set(sites) == WEIGHTS | own | {"noise", "noise_amplitude", "y"}
    mean = numpy_pass({site: sites[site]["value"] for site in WEIGHTS}, X)
    shape = numpy_pass({site.removeprefix("noise_"): sites[site]["value"] for site in own}, X)
    level, amplitude = (np.asarray(sites[site]["value"]) for site in ("noise", "noise_amplitude"))
    expected = st.norm(mean, [0.1, 0.2] + level * np.exp(amplitude * shape)).logpdf(TWO).sum(1)
    np.testing.assert_allclose(sites["y"]["fn"].log_prob(TWO), expected, rtol=2e-4, atol=1e-4)


def test_the_network_of_the_spread_has_a_prior_of_its_own():
    model = bnn.models.regressor(net(1), PRIOR, "heteroscedastic", noise_net=net(1))
    std = bnn.condition(model, (X, TWO[:, 0])).prior.std
    kernels = {site for site in std if site.startswith("noise_net") and site.endswith("kernel")}
    expected = bnn.condition(bnn.models.regressor(net(1), bnn.priors.fan_in(0.4)), (X, TWO[:, 0]))
    assert len(kernels) > 1
    for site in kernels:
        own = expected.prior.std[site.removeprefix("noise_")]
        np.testing.assert_allclose(std[site], own, rtol=1e-6)


@pytest.mark.parametrize(
    ("y", "floor"),
    [(np.arange(8.0), 1 / 12**0.5), (np.arange(8) / 4, 0.25 / 12**0.5), (X[:, 0], 0.02)],
)
def test_the_floor_of_noise_is_what_rounding_leaves(y, floor):
    usual = bnn.model.models.usual_noise_floor
    assert np.isclose(usual(y), floor) and np.isclose(usual(np.float32(y)), floor)
    np.testing.assert_allclose(usual(np.stack([X[:, 1], y], 1)), [0.02, floor], rtol=1e-5)


REFUSED = {
    "a network for constant noise": (
        lambda: bnn.models.regressor(net(1), PRIOR, 0.4, noise_net=net(1)),
        "got noise_net, expected it with noise='heteroscedastic'",
    ),
    "a floor for constant noise": (
        lambda: bnn.models.regressor(net(1), PRIOR, noise_floor=0.1),
        "got noise_floor, expected it with noise='heteroscedastic': drop it",
    ),
    "floors of other outputs": (
        lambda: bnn.models.regressor(net(2), PRIOR, "heteroscedastic", noise_floor=[0.1, 0.2]),
        r"got noise_floor=\[0.1, 0.2\], expected a number, or one for each of 1 outputs",
    ),
    "no floor": (
        lambda: bnn.models.regressor(net(2), PRIOR, "heteroscedastic", noise_floor=0.0),
        "got noise_floor=0.0, expected a number above 0",
    ),
    "misspelt noise": (
        lambda: regressor("heteroskedastic", num_outputs=2),
        "got noise='heteroskedastic', expected a number, a distribution, 'heteroscedastic' or",
    ),
    "a function as noise": (
        lambda: regressor(bnn.priors.noise),
        "got noise=<function noise.*>, expected a number, a distribution, 'heteroscedastic' or",
    ),
    "negative noise of NumPy": (lambda: regressor(np.float32(-1)), "got noise=-1.0, expected"),
    "noise 0": (lambda: regressor(0), "got noise=0, expected .* above 0"),
    "negative noise": (lambda: regressor(-1.0), "got noise=-1.0"),
    "one output, heteroscedastic": (
        lambda: bnn.condition(regressor("heteroscedastic"), (X, REAL)),
        r"got network outputs of shape \(8, 1\), expected \(rows, 2\)",
    ),
    "full covariance of one output": (
        lambda: bnn.models.regressor(net(1), PRIOR, covariance="full"),
        "got covariance='full' with one output, expected 'diagonal'",
    ),
    "no such covariance": (
        lambda: bnn.models.regressor(net(2), PRIOR, num_outputs=2, covariance="dense"),
        "got covariance='dense', expected 'diagonal' or 'full'",
    ),
    "no outputs": (
        lambda: bnn.models.regressor(net(2), PRIOR, num_outputs=0),
        "got num_outputs=0, expected a whole number from 1 up",
    ),
    "y with two columns": (
        lambda: bnn.condition(regressor(0.1), (X, TWO)),
        "got y .*2.*",
    ),
    "fewer outputs than classes": (
        lambda: bnn.condition(bnn.models.classifier(net(1), PRIOR), (X, LABELS)),
        "got y from 0 to 2 at site 'y', expected from 0 to 0: give the network an output for each "
        "of the 3 classes, numbered from 0",
    ),
    "classes from 2": (
        lambda: bnn.condition(classifier(), (X, LABELS + 2)),
        "got y from 2 to 4 at site 'y', expected from 0 to 2: number the classes from 0$",
    ),
    "two outputs, one noise": (
        lambda: bnn.condition(regressor(0.1, num_outputs=2), (X, REAL)),
        r"got network outputs of shape \(8, 2\), expected \(rows, 1\): one for each of the n",
    ),
}


@pytest.mark.parametrize("build", [bnn.models.classifier, partial(bnn.models.regressor, noise=0.1)])
def test_a_network_of_two_arrays_is_refused(build):
    class Both(nnx.Module):
        def __init__(self, *, rngs):
            self.layer = nnx.Linear(X.shape[1], 1, rngs=rngs)

        def __call__(self, x):
            return self.layer(x), x

    with pytest.raises(TypeError, match="got a tuple from the network, expected one array"):
        bnn.condition(build(Both, PRIOR), (X, LABELS))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    build, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("model", [bnn.models.regressor, bnn.models.classifier])
def test_a_function_that_builds_no_network_is_refused(model):
    def outputs(x):
        return x

    with pytest.raises(TypeError, match="got outputs as network, .* rngs=, expected a factory of"):
        bnn.condition(model(outputs, PRIOR), (X, LABELS))


@pytest.mark.filterwarnings("ignore:More chains:UserWarning")
@pytest.mark.thorough
def test_arviz_reads_numpyros_draws_of_a_network_again_and_again():
    mcmc = MCMC(
        HMC(regressor(0.4, hidden=()), num_steps=1, adapt_step_size=False),
        num_warmup=0,
        num_samples=4,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X, REAL)
    first, again = arviz.from_numpyro(mcmc), arviz.from_numpyro(mcmc)
    assert set(first.posterior) == LINEAR_WEIGHTS
    assert first.posterior.equals(again.posterior)


@pytest.mark.thorough
def test_every_pixel_may_have_a_label():
    """U-Net from `run` to `predict`: a row is one event, probabilities are by pixel."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 8, 4, 1)).astype(np.float32)
    y = (x[..., 0] > 0).astype(np.int32)
    net = partial(bnn.nets.UNet, (8, 4, 1), 2, widths=(2, 3))
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), (x, y))
    draws = bnn.run(
        jax.random.key(0), posterior, bnn.hmc(posterior, 1e-3, 5e-3), num_draws=2, progress=False
    )
    prediction = bnn.predict(posterior, draws, (x, y))
    assert prediction["probs"].dims == ("row", "output_0", "output_1", "class")
    each = bnn.function_draws(posterior, draws, x).posterior["probs"].values[0]
    np.testing.assert_allclose(prediction["probs"], each.mean(0), rtol=1e-5)
    by_pixel = np.take_along_axis(each, y[None, ..., None], -1)[..., 0]
    by_row = np.log(by_pixel).sum((2, 3))  # of each draw
    np.testing.assert_allclose(prediction["log_prob"], np.log(np.exp(by_row).mean(0)), rtol=1e-4)
    first = {site: values[0, 0].values for site, values in draws.posterior.items()}
    position = posterior.unconstrain(first)
    np.testing.assert_allclose(
        posterior.log_likelihood(position, (x, y)).sum(), by_row[0].sum(), rtol=1e-4
    )


def test_a_classifier_refuses_one_number_a_row():
    class Flat(bnn.nets.MLP):
        def __call__(self, x):
            return super().__call__(x)[:, 0]

    model = bnn.models.classifier(partial(Flat, 2, (3,), 1), PRIOR)
    with pytest.raises(
        ValueError, match=r"got network outputs of shape \(8,\), expected \(rows, c"
    ):
        bnn.condition(model, (X, LABELS % 2))
