"""Bayesian neural networks as scikit-learn estimators, with draws to diagnose in ArviZ.

Requires scikit-learn (``pip install scikit-learn``), and is not imported by ``bnn_ppl`` itself::

    from bnn_ppl.estimators import BayesianRegressor
    mean, std = BayesianRegressor().fit(X, y).predict(X_new, return_std=True)
"""

from bnn_ppl.estimators.classifier import BayesianClassifier
from bnn_ppl.estimators.regressor import BayesianRegressor

__all__ = ["BayesianClassifier", "BayesianRegressor"]
