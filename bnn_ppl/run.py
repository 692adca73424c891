"""Run a method: warm-up, then draws, over chains and devices, with a progress bar."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from tqdm.auto import tqdm

from bnn_ppl import store
from bnn_ppl.devices import by_chain, chain_mesh, everywhere, over_chains
from bnn_ppl.method import Method
from bnn_ppl.posterior import Posterior

if TYPE_CHECKING:
    import arviz

Tree = Any
Keep = Callable[[dict[str, jax.Array]], Tree]

_SECONDS_A_CHUNK = 0.5  # between two looks at the bar and the keyboard
_BYTES_A_CHUNK = 64 * 2**20  # of draws that wait on the devices


def run(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    *,
    num_chains: int = 1,
    num_warmup: int = 0,
    num_draws: int = 1,
    thin: int = 1,
    init: "arviz.InferenceData | None" = None,
    keep: Keep | None = None,
    folder: str | Path | None = None,
    progress: bool = True,
) -> "arviz.InferenceData":
    """Run a method: `num_warmup` warm-up steps, then `num_draws` times (`thin` steps, one draw).

    Chains run side by side: over the devices, and on each by ``vmap`` on an accelerator, one after
    the other on a CPU (where ``jax.config.update("jax_num_cpu_devices", n)``, before JAX starts,
    gives one device a core).

    Parameters
    ----------
    key
        From ``jax.random.key``. Equal keys give equal draws.
    posterior
        From :func:`bnn_ppl.condition`.
    method
        From :func:`bnn_ppl.hmc` or another method, built with the same posterior.
    num_chains
        Independent chains.
    num_warmup
        Steps of each chain that adapt and are thrown away.
    num_draws
        Draws kept of each chain.
    thin
        Steps a draw; 0 for a fitted distribution, from which one draws without stepping.
    init
        Draws of another run to start from: its last ones if it has as many chains, otherwise draws
        spread evenly over it. By default the networks' own initialisers.
    keep
        What to record of each draw: a function of the constrained values (a dict by site name) that
        returns a dict of arrays. By default all sites.
    folder
        Where to save the draws as Zarr; :func:`bnn_ppl.diagnostics.load` reads them back.
    progress
        Whether to show a bar with the time left.

    Returns
    -------
    arviz.InferenceData
        Groups ``posterior`` (chain, draw, ...), ``sample_stats`` under ArviZ's names and
        ``observed_data``; attributes say how it was run. After Ctrl-C: the draws so far.

    Raises
    ------
    ValueError
        If a count is out of range, `init` lacks a site or the log-density is not finite at the
        start.
    FileExistsError
        If `folder` already holds something.
    """
    _check_counts(num_chains=num_chains, num_draws=num_draws, num_warmup=num_warmup, thin=thin)
    if folder is not None:
        store.check_free(folder)
    started = time.time()
    mesh = chain_mesh(num_chains)
    init_key, warmup_key, draw_key = (jax.random.fold_in(key, i) for i in range(3))
    states = _initial_states(init_key, posterior, method, num_chains, mesh, init)

    warmup = method._replace(step=method.warmup or method.step)
    nothing = partial(_draw_once, posterior, warmup, 1, lambda values: {})
    everything = partial(_draw_once, posterior, method, thin, keep or (lambda values: values))
    bar = _bar(num_warmup + num_draws, progress)
    with bar:
        bar.set_description("warm-up")
        states, (_, warmup_stats) = _repeat(
            nothing, num_warmup, warmup_key, states, posterior.data, mesh, bar
        )
        bar.set_description("draws")
        _, (values, stats) = _repeat(
            everything, num_draws, draw_key, states, posterior.data, mesh, bar
        )

    facts = {
        **_facts(key, posterior, method, mesh),
        "num_warmup": num_warmup,
        "thin": thin,
        "sampling_time": time.time() - started,
        "gradient_evaluations": _count(warmup_stats, "n_steps") + _count(stats, "n_steps"),
    }
    draws = store.inference_data(values, stats, np.asarray(posterior.data[1]), facts)
    if folder is not None:
        store.save(folder, draws)
    return draws


# --- starting


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        least = 1 if name in ("num_chains", "num_draws") else 0
        if not isinstance(count, int | np.integer) or count < least:
            raise ValueError(f"got {name}={count!r}, expected a whole number from {least} up")


def _initial_states(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    num_chains: int,
    mesh: Mesh,
    init: "arviz.InferenceData | None",
) -> Tree:
    if init is None:
        start = over_chains(posterior.init, mesh, num_mapped=1)
        keys = by_chain(jax.random.split(key, num_chains), mesh)
        positions = jax.jit(start)(keys, everywhere(posterior.data, mesh))
    else:
        positions = by_chain(_positions_of(init, posterior, num_chains), mesh)
    for chain in range(num_chains):
        posterior.check({site: leaf[chain] for site, leaf in positions.items()})
    keys = by_chain(jax.random.split(jax.random.fold_in(key, 1), num_chains), mesh)
    begin = over_chains(method.init, mesh, num_mapped=2)
    return jax.jit(begin)(keys, positions, everywhere(posterior.data, mesh))


def _positions_of(draws: "arviz.InferenceData", posterior: Posterior, num_chains: int) -> Tree:
    sites = store.draws_of(draws, list(posterior.prior_std))
    shape = next(iter(sites.values())).shape[:2]
    if shape[0] == num_chains:
        chosen = {site: values[:, -1] for site, values in sites.items()}
    else:
        spread = np.linspace(0, shape[0] * shape[1] - 1, num_chains).round().astype(int)
        chosen = {
            site: values.reshape(-1, *values.shape[2:])[spread] for site, values in sites.items()
        }
    return jax.jit(jax.vmap(posterior.unconstrain))(jax.tree.map(jnp.asarray, chosen))


# --- stepping


def _draw_once(
    posterior: Posterior,
    method: Method,
    thin: int,
    keep: Keep,
    key: jax.Array,
    state: Tree,
    batch: Tree,
) -> tuple[Tree, tuple[Tree, dict[str, jax.Array]]]:
    """Take `thin` steps and one draw: the new state, and what to record."""

    def step(state: Tree, index: jax.Array) -> tuple[Tree, dict[str, jax.Array]]:
        return method.step(jax.random.fold_in(key, index), state, batch)

    state, infos = jax.lax.scan(step, state, jnp.arange(thin))
    position = method.draw(jax.random.fold_in(key, thin), state)
    stats = {name: _over_steps(values) for name, values in infos.items()} if thin else {}
    return state, (keep(posterior.constrain(position, batch)), stats)


def _over_steps(values: jax.Array) -> jax.Array:
    """One number for the steps of a draw: was there any, how many in all, or the last value."""
    if values.dtype == bool:
        return values.any(0)
    return values.sum(0) if jnp.issubdtype(values.dtype, jnp.integer) else values[-1]


def _repeat(
    draw_once: Callable,
    num: int,
    key: jax.Array,
    states: Tree,
    data: Tree,
    mesh: Mesh,
    bar: tqdm,
) -> tuple[Tree, Tree]:
    """Repeat `draw_once` for every chain; the records as NumPy arrays (chain, draw, ...).

    The inner loop is compiled, for a number of draws given at run time, so that the outer one can
    look at the clock: about two chunks a second, whatever a draw costs. Ctrl-C ends it with the
    draws so far.
    """
    if num == 0:
        return states, ({}, {})
    num_chains = len(jax.tree.leaves(states)[0])
    batch, chains = everywhere(data, mesh), by_chain(jnp.arange(num_chains), mesh)
    one_state = jax.tree.map(lambda leaf: leaf[0], states)
    _, one_record = jax.eval_shape(draw_once, key, one_state, batch)
    records = _empty(one_record, (num_chains, num), np)
    capacity = _capacity(one_record, num_chains, num)
    chunk = over_chains(partial(_chunk, draw_once, one_record, capacity), mesh, num_mapped=2)
    advance = jax.jit(chunk).lower(chains, states, key, 0, 1, batch).compile()
    done, count = 0, 1
    try:
        while done < num:
            before = time.perf_counter()
            states, buffers = advance(chains, states, key, done, count, batch)
            for record, buffer in zip(*map(jax.tree.leaves, (records, buffers)), strict=True):
                record[:, done : done + count] = np.asarray(buffer)[:, :count]
            done += count
            _show(bar, count, records[1], done)
            rate = count / (time.perf_counter() - before)
            count = max(1, min(capacity, num - done, int(rate * _SECONDS_A_CHUNK)))
    except KeyboardInterrupt:
        if not done or not records[0]:  # nothing yet, or only warm-up
            raise
        bar.write(f"stopped: {done} of {num} draws are kept", file=sys.stderr)
        records = jax.tree.map(lambda record: record[:, :done], records)
    return states, records


def _chunk(
    draw_once: Callable,
    one_record: Tree,
    capacity: int,
    chain: jax.Array,
    state: Tree,
    key: jax.Array,
    start: jax.Array,
    count: jax.Array,
    batch: Tree,
) -> tuple[Tree, Tree]:
    """One chain's draws number `start` to `start + count`: its state, and the records so far."""

    def body(i: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        state, buffers = carry
        draw_key = jax.random.fold_in(jax.random.fold_in(key, start + i), chain)
        state, record = draw_once(draw_key, state, batch)
        return state, jax.tree.map(lambda b, leaf: b.at[i].set(leaf), buffers, record)

    return jax.lax.fori_loop(0, count, body, (state, _empty(one_record, (capacity,), jnp)))


def _empty(one_record: Tree, shape: tuple[int, ...], numpy: Any) -> Tree:
    return jax.tree.map(lambda leaf: numpy.zeros(shape + leaf.shape, leaf.dtype), one_record)


def _capacity(one_record: Tree, num_chains: int, num: int) -> int:
    """Draws a chunk holds at most."""
    leaves = jax.tree.leaves(one_record)
    bytes_a_draw = num_chains * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return max(1, min(num, _BYTES_A_CHUNK // max(1, bytes_a_draw)))


# --- telling


def _bar(total: int, progress: bool) -> tqdm:
    seconds = 0.1 if sys.stderr.isatty() else 10
    return tqdm(total=total, disable=not progress, mininterval=seconds, dynamic_ncols=True)


def _show(bar: tqdm, count: int, stats: dict[str, np.ndarray], done: int) -> None:
    facts: dict[str, Any] = {}
    if "acceptance_rate" in stats:
        facts["acceptance"] = f"{stats['acceptance_rate'][:, :done].mean():.2f}"
    if "step_size" in stats:
        facts["step size"] = f"{stats['step_size'][:, done - 1].mean():.2g}"
    if "diverging" in stats:
        facts["divergences"] = int(stats["diverging"][:, :done].sum())
    bar.set_postfix(facts, refresh=False)
    bar.update(count)


def _count(stats: dict[str, np.ndarray], name: str) -> int:
    return int(stats[name].sum(dtype=np.int64)) if name in stats else 0


def _facts(key: jax.Array, posterior: Posterior, method: Method, mesh: Mesh) -> dict[str, Any]:
    packages = ("bnn_ppl", "jax", "numpyro", "blackjax", "flax")
    return {
        "inference_library": "bnn_ppl",
        "inference_library_version": version("bnn_ppl"),
        "method": method.settings.get("method", "own"),
        "settings": json.dumps(dict(method.settings)),
        "temperature": posterior.temperature,
        "tempered": posterior.tempered,
        "seed": np.asarray(jax.random.key_data(key)).tolist(),
        "versions": json.dumps({package: version(package) for package in packages}),
        "devices": json.dumps([str(device) for device in mesh.devices.flat]),
    }
