"""Bayesian neural networks as scikit-learn estimators, with draws to diagnose in ArviZ.

Requires scikit-learn (``pip install scikit-learn``), and is not imported by ``bnn_ppl`` itself::

    from bnn_ppl.estimators import BayesianRegressor
    mean, std = BayesianRegressor().fit(X, y).predict(X_new, return_std=True)
"""

import math
import numbers
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

import bnn_ppl as bnn
from bnn_ppl.analysis.linearised import for_prediction
from bnn_ppl.data.standardise import mean_and_scale, standardise
from bnn_ppl.methods.method import METHODS, Counts, Description
from bnn_ppl.runtime.devices import one_device_a_core
from bnn_ppl.sampling.prior_scale import scale_or_usual

if TYPE_CHECKING:
    import xarray

_USUAL_SCALE = math.sqrt(2)


class _BayesianNetwork(BaseEstimator):
    """Base of the two estimators, which differ in `_model`."""

    def __init__(
        self,
        method: str | Callable[..., bnn.Method] = "sghmc",
        *,
        method_options: Mapping[str, Any] | None = None,
        hidden: int | Sequence[int] = (50,),
        net: Any = None,
        prior: Any = None,
        prior_scale: float | None = None,
        temperature: float = 1.0,
        num_chains: int | None = None,
        num_warmup: int | None = None,
        num_draws: int | None = None,
        thin: int | None = None,
        batch_size: int | Literal["all"] | None = None,
        until: Mapping[str, Any] | None = None,
        max_minutes: float | None = None,
        random_state: Any = None,
        progress: bool = False,
    ):
        self.method = method
        self.method_options = method_options
        self.hidden = hidden
        self.net = net
        self.prior = prior
        self.prior_scale = prior_scale
        self.temperature = temperature
        self.num_chains = num_chains
        self.num_warmup = num_warmup
        self.num_draws = num_draws
        self.thin = thin
        self.batch_size = batch_size
        self.until = until
        self.max_minutes = max_minutes
        self.random_state = random_state
        self.progress = progress

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the posterior, whose functions cannot be pickled."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "posterior_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the posterior from the rows it was conditioned on."""
        super().__setstate__(state)
        if hasattr(self, "draws_"):
            self.posterior_ = self._conditioned()

    def _sample(self, x: np.ndarray, y: np.ndarray) -> None:
        if jax.config.values["jax_num_cpu_devices"] == -1 and "XLA_FLAGS" not in os.environ:
            with suppress(RuntimeError):  # JAX has started, with one device
                one_device_a_core()
        # Parameters set after a fit apply to the next one, also if this posterior is rebuilt.
        self._as_fitted = SimpleNamespace(**self.get_params(deep=False))
        self._x_scaling = mean_and_scale(x)
        self._train = standardise(x, self._x_scaling, np.dtype(np.float32)), y
        self.prior_scale_ = self._scale()
        self.posterior_ = self._conditioned()
        method = self._method()
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        self.draws_ = bnn.run(
            jax.random.key(seed),
            self.posterior_,
            method,
            num_chains=method.counts.num_chains if self.num_chains is None else self.num_chains,
            num_warmup=self.num_warmup,
            num_draws=self.num_draws,
            thin=self.thin,
            batch_size=self.batch_size,
            until=self._until(),
            max_minutes=self.max_minutes,
            progress=self.progress,
        )
        self.verdict_ = self.draws_.attrs.get("verdict", "")
        if self.draws_.attrs.get("converged") == 0:
            warnings.warn(self.verdict_, ConvergenceWarning, stacklevel=3)

    def _until(self) -> Any:
        """Give `until` with inputs as the posterior sees them."""
        if not isinstance(self.until, Mapping) or "x" not in self.until:
            return self.until  # what is neither is refused by `run`
        x = validate_data(self, self.until["x"], reset=False, dtype=np.float64)
        return {**self.until, "x": standardise(x, self._x_scaling, np.dtype(np.float32))}

    def _conditioned(self) -> bnn.Posterior:
        return bnn.condition(self._model(), self._train, temperature=self._as_fitted.temperature)

    def _model(self) -> Callable:
        raise NotImplementedError

    def _network(self, num_outputs: int) -> Any:
        if self._as_fitted.net is not None:
            return self._as_fitted.net
        hidden = self._as_fitted.hidden
        hidden = (hidden,) if isinstance(hidden, numbers.Integral) else tuple(hidden)
        return partial(bnn.nets.MLP, self.n_features_in_, hidden, num_outputs)

    def _prior(self) -> Any:
        prior = self._as_fitted.prior
        if prior is not None:
            return prior
        return bnn.priors.fan_in(_USUAL_SCALE if self.prior_scale_ is None else self.prior_scale_)

    def _scale(self) -> float | None:
        """Find the scale of the usual prior, unless it or another prior is given."""
        if self.prior is not None and self.prior_scale is not None:
            raise ValueError(
                f"got prior and prior_scale={self.prior_scale}, expected one of them: the scale is "
                "that of the prior by default"
            )
        if self.prior is not None or self.prior_scale is not None:
            return self.prior_scale

        def posterior_at(scale: float) -> bnn.Posterior:
            self.prior_scale_ = scale
            return bnn.condition(self._model(), self._train)

        return scale_or_usual(posterior_at, _USUAL_SCALE)

    def _method(self) -> bnn.Method:
        options = dict(self.method_options or {})
        described = self._description()
        if described is None:
            if not callable(self.method):
                raise ValueError(
                    f"got method={self.method!r}, expected one of {', '.join(sorted(METHODS))}, "
                    "or a function of a posterior that returns a Method"
                )
            return self.method(self.posterior_, **options)
        counts = _given(self, described.counts)
        return described.build(self.posterior_, **described.complete(options, counts))

    def _description(self) -> Description | None:
        """Look up the method by name, or by the function of that name."""
        for name, described in METHODS.items():
            if self.method in (name, described.build, getattr(bnn, name, None)):
                return described
        return None

    def _predicted(self, X: Any) -> "xarray.Dataset":
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        # In single precision the last digits of a prediction would depend on the number of rows.
        with jax.enable_x64(True):
            draws = self.draws_.map(lambda group: group.astype(float), groups=["posterior"])
            x = standardise(x, self._x_scaling, np.dtype(np.float64))
            return bnn.predict(for_prediction(self.posterior_, draws), draws, (x, None))


def _given(estimator: _BayesianNetwork, usual: Counts) -> dict[str, Any]:
    """Give the length of a run: an estimator's own, where it is not None."""
    counts = {name: getattr(usual, name) for name in ("num_warmup", "num_draws", "thin")}
    own = {name: getattr(estimator, name) for name in counts}
    return counts | {name: count for name, count in own.items() if count is not None}


class BayesianClassifier(ClassifierMixin, _BayesianNetwork):
    """Bayesian neural network classifier: predictions are averaged over draws of the weights.

    Parameters
    ----------
    method
        Name of a method of this package, or a function of a posterior that returns a
        :class:`bnn_ppl.Method`.
    method_options
        Other arguments of the method, such as ``{"step_size": 1e-5}`` for sgld.
    hidden
        Widths of the hidden layers of the MLP; a number for one layer.
    net
        Network to use instead of an MLP, as for :func:`bnn_ppl.random_network`, from x (rows,
        columns) to logits (rows, classes).
    prior
        Prior of the weights, as for :func:`bnn_ppl.random_network`; by default
        :func:`bnn_ppl.priors.fan_in` with a gain of `prior_scale`.
    prior_scale
        Gain of the default prior. None: found by :func:`bnn_ppl.prior_scale` at each fit.
    temperature
        Temperature of the posterior; 1 is the Bayes posterior.
    num_chains, num_warmup, num_draws, thin, batch_size
        As for :func:`bnn_ppl.run`, whose defaults they have, but for 4 chains.
    until, max_minutes
        When to stop, as for :func:`bnn_ppl.run`; inputs "x" are like X.
    random_state
        Random seed: None, an integer, or a ``numpy.random.RandomState``.
    progress
        Whether to show a progress bar.

    Attributes
    ----------
    draws_ : arviz.InferenceData
        Draws, as :func:`bnn_ppl.run` returns them.
    verdict_ : str
        Whether they have converged, in a line; if not, `fit` warns of it.
    posterior_ : bnn_ppl.Posterior
        Posterior that was sampled; its x is standardised.
    prior_scale_ : float
        Gain of the default prior, given or found; None for another prior.
    classes_ : numpy.ndarray
        Labels, in the order of the columns of `predict_proba`.
    n_features_in_ : int
        Number of columns of X.
    """

    def fit(self, X: Any, y: Any) -> "BayesianClassifier":
        """Sample the posterior given X (rows, columns) and labels y (rows,).

        Raises
        ------
        ValueError
            If X or y does not have this shape or is not finite, y has only one class, or an
            argument is out of range.
        """
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("got y with only one class, expected at least 2 classes")
        self._sample(x, numbers.astype(np.int32))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each class (rows, classes), averaged over draws."""
        return self._predicted(X)["probs"].values

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable label (rows,)."""
        most_probable = self.predict_proba(X).argmax(1)
        return self.classes_[most_probable]

    def _model(self) -> Callable:
        return bnn.models.classifier(self._network(len(self.classes_)), self._prior())


class BayesianRegressor(RegressorMixin, _BayesianNetwork):
    """Bayesian neural network regressor: predictions are averaged over draws of the weights.

    Parameters
    ----------
    method
        Name of a method of this package, or a function of a posterior that returns a
        :class:`bnn_ppl.Method`.
    noise
        Standard deviation of y given x: "learnt", "heteroscedastic" (from a second output of the
        network), or a number in the units of y.
    method_options
        Other arguments of the method, such as ``{"step_size": 1e-5}`` for sgld.
    hidden
        Widths of the hidden layers of the MLP; a number for one layer.
    net
        Network to use instead of an MLP, as for :func:`bnn_ppl.random_network`, from x (rows,
        columns) to (rows, 1), or to (rows, 2) for heteroscedastic noise.
    prior
        Prior of the weights, as for :func:`bnn_ppl.random_network`; by default
        :func:`bnn_ppl.priors.fan_in` with a gain of `prior_scale`.
    prior_scale
        Gain of the default prior. None: found by :func:`bnn_ppl.prior_scale` at each fit.
    temperature
        Temperature of the posterior; 1 is the Bayes posterior.
    num_chains, num_warmup, num_draws, thin, batch_size
        As for :func:`bnn_ppl.run`, whose defaults they have, but for 4 chains.
    until, max_minutes
        When to stop, as for :func:`bnn_ppl.run`; inputs "x" are like X.
    random_state
        Random seed: None, an integer, or a ``numpy.random.RandomState``.
    progress
        Whether to show a progress bar.

    Attributes
    ----------
    draws_ : arviz.InferenceData
        Draws, as :func:`bnn_ppl.run` returns them.
    verdict_ : str
        Whether they have converged, in a line; if not, `fit` warns of it.
    posterior_ : bnn_ppl.Posterior
        Posterior that was sampled; its x and y are standardised.
    prior_scale_ : float
        Gain of the default prior, given or found; None for another prior.
    n_features_in_ : int
        Number of columns of X.
    """

    def __init__(
        self,
        method: str | Callable[..., bnn.Method] = "sghmc",
        *,
        noise: Literal["learnt", "heteroscedastic"] | float = "learnt",
        method_options: Mapping[str, Any] | None = None,
        hidden: int | Sequence[int] = (50,),
        net: Any = None,
        prior: Any = None,
        prior_scale: float | None = None,
        temperature: float = 1.0,
        num_chains: int | None = None,
        num_warmup: int | None = None,
        num_draws: int | None = None,
        thin: int | None = None,
        batch_size: int | Literal["all"] | None = None,
        until: Mapping[str, Any] | None = None,
        max_minutes: float | None = None,
        random_state: Any = None,
        progress: bool = False,
    ):
        super().__init__(
            method,
            method_options=method_options,
            hidden=hidden,
            net=net,
            prior=prior,
            prior_scale=prior_scale,
            temperature=temperature,
            num_chains=num_chains,
            num_warmup=num_warmup,
            num_draws=num_draws,
            thin=thin,
            batch_size=batch_size,
            until=until,
            max_minutes=max_minutes,
            random_state=random_state,
            progress=progress,
        )
        self.noise = noise

    def fit(self, X: Any, y: Any) -> "BayesianRegressor":
        """Sample the posterior given X (rows, columns) and targets y (rows,).

        Raises
        ------
        ValueError
            If X or y does not have this shape or is not finite, or an argument is out of range.
        """
        x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self._y_scaling = mean_and_scale(y)
        self._sample(x, standardise(y, self._y_scaling, np.dtype(np.float32)))
        return self

    def predict(
        self, X: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean of y (rows,); with `return_std` also its sd, noise included."""
        prediction, (shift, scale) = self._predicted(X), self._y_scaling
        mean = prediction["mean"].values * scale + shift
        return (mean, np.sqrt(prediction["variance"].values) * scale) if return_std else mean

    def _model(self) -> Callable:
        noise: Any = self._as_fitted.noise
        net = self._network(2 if noise == "heteroscedastic" else 1)
        if noise == "learnt":
            noise = bnn.priors.noise()
        elif isinstance(noise, numbers.Real):
            noise = noise / self._y_scaling.scale
        elif noise != "heteroscedastic":
            raise ValueError(
                f"got noise={noise!r}, expected 'learnt', 'heteroscedastic' or a number"
            )
        return bnn.models.regressor(net, self._prior(), noise)
