"""Early stopping on held-out rows."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.training.held_out_rows import described
from bnn_ppl.model.normalisation.batch_statistics import judged_values
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_rows
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.compilation.branches import where_needed

Tree = Any


class StoppedState(NamedTuple):
    """The state of the wrapped method and the best point so far."""

    inner: Tree
    info: dict[str, jax.Array]  # of the last step taken
    best: Tree
    log_likelihood: jax.Array  # of the best point; -inf before the first check
    num_misses: jax.Array  # checks since the best point
    num_steps: jax.Array
    has_moved: jax.Array  # whether a check has found another point than the first


def stopped_early(
    method: Method,
    posterior: Posterior,
    held_out: tuple[Any, Any],
    *,
    check_every: int = 100,
    patience: int = 10,
) -> Method:
    """Stop a chain when held-out rows are predicted no better, and draw its best point.

    A stopped chain computes no more gradients, unless an accelerator runs it side by side with
    others (under vmap): these compute them as long as one of them goes on. The statistics of a
    stopped chain stay those of its last step.

    The draw of the method is a point. `held_out`, `check_every` and `patience` are as of
    :func:`bnn_ppl.descent`; the held-out rows are constants of the compiled program.
    """
    check_count("check_every", check_every)
    check_count("patience", patience)
    if method.warmup or method.tuning.finish or method.fitted:
        name = method.settings.get("method", "a method")
        raise ValueError(
            f"got {name}, which adapts in warm-up or fits a distribution, expected a method that "
            "only moves a point: use descent"
        )
    rows = checked_rows(posterior, held_out)

    def init(key: jax.Array, position: Tree, batch: Any) -> StoppedState:
        inner, zero = method.init(key, position, batch), jnp.zeros((), int)
        info = jax.eval_shape(method.step, key, inner, batch)[1]
        info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        return StoppedState(inner, info, position, jnp.asarray(-jnp.inf), zero, zero, zero > 0)

    def step(key: jax.Array, state: StoppedState, batch: Any) -> tuple[StoppedState, dict]:
        running = state.num_misses < patience
        state = where_needed(running, partial(stepped, key), stopped, state, batch)
        done = state.info.get("done", False) | (state.num_misses >= patience)
        return state, state.info | {"done": done}

    def stepped(key: jax.Array, state: StoppedState, batch: Any) -> StoppedState:
        inner, info = method.step(key, state.inner, batch)
        count = state.num_steps + 1
        state = state._replace(inner=inner, info=info, num_steps=count)
        return where_needed(count % check_every == 0, checked, lambda state: state, state)

    def stopped(state: StoppedState, batch: Any) -> StoppedState:
        del batch
        none = {name: jnp.zeros_like(n) for name, n in state.info.items() if name == "n_steps"}
        return state._replace(info=state.info | none)

    def checked(state: StoppedState) -> StoppedState:
        point = method.draw(jax.random.key(0), state.inner)
        log_likelihood = jnp.sum(_log_likelihood(posterior, point, rows))
        better = log_likelihood > state.log_likelihood
        best = jax.tree.map(partial(jnp.where, better), point, state.best)
        # Until trials of learning rates have ended, the method stays at its start: no miss.
        changes = jax.tree.map(lambda one, other: jnp.any(one != other), point, state.best)
        moved = jnp.stack(jax.tree.leaves(changes)).any()
        moved |= state.has_moved
        return state._replace(
            best=best,
            log_likelihood=jnp.where(better, log_likelihood, state.log_likelihood),
            num_misses=jnp.where(better, 0, state.num_misses + moved),
            has_moved=moved,
        )

    def draw(key: jax.Array, state: StoppedState) -> Tree:
        last = method.draw(key, state.inner)
        any_check = state.log_likelihood > -jnp.inf
        return jax.tree.map(partial(jnp.where, any_check), state.best, last)

    settings = {**method.settings, "check_every": check_every, "patience": patience}
    settings |= {"rows_held_out": described(rows)}
    return Method(
        init,
        step,
        draw,
        settings=settings,
        logdensity=method.logdensity,
        draws_from="best_point",
        begin=method.tuning.of_inner().begin,
        batching=method.batching._replace(order="epochs"),
    )


def _log_likelihood(posterior: Posterior, point: Tree, rows: tuple[Any, Any]) -> jax.Array:
    if posterior.rows.batch_statistics is None:
        return posterior.log_likelihood(point, rows)
    values = judged_values(posterior, posterior.constrain(point, rows))
    return posterior.predictive(values, rows[0]).log_prob(rows[1])
