"""The Laplace approximation at its defaults, its predictions linearised."""

# user code
from functools import partial

import jax

jax.config.update("jax_num_cpu_devices", 2)
import bnn_ppl as bnn


def predict(x_train, y_train, x_test, seed):
    net = partial(bnn.nets.MLP, x_train.shape[1], (50,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(model, (x_train, y_train))
    key, method = jax.random.key(seed), bnn.laplace(posterior)
    draws = bnn.run(key, posterior, method, num_chains=1, progress=False)
    means = bnn.function_draws(posterior, draws, x_test).posterior["mean"].values
    return {"mean": means, "sd": draws.posterior["noise"].values[..., None]}


# end of user code


def classify(x_train, y_train, x_test, seed):
    net = partial(bnn.nets.MLP, x_train.shape[1], (50,), 10)
    model = bnn.models.classifier(net, bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(model, (x_train, y_train))
    key, method = jax.random.key(seed), bnn.laplace(posterior)
    draws = bnn.run(key, posterior, method, num_chains=1, progress=False)
    return {"probs": bnn.predict(posterior, draws, (x_test, None))["probs"].values}
