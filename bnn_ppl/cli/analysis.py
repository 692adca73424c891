"""Studies of draws that exist already: the commands ``correlations`` and ``chains``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.chain_budget import chain_budget
from bnn_ppl.analysis.correlations import by_class, function_correlations
from bnn_ppl.analysis.prior_draws import prior_draws
from bnn_ppl.cli.problem import conditioned
from bnn_ppl.cli.run_folders import Opened, reopen
from bnn_ppl.robustness.shift import evenly, thinned

_NUM_GROUPS = 5  # of rows of a regression, by the size of y


def correlations(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    num_draws: int = 100,
    num_rows: int = 500,
    output: int | None = None,
    prior_scales: tuple[float, ...] = (),
    seed: int = 0,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Say which classes a network holds to be alike, by its prior and by a run's posterior.

    Correlations over draws of the network's outputs (logits, or the mean of a regression) for pairs
    of test rows, averaged by pair of classes (fifths of y): a table, correlations.csv and
    correlations.png in the folder.

    Parameters
    ----------
    folder
        Of a run that the command line made.
    num_draws
        Networks drawn from the prior, and most of the run's draws, spread evenly over it.
    num_rows
        Test rows, evenly spread.
    output
        Number of the one logit to look at, from 0; by default the average over all.
    prior_scales
        Other scales of the prior to draw from as well.
    seed
        Of the draws from the prior.
    progress
        Show a bar, or lines where there is no terminal.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    _check_counts(num_draws=num_draws, num_rows=num_rows)
    run = reopen(folder, data_dir)
    chosen = evenly(len(run.data.test.y), num_rows)
    x, y = run.data.test.x[chosen], run.data.test.y[chosen]
    labels, names = _groups(y, run.data)
    tables = {}
    for title, posterior, draws in _priors_and_posterior(run, prior_scales, num_draws, seed):
        found = function_correlations(posterior, draws, x, output=output, progress=progress)
        tables[title] = by_class(found, labels).rename(index=names, columns=names)
    for title, table in tables.items():
        print(f"\n{title}: {_within_and_between(table)}")
        print(table.to_string(float_format="{:.3f}".format))
    _tidy(tables).to_csv(folder / "correlations.csv", index=False)
    what = "class" if run.data.num_classes else "y"
    bnn.plots.correlations(tables, what=what).savefig(folder / "correlations.png", dpi=150)
    print(f"\ntable in {folder / 'correlations.csv'}, figure in {folder / 'correlations.png'}")


def chains(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    num_chains: tuple[int, ...] = (),
    num_draws: tuple[int, ...] = (),
    num_rows: int | None = None,
    max_subsets: int = 20,
    seed: int = 0,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Compare one long chain of a run with several short ones, at equal numbers of draws.

    Scores the average prediction of the first draws of some chains, averaged over which chains
    those are: a table, chains.csv and chains.png in the folder.

    Parameters
    ----------
    folder
        Of a run that the command line made.
    num_chains
        Numbers of chains; by default each up to all, doubling where there are more than 8.
    num_draws
        Numbers of draws a chain; by default 1, 2, 4, ... and all.
    num_rows
        Test rows, evenly spread; by default all.
    max_subsets
        Choices of chains to average over, where there are more.
    seed
        Of those choices.
    progress
        Show a bar, or lines where there is no terminal.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    if num_rows is not None and num_rows < 1:
        raise ValueError(f"got --num-rows {num_rows}, expected at least 1")
    run = reopen(folder, data_dir)
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
    print(table.to_string(index=False, float_format="{:.4g}".format))
    table.to_csv(folder / "chains.csv", index=False)
    bnn.plots.chain_budget(table).savefig(folder / "chains.png", dpi=150)
    print(f"table in {folder / 'chains.csv'}, figure in {folder / 'chains.png'}")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 2:
            option = name.replace("_", "-")
            raise ValueError(f"got --{option} {count}, expected 2 or more: correlate several")


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
    own, drawn = run.problem.prior_scale, thinned(run.draws, num_draws)
    for scale in sorted({own, *prior_scales}):
        problem = run.problem._replace(prior_scale=scale)
        posterior = run.posterior if scale == own else conditioned(problem)[1]
        draws = prior_draws(jax.random.key(seed), posterior, num_draws)
        yield f"prior {problem.prior}({scale:g})", posterior, draws
    yield "posterior", run.posterior, drawn


def _groups(y: np.ndarray, data: Any) -> tuple[np.ndarray, dict[int, Any]]:
    """Group each row is in, its class or its fifth of y, and names of the groups."""
    if data.num_classes:
        return y, {}
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
