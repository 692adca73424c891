"""The figure of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.metrics.inputs import one_output
from bnn_ppl.plots.chains import rhat_histogram, trace_logdensity
from bnn_ppl.plots.predictions import (
    calibration_check,
    coverage,
    pit_histogram,
    predicted_against_observed,
    reliability,
    selective_accuracy,
)
from bnn_ppl.plots.style import GREY, RED, panels
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
    if check is None:
        units = {} if "probs" in prediction else {"scale": scale, "outputs": outputs}
        check = metrics.calibration_check(prediction, y, **units)
    drawn: list[Callable[..., Any] | None]
    if "probs" in prediction:
        drawn = [partial(reliability, prediction, y), partial(selective_accuracy, prediction, y)]
    else:
        drawn = [
            *_fits(prediction, y, scale, offset, outputs),
            partial(coverage, prediction, y, outputs=outputs),
            partial(pit_histogram, prediction, y, outputs=outputs),
            partial(calibration_check, check),
        ]
    drawn += [panel] if panel else []
    drawn += [None] * (len(drawn) % 2)
    # Fitted once a chain, there is neither a trace nor anything to converge.
    if "sample_stats" in draws and draws["posterior"].sizes["draw"] > 1:
        trace = partial(trace_logdensity, draws) if "lp" in draws["sample_stats"] else None
        drawn += [partial(rhat_histogram, weight_rhat, function_rhat), trace]
    if shows_objective(draws) or shows_rates(draws):
        drawn.append(partial(warmup_objective, draws) if shows_objective(draws) else None)
        drawn.append(partial(warmup_rates, draws) if shows_rates(draws) else None)
    if shows_scores(draws):
        drawn += [partial(warmup_scores, draws), None]
    figure, axes = panels(len(drawn), 2, (6, 4.5))
    for ax, draw in zip(axes, drawn, strict=True):
        if draw is None:
            ax.axis("off")
        else:
            draw(ax=ax)
    figure.suptitle(title, fontsize="x-large", fontweight="bold")
    told = [(check.sentence, check.trusted is not False)]
    if "verdict" in draws.attrs:
        told.insert(0, (str(draws.attrs["verdict"]), bool(draws.attrs.get("converged"))))
    if choice is not None:
        told.append((f"network {choice}", True))
    _subtitles(figure, told)
    return figure


def _fits(
    prediction: Mapping[Any, Any],
    y: ArrayLike,
    scale: Any,
    offset: Any,
    outputs: Sequence[str] | None,
) -> list[Callable[..., Any]]:
    """Give what draws each output against its target in its own units."""
    if np.ndim(y) == 1:
        return [partial(predicted_against_observed, prediction, y, scale=scale, offset=offset)]
    y = np.asarray(y)
    names = outputs or [f"output {number}" for number in range(y.shape[1])]
    scales, offsets = np.broadcast_to(scale, y.shape[1:]), np.broadcast_to(offset, y.shape[1:])

    def one(k: int, ax: Axes) -> None:
        units = {"scale": scales[k], "offset": offsets[k]}
        predicted_against_observed(one_output(prediction, k), y[:, k], **units, ax=ax)
        title = f"{names[k]}: p{ax.get_title(loc='left')[1:]}"
        ax.set_title(title, loc="left", fontsize="medium", fontweight="bold")

    return [partial(one, k) for k in range(y.shape[1])]


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
