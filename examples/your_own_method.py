"""Write your own sampler, and test it on a posterior that is known exactly.

A sampler with a mistake in one line runs and mixes, but draws from another distribution. So this
example has both parts:

- The method is MALA, Langevin dynamics with a Metropolis test (Roberts & Tweedie, 1996), which the
  package does not have: three pure functions of about fifteen lines. ``bnn_ppl.run`` provides
  chains, devices, keys, warm-up, storage and diagnosis.
- The posterior is that of a linear regression on the yacht table under a normal prior with known
  noise: a normal distribution, whose mean and covariance are one line of linear algebra.

Prints the acceptance rate, the effective sample size, the largest error of a posterior mean in
units of its Monte Carlo error (three or less if all is right), and the largest relative error of a
standard deviation.
"""

import os
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import tyro
from jax.flatten_util import ravel_pytree

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "yacht"  # or another table
    prior_std: float = 0.3  # of every weight
    noise: float = 1.0  # known standard deviation of the rows about the line
    step_size: float = 1.5e-3  # of MALA, in squared units of the weights
    num_chains: int = 4
    num_warmup: int = 1000
    num_draws: int = 2000
    thin: int = 10  # steps per draw


def mala(posterior: bnn.Posterior, step_size: float) -> bnn.Method:
    """Metropolis-adjusted Langevin algorithm: gradient and noise steps, accepted or rejected."""

    def init(key: jax.Array, position: Any, batch: Any) -> Any:
        return position  # the whole state of a chain

    def step(key: jax.Array, position: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        old, unravel = ravel_pytree(position)
        density = jax.value_and_grad(lambda w: posterior.logdensity(unravel(w), batch))
        noise_key, accept_key = jax.random.split(key)
        old_lp, old_gradient = density(old)
        noise = jnp.sqrt(2 * step_size) * jax.random.normal(noise_key, old.shape)
        new = old + step_size * old_gradient + noise
        new_lp, new_gradient = density(new)
        back = old - new - step_size * new_gradient  # the noise that the reverse move would need
        log_ratio = new_lp - old_lp + (noise @ noise - back @ back) / (4 * step_size)
        accepted = jnp.log(jax.random.uniform(accept_key)) < log_ratio
        info = {"acceptance_rate": jnp.exp(jnp.minimum(log_ratio, 0)), "n_steps": jnp.asarray(2)}
        return unravel(jnp.where(accepted, new, old)), info

    def draw(key: jax.Array, position: Any) -> Any:
        return position

    settings = {"method": "mala", "step_size": step_size}
    # The last two let `run` refuse another posterior, and minibatches: no Metropolis test there.
    return bnn.Method(
        init, step, draw, settings=settings, logdensity=posterior.logdensity, all_rows=True
    )


def main(config: Config) -> dict[str, float]:
    """Sample the linear regression, and compare with its exact posterior."""
    x, y = bnn.data.load(config.data).train

    def model(x: jax.Array, y: jax.Array | None = None) -> None:
        prior = dist.Normal(0, config.prior_std).expand([x.shape[1]]).to_event(1)
        weights = numpyro.sample("weights", prior)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ weights, config.noise), obs=y)

    posterior = bnn.condition(model, (x, y))
    draws = bnn.run(
        jax.random.key(0),
        posterior,
        mala(posterior, config.step_size),
        num_chains=config.num_chains,
        num_warmup=config.num_warmup,
        num_draws=config.num_draws,
        thin=config.thin,
    )
    covariance = np.linalg.inv(np.eye(x.shape[1]) / config.prior_std**2 + x.T @ x / config.noise**2)
    mean, sd = covariance @ x.T @ y / config.noise**2, np.sqrt(np.diag(covariance))

    weights = draws.posterior["weights"].stack(sample=("chain", "draw")).values
    ess = bnn.diagnostics.ess(draws)["weights"].values
    monte_carlo_error = sd / np.sqrt(ess)
    found = {
        "acceptance": float(draws.sample_stats["acceptance_rate"].mean()),
        "smallest ESS": float(ess.min()),
        "largest error of a mean": float(np.max(abs(weights.mean(1) - mean) / monte_carlo_error)),
        "largest error of an sd": float(np.max(abs(weights.std(1) / sd - 1))),
    }
    for name, value in found.items():
        print(f"{name:25} {value:.3f}")
    return found


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
