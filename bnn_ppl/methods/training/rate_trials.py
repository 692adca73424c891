"""Learning rates tried before training, and how long trials and windows of training are."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.training.training_lengths import has_convolutions, usual_batch_size
from bnn_ppl.model.posterior import Posterior

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
_LEAST_GAINED, USUAL_RATE = 0.01, 1e-3

# Where a step costs more rows times weights than this, or the weights of convolutions act at many
# places, a plain loop would have trained the network in the time of the trials: Adam's usual rate
# is taken, other optimisers try theirs for a few steps each, and windows last so many epochs.
_CHEAP_STEP, _SHORT_TRIAL, _WINDOW_EPOCHS, _LEAST_WINDOW = 2**21, 10, 3, 50

HELD_OUT_SHARE = 0.1  # of the rows, by which training ends
# Held-out rows that a check takes in, or all: with others each time, the best score would be luck.
_CHECKED_ROWS = 1000


class TrainingLengths(NamedTuple):
    """Most steps of a trial, and least of a window and between checks of held-out rows."""

    trial: int = 100  # 0: no rate is tried, Adam's usual one is taken
    window: int = 500
    check: int = 1


USUAL = TrainingLengths()


class Trials(NamedTuple):
    """What the rates on trial have reached."""

    first: jax.Array  # objective at the start
    first_fit: jax.Array  # that without the prior's part, as the other fits
    scores: jax.Array  # objective of each rate tried
    fits: jax.Array  # of each rate tried


def no_trials() -> Trials:
    """Begin before the first trial."""
    none, least = jnp.zeros(()), jnp.full(len(RATES), -jnp.inf)
    return Trials(none, none, least, least)


def is_costly(posterior: Posterior, num_rows: int) -> bool:
    """Whether a step on a batch of so many rows in all costs much more than its overhead."""
    size = usual_batch_size(num_rows, posterior.num_weights) or num_rows
    return size * posterior.num_weights > _CHEAP_STEP or has_convolutions(posterior)


def usual_lengths(posterior: Posterior, num_rows: int, of_adam: bool = True) -> TrainingLengths:
    """Give the lengths for a model: shorter ones where steps are costly."""
    if not is_costly(posterior, num_rows):
        return USUAL
    convolutions = has_convolutions(posterior)
    size = usual_batch_size(num_rows, posterior.num_weights, convolutions) or num_rows
    window = min(max(_WINDOW_EPOCHS * (num_rows // size), _LEAST_WINDOW), USUAL.window)
    check = min(num_rows, int(_CHECKED_ROWS / HELD_OUT_SHARE)) // size
    return TrainingLengths(0 if of_adam else _SHORT_TRIAL, window, max(check, 1))


def num_trial_steps(budget: Any, lengths: TrainingLengths = USUAL) -> jax.Array:
    """Count the steps of a budget in which rates are tried, before training at the best one."""
    return len(RATES) * trial_length(budget, lengths)


def trial_length(budget: Any, lengths: TrainingLengths = USUAL) -> jax.Array:
    """Count the steps of a trial."""
    least = min(_LEAST_TRIAL, lengths.trial)
    return jnp.clip(budget // _TRIAL_SHARE, least, lengths.trial)


def best_rate(trials: Trials, knows_prior: bool) -> jax.Array:
    """Give the rate with the best objective of those that have learnt from the rows."""
    gains = trials.fits - trials.first_fit
    most = jnp.max(gains)
    too_little = gains < jnp.minimum(most, _LEAST_SHARE_GAINED * most)
    best = jnp.asarray(RATES)[jnp.argmax(jnp.where(too_little, -jnp.inf, trials.scores))]
    return jnp.where(most < _LEAST_GAINED, USUAL_RATE, best) if knows_prior else best


def is_worse_than_tried(trials: Trials, rate: jax.Array, fit: jax.Array) -> jax.Array:
    """Whether a window whose mean fit this is has not learnt what the trials did."""
    most = jnp.max(trials.fits) - trials.first_fit
    too_little = fit - trials.first_fit < _LEAST_SHARE_GAINED * most
    return (rate > USUAL_RATE) & too_little
