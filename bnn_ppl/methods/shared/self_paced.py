"""Training that finds its own learning rate and its own end."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import Method, usual_batch_size
from bnn_ppl.methods.schedules import Schedule, check_rate, named, value_at
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.branches import where_needed

Tree = Any
Objective = Callable[[dict[str, jax.Array]], jax.Array]
Prior = Callable[[Tree, Any], jax.Array]
Update = Callable[[jax.Array, Tree, Any, jax.Array], tuple[Tree, dict[str, jax.Array]]]

# Rates that are tried, each for a hundredth of the budget from the same start.
RATES = tuple(10 ** (-power / 2) for power in range(8))  # 1 to 3e-4
_TRIAL_SHARE, _LEAST_TRIAL = 100, 10
# Where the prior's part of the objective is known, the rate chosen must gain at least this share of
# the largest gain in log-likelihood, in its trial and in its first window of training. With many
# more weights than rows the prior dominates the objective, and large rates that learn nothing, or
# lose what they have learnt, increase it most.
_LEAST_SHARE_GAINED = 0.5
# Where no trial gains this many nats per row, as with recurrent networks, which may need hundreds
# of steps, or the first window does not confirm the trial, the trials are inconclusive, and the
# usual rate of Adam is taken.
_LEAST_GAINED, _USUAL_RATE = 0.01, 1e-3

# The mean objective, or the mean score of held-out rows, is compared over windows of so many steps,
# or a fifth of those taken. Where it gains less than this many nats per row, the rate falls by a
# factor of sqrt(10); training ends at the fourth time.
_WINDOW_SHARE, _LEAST_GAIN = 5, 0.002
_REDUCTIONS = 4


class Lengths(NamedTuple):
    """Most steps of a trial, and least of a window."""

    trial: int = 100  # 0: no rate is tried, Adam's usual one is taken
    window: int = 500


class HeldOut(NamedTuple):
    """How training ends by rows that are held out."""

    score: Objective  # their mean log-likelihood in the batch, NaN where it has none
    most_loss: float  # nats a row below its best at which training goes back: it overfits
    must_gain: bool  # whether the rate falls also where a window does not raise its best


# Where a step costs more rows times weights than this, or the weights of convolutions act at many
# places, a plain loop would have trained the network in the time of the trials: Adam's usual rate
# is taken, other optimisers try theirs for a few steps each, and windows last so many epochs.
_CHEAP_STEP, _SHORT_TRIAL, _WINDOW_EPOCHS, _LEAST_WINDOW = 2**21, 10, 10, 50

_CHECKS = 5  # of held-out rows in a window

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
    held_out: jax.Array  # total score of held-out rows since the last check
    num_held_out: jax.Array  # steps that have scored any
    before: jax.Array  # mean objective of the last window
    best_score: jax.Array  # of held-out rows, between two checks
    best_before: jax.Array  # that at the start of this window
    overfits: jax.Array  # whether held-out rows have been predicted worse while training went on
    window_start: jax.Array
    window_end: jax.Array
    num_reductions: jax.Array


class PacedState(NamedTuple):
    """The state that is trained, the one to go back to, and the pace."""

    inner: Tree
    best: Tree  # by held-out rows; the start where there are none
    pace: Pace


USUAL = Lengths()


class Training(NamedTuple):
    """How a method trains, as of :func:`self_paced`."""

    update: Update
    objective: Objective
    prior: Prior | None = None
    settled: Callable[[Tree], Tree] | None = None
    held_out: HeldOut | None = None
    lengths: Lengths = USUAL


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


def is_costly(posterior: Posterior, num_rows: int) -> bool:
    """Whether a step on a batch of so many rows in all costs much more than its overhead."""
    size = usual_batch_size(num_rows, posterior.num_weights) or num_rows
    if size * posterior.num_weights > _CHEAP_STEP:
        return True
    return any(len(shape) > 2 for shape in posterior.value_shapes().values())


def usual_lengths(posterior: Posterior, num_rows: int, of_adam: bool = True) -> Lengths:
    """Give the lengths for a model: shorter ones where steps are costly."""
    if not is_costly(posterior, num_rows):
        return USUAL
    size = usual_batch_size(num_rows, posterior.num_weights) or num_rows
    window = min(max(_WINDOW_EPOCHS * (num_rows // size), _LEAST_WINDOW), USUAL.window)
    return Lengths(0 if of_adam else _SHORT_TRIAL, window)


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
        from half the budget. ``held_out``: ``info -> scalar``, the mean log-likelihood of rows that
        are not trained on before it has settled, NaN where a batch has none; it then decides when
        the rate falls, and training goes back to its best state. Training that fits these rows
        worse and worse does not settle but ends there. ``lengths``: :class:`Lengths`.
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
        goes_back |= ~_is_settled(pace) & (pace.best_score > -jnp.inf)
    return jax.tree.map(partial(jnp.where, goes_back), state.best, state.inner)


def begin(inner: Tree, lengths: Lengths = USUAL) -> PacedState:
    """Start training, with the budget still unknown."""
    zero, none, least = jnp.zeros((), int), jnp.zeros(()), jnp.asarray(-jnp.inf)
    pace = Pace(
        budget=jnp.asarray(_NEVER),
        num_steps=zero,
        start=zero,
        rate=none if lengths.trial else jnp.asarray(_USUAL_RATE),
        first=none,
        first_fit=none,
        scores=jnp.full(len(RATES), -jnp.inf),
        fits=jnp.full(len(RATES), -jnp.inf),
        total=none,
        total_fit=none,
        held_out=none,
        num_held_out=zero,
        before=least,
        best_score=least,
        best_before=least,
        overfits=jnp.zeros((), bool),
        window_start=zero,
        window_end=zero,
        num_reductions=zero,
    )
    return with_budget(lengths, 0, PacedState(inner, inner, pace), pace.budget)


def with_budget(
    lengths: Lengths, least_steps: int, state: PacedState, num_steps: jax.Array
) -> PacedState:
    """Lay out the trials in a budget of `num_steps` steps."""
    budget = jnp.asarray(num_steps, int)
    trials = num_trial_steps(budget, lengths)
    window = max(lengths.window, least_steps)
    windows = {"window_start": trials, "window_end": trials + window}
    return state._replace(pace=state.pace._replace(budget=budget, **windows))


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


def rate_now(pace: Pace, lengths: Lengths = USUAL) -> jax.Array:
    """Give the rate on trial, later the one found; it falls to 0 at the end of the budget."""
    length = _trial_length(pace.budget, lengths)
    trial = jnp.minimum(pace.num_steps // jnp.maximum(length, 1), len(RATES) - 1)
    left = (pace.budget - pace.num_steps) / (pace.budget / _DECAY_SHARE)
    found = pace.rate * jnp.clip(left, 0.0, 1.0)
    return jnp.where(pace.num_steps < len(RATES) * length, jnp.asarray(RATES)[trial], found)


def _ended(pace: Pace) -> jax.Array:
    return (pace.num_steps >= pace.budget) | (pace.num_reductions >= _REDUCTIONS)


def _is_settled(pace: Pace) -> jax.Array:
    half = (pace.start + pace.budget) // 2
    return (pace.num_steps >= half) | (pace.num_reductions >= _REDUCTIONS - 1)


def _is_trying(pace: Pace, lengths: Lengths) -> jax.Array:
    return pace.num_steps < num_trial_steps(pace.budget, lengths)


def _is_early(pace: Pace, lengths: Lengths) -> jax.Array:
    """Whether this is a trial, or the first window since a start."""
    first_window = jnp.maximum(pace.start, num_trial_steps(pace.budget, lengths))
    return _is_trying(pace, lengths) | (pace.window_start == first_window)


def num_trial_steps(budget: Any, lengths: Lengths = USUAL) -> jax.Array:
    """Count the steps of a budget in which rates are tried, before training at the best one."""
    return len(RATES) * _trial_length(budget, lengths)


def _trial_length(budget: jax.Array, lengths: Lengths) -> jax.Array:
    least = min(_LEAST_TRIAL, lengths.trial)
    return jnp.clip(budget // _TRIAL_SHARE, least, lengths.trial)


def _observed(
    training: Training,
    state: PacedState,
    objective: jax.Array,
    fit: jax.Array,
    held_out: jax.Array,
) -> PacedState:
    """Count a step with its scores; end the trial or the window if it is the last of one."""
    pace, lengths = state.pace, training.lengths
    length = jnp.maximum(_trial_length(pace.budget, lengths), 1)
    count = pace.num_steps + 1
    trying, early = _is_trying(pace, lengths), _is_early(pace, lengths)
    # Only the second half of a trial counts, in which the first large steps are forgotten.
    counts = ~trying | (2 * (pace.num_steps % length) >= length)
    is_first = pace.num_steps == 0
    scored = ~trying & ~jnp.isnan(held_out)
    pace = pace._replace(
        num_steps=count,
        total=pace.total + jnp.where(counts, jnp.nan_to_num(objective, nan=-jnp.inf), 0.0),
        total_fit=pace.total_fit
        + jnp.where(counts & early, jnp.nan_to_num(fit, nan=-jnp.inf), 0.0),
        held_out=pace.held_out + jnp.where(scored, held_out, 0.0),
        num_held_out=pace.num_held_out + scored,
        first=jnp.where(is_first, objective, pace.first),
        first_fit=jnp.where(is_first, fit, pace.first_fit),
    )
    state, overfits = _checked(training, state._replace(pace=pace))
    pace = state.pace
    knows_prior = training.prior is not None
    ends = count == pace.window_end
    fell = ends & (pace.total / (count - pace.window_start) < pace.first - _MOST_FALL)
    fell &= pace.before > -jnp.inf
    lost = ~trying & (~jnp.isfinite(objective) | fell)
    forgot = ends & knows_prior & early & _has_forgotten(pace)
    cases = (trying & (count % length == 0), lost, forgot, ends | overfits, True)
    case = jnp.select(cases, (1, 2, 3, 4, 0))

    def ended(state: PacedState) -> PacedState:
        pace = state.pace
        branches = (
            partial(_trial_ended, training),
            partial(_restarted, training, pace.rate / 3),
            partial(_restarted, training, jnp.asarray(_USUAL_RATE)),
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
    steps = pace.num_steps - pace.window_start
    every = jnp.maximum((pace.window_end - pace.window_start) // _CHECKS, 1)
    due = (pace.num_held_out > 0) & (steps % every == 0)
    score = pace.held_out / pace.num_held_out
    better = due & (score > pace.best_score)
    worse = due & ~(score > pace.best_score - training.held_out.most_loss)
    best = where_needed(
        better, lambda inner, _: inner, lambda _, best: best, state.inner, state.best
    )
    pace = pace._replace(
        held_out=jnp.where(due, 0.0, pace.held_out),
        num_held_out=jnp.where(due, 0, pace.num_held_out),
        best_score=jnp.where(better, score, pace.best_score),
        overfits=pace.overfits | worse,
    )
    return PacedState(state.inner, best, pace), worse


def _trial_ended(training: Training, state: PacedState) -> PacedState:
    """Note what the rate has reached, choose among those so far, and start anew."""
    pace = state.pace
    length = jnp.maximum(_trial_length(pace.budget, training.lengths), 1)
    trial, counted = pace.num_steps // length - 1, length - length // 2
    pace = pace._replace(
        scores=pace.scores.at[trial].set(pace.total / counted),
        fits=pace.fits.at[trial].set(pace.total_fit / counted),
        total=jnp.zeros(()),
        total_fit=jnp.zeros(()),
    )
    rate = _best_rate(pace, training.prior is not None)
    return PacedState(state.best, state.best, pace._replace(rate=rate))


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
    return (pace.rate > _USUAL_RATE) & (gain < _LEAST_SHARE_GAINED * most)


def _restarted(training: Training, rate: jax.Array, state: PacedState) -> PacedState:
    """Start again at a lower rate."""
    pace = state.pace
    zero = jnp.zeros_like(pace.num_reductions)
    pace = pace._replace(rate=rate, start=pace.num_steps, num_reductions=zero)
    pace = _next_window(training, pace, jnp.asarray(-jnp.inf))
    return PacedState(state.best, state.best, pace)


def _window_ended(training: Training, overfits: jax.Array, state: PacedState) -> PacedState:
    pace, best, inner = state.pace, state.best, state.inner
    mean = pace.total / (pace.num_steps - pace.window_start)
    flat = overfits | (mean - pace.before < _LEAST_GAIN)
    if training.held_out is not None:
        if training.held_out.must_gain:
            flat |= pace.best_score - pace.best_before < _LEAST_GAIN
        inner = jax.tree.map(partial(jnp.where, flat & ~_is_settled(pace)), best, inner)
    num = pace.num_reductions + flat
    # Training that overfits ends where it would go on with all rows.
    ends = pace.overfits & _is_settled(pace._replace(num_reductions=num))
    pace = pace._replace(
        rate=jnp.where(flat, pace.rate / 10**0.5, pace.rate),
        num_reductions=jnp.where(ends, _REDUCTIONS, num),
        best_before=pace.best_score,
    )
    inner = jax.tree.map(partial(jnp.where, ends), best, inner)
    return PacedState(inner, best, _next_window(training, pace, jnp.where(flat, -jnp.inf, mean)))


def _next_window(training: Training, pace: Pace, before: jax.Array) -> Pace:
    trained = pace.num_steps - num_trial_steps(pace.budget, training.lengths)
    length = jnp.maximum(training.lengths.window, trained // _WINDOW_SHARE)
    return pace._replace(
        total=jnp.zeros(()),
        total_fit=jnp.zeros(()),
        held_out=jnp.zeros(()),
        num_held_out=jnp.zeros_like(pace.num_held_out),
        before=before,
        window_start=pace.num_steps,
        window_end=pace.num_steps + length,
    )
