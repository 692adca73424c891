"""The noise of a fit, learnt from rows that its weights do not see."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from interrupts import press_ctrl_c

import bnn_ppl as bnn
from bnn_ppl.methods.ensembles.descent import starting_descent
from bnn_ppl.methods.training.held_out_groups import HeldOutGroups
from bnn_ppl.methods.training.held_out_noise import (
    HeldOutRows,
    held_out_rows,
    is_held_out,
    noise_sites,
    with_noise_held_out,
)
from bnn_ppl.model.recipe import like
from bnn_ppl.model.rows.features import Features

NOISE = 0.3


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", bnn.priors.noise())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def of_many_weights(num_rows=400, num_columns=100):
    """So many weights that their optimum explains a quarter of the noise's variance."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, num_columns))
    y = x @ rng.normal(size=num_columns) + NOISE * rng.normal(size=num_rows)
    return bnn.condition(linear, (x, y))


def fitted(posterior, **options):
    method = bnn.descent(posterior, **options)
    return bnn.run(jax.random.key(0), posterior, method, num_chains=8, progress=False)


@pytest.fixture(scope="module")
def posterior():
    return of_many_weights()


@pytest.fixture(scope="module")
def draws(posterior):
    # Thousands of steps on 400 rows take half the time compiled in full, as no other test here is.
    jax.config.update("jax_disable_most_optimizations", False)
    found = fitted(posterior)
    jax.config.update("jax_disable_most_optimizations", True)
    return found


@pytest.mark.statistical
def test_the_noise_is_not_what_is_left_of_rows_that_the_weights_were_fitted_to(posterior, draws):
    together = fitted(posterior, noise_rows="training")
    assert (together.posterior["noise"] < 0.9 * NOISE).all()
    assert (draws.posterior["noise"] > together.posterior["noise"]).all()
    # Single chains hold out 80 rows, too few for a tenth. For 100 weights the mean is too large: by
    # 1 + p / (n - p - 1), not 1 + p / n, on held-out rows, and as training has not converged yet.
    assert NOISE < draws.posterior["noise"].mean() < 1.1 * NOISE
    assert draws.posterior["noise"].max() < 1.4 * NOISE
    assert not (draws.posterior["noise"][0] == draws.posterior["noise"][1]).all()


@pytest.mark.statistical
def test_the_weights_are_at_last_those_of_all_rows_at_the_noise_found(posterior, draws):
    x, y = map(np.asarray, posterior.data)
    for chain in draws.posterior.chain.values:
        found = draws.posterior.sel(chain=chain, draw=0)
        precision = x.T @ x + float(found["noise"]) ** 2 * np.eye(x.shape[1])
        np.testing.assert_allclose(found["w"], np.linalg.solve(precision, x.T @ y), atol=0.01)


@pytest.mark.thorough
def test_a_run_that_is_stopped_while_rows_are_held_out_goes_on(tmp_path, monkeypatch):
    posterior = of_many_weights(20, 2)
    monkeypatch.setattr("bnn_ppl.sampling.loop.compiled_loop._DRAWS_PER_CHUNK", 64)
    options = {"num_chains": 2, "num_warmup": 400, "progress": False}
    whole = bnn.run(jax.random.key(0), posterior, bnn.descent(posterior), **options)
    options["folder"] = tmp_path / "run"
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, 3)
        stopped = bnn.run(jax.random.key(0), posterior, bnn.descent(posterior), **options)
    assert stopped.attrs["stopped_in"] == "warmup"
    resumed = bnn.run(jax.random.key(0), posterior, bnn.descent(posterior), **options)
    for site in whole.posterior:
        np.testing.assert_array_equal(resumed.posterior[site], whole.posterior[site])


@pytest.mark.thorough
def test_each_gradient_is_that_of_its_own_rows():
    posterior = of_many_weights(6, 2)
    position = {"w": jnp.array([0.5, -1.0]), "noise": jnp.array(0.3)}
    held_out = jnp.array([True, False, False, True, False, False])

    def loss(position, anchor, batch):
        return -posterior.logdensity(position, batch)

    def gradient(mask):
        return jax.grad(loss)(position, None, (*posterior.data, mask))

    def found(held_out, *mask):
        batch = (*posterior.data, *mask)
        of_either = jax.value_and_grad(with_noise_held_out, argnums=3, has_aux=True)
        rows = HeldOutRows(held_out)
        (_, value), found = of_either(loss, {"noise"}, 0.7, position, None, batch, rows)
        return value, found

    value, both = found(held_out)
    of_both = 0.7 * gradient(held_out)["noise"] + 0.3 * gradient(~held_out)["noise"]
    np.testing.assert_allclose(both["noise"], of_both, rtol=1e-5)
    np.testing.assert_allclose(both["w"], gradient(~held_out)["w"], rtol=1e-5)
    np.testing.assert_allclose(value, loss(position, None, (*posterior.data, ~held_out)), rtol=1e-5)
    # Padding belongs to neither; where no row is held out, all of them stand for those.
    real = jnp.array([True] * 3 + [False] * 3)
    _, both = found(held_out, real)
    np.testing.assert_allclose(both["w"], gradient(~held_out & real)["w"], rtol=1e-5)
    _, both = found(jnp.zeros(6, bool))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), both, gradient(real | True)
    )


@pytest.mark.thorough
def test_the_amplitude_of_noise_learns_from_rows_that_its_shape_does_not_see():
    def linear(width):
        return partial(bnn.nets.MLP, 1, (), width)

    model = bnn.models.regressor(
        linear(1), bnn.priors.normal(1.0), "heteroscedastic", noise_net=linear(1)
    )
    rng = np.random.default_rng(0)
    posterior = bnn.condition(model, (rng.normal(size=(30, 1)), rng.normal(size=30)))
    position = posterior.init(jax.random.key(0))
    sites = noise_sites(posterior)
    assert sites == {site for site in position if not site.startswith("net.")}
    rows = held_out_rows(jax.random.bits(jax.random.key(1)), posterior.data, 0.5, sites)
    assert rows.of_shape.any() and rows.of_amplitude.any()
    assert not (rows.of_shape & rows.of_amplitude).any()

    def loss(position, anchor, batch):
        return -posterior.logdensity(position, batch)

    def gradient(mask):
        return jax.grad(loss)(position, None, (*posterior.data, mask))

    of_either = jax.grad(with_noise_held_out, argnums=3, has_aux=True)
    found, _ = of_either(loss, sites, 0.5, position, None, posterior.data, rows)
    trained = gradient(~rows.of_shape & ~rows.of_amplitude)
    of_shape, of_amplitude = gradient(rows.of_shape), gradient(rows.of_amplitude)
    for site in position:
        expected = 0.5 * trained[site] + 0.5 * of_shape[site]
        if site == "noise_amplitude":
            expected = of_amplitude[site]
        elif site.startswith("net."):
            expected = trained[site]
        np.testing.assert_allclose(found[site], expected, rtol=1e-4, atol=1e-4)


def test_a_row_is_held_out_in_every_batch_or_in_none():
    rng = np.random.default_rng(0)
    x = {"numbers": rng.normal(size=(10_000, 3)), "tokens": rng.integers(9, size=(10_000, 2))}
    y = rng.normal(size=10_000)
    whole, other = (np.asarray(is_held_out(seed, (x, y))) for seed in (0, 2**31))
    order = rng.permutation(10_000)[:100]
    some = {name: column[order] for name, column in x.items()}
    np.testing.assert_array_equal(is_held_out(0, (some, y[order])), whole[order])
    standard_error = (0.2 * 0.8 / 10_000) ** 0.5
    assert abs(whole.mean() - 0.2) < 4 * standard_error
    assert abs((whole & other).mean() - 0.2**2) < 4 * standard_error


def test_rows_of_a_group_are_held_out_together_in_every_batch():
    rng = np.random.default_rng(0)
    x, y, names = rng.normal(size=(60, 2)), rng.normal(size=60), rng.choice(list("abcdefghij"), 60)
    posterior = bnn.condition(linear, (x, y), groups=names)
    groups, chosen = HeldOutGroups.of(posterior), set()
    for seed in (0, 5, 2**31 + 7):
        held_out = np.asarray(is_held_out(jnp.uint32(seed), posterior.data, 0.2, groups))
        own = set(names[held_out])
        assert len(own) == 2 and not own & set(names[~held_out])
        some = rng.permutation(60)[:20]
        np.testing.assert_array_equal(
            is_held_out(seed, (x[some], y[some]), 0.2, groups), held_out[some]
        )
        chosen |= own
    assert len(chosen) > 2
    few = posterior.rows.take(np.flatnonzero(names < "c"))
    assert 0 < is_held_out(0, few.data, 0.2, HeldOutGroups.of(few)).sum() < few.num_rows
    assert HeldOutGroups.of(posterior.rows.take(np.flatnonzero(names == "a"))) is None
    with pytest.raises(ValueError, match="got groups of 3 rows for 60 rows, expected one each"):
        bnn.condition(linear, (x, y), groups=[0, 1, 2])


def test_descent_holds_out_the_groups_of_its_posterior(monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(12, 2)), rng.normal(size=12)
    posterior = bnn.condition(linear, rows, groups=np.repeat([0, 1, 2], 4))
    seen, as_made = [], HeldOutGroups.are_held_out

    def are_held_out(groups, *given):
        seen.append(groups.num_groups)
        return as_made(groups, *given)

    monkeypatch.setattr(HeldOutGroups, "are_held_out", are_held_out)
    method, key = bnn.descent(posterior), jax.random.key(0)
    position = {"w": jnp.zeros(2), "noise": jnp.zeros(())}
    state = jax.eval_shape(method.init, key, position, posterior.data)
    jax.eval_shape(method.step, key, state, posterior.data)
    assert set(seen) == {3} and method.batching.raw_rows


class TwoLayers(nnx.Module):
    def __init__(self, *, rngs):
        self.first, self.last = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x)))


def test_groups_are_found_by_the_rows_where_a_method_takes_features(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.normal(size=60)
    prior = {"first.*": "fixed", "last.*": bnn.priors.normal(1.0)}
    model = bnn.models.regressor(TwoLayers(rngs=nnx.Rngs(0)), prior)
    posterior = bnn.condition(model, (x, y), groups=np.arange(60) // 6)
    seen, as_made = [], HeldOutGroups.are_held_out

    def are_held_out(groups, seed, rows, share):
        seen.append(type(rows[0]))
        return as_made(groups, seed, rows, share)

    monkeypatch.setattr(HeldOutGroups, "are_held_out", are_held_out)
    lengths = {"num_chains": 1, "num_warmup": 30, "num_draws": 2}
    bnn.run(jax.random.key(0), posterior, bnn.mclmc(posterior), **lengths, progress=False)
    assert posterior.rows.fixed_part() is not None
    assert seen and Features not in seen


def test_programs_that_know_groups_are_not_those_of_other_rows():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2)), rng.normal(size=12)
    model = bnn.models.regressor(partial(bnn.nets.MLP, 2, (), 1), bnn.priors.normal(1.0), 0.5)
    for groups in (None, np.repeat([0, 1, 2], 4)):
        known, other = (bnn.condition(model, (x, each), groups=groups) for each in (y, -y))
        is_alike = like(other, known, other_rows=True) is not other
        assert is_alike == (groups is None)


def test_which_rows_the_noise_is_found_from_is_recorded_where_it_is_not_the_mode():
    posterior = of_many_weights(6, 2)
    assert bnn.descent(posterior).settings["noise_rows"] == "both"
    assert starting_descent(posterior).settings["noise_rows"] == "held_out"
    for options in ({"noise_rows": "training"}, {"learning_rate": 0.1}):
        assert "noise_rows" not in bnn.descent(posterior, **options).settings
    with pytest.raises(ValueError, match="got noise_rows='test', expected one of"):
        bnn.descent(posterior, noise_rows="test")
