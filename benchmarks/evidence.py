"""Compare estimates of the evidence of networks with Laplace's about several points, on yacht.

python benchmarks/evidence.py --hidden 2 5 10
python benchmarks/evidence.py --hidden 10 --learnt-noise
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import bnn_ppl as bnn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", nargs="+", type=int, default=[2, 5, 10])
    parser.add_argument("--methods", nargs="+", default=["tempered_smc", "parallel_tempering"])
    parser.add_argument("--learnt-noise", action="store_true")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    data = bnn.data.load("yacht")
    noise = bnn.priors.noise() if args.learnt_noise else 0.1
    for hidden in args.hidden:
        net = partial(bnn.nets.MLP, 6, (hidden,), 1)
        posterior = bnn.condition(
            bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), noise), data.train
        )
        run = partial(bnn.run, jax.random.key(0), posterior, progress=False)
        laplace = run(bnn.laplace(posterior, "full"), num_chains=8)
        about_points = np.sort(laplace.fitted["log_evidence"].values).round(1)
        print(f"{hidden} hidden units, {posterior.num_weights} weights: laplace {about_points}")
        for name in args.methods:
            show(name, partial(run, getattr(bnn, name)(posterior), num_chains=4))


def show(name: str, run: Callable[[], Any]) -> None:
    began = time.perf_counter()
    draws = run()
    seconds = time.perf_counter() - began
    mean, error = bnn.diagnostics.log_evidence(draws)
    gradients = draws.attrs["gradient_evaluations"] / 1e6
    steps = draws.warmup_sample_stats.sizes["step"]
    print(f"{name} {mean:.1f} +- {error:.1f} of {draws.fitted['log_evidence'].values.round(1)}")
    print(f"{steps} warm-up steps, {gradients:.1f} million gradients, {seconds:.0f} s")
    print(draws.attrs["verdict"], flush=True)


if __name__ == "__main__":
    main()
