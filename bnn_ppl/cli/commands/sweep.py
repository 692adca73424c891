"""The command ``sweep``: a study of one option, or two, of ``run``."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.comparison.compare_tables import with_errors
from bnn_ppl.analysis.comparison.standard_errors import widened
from bnn_ppl.analysis.convergence.ensemble_spread import are_fits
from bnn_ppl.cli.commands.results import (
    check_published,
    check_reference,
    predicted,
    predicted_elsewhere,
)
from bnn_ppl.cli.problem.likelihoods import have_same_units
from bnn_ppl.cli.problem.problem import ColumnOptions
from bnn_ppl.cli.problem.rows import Scored
from bnn_ppl.cli.run_folders import Opened, reopen_all
from bnn_ppl.cli.tables import table_text, with_output_names, write_table
from bnn_ppl.data.tables.published import HMCChains

_ALL_ROWS = (
    *("data", "split", "target", "classes", "only-classes", "image-size", "data-dir"),
    "float64",
)
_HELD_OUT = ("held-out", "held-out-seed", "folds", "fold")
_COLUMNS = tuple(name.replace("_", "-") for name in ColumnOptions._fields)
OTHER_ROWS = (*_ALL_ROWS, *_HELD_OUT, *_COLUMNS, "on")
_OWN = ("folder", "on", "held-out", "folds", "fold")  # options of sweep that the run has too
_USUAL_SHARE = 0.2  # held out
_TEN_FOLDS = tuple(f"fold-{number}" for number in range(10))
_COSTS = ("seconds", "gradient_evaluations", "num_chains", "num_draws")  # without standard errors


class Study(NamedTuple):
    """What is run: all choices of the options varied, each repeated in the same ways."""

    varied: dict[str, tuple[str, ...]]
    repeats: list[dict[str, str]]  # options of run, with columns of the table
    rows: list[str]  # options of run that say which rows are held out and scored
    on: Scored

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Values chosen, by the name of their folder."""
        return {_name(chosen): chosen for chosen in itertools.product(*self.varied.values())}


def sweep_command(arguments: Sequence[str], run: Callable[[list[str]], Any]) -> Callable:
    """Make the command ``sweep``: `run` is called with `arguments` and one value after another.

    It returns what it predicted, see ``run_command``.
    """

    def sweep(
        option: Annotated[str, tyro.conf.Positional],
        values: Annotated[tuple[str, ...], tyro.conf.Positional],
        *,
        by: tuple[str, ...] = (),
        on: Scored = "held-out",
        held_out: float | None = None,
        folds: int | None = None,
        splits: tuple[str, ...] = (),
        seeds: tuple[int, ...] = (),
        reference: str | None = None,
        folder: Path | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Run once for each value of an option, and compare the runs in one table and figure.

        The run to repeat follows two dashes, as it would follow ``bnn-ppl run``:

        bnn-ppl sweep temperature 0.1 0.3 1 3 -- hmc --data energy

        bnn-ppl sweep prior normal laplace student_t --folds 10 -- nuts --data yacht

        bnn-ppl sweep step-size 1e-3 3e-3 --by trajectory-length 0.1 0.5 -- hmc

        Values are scored on rows held out of training, a fifth unless said otherwise, so that one
        can be chosen without the test rows. With several folds, splits or seeds, each value is run
        on all of them; the table and the figure then have means and standard errors, and runs.csv
        has each run. Rerun the same command to resume a sweep that was stopped.

        Parameters
        ----------
        option
            Option of ``run`` to vary, without dashes.
        values
            Its values.
        by
            Another option and its values: all pairs are run, with a line in the figure for each.
        on
            Rows to score. With "test" no training rows are held out, unless --held-out says so.
        held_out
            Fraction of the training rows held out; by default 0.2 unless --folds is given. Descent
            stops early on them; the rows of --folds no method sees.
        folds
            Number of folds of the training rows: each is held out once.
        splits
            Splits of the data, as of --split: for example 0 1 2. "folds" is short for fold-0 to
            fold-9: with --on test ten-fold cross-validation on all rows.
        seeds
            Seeds of the run.
        reference
            One of the values (with --by, two separated by a comma) whose predictions the others
            are compared with; or, with --on test, predictions as of ``compare``: an .npz file,
            "published", "digits-lenet" or "mnist160".
        folder
            Output folder for the runs, sweep.csv and sweep.png; by default runs/sweep-<option>.
        data_dir
            Folder with the data set.
        """
        if not arguments:
            raise ValueError(
                "got no run to repeat, expected one after two dashes: "
                "bnn-ppl sweep temperature 0.1 1 -- hmc --data yacht"
            )
        study = _study(option, values, by, on, held_out, folds, splits, seeds)
        folder = folder or Path("runs") / "-".join(["sweep", *study.varied])
        _check(study, arguments, reference)
        said = [] if data_dir is None else ["--data-dir", str(data_dir)]
        tables = []
        for repeat in study.repeats:
            found = _run_choices(study, repeat, folder, [*arguments, *said], run)
            runs = reopen_all(tuple(found), data_dir, on)
            known = {path.name: predicted for path, predicted in found.items()}
            tables.append(_table(runs, known, study, reference, data_dir).assign(**repeat))
        _report(tables, study, folder)

    return sweep


def _study(
    option: str,
    values: tuple[str, ...],
    by: tuple[str, ...],
    on: Scored,
    held_out: float | None,
    folds: int | None,
    splits: tuple[str, ...],
    seeds: tuple[int, ...],
) -> Study:
    varied = {_plain(option): values}
    if by and _plain(by[0]) in varied:
        raise ValueError(f"got --by {by[0]}, expected another option than {option}")
    if by:
        varied[_plain(by[0])] = by[1:]
    if folds is not None and on == "test":
        raise ValueError(
            "got --folds with --on test, expected one of them: folds of all rows are splits, "
            "--splits folds --on test"
        )
    if folds is not None and folds < 2:
        raise ValueError(f"got --folds {folds}, expected 2 or more: usual are 5 and 10")
    if held_out == 0 and on == "held-out" and folds is None:
        raise ValueError("got --held-out 0, expected more to score, or --folds, or --on test")
    if held_out is None and folds is None and on == "held-out":
        held_out = _USUAL_SHARE
    rows = ["--on", on]
    rows += [] if held_out is None else ["--held-out", f"{held_out:g}"]
    rows += [] if folds is None else ["--folds", str(folds)]
    given: dict[str, Sequence] = {
        "split": _TEN_FOLDS if splits == ("folds",) else splits,
        "fold": range(folds or 0),
        "seed": seeds,
    }
    repeated = {name: tuple(map(str, each)) for name, each in given.items() if each}
    for name, each in repeated.items():
        if len(set(each)) < len(each):
            raise ValueError(f"got --{name}s {' '.join(each)}, expected each once: drop one")
    repeats = [
        dict(zip(repeated, each, strict=True)) for each in itertools.product(*repeated.values())
    ]
    return Study(varied, repeats, rows, on)


def _name(chosen: Sequence[str]) -> str:
    """Name a run's folder by its values, which may be paths."""
    return ",".join(chosen).replace("/", "_")


def _plain(option: str) -> str:
    """Write an option as the help does, without its first dashes."""
    return option.lstrip("-").replace("_", "-")


def _check(study: Study, arguments: Sequence[str], reference: str | None) -> None:
    said = {_plain(word.split("=")[0]) for word in arguments if word.startswith("--")}
    for option, values in study.varied.items():
        if len(set(values)) < max(1, len(values)) or not values:
            raise ValueError(
                f"got the values {', '.join(values) or 'none'} of {option}, expected one or more, "
                "each once"
            )
        of_training = option in ("subset", "label-noise")
        units = option == "likelihood" and not have_same_units(values)
        if option in OTHER_ROWS or units or (of_training and study.on == "held-out"):
            hint = "give them as --splits" if option == "split" else "use run for each value"
            raise ValueError(
                f"got a sweep over {option}, expected an option that leaves the rows to score and "
                f"their units alone: {'add --on test' if of_training else hint}"
            )
        if option in said:
            raise ValueError(f"got --{option} after the two dashes, expected it only before: drop")
        if option in study.repeats[0]:
            raise ValueError(f"got a sweep over {option} and --{option}s, expected one: drop one")
    for option in (*_OWN, *study.repeats[0]):
        if option in said:
            raise ValueError(f"got --{option} after the two dashes, expected it before: move it")
    if "held-out-seed" in said and study.on == "test":
        raise ValueError("got --held-out-seed with --on test, expected --on held-out: drop one")
    check_reference(reference, list(study.choices))
    if reference not in study.choices and reference is not None and study.on != "test":
        raise ValueError(
            f"got --reference {reference} for held-out rows, expected one of the values: "
            f"{' '.join(study.choices)}, or --on test"
        )


def _run_choices(
    study: Study,
    repeat: dict[str, str],
    folder: Path,
    arguments: list[str],
    run: Callable[[list[str]], Any],
) -> dict[Path, Any]:
    """Run each choice, or read it if it has run: what it predicts, by its folder."""
    inside = folder.joinpath(*(["-".join(itertools.chain(*repeat.items()))] if repeat else []))
    found = {}
    for name, chosen in study.choices.items():
        options = {**dict(zip(study.varied, chosen, strict=True)), **repeat}
        words = itertools.chain(*((f"--{name}", value) for name, value in options.items()))
        found[inside / name] = run(
            [*arguments, *study.rows, *words, "--folder", str(inside / name)]
        )
    return found


def _table(
    runs: dict[str, Opened],
    known: dict[str, Any],
    study: Study,
    reference: str | None,
    data_dir: Path | None,
) -> Any:
    """Score the runs of one repeat: a row for each choice."""
    first = next(iter(runs.values()))
    check_published(reference, first)
    elsewhere = None if reference in runs else predicted_elsewhere(reference, first.data, data_dir)
    elsewhere = elsewhere.probs if isinstance(elsewhere, HMCChains) else elsewhere
    draws = {name: run.draws for name, run in runs.items()}
    predictions, functions = predicted(runs, first.data.test, known)
    table = bnn.compare(
        predictions,
        first.data.test.y,
        reference if reference in runs else elsewhere,
        draws=draws,
        function_rhat=functions,
        scale=first.data.y_scale,
    )
    table = with_output_names(table, first.data, axis=1)
    for name, drawn in draws.items():
        stats = drawn.get("sample_stats", {})
        if "acceptance_rate" in stats:
            table.loc[name, "acceptance"] = float(stats["acceptance_rate"].mean())
        if not are_fits(drawn):
            ess = np.nanmedian(bnn.diagnostics.ess(functions[name]).to_array())
            in_all = drawn.attrs["gradient_evaluations"]
            table.loc[name, "ess_a_1000_gradients"] = 1000 * float(ess) / in_all
    for place, option in reversed(list(enumerate(study.varied))):
        table.insert(0, option, [study.choices[name][place] for name in table.index])
    return table.reset_index(drop=True)


def _report(tables: list[Any], study: Study, folder: Path) -> None:
    """Print and write the table and the figure, and with repeats the table of all runs."""
    import pandas as pd

    table, options = tables[0], list(study.varied)
    if len(tables) > 1:
        runs = pd.concat(tables, ignore_index=True)
        repeated = list(study.repeats[0])
        scores = [name for name in runs if name not in (*options, *repeated)]
        runs[[*options, *repeated, *scores]].to_csv(folder / "runs.csv", index=False)
        table = mean_and_error(runs.drop(columns=repeated), options)
    shown = table.dropna(axis="columns", how="all")  # without what no run has
    print(table_text(with_errors(shown), index=False))
    number = len(tables)
    each = f": mean ± standard error of {number} runs" if number > 1 else ""
    print(f"scores on the {study.on} rows{each}")
    write_table(table, partial(bnn.plots.sweep, table, options), folder / "sweep.csv")


def mean_and_error(runs: Any, options: list[str]) -> Any:
    """Average the scores of runs by the values of `options`: a row for each, in their order.

    Beside each score its standard error: the standard deviation (divisor n - 1) over the square
    root of n, times half the 97.5 % quantile of Student's t, so that twice it is half of a 95 %
    interval. Runs without the score do not count.
    """
    by_value = runs.groupby(options, sort=False)
    means, errors = by_value.mean(), by_value.sem() * (by_value.count() - 1).map(widened)
    columns: dict[str, Any] = {}
    for name in means:
        columns |= {name: means[name]}
        if name not in _COSTS:
            columns |= {f"{name}_se": errors[name]}
    table = type(runs)(columns)
    table.insert(0, "runs", by_value.size())
    return table.reset_index()
