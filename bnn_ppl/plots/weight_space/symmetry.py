"""Figure of the loss between chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bnn_ppl.plots.style import finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def barriers(lines: Mapping[str, Any]) -> Figure:
    """Loss on straight lines between two chains, such as before and after matching their units.

    Parameters
    ----------
    lines
        Datasets from :func:`bnn_ppl.symmetry.barrier`, by name.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot: save it with ``figure.savefig(path)``.

    Raises
    ------
    ValueError
        If there is no line.
    """
    from matplotlib.figure import Figure

    if not lines:
        raise ValueError("got no lines, expected at least one, from bnn_ppl.symmetry.barrier")
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, line in lines.items():
        label = f"{name} (barrier {float(line.barrier):.2g})"
        axes.plot(line.share, line.nll, marker=".", label=label)
    finish(
        axes, "Between two chains", "share of the second chain", "negative log-likelihood (nats)"
    )
    return figure
