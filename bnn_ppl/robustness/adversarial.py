"""Small changes of the inputs that mislead a prediction most, by the sign of the gradient."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import check_float_inputs, checked_rows
from bnn_ppl.robustness.shift import predictions_of, scored
from bnn_ppl.runtime.checks import each_of
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import in_blocks, weights_of

if TYPE_CHECKING:
    import arviz
    import pandas

Array = jax.Array
Tree = Any
Bounds: TypeAlias = tuple[ArrayLike, ArrayLike]

EPSILONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)


class _Average(NamedTuple):
    """Running average over draws, by row; no draw is kept."""

    log_prob: Array  # log of the summed weight times density of y
    slope: Array  # gradient of the log of the average density, shape of x


def fgsm(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    epsilon: float,
    *,
    num_steps: int = 1,
    clip: Bounds | None = None,
    batch_size: int | None = None,
) -> np.ndarray:
    r"""Move inputs to make their targets less probable, by the fast gradient sign method.

    .. math:: x' = x + \epsilon \operatorname{sign} \nabla_x (-\log E_w p(y \mid x, w))

    (Goodfellow et al. 2015) for the average over draws that `predict` gives, not
    for one of them or for the average loss. With several steps, each of epsilon / num_steps from
    where the last one led, the basic iterative method (Kurakin et al. 2017).

    Parameters
    ----------
    posterior
        The one that was sampled, of classes or of numbers.
    draws
        From :func:`bnn_ppl.run`; they stream through. For speed some of them, see
        :func:`bnn_ppl.shift.thinned`.
    data
        A pair (x, y): x an array of floats (rows, ...), as the model saw it, and targets y.
    epsilon
        Largest change of each input, in the units of x: of standardised ones, standard deviations.
    num_steps
        Number of gradient steps.
    clip
        Lowest and highest values that x may take, numbers or arrays that broadcast to x: the range
        of the pixels. By default no bounds.
    batch_size
        Rows at a time; all at once by default.

    Returns
    -------
    numpy.ndarray
        Shape and units of x.

    Raises
    ------
    ValueError
        If x is not one array of floats, rows are not like those conditioned on, epsilon is
        negative, `num_steps` or `batch_size` below 1, bounds are crossed, or the draws lack a site.

    Notes
    -----
    An input whose target has probability 1 to the precision of the run has no gradient and is not
    moved, which is not robustness. In double precision there are fewer such inputs.
    """
    x, y = _checked(posterior, data, (epsilon,), num_steps, clip, batch_size)
    direction = _direction(posterior, draws, batch_size)
    return _moved(x, epsilon, direction(x, y), lambda x: direction(x, y), num_steps, clip)


def attacked(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    epsilons: float | Sequence[float] = EPSILONS,
    *,
    num_steps: int = 1,
    clip: Bounds | None = None,
    batch_size: int | None = None,
    scale: float = 1.0,
    progress: bool = False,
) -> "pandas.DataFrame":
    """Score predictions of inputs moved by `fgsm`, for several values of epsilon.

    Parameters
    ----------
    posterior, draws, data, num_steps, clip, batch_size
        As in `fgsm`; the same draws give the gradient and the predictions.
    epsilons
        Largest changes, in the units of x, or one.
    scale
        What regression targets were divided by; the scores are in original units.
    progress
        Whether to show progress.

    Returns
    -------
    pandas.DataFrame
        One row per epsilon: ``epsilon``, the scores of :func:`bnn_ppl.metrics.summary`,
        ``num_rows``.

    Raises
    ------
    ValueError
        As `fgsm` and :func:`bnn_ppl.predict`.
    """
    epsilons = each_of(epsilons)
    x, y = _checked(posterior, data, epsilons, num_steps, clip, batch_size)
    direction = _direction(posterior, draws, batch_size)
    first = direction(x, y)  # the same for all
    versions = (
        _moved(x, epsilon, first, lambda x: direction(x, y), num_steps, clip)
        for epsilon in epsilons
    )
    conditions = [{"epsilon": epsilon} for epsilon in epsilons]
    predictions = predictions_of(posterior, draws, versions, y, batch_size)
    return scored(conditions, predictions, y, progress, scale=scale)


def _moved(
    x: np.ndarray,
    epsilon: float,
    first: np.ndarray,
    direction: Callable[[np.ndarray], np.ndarray],
    num_steps: int,
    clip: Bounds | None,
) -> np.ndarray:
    """Follow the first direction and then others; steps that sum to epsilon cannot leave it."""
    if epsilon == 0:
        return x
    step = float(epsilon / num_steps)  # a number of NumPy would make float64 of float32
    moved = _within(x + step * first, clip)
    for _ in range(num_steps - 1):
        moved = _within(moved + step * direction(moved), clip)
    return moved


def _within(x: np.ndarray, clip: Bounds | None) -> np.ndarray:
    return x if clip is None else np.clip(x, *clip).astype(x.dtype)


def _direction(
    posterior: Posterior, draws: "arviz.InferenceData", batch_size: int | None
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Make the function of rows (x, y) that says which way their loss grows: -1, 0 or 1."""
    slope = _slope(posterior, draws)

    def direction(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        size = batch_size or len(y)
        parts = (slice(start, start + size) for start in range(0, len(y), size))
        return -np.sign(np.concatenate([slope(x[part], y[part]) for part in parts]))

    return direction


def _slope(
    posterior: Posterior, draws: "arviz.InferenceData"
) -> Callable[[np.ndarray, np.ndarray], Array]:
    """Make the function of rows (x, y) that gives the gradient of their log density by x."""
    posterior = predicting(posterior, draws)
    sites, weights = sites_to_predict(posterior, draws), weights_of(draws)
    add = _adder(posterior)

    def slope(x: np.ndarray, y: np.ndarray) -> Array:
        average = _Average(jnp.full(len(y), -jnp.inf, x.dtype), jnp.zeros_like(x))
        with products_in(posterior.density.precision):
            for block, weight in in_blocks(sites, weights):
                # Waiting keeps blocks from piling up in memory before a slower device.
                average = jax.block_until_ready(add(average, block, weight.astype(x.dtype), x, y))
        return average.slope

    return slope


def _adder(posterior: Posterior) -> Callable[..., _Average]:
    """Compile the adding of a block of draws to the average."""

    @jax.jit
    def add(average: _Average, block: Tree, weights: Array, x: Array, y: Array) -> _Average:
        def body(average: _Average, draw: tuple[Tree, Array]) -> tuple[_Average, None]:
            values, weight = draw

            def log_prob(x: Array) -> tuple[Array, Array]:
                rows = posterior.predictive(values, x).log_prob(y)
                rows = rows.reshape(len(rows), -1).sum(1)
                return jnp.sum(rows), rows

            slope, rows = jax.grad(log_prob, has_aux=True)(x)
            own = jnp.log(weight) + rows
            total = jnp.logaddexp(average.log_prob, own)
            share = jnp.exp(own - jnp.where(jnp.isfinite(total), total, 0.0))
            share = share.reshape(-1, *[1] * (slope.ndim - 1))
            return _Average(total, average.slope + share * (slope - average.slope)), None

        return jax.lax.scan(body, average, (block, weights))[0]

    return add


def _checked(
    posterior: Posterior,
    data: Any,
    epsilons: Sequence[float],
    num_steps: int,
    clip: Bounds | None,
    batch_size: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    x, y = checked_rows(posterior, data)
    check_float_inputs(x)
    if not len(epsilons):
        raise ValueError("got no epsilons, expected one or more: 0.1 is usual")
    for epsilon in epsilons:
        if not 0 <= epsilon < np.inf:
            raise ValueError(f"got epsilon={epsilon}, expected a finite number from 0 up")
    for name, number in (("num_steps", num_steps), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ValueError(f"got {name}={number}, expected at least 1")
    if clip is not None and np.any(np.asarray(clip[0]) > np.asarray(clip[1])):
        raise ValueError("got clip with a lowest value above the highest, expected below: swap")
    return np.asarray(x), np.asarray(y)
