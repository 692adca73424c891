"""Tables of methods: every column against the metric it stands for, and against published ones."""

import os
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
import xarray as xr

from bnn_ppl import condition, diagnostics, function_draws, metrics, run, sgld
from bnn_ppl.analysis.comparison.compare import compare
from bnn_ppl.analysis.comparison.compare_errors import mixture
from bnn_ppl.analysis.comparison.compare_inputs import rows_of, variables_of
from bnn_ppl.analysis.comparison.compare_tables import best, to_latex, with_errors
from bnn_ppl.analysis.comparison.row_scores import (
    row_distances,
    row_scores,
    scores_of,
    scores_of_resamples,
)
from bnn_ppl.analysis.comparison.standard_errors import widened
from bnn_ppl.storage.arviz_versions import draws_of_arrays

ROWS, CLASSES = 40, 3


def classifier(seed):
    return np.random.default_rng(seed).dirichlet(np.full(CLASSES, 0.8), size=ROWS)


def regressor(seed, rows=ROWS, **more):
    rng = np.random.default_rng(seed)
    mean, sd = rng.normal(size=rows), rng.uniform(0.5, 1.5, size=rows)
    values = {"mean": mean, "variance": sd**2, "log_prob": rng.normal(size=rows)} | more
    return xr.Dataset({name: ("row", value) for name, value in values.items()})


@pytest.fixture
def labels():
    return np.random.default_rng(9).integers(0, CLASSES, size=ROWS)


@pytest.fixture
def targets():
    return np.random.default_rng(9).normal(size=ROWS)


def test_columns_of_classifiers_are_their_metrics(labels):
    a, b = classifier(0), xr.Dataset({"probs": (("row", "class"), classifier(1))})
    table = compare({"a": a, "b": b}, labels, "a")
    assert list(table.index) == ["a", "b"]
    for name, prediction in {"a": a, "b": b}.items():
        assert table.loc[name].to_dict() == {
            "accuracy": metrics.accuracy(prediction, labels),
            "nll": metrics.nll(prediction, labels),
            "brier": metrics.brier(prediction, labels),
            "ece": metrics.ece(prediction, labels),
            "agreement": metrics.agreement(prediction, a),
            "total_variation": metrics.total_variation(prediction, a),
        }
    assert table.attrs["reference"] == "a"
    assert table.attrs["reference_scores"] == table.loc["a"].to_dict()


def test_columns_of_regressions_are_their_metrics_in_original_units(targets):
    a, b, reference = regressor(0), regressor(1), regressor(2)
    table = compare({"a": a, "b": b}, targets, reference, scale=3.0)
    for name, prediction in {"a": a, "b": b}.items():
        assert table.loc[name].to_dict() == {
            "rmse": metrics.rmse(prediction, targets, scale=3.0),
            "nll": metrics.nll(prediction, targets, scale=3.0),
            "gaussian_nll": metrics.gaussian_nll(prediction, targets, scale=3.0),
            "coverage_90": metrics.coverage(prediction, targets),
            "wasserstein_1": metrics.wasserstein_1(prediction, reference, scale=3.0),
            "wasserstein_2": metrics.wasserstein_2(prediction, reference, scale=3.0),
        }
    assert table.attrs["reference"] is None
    own = table.attrs["reference_scores"]
    assert own["rmse"] == metrics.rmse(reference, targets, scale=3.0)
    assert own["wasserstein_1"] == own["wasserstein_2"] == 0


def test_without_a_reference_there_is_no_distance(labels, targets):
    assert list(compare({"a": classifier(0)}, labels)) == ["accuracy", "nll", "brier", "ece"]
    table = compare({"a": regressor(0)}, targets)
    assert list(table) == ["rmse", "nll", "gaussian_nll", "coverage_90"]
    assert table.attrs["reference_scores"] == {}


def test_a_regression_without_log_prob_has_an_unknown_nll_alone(targets):
    table = compare({"a": regressor(0), "b": regressor(1).drop_vars("log_prob")}, targets)
    assert np.isnan(table.loc["b", "nll"])
    assert np.isfinite(table.drop(columns="nll").to_numpy()).all()


def test_identical_predictions_are_at_no_distance(labels, targets):
    p, q = classifier(0), regressor(0)
    table = compare({"a": p, "b": p.copy()}, labels, "a")
    assert table.loc["b", ["agreement", "total_variation"]].tolist() == [1, 0]
    table = compare({"a": q, "b": q.copy()}, targets, "a")
    assert table.loc["b", ["wasserstein_1", "wasserstein_2"]].tolist() == [0, 0]


@pytest.mark.parametrize("as_mask", [False, True])
def test_rows_that_a_temperature_is_fitted_on_are_not_scored(labels, as_mask):
    predictions = {"a": classifier(0), "b": classifier(1)}
    fit, rest = np.arange(ROWS)[::4], np.setdiff1d(np.arange(ROWS), np.arange(ROWS)[::4])
    validation = np.isin(np.arange(ROWS), fit) if as_mask else fit
    table = compare(predictions, labels, "b", validation=validation)
    for name, probs in predictions.items():
        temperature = metrics.fit_temperature(probs[fit], labels[fit])
        expected = metrics.calibrated_nll(probs[rest], labels[rest], temperature)
        assert table.loc[name, "temperature"] == temperature != 1
        assert table.loc[name, "calibrated_nll"] == expected
        assert table.loc[name, "accuracy"] == metrics.accuracy(probs[rest], labels[rest])
    distance = metrics.total_variation(predictions["a"][rest], predictions["b"][rest])
    assert table.loc["a", "total_variation"] == distance


def test_a_temperature_of_a_separate_set_leaves_all_rows_to_score(labels):
    probs, other, y = classifier(0), classifier(1)[:15], labels[::-1][:15]
    table = compare({"a": probs}, labels, validation=({"a": other}, y))
    temperature = metrics.fit_temperature(other, y)
    assert table.loc["a", "temperature"] == temperature
    assert table.loc["a", "calibrated_nll"] == metrics.calibrated_nll(probs, labels, temperature)
    assert table.loc["a", "nll"] == metrics.nll(probs, labels)


def test_calibration_takes_an_overconfident_method_back_to_its_nll():
    # Of ten rows with .8 eight are right, so .8 is calibrated, and its power needs T = 3.
    y = np.tile([0, 0, 0, 0, 1] * 2, 4)
    honest = np.tile([0.8, 0.2], (ROWS, 1))
    overconfident = honest**3 / np.sum(honest**3, axis=1, keepdims=True)
    predictions = {"honest": honest, "overconfident": overconfident}
    table = compare(predictions, y, validation=np.arange(10))
    np.testing.assert_allclose(table["temperature"], [1, 3], rtol=1e-4)
    np.testing.assert_allclose(table["calibrated_nll"], table.loc["honest", "nll"], rtol=1e-7)
    assert table.loc["overconfident", "nll"] > table.loc["honest", "nll"] + 0.1


@pytest.mark.thorough
def test_costs_are_those_that_run_records(labels):
    def model(x, y=None):
        mean = numpyro.sample("w", dist.Normal(0, 1)) * x[:, 0]
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    posterior = condition(model, (np.ones((4, 1)), np.zeros(4)))
    draws = run(
        jax.random.key(0),
        posterior,
        sgld(posterior, 1e-2),
        num_chains=2,
        num_warmup=3,
        num_draws=5,
        progress=False,
    )
    functions = function_draws(posterior, draws, np.ones((1, 1)))
    predictions = {"a": classifier(0), "b": classifier(1)}
    table = compare(predictions, labels, draws={"b": draws}, function_rhat={"b": functions})
    assert table.loc["b", "gradient_evaluations"] == 2 * (3 + 5)
    assert table.loc["b", "seconds"] == draws.attrs["sampling_time"] > 0
    assert table.loc["b", ["num_chains", "num_draws"]].tolist() == [2, 5]
    (rhat,) = diagnostics.rhat(functions)["mean"].values
    assert table.loc["b", ["rhat_median", "rhat_max"]].tolist() == [rhat, rhat]
    assert table.loc["a", "rhat_median":].isna().all()


def test_rhat_is_taken_computed_from_draws_or_in_summary(labels):
    rng = np.random.default_rng(3)
    functions = draws_of_arrays({"posterior": {"mean": rng.normal(size=(2, 30, 7))}})
    found = diagnostics.rhat(functions)
    summary = diagnostics.summary(functions, functions).loc["function"]
    sources = [functions, found, found["mean"].values, summary, summary.to_dict()]
    sources += [[1.3, np.nan, 1.1, 1.2], np.full(3, np.nan)]
    predictions = {str(i): classifier(i) for i in range(len(sources))}
    rhat = {str(i): source for i, source in enumerate(sources)}
    table = compare(predictions, labels, function_rhat=rhat)
    expected = [np.median(found["mean"]), np.max(found["mean"])]
    for name in "01234":
        np.testing.assert_allclose(table.loc[name, ["rhat_median", "rhat_max"]].tolist(), expected)
    assert table.loc["5", ["rhat_median", "rhat_max"]].tolist() == [1.2, 1.3]
    assert table.loc["6", ["rhat_median", "rhat_max"]].isna().all()


def test_independent_draws_of_a_fit_have_no_rhat(labels):
    values = np.arange(3.0)[:, None, None] * np.ones((3, 8, 7))  # R-hat would be infinite
    functions = draws_of_arrays({"posterior": {"mean": values}}, {"draws_from": "dropout"})
    row = diagnostics.summary(functions, functions).loc["function"]
    sources = {"draws": functions, "row": row, "dict": row.to_dict()}
    table = compare({name: classifier(0) for name in sources}, labels, function_rhat=sources)
    assert table[["rhat_median", "rhat_max"]].isna().all(axis=None)


def test_unknown_costs_stay_unknown(labels):
    draws = draws_of_arrays({"posterior": {"w": np.zeros((3, 4))}})
    table = compare({"a": classifier(0)}, labels, draws={"a": draws})
    assert table.loc["a", ["seconds", "gradient_evaluations"]].isna().all()
    assert table.loc["a", ["num_chains", "num_draws"]].tolist() == [3, 4]


def test_table_says_which_direction_is_better_and_selections_keep_it(labels, targets):
    draws = draws_of_arrays({"posterior": {"w": np.zeros((3, 4))}}, {"sampling_time": 2.0})
    options = {"validation": np.arange(9), "draws": {"a": draws}, "function_rhat": {"a": [1.01]}}
    table = compare({"a": classifier(0), "b": classifier(1)}, labels, "a", **options)
    better = table.attrs["better"]
    assert [name for name, goal in better.items() if goal == "higher"] == ["accuracy", "agreement"]
    assert better["temperature"] == 1
    assert set(table) - set(better) == {"num_chains", "num_draws"}
    assert set(better.values()) == {"higher", "lower", 1.0}
    assert compare({"a": regressor(0)}, targets).attrs["better"]["coverage_90"] == 0.9
    assert table[["nll", "brier"]].iloc[1:].attrs == table.attrs


def test_best_is_highest_lowest_or_nearest(labels):
    names = list("abcd")
    table = compare({name: classifier(i) for i, name in enumerate(names)}, labels, "a")
    table["accuracy"] = [0.5, 0.9, np.nan, 0.9]
    table["nll"] = [3.0, 2.0, -np.inf, 4.0]
    table["coverage_90"] = [0.85, 0.96, 0.2, 0.99]
    table["num_draws"] = 1
    table.attrs["better"]["coverage_90"] = 0.9
    assert best(table, "accuracy") == ["b", "d"]
    assert best(table, "nll") == ["b"]
    assert best(table, "coverage_90") == []
    assert best(table, "num_draws") == []
    table["accuracy"] = 0.9  # of all: none is better
    assert best(table, "accuracy") == []
    # The reference is at no distance from itself; that is no merit.
    assert table.loc["a", "total_variation"] == 0
    assert best(table, "total_variation") == [table["total_variation"].iloc[1:].idxmin()]


def test_latex_is_a_booktabs_table_with_the_best_in_bold(labels):
    table = compare({"HMC": classifier(0), "50 %_a": classifier(1)}, labels, "HMC")
    table = table[["accuracy", "nll", "agreement"]].assign(num_draws=[np.nan, 1000])
    table["accuracy"] = [0.91436, 0.91444]
    table["nll"] = [np.inf, 0.25]
    table["agreement"] = [1.0, 0.5]
    table["coverage_90"] = [0.92, 0.8]
    table["gradient_evaluations"] = [1234567, 2000000]
    table.attrs["better"] |= {"coverage_90": 0.9, "gradient_evaluations": "lower"}
    assert to_latex(table) == "\n".join(
        [
            r"\begin{tabular}{lrrrrrr}",
            r"\toprule",
            r"Method & Accuracy $\uparrow$ & NLL $\downarrow$ & Agreement $\uparrow$ & Draws & "
            r"Coverage (90 \%) $\to 0.9$ & Gradients $\downarrow$ \\",
            r"\midrule",
            r"HMC & $0.9144$ & $\infty$ & $1.0000$ & -- & $0.9200$ & "
            r"$\mathbf{1{,}234{,}567}$ \\",
            r"50 \%\_a & $0.9144$ & $\mathbf{0.2500}$ & $\mathbf{0.5000}$ & $1{,}000$ & "
            r"$0.8000$ & $2{,}000{,}000$ \\",
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )
    assert r"& $0.91436$ & " in to_latex(table, digits=5)


# --- standard errors, and the noise of the reference


def test_the_bootstrap_error_of_an_accuracy_is_that_of_a_share():
    rng = np.random.default_rng(3)
    probs, y = rng.dirichlet(np.ones(3), size=2000), rng.integers(0, 3, size=2000)
    table = compare({"a": probs}, y, standard_errors=True)
    assert list(table)[:4] == ["accuracy", "accuracy_se", "nll", "nll_se"]
    p = table.loc["a", "accuracy"]
    assert table.loc["a", "accuracy_se"] == pytest.approx(np.sqrt(p * (1 - p) / 2000), rel=0.15)
    logs = -np.log(probs[np.arange(2000), y])
    assert table.loc["a", "nll_se"] == pytest.approx(logs.std() / 2000**0.5, rel=0.15)
    assert set(table.attrs["better"]) == {"accuracy", "nll", "brier", "ece"}


@pytest.mark.parametrize("outputs", [0, 1, 2])
def test_resamples_by_counts_score_as_the_rows_that_they_draw(outputs):
    """Of classes (0), of one output and of two."""
    rng = np.random.default_rng(4)
    if outputs:
        shape = (ROWS, 2)[:outputs]
        p, q = ({"mean": rng.normal(size=shape), "variance": rng.random(shape)} for _ in "ab")
        p["log_prob"], y, temperature = rng.normal(size=ROWS), rng.normal(size=shape), None
    else:
        p, q = ({"probs": rng.dirichlet(np.ones(4), size=ROWS)} for _ in "ab")
        y, temperature = rng.integers(0, 4, size=ROWS), 2.0
    rows = row_scores(p, y, 1.0, temperature)
    rows = rows._replace(by_row=rows.by_row | row_distances(p, q, 1.0).by_row)
    resamples = rng.choice(ROWS, (5, ROWS))
    found = scores_of_resamples(rows, resamples)
    for number, chosen in enumerate(resamples):
        a, b = rows_of(p, chosen), rows_of(q, chosen)
        expected = scores_of(row_scores(a, y[chosen], 1.0, temperature))
        expected |= scores_of(row_distances(a, b, 1.0))
        assert {name: each[number] for name, each in found.items()} == pytest.approx(expected)


def test_the_error_of_an_rmse_is_that_of_the_delta_method(targets):
    table = compare({"a": regressor(0)}, targets, standard_errors=True)
    squares = (regressor(0)["mean"].to_numpy() - targets) ** 2
    expected = squares.std() / ROWS**0.5 / 2 / table.loc["a", "rmse"]
    assert table.loc["a", "rmse_se"] == pytest.approx(expected, rel=0.2)


def test_equal_chains_add_no_error_and_different_ones_do(labels):
    a, b = classifier(0), classifier(1)
    rows_alone = compare({"a": a}, labels, b, standard_errors=True)
    chains = {"a": [a] * 4, "the reference": np.stack([b] * 4)}
    equal = compare({"a": a}, labels, b, by_chain=chains, standard_errors=True)
    np.testing.assert_allclose(equal, rows_alone, rtol=1e-9)
    different = [classifier(2), classifier(3)]
    found = compare({"a": a}, labels, b, by_chain={"a": different}, standard_errors=True)
    assert found.loc["a", "nll_se"] > rows_alone.loc["a", "nll_se"]
    assert found.loc["a", "nll"] == rows_alone.loc["a", "nll"]


def test_the_chain_part_is_the_error_of_a_mean_over_chains(labels):
    # Of one row repeated there is no error over rows, and the Brier score is nearly linear.
    rng = np.random.default_rng(0)
    first = 0.6 + 0.001 * rng.normal(size=8)
    chains = [np.tile([p, 1 - p], (ROWS, 1)) for p in first]
    y = np.zeros(ROWS, int)
    whole = np.mean(chains, axis=0)
    table = compare({"a": whole}, y, by_chain={"a": chains}, standard_errors=True)
    expected = 4 * (1 - first.mean()) * first.std(ddof=1) / 8**0.5 * widened(7)
    assert table.loc["a", "brier_se"] == pytest.approx(expected, rel=0.3)


def test_a_share_of_all_rows_has_an_error():
    probs, y = np.tile([0.9, 0.1], (50, 1)), np.zeros(50, int)
    table = compare({"a": probs}, y, standard_errors=True)
    p = 52 / 54  # Agresti and Coull's
    assert table.loc["a", "accuracy"] == 1
    assert table.loc["a", "accuracy_se"] == pytest.approx(np.sqrt(p * (1 - p) / 54))


def test_the_reference_has_no_error_of_its_distance_to_itself(labels):
    chains = {"a": [classifier(2), classifier(3)]}
    table = compare({"a": classifier(0)}, labels, "a", by_chain=chains, standard_errors=True)
    assert table.loc["a", ["agreement_se", "total_variation_se"]].tolist() == [0, 0]


def test_the_noise_floor_is_the_distance_between_halves_of_the_reference(labels):
    a, b = classifier(0), classifier(1)
    chains = [classifier(seed) for seed in range(4)]
    floor = compare({"a": a}, labels, b, by_chain={"the reference": chains}).attrs["noise_floor"]
    halves = (chains[0] + chains[2]) / 2, (chains[1] + chains[3]) / 2
    assert floor["total_variation"] == pytest.approx(metrics.total_variation(*halves))
    assert floor["agreement"] == metrics.agreement(*halves)
    same = compare({"a": a}, labels, "a", by_chain={"a": [a, a]}).attrs["noise_floor"]
    assert same == {"agreement": 1, "total_variation": 0}
    assert compare({"a": a}, labels, b).attrs["noise_floor"] == {}


def test_chains_of_regressions_are_mixed_with_the_spread_of_their_means(targets):
    chains = [regressor(0), regressor(1)]
    means, variances = (np.stack([c[v] for c in chains]) for v in ("mean", "variance"))
    mixed = mixture([variables_of("a", chain) for chain in chains])
    np.testing.assert_allclose(mixed["mean"], means.mean(0))
    second = (variances + means**2).mean(0)
    np.testing.assert_allclose(mixed["variance"], second - means.mean(0) ** 2)
    density = np.exp(np.stack([chain["log_prob"] for chain in chains])).mean(0)
    np.testing.assert_allclose(np.exp(mixed["log_prob"]), density)
    table = compare(
        {"a": mixed, "b": regressor(2)},
        targets,
        "a",
        by_chain={"a": chains},
        standard_errors=True,
    )
    assert table.attrs["noise_floor"]["wasserstein_2"] == metrics.wasserstein_2(*chains)
    assert (table.filter(like="_se").to_numpy() >= 0).all()


def test_chains_that_do_not_fit_are_refused(labels):
    a = classifier(0)
    with pytest.raises(ValueError, match=r"by_chain, a: got a chain with probs of shape \(39, 3\)"):
        compare({"a": a}, labels, by_chain={"a": [a, a[1:]]})
    with pytest.raises(ValueError, match="by_chain: got 'b'; expected one of a"):
        compare({"a": a}, labels, by_chain={"b": [a, a]})


def test_latex_and_text_have_standard_errors_beside_the_scores(labels):
    table = compare({"a": classifier(0)}, labels, standard_errors=True)[["nll", "nll_se"]]
    value, error = table.loc["a"]
    assert with_errors(table).loc["a", "nll"] == f"{value:.4g} ± {error:.2g}"
    assert list(with_errors(table)) == ["nll"]
    assert rf"$ $\pm$ ${error:.3f}$ \\" in to_latex(table)


def test_errors_say_what_was_got_expected_and_what_to_do(labels, targets):
    p, q = classifier(0), regressor(0)
    two = {"a": p, "bee": classifier(1)}
    draws = draws_of_arrays({"posterior": {"w": np.zeros((1, 4))}})
    unsummed = {"a": p, "b": 2 * p}
    cases = [
        (({}, labels), {}, "got predictions of type dict, expected a dict that is not empty"),
        ((q, labels), {}, "got predictions of type Dataset, expected a dict"),
        (({"a": xr.Dataset()}, labels), {}, "a: got a prediction of nothing, expected probs, or"),
        (({"a": p, "b": p[1:]}, labels), {}, "b: got shape (39, 3), expected (40, 3)"),
        (({"a": p, "b": np.eye(4)[labels]}, labels), {}, "b: got shape (40, 4), expected (40, 3)"),
        (({"a": p}, labels[1:]), {}, "a: got shape (40, 3), expected (39, 3), the rows of y"),
        (({"a": p, "b": q}, labels), {}, "b: got a regression, expected classes like a"),
        (({"a": q, "b": p}, targets), {}, "b: got classes, expected a regression like a"),
        ((two, labels, q), {}, "the reference: got a regression, expected classes"),
        ((two, labels, p[:, :2]), {}, "the reference: got shape (40, 2), expected (40, 3)"),
        ((two, labels, "be"), {}, "got 'be'; did you mean 'bee'? expected one of a, bee"),
        (({"the reference": p}, labels, p), {}, "a method and a reference both called"),
        ((unsummed, labels), {}, "b: got row 0 with minimum"),
        ((two, labels + 1), {}, "a: got labels from 1 to 3, expected 0 to 2"),
        ((two, labels), {"scale": 2.0}, "a: got scale=2.0 for classes, expected 1"),
        ((two, labels), {"draws": {"c": draws}}, "draws: got 'c'; expected one of a, bee"),
        ((two, labels), {"function_rhat": {"c": 1}}, "function_rhat: got 'c'; expected one of"),
        ((two, labels), {"validation": [40]}, "validation: got int64 of shape (1,), expected"),
        ((two, labels), {"validation": 20}, "validation: got int64 of shape (), expected numbers"),
        ((two, labels), {"validation": [0.5]}, "validation: got float64 of shape (1,), expected"),
        ((two, labels), {"validation": range(40)}, "got 40 of 40 rows, expected some but not all"),
        ((two, labels), {"validation": labels < 0}, "got 0 of 40 rows, expected some but not all"),
        ((two, labels), {"validation": (0, 1)}, "got a tuple, expected (predictions by name, lab"),
        ((two, labels), {"validation": ({"a": p}, labels)}, "predictions of a, expected a, bee:"),
        ((two, labels), {"validation": (two, labels[1:])}, "a, validation: got shape (40, 3), exp"),
        (({"a": q}, targets), {"validation": [1]}, "got validation for regressions, expected it"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(ValueError) as error:
            compare(*arguments, **options)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="got digits=0, expected 1 or more"):
        to_latex(compare(two, labels), digits=0)


@pytest.fixture
def hmc():
    """Return the published HMC predictions for the CIFAR-10 test set, and the labels."""
    folder = Path(os.environ.get("BNN_PPL_DATA", "no-such-folder")) / "cifar10"
    if not folder.is_dir():
        pytest.skip("BNN_PPL_DATA is not set to a folder with cifar10")
    probs = np.load(folder / "hmc_reference.npz")["probs"]
    return probs, np.load(folder / "labels.npz")["y_test"]


def test_table_reproduces_the_published_hmc_predictions(hmc):
    probs, y = hmc
    predictions = {
        "hmc": probs,
        "uniform": np.full((10000, 10), 0.1),
        "argmax": np.eye(10)[probs.argmax(1)],
        "truth": np.eye(10)[y],
    }
    table = compare(predictions, y, "hmc").round(4)
    scores = table.loc["hmc", ["accuracy", "nll", "brier", "ece"]]
    assert scores.tolist() == [0.9144, 0.2773, 0.1339, 0.0522]
    distances = table["total_variation"].round(3)
    assert distances.to_dict() == {"hmc": 0, "uniform": 0.81, "argmax": 0.138, "truth": 0.167}
    assert table.loc[["hmc", "argmax", "truth"], "agreement"].round(3).tolist() == [1, 1, 0.914]


def test_published_hmc_predictions_are_underconfident(hmc):
    probs, y = hmc
    table = compare({"hmc": probs}, y, validation=np.arange(0, 10000, 2))
    assert 0.5 < table.loc["hmc", "temperature"] < 0.9
    assert table.loc["hmc", "calibrated_nll"] < table.loc["hmc", "nll"] - 0.005


def test_intervals_of_counts_hold_as_often_as_in_the_summary():
    y = np.random.default_rng(0).poisson(0.3, 400).astype(float)

    def of(rate):
        moments = {"mean": np.full(400, rate), "variance": np.full(400, rate)}
        law = scipy.stats.poisson(rate)
        ends = {"pit_lower": law.cdf(y - 1), "pit_upper": law.cdf(y)}
        return moments | ends | {"log_prob": law.logpmf(y)}

    found = compare({"a": of(0.3)}, y, by_chain={"a": [of(0.2), of(0.4)]})
    expected = metrics.summary(of(0.3), y)
    assert found.loc["a", "coverage_90"] == expected["coverage_90"]
    both = mixture([of(0.2), of(0.4)])
    np.testing.assert_allclose(both["pit_upper"], (of(0.2)["pit_upper"] + of(0.4)["pit_upper"]) / 2)
