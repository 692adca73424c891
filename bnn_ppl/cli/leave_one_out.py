"""What ``compare --by loo`` and ``--k-fold`` do: models of the same training rows, left out."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

import bnn_ppl as bnn
from bnn_ppl.analysis.comparison.compare_inputs import errors_named
from bnn_ppl.analysis.comparison.loo import WORST_K, Loo, check_loo
from bnn_ppl.analysis.comparison.moment_matching import cannot_move
from bnn_ppl.cli.problem.rows import training_groups
from bnn_ppl.cli.run_folders import Opened, check_names, check_same, reopen
from bnn_ppl.cli.stored_methods import method_of_run
from bnn_ppl.cli.tables import table_text
from bnn_ppl.data.splits import folds_of_rows
from bnn_ppl.runtime.progress import phases_named
from bnn_ppl.studies.refits import MOST_REFITS, length_of

if TYPE_CHECKING:
    import pandas

_OPTIONS = "reference", "on", "calibrate", "standard-errors", "latex"


class LeavingOut(NamedTuple):
    """How training rows are left out.

    Attributes
    ----------
    match_moments
        With --by loo, move the draws for rows whose weights are unreliable (k above 0.7).
    refit
        With --by loo, sample again without each row that is still bad: the same method and length,
        that of a sampler started from the run's draws, kept in RUN/refits-DRAWS.
    most_refits
        Rows of each run to sample without, the worst first.
    k_fold
        Compare by so many folds of the training rows, each predicted by a run without it, kept in
        RUN/k-fold-NUMBER; rows of one group (--group) stay together, and rows in time (--time) are
        predicted from those before them.
    fold_seed
        Seed of the folds, and of what is sampled again.
    """

    match_moments: bool = True
    refit: bool = False
    most_refits: int = MOST_REFITS
    k_fold: int | None = None
    fold_seed: int = 0


def compare_by_loo(
    folders: tuple[Path, ...],
    given: tuple[Any, ...],
    leaving_out: LeavingOut,
    figure: Path,
    progress: bool,
    data_dir: Path | None,
) -> None:
    """Print the table, warn of rows that cannot be left out, and write figure and rows."""
    how = "--by loo" if leaving_out.k_fold is None else "--k-fold"
    for name, value in zip(_OPTIONS, given, strict=True):
        if value is not None:
            raise ValueError(
                f"got --{name} with {how}, expected it with --by predictions: leave it out, "
                "training rows are what is left out"
            )
    _check(leaving_out)
    check_names([folder.name for folder in folders])
    runs = {each.name: reopen(each, data_dir, "test") for each in folders}
    check_same(runs, ["float64"], "compare runs of the same float type")
    found = (_by_rows if leaving_out.k_fold is None else _by_folds)(runs, leaving_out, progress)
    table = bnn.compare_loo(found).dropna(axis="columns", how="all")
    print(_title(found, runs, leaving_out))
    shown = table if leaving_out.k_fold is None else table.drop(columns="bad_k")
    print(f"{table_text(shown)}\n")
    for line in _notes(runs, found, leaving_out):
        print(line)
    bnn.plots.loo(found).savefig(figure, dpi=150)
    rows = figure.with_suffix(".csv")
    _by_row(found).to_csv(rows, index=False)
    print(f"\nfigure in {figure}, rows in {rows}")


def _check(leaving_out: LeavingOut) -> None:
    if leaving_out.k_fold is not None and leaving_out != LeavingOut(
        k_fold=leaving_out.k_fold, fold_seed=leaving_out.fold_seed
    ):
        raise ValueError(
            "got --refit, --most-refits or --no-match-moments with --k-fold, expected them with "
            "--by loo: drop one"
        )
    if not leaving_out.refit and leaving_out.most_refits != MOST_REFITS:
        raise ValueError("got --most-refits without --refit, expected both: add --refit")
    if leaving_out.most_refits < 1:
        raise ValueError(f"got --most-refits {leaving_out.most_refits}, expected 1 or more")


def _by_rows(runs: dict[str, Opened], leaving_out: LeavingOut, progress: bool) -> dict[str, Loo]:
    """Leave single rows out by weights, then by moved draws, then by refits if asked for."""
    for name, run in runs.items():  # before anything is computed
        with errors_named(name):
            check_loo(run.posterior, run.draws)
            if leaving_out.refit:
                method_of_run(run.posterior, run.draws)
    found = {}
    for name, run in runs.items():
        with errors_named(name), phases_named(name):
            found[name] = bnn.loo(
                run.posterior,
                run.draws,
                match_moments=leaving_out.match_moments,
                data_set=run.data,
                progress=progress,
            )
    if leaving_out.refit:
        again = partial(_refitted, leaving_out, progress)
        found = {name: again(name, run, found[name]) for name, run in runs.items()}
    return found


def _refitted(leaving_out: LeavingOut, progress: bool, name: str, run: Opened, found: Loo) -> Loo:
    draws = run.draws
    without = _rows(min(found.num_bad, leaving_out.most_refits))
    print(f"{name}: sampling without {without}", flush=True)
    with errors_named(name):
        return bnn.refit_loo(
            jax.random.key(leaving_out.fold_seed),
            run.posterior,
            method_of_run(run.posterior, draws),
            draws,
            found,
            most=leaving_out.most_refits,
            folder=_place(run, f"refits-{draws['posterior'].sizes['draw']}", leaving_out),
            progress=progress,
        )


def _by_folds(runs: dict[str, Opened], leaving_out: LeavingOut, progress: bool) -> dict[str, Loo]:
    """Sample without each fold; refuse what cannot be, of any run, before anything is."""
    number = leaving_out.k_fold or 0
    folds, methods = {}, {}
    for name, run in runs.items():
        with errors_named(name):
            methods[name] = method_of_run(run.posterior, run.draws)
            seed, kinds = leaving_out.fold_seed, _folding(run)
            folds[name] = folds_of_rows(run.posterior.num_rows, number, seed, **kinds)
    found = {}
    for name, run in runs.items():
        print(f"{name}: sampling without each of {number} folds", flush=True)
        with errors_named(name):
            found[name] = bnn.k_fold(
                jax.random.key(leaving_out.fold_seed),
                run.posterior,
                methods[name],
                folds[name],
                data_set=run.data,
                folder=_place(run, f"k-fold-{number}", leaving_out),
                progress=progress,
                **length_of(run.draws),
            )
    return found


def _place(run: Opened, name: str, leaving_out: LeavingOut) -> Path:
    """Give where runs without some rows are kept: with another seed they are others."""
    seed = leaving_out.fold_seed
    return run.folder / (f"{name}-seed-{seed}" if seed else name)


def _folding(run: Opened) -> dict[str, Any]:
    """Give what rows are parted by: their groups, or time."""
    if run.problem.columns.time:
        return {"in_time": True}
    return {"groups": training_groups(run.problem, run.data)}


def _title(found: dict[str, Loo], runs: dict[str, Opened], leaving_out: LeavingOut) -> str:
    num_rows = len(next(iter(found.values())).elpd)
    if leaving_out.k_fold is None:
        return f"leave-one-out log densities of {num_rows:,} training rows, in nats, the best first"
    columns, kind = next(iter(runs.values())).problem.columns, ""
    if columns.time:
        kind = ", each from the rows before it"
    elif columns.group:
        kind = f", rows of one {columns.group} together"
    by = f"{leaving_out.k_fold} folds{kind}"
    return f"log densities of {num_rows:,} training rows by {by}; in nats, the best first"


def _notes(runs: dict[str, Opened], found: dict[str, Loo], leaving_out: LeavingOut) -> list[str]:
    lines = []
    for name, each in found.items():
        lines += _of_rows(name, each, runs[name], leaving_out)
    for name, run in runs.items():
        if found[name].num_effective > run.posterior.num_weights:
            lines.append(
                f"{name}: {found[name].num_effective:,.0f} effective parameters of "
                f"{run.posterior.num_weights:,}: chains that disagree, or a model that does not fit"
            )
        drawn = run.draws.attrs.get("draws_from", "chain")
        if drawn != "chain":
            method = run.draws.attrs["method"]
            lines.append(f"{name}: {method} approximates the posterior; what it misses is in elpd")
        columns = run.problem.columns
        if leaving_out.k_fold is None and (columns.group or columns.time):
            kind = "in groups (--group)" if columns.group else "in time (--time)"
            lines.append(
                f"{name}: rows are {kind}; a single row left out says little of new ones: compare "
                "by --k-fold 10, which heeds that"
            )
    return lines


def _of_rows(name: str, each: Loo, run: Opened, leaving_out: LeavingOut) -> list[str]:
    """Say how rows were left out, and of which that is not settled."""
    lines, moved, refits = [], each.how == "moments", each.count("refit")
    if moved.any():
        good = int((each.k[moved] <= WORST_K).sum())
        lines.append(
            f"{name}: moved draws lowered k of {_rows(moved.sum())}, of {good:,} to {WORST_K:g} or "
            "less"
        )
    if refits:
        lines.append(
            f"{name}: sampled without {_rows(refits)}, Monte Carlo error at most "
            f"{each.error[each.how == 'refit'].max():.2g} nats"
        )
    if each.not_converged:
        lines.append(
            f"WARNING: {name}: runs without some rows that have not converged: "
            f"{each.not_converged:,}; their densities are of draws that disagree: run longer, and "
            "compare again"
        )
    if each.num_bad:
        why = cannot_move(run.posterior, run.draws) if leaving_out.match_moments else None
        lines += [] if why is None else [f"{name}: draws were not moved: {why}"]
        if leaving_out.match_moments and why is None and not moved.any():
            lines.append(
                f"{name}: moved draws lowered k of no row: {run.posterior.num_weights:,} weights "
                f"are many for moments of {each.num_draws:,} draws"
            )
        hint = f"--most-refits {each.num_bad + refits}" if leaving_out.refit else "--refit"
        lines.append(
            f"WARNING: {name}: {each.num_bad:,} of {len(each.elpd):,} rows have k above "
            f"{WORST_K:g}: their estimates, and the sum, can be far off; {hint} samples "
            "without them, --k-fold 10 compares without weights"
        )
    return lines


def _rows(number: int) -> str:
    return f"{number:,} row{'s' if number != 1 else ''}"


def _by_row(found: dict[str, Loo]) -> "pandas.DataFrame":
    import pandas

    columns: dict[str, Any] = {"row": next(iter(found.values())).rows}
    for name, each in found.items():
        own = {"elpd": each.elpd, "error": each.error, "k": each.k, "how": each.how}
        if each.count("fold"):
            own = {"elpd": each.elpd, "error": each.error}
        columns |= {f"{column}_{name}": values for column, values in own.items()}
    return pandas.DataFrame(columns)
