"""Branches of chains side by side: taken where a chain needs them, with the results of turns."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import AxisType, Mesh
from marks import quick_first, some_quick
from meshes import mesh_for, mlp, phases

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS
from bnn_ppl.runtime.compilation.branches import one_or_other, where_needed
from bnn_ppl.runtime.compilation.jaxprs import equations_in, programs_in
from bnn_ppl.runtime.machines import devices
from bnn_ppl.runtime.machines.devices import over_chains

ONE_DEVICE = Mesh(
    np.array(jax.devices()[:1]).reshape(1, 1), ("chain", "data"), axis_types=(AxisType.Auto,) * 2
)


@pytest.fixture(params=["in turns", "side by side"])
def way(request, monkeypatch):
    """Let chains of a device take turns, or run side by side as an accelerator's do."""
    monkeypatch.setattr(devices, "is_accelerator", lambda: request.param == "side by side")
    return request.param


@pytest.fixture
def seen():
    """Count what a traced function says when it runs: once for all chains side by side."""
    return Counter()


def told(seen, name):
    jax.debug.callback(lambda: seen.update([name]))


# --- the functions themselves


def walk(seen, key, step, at):
    """Walk 12 steps with branches: within a scan, a branch and a loop, with keys as operands."""

    def jump(step, key, at):
        told(seen, "jump")
        return at + jax.random.normal(key, at.shape)

    def shrink(step, key, at):
        told(seen, "shrink")
        return 0.9 * where_needed(step == 1, partial(turn, key), lambda at: at, at)

    def turn(key, at):
        told(seen, "turn")
        return at @ jax.random.orthogonal(key, 3)

    def advance(carry, index):
        step, at, key = carry
        own = jax.random.fold_in(key, index)
        at = one_or_other(step % 4 == 0, jump, shrink, step, own, at)
        key = where_needed(step == 3, lambda key: jax.random.fold_in(key, 7), lambda key: key, key)

        def rarely(carry):
            count, at = carry
            return count + 1, where_needed(count == 1, jnp.sin, lambda at: at, at)

        at = jax.lax.while_loop(lambda c: c[0] < step % 3, rarely, (jnp.zeros((), int), at))[1]
        return (step + 1, at, key), at

    return jax.lax.scan(advance, (step, at, key), jnp.arange(12))[1]


@quick_first("starts", [(0, 0), (0, 1)])
def test_a_branch_runs_when_a_chain_needs_it_and_gives_what_turns_give(way, seen, starts):
    mapped = jax.jit(over_chains(partial(walk, seen), ONE_DEVICE, 3))
    keys, at = jax.random.split(jax.random.key(0), 2), jnp.ones((2, 3))
    found = mapped(keys, jnp.array(starts), at)
    jax.effects_barrier()
    expected = [walk(Counter(), *each) for each in zip(keys, jnp.array(starts), at, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    together = way == "side by side"
    apart = starts[0] != starts[1]
    assert seen["jump"] == (3 if together and not apart else 6)  # each chain in 3 of 12 steps
    assert seen["shrink"] == (18 if not together else 12 if apart else 9)
    assert seen["turn"] == (1 if together and not apart else 2)


def test_a_chain_on_its_own_has_an_ordinary_branch():
    def function(flag, at):
        return one_or_other(flag, jnp.sin, jnp.cos, at)

    def ordinary(flag, at):
        return jax.lax.cond(flag, jnp.sin, jnp.cos, at)

    args = jnp.bool_(True), jnp.ones(3)
    assert str(jax.make_jaxpr(function)(*args)) == str(jax.make_jaxpr(ordinary)(*args))


# --- methods


def watched(seen, num_rows=24):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 3)).astype("f")
    y = (x @ [0.5, -1.0, 0.2] + 0.1 * rng.normal(size=num_rows)).astype("f")

    def model(x, y=None):
        told(seen, len(x))
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.1), obs=y)

    return bnn.condition(model, (x[:-4], y[:-4])), (x[-4:], y[-4:])


def warmed_up(posterior, method, num_warmup):
    options = {"mesh": ONE_DEVICE, "progress": False, "verdict": False}
    if method.tuning.start is not None:
        options["init"] = posterior.init(jax.random.key(1))
    lengths = {"num_chains": 2, "num_warmup": num_warmup, "num_draws": 1, "thin": 0}
    return bnn.run(jax.random.key(0), posterior, method, **lengths, **options)


def test_rows_held_out_are_evaluated_at_checks_alone(way, seen):
    posterior, held_out = watched(seen)
    method = bnn.descent(posterior, learning_rate=0.01, held_out=held_out, check_every=50)
    seen.clear()
    draws = warmed_up(posterior, method, 300)
    jax.effects_barrier()
    assert seen[4] == (6 if way == "side by side" else 2 * 6)
    assert draws.attrs["gradient_evaluations"] == 2 * 300


@pytest.mark.thorough
def test_the_search_for_a_step_size_runs_at_restarts_alone(way, seen):
    posterior, _ = watched(seen)
    method = bnn.hmc(posterior, trajectory_length=1e-6)  # a step at a time
    seen.clear()
    warmed_up(posterior, method, 0)
    jax.effects_barrier()
    before = seen[20]
    warmed_up(posterior, method, 50)
    jax.effects_barrier()
    many = 1 if way == "side by side" else 2
    # Steps evaluate twice; there are two searches of at most 25 evaluations, and one at the start.
    assert many * 2 * 50 <= seen[20] - before <= many * (2 * 50 + 3 * 25)


EXPENSIVE = {"dot_general", "random_bits", "random_gamma", "eigh", "cholesky", "while"}


def branches(traced):
    """Count the branches of a program with something expensive in one of them."""
    inside = (
        {inner.primitive.name for program in programs_in(each) for inner in equations_in(program)}
        for each in equations_in(traced.jaxpr.jaxpr)
        if each.primitive.name == "cond"
    )
    return sum(bool(names & EXPENSIVE) for names in inside)


def check_branches_stay(posterior, method):
    """Compare what two chains a device are traced to with what one is."""
    alone = phases(posterior, method, mesh_for("tpu"), num_chains=2)
    beside = phases(posterior, method, mesh_for("tpu"), num_chains=4)
    for one, two in zip(alone, beside, strict=True):
        assert branches(two) >= branches(one)


def hierarchical():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 4)).astype("f")
    net = partial(bnn.nets.MLP, 4, (8,), 3)
    model = bnn.models.classifier(net, bnn.priors.hierarchical())
    return bnn.condition(model, (x, rng.integers(0, 3, 32)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_quick(("hmc", "sghmc", "swag", "noisy_kfac"), ("sghmc",)))
def test_branches_of_some_methods_stay_branches(name):
    posterior = mlp()
    check_branches_stay(posterior, METHODS[name].build(posterior))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(METHODS))
def test_branches_of_every_method_stay_branches(name):
    posterior = mlp()
    check_branches_stay(posterior, METHODS[name].build(posterior))


@pytest.mark.thorough
def test_gibbs_draws_stay_in_a_branch():
    posterior = hierarchical()
    check_branches_stay(posterior, bnn.sghmc(posterior, 1e-3, gibbs_every=5))
