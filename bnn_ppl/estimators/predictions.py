"""What an estimator's draws predict: moments, quantiles, covariances and draws of y."""

from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

import bnn_ppl as bnn
from bnn_ppl.estimators.rows import parts_to_predict
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.storage.arviz_versions import as_dataset
from bnn_ppl.storage.inference_data import draws_at, weights_of, with_groups

_SEEDS = np.iinfo(np.int32).max


def predicted(estimator: Any, X: Any, *names: str) -> list[np.ndarray]:
    """Predict these variables of :func:`bnn_ppl.predict`, by row."""

    def of_inputs(posterior: bnn.Posterior, draws: Any, x: Any) -> list[np.ndarray]:
        prediction = bnn.predict(posterior, draws, (x, None), predictive=estimator.predictive)
        return [prediction[name].values for name in names]

    parts = _by_part(estimator, of_inputs, X)
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def quantiles_of(estimator: Any, X: Any, quantiles: np.ndarray) -> np.ndarray:
    """Predict quantiles (quantile, row, ...) of y as the model has it."""

    def of_inputs(posterior: bnn.Posterior, draws: Any, x: Any) -> np.ndarray:
        form = estimator.predictive
        return bnn.predict_quantiles(posterior, draws, x, quantiles, predictive=form)

    return np.concatenate(_by_part(estimator, of_inputs, X), axis=1)


def covariance_of(estimator: Any, X: Any, variance: np.ndarray) -> np.ndarray:
    """Predict the covariance (row, row, ...) of y, whose variances (row, ...) are known.

    Off the diagonal it is that of the means of the draws, as noise is independent by row.
    """
    _refuse_closed_form(estimator, "return_cov")

    def of_inputs(posterior: bnn.Posterior, draws: Any, x: Any) -> np.ndarray:
        found = bnn.function_draws(posterior, draws, x, predictive=estimator.predictive)
        means = as_dataset(found["posterior"])["mean"].values
        return means.reshape(-1, *means.shape[2:])

    means = np.concatenate(_by_part(estimator, of_inputs, X), axis=1)
    shares = weights_of(estimator.draws_).ravel()
    shares = shares / shares.sum()
    apart = means - np.tensordot(shares, means, 1)
    found = np.einsum("s,sn...,sm...->nm...", shares, apart, apart)
    rows = np.arange(len(variance))
    found[rows, rows] = variance
    return found


def draws_of_y(estimator: Any, X: Any, n_samples: int, random_state: Any) -> np.ndarray:
    """Draw y (row, ..., sample) as the model has it: a draw of the weights for each sample."""
    _refuse_closed_form(estimator, "sample_y")
    check_count("n_samples", n_samples)
    random = check_random_state(random_state)
    check_is_fitted(estimator)
    shares = weights_of(estimator.draws_)
    each = -(-n_samples // len(shares))  # of a chain, as some predict about a centre of their own
    numbers = [random.choice(own.size, each, p=own / own.sum()) for own in shares]
    used = random.permutation(each * len(shares))[:n_samples]
    key, parts = jax.random.key(random.randint(_SEEDS)), count()

    def of_inputs(posterior: bnn.Posterior, draws: Any, x: Any) -> np.ndarray:
        of_part = jax.random.fold_in(key, next(parts))
        chosen, form = draws_at(draws, np.stack(numbers)), estimator.predictive
        found = bnn.predictive_draws(of_part, posterior, chosen, x, predictive=form)
        y = as_dataset(found["posterior_predictive"])["y"].values
        return y.reshape(-1, *y.shape[2:])[used]

    return np.moveaxis(np.concatenate(_by_part(estimator, of_inputs, X), axis=1), 0, -1)


def _refuse_closed_form(estimator: Any, what: str) -> None:
    if estimator.predictive == "closed_form":
        raise ValueError(
            f"got {what} with predictive='closed_form', which is without draws, expected "
            "'linearised' or 'sampled': set_params(predictive='linearised')"
        )


def _by_part(estimator: Any, function: Callable, X: Any) -> list[Any]:
    """Call a function of the posterior, its draws and inputs.

    A large X is taken in parts.
    """
    check_is_fitted(estimator)
    # In single precision the last digits of a prediction would depend on the number of rows.
    with jax.enable_x64(True):
        values = as_dataset(estimator.draws_["posterior"]).astype(float)
        draws = with_groups(estimator.draws_, posterior=values)
        parts = (estimator._inputs(part, np.dtype(np.float64)) for part in parts_to_predict(X))
        return [function(estimator.posterior_, draws, x) for x in parts]
