"""The figure of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.metrics.inputs import Array, one_output
from bnn_ppl.plots.chains import rhat_histogram, trace_logdensity
from bnn_ppl.plots.predictions import (
    calibration_check,
    coverage,
    pit_histogram,
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
    check: metrics.CalibrationCheck | None = None,
    panel: Callable[..., Any] | None = None,
    choice: str | None = None,
) -> Figure:
    """One figure of a run: fit and calibration; convergence and trace, if it sampled; warm-up.

    Parameters
    ----------
    draws : arviz.InferenceData
        What `run` returned; its verdict is the subtitle, above the sentence of the check.
    function_rhat, weight_rhat : array or Dataset
        R-hat in function space and of the weights.
    prediction : Dataset
        Prediction of a classifier (`reliability`, `selective_accuracy`) or of a regression
        (`predicted_against_observed`, `coverage`, `pit_histogram`, `calibration_check`).
    y : array (rows,) or (rows, outputs)
        True class numbers, or targets in the units of the prediction.
    scale, offset : float or array (outputs,)
        Original units of a regression are scale * y + offset.
    title : str
        Title above the panels.
    outputs : sequence of str, optional
        Names of several outputs, each of which has a panel of its own; by default their numbers.
    check : CalibrationCheck, optional
        Check of this prediction; by default `bnn_ppl.metrics.calibration_check` without inputs.
    panel : Callable, optional
        Draws one more panel of predictions, called with ``ax=``, such as a `rootogram`.
    choice : str, optional
        What was found of the model and over what, the last line of the subtitle.
    """
    from matplotlib.figure import Figure

    # Fitted once a chain, there is neither a trace nor anything to converge.
    sampled = "sample_stats" in draws and draws["posterior"].sizes["draw"] > 1
    warmed = shows_objective(draws) or shows_rates(draws)
    num_fits = 1 if np.ndim(y) == 1 else np.shape(y)[1]
    scored = shows_scores(draws)
    classes = "probs" in prediction
    num_panels = num_fits + (1 if classes else 3) + (panel is not None)  # of predictions
    num_rows = -(-num_panels // 2) + sampled + warmed + scored
    if check is None:
        units = {} if classes else {"scale": scale, "outputs": outputs}
        check = metrics.calibration_check(prediction, y, **units)
    figure = Figure(figsize=(12, 4.5 * num_rows), layout="constrained")
    axes = list(figure.subplots(num_rows, 2).flat)
    fits, rest = axes[:num_fits], axes[num_panels:]
    if num_panels % 2:
        rest.pop(0).axis("off")
    if classes:
        reliability(prediction, y, ax=fits[0])
        selective_accuracy(prediction, y, ax=axes[1])
    else:
        if np.ndim(y) == 1:
            predicted_against_observed(prediction, y, scale=scale, offset=offset, ax=fits[0])
        else:
            _several_outputs(prediction, np.asarray(y), scale, offset, outputs, fits)
        held, histogram, where = axes[num_fits : num_fits + 3]
        coverage(prediction, y, ax=held, outputs=outputs)
        pit_histogram(prediction, y, ax=histogram, outputs=outputs)
        calibration_check(check, ax=where)
    if panel is not None:
        panel(ax=axes[num_panels - 1])
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
    told = [(check.sentence, check.trusted is not False)]
    if "verdict" in draws.attrs:
        told.insert(0, (str(draws.attrs["verdict"]), bool(draws.attrs.get("converged"))))
    if choice is not None:
        told.append((f"network {choice}", True))
    _subtitles(figure, told)
    return figure


def _several_outputs(
    prediction: Mapping[Any, Any],
    y: Array,
    scale: Any,
    offset: Any,
    outputs: Sequence[str] | None,
    fits: Sequence[Axes],
) -> None:
    """Draw each output against its target in its own units."""
    names = outputs or [f"output {number}" for number in range(y.shape[1])]
    units = np.broadcast_to(scale, y.shape[1:]), np.broadcast_to(offset, y.shape[1:])
    for k, (ax, name, own, zero) in enumerate(zip(fits, names, *units, strict=True)):
        marginal = one_output(prediction, k)
        predicted_against_observed(marginal, y[:, k], scale=own, offset=zero, ax=ax)
        title = f"{name}: p{ax.get_title(loc='left')[1:]}"
        ax.set_title(title, loc="left", fontsize="medium", fontweight="bold")


def _warmup(draws: arviz.InferenceData, objective: Axes, rates: Axes) -> None:
    for shown, draw, ax in (
        (shows_objective(draws), warmup_objective, objective),
        (shows_rates(draws), warmup_rates, rates),
    ):
        if shown:
            draw(draws, ax=ax)
        else:
            ax.axis("off")


def _subtitles(figure: Figure, told: Sequence[tuple[str, bool]]) -> None:
    """Write under the title, bad news in red; the layout leaves room for the lines it takes."""
    height = figure.get_figheight()
    engine: Any = figure.get_layout_engine()
    down = _INCHES_OF_TITLE
    for text, good in told:
        lines = textwrap.wrap(text, _LETTERS)
        at, color = 1 - down / height, GREY if good else RED
        figure.text(0.5, at, "\n".join(lines), ha="center", va="top", color=color)
        down += _INCHES_A_LINE * len(lines)
    engine.set(rect=(0, 0, 1, 1 - (down - _INCHES_OF_TITLE + 0.5 * _INCHES_A_LINE) / height))
