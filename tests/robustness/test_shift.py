"""Predictions where inputs change: exact tables, gradients by differences, figures, commands."""

import importlib
import json
from functools import partial

import jax
import matplotlib
import numpy as np
import optax
import pandas as pd
import pytest
import xarray as xr
from marks import some_quick
from scipy.special import logsumexp
from scipy.stats import entropy

matplotlib.use("Agg")

import bnn_ppl as bnn
from bnn_ppl import adversarial, metrics, shift
from bnn_ppl.cli.commands import robustness as commands
from bnn_ppl.cli.commands.detection import ood
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.robustness.adversarial import attacked, fgsm
from bnn_ppl.robustness.corruptions import CORRUPTIONS, corrupt, rotate
from bnn_ppl.runtime.checks import each_of
from bnn_ppl.storage.arviz_versions import draws_of_arrays

GREY = [name for name in CORRUPTIONS if name != "saturate"]
KERNEL, BIAS = "net.layers.0.kernel", "net.layers.0.bias"


@pytest.fixture(scope="module")
def mnist():
    return bnn.data.load("mnist", subset=160)


@pytest.fixture(scope="module")
def linear(mnist):
    """Draws of softmax regressions of packaged images, not trained: (posterior, draws)."""
    model = bnn.models.classifier(partial(bnn.nets.MLP, 784, (), 10), bnn.priors.normal(0.05))
    posterior = bnn.condition(model, mnist.train)
    rng = np.random.default_rng(0)
    shapes = {KERNEL: (784, 10), BIAS: (10,)}
    draws = {
        site: rng.normal(0, 0.05, size=(2, 3, *shape)).astype(np.float32)
        for site, shape in shapes.items()
    }
    return posterior, draws_of_arrays({"posterior": draws})


@pytest.fixture
def some(mnist):
    """Give a few rows and where their pixels are."""
    rows = bnn.data.Data(mnist.test.x[:12], mnist.test.y[:12])
    return rows, {"x_mean": mnist.x_mean, "x_scale": mnist.x_scale}


@pytest.fixture(scope="module")
def trained():
    """Three small networks fitted to digits: (data, posterior, draws)."""
    data = bnn.data.load("digits")
    model = bnn.models.classifier(partial(bnn.nets.MLP, 64, (32,), 10), bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(model, data.train)
    method = bnn.descent(posterior, optax.adam(0.01))
    options = {"num_chains": 3, "num_warmup": 150, "batch_size": 200, "thin": 0}
    draws = bnn.run(jax.random.key(0), posterior, method, progress=False, **options)
    return data, posterior, draws


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two short runs on the packaged images, and a folder with another set of images."""
    root = tmp_path_factory.mktemp("runs")
    (root / "kmnist").mkdir()
    x = np.random.default_rng(0).integers(0, 256, size=(30, 28, 28)).astype(np.uint8)
    np.savez(root / "kmnist" / "kmnist.npz", x_test=x, y_test=np.zeros(30, np.uint8))
    problem = Problem.of(data="mnist", subset=160, data_dir=root, hidden=(8,))
    _, posterior = conditioned(problem)
    method = bnn.descent(posterior, optax.adam(0.01))
    for name, num_chains, num_draws in (("one", 1, 1), ("three", 3, 5)):
        bnn.run(
            jax.random.key(0),
            posterior,
            method,
            num_chains=num_chains,
            num_warmup=30,
            num_draws=num_draws,
            folder=root / name,
            progress=False,
        )
        write(problem, root / name)
    return root / "one", root / "three"


def write(problem, folder):
    (folder / "problem.json").write_text(json.dumps(problem.options(), default=str))


@pytest.fixture
def no_predictions(monkeypatch):
    """Fail if anything is predicted: what is refused is refused before."""

    def refuse(*args, **options):
        raise AssertionError("predicted before it refused")

    monkeypatch.setattr(shift, "predict", refuse)


def scores_of(posterior, draws, x, y):
    return metrics.summary(bnn.predict(posterior, draws, (x, y)), y, digits=None)


def assert_scores(row, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(row[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


# --- some of the draws


def numbered(num_chains=3, num_draws=10):
    values = np.arange(num_chains)[:, None] * 100 + np.arange(num_draws)
    return draws_of_arrays(
        {"posterior": {"w": values.astype(float)}, "sample_stats": {"lp": -values}}
    )


@pytest.mark.parametrize(
    ("number", "chains", "kept"),
    [
        (None, [0, 1, 2], range(10)),
        (6, [0, 1, 2], [0, 5]),
        (14, [0, 1, 2], [0, 2, 5, 7]),
        (99, [0, 1, 2], range(10)),
        (2, [0, 1], [0]),
    ],
)
def test_thinned_draws_are_spread_evenly_over_chains_and_along_them(number, chains, kept):
    found = shift.thinned(numbered(), number)
    expected = [[100 * chain + draw for draw in kept] for chain in chains]
    np.testing.assert_array_equal(found.posterior["w"], expected)
    np.testing.assert_array_equal(found.sample_stats["lp"], -np.array(expected))


@pytest.mark.thorough
def test_thinned_draws_of_a_folder_are_those_of_memory(folders):
    draws = bnn.diagnostics.load(folders[1])
    kernel = draws.posterior[KERNEL].values
    found = shift.thinned(draws, 6).posterior[KERNEL]
    np.testing.assert_array_equal(found, kernel[:, [0, 2]])
    np.testing.assert_array_equal(found[1, 1], kernel[1, 2])


def test_no_draws_are_refused():
    with pytest.raises(ValueError, match="got 0 of 3 to choose, expected at least 1"):
        shift.thinned(numbered(), 0)


# --- corrupted images


@pytest.mark.thorough
def test_every_corruption_of_grey_images_has_a_row_a_severity(linear, some):
    rows, pixels = some
    table = shift.corrupted(*linear, rows, **pixels)
    assert len(table) == 1 + 18 * 5
    assert table.loc[0, ["corruption", "severity"]].tolist() == ["none", 0]
    found = table[1:].groupby("corruption", sort=False)["severity"].apply(list)
    assert found.to_dict() == {name: [1, 2, 3, 4, 5] for name in GREY}
    assert (table["num_rows"] == 12).all()
    parts = table["expected_entropy"] + table["mutual_information"]
    np.testing.assert_allclose(table["entropy"], parts, atol=1e-6)


def test_a_row_of_the_table_is_the_summary_of_a_prediction_of_corrupted_pixels(
    linear, some, mnist, monkeypatch
):
    rows, pixels = some
    monkeypatch.setattr(shift, "_BYTES_AT_ONCE", 2 * rows.x.nbytes)  # several calls of predict
    options = {"names": ["fog", "shot_noise"], "severities": (2, 5), "seed": 3}
    table = shift.corrupted(*linear, rows, **pixels, **options)
    assert_scores(table.iloc[0], scores_of(*linear, *rows))
    uint8 = np.rint(255 * (rows.x.astype(float) * 0.3081 + 0.1307)).astype(np.uint8)
    for number, (name, severity) in enumerate(
        [("fog", 2), ("fog", 5), ("shot_noise", 2), ("shot_noise", 5)], start=1
    ):
        changed = corrupt(uint8, name, severity, seed=3) / 255
        x = ((changed - 0.1307) / 0.3081).astype(np.float32)
        row = table.iloc[number]
        assert (row["corruption"], row["severity"]) == (name, severity)
        assert_scores(row, scores_of(*linear, x, rows.y))
    assert table["entropy"].nunique() == 5


def test_colours_have_their_own_moments_and_all_corruptions():
    rng = np.random.default_rng(2)
    mean, scale = np.array([120.0, 110, 90]), np.array([60.0, 50, 40])
    uint8 = rng.integers(0, 256, size=(4, 16, 16, 3)).astype(np.uint8)
    x, y = ((uint8 - mean) / scale).astype(np.float32), np.arange(4) % 2
    model = bnn.models.classifier(partial(bnn.nets.MLP, 768, (), 2), bnn.priors.normal(1.0))
    posterior = bnn.condition(model, (x, y))
    values = {KERNEL: rng.normal(size=(1, 2, 768, 2)), BIAS: rng.normal(size=(1, 2, 2))}
    draws = draws_of_arrays({"posterior": values})
    table = shift.corrupted(posterior, draws, (x, y), x_mean=mean, x_scale=scale, severities=(4,))
    assert table["corruption"].tolist() == ["none", *CORRUPTIONS]
    changed = ((corrupt(uint8, "saturate", 4) - mean) / scale).astype(np.float32)
    (row,) = table.index[table["corruption"] == "saturate"]
    assert_scores(table.loc[row], scores_of(posterior, draws, changed, y))


def test_a_text_and_a_number_are_one_of_several(linear, some):
    rows, pixels = some
    table = shift.corrupted(*linear, rows, **pixels, names="contrast", severities=2)
    assert table["corruption"].tolist() == ["none", "contrast"] and table["severity"][1] == 2
    assert shift.rotated(*linear, rows, **pixels, angles=90)["angle"].tolist() == [90]
    assert attacked(*linear, rows, 0.1)["epsilon"].tolist() == [0.1]
    moved = fgsm(*linear, rows, np.float64(0.1), num_steps=2)
    assert moved.dtype == np.float32 == rows[0].dtype


def test_names_and_severities_may_be_anything_that_has_values():
    for names in (CORRUPTIONS, CORRUPTIONS.keys(), iter(CORRUPTIONS)):
        assert each_of(names) == list(CORRUPTIONS)
    for one in ("fog", 2, np.array(2), np.float32(2)):
        assert each_of(one) == [one]


def test_severities_that_are_read_once_are_those_of_each_name(linear, some):
    rows, pixels = some
    names = ["contrast", "brightness"]
    table = shift.corrupted(*linear, rows, **pixels, names=names, severities=iter([1, 2]))
    assert table["severity"].tolist() == [0, 1, 2, 1, 2]


@pytest.mark.thorough
def test_batches_of_rows_change_no_score(linear, some):
    rows, pixels = some
    tables = [
        shift.corrupted(*linear, rows, **pixels, names=["contrast"], batch_size=size)
        for size in (None, 5)
    ]
    pd.testing.assert_frame_equal(*tables, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ["fogg"]}, "did you mean 'fog'"),
        ({"severities": (1, 6)}, "got severity=6, expected 1, 2, 3, 4 or 5"),
        ({"x_mean": 0.0}, "expected whole numbers from 0 to 255: pass x_mean and x_scale"),
        ({"x_scale": 1.0}, "expected whole numbers from 0 to 255: pass x_mean and x_scale"),
        ({"names": ["saturate"]}, "got saturate for images of 1 channel"),
    ],
)
def test_corruptions_that_cannot_be_are_refused_before_a_prediction(
    change, message, linear, some, no_predictions
):
    rows, pixels = some
    with pytest.raises(ValueError, match=message):
        shift.corrupted(*linear, rows, **{**pixels, **change})


@pytest.mark.thorough
def test_images_of_8_x_8_pixels_are_refused(trained, no_predictions):
    data, posterior, draws = trained
    with pytest.raises(ValueError, match="16 x 16 pixels or more"):
        shift.corrupted(posterior, draws, data.test, x_mean=data.x_mean, x_scale=data.x_scale)


def test_entropies_of_a_prediction_are_those_of_its_draws(linear, some):
    (x, _), _ = some
    found = metrics.entropies(bnn.predict(*linear, (x, None)))
    probs = bnn.function_draws(*linear, x).posterior["probs"].values.astype(float)
    expected = entropy(probs, axis=-1).mean((0, 1))
    np.testing.assert_allclose(found.aleatoric, expected, atol=1e-6)
    np.testing.assert_allclose(found.total, entropy(probs.mean((0, 1)), axis=-1), atol=1e-6)
    np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic, atol=1e-6)
    assert found.epistemic.min() > 0.01


# --- turned images


def test_rotations_are_by_16_angles_of_which_the_first_is_none(linear, some):
    (x, y), pixels = some
    table = shift.rotated(*linear, (x[:1], y[:1]), **pixels)
    assert table["angle"].tolist() == [12 * k for k in range(16)]
    probs = bnn.predict(*linear, (x[:1], None))["probs"].values[0]
    columns = [f"probability_{k}" for k in range(10)]
    np.testing.assert_allclose(table.loc[0, columns].astype(float), probs, rtol=1e-5)
    for row, column in enumerate(table[f"probability_{y[0]}"]):
        assert table.loc[row, "probability"] == column
    parts = table["expected_entropy"] + table["mutual_information"]
    np.testing.assert_allclose(table["entropy"], parts, atol=1e-6)


def test_half_a_turn_mirrors_both_axes(linear, some):
    (x, y), pixels = some
    table = shift.rotated(*linear, (x, y), **pixels, angles=(180,))
    turned = np.ascontiguousarray(x[:, ::-1, ::-1])
    probs = bnn.predict(*linear, (turned, None))["probs"].values
    assert_scores(table.iloc[0], scores_of(*linear, turned, y))
    np.testing.assert_allclose(table["probability"], probs[np.arange(12), y].mean(), rtol=1e-5)
    np.testing.assert_allclose(table["probability_3"], probs[:, 3].mean(), rtol=1e-5)


def test_what_lies_outside_a_turned_image_is_its_background(linear, some, monkeypatch):
    (x, y), pixels = some
    seen = []

    def watched(posterior, draws, data, **options):
        seen.append(np.asarray(data[0]))
        return bnn.predict(posterior, draws, data, **options)

    monkeypatch.setattr(shift, "predict", watched)
    shift.rotated(*linear, (x, y), **pixels, angles=(45,))
    corners = seen[0][:, [0, 0, -1, -1], [0, -1, 0, -1]]
    np.testing.assert_allclose(corners, -0.1307 / 0.3081, rtol=1e-6)
    by_hand = rotate(x, 45, fill=-0.1307 / 0.3081)
    np.testing.assert_allclose(seen[0], by_hand, atol=1e-5)


def test_angles_that_are_none_are_refused_before_a_prediction(linear, some, no_predictions):
    rows, pixels = some
    with pytest.raises(ValueError, match="got degrees=nan"):
        shift.rotated(*linear, rows, **pixels, angles=(0, np.nan))


# --- moved against the prediction


@pytest.fixture
def doubles():
    with jax.enable_x64(True):
        yield


def toy(kind, num_rows=6):
    """Give a net, draws that disagree and weigh differently, and rows, in double precision."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num_rows, 5))
    outputs = 3 if kind == "classes" else 1
    net, prior = partial(bnn.nets.MLP, 5, (4,), outputs), bnn.priors.normal(1.0)
    if kind == "classes":
        y, model = np.arange(num_rows) % 3, bnn.models.classifier(net, prior)
    else:
        y, model = rng.normal(size=num_rows), bnn.models.regressor(net, prior, 0.3)
    posterior = bnn.condition(model, (x, y))
    values = {
        site: rng.normal(size=(2, 4, *np.shape(value)))
        for site, value in posterior.init(jax.random.key(0)).items()
    }
    log_weight = rng.normal(size=(2, 4))
    return (
        posterior,
        draws_of_arrays({"posterior": values, "sample_stats": {"log_weight": log_weight}}),
        (x, y),
    )


def slope(log_prob, x, step=1e-6):
    """Central differences of log_prob(x), (rows,), by each column of x."""
    columns = step * np.eye(x.shape[1])
    return np.stack([log_prob(x + c) - log_prob(x - c) for c in columns], 1) / (2 * step)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", some_quick(("classes", "numbers"), ("numbers",)))
def test_inputs_move_by_the_sign_of_the_gradient_of_the_averaged_density(kind, doubles):
    posterior, draws, (x, y) = toy(kind)

    def log_prob(x):
        return bnn.predict(posterior, draws, (x, y))["log_prob"].values

    exact = slope(log_prob, x)
    assert np.abs(exact).min() > 1e-6
    moved = fgsm(posterior, draws, (x, y), 0.25)
    assert moved.dtype == np.float64
    np.testing.assert_allclose(moved - x, -0.25 * np.sign(exact), rtol=1e-12)
    assert np.abs(moved - x).max() == pytest.approx(0.25, rel=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", some_quick(("classes", "numbers"), ("classes",)))
def test_the_gradient_is_of_the_log_of_the_average_to_central_differences(kind, doubles):
    """And not the average of the gradients, which has other signs."""
    posterior, draws, (x, y) = toy(kind)
    gradient = adversarial._slope(posterior, draws)(x, y)

    def log_probs(x):
        functions = [
            posterior.predictive(
                {site: v.values[c, d] for site, v in draws.posterior.items()}, x
            ).log_prob(y)
            for c in range(2)
            for d in range(4)
        ]
        return np.stack(functions)

    weights = np.exp(draws.sample_stats["log_weight"].values)
    weights = (weights / weights.sum(1, keepdims=True)).ravel()[:, None]
    exact = slope(lambda x: logsumexp(log_probs(x), axis=0, b=weights), x)
    np.testing.assert_allclose(gradient, exact, rtol=1e-6, atol=1e-8)
    average = slope(lambda x: (weights * log_probs(x)).sum(0), x)
    assert np.any(np.sign(average) != np.sign(exact))


@pytest.mark.thorough
def test_draws_stream_in_blocks_and_rows_in_batches_with_one_answer(doubles, monkeypatch):
    posterior, draws, data = toy("classes")
    whole = fgsm(posterior, draws, data, 0.1)
    monkeypatch.setattr(
        importlib.import_module("bnn_ppl.storage.inference_data"), "_BYTES_A_BLOCK", 500
    )
    np.testing.assert_array_equal(fgsm(posterior, draws, data, 0.1), whole)
    np.testing.assert_array_equal(fgsm(posterior, draws, data, 0.1, batch_size=4), whole)


@pytest.mark.thorough
def test_draws_that_weigh_nothing_have_no_say(doubles):
    posterior, draws, data = toy("classes")
    draws.sample_stats["log_weight"][:, :2] = -1e4  # the first, before any other is added
    some = draws.isel(draw=slice(2, None))
    expected = fgsm(posterior, some, data, 0.1)
    np.testing.assert_array_equal(fgsm(posterior, draws, data, 0.1), expected)


@pytest.mark.thorough
def test_labels_with_names_are_attacked_like_their_numbers(doubles):
    posterior, draws, (x, y) = toy("classes")
    for names in (np.array(["a", "b", "c"]), np.arange(1, 4)):
        classes = posterior.rows.classes._replace(names=tuple(names.tolist()))
        named = posterior._replace(rows=posterior.rows._replace(classes=classes))
        tables = [
            attacked(p, draws, rows, epsilons=[0.1])
            for p, rows in ((posterior, (x, y)), (named, (x, names[y])))
        ]
        pd.testing.assert_frame_equal(*tables)


def test_bounds_are_kept(doubles):
    posterior, draws, (x, y) = toy("classes")
    low, high = x.min(0), x.max(0)
    free = fgsm(posterior, draws, (x, y), 0.5)
    assert np.any(free < low) and np.any(free > high)
    bounded = fgsm(posterior, draws, (x, y), 0.5, clip=(low, high))
    np.testing.assert_array_equal(bounded, np.clip(free, low, high))


def test_two_steps_are_two_attacks_of_half_the_length(doubles):
    posterior, draws, (x, y) = toy("classes")
    once = fgsm(posterior, draws, (x, y), 0.6)
    half = fgsm(posterior, draws, (x, y), 0.3)
    twice = fgsm(posterior, draws, (half, y), 0.3)
    found = fgsm(posterior, draws, (x, y), 0.6, num_steps=2)
    np.testing.assert_array_equal(found, twice)
    assert np.any(found != once) and np.abs(found - x).max() <= 0.6 + 1e-12


@pytest.mark.thorough
def test_accuracy_of_a_trained_network_falls_with_epsilon(trained):
    data, posterior, draws = trained
    rows = bnn.data.Data(data.test.x[:200], data.test.y[:200])
    epsilons = (0.0, 0.05, 0.1, 0.2, 0.4)
    table = attacked(posterior, draws, rows, epsilons)
    assert table["epsilon"].tolist() == list(epsilons)
    assert_scores(table.iloc[0], scores_of(posterior, draws, *rows))
    assert_scores(
        table.iloc[2], scores_of(posterior, draws, fgsm(posterior, draws, rows, 0.1), rows.y)
    )
    assert table["accuracy"][0] > 0.9 and table["accuracy"].iloc[-1] < 0.2
    assert (np.diff(table["accuracy"]) < 0).all() and (np.diff(table["nll"]) > 0).all()
    rng = np.random.default_rng(0)
    noise = (0.2 * rng.choice([-1, 1], size=rows.x.shape)).astype(np.float32)
    by_chance = scores_of(posterior, draws, rows.x + noise, rows.y)["accuracy"]
    assert by_chance > table["accuracy"][3] + 0.2  # of the same length


@pytest.mark.thorough
def test_more_steps_mislead_more(trained):
    data, posterior, draws = trained
    rows = bnn.data.Data(data.test.x[:100], data.test.y[:100])
    nll = [attacked(posterior, draws, rows, (0.1,), num_steps=steps)["nll"][0] for steps in (1, 5)]
    assert nll[1] > nll[0]


@pytest.mark.thorough
def test_attacks_on_regressions_are_scored_in_original_units(doubles):
    posterior, draws, data = toy("numbers")
    table = attacked(posterior, draws, data, (0.0, 0.1), scale=3.0)
    prediction = bnn.predict(posterior, draws, data)
    assert table["rmse"][0] == pytest.approx(metrics.rmse(prediction, data[1], scale=3.0))
    assert table["rmse"][1] > table["rmse"][0]


@pytest.mark.thorough
def test_attacks_that_cannot_be_are_refused():
    problem = toy("classes")
    for epsilon, options, message in (
        (-0.1, {}, "got epsilon=-0.1, expected a finite number from 0 up"),
        (np.nan, {}, "got epsilon=nan"),
        (0.1, {"num_steps": 0}, "got num_steps=0, expected at least 1"),
        (0.1, {"batch_size": 0}, "got batch_size=0, expected at least 1"),
        (0.1, {"clip": (1.0, -1.0)}, "got clip with a lowest value above the highest"),
    ):
        with pytest.raises(ValueError, match=message):
            fgsm(*problem, epsilon, **options)


def test_tokens_are_refused():
    def model(x, y=None):
        bnn.models.regressor(partial(bnn.nets.MLP, 2, (), 1), bnn.priors.normal(1.0))(x * 1.0, y)

    x, y = np.arange(8, dtype=np.int32).reshape(4, 2), np.zeros(4, np.float32)
    posterior = bnn.condition(model, (x, y))
    with pytest.raises(ValueError, match="got x of int32, expected an array of floats"):
        fgsm(posterior, numbered(), (x, y), 0.1)


# --- of other data


def made_up(seed, concentration, rows=80, spread=True):
    """Make a prediction Dataset of six draws of probabilities."""
    draws = np.random.default_rng(seed).dirichlet(np.full(4, concentration), size=(6, rows))
    draws = draws if spread else np.repeat(draws[:1], 6, 0)
    probs = draws.mean(0)
    expected = -(draws * np.log(draws)).sum(-1).mean(0)
    total = metrics.entropy(probs)
    rows = {"expected_entropy": expected, "mutual_information": total - expected}
    variables = {name: ("row", value) for name, value in rows.items()}
    return xr.Dataset({"probs": (("row", "class"), probs), **variables})


def test_detection_is_scikit_learns_auroc_of_each_score():
    sklearn = pytest.importorskip("sklearn.metrics")
    inside, near, far = made_up(0, 0.3), made_up(1, 0.4, rows=50), made_up(2, 2.0)
    table = shift.detection(inside, {"near": near, "far": far}).set_index(["against", "score"])
    assert len(table) == 6
    for name, outside in {"near": near, "far": far}.items():
        for score, values in {
            "entropy": lambda p: metrics.entropy(p),
            "max_probability": lambda p: 1 - p["probs"].values.max(1),
            "mutual_information": lambda p: p["mutual_information"].values,
        }.items():
            row = table.loc[name, score]
            joined = np.concatenate([values(inside), values(outside)])
            is_out = np.arange(len(joined)) >= 80
            assert row["auroc"] == pytest.approx(sklearn.roc_auc_score(is_out, joined))
            assert row["fpr95"] == metrics.fpr95(values(inside), values(outside))
            assert row["mean_inside"] == pytest.approx(values(inside).mean())
            assert row["mean_outside"] == pytest.approx(values(outside).mean())
            assert (row["num_inside"], row["num_outside"]) == (80, joined.size - 80)


def test_scores_are_those_that_predictions_have():
    def scores(*predictions):
        return shift.detection(predictions[0], {"other": predictions[1]})["score"].tolist()

    bare = made_up(0, 0.3)["probs"].values
    assert scores(bare, bare) == ["entropy", "max_probability"]
    agreeing = made_up(0, 0.3, spread=False)  # mutual information is rounding
    assert scores(agreeing, made_up(1, 1.0)) == ["entropy", "max_probability"]
    number = {"entropy": ("row", [0.0, -1.0]), "mutual_information": ("row", [0.1, 0.2])}
    regression = xr.Dataset({"mean": ("row", [0.0, 1.0]), **number})
    assert scores(regression, regression) == ["entropy", "mutual_information"]


# --- figures


def scores_table(column, values, seed=0):
    rng = np.random.default_rng(seed)
    names = ["accuracy", "nll", "ece", "entropy", "expected_entropy", "mutual_information"]
    return pd.DataFrame({column: values} | {name: rng.uniform(size=len(values)) for name in names})


def labels_of(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_boxes_of_severities_hold_the_corruptions():
    table = scores_table("severity", [0, 1, 1, 1, 2, 2, 2])
    other = scores_table("severity", [0, 1, 1, 1, 2, 2, 2], seed=1)
    figure = bnn.plots.corruptions({"a": table, "b": other})
    assert labels_of(figure.legends[0]) == ["a", "b"]
    for ax, score in zip(
        figure.axes, ["accuracy", "nll", "ece", "mutual_information"], strict=True
    ):
        medians = {line.get_label(): line.get_ydata() for line in ax.lines}
        for name, shown in (("a", table), ("b", other)):
            expected = shown.groupby("severity")[score].median()
            np.testing.assert_array_equal(medians[name], expected)
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["none", "1", "2"]


def test_lines_of_attacks_are_the_scores():
    table = scores_table("epsilon", [0.0, 0.1, 0.3])
    figure = bnn.plots.adversarial({"a": table})
    for ax, score in zip(figure.axes, ["accuracy", "nll", "entropy"], strict=True):
        np.testing.assert_array_equal(ax.lines[0].get_xydata(), table[["epsilon", score]])


def test_the_figure_of_rotations_shows_images_classes_and_stacked_entropies():
    table = scores_table("angle", [0, 90, 180])
    probs = {"probability_0": [0.1, 0.8, 0.1], "probability_1": [0.7, 0.15, 0.8]}
    table = table.assign(
        probability_2=[0.2, 0.05, 0.1], **probs, probability=probs["probability_1"]
    )
    images = np.zeros((3, 8, 8, 1))
    figure = bnn.plots.rotations({"a": table, "b": table}, images)
    strip, body = figure.subfigs
    assert len(strip.axes) == 3 and len(body.axes) == 4
    top, bottom = body.axes[1], body.axes[3]
    assert labels_of(top.get_legend()) == ["class 0", "class 1", "class 2", "true class"]
    np.testing.assert_array_equal(top.lines[1].get_ydata(), table["probability_1"])
    np.testing.assert_array_equal(bottom.lines[0].get_ydata(), table["entropy"])
    assert labels_of(bottom.get_legend()) == ["aleatoric", "epistemic", "total"]
    assert not bnn.plots.rotations({"a": table}).subfigs
    alone, _ = bnn.plots.rotations({"a": table[:1]}, images[:1]).subfigs
    assert len(alone.axes) == 1


def test_histograms_of_entropy_are_shares_in_the_same_bins():
    inside, outside = made_up(0, 0.3), made_up(1, 2.0, rows=40)
    found = {"other": outside, "learnt": inside}
    figure = bnn.plots.out_of_distribution({"a": found, "b": found}, "learnt", num_bins=9)
    ax = figure.axes[1]
    area = metrics.auroc(metrics.entropy(inside), metrics.entropy(outside))
    assert labels_of(ax.get_legend()) == ["learnt (learnt)", f"other (AUROC {area:.3f})"]
    for patch, prediction in zip(ax.patches, (inside, outside), strict=True):
        share, edges, _ = patch.get_data()
        expected = np.histogram(metrics.entropy(prediction), edges)[0]
        np.testing.assert_allclose(share, expected / len(prediction["probs"]))
        assert share.sum() == pytest.approx(1) and len(share) == 9


def test_figures_refuse_other_tables():
    table = scores_table("epsilon", [0.0])
    for draw in (bnn.plots.corruptions, bnn.plots.rotations):
        with pytest.raises(ValueError, match="got a without .* pass what .*ed returned"):
            draw({"a": table})
    with pytest.raises(ValueError, match="got no tables"):
        bnn.plots.adversarial({})
    with pytest.raises(ValueError, match="got predictions without 'mnist'"):
        bnn.plots.out_of_distribution({"a": {"kmnist": made_up(0, 1.0)}}, "mnist")


# --- commands


def as_records(options):
    """Give the options of a command as it takes them."""
    own = {name: value for name, value in options.items() if name not in SHARED}
    shared = {name: value for name, value in options.items() if name in commands.Predicting._fields}
    own["predicting"] = commands.Predicting(**shared, progress=False)
    corrupting = {n: value for n, value in options.items() if n in commands.Corrupting._fields}
    return own | ({"corrupting": commands.Corrupting(**corrupting)} if corrupting else {})


SHARED = {*commands.Predicting._fields, *commands.Corrupting._fields}


@pytest.fixture
def written(tmp_path, monkeypatch, capsys):
    """Run a command quietly in an empty folder, and give (table, what was printed)."""
    monkeypatch.chdir(tmp_path)

    def run(command, folders, name, **options):
        command(folders, **as_records(options))
        path = folders[0] / name if len(folders) == 1 else tmp_path / name
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        return pd.read_csv(path.with_suffix(".csv")), capsys.readouterr().out

    return run


@pytest.mark.thorough
def test_corruptions_of_runs_are_one_table_and_a_mean_by_severity(folders, written):
    options = {"only": ("contrast", "fog"), "severities": (1, 5), "num_rows": 20}
    table, out = written(commands.corruptions, folders, "corruptions", **options)
    assert len(table) == 2 * (1 + 2 * 2) and (table["num_rows"] == 20).all()
    assert table["run"].drop_duplicates().tolist() == ["one", "three"]
    (line,) = [line for line in out.splitlines() if line.startswith("three accuracy")]
    worst = table.query("run == 'three' and severity == 5")["accuracy"].mean()
    assert line.split()[-1] == f"{worst:.3f}"


@pytest.mark.thorough
def test_rotations_turn_the_first_one_or_many_rows(folders, written):
    table, out = written(commands.rotations, folders[:1], "rotations")
    assert "the first of class 1 of the test rows" in out
    assert len(table) == 16 and (table["num_rows"] == 1).all()
    np.testing.assert_array_equal(table["probability"], table["probability_1"])
    table, out = written(commands.rotations, folders, "rotations", num_rows=15)
    assert len(table) == 32 and (table["num_rows"] == 15).all()
    assert "means over 15 test rows" in out


@pytest.mark.thorough
def test_attacks_stay_in_the_range_of_the_pixels(folders, written, mnist, monkeypatch):
    seen = []

    def watched(posterior, draws, data, **options):
        seen.append(np.asarray(data[0]))
        return bnn.predict(posterior, draws, data, **options)

    monkeypatch.setattr(shift, "predict", watched)
    options = {"num_rows": 20, "epsilons": (0.0, 0.3), "clip": True}
    table, _ = written(commands.adversarial, folders, "adversarial", **options)
    assert table["epsilon"].tolist() == [0.0, 0.3] * 2
    assert table["accuracy"][1] < table["accuracy"][0]
    assert seen[0].min() == mnist.train.x.min() and seen[0].max() == mnist.train.x.max()


@pytest.mark.thorough
def test_other_sets_are_told_from_the_test_rows(folders, written):
    options = {"against": ("kmnist",), "num_rows": 40}
    table, out = written(ood, folders, "ood", **options)
    assert table.groupby("run")["score"].apply(list).to_dict() == {
        "one": ["entropy", "max_probability"],  # one draw has no mutual information
        "three": ["entropy", "max_probability", "mutual_information"],
    }
    assert set(table["num_inside"]) == {40} and set(table["num_outside"]) == {30}
    assert "three: detecting rows unlike those of mnist" in out


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (ood, {"against": ("mnist",)}, "got --against mnist, expected data sets that"),
        (ood, {"against": ()}, "expected data sets that the runs were not trained on"),
        (ood, {"against": ("cifar10",)}, "got 'cifar10' of images"),
        (commands.rotations, {"label": 10}, "got --label 10, expected one of the classes 0 to 9"),
        (commands.corruptions, {"num_rows": 0}, "got 0 of 2000 to choose, expected at least 1"),
        (ood, {"against": ("kmnist",), "num_rows": 0}, "expected at least 1"),
        (commands.corruptions, {"only": ("frog",)}, "did you mean"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_prediction(
    command, options, message, folders, no_predictions
):
    with pytest.raises(ValueError, match=message):
        command(folders, **as_records(options))


def test_commands_of_images_refuse_tables(tmp_path):
    write(Problem.of(hidden=(2,)), tmp_path)
    with pytest.raises(ValueError, match="got runs on yacht, expected image classes"):
        commands.corruptions((tmp_path,))
