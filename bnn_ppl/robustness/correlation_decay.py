"""How fast a distribution over functions forgets an image as it is corrupted."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.inputs import Array
from bnn_ppl.analysis.weight_space.correlations import function_correlations
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.robustness.corruptions import corrupt
from bnn_ppl.robustness.shift import SEVERITIES, pixels_of, standardised
from bnn_ppl.runtime.checks import each_of

if TYPE_CHECKING:
    import arviz
    import pandas


def correlation_decay(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any,
    names: str | Iterable[str],
    *,
    x_mean: ArrayLike = 0.0,
    x_scale: ArrayLike = 1.0,
    severities: int | Sequence[int] = SEVERITIES,
    output: int | None = None,
    seed: int = 0,
) -> "pandas.DataFrame":
    r"""Correlation of the outputs for images with those for the same images corrupted.

    Wilson & Izmailov (2020), "Bayesian Deep Learning and a Probabilistic Perspective of
    Generalization": under the prior of a convolutional network it falls more slowly than under a
    Gaussian process with an RBF kernel, whose correlation is
    :math:`\exp(-\tfrac12 |x - x'|^2 / l^2)`; l is here the median distance between the images.

    Parameters
    ----------
    posterior, draws, output
        As in :func:`bnn_ppl.correlations.function_correlations`.
    x
        Images (rows, height, width, 1 or 3) as the network sees them, two or more.
    names
        Names of :data:`bnn_ppl.corruptions.CORRUPTIONS`, or one.
    x_mean, x_scale
        Standardisation of the data set: x * x_scale + x_mean are pixels from 0 to 255.
    severities
        From 1 to 5, or one.
    seed
        Seed of the corruptions' random numbers.

    Returns
    -------
    pandas.DataFrame
        A row a corruption and severity, 0 for the images themselves: ``corruption``, ``severity``,
        ``correlation`` (mean over rows) and ``rbf``, that of the RBF kernel.

    Raises
    ------
    ValueError
        For unknown names or severities, fewer than 2 images or images of other pixels, and as
        `function_correlations`.
    """
    import pandas as pd

    x, names, severities = np.asarray(x), each_of(names), each_of(severities)
    if len(x) < 2 or not names:
        raise ValueError(
            f"got {len(x)} images and {len(names)} corruptions, expected 2 or more and 1 or more"
        )
    images = pixels_of(x, x_mean, x_scale)
    for name in names:  # refuses before anything is computed
        for severity in severities:
            corrupt(images[:1], name, severity, seed=seed)
    length = _median_distance(x)
    rows = []
    for name in names:
        changed = (corrupt(images, name, severity, seed=seed) for severity in severities)
        versions = [x, *(standardised(each, x_mean, x_scale, x.dtype) for each in changed)]
        found = function_correlations(posterior, draws, np.concatenate(versions), output=output)
        for place, severity in enumerate((0, *severities)):
            own = found[np.arange(len(x)), place * len(x) + np.arange(len(x))]
            squares = ((versions[place] - x).astype(float) ** 2).reshape(len(x), -1).sum(1)
            kernel = np.exp(-0.5 * squares / length**2)
            rows.append((name, severity, float(own.mean()), float(kernel.mean())))
    return pd.DataFrame(rows, columns=["corruption", "severity", "correlation", "rbf"])


def _median_distance(x: Array) -> float:
    flat = x.reshape(len(x), -1).astype(float)
    squares = (flat**2).sum(1)
    between = squares[:, None] + squares - 2 * flat @ flat.T
    distance = float(np.sqrt(np.median(between[np.triu_indices(len(x), 1)])))
    if not distance > 0:
        raise ValueError("got images that are the same, expected different ones")
    return distance
