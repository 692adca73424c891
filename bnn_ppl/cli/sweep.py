"""The command ``sweep``: a study of one option, or two, of ``run``."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.agreement import are_fits
from bnn_ppl.cli.results import predicted
from bnn_ppl.cli.run_folders import Opened, reopen_all

OTHER_ROWS = ("data", "split", "target", "classes", "data-dir", "float64", "matmul-precision")


def sweep_command(arguments: Sequence[str], run: Callable[[list[str]], Any]) -> Callable:
    """Make the command ``sweep``: `run` is called with `arguments` and one value after another.

    It returns what it predicted, see ``run_command``.
    """

    def sweep(
        option: Annotated[str, tyro.conf.Positional],
        values: Annotated[tuple[str, ...], tyro.conf.Positional],
        *,
        by: tuple[str, ...] = (),
        reference: str | None = None,
        folder: Path | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Run once for each value of an option, and compare the runs in one table and figure.

        The run to repeat follows two dashes, as it would follow ``bnn-ppl run``:

        bnn-ppl sweep temperature 0.1 0.3 1 3 -- hmc --data energy

        bnn-ppl sweep prior normal laplace student_t -- nuts --data yacht --prior-scale 0.5

        bnn-ppl sweep step-size 1e-3 3e-3 --by trajectory-length 0.1 0.5 -- hmc

        Rerun the same command to resume a sweep that was stopped.

        Parameters
        ----------
        option
            Option of ``run`` to vary, without dashes.
        values
            Its values.
        by
            Another option and its values: all pairs are run, with a line in the figure for each.
        reference
            One of the values (with --by, two separated by a comma) whose predictions the others
            are compared with.
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
        varied = {_plain(option): values}
        if by and _plain(by[0]) in varied:
            raise ValueError(f"got --by {by[0]}, expected another option than {option}")
        if by:
            varied[_plain(by[0])] = by[1:]
        folder = folder or Path("runs") / "-".join(["sweep", *varied])
        _check(varied, arguments, reference)
        settings = {_name(chosen): chosen for chosen in itertools.product(*varied.values())}
        said = () if data_dir is None else ("--data-dir", str(data_dir))
        known = {}
        for name, chosen in settings.items():
            options = itertools.chain(*zip((f"--{o}" for o in varied), chosen, strict=True))
            known[name] = run([*arguments, *options, *said, "--folder", str(folder / name)])
        runs = reopen_all(tuple(folder / name for name in settings), data_dir)
        table = _table(runs, known, settings, list(varied), reference)
        print(table.to_string(index=False, float_format="{:.4g}".format))
        table.to_csv(folder / "sweep.csv", index=False)
        bnn.plots.sweep(table, list(varied)).savefig(folder / "sweep.png", dpi=150)
        print(f"table in {folder / 'sweep.csv'}, figure in {folder / 'sweep.png'}")

    return sweep


def _name(chosen: Sequence[str]) -> str:
    """Name a run's folder by its values, which may be paths."""
    return ",".join(chosen).replace("/", "_")


def _plain(option: str) -> str:
    """Write an option as the help does, without its first dashes."""
    return option.lstrip("-").replace("_", "-")


def _check(varied: dict[str, tuple], arguments: Sequence[str], reference: str | None) -> None:
    for option, values in varied.items():
        if len(set(values)) < max(1, len(values)) or not values:
            raise ValueError(
                f"got the values {', '.join(values) or 'none'} of {option}, expected one or more, "
                "each once"
            )
        if option in OTHER_ROWS:
            raise ValueError(
                f"got a sweep over {option}, expected an option that leaves the test rows and "
                "their units alone: use run for each value"
            )
        if any(_plain(word.split("=")[0]) == option for word in arguments):
            raise ValueError(f"got --{option} after the two dashes, expected it only before: drop")
    if any(word.split("=")[0] == "--folder" for word in arguments):
        raise ValueError("got --folder after the two dashes, expected it before: move it")
    names = [_name(chosen) for chosen in itertools.product(*varied.values())]
    if reference is not None and reference not in names:
        raise ValueError(f"got --reference {reference}, expected one of {' '.join(names)}")


def _table(
    runs: dict[str, Opened],
    known: dict[str, Any],
    settings: dict[str, tuple[str, ...]],
    options: list[str],
    reference: str | None,
) -> Any:
    data = next(iter(runs.values())).data
    draws = {name: run.draws for name, run in runs.items()}
    predictions, functions = predicted(runs, data.test, known)
    table = bnn.compare(
        predictions, data.test.y, reference, draws=draws, function_rhat=functions,
        scale=data.y_scale,
    )  # fmt: skip
    for name, drawn in draws.items():
        stats = drawn.get("sample_stats", {})
        if "acceptance_rate" in stats:
            table.loc[name, "acceptance"] = float(stats["acceptance_rate"].mean())
        if not are_fits(drawn):
            ess = np.nanmedian(bnn.diagnostics.ess(functions[name]).to_array())
            in_all = drawn.attrs["gradient_evaluations"]
            table.loc[name, "ess_a_1000_gradients"] = 1000 * float(ess) / in_all
    for place, option in reversed(list(enumerate(options))):
        table.insert(0, option, [settings[name][place] for name in table.index])
    return table.reset_index(drop=True)
