"""The command ``surface``: the posterior on the plane through three draws."""

from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import tyro

from bnn_ppl.analysis.surface import corner
from bnn_ppl.analysis.surface import corners as corners_of
from bnn_ppl.analysis.surface import surface as surface_through
from bnn_ppl.cli.run_folders import Opened, check_figure, reopen, reopen_all
from bnn_ppl.plots.surface import posterior_surface

Draw: TypeAlias = tuple[int, int]

_SAME = ("net", "hidden", "prior", "prior_scale", "noise", "float64")


def surface(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional],
    *,
    corners: tuple[Draw, Draw, Draw] | None = None,
    num_points: int = 41,
    margin: float = 0.25,
    figure: Path | None = None,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Draw log-density, log-likelihood and log-prior on the plane through three draws.

    Writes the figure and, beside it, the numbers as netCDF (xarray.open_dataset).

    Parameters
    ----------
    folders
        One run that the command line made, for three draws of it; or three runs of one model on
        the same data, for one draw of each: the density is then that of the first run.
    corners
        Chain and draw of each corner, six numbers; -1 is the last. By default the last draw of
        three chains, or the first, middle and last draw of one; of three runs the last draw of
        each one's first chain.
    num_points
        Lines of the grid along each axis; the work grows with the square.
    margin
        Strip around the triangle, as a share of its larger extent.
    figure
        Where the figure goes. By default surface.png, in the folder of the run if it is one.
    progress
        Show a bar, or lines where there is no terminal.
    data_dir
        Folder with the data set, if it has moved since the runs.
    """
    if figure is not None:
        check_figure(figure)
    figure = figure or (folders[0] if len(folders) == 1 else Path()) / "surface.png"
    run, chosen = _chosen(folders, corners, data_dir)
    found = surface_through(
        run.posterior, chosen, num_points=num_points, margin=margin, progress=progress
    )
    print(_table(found))
    numbers = figure.with_suffix(".nc")
    found.to_netcdf(numbers, engine="scipy")
    posterior_surface(found).savefig(figure, dpi=150)
    print(f"figure in {figure}, numbers in {numbers}")


def _chosen(
    folders: tuple[Path, ...], corners: tuple[Draw, Draw, Draw] | None, data_dir: Path | None
) -> tuple[Opened, dict[str, Any]]:
    """Give the run whose density it is, and three positions by name."""
    if len(folders) == 1:
        run = reopen(folders[0], data_dir)
        return run, corners_of(run.posterior, run.draws, corners)
    if len(folders) != 3:
        raise ValueError(
            f"got {len(folders)} folders, expected one run, for three of its draws, or three runs"
        )
    runs = reopen_all(folders, data_dir)
    _check_models(runs)
    first = next(iter(runs.values()))
    pairs = corners or ((0, -1),) * 3
    return first, {
        name: corner(first.posterior, run.draws, *pair)
        for (name, run), pair in zip(runs.items(), pairs, strict=True)
    }


def _check_models(runs: dict[str, Opened]) -> None:
    (_, first), *others = runs.items()
    for name, run in others:
        for setting in _SAME:
            got, expected = (getattr(each.problem, setting) for each in (run, first))
            if got != expected:
                raise ValueError(
                    f"got {setting}={got!r} in {name!r}, expected {expected!r} as in the first: "
                    "give runs of one model"
                )


def _table(surface: Any) -> str:
    """Values at the corners and the highest, and how far apart the corners are."""
    corners = surface["corners"]
    values = surface[["log_density", "log_likelihood", "log_prior"]]
    table = values.sel(u=corners.sel(axis="u"), v=corners.sel(axis="v")).to_dataframe()
    table = table[list(values)].rename_axis(None)
    table.loc["highest on the plane"] = {name: float(grid.max()) for name, grid in values.items()}
    named = zip(corners["corner"].values, corners.values, strict=True)
    distances = [
        f"{one} to {other} {np.linalg.norm(there - here):.4g}"
        for (one, here), (other, there) in combinations(named, 2)
    ]
    return (
        f"{table.to_string(float_format='{:.6g}'.format)}\n"
        f"distances of unconstrained weights: {', '.join(distances)}"
    )
