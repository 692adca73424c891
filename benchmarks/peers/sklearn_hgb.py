"""scikit-learn's histogram gradient boosting: a model of the mean and one of each quantile.

All at their defaults. It gives no density, so that it has no NLL.
"""

# user code
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

LEVELS = np.array([0.025, *np.arange(1, 20) / 20, 0.975])


def predict(x_train, y_train, x_test, seed):
    def fitted(**loss):
        model = HistGradientBoostingRegressor(random_state=seed, **loss)
        return model.fit(x_train, y_train).predict(x_test)

    quantiles = [fitted(loss="quantile", quantile=level) for level in LEVELS]
    return {"mean": fitted(), "levels": LEVELS, "quantiles": quantiles}


# end of user code
