"""The figure of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.inputs import Array, one_output
from bnn_ppl.plots.chains import rhat_histogram, trace_logdensity
from bnn_ppl.plots.predictions import (
    coverage,
    predicted_against_observed,
    reliability,
    selective_accuracy,
)
from bnn_ppl.plots.style import GREY, RED
from bnn_ppl.plots.warmup import (
    shows_objective,
    shows_rates,
    shows_scores,
    warmup_objective,
    warmup_rates,
    warmup_scores,
)

if TYPE_CHECKING:
    import arviz
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTERS, _INCHES_A_LINE, _INCHES_OF_TITLE = 140, 0.22, 0.42  # of the subtitle, at 12 inches


def report(
    draws: arviz.InferenceData,
    function_rhat: ArrayLike | Mapping[Any, Any],
    weight_rhat: ArrayLike | Mapping[Any, Any],
    prediction: Mapping[Any, Any],
    y: ArrayLike,
    *,
    scale: Any = 1.0,
    offset: Any = 0.0,
    title: str = "",
    outputs: Sequence[str] | None = None,
) -> Figure:
    """One figure of a run: fit and calibration; convergence and trace, if it sampled; warm-up.

    Parameters
    ----------
    draws : arviz.InferenceData
        What `run` returned; its verdict is the subtitle.
    function_rhat, weight_rhat : array or Dataset
        R-hat in function space and of the weights.
    prediction : Dataset
        Of a classifier (`reliability`, `selective_accuracy`) or of a regression
        (`predicted_against_observed`, `coverage`).
    y : array (rows,) or (rows, outputs)
        True class numbers, or targets in the units of the prediction.
    scale, offset : float or array (outputs,)
        Original units of a regression are scale * y + offset.
    title : str
        Title above the panels.
    outputs : sequence of str, optional
        Names of several outputs, each of which has a panel of its own; by default their numbers.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot: save it with ``figure.savefig(path)``.
    """
    from matplotlib.figure import Figure

    # Fitted once a chain, there is neither a trace nor anything to converge.
    sampled = "sample_stats" in draws and draws["posterior"].sizes["draw"] > 1
    warmed = shows_objective(draws) or shows_rates(draws)
    num_fits = 1 if np.ndim(y) == 1 else np.shape(y)[1]
    scored = shows_scores(draws)
    num_rows = 1 + num_fits // 2 + sampled + warmed + scored
    figure = Figure(figsize=(12, 4.5 * num_rows), layout="constrained")
    axes = list(figure.subplots(num_rows, 2).flat)
    fits, calibration, rest = axes[:num_fits], axes[num_fits], axes[num_fits + 1 :]
    if num_fits % 2 == 0:
        rest.pop(0).axis("off")
    if "probs" in prediction:
        reliability(prediction, y, ax=fits[0])
        selective_accuracy(prediction, y, ax=calibration)
    elif np.ndim(y) == 1:
        predicted_against_observed(prediction, y, scale=scale, offset=offset, ax=fits[0])
        coverage(prediction, y, ax=calibration)
    else:
        _several_outputs(prediction, np.asarray(y), scale, offset, outputs, fits, calibration)
    if sampled:
        convergence, trace, *rest = rest
        rhat_histogram(weight_rhat, function_rhat, ax=convergence)
        if "lp" in draws["sample_stats"]:
            trace_logdensity(draws, ax=trace)
        else:
            trace.axis("off")
    if warmed:
        _warmup(draws, *rest[:2])
    if scored:
        warmup_scores(draws, ax=rest[-2])
        rest[-1].axis("off")
    figure.suptitle(title, fontsize="x-large", fontweight="bold")
    if "verdict" in draws.attrs:
        _subtitle(figure, str(draws.attrs["verdict"]), bool(draws.attrs.get("converged")))
    return figure


def _several_outputs(
    prediction: Mapping[Any, Any],
    y: Array,
    scale: Any,
    offset: Any,
    outputs: Sequence[str] | None,
    fits: Sequence[Axes],
    calibration: Axes,
) -> None:
    """Draw each output against its target in its own units, and the coverage of them all."""
    names = outputs or [f"output {number}" for number in range(y.shape[1])]
    units = np.broadcast_to(scale, y.shape[1:]), np.broadcast_to(offset, y.shape[1:])
    for k, (ax, name, own, zero) in enumerate(zip(fits, names, *units, strict=True)):
        marginal = one_output(prediction, k)
        predicted_against_observed(marginal, y[:, k], scale=own, offset=zero, ax=ax)
        title = f"{name}: p{ax.get_title(loc='left')[1:]}"
        ax.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    coverage(prediction, y, ax=calibration, outputs=names)


def _warmup(draws: arviz.InferenceData, objective: Axes, rates: Axes) -> None:
    for shown, draw, ax in (
        (shows_objective(draws), warmup_objective, objective),
        (shows_rates(draws), warmup_rates, rates),
    ):
        if shown:
            draw(draws, ax=ax)
        else:
            ax.axis("off")


def _subtitle(figure: Figure, text: str, good: bool) -> None:
    """Write under the title, where the layout leaves room for as many lines as it takes."""
    lines = textwrap.wrap(text, _LETTERS)
    height = figure.get_figheight()
    engine: Any = figure.get_layout_engine()
    room = _INCHES_A_LINE * (len(lines) + 0.5) / height
    engine.set(rect=(0, 0, 1, 1 - room))
    top = 1 - _INCHES_OF_TITLE / height
    color = GREY if good else RED
    figure.text(0.5, top, "\n".join(lines), ha="center", va="top", fontsize="medium", color=color)
