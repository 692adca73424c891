"""Where the chains start: positions, and a method's first states at them."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import recipe_of
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import (
    by_chain,
    chain_sharding,
    everywhere,
    over_chains,
    products_in,
    to_host,
)
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.setup.numeric_arguments import Make, Numbers
from bnn_ppl.sampling.setup.run_setup import RunSetup
from bnn_ppl.storage.inference_data import sites_of

if TYPE_CHECKING:
    import arviz

Tree = Any


def first_positions(
    key: jax.Array,
    posterior: Posterior,
    chains: jax.Array,
    data: Tree,
    mesh: Mesh,
    numbers: Numbers,
) -> Tree:
    """Give the chains' positions by the posterior's `init`, with these numbers if there are some.

    `data` are the rows as the devices share them: a network's initialisers take their shape alone,
    and draws from the prior are weighed by a sum over all of them.
    """
    recipe = recipe_of(posterior) if numbers else None
    init, make = (posterior.init, None) if recipe is None else (None, recipe.make)
    start = _initial_positions(init, make, mesh, active_changes())
    return start(chains, key, data, numbers)


def given_positions(
    init: "arviz.InferenceData | Mapping[str, Any]",
    posterior: Posterior,
    num_chains: int,
    mesh: Mesh,
) -> Tree:
    """Give the chains' positions from another run's draws, or one for all."""
    return by_chain(_positions(init, posterior, num_chains), mesh)


def with_states(
    setup: RunSetup, key: jax.Array, posterior: Posterior, method: Method, positions: Tree
) -> RunSetup:
    """Give a run the method's first states at `positions`; refuse a density that is not finite."""
    mesh, make = setup.mesh, setup.phases[1].make
    keys = everywhere(jax.random.fold_in(key, 0), mesh), setup.keys["warmup"][1]
    batches = batches_at_start(posterior, setup.phases[1].minibatches)
    first = functions_at_start(posterior, method) if make is None else None
    start = _compiled_states(first, make, batches, mesh, active_changes())
    counts = np.asarray(setup.num["warmup"]), setup.numbers
    with products_in(posterior.density.precision):
        states, finite = start(setup.chains, positions, keys, setup.data, *counts)
        _check_finite(posterior, positions, to_host(finite))
    return setup._replace(positions=positions, states=states)


def batches_at_start(posterior: Posterior, minibatches: Minibatches) -> Minibatches:
    """Give the rows that the first states see: all, but a batch where rows share their statistics.

    These cannot be worked on in chunks, and all together might not fit in memory.
    """
    return minibatches if posterior.rows.batch_statistics else minibatches._replace(size=None)


def functions_at_start(
    posterior: Posterior, method: Method
) -> tuple[Callable, Callable | None, Callable]:
    """Give the functions that make the first states: `init`, `begin`, `logdensity`."""
    return method.init, method.tuning.begin, posterior.logdensity


def _check_finite(posterior: Posterior, positions: Tree, finite: np.ndarray) -> None:
    """Refuse a start whose log-density is not finite, naming the first term that is not."""
    for chain in np.flatnonzero(~finite):
        posterior.check({site: leaf[chain] for site, leaf in to_host(positions).items()})
        raise ValueError(
            "got a log-density that is not finite at the start though each of its terms is: their "
            "sum overflows; rescale the data"
        )


def check_init(init: Any, posterior: Posterior) -> None:
    """Refuse draws of another model, before they are read."""
    # Points are not among the sites of draws.
    if hasattr(init, "groups") and not posterior.sites.points:
        sites_of(posterior, init)


def _positions(init: Any, posterior: Posterior, num_chains: int) -> Tree:
    if isinstance(init, Mapping) and not hasattr(init, "groups"):  # InferenceData is a Mapping too
        return _repeated(init, posterior, num_chains)
    check_arguments(init=init)
    return positions_from(init, posterior, num_chains)


def _repeated(position: Mapping[str, Any], posterior: Posterior, num_chains: int) -> Tree:
    """Give all chains one position; refuse one of another model."""
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    for site in dict.fromkeys([*position, *shapes]):
        got, expected = (
            f"of shape {np.shape(tree[site])}" if site in tree else "left out"
            for tree in (position, shapes)
        )
        if got != expected:
            raise ValueError(
                f"got init with {site} {got}, expected {expected}: a position has the sites and "
                "shapes of posterior.init(key), unconstrained; or pass draws of another run"
            )
    return {
        site: np.broadcast_to(np.asarray(position[site], leaf.dtype), (num_chains, *leaf.shape))
        for site, leaf in shapes.items()
    }


def positions_from(draws: "arviz.InferenceData", posterior: Posterior, num_chains: int) -> Tree:
    """Take the last draw of each chain, or draws spread over another number of chains."""
    sites = sites_of(posterior, draws)
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


@lru_cache(maxsize=4)
def _initial_positions(
    init: Callable | None,
    make: Callable[[Numbers], Posterior] | None,
    mesh: Mesh,
    changes: tuple,  # part of the cache's key alone: tracing `init` reads the active changes
) -> Callable:
    """Compile a posterior's `init` for all chains."""

    def position(chain: jax.Array, key: jax.Array, data: Tree, numbers: Numbers) -> Tree:
        own = init if make is None else make(numbers).init
        assert own is not None
        return own(jax.random.fold_in(key, chain), data)

    mapped = over_chains(position, mesh, num_mapped=1, on_any_mesh=True)
    return compiled_once(mapped, runs_once=True, out_shardings=chain_sharding(mesh))


@lru_cache(maxsize=4)
def _compiled_states(
    first: tuple[Callable, Callable | None, Callable] | None,
    make: Make | None,
    batches: Minibatches,
    mesh: Mesh,
    changes: tuple,  # part of the cache's key alone: tracing reads the active changes
) -> Callable:
    """Compile :func:`states_over_chains`."""
    mapped = states_over_chains(first, make, batches, mesh)
    return compiled_once(mapped, runs_once=True, out_shardings=chain_sharding(mesh))


def states_over_chains(
    first: tuple[Callable, Callable | None, Callable] | None,
    make: Make | None,
    batches: Minibatches,
    mesh: Mesh,
) -> Callable:
    """Map a method's `init` over chains, and whether the log-density is finite there.

    Both see the first of the batches (:func:`batches_at_start`). `first` are the functions of
    :func:`functions_at_start`; the arguments are chains, positions, keys, data, the number of
    warm-up iterations and the numbers that `make` takes.
    """

    def on_chain(
        chain: jax.Array,
        position: Tree,
        keys: tuple[jax.Array, jax.Array],
        data: Tree,
        num_warmup: jax.Array,
        numbers: Numbers,
    ) -> tuple[Tree, jax.Array]:
        functions = first if make is None else functions_at_start(*make(numbers))
        assert functions is not None
        init, begin, logdensity = functions
        own_key = jax.random.fold_in(jax.random.fold_in(keys[0], 1), chain)
        batch_key = jax.random.fold_in(keys[1], chain)
        _, batch = batches.next(batches.order(batch_key, 0, data), batch_key, 0, data)
        state = init(own_key, position, batch)
        state = state if begin is None else begin(state, num_warmup)
        return state, jnp.isfinite(logdensity(position, batch))

    return over_chains(on_chain, mesh, num_mapped=2)
