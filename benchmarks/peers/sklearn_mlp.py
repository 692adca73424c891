"""scikit-learn's MLP by L-BFGS, its penalty chosen from 1e-1 to 1e-6 as its guide says.

It gives no spread: that of the held-out rows of the cross-validation stands for it.
"""

# user code
import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor

PENALTIES = {"alpha": 10.0 ** -np.arange(1, 7)}


def predict(x_train, y_train, x_test, seed):
    net = MLPRegressor(hidden_layer_sizes=(50,), solver="lbfgs", max_iter=2000, random_state=seed)
    search = GridSearchCV(net, PENALTIES, scoring="neg_root_mean_squared_error")
    mean = search.fit(x_train, y_train).predict(x_test)
    return {"mean": mean, "sd": np.full(len(mean), -search.best_score_)}


# end of user code


def classify(x_train, y_train, x_test, seed):
    net = MLPClassifier(hidden_layer_sizes=(50,), solver="lbfgs", max_iter=2000, random_state=seed)
    search = GridSearchCV(net, PENALTIES).fit(x_train, y_train)
    return {"probs": search.predict_proba(x_test)}
