"""MAPIE's conformal intervals CV+ (5 folds) about scikit-learn's histogram gradient boosting.

The ends of intervals of many levels stand for quantiles. It gives no density, so that it has no
NLL.
"""

# user code
import numpy as np
from mapie.regression import CrossConformalRegressor
from sklearn.ensemble import HistGradientBoostingRegressor

LEVELS = np.array([0.025, *np.arange(1, 10) / 20])


def predict(x_train, y_train, x_test, seed):
    model = CrossConformalRegressor(
        HistGradientBoostingRegressor(random_state=seed),
        confidence_level=list(1 - 2 * LEVELS),
        method="plus",
        cv=5,
        random_state=seed,
    )
    mean, ends = model.fit_conformalize(x_train, y_train).predict_interval(x_test)
    levels = np.concatenate([LEVELS, [0.5], 1 - LEVELS])
    quantiles = np.concatenate([ends[:, 0], mean[:, None], ends[:, 1]], axis=1).T
    return {"mean": mean, "levels": levels, "quantiles": quantiles}


# end of user code
