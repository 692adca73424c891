"""laplax: the full Gauss-Newton matrix, prior precision by NLL, as its regression tutorial.

AdamW at 0.001 on batches of 20 for 1,000 epochs; a quarter of the rows calibrates the precision. As
there, the spread is that of the linearised network alone, which the calibration fits to the rows.
"""

# user code
import jax
import numpy as np
import optax
from flax import nnx
from laplax import calibration, laplace


class Model(nnx.Module):
    def __init__(self, num_inputs, rngs):
        self.hidden = nnx.Linear(num_inputs, 50, rngs=rngs)
        self.out = nnx.Linear(50, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


def train(model, x, y, rng):
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        optimizer.update(model, nnx.grad(lambda model: ((model(x) - y) ** 2).sum())(model))

    for _ in range(1000):
        order = rng.permutation(len(x))
        for rows in np.split(order[: len(x) // 20 * 20], len(x) // 20):
            step(model, optimizer, x[rows], y[rows])


def predict(x_train, y_train, x_test, seed):
    rng = np.random.default_rng(seed)
    order, y = rng.permutation(len(x_train)), y_train[:, None]
    held_out, rest = order[: len(x_train) // 4], order[len(x_train) // 4 :]
    model = Model(x_train.shape[1], nnx.Rngs(seed))
    train(model, x_train[rest], y[rest], rng)
    graph, params = nnx.split(model)
    options = {"loss_fn": "mse", "curv_type": "full"}

    def call(input, params):
        return nnx.call((graph, params))(input)[0]

    posterior, curvature = laplace(
        call, params, {"input": x_train[rest], "target": y[rest]}, **options
    )
    calibrated = {"input": x_train[held_out], "target": y[held_out]}
    arguments, predictive = calibration(
        posterior, call, params, calibrated, curv_estimate=curvature, **options
    )
    found = jax.vmap(predictive(prior_arguments=arguments))(x_test)
    return {"mean": found["pred_mean"][:, 0], "sd": found["pred_std"][:, 0]}


# end of user code
