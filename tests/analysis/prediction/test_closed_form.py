"""Closed-form predictions of Laplace approximations: exact linear models, and Monte Carlo."""

from functools import partial
from importlib import import_module
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from scipy.special import expit, softmax
from scipy.stats import multivariate_normal, norm
from targets import NOISE, linear_regression

import bnn_ppl as bnn
from bnn_ppl.analysis.prediction.closed_form import log_probit
from bnn_ppl.storage.arviz_versions import draws_of_arrays

CLOSED_FORM, QUANTILES = (
    import_module(f"bnn_ppl.analysis.prediction.{name}") for name in ("closed_form", "quantiles")
)
RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(20, 3)), 2 * RNG.normal(size=(6, 3))
REAL, LABELS = RNG.normal(size=20), np.arange(20) % 3
STRUCTURES = ["diagonal", "kronecker", "last_layer", "full"]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def fitted(posterior, num_draws=1, init=None, **options):
    method = bnn.laplace(posterior, **options)
    start = posterior.init(jax.random.key(1)) if init is None else init
    values = {site: np.asarray(own)[None, None] for site, own in posterior.constrain(start).items()}
    init = draws_of_arrays({"posterior": values})
    return bnn.run(
        jax.random.key(0), posterior, method, num_draws=num_draws, init=init, progress=False
    )


def test_of_a_linear_regression_it_is_the_exact_predictive():
    target = linear_regression(1.0, "posterior")
    posterior = bnn.condition(target.model, target.data)
    mode = {"weights": jnp.asarray(target.means["weights"])}
    draws = fitted(posterior, init=mode, structure="full")
    x = RNG.normal(size=(5, target.data[0].shape[1]))
    y = RNG.normal(size=5)
    mean = x @ target.means["weights"]
    own = np.einsum("ni,ij,nj->n", x, target.covariance["weights"], x)
    law = norm(mean, np.sqrt(own + NOISE**2))
    found = bnn.predict_closed_form(posterior, draws, (x, y))
    expected = {
        "mean": mean,
        "variance": own + NOISE**2,
        "epistemic_variance": own,
        "entropy": law.entropy(),
        "expected_entropy": np.full(5, norm(0, NOISE).entropy()),
        "mutual_information": 0.5 * np.log1p(own / NOISE**2),
        "log_prob": law.logpdf(y),
    }
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-8, err_msg=name)
    form = {"predictive": "closed_form"}
    quantiles = bnn.predict_quantiles(posterior, draws, x, (0.05, 0.5), **form)
    np.testing.assert_allclose(quantiles, [law.ppf(0.05), law.ppf(0.5)], rtol=1e-8)
    np.testing.assert_allclose(bnn.predict_cdf(posterior, draws, x, y, **form), law.cdf(y))
    more = bnn.predict_probabilities(posterior, draws, x, [0.5], "more", **form)
    np.testing.assert_allclose(more, law.sf(0.5)[:, None])


def moments_by_draws(posterior, draws, name):
    """Mean and covariance of the linearised network's outputs at rows, over draws."""
    functions = bnn.function_draws(bnn.linearised(posterior, draws), draws, NEW)
    return functions.posterior[name].values[0]


@pytest.mark.thorough
@pytest.mark.parametrize("structure", STRUCTURES)
def test_its_moments_are_those_of_draws_of_the_linearised_network(structure):
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal()), (X, REAL))
    draws = fitted(posterior, 4000, structure=structure)
    found = bnn.predict_closed_form(posterior, draws, (NEW, None))
    each = moments_by_draws(posterior, draws, "mean")
    sd = np.sqrt(found["epistemic_variance"])
    np.testing.assert_array_less(np.abs(found["mean"] - each.mean(0)), 5 * sd / np.sqrt(4000))
    np.testing.assert_allclose(found["epistemic_variance"], each.var(0), rtol=0.12)
    noise = draws.fitted["noise.loc"].values
    known = posterior.constrain({**posterior.init(jax.random.key(0)), "noise": noise[0]})["noise"]
    np.testing.assert_allclose(found["variance"] - found["epistemic_variance"], known**2)


@pytest.mark.thorough
def test_a_convolution_has_its_moments_too():
    class Convolution(nnx.Module):
        def __init__(self, *, rngs):
            self.first = nnx.Conv(1, 2, (2, 2), rngs=rngs, param_dtype=float)
            self.last = nnx.Linear(18, 1, rngs=rngs, param_dtype=float)

        def __call__(self, x):
            return self.last(jnp.tanh(self.first(x)).reshape(len(x), -1))

    images = RNG.normal(size=(20, 3, 3, 1))
    model = bnn.models.regressor(Convolution, bnn.priors.normal(), 0.3)
    posterior = bnn.condition(model, (images, REAL))
    draws = fitted(posterior, 4000)
    found = bnn.predict_closed_form(posterior, draws, (images[:4], None))
    each = bnn.function_draws(bnn.linearised(posterior, draws), draws, images[:4])
    spread = each.posterior["mean"].values[0].var(0)
    np.testing.assert_allclose(found["epistemic_variance"], spread, rtol=0.12)


@pytest.mark.thorough
def test_several_outputs_have_a_joint_density():
    net = partial(bnn.nets.MLP, 3, (4,), 2)
    model = bnn.models.regressor(net, bnn.priors.normal(), num_outputs=2, covariance="full")
    posterior = bnn.condition(model, (X, RNG.normal(size=(20, 2))))
    draws = fitted(posterior, 4000)
    y = RNG.normal(size=(6, 2))
    found = bnn.predict_closed_form(posterior, draws, (NEW, y))
    each = moments_by_draws(posterior, draws, "mean")
    np.testing.assert_allclose(found["epistemic_variance"], each.var(0), rtol=0.12)
    fit = {site: jnp.asarray(draws.fitted[f"{site}.loc"].values[0]) for site in posterior.prior_std}
    law = posterior.predictive(posterior.constrain(fit), NEW)
    for row in range(6):
        both = np.cov(each[:, row].T) + np.broadcast_to(law.covariance_matrix, (6, 2, 2))[row]
        expected = multivariate_normal(found["mean"][row], both).logpdf(y[row])
        assert found["log_prob"][row] == pytest.approx(expected, abs=0.1)


def test_outputs_that_form_no_event_have_a_density_each():
    def model(x, y=None):
        net = bnn.random_network("net", partial(bnn.nets.MLP, 3, (), 2), bnn.priors.normal(1.0))
        with numpyro.plate("rows", len(x), dim=-2), numpyro.plate("outputs", 2, dim=-1):
            numpyro.sample("y", dist.Normal(net(x), 0.5), obs=y)

    y = RNG.normal(size=(20, 2))
    posterior = bnn.condition(model, (X, y))
    draws = fitted(posterior, structure="diagonal")
    found = bnn.predict_closed_form(posterior, draws, (X, y))
    assert found["log_prob"].dims == ("row", "output")
    expected = norm(found["mean"], np.sqrt(found["variance"])).logpdf(y)
    np.testing.assert_allclose(found["log_prob"], expected, rtol=1e-6)


def test_a_column_of_y_gives_columns():
    def model(x, y=None):
        net = bnn.random_network("net", partial(bnn.nets.MLP, 3, (), 1), bnn.priors.normal(1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(net(x), 0.5).to_event(1), obs=y)

    posterior, form = bnn.condition(model, (X, REAL[:, None])), {"predictive": "closed_form"}
    draws = fitted(posterior, structure="full")
    found = bnn.predict(posterior, draws, (X, REAL[:, None]), crps=True, **form)
    for name in ("mean", "variance", "crps"):
        assert found[name].dims == ("row", "output"), name
    assert found["log_prob"].dims == ("row",)
    assert bnn.predict_quantiles(posterior, draws, X, [0.1, 0.5], **form).shape == (2, 20, 1)
    assert bnn.predict_cdf(posterior, draws, X, REAL[:, None], **form).shape == (20, 1)


# --- classes


def test_for_two_classes_it_is_mackays_formula_and_no_logit_is_special():
    logits, root = RNG.normal(size=2) * 3, RNG.normal(size=(2, 2))
    covariance = root @ root.T
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    expected = expit((logits[1] - logits[0]) / np.sqrt(1 + np.pi / 8 * variance))
    assert np.exp(log_probit(logits, covariance)[1]) == pytest.approx(expected)
    moved = log_probit(logits + 100, covariance + 7)
    np.testing.assert_allclose(moved, log_probit(logits, covariance))


@pytest.mark.parametrize(("num_classes", "most"), [(2, 0.01), (4, 0.1)])
def test_it_is_near_monte_carlo_and_nearer_than_two_simpler_forms(num_classes, most):
    """Distances in total variation: 0.003 (0.11, 0.05) of 2 classes; of 4 0.08 (0.18, 0.12)."""
    rng, errors = np.random.default_rng(1), []
    for _ in range(30):
        logits, root = 2 * rng.normal(size=num_classes), 2 * rng.normal(size=(2, num_classes)).T
        covariance = root @ root.T + 3  # which moves all logits together
        truth = softmax(rng.multivariate_normal(logits, covariance, 20_000), 1).mean(0)
        found = np.exp(log_probit(logits, covariance))
        alone = softmax(logits / np.sqrt(1 + np.pi / 8 * np.diag(covariance)))
        guesses = (found, softmax(logits), alone)
        errors.append([np.abs(guess - truth).sum() / 2 for guess in guesses])
    near, point, alone = np.mean(errors, 0)
    assert near < most and near < 0.8 * min(point, alone)


@pytest.mark.thorough
def test_of_a_network_it_is_near_the_average_of_its_linearised_draws():
    net = partial(bnn.nets.MLP, 3, (4,), 3)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal()), (X, LABELS))
    draws = fitted(posterior, 2000)
    y = np.arange(6) % 3
    found = bnn.predict_closed_form(posterior, draws, (NEW, y))
    expected = bnn.predict(posterior, draws, (NEW, y))
    assert np.abs(found["probs"] - expected["probs"]).max() < 0.1
    np.testing.assert_allclose(found["probs"].sum("class"), 1)
    chosen = found["probs"].values[np.arange(6), y]
    np.testing.assert_allclose(found["log_prob"], np.log(chosen))
    np.testing.assert_allclose(found["entropy"], bnn.metrics.entropy(found))
    sampled = bnn.predict(posterior, draws, NEW, predictive="sampled")
    assert np.abs(sampled["probs"] - expected["probs"]).max() > 0.02  # of another network


# --- rows in parts


def counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 0.3).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def ordered(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.OrderedLogistic(x @ w, jnp.array([-1.0, 1.0])), obs=y)


def of_network(model, width, *options, **named):
    net = partial(bnn.nets.MLP, 3, (), width)
    return model(net, bnn.priors.normal(), *options, **named)


LIKELIHOODS = {
    "classes": (of_network(bnn.models.classifier, 3), LABELS),
    "two classes": (of_network(bnn.models.classifier, 2), LABELS % 2),
    "one output": (of_network(bnn.models.regressor, 1, 0.5), REAL),
    "outputs": (of_network(bnn.models.regressor, 2, 0.5, num_outputs=2), X[:, :2]),
    "counts": (counts, LABELS),
    "ordered classes": (ordered, LABELS),
}
PART = 4


@pytest.mark.thorough
@pytest.mark.parametrize("num_rows", [PART - 1, PART, PART + 3])
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_rows_in_parts_are_predicted_as_together(kind, num_rows, monkeypatch):
    model, y = LIKELIHOODS[kind]
    posterior = bnn.condition(model, (X, y))
    forms = ["sampled"]
    if kind in ("counts", "ordered classes"):
        draws = bnn.prior_draws(jax.random.key(0), posterior, 3)
    else:
        forms += ["linearised", "closed_form"]
        draws = fitted(posterior, 3)
    outputs = {"two classes": 2, "one output": 1, "outputs": 2}.get(kind, 3)
    monkeypatch.setattr(QUANTILES, "_NUMBERS_AT_ONCE", PART * 3)  # of as many draws
    for form in forms:
        rows = X[:num_rows], y[:num_rows]
        together = bnn.predict(posterior, draws, rows, predictive=form)
        # Once by the caller's parts, and once by those within which gradients fit into memory.
        found = [bnn.predict(posterior, draws, rows, predictive=form, batch_size=PART)]
        with monkeypatch.context() as patch:
            numbers = PART * outputs * posterior.num_weights
            patch.setattr(CLOSED_FORM, "_NUMBERS_AT_ONCE", numbers)
            found.append(bnn.predict(posterior, draws, rows, predictive=form))
        for part, (name, values) in product(found, together.items()):
            np.testing.assert_allclose(part[name], values, rtol=1e-9, err_msg=name)
        if kind in ("one output", "outputs"):
            quantiles = bnn.predict_quantiles(posterior, draws, rows[0], 0.8, predictive=form)
            assert quantiles.shape == (1, *together["mean"].shape)
            assert (quantiles[0] > together["mean"].values).all()


@pytest.mark.parametrize("form", ["linearised", "closed_form"])
def test_other_draws_are_refused(form):
    target = linear_regression(1.0, "posterior")
    posterior = bnn.condition(target.model, target.data)
    draws = bnn.prior_draws(jax.random.key(0), posterior, 2)
    with pytest.raises(ValueError, match="got .*draws of prior .*expected those of laplace"):
        bnn.predict(posterior, draws, target.data, predictive=form)
    with pytest.raises(ValueError, match="got predictive='exact', expected one of 'linearised'"):
        bnn.predict(posterior, draws, target.data, predictive="exact")


def test_probabilities_of_exact_values_are_none_in_closed_form():
    target = linear_regression(1.0, "posterior")
    posterior = bnn.condition(target.model, target.data)
    draws = bnn.prior_draws(jax.random.key(0), posterior, 2)
    given = posterior, draws, target.data[0], [0.5], "equal"
    with pytest.raises(ValueError, match="got which='equal' in closed form, .*'at_most' or 'more'"):
        bnn.predict_probabilities(*given, predictive="closed_form")


@pytest.mark.thorough
def test_a_run_without_its_covariance_is_refused():
    target = linear_regression(1.0, "posterior")
    posterior = bnn.condition(target.model, target.data)
    draws = fitted(posterior, structure="full")
    del draws.fitted["root"]
    with pytest.raises(ValueError, match="got a run of laplace without 'root', expected"):
        bnn.predict_closed_form(posterior, draws, target.data)
