"""How close a short HMC run comes to a long one, and a cheap method to both.

The small example of Izmailov et al. (2021): 784-256-256-10, prior N(0, 1) on every weight, the
first 160 training images of MNIST, full-batch HMC with trajectory length 1.5. The predictions of a
long run ship with the package (168 draws). Here a short run is compared with it: a few draws of
chains that start at best fits, which themselves start at draws from the prior, where weights are as
large as under this posterior. A draw takes 15,000 gradients, so the whole program takes some
minutes.

Prints the acceptance rate; for those best fits and for HMC, after each draw, the accuracy on 2,000
test images and the agreement and total variation with the long run; and the distance between the
two halves of the long run, which no method can be expected to beat.
"""

import os
from dataclasses import dataclass
from functools import partial

import jax
import optax
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    hidden: tuple[int, ...] = (256, 256)  # width of each hidden layer
    std: float = 1.0  # standard deviation of the prior
    step_size: float = 1e-4  # of leapfrog steps; at 2e-4 almost nothing is accepted
    trajectory_length: float = 1.5
    num_chains: int = 4
    num_warmup: int = 1
    num_draws: int = 4
    num_steps: int = 200  # of Adam, for the starting points of the chains


def main(config: Config) -> dict[str, float]:
    """Sample, and compare with the long run; scores by "<what> <score>"."""
    data = bnn.data.load("mnist", subset=160)
    test = bnn.data.Data(*(leaf[:2000] for leaf in data.test))
    net = partial(bnn.nets.MLP, 784, config.hidden, 10)
    model = bnn.models.classifier(net, bnn.priors.normal(config.std))
    posterior = bnn.condition(model, data.train)
    run = partial(bnn.run, jax.random.key(0), posterior, num_chains=config.num_chains)
    rate = optax.cosine_decay_schedule(1e-3, config.num_steps)
    fits = run(
        bnn.descent(posterior, learning_rate=rate),
        init=bnn.prior_draws(jax.random.key(1), posterior, 1, config.num_chains),
        num_warmup=config.num_steps,
        batch_size=80,
        thin=0,
    )
    length, size = config.trajectory_length, config.step_size
    hmc = run(
        bnn.hmc(posterior, size, length, max_num_steps=round(length / size) + 1),
        init=fits,
        num_warmup=config.num_warmup,
        num_draws=config.num_draws,
    )
    predictions = {"best fits": bnn.predict(posterior, fits, test)}
    for number in range(1, config.num_draws + 1):
        first = hmc.isel(draw=slice(number))
        predictions[f"{number} draws a chain"] = bnn.predict(posterior, first, test)

    long_run = bnn.data.hmc_reference("mnist160")
    table = bnn.compare(predictions, test.y, long_run.probs)
    table = table[["accuracy", "agreement", "total_variation"]]
    chains = long_run.probs_by_chain
    halves = chains[::2].mean(0), chains[1::2].mean(0)
    found = {
        "acceptance": float(hmc.sample_stats["acceptance_rate"].mean()),
        "halves agreement": bnn.metrics.agreement(*halves),
        "halves total_variation": bnn.metrics.total_variation(*halves),
    }
    print(table.to_string(float_format="{:.3f}".format))
    for name, value in found.items():
        print(f"{name:25} {value:.3f}")
    return found | {f"{name} {score}": value for (name, score), value in table.stack().items()}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
