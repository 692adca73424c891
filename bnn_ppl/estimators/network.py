"""What the two estimators share: scaling, sampling, predicting."""

import math
import numbers
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import validate_data

import bnn_ppl as bnn
from bnn_ppl.data.standardise import MeanScale, standardise
from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.data.tables.roles import apart
from bnn_ppl.estimators.likelihoods import check_more_targets
from bnn_ppl.estimators.rows import Rows, is_large, joined, weights_of_rows
from bnn_ppl.estimators.stored import same_estimator, settings_of
from bnn_ppl.estimators.tables import new_table, new_weights
from bnn_ppl.methods.method import METHODS, Counts, Description, PredictiveForm
from bnn_ppl.model.likelihoods.likelihood import Likelihood
from bnn_ppl.model.models import with_roles
from bnn_ppl.model.prior.priors import EARLIER_FLOOR
from bnn_ppl.model.recipe import like
from bnn_ppl.runtime.checks import check_positive
from bnn_ppl.runtime.interrupts import minutes_left
from bnn_ppl.runtime.machines.devices import bytes_of, one_device_a_core
from bnn_ppl.runtime.names import hint
from bnn_ppl.sampling.run_checks import check_run
from bnn_ppl.sampling.search import structure
from bnn_ppl.sampling.search.prior_scale import scale_or_usual
from bnn_ppl.storage.arviz_versions import draws_of_groups, groups_of
from bnn_ppl.storage.checkpoint import alone_in
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
            earlier["likelihood_"] = earlier["encoding_"] = None
            self.__dict__.update(
                {name: each for name, each in earlier.items() if name not in state}
            )
            self.posterior_ = self._conditioned()

    @contextmanager
    def _as_before_if_it_fails(self) -> Iterator[None]:
        """Leave a fit that fails, or is interrupted, without effect: draws belong to their rows."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _sample(self, rows: Rows, x: MeanScale, y: MeanScale | None) -> None:
        """Sample the posterior given rows, which are standardised by `x` and `y`."""
        if jax.config.values["jax_num_cpu_devices"] == -1 and "XLA_FLAGS" not in os.environ:
            with suppress(RuntimeError):  # JAX has started, with one device
                one_device_a_core()
        # Parameters set after a fit apply to the next one, also if this posterior is rebuilt.
        self._as_fitted = SimpleNamespace(**self.get_params(deep=False))
        self.encoding_ = rows.encoding
        self.x_mean_, self.x_scale_ = x
        self._weighted = rows.weights is not None
        self._train = rows.standardised(x, y)
        self._description()  # refuses an unknown method before anything is compiled
        self.hidden_ = self._usual_hidden()
        key, given = self._key(), self.prior_scale
        folder = None if self.folder is None else Path(self.folder).expanduser()
        self.prior_scale_: float | None = _USUAL_SCALE if given is None else given
        known = self._stored(folder)
        if known is not None:
            self._take_known(known)
        if folder is not None or (self.prior is None and self.prior_scale is None):
            self.posterior_ = self._conditioned()
            # Before the search for the prior's scale, which takes its time.
            method = self._method()
            check_run(key, self.posterior_, method, folder=folder, **self._running(method))
        began = time.monotonic()
        with alone_in(folder):  # or another fit might write its settings into this one's folder
            if known is None:
                self._find_structure(folder)
            self.prior_scale_ = self._scale(folder, known, minutes_left(self.max_minutes, began))
            self.posterior_ = self._conditioned()
            self._store(folder, self.prior_scale_)
            self._run(key, folder=folder, max_minutes=minutes_left(self.max_minutes, began))

    def _continue(self, X: Any, y: np.ndarray, sample_weight: Any) -> None:
        """Sample given these rows too, y being as the model has it, from the draws so far on."""
        if self.folder is not None or isinstance(self._train, Stream) or is_large(X):
            got = "folder=" if self.folder is not None else "a large X"
            raise ValueError(
                f"got {got} with partial_fit, expected rows and draws in memory: use fit with all "
                "rows"
            )
        x = self._standardised(X, np.dtype(np.float32))
        check_consistent_length(x, y)
        check_more_targets(self.likelihood_, y, apart(x, self._roles)[1] if self._roles else {})
        weights, of_table = weights_of_rows(sample_weight, x), new_weights(self, X)
        if of_table is not None:
            weights = of_table if weights is None else weights * of_table
        with self._as_before_if_it_fails():
            self._train, self._weighted = joined(self._train, self._weighted, x, y, weights)
            self.posterior_ = self._conditioned()
            self._run(jax.random.fold_in(self._key(), len(self._train[1])), init=self.draws_)

    def _key(self) -> jax.Array:
        return jax.random.key(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _run(self, key: jax.Array, **options: Any) -> None:
        """Draw, in memory, and warn of draws that have not converged."""
        method = self._method()
        running = self._running(method) | options
        with warnings.catch_warnings(action="ignore", category=bnn.VerdictWarning):
            draws = bnn.run(key, self.posterior_, method, **running)
        # In memory, as what reads a folder cannot be pickled.
        read = {name: group.compute() for name, group in groups_of(draws).items()}
        self.draws_ = draws_of_groups(read, draws.attrs)
        self.verdict_ = self.draws_.attrs.get("verdict", "")
        if self.draws_.attrs.get("converged") == 0:
            warnings.warn(self.verdict_, ConvergenceWarning, stacklevel=4)

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
        x = self._standardised(X, dtype)
        return (x, np.ones(len(x), dtype)) if self._weighted else x

    def _standardised(self, X: Any, dtype: np.dtype) -> np.ndarray:
        """Give inputs as the network sees them, columns for the likelihood last."""
        if self.encoding_ is None:
            x = validate_data(self, X, reset=False, dtype=np.float64)
        else:
            x = new_table(self, X)
        return standardise(x, self._x_scaling, dtype)

    @property
    def _x_scaling(self) -> MeanScale:
        return MeanScale(self.x_mean_, self.x_scale_)

    def _conditioned(self) -> bnn.Posterior:
        return self._condition(self._model(), temperature=self._as_fitted.temperature)

    def _condition(self, model: Callable, **tempering: Any) -> bnn.Posterior:
        return self._shared(bnn.condition(self._of_rows(model), self._train, **tempering))

    def _shared(self, posterior: bnn.Posterior) -> bnn.Posterior:
        """Reuse what was traced for other fits, of a model that is the package's own."""
        usual = self._as_fitted.net is None and self._as_fitted.prior is None
        return _found_again(posterior) if usual else posterior

    def _of_rows(self, model: Callable) -> Callable:
        """Give a model of the rows as they are: with columns for the likelihood, and weights."""
        if self._roles:
            model = with_roles(model, self._roles, self.likelihood_)
        return bnn.models.weighted(model) if self._weighted else model

    @property
    def _roles(self) -> list[str]:
        """Roles of the last columns of x."""
        return [] if self.encoding_ is None else [role for role, _ in self.encoding_.roles]

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
        num_inputs = len(self.x_mean_) - len(self._roles)
        return partial(bnn.nets.MLP, num_inputs, self.hidden_, num_outputs)

    def _prior(self) -> Any:
        prior = self._as_fitted.prior
        if prior is not None:
            return prior
        return bnn.priors.fan_in(self.prior_scale_)  # None leaves it open

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
        return hidden if isinstance(hidden, str) or not np.iterable(hidden) else tuple(hidden)

    def _open_parts(self) -> list[str]:
        """Name what of the model is left open, to be found from the rows."""
        return ["hidden"] if self._as_fitted.hidden is None and self._is_recorded else []

    def _take(self, found: Mapping[str, Any]) -> None:
        """Take what was found of the model."""
        self.hidden_ = found.get("hidden", self.hidden_)

    def _find_structure(self, folder: Path | None) -> None:
        """Find what is left open."""
        train, names = self._train, self._open_parts()
        if not names or isinstance(train, Stream):
            return
        x, weights = train[0] if self._weighted else (train[0], None)
        if not (names := structure.parts_to_choose(names, x, train[1], weights)):
            return

        def model_with(each: structure.Structure) -> Callable:
            self._take({name: getattr(each, name) for name in names})
            return self._of_rows(self._model())

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

        self.prior_scale_ = None
        opened = self._condition(self._model_to_search()).prior.open_scale
        assert opened is not None

        def posterior_at(scale: float) -> bnn.Posterior:
            return self._shared(opened.untempered(scale))

        limits: dict[str, Any] = {"max_minutes": minutes, "progress": self.progress}
        folder = self._search_folder(folder)
        return scale_or_usual(posterior_at, opened.usual, folder=folder, **limits)

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


def _found_again(posterior: bnn.Posterior) -> bnn.Posterior:
    """Give the posterior the recipe of one that other fits had, whose traces are then reused."""
    if isinstance(posterior.data, Stream) or bytes_of(posterior.data) > _MOST_BYTES_KEPT:
        return posterior
    for known in list(_recent):
        found = like(posterior, known, other_rows=True)
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
