"""Ready-made models: likelihoods against SciPy, and every one of them under NumPyro's inference."""

from functools import partial

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

import bnn_ppl as bnn

ROWS = 8
X = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
REAL = (X[:, 0] - 0.5 * X[:, 1]).astype(np.float32)
LABELS = np.arange(ROWS) % 3
PRIOR = bnn.priors.normal(0.7)


def net(num_outputs):
    return partial(bnn.nets.MLP, 2, (3,), num_outputs)


# name: the model, its y, the sites beside the network's.
MODELS = {
    "classifier": (bnn.models.classifier(net(3), PRIOR), LABELS, set()),
    "known noise": (bnn.models.regressor(net(1), PRIOR, 0.4), REAL, set()),
    "learnt noise": (
        bnn.models.regressor(net(1), PRIOR, dist.LogNormal(-1.0, 0.5)),
        REAL,
        {"noise"},
    ),
    "noise by default": (bnn.models.regressor(net(1), PRIOR), REAL, {"noise"}),
    "heteroscedastic": (
        bnn.models.regressor(net(2), PRIOR, "heteroscedastic"),
        REAL,
        set(),
    ),
}
WEIGHTS = {f"net.layers.{i}.{part}" for i in (0, 1) for part in ("bias", "kernel")}
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
    model, y, others = MODELS[name]
    sites = trace_of(model, X, y)
    assert set(sites) == WEIGHTS | others | {"y"}
    output = numpy_pass({site: sites[site]["value"] for site in WEIGHTS}, X)
    if name == "classifier":
        probs = np.exp(output) / np.exp(output).sum(1, keepdims=True)
        expected = np.log(probs[np.arange(ROWS), y])
    elif name == "heteroscedastic":
        expected = st.norm(output[:, 0], np.log1p(np.exp(output[:, 1]))).logpdf(y)
    else:
        std = float(sites["noise"]["value"]) if others else 0.4
        expected = st.norm(output[:, 0], std).logpdf(y)
    np.testing.assert_allclose(sites["y"]["fn"].log_prob(y), expected, rtol=2e-4, atol=1e-5)
    assert sites["y"]["is_observed"]


@every_model
def test_a_model_without_y_samples_it(name):
    model, y, _ = MODELS[name]
    site = trace_of(model, X)["y"]
    assert not site["is_observed"]
    assert site["value"].shape == (ROWS,)
    assert np.issubdtype(site["value"].dtype, np.integer) == (name == "classifier")


@every_model
def test_predictive_has_the_parameters_that_numpyro_has(name):
    model, y, _ = MODELS[name]
    posterior = bnn.condition(model, (X, y))
    values = posterior.constrain(posterior.init(jax.random.key(1)))
    new = X[:3] + 1
    got, expected = posterior.predictive(values, new), trace_of(model, new, values=values)["y"]["fn"]
    assert type(got) is type(expected)
    for parameter in ("logits",) if name == "classifier" else ("mean", "variance"):
        assert getattr(got, parameter).shape[0] == 3
        np.testing.assert_array_equal(getattr(got, parameter), getattr(expected, parameter))


@every_likelihood
def test_numpyro_samples_it_with_nuts_and_predicts(name):
    model, y, others = MODELS[name]
    kernel = NUTS(model, step_size=0.05, max_tree_depth=3, adapt_step_size=False)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=4, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y)
    draws = mcmc.get_samples()
    assert set(draws) == WEIGHTS | others
    assert draws["net.layers.0.kernel"].shape == (4, 2, 3)
    assert all(np.isfinite(values).all() for values in draws.values())
    assert np.ptp(draws["net.layers.0.kernel"], axis=0).min() > 0
    predicted = Predictive(model, draws)(jax.random.key(1), X[:5])["y"]
    assert predicted.shape == (4, 5)
    assert np.isfinite(predicted).all()


@every_likelihood
def test_numpyro_fits_it_with_svi(name):
    model, y, others = MODELS[name]
    guide = AutoNormal(model)
    svi = SVI(model, guide, Adam(0.02), Trace_ELBO())
    result = svi.run(jax.random.key(0), 20, X, y, progress_bar=False)
    assert np.isfinite(result.losses).all()
    medians = guide.median(result.params)
    assert set(medians) == WEIGHTS | others
    assert medians["net.layers.1.kernel"].shape[0] == 3


def test_rows_may_be_images():
    factory = partial(bnn.nets.LeNet, (15, 15, 1), 4)
    model = bnn.models.classifier(factory, bnn.priors.fan_in())
    images = np.zeros((2, 15, 15, 1), np.float32)
    posterior = bnn.condition(model, (images, np.array([0, 3])))
    position = jax.eval_shape(posterior.init, jax.random.key(0))
    density = jax.eval_shape(posterior.log_likelihood, position, posterior.data)
    assert density.shape == (2,)


REFUSED = {
    "misspelt noise": (
        lambda: bnn.models.regressor(net(2), PRIOR, "heteroskedastic"),
        "got noise='heteroskedastic', expected a number, a distribution or 'heteroscedastic'",
    ),
    "noise 0": (lambda: bnn.models.regressor(net(1), PRIOR, 0), "got noise=0, expected .* above 0"),
    "negative noise": (lambda: bnn.models.regressor(net(1), PRIOR, -1.0), "got noise=-1.0"),
    "one output, heteroscedastic": (
        lambda: bnn.condition(bnn.models.regressor(net(1), PRIOR, "heteroscedastic"), (X, REAL)),
        r"got network outputs of shape \(8, 1\), expected \(rows, 2\)",
    ),
    "two outputs, one noise": (
        lambda: bnn.condition(bnn.models.regressor(net(2), PRIOR, 0.1), (X, REAL)),
        r"got network outputs of shape \(8, 2\), expected \(rows, 1\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    build, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        build()
