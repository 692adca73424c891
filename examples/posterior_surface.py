"""Good fits of a network lie far apart in weight space, with valleys of unknown depth between.

On the yacht table, three points of one posterior span a plane (Garipov et al., 2018; Izmailov et
al., 2021): the last draw of each of two HMC chains, and a best fit. The log-density is computed on
a grid through all three, and along the straight lines between them.

Prints the log-density at each of the three points, in nats, and how far the lowest point of each
line lies below its lower end. The best fit is far higher than any draw: draws lie where the volume
is, not at the mode. Plots log-density, log-likelihood and log-prior on the plane. ``bnn-ppl
surface`` does the same for run folders.
"""

import os
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "yacht"  # or another table
    hidden: tuple[int, ...] = (50,)  # width of each hidden layer
    num_warmup: int = 100  # of HMC
    num_draws: int = 50  # of HMC
    num_steps: int = 3000  # of the best fit
    num_points: int = 41  # of the grid along each axis
    figure: Path = Path("runs/posterior_surface.png")


def main(config: Config) -> dict[str, float]:
    """Find the three points and look around them; densities and depths by name."""
    data = bnn.data.load(config.data)
    net = partial(bnn.nets.MLP, data.train.x.shape[1], config.hidden, 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(2**0.5)), data.train)
    run = partial(bnn.run, jax.random.key(0), posterior)
    chains = run(
        bnn.hmc(posterior), num_chains=2, num_warmup=config.num_warmup, num_draws=config.num_draws
    )
    rate = optax.cosine_decay_schedule(1e-2, config.num_steps)
    mode = run(bnn.descent(posterior, learning_rate=rate), num_warmup=config.num_steps, thin=0)
    corners = {
        "chain 0": bnn.surface.corner(posterior, chains, chain=0),
        "chain 1": bnn.surface.corner(posterior, chains, chain=1),
        "best fit": bnn.surface.corner(posterior, mode),
    }
    surface = bnn.surface.surface(posterior, corners, num_points=config.num_points)
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    bnn.plots.posterior_surface(surface).savefig(config.figure, dpi=150)

    found = {}
    for (a, start), (b, end) in combinations(corners.items(), 2):
        line = along_line(posterior, start, end)
        found |= {f"log-density of {a}": float(line[0]), f"log-density of {b}": float(line[-1])}
        depth = jnp.minimum(line[0], line[-1]) - line.min()
        found[f"depth between {a} and {b}"] = float(depth)
    for name, value in sorted(found.items(), reverse=True):
        print(f"{name:35} {value:12,.1f}")
    return found


def along_line(
    posterior: bnn.Posterior, start: dict, end: dict, num_points: int = 101
) -> jax.Array:
    """Log-density along the straight line between two positions, its ends included."""

    def at(share: jax.Array) -> jax.Array:
        position = jax.tree.map(lambda a, b: (1 - share) * a + share * b, start, end)
        return posterior.logdensity(position, posterior.data)

    return jax.jit(lambda shares: jax.lax.map(at, shares))(jnp.linspace(0, 1, num_points))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
