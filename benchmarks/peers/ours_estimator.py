"""The estimators at their defaults, which find the scale of the prior."""

# user code
import bnn_ppl as bnn
from bnn_ppl.estimators import BayesianClassifier, BayesianRegressor


def predict(x_train, y_train, x_test, seed):
    model = BayesianRegressor(random_state=seed).fit(x_train, y_train)
    x = (x_test - model.x_mean_) / model.x_scale_
    means = bnn.function_draws(model.posterior_, model.draws_, x).posterior["mean"].values
    noise = model.draws_.posterior["noise"].values[..., None]
    return {"mean": means * model.y_scale_ + model.y_mean_, "sd": noise * model.y_scale_}


# end of user code


def classify(x_train, y_train, x_test, seed):
    model = BayesianClassifier(random_state=seed).fit(x_train, y_train)
    return {"probs": model.predict_proba(x_test)}
