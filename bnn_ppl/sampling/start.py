"""The start of a run: arguments checked, chains placed on devices, first states."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.devices import (
    by_chain,
    by_row,
    chain_mesh,
    chain_sharding,
    everywhere,
    matmul_precision,
    over_chains,
    to_host,
)
from bnn_ppl.sampling.minibatches import Minibatches
from bnn_ppl.storage.inference_data import draws_of

if TYPE_CHECKING:
    import arviz

Tree = Any
Keep = Callable[[dict[str, jax.Array]], Tree]


class Phase(NamedTuple):
    """Warm-up or draws: what each iteration does.

    Equal phases are compiled once, so what differs from run to run (keys, counts, data) is left
    to `Prepared`.
    """

    name: str  # a field of Progress
    step: Callable[..., tuple[Tree, dict[str, jax.Array]]]  # Method.step or Method.warmup
    thin: int  # steps per iteration
    draw: Callable[..., Tree] | None  # Method.draw; None in warm-up
    constrain: Callable[..., Tree]  # Posterior.constrain
    keep: Keep
    minibatches: Minibatches
    finish: Callable[[Tree], Tree] | None  # Method.finish, after the last iteration


class Prepared(NamedTuple):
    """A run before its first step."""

    mesh: Mesh
    data: Tree
    chains: jax.Array  # their numbers, each on its device
    positions: Tree
    states: Tree
    phases: tuple[Phase, Phase]
    num: dict[str, int]  # iterations of each phase
    keys: dict[str, tuple[jax.Array, jax.Array]]  # of each phase: for steps, for minibatches


def prepare(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    num_chains: int,
    num_warmup: int,
    num_draws: int,
    thin: int,
    minibatches: Minibatches,
    init: "arviz.InferenceData | None" = None,
    keep: Keep | None = None,
    mesh: Mesh | None = None,
) -> Prepared:
    """Check the arguments, which are those of :func:`run`, and start the chains."""
    check_arguments(key=key, posterior=posterior, method=method)
    _check_counts(num_chains=num_chains, num_draws=num_draws, num_warmup=num_warmup, thin=thin)
    mesh = chain_mesh(num_chains, mesh)
    data = by_row(posterior.data, mesh)
    minibatches.check(posterior.num_rows, mesh.shape["data"])
    _check_method(method, posterior, num_warmup, minibatches)
    init_key, warmup_key, draws_key, batch_key = (
        everywhere(jax.random.fold_in(key, i), mesh) for i in range(4)
    )
    chains = by_chain(np.arange(num_chains), mesh)
    with jax.default_matmul_precision(matmul_precision()):
        positions = _first_positions(init_key, posterior, chains, mesh, init)
        start = _first_states(
            method.init, posterior.logdensity, minibatches.bootstrap, mesh, active_changes()
        )
        states, finite = start(chains, positions, (init_key, batch_key), data)
        _check_finite(posterior, positions, to_host(finite))
    return Prepared(
        mesh,
        data,
        chains,
        positions,
        states,
        _phases(method, posterior, int(thin), minibatches, keep),
        num={"warmup": int(num_warmup), "draws": int(num_draws)},
        keys={"warmup": (warmup_key, batch_key), "draws": (draws_key, batch_key)},
    )


def _phases(
    method: Method,
    posterior: Posterior,
    thin: int,
    minibatches: Minibatches,
    keep: Keep | None,
) -> tuple[Phase, Phase]:
    # A new partial is equal to no other: a user's keep may read values that have changed since the
    # last run, so it is traced anew.
    kept = dict if keep is None else partial(keep)
    draws = Phase(
        "draws",
        method.step,
        thin,
        method.draw,
        posterior.constrain,
        kept,
        minibatches,
        finish=None,
    )
    warmup = draws._replace(
        name="warmup",
        step=method.warmup or method.step,
        thin=1,
        draw=None,
        keep=dict,
        finish=method.finish,
    )
    return warmup, draws


# --- checks


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_count(name, count, least=1 if name in ("num_chains", "num_draws") else 0)


def _check_method(
    method: Method, posterior: Posterior, num_warmup: int, minibatches: Minibatches
) -> None:
    name = method.settings.get("method", "this method")
    if method.logdensity not in (None, posterior.logdensity):
        raise ValueError(
            f"got {name} built with another posterior, expected one built with the posterior given "
            f"to run: {name}(posterior, ...)"
        )
    if method.finish is not None and not num_warmup:
        raise ValueError(
            f"{name} fits a distribution during warm-up: set num_warmup > 0 (got 0); its draws "
            "need no steps (thin=0)"
        )
    if method.needs_warmup and not num_warmup:
        raise ValueError(
            f"{name} tunes its steps during warm-up, without which its draws are wrong: set "
            "num_warmup > 0 (got 0)"
        )
    if method.all_rows and minibatches.size is not None and minibatches.size < posterior.num_rows:
        raise ValueError(
            f"got batch_size={minibatches.size} for {name}, whose steps compare the log-densities "
            "of all rows: leave batch_size out, or use sgld or sghmc; microbatch= saves memory"
        )


def _check_finite(posterior: Posterior, positions: Tree, finite: np.ndarray) -> None:
    """Refuse a start whose log-density is not finite, naming the first term that is not."""
    for chain in np.flatnonzero(~finite):
        posterior.check({site: leaf[chain] for site, leaf in to_host(positions).items()})
        raise ValueError(
            "got a log-density that is not finite at the start though each of its terms is: their "
            "sum overflows; rescale the data"
        )


# --- positions and states


def _first_positions(
    key: jax.Array,
    posterior: Posterior,
    chains: jax.Array,
    mesh: Mesh,
    init: "arviz.InferenceData | None",
) -> Tree:
    if init is not None:
        return by_chain(_positions_from(init, posterior, len(chains)), mesh)
    start = _initial_positions(posterior.init, mesh, active_changes())
    return start(chains, key, everywhere(posterior.data, mesh))


def _positions_from(draws: "arviz.InferenceData", posterior: Posterior, num_chains: int) -> Tree:
    """Take the last draw of each chain, or draws spread over another number of chains."""
    sites = draws_of(draws, list(posterior.prior_std))
    have, length = next(iter(sites.values())).shape[:2]
    if have == num_chains:
        chosen = {site: values[:, -1].values for site, values in sites.items()}
    else:
        spread = np.linspace(0, have * length - 1, num_chains).round().astype(int)
        chain, draw = np.divmod(spread, length)
        chosen = {
            site: np.stack([values[c, d].values for c, d in zip(chain, draw, strict=True)])
            for site, values in sites.items()
        }
    return _unconstrain(posterior.unconstrain)(jax.tree.map(jnp.asarray, chosen))


@lru_cache(maxsize=2)
def _unconstrain(unconstrain: Callable) -> Callable:
    return jax.jit(jax.vmap(unconstrain))


@lru_cache(maxsize=2)
def _initial_positions(
    init: Callable,
    mesh: Mesh,
    changes: tuple,  # part of the cache's key alone: tracing `init` reads the active changes
) -> Callable:
    """Compile a posterior's `init` for all chains."""

    def position(chain: jax.Array, key: jax.Array, data: Tree) -> Tree:
        return init(jax.random.fold_in(key, chain), data)

    return jax.jit(over_chains(position, mesh, num_mapped=1), out_shardings=chain_sharding(mesh))


@lru_cache(maxsize=2)
def _first_states(
    init: Callable,
    logdensity: Callable,
    bootstrap: bool,
    mesh: Mesh,
    changes: tuple,  # part of the cache's key alone: tracing reads the active changes
) -> Callable:
    """Compile a method's `init` for all chains, and whether the log-density is finite there.

    Both see all rows, or all rows of the chain's bootstrap sample.
    """
    all_rows = Minibatches(None, bootstrap)

    def state(
        chain: jax.Array, position: Tree, keys: tuple[jax.Array, jax.Array], data: Tree
    ) -> tuple[Tree, jax.Array]:
        own_key = jax.random.fold_in(jax.random.fold_in(keys[0], 1), chain)
        batch_key = jax.random.fold_in(keys[1], chain)
        _, batch = all_rows.next(all_rows.order(batch_key, 0, data), batch_key, 0, data)
        return init(own_key, position, batch), jnp.isfinite(logdensity(position, batch))

    return jax.jit(over_chains(state, mesh, num_mapped=2), out_shardings=chain_sharding(mesh))
