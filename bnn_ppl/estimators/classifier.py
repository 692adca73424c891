"""The classifier."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

import bnn_ppl as bnn
from bnn_ppl.estimators.likelihoods import likelihood_of
from bnn_ppl.estimators.network import BayesianNetwork
from bnn_ppl.estimators.predictions import draws_of_y, predicted
from bnn_ppl.estimators.rows import (
    Rows,
    checked_rows,
    checked_y,
    class_weights,
    labels_of,
    order_of,
    weights_of_rows,
)
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.rows.labels import listed, numbered
from bnn_ppl.runtime.checks import warn
from bnn_ppl.runtime.names import known_keywords


class BayesianClassifier(ClassifierMixin, BayesianNetwork):
    """Bayesian neural network classifier: predictions are averaged over draws of the weights.

    X may be a data frame with texts, categories, truth values, dates and empty cells, which become
    numbers as the columns of a file do, by what the training rows hold; see
    :func:`bnn_ppl.data.load` and `encoding_`. An array is of finite numbers.

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
        "auto" is "categorical"; "ordinal" takes the labels in the order of `classes_`,
        "bernoulli" two labels by one output: see :mod:`bnn_ppl.likelihoods`.
    columns
        What columns of X are for, as in ``bnn_ppl.data.Columns(drop=("id",), exposure="days")``:
        left out, categories, row weights, or for the likelihood; of an array by their numbers,
        "0", "1", ... Not `group` and `time`, as scikit-learn splits.
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
        Mean and standard deviation of each column of X as numbers, (columns,), by which inputs are
        standardised; the scale of a constant column is 1.
    encoding_ : bnn_ppl.data.Encoding or None
        How the columns of a data frame became numbers; None for an array.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : numpy.ndarray
        Names of the columns of a data frame, if they are texts.
    """

    @known_keywords
    def __init__(
        self,
        method: str | Callable[..., bnn.Method] = "sgnht",
        *,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        likelihood: str = "auto",
        columns: bnn.data.Columns | None = None,
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
        return self._fit(X, y, sample_weight, None)

    def _fit(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> "BayesianClassifier":
        y, order = labels_of(y), order_of(y)
        with self._as_before_if_it_fails():
            rows = checked_rows(self, X, y, sample_weight, self.columns)
            check_classification_targets(rows.y)
            rows = rows._replace(weights=class_weights(self.class_weight, rows, classes))
            if classes is None:
                self.classes_, numbers = numbered(rows.y)
            else:
                self.classes_ = np.unique(classes)
                numbers = self._numbers(rows.y)
            if len(self.classes_) < 2:
                raise ValueError("got y with only one class, expected at least 2 classes")
            if self.likelihood == "ordinal":
                self._check_order(numbers, order)
            rows = rows._replace(y=numbers)
            columns = rows.columns_of_likelihood()
            self.likelihood_ = likelihood_of(self.likelihood, numbers, columns, of_classes=True)
            self._sample(rows, rows.scalings()[0], None)
        return self

    def _check_order(self, numbers: np.ndarray, order: list[Any] | None) -> None:
        """Refuse classes of which some do not occur, or that are in another order by name."""
        classes = self.classes_.tolist()
        missing = self.classes_[np.setdiff1d(np.arange(len(classes)), numbers)].tolist()
        if missing:
            raise ValueError(
                f"got first rows without the label {missing[0]!r} for likelihood='ordinal', "
                "expected each, which its cut points start from: give rows of each at first"
            )
        if order is not None and [each for each in order if each in classes] != classes:
            raise ValueError(
                f"got y of categories in the order {listed(order)} for likelihood='ordinal', "
                f"expected {listed(classes)}, as classes_ are sorted: fit to y.cat.codes"
            )
        if order is None and self.classes_.dtype.kind not in "iufb":
            warn(
                f"classes of likelihood='ordinal' in the order {listed(classes)}: number them for "
                "another"
            )

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> "BayesianClassifier":
        """Add rows to those of earlier calls, and sample on from where the draws are.

        The first call is a fit, which chooses scales, widths and prior; later ones keep these and
        start from the draws so far. The posterior is always that of all rows, which are kept.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.
        classes
            All labels, where the first rows lack some; used in the first call.

        Raises
        ------
        ValueError
            As `fit`, or if a label is new, class weights are "balanced", X is large, or there is a
            `folder`.
        """
        if isinstance(self.class_weight, str):
            raise ValueError(
                "got class_weight='balanced' with partial_fit, expected a dict: rows to come may "
                "be of other shares"
            )
        if not hasattr(self, "draws_"):
            return self._fit(X, y, sample_weight, classes)
        labels = checked_y(self, labels_of(y))
        weights = weights_of_rows(sample_weight, np.empty((len(labels), 1)))
        of_labels = Rows(np.empty((len(labels), 0)), labels, weights, False)
        weights = class_weights(self.class_weight, of_labels, self.classes_)
        self._continue(X, self._numbers(labels), weights)
        return self

    def _numbers(self, labels: np.ndarray) -> np.ndarray:
        """Give the numbers of labels; ValueError if one is not among the classes."""
        unknown = labels[~np.isin(labels, self.classes_)].tolist()
        if unknown:
            raise ValueError(
                f"got the label {unknown[0]!r}, expected one of {listed(self.classes_.tolist())}: "
                "name all labels in the first call, partial_fit(X, y, classes=...)"
            )
        return np.searchsorted(self.classes_, labels).astype(np.int32)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each class (rows, classes), averaged over draws."""
        (probs,) = predicted(self, X, "probs")
        return probs

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable label (rows,)."""
        most_probable = self.predict_proba(X).argmax(1)
        return self.classes_[most_probable]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Give the share of rows whose label is predicted, y being as for `fit`."""
        return super().score(X, labels_of(y), sample_weight)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw labels (rows, samples), each sample of all rows by one draw of the weights.

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
        return self.classes_[draws_of_y(self, X, n_samples, random_state).astype(int)]

    def _model(self) -> Callable:
        if self.likelihood_ is not None:
            return self._model_with(self.likelihood_)
        return bnn.models.classifier(self._network(len(self.classes_)), self._prior())
