"""Whether intervals and class probabilities can be trusted, where it is known."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from marks import quick_first

from bnn_ppl import metrics
from bnn_ppl.analysis.metrics.chance import range_of_curve
from bnn_ppl.analysis.metrics.row_thirds import number_columns

TRUSTED = "90 % intervals can be trusted as far as "


def regression(seed, rows=300, sd_told=lambda sd, x: sd):
    """Give a prediction whose sd is told right or wrong, targets, and inputs: the third decides."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    mean, sd = 2 * x[:, 2] + 0.3 * x[:, 0], np.exp(0.5 * x[:, 1])
    y = mean + sd * rng.normal(size=rows)
    return {"mean": mean, "variance": sd_told(sd, x) ** 2}, y, x


def classification(seed, sharpened=1.0, rows=400):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet([0.2] * 4, size=rows)
    y = (probs.cumsum(1) < rng.uniform(size=(rows, 1))).sum(1)
    told = probs**sharpened
    return told / told.sum(1, keepdims=True), y


def test_columns_of_the_table_stand_apart():
    check = metrics.calibration_check(*classification(0))
    check.table["nll"] = 0.0002214
    assert all(line.split()[-1] == "0.0002214" for line in check.text().splitlines()[1:])


@quick_first("rows", [31, 300])
def test_intervals_of_the_right_sd_are_trusted_95_times_in_100(rows):
    checks = [metrics.calibration_check(*regression(seed, rows)) for seed in range(100)]
    trusted = [check.sentence.startswith(f"{TRUSTED}{rows} rows tell") for check in checks]
    assert sum(trusted) >= 95
    assert trusted == [check.trusted is True for check in checks]
    assert all((check.table.finding == "").all() == check.trusted for check in checks)


@pytest.mark.parametrize("rows", [31, 300])
@pytest.mark.parametrize(("factor", "finding"), [(0.5, "too narrow"), (2.0, "too wide")])
def test_an_sd_of_half_or_twice_the_truth_is_found(rows, factor, finding):
    found = 0
    level = 50 if rows == 31 and finding == "too wide" else 90  # 90 % of 31 may all be inside
    for seed in range(20):
        given = regression(seed, rows, lambda sd, x: factor * sd)
        check = metrics.calibration_check(*given)
        found += check.sentence.startswith(f"{level} % intervals are {finding}: they hold ")
        assert check.trusted is not True or rows == 31
    assert found >= (16 if rows == 31 else 20)


def test_the_third_whose_sd_is_wrong_is_named():
    damped = regression(0, 600, lambda sd, x: np.where(sd > 1.1, 1.1 + 0.1 * (sd - 1.1), sd))
    sentence = metrics.calibration_check(*damped).sentence
    assert ", above all where the predicted sd is above 1.1" in sentence
    assert sentence.startswith("90 % intervals are too narrow: they hold ")
    *given, x = regression(0, 600, lambda sd, x: np.where(x[:, 2] > 0.45, sd / 1.35, sd))
    names = ["age", "bmi", "dose", "sex"]
    check = metrics.calibration_check(*given, pd.DataFrame(x, columns=names))
    assert check.table.finding.tolist() == [""] * 7 + ["too narrow"]
    of_third = x[:, 2] > 0.365
    held = (np.abs(given[1] - given[0]["mean"]) < 1.6449 * np.sqrt(given[0]["variance"]))[of_third]
    number = f"{100 * held.mean():.0f} % of {len(held)} (83 to 95 % expected); over all, they hold"
    assert f"intervals are too narrow where dose is above 0.36: {number} 87 %" in check.sentence


def test_both_kinds_of_thirds_are_named():
    told = lambda sd, x: sd * np.select([x[:, 2] < -0.4, x[:, 2] > 0.4], [1.5, 0.8], 1)  # noqa: E731
    *given, x = regression(1, 900, told)
    sentence = metrics.calibration_check(*given, x[:, 2:]).sentence
    assert "too wide where input 0 is up to -0.4" in sentence
    assert " and too narrow where input 0 is above 0.3" in sentence


def test_few_rows_do_not_tell():
    check = metrics.calibration_check(*regression(0, 12))
    one = metrics.calibration_check(*regression(0, 1)[:2])
    assert one.in_words("test rows").startswith("1 test row is too few to tell")
    told = "12 test rows are too few to tell whether 90 % intervals can be trusted: they hold "
    assert check.in_words("test rows").startswith(told) and check.trusted is None
    assert set(check.table.by) == {"", "50 % intervals"}  # no thirds
    *given, x = regression(0, 31)
    ends = given[0]["mean"] - 99, given[0]["mean"] + 99
    wide = metrics.calibration_check(*given, x, intervals=ends)
    assert wide.sentence.endswith("100 % expected); too few rows to tell whether they are too wide")


def test_lines_are_those_of_their_rows_in_original_units():
    prediction, y, x = regression(2, 90)
    check = metrics.calibration_check(prediction, y, x, level=0.8, scale=10.0)
    sd = np.sqrt(prediction["variance"])
    inside = np.abs(y - prediction["mean"]) <= scipy.stats.norm.ppf(0.9) * sd
    nll = -scipy.stats.norm.logpdf(y, prediction["mean"], sd) + np.log(10)
    parts = [np.ones(90, bool)]
    for values in (10 * sd, x[:, 2]):
        rank = scipy.stats.rankdata(values)
        parts += [rank <= 30, (rank > 30) & (rank <= 60), rank > 60]
    table, outside = check.table, [0.025 / 2] + [0.025 / 6] * 6
    narrow = table[table.by == "50 % intervals"].iloc[0]
    within = np.abs(y - prediction["mean"]) <= scipy.stats.norm.ppf(0.75) * sd
    np.testing.assert_allclose(narrow.held, within.mean())
    low = round(narrow.lower * 90)
    half = scipy.stats.binom(90, 0.5)
    assert half.cdf(low - 1) <= 0.025 / 4 < half.cdf(low)
    table = table.drop(index=1).reset_index(drop=True)
    for k, part in enumerate(parts):
        size = part.sum()
        assert abs(table.num_rows[k] - size) <= 2  # edges are told to three digits
        if table.num_rows[k] == size:
            np.testing.assert_allclose(table.held[k], inside[part].mean())
            np.testing.assert_allclose(table.nll[k], nll[part].mean())
        law = scipy.stats.binom(table.num_rows[k], 0.8)
        low, high = (round(table[end][k] * table.num_rows[k]) for end in ("lower", "upper"))
        assert law.cdf(low - 1) <= outside[k] / 2 < law.cdf(low)
        assert law.sf(high) <= outside[k] / 2 < law.sf(high - 1)
    assert table.by.tolist() == [""] + ["predicted sd"] * 3 + ["input 2"] * 3
    edge = float(table.part[1].removeprefix("up to "))
    assert abs(np.mean(10 * sd <= edge) - 1 / 3) < 0.03
    lines = str(check).splitlines()
    assert len(lines) == 11 and lines[-1] == check.sentence
    assert max(map(len, lines[:-1])) <= 80


def test_the_density_of_the_mixture_is_taken_where_it_is_known():
    prediction, y, _ = regression(2, 90)
    both = prediction | {"log_prob": np.linspace(-3, -1, 90)}
    assert metrics.calibration_check(both, y).table.nll[0] == pytest.approx(2)


def test_equal_values_stay_together_and_one_for_all_does_not_split():
    prediction, y, _ = regression(0, 100, lambda sd, x: 1 + 0.01 * np.tanh(x[:, 0]))
    yes = np.arange(100.0) % 4 == 0
    prediction["mean"] = prediction["mean"] + 9 * yes
    table = metrics.calibration_check(prediction, y + 9 * yes, yes[:, None]).table
    table = table[table.by != "50 % intervals"]
    assert table.by.tolist() == ["", "input 0", "input 0"]
    assert table.num_rows.tolist() == [100, 75, 25]
    assert table.part.tolist() == ["all", "up to 0.00", "above 0.00"]


def test_one_of_several_outputs_is_named_and_ranges_are_for_all_of_them():
    right, y, x = regression(0, 200)
    half, z, _ = regression(1, 200, lambda sd, x: sd / 2)
    both = {name: np.stack([right[name], half[name]], 1) for name in right}
    check = metrics.calibration_check(both, np.stack([y, z], 1), x, outputs=["age", "height"])
    assert check.sentence.startswith("90 % intervals are too narrow: for height they hold 57 %")
    alone = metrics.calibration_check(right, y, x)
    assert check.table.lower[0] < alone.table.lower[0]
    shown = check.shown()
    assert shown.label.iloc[:2].tolist() == ["age all", "height all"]
    assert (shown.finding.iloc[1:] == "too narrow").all()
    twice = {name: np.stack([right[name]] * 2, 1) for name in right}
    check = metrics.calibration_check(twice, np.stack([y, y], 1))
    assert "tell: furthest off, for output 0 they hold 92 % of them" in check.sentence


def test_several_outputs_have_an_nll_each_only_if_gaussian():
    y = np.ones((40, 2))
    prediction = {"mean": y, "variance": y, "log_prob": -y[:, 0]}
    gaussian = metrics.calibration_check(prediction, y)
    assert gaussian.table.nll.notna().all() and "nan" not in gaussian.text()
    ends = {"pit_lower": 0.4 * y, "pit_upper": 0.6 * y}
    others = metrics.calibration_check(prediction | ends, y)
    assert others.table.nll.isna().all() and "nan" not in others.text()


def test_the_output_that_was_found_wrong_is_named_also_if_another_is_further_off():
    y = np.zeros((300, 2))
    y[:150] = 1.2  # half of the rows are inside intervals of 50 %
    y[:44, 0], y[:17, 1] = 2.0, 2.0  # 85.3 % inside, which may be chance, and 94.3 %: not
    check = metrics.calibration_check(
        {"mean": np.zeros((300, 2)), "variance": np.ones((300, 2))}, y
    )
    whole = check.table[check.table.by == ""]
    assert whole.finding.tolist() == ["", "too wide"] and check.trusted is False
    assert check.sentence.startswith("90 % intervals are too wide: for output 1 they hold")


def test_intervals_that_hold_but_in_the_middle_are_too_wide():
    """As a Gaussian does whose few large errors make it wide."""
    rng = np.random.default_rng(0)
    y = np.where(rng.uniform(size=60) < 0.07, 3.0, 0.1) * rng.normal(size=60)
    check = metrics.calibration_check({"mean": np.zeros(60), "variance": np.ones(60)}, y)
    assert check.table.finding[0] == "" and check.trusted is False
    assert check.sentence.startswith("50 % intervals are too wide: they hold 9")
    assert "; 90 % intervals hold 9" in check.sentence


def test_rows_in_which_the_opposite_is_found_are_told_too():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 200)
    y = 0.4 * np.exp(x) * rng.normal(size=200)
    one_sd = {"mean": np.zeros(200), "variance": np.full(200, np.mean(y**2))}
    sentence = metrics.calibration_check(one_sd, y, x[:, None]).sentence
    assert sentence.startswith("50 % intervals are too wide: they hold ")
    assert "; but 90 % intervals are too narrow where input 0 is above " in sentence


def test_variances_without_end_have_no_thirds():
    prediction, y, _ = regression(0)
    variance = np.where(np.arange(300) % 3 == 0, np.inf, prediction["variance"])
    check = metrics.calibration_check(prediction | {"variance": variance}, y)
    assert "predicted sd" not in check.text()


def test_other_intervals_are_checked_as_they_are_given():
    prediction, y, _ = regression(0)
    below = np.full(300, -np.inf), np.full(300, np.quantile(y, 0.3))
    check = metrics.calibration_check(prediction, y, intervals=below)
    assert check.table.held[0] == 0.3 and check.sentence.startswith("90 % intervals are too narrow")


def test_probabilities_of_classes():
    checks = [metrics.calibration_check(*classification(seed)) for seed in range(100)]
    told = "class probabilities can be trusted as far as 400 rows tell: predictions of "
    assert sum(check.sentence.startswith(told) for check in checks) >= 95
    probs, y = classification(0, sharpened=3.0)
    check = metrics.calibration_check(probs, y)
    right, confidence = 100 * np.mean(probs.argmax(1) == y), 100 * probs.max(1).mean()
    expected = (
        f"predictions of {confidence:.0f} % confidence are right in {right:.0f} % of 400 rows"
    )
    assert check.sentence.startswith(f"class probabilities are overconfident: {expected} (")
    assert set(check.table.by) == {"", "confidence"} and check.level is None
    under = metrics.calibration_check(*classification(0, sharpened=0.3)).sentence
    assert under.startswith("class probabilities are underconfident")


def test_columns_that_are_no_numbers_are_left_out():
    prediction, y, x = regression(0)
    frame = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(
        word=["u", "v"] * 150,
        day=pd.date_range("2020-01-01", periods=300),
        number=x[:, 2].astype(object),
        whole=pd.array([1, None] * 150, "Int64"),
    )
    for kind in (object, "str"):
        told = number_columns(
            frame.assign(told=x[:, 3].astype(str).astype(object)).astype({"told": kind}), 300
        )
        assert list(told) == ["a", "b", "number", "told"]
        np.testing.assert_allclose(told["told"], x[:, 3])
    found = metrics.calibration_check(prediction, y, frame).table
    assert set(found["by"]) == {"", "50 % intervals", "predicted sd", "number"}


def test_names_of_outputs_may_be_an_array():
    prediction, y, _ = regression(0)
    two = {name: np.stack([each] * 2, 1) for name, each in prediction.items()}
    found = metrics.calibration_check(two, np.stack([y, y], 1), outputs=np.array(["a", "b"]))
    assert set(found.table["output"]) == {"a", "b"}


def test_what_cannot_be_checked_is_refused():
    prediction, y, x = regression(0, 10)
    with pytest.raises(ValueError, match=r"x of shape \(9, 4\), expected \(10, inputs\); leave it"):
        metrics.calibration_check(prediction, y, x[:9])
    with pytest.raises(ValueError, match="level"):
        metrics.calibration_check(prediction, y, level=90)
    with pytest.raises(ValueError, match="got x or intervals for classes, expected a regression"):
        metrics.calibration_check(*classification(0), x=np.zeros((400, 2)))


@pytest.mark.parametrize("rows", [31, 3000])
def test_whole_curves_leave_their_range_5_times_in_100(rows):
    levels = np.linspace(0.01, 0.99, 99)
    low, high = range_of_curve(rows, levels, 0.05)
    bins = np.diff([0, *levels, 1])
    shares = np.random.default_rng(5).multinomial(rows, bins, 1000)[:, :-1].cumsum(1) / rows
    leaving = ((shares < low - 1e-9) | (shares > high + 1e-9)).any(1).sum()
    assert 25 <= leaving <= 75


def test_pit_is_uniform_where_the_sd_is_right():
    prediction, y, _ = regression(0, 2000)
    assert scipy.stats.kstest(metrics.pit(prediction, y), "uniform").pvalue > 0.01
    law = scipy.stats.norm(prediction["mean"], np.sqrt(prediction["variance"]))
    np.testing.assert_allclose(metrics.pit(prediction, y), law.cdf(y))
