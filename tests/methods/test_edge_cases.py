"""Settings at the edges: long cycles, trials of rates, particles, points, temperatures."""

from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bnn_ppl as bnn
from bnn_ppl.methods.training.held_out_noise import is_held_out, told_apart_by

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).astype(np.float32)
Y = (X[:, 0] + 0.1 * RNG.normal(size=40)).astype(np.float32)
FEW = {"num_chains": 1, "progress": False, "verdict": False}


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(linear, (X, Y))


@pytest.mark.parametrize("length", [10, 20_000, 300_000])
def test_cyclical_steps_are_above_0_to_the_end_of_a_cycle(length):
    schedule = bnn.schedules.cyclical(1.0, length)
    sizes = np.array([schedule(jnp.asarray(step)) for step in (0, length // 2, length - 1)])
    expected = np.cos(np.pi / 2 * np.array([0, length // 2, length - 1]) / length) ** 2
    assert (sizes > 0).all()
    np.testing.assert_allclose(sizes, expected, rtol=2e-2)


def test_training_does_not_end_while_rates_are_tried(posterior):
    method = bnn.descent(posterior, held_out=(X[:9], Y[:9]), check_every=10, patience=3)
    draws = bnn.run(jax.random.key(0), posterior, method, num_warmup=2_000, **FEW)
    found = draws.posterior["w"].values.ravel()
    np.testing.assert_allclose(found, [1.0, 0.0], atol=0.1)


@pytest.mark.parametrize("num_rows", [40, 501, 927, 999, 1_000, 1_500])
def test_laplace_visits_all_rows_but_a_few(num_rows):
    x = np.zeros((num_rows, 2), np.float32)
    size = bnn.laplace(bnn.condition(linear, (x, x[:, 0]))).counts.batch_size
    batches = num_rows // size
    assert size <= 500 and 0 <= num_rows - size * batches < batches


def test_draws_that_would_leave_out_particles_are_refused(posterior):
    method = bnn.svgd(posterior, num_particles=6)
    with pytest.raises(ValueError, match="got thin=4 and 6 draws for 6 particles, which take tur"):
        bnn.run(jax.random.key(0), posterior, method, num_draws=6, thin=4, **FEW)


def test_scores_of_a_distribution_that_is_not_there_yet_are_refused(posterior):
    scored = {"score_every": 1, "held_out": (X, Y)}
    with pytest.raises(ValueError, match="got score_every= for laplace, whose distribution is the"):
        bnn.run(jax.random.key(0), posterior, bnn.laplace(posterior), **scored, **FEW)


def with_points(x, y=None):
    shares = numpyro.param("shares", jnp.ones(3) / 3, constraint=dist.constraints.simplex)
    noise = numpyro.param("noise", 1.0, constraint=dist.constraints.positive)
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ w + shares[0], noise), obs=y)


def test_points_of_any_constraint_have_methods_and_no_jacobian():
    posterior = bnn.condition(with_points, (X, Y))
    for name in ("descent", "nuts", "mfvi"):
        assert getattr(bnn, name)(posterior).settings["method"] == name
    position = posterior.init(jax.random.key(0))
    terms = posterior.density.terms(position, posterior.data)
    assert {site: float(jnp.sum(each)) for site, each in terms.log_jacobians.items()} == {
        "shares": 0.0,
        "noise": 0.0,
        "w": 0.0,
    }


def test_control_variates_are_refused_where_they_would_change_nothing(posterior):
    for method in (bnn.descent(posterior), bnn.mfvi(posterior)):
        with pytest.raises(ValueError, match="expected a sampler on minibatches .* one of sgld, k"):
            bnn.control_variates(posterior, method)


def test_augmented_rows_are_told_apart_as_they_were_given():
    batch, changed = (X, Y), (X + 1, Y)
    seed = jnp.asarray(3, jnp.uint32)
    given = is_held_out(seed, batch, 0.5)
    with told_apart_by(batch):
        assert (is_held_out(seed, changed, 0.5) == given).all()
    assert (is_held_out(seed, changed, 0.5) != given).any()


def test_swag_of_a_sampler_takes_its_batches_and_its_start(posterior):
    inner = bnn.sghmc(posterior)
    found = bnn.swag(posterior, inner)
    assert found.batching.order == inner.batching.order != "epochs"
    assert found.tuning.start is not None
    assert (
        bnn.swag(posterior, bnn.descent(posterior, learning_rate=0.01)).batching.order == "epochs"
    )


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_rates_and_times_of_any_unit_have_a_slope(size):
    y = (size * RNG.gamma(3.0, 1.0, 40)).astype(np.float32)
    net = partial(bnn.nets.MLP, 2, (), 1)
    model = bnn.models.with_likelihood(net, bnn.priors.normal(1.0), bnn.likelihoods.gamma(y))
    posterior = bnn.condition(model, (X, y))
    slope = jax.grad(posterior.logdensity)(posterior.init(jax.random.key(0)), posterior.data)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    terms = jax.grad(lambda at: posterior.log_likelihood(at, posterior.data).sum())(
        posterior.init(jax.random.key(0))
    )
    assert any(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(terms))


def test_whether_rows_are_held_out_is_recorded_without_a_noise_site_too():
    x = RNG.normal(size=(120, 2)).astype(np.float32)
    model = bnn.models.classifier(partial(bnn.nets.MLP, 2, (), 2), bnn.priors.normal(1.0))
    posterior = bnn.condition(model, (x, np.arange(120) % 2))
    usual, other = (bnn.descent(posterior, noise_rows=rows) for rows in ("both", "training"))
    assert usual.settings != other.settings


def test_a_plate_of_one_size_is_run_by_methods_that_start_from_training():
    x = RNG.normal(size=(2_100, 2)).astype(np.float32)
    y = (x[:, 0] + 0.3 * RNG.normal(size=2_100)).astype(np.float32)

    def of_one_size(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", 2_100):
            numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)

    posterior = bnn.condition(of_one_size, (x, y))
    run = partial(bnn.run, jax.random.key(0), posterior, num_warmup=300, num_draws=4, **FEW)
    for name in ("mclmc", "mfvi"):
        draws = run(getattr(bnn, name)(posterior), batch_size="all")
        np.testing.assert_allclose(draws.posterior["w"].mean(("chain", "draw")), [1, 0], atol=0.1)


def test_samplers_aim_lower_for_classes_and_higher_for_many_rows():
    def aims(model, x, y):
        posterior = bnn.condition(model, (x, y))
        return [getattr(bnn, n)(posterior).settings["target_acceptance"] for n in ("hmc", "nuts")]

    net = partial(bnn.nets.MLP, 2, (50,), 2)
    assert (
        aims(bnn.models.classifier(net, bnn.priors.normal(1.0)), X, (Y > 0).astype(int))
        == [0.8] * 2
    )
    assert aims(linear, X, Y) == [0.9, 0.9]
    x = np.zeros((300_000, 2), np.float32)
    assert aims(linear, x, x[:, 0]) == [0.95, 0.95]


def test_a_slice_is_found_where_rounding_hides_its_height():
    def model(x, y=None):
        numpyro.factor("constant", -1e8)  # a float32 there is exact to 8
        linear(x, y)

    posterior = bnn.condition(model, (X, Y))
    counts = {"num_warmup": 50, "num_draws": 400, "thin": 3}
    draws = bnn.run(jax.random.key(0), posterior, bnn.elliptical_slice(posterior), **FEW | counts)
    precision = X.T @ X / 0.3**2 + np.eye(2)
    found = draws.posterior["w"].values[0]
    np.testing.assert_allclose(
        found.mean(0), np.linalg.solve(precision, X.T @ Y / 0.3**2), atol=0.01
    )
    np.testing.assert_allclose(np.cov(found.T), np.linalg.inv(precision), atol=7e-4)
    assert (draws.sample_stats["lp"] < -9e7).all()


def test_anchors_move_with_a_scale_that_is_learnt():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 40)).astype(np.float32)
    weights = 0.5 * rng.normal(size=40).astype(np.float32)

    def model(x, y=None):
        precision = numpyro.sample("precision", dist.Gamma(1.0, 1.0))
        w = numpyro.sample("w", dist.Normal(0.0, precision**-0.5).expand([40]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.1), obs=y)

    posterior = bnn.condition(model, (x, x @ weights))
    method = bnn.descent(posterior, learning_rate=0.03, anchored=True)
    draws = bnn.run(jax.random.key(0), posterior, method, num_warmup=500, **FEW | {"num_chains": 4})
    mean = (1 + 20) / (1 + (weights**2).sum() / 2)  # of the posterior, nearly
    np.testing.assert_allclose(draws.posterior["precision"], mean, rtol=0.6)


@pytest.mark.parametrize("method", ["laplace", "tempered_smc", "parallel_tempering"])
def test_a_prior_that_is_scaled_is_refused_where_draws_of_it_are_needed(method):
    def model(x, y=None):
        with numpyro.handlers.scale(scale=16.0):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(w, 1.0), obs=y)

    posterior = bnn.condition(model, (X, Y))
    with pytest.raises(ValueError, match="got the factor, scale or mask of 'w' for"):
        getattr(bnn, method)(posterior)


@pytest.mark.parametrize("own, expected", [(1.0, 4.0), (3.0, None)])
def test_a_scale_that_several_sites_share_is_that_of_the_row(own, expected):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)), numpyro.handlers.scale(scale=4.0):
            numpyro.sample("a", dist.Normal(x @ w, 0.3), obs=y["a"])
            with numpyro.handlers.scale(scale=own) if own > 1 else nullcontext():
                numpyro.sample("b", dist.Normal(x @ w, 0.3), obs=y["b"])

    posterior = bnn.condition(model, (X, {"a": Y, "b": Y}))
    terms = posterior.density.terms({"w": jnp.zeros(2)}, posterior.rows.examples)
    np.testing.assert_equal(terms.row_scale, expected and np.full(40, expected))


def test_samplers_of_minibatches_alone_have_cycles_and_centres(posterior):
    with pytest.raises(ValueError, match="got hmc, which takes all rows, expected a sampler"):
        bnn.schedules.in_cycles(bnn.hmc(posterior), 100, 50)
    centred = bnn.control_variates(posterior, bnn.sgld(posterior))
    with pytest.raises(ValueError, match="got sgld with control variates, expected a sampler"):
        bnn.schedules.in_cycles(centred, 100, 50)
    assert bnn.schedules.in_cycles(bnn.amagold(posterior), 100, 50).settings["cycle_length"] == 100
    streamed = bnn.condition(linear, bnn.data.stream(X, Y))
    with pytest.raises(ValueError, match="got a stream of 40 rows, expected rows in memory"):
        bnn.control_variates(streamed, bnn.sgld(streamed, 1e-3))
    with pytest.raises(ValueError, match="got friction=<function"):
        bnn.sgnht(posterior, 1e-3, friction=lambda count: 0.1)
