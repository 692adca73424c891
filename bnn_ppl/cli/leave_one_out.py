"""What ``compare --by loo`` does: models of the same training rows, each row left out."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import bnn_ppl as bnn
from bnn_ppl.analysis.comparison.compare_inputs import errors_named
from bnn_ppl.analysis.comparison.loo import WORST_K, Loo, check_loo
from bnn_ppl.cli.run_folders import Opened, check_names, of_one_float_type, reopen
from bnn_ppl.cli.tables import table_text
from bnn_ppl.runtime.progress import phases_named

if TYPE_CHECKING:
    import pandas

_OPTIONS = "reference", "on", "calibrate", "standard-errors", "latex"


def compare_by_loo(
    folders: tuple[Path, ...],
    given: tuple[Any, ...],
    figure: Path,
    progress: bool,
    data_dir: Path | None,
) -> None:
    """Print the table, warn of rows that cannot be left out, and write figure and rows."""
    for name, value in zip(_OPTIONS, given, strict=True):
        if value is not None:
            raise ValueError(
                f"got --{name} with --by loo, expected it with --by predictions: leave it out, "
                "training rows are what is left out"
            )
    check_names([folder.name for folder in folders])
    runs = of_one_float_type({each.name: reopen(each, data_dir, "test") for each in folders})
    for name, run in runs.items():  # before anything is computed
        with errors_named(name):
            check_loo(run.posterior, run.draws)
    found = {name: _of_run(name, run, progress) for name, run in runs.items()}
    table = bnn.compare_loo(found)
    num_rows = len(next(iter(found.values())).elpd)
    print(f"leave-one-out log densities of {num_rows:,} training rows, in nats, the best first")
    print(f"{table_text(table)}\n")
    for line in _notes(runs, found):
        print(line)
    bnn.plots.loo(found).savefig(figure, dpi=150)
    rows = figure.with_suffix(".csv")
    _by_row(found).to_csv(rows, index=False)
    print(f"\nfigure in {figure}, rows in {rows}")


def _of_run(name: str, run: Opened, progress: bool) -> Loo:
    with errors_named(name), phases_named(name):
        return bnn.loo(run.posterior, run.draws, data_set=run.data, progress=progress)


def _notes(runs: dict[str, Opened], found: dict[str, Loo]) -> list[str]:
    lines = [
        f"WARNING: {name}: {each.num_bad:,} of {len(each.elpd):,} rows have k above {WORST_K:g}: "
        "their estimates, and the sum, can be far too high; compare on rows held out of training "
        "(run --folds)"
        for name, each in found.items()
        if each.num_bad
    ]
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
        if columns.group or columns.time:
            kind = "in groups (--group)" if columns.group else "in time (--time)"
            lines.append(
                f"{name}: rows are {kind}; a single row left out says little of new ones: compare "
                "on held-out rows (run --folds)"
            )
    return lines


def _by_row(found: dict[str, Loo]) -> "pandas.DataFrame":
    import pandas

    columns: dict[str, Any] = {"row": next(iter(found.values())).rows}
    for name, each in found.items():
        columns |= {f"elpd_{name}": each.elpd, f"k_{name}": each.k}
    return pandas.DataFrame(columns)
