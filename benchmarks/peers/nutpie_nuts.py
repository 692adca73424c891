"""nutpie on a NumPyro model, compiled by JAX; warm-up and draws as ours."""

# user code
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import nutpie
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model
from nutpie.compiled_pyfunc import from_pyfunc


def network(x, num_outputs=1):
    num_inputs, width = x.shape[1], 50
    w1 = numpyro.sample("w1", dist.Normal(0, (2 / num_inputs) ** 0.5).expand([num_inputs, width]))
    b1 = numpyro.sample("b1", dist.Normal(0, 1).expand([width]))
    w2 = numpyro.sample("w2", dist.Normal(0, (2 / width) ** 0.5).expand([width, num_outputs]))
    b2 = numpyro.sample("b2", dist.Normal(0, 1).expand([num_outputs]))
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def model(x, y=None):
    mean = numpyro.deterministic("mean", network(x)[:, 0])
    noise = numpyro.sample("noise", dist.TruncatedNormal(0, 1, low=0.02))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


def sample(args, seed):
    found = initialize_model(jax.random.key(seed), model, model_args=args)
    start, unravel = ravel_pytree(found.param_info.z)
    density = jax.jit(jax.value_and_grad(lambda flat: -found.potential_fn(unravel(flat))))

    def evaluate(flat):
        value, gradient = density(jnp.asarray(flat, jnp.float32))
        return float(value), np.asarray(gradient, np.float64)

    compiled = from_pyfunc(
        start.size,
        lambda: evaluate,
        lambda *_: lambda flat, **_: {"flat": flat},
        [np.dtype("float64")],
        [(start.size,)],
        ["flat"],
        make_initial_point_fn=lambda seed: np.random.default_rng(seed).uniform(-2, 2, start.size),
    )
    trace = nutpie.sample(
        compiled, tune=300, draws=300, chains=4, cores=1, seed=seed, progress_bar=False
    )
    flat = trace.posterior["flat"].values.reshape(-1, start.size)
    constrain = jax.vmap(lambda flat: found.postprocess_fn(unravel(flat)))
    return constrain(jnp.asarray(flat, jnp.float32))


def predict(x_train, y_train, x_test, seed):
    samples = sample((jnp.asarray(x_train), jnp.asarray(y_train)), seed)
    names = {name: samples[name] for name in ("w1", "b1", "w2", "b2", "noise")}
    predictive = numpyro.infer.Predictive(model, names, return_sites=["mean"])
    means = predictive(jax.random.key(seed + 1), jnp.asarray(x_test))["mean"]
    return {"mean": means, "sd": samples["noise"][:, None]}


# end of user code
