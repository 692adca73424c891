"""Figures of single functions, drawn from a prior or a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.plots.style import BLUE, finish, new_figure

if TYPE_CHECKING:
    import arviz
    from matplotlib.figure import Figure


def sample_maps(
    functions: arviz.InferenceData | Mapping[str, arviz.InferenceData],
    y: Any,
    *,
    num_draws: int = 6,
) -> Figure:
    """Map the class probabilities of single draws: a line an image, a column a class.

    The lines are sorted by y. A draw from a vague prior gives one class to nearly all images, and
    another draw another class, so that their mean is even (Wilson & Izmailov, 2020, "Bayesian Deep
    Learning and a Probabilistic Perspective of Generalization").

    Parameters
    ----------
    functions : InferenceData, or dict of str to InferenceData
        From :func:`bnn_ppl.function_draws`, of classes, with draws of a run or of
        :func:`bnn_ppl.prior_draws`; several for the same rows, a row of maps each, by title.
    y : array
        Classes of the rows, shape (rows,).
    num_draws : int
        Number of maps, the draws spread evenly over chains and draws.

    Raises
    ------
    ValueError
        If there are no functions, or they are not of classes, or of other rows than y.
    """
    from matplotlib.colors import LinearSegmentedColormap

    # InferenceData is a mapping itself, of groups.
    named: Mapping[str, Any] = {"": functions} if hasattr(functions, "posterior") else functions
    if not named:
        raise ValueError("got no functions, expected what function_draws returned, or several")
    y = np.asarray(y)
    order = np.argsort(y, kind="stable")
    colors = LinearSegmentedColormap.from_list("probability", ["white", BLUE])
    figure = new_figure(1 + 1.6 * num_draws, 0.6 + 2.6 * len(named))
    axes = figure.subplots(len(named), num_draws, squeeze=False)
    for line, (title, drawn) in zip(axes, named.items(), strict=True):
        probs = _probabilities(title, drawn, len(y))
        chosen = np.linspace(0, len(probs) - 1, num_draws).round().astype(int)
        for ax, index in zip(line, chosen, strict=True):
            map_ = ax.imshow(
                probs[index][order], cmap=colors, vmin=0, vmax=1, aspect="auto", origin="lower"
            )
            first = ax is line[0]
            finish(
                ax, title if first else "", "class", "image, by class" if first else "", legend=""
            )
            ax.set_yticks([])
    bar = figure.colorbar(map_, ax=list(axes.ravel()), shrink=0.8, label="probability")
    bar.outline.set_visible(False)
    return figure


def _probabilities(title: str, functions: Any, num_rows: int) -> np.ndarray:
    """Give (draws of all chains, rows, classes)."""
    probs = functions.posterior.get("probs")
    shape: tuple[int, ...] = () if probs is None else probs.shape[2:]
    if len(shape) != 2 or shape[0] != num_rows:
        raise ValueError(
            f"got functions {title!r} of shape {shape}, expected probabilities ({num_rows}, "
            "classes) for the rows of y: pass what function_draws returned for them"
        )
    return probs.values.reshape(-1, *shape)
