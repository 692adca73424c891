"""Bayesian neural networks as scikit-learn estimators, with draws to diagnose in ArviZ.

Requires scikit-learn (``pip install scikit-learn``), and is not imported by ``bnn_ppl`` itself::

    from bnn_ppl.estimators import BayesianRegressor
    mean, std = BayesianRegressor().fit(X, y).predict(X_new, return_std=True)
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

import bnn_ppl as bnn
from bnn_ppl.data.standardise import UNCHANGED
from bnn_ppl.estimators.likelihoods import is_standardised, likelihood_of, refuse_of_normal
from bnn_ppl.estimators.network import BayesianNetwork, noise_of
from bnn_ppl.estimators.rows import checked_rows, class_weights, labels_of, refuse_texts
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.likelihoods.noise_of_x import usual_noise_floor
from bnn_ppl.model.prior.priors import NOISE_FLOOR
from bnn_ppl.model.rows.labels import numbered
from bnn_ppl.runtime.checks import check_level
from bnn_ppl.runtime.names import known_keywords

__all__ = ["BayesianClassifier", "BayesianRegressor"]


class BayesianClassifier(ClassifierMixin, BayesianNetwork):
    """Bayesian neural network classifier: predictions are averaged over draws of the weights.

    Parameters
    ----------
    method
        Name of a method of this package, or a function of a posterior that returns a
        :class:`bnn_ppl.Method`.
    class_weight
        Weights of the classes, a dict from labels (those left out have 1), by which the
        log-likelihoods of their rows are multiplied, as by `sample_weight`; or "balanced", rows
        over classes times rows of the class.
    likelihood
        "auto" is "categorical"; "ordinal" takes the labels as ordered, "bernoulli" two labels by
        one output: see :mod:`bnn_ppl.likelihoods`.
    method_options
        Other arguments of the method, such as ``{"step_size": 1e-5}`` for sgld.
    hidden
        Widths of the hidden layers of the MLP; a number for one layer. None: 50, or for 1,000
        rows and more found at each fit, the one of (50,), (64, 64) and (128, 128, 128) whose fits
        predict held-out rows best.
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
    predictive
        How laplace predicts, as for :func:`bnn_ppl.predict`: "linearised" (the default), with draws
        of the weights and the network linearised at the fitted ones; "closed_form", without draws
        (:func:`bnn_ppl.predict_closed_form`); "sampled", with draws and the network itself, as
        all other methods do.
    num_chains, num_warmup, num_draws, thin, batch_size
        As for :func:`bnn_ppl.run`, whose defaults they have, but for 4 chains.
    until, max_minutes
        When to stop, as for :func:`bnn_ppl.run`; inputs "x" are like X.
    folder
        Where to store the run, as for :func:`bnn_ppl.run`: a fit of an equal estimator to the same
        rows resumes it (give it a `random_state`), and :func:`bnn_ppl.predict` takes the folder.
        Each fit needs its own.
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
        Posterior that was sampled; its x is standardised. Its rows are a stream if X is large.
    prior_scale_ : float
        Gain of the default prior, given or found; None for another prior.
    hidden_ : tuple of int or int
        Widths of the hidden layers, given or found.
    classes_ : numpy.ndarray
        Labels, in the order of the columns of `predict_proba`.
    x_mean_, x_scale_ : numpy.ndarray
        Mean and standard deviation of each column of X, (columns,), by which inputs are
        standardised; the scale of a constant column is 1.
    n_features_in_ : int
        Number of columns of X.
    """

    @known_keywords
    def __init__(
        self,
        method: str | Callable[..., bnn.Method] = "sgnht",
        *,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        likelihood: str = "auto",
        method_options: Mapping[str, Any] | None = None,
        hidden: int | Sequence[int] | None = None,
        net: Any = None,
        prior: Any = None,
        prior_scale: float | None = None,
        temperature: float = 1.0,
        predictive: PredictiveForm | None = None,
        num_chains: int | None = None,
        num_warmup: int | None = None,
        num_draws: int | None = None,
        thin: int | None = None,
        batch_size: int | Literal["all"] | None = None,
        until: Mapping[str, Any] | None = None,
        max_minutes: float | None = None,
        folder: str | Path | None = None,
        random_state: Any = None,
        progress: bool = False,
    ):
        self._keep(locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BayesianClassifier":
        """Sample the posterior given X (rows, columns) and labels y (rows,), or one-hot rows.

        Labels may be numbers, truth values or text; those of one-hot rows (rows, classes) are the
        names of the columns of a pandas DataFrame, or their numbers.

        With `sample_weight` (rows,), at least 0, each row's log-likelihood is multiplied by its
        weight: a row of weight 2 counts as two rows, also in the scales of X. A NumPy array X of
        more than 64 MiB, such as a ``numpy.memmap``, is not copied: its rows are read as needed.

        Raises
        ------
        ValueError
            If X or y does not have this shape or is not finite, y has only one class, a weight is
            negative, or an argument is out of range.
        """
        y = labels_of(y)
        rows = checked_rows(self, X, y, sample_weight)
        check_classification_targets(rows.y)
        rows = rows._replace(weights=class_weights(self.class_weight, rows))
        self.classes_, numbers = numbered(rows.y)
        if len(self.classes_) < 2:
            raise ValueError("got y with only one class, expected at least 2 classes")
        rows = rows._replace(y=numbers)
        self.likelihood_ = likelihood_of(self.likelihood, numbers, of_classes=True)
        self._sample(rows, rows.scalings()[0], None)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each class (rows, classes), averaged over draws."""
        (probs,) = self._predicted(X, "probs")
        return probs

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable label (rows,)."""
        most_probable = self.predict_proba(X).argmax(1)
        return self.classes_[most_probable]

    def _model(self) -> Callable:
        if self.likelihood_ is not None:
            return self._model_with(self.likelihood_)
        return bnn.models.classifier(self._network(len(self.classes_)), self._prior())


class BayesianRegressor(RegressorMixin, BayesianNetwork):
    """Bayesian neural network regressor: predictions are averaged over draws of the weights.

    Arguments and attributes are those of :class:`BayesianClassifier`, but for `class_weight` and
    `classes_`, and these:

    Parameters
    ----------
    likelihood
        Distribution of y: "auto" is "normal"; or the name of another of
        :mod:`bnn_ppl.likelihoods`, such as "poisson", which has no `noise`, and takes y of one
        target. Columns beside X, such as exposures, are for
        :func:`bnn_ppl.models.with_likelihood` and the command line.
    noise
        Standard deviation of y given x: "learnt", one for all rows; "heteroscedastic", learnt as a
        function of x (see :func:`bnn_ppl.models.regressor`) by a network of its own; "auto", the
        latter where, of 1,000 rows or more, it predicts held-out rows better; or a number in the
        units of y.
    covariance
        Of the noise of several targets: "diagonal", or "full", with learnt correlations.
    net
        Network to use instead of an MLP, as for :func:`bnn_ppl.random_network`, from x (rows,
        columns) to (rows, targets), or to (rows, 2 targets) for heteroscedastic noise, which then
        has no network of its own.

    Attributes
    ----------
    y_mean_, y_scale_ : float, or numpy.ndarray (targets,)
        Mean and standard deviation of y, by which it is standardised.
    noise_floor_ : float, list of float (targets) or None
        Smallest standard deviation of learnt noise, in units of the standardised y.
    noise_ : str or float
        Kind of noise, given or found.
    """

    @known_keywords
    def __init__(
        self,
        method: str | Callable[..., bnn.Method] = "sgnht",
        *,
        likelihood: str = "auto",
        noise: Literal["auto", "learnt", "heteroscedastic"] | float = "auto",
        covariance: Literal["diagonal", "full"] = "diagonal",
        method_options: Mapping[str, Any] | None = None,
        hidden: int | Sequence[int] | None = None,
        net: Any = None,
        prior: Any = None,
        prior_scale: float | None = None,
        temperature: float = 1.0,
        predictive: PredictiveForm | None = None,
        num_chains: int | None = None,
        num_warmup: int | None = None,
        num_draws: int | None = None,
        thin: int | None = None,
        batch_size: int | Literal["all"] | None = None,
        until: Mapping[str, Any] | None = None,
        max_minutes: float | None = None,
        folder: str | Path | None = None,
        random_state: Any = None,
        progress: bool = False,
    ):
        self._keep(locals())

    def __sklearn_tags__(self) -> Any:
        """Say that y may have several columns."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BayesianRegressor":
        """Sample the posterior given X (rows, columns) and y (rows,) or (rows, targets).

        With `sample_weight` (rows,), at least 0, each row's log-likelihood is multiplied by its
        weight: a row of weight 2 counts as two rows, also in the scales of X and y. A NumPy array X
        of more than 64 MiB, such as a ``numpy.memmap``, is not copied: its rows are read as needed.

        Raises
        ------
        ValueError
            If X or y does not have this shape or is not finite, a weight is negative, or an
            argument is out of range.
        """
        refuse_texts(y)
        rows = checked_rows(self, X, y, sample_weight, y_numeric=True, multi_output=True)
        of_x, of_y = rows.scalings()
        if not is_standardised(self.likelihood):
            of_y = UNCHANGED
        one = rows.y.ndim == 1
        self.y_mean_: Any = float(of_y.mean) if one else of_y.mean
        self.y_scale_: Any = float(of_y.scale) if one else of_y.scale
        scaled = (rows.y - self.y_mean_) / self.y_scale_
        self.likelihood_ = likelihood_of(self.likelihood, scaled, of_classes=False)
        if self.likelihood_ is not None:
            refuse_of_normal(self.likelihood, noise=self.noise, covariance=self.covariance)
        self._floor_of_x = usual_noise_floor(scaled)
        self._take_noise("learnt" if self._noise_is_open() else self.noise)
        self._sample(rows, of_x, of_y)
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        quantiles: float | Sequence[float] | None = None,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean of y, in its shape (rows,) or (rows, targets), or its quantiles.

        Parameters
        ----------
        X
            Inputs (rows, columns).
        return_std
            Whether to give a pair, the mean and the standard deviation, noise included.
        quantiles
            Give these quantiles of y in place of the mean, noise included: a probability, for an
            array of y's shape, or several, for one more axis, the last.

        Raises
        ------
        ValueError
            If a probability is not between 0 and 1, or `return_std` is given too.
        """
        if quantiles is not None:
            if return_std:
                raise ValueError("got return_std and quantiles, expected one of them")
            found = self._in_units(X, np.atleast_1d(quantiles))
            return np.moveaxis(found, 0, -1) if np.ndim(quantiles) else found[0]
        mean, variance = self._predicted(X, "mean", "variance")
        mean = mean * self.y_scale_ + self.y_mean_
        return (mean, np.sqrt(variance) * self.y_scale_) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Predict the ends of the central interval of y, each in its shape, noise included.

        Parameters
        ----------
        X
            Inputs (rows, columns).
        level
            Probability of the interval, between 0 and 1; as much lies below it as above.

        Raises
        ------
        ValueError
            If the level is not between 0 and 1.
        """
        check_level(level)
        lower, upper = self._in_units(X, np.array([(1 - level) / 2, (1 + level) / 2]))
        return lower, upper

    def _in_units(self, X: Any, quantiles: np.ndarray) -> np.ndarray:
        return self._quantiles(X, quantiles) * self.y_scale_ + self.y_mean_

    def _open_parts(self) -> list[str]:
        noise = self._noise_is_open() and self.covariance == "diagonal" and self._is_recorded
        noise = noise and self.likelihood_ is None
        return super()._open_parts() + ["noise"] * noise

    def _noise_is_open(self) -> bool:
        return isinstance(self.noise, str) and self.noise == "auto"

    def _take(self, found: Mapping[str, Any]) -> None:
        super()._take(found)
        if "noise" in found:
            self._take_noise(found["noise"])

    def _take_noise(self, noise: Any) -> None:
        """Take a kind of noise, with its floor."""
        floors = {"learnt": NOISE_FLOOR, "heteroscedastic": self._floor_of_x}
        self.noise_ = noise
        self.noise_floor_: Any = floors.get(noise) if isinstance(noise, str) else None

    def _model(self) -> Callable:
        if self.likelihood_ is not None:
            return self._model_with(self.likelihood_)
        return self._model_of(self.noise_)

    def _model_to_search(self) -> Callable:
        """Leave out how the noise depends on x, whose mode fits the rows too well."""
        if self.likelihood_ is not None:
            return self._model()
        noise, net = self.noise_, self._as_fitted.net
        return self._model_of("learnt" if noise == "heteroscedastic" and net is None else noise)

    def _model_of(self, noise: Any) -> Callable:
        num_outputs = np.size(self.y_mean_)
        noise, options = noise_of(self, noise, num_outputs)
        in_outputs = isinstance(noise, str) and "noise_net" not in options
        net = self._network((1 + in_outputs) * num_outputs)
        return bnn.models.regressor(
            net,
            self._prior(),
            noise,
            num_outputs=num_outputs,
            covariance=self._as_fitted.covariance,
            **options,
        )
