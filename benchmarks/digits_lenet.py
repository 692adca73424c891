"""Sample a small LeNet on 500 digits by full-batch HMC, and score other methods against it.

The posterior is that of ``bnn-ppl run hmc --data digits --subset 500 --net lenet_small
--prior-scale 3`` (docs/explanation/comparison.md). HMC's predictions for the 360 test digits ship
with the package: ``bnn.data.hmc_reference("digits-lenet")``.

    python benchmarks/digits_lenet.py --hmc --num-draws 2000     run HMC, store its predictions
    python benchmarks/digits_lenet.py --score                    methods at their defaults

Rerun a command to resume it; a larger --num-draws extends the chains. Finished scores are appended
to benchmarks/stored/digits_lenet.csv.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import stored

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.methods.method import METHODS

PROBLEM = Problem.of(data="digits", subset=500, net="lenet_small", prior_scale=3.0)
ARGUMENTS = "--data digits --subset 500 --net lenet_small --prior-scale 3"  # the same
CHAINS, WARMUP = 4, 300
METHODS_SCORED = ["descent", "swag", "mc_dropout", "laplace", "mfvi", "sgld", "sghmc", "hmc"]
SCORES = ["accuracy", "nll", "ece", "agreement", "total_variation"]
COLUMNS = ["method", *(name for score in SCORES for name in (score, f"{score}_se"))]
COLUMNS += ["chains", "draws", "seconds", "gradients", "floor_agreement", "floor_total_variation"]
COLUMNS += [f"hmc_{score}" for score in SCORES[:3]]
SHIPPED = Path(bnn.__file__).parent / "data" / "files" / "digits" / "hmc_lenet.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hmc", action="store_true", help="run HMC and store its predictions")
    parser.add_argument("--score", action="store_true", help="run the methods and score them")
    parser.add_argument("--num-draws", type=int, default=1000, help="of each chain of HMC")
    parser.add_argument("--max-minutes", type=float, help="of HMC; the next call goes on")
    parser.add_argument("--folder", type=Path, default=Path("runs/digits-lenet"))
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "digits_lenet.csv")
    parser.add_argument("--methods", nargs="+", default=METHODS_SCORED)
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
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
    if args.score:
        for name in args.methods:
            if not stored.done(args.results, method=name):
                row = scored(name, posterior, data)
                stored.append(args.results, row, COLUMNS)
                print(row, flush=True)


def scored(name: str, posterior: bnn.Posterior, data: bnn.data.DataSet) -> dict[str, Any]:
    """Run a method at its defaults, from other keys than the reference, and score it."""
    reference = bnn.data.hmc_reference("digits-lenet")
    method = METHODS[name].build(posterior)
    key, chains = jax.random.key(1), method.counts.num_chains
    began = time.perf_counter()
    draws = bnn.run(key, posterior, method, num_chains=chains, progress=False)
    seconds = time.perf_counter() - began
    by_chain = {"the reference": list(reference.probs_by_chain)}
    if chains > 1:
        each = [draws.isel(chain=[number]) for number in range(chains)]
        by_chain[name] = [bnn.predict(posterior, one, data.test)["probs"] for one in each]
    table = bnn.compare(
        {name: bnn.predict(posterior, draws, data.test)},
        data.test.y,
        reference.probs,
        by_chain=by_chain,
        standard_errors=True,
    )
    floor = {f"floor_{score}": value for score, value in table.attrs["noise_floor"].items()}
    of_reference = {f"hmc_{score}": table.attrs["reference_scores"][score] for score in SCORES[:3]}
    return {
        "method": name,
        **table.loc[name].to_dict(),
        "chains": chains,
        "draws": draws.posterior.sizes["draw"],
        "seconds": seconds,
        "gradients": draws.attrs["gradient_evaluations"],
        **floor,
        **of_reference,
    }


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
