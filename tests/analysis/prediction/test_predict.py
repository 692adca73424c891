"""Predictions against brute-force NumPy averages over hand-made draws."""

import gc
import inspect
import warnings
import weakref
from functools import cache, partial, wraps
from importlib import import_module

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.stats as st
import xarray
from flax import nnx
from marks import quick_first
from scipy.special import expit, logsumexp, softmax

import bnn_ppl as bnn
from bnn_ppl.analysis.prediction.per_draw import key_of
from bnn_ppl.methods.layers.layers import tapped
from bnn_ppl.methods.method import METHODS
from bnn_ppl.storage.arviz_versions import draws_of_arrays
from bnn_ppl.storage.inference_data import draws_of

PREDICT = import_module("bnn_ppl.analysis.prediction.predict")
BLOCKS = import_module("bnn_ppl.storage.inference_data")
CHAINS, DRAWS, ROWS = 2, 7, 11
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3))
REAL = RNG.normal(size=ROWS)
LABELS = np.arange(ROWS) % 3
PRIOR = bnn.priors.normal()


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def network_draws(num_outputs, chains=CHAINS, draws=DRAWS, **others):
    """Make up draws of a linear network, and the outputs (chain * draw, row, output) they give."""
    rng = np.random.default_rng(1)
    values = {
        "net.layers.0.bias": rng.normal(size=(chains, draws, num_outputs)),
        "net.layers.0.kernel": rng.normal(size=(chains, draws, 3, num_outputs)),
    }
    kernel, bias = (values[f"net.layers.0.{part}"] for part in ("kernel", "bias"))
    outputs = np.einsum("ni,cdik->cdnk", X, kernel) + bias[:, :, None]
    draws = draws_of_arrays({"posterior": values | others}, {"method": "made up"})
    return draws, outputs.reshape(-1, ROWS, num_outputs)


def linear_net(num_outputs):
    return partial(bnn.nets.MLP, 3, (), num_outputs)


def entropy_of(probs):
    return -(probs * np.log(probs)).sum(-1)


def conditioned_once(build):
    """Share a posterior among the tests in its float type; each of them has its own draws."""

    @cache
    def of_type(double):
        return build()

    @wraps(build)
    def shared():
        posterior, draws, y, *expected = of_type(jax.config.jax_enable_x64)
        return posterior, draws.copy(), y, *(dict(values) for values in expected)

    return shared


# --- each likelihood against NumPy


@conditioned_once
def classes():
    draws, outputs = network_draws(3)
    posterior = bnn.condition(bnn.models.classifier(linear_net(3), PRIOR), (X, LABELS))
    probs = softmax(outputs, axis=-1)
    expected = class_average(probs, LABELS)
    return posterior, draws, LABELS, expected, {"probs": probs}


@conditioned_once
def binary():
    def model(x, y=None):
        logits = bnn.random_network("net", linear_net(1), PRIOR)(x)[:, 0]
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    draws, outputs = network_draws(1)
    labels = np.arange(ROWS) % 2
    probs = np.stack([expit(-outputs[..., 0]), expit(outputs[..., 0])], -1)
    expected = class_average(probs, labels)
    return bnn.condition(model, (X, labels)), draws, labels, expected, {"probs": probs}


@conditioned_once
def same_for_all_rows():
    """Classes by their shares alone: NumPyro expands the distribution to the rows of the plate."""

    def model(x, y=None):
        logits = numpyro.sample("logits", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    values = RNG.normal(size=(CHAINS, DRAWS, 3))
    draws = draws_of_arrays({"posterior": {"logits": values}}, {"method": "made up"})
    probs = np.repeat(softmax(values.reshape(-1, 1, 3), axis=-1), ROWS, axis=1)
    expected = class_average(probs, LABELS)
    return bnn.condition(model, (X, LABELS)), draws, LABELS, expected, {"probs": probs}


def class_average(probs, labels):
    """Average over draws, and how its entropy parts into the draws' own and their disagreement."""
    average = probs.mean(0)
    return {
        "probs": average,
        "entropy": entropy_of(average),
        "expected_entropy": entropy_of(probs).mean(0),
        "mutual_information": entropy_of(average) - entropy_of(probs).mean(0),
        "log_prob": np.log(average[np.arange(ROWS), labels]),
    }


def gaussian_average(mean, std, y):
    """Law of total variance, mixture density, entropy of the Gaussian of equal moments."""
    std = np.broadcast_to(std, mean.shape)
    variance = (std**2).mean(0) + mean.var(0)
    entropy, expected_entropy = st.norm(0, np.sqrt(variance)).entropy(), st.norm(0, std).entropy()
    return {
        "mean": mean.mean(0),
        "variance": variance,
        "epistemic_variance": mean.var(0),
        "entropy": entropy,
        "expected_entropy": expected_entropy.mean(0),
        "mutual_information": entropy - expected_entropy.mean(0),
        "log_prob": logsumexp(st.norm(mean, std).logpdf(y), axis=0) - np.log(len(mean)),
    }


@conditioned_once
def heteroscedastic():
    draws, outputs = network_draws(2)
    model = bnn.models.regressor(linear_net(2), PRIOR, "softplus")
    mean, std = outputs[..., 0], np.log1p(np.exp(outputs[..., 1]))
    expected = gaussian_average(mean, std, REAL)
    return bnn.condition(model, (X, REAL)), draws, REAL, expected, {"mean": mean}


@conditioned_once
def learnt_noise():
    noise = np.random.default_rng(2).uniform(0.2, 1.5, size=(CHAINS, DRAWS))
    draws, outputs = network_draws(1, noise=noise)
    model = bnn.models.regressor(linear_net(1), PRIOR, dist.LogNormal(-1.0, 0.5))
    mean = outputs[..., 0]
    expected = gaussian_average(mean, noise.reshape(-1, 1), REAL)
    return bnn.condition(model, (X, REAL)), draws, REAL, expected, {"mean": mean}


@conditioned_once
def outputs_in_a_plate():
    def model(x, y=None):
        mean = bnn.random_network("net", linear_net(2), PRIOR)(x)
        with numpyro.plate("outputs", 2, dim=-1), numpyro.plate("data", len(x), dim=-2):
            numpyro.sample("y", dist.Normal(mean, 0.7), obs=y)

    draws, mean = network_draws(2)
    y = X[:, :2]
    expected = gaussian_average(mean, 0.7, y)
    return bnn.condition(model, (X, y)), draws, y, expected, {"mean": mean}


@conditioned_once
def outputs_as_an_event():
    def model(x, y=None):
        mean = bnn.random_network("net", linear_net(2), PRIOR)(x)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(mean, 0.7).to_event(1), obs=y)

    draws, mean = network_draws(2)
    y = X[:, :2]
    expected = gaussian_average(mean, 0.7, y)
    joint = st.norm(mean, 0.7).logpdf(y).sum(-1)  # of both outputs under one draw, then averaged
    expected["log_prob"] = logsumexp(joint, axis=0) - np.log(len(mean))
    return bnn.condition(model, (X, y)), draws, y, expected, {"mean": mean}


@conditioned_once
def counts():
    def model(x, y=None):
        log_rate = bnn.random_network("net", linear_net(1), PRIOR)(x)[:, 0]
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Poisson(jnp.exp(log_rate)), obs=y)

    draws, outputs = network_draws(1)
    rate, y = np.exp(outputs[..., 0]), np.arange(ROWS)
    variance = rate.mean(0) + rate.var(0)
    expected = {
        "mean": rate.mean(0),
        "variance": variance,
        "epistemic_variance": rate.var(0),
        "entropy": st.norm(0, np.sqrt(variance)).entropy(),
        "expected_entropy": np.full(ROWS, np.nan),  # NumPyro knows no closed form of it
        "mutual_information": np.full(ROWS, np.nan),
        "log_prob": logsumexp(st.poisson(rate).logpmf(y), axis=0) - np.log(len(rate)),
        "pit_lower": st.poisson(rate).cdf(y - 1).mean(0),
        "pit_upper": st.poisson(rate).cdf(y).mean(0),
    }
    return bnn.condition(model, (X, y)), draws, y, expected, {"mean": rate}


LIKELIHOODS = [
    classes,
    binary,
    same_for_all_rows,
    heteroscedastic,
    learnt_noise,
    outputs_in_a_plate,
    outputs_as_an_event,
    counts,
]
every_likelihood = pytest.mark.parametrize("build", LIKELIHOODS)


def assert_equal(prediction, expected, rtol):
    assert set(prediction.data_vars) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(
            prediction[name], values, rtol=rtol, atol=rtol, err_msg=name, strict=False
        )
        assert prediction[name].shape == values.shape


@every_likelihood
def test_predict_is_the_average_over_draws(build, float64):
    posterior, draws, y, expected, _ = build()
    prediction = bnn.predict(posterior, draws, (X, y))
    assert_equal(prediction, expected, rtol=1e-9)
    assert prediction["entropy"].dims == ("row", "output")[: np.ndim(expected["entropy"])]
    if "probs" in prediction:
        assert prediction["probs"].dims == ("row", "class")
        np.testing.assert_allclose(prediction["probs"].sum("class"), 1, rtol=1e-12)


@every_likelihood
def test_function_draws_are_the_predictions_of_each_draw(build, float64):
    posterior, draws, _, _, by_draw = build()
    ((name, expected),) = by_draw.items()
    got = bnn.function_draws(posterior, draws, X)
    assert list(got.posterior.data_vars) == [name]
    assert got.posterior[name].dims[:2] == ("chain", "draw")
    expected = expected.reshape(CHAINS, DRAWS, *expected.shape[1:])
    np.testing.assert_allclose(got.posterior[name], expected, rtol=1e-9)
    assert got.attrs["method"] == "made up"


IN_ONE_PASS = (classes,)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, marks=() if build in IN_ONE_PASS else pytest.mark.thorough)
        for build in LIKELIHOODS
    ],
)
def test_both_in_one_pass_are_what_each_is_alone(build, float64, monkeypatch):
    posterior, draws, y, _, _ = build()
    monkeypatch.setattr(BLOCKS, "_BYTES_A_BLOCK", 300)  # several blocks a chain
    together = PREDICT.predict_with_functions(posterior, draws, (X, y), batch_size=4)
    prediction = bnn.predict(posterior, draws, (X, y), batch_size=4)
    functions = bnn.function_draws(posterior, draws, X)
    xarray.testing.assert_equal(together[0], prediction)
    xarray.testing.assert_allclose(together[1].posterior, functions.posterior, rtol=1e-12)


@every_likelihood
def test_predictive_draws_have_the_log_likelihood_of_each_row(build, float64, monkeypatch):
    posterior, draws, y, _, _ = build()
    got = bnn.predictive_draws(jax.random.key(0), posterior, draws)
    assert set(got) >= {"posterior", "posterior_predictive", "log_likelihood"}
    values = {site: leaf[1, 3].values for site, leaf in draws.posterior.items()}
    position = posterior.unconstrain(jax.tree.map(jnp.asarray, values))
    rows = posterior.log_likelihood(position, posterior.data)
    np.testing.assert_allclose(got.log_likelihood["y"][1, 3], rows, rtol=1e-9)
    assert got.log_likelihood["y"].dims == ("chain", "draw", "row")
    drawn = got.posterior_predictive["y"]
    assert drawn.dims[2:] == got.observed_data["y"].dims == ("row", "output")[: np.ndim(y)]
    assert np.isfinite(az.loo(got).elpd_loo)
    assert list(draws) == ["posterior"]  # left as they were
    monkeypatch.setattr(BLOCKS, "_BYTES_A_BLOCK", 300)
    again = bnn.predictive_draws(jax.random.key(0), posterior, draws)
    np.testing.assert_array_equal(again.posterior_predictive["y"], drawn)


def test_predictive_draws_of_y_are_of_the_distribution_of_their_draw(float64):
    posterior, _, *_ = heteroscedastic()
    draws, outputs = network_draws(2, chains=1, draws=1)
    draws = draws_of_arrays(
        {"posterior": {site: np.repeat(leaf, 4000, 1) for site, leaf in draws.posterior.items()}}
    )
    drawn = bnn.predictive_draws(jax.random.key(0), posterior, draws).posterior_predictive["y"][0]
    mean, std = outputs[0, :, 0], np.log1p(np.exp(outputs[0, :, 1]))
    z = (drawn.values - mean) / std
    assert np.abs(z.mean(0)).max() < 5 / 4000**0.5
    assert np.abs(z.std(0) - 1).max() < 5 / 8000**0.5
    assert len(np.unique(drawn)) == drawn.size


def test_predictive_draws_of_new_rows(float64):
    posterior, draws, *_ = classes()
    got = bnn.predictive_draws(jax.random.key(0), posterior, draws, (X[:5], LABELS[:5]))
    assert got.posterior_predictive["y"].shape == (CHAINS, DRAWS, 5)
    np.testing.assert_array_equal(got.observed_data["y"], LABELS[:5])
    alone = bnn.predictive_draws(jax.random.key(0), posterior, draws, X[:5])
    np.testing.assert_array_equal(alone.posterior_predictive["y"], got.posterior_predictive["y"])
    assert "log_likelihood" not in alone and "observed_data" not in alone


def test_a_tap_is_seen_and_leaves_nothing_behind():
    posterior, draws, *_ = classes()
    plain = bnn.predict(posterior, draws, (X, None))["probs"]
    for _ in range(2):
        with tapped(lambda name, layer, inputs: 0 * layer(inputs)):
            changed = bnn.predict(posterior, draws, (X, None))["probs"]
        np.testing.assert_allclose(changed, 1 / 3)
        np.testing.assert_array_equal(bnn.predict(posterior, draws, (X, None))["probs"], plain)


@pytest.mark.thorough
def test_posteriors_are_not_kept_for_ever():
    own = classes.__wrapped__  # not the one that tests share
    posterior, draws, *_ = own()
    gone = weakref.ref(posterior.predictive)
    bnn.predict(posterior, draws, (X, None))
    del posterior
    for _ in range(8):  # as many as are kept
        another, *_ = own()
        bnn.predict(another, draws, (X, None))
    gc.collect()
    assert gone() is None


def test_a_second_call_traces_nothing():
    posterior, draws, *_ = classes()
    traced = []

    def predictive(values, x):
        traced.append(x.shape)
        return posterior.predictive(values, x)

    counting = posterior._replace(predictive=predictive)
    answers = [
        bnn.predict,
        lambda *at: bnn.function_draws(*at[:2], at[2][0]),
        lambda *at: bnn.predictive_draws(jax.random.key(0), *at[:2], (at[2][0], LABELS)),
    ]
    for answer in answers:
        answer(counting, draws, (X, None))
        assert traced
        traced.clear()
        answer(counting, draws, (X + 1, None))
        assert not traced


@pytest.mark.parametrize("build", [classes, heteroscedastic])
def test_float32_gives_the_same(build):
    posterior, draws, y, expected, _ = build()
    assert_equal(bnn.predict(posterior, draws, (X, y)), expected, rtol=3e-5)


# --- streaming


@pytest.mark.parametrize(
    ("build", "batch_size"), [(classes, 1), (classes, 100), (outputs_as_an_event, 4)]
)
def test_any_number_of_rows_at_a_time_gives_the_same(build, batch_size, float64):
    posterior, draws, y, expected, _ = build()
    prediction = bnn.predict(posterior, draws, (X, y), batch_size=batch_size)
    assert_equal(prediction, expected, rtol=1e-9)


@quick_first(("build", "draws_a_block"), [(classes, 1), (classes, DRAWS), (learnt_noise, 3)])
def test_any_number_of_draws_at_a_time_gives_the_same(build, draws_a_block, float64, monkeypatch):
    posterior, draws, y, expected, by_draw = build()
    bytes_a_draw = sum(draws.posterior[site][0, 0].nbytes for site in draws.posterior)
    monkeypatch.setattr(BLOCKS, "_BYTES_A_BLOCK", draws_a_block * bytes_a_draw + 1)
    prediction = bnn.predict(posterior, draws, (X, y), batch_size=4)
    assert_equal(prediction, expected, rtol=1e-9)
    ((name, values),) = by_draw.items()
    got = bnn.function_draws(posterior, draws, X).posterior[name]
    np.testing.assert_allclose(got, values.reshape(got.shape), rtol=1e-9)


def test_a_block_never_holds_more_bytes_than_allowed(monkeypatch):
    draws, _ = network_draws(3, chains=2, draws=10)
    sites = draws_of(draws, list(draws.posterior))
    bytes_a_draw = sum(values[0, 0].nbytes for values in sites.values())
    monkeypatch.setattr(BLOCKS, "_BYTES_A_BLOCK", 4 * bytes_a_draw)
    weights = np.ones((2, 10))
    blocks = [next(iter(block.values())) for block, _ in BLOCKS.in_blocks(sites, weights)]
    assert [len(block) for block in blocks] == [4, 4, 2] * 2


def test_thousands_of_draws(float64):
    draws, outputs = network_draws(3, chains=2, draws=1000)
    posterior = bnn.condition(bnn.models.classifier(linear_net(3), PRIOR), (X, LABELS))
    average = softmax(outputs, axis=-1).mean(0)
    prediction = bnn.predict(posterior, draws, (X, LABELS), batch_size=6)
    np.testing.assert_allclose(prediction["probs"], average, rtol=1e-10)
    expected = np.log(average[np.arange(ROWS), LABELS])
    np.testing.assert_allclose(prediction["log_prob"], expected, rtol=1e-10)


def test_a_draw_that_weighs_three_counts_as_three(float64, monkeypatch):
    """Weights are relative within a chain, chains weigh the same; a draw may weigh nothing."""
    draws, _ = network_draws(1, chains=2, draws=3)
    model = bnn.models.regressor(linear_net(1), PRIOR, 0.4)
    posterior = bnn.condition(model, (X, REAL))
    logs = np.log([[1.0, 3.0, 2.0], [3e-9, 3e-9, 1e-60]])
    values = {site: array.values for site, array in draws.posterior.items()}
    draws = draws_of_arrays({"posterior": values, "sample_stats": {"log_weight": logs}})
    chain, draw = np.repeat([[0], [1]], 6, 1), [[0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]]
    repeated = {site: values.values[chain, draw] for site, values in draws.posterior.items()}
    expected = bnn.predict(posterior, draws_of_arrays({"posterior": repeated}), (X, REAL))
    bytes_a_draw = sum(draws.posterior[site][0, 0].nbytes for site in draws.posterior)
    for draws_a_block in (2, 100):
        monkeypatch.setattr(BLOCKS, "_BYTES_A_BLOCK", draws_a_block * bytes_a_draw + 1)
        got = bnn.predict(posterior, draws, (X, REAL))
        assert_equal(got, expected, rtol=1e-6)
    functions = bnn.function_draws(posterior, draws, X)  # whose R-hat and ESS need the weights
    np.testing.assert_array_equal(functions.sample_stats["log_weight"], logs)


def test_one_draw_has_no_epistemic_variance(float64):
    draws, outputs = network_draws(1, chains=1, draws=1)
    model = bnn.models.regressor(linear_net(1), PRIOR, 0.4)
    prediction = bnn.predict(bnn.condition(model, (X, REAL)), draws, (X, REAL))
    np.testing.assert_array_equal(prediction["epistemic_variance"], 0)
    np.testing.assert_allclose(prediction["variance"], 0.16, rtol=1e-12)
    expected = st.norm(outputs[0, :, 0], 0.4).logpdf(REAL)
    np.testing.assert_allclose(prediction["log_prob"], expected, rtol=1e-12)


def test_far_off_rows_keep_a_finite_log_density(float64):
    """Where every draw's density underflows: the sum must be of logarithms."""
    posterior, draws, y, _, by_draw = learnt_noise()
    far = y + 500
    prediction = bnn.predict(posterior, draws, (X, far))
    noise = draws.posterior["noise"].values.reshape(-1, 1)
    log_density = st.norm(by_draw["mean"], noise).logpdf(far)
    assert np.all(np.exp(log_density) == 0)
    expected = logsumexp(log_density, axis=0) - np.log(len(log_density))
    np.testing.assert_allclose(prediction["log_prob"], expected, rtol=1e-10)


def test_certain_classes_have_no_entropy_and_no_nan():
    posterior, draws, y, _, by_draw = classes()
    certain = draws.sel(draw=[0]).map(lambda values: 1e4 * values)
    prediction = bnn.predict(posterior, certain, (X, y))
    votes = by_draw["probs"][::DRAWS].argmax(-1)
    shares = (votes[..., None] == np.arange(3)).mean(0)
    assert (shares == 0).any()
    np.testing.assert_allclose(prediction["probs"], shares, atol=1e-6)
    entropy = st.entropy(shares, axis=-1)
    np.testing.assert_allclose(prediction["entropy"], entropy, atol=1e-5)
    np.testing.assert_allclose(prediction["expected_entropy"], 0, atol=1e-6)
    np.testing.assert_allclose(prediction["mutual_information"], entropy, atol=1e-5)


# --- what may be given


@pytest.mark.parametrize("build", [classes, heteroscedastic, outputs_as_an_event])
def test_without_y_there_is_no_log_prob(build, float64):
    posterior, draws, _, expected, _ = build()
    del expected["log_prob"]
    assert_equal(bnn.predict(posterior, draws, (X, None)), expected, rtol=1e-9)


def test_rows_with_nan_inputs_are_counted_in_a_warning(float64):
    posterior, draws, *_ = classes()
    x = X.copy()
    x[[1, 3], 0] = np.nan, np.inf
    told = rf"got NaN or infinite values in 2 of {ROWS} rows of x \(first rows \[1, 3\]\), expected"
    for function, rows in ((bnn.predict, (x, None)), (bnn.function_draws, x)):
        with pytest.warns(UserWarning, match=told) as warned:
            function(posterior, draws, rows)
        assert [warning.filename for warning in warned] == [__file__]
    with warnings.catch_warnings(action="error"):
        bnn.predict(posterior, draws, (X, None))


def test_new_rows_need_not_be_as_many_as_the_conditioned(float64):
    posterior, draws, y, expected, _ = classes()
    prediction = bnn.predict(posterior, draws, (X[2:5], y[2:5]))
    assert_equal(prediction, {name: values[2:5] for name, values in expected.items()}, rtol=1e-9)


def test_sites_that_the_model_lacks_are_ignored(float64):
    posterior, draws, y, expected, _ = classes()
    draws.posterior["other"] = draws.posterior["net.layers.0.bias"] * 0
    assert_equal(bnn.predict(posterior, draws, (X, y)), expected, rtol=1e-9)


def test_whole_numbers_are_a_real_outcome_too(float64):
    posterior, draws, _, _, _ = heteroscedastic()
    whole = np.arange(ROWS) - 5
    as_integers = bnn.predict(posterior, draws, (X, whole))
    as_floats = bnn.predict(posterior, draws, (X, whole.astype(float)))
    np.testing.assert_array_equal(as_integers["log_prob"], as_floats["log_prob"])


NAMES = np.array(["setosa", "versicolor", "virginica"])
NAMED = {
    "text": (NAMES, ["setosa", "versicolor", "virginica"]),
    "objects": (NAMES.astype(object), ["setosa", "versicolor", "virginica"]),
    "1 to 3": (np.arange(1, 4), [1, 2, 3]),
}


@pytest.mark.filterwarnings("ignore:got labels from 1 to 3")
@quick_first("case", NAMED)
def test_names_of_classes_are_kept_in_predictions_and_metrics(case, float64, tmp_path):
    names, kept = NAMED[case]
    posterior, draws, y, expected, _ = classes()
    named = bnn.condition(bnn.models.classifier(linear_net(3), PRIOR), (X, names[LABELS]))
    prediction = bnn.predict(named, draws, (X, names[y]))
    assert_equal(prediction, expected, rtol=1e-9)
    assert prediction["class"].values.tolist() == kept
    assert bnn.function_draws(named, draws, X).posterior["class"].values.tolist() == kept
    plain, some = bnn.predict(posterior, draws, (X, y)), y < 2  # labels 1 and 2 of 1 to 3
    for y_of in (names[y], names[y].tolist()):
        pd.testing.assert_series_equal(
            bnn.metrics.summary(prediction, y_of), bnn.metrics.summary(plain, y)
        )
    assert bnn.metrics.nll(prediction.isel(row=some), names[y[some]]) == bnn.metrics.nll(
        plain.isel(row=some), y[some]
    )
    tables = bnn.compare({"a": prediction}, names[y]), bnn.compare({"a": plain}, y)
    pd.testing.assert_frame_equal(*tables)
    stored = bnn.predict(named, draws, (X, names[y]), batch_size=4, folder=tmp_path / "x.zarr")
    assert stored["class"].values.tolist() == kept
    with pytest.raises(ValueError, match="got the class label .*, expected those of the training"):
        bnn.predict(named, draws, (X, np.full(ROWS, "rose" if case != "1 to 3" else 0)))


def test_one_hot_rows_and_whole_floats_are_class_numbers(float64):
    posterior, draws, y, expected, _ = classes()
    for labels in (y * 1.0, np.eye(3)[y]):
        assert_equal(bnn.predict(posterior, draws, (X, labels)), expected, rtol=1e-9)
        probs = expected["probs"]
        assert bnn.metrics.nll(probs, labels) == bnn.metrics.nll(probs, y)


def test_predictions_whose_classes_have_other_names_are_not_compared():
    _, draws, y, *_ = classes()
    model = bnn.models.classifier(linear_net(3), PRIOR)
    one, other = (
        bnn.predict(bnn.condition(model, (X, names[LABELS])), draws, (X, None))
        for names in (NAMES, np.array(["a", "b", "c"]))
    )
    with pytest.raises(ValueError, match="classes setosa, .* and of a, b, c, expected the same"):
        bnn.compare({"one": one, "other": other}, NAMES[y])


def test_arviz_summarises_function_draws():
    posterior, draws, _, _, by_draw = classes()
    table = az.summary(bnn.function_draws(posterior, draws, X[:2]))
    assert list(table.index) == [f"probs[{row}, {k}]" for row in (0, 1) for k in (0, 1, 2)]
    np.testing.assert_allclose(table["mean"], by_draw["probs"].mean(0)[:2].ravel(), atol=1e-3)
    assert np.isfinite(table[["r_hat", "ess_bulk"]]).all(axis=None)


# --- what is refused

WITHOUT_KERNEL = draws_of_arrays({"posterior": {"net.layers.0.bias": np.zeros((1, 2, 3))}})
REFUSED = {
    "draws without a site": (
        lambda posterior, draws: bnn.predict(posterior, WITHOUT_KERNEL, (X, LABELS)),
        "got draws of net.layers.0.bias, expected net.layers.0.kernel too: use draws of the same",
    ),
    "function draws without a site": (
        lambda posterior, draws: bnn.function_draws(posterior, WITHOUT_KERNEL, X),
        "got draws of net.layers.0.bias, expected net.layers.0.kernel too",
    ),
    "draws of a wider network": (
        lambda posterior, draws: bnn.predict(posterior, network_draws(4)[0], (X, LABELS)),
        r"got draws of net.layers.0.bias of shape \(4,\), expected \(3,\) as in this posterior",
    ),
    "draws of one chain without its axis": (
        lambda posterior, draws: bnn.predict(posterior, draws.isel(chain=0), (X, LABELS)),
        r"got draws without the dimension chain, expected both: .*isel\(chain=\[0\]\)",
    ),
    "y as text": (
        lambda posterior, draws: bnn.predict(posterior, draws, (X, np.full(11, "a"))),
        "got y of dtype <U1, expected real numbers: encode it first",
    ),
    "inputs of another form": (
        lambda posterior, draws: bnn.function_draws(posterior, draws, {"x": X}),
        r"got inputs x of shapes \{'x': \(11, 3\)\}, expected what .* have, \(11, 3\)",
    ),
    "rows that differ in length": (
        lambda posterior, draws: bnn.predict(posterior, draws, [[1.0, 2.0, 3.0], [1.0], [2.0]]),
        r"got x as a list whose rows differ in length, expected an array",
    ),
    "no rows": (
        lambda posterior, draws: bnn.predict(posterior, draws, X[:0]),
        "got inputs x of no rows, expected at least one",
    ),
    "no rows to draw y for": (
        lambda posterior, draws: bnn.predictive_draws(jax.random.key(0), posterior, draws, X[:0]),
        "got inputs x of no rows, expected at least one",
    ),
    "one row as inputs": (
        lambda posterior, draws: bnn.predict(posterior, draws, (X[0], None)),
        r"got inputs x of shape \(3,\), expected rows of \(3,\) as in the data conditioned on",
    ),
    "inputs that are too narrow": (
        lambda posterior, draws: bnn.predict(posterior, draws, (X[:, :2], LABELS)),
        r"^got inputs x with rows of \(2,\), expected \(3,\) as in the data conditioned on: .*same",
    ),
    "inputs that are too wide": (
        lambda posterior, draws: bnn.function_draws(posterior, draws, np.ones((2, 4))),
        r"^got inputs x with rows of \(4,\), expected \(3,\) as in the data conditioned on",
    ),
    "y too short": (
        lambda posterior, draws: bnn.predict(posterior, draws, (X, LABELS[:-1])),
        r"got y of shape \(10,\), expected \(11,\): a row for each of x",
    ),
    "y as a column": (
        lambda posterior, draws: bnn.predict(posterior, draws, (X, LABELS[:, None])),
        r"got y of shape \(11, 1\), expected \(11,\)",
    ),
    "labels between numbers": (
        lambda posterior, draws: bnn.predict(posterior, draws, (X, LABELS + 0.5)),
        "got y of dtype float32, expected int32 as the model saw: use y.astype",
    ),
    "labels of other classes": (
        lambda posterior, draws: bnn.predict(posterior, draws, (X, LABELS + 1)),
        "got y from 1 to 3, expected the classes 0 to 2 of the model: leave out rows of others",
    ),
    "batch size 0": (
        lambda posterior, draws: bnn.predict(posterior, draws, (X, LABELS), batch_size=0),
        "got batch_size=0 for 11 rows, expected at least 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    attempt, message = REFUSED[case]
    posterior, draws, *_ = classes()
    with pytest.raises(ValueError, match=message):
        attempt(posterior, draws)


def test_draws_that_are_not_finite_and_unknown_y_are_warned_of():
    posterior, draws, *_ = learnt_noise()
    y = np.array([*REAL[:-1], np.nan])
    with pytest.warns(UserWarning, match=r"in 1 of 11 rows of y \(first rows \[10\]\)"):
        prediction = bnn.predict(posterior, draws, (X, y))
    assert np.isfinite(prediction["mean"]).all()
    assert np.isfinite(prediction["log_prob"].values).tolist() == [True] * 10 + [False]
    values = {site: array.values.copy() for site, array in draws.posterior.items()}
    values["noise"][0, 0] = np.nan
    bad = draws_of_arrays({"posterior": values})
    with pytest.warns(UserWarning, match=rf"in 1 of {values['noise'].size} draws, expected finite"):
        bnn.predict(posterior, bad, (X, None), batch_size=4)


def test_the_mean_of_a_censored_value_is_that_of_the_value():
    def censored(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            lifetime = dist.Exponential(jnp.exp(x @ w))
            numpyro.sample("y", dist.RightCensoredDistribution(lifetime, x[:, 0] > 1), obs=y)

    posterior = bnn.condition(censored, (X, np.abs(REAL)))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 9)
    means = np.exp(-X @ draws.posterior["w"].values[0].T).T
    found = bnn.function_draws(posterior, draws, X).posterior["mean"].values[0]
    np.testing.assert_allclose(found, means, rtol=1e-4)
    np.testing.assert_allclose(bnn.predict(posterior, draws, X)["mean"], means.mean(0), rtol=1e-4)


def test_a_distribution_without_a_mean_is_named():
    def transformed(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            exp = dist.transforms.ExpTransform()
            law = dist.TransformedDistribution(dist.Normal(x @ w, 1.0), exp)
            numpyro.sample("y", law, obs=y)

    posterior = bnn.condition(transformed, (X, np.abs(REAL)))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 9)
    with pytest.raises(NotImplementedError, match="got Transformed.* use predictive_draws"):
        bnn.function_draws(posterior, draws, X)


class Half(nnx.Module):
    def __init__(self, *, rngs):
        options = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16, "rngs": rngs}
        self.hidden, self.output = nnx.Linear(3, 4, **options), nnx.Linear(4, 1, **options)

    def __call__(self, x):
        return self.output(jnp.tanh(self.hidden(x)))


@pytest.mark.thorough
def test_networks_of_half_precision_are_averaged_in_single():
    posterior = bnn.condition(bnn.models.regressor(Half, bnn.priors.normal()), (X, REAL))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 9)
    mean = bnn.predict(posterior, draws, (X, REAL))["mean"]
    each = bnn.function_draws(posterior, draws, X).posterior["mean"]
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, each.astype(np.float32).mean(("chain", "draw")), rtol=1e-5)


def fixed_plate(x, y=None):
    outputs = bnn.random_network("net", linear_net(1), PRIOR)(x)[:, 0]
    with numpyro.plate("data", ROWS):
        numpyro.sample("y", dist.Normal(outputs, 0.3), obs=y)


@pytest.mark.parametrize("num_rows", [1, 5])
def test_other_rows_than_those_of_a_plate_of_fixed_size_are_refused(num_rows):
    posterior, draws = bnn.condition(fixed_plate, (X, REAL)), network_draws(1)[0]
    assert bnn.predict(posterior, draws, (X, REAL))["mean"].shape == (ROWS,)
    message = (
        rf"^got {num_rows} rows to predict with a model that only works for 11, those it was "
        r"conditioned on, .* plates by the inputs, as in numpyro.plate\('data', len\(x\)\)"
    )
    for predict in (
        lambda: bnn.predict(posterior, draws, (X[:num_rows], None)),
        lambda: bnn.function_draws(posterior, draws, X[:num_rows]),
        lambda: bnn.predict(posterior, draws, (X, REAL), batch_size=num_rows),
    ):
        with pytest.raises(ValueError, match=message):
            predict()


@pytest.mark.parametrize(
    ("method", "options", "got"),
    [
        (bnn.sgld, {"batch_size": 4}, "batch_size=4 with"),
        (bnn.sgld, {"batch_size": 1}, "batch_size=1 with"),  # would be repeated, and run
        (bnn.vogn, {}, "12 rows, tried to see which layers take each row separately, with"),
        (bnn.laplace, {}, "laplace, by two rows, with"),
    ],
)
def test_minibatches_of_a_plate_of_fixed_size_are_refused_at_the_start(method, options, got):
    posterior = bnn.condition(fixed_plate, (X, REAL))
    message = (
        f"^got {got} a model that only works for 11, .* numpyro.plate\\('data', len\\(x\\)\\); "
        "latent sites with a value for each row have none for others$"
    )
    with pytest.raises(ValueError, match=message):
        bnn.run(jax.random.key(0), posterior, method(posterior), progress=False, **options)


def test_chunks_of_a_plate_of_fixed_size_are_refused():
    with pytest.raises(ValueError, match="^got microbatch=4 rows with a model that only works"):
        bnn.condition(fixed_plate, (X, REAL), microbatch=4)


def test_an_error_of_the_model_itself_is_not_taken_for_one_of_the_rows():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w * len(y), 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    draws = draws_of_arrays({"posterior": {"w": np.zeros((1, 4))}})
    with pytest.raises(TypeError, match="NoneType"):
        bnn.predict(posterior, draws, (X[:5], None))


def test_inputs_of_several_parts_have_as_many_rows_in_each():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(x["a"])):
            numpyro.sample("y", dist.Normal(w * x["a"] + x["b"], 1.0), obs=y)

    parts = {"a": X[:, 0], "b": X[:, 1]}
    posterior = bnn.condition(model, (parts, X[:, 0]))
    draws = draws_of_arrays({"posterior": {"w": np.zeros((1, 4))}})
    with pytest.raises(ValueError, match=r"shapes \(11,\), \(10,\), expected as many rows in each"):
        bnn.function_draws(posterior, draws, parts | {"b": X[1:, 1]})
    with pytest.raises(ValueError, match=r"got inputs x of shapes {'a': \(11,\)}, expected what"):
        bnn.function_draws(posterior, draws, {"a": X[:, 0]})


MISPLACED = {
    "draws first": (
        lambda key, posterior, draws: bnn.predict(draws, posterior, (X, LABELS)),
        "got posterior of type InferenceData, expected what bnn_ppl.condition",
    ),
    "x before draws": (
        lambda key, posterior, draws: bnn.function_draws(posterior, X, draws),
        "got draws of type ndarray, expected the InferenceData that bnn_ppl.run gives",
    ),
    "a seed as key": (
        lambda key, posterior, draws: bnn.predictive_draws(0, posterior, draws),
        "got key of type int, expected one key, as jax.random.key",
    ),
    "key after posterior": (
        lambda key, posterior, draws: bnn.prior_draws(posterior, key, 3),
        "got key of type Posterior",
    ),
    "a method not built": (
        lambda key, posterior, draws: bnn.run(key, posterior, bnn.hmc),
        r"got method of type function, expected a built one, such as bnn_ppl.hmc\(posterior\)",
    ),
}


@pytest.mark.parametrize("case", MISPLACED)
def test_arguments_in_each_others_places_are_named(case):
    attempt, message = MISPLACED[case]
    posterior, draws, *_ = classes()
    with pytest.raises(TypeError, match=message):
        attempt(jax.random.key(0), posterior, draws)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_of_a_model_is_refused(name):
    build = getattr(bnn, name)
    others = list(inspect.signature(build).parameters.values())[1:]
    required = {each.name: 0.1 for each in others if each.default is each.empty}
    with pytest.raises(TypeError, match=r"got posterior of type function, expected what bnn_ppl"):
        build(lambda x, y=None: None, **required)


def test_a_row_that_is_not_a_number_leaves_the_draws_their_own_keys():
    ends = 1.0, jnp.nan
    laws = [jnp.array([mean, end]) for mean in (0.1, 0.2) for end in ends]
    keys = [jax.random.key_data(key_of(law, number)) for law in laws for number in (0, 1)]
    assert len({tuple(key.tolist()) for key in keys}) == 8
