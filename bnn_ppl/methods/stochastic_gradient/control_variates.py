"""Control variates: minibatch gradients with less noise, relative to those at a centre."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.stochastic_gradient.row_batches import random_batch
from bnn_ppl.methods.training.training_lengths import usual_batch_size
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import recipe_of
from bnn_ppl.model.rows.streamed_rows import StreamedRows
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.compilation.branches import where_needed

Tree = Any

# These tune their step sizes to the noise of plain minibatches.
_OWN_NOISE = "sghmc", "sgnht", "smile"
_TAKERS = ("sgld", "kinetic_langevin", "csgld", *_OWN_NOISE)  # of the gradient of the log-density
MOST_WEIGHTS = 5000  # their Hessian, 100 MB per chain, is stored with order=2


class CentreState(NamedTuple):
    """State of a method, and the centre of its gradients."""

    inner: Tree
    centre: Tree
    slope: Tree  # gradient on all rows at the centre
    curvature: jax.Array | None  # Hessian on all rows there, of raveled weights; order=2
    num_steps: jax.Array  # taken so far


def control_variates(
    posterior: Posterior,
    method: Method,
    *,
    batch_size: int | None = None,
    refresh_every: int | None = None,
    order: int = 1,
) -> Method:
    r"""Reduce the noise of a method's minibatch gradients with those at a centre.

    .. math:: \tilde g(w) = \nabla\log\pi(c) + g_B(w) - g_B(c)

    with :math:`g_B` the estimate of the gradient of the log-density from a minibatch. It is
    unbiased, and its variance falls to 0 as w approaches the centre c, which is the chain's own
    position from at most an epoch ago (SVRG-LD; Dubey et al., 2016), or with a long `refresh_every`
    remains the mode from which the chains start (Baker et al., 2019).

    With ``order=2`` the second-order term of the Taylor expansion about c is also subtracted (the
    proxy of HMCECS; Quiroz et al., 2019; Dang et al., 2019):

    .. math::

        \tilde g(w) = \nabla\log\pi(c) + H(c)(w - c) + g_B(w) - g_B(c) - H_B(c)(w - c)

    with H the Hessian on all rows and :math:`H_B` its estimate from the minibatch. The standard
    deviation of the noise is then of the order of :math:`|w - c|^2`, and 0 for a linear regression
    with known noise.

    A step takes two gradients on a minibatch (four with ``order=2``), which is drawn within the
    step from all rows, with replacement. A refresh of the centre takes one gradient on all rows;
    with ``order=2`` two more for each weight.

    Parameters
    ----------
    posterior
        Posterior to sample.
    method
        Minibatch method built with it: sgld or kinetic_langevin; or sghmc, sgnht or smile with a
        given step size, since they tune it to the noise of plain minibatches.
    batch_size
        Rows per minibatch. None: the method's default, but at most a tenth of all rows.
    refresh_every
        Number of steps between refreshes of the centre. None: an epoch; with ``order=2`` as many
        epochs as there are weights, so that refreshes cost less than the steps.
    order
        Order of the expansion about the centre, 1 or 2; 2 for at most 5,000 weights.

    Returns
    -------
    Method
        The same method with these gradients. Run it without ``batch_size=``.

    Raises
    ------
    ValueError
        If a number is out of range, or the method or the model does not allow control variates.
    """
    check_arguments(posterior=posterior, method=method)
    recipe = recipe_of(method)
    name = method.settings.get("method", "a method")
    if recipe is None or method.all_rows or name not in _TAKERS:
        raise ValueError(
            f"got {name}, expected a sampler on minibatches as its builder gives it: one of "
            f"{', '.join(_TAKERS)}"
        )
    if name in _OWN_NOISE and method.settings["step_size"] is None:
        raise ValueError(f"got {name} without step_size, expected one: its search knows no centre")
    if isinstance(posterior.rows.full_batch, StreamedRows):
        raise ValueError(
            f"got a stream of {posterior.num_rows} rows, expected rows in memory: use {name} "
            "without control variates"
        )
    if posterior.rows.batch_statistics is not None:
        raise ValueError(
            "got batch normalisation in train mode, expected rows that do not interact"
        )
    if batch_size is None:
        usual = usual_batch_size(posterior.num_rows, posterior.num_weights)
        batch_size = min(usual or posterior.num_rows, max(1, posterior.num_rows // 10))
    check_count("batch_size", batch_size)
    if order not in (1, 2):
        raise ValueError(f"got order={order}, expected 1 or 2")
    size = posterior.num_weights
    if order == 2 and size > MOST_WEIGHTS:
        raise ValueError(
            f"got order=2 for {size:,} weights, expected at most {MOST_WEIGHTS:,}, whose Hessian "
            "fits into memory: use order=1"
        )
    epoch = -(-posterior.num_rows // batch_size)
    refresh = epoch * (size if order == 2 else 1) if refresh_every is None else refresh_every
    check_count("refresh_every", refresh)
    cost = {1: (1, epoch), 2: (3, epoch * (1 + 2 * size))}  # gradients at the centre, per step
    at_centre, at_refreshment = cost[order]

    def init(key: jax.Array, position: Tree, rows: Any) -> CentreState:
        slope = optax.tree.zeros_like(position)
        curvature = None if order == 1 else jnp.zeros((size, size), ravel_pytree(slope)[0].dtype)
        inner = method.init(key, position, rows)
        return CentreState(inner, position, slope, curvature, jnp.zeros((), int))

    def refreshed(state: CentreState, rows: Any) -> CentreState:
        centre = method.draw(jax.random.key(0), state.inner)
        slope = jax.grad(posterior.logdensity)(centre, rows)
        curvature = None if order == 1 else hessian(posterior, centre, rows)
        return state._replace(centre=centre, slope=slope, curvature=curvature)

    def moved(phase: str) -> Callable:
        def step(key: jax.Array, state: CentreState, rows: Any) -> tuple[CentreState, dict]:
            own_key, rows_key = jax.random.split(key)
            due = state.num_steps % refresh == 0
            state = where_needed(due, refreshed, lambda state, rows: state, state, rows)
            batch = random_batch(rows_key, rows, batch_size)
            density = centred(posterior, state, batch)
            inner = recipe.make(posterior._replace(logdensity=density))
            new, info = (getattr(inner, phase) or inner.step)(own_key, state.inner, batch)
            gradients = info["n_steps"] + at_centre + jnp.where(due, at_refreshment, 0)
            state = state._replace(inner=new, num_steps=state.num_steps + 1)
            return state, info | {"n_steps": gradients}

        return step

    known = {"control_variates": True, "batch_size": batch_size, "refresh_every": refresh_every}
    known["order"] = order
    return method._replace(
        init=init,
        step=moved("step"),
        draw=lambda key, state: method.draw(key, state.inner),
        warmup=None if method.warmup is None else moved("warmup"),
        tuning=method.tuning.of_inner(),
        settings={**method.settings, **known},
        counts=method.counts._replace(batch_size=None),
        all_rows=True,
        recipe=None,
    )


def centred(posterior: Posterior, state: CentreState, batch: Any) -> Callable:
    """Return the batch log-density, whose derivatives at the centre are those on all rows."""
    centre = state.centre
    at_centre = jax.grad(posterior.logdensity)(centre, batch)
    tilt = jax.tree.map(jnp.subtract, state.slope, at_centre)

    def density(position: Tree, batch: Any) -> jax.Array:
        away = jax.tree.map(jnp.subtract, position, centre)
        found = posterior.logdensity(position, batch) + optax.tree.vdot(tilt, away)
        if state.curvature is None:
            return found
        flat, _ = ravel_pytree(away)
        of_batch = _hessian_times(posterior, centre, batch, jax.lax.stop_gradient(away))
        missing = state.curvature @ jax.lax.stop_gradient(flat) - ravel_pytree(of_batch)[0]
        return found + _quadratic(flat, jax.lax.stop_gradient(missing))

    return density


def _quadratic(away: jax.Array, curvature_times_away: jax.Array) -> jax.Array:
    """Half of away' H away, whose gradient is H away, without differentiating the latter."""
    product = away @ curvature_times_away
    return product - 0.5 * jax.lax.stop_gradient(product)


def hessian(posterior: Posterior, position: Tree, rows: Any) -> jax.Array:
    """Return the Hessian of the log-density on these rows, over raveled weights."""
    flat, unravel = ravel_pytree(position)

    def column(direction: jax.Array) -> jax.Array:
        return ravel_pytree(_hessian_times(posterior, position, rows, unravel(direction)))[0]

    return jax.lax.map(column, jnp.eye(len(flat), dtype=flat.dtype), batch_size=8)


def _hessian_times(posterior: Posterior, position: Tree, rows: Any, direction: Tree) -> Tree:
    def slope(position: Tree) -> Tree:
        return jax.grad(posterior.logdensity)(position, rows)

    return jax.jvp(slope, (position,), (direction,))[1]
