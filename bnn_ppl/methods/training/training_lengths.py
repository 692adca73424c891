"""Default batch sizes, and budgets of training."""

import math
from typing import Any

_BATCH_SIZES = 128, 1024
_CHEAP_BATCH = 2**18  # rows times weights: as costly as the fixed overhead of a step
_LEAST_BATCH, _LEAST_BATCHES = 32, 32  # of convolutions that are trained on few rows


def has_convolutions(posterior: Any) -> bool:
    """Whether weights act at many places of an input, so that a row costs more than it seems."""
    return any(len(shape) > 2 for shape in posterior.sites.value_shapes().values())


def usual_batch_size(
    num_rows: int, num_weights: int, trains_convolutions: bool = False
) -> int | None:
    """Give the default batch size of stochastic gradients.

    128 rows; up to 1,024 if the network has so few weights that they cost little, since gradients
    on fewer rows are noisier. None, that is all rows, if that leaves at most two batches. Training
    of convolutions, which cost much a row and few steps, takes fewer rows, down to 32, where an
    epoch would have fewer than 32 batches.
    """
    if trains_convolutions:
        size = 2 ** math.floor(math.log2(max(1, num_rows / _LEAST_BATCHES)))
        size = min(max(size, _LEAST_BATCH), _BATCH_SIZES[0])
        return size if num_rows > 2 * size else None
    cheap = 2 ** math.floor(math.log2(max(1, _CHEAP_BATCH // num_weights)))
    size = min(max(cheap, _BATCH_SIZES[0]), _BATCH_SIZES[1])
    return size if num_rows > 2 * size else None


_TRAINING = 2**38  # rows times weights of all steps of training: minutes on two cores
_LEAST_STEPS, _LEAST_EPOCHS = 5_000, 100


def usual_num_steps(most: int, num_rows: int, num_weights: int, batch_size: int | None) -> int:
    """Give the default budget of training.

    It is `most` steps; fewer where these would take hours, but at least 5,000 and 100 epochs.
    """
    of_step = num_rows if batch_size is None else batch_size
    least = max(_LEAST_STEPS, _LEAST_EPOCHS * (num_rows // of_step))
    return min(most, max(_TRAINING // (of_step * num_weights), least))
