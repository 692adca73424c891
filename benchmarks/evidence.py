"""Compare the evidence that tempered_smc estimates with Laplace's about several points, on yacht.

python benchmarks/evidence.py --hidden 2 5 10
"""

import argparse
import time
from functools import partial

import jax
import numpy as np

import bnn_ppl as bnn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", nargs="+", type=int, default=[2, 5, 10])
    parser.add_argument("--noise", type=float, default=0.1)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    data = bnn.data.load("yacht")
    for hidden in args.hidden:
        net = partial(bnn.nets.MLP, 6, (hidden,), 1)
        model = bnn.models.regressor(net, bnn.priors.fan_in(), args.noise)
        posterior = bnn.condition(model, data.train)
        run = partial(bnn.run, jax.random.key(0), posterior, progress=False)
        laplace = run(bnn.laplace(posterior, "full"), num_chains=8)
        began = time.perf_counter()
        draws = run(bnn.tempered_smc(posterior), num_chains=4)
        seconds = time.perf_counter() - began
        about_points = np.sort(laplace.fitted["log_evidence"].values).round(1)
        mean, error = bnn.diagnostics.log_evidence(draws)
        steps = draws.warmup_sample_stats.sizes["step"]
        print(f"{hidden} hidden units, {posterior.num_weights} weights: laplace {about_points}")
        print(f"tempered_smc {mean:.1f} +- {error:.1f}, {steps} exponents, {seconds:.0f} s")
        print(draws.attrs["verdict"], flush=True)


if __name__ == "__main__":
    main()
