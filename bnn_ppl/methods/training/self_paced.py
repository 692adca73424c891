"""Training that finds its own learning rate and its own end."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.training.held_out_rows import (
    HeldOut,
    HeldOutScores,
    Objective,
    checked,
    no_scores,
)
from bnn_ppl.methods.training.rate_trials import (
    RATES,
    USUAL,
    USUAL_RATE,
    TrainingLengths,
    Trials,
    best_rate,
    is_worse_than_tried,
    no_trials,
    num_trial_steps,
    trial_length,
)
from bnn_ppl.runtime.compilation.branches import where_needed

Tree = Any
Prior = Callable[[Tree, Any], jax.Array]
Update = Callable[[jax.Array, Tree, Any, jax.Array], tuple[Tree, dict[str, jax.Array]]]

# The mean objective, or the mean score of held-out rows, is compared over windows of so many steps,
# or a fifth of those taken. Where it gains less than this many nats per row, the rate falls by a
# factor of sqrt(10); training ends at the fourth time.
_WINDOW_SHARE, _LEAST_GAIN = 5, 0.002
_REDUCTIONS = 4


# Nats a row that a window, other than the first at a rate, may be below the start. Training that
# falls further is unstable, as where an averaged curvature lags behind a falling noise.
_MOST_FALL = 3.0

_CHECKS = 5  # of held-out rows in a window
_DECAY_SHARE = 4  # the rate falls to 0 in the last quarter of the budget, if it comes to that

_NEVER = 2**30  # steps


class Pace(NamedTuple):
    """Where training is: its rate, and the objective so far."""

    budget: jax.Array  # steps
    num_steps: jax.Array
    start: jax.Array  # step of the last start from the beginning
    rate: jax.Array  # the best one tried, reduced since
    trials: Trials
    total: jax.Array  # of the objective in this trial or window
    total_fit: jax.Array  # in this trial or first window
    before: jax.Array  # mean objective of the last window
    held_out: HeldOutScores
    window_start: jax.Array
    window_end: jax.Array
    num_reductions: jax.Array


class PacedState(NamedTuple):
    """The state that is trained, the one to go back to, and the pace."""

    inner: Tree
    best: Tree  # by held-out rows; the start where there are none
    pace: Pace


class Training(NamedTuple):
    """How a method trains, as of :func:`self_paced`."""

    update: Update
    objective: Objective
    prior: Prior | None = None
    settled: Callable[[Tree], Tree] | None = None
    held_out: HeldOut | None = None
    lengths: TrainingLengths = USUAL


def self_paced(
    method: Method,
    update: Update,
    objective: Objective,
    least_steps: int = 0,
    **more: Any,
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
    **more
        Other fields of :class:`Training`. ``prior``: ``state, batch -> scalar``, the prior's part
        of the objective, without which the rate is chosen by the objective alone. ``settled``:
        ``state -> state``, changes how it trains from the third of four falls of the rate on, or
        from half the budget. ``held_out``: a :class:`HeldOut`, the score of rows that it is not
        trained on before it has settled. Whenever the rate falls, training goes back to the state
        with the best score; training that overfits does not settle but ends there. ``lengths``:
        :class:`TrainingLengths`.
    """
    training = Training(update, objective, **more)
    fitted = method.fitted

    def init(key: jax.Array, position: Tree, batch: Any) -> PacedState:
        return begin(method.init(key, position, batch), training.lengths)

    return method._replace(
        init=init,
        step=partial(step, training),
        draw=lambda key, state: method.draw(key, _drawn_from(training, state)),
        begin=partial(with_budget, training.lengths, least_steps),
        fitted=None if fitted is None else lambda state: fitted(state.inner),
    )


def _drawn_from(training: Training, state: PacedState) -> Tree:
    """Give the state to draw from, also before training has ended.

    It is the best by held-out rows, as long as there are some, and not one of a trial.
    """
    pace = state.pace
    goes_back = _is_trying(pace, training.lengths)
    if training.held_out is not None:
        goes_back |= ~_is_settled(pace) & (pace.held_out.best > -jnp.inf)
    return jax.tree.map(partial(jnp.where, goes_back), state.best, state.inner)


def begin(inner: Tree, lengths: TrainingLengths = USUAL) -> PacedState:
    """Start training, with the budget still unknown."""
    zero, none, least = jnp.zeros((), int), jnp.zeros(()), jnp.asarray(-jnp.inf)
    pace = Pace(
        budget=jnp.asarray(_NEVER),
        num_steps=zero,
        start=zero,
        rate=none if lengths.trial else jnp.asarray(USUAL_RATE),
        trials=no_trials(),
        total=none,
        total_fit=none,
        before=least,
        held_out=no_scores(),
        window_start=zero,
        window_end=zero,
        num_reductions=zero,
    )
    return with_budget(lengths, 0, PacedState(inner, inner, pace), pace.budget)


def with_budget(
    lengths: TrainingLengths, least_steps: int, state: PacedState, num_steps: jax.Array
) -> PacedState:
    """Lay out the trials in a budget of `num_steps` steps."""
    budget = jnp.asarray(num_steps, int)
    trials = num_trial_steps(budget, lengths)
    window = max(lengths.window, least_steps)
    pace = state.pace._replace(budget=budget, window_start=trials, window_end=trials + window)
    return state._replace(pace=pace)


def step(
    training: Training, key: jax.Array, state: PacedState, batch: Any
) -> tuple[PacedState, dict[str, jax.Array]]:
    """Take a step: a trial of a rate, a step at the best of them, or none once training has ended.

    Arguments as of :func:`self_paced`.
    """
    lengths = training.lengths
    _, shapes = jax.eval_shape(training.update, key, state.inner, batch, state.pace.rate)
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def train(state: PacedState) -> tuple[PacedState, dict[str, jax.Array]]:
        inner, info = training.update(key, state.inner, batch, rate_now(state.pace, lengths))
        value = fit = training.objective(info)
        if training.prior is not None:
            nothing = jnp.zeros_like(value)
            early = _is_early(state.pace, lengths)
            fit = value - where_needed(
                early, training.prior, lambda *_: nothing, state.inner, batch
            )
        held_out = jnp.asarray(jnp.nan)
        if training.held_out is not None:
            held_out = training.held_out.score(info)
        state = _observed(training, state._replace(inner=inner), value, fit, held_out)
        return state, info

    done = _ended(state.pace)
    state, info = where_needed(~done, train, lambda state: (state, none), state)
    return state, info | {"step_size": rate_now(state.pace, lengths), "done": _ended(state.pace)}


def rate_now(pace: Pace, lengths: TrainingLengths = USUAL) -> jax.Array:
    """Give the rate on trial, later the one found; it falls to 0 at the end of the budget."""
    length = trial_length(pace.budget, lengths)
    trial = jnp.minimum(pace.num_steps // jnp.maximum(length, 1), len(RATES) - 1)
    left = (pace.budget - pace.num_steps) / (pace.budget / _DECAY_SHARE)
    found = pace.rate * jnp.clip(left, 0.0, 1.0)
    return jnp.where(pace.num_steps < len(RATES) * length, jnp.asarray(RATES)[trial], found)


def _ended(pace: Pace) -> jax.Array:
    return (pace.num_steps >= pace.budget) | (pace.num_reductions >= _REDUCTIONS)


def _is_settled(pace: Pace) -> jax.Array:
    half = (pace.start + pace.budget) // 2
    return (pace.num_steps >= half) | (pace.num_reductions >= _REDUCTIONS - 1)


def _is_trying(pace: Pace, lengths: TrainingLengths) -> jax.Array:
    return pace.num_steps < num_trial_steps(pace.budget, lengths)


def _is_early(pace: Pace, lengths: TrainingLengths) -> jax.Array:
    """Whether this is a trial, or the first window since a start."""
    first_window = jnp.maximum(pace.start, num_trial_steps(pace.budget, lengths))
    return _is_trying(pace, lengths) | (pace.window_start == first_window)


def _observed(
    training: Training,
    state: PacedState,
    objective: jax.Array,
    fit: jax.Array,
    held_out: jax.Array,
) -> PacedState:
    """Count a step with its scores; end the trial or the window if it is the last of one."""
    pace, lengths = state.pace, training.lengths
    length = jnp.maximum(trial_length(pace.budget, lengths), 1)
    count = pace.num_steps + 1
    trying, early = _is_trying(pace, lengths), _is_early(pace, lengths)
    # Only the second half of a trial counts, in which the first large steps are forgotten.
    counts = ~trying | (2 * (pace.num_steps % length) >= length)
    is_first = pace.num_steps == 0
    scored = ~trying & ~jnp.isnan(held_out)
    trials, scores = pace.trials, pace.held_out
    pace = pace._replace(
        num_steps=count,
        total=pace.total + jnp.where(counts, jnp.nan_to_num(objective, nan=-jnp.inf), 0.0),
        total_fit=pace.total_fit
        + jnp.where(counts & early, jnp.nan_to_num(fit, nan=-jnp.inf), 0.0),
        held_out=scores._replace(
            total=scores.total + jnp.where(scored, held_out, 0.0), steps=scores.steps + scored
        ),
        trials=trials._replace(
            first=jnp.where(is_first, objective, trials.first),
            first_fit=jnp.where(is_first, fit, trials.first_fit),
        ),
    )
    state, overfits = _checked(training, state._replace(pace=pace))
    pace, steps = state.pace, count - pace.window_start
    knows_prior = training.prior is not None
    ends = count == pace.window_end
    fell = ends & (pace.total / steps < pace.trials.first - _MOST_FALL)
    fell &= pace.before > -jnp.inf
    lost = ~trying & (~jnp.isfinite(objective) | fell)
    forgot = ends & knows_prior & early
    forgot &= is_worse_than_tried(pace.trials, pace.rate, pace.total_fit / steps)
    cases = (trying & (count % length == 0), lost, forgot, ends | overfits, True)
    case = jnp.select(cases, (1, 2, 3, 4, 0))

    def ended(state: PacedState) -> PacedState:
        pace = state.pace
        branches = (
            partial(_trial_ended, training),
            partial(_restarted, training, pace.rate / 3),
            partial(_restarted, training, jnp.asarray(USUAL_RATE)),
            partial(_window_ended, training, overfits),
        )
        return jax.lax.switch(case - 1, branches, state)

    state = where_needed(case > 0, ended, lambda state: state, state)
    if training.settled is None:
        return state
    settles = _is_settled(state.pace) & ~_ended(state.pace)
    inner = where_needed(settles, training.settled, lambda inner: inner, state.inner)
    return state._replace(inner=inner)


def _checked(training: Training, state: PacedState) -> tuple[PacedState, jax.Array]:
    """Keep the state if held-out rows have been predicted best; whether it overfits."""
    pace = state.pace
    if training.held_out is None:
        return state, jnp.zeros((), bool)
    window = pace.window_end - pace.window_start
    every = jnp.maximum(window // _CHECKS, training.lengths.check)
    due = (pace.num_steps - pace.window_start) % every == 0
    scores, better, worse = checked(pace.held_out, training.held_out, due)
    both = state.inner, state.best
    best = where_needed(better, lambda inner, _: inner, lambda _, best: best, *both)
    return PacedState(state.inner, best, pace._replace(held_out=scores)), worse


def _trial_ended(training: Training, state: PacedState) -> PacedState:
    """Note what the rate has reached, choose among those so far, and start anew."""
    pace = state.pace
    length = jnp.maximum(trial_length(pace.budget, training.lengths), 1)
    trial, counted = pace.num_steps // length - 1, length - length // 2
    trials = pace.trials._replace(
        scores=pace.trials.scores.at[trial].set(pace.total / counted),
        fits=pace.trials.fits.at[trial].set(pace.total_fit / counted),
    )
    rate = best_rate(trials, training.prior is not None)
    zero = jnp.zeros(())
    pace = pace._replace(trials=trials, rate=rate, total=zero, total_fit=zero)
    return PacedState(state.best, state.best, pace)


def _restarted(training: Training, rate: jax.Array, state: PacedState) -> PacedState:
    """Start again at a lower rate."""
    pace = state.pace
    zero = jnp.zeros_like(pace.num_reductions)
    pace = pace._replace(rate=rate, start=pace.num_steps, num_reductions=zero)
    pace = _next_window(training, pace, jnp.asarray(-jnp.inf))
    return PacedState(state.best, state.best, pace)


def _window_ended(training: Training, overfits: jax.Array, state: PacedState) -> PacedState:
    pace, best, inner = state.pace, state.best, state.inner
    scores = pace.held_out
    mean = pace.total / (pace.num_steps - pace.window_start)
    flat = overfits | (mean - pace.before < _LEAST_GAIN)
    if training.held_out is not None:
        if training.held_out.must_gain:
            flat |= scores.best - scores.best_before < _LEAST_GAIN
        inner = jax.tree.map(partial(jnp.where, flat & ~_is_settled(pace)), best, inner)
    num = pace.num_reductions + flat
    # Training that overfits ends where it would go on with all rows.
    ends = scores.overfits & _is_settled(pace._replace(num_reductions=num))
    pace = pace._replace(
        rate=jnp.where(flat, pace.rate / 10**0.5, pace.rate),
        num_reductions=jnp.where(ends, _REDUCTIONS, num),
        held_out=scores._replace(best_before=scores.best),
    )
    inner = jax.tree.map(partial(jnp.where, ends), best, inner)
    return PacedState(inner, best, _next_window(training, pace, jnp.where(flat, -jnp.inf, mean)))


def _next_window(training: Training, pace: Pace, before: jax.Array) -> Pace:
    trained = pace.num_steps - num_trial_steps(pace.budget, training.lengths)
    length = jnp.maximum(training.lengths.window, trained // _WINDOW_SHARE)
    return pace._replace(
        total=jnp.zeros(()),
        total_fit=jnp.zeros(()),
        held_out=pace.held_out._replace(
            total=jnp.zeros(()), steps=jnp.zeros_like(pace.held_out.steps)
        ),
        before=before,
        window_start=pace.num_steps,
        window_end=pace.num_steps + length,
    )
