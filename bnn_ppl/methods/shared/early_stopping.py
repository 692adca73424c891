"""Stop a chain when rows held out are predicted no better."""

import zlib
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.methods.method import Method
from bnn_ppl.model.checks import checked_rows
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count

Tree = Any


class StoppedState(NamedTuple):
    """A method's state and the best point so far."""

    inner: Tree
    info: dict[str, jax.Array]  # of the last step
    best: Tree
    log_likelihood: jax.Array  # of the best; -inf before the first look
    num_misses: jax.Array  # looks since
    num_steps: jax.Array


def stopped_early(
    method: Method,
    posterior: Posterior,
    held_out: tuple[Any, Any],
    *,
    check_every: int = 100,
    patience: int = 10,
) -> Method:
    """Draw the point with the highest log-likelihood of rows held out, and stop once it falls.

    A chain that has stopped takes no more gradients, where chains run one after the other (on a
    CPU); side by side, on an accelerator, all do the work of all steps, looks included, and what a
    stopped one finds is dropped. Its statistics stay those of its last step.

    Parameters
    ----------
    method
        A method whose draw is a point: :func:`bnn_ppl.descent`.
    posterior
        What it was built with.
    held_out
        Rows (x, y) that are not among the posterior's; constants of the compiled program.
    check_every
        Steps between two looks at them.
    patience
        Looks without a better point before a chain stops.

    Returns
    -------
    Method

    Raises
    ------
    ValueError
        If a count is below 1, the method has a warm-up or a fitted distribution of its own, or the
        rows are not finite or not like the posterior's.
    """
    check_count("check_every", check_every)
    check_count("patience", patience)
    if method.warmup or method.finish or method.fitted:
        name = method.settings.get("method", "one")
        raise ValueError(f"got {name}, whose warm-up differs, expected descent or one like it")
    rows = checked_rows(posterior, held_out)
    digest = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(rows)))

    def init(key: jax.Array, position: Tree, batch: Any) -> StoppedState:
        inner, zero = method.init(key, position, batch), jnp.zeros((), int)
        info = jax.eval_shape(method.step, key, inner, batch)[1]
        info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        return StoppedState(inner, info, position, jnp.asarray(-jnp.inf), zero, zero)

    def step(key: jax.Array, state: StoppedState, batch: Any) -> tuple[StoppedState, dict]:
        going = state.num_misses < patience
        state = jax.lax.cond(going, partial(moved, key), rested, state, batch)
        return state, state.info

    def moved(key: jax.Array, state: StoppedState, batch: Any) -> StoppedState:
        inner, info = method.step(key, state.inner, batch)
        count = state.num_steps + 1
        state = state._replace(inner=inner, info=info, num_steps=count)
        return jax.lax.cond(count % check_every == 0, looked, lambda state: state, state)

    def rested(state: StoppedState, batch: Any) -> StoppedState:
        del batch
        none = {name: jnp.zeros_like(n) for name, n in state.info.items() if name == "n_steps"}
        return state._replace(info=state.info | none)

    def looked(state: StoppedState) -> StoppedState:
        point = method.draw(jax.random.key(0), state.inner)
        log_likelihood = jnp.sum(posterior.log_likelihood(point, rows))
        better = log_likelihood > state.log_likelihood
        best = jax.tree.map(partial(jnp.where, better), point, state.best)
        return state._replace(
            best=best,
            log_likelihood=jnp.where(better, log_likelihood, state.log_likelihood),
            num_misses=jnp.where(better, 0, state.num_misses + 1),
        )

    def draw(key: jax.Array, state: StoppedState) -> Tree:
        last = method.draw(key, state.inner)
        any_look = state.log_likelihood > -jnp.inf
        return jax.tree.map(partial(jnp.where, any_look), state.best, last)

    return Method(
        init,
        step,
        draw,
        settings={
            **method.settings,
            "rows_held_out": f"{len(rows[1])}, checksum {digest}",
            "check_every": check_every,
            "patience": patience,
        },
        logdensity=method.logdensity,
        draws_from="best_point",
    )
