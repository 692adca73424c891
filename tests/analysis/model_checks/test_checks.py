"""Checks of models that are right, and of models that are wrong in a known way."""

from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from logistic import classes_by_a_slope

import bnn_ppl as bnn
from bnn_ppl.analysis.model_checks.predictive_checks import _statistics
from bnn_ppl.analysis.model_checks.sensitivity import sensitivity_in_words
from bnn_ppl.analysis.model_checks.simulations import Simulated, _rank
from bnn_ppl.analysis.model_checks.uniformity import band, holm, p_of_uniform, uniform_places
from bnn_ppl.sampling.loop import compiled_loop
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2)).astype(np.float32)
NOISE = 0.5
KEY = jax.random.key(3)


def linear(x, y=None, noise=NOISE, prior=1.0):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, prior).expand([2]).to_event(1))
    numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)


def exact(y, prior=1.0, sd=NOISE):
    covariance = np.linalg.inv(np.eye(2) / prior**2 + X.T @ X / sd**2)
    return covariance @ X.T @ y / sd**2, covariance


def fit(key, posterior, widened=1.0, num_draws=60):
    """Draw exactly, or from a posterior that is too wide or too narrow."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    mean, covariance = exact(np.asarray(posterior.data[1]))
    slopes = rng.multivariate_normal(mean, widened**2 * covariance, (1, num_draws))
    level = rng.normal(size=(1, num_draws))
    return draws_of_arrays(
        {"posterior": {"slopes": slopes.astype(np.float32), "level": level.astype(np.float32)}}
    )


def conditioned_again():
    """Condition once: the exact draws look at nothing but the rows."""
    posterior = bnn.condition(linear, (X, np.zeros(12, np.float32)))

    def condition(data):
        return posterior._replace(rows=posterior.rows._replace(data=data, examples=data))

    return condition


def simulate(**options):
    given = {"fit": fit, "num_simulations": 100, "condition": conditioned_again()}
    return bnn.check_simulations(KEY, data=(X, np.zeros(12, np.float32)), **(given | options))


def test_ranks_of_exact_draws_are_uniform_and_of_others_not(tmp_path):
    found = simulate()
    assert list(found.ranks) == ["row 0", "row 3", "row 6", "row 9", "level", "log-likelihood"]
    assert found.is_flat and found.sentence.startswith("model and method agree in 100 simulations")
    narrow = simulate(fit=partial(fit, widened=0.5), num_simulations=60)
    assert not narrow.is_flat and narrow.table.loc["row 0", "spread"] > 1.5
    assert "is too narrow" in narrow.sentence

    posterior = bnn.condition(linear, (X, np.zeros(12, np.float32)))
    draws = draws_of_arrays({"posterior": {k: np.asarray(v)[None] for k, v in _prior(50).items()}})
    predictive = bnn.check_predictive(jax.random.key(0), posterior, draws)
    sensitivity = bnn.check_sensitivity(posterior, draws)
    figure = bnn.plots.model_checks(predictive, sensitivity, narrow)
    assert figure.axes[-1].get_title("left") == "Ranks in simulations are NOT uniform"
    assert (
        bnn.plots.model_checks(predictive, None, found)
        .axes[-1]
        .get_title("left")
        .endswith("simulations are uniform")
    )
    figure.savefig(tmp_path / "checks.png")


def _prior(count):
    return {
        "slopes": RNG.normal(size=(count, 2)).astype(np.float32),
        "level": RNG.normal(size=count).astype(np.float32),
    }


def test_draws_count_by_their_weights():
    def weighted(draws):
        right = {name: each.values for name, each in draws["posterior"].items()}
        both = {name: np.concatenate([each, each + 100], 1) for name, each in right.items()}
        logs = np.repeat([[0.0, -80.0]], right["level"].shape[1], axis=1)
        return draws_of_arrays({"posterior": both, "sample_stats": {"log_weight": logs}})

    found = simulate(fit=lambda *given: weighted(fit(*given)), num_simulations=3)
    for name, ranks in simulate(num_simulations=3).ranks.items():
        np.testing.assert_array_equal(found.ranks[name], ranks)
    posterior = bnn.condition(linear, (X, X[:, 0]))
    checked = bnn.check_predictive(jax.random.key(0), posterior, weighted(fit(KEY, posterior)))
    assert abs(checked.posterior).max() < 20 and checked.num_draws == 60


def test_draws_of_little_weight_are_few():
    shapes = {"slopes": (1, 100, 2), "level": (1, 100)}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    logs = np.where(np.arange(100) < 3, 0.0, -80.0)[None]
    draws = draws_of_arrays({"posterior": zeros, "sample_stats": {"log_weight": logs}})
    posterior = bnn.condition(linear, (X, NOISE * X[:, 0]))
    found = bnn.check_predictive(KEY, posterior, draws)
    assert found.num_draws == 3 and "from 3 draws of the weights" in found.posterior_sentence


@pytest.mark.parametrize(
    ("names", "expected"), [(np.array(["a", "b"]), "ab"), (["a", "a"], "01"), (None, "01")]
)
def test_statistics_are_named_by_output(names, expected):
    found = _statistics(np.zeros((3, 2)), None, names)
    assert [name for name in found if "mean" in name] == [f"mean [{each}]" for each in expected]


@pytest.mark.thorough
def test_another_generator_is_seen():
    halved = bnn.condition(partial(linear, noise=NOISE / 2), (X, np.zeros(12, np.float32)))
    found = simulate(generator=halved)
    assert not found.is_flat and found.table.loc["log-likelihood", "p"] < 0.01
    assert "DO NOT agree" in found.sentence


@pytest.mark.thorough
def test_simulations_trace_a_method_once():
    net = partial(bnn.nets.MLP, 2, (2,), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(), bnn.priors.noise())
    misses = []

    def fit(key, posterior):
        length = {"num_chains": 1, "num_warmup": 2, "num_draws": 60}
        method = bnn.sgld(posterior, step_size=0.001)
        draws = bnn.run(key, posterior, method, **length, progress=False, verdict=False)
        misses.append(compiled_loop._loop.cache_info().misses)
        return draws

    options = {"condition": partial(bnn.condition, model), "fit": fit, "num_simulations": 3}
    found = simulate(**options)
    assert found.num_simulations == 3 and len(set(misses)) == 1


@pytest.mark.thorough
def test_simulations_go_on_and_are_the_same(tmp_path):
    whole = simulate(num_simulations=6, condition=partial(bnn.condition, linear))
    calls = []

    def counted(key, posterior):
        calls.append(key)
        return fit(key, posterior)

    first = simulate(fit=counted, num_simulations=4, folder=tmp_path)
    assert len(calls) == 4 and first.num_simulations == 4
    path = tmp_path / "simulations.jsonl"
    path.write_text(path.read_text() + '{"row 0": 3')  # killed as it wrote
    again = simulate(fit=counted, num_simulations=6, folder=tmp_path)
    assert len(calls) == 6
    for name, ranks in whole.ranks.items():
        assert again.ranks[name].tolist() == ranks.tolist()
    with pytest.raises(ValueError, match="got simulations of another seed or other rows"):
        bnn.check_simulations(
            jax.random.key(4),
            partial(bnn.condition, linear),
            (X, np.zeros(12, np.float32)),
            fit,
            folder=tmp_path,
        )
    assert simulate(num_simulations=6, folder=tmp_path, fit=None).num_simulations == 6


@pytest.mark.parametrize("cut", ["", '{"seed": [0'])
def test_a_file_that_was_cut_at_its_first_line_is_begun_anew(tmp_path, cut):
    path = tmp_path / "simulations.jsonl"
    path.write_text(cut)
    assert simulate(num_simulations=1, folder=tmp_path).num_simulations == 1
    assert len(path.read_text().splitlines()) == 2 and list(tmp_path.iterdir()) == [path]
    assert simulate(num_simulations=1, folder=tmp_path, fit=None).num_simulations == 1


def test_time_ends_simulations_and_few_draws_are_refused():
    with pytest.raises(TimeoutError, match="got no simulation before the end"):
        simulate(max_minutes=1e-9)
    with pytest.raises(ValueError, match="got a fit of 59 draws, expected 60 or more"):
        simulate(fit=partial(fit, num_draws=59))
    with pytest.raises(ValueError, match=r"got temperature=0.5, expected 1"):
        simulate(condition=partial(bnn.condition, linear, temperature=0.5))


def test_p_values_of_uniform_numbers_are_uniform_and_the_band_is_as_likely_as_it_says():
    places = RNG.random((400, 80))
    p_values = np.array([p_of_uniform(each) for each in places])
    assert 0.02 < (p_values < 0.05).mean() < 0.08
    found = band(80)
    share = np.array([[(each <= at).mean() for at in found.points] for each in places])
    inside = ((share >= found.lower) & (share <= found.upper)).all(1)
    assert 0.92 < inside.mean() < 0.985
    for few in (5, 8, 10):  # with few different distribution functions
        found, some = band(few), np.random.default_rng(few).random((4000, few, 1))
        share = (some <= found.points).mean(1)
        assert ((share >= found.lower) & (share <= found.upper)).all(1).mean() > 0.945
    assert p_of_uniform(np.random.default_rng(0).beta(2, 2, 80)) < 0.01
    assert holm(np.array([0.01, 0.04, 0.5])).tolist() == [0.03, 0.08, 0.5]
    spread = uniform_places(np.repeat(np.arange(4), 500), 3)
    assert (np.abs(np.sort(spread) - np.arange(2000) / 2000) < 0.05).all()


def test_few_simulations_are_said_to_be_few():
    found = Simulated({"a": np.array([1, 30, 55])}, 60, 0.0)
    assert found.sentence.endswith("3 simulations see large errors only")


def sampled(prior, y, num_draws=2_000):
    mean, covariance = exact(y, prior)
    slopes = RNG.multivariate_normal(mean, covariance, (4, num_draws)).astype(np.float32)
    level = RNG.normal(size=(4, num_draws)).astype(np.float32)
    draws = draws_of_arrays({"posterior": {"slopes": slopes, "level": level}})
    return bnn.condition(partial(linear, prior=prior), (X, y.astype(np.float32))), draws


def test_sensitivity_is_that_of_the_power_of_a_gaussian():
    """A site that the data do not touch is moved by its prior; the others by both or by y."""
    table = bnn.check_sensitivity(*sampled(10.0, X @ [1.0, -1.0]))
    rows = [name for name in table.index if name.startswith("row")]
    assert (table.loc[rows, "prior"] < 0.05).all()
    assert (table.loc[rows, "likelihood"] > 0.05).all()
    level = table.loc["level"]
    assert level["reading"] == "informative prior" and level["likelihood"] < 0.05
    # Of N(0, 1) with power a the sd is a**-0.5; the distance is nearly linear in its logarithm.
    grid = np.linspace(-8, 8, 40_001)
    assert level["prior"] == pytest.approx(_distance_of_power(grid), rel=0.25)
    assert "'level'" in sensitivity_in_words(table)


def _distance_of_power(grid):
    from scipy.stats import norm

    found, wider = 0.0, grid * 1.01**0.5
    for p, q in ((norm.cdf(grid), norm.cdf(wider)), (norm.sf(grid), norm.sf(wider))):
        both = np.log2((p + q) / 2 + 1e-300)
        terms = p * (np.log2(p + 1e-300) - both) + q * (np.log2(q + 1e-300) - both)
        found = max(found, terms.sum() / (p + q).sum())
    # The grid stands for the draws' range, which the areas depend on.
    return np.sqrt(found) / np.log2(1.01) * np.sqrt(16 / 7.0)


def test_a_prior_far_from_the_data_is_in_conflict():
    table = bnn.check_sensitivity(*sampled(0.3, X @ [3.0, -3.0]))
    assert (table.loc["row 0", ["prior", "likelihood"]] > 0.05).all()
    assert table.loc["row 0", "reading"] == "possible conflict"
    assert "is the prior what you believe" in sensitivity_in_words(table)
    with pytest.raises(ValueError, match="got 8 draws, expected 20 or more"):
        bnn.check_sensitivity(*sampled(1.0, X[:, 0], num_draws=2))


def test_sensitivity_counts_rows_as_often_as_the_likelihood():
    def model(x, y=None, times=1.0):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)), numpyro.handlers.scale(scale=times):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)

    x, y = np.ones((2, 1), np.float32), np.array([9.0, 10.0], np.float32)
    slopes = 190 / 21 + np.random.default_rng(0).normal(size=(4, 250)) / 21**0.5
    draws = draws_of_arrays({"posterior": {"slope": slopes.astype(np.float32)}})
    often = bnn.condition(partial(model, times=10.0), (x, y))
    copies = bnn.condition(model, (np.repeat(x, 10, 0), np.repeat(y, 10)))
    found, expected = (bnn.check_sensitivity(each, draws).loc["slope"] for each in (often, copies))
    assert found["likelihood"] == pytest.approx(expected["likelihood"], rel=1e-3)


def test_sensitivity_refuses_a_stream_of_which_it_would_see_some_rows():
    x = RNG.normal(size=(1100, 2)).astype(np.float32)
    posterior = bnn.condition(linear, bnn.data.stream(x, x[:, 0]))
    draws = draws_of_arrays({"posterior": {k: np.asarray(v)[None] for k, v in _prior(30).items()}})
    with pytest.raises(ValueError, match="got a stream of 1,100 rows, expected rows in memory"):
        bnn.check_sensitivity(posterior, draws)


@pytest.mark.thorough
def test_data_of_the_model_are_compared_with_y():
    y = X @ [1.0, -1.0] + NOISE * np.random.default_rng(1).normal(size=12)
    found = bnn.check_predictive(jax.random.key(0), *sampled(1.0, y))
    assert found.prior.shape == found.posterior.shape == (400, 12)
    assert (found.table["posterior_p"] > 0.004).all()
    assert found.prior_sentence.startswith("the prior makes data like y: mean")
    assert found.posterior_sentence.startswith("the fitted model makes data like y")
    far = bnn.check_predictive(jax.random.key(0), *sampled(0.1, y + 20))
    assert far.prior_sentence.startswith("the prior hardly makes data like y: mean 19.")
    assert "try another likelihood" in far.posterior_sentence
    data = bnn.data.load("yacht")._replace(y_mean=3.0, y_scale=2.0)
    scaled = bnn.check_predictive(jax.random.key(0), *sampled(1.0, y), data_set=data)
    np.testing.assert_allclose(scaled.observed, 2 * y + 3, rtol=1e-5)


@pytest.mark.parametrize(("num_chains", "num_draws"), [(1, 1), (3, 5), (7, 60)])
def test_data_that_the_model_cannot_make_are_found_by_few_draws(num_chains, num_draws):
    draws = draws_of_arrays(
        {
            "posterior": {
                "slopes": np.zeros((num_chains, num_draws, 2), np.float32),
                "level": np.zeros((num_chains, num_draws), np.float32),
            }
        }
    )
    far = bnn.condition(linear, (X, X[:, 0] + 50))
    found = bnn.check_predictive(jax.random.key(0), far, draws)
    assert "does not make data like y: mean 49.6" in found.posterior_sentence
    few = {1: "(from 1 draw of the weights,", 3: "(from 15 draws of the weights,", 7: ""}
    assert few[num_chains] in found.posterior_sentence
    assert ("of the weights" in found.posterior_sentence) == bool(few[num_chains])
    right = bnn.condition(linear, (X, NOISE * X[:, 0]))
    assert "makes data like y" in bnn.check_predictive(KEY, right, draws).posterior_sentence


def test_outputs_are_compared_each_by_itself(tmp_path):
    def model(x, y=None):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(level, 1.0).to_event(1), obs=y)

    y = RNG.normal(size=(12, 2)).astype(np.float32) + [0.0, 20.0]
    draws = draws_of_arrays({"posterior": {"level": np.zeros((1, 100, 2), np.float32)}})
    data = SimpleNamespace(y_mean=0.0, y_scale=np.array([1.0, 1e-3]), output_names=("a", "b"))
    posterior = bnn.condition(model, (X, y.astype(np.float32)))
    found = bnn.check_predictive(KEY, posterior, draws, data_set=data)
    assert "does not make data like y: mean [b] 0.0" in found.posterior_sentence
    assert found.table.loc["mean [a]", "posterior_p"] > 0.005 and len(found.table) == 10
    figure = bnn.plots.model_checks(found)
    assert figure.axes[0].get_xlabel() == "y, each output standardised"


@pytest.mark.thorough
def test_classes_are_counted(tmp_path):
    labels = (X[:, 0] > 0).astype(np.int32)
    posterior = bnn.condition(classes_by_a_slope, (X, labels))
    draws = draws_of_arrays({"posterior": {"slope": np.full((1, 30), 5.0, np.float32)}})
    found = bnn.check_predictive(jax.random.key(0), posterior, draws)
    assert found.classes and found.table.index.tolist() == ["share of 0", "share of 1"]
    assert found.table.loc["share of 1", "observed"] == pytest.approx(labels.mean())
    bnn.plots.model_checks(found).savefig(tmp_path / "classes.png")


def test_whole_y_that_stands_for_the_form_alone_does_not_round_what_is_simulated():
    seen = []

    def spy(key, posterior):
        seen.append(np.asarray(posterior.rows.examples[1]))
        return fit(key, posterior)

    condition = partial(bnn.condition, linear)
    bnn.check_simulations(
        jax.random.key(3), condition, (X, np.zeros(12, int)), spy, num_simulations=2
    )
    assert all(y.dtype.kind == "f" and (y != np.rint(y)).any() for y in seen)


def test_a_prior_scale_that_is_left_open_is_held_for_all_simulations():
    scales = []

    def spy(key, posterior):
        scales.append((posterior.open_scale, float(posterior.prior.scale)))
        run = partial(bnn.run, progress=False, verdict=False)
        return run(key, posterior, bnn.sgld(posterior, 1e-4), num_warmup=1, num_draws=60)

    model = bnn.models.regressor(partial(bnn.nets.MLP, 2, (), 1), bnn.priors.fan_in(), 0.5)
    options = {"data": (X, np.zeros(12, np.float32)), "num_simulations": 2}
    bnn.check_simulations(jax.random.key(3), partial(bnn.condition, model), fit=spy, **options)
    assert scales == [(None, pytest.approx(2**0.5))] * 2


def test_values_that_are_equal_take_ranks_at_random():
    rng = np.random.default_rng(0)
    drawn = np.ones(60)
    ranks = [_rank(drawn, 1.0, rng) for _ in range(2000)]
    assert min(ranks) == 0 and max(ranks) == 60
    assert np.mean(ranks) == pytest.approx(30, abs=1.5)
    assert _rank(np.arange(60.0), 20.5, rng) == 21
