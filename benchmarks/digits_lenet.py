"""Sample a small LeNet on 500 digits by full-batch HMC, and score other methods against it.

The posterior is that of ``bnn-ppl run hmc --data digits --subset 500 --net lenet_small
--prior-scale 3`` (docs/comparison.md). HMC's predictions for the 360 test digits ship with the
package: ``bnn.data.hmc_reference("digits-lenet")``.

    python benchmarks/digits_lenet.py --hmc --num-draws 2000     run HMC, store its predictions
    python benchmarks/digits_lenet.py --score                    methods at their defaults

Rerun a command to resume it; a larger --num-draws extends the chains. Finished scores are appended
to benchmarks/stored/digits_lenet.csv.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import stored

import bnn_ppl as bnn
from bnn_ppl.cli.problem import Problem, conditioned

PROBLEM = Problem(data="digits", subset=500, net="lenet_small", prior_scale=3.0)
ARGUMENTS = "--data digits --subset 500 --net lenet_small --prior-scale 3"  # the same
CHAINS, WARMUP = 4, 300
SHIPPED = Path(bnn.__file__).parent / "data" / "files" / "digits" / "hmc_lenet.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hmc", action="store_true", help="run HMC and store its predictions")
    parser.add_argument("--score", action="store_true", help="run the methods and score them")
    parser.add_argument("--num-draws", type=int, default=1000, help="of each chain of HMC")
    parser.add_argument("--max-minutes", type=float, help="of HMC; the next call goes on")
    parser.add_argument("--folder", type=Path, default=Path("runs/digits-lenet"))
    args = parser.parse_args()
    data, posterior = conditioned(PROBLEM)
    if args.hmc:
        draws = bnn.run(
            jax.random.key(0),
            posterior,
            bnn.hmc(posterior),
            num_chains=CHAINS,
            num_warmup=WARMUP,
            num_draws=args.num_draws,
            folder=args.folder,
            max_minutes=args.max_minutes,
        )
        keep_reference(posterior, draws, data)


def keep_reference(posterior: bnn.Posterior, draws: Any, data: bnn.data.DataSet) -> None:
    """Write what ships: the average prediction of each chain, and how well the chains mixed."""
    functions = bnn.function_draws(posterior, draws, data.test.x)
    rhat = bnn.diagnostics.rhat(functions)["probs"].to_numpy()
    ess = bnn.diagnostics.ess(functions)["probs"].to_numpy()
    chains = functions.posterior["probs"].mean("draw").to_numpy().astype(np.float32)
    about = {
        "problem": ARGUMENTS,
        "num_warmup": WARMUP,
        "num_draws": functions.posterior.sizes["draw"],
        "acceptance": float(draws.sample_stats["acceptance_rate"].mean()),
        "gradient_evaluations": int(draws.attrs["gradient_evaluations"]),
        "seconds": float(draws.attrs["sampling_time"]),
        "rhat_median": float(np.nanmedian(rhat)),
        "rhat_max": float(np.nanmax(rhat)),
        "ess_median": float(np.nanmedian(ess)),
        "ess_min": float(np.nanmin(ess)),
        **stored.origin(),
    }
    np.savez_compressed(
        SHIPPED, probs_by_chain=chains, y=np.asarray(data.test.y), about=json.dumps(about)
    )
    for name, value in about.items():
        print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
