"""Write a folder that predicts with JAX and NumPy alone, and measure it."""

import json
import math
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from bnn_ppl.analysis.export import predict as loader
from bnn_ppl.analysis.export.onnx_program import FILE as ONNX_FILE
from bnn_ppl.analysis.export.onnx_program import check_onnx, onnx_predictor, onnx_program
from bnn_ppl.analysis.export.preparation import preparation
from bnn_ppl.analysis.export.program import program_of
from bnn_ppl.analysis.prediction.predict import predict
from bnn_ppl.data.tables.reading import DataSet
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.files import make_folder
from bnn_ppl.storage.inference_data import thinned

if TYPE_CHECKING:
    import arviz

Format = Literal["stablehlo", "onnx"]
_FILES = "predict.py", "page.html"
_MOST_ROWS = 500  # at which thinned draws are compared with all
_REPEATS = 5
_Latencies = tuple[dict[int, float], dict[int, float]]  # of first and of later calls


class Exported(NamedTuple):
    """What an export holds, and what it was measured to do.

    Attributes
    ----------
    folder : Path
        Where it is.
    num_draws : int
        Draws that it predicts with.
    num_all_draws : int
        Draws of the run.
    change : float
        The largest change of a mean (of a probability, for classes) by leaving out draws, in
        predictive standard deviations; 0 where none is left out, NaN where no rows are known.
    bytes : int
        Size of its files.
    seconds : dict
        Time of a call with 1 and with 1,000 rows, once compiled: the median of five, on this
        machine.
    compile_seconds : dict
        Time of the first calls.
    platforms : tuple of str
        Where its program runs.
    """

    folder: Path
    num_draws: int
    num_all_draws: int
    change: float
    bytes: int
    seconds: dict[int, float]
    compile_seconds: dict[int, float]
    platforms: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Say it in a few lines."""
        draws = f"{self.num_draws} of {self.num_all_draws} draws"
        if not math.isnan(self.change) and self.num_draws < self.num_all_draws:
            draws += f", which change a mean by at most {self.change:.2g} predictive sd"
        times = ", ".join(
            f"{1e3 * self.seconds[n]:.3g} ms for {n:,} row{'s' * (n > 1)}" for n in self.seconds
        )
        first = ", ".join(f"{seconds:.2g}" for seconds in self.compile_seconds.values())
        told = f"{draws}; {self.bytes / 1e6:.3g} MB, for {', '.join(self.platforms)}\n"
        if not self.seconds:
            return f"{told}latency: unknown without onnxruntime (pip install onnxruntime)"
        return f"{told}latency here: {times} (first calls, which compile: {first} s)"


def export(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    folder: str | Path,
    *,
    data: DataSet | None = None,
    num_draws: int = 200,
    x: Any = None,
    labels: tuple[Any, ...] | None = None,
    replace: bool = False,
    format: Format = "stablehlo",
) -> Exported:
    """Write a folder that predicts without this package: with jax, numpy and flatbuffers.

    It holds the predictive distribution as a program in StableHLO, by ``jax.export``, the draws,
    how rows are prepared, and ``predict.py``: a command, a module with ``load``, and a page. The
    folder of a run may take the place of `posterior` and `draws`, as for :func:`bnn_ppl.predict`;
    `data`, `labels` and x are then known.

    As "onnx" it holds ``model.onnx``, one graph with all draws in it, of layers that can be written
    so, and no ``predict.py``: rows (rows, ...) of numbers in the units of the data give mean and
    variance, or probabilities.

    Parameters
    ----------
    posterior
        The posterior that was sampled, of one array x and one observed site.
    draws
        From :func:`bnn_ppl.run`.
    folder
        The new folder.
    data
        From :func:`bnn_ppl.data.load`: columns and units of the rows. By default rows are as the
        model sees them.
    num_draws
        At most this many draws are exported, evenly from each chain.
    x
        Rows, as the model sees them, at which the change by leaving out draws is measured; by
        default the training rows.
    labels
        Names of the classes, if `data` has none.
    replace
        Write into a folder that exists.
    format
        "stablehlo" or "onnx".

    Returns
    -------
    Exported
        Size, latency, and the change by leaving out draws.

    Raises
    ------
    ValueError
        If x is not one array, several sites are observed, a column is of a kind that
        ``predict.py`` does not know, or a layer cannot be written as ONNX.
    FileExistsError
        If the folder exists.
    ImportError
        Without the package flatbuffers, by which ``jax.export`` writes programs, or onnx.

    Notes
    -----
    JAX keeps such programs readable for six months of its versions or longer. Of likelihoods
    without a distribution function there are no quantiles.
    """
    check_arguments(posterior=posterior, draws=draws)
    folder = Path(folder).expanduser()
    _check(posterior, folder, num_draws, replace)
    if format not in get_args(Format):
        raise ValueError(f"got format={format!r}, expected 'stablehlo' or 'onnx': name one")
    kept = thinned(draws, num_draws)
    wrote = (_onnx if format == "onnx" else _stablehlo)(posterior, kept, folder, data, labels)
    kept_of, all_of = _num_draws(kept), _num_draws(draws)
    rows = posterior.rows.examples[0] if x is None else x
    change = 0.0 if kept_of == all_of else _change(posterior, draws, kept, rows)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    platforms, (first, seconds) = wrote
    return Exported(folder, kept_of, all_of, change, size, seconds, first, platforms)


def _stablehlo(
    posterior: Posterior, kept: Any, folder: Path, data: DataSet | None, labels: Any
) -> tuple[tuple[str, ...], _Latencies]:
    program = program_of(posterior, kept)
    about = preparation(posterior, program, data, labels)
    make_folder(folder)
    (folder / ONNX_FILE).unlink(missing_ok=True)  # of an export that this one replaces
    (folder / "model.stablehlo").write_bytes(program.content)
    arrays: dict[str, Any] = {f"array_{n}": own for n, own in enumerate(program.arrays)}
    np.savez(folder / "draws.npz", weights=program.weights, **arrays)
    _write_about(folder, about)
    for name in _FILES:
        shutil.copyfile(Path(__file__).parent / name, folder / name)
    model = loader.load(folder)
    return program.platforms, _latencies(lambda x: model.in_units(model.predicted(x)), about)


def _onnx(
    posterior: Posterior, kept: Any, folder: Path, data: DataSet | None, labels: Any
) -> tuple[tuple[str, ...], _Latencies]:
    check_onnx()
    program, content_of = onnx_program(posterior, kept)
    about = preparation(posterior, program, data, labels)
    content = content_of(about)
    make_folder(folder)
    for name in ("model.stablehlo", "draws.npz", *_FILES):  # of an export that this one replaces
        (folder / name).unlink(missing_ok=True)
    (folder / ONNX_FILE).write_bytes(content)
    _write_about(folder, about)
    predict = onnx_predictor(content, about["batch_size"])
    return program.platforms, ({}, {}) if predict is None else _latencies(predict, about)


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    (folder / "preparation.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _num_draws(draws: Any) -> int:
    return math.prod(draws.posterior.sizes[dim] for dim in ("chain", "draw"))


def _check(posterior: Posterior, folder: Path, num_draws: int, replace: bool) -> None:
    if posterior.rows.targets is not None:
        raise ValueError(
            f"got a model of the observed sites {', '.join(posterior.rows.targets.names)}, "
            "expected one: export each by bnn_ppl.of_site"
        )
    if num_draws < 1:
        raise ValueError(f"got num_draws={num_draws}, expected at least 1: give how many to keep")
    if folder.exists() and not replace:
        raise FileExistsError(
            f"got the folder {str(folder)!r}, which exists, expected a new one: give another, or "
            "remove it"
        )


def _change(posterior: Posterior, draws: Any, kept: Any, x: Any) -> float:
    """Give the largest change of a mean or probability, in predictive standard deviations."""
    x = jax.tree.map(lambda leaf: leaf[:_MOST_ROWS], checked_inputs(posterior, x))
    if all(not np.any(leaf) for leaf in jax.tree.leaves(x)):  # of a folder, whose rows are blank
        return math.nan
    before, after = (predict(posterior, each, x) for each in (draws, kept))
    if "probs" in before:
        probs = before["probs"].values
        sd = np.sqrt(np.maximum(probs * (1 - probs), 1e-4))  # of whether a class comes about
        return float(np.abs((after["probs"].values - probs) / sd).max())
    return float((np.abs(after["mean"] - before["mean"]) / np.sqrt(before["variance"])).max())


def _latencies(predict: Callable[[np.ndarray], Any], about: dict[str, Any]) -> _Latencies:
    """Give seconds of first and of later calls with 1 and 1,000 rows."""
    row = np.zeros((1, *about["x_shape"]), about["x_type"])
    first, later = {}, {}
    for count in (1, 1000):
        rows = np.repeat(row, count, axis=0)
        first[count] = _seconds(lambda: predict(rows))  # noqa: B023
        later[count] = statistics.median(
            _seconds(lambda: predict(rows))  # noqa: B023
            for _ in range(_REPEATS)
        )
    return first, later


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
