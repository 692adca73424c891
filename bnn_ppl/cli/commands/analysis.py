"""Analyses of existing draws: the commands ``correlations``, ``chains`` and ``surface``."""

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import jax
import numpy as np
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.convergence.chain_budget import chain_budget
from bnn_ppl.analysis.prior_draws import prior_draws
from bnn_ppl.analysis.weight_space.correlations import by_class, function_correlations
from bnn_ppl.analysis.weight_space.surface import corner
from bnn_ppl.analysis.weight_space.surface import corners as corners_of
from bnn_ppl.analysis.weight_space.surface import surface as surface_through
from bnn_ppl.cli.problem.build import USUAL_SCALE, conditioned
from bnn_ppl.cli.problem.rows import Scored
from bnn_ppl.cli.run_folders import Opened, check_same, figure_path, reopen, reopen_all
from bnn_ppl.cli.tables import table_text, write_table
from bnn_ppl.plots.weight_space.surface import posterior_surface
from bnn_ppl.robustness.correlation_decay import correlation_decay
from bnn_ppl.storage.inference_data import evenly, thinned

_NUM_GROUPS = 5  # of rows of a regression, by the size of y

Draw: TypeAlias = tuple[int, int]

_SAME = ["net", "hidden", "prior", "prior_scale", "prior_power", "noise", "noise_floor", "float64"]


def correlations(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    num_draws: int = 100,
    num_rows: int = 500,
    output: int | None = None,
    prior_scales: tuple[float, ...] = (),
    corruptions: tuple[str, ...] = (),
    seed: int = 0,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Correlate a network's outputs between classes, under the prior and a run's posterior.

    Correlations over draws of the network's outputs (logits, or the mean of a regression) for pairs
    of test rows, averaged by pair of classes (fifths of y): a table, correlations.csv and
    correlations.png in the folder.

    Parameters
    ----------
    folder
        Folder of a run.
    num_draws
        Number of networks drawn from the prior, and maximum number of draws of the run.
    num_rows
        Number of test rows, spread evenly over the test set.
    output
        Index of the logit to use, from 0; by default the average over all.
    prior_scales
        Other scales of the prior to draw from as well.
    corruptions
        Names of corruptions (gaussian_noise fog ...): correlations of the outputs for the images
        with those for the same images corrupted too, by severity, beside those of an RBF kernel;
        in correlation_decay.csv and .png.
    seed
        Seed of the draws from the prior.
    progress
        Show a progress bar (plain lines where there is no terminal).
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    for option, count in {"num-draws": num_draws, "num-rows": num_rows}.items():
        if count < 2:
            raise ValueError(f"got --{option} {count}, expected 2 or more: correlate several")
    run = reopen(folder, data_dir)
    if corruptions and run.data.test.x.ndim != 4:
        raise ValueError(
            f"got --corruptions for {run.problem.data.data}, expected images: drop them"
        )
    chosen = evenly(len(run.data.test.y), num_rows)
    x, y = run.data.test.x[chosen], run.data.test.y[chosen]
    labels, names = _groups(y, run.data)
    tables = {}
    for title, posterior, draws in _priors_and_posterior(run, prior_scales, num_draws, seed):
        found = function_correlations(posterior, draws, x, output=output, progress=progress)
        tables[title] = by_class(found, labels).rename(index=names, columns=names)
    for title, table in tables.items():
        print(f"\n{title}: {_within_and_between(table)}")
        print(table.to_string(na_rep="", float_format="{:.3f}".format))
    what = "class" if run.data.num_classes else "y"
    print()
    draw = partial(bnn.plots.correlations, tables, what=what)
    write_table(_tidy(tables), draw, folder / "correlations.csv")
    if corruptions:
        decays = {
            title: correlation_decay(
                posterior,
                draws,
                x,
                corruptions,
                x_mean=run.data.x_mean,
                x_scale=run.data.x_scale,
                output=output,
            )
            for title, posterior, draws in _priors_and_posterior(run, prior_scales, num_draws, seed)
        }
        _write_decays(decays, folder)


def _write_decays(decays: dict[str, Any], folder: Path) -> None:
    import pandas as pd

    table = pd.concat(decays, names=["draws"]).reset_index("draws")
    means = table.groupby(["draws", "severity"], sort=False)["correlation"].mean().unstack()
    means.loc["RBF kernel"] = table.groupby("severity")["rbf"].mean()
    print("\ncorrelation with the corrupted image, by severity, mean over corruptions")
    print(means.to_string(na_rep="", float_format="{:.3f}".format))
    draw = partial(bnn.plots.correlation_decay, decays)
    write_table(table, draw, folder / "correlation_decay.csv")


def chains(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    num_chains: tuple[int, ...] = (),
    num_draws: tuple[int, ...] = (),
    num_rows: int | None = None,
    on: Scored | None = None,
    max_subsets: int = 20,
    seed: int = 0,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Compare one long chain with several short ones at equal numbers of draws.

    Scores the average prediction of the first draws of some chains, averaged over which chains
    those are: a table, chains.csv and chains.png in the folder.

    Parameters
    ----------
    folder
        Folder of a run.
    num_chains
        Numbers of chains; by default all up to 8, then doubling.
    num_draws
        Numbers of draws a chain; by default 1, 2, 4, ... and all.
    num_rows
        Number of rows to score, spread evenly; by default all.
    on
        Rows to score: by default those held out of training if the run has any, otherwise the test
        rows.
    max_subsets
        Maximum number of subsets of chains to average over.
    seed
        Seed of those choices.
    progress
        Show a progress bar (plain lines where there is no terminal).
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    if num_rows is not None and num_rows < 1:
        raise ValueError(f"got --num-rows {num_rows}, expected at least 1")
    run = reopen(folder, data_dir, on)
    test = run.data.test
    chosen = evenly(len(test.y), len(test.y) if num_rows is None else num_rows)
    table = chain_budget(
        run.posterior,
        run.draws,
        (test.x[chosen], test.y[chosen]),
        num_chains=num_chains or None,
        num_draws=num_draws or None,
        max_subsets=max_subsets,
        seed=seed,
        scale=run.data.y_scale,
        progress=progress,
    )
    print(table_text(table, index=False))
    write_table(table, partial(bnn.plots.chain_budget, table), folder / "chains.csv")


def _priors_and_posterior(
    run: Opened, prior_scales: tuple[float, ...], num_draws: int, seed: int
) -> Iterator[tuple[str, bnn.Posterior, Any]]:
    """Title, model and draws of each prior, by its scale, and of the run."""
    sizes = run.draws.posterior.sizes
    if sizes["chain"] * sizes["draw"] < 2:
        raise ValueError(
            f"got a run of {sizes['draw']} draws, expected 2 or more in all: a single function has "
            "no correlations"
        )
    own = run.problem.prior.prior_scale or USUAL_SCALE
    drawn = thinned(run.draws, num_draws)
    for scale in sorted({own, *prior_scales}):
        problem = run.problem.changed(prior_scale=scale)
        posterior = run.posterior if scale == own else conditioned(problem, run.data.encoding)[1]
        draws = prior_draws(jax.random.key(seed), posterior, num_draws)
        yield f"prior {problem.prior.prior}({scale:g})", posterior, draws
    yield "posterior", run.posterior, drawn


def _groups(y: np.ndarray, data: Any) -> tuple[np.ndarray, dict[int, Any]]:
    """Group each row is in, its class or its fifth of y, and names of the groups."""
    if data.num_classes:
        return y, dict(enumerate(data.class_names or ()))
    if data.num_outputs > 1:
        raise ValueError(
            f"got y of {data.num_outputs} outputs, expected classes or one output to group the "
            "rows by: run with one --target"
        )
    edges = np.quantile(y, np.arange(1, _NUM_GROUPS) / _NUM_GROUPS)
    labels = np.searchsorted(edges, y)
    original = np.asarray(y) * data.y_scale + data.y_mean
    ranges = {
        int(k): f"{original[labels == k].min():.3g} to {original[labels == k].max():.3g}"
        for k in np.unique(labels)
    }
    return labels, ranges


def _within_and_between(table: Any) -> str:
    values = table.to_numpy()
    own = np.eye(len(values), dtype=bool)
    within, between = np.nanmean(values[own]), np.nanmean(values[~own])
    return f"{within:.3f} on average within a class, {between:.3f} between classes"


def _tidy(tables: dict[str, Any]) -> Any:
    """Make one table with a row for each pair of classes, once."""
    import pandas as pd

    rows = [
        {"draws": title, "class": a, "other_class": b, "correlation": table.iloc[i, j]}
        for title, table in tables.items()
        for i, a in enumerate(table.index)
        for j, b in enumerate(table.columns)
        if i <= j
    ]
    return pd.DataFrame(rows)


# --- surface


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
    """Plot log-density, log-likelihood and log-prior on the plane through three draws.

    Writes the figure and, beside it, the numbers as netCDF (xarray.open_dataset).

    Parameters
    ----------
    folders
        One run, for three of its draws; or three runs of the same model on the same data, for one
        draw of each: the density is then that of the first run.
    corners
        Chain and draw of each corner, six numbers; -1 is the last. By default the last draw of
        three chains, or the first, middle and last draw of one; of three runs the last draw of
        each one's first chain.
    num_points
        Grid points along each axis; the work grows with the square.
    margin
        Margin around the triangle, as a fraction of its larger extent.
    figure
        Path of the figure. By default surface.png, in the folder of the run if it is one.
    progress
        Show a progress bar (plain lines where there is no terminal).
    data_dir
        Folder with the data set, if it has moved since the runs.
    """
    path = figure_path(folders, figure, "surface.png")
    run, chosen = _chosen(folders, corners, data_dir)
    found = surface_through(
        run.posterior, chosen, num_points=num_points, margin=margin, progress=progress
    )
    print(_corner_table(found))
    numbers = path.with_suffix(".nc")
    found.to_netcdf(numbers, engine="scipy")
    posterior_surface(found).savefig(path, dpi=150)
    print(f"figure in {path}, numbers in {numbers}")


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
    check_same(runs, _SAME, "give runs of one model")
    first = next(iter(runs.values()))
    pairs = corners or ((0, -1),) * 3
    return first, {
        name: corner(first.posterior, run.draws, *pair)
        for (name, run), pair in zip(runs.items(), pairs, strict=True)
    }


def _corner_table(surface: Any) -> str:
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
