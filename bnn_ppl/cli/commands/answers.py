"""Commands that use a run's predictions, such as ``explain``, ``compress`` and ``export``."""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.acquisition.acquire import Score
from bnn_ppl.cli.problem.build import posterior_of
from bnn_ppl.cli.problem.likelihoods import chosen_likelihood
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import Scored
from bnn_ppl.cli.run_folders import check_out, figure_path, reopen
from bnn_ppl.cli.tables import table_text
from bnn_ppl.data.tables.new_rows import read_new_rows
from bnn_ppl.runtime.progress import waiting
from bnn_ppl.storage.copied_run import write_run
from bnn_ppl.storage.problem import CHOICE, LAW

_ROWS_SHOWN = 10
_NOISE_FLOOR = 1e-4  # of a student, in standard deviations of y: below any that a run finds


def explain(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    of_class: str | None = None,
    num_permutations: int = 10,
    on: Scored | None = None,
    figure: Path | None = None,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Show which inputs matter to a run, how, and for which rows it is least certain.

    Importance of an input: the fall of the log score when it is permuted among the rows. A table,
    explanation.csv and explanation.png in the folder.

    Parameters
    ----------
    folder
        Folder of a run.
    of_class
        The class whose probability is followed, by its name or number; by default 1 of two, and
        otherwise the one that is most often predicted.
    num_permutations
        Times that each input is permuted.
    on
        Rows of the data set: by default those held out of training if the run has any, otherwise
        the test rows; at most 500.
    figure
        Path of the figure.
    progress
        Show a progress bar (plain lines where there is no terminal).
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    path = figure_path((folder,), figure, "explanation.png")
    run = reopen(folder, data_dir, on)
    if of_class is not None and run.data.num_classes is None:
        raise ValueError(
            f"got --of-class {of_class} for a run on numbers, expected classes: drop it"
        )
    found = bnn.explain(
        *(run.posterior, run.draws, run.data.test),
        data_set=run.data,
        of_class=of_class,
        num_permutations=num_permutations,
        progress=progress,
    )
    print(f"log score of {len(found.parts)} {run.rows} rows: {found.score:.4g} nats a row")
    print("\nwhich inputs matter: fall of the log score when permuted, and 90 % interval over rows")
    print(table_text(found.importance[: 2 * _ROWS_SHOWN]))
    share = (found.parts["ignorance"] ** 2).sum() / (found.parts["uncertainty"] ** 2).sum()
    if run.data.num_classes is not None:
        share = found.parts["ignorance"].sum() / found.parts["uncertainty"].sum()
    unit = "entropies in nats" if run.data.num_classes else "standard deviations"
    print(f"\nthe least certain rows ({unit}); over all rows {100 * share:.0f} % of the "
          f"{'entropy' if run.data.num_classes else 'variance'} is from the weights")  # fmt: skip
    print(table_text(found.rows[:_ROWS_SHOWN]))
    table = path.with_suffix(".csv")
    found.importance.to_csv(table, index_label="input")
    bnn.plots.explanation(found).savefig(path, dpi=150)
    print(f"\nfigure in {path}, importance in {table}")


def compress(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    out: Path | None = None,
    tolerance: float = 0.1,
    num_draws: int | None = None,
    num_rows: int = 300,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Choose few draws of a run that predict as all do, and write them as a run of their own.

    Draws are chosen by kernel herding at the training rows, and a table says by how much means,
    sds and quantiles change for each number of draws. All other commands take the new folder.

    Parameters
    ----------
    folder
        Folder of a run.
    out
        New folder; by default that of the run with -compressed added to its name.
    tolerance
        The fewest draws are chosen for which no mean, sd or quantile at the training rows changes
        by more than this many predictive standard deviations.
    num_draws
        Choose this many draws, in all chains, instead.
    num_rows
        Maximum number of training rows, spread evenly.
    progress
        Show a progress bar.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    out = _new_folder(folder, out, "compressed")
    run = reopen(folder, data_dir)
    found = bnn.compress(
        *(run.posterior, run.draws),
        tolerance=tolerance,
        num_draws=num_draws,
        num_rows=num_rows,
        progress=progress,
    )
    write_run(out, folder, found.draws)
    print("largest changes at the training rows, in predictive standard deviations")
    print(table_text(found.table))
    total = found.draws.attrs["compressed_from"]
    print(f"\n{found.num_draws:,} of {total:,} draws change a prediction by at most "
          f"{found.change:.2g} sd: {out}")  # fmt: skip


def distil(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    out: Path | None = None,
    num_inputs: int | None = None,
    seed: int = 0,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Train one network that predicts as all draws of a run do, and write it as a run of its own.

    It is the network of the run, for numbers with a second one for the standard deviation, trained
    to the least divergence from the predictive distribution. A table says how far it is from the
    draws at inputs that were held out. Other commands take the new folder: a run of one draw.

    Parameters
    ----------
    folder
        Folder of a run.
    out
        New folder; by default that of the run with -distilled added to its name.
    num_inputs
        About how many inputs to learn from: training rows, rows with noise, and mixtures of two;
        by default 3,000 to 30,000, by the cost of predicting them.
    seed
        Random seed for the inputs and for training.
    progress
        Show progress bars.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    out = _new_folder(folder, out, "distilled")
    run = reopen(folder, data_dir)
    changed, student = _student(run.problem, run.data)
    given = run.posterior, run.draws
    options: dict[str, Any] = {"num_inputs": num_inputs, "seed": seed, "progress": progress}
    found = bnn.distil(*given, student=student, **options)
    write_run(out, folder, found.draws, changed)
    unit = "probabilities" if run.data.num_classes is not None else "predictive standard deviations"
    print(f"divergence (kl, nats a row) and largest changes ({unit}) at held-out inputs")
    print(table_text(found.table))
    num, total = found.student.num_weights, found.draws.attrs["distilled_from"]
    print(f"\none network of {num:,} parameters for {total:,} draws: {out}")


def _student(problem: Problem, data: Any) -> tuple[dict[str, Any], bnn.Posterior | None]:
    """Give the options that are others than the run's, and the model to train.

    Of classes these are none, and the model is that of the run. Of numbers, a network for the mean
    and one for the standard deviation, whatever the likelihood.
    """
    if data.num_classes is not None:
        return {}, None
    chosen = chosen_likelihood(problem)
    if chosen is not None and not chosen.targets.standardised:
        raise ValueError(
            f"got a run with --likelihood {chosen.name}, expected numbers of any sign or classes: "
            "use bnn-ppl compress"
        )
    changed: dict[str, Any] = {
        "noise": "heteroscedastic",
        "noise_floor": _NOISE_FLOOR,
        "covariance": "diagonal",
    }
    if chosen is not None:
        changed |= {"likelihood": "auto", "num_parts": None, "levels": None}
    posterior = posterior_of(problem.changed(**changed), data)
    return changed | {CHOICE: None} | ({} if chosen is None else {LAW: None}), posterior


def _new_folder(folder: Path, out: Path | None, kind: str) -> Path:
    """Give the folder to write; refuse one that exists."""
    out = folder.with_name(f"{folder.name}-{kind}") if out is None else out
    if out.exists():
        raise FileExistsError(
            f"got --out {out}, which exists, expected a new folder: name another, or remove it"
        )
    return out


def export(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    out: Path | None = None,
    draws: int = 200,
    format: Literal["stablehlo", "onnx"] = "stablehlo",
    data_dir: Path | None = None,
) -> None:
    """Write a folder that predicts without bnn_ppl, with jax, numpy and flatbuffers alone.

    It holds the predictive distribution as a StableHLO program, the draws, how rows are prepared,
    and predict.py: a command, a module to import, and a page that draws predictions.

    Parameters
    ----------
    folder
        Folder of a run.
    out
        Folder to write: by default export, in the folder of the run; one that an export has
        written before is replaced.
    draws
        Export at most this many draws, evenly from each chain; the largest change of a mean by
        leaving out others is shown.
    format
        "onnx" writes model.onnx alone, for dense and convolutional networks: rows of numbers in the
        units of the data give mean and variance, or probabilities (pip install onnx).
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    out = folder / "export" if out is None else out
    others = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if others and not {"model.stablehlo", "model.onnx"} & {*others}:
        raise FileExistsError(
            f"got --out {out}, a folder with {others[0]}, expected a new one or an export: name "
            "another"
        )
    run = reopen(folder, data_dir)
    given = run.posterior, run.draws, out
    options = {"data": run.data, "x": run.data.test.x, "num_draws": draws, "format": format}
    found = bnn.export(*given, replace=True, **options)
    print(found.sentence)
    if format == "onnx":
        print(f"onnxruntime.InferenceSession({str(out / 'model.onnx')!r}).run(None, {{'x': rows}})")
        return
    print(f"python {out / 'predict.py'} rows.csv > predictions.csv    (or --serve 8000: a page)")


class Choice(NamedTuple):
    """How many rows to choose, and by which score.

    Attributes
    ----------
    num
        How many rows; no two are alike.
    score
        For classes "bald" (the default of one), "batchbald" (of several) or "epig"; for numbers
        "variance" (the default) or "epig"; to find the largest y "ei", "ucb" or "thompson".
    minimise
        Find the smallest y, with "ei", "ucb" and "thompson".
    seed
        Random seed for "thompson".
    """

    num: int = 1
    score: Score | None = None
    minimise: bool = False
    seed: int = 0


_USUAL_CHOICE = Choice()


def acquire(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    pool: str,
    choice: Choice = _USUAL_CHOICE,
    targets: str | None = None,
    out: Path | None = None,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Choose rows of a file whose y is worth most: to learn, or to find the largest y.

    A table of the chosen rows, in acquired.csv in the folder.

    Parameters
    ----------
    folder
        Folder of a run.
    pool
        Rows to choose from, in the units of the data: a table (what --data takes) with the columns
        of the training table, or an .npz file with an array x. y is not needed.
    choice
        How many rows to choose, and by which score.
    targets
        The same of rows that are to be predicted, for "epig"; by default the pool.
    out
        File to write, .csv.
    progress
        Show in a terminal that something is computed.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    check_out(out, ".csv")
    out = folder / "acquired.csv" if out is None else out
    run = reopen(folder, data_dir, "test")
    rows = read_new_rows(pool, run.data)
    if rows.fills:
        print(f"{pool}: {rows.fills}")
    wanted = None if targets is None else read_new_rows(targets, run.data).x
    with waiting(progress, "predicting the pool"):
        found = bnn.acquire(*(run.posterior, run.draws, rows.x), targets=wanted, **choice._asdict())
    table = found.in_units(run.data, run.data.class_names).table
    print(f"{len(table)} of {len(rows.x):,} rows of {pool} by {found.score}; 0 is the first")
    print(table_text(table[: 2 * _ROWS_SHOWN]))
    table.to_csv(out)
    print(f"\nrows in {out}")
