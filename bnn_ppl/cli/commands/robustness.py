"""Commands on robustness: corruptions, rotations, adversarial attacks, out-of-distribution data."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import tyro

import bnn_ppl as bnn
from bnn_ppl.cli.run_folders import Opened, figure_path, reopen_all
from bnn_ppl.robustness import adversarial as attacks
from bnn_ppl.robustness import shift
from bnn_ppl.robustness.corruptions import rotate
from bnn_ppl.robustness.corruptions.files import write_files
from bnn_ppl.robustness.more_models import corrupted_by_models

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Folders = Annotated[tuple[Path, ...], tyro.conf.Positional]


class Predicting(NamedTuple):
    """How runs are predicted, and where the figure goes.

    Attributes
    ----------
    num_draws
        Maximum number of draws, spread evenly over the chains.
    batch_size
        Rows predicted per batch.
    figure
        Path of the figure; by default the name of the command and .png, in the run's folder if
        there is only one.
    data_dir
        Folder with the data sets, if they have moved since the runs.
    progress
        Show a progress bar.
    """

    num_draws: int = 100
    batch_size: int = 1000
    figure: Path | None = None
    data_dir: Path | None = None
    progress: bool = True


class Corrupting(NamedTuple):
    """Corruptions, computed or read.

    Attributes
    ----------
    only
        Names of corruptions: gaussian_noise fog ...; by default all.
    severities
        From 1 to 5.
    read
        Folder with corrupted images in the layout of the published CIFAR-10-C (an .npy file for
        each corruption, its five severities stacked, and labels.npy); by default they are computed.
    write
        Write all test images, corrupted, to a folder in that layout first; files there, of the
        same images and seed, are kept.
    seed
        Seed of the corruptions.
    """

    only: tuple[str, ...] = ()
    severities: tuple[int, ...] = shift.SEVERITIES
    read: Path | None = None
    write: Path | None = None
    seed: int = 0


PREDICTING = Predicting()
_ATTACKING = Predicting(num_draws=20, batch_size=250)
_CORRUPTING = Corrupting()


def corruptions(
    folders: Folders,
    *,
    corrupting: Corrupting = _CORRUPTING,
    by_models: bool = False,
    num_rows: int = 1000,
    predicting: Predicting = PREDICTING,
) -> None:
    """Corrupt test images by noise, blur, weather, colour and compression, and score predictions.

    The 19 corruptions of CIFAR-10-C at five severities (18 for grey images). Prints means over
    corruptions; the full table is written to a CSV file beside the figure.

    Parameters
    ----------
    folders
        Folders of runs on the same images, of 16 x 16 pixels or more.
    by_models
        Score the average of the first chain, of the first two, of four and so on too: how much
        more models help at each severity, in <figure>-by-models.png and .csv.
    num_rows
        Number of test images, spread evenly over the test set.
    """
    only, severities, read, write, seed = corrupting
    if read is not None and write is not None:
        raise ValueError("got --read and --write, expected one of them: drop the other")
    path = figure_path(folders, predicting.figure, "corruptions.png")
    runs, data = image_runs(folders, predicting.data_dir)
    chosen = shift.evenly(len(data.test.y), num_rows)
    if write is not None:
        images = shift.pixels_of(data.test.x, data.x_mean, data.x_scale)
        names = write_files(
            write, images, data.test.y, names=only or None, seed=seed, progress=predicting.progress
        )
        print(f"{len(names)} corruptions of {len(images)} test images written to {write}")
        read = write
    scored = corrupted_by_models if by_models else shift.corrupted
    tables = {
        name: scored(
            run.posterior,
            shift.thinned(run.draws, predicting.num_draws),
            (data.test.x[chosen], data.test.y[chosen]),
            x_mean=data.x_mean,
            x_scale=data.x_scale,
            names=only or None,
            severities=severities,
            seed=seed,
            files=read,
            rows=None if read is None else chosen,
            batch_size=predicting.batch_size,
            progress=predicting.progress,
        )
        for name, run in runs.items()
    }
    if by_models:
        beside = path.with_stem(f"{path.stem}-by-models")
        print("mean NLL over corruptions, by severity and number of models")
        print(_by_models(tables))
        write_tables(tables, partial(bnn.plots.more_models, tables), beside)
        tables = {
            name: table[table["num_models"] == table["num_models"].max()].drop(columns="num_models")
            for name, table in tables.items()
        }
    shown = ["accuracy", "nll", "ece", "entropy", "mutual_information"]
    print("means over corruptions, by severity (0: none)")
    print(_by_condition(tables, "severity", shown))
    write_tables(tables, partial(bnn.plots.corruptions, tables), path)


def rotations(
    folders: Folders,
    *,
    label: int | str = 1,
    num_rows: int | None = None,
    predicting: Predicting = PREDICTING,
) -> None:
    """Rotate a test image by 16 angles from 0 to 180 degrees, and show the predictions.

    Parameters
    ----------
    folders
        Folders of runs on the same images.
    label
        Class of the image, by number or name: the first test row of that class.
    num_rows
        Rotate this many test images instead, spread evenly, and average over them.
    """
    one = num_rows is None
    if not one and label != 1:
        raise ValueError("got --label and --num-rows, expected one of them: drop the other")
    path = figure_path(folders, predicting.figure, "rotations.png")
    runs, data = image_runs(folders, predicting.data_dir)
    rows = _first_of(data, label) if num_rows is None else _some(data.test, num_rows)
    found = {
        name: shift.rotated(
            run.posterior,
            shift.thinned(run.draws, predicting.num_draws),
            rows,
            x_mean=data.x_mean,
            x_scale=data.x_scale,
            batch_size=predicting.batch_size,
            progress=predicting.progress,
        )
        for name, run in runs.items()
    }
    names = {f"probability_{k}": f"probability_{c}" for k, c in enumerate(data.class_names or ())}
    tables = {name: table.rename(columns=names) for name, table in found.items()}
    what = (
        f"the first of class {label} of the test rows"
        if one
        else f"means over {len(rows.y)} test rows"
    )
    print(f"{what}, by degrees")
    shown = ["probability", *([] if one else ["accuracy"])]
    shown += ["entropy", "expected_entropy", "mutual_information"]
    print(_by_condition(tables, "angle", shown))
    images = _turned(rows.x, data) if one else None
    write_tables(tables, partial(bnn.plots.rotations, tables, images), path)


def adversarial(
    folders: Folders,
    *,
    epsilons: tuple[float, ...] = attacks.EPSILONS,
    num_steps: int = 1,
    clip: bool = False,
    num_rows: int = 1000,
    predicting: Predicting = _ATTACKING,
) -> None:
    """Attack each run's predictions with the fast gradient sign method, and score them.

    Parameters
    ----------
    folders
        Folders of runs on the same data set and split.
    epsilons
        Largest change of each input, in standard deviations (inputs are standardised).
    num_steps
        Number of gradient steps; more than one is the iterated attack.
    clip
        Keep inputs within the range of the training inputs (for images, of the pixels).
    num_rows
        Number of test rows, spread evenly over the test set.
    """
    path = figure_path(folders, predicting.figure, "adversarial.png")
    runs = reopen_all(folders, predicting.data_dir)
    data = next(iter(runs.values())).data
    if data.roles:
        raise ValueError(
            f"got a run with the columns {', '.join(data.roles)} beside the inputs, which an "
            "attack would move too, expected inputs alone: attack a run without them"
        )
    tables = {
        name: attacks.attacked(
            run.posterior,
            shift.thinned(run.draws, predicting.num_draws),
            _some(data.test, num_rows),
            epsilons,
            num_steps=num_steps,
            clip=_range(data.train.x) if clip else None,
            batch_size=predicting.batch_size,
            scale=data.y_scale,
            progress=predicting.progress,
        )
        for name, run in runs.items()
    }
    shown = ["rmse", "nll", "coverage_90"]
    if data.num_classes is not None:
        shown = ["accuracy", "nll", "entropy", "mutual_information"]
    print(f"inputs moved by at most epsilon, {num_steps} steps")
    print(_by_condition(tables, "epsilon", shown))
    write_tables(tables, partial(bnn.plots.adversarial, tables), path)


def image_runs(
    folders: tuple[Path, ...], data_dir: Path | None
) -> tuple[dict[str, Opened], bnn.data.DataSet]:
    """Open runs, and give the data of the first, on whose test rows all are to be predicted."""
    runs = reopen_all(folders, data_dir)
    first = next(iter(runs.values()))
    if first.data.test.x.ndim != 4 or first.data.num_classes is None:
        raise ValueError(
            f"got runs on {first.problem.data.data}, expected image classes (mnist, cifar10): for "
            "other data use bnn-ppl adversarial"
        )
    return runs, first.data


def _some(rows: bnn.data.Data, num_rows: int) -> bnn.data.Data:
    """Take rows evenly spread, for the later ones of a test set can be harder (mnist)."""
    chosen = shift.evenly(len(rows.y), num_rows)
    return bnn.data.Data(rows.x[chosen], rows.y[chosen])


def _first_of(data: bnn.data.DataSet, label: int | str) -> bnn.data.Data:
    names = list(data.class_names or ())
    number = names.index(str(label)) if str(label) in names else label
    places = np.flatnonzero(data.test.y == number)[:1]
    if not places.size:
        among = ", ".join(names) or f"0 to {(data.num_classes or 0) - 1}"
        raise ValueError(f"got --label {label}, expected one of the classes {among}")
    return bnn.data.Data(data.test.x[places], data.test.y[places])


def _range(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value of each column, or of each channel of images."""
    values = x.reshape(-1, x.shape[-1])
    return values.min(0), values.max(0)


def _turned(image: np.ndarray, data: bnn.data.DataSet) -> np.ndarray:
    """One image at all angles, in shares of its brightest pixel."""
    pixels = image * data.x_scale + data.x_mean
    turned = np.concatenate([rotate(pixels, angle) for angle in shift.ANGLES])
    return np.clip(turned / pixels.max(), 0, 1)


def _by_condition(
    tables: Mapping[str, "pandas.DataFrame"], condition: str, scores: list[str]
) -> str:
    """Lay out means over all else: a line a run and score, a column a condition."""
    import pandas as pd

    means = {name: table.groupby(condition)[scores].mean().T for name, table in tables.items()}
    shown = pd.concat(means, names=["run", "score"])
    return shown.to_string(na_rep="", float_format="{:.3f}".format)


def _by_models(tables: Mapping[str, "pandas.DataFrame"]) -> str:
    """Lay out the mean NLL: a line a run and number of models, a column a severity."""
    import pandas as pd

    means = {
        name: table.pivot_table(index="num_models", columns="severity", values="nll")
        for name, table in tables.items()
    }
    return pd.concat(means, names=["run"]).to_string(na_rep="", float_format="{:.3f}".format)


def write_tables(
    tables: Mapping[str, "pandas.DataFrame"], draw: Callable[[], "Figure"], path: Path
) -> None:
    """Write one table of all runs, and then draw the figure beside it."""
    import pandas as pd

    table = pd.concat(tables, names=["run"]).reset_index("run")
    table.to_csv(path.with_suffix(".csv"), index=False)
    draw().savefig(path, dpi=150)
    print(f"\nfigure in {path}, table in {path.with_suffix('.csv')}")
