"""The regressor."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import RegressorMixin

import bnn_ppl as bnn
from bnn_ppl.data.standardise import unchanged_like
from bnn_ppl.estimators.likelihoods import is_standardised, likelihood_of, refuse_of_normal
from bnn_ppl.estimators.network import BayesianNetwork, noise_of
from bnn_ppl.estimators.predictions import covariance_of, draws_of_y, predicted, quantiles_of
from bnn_ppl.estimators.rows import checked_rows, checked_y, refuse_no_numbers
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.likelihoods.noise_of_x import usual_noise_floor
from bnn_ppl.model.prior.priors import NOISE_FLOOR
from bnn_ppl.runtime.checks import check_level
from bnn_ppl.runtime.names import known_keywords

_OF_Y = {"y_numeric": True, "multi_output": True}


class BayesianRegressor(RegressorMixin, BayesianNetwork):
    """Bayesian neural network regressor: predictions are averaged over draws of the weights.

    Arguments and attributes are those of :class:`BayesianClassifier`, but for `class_weight` and
    `classes_`, and these:

    Parameters
    ----------
    likelihood
        Distribution of y: "auto" is "normal"; or the name of another of
        :mod:`bnn_ppl.likelihoods`, such as "poisson", which has no `noise`. "mixture" and
        "quantile" take y of one target, the others of several. `columns` names those of X that are
        for it, such as exposures.
    noise
        Standard deviation of y given x: "learnt", one for all rows; "heteroscedastic", learnt as a
        function of x (see :func:`bnn_ppl.models.regressor`) by a network of its own; "auto", the
        latter where it predicts held-out rows better (tried with 1,000 rows or more, or 300 whose
        errors seem to depend on x); or a number in the units of y.
    covariance
        Covariance of the noise of several targets: "diagonal", or "full", with learnt correlations.
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
        columns: bnn.data.Columns | None = None,
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
        refuse_no_numbers(y)
        with self._as_before_if_it_fails():
            rows = checked_rows(self, X, y, sample_weight, self.columns, **_OF_Y)
            of_x, of_y = rows.scalings()
            if not is_standardised(self.likelihood):
                of_y = unchanged_like(of_y)
            one = rows.y.ndim == 1
            self.y_mean_: Any = float(of_y.mean) if one else of_y.mean
            self.y_scale_: Any = float(of_y.scale) if one else of_y.scale
            scaled = (rows.y - self.y_mean_) / self.y_scale_
            columns = rows.columns_of_likelihood()
            self.likelihood_ = likelihood_of(self.likelihood, scaled, columns, of_classes=False)
            if self.likelihood_ is not None:
                refuse_of_normal(self.likelihood, noise=self.noise, covariance=self.covariance)
            counted = slice(None) if rows.weights is None else rows.weights > 0
            self._floor_of_x = usual_noise_floor(scaled[counted])
            self._take_noise("learnt" if self._noise_is_open() else self.noise)
            self._sample(rows, of_x, of_y)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BayesianRegressor":
        """Add rows to those of earlier calls, and sample on from where the draws are.

        The first call is a fit, which chooses scales, widths, noise and prior; later ones keep
        these and start from the draws so far. The posterior is always that of all rows, which are
        kept.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.

        Raises
        ------
        ValueError
            As `fit`, or if y has other columns than before, X is large, or there is a `folder`.
        """
        if not hasattr(self, "draws_"):
            return self.fit(X, y, sample_weight)
        refuse_no_numbers(y)
        y = checked_y(self, y, **_OF_Y)
        if np.shape(y)[1:] != np.shape(self.y_mean_):
            raise ValueError(
                f"got y of shape {np.shape(y)}, expected {('rows', *np.shape(self.y_mean_))} as in "
                "earlier calls: give the same targets"
            )
        self._continue(X, (y - self.y_mean_) / self.y_scale_, sample_weight)
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        quantiles: float | Sequence[float] | None = None,
        return_cov: bool = False,
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
        return_cov
            Whether to give a pair, the mean and the covariance (rows, rows) or (rows, rows,
            targets) of y at these rows, noise included, on the diagonal.

        Raises
        ------
        ValueError
            If a probability is not between 0 and 1, more than one of `return_std`, `quantiles` and
            `return_cov` is given, or the last with `predictive` "closed_form".
        """
        asked = {"return_std": return_std, "quantiles": quantiles is not None}
        asked["return_cov"] = return_cov
        if sum(asked.values()) > 1:
            several = " and ".join(name for name, is_asked in asked.items() if is_asked)
            raise ValueError(f"got {several}, expected one of them")
        if quantiles is not None:
            found = self.predict_quantiles(X, np.atleast_1d(quantiles))
            return found if np.ndim(quantiles) else found[..., 0]
        mean, variance = predicted(self, X, "mean", "variance")
        mean = mean * self.y_scale_ + self.y_mean_
        if return_cov:
            return mean, covariance_of(self, X, variance) * np.square(self.y_scale_)
        return (mean, np.sqrt(variance) * self.y_scale_) if return_std else mean

    def predict_quantiles(
        self, X: Any, quantiles: Sequence[float] | np.ndarray = (0.05, 0.5, 0.95)
    ) -> np.ndarray:
        """Predict quantiles of y, noise included: (rows, quantiles), or (rows, targets, quantiles).

        Parameters
        ----------
        X
            Inputs (rows, columns).
        quantiles
            Probabilities between 0 and 1.

        Raises
        ------
        ValueError
            If a probability is not between 0 and 1.
        """
        return np.moveaxis(self._in_units(X, np.asarray(quantiles)), 0, -1)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw y, noise included: (rows, samples), or (rows, targets, samples).

        Each sample of all rows is by one draw of the weights, hence of one function.

        Parameters
        ----------
        X
            Inputs (rows, columns).
        n_samples
            Number of samples.
        random_state
            Random seed, as for the estimator.

        Raises
        ------
        ValueError
            If `n_samples` is not a whole number from 1 up, or `predictive` is "closed_form".
        """
        drawn = draws_of_y(self, X, n_samples, random_state)
        return drawn * np.expand_dims(self.y_scale_, -1) + np.expand_dims(self.y_mean_, -1)

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
        return quantiles_of(self, X, quantiles) * self.y_scale_ + self.y_mean_

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
