"""Step size and mass of stochastic-gradient samplers, found in warm-up, or steps that are given."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from scipy.special import chdtri

from bnn_ppl.methods.ensembles.descent import starting_descent
from bnn_ppl.methods.method import Counts, Method, draw_position
from bnn_ppl.methods.schedules import Schedule, check_rate, named, value_at
from bnn_ppl.methods.training.training_lengths import usual_batch_size
from bnn_ppl.model.posterior import Posterior, with_prior_read
from bnn_ppl.model.trace import likelihood_alone
from bnn_ppl.runtime.compilation.branches import one_or_other, where_needed

Array = jax.Array
Tree = Any
Move = Callable[[Array, Tree, Any, Array, Tree], tuple[Tree, dict[str, Array]]]

# Too high a kinetic temperature by this fraction is aimed at; 5 % is the most that is tolerated.
EXCESS = 0.03

_NUM_WARMUP = 6_500  # the probes, and five windows
# Steps from one draw to the next: so many that steps times batch rows times weights are about
# _CHEAP, but at least 20 and at most 300. Small data allow more: by all rows, about _CHEAP_OF_ALL.
_CHEAP, _THIN = 2**27, (20, 300)
_CHEAP_OF_ALL = 2**29
_PROBES = 300  # gradients from which the mass is estimated
_WINDOW = 200  # steps over which the temperature is first averaged; each window is twice as long
_MOST_CHANGE = 2.0  # factor by which a window may change the step size
_MARGIN = 3.0  # factor between a step size found unstable and the largest used
_LOST = 10.0  # times the highest temperature of a stable chain: it will not come back
_SHORTER = 4.0  # factor by which steps are shorter after a chain was lost


class Chain(NamedTuple):
    """Position and momentum."""

    position: Tree
    momentum: Tree


class Kernel(NamedTuple):
    """Dynamics of a chain, which has a ``position``.

    Attributes
    ----------
    init
        ``key, position -> chain``.
    move
        ``key, chain, batch, step_size, mass -> chain, info``. Info has the
        ``kinetic_temperature`` and ``excess``, the error that is to average ``EXCESS``; without a
        temperature ``instability`` in its place.
    first_step_size
        ``mean square of gradient over mass -> step size``, from which the search starts.
    move_after
        Replaces `move` after warm-up.
    given_move
        Replaces `move` where the step size is given; its info needs neither temperature nor excess.
    highest
        The highest temperature, or instability, of a stable chain; by default that of the
        temperature of as many weights.
    """

    init: Callable[[Array, Tree], Tree]
    move: Move
    first_step_size: Callable[[Array], Array]
    move_after: Move | None = None
    given_move: Move | None = None
    highest: float | None = None


class TuningState(NamedTuple):
    """A chain and the state of its tuning."""

    chain: Tree
    safe: Tree  # the chain at the end of the last window without divergence
    mass: Tree
    squares: Tree  # sum of squared probes of the likelihood's curvature
    step_size: Array
    ceiling: Array  # of the step size: well below the least found unstable
    excess: Array  # sum over the window
    worst: Array  # greatest kinetic temperature, or instability, in the window
    window_start: Array
    window_end: Array
    num_steps: Array


def tuned(
    posterior: Posterior,
    kernel: Kernel,
    settings: dict[str, Any],
    *,
    start: Method | None = None,
    most_thin: int = 900,
) -> Method:
    """Make a method of a stochastic-gradient kernel that finds its mass and step size in warm-up.

    The first steps of warm-up estimate the diagonal M of the posterior's curvature where the chains
    start: the prior's precision plus the empirical Fisher information. The others set the step size
    so that an error of temperature averages ``EXCESS``: to first order it is proportional to the
    step size, so each window of steps multiplies it by the ratio of what was aimed at to what was
    measured. Before, the chains go through the warm-up of `start`, by default
    ``starting_descent(posterior, spread=True)``. On small data there are at most `most_thin` steps
    from one draw to the next.
    """
    posterior = with_prior_read(posterior)
    move, highest = kernel.move, kernel.highest
    if highest is None:
        highest = _highest_temperature(posterior.num_weights)

    def init(key: Array, start: Tree, batch: Any) -> TuningState:
        del batch
        zeros, ones = optax.tree.zeros_like(start), optax.tree.ones_like(start)
        zero, none = jnp.zeros((), int), jnp.zeros(())
        first, end = jnp.asarray(_PROBES), jnp.asarray(_PROBES + _WINDOW)
        chain = kernel.init(key, start)
        return TuningState(
            chain, chain, ones, zeros, none, jnp.asarray(jnp.inf), none, none, first, end, zero
        )

    def begin(state: TuningState, num_warmup: Array) -> TuningState:
        # A short warm-up has fewer probes and shorter windows.
        probes = jnp.clip(num_warmup // 8, 1, _PROBES)
        window = jnp.clip(num_warmup // 16, 1, _WINDOW)
        return state._replace(window_start=probes, window_end=probes + window)

    def step(key: Array, state: TuningState, batch: Any) -> tuple[TuningState, dict]:
        after = kernel.move_after or move
        chain, info = after(key, state.chain, batch, state.step_size, state.mass)
        # A chain that is lost is brought back, flagged, and goes on with shorter steps: better than
        # no number ever after.
        lost = ~(_instability(info) < _LOST * highest)
        chain = jax.tree.map(partial(jnp.where, lost), state.safe, chain)
        info = recorded(info | {"diverging": info["diverging"] | lost}, state.step_size)
        step_size = state.step_size / jnp.where(lost, _SHORTER, 1.0)
        state = state._replace(chain=chain, step_size=step_size, num_steps=state.num_steps + 1)
        return state, info

    def warmup(key: Array, state: TuningState, batch: Any) -> tuple[TuningState, dict]:
        probing = state.num_steps < state.window_start
        state, info = one_or_other(probing, probe, adapt, key, state, batch)
        return state._replace(num_steps=state.num_steps + 1), info

    def adapt(key: Array, state: TuningState, batch: Any) -> tuple[TuningState, dict]:
        chain, info = move(key, state.chain, batch, state.step_size, state.mass)
        instability, excess = _instability(info), info["excess"]
        lost = ~(instability < _LOST * highest)
        info = recorded(info | {"diverging": info["diverging"] | lost}, state.step_size)
        state = state._replace(
            chain=chain,
            excess=state.excess + excess,
            worst=jnp.maximum(state.worst, jnp.where(lost, jnp.inf, instability)),
        )
        due = state.num_steps + 1 == state.window_end
        ended = partial(_next_window, highest, lost)
        return where_needed(lost | due, ended, lambda state: state, state), info

    def probe(key: Array, state: TuningState, batch: Any) -> tuple[TuningState, dict]:
        gradient = _probe(posterior, key, state.chain.position, batch)
        squares = jax.tree.map(lambda total, g: total + g**2, state.squares, gradient)
        mass = _mass(posterior, optax.tree.scale(1 / (state.num_steps + 1), squares), batch)
        step_size = kernel.first_step_size(jnp.asarray(1.0 + _rows_per_batch_row(posterior, batch)))
        info = jax.eval_shape(move, key, state.chain, batch, state.step_size, state.mass)[1]
        state = state._replace(squares=squares, mass=mass, step_size=step_size)
        return state, recorded(_of_one_gradient(info), state.step_size)

    return Method(
        init,
        step,
        draw_position,
        warmup,
        settings | {"step_size": None},
        logdensity=posterior.logdensity,
        needs_warmup=True,
        begin=begin,
        start=start or starting_descent(posterior, spread=True),
        counts=_counts(posterior, most_thin),
    )


def _counts(posterior: Posterior, most_thin: int) -> Counts:
    """Give 200 draws as far apart as is cheap: 20 to 300 steps, or up to `most_thin`."""
    size = usual_batch_size(posterior.num_rows, posterior.num_weights)
    num_rows, num_weights = posterior.num_rows, posterior.num_weights
    by_batch = _CHEAP // ((size or num_rows) * num_weights)
    by_batch = min(max(by_batch, _THIN[0]), _THIN[1])
    by_all_rows = min(_CHEAP_OF_ALL // (num_rows * num_weights), most_thin)
    return Counts(_NUM_WARMUP, num_draws=200, thin=max(by_batch, by_all_rows), batch_size=size)


def configurational_temperature(position: Tree, gradient: Tree) -> Array:
    """Estimate the temperature by minus the mean of w times the gradient of the log-density.

    Its expectation is 1 under the posterior (the virial theorem; Wenzel et al., 2020, appendix I).
    """
    return -optax.tree.vdot(position, gradient) / optax.tree.size(position)


def _probe(posterior: Posterior, key: Array, position: Tree, batch: Any) -> Tree:
    """Gradient of the log-likelihood with random signs of the rows.

    Its mean square is the sum of the rows' squared gradients, for one gradient's cost.
    """

    def signed(position: Tree) -> Array:
        rows = posterior.log_likelihood(position, batch)
        signs = jax.random.rademacher(key, rows.shape, rows.dtype)
        return posterior.density.total(likelihood_alone(signs * rows), batch)

    return jax.grad(signed)(position)


def _rows_per_batch_row(posterior: Posterior, batch: Any) -> float:
    """Give how many of all rows each row of a batch stands for."""
    return posterior.num_rows / batch[1].shape[0]


def _mass(posterior: Posterior, mean_squares: Tree, batch: Any) -> Tree:
    """Give the prior's precision plus the Fisher information, from mean squares of probes."""
    factor = posterior.density.temperature / _rows_per_batch_row(posterior, batch)
    return {
        site: factor * square + posterior.prior.std[site] ** -2
        for site, square in mean_squares.items()
    }


def gradient_variance(posterior: Posterior, mass: Tree, batch: Any) -> Tree:
    """Give the variance of a minibatch's gradient, which the Fisher information in the mass tells.

    Of all rows it is 0; those of a minibatch are drawn with replacement.
    """
    ratio = _rows_per_batch_row(posterior, batch)
    factor = (ratio if ratio > 1 else 0.0) / posterior.density.temperature
    return {site: factor * (m - posterior.prior.std[site] ** -2) for site, m in mass.items()}


def slowed_gradient(
    posterior: Posterior, position: Tree, batch: Any, velocity: Tree, size: Array
) -> tuple[Array, Tree]:
    """Give the log-density and its gradient, less half of `size` times C times the velocity.

    C is the covariance of the minibatch's gradient, estimated from its rows. This friction removes
    the energy that the gradient's noise adds in steps of `size`. It needs no per-example gradients:
    their products with the velocity are a directional derivative, their weighted sum one gradient.
    """
    ratio = _rows_per_batch_row(posterior, batch)
    if ratio <= 1:  # all rows, and those that fill up devices: no noise
        return jax.value_and_grad(posterior.logdensity)(position, batch)

    def by_row(position: Tree) -> Array:
        return posterior.log_likelihood(position, batch)

    _, along = jax.jvp(by_row, (position,), (velocity,))
    unbiased = along.size / max(along.size - 1, 1)  # a single row tells nothing
    factor = size / 2 * unbiased * ratio / posterior.density.temperature
    friction = factor * (along - jnp.mean(along))

    def slowed(position: Tree) -> tuple[Array, Array]:
        terms = posterior.density.terms(position, batch)
        lp = posterior.density.total(terms, batch)
        damped = likelihood_alone(friction * terms.log_likelihood)
        return lp - posterior.density.total(damped, batch), lp

    gradient, lp = jax.grad(slowed, has_aux=True)(position)
    return lp, gradient


def _instability(info: dict[str, Array]) -> Array:
    return info["instability" if "instability" in info else "kinetic_temperature"]


def recorded(info: dict[str, Array], step_size: Array) -> dict[str, Array]:
    """Leave out of a step's info what only the tuning needs, and add the step size."""
    hidden = "excess", "instability"
    shown = {name: value for name, value in info.items() if name not in hidden}
    return shown | {"step_size": step_size}


def _of_one_gradient(info: dict[str, Any]) -> dict[str, Array]:
    """Give statistics of these shapes for a gradient taken without a step: none was measured."""
    none = {
        name: jnp.full(leaf.shape, jnp.nan if jnp.issubdtype(leaf.dtype, float) else 0, leaf.dtype)
        for name, leaf in info.items()
    }
    return none | {"n_steps": jnp.ones_like(none["n_steps"])}


def _highest_temperature(num_weights: int) -> float:
    """Temperature that a stable chain never reaches: 1 above what one step in a billion does."""
    return 1.0 + float(chdtri(num_weights, 1e-9)) / num_weights  # a quantile of chi-squared


def _next_window(highest: float, lost: Array, state: TuningState) -> TuningState:
    """Set the step size by the excess measured; double the window.

    A window in which the dynamics became unstable is undone, and its step size never tried again.
    One that ends early, because the chain is lost, begins again at its old length.
    """
    length = state.window_end - state.window_start
    unstable = state.worst > highest
    ratio = EXCESS / jnp.clip(state.excess / length, EXCESS / _MOST_CHANGE, EXCESS * _MOST_CHANGE)
    ceiling = jnp.where(unstable, state.step_size / _MARGIN, state.ceiling)
    chain = jax.tree.map(partial(jnp.where, unstable), state.safe, state.chain)
    return state._replace(
        chain=chain,
        safe=chain,
        step_size=jnp.minimum(jnp.where(unstable, 1.0, ratio) * state.step_size, ceiling),
        ceiling=ceiling,
        excess=jnp.zeros(()),
        worst=jnp.zeros(()),
        window_start=jnp.where(lost, state.num_steps + 1, state.window_end),
        window_end=jnp.where(lost, state.num_steps + 1 + length, state.window_end + 2 * length),
    )


class ChainState(NamedTuple):
    """A chain whose step size is given."""

    chain: Tree
    num_steps: Array  # taken so far


def with_step_size(
    posterior: Posterior,
    kernel: Kernel,
    step_size: float | Schedule | None,
    settings: dict[str, Any],
    **tuning: Any,
) -> Method:
    """Make a method whose step size is given and whose mass is 1, or by :func:`tuned` if None."""
    if step_size is None:
        return tuned(posterior, kernel, settings, **tuning)
    check_rate("step_size", step_size)
    move = kernel.given_move or kernel.move

    def init(key: Array, start: Tree, batch: Any) -> ChainState:
        del batch
        return ChainState(kernel.init(key, start), jnp.zeros((), int))

    def step(key: Array, state: ChainState, batch: Any) -> tuple[ChainState, dict]:
        size = value_at(step_size, state.num_steps)
        ones = optax.tree.ones_like(state.chain.position)
        chain, info = move(key, state.chain, batch, size, ones)
        return ChainState(chain, state.num_steps + 1), recorded(info, size)

    settings = settings | {"step_size": named(step_size)}
    return Method(init, step, draw_position, settings=settings, logdensity=posterior.logdensity)
