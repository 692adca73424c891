"""One script for one machine and for a cluster.

It runs on one host as it is, and on several when started once on each: chains are spread over all
devices of all processes, every process writes its own chains into a folder that all of them see,
and the first process predicts from all chains.

    python examples/several_hosts.py

    python examples/several_hosts.py --coordinator localhost:1234 --num-processes 2 --process 0 &
    python examples/several_hosts.py --coordinator localhost:1234 --num-processes 2 --process 1

On several hosts the coordinator is the name of the first one. Under SLURM, Open MPI or on a TPU pod
``--coordinator auto`` finds all three values. The number of chains must be a multiple of the number
of processes, or divide it. Rerun the same command to resume; the number of processes may change.

Prints, on the first process, the number of processes, devices and chains, the test RMSE and
negative log-likelihood in units of y, and R-hat of the predictions over all chains (median and
95 % quantile).
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    coordinator: str | None = None  # address and port of the first host, or auto
    num_processes: int = 1
    process: int = 0  # index of this one, from 0
    data: str = "yacht"
    hidden: tuple[int, ...] = (50,)  # width of each hidden layer
    num_chains: int = 4
    num_warmup: int = 100
    num_draws: int = 100
    folder: Path = Path("runs/several_hosts")  # seen by all hosts under this name


def main(config: Config) -> dict[str, float]:
    """Sample on all hosts; the scores on the first, nothing on the others."""
    join(config)
    data = bnn.data.load(config.data)
    net = partial(bnn.nets.MLP, data.train.x.shape[1], config.hidden, 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(2**0.5)), data.train)
    draws = bnn.run(
        jax.random.key(0),  # the same on every host: chains are numbered across hosts
        posterior,
        bnn.hmc(posterior),
        num_chains=config.num_chains,
        num_warmup=config.num_warmup,
        num_draws=config.num_draws,
        folder=config.folder,
    )
    if jax.process_index() > 0:
        return {}
    prediction = bnn.predict(posterior, draws, data.test)
    rhat = bnn.diagnostics.rhat(bnn.function_draws(posterior, draws, data.test.x))["mean"]
    found = {
        "processes": jax.process_count(),
        "devices": jax.device_count(),
        "chains": draws.posterior.sizes["chain"],
        "RMSE": bnn.metrics.rmse(prediction, data.test.y, scale=data.y_scale),
        "NLL": bnn.metrics.nll(prediction, data.test.y, scale=data.y_scale),
        "R-hat, median": float(rhat.median()),
        "R-hat, 95 %": float(rhat.quantile(0.95)),
    }
    for name, value in found.items():
        print(f"{name:15} {value:.4g}")
    return found


def join(config: Config) -> None:
    """Connect all processes, before JAX looks for devices."""
    if config.coordinator == "auto":
        jax.distributed.initialize()
    elif config.coordinator is not None:
        jax.distributed.initialize(config.coordinator, config.num_processes, config.process)


if __name__ == "__main__":
    given = tyro.cli(Config, description=__doc__)
    # Processes on one machine share its cores.
    jax.config.update("jax_num_cpu_devices", max(1, (os.cpu_count() or 1) // given.num_processes))
    main(given)
