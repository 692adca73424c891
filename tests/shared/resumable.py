"""A run for tests to kill: ``python resumable.py FOLDER NUM_DRAWS``; prints when it samples."""

import sys

import jax

jax.config.update("jax_num_cpu_devices", 2)

import jax.numpy as jnp  # noqa: E402  (devices first)
import numpy as np  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

import bnn_ppl as bnn  # noqa: E402

X = np.linspace(-1, 1, 2000)[:, None]
Y = np.sin(3 * X[:, 0])


def model(x, y=None):
    """Sines of learnt frequencies, with as many weights as make writing them take a while."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([100, 100]).to_event(2))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        f = jnp.sum(jnp.sin(x * jnp.arange(100)) * w.mean(0), -1)
        numpyro.sample("y", dist.Normal(f, noise), obs=y)


def run(folder, num_draws, **options):
    """Sample with adaptation of all that adapts."""
    posterior = bnn.condition(model, (X, Y))
    method = bnn.hmc(posterior, trajectory_length=0.3)
    options = {"num_chains": 2, "num_warmup": 40, "progress": "json"} | options
    return bnn.run(
        jax.random.key(0), posterior, method, num_draws=num_draws, folder=folder, **options
    )


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
