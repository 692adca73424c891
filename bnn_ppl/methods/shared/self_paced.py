"""Training that finds its own learning rate and its own end."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.schedules import Schedule, check_rate, named, value_at
from bnn_ppl.runtime.branches import where_needed

Tree = Any
Objective = Callable[[dict[str, jax.Array]], jax.Array]
Prior = Callable[[Tree, Any], jax.Array]
Update = Callable[[jax.Array, Tree, Any, jax.Array], tuple[Tree, dict[str, jax.Array]]]

# Rates that are tried, each for a hundredth of the budget from the same start.
RATES = tuple(10 ** (-power / 2) for power in range(8))  # 1 to 3e-4
_TRIAL_SHARE, _TRIAL_STEPS = 100, (10, 100)
# Where the prior's part of the objective is known, the rate chosen must gain at least this share of
# the largest gain in log-likelihood, in its trial and in its first window of training. With many
# more weights than rows the prior dominates the objective, and large rates that learn nothing, or
# lose what they have learnt, increase it most.
_LEAST_SHARE_GAINED = 0.5
# Where no trial gains this many nats per row, as with recurrent networks, which may need hundreds
# of steps, or the first window does not confirm the trial, the trials are inconclusive, and the
# usual rate of Adam is taken.
_LEAST_GAINED, _USUAL_RATE = 0.01, 1e-3

# The mean objective is compared over windows of at least 500 steps, or a fifth of those taken.
# Where it gains less than this many nats per row, the rate falls by a factor of sqrt(10); training
# ends at the fourth time.
_WINDOW_STEPS, _WINDOW_SHARE, _LEAST_GAIN = 500, 5, 0.002
_REDUCTIONS = 4

# Nats a row that a window, other than the first at a rate, may be below the start. Training that
# falls further is unstable, as where an averaged curvature lags behind a falling noise.
_MOST_FALL = 3.0

_DECAY_SHARE = 4  # the rate falls to 0 in the last quarter of the budget, if it comes to that

_NEVER = 2**30  # steps


class Pace(NamedTuple):
    """Where training is: its rate, and the objective so far."""

    budget: jax.Array  # steps
    num_steps: jax.Array
    start: jax.Array  # step of the last start from the beginning
    rate: jax.Array  # the best one tried, reduced since
    first: jax.Array  # objective at the start
    first_fit: jax.Array  # that without the prior's part, as the other fits
    scores: jax.Array  # objective of each rate tried
    fits: jax.Array  # of each rate tried
    total: jax.Array  # of the objective in this trial or window
    total_fit: jax.Array  # in this trial or first window
    before: jax.Array  # mean objective of the last window
    window_start: jax.Array
    window_end: jax.Array
    num_reductions: jax.Array


class PacedState(NamedTuple):
    """The state that is trained, its start, and the pace."""

    inner: Tree
    first: Tree
    pace: Pace


def rate_of(
    learning_rate: float | Schedule | None,
) -> tuple[bool, float | str, Callable[[jax.Array], jax.Array]]:
    """Give whether the rate is to be found, how it is recorded, and the rate at a step.

    Where it is found, :func:`self_paced` gives each step its rate; without, that is 1.
    """
    if learning_rate is None:
        return True, "found", partial(value_at, 1.0)
    check_rate("learning_rate", learning_rate)
    return False, named(learning_rate), partial(value_at, learning_rate)


def self_paced(
    method: Method,
    update: Update,
    objective: Objective,
    least_steps: int = 0,
    settled: Callable[[Tree], Tree] | None = None,
    prior: Prior | None = None,
) -> Method:
    """Let a method that trains find its rate and its end.

    Parameters
    ----------
    method
        Method whose steps train: its state, draws and parameters are kept.
    update
        ``key, state, batch, rate -> state, info``: its step at a rate.
    objective
        ``info -> scalar``: what training maximises, in nats per row.
    least_steps
        Steps before which the rate does not fall, for a method that averages over that many.
    settled
        ``state -> state``: changes how it trains from the third of four falls of the rate on, or
        from half the budget.
    prior
        ``state, batch -> scalar``: the prior's part of the objective. Without it, the rate is
        chosen by the objective alone.
    """
    fitted = method.fitted

    def init(key: jax.Array, position: Tree, batch: Any) -> PacedState:
        return begin(method.init(key, position, batch))

    return method._replace(
        init=init,
        step=partial(step, update, objective, settled=settled, prior=prior),
        draw=lambda key, state: method.draw(key, state.inner),
        begin=partial(with_budget, least_steps),
        fitted=None if fitted is None else lambda state: fitted(state.inner),
    )


def begin(inner: Tree) -> PacedState:
    """Start training, with the budget still unknown."""
    zero, none, least = jnp.zeros((), int), jnp.zeros(()), jnp.asarray(-jnp.inf)
    pace = Pace(
        budget=jnp.asarray(_NEVER),
        num_steps=zero,
        start=zero,
        rate=none,
        first=none,
        first_fit=none,
        scores=jnp.full(len(RATES), -jnp.inf),
        fits=jnp.full(len(RATES), -jnp.inf),
        total=none,
        total_fit=none,
        before=least,
        window_start=zero,
        window_end=zero,
        num_reductions=zero,
    )
    return with_budget(0, PacedState(inner, inner, pace), pace.budget)


def with_budget(least_steps: int, state: PacedState, num_steps: jax.Array) -> PacedState:
    """Lay out the trials in a budget of `num_steps` steps."""
    budget = jnp.asarray(num_steps, int)
    trials = num_trial_steps(budget)
    windows = {"window_start": trials, "window_end": trials + max(_WINDOW_STEPS, least_steps)}
    return state._replace(pace=state.pace._replace(budget=budget, **windows))


def step(
    update: Update,
    objective: Objective,
    key: jax.Array,
    state: PacedState,
    batch: Any,
    settled: Callable[[Tree], Tree] | None = None,
    prior: Prior | None = None,
) -> tuple[PacedState, dict[str, jax.Array]]:
    """Take a step: a trial of a rate, a step at the best of them, or none once training has ended.

    Arguments as of :func:`self_paced`.
    """
    _, shapes = jax.eval_shape(update, key, state.inner, batch, state.pace.rate)
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def train(state: PacedState) -> tuple[PacedState, dict[str, jax.Array]]:
        inner, info = update(key, state.inner, batch, rate_now(state.pace))
        value = fit = objective(info)
        if prior is not None:
            nothing = jnp.zeros_like(value)
            early = _is_early(state.pace)
            fit = value - where_needed(early, prior, lambda *_: nothing, state.inner, batch)
        state = _observed(state._replace(inner=inner), value, fit, prior is not None)
        if settled is not None:
            inner = where_needed(_is_settled(state.pace), settled, lambda inner: inner, state.inner)
            state = state._replace(inner=inner)
        return state, info

    done = _ended(state.pace)
    state, info = where_needed(~done, train, lambda state: (state, none), state)
    return state, info | {"step_size": rate_now(state.pace), "done": _ended(state.pace)}


def rate_now(pace: Pace) -> jax.Array:
    """Give the rate on trial, later the one found; it falls to 0 at the end of the budget."""
    length = _trial_length(pace.budget)
    trial = jnp.minimum(pace.num_steps // length, len(RATES) - 1)
    left = (pace.budget - pace.num_steps) / (pace.budget / _DECAY_SHARE)
    found = pace.rate * jnp.clip(left, 0.0, 1.0)
    return jnp.where(pace.num_steps < len(RATES) * length, jnp.asarray(RATES)[trial], found)


def _ended(pace: Pace) -> jax.Array:
    return (pace.num_steps >= pace.budget) | (pace.num_reductions >= _REDUCTIONS)


def _is_settled(pace: Pace) -> jax.Array:
    half = (pace.start + pace.budget) // 2
    return (pace.num_steps >= half) | (pace.num_reductions >= _REDUCTIONS - 1)


def _is_trying(pace: Pace) -> jax.Array:
    return pace.num_steps < num_trial_steps(pace.budget)


def _is_early(pace: Pace) -> jax.Array:
    """Whether this is a trial, or the first window since a start."""
    first_window = jnp.maximum(pace.start, num_trial_steps(pace.budget))
    return _is_trying(pace) | (pace.window_start == first_window)


def num_trial_steps(budget: Any) -> jax.Array:
    """Count the steps of a budget in which rates are tried, before training at the best one."""
    return len(RATES) * _trial_length(budget)


def _trial_length(budget: jax.Array) -> jax.Array:
    return jnp.clip(budget // _TRIAL_SHARE, *_TRIAL_STEPS)


def _observed(
    state: PacedState, objective: jax.Array, fit: jax.Array, knows_prior: bool
) -> PacedState:
    """Count a step with its objective; end the trial or the window if it is the last of one."""
    pace = state.pace
    length = _trial_length(pace.budget)
    count = pace.num_steps + 1
    trying = _is_trying(pace)
    # Only the second half of a trial counts, in which the first large steps are forgotten.
    counts = ~trying | (2 * (pace.num_steps % length) >= length)
    is_first = pace.num_steps == 0
    pace = pace._replace(
        num_steps=count,
        total=pace.total + jnp.where(counts, jnp.nan_to_num(objective, nan=-jnp.inf), 0.0),
        total_fit=pace.total_fit
        + jnp.where(counts & _is_early(pace), jnp.nan_to_num(fit, nan=-jnp.inf), 0.0),
        first=jnp.where(is_first, objective, pace.first),
        first_fit=jnp.where(is_first, fit, pace.first_fit),
    )
    state = state._replace(pace=pace)
    ends = count == pace.window_end
    fell = ends & (pace.total / (count - pace.window_start) < pace.first - _MOST_FALL)
    fell &= pace.before > -jnp.inf
    lost = ~trying & (~jnp.isfinite(objective) | fell)
    forgot = ends & knows_prior & _has_forgotten(pace)
    cases = (trying & (count % length == 0), lost, forgot, ends, True)
    case = jnp.select(cases, (1, 2, 3, 4, 0))

    def ended(state: PacedState) -> PacedState:
        pace = state.pace
        branches = (
            partial(_trial_ended, knows_prior),
            partial(_restarted, pace.rate / 3),
            partial(_restarted, jnp.asarray(_USUAL_RATE)),
            _window_ended,
        )
        return jax.lax.switch(case - 1, branches, state)

    return where_needed(case > 0, ended, lambda state: state, state)


def _trial_ended(knows_prior: bool, state: PacedState) -> PacedState:
    """Note what the rate has reached, choose among those so far, and start anew."""
    pace = state.pace
    length = _trial_length(pace.budget)
    trial, counted = pace.num_steps // length - 1, length - length // 2
    pace = pace._replace(
        scores=pace.scores.at[trial].set(pace.total / counted),
        fits=pace.fits.at[trial].set(pace.total_fit / counted),
        total=jnp.zeros(()),
        total_fit=jnp.zeros(()),
    )
    return PacedState(state.first, state.first, pace._replace(rate=_best_rate(pace, knows_prior)))


def _best_rate(pace: Pace, knows_prior: bool) -> jax.Array:
    """Give the rate with the best objective of those that have learnt from the rows."""
    gains = pace.fits - pace.first_fit
    most = jnp.max(gains)
    too_little = gains < jnp.minimum(most, _LEAST_SHARE_GAINED * most)
    best = jnp.asarray(RATES)[jnp.argmax(jnp.where(too_little, -jnp.inf, pace.scores))]
    return jnp.where(most < _LEAST_GAINED, _USUAL_RATE, best) if knows_prior else best


def _has_forgotten(pace: Pace) -> jax.Array:
    """Whether the first window, now at its end, has not learnt what the trials did."""
    gain = pace.total_fit / (pace.num_steps - pace.window_start) - pace.first_fit
    most = jnp.max(pace.fits) - pace.first_fit
    return _is_early(pace) & (pace.rate > _USUAL_RATE) & (gain < _LEAST_SHARE_GAINED * most)


def _restarted(rate: jax.Array, state: PacedState) -> PacedState:
    """Start again at a lower rate."""
    pace = state.pace
    zero = jnp.zeros_like(pace.num_reductions)
    pace = pace._replace(rate=rate, start=pace.num_steps, num_reductions=zero)
    return PacedState(state.first, state.first, _next_window(pace, jnp.asarray(-jnp.inf)))


def _window_ended(state: PacedState) -> PacedState:
    pace = state.pace
    mean = pace.total / (pace.num_steps - pace.window_start)
    flat = mean - pace.before < _LEAST_GAIN
    pace = pace._replace(
        rate=jnp.where(flat, pace.rate / 10**0.5, pace.rate),
        num_reductions=pace.num_reductions + flat,
    )
    return state._replace(pace=_next_window(pace, jnp.where(flat, -jnp.inf, mean)))


def _next_window(pace: Pace, before: jax.Array) -> Pace:
    trained = pace.num_steps - num_trial_steps(pace.budget)
    return pace._replace(
        total=jnp.zeros(()),
        total_fit=jnp.zeros(()),
        before=before,
        window_start=pace.num_steps,
        window_end=pace.num_steps + jnp.maximum(_WINDOW_STEPS, trained // _WINDOW_SHARE),
    )
