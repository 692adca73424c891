"""A run that is stopped before its first draw: draws of the fit that it has reached."""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.devices import (
    chain_sharding,
    everywhere,
    over_chains,
    products_in,
    to_host,
)
from bnn_ppl.runtime.processes import on_all
from bnn_ppl.runtime.programs import compiled_once
from bnn_ppl.sampling.loop import advance
from bnn_ppl.sampling.start import Prepared
from bnn_ppl.storage.before import Progress
from bnn_ppl.storage.recorder import Folder, Memory

Tree = Any


class Stopped(NamedTuple):
    """Where a run was stopped."""

    phase: str  # "points", "start", "warmup" or "draws"
    what: str  # in words
    done: int  # steps, or draws
    most: int
    pressed: bool = False  # by Ctrl-C, if that is no longer known elsewhere

    def facts(self, by: str) -> dict[str, Any]:
        """Give the attributes of the draws that say so."""
        unit = "draws" if self.phase == "draws" else "steps"
        text = f"stopped in {self.what} by {by}, after {self.done:,} of at most {self.most:,} "
        return {"stopped": text + unit, "stopped_in": self.phase}


def is_chain(method: Method) -> bool:
    """Whether draws are the states of a chain, not of what was trained in warm-up."""
    return method.draws_from == "chain"


def stopped_in_warmup(
    method: Method, prepared: Prepared, done: Progress, from_fit: bool
) -> Stopped | None:
    """Say where a run without a draw has ended; None if it has reached nothing to draw from.

    A chain on its way from the prior tells nothing of the posterior; one that came from a fit, or
    whose warm-up has ended, does.
    """
    num = prepared.num["warmup"]
    if is_chain(method):
        usable, what = from_fit or 0 < num == done.warmup, "warm-up"
    else:
        usable, what = from_fit or done.warmup > 0, "training"
    return Stopped("warmup", what, done.warmup, num) if usable else None


def draw_reached(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    prepared: Prepared,
    done: Progress,
    recorder: Memory | Folder,
    facts: dict[str, Any],
) -> tuple[Tree, Progress] | None:
    """Draw from the states of `prepared` as they are; None if they are not finite.

    A distribution is drawn from as at the end of its training; a chain gives one draw, where it is.
    Gives the states drawn from, or None for those of points, and how many draws there are.
    """
    states = prepared.states
    if method.finish is not None and 0 < done.warmup < prepared.num["warmup"]:
        states = _over_chains(method.finish, prepared.mesh)(states)
    positions = one_draw(key, posterior, method, prepared, states)
    if is_chain(method) or not done.warmup:
        return draw_points(prepared, positions, done, recorder, facts)
    if not _all_finite(positions):
        return None
    num = {"warmup": done.warmup, "draws": prepared.num["draws"]}
    facts = facts | {"stopped": f"{facts['stopped']}; the draws are of the fit so far"}
    return _draw(prepared._replace(states=states, num=num), done, recorder, facts)


def draw_points(
    prepared: Prepared,
    positions: Tree,
    done: Progress,
    recorder: Memory | Folder,
    facts: dict[str, Any],
) -> tuple[Tree, Progress] | None:
    """Take the point of each chain for its only draw; None if one is not finite."""
    if not _all_finite(positions):
        return None
    warmup, draws = prepared.phases
    draws = draws._replace(thin=0, step=_no_step, draw=_itself, make=None)
    prepared = prepared._replace(
        states=positions, phases=(warmup, draws), num={"warmup": done.warmup, "draws": 1}
    )
    drawn = "each draw is the one point that its chain had reached"
    facts = facts | {"stopped": f"{facts['stopped']}; {drawn}", "thin": 0}
    return None, _draw(prepared, done, recorder, facts)[1]


def _draw(
    prepared: Prepared, done: Progress, recorder: Memory | Folder, facts: dict[str, Any]
) -> tuple[Tree, Progress]:
    recorder.provisional(facts)
    return advance(prepared, done, recorder, lambda *_: None, lambda: False)


def one_draw(
    key: jax.Array, posterior: Posterior, method: Method, prepared: Prepared, states: Tree
) -> Tree:
    """Draw one position of each chain."""
    draws = _compiled_draws(method.draw, prepared.mesh)
    with products_in(posterior.precision):
        return draws(prepared.chains, states, everywhere(key, prepared.mesh))


def _all_finite(positions: Tree) -> bool:
    return on_all(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(to_host(positions))))


@lru_cache(maxsize=2)
def _compiled_draws(draw: Any, mesh: Mesh) -> Any:
    def drawn(chain: jax.Array, state: Tree, key: jax.Array) -> Tree:
        return draw(jax.random.fold_in(jax.random.fold_in(key, 5), chain), state)

    mapped = over_chains(drawn, mesh, num_mapped=2)
    return compiled_once(mapped, out_shardings=chain_sharding(mesh))


def _over_chains(function: Any, mesh: Mesh) -> Any:
    return compiled_once(over_chains(function, mesh, 1), out_shardings=chain_sharding(mesh))


def _no_step(key: jax.Array, position: Tree, batch: Any) -> tuple[Tree, dict]:
    del key, batch
    return position, {}


def _itself(key: jax.Array, position: Tree) -> Tree:
    del key
    return position
