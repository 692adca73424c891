"""SWAG against the same moments summed by NumPy over the very points it saw."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gaussians import gaussian, sample
from marks import quick_first
from stats import assert_covariance, assert_means
from targets import linear_regression

import bnn_ppl as bnn
from bnn_ppl.methods.ensembles.swag import swag
from bnn_ppl.methods.method import Method, described_methods, step_info

RNG = np.random.default_rng(0)
MIXING = np.array([[0.1, 0, 0, 0], [2.0, 3.0, 0, 0], [0, 1.0, 0.5, 0], [4.0, 0, 0, 4.0]])
POINTS = RNG.normal(size=(30, 4)) @ MIXING.T + [1.0, -2.0, 0.0, 50.0]


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(gaussian, (np.zeros((12, 1)), np.zeros((12, 200))))


def replay(points, **more):
    """Make a method that passes through points (step, 4), of two sites."""
    points = jnp.asarray(points, float)

    def step(key, count, batch):
        return count + 1, step_info(-count.astype(float))

    def draw(key, count):
        point = points[count - 1]
        return {"a": point[0], "b": point[1:]}

    return Method(lambda key, position, batch: jnp.zeros((), int), step, draw, **more)


BATCH = np.zeros((4, 1)), np.zeros(4)


def begun(method):
    return method.init(jax.random.key(0), {"a": jnp.zeros(()), "b": jnp.zeros(3)}, BATCH)


def state_after(method, num_steps):
    def step(i, state):
        return method.step(jax.random.key(i), state, BATCH)[0]

    return jax.jit(lambda state: jax.lax.fori_loop(0, num_steps, step, state))(begun(method))


def draws_of(method, state, num=4000):
    keys = jax.random.split(jax.random.key(1), (2, num // 2))
    drawn = jax.vmap(jax.vmap(lambda key: method.draw(key, state)))(keys)
    return np.concatenate([np.asarray(drawn["a"])[..., None], np.asarray(drawn["b"])], -1)


def moments(points, rank):
    """Give the mean, variance and last deviations of some points, by the definitions."""
    mean = points.mean(0)
    running = [point - points[: i + 1].mean(0) for i, point in enumerate(points)]
    return mean, ((points - mean) ** 2).mean(0), np.array(running[-rank:])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rank", "num_points"),
    [
        (30, 5),
        (5, 30),
        *(pytest.param(*n, marks=pytest.mark.thorough) for n in ((7, 7), (2, 30), (3, 2))),
    ],
)
def test_draws_have_half_the_diagonal_and_half_the_low_rank_covariance(posterior, rank, num_points):
    method = swag(posterior, replay(POINTS), rank, collect_every=1)
    draws = draws_of(method, state_after(method, num_points))
    mean, variance, held = moments(POINTS[:num_points], rank)
    assert_means(draws, mean)
    assert_covariance(draws, (np.diag(variance) + held.T @ held / (len(held) - 1)) / 2)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_of_rank_0_all_of_the_covariance_is_diagonal(posterior, scale):
    method = swag(posterior, replay(POINTS), 0, collect_every=1, scale=scale)
    state = state_after(method, 30)
    draws = draws_of(method, state)
    assert_means(draws, POINTS.mean(0))
    assert_covariance(draws, scale * np.diag(POINTS.var(0)))
    fitted = method.fitted(state)
    np.testing.assert_allclose(fitted["b.scale"], scale**0.5 * POINTS[:, 1:].std(0), rtol=1e-5)
    assert not jax.tree.leaves(state.moments.deviations)[0].size
    assert method.draws_from == "gaussian"


@pytest.mark.thorough
def test_the_scale_multiplies_the_covariance(posterior):
    draws = []
    for scale in (1.0, 0.25):
        method = swag(posterior, replay(POINTS), 5, collect_every=1, scale=scale)
        draws.append(draws_of(method, state_after(method, 30), 8) - POINTS.mean(0))
        assert method.settings["scale"] == scale
    np.testing.assert_allclose(draws[1], draws[0] / 2, rtol=1e-4, atol=1e-5)


@quick_first("num_points", [0, 1])
def test_before_two_points_a_draw_is_the_inner_methods(posterior, num_points):
    method = swag(posterior, replay(POINTS), collect_every=1, collect_from=4)
    state = state_after(method, 4 + num_points)
    assert int(method.fitted(state)["num_collected"]) == num_points
    here = POINTS[3 + num_points]
    np.testing.assert_allclose(draws_of(method, state, 4), np.broadcast_to(here, (2, 2, 4)), 1e-6)
    fitted = method.fitted(state)
    np.testing.assert_allclose(fitted["b.loc"], here[1:], rtol=1e-6)
    np.testing.assert_array_equal(fitted["b.scale"], np.zeros(3))


def test_the_fitted_mean_and_scale_are_those_of_the_points_collected(posterior):
    method = swag(posterior, replay(POINTS), 2, collect_every=4, collect_from=3)
    fitted = method.fitted(state_after(method, 30))
    collected = POINTS[3::4]  # the points after the steps 3, 7, ...
    assert int(fitted["num_collected"]) == len(collected)
    np.testing.assert_allclose(fitted["a.loc"], collected[:, 0].mean(), rtol=1e-5)
    np.testing.assert_allclose(fitted["b.loc"], collected[:, 1:].mean(0), rtol=1e-5)
    np.testing.assert_allclose(fitted["b.scale"], collected[:, 1:].std(0), rtol=1e-5)


def test_small_deviations_about_a_large_mean_survive_single_precision(posterior):
    """The difference of the mean square and the squared mean would be rounding errors alone."""
    points = 100 + 1e-3 * RNG.normal(size=(30, 4))
    method = swag(posterior, replay(points), collect_every=1)
    scale = method.fitted(state_after(method, 30))["b.scale"]
    rounded = points.astype(np.float32).astype(float)
    np.testing.assert_allclose(scale, rounded[:, 1:].std(0), rtol=0.02)


def test_warm_up_steps_are_the_inner_methods_and_collect_too(posterior):
    inner = replay(POINTS)
    inner = inner._replace(warmup=lambda key, count, batch: (count + 3, step_info(jnp.zeros(()))))
    method = swag(posterior, inner, collect_every=1)
    state = begun(method)
    for take in (method.warmup, method.warmup, method.step):
        state, _ = take(jax.random.key(0), state, BATCH)
    fitted = method.fitted(state)
    np.testing.assert_allclose(fitted["b.loc"], POINTS[[2, 5, 6], 1:].mean(0), rtol=1e-6)
    assert swag(posterior, replay(POINTS)).warmup is None


@pytest.mark.thorough
def test_chains_side_by_side_collect_each_at_its_own_steps(posterior):
    method = swag(posterior, replay(POINTS), 3, collect_every=2)
    states = [state_after(method, num_steps) for num_steps in (4, 7)]
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    both, _ = jax.vmap(method.step, (None, 0, None))(jax.random.key(0), both, BATCH)
    for chain, num_steps in enumerate((5, 8)):
        alone = jax.tree.leaves(state_after(method, num_steps))
        for leaf, expected in zip(jax.tree.leaves(both), alone, strict=True):
            np.testing.assert_allclose(leaf[chain], expected, rtol=1e-6)


# --- in a run


@pytest.mark.thorough
def test_it_averages_what_descent_passes_through_once_an_epoch(posterior):
    inner = bnn.descent(posterior, optax.sgd(0.1))
    options = {"batch_size": 4, "num_draws": 1, "thin": 0}  # three batches an epoch
    draws = sample(posterior, swag(posterior, inner), num_warmup=20, **options)
    path = sample(posterior, inner, num_draws=20, thin=1, batch_size=4).posterior["w"].values
    collected = path[:, ::3]
    np.testing.assert_array_equal(draws.fitted["num_collected"], [7, 7])
    np.testing.assert_allclose(draws.fitted["w.loc"], collected.mean(1), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(draws.fitted["w.scale"], collected.std(1), rtol=1e-4, atol=1e-7)
    assert draws.attrs["method"] == "swag"


@pytest.mark.thorough
def test_it_passes_on_what_the_steps_of_the_inner_method_tell(posterior):
    inner = bnn.sgld(posterior, bnn.schedules.decaying(0.01, 1.0))
    options = {"num_draws": 5, "thin": 1}
    wrapped, plain = (
        sample(posterior, method, **options) for method in (swag(posterior, inner), inner)
    )
    assert set(wrapped.sample_stats) == set(plain.sample_stats)
    np.testing.assert_array_equal(wrapped.sample_stats.step_size, plain.sample_stats.step_size)


@pytest.mark.thorough
def test_chains_are_distributions_of_their_own(posterior):
    """MultiSWAG: a mixture."""
    method = swag(posterior, bnn.sgld(posterior, 1e-4), collect_every=2)
    draws = sample(posterior, method, num_warmup=60, num_draws=50, thin=0)
    assert draws.posterior["w"].shape == (2, 50, 200)
    loc, scale = (draws.fitted[f"w.{name}"].values for name in ("loc", "scale"))
    assert np.abs(loc[0] - loc[1]).mean() > 10 * scale.mean()
    own = draws.posterior["w"].values - loc[:, None]
    assert 0.7 < own.std() / scale.mean() < 1.3


WRAPPED = {
    "descent": lambda p: swag(p, bnn.descent(p, optax.sgd(0.1)), rank=3, collect_every=2),
    "scale-adapted sghmc": lambda p: swag(
        p,
        bnn.sghmc(p, 0.01, preconditioner=bnn.preconditioners.scale_adapted()),
        collect_from=3,
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "thin"), [("descent", 0), ("scale-adapted sghmc", 2)])
def test_an_interrupted_run_is_bit_identical(posterior, tmp_path, name, thin):
    method = WRAPPED[name](posterior)
    options = {"batch_size": 3, "num_warmup": 11, "thin": thin}
    whole = sample(posterior, method, num_draws=9, **options)
    sample(posterior, method, num_draws=4, folder=tmp_path, **options)
    resumed = sample(posterior, method, num_draws=9, folder=tmp_path, **options)
    np.testing.assert_array_equal(resumed.posterior["w"], whole.posterior["w"])
    for parameter, values in whole.fitted.items():
        np.testing.assert_array_equal(resumed.fitted[parameter], values, err_msg=parameter)


@pytest.mark.parametrize(
    "change", [{"rank": 4}, {"collect_every": 3}, {"collect_from": 1}, {"scale": 0.5}]
)
def test_each_argument_makes_another_run(posterior, change):
    inner = bnn.descent(posterior)
    assert swag(posterior, inner, **change).settings != swag(posterior, inner).settings
    other = swag(posterior, bnn.descent(posterior, learning_rate=0.5)).settings
    assert other != swag(posterior, inner).settings


@pytest.mark.thorough
def test_a_short_tuning_along_sgld_still_finds_steps_that_move(posterior):
    method = bnn.swag(posterior, collect_from=100, collect_every=5)
    draws = sample(posterior, method, num_warmup=300, num_draws=2, batch_size=3, thin=0)
    sizes = draws.warmup_sample_stats["step_size"].values[0]
    assert sizes[-1] > 0 and len(set(sizes[:100])) > 2  # several windows
    assert all(scale.min() > 0 for name, scale in draws.fitted.items() if name.endswith(".scale"))
    assert int(draws.fitted["num_collected"][0]) == 40


def test_collecting_before_sgld_is_tuned_is_refused(posterior):
    with pytest.raises(ValueError, match="got collect_from=0 without a learning rate, expected"):
        swag(posterior, collect_from=0)


@pytest.mark.thorough
def test_the_path_of_sgd_is_that_of_descent_with_it_from_half_of_warmup(posterior):
    """The options of the path have the names that they have on the command line."""
    options = {"num_warmup": 20, "num_draws": 3, "thin": 0, "batch_size": 4}
    inner = bnn.descent(posterior, optax.sgd(0.05, momentum=0.9))
    expected = sample(posterior, swag(posterior, inner, collect_from=10), **options)
    found = sample(posterior, swag(posterior, learning_rate=0.05), **options)
    np.testing.assert_array_equal(found.posterior["w"], expected.posterior["w"])
    np.testing.assert_array_equal(found.fitted["num_collected"], 4)  # once an epoch of 3 steps


def test_the_functions_take_what_the_commands_take():
    assert all(getattr(bnn, each.name) is each.build for each in described_methods())


@pytest.mark.parametrize("given", [{"learning_rate": 0.1}, {"fgsm_epsilon": 0.1}])
def test_options_of_sgd_with_another_path_are_refused(posterior, given):
    (name,) = given
    with pytest.raises(ValueError, match=f"got inner and {name}, expected one of them: give"):
        swag(posterior, bnn.sgld(posterior), **given)
    with pytest.raises(ValueError, match="got learning_rate=0, expected a number above 0"):
        swag(posterior, learning_rate=0)


# --- bad input


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 1},
        {"scale": 0.0},
        {"rank": 2.5},
        {"collect_every": 0},
        {"collect_every": 0.5},
        {"collect_from": -1},
    ],
)
def test_counts_out_of_range_are_refused(posterior, arguments):
    (name,) = arguments
    with pytest.raises(
        ValueError, match=f"got {name}=.*expected a (whole )?number (from . up|above 0)"
    ):
        swag(posterior, replay(POINTS), **arguments)


def test_a_method_whose_draws_rest_is_refused(posterior):
    held_out = tuple(leaf[:4] for leaf in posterior.data)
    for inner, words in (
        (bnn.descent(posterior, held_out=held_out), "best_point"),
        (bnn.descent(posterior, average_from=0), "average"),
        (bnn.mfvi(posterior), "gaussian"),
    ):
        with pytest.raises(ValueError, match=rf"got \w+ \({words} draws\) as inner"):
            bnn.swag(posterior, inner)


def test_a_method_that_is_fitted_and_then_drawn_from_is_refused(posterior):
    inner = replay(POINTS, finish=lambda state: state, settings={"method": "laplace"})
    with pytest.raises(ValueError, match="got laplace with a finish.*expected.*descent or sgld"):
        swag(posterior, inner)


@pytest.mark.thorough
def test_the_path_of_sgd_may_be_that_of_adversarial_training():
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    position = posterior.init(jax.random.key(0))

    def stepped(method):
        state = method.init(jax.random.key(1), position, posterior.data)
        return method.step(jax.random.key(2), state, posterior.data)[0]

    method = swag(posterior, learning_rate=0.01, fgsm_epsilon=0.2)
    assert method.settings["fgsm_epsilon"] == 0.2
    mean = stepped(method).moments.mean["weights"]
    alone, plain = (
        stepped(bnn.descent(posterior, optax.sgd(0.01, momentum=0.9), fgsm_epsilon=epsilon))
        for epsilon in (0.2, 0.0)
    )
    np.testing.assert_allclose(mean, alone.position["weights"], rtol=1e-6)
    assert not np.allclose(mean, plain.position["weights"], rtol=1e-3)
    with pytest.raises(ValueError, match=r"got fgsm_epsilon=0.2 without learning_rate, expected"):
        swag(posterior, fgsm_epsilon=0.2)
