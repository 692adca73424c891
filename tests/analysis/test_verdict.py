"""The line that a run ends with: each thing that can be wrong, and where it is said."""

import json
import warnings
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.analysis.verdict.training_rows import predict_training_rows, some_rows
from bnn_ppl.methods.method import Method
from bnn_ppl.sampling import run_verdict
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 1))
Y = 2 * X[:, 0] + 0.1 * RNG.normal(size=500)


def line(x, y=None, floor=0.01):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    noise = numpyro.sample("noise", dist.TruncatedNormal(0.0, 1.0, low=floor))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(slope * x[:, 0], noise), obs=y)


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(line, (X, Y))


def drawn(slope=2.0, noise=0.1, stats=None, shape=(4, 100), **attrs):
    """Draws near these values, as of a sampler that has converged."""
    slope = np.broadcast_to(slope, shape) + 0.005 * RNG.normal(size=shape)
    noise = noise * (1 + 0.02 * np.abs(RNG.normal(size=shape)))
    attrs = {"draws_from": "chain", "thin": 1, "method": "hmc"} | attrs
    return draws_of_arrays(
        {"posterior": {"slope": slope, "noise": noise}, "sample_stats": stats}, attrs
    )


def fitted(**options):
    return drawn(draws_from="gaussian", thin=0, method="mfvi", num_warmup=1000, **options)


def kinds(found):
    return [finding.kind for finding in found.findings]


def test_draws_that_are_right_have_converged_in_one_line(posterior):
    found = bnn.verdict(posterior, drawn())
    assert found.converged and not found.findings
    assert found.text.startswith("converged: R-hat of predictions at training rows 1.0")
    assert "\n" not in found.text
    assert "bias" not in found.text
    biased = bnn.verdict(posterior, drawn(method="mclmc"))
    assert biased.converged and biased.text.endswith("; bias: set by the step size")


def test_predictions_worse_than_the_mean_are_shouted_whatever_the_method(posterior):
    for draws in (drawn(-1.0), fitted(slope=-1.0, training_ended=1)):
        found = bnn.verdict(posterior, draws)
        assert not found.converged and kinds(found)[0] == "worse_than_mean"
        assert found.text.startswith(
            "WORSE THAN PREDICTING THE TRAINING MEAN (at training rows RMSE "
        )
    assert "scale the" not in found.text


def test_a_fit_that_is_a_constant_is_named():
    y = (Y - Y.mean()) / Y.std()
    found = bnn.verdict(bnn.condition(line, (X, y)), fitted(slope=0.0, noise=0.99))
    assert (
        kinds(found)[0] == "worse_than_mean" and "THAN PREDICTING THE TRAINING MEAN" in found.text
    )


def test_draws_of_a_gaussian_tell_nothing_of_rows_left_out(posterior):
    # Weighted by importance, the draws that predict a row worst would stand for all without it.
    wide = {"slope": 2 + 0.5 * RNG.normal(size=(4, 100))}
    assert "overfits" in kinds(bnn.verdict(posterior, drawn(**wide)))
    assert "overfits" not in kinds(bnn.verdict(posterior, fitted(**wide)))


@pytest.mark.parametrize("of_classes", [False, True])
def test_rows_of_several_outputs_count_where_they_are_known(of_classes):
    def model(x, y=None):
        slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([2]).to_event(1))
        mask = True if y is None else ~jnp.isnan(y)
        with numpyro.handlers.mask(mask=mask):
            found = x * slopes
            law = dist.Bernoulli(logits=found) if of_classes else dist.Normal(found, 0.1)
            numpyro.sample("y", law, obs=y)

    y = X * np.array([2.0, -1.0])
    y = (y > 0).astype(float) if of_classes else y + 0.1 * RNG.normal(size=(500, 2))
    y[::2, 1] = np.nan
    posterior = bnn.condition(model, (X, y))
    for slopes, good in (([5.0, -5.0] if of_classes else [2.0, -1.0], True), ([-5.0, -5.0], False)):
        values = np.array(slopes) + 0.005 * RNG.normal(size=(4, 100, 2))
        draws = draws_of_arrays({"posterior": {"slopes": values}})
        found = bnn.verdict(posterior, draws)
        assert found.converged == good and "nan" not in found.text
        assert good or kinds(found)[0] == "worse_than_mean"
    # Where y is missing by x, but does not depend on it, nothing is there to be learnt.
    y = RNG.normal(size=(500, 2))
    y = (y > 0).astype(float) if of_classes else y
    y[X[:, 0] > 0, 1] = np.nan
    posterior = bnn.condition(model, (X, y))
    values = 0.01 * RNG.normal(size=(4, 100, 2))
    found = bnn.verdict(posterior, draws_of_arrays({"posterior": {"slopes": values}}))
    assert "NO BETTER" not in found.text
    expected = [1 - np.nanmean(y), np.nanmean(y)] if of_classes else np.nanmean(y, 0)
    average = predict_training_rows(posterior, draws).y_average
    np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-6)


def test_inputs_far_from_standardised_are_the_advice():
    for x, words in ((1000 * X, "got an sd of 1"), (X + 2000, "got a mean of 200")):
        posterior = bnn.condition(line, (x, Y))
        found = bnn.verdict(posterior, drawn(-1.0))
        assert f"scale the inputs to mean 0 and sd 1 ({words}" in found.text


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (lambda mean: dist.Exponential(1 / mean), "divide y by its mean (got an sd of"),
        (lambda mean: dist.Normal(mean, 1.0), "scale y to mean 0 and sd 1 (got an sd of"),
    ],
)
def test_y_is_to_be_scaled_as_its_support_allows(law, words):
    def model(x, y=None):
        level = numpyro.sample("level", dist.Normal(0, 9))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", law(jnp.exp(level) * jnp.ones(len(x))), obs=y)

    with warnings.catch_warnings(action="ignore"):
        posterior = bnn.condition(model, (X[:50], RNG.poisson(500, 50) * np.repeat([1.0, 2.0], 25)))
    level = np.array([[4.0], [7.0]]) + 0.1 * RNG.normal(size=(2, 100))
    text = bnn.verdict(posterior, draws_of_arrays({"posterior": {"level": level}})).text
    assert words in text and ("y to mean 0" in text) == ("y to mean 0" in words)


def softmax(x, y=None):
    scale = numpyro.sample("scale", dist.Normal(0, 3))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Categorical(logits=scale * x), obs=y)


@pytest.fixture(scope="module")
def classes():
    x = RNG.normal(size=(90, 3)).astype(np.float32)
    return bnn.condition(softmax, (x, x.argmax(1).astype(np.int32)))


def test_a_classifier_must_beat_the_most_frequent_class(classes):
    shape = 4, 50
    for scale, good in ((3.0, True), (-3.0, False)):
        draws = draws_of_arrays({"posterior": {"scale": scale + 0.1 * RNG.normal(size=shape)}})
        found = bnn.verdict(classes, draws)
        assert found.converged == good
        assert good or found.text.startswith(
            "NO BETTER THAN THE MOST FREQUENT CLASS (at training rows accuracy 0"
        )


def test_a_classifier_that_learnt_a_single_row_has_learnt_nothing():
    x, y = np.zeros((150, 3)), np.arange(150) % 3
    x[1, 1] = 1.0  # which is then right once more than the most frequent class
    draws = draws_of_arrays({"posterior": {"scale": np.linspace(0.9, 1.1, 200).reshape(4, 50)}})
    found = bnn.verdict(bnn.condition(softmax, (x, y)), draws)
    assert "worse_than_mean" not in kinds(found) and "uninformative" in kinds(found)
    assert "show no dependence of y on the inputs" in found.text


def test_a_rare_class_may_be_learnt_without_being_predicted():
    def coin(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 3))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=w * x[:, 0] - 3), obs=y)

    x = RNG.normal(size=(150, 1))
    y = RNG.random(150) < 1 / (1 + np.exp(3 - x[:, 0]))
    posterior = bnn.condition(coin, (x, y.astype(int)))
    assert y.any() and "worse_than_mean" not in kinds(
        bnn.verdict(
            posterior, draws_of_arrays({"posterior": {"w": 1 + 0.1 * RNG.normal(size=(4, 50))}})
        )
    )


@pytest.mark.parametrize(("noise", "settled"), [(0.1, True), (1e-30, False)])
def test_a_y_that_is_constant_is_named(noise, settled):
    constant = bnn.condition(line, (X, np.full_like(Y, 0.7)))
    draws = drawn(0.0, noise)
    if not settled:
        draws = drawn(0.0, noise, stats={"diverging": np.ones((4, 100), bool)})
    found = bnn.verdict(constant, draws)
    assert found.converged == settled
    assert kinds(found)[0] == ("uninformative" if settled else "constant")
    assert "y is the same in all rows" in found.text


def test_chains_that_disagree(posterior):
    found = bnn.verdict(posterior, drawn(np.array([[1.9], [1.97], [2.03], [2.1]])))
    assert not found.converged and kinds(found)[0] == "disagree"
    advice = "run longer (more warm-up and draws), or until a target is met (until=, --until)"
    assert f"expected at most 1.05): {advice}" in found.text
    drifting = drawn(np.linspace(1.9, 2.1, 200), shape=(1, 200))
    assert bnn.verdict(posterior, drifting).text.startswith("the chain has not settled (R-hat of")


def test_what_was_met_on_all_draws_is_not_denied_by_some(posterior):
    slopes = np.array([[1.9], [1.97], [2.03], [2.1]])
    met = {"until": json.dumps({"rhat": 1.05}), "until_met": 1}
    assert "disagree" not in kinds(bnn.verdict(posterior, drawn(slopes, **met)))


def test_few_independent_draws(posterior):
    found = bnn.verdict(posterior, drawn(shape=(4, 10)))
    assert not found.converged and kinds(found)[-1] == "few_independent"
    assert kinds(bnn.verdict(posterior, drawn(shape=(2, 2)))) == ["few_draws"]
    one = bnn.verdict(posterior, drawn(shape=(1, 1)))
    assert "1 draw is too few to judge convergence" in str(one)
    # Of 4 x 4000 independent draws no more than 400 are looked at, and they are enough.
    found = bnn.verdict(posterior, drawn(shape=(4, 4000)))
    assert found.converged and ", at least " in found.text
    assert "at least" not in bnn.verdict(posterior, drawn()).text


def test_weighted_draws_are_worth_fewer(posterior):
    few = drawn(stats={"log_weight": 4 * RNG.normal(size=(4, 100))})
    found = bnn.verdict(posterior, few)
    assert not found.converged and "few_independent" in kinds(found)
    enough = drawn(stats={"log_weight": 0.5 * RNG.normal(size=(4, 100))})
    assert bnn.verdict(posterior, enough).converged


def test_a_draw_of_much_weight_counts_though_it_is_not_looked_at(posterior):
    log_weight = np.zeros((4, 1000))
    log_weight[:, 5] = np.log(1000)  # half of the weight of its chain
    found = bnn.verdict(posterior, drawn(stats={"log_weight": log_weight}, shape=(4, 1000)))
    assert found.text.startswith("only 16 independent draws (weighted ESS of predictions at")
    assert "more draws, or a smaller learning_rate" in found.text


def test_chains_that_do_not_move(posterior):
    still = draws_of_arrays(
        {"posterior": {"slope": np.full((4, 50), 2.0), "noise": np.full((4, 50), 0.1)}}
    )
    assert kinds(bnn.verdict(posterior, still)) == ["stuck"]


def test_temperatures(posterior):
    shape = 4, 100
    hot = {"kinetic_temperature": 1.4 + 0.1 * RNG.normal(size=shape)}
    right = {"kinetic_temperature": 1 + 0.3 * RNG.normal(size=shape)}
    found = bnn.verdict(posterior, drawn(stats=hot))
    assert not found.converged and "temperature 1.4" in found.text and "shorter" in found.text
    assert bnn.verdict(posterior, drawn(stats=right)).converged
    cold = {"configurational_temperature": np.full(shape, 0.9)}
    assert kinds(bnn.verdict(posterior, drawn(stats=cold))) == ["temperature"]
    weighted = cold | {"log_weight": np.zeros(shape)}
    assert bnn.verdict(posterior, drawn(stats=weighted)).converged


def test_divergences_of_few_draws_some_chains_or_all(posterior):
    diverging = np.zeros((4, 100), bool)
    diverging[0, :2] = True
    found = bnn.verdict(posterior, drawn(stats={"diverging": diverging}))
    assert found.converged and "; note: 2 of 400 draws diverged (shorter steps" in found.text
    for settings, how in (
        ({"target_acceptance": 0.8, "step_size": None}, "raise target_acceptance"),
        ({"target_acceptance": 0.8, "step_size": 0.1}, "a smaller step_size"),
    ):
        tuned = drawn(stats={"diverging": diverging}, settings=json.dumps(settings))
        assert f"({how}))" in bnn.verdict(posterior, tuned).text
    stats = {"diverging": diverging, "acceptance_rate": np.full((4, 100), 0.6)}
    for settings, how in (
        (
            {"target_acceptance": 0.9, "step_size": None},
            "a longer warm-up (acceptance 0.60, target 0.9)",
        ),
        ({"step_size": None}, "shorter steps (a longer warm-up, which finds them)"),
        ({"target_acceptance": 0.65, "step_size": None}, "shorter steps"),
        ({"target_acceptance": 0.9, "step_size": 0.1}, "shorter steps"),
    ):
        tuned = drawn(stats=stats, settings=json.dumps(settings))
        assert f"diverged ({how}" in bnn.verdict(posterior, tuned).text
    diverging[0, :20] = True
    assert not bnn.verdict(posterior, drawn(stats={"diverging": diverging})).converged
    diverging[2] = True
    found = bnn.verdict(posterior, drawn(stats={"diverging": diverging}))
    assert found.text.startswith("all draws diverge in 1 of 4 chains (2): leave out that chain")
    diverging[:] = True
    found = bnn.verdict(posterior, drawn(stats={"diverging": diverging}))
    assert found.text.startswith("all chains diverge in all draws: shorter steps")
    assert "leave" not in found.text


def test_values_that_are_not_finite(posterior):
    slope = np.full((4, 100), 2.0)
    slope[1, 3:] = np.nan
    found = bnn.verdict(posterior, drawn(slope))
    assert kinds(found) == ["not_finite"] and "in 97 of 400 draws" in found.text


def test_a_distribution_without_a_mean_is_judged_by_its_density():
    def cauchy(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Cauchy(slope * x[:, 0], 0.1), obs=y)

    posterior = bnn.condition(cauchy, (X[:50], Y[:50]))
    apart = np.array([[1.9], [1.97], [2.03], [2.1]])
    assert bnn.verdict(posterior, drawn()).converged
    assert kinds(bnn.verdict(posterior, drawn(apart)))[0] == "disagree"


def test_a_noise_of_few_rows_must_mix_too():
    group = (np.arange(500) >= 497).astype(int)

    def two_groups(x, y=None):
        x, group = x
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        noise = numpyro.sample("noise", dist.HalfNormal(1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], noise[group]), obs=y)

    rows = np.r_[0:100, 497:500]
    posterior = bnn.condition(two_groups, ((X[rows], group[rows]), Y[rows]))
    shape = 4, 100

    def found(of_the_few):
        noise = np.stack([np.full(shape, 0.1), np.broadcast_to(of_the_few, shape)], -1)
        noise = noise * np.exp(0.1 * RNG.normal(size=noise.shape))
        slope = 2 + 0.005 * RNG.normal(size=shape)
        return bnn.verdict(
            posterior, draws_of_arrays({"posterior": {"slope": slope, "noise": noise}})
        )

    assert found(0.5).converged
    apart = found(np.array([[0.5], [2.46], [0.5], [0.5]]))
    assert kinds(apart)[0] == "disagree"
    assert "R-hat of predicted standard deviations at training rows" in apart.text


def test_chains_may_differ_in_how_close_a_noise_is_to_its_floor(posterior):
    close = drawn(noise=0.1 * (1 + np.array([[0.0], [0.0], [0.0], [0.03]])))
    assert bnn.diagnostics.rhat(close.posterior["noise"].values) > 1.05
    assert bnn.verdict(posterior, close).converged


def masked(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    noise = numpyro.sample("noise", dist.TruncatedNormal(0.0, 1.0, low=0.01))
    with numpyro.plate("data", len(x)), numpyro.handlers.mask(mask=x[:, 0] <= 0):
        numpyro.sample("y", dist.Normal(slope * x[:, 0], noise), obs=y)


@quick_first("how", ["mask", "weight"])
def test_rows_that_the_likelihood_leaves_out_do_not_count(how):
    y = np.where(X[:, 0] > 0, 1000.0, Y)
    x = X if how == "mask" else (X, (X[:, 0] <= 0).astype(float))
    model = masked if how == "mask" else bnn.models.weighted(line)
    posterior = bnn.condition(model, (x, y))
    assert bnn.verdict(posterior, drawn()).converged
    wrong = bnn.verdict(posterior, drawn(-1.0))
    assert kinds(wrong) == ["worse_than_mean"] and "scale y" not in wrong.text


@pytest.mark.parametrize(("weight", "worse"), [(1.0, True), (0.01, False)])
def test_rows_count_as_often_as_their_weights_say(weight, worse):
    x, y = np.tile([[-1.0], [1.0], [2.0]], (30, 1)), np.tile([3.0, 1.0, 2.0], 30)
    weights = np.tile([weight, 1.0, 1.0], 30)
    posterior = bnn.condition(bnn.models.weighted(line), ((x, weights), y))
    found = bnn.verdict(posterior, drawn(slope=1.0, noise=0.3))
    assert ("worse_than_mean" in kinds(found)) == worse


def intercept(x, y=None):
    level = numpyro.sample("level", dist.Normal(0, 2))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(level, noise), obs=y)


def spread_alone(x, y=None):
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(0, noise), obs=y)


@pytest.mark.parametrize("model", [intercept, spread_alone])
def test_models_whose_mean_is_the_same_for_all_rows(model):
    y = RNG.normal(size=50) + 0.1
    posterior = bnn.condition(model, (X[:50], y))
    shape = 4, 100
    values = {"noise": 1 + 0.1 * RNG.normal(size=shape)}
    if model is intercept:
        values["level"] = y.mean() + 0.15 * RNG.normal(size=shape)
    found = bnn.verdict(posterior, draws_of_arrays({"posterior": values}))
    assert found.converged and not found.findings
    values["noise"] += np.array([[0], [0], [0], [0.5]])
    found = bnn.verdict(posterior, draws_of_arrays({"posterior": values}))
    assert kinds(found)[0] == "disagree"


def test_probabilities_that_are_the_same_for_all_rows_are_not_compared_with_frequencies():
    def share(x, y=None):
        level = numpyro.sample("level", dist.Normal(0, 2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=level), obs=y)

    posterior = bnn.condition(share, (X[:100], (np.arange(100) < 23).astype(int)))
    level = -1.2 + 0.24 * RNG.normal(size=(4, 100))
    assert bnn.verdict(posterior, draws_of_arrays({"posterior": {"level": level}})).converged


@pytest.mark.thorough
def test_chains_of_other_densities_with_the_same_mean_and_sd():
    def mixture(x, y=None):
        apart = numpyro.sample("apart", dist.Uniform(0.0, 1.0))
        sd = jnp.sqrt(1 - apart**2)
        both = dist.Normal(jnp.stack([-apart, apart]), sd).expand([len(x), 2])
        with numpyro.plate("data", len(x)):
            numpyro.sample(
                "y", dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(2) / 2), both), obs=y
            )

    y = np.where(np.arange(50) < 25, -0.95, 0.95) + 0.3 * RNG.normal(size=50)
    posterior = bnn.condition(mixture, (X[:50], y))

    def found(means):
        apart = np.array(means)[:, None] + 0.02 * RNG.normal(size=(4, 100))
        return bnn.verdict(posterior, draws_of_arrays({"posterior": {"apart": apart}}))

    assert "disagree" not in kinds(found([0.9, 0.9, 0.9, 0.9]))
    apart = found([0.1, 0.9, 0.9, 0.9])
    assert not apart.converged and "R-hat of log densities of y at training rows" in apart.text


@pytest.mark.thorough
def test_a_network_that_has_died_is_no_better_than_the_mean():
    net = partial(bnn.nets.MLP, 1, (4,), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(1), bnn.priors.noise())
    posterior = bnn.condition(model, (X, Y))
    shape = 4, 50
    values = {
        site: 0.01 * RNG.normal(size=(*shape, *size))
        for site, size in posterior.sites.value_shapes().items()
    }
    values["net.layers.0.bias"] -= 100
    values["noise"] = 2 + np.abs(values["noise"])
    found = bnn.verdict(posterior, draws_of_arrays({"posterior": values}))
    assert "worse_than_mean" in kinds(found)


def test_fits_say_how_training_ended(posterior):
    found = bnn.verdict(posterior, fitted(training_ended=1))
    assert found.converged
    assert found.text == (
        "trained: the objective has stopped improving; bias: too narrow where weights are "
        "correlated"
    )
    found = bnn.verdict(posterior, fitted(training_ended=0))
    assert not found.converged and "ran out of steps (1,000)" in found.text
    assert "raise num_warmup; held-out rows tell whether that helps" in found.text
    rate = fitted(settings=json.dumps({"learning_rate": 0.01}))
    assert "1,000 steps at the given rate" in bnn.verdict(posterior, rate).text


def test_fits_far_below_the_point_they_started_from(posterior):
    wide = fitted(noise=0.5, training_ended=1, start_log_likelihood=0.9)
    found = bnn.verdict(posterior, wide)
    assert not found.converged and kinds(found) == ["far_from_start"]
    assert "nats per row than the point it started from" in found.text
    near = fitted(training_ended=1, start_log_likelihood=0.9)
    assert bnn.verdict(posterior, near).converged
    assert bnn.verdict(posterior, drawn(noise=0.5, start_log_likelihood=0.9)).converged


@pytest.mark.parametrize(("loss", "far"), [(0.05, False), (0.15, True)])
def test_labels_may_lose_less_than_numbers(classes, loss, far):
    x, y = classes.data
    fit = np.mean(jax.nn.log_softmax(3.0 * x)[np.arange(len(y)), y])
    scales = {"posterior": {"scale": 3 + 0.01 * RNG.normal(size=(1, 50))}}
    attrs = {"draws_from": "gaussian", "thin": 0, "method": "mfvi", "training_ended": 1}
    draws = draws_of_arrays(scales, attrs | {"start_log_likelihood": fit + loss})
    assert ("far_from_start" in kinds(bnn.verdict(classes, draws))) == far


def test_a_fit_is_unsure_only_where_held_out_rows_say_so_too(classes):
    scales = {"posterior": {"scale": 1.0 + 0.01 * RNG.normal(size=(1, 50))}}
    draws = draws_of_arrays(scales, {"draws_from": "gaussian", "thin": 0, "method": "mfvi"})
    assert not kinds(bnn.verdict(classes, draws))
    for nll, found in ((0.9, []), (0.4, ["unsure"])):
        scored = xarray.Dataset(
            {"held_out_nll": (("chain", "step"), [[nll]])}, coords={"step": [0]}
        )
        draws.attrs["settings"] = json.dumps({"rows_scored": "900, held out"})
        draws["warmup_sample_stats"] = scored
        assert kinds(bnn.verdict(classes, draws)) == found


def test_members_that_differ_are_a_note(posterior):
    members = fitted(slope=np.array([[1.9], [1.97], [2.03], [2.1]]), training_ended=1)
    found = bnn.verdict(posterior, members)
    assert found.converged and kinds(found) == ["members"]
    assert (
        "note: members differ much" in found.text
        and "(use more members (num_chains))" in found.text
    )


@pytest.mark.thorough
def test_points_of_many_weights_to_few_rows_are_said_to_understate_a_learnt_noise():
    few = bnn.condition(line, (X[:9], Y[:9]))  # 2 weights
    point = fitted()
    point.attrs["draws_from"] = "point"
    found = bnn.verdict(few, point)
    assert found.converged and "narrow" in kinds(found)
    assert "a fit of 2 weights to 9 rows understates the noise" in found.text
    assert "narrow" not in kinds(bnn.verdict(few, drawn()))  # a sampler averages over the fits
    assert "narrow" not in kinds(bnn.verdict(few, fitted()))  # and so does a Gaussian, unless it
    path = fitted(settings=json.dumps({"inner": "descent"}))  # is of a path of points
    assert "narrow" in kinds(bnn.verdict(few, path))
    many = bnn.condition(line, (X[:10], Y[:10]))
    assert "narrow" not in kinds(bnn.verdict(many, point))

    def known(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 2).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope[0] * x[:, 0], 0.1), obs=y)

    draws = draws_of_arrays(
        {"posterior": {"slope": 2 + 0.01 * RNG.normal(size=(2, 9, 3))}}, {"thin": 0}
    )
    draws.attrs["draws_from"] = "point"
    assert "narrow" not in kinds(bnn.verdict(bnn.condition(known, (X[:9], Y[:9])), draws))


def test_a_simplex_is_on_no_bound():
    def mixed(x, y=None):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ weights, 0.1), obs=y)

    x = RNG.normal(size=(50, 3))
    posterior = bnn.condition(mixed, (x, x.mean(1) + 0.1 * RNG.normal(size=50)))
    weights = np.full((4, 100, 3), 1 / 3) + 0.02 * RNG.normal(size=(4, 100, 3))
    weights /= weights.sum(-1, keepdims=True)
    attrs = {"draws_from": "chain", "thin": 1, "method": "hmc"}
    draws = draws_of_arrays({"posterior": {"weights": weights}, "sample_stats": None}, attrs)
    found = bnn.verdict(posterior, draws)
    assert found.converged and not found.findings


@pytest.mark.parametrize("spread", [{"low": 0.03}, {"low": 0.001, "high": 0.032}])
def test_a_noise_on_a_bound_of_its_prior_is_a_note(spread):
    def bounded(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        noise = numpyro.sample("noise", dist.TruncatedNormal(0.0, 1.0, **spread))
        numpyro.sample("y", dist.Normal(slope * x[:, 0], noise), obs=y)

    posterior = bnn.condition(bounded, (X[:50], 2 * X[:50, 0]))
    shape = 4, 100
    slope = 2 + 0.01 * RNG.normal(size=shape)
    draws = draws_of_arrays({"posterior": {"slope": slope, "noise": np.full(shape, 0.031)}})
    found = bnn.verdict(posterior, draws)
    assert found.converged and kinds(found) == ["bound"]
    side = "ceiling of 0.032" if "high" in spread else "floor of 0.03: the data are less noisy"
    assert f"noise is at its {side}" in found.text
    away = draws_of_arrays({"posterior": {"slope": slope, "noise": np.full(shape, 0.02)}})
    assert "high" not in spread or "bound" not in kinds(bnn.verdict(posterior, away))


def test_the_worst_comes_first_and_the_others_are_short(posterior):
    diverging = {"diverging": np.ones((4, 100), bool)}
    found = bnn.verdict(posterior, drawn(-1.0, noise=0.0101, stats=diverging))
    assert kinds(found) == ["worse_than_mean", "all_diverge", "bound"]
    assert "; also: all chains diverge in all draws, the noise is at its floor" in found.text


def test_the_rows_are_the_same_each_time_and_of_every_class():
    x = np.zeros((1000, 2))
    posterior = bnn.condition(
        bnn.models.classifier(partial(bnn.nets.MLP, 2, (2,), 2), bnn.priors.fan_in(2**0.5)),
        (x, np.arange(1000, dtype=np.int32) % 2),
    )
    (_, y), (_, again) = some_rows(posterior), some_rows(posterior)
    assert len(y) == 200 and 60 < y.sum() < 140
    np.testing.assert_array_equal(y, again)


# --- where it is said


def short(posterior, method, **options):
    options = {"num_chains": 2, "num_warmup": 10, "num_draws": 6, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


@pytest.mark.filterwarnings("error:Explicitly requested dtype")  # by jax 0.11 and later
def test_run_says_it_once_and_keeps_it_with_the_draws(posterior, capsys, tmp_path, verdicts):
    sample = partial(short, posterior, bnn.hmc(posterior), num_warmup=100)
    with pytest.warns(bnn.VerdictWarning) as caught:
        draws = sample(progress=True, folder=tmp_path)
    text = draws.attrs["verdict"]
    assert draws.attrs["converged"] == 0 and "independent draws" in text
    (warned,) = [each for each in caught if each.category is bnn.VerdictWarning]
    assert str(warned.message) == text and warned.filename == __file__
    assert text not in capsys.readouterr().err  # where the warning is shown besides
    loaded = bnn.diagnostics.load(tmp_path)
    assert loaded.attrs["verdict"] == text and loaded.attrs["converged"] == 0
    with pytest.warns(bnn.VerdictWarning):
        again = sample(progress="json", folder=tmp_path)
    assert again.attrs["verdict"] == text
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert told == {"phase": "ended", "verdict": text, "converged": 0}
    with pytest.warns(bnn.VerdictWarning):
        sample(progress=False, folder=tmp_path)
    with warnings.catch_warnings(action="error", category=bnn.VerdictWarning):
        longer = sample(folder=tmp_path, num_draws=300)
    assert longer.attrs["converged"] == 1 and not capsys.readouterr().err
    assert bnn.diagnostics.load(tmp_path).attrs["verdict"] == longer.attrs["verdict"]
    quiet = sample(progress=True, verdict=False)
    assert "verdict" not in quiet.attrs


@pytest.mark.filterwarnings("ignore::bnn_ppl.VerdictWarning")
def test_a_finished_run_that_is_called_again_stays_as_it_is(
    posterior, tmp_path, monkeypatch, verdicts
):
    sample = partial(short, posterior, bnn.hmc(posterior), folder=tmp_path)
    sample(until={"ess": 1e-3})
    before = bnn.diagnostics.load(tmp_path).attrs
    monkeypatch.setattr("bnn_ppl.sampling.run_metadata._version", lambda package: "another")
    again = sample().attrs
    assert bnn.diagnostics.load(tmp_path).attrs == again == before
    assert before["until_met"] == 1


def test_a_verdict_that_was_stopped_or_failed_is_given_by_the_next_call(monkeypatch):
    kept = {}
    state = SimpleNamespace(posterior=None, done=None, recorder=Mock())
    state.recorder.set_attributes = lambda _, facts: kept.update(facts)
    found = SimpleNamespace(text="good", converged=True)
    judged = Mock(side_effect=[KeyboardInterrupt, ValueError("words"), found])
    monkeypatch.setattr(run_verdict, "verdict", judged)
    for expected, stored in (
        ({"verdict": "not judged: stopped by Ctrl-C"}, False),
        ({"verdict": "not judged: words"}, True),
        ({"verdict": "good", "converged": 1}, True),
        ({"verdict": "good", "converged": 1}, True),
    ):
        draws = SimpleNamespace(attrs=dict(kept))
        run_verdict.judge(state, draws, False)
        assert draws.attrs == expected and kept == (expected if stored else {})
    assert judged.call_count == 3


@pytest.mark.thorough
def test_no_failure_to_judge_loses_the_draws(posterior, verdicts):
    draws = short(
        posterior, bnn.hmc(posterior, 0.1, 0.3), keep=lambda values: {"slope": values["slope"]}
    )
    assert draws.posterior.sizes["draw"] == 6 and "converged" not in draws.attrs
    assert draws.attrs["verdict"].startswith("not judged: got draws of slope, expected noise")


@pytest.mark.thorough
def test_run_records_how_training_ended(posterior, tmp_path, verdicts):
    long = short(posterior, bnn.descent(posterior), num_warmup=20_000, num_draws=1, thin=0)
    assert long.attrs["training_ended"] == 1
    assert long.attrs["verdict"].startswith("trained: the objective has stopped improving")
    options = {"num_warmup": 50, "num_draws": 1, "thin": 0, "folder": tmp_path}
    for _ in range(2):  # also where a finished run is called again
        brief = short(posterior, bnn.descent(posterior), **options)
        assert brief.attrs["training_ended"] == 0 and brief.attrs["converged"] == 0
    given = short(posterior, bnn.descent(posterior, learning_rate=0.1), num_draws=1, thin=0)
    assert "training_ended" not in given.attrs


@pytest.mark.thorough
def test_run_records_where_chains_from_elsewhere_started(posterior, verdicts):
    start = drawn(shape=(2, 3))
    values = {site: start.posterior[site].values[:, -1] for site in ("slope", "noise")}
    x, y = some_rows(posterior)
    expected = np.mean(
        [
            dist.Normal(slope * x[:, 0], noise).log_prob(y).mean()
            for slope, noise in zip(values["slope"], values["noise"], strict=True)
        ]
    )
    draws = short(posterior, awful(posterior), init=start, thin=0)
    np.testing.assert_allclose(draws.attrs["start_log_likelihood"], expected, rtol=1e-4)
    assert "worse by" in draws.attrs["verdict"]
    assert "start_log_likelihood" not in short(posterior, awful(posterior)).attrs


def awful(posterior):
    """A fit whose draws are all at a wide noise."""
    return Method(
        init=lambda key, position, batch: position,
        step=lambda key, state, batch: (state, {}),
        draw=lambda key, state: {
            "slope": state["slope"] + 0.01 * jax.random.normal(key),
            "noise": jnp.asarray(1.0),
        },
        settings={"method": "awful"},
        logdensity=posterior.logdensity,
        draws_from="gaussian",
    )


@pytest.mark.thorough
def test_the_command_prints_it_once_draws_it_and_ends_with_its_status(
    capsys, monkeypatch, tmp_path, verdicts
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    figures = []
    savefig = "matplotlib.figure.Figure.savefig"
    monkeypatch.setattr(savefig, lambda figure, *args, **options: figures.append(figure))
    sizes = ["--num-chains", "2", "--num-warmup", "3", "--num-draws", "5", "--hidden", "4"]
    command = [
        "run",
        "hmc",
        *sizes,
        "--max-num-steps",
        "8",
        "--prior-scale",
        "1",
        "--folder",
        "here",
    ]
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--strict"])
    assert stop.value.code == 1
    text = bnn.diagnostics.load("here").attrs["verdict"]
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count(text) == 1
    assert "figure in here" in captured.out
    shown = " ".join(text.get_text() for text in figures[0].texts)
    assert text in " ".join(shown.split())
    cli.main([*command, "--no-progress"])  # without --strict it ends well
    captured = capsys.readouterr()
    assert captured.out.count(text) == 1 and text not in captured.err
    cli.main(["summary", "here"])
    assert capsys.readouterr().out.startswith(text)


@pytest.mark.thorough
def test_an_estimator_warns(verdicts):
    pytest.importorskip("sklearn")
    from sklearn.exceptions import ConvergenceWarning

    from bnn_ppl.estimators import BayesianRegressor

    few = BayesianRegressor("descent", hidden=(), num_chains=1, num_warmup=20, random_state=0)
    with pytest.warns(ConvergenceWarning) as caught:
        few.fit(X[:50], Y[:50])
    assert str(caught[-1].message) == few.verdict_ == few.draws_.attrs["verdict"]


def test_particles_and_replicas_that_disagree_are_too_few(posterior):
    slopes = np.array([[1.9], [1.97], [2.03], [2.1]])
    found = bnn.verdict(posterior, drawn(slopes, stats={"exponent": np.ones((4, 100))}))
    assert kinds(found)[0] == "disagree" and ": more particles (num_particles)" in found.text
    replicas = drawn(slopes, stats={"swap_rejection_rate": np.full((4, 100), 0.3)})
    assert ": more draws, or more replicas" in bnn.verdict(posterior, replicas).text
    early = bnn.verdict(posterior, drawn(stats={"exponent": np.full((4, 100), 0.5)}, num_warmup=9))
    assert not early.converged and kinds(early) == ["tempered"]
    assert "after 9 steps at an exponent of 0.5, expected 1: raise num_warmup" in early.text


def test_one_chain_cannot_show_another_mode_and_says_so(posterior):
    found = bnn.verdict(posterior, drawn(shape=(1, 1000)))
    assert found.converged and "from one chain (num_chains=4 shows" in found.text
    assert "one chain" not in bnn.verdict(posterior, drawn()).text
