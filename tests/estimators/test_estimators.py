"""Estimators: scikit-learn's own checks, and the package's answers behind them."""

import inspect
import json
import pickle
from functools import partial

import jax
import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import estimator_checks_generator

import bnn_ppl as bnn
from bnn_ppl.cli.run_folders import reopen
from bnn_ppl.estimators import BayesianClassifier, BayesianRegressor, network
from bnn_ppl.methods.method import METHODS
from bnn_ppl.model.likelihoods.likelihood import LIKELIHOODS
from bnn_ppl.runtime.compilation import programs
from bnn_ppl.sampling.loop import compiled_loop

SHORT = {"hidden": (4,), "num_chains": 2, "num_warmup": 20, "num_draws": 10, "random_state": 0}
CHECKED = {"method": "descent", "num_warmup": 600, "num_chains": 1, "hidden": (16,)}
RATE = {"method_options": {"learning_rate": 0.02}}
STEPS = {"step_size": 0.01, "trajectory_length": 0.05}  # of hmc, which then starts untrained
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)) * [1.0, 20.0, 0.0] + [0.0, 5.0, 7.0]
Y = 100 + 10 * X[:, 0] + RNG.normal(size=40)


def scikit_learns_checks():
    """All of both; those of the regressor that the classifier passes too are slow ones."""
    for kind in (BayesianClassifier, BayesianRegressor):
        for estimator, check in estimator_checks_generator(kind(**CHECKED, **RATE)):
            name = getattr(check, "func", check).__name__
            if name == "check_sample_weight_equivalence_on_dense_data":
                continue  # to seven digits, after training; ours is the test of repeated rows below
            shared = kind is BayesianRegressor and "regressor" not in name
            marks = [pytest.mark.slow] if shared else []
            yield pytest.param(estimator, check, id=f"{kind.__name__}-{name}", marks=marks)


@pytest.mark.thorough
@pytest.mark.parametrize(("estimator", "check"), list(scikit_learns_checks()))
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def regressor():
    return BayesianRegressor("hmc", method_options=STEPS, **SHORT).fit(X, Y)


def test_the_mean_and_standard_deviation_are_those_of_predict_in_the_units_of_y(regressor):
    mean, std = regressor.predict(X, return_std=True)
    x = (X - X.mean(0)) / np.where(np.ptp(X, 0) > 0, X.std(0), 1)
    prediction = bnn.predict(regressor.posterior_, regressor.draws_, (x, None))
    np.testing.assert_allclose(mean, prediction["mean"] * Y.std() + Y.mean(), rtol=1e-4)
    np.testing.assert_allclose(std, np.sqrt(prediction["variance"]) * Y.std(), rtol=1e-4)
    np.testing.assert_array_equal(regressor.predict(X), mean)


@pytest.mark.thorough
def test_several_counts_are_fitted_together_as_they_are():
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(np.column_stack([X[:, 0], 2 + 0 * X[:, 0]]).clip(-2, 2)))
    options = {"likelihood": "poisson", "prior_scale": 1.0, "hidden": 3, "random_state": 0}
    lengths = {"num_chains": 1, "num_warmup": 30, "num_draws": 5}
    found = BayesianRegressor(**options, **lengths).fit(X, counts)
    assert found.predict(X).shape == counts.shape
    assert found.predict(X).mean(0) == pytest.approx(counts.mean(0), rel=0.5)
    quantiles = found.predict(X, quantiles=[0.1, 0.9])
    assert (quantiles == np.round(quantiles)).all() and quantiles.shape == (*counts.shape, 2)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_allclose(again.predict(X[:3]), found.predict(X[:3]), rtol=1e-5)
    found.partial_fit(X[:5], counts[:5])
    assert found.n_features_in_ == X.shape[1] and (found.y_scale_ == [1, 1]).all()


@pytest.mark.thorough
def test_several_targets_are_fitted_together_each_in_its_units():
    y = np.column_stack([Y, -0.01 * X[:, 1] + 0.001 * RNG.normal(size=40)])
    fitted = BayesianRegressor(**SHORT, covariance="full").fit(X, y)
    assert fitted.posterior_.data[1].shape == (40, 2)
    assert "correlation" in fitted.draws_.posterior
    mean, std = fitted.predict(X, return_std=True)
    x = (X - X.mean(0)) / np.where(np.ptp(X, 0) > 0, X.std(0), 1)
    prediction = bnn.predict(fitted.posterior_, fitted.draws_, (x, None))
    np.testing.assert_allclose(mean, prediction["mean"] * y.std(0) + y.mean(0), rtol=1e-4)
    np.testing.assert_allclose(std, np.sqrt(prediction["variance"]) * y.std(0), rtol=1e-4)
    quantiles = fitted.predict(X, quantiles=[0.05, 0.95])
    lower, upper = fitted.predict_interval(X)
    assert quantiles.shape == (40, 2, 2)
    np.testing.assert_allclose(quantiles, np.stack([lower, upper], -1), rtol=1e-9)
    assert ((lower < mean) & (mean < upper)).all()
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), mean)
    assert BayesianRegressor(**SHORT).fit(X, y[:, :1]).predict(X).shape == (40,)


@pytest.mark.thorough
def test_quantiles_and_intervals_are_those_of_the_mixture_in_the_units_of_y(regressor):
    x = (X - X.mean(0)) / np.where(np.ptp(X, 0) > 0, X.std(0), 1)
    levels = 0.05, 0.5, 0.95
    expected = bnn.predict_quantiles(regressor.posterior_, regressor.draws_, x, levels)
    expected = expected.T * Y.std() + Y.mean()
    found = regressor.predict(X, quantiles=levels)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_array_equal(regressor.predict(X, quantiles=0.5), found[:, 1])
    np.testing.assert_allclose(np.array(regressor.predict_interval(X)).T, found[:, [0, 2]])
    narrow, wide = (np.ptp(regressor.predict_interval(X, level), axis=0) for level in (0.5, 0.9))
    assert (narrow < wide).all()
    for wrong in ({"level": 1.0}, {"level": 90}):
        with pytest.raises(ValueError, match="got level="):
            regressor.predict_interval(X, **wrong)
    with pytest.raises(ValueError, match="got return_std and quantiles, expected one"):
        regressor.predict(X, return_std=True, quantiles=0.5)


def test_the_scales_that_were_fitted_are_attributes(regressor):
    np.testing.assert_allclose(regressor.x_mean_, X.mean(0))
    np.testing.assert_allclose(regressor.x_scale_, [*X.std(0)[:2], 1])  # the last is constant
    assert (regressor.y_mean_, regressor.y_scale_) == pytest.approx((Y.mean(), Y.std()))
    inputs = (X - regressor.x_mean_) / regressor.x_scale_
    np.testing.assert_allclose(regressor.posterior_.data[0], inputs, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("classes", [False, True])
def test_weights_of_rows_are_as_if_the_rows_were_repeated(classes):
    weights = np.arange(40) % 3
    twice = np.repeat(np.arange(40), weights)
    kind, y = (BayesianClassifier, X[:, 0] > 0) if classes else (BayesianRegressor, Y)
    options = {**CHECKED, "hidden": (4,), "num_warmup": 300, **RATE, "random_state": 0}
    weighted = kind(**options).fit(X, y, sample_weight=weights)
    repeated = kind(**options).fit(X[twice], y[twice])
    np.testing.assert_allclose(weighted.x_scale_, repeated.x_scale_)
    posteriors = [each.posterior_ for each in (weighted, repeated)]
    position = posteriors[1].init(jax.random.key(0))
    densities = [each.logdensity(position, each.data) for each in posteriors]
    np.testing.assert_allclose(*densities, rtol=1e-5)
    guess = (each.predict_proba(X) if classes else each.predict(X) for each in (weighted, repeated))
    np.testing.assert_allclose(*guess, rtol=1e-2)
    unweighted = kind(**options).fit(X, y)
    assert not np.allclose(unweighted.x_mean_, weighted.x_mean_)
    again = pickle.loads(pickle.dumps(weighted))
    np.testing.assert_array_equal(again.predict(X), weighted.predict(X))
    with pytest.raises(ValueError, match="Negative values"):
        kind(**options).fit(X, y, sample_weight=-weights)


@pytest.mark.thorough
@pytest.mark.parametrize("classes", [False, True])
def test_laplace_predicts_in_the_form_that_is_asked_for(classes):
    kind, y = (BayesianClassifier, X[:, 0] > 0) if classes else (BayesianRegressor, Y)
    few = {"num_draws": 5, "hidden": (4,), "random_state": 0}
    fitted = kind("laplace", **few).fit(X, y)
    x = ((X - fitted.x_mean_) / fitted.x_scale_).astype(np.float32)

    def predicted():
        return fitted.predict_proba(X) if classes else fitted.predict(X, return_std=True)

    linearised = predicted()
    fitted.set_params(predictive="closed_form")
    closed = predicted()
    expected = bnn.predict_closed_form(fitted.posterior_, fitted.draws_, (x, None))
    if classes:
        np.testing.assert_allclose(closed, expected["probs"], rtol=1e-3)
    else:
        mean = expected["mean"] * Y.std() + Y.mean()
        np.testing.assert_allclose(closed[0], mean, rtol=1e-3)
        lower, upper = fitted.predict_interval(X, 0.682689492)
        np.testing.assert_allclose((upper - lower) / 2, closed[1], rtol=1e-6)  # one sd
    sampled = fitted.set_params(predictive="sampled") and predicted()
    assert not np.allclose(closed, linearised) and not np.allclose(sampled, linearised)
    with pytest.raises(ValueError, match="got predictive='exact', expected one of"):
        fitted.set_params(predictive="exact") and predicted()


def test_a_pickle_predicts_the_same_and_can_be_diagnosed(regressor):
    again = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(again.predict(X), regressor.predict(X))
    functions = bnn.function_draws(again.posterior_, again.draws_, np.zeros((1, 3)))
    assert functions.posterior["mean"].shape == (2, 10, 1)


@pytest.mark.thorough
def test_what_is_set_after_a_fit_is_of_the_next_one():
    regressor = BayesianRegressor(**SHORT, noise=0.5).fit(X, Y)
    _, before = regressor.predict(X, return_std=True)
    _, after = pickle.loads(pickle.dumps(regressor.set_params(noise=3.0))).predict(
        X, return_std=True
    )
    np.testing.assert_array_equal(after, before)


@pytest.mark.thorough
def test_a_clone_with_the_same_random_state_draws_the_same():
    # Both are compiled in this test: a fixture's compiler options are those of the test before it.
    regressor = BayesianRegressor(**SHORT).fit(X, Y)
    again = clone(regressor).fit(X, Y)
    assert again.draws_.posterior.equals(regressor.draws_.posterior)
    other = clone(regressor).set_params(random_state=1).fit(X, Y)
    assert not other.draws_.posterior.equals(regressor.draws_.posterior)


@pytest.mark.thorough
def test_a_number_for_the_noise_is_in_the_units_of_y():
    fitted = BayesianRegressor(noise=3.0, **SHORT).fit(X, Y)
    position = fitted.posterior_.init(jax.random.key(0))
    assert not any("noise" in site for site in position)
    law = fitted.posterior_.predictive(fitted.posterior_.constrain(position), np.zeros((1, 3)))
    assert float(np.sqrt(law.variance)[0]) * Y.std() == pytest.approx(3.0, rel=1e-5)


@pytest.mark.thorough
def test_weights_of_classes_are_weights_of_their_rows():
    labels = np.array(["no", "yes"])[(X[:, 0] > 0.5).astype(int)]

    def probs(sample_weight=None, **options):
        fitted = BayesianClassifier("descent", **SHORT | options)
        return fitted.fit(X, labels, sample_weight).predict_proba(X)

    yes, share = labels == "yes", np.mean(labels == "yes")
    np.testing.assert_allclose(
        probs(class_weight={"yes": 3.0}), probs(np.where(yes, 3.0, 1.0)), rtol=1e-6
    )
    np.testing.assert_allclose(
        probs(np.full(40, 2.0), class_weight="balanced"),
        probs(np.where(yes, 1 / share, 1 / (1 - share))),
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "got class_weight='even', expected 'balanced' or a dict from labels to weights"),
        ({"yse": 2.0}, "got class_weight of yse, expected labels of y, such as no, yes: name them"),
        ({"yes": -2.0}, r"got class_weight\['yes'\]=-2.0, expected a number above 0"),
    ],
)
def test_refused_weights_of_classes(class_weight, message):
    labels = np.array(["no", "yes"])[(X[:, 0] > 0.5).astype(int)]
    with pytest.raises(ValueError, match=message):
        BayesianClassifier(class_weight=class_weight, **SHORT).fit(X, labels)


@pytest.mark.thorough
def test_one_hot_rows_are_the_labels_of_their_columns():
    names = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]
    one_hot = pandas.get_dummies(names)
    fitted = [BayesianClassifier("mfvi", **SHORT).fit(X, y) for y in (names, one_hot)]
    assert [each.classes_.tolist() for each in fitted] == [["no", "yes"]] * 2
    np.testing.assert_array_equal(*(each.predict(X) for each in fitted))
    numbers = BayesianClassifier("mfvi", **SHORT).fit(X.tolist(), one_hot.to_numpy().tolist())
    assert numbers.classes_.tolist() == [0, 1]
    assert fitted[1].score(X, one_hot) == fitted[0].score(X, names)


@pytest.mark.thorough
def test_labels_of_any_kind_come_back_with_probabilities_in_their_order():
    labels = np.array(["no", "yes", "maybe"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    fitted = BayesianClassifier("mfvi", hidden=(), batch_size=20, random_state=0).fit(X, labels)
    assert list(fitted.classes_) == ["maybe", "no", "yes"]
    assert fitted.draws_.posterior.sizes["draw"] == 100
    probs = fitted.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[probs.argmax(1)])
    assert fitted.score(X, labels) > 0.7  # a third by chance


@pytest.mark.thorough
def test_any_method_network_and_prior():
    net = partial(bnn.nets.MLP, 3, (5, 5), 2)
    fitted = BayesianRegressor(
        lambda posterior, step: bnn.hmc(posterior, step_size=step, trajectory_length=10 * step),
        method_options={"step": 0.01},
        noise="heteroscedastic",
        net=net,
        prior=bnn.priors.laplace(0.3),
        **SHORT,
    ).fit(X, Y)
    assert fitted.draws_.posterior["net.layers.1.kernel"].shape == (2, 10, 5, 5)
    assert np.isfinite(fitted.predict(X, return_std=True)).all()


@pytest.mark.thorough
def test_noise_of_x_has_a_network_of_its_own_and_the_floor_of_rounded_targets(tmp_path):
    y = 1e5 + np.round(Y) * np.std(Y)
    few = {"num_warmup": 5, "num_draws": 2, "num_chains": 1, "hidden": 2, "prior_scale": 1.0}
    own = BayesianRegressor("descent", noise="heteroscedastic", folder=tmp_path, **few).fit(X, y)
    assert {"noise", "noise_amplitude", "noise_net.layers.0.kernel"} <= set(own.draws_.posterior)
    assert np.isclose(own.noise_floor_ * own.y_scale_, np.std(Y) / 12**0.5)
    _, sd = own.predict(X, return_std=True)
    assert (sd >= own.noise_floor_ * own.y_scale_).all()
    found = bnn.predict(tmp_path, x=X)
    np.testing.assert_allclose(found["variance"], sd**2, rtol=1e-5)
    # Of an earlier version, whose network had two outputs.
    problem = tmp_path / "problem.json"
    settings = json.loads(problem.read_text())
    for name in ("noise_floor", "checksum"):
        del settings[name]
    problem.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="net.layers.1"):
        bnn.predict(tmp_path, x=X)


@pytest.mark.thorough
def test_a_folder_predicts_classes_by_the_names_of_columns_and_labels(tmp_path):
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    labels = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]
    few = {"num_warmup": 10, "num_draws": 3, "num_chains": 2, "hidden": 2, "prior_scale": 1.0}
    few |= {"random_state": 0}
    options = few | {"folder": tmp_path / "classes"}
    fitted = BayesianClassifier("laplace", **options).fit(frame, labels, np.ones(40))
    found = bnn.predict(tmp_path / "classes", x=(frame[["c", "a", "b"]], labels))
    np.testing.assert_allclose(found["probs"], fitted.predict_proba(frame), atol=1e-5)
    assert found["class"].values.tolist() == ["no", "yes"] and "log_prob" in found


def _own(fitted, x):
    return fitted.posterior_, fitted.draws_, (x - fitted.x_mean_) / fitted.x_scale_


@pytest.mark.parametrize("name", ["loo", "check_sensitivity", "check_predictive"])
def test_what_needs_the_training_rows_refuses_a_folder(name):
    key = [jax.random.key(0)] if name == "check_predictive" else []
    with pytest.raises(TypeError, match=f"got the folder 'runs/mine', .* as {name} uses the .*use"):
        getattr(bnn, name)(*key, "runs/mine")


@pytest.mark.thorough
def test_a_folder_predicts_as_its_estimator_and_resumes(tmp_path):
    few = {"num_warmup": 10, "num_draws": 3, "num_chains": 2, "hidden": 2, "prior_scale": 1.0}
    few |= RATE | {"random_state": 0}
    own = BayesianRegressor("descent", folder=tmp_path / "y", noise=3.0, **few).fit(X, Y)
    mean, sd = own.predict(X, return_std=True)
    found = bnn.predict(tmp_path / "y", x=X)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(found["variance"], sd**2, rtol=1e-5)
    of_y, of_own = (bnn.acquire(*run, num=3) for run in ((tmp_path / "y", X), _own(own, X)))
    np.testing.assert_array_equal(of_y.rows, of_own.rows)
    in_units = of_own.table.mul([Y.var(), Y.std(), Y.std()]) + [0.0, Y.mean(), 0.0]
    np.testing.assert_allclose(of_y.table, in_units, rtol=1e-3)
    epig = bnn.acquire(tmp_path / "y", x=X, targets=X[:5], score="epig")
    own_epig = bnn.acquire(*_own(own, X), targets=_own(own, X[:5])[-1], score="epig")
    np.testing.assert_allclose(epig.table["score"], own_epig.table["score"], rtol=1e-2)
    with pytest.raises(ValueError, match="got score='ei' with the folder of a run, .* largest y"):
        bnn.acquire(tmp_path / "y", X, score="ei")
    again = clone(own).fit(X, Y)
    assert again.draws_.attrs["sampling_time"] == own.draws_.attrs["sampling_time"]
    pickle.loads(pickle.dumps(again)).predict(X)
    with pytest.raises(ValueError, match="made by BayesianRegressor, expected .* bnn_ppl.predict"):
        reopen(tmp_path / "y")


@pytest.mark.thorough
def test_labels_that_are_numbers_or_truth_values_are_those_of_a_folder(tmp_path):
    few = {"num_warmup": 10, "num_draws": 3, "hidden": 2, "prior_scale": 1.0}
    for names in ([3, 5], [False, True]):
        folder, labels = tmp_path / str(names), np.array(names)[(X[:, 0] > 0).astype(int)]
        fitted = BayesianClassifier("descent", folder=folder, **few).fit(X, labels)
        found = bnn.predict(folder, x=(X, labels))
        assert found["class"].values.tolist() == names
        of_own = fitted.predict_proba(X)[range(40), (labels == names[1]).astype(int)]
        np.testing.assert_allclose(np.exp(found["log_prob"]), of_own, rtol=1e-4)


@pytest.mark.thorough
def test_a_fit_that_is_resumed_does_not_search_for_the_scale_again(tmp_path, monkeypatch):
    few = {"num_warmup": 10, "num_draws": 3, "hidden": 2, "random_state": 0}
    first = BayesianRegressor("descent", folder=tmp_path / "a", **few).fit(X, Y)
    monkeypatch.setattr("bnn_ppl.estimators.network.scale_or_usual", None)
    assert clone(first).fit(X, Y).prior_scale_ == first.prior_scale_


@pytest.mark.parametrize("name", ["descent", "mfvi", "hmc", "swag"])
def test_a_method_itself_counts_as_its_name(name):
    by_name, itself = BayesianRegressor(name), BayesianRegressor(getattr(bnn, name))
    assert itself._description() is by_name._description() is METHODS[name]


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_by_its_name_alone(name):
    few = {"num_chains": 2, "num_warmup": 6, "num_draws": 3, "random_state": 0}
    needed = inspect.signature(METHODS[name].build).parameters
    options = {
        option: 1e-4
        for option, p in needed.items()
        if option == "step_size" and p.default is p.empty
    }
    fitted = BayesianRegressor(name, method_options=options, hidden=2, **few).fit(X, Y)
    assert fitted.posterior_.sites.value_shapes()["net.layers.0.kernel"] == (3, 2)
    assert fitted.predict(X).shape == (40,)


@pytest.fixture
def compiled():
    """The programs compiled from now on, also those that the compiler finds in its own cache."""
    names = []

    def listen(event, seconds, **kwargs):
        if "backend_compile" in event:
            names.append(kwargs.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "options", "noise"),
    [("nuts", {}, "learnt"), ("nuts", {}, 3.0), ("descent", {"learning_rate": 0.02}, "learnt")],
)
def test_another_fold_prior_scale_and_seed_compile_nothing(compiled, method, options, noise):
    first = BayesianRegressor(method, method_options=options, noise=noise, **SHORT)
    first.set_params(prior=bnn.priors.fan_in(1.0)).fit(X[:20], Y[:20]).predict(X[:20])
    assert compiled
    compiled.clear()
    priors = [bnn.priors.fan_in(0.1), bnn.priors.fan_in(3.0)]
    search = GridSearchCV(first, {"prior": priors, "random_state": [1, 2]}, cv=2, refit=False)
    scores = search.fit(X, Y).cv_results_
    assert compiled == []
    assert len(np.unique(scores["mean_test_score"])) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["hmc", *sorted(METHODS.keys() - {"hmc"})])
def test_a_fit_to_other_rows_traces_nothing_and_draws_what_it_would_alone(method):
    options = STEPS if method == "hmc" else {}

    def fitted(x, y):
        return BayesianRegressor(method, method_options=options, **SHORT).fit(x, y).draws_.posterior

    first, before = fitted(X, Y), compiled_loop._loop.cache_info().misses
    assert fitted(X, Y).equals(first)
    other = fitted(X**3, Y[::-1])
    assert compiled_loop._loop.cache_info().misses == before
    assert not other.equals(first)
    network._recent.clear()
    assert fitted(X**3, Y[::-1]).equals(other)
    assert compiled_loop._loop.cache_info().misses > before


@pytest.mark.thorough
def test_a_program_found_again_draws_as_one_compiled_for_itself(monkeypatch):
    prior = bnn.priors.fan_in(0.3)
    found = BayesianRegressor(prior=prior, **SHORT).fit(X, Y)  # after one with another scale
    monkeypatch.setattr(programs, "_kept", type(programs._kept)())
    anew = BayesianRegressor(prior=prior, **SHORT).fit(X, Y)
    assert len(programs._kept) >= 4
    assert found.draws_.posterior.equals(anew.draws_.posterior)


def test_an_unknown_method_is_refused_before_the_search_for_a_scale(monkeypatch):
    monkeypatch.setattr("bnn_ppl.estimators.network.scale_or_usual", None)
    with pytest.raises(ValueError, match="got method='hcm'"):
        BayesianRegressor("hcm").fit(X, Y)


@pytest.mark.parametrize("kind", [BayesianClassifier, BayesianRegressor])
def test_several_observed_sites_are_refused(kind):
    with pytest.raises(ValueError, match="got y as a dict, expected an array .*condition"):
        kind().fit(X, {"a": Y, "b": Y})


def test_text_as_y_of_a_regression_is_refused():
    for y in (np.where(Y > 0, "high", "low"), [*Y[:-1], "low"]):
        with pytest.raises(ValueError, match="got the text .* in y, expected numbers: convert y"):
            BayesianRegressor().fit(X, np.array(y, object))


@pytest.mark.parametrize(("labels", "dtype"), [(["a", "b"], "string"), ([1, 0], "Int64")])
def test_a_missing_y_of_pandas_is_named(labels, dtype):
    y = pandas.Series([labels[0], None, *labels * 4], dtype=dtype)
    with pytest.raises(ValueError, match=r"got NaN or infinite values in y of rows \[1\]"):
        BayesianClassifier().fit(np.zeros((10, 2)), y)


def test_a_missing_y_among_objects_is_named():
    y = np.array([None, *Y[1:]], object)
    with pytest.raises(
        ValueError, match=r"got NaN or infinite values in y of rows \[0\], expected"
    ):
        BayesianRegressor().fit(X, y)


@pytest.mark.thorough
def test_a_method_that_follows_another_by_a_function():
    fitted = BayesianRegressor(
        lambda posterior: bnn.swag(posterior, bnn.descent(posterior), rank=2), **SHORT
    ).fit(X, Y)
    assert np.isfinite(fitted.predict(X)).all()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (BayesianRegressor("mcmc"), r"got method='mcmc'; .*expected one of .*nuts.*or a function"),
        (BayesianRegressor("hcm"), "got method='hcm'; did you mean 'hmc'\\? expected one of"),
        (BayesianRegressor(temperature=0.0), "got temperature=0.0, expected"),
        (BayesianRegressor(noise=-1.0), "got noise=-1.0, expected a number above 0"),
        (BayesianRegressor(hidden=0), "got hidden=0, expected whole numbers from 1 up"),
        (BayesianRegressor(hidden=3.0), "got hidden=3.0, expected whole numbers from 1 up"),
        (BayesianRegressor(hidden="auto"), "got hidden='auto', expected whole numbers from 1 up"),
        (BayesianRegressor(noise=None), "got noise=None, expected 'learnt'"),
        (BayesianRegressor(noise="learned"), "got noise='learned', expected 'learnt', 'hetero"),
    ],
)
def test_refused_in_one_line(estimator, message):
    with pytest.raises(ValueError, match=message) as error:
        estimator.fit(X, Y)
    assert "\n" not in str(error.value)


@pytest.mark.thorough
def test_a_likelihood_by_name_predicts_in_the_units_of_y(tmp_path):
    counts = np.random.default_rng(0).poisson(np.exp(1 + 0.5 * X[:, 0]))
    options = {"likelihood": "poisson", "prior_scale": 1.0, "folder": tmp_path / "run"}
    options |= {"method_options": STEPS, **SHORT}
    found = BayesianRegressor("hmc", **options).fit(X, counts)
    assert (found.y_mean_, found.y_scale_) == (0.0, 1.0) and found.likelihood_.name == "poisson"
    mean = found.predict(X)
    of_draws = bnn.function_draws(
        found.posterior_, found.draws_, (X - found.x_mean_) / found.x_scale_
    )
    np.testing.assert_allclose(mean, of_draws.posterior["mean"].mean(("chain", "draw")), rtol=1e-4)
    lower, upper = found.predict_interval(X)
    assert (lower == np.round(lower)).all() and (lower <= mean).all() and (mean <= upper).all()
    np.testing.assert_allclose(pickle.loads(pickle.dumps(found)).predict(X), mean)
    np.testing.assert_allclose(bnn.predict(tmp_path / "run", x=X)["mean"], mean, rtol=1e-5)
    kind = BayesianClassifier("hmc", likelihood="ordinal", prior_scale=1.0, **SHORT)
    kind.method_options = STEPS
    assert kind.fit(X, np.digitize(Y, [95, 105])).likelihood_.num_outputs == 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(LIKELIHOODS))
def test_each_likelihood_predicts_and_so_does_its_folder(name, tmp_path):
    described = LIKELIHOODS[name]
    shares, counts = np.tile([0.2, 0.7], len(X) // 2), np.arange(len(X)) % 3
    y = shares if described.targets.allowed(shares).all() else counts
    y = counts % 2 if name == "bernoulli" else y
    kind = BayesianClassifier if described.targets.of_classes else BayesianRegressor
    frame = pandas.DataFrame(X, columns=list("abc")).assign(n=3)
    columns = bnn.data.Columns(**dict.fromkeys(described.required, "n"))
    few = {"hidden": 2, "prior_scale": 1.0, "num_chains": 1, "num_warmup": 5, "num_draws": 2}
    few |= {"random_state": 0, "folder": tmp_path / "run"}
    fitted = kind("descent", likelihood=name, columns=columns, **few).fit(frame, y)
    of_folder = bnn.predict(tmp_path / "run", x=frame)
    if described.targets.of_classes:
        np.testing.assert_allclose(fitted.predict_proba(frame), of_folder["probs"], rtol=1e-3)
    else:
        np.testing.assert_allclose(fitted.predict(frame), of_folder["mean"], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "poison"}, "got likelihood='poison'; did you mean 'poisson'"),
        ({"likelihood": "binomial"}, "got likelihood='binomial'"),
        ({"likelihood": "gamma", "noise": 0.1}, "got noise=0.1 with likelihood='gamma', expected"),
        ({"likelihood": "gamma", "covariance": "full"}, "got covariance='full' with likelihood"),
        ({"likelihood": "poisson"}, "for the likelihood poisson, expected counts 0, 1, 2"),
    ],
)
def test_likelihoods_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BayesianRegressor("hmc", **options, **SHORT).fit(X, Y)
