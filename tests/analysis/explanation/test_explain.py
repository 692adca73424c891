"""Explanations of a linear model whose answers are known, and what they refuse."""

import warnings
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from logistic import classes_by_a_slope

import bnn_ppl as bnn
from bnn_ppl.analysis.explanation.inputs import Input, grid_of, inputs_of
from bnn_ppl.analysis.weight_space.pruning import pruning_curve
from bnn_ppl.data.tables.encoding import Column, Encoding
from bnn_ppl.plots.style import label_offsets
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
SLOPES, NOISE = np.array([2.0, 0.0, 0.5]), 0.5
Y = (X @ SLOPES).astype(np.float32)


def linear(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ slopes, NOISE), obs=y)


@pytest.fixture(scope="module")
def run():
    posterior = bnn.condition(linear, (X, Y))
    slopes = SLOPES + 0.02 * RNG.normal(size=(2, 50, 3))
    return posterior, draws_of_arrays({"posterior": {"slopes": slopes.astype(np.float32)}})


@pytest.fixture(scope="module")
def found(run):
    return bnn.explain(*run, (X, Y), num_permutations=40)


def test_importance_is_the_fall_of_the_gaussian_log_score(found):
    assert found.importance.index.tolist() == ["input 0", "input 2", "input 1"]
    table = found.importance.loc["input 2"]
    # Of a Gaussian: half the mean square of b (x - x'), 2 b^2 Var(x), over the variance.
    expected = SLOPES[2] ** 2 * X[:, 2].var() / NOISE**2
    assert table["importance"] == pytest.approx(expected, rel=0.15)
    assert table["lower"] < table["importance"] < table["upper"]
    assert abs(found.importance.loc["input 1", "importance"]) < 0.1


def test_effects_are_the_slopes_with_the_band_of_the_draws(run, found):
    effect = found.effects["input 0"]
    slope = np.polyfit(effect.values, effect.mean, 1)[0]
    slopes = np.asarray(run[1]["posterior"]["slopes"])[..., 0].ravel()
    assert slope == pytest.approx(slopes.mean(), rel=1e-4)
    steps = np.broadcast_to(np.diff(effect.mean), np.diff(effect.rows).shape)
    np.testing.assert_allclose(np.diff(effect.rows), steps, atol=1e-4)
    assert (effect.lower <= effect.mean).all() and (effect.mean <= effect.upper).all()
    ends = np.argmin(effect.values), np.argmax(effect.values)
    widths = (effect.upper - effect.lower)[[*ends, len(effect.values) // 2]]
    assert widths[2] < widths[:2].min() / 2  # draws differ most far from 0


def test_rows_are_split_into_noise_and_ignorance(found):
    np.testing.assert_allclose(found.parts["noise"], NOISE, rtol=1e-5)
    squares = found.parts[["noise", "ignorance"]] ** 2
    np.testing.assert_allclose(squares.sum(axis=1), found.parts["uncertainty"] ** 2, rtol=1e-5)
    assert found.rows.index[0] == found.parts["uncertainty"].idxmax()
    assert found.predicts == "the mean"


def test_of_many_rows_those_used_keep_their_numbers(run):
    x = np.zeros((1000, 3), np.float32)
    x[778] = 50.0
    found = bnn.explain(*run, (x, x @ SLOPES), num_permutations=1, inputs={"all": [0, 1, 2]})
    assert found.rows.index[0] == found.parts["uncertainty"].idxmax() == 778
    assert len(found.parts) == 500


def test_the_score_is_in_the_units_of_the_data(run, found):
    data = bnn.data.load("yacht")._replace(y_mean=1.0, y_scale=3.0)
    scaled = bnn.explain(*run, (X, Y), data_set=data, num_permutations=40)
    assert scaled.score == pytest.approx(found.score - np.log(3.0))
    np.testing.assert_array_equal(scaled.importance["importance"], found.importance["importance"])


def test_weights_of_rows_are_kept_beside_the_inputs(run, found):
    pair = X, np.full(60, 2.0, np.float32)
    posterior = bnn.condition(bnn.models.weighted(linear), (pair, Y))
    again = bnn.explain(posterior, run[1], (pair, Y), num_permutations=40)
    np.testing.assert_allclose(again.importance, found.importance, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(again.effects["input 0"].mean, found.effects["input 0"].mean)


def test_exposure_of_rows_is_kept_beside_the_inputs():
    exposure = np.where(np.arange(60) % 2, 0.5, 20.0).astype(np.float32)
    counts = np.rint(exposure * np.exp(0.3 * X[:, 0]))
    net = partial(bnn.nets.MLP, 3, (), 1)
    law = bnn.likelihoods.poisson(counts, exposure)
    model = bnn.models.with_likelihood(net(rngs=nnx.Rngs(0)), bnn.priors.normal(0.3), law)
    rows = (X, {"exposure": exposure}), counts
    posterior = bnn.condition(model, rows)
    draws = bnn.prior_draws(jax.random.key(0), posterior, 5)
    found = bnn.explain(posterior, draws, rows, num_permutations=2)
    expected = bnn.predict(posterior, draws, rows)
    assert found.score == pytest.approx(float(expected["log_prob"].mean()), rel=1e-5)
    np.testing.assert_allclose(found.parts["predicted"], expected["mean"], rtol=1e-5)
    column = found.effects["input 0"]
    x = X.copy()
    x[:, 0] = column.values[0]
    mean = bnn.predict(posterior, draws, (x, {"exposure": exposure}))["mean"]
    assert column.mean[0] == pytest.approx(float(mean.mean()), rel=1e-4)


def test_draws_count_by_their_weights(run):
    factors = np.concatenate([np.ones(50), np.arange(50)])
    slopes = (factors[None, :, None] * SLOPES).astype(np.float32)
    logs = np.repeat([[0.0, -50.0]], 50, axis=1)
    groups = {"posterior": {"slopes": slopes}, "sample_stats": {"log_weight": logs}}
    found = bnn.explain(run[0], draws_of_arrays(groups), (X, Y), num_permutations=1)
    effect = found.effects["input 0"]
    np.testing.assert_allclose(effect.upper, effect.lower, atol=1e-5)
    np.testing.assert_allclose(found.parts["ignorance"], 0.0, atol=1e-3)


def test_categories_are_permuted_together():
    columns = Column("colour", "category", ("blue", "red")), Column("size", "number")
    data = bnn.data.load("yacht")._replace(encoding=Encoding(columns, Column("y", "number")))
    named = inputs_of(X, data, None)
    assert {name: each.columns.tolist() for name, each in named.items()} == {
        "colour": [0, 1],
        "size": [2],
    }
    assert named["colour"].categories == ("blue", "red")
    squares = inputs_of(np.zeros((2, 16, 16, 1), np.float32), None, None)
    assert len(squares) == 64 and squares["0,2"].columns.tolist() == [2, 3, 18, 19]


@pytest.mark.thorough
def test_classes_are_followed_by_their_probability(tmp_path):
    labels = (X[:, 0] > 0).astype(np.int32)
    posterior = bnn.condition(classes_by_a_slope, (X, labels))
    draws = draws_of_arrays({"posterior": {"slope": np.full((1, 4), 2.0, np.float32)}})
    found = bnn.explain(posterior, draws, (X, labels), num_permutations=3)
    effect = found.effects["input 0"]
    np.testing.assert_allclose(effect.mean, jax.nn.sigmoid(2 * effect.values), rtol=1e-5)
    assert found.predicts == "the probability of 1"
    np.testing.assert_allclose(found.parts["ignorance"], 0, atol=1e-5)
    bnn.plots.explanation(found).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="of_class='cat', expected one of 0, 1"):
        bnn.explain(posterior, draws, (X, labels), of_class="cat")


def test_row_numbers_in_the_figure_stay_apart():
    points = np.array([[200.0, 280.0], [201.0, 279.0], [50.0, 279.0], [200.0, 272.0]])
    labels = points + label_offsets(points)
    near = labels[[0, 1, 3], 1]
    assert (np.diff(near) <= -10).all() and near[0] == labels[0, 1] == 283
    np.testing.assert_array_equal(labels[2] - points[2], [4, 3])


def test_what_cannot_be_explained_is_refused(run):
    with pytest.raises(ValueError, match="got no y"):
        bnn.explain(*run, X)
    with pytest.raises(ValueError, match=r"got places \[3\] of the input 'a'"):
        bnn.explain(*run, (X, Y), inputs={"a": 3})
    with pytest.raises(ValueError, match="not one array of real numbers"):
        inputs_of(np.zeros((2, 3), int), None, None)


def test_columns_of_one_input_stay_together():
    columns = (
        Column("size", "number", fill=0.0, form=".", marked=True),
        Column("open", "boolean", fill=0.0, form="yes and no", marked=True),
        Column("city", "category", ("Bern", "Rome"), form="text", other=True),
        Column("sold", "date", fill=0.0, form="iso", low=0.0, cycles=("year",)),
    )
    roles = (("weights", Column("w", "number")),)
    encoding = Encoding(columns, Column("y", "number"), roles=roles)
    found = inputs_of(np.zeros((3, 11)), SimpleNamespace(encoding=encoding), None)
    places = {name: each.columns.tolist() for name, each in found.items()}
    assert places == {"size": [0, 1], "open": [2, 3], "city": [4, 5, 6], "sold": [7, 8, 9]}
    assert found["city"].categories == ("Bern", "Rome", "other")
    # Values of a truth value are two, though a mark stands beside it: it is not one-hot.
    assert found["open"].categories == ("False", "True")
    rows = np.array([[2.0, 0, 0], [1.0, 1, 1], [3.0, 2, 2], [1.0, 0, 0]])
    grid = grid_of(Input(np.array([0, 1])), rows, 9)
    np.testing.assert_array_equal(grid, [[1, 0], [2, 0], [3, 2]])
    grid = grid_of(found["open"], np.tile([[0.0], [1.0]], (1, 11)), 9)
    np.testing.assert_array_equal(grid, [[0, 0], [1, 1]])


@pytest.mark.parametrize("has", [[0, 2, 0], [2, 2, 2]])
def test_categories_that_no_row_has_have_no_effect(run, has):
    data = bnn.data.load("yacht")._replace(
        encoding=Encoding((Column("colour", "category", ("a", "b", "c")),), Column("y", "number"))
    )
    x = np.eye(3, dtype=np.float32)[has] - 0.25
    found = bnn.explain(*run, (x, x @ SLOPES), data_set=data, num_permutations=1)
    effect, places = found.effects["colour"], sorted({*has})
    assert effect.values.tolist() == places
    assert effect.categories == tuple("abc"[place] for place in places)
    expected = data.y_mean + data.y_scale * ((np.eye(3)[places] - 0.25) @ SLOPES)
    np.testing.assert_allclose(effect.mean, expected, rtol=0.05)


def test_labels_from_1_are_explained_and_pruned_as_those_from_0():
    labels = np.arange(60) % 3
    model = bnn.models.classifier(partial(bnn.nets.MLP, 3, (), 3), bnn.priors.normal(1.0))
    found, costs = [], []
    for y in (labels, labels + 1):
        with warnings.catch_warnings(action="ignore"):
            posterior = bnn.condition(model, (X, y))
        draws = bnn.run(
            *(jax.random.key(0), posterior, bnn.sgld(posterior, 1e-4)),
            **{"num_warmup": 1, "num_draws": 8, "progress": False, "verdict": False},
        )
        found.append(bnn.explain(posterior, draws, (X[:50], y[:50])))
        costs.append(pruning_curve(posterior, draws, (X[:50], y[:50]), [0.0, 0.5]))
    np.testing.assert_allclose(found[0].importance, found[1].importance, rtol=1e-5)
    np.testing.assert_allclose(costs[0], costs[1], rtol=1e-5)
