"""What the two estimators share: scaling, sampling, predicting."""

import math
import numbers
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

import bnn_ppl as bnn
from bnn_ppl.data.standardise import MeanScale, standardise
from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.estimators.rows import Rows, parts_to_predict
from bnn_ppl.estimators.stored import same_estimator, settings_of
from bnn_ppl.methods.method import METHODS, Counts, Description, PredictiveForm
from bnn_ppl.model.likelihoods.likelihood import Likelihood
from bnn_ppl.model.prior.priors import EARLIER_FLOOR
from bnn_ppl.model.recipe import like
from bnn_ppl.runtime.checks import check_positive
from bnn_ppl.runtime.interrupts import minutes_left
from bnn_ppl.runtime.machines.devices import bytes_of, one_device_a_core
from bnn_ppl.runtime.names import hint
from bnn_ppl.sampling.run_checks import check_run
from bnn_ppl.sampling.search import structure
from bnn_ppl.sampling.search.prior_scale import scale_or_usual
from bnn_ppl.storage.arviz_versions import as_dataset, draws_of_groups, groups_of
from bnn_ppl.storage.inference_data import with_groups
from bnn_ppl.storage.phase_state import place_of_searches
from bnn_ppl.storage.problem import read_problem, write_problem

_USUAL_SCALE, _USUAL_HIDDEN = math.sqrt(2), (50,)
_MOST_BYTES_KEPT = 16 * 2**20  # of the rows of a posterior that is kept for other fits

_recent: deque[bnn.Posterior] = deque(maxlen=4)


class BayesianNetwork(BaseEstimator):
    """Base of the two estimators, which differ in `_model`."""

    method: Any
    method_options: Mapping[str, Any] | None
    net: Any
    prior: Any
    prior_scale: float | None
    predictive: PredictiveForm | None
    num_chains: int | None
    until: Mapping[str, Any] | None
    max_minutes: float | None
    folder: str | Path | None
    random_state: Any
    progress: bool

    def _keep(self, arguments: Mapping[str, Any]) -> None:
        """Keep the arguments of ``__init__`` under their names, as scikit-learn expects."""
        for name in arguments.keys() - {"self"}:
            setattr(self, name, arguments[name])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the posterior, whose functions cannot be pickled, and rows elsewhere."""
        state = super().__getstate__()
        if isinstance(state.get("_train"), Stream):
            state = state | {"_train": state["_train"].examples}
        return {name: value for name, value in state.items() if name != "posterior_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the posterior from the rows it was conditioned on."""
        super().__setstate__(state)
        if hasattr(self, "draws_"):
            earlier = {"hidden_": self._usual_hidden()}  # before these could be found
            earlier["noise_"] = getattr(self._as_fitted, "noise", None)
            earlier["likelihood_"] = None
            self.__dict__.update(
                {name: each for name, each in earlier.items() if name not in state}
            )
            self.posterior_ = self._conditioned()

    def _sample(self, rows: Rows, x: MeanScale, y: MeanScale | None) -> None:
        """Sample the posterior given rows, which are standardised by `x` and `y`."""
        if jax.config.values["jax_num_cpu_devices"] == -1 and "XLA_FLAGS" not in os.environ:
            with suppress(RuntimeError):  # JAX has started, with one device
                one_device_a_core()
        # Parameters set after a fit apply to the next one, also if this posterior is rebuilt.
        self._as_fitted = SimpleNamespace(**self.get_params(deep=False))
        self.x_mean_, self.x_scale_ = x
        self._weighted = rows.weights is not None
        self._train = rows.standardised(x, y)
        self._description()  # refuses an unknown method before anything is compiled
        self.hidden_ = self._usual_hidden()
        key = jax.random.key(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        folder = None if self.folder is None else Path(self.folder).expanduser()
        self.prior_scale_ = self.prior_scale
        known = self._stored(folder)
        if known is not None:
            self._take_known(known)
        if folder is not None or (self.prior is None and self.prior_scale is None):
            self.posterior_ = self._conditioned()
            # Before the search for the prior's scale, which takes its time.
            method = self._method()
            check_run(key, self.posterior_, method, folder=folder, **self._running(method))
        began = time.monotonic()
        if known is None:
            self._find_structure(folder)
        self.prior_scale_ = self._scale(folder, known, minutes_left(self.max_minutes, began))
        self.posterior_ = self._conditioned()
        method = self._method()
        running = self._running(method) | {"folder": folder}
        running |= {"max_minutes": minutes_left(self.max_minutes, began)}
        self._store(folder, self.prior_scale_)
        with warnings.catch_warnings(action="ignore", category=bnn.VerdictWarning):
            draws = bnn.run(key, self.posterior_, method, **running)
        # In memory, as what reads a folder cannot be pickled.
        read = {name: group.compute() for name, group in groups_of(draws).items()}
        self.draws_ = draws_of_groups(read, draws.attrs)
        self.verdict_ = self.draws_.attrs.get("verdict", "")
        if self.draws_.attrs.get("converged") == 0:
            warnings.warn(self.verdict_, ConvergenceWarning, stacklevel=3)

    def _running(self, method: bnn.Method) -> dict[str, Any]:
        """Give the options of :func:`bnn_ppl.run`."""
        names = "num_warmup", "num_draws", "thin", "batch_size", "max_minutes", "progress"
        own = {name: getattr(self, name) for name in names}
        num_chains = method.counts.num_chains if self.num_chains is None else self.num_chains
        return own | {"num_chains": num_chains, "until": self._until()}

    def _until(self) -> Any:
        """Give `until` with inputs as the posterior sees them."""
        if not isinstance(self.until, Mapping) or "x" not in self.until:
            return self.until  # what is neither is refused by `run`
        return {**self.until, "x": self._inputs(self.until["x"], np.dtype(np.float32))}

    def _inputs(self, X: Any, dtype: np.dtype) -> Any:
        """Give inputs as the posterior sees them."""
        x = validate_data(self, X, reset=False, dtype=np.float64)
        x = standardise(x, self._x_scaling, dtype)
        return (x, np.ones(len(x), dtype)) if self._weighted else x

    @property
    def _x_scaling(self) -> MeanScale:
        return MeanScale(self.x_mean_, self.x_scale_)

    def _conditioned(self) -> bnn.Posterior:
        return self._condition(self._model(), temperature=self._as_fitted.temperature)

    def _condition(self, model: Callable, **tempering: Any) -> bnn.Posterior:
        model = bnn.models.weighted(model) if self._weighted else model
        posterior = bnn.condition(model, self._train, **tempering)
        usual = self._as_fitted.net is None and self._as_fitted.prior is None
        return _found_again(posterior) if usual else posterior

    def _model(self) -> Callable:
        raise NotImplementedError

    def _model_to_search(self) -> Callable:
        """Give the model by whose evidence the scale of the prior is found."""
        return self._model()

    def _model_with(self, likelihood: Likelihood) -> Callable:
        net = self._network(likelihood.num_outputs)
        return bnn.models.with_likelihood(net, self._prior(), likelihood)

    def _network(self, num_outputs: int) -> Any:
        if self._as_fitted.net is not None:
            return self._as_fitted.net
        return partial(bnn.nets.MLP, self.n_features_in_, self.hidden_, num_outputs)

    def _prior(self) -> Any:
        prior = self._as_fitted.prior
        if prior is not None:
            return prior
        return bnn.priors.fan_in(_USUAL_SCALE if self.prior_scale_ is None else self.prior_scale_)

    def _store(self, folder: Path | None, scale: float | None) -> None:
        """Write what predictions need into the folder, as far as it can be."""
        if folder is not None and self._is_recorded:
            write_problem(folder, settings_of(self, scale))

    @property
    def _is_recorded(self) -> bool:
        """Whether a folder can say what the model is: not of a user's own network or prior."""
        return self.net is None and self.prior is None

    def _stored(self, folder: Path | None) -> dict[str, Any] | None:
        """Give what an equal estimator's run in this folder has found, if there is one."""
        with suppress(ValueError, FileNotFoundError):
            stored = None if folder is None else read_problem(folder)
            ours = settings_of(self, None)
            if stored and stored["prior_scale"] is not None and same_estimator(stored, ours):
                return stored
        return None

    def _take_known(self, known: dict[str, Any]) -> None:
        """Take the structure that the run of an equal estimator has found."""
        found = known["parameters"] | {"hidden": self._as_widths(known["parameters"]["hidden"])}
        self._take({name: found[name] for name in self._open_parts()})

    def _usual_hidden(self) -> Any:
        """Give the widths of hidden layers that are given, or else those of a small table."""
        given = self._as_fitted.hidden
        return _USUAL_HIDDEN if given is None else self._as_widths(given)

    @staticmethod
    def _as_widths(hidden: Any) -> Any:
        several = isinstance(hidden, Iterable) and not isinstance(hidden, str)
        return tuple(hidden) if several else hidden

    def _open_parts(self) -> list[str]:
        """Name what of the model is left open, to be found from the rows."""
        return ["hidden"] if self._as_fitted.hidden is None and self._is_recorded else []

    def _take(self, found: Mapping[str, Any]) -> None:
        """Take what was found of the model."""
        self.hidden_ = found.get("hidden", self.hidden_)

    def _find_structure(self, folder: Path | None) -> None:
        """Find what is left open."""
        train, names = self._train, self._open_parts()
        if not names or isinstance(train, Stream) or len(train[1]) < structure.LEAST_ROWS:
            return

        def model_with(each: structure.Structure) -> Callable:
            self._take({name: getattr(each, name) for name in names})
            return bnn.models.weighted(self._model()) if self._weighted else self._model()

        widths = structure.LADDER if "hidden" in names else (self.hidden_,)
        noises = structure.NOISES if "noise" in names else (None,)
        limits: dict[str, Any] = {"max_minutes": self.max_minutes, "progress": self.progress}
        limits |= {"folder": self._search_folder(folder)}
        key = jax.random.key(0)
        choice = structure.choose_structure(key, model_with, train, widths, noises, **limits)
        self._take({name: getattr(choice.best, name) for name in names})

    def _search_folder(self, folder: Path | None) -> Path | None:
        """Give where searches are kept, once it is written what they are for."""
        self._store(folder, None)
        return place_of_searches(folder)

    def _scale(
        self, folder: Path | None, known: dict[str, Any] | None, minutes: float | None
    ) -> float | None:
        """Find the scale of the usual prior, unless it or another prior is given."""
        if self.prior is not None and self.prior_scale is not None:
            raise ValueError(
                f"got prior and prior_scale={self.prior_scale}, expected one of them: the scale is "
                "that of the prior by default"
            )
        if self.prior is not None or self.prior_scale is not None:
            return self.prior_scale
        if known is not None:
            return known["prior_scale"]

        def posterior_at(scale: float) -> bnn.Posterior:
            self.prior_scale_ = scale
            return self._condition(self._model_to_search())

        limits: dict[str, Any] = {"max_minutes": minutes, "progress": self.progress}
        return scale_or_usual(
            posterior_at, _USUAL_SCALE, folder=self._search_folder(folder), **limits
        )

    def _method(self) -> bnn.Method:
        options = dict(self.method_options or {})
        described = self._description()
        if described is None:
            assert callable(self.method)
            return self.method(self.posterior_, **options)
        counts = _given(self, described.counts)
        return described.build(self.posterior_, **described.complete(options, counts))

    def _description(self) -> Description | None:
        """Look up the method by name, or by the function of that name; None for another function.

        Raises ValueError if it is neither.
        """
        for name, described in METHODS.items():
            if self.method in (name, described.build, getattr(bnn, name, None)):
                return described
        if not callable(self.method):
            raise ValueError(
                f"got method={self.method!r}{hint(str(self.method), METHODS)} expected one of "
                f"{', '.join(sorted(METHODS))}, or a function of a posterior that returns a Method"
            )
        return None

    def _predicted(self, X: Any, *names: str) -> list[np.ndarray]:
        """Predict these variables of :func:`bnn_ppl.predict`, by row."""

        def of_inputs(posterior: bnn.Posterior, draws: Any, x: Any) -> list[np.ndarray]:
            prediction = bnn.predict(posterior, draws, (x, None), predictive=self.predictive)
            return [prediction[name].values for name in names]

        return [np.concatenate(parts) for parts in zip(*self._by_part(of_inputs, X), strict=True)]

    def _quantiles(self, X: Any, quantiles: np.ndarray) -> np.ndarray:
        def of_inputs(posterior: bnn.Posterior, draws: Any, x: Any) -> np.ndarray:
            return bnn.predict_quantiles(posterior, draws, x, quantiles, predictive=self.predictive)

        return np.concatenate(self._by_part(of_inputs, X), axis=1)

    def _by_part(self, function: Callable, X: Any) -> list[Any]:
        """Call a function of the posterior, its draws and inputs.

        A large X is taken in parts.
        """
        check_is_fitted(self)
        # In single precision the last digits of a prediction would depend on the number of rows.
        with jax.enable_x64(True):
            values = as_dataset(self.draws_["posterior"]).astype(float)
            draws = with_groups(self.draws_, posterior=values)
            parts = (self._inputs(part, np.dtype(np.float64)) for part in parts_to_predict(X))
            return [function(self.posterior_, draws, x) for x in parts]


def _found_again(posterior: bnn.Posterior) -> bnn.Posterior:
    """Give the posterior by the recipe of one that other fits had, whose traces are then reused."""
    if isinstance(posterior.data, Stream) or bytes_of(posterior.data) > _MOST_BYTES_KEPT:
        return posterior
    for known in list(_recent):
        found = like(posterior, known)
        if found is not posterior:
            return found
    _recent.append(posterior)
    return posterior


def _given(estimator: BayesianNetwork, usual: Counts) -> dict[str, Any]:
    """Give the length of a run: an estimator's own, where it is not None."""
    counts = {name: getattr(usual, name) for name in ("num_warmup", "num_draws", "thin")}
    own = {name: getattr(estimator, name) for name in counts}
    return counts | {name: count for name, count in own.items() if count is not None}


def noise_of(estimator: Any, noise: Any, num_outputs: int) -> tuple[Any, dict[str, Any]]:
    """Give the noise of a regressor as :func:`bnn_ppl.models.regressor` takes it, and options."""
    floor = getattr(estimator, "noise_floor_", None)
    if noise == "learnt":
        return bnn.priors.noise(EARLIER_FLOOR if floor is None else float(np.min(floor))), {}
    if isinstance(noise, numbers.Real):
        check_positive("noise", noise)
        return noise / estimator.y_scale_, {}
    if noise != "heteroscedastic":
        raise ValueError(
            f"got noise={noise!r}, expected 'learnt', 'heteroscedastic', 'auto' or a number"
        )
    if floor is None:  # fitted by an earlier version
        return "softplus", {}
    own = estimator._as_fitted.net is None
    options = {"noise_net": estimator._network(num_outputs)} if own else {}
    return noise, options | {"noise_floor": floor}
