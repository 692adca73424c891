"""Predictions from the folder of a run that stores its model: of the command line or an estimator.

It stands above all rooms, as the two that make such runs are above those that predict.
"""

import inspect
import json
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar, overload

import jax
import numpy as np

from bnn_ppl.analysis.acquisition.acquire import Acquired
from bnn_ppl.analysis.acquisition.acquire import acquire as acquired
from bnn_ppl.analysis.comparison.loo import loo as left_out
from bnn_ppl.analysis.convergence import diagnostics
from bnn_ppl.analysis.distributions.probabilities import predict_probabilities as probable
from bnn_ppl.analysis.explanation.explain import Explanation
from bnn_ppl.analysis.explanation.explain import explain as explained
from bnn_ppl.analysis.export.export import Exported
from bnn_ppl.analysis.export.export import export as exported
from bnn_ppl.analysis.model_checks import predictive_checks, sensitivity
from bnn_ppl.analysis.prediction import predict as averages
from bnn_ppl.analysis.prediction.closed_form import predict_closed_form as closed_form
from bnn_ppl.analysis.prediction.predictive_draws import predictive_draws as drawn
from bnn_ppl.analysis.prediction.quantiles import predict_cdf as below
from bnn_ppl.analysis.prediction.quantiles import predict_quantiles as quantiles
from bnn_ppl.data.tables.new_rows import given_new_rows
from bnn_ppl.data.tables.reading import DataSet
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.given_rows import inputs_and_targets
from bnn_ppl.runtime.checks import warn
from bnn_ppl.storage.arviz_versions import as_dataset
from bnn_ppl.storage.files import PROBLEM
from bnn_ppl.storage.inference_data import with_groups
from bnn_ppl.storage.problem import ESTIMATOR, read_problem

if TYPE_CHECKING:
    import xarray

Given = ParamSpec("Given")
Result = TypeVar("Result", covariant=True)


class StoredRun(NamedTuple):
    """What a run predicts with.

    Attributes
    ----------
    posterior
        The model, conditioned on rows of zeros.
    data
        The scales of its rows; and two of these, which are zeros.
    float64
        Whether it computes in double precision.
    weighted
        Whether its inputs are pairs of x and the weights of the rows.
    labels
        Names of the classes, unless they are 0, 1, ...
    """

    posterior: Posterior
    data: DataSet
    float64: bool
    weighted: bool = False
    labels: tuple[Any, ...] | None = None

    def rows(self, given: Any) -> Any:
        """Prepare rows x, (x, y) or (x, None) in the units of the data as the model sees them."""
        new = given_new_rows(*inputs_and_targets(given, self.data.train.x), self.data)
        x, y, fills = new[:3]
        for told in filter(None, (fills, new.unscored)):
            warn(f"x: {told}")
        return ((x, np.ones(len(x), x.dtype)) if self.weighted else x), y

    def in_units(self, found: Any) -> Any:
        """Give predictions in the units of the data, with the names of classes and outputs."""
        if isinstance(found, np.ndarray):
            return found.astype(float) * self.data.y_scale + self.data.y_mean
        if isinstance(found, Acquired):
            return found.in_units(self.data, self.labels)
        if hasattr(found, "data_vars"):
            return self._dataset(found)
        drawn = "posterior_predictive" in found
        names = ("posterior_predictive", "observed_data") if drawn else ("posterior",)
        groups = {name: self._dataset(as_dataset(found[name])) for name in names if name in found}
        if drawn and self.labels:
            found.attrs["class_names"] = json.dumps(self.labels)
        if drawn and "log_likelihood" in found:
            log_density = as_dataset(found["log_likelihood"]).astype(float)
            groups["log_likelihood"] = log_density - np.log(self.data.y_scale).sum()
        return with_groups(found, **groups)

    def _dataset(self, found: "xarray.Dataset") -> "xarray.Dataset":
        if self.data.num_classes is None:
            found = found.map(self._values)
        names = {"class": self.labels, "output": self.data.output_names}
        return found.assign_coords(
            {dim: list(each) for dim, each in names.items() if each and dim in found.dims}
        )

    def _values(self, values: "xarray.DataArray") -> "xarray.DataArray":
        if values.dtype.kind in "iu":  # counts, which have no other units
            return values
        name, scale, values = str(values.name), np.asarray(self.data.y_scale), values.astype(float)
        nats = np.log(scale) if "output" in values.dims else np.log(scale).sum()
        if name in ("mean", "y"):
            return values * scale + self.data.y_mean
        if name.endswith("variance"):
            return values * scale**2
        if name.endswith("entropy"):
            return values + nats
        if name.startswith("crps"):
            return values * scale
        return values - nats if name == "log_prob" else values


class _OfFolders(Protocol[Given, Result]):
    @overload
    def __call__(self, *given: Given.args, **options: Given.kwargs) -> Result: ...

    @overload
    def __call__(self, *given: Any, **options: Any) -> Result: ...


def of_folders(function: Callable[Given, Result]) -> _OfFolders[Given, Result]:
    """Let a function of posterior, draws and rows take a folder for the first two, and rows as x=.

    Rows are then in the units of the data, and so is what it gives.
    """
    signature = inspect.signature(function)
    names = list(signature.parameters)
    rows = names[names.index("draws") + 1]

    @wraps(function)
    def predicting(*given: Any, **options: Any) -> Any:
        if "x" in options and rows != "x":
            if rows in options:
                raise TypeError(f"got x= and {rows}=, expected one of them")
            options[rows] = options.pop("x")
        place = next((n for n, each in enumerate(given) if isinstance(each, str | PathLike)), None)
        if place is None:
            return function(*given, **options)
        before, after, folder = given[:place], given[place + 1 :], Path(given[place]).expanduser()
        bound = signature.bind_partial(*before, folder, None, *after, **options).arguments
        if bound.get(rows) is None or bound.get("folder") is not None:
            raise ValueError(
                f"got the folder of a run, {str(folder)!r}, "
                f"{'without rows' if bound.get(rows) is None else 'with folder='}, expected rows "
                "in the units of the data, as x=, and no other folder"
            )
        run, draws = _reopened(folder), diagnostics.load(folder)
        with jax.enable_x64(run.float64):
            own = {"posterior": run.posterior, "draws": draws, rows: run.rows(bound[rows])}
            answer: Any = partial(function, **bound | own)
            return run.in_units(answer())

    return predicting


def _reopened(folder: Path) -> StoredRun:
    """Give what a run predicts with; refuse one of a user's own model."""
    file = folder / PROBLEM
    if not file.is_file():
        diagnostics.load(folder)  # which says so if there is no run
        raise ValueError(
            f"got {str(folder)!r}, a run of your own model, which it does not store, expected one "
            "of bnn-ppl run or of an estimator with its own network: condition the model on one "
            "row, and pass that posterior and the draws that bnn_ppl.diagnostics.load gives"
        )
    return _read(folder, file.read_bytes())


@lru_cache(maxsize=4)  # what is compiled for a posterior is found again
def _read(folder: Path, content: bytes) -> StoredRun:
    del content
    settings = read_problem(folder)
    if ESTIMATOR in settings:
        from bnn_ppl.estimators.stored import model_of

        return StoredRun(*model_of(settings))
    from bnn_ppl.cli.run_folders import reopen_to_predict

    posterior, data, float64 = reopen_to_predict(folder)
    return StoredRun(posterior, data, float64, labels=data.class_names)


def with_training_rows(function: Callable[Given, Result], command: str) -> Callable[Given, Result]:
    """Let a function of a posterior, which uses its rows, say what to do with a folder."""

    @wraps(function)
    def of_posterior(*given: Given.args, **options: Given.kwargs) -> Result:
        folder = next((each for each in given if isinstance(each, str | PathLike)), None)
        if folder is not None:
            raise TypeError(
                f"got the folder {str(folder)!r}, expected a posterior and draws, as "
                f"{function.__name__} uses the training rows: for a run of bnn-ppl use {command}"
            )
        return function(*given, **options)

    return of_posterior


check_predictive = with_training_rows(predictive_checks.check_predictive, "bnn-ppl check")
check_sensitivity = with_training_rows(sensitivity.check_sensitivity, "bnn-ppl check")
loo = with_training_rows(left_out, "bnn-ppl compare --by loo")
predict = of_folders(averages.predict)
function_draws = of_folders(averages.function_draws)
predict_closed_form = of_folders(closed_form)
predict_quantiles = of_folders(quantiles)
predictive_draws = of_folders(drawn)


@wraps(acquired)
def acquire(*given: Any, **options: Any) -> Acquired:
    """Let the folder of a run take the place of posterior and draws."""
    if given and isinstance(given[0], str | PathLike):
        if options.get("score") == "ei":
            raise ValueError(
                "got score='ei' with the folder of a run, which lacks the largest y, expected "
                "'ucb' or 'thompson': or use bnn-ppl acquire, or pass posterior and draws"
            )
        if options.get("targets") is not None:
            run = _reopened(Path(given[0]).expanduser())
            options["targets"] = run.rows(options["targets"])[0]
    return of_folders(acquired)(*given, **options)


def _of_values(function: Callable[Given, Result], name: str) -> _OfFolders[Given, Result]:
    """Let a function of posterior, draws, x and values of y take a folder for the first two."""
    signature = inspect.signature(function)

    @wraps(function)
    def probable_of(*given: Any, **options: Any) -> Any:
        bound = signature.bind_partial(*given, **options).arguments
        folder = bound.get("posterior")
        if not isinstance(folder, str | PathLike):
            return function(*given, **options)
        if bound.get("draws") is not None or any(bound.get(each) is None for each in ("x", name)):
            raise TypeError(
                f"got the folder of a run, expected x= and {name}= by name: "
                f"{function.__name__}('runs/mine', x=rows, {name}=[0, 1])"
            )
        where = Path(folder).expanduser()
        run = _reopened(where)
        if run.data.num_outputs > 1:
            raise ValueError(
                "got a run of several outputs, expected one: each has units of its own"
            )
        with jax.enable_x64(run.float64):
            own = {"posterior": run.posterior, "draws": diagnostics.load(where)}
            own["x"] = run.rows(bound["x"])[0]
            own[name] = (np.asarray(bound[name], float) - run.data.y_mean) / run.data.y_scale
            answer: Any = partial(function, **bound | own)
            return answer()

    return probable_of


predict_probabilities = _of_values(probable, "values")
predict_cdf = _of_values(below, "y")


@wraps(explained)
def explain(posterior: Any, draws: Any = None, data: Any = None, **options: Any) -> Explanation:
    """Let the folder of a run take the place of posterior and draws."""
    if not isinstance(posterior, str | PathLike):
        return explained(posterior, draws, data, **options)
    where, rows = Path(posterior).expanduser(), draws if data is None else data
    run = _reopened(where)
    with jax.enable_x64(run.float64):
        known = {"data_set": run.data}
        given = diagnostics.load(where), run.rows(rows)
        return explained(run.posterior, *given, **(known | options))


@wraps(exported)
def export(posterior: Any, draws: Any = None, folder: Any = None, **options: Any) -> Exported:
    """Let the folder of a run take the place of posterior and draws."""
    if not isinstance(posterior, str | PathLike):
        return exported(posterior, draws, folder, **options)
    where = Path(posterior).expanduser()
    out = folder if draws is None else draws
    if not isinstance(out, str | PathLike):
        raise TypeError(
            f"got the folder of a run and {out!r}, expected the folder to write: "
            "bnn_ppl.export('runs/mine', 'exported')"
        )
    run = _reopened(where)
    with jax.enable_x64(run.float64):
        if options.get("x") is not None:
            options["x"] = run.rows(options["x"])[0]
        known = {"data": run.data, "labels": run.labels}
        return exported(run.posterior, diagnostics.load(where), Path(out), **(known | options))
