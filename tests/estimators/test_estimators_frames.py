"""Estimators on data frames: texts, categories, truth values, dates and empty cells."""

import subprocess
import sys
import warnings

import joblib
import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import PartialDependenceDisplay, permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import bnn_ppl as bnn
from bnn_ppl.estimators import BayesianClassifier, BayesianRegressor
from bnn_ppl.estimators.likelihoods import check_more_targets, likelihood_of
from bnn_ppl.estimators.rows import Rows, class_weights
from bnn_ppl.estimators.stored import whole_numbers
from bnn_ppl.estimators.tables import learnt_table

FEW = {"method": "descent", "hidden": (4,), "num_warmup": 60, "num_chains": 2, "prior_scale": 1.0}
FEW |= {"random_state": 0, "method_options": {"learning_rate": 0.05}}
RNG = np.random.default_rng(0)
NUM = 60
FRAME = pandas.DataFrame(
    {
        "day": pandas.date_range("2022-01-01", periods=NUM, freq="9D"),
        "city": RNG.choice(["Graz", "Linz", "Wien"], NUM),
        "area": RNG.normal(80, 20, NUM).round(1),
        "garden": RNG.random(NUM) > 0.5,
        "zone": pandas.Categorical(RNG.integers(1, 4, NUM)),
        "note": [f"text {number}" for number in RNG.permutation(NUM)],
    }
)
PRICE = 2 * FRAME["area"] + 20 * (FRAME["city"] == "Wien") + RNG.normal(0, 3, NUM)
FRAME.loc[::10, "area"] = np.nan
FRAME.loc[3, "city"] = None


@pytest.fixture(scope="module")
def regressor():
    with pytest.warns(UserWarning, match="without 'note' .*; empty cells of city, area filled"):
        return BayesianRegressor(**FEW).fit(FRAME, PRICE)


def test_a_column_that_is_categorical_and_dropped_is_refused():
    columns = bnn.data.Columns(categorical=("city",), drop=("city",))
    with pytest.raises(ValueError, match="got 'city' as categorical, expected an input; leave it"):
        BayesianRegressor(**FEW, columns=columns).fit(FRAME, PRICE)


def test_columns_become_numbers_as_those_of_a_file_do(regressor, tmp_path):
    rows = pandas.concat([FRAME.drop(columns="note").assign(price=PRICE)] * 4)
    rows.to_csv(tmp_path / "flats.csv", index=False)
    columns = bnn.data.Columns(categorical=("zone",))
    with pytest.warns(UserWarning, match="one-hot"):
        data = bnn.data.load(tmp_path / "flats.csv", target="price", columns=columns)
    own, others = regressor.encoding_, data.encoding
    assert own.names_of_x == others.names_of_x
    assert {column.name: column.kind for column in own.inputs}["zone"] == "category"
    assert regressor.feature_names_in_.tolist() == list(FRAME) and regressor.n_features_in_ == 6
    x = regressor.posterior_.data[0] * regressor.x_scale_ + regressor.x_mean_
    np.testing.assert_allclose(x[1:3], bnn.data.encode(FRAME, others)[1:3], atol=1e-3)


def test_a_fit_to_texts_uses_them(regressor):
    other = FRAME.assign(city="Wien"), FRAME.assign(city="Graz")
    wien, graz = (regressor.predict(each) for each in other)
    assert regressor.score(FRAME, PRICE) > 0.5 and np.mean(wien - graz) > 5


def test_unseen_categories_are_others_and_empty_cells_the_median(regressor):
    median = FRAME["area"].median()
    with warnings.catch_warnings(action="error"):  # what training had is no surprise
        empty = regressor.predict(FRAME.assign(area=np.nan), return_std=True)[1]
    known = regressor.predict(FRAME.assign(area=median), return_std=True)[1]
    assert np.isfinite(empty).all() and not np.allclose(empty, known)  # marked, unlike the median
    with pytest.warns(UserWarning, match="city with other for Ulm"):
        ulm = regressor.predict(FRAME.assign(city="Ulm"))
    with pytest.warns(UserWarning, match="city with other for Linz an der Donau"):
        other = regressor.predict(FRAME.assign(city="Linz an der Donau"))
    np.testing.assert_array_equal(ulm, other)
    day = FRAME["day"].astype(object).where(FRAME.index > 0, None)
    with pytest.warns(UserWarning, match="1 of 60 rows have empty cells, filled: day with the"):
        assert np.isfinite(regressor.predict(FRAME.assign(day=day))).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.rename(columns={"area": "m2"}), "feature names should match"),
        (lambda f: f[f.columns[::-1]], "must be in the same order"),
        (lambda f: f.drop(columns="area"), "yet now missing:\n- area"),
        (lambda f: f.to_numpy()[:, 1:], "X has 5 features, but BayesianRegressor is expecting 6"),
    ],
)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_other_columns_are_refused_in_scikit_learns_words(regressor, change, message):
    with pytest.raises(ValueError, match=message):
        regressor.predict(change(FRAME))


def test_covariances_quantiles_and_samples_agree_with_mean_and_sd(regressor):
    mean, sd = regressor.predict(FRAME, return_std=True)
    same, covariance = regressor.predict(FRAME, return_cov=True)
    np.testing.assert_array_equal(same, mean)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), sd, rtol=1e-6)
    x = regressor._inputs(FRAME, np.dtype(float))
    of_draws = bnn.function_draws(regressor.posterior_, regressor.draws_, x).posterior["mean"]
    each = of_draws.values.reshape(-1, NUM) * regressor.y_scale_
    expected = np.cov(each, rowvar=False, ddof=0)
    np.testing.assert_allclose(covariance[0, 1:], expected[0, 1:], rtol=1e-3, atol=1e-3)
    quantiles = regressor.predict_quantiles(FRAME, [0.05, 0.95])
    np.testing.assert_allclose(quantiles.T, regressor.predict_interval(FRAME), rtol=1e-9)
    drawn = regressor.sample_y(FRAME, 400, random_state=1)
    assert drawn.shape == (NUM, 400)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=0.3 * sd.max())
    np.testing.assert_allclose(drawn.std(1), sd, rtol=0.2)
    assert (regressor.sample_y(FRAME, 3) == regressor.sample_y(FRAME, 3)).all()
    with pytest.raises(ValueError, match="got return_std and return_cov, expected one"):
        regressor.predict(FRAME, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="got n_samples=0, expected"):
        regressor.sample_y(FRAME, 0)


@pytest.mark.thorough
def test_a_file_of_joblib_predicts_the_same_in_a_new_process(regressor, tmp_path):
    joblib.dump(regressor, tmp_path / "mine.joblib")
    FRAME.to_pickle(tmp_path / "rows.pkl")
    code = "import joblib, pandas; m = joblib.load('mine.joblib'); " + (
        "print(*m.predict(pandas.read_pickle('rows.pkl').head(3)))"
    )
    done = [sys.executable, "-W", "ignore", "-c", code]
    found = subprocess.run(done, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    expected = regressor.predict(FRAME.head(3))
    np.testing.assert_allclose(np.array(found.split(), float), expected, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:X. ")
def test_a_folder_predicts_frames_as_its_estimator(tmp_path):
    fitted = BayesianRegressor(**FEW, folder=tmp_path / "run").fit(FRAME, PRICE)
    found = bnn.predict(tmp_path / "run", x=FRAME)
    np.testing.assert_allclose(found["mean"], fitted.predict(FRAME), rtol=1e-5)


@pytest.mark.thorough
def test_rows_added_later_are_those_of_one_posterior():
    parts = slice(0, 40), slice(40, NUM)
    one = BayesianRegressor(**FEW)
    one.partial_fit(FRAME[parts[0]], PRICE[parts[0]])
    scales, before = (one.x_mean_, one.y_scale_), one.draws_
    one.partial_fit(FRAME[parts[1]], PRICE[parts[1]], sample_weight=np.full(20, 2.0))
    assert one.posterior_.num_rows == NUM and one.draws_ is not before
    np.testing.assert_array_equal(one.x_mean_, scales[0])
    assert one.y_scale_ == scales[1]
    (_, weights), y = one.posterior_.data
    assert weights.tolist() == [1.0] * 40 + [2.0] * 20
    np.testing.assert_allclose(y * one.y_scale_ + one.y_mean_, PRICE, rtol=1e-4)
    with pytest.raises(ValueError, match=r"got y of shape \(60, 2\), expected \('rows',\)"):
        one.partial_fit(FRAME, np.column_stack([PRICE, PRICE]))
    with pytest.raises(ValueError, match="got y as a dict, expected an array"):
        one.partial_fit(FRAME, {"price": PRICE})
    with pytest.raises(ValueError, match="got folder= with partial_fit, expected"):
        one.set_params(folder="runs").partial_fit(FRAME, PRICE)


@pytest.mark.thorough
def test_labels_that_come_later_are_named_first():
    labels = np.digitize(PRICE, [150, 180])
    few = np.flatnonzero(labels < 2)
    kind = BayesianClassifier(**FEW).partial_fit(FRAME.iloc[few], labels[few], classes=[0, 1, 2])
    assert kind.predict_proba(FRAME).shape == (NUM, 3)
    kind.partial_fit(FRAME, labels)
    assert kind.score(FRAME, labels) > 0.5 and kind.posterior_.num_rows == NUM + len(few)
    assert set(np.unique(kind.sample_y(FRAME, 5))) <= {0, 1, 2}
    with pytest.raises(ValueError, match="got the label 7, expected one of 0, 1, 2: name all"):
        kind.partial_fit(FRAME, labels + 7)
    with pytest.raises(ValueError, match="got y as a dict, expected an array"):
        kind.partial_fit(FRAME, {"kind": labels})
    with pytest.raises(ValueError, match="got class_weight='balanced' with partial_fit"):
        BayesianClassifier(**FEW, class_weight="balanced").partial_fit(FRAME, labels)
    first = FRAME.iloc[few], labels[few]
    with pytest.raises(ValueError, match="got first rows without the label 2 for likelihood='ord"):
        BayesianClassifier(**FEW, likelihood="ordinal").partial_fit(*first, classes=[0, 1, 2])


def test_the_order_of_texts_is_told():
    labels = np.where(PRICE > 150, "low", "high")
    with pytest.warns(UserWarning, match="classes of likelihood='ordinal' in the order high, low:"):
        BayesianClassifier(**FEW, likelihood="ordinal").fit(FRAME, labels)
    ordered = pandas.Series(pandas.Categorical(labels, ["low", "high"], ordered=True))
    with pytest.raises(ValueError, match="got y of categories in the order low, high for") as error:
        BayesianClassifier(**FEW, likelihood="ordinal").fit(FRAME, ordered)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("labels", [[1.0, 2.0], [0.0, 1.0], [3, 7], [False, True]])
def test_labels_that_are_whole_numbers_name_classes_of_a_stored_model(labels):
    found = whole_numbers(labels)
    assert found == (None if labels[0] is False else tuple(map(int, labels)))


def test_rows_of_weight_0_say_nothing_of_what_columns_are():
    frame = pandas.DataFrame({"area": [1.0, 2.0, 3.0, 90.0], "w": [1, 2, 1, 0]})
    columns = bnn.data.Columns(weights="w")
    table = learnt_table(frame, columns, np.full(4, True))
    assert table.encoding.inputs[0].high == 3 and table.weights.tolist() == [1, 2, 1, 0]
    with pytest.raises(ValueError, match="X: got weights of 0 in all training rows, expected some"):
        learnt_table(frame, columns, frame["w"].to_numpy() == 0)


def test_weights_of_classes_may_name_labels_that_rows_lack():
    rows = Rows(np.zeros((2, 0)), np.array([0, 0]), None, False)
    assert class_weights({1: 5.0}, rows, [0, 1]).tolist() == [1.0, 1.0]
    assert class_weights({0: 5.0}, rows, [0, 1]).tolist() == [5.0, 5.0]
    with pytest.raises(ValueError, match="got class_weight of 2, expected labels of y, such as 0"):
        class_weights({2: 5.0}, rows, [0, 1])


@pytest.mark.thorough
def test_columns_for_the_likelihood_and_the_weights_are_no_inputs():
    days = RNG.uniform(1, 30, NUM)
    counts = RNG.poisson(days * 0.5)
    frame = FRAME[["city", "area"]].assign(days=days, w=1.0, nr=np.arange(NUM))
    columns = bnn.data.Columns(exposure="days", weights="w", drop=("nr",))
    fitted = BayesianRegressor(likelihood="poisson", columns=columns, **FEW).fit(frame, counts)
    names = fitted.encoding_.names_of_x
    assert all(name.startswith(("city", "area")) for name in names)
    x, _ = fitted.posterior_.data[0]
    np.testing.assert_allclose(x[:, -1], days, rtol=1e-5)
    mean = fitted.predict(frame)
    twice = fitted.predict(frame.assign(days=2 * days))
    np.testing.assert_allclose(twice, 2 * mean, rtol=1e-4)
    a_day = fitted.predict(frame.assign(days=1).drop(columns="w"))
    with pytest.raises(ValueError, match=r"yet now missing:\n- days\n?$"):
        fitted.predict(frame.drop(columns=["days", "w"]))
    np.testing.assert_allclose(a_day * days, mean, rtol=1e-4)
    with pytest.raises(ValueError, match="got y=0.5 for the likelihood poisson, expected counts"):
        fitted.partial_fit(frame.head(5), np.full(5, 0.5))
    fitted.partial_fit(frame.head(5), counts[:5])
    assert fitted.posterior_.num_rows == NUM + 5
    by_number = clone(fitted).set_params(columns=bnn.data.Columns(exposure="1"))
    by_number.fit(frame[["area", "days"]].to_numpy(), counts)
    assert by_number.encoding_.names_of_x == ["0", "0 empty"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exposure": "area"}, "got a column of exposure with likelihood='auto', expected one of"),
        ({"group": "city"}, "got columns with group='city' for an estimator, expected none to"),
        ({"drop": ("rooms",)}, "X: got a column 'rooms' to use, expected one of day, city"),
        ({"only": ("note",)}, r"X: got no column to learn from \(note: 60 different texts"),
        ({"exposure": "garden"}, "column 'garden' of exposure, expected exposures above 0"),
    ],
)
def test_columns_that_cannot_be_are_refused(options, message):
    columns, frame = bnn.data.Columns(**options), FRAME.assign(area=1.0)
    with pytest.raises(ValueError, match=message) as error:
        BayesianRegressor(columns=columns, **FEW).fit(frame, PRICE)
    assert "\n" not in str(error.value)


def test_a_column_of_an_array_is_named_by_text():
    columns = bnn.data.Columns(drop=(1,))
    with pytest.raises(ValueError, match="got a column 1 to use, expected .*; give the text '1'"):
        BayesianRegressor(columns=columns, **FEW).fit(np.ones((NUM, 2)), PRICE)


def test_what_is_not_as_it_has_to_be_is_said_in_one_line():
    tiny = np.where(np.arange(NUM) == 3, 5e-324, 0)[:, None]
    with pytest.raises(ValueError, match=r"of 0 in the column 'X\[:, 0\]', expected a finite one"):
        BayesianRegressor(**FEW).fit(tiny, PRICE)
    with pytest.raises(ValueError, match="of 0 in the column 'y', expected a finite one above 0"):
        BayesianRegressor(**FEW).fit(np.arange(NUM)[:, None], tiny[:, 0])
    with pytest.raises(ValueError, match="got columns=.*expected what they are for, by name"):
        BayesianRegressor(columns={"drop": "note"}, **FEW).fit(FRAME, PRICE)
    with pytest.raises(ValueError, match="got likelihood='binomial' without trials, expected a"):
        BayesianRegressor(likelihood="binomial", **FEW).fit(FRAME, PRICE)
    with pytest.raises(ValueError, match="got an array X with texts .*DataFrame"):
        BayesianRegressor(**FEW).fit(FRAME.to_numpy(str), PRICE)
    two_levels = pandas.concat({"now": FRAME}, axis=1)
    with pytest.raises(ValueError, match=r"X: got the column name \('now', 'day'\), of several"):
        BayesianRegressor(**FEW).fit(two_levels, PRICE)


@pytest.mark.parametrize("form", [np.asarray, lambda days: days - days.min(), list, "tz"])
def test_dates_and_durations_as_y_are_refused(form):
    days = FRAME["day"].dt.tz_localize("UTC") if form == "tz" else form(FRAME["day"])
    with pytest.raises(ValueError, match="^got y of dates or durations, expected numbers: conv"):
        BayesianRegressor(**FEW).fit(FRAME[["area"]], days)


def test_targets_that_come_later_are_checked_as_the_first_ones_are():
    three = np.full(NUM, 3.0)
    columns = {"trials": three}
    counts = likelihood_of("poisson", three, {}, of_classes=False)
    shares = likelihood_of("binomial", three, columns, of_classes=False)
    check_more_targets(counts, three, {})
    check_more_targets(likelihood_of("ordinal", np.arange(3), {}, of_classes=True), [0], {})
    with pytest.raises(ValueError, match="got y=2.5 for the likelihood poisson, expected counts"):
        check_more_targets(counts, three - 0.5, {})
    with pytest.raises(ValueError, match="got 4 successes in 3 trials"):
        check_more_targets(shares, three + 1, columns)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:X. ", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learns_tools_take_frames():
    frame, labels = FRAME.drop(columns="note"), np.where(PRICE > 160, "dear", "cheap")
    kind = BayesianClassifier(**FEW)
    assert np.mean(cross_val_score(kind, frame, labels, cv=2)) > 0.5
    search = GridSearchCV(kind, {"hidden": [(2,), (4,)]}, cv=2).fit(frame, labels)
    best = search.best_estimator_
    assert best.score(frame, labels) > 0.6
    calibrated = CalibratedClassifierCV(kind, cv=2).fit(frame, labels)
    np.testing.assert_allclose(calibrated.predict_proba(frame).sum(1), 1)
    piped = make_pipeline(FunctionTransformer(lambda f: f.drop(columns="day")), kind)
    assert piped.fit(frame, labels)[-1].n_features_in_ == 4
    found = permutation_importance(best, frame, labels, n_repeats=2, random_state=0)
    assert found.importances_mean[list(frame).index("area")] == found.importances_mean.max()
    shown = PartialDependenceDisplay.from_estimator(
        best, frame.dropna(), ["area", "city"], categorical_features=["city"], grid_resolution=4
    )
    assert [len(each["average"][0]) for each in shown.pd_results] == [4, 3]


@pytest.mark.filterwarnings("ignore:got y of mean")
@pytest.mark.parametrize("again", ["fit", "partial_fit"])
def test_a_fit_that_is_interrupted_leaves_the_earlier_one(monkeypatch, again):
    x, y = FRAME[["garden"]], PRICE.to_numpy()
    fitted = BayesianRegressor(**FEW).fit(x[:30], y[:30])
    before = fitted.predict(x)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bnn, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(fitted, again)(x[30:], 100 * y[30:])
    assert len(fitted.posterior_.data[1]) == len(fitted._train[1]) == 30
    np.testing.assert_array_equal(fitted.predict(x), before)
