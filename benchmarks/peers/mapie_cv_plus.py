"""MAPIE's conformal intervals CV+ (5 folds) about scikit-learn's random forest.

The forest, as the boosting's leaves of at least 20 rows miss yacht's groups of 22 in each fold. The
ends of intervals of many levels stand for quantiles. It gives no density, so that it has no NLL.
"""

# user code
import numpy as np
from mapie.regression import CrossConformalRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold

LEVELS = np.array([0.025, *np.arange(1, 10) / 20])


def predict(x_train, y_train, x_test, seed):
    model = CrossConformalRegressor(
        RandomForestRegressor(random_state=seed),
        confidence_level=list(1 - 2 * LEVELS),
        method="plus",
        cv=KFold(5, shuffle=True, random_state=seed),
    )
    mean, ends = model.fit_conformalize(x_train, y_train).predict_interval(x_test)
    levels = np.concatenate([LEVELS, [0.5], 1 - LEVELS[::-1]])
    quantiles = np.concatenate([ends[:, 0], mean[:, None], ends[:, 1, ::-1]], axis=1).T
    return {"mean": mean, "levels": levels, "quantiles": quantiles}


# end of user code
