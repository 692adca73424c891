"""bnn_ppl at the defaults of a method whose draws predict as they are."""

# user code
from functools import partial

import jax

jax.config.update("jax_num_cpu_devices", 2)
import bnn_ppl as bnn


def predict(x_train, y_train, x_test, seed, method):
    net = partial(bnn.nets.MLP, x_train.shape[1], (50,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(model, (x_train, y_train))
    key, method = jax.random.key(seed), getattr(bnn, method)(posterior)
    draws = bnn.run(key, posterior, method, num_chains=4, progress=False)
    means = bnn.function_draws(posterior, draws, x_test).posterior["mean"].values
    return {"mean": means, "sd": draws.posterior["noise"].values[..., None]}


# end of user code


def classify(x_train, y_train, x_test, seed, method):
    net = partial(bnn.nets.MLP, x_train.shape[1], (50,), 10)
    model = bnn.models.classifier(net, bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(model, (x_train, y_train))
    key, method = jax.random.key(seed), getattr(bnn, method)(posterior)
    draws = bnn.run(key, posterior, method, num_chains=4, progress=False)
    return {"probs": bnn.predict(posterior, draws, (x_test, None))["probs"].values}
