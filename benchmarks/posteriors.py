"""Compare samplers at their defaults with the reference draws of posteriordb.

    python benchmarks/posteriors.py --data-dir ../data
    python benchmarks/posteriors.py --data-dir ../data --samplers nuts --posteriors sblri-blr

Fifteen posteriors, written as NumPyro programs in tests/shared/targets.py, in float64; 4 chains
(32 of the methods that need many). Ours run with their default lengths, at most two minutes
each; NumPyro's NUTS with 1,000 warm-up steps and 1,000 draws a chain, as in its examples; nutpie,
if it is installed, with its own defaults. Each run is a row of benchmarks/stored/posteriors.csv:
how far the means are from the reference in its standard deviations, and the standard deviations in
shares of them, at worst; the least effective number of draws; seconds, with what had to be
compiled. What is there already is not run again.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import stored
from jax.flatten_util import ravel_pytree

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "shared"))
from targets import POSTERIORDB, Target, posteriordb

import bnn_ppl as bnn

OURS = ["nuts", "hmc", "chees", "meads", "adjusted_mclmc", "mclmc", "laps", "parallel_tempering"]
OURS += ["tempered_smc", "elliptical_slice", "kinetic_langevin", "sgnht", "sghmc", "sgld", "smile"]
COLUMNS = ["posterior", "sampler", "mean_off", "sd_off", "ess", "seconds", "cpu_seconds", "error"]
MOST_MINUTES = 2.0
MANY = {"laps": 32, "meads": 32}  # as bnn-ppl runs them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    every = [*OURS[:2], "NumPyro", "nutpie", *OURS[2:]]
    parser.add_argument("--samplers", nargs="+", default=every, choices=every)
    parser.add_argument("--posteriors", nargs="+", default=sorted(POSTERIORDB), choices=POSTERIORDB)
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "posteriors.csv")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    stored.compile_as_on_a_new_machine()
    for sampler in args.samplers:
        if sampler == "nutpie" and importlib.util.find_spec("nutpie") is None:
            print("left out: nutpie is not installed", flush=True)
            continue
        for name in args.posteriors:
            keys = {"posterior": name, "sampler": sampler}
            if not stored.done(args.results, **keys):
                row = keys | measured(sampler, posteriordb(name, args.data_dir))
                print(row, flush=True)
                stored.append(args.results, row, COLUMNS)


def measured(sampler: str, target: Target) -> dict[str, Any]:
    """Run a sampler, and compare; a refusal is a row too."""
    sample = {"NumPyro": numpyro_nuts, "nutpie": nutpie_nuts}.get(sampler, ours(sampler))
    began = time.perf_counter(), time.process_time()
    try:
        draws = sample(target)
    except (ValueError, TypeError, TimeoutError, NotImplementedError) as error:
        return {"error": str(error).splitlines()[0][:200]}
    seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    figures = compared(target, draws)
    return figures | {"seconds": round(seconds[0], 1), "cpu_seconds": round(seconds[1], 1)}


def compared(target: Target, draws: dict[str, np.ndarray]) -> dict[str, float]:
    """Compare draws (chain, draw, ...) with the reference, at worst over all scalars."""
    from numpyro.diagnostics import effective_sample_size

    reported = {site: np.asarray(value) for site, value in target.report(draws).items()}
    means, sds, ess = [], [], []
    for site, mean in target.means.items():
        values, sd = reported[site], target.sds[site]
        means.append(np.max(np.abs(values.mean((0, 1)) - mean) / sd))
        sds.append(np.max(np.abs(values.std((0, 1)) / sd - 1)))
        of_site = np.min(effective_sample_size(values)) if values.shape[1] > 3 else np.nan
        ess.append(of_site if of_site > 0 else np.nan)  # of few draws it may be negative
    worst = {"mean_off": max(means), "sd_off": max(sds), "ess": min(ess)}
    return {name: float(f"{value:.6g}") for name, value in worst.items()}


def ours(name: str) -> Callable[[Target], dict[str, np.ndarray]]:
    def sample(target: Target) -> dict[str, np.ndarray]:
        posterior = bnn.condition(target.model, target.data)
        draws = bnn.run(
            jax.random.key(1),
            posterior,
            getattr(bnn, name)(posterior),
            num_chains=MANY.get(name, 4),
            max_minutes=MOST_MINUTES,
            progress=False,
        )
        return {site: draws.posterior[site].values for site in draws.posterior}

    return sample


def numpyro_nuts(target: Target) -> dict[str, np.ndarray]:
    from numpyro.infer import MCMC, NUTS

    mcmc = MCMC(
        NUTS(target.model),
        num_warmup=1000,
        num_samples=1000,
        num_chains=4,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), target.data.x, target.data.y)
    return {
        site: np.asarray(value) for site, value in mcmc.get_samples(group_by_chain=True).items()
    }


def nutpie_nuts(target: Target) -> dict[str, np.ndarray]:
    """Sample the unconstrained log-density by nutpie, whose gradients JAX compiles."""
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    posterior = bnn.condition(target.model, target.data)
    first, unravel = ravel_pytree(posterior.init(jax.random.key(0)))
    data = posterior.rows.examples
    both = jax.jit(jax.value_and_grad(lambda flat: posterior.logdensity(unravel(flat), data)))
    both(first)  # compiled before nutpie's threads call it

    def logdensity() -> Callable:
        def evaluate(flat: np.ndarray, **_: Any) -> tuple[float, np.ndarray]:
            value, gradient = both(flat)
            return float(value), np.asarray(gradient)

        return evaluate

    def expand(*_: Any) -> Callable:
        return lambda flat, **_: {"position": np.asarray(flat, np.float64)}

    model = from_pyfunc(
        first.size,
        logdensity,
        expand,
        [np.dtype(np.float64)],
        [(first.size,)],
        ["position"],
        make_initial_point_fn=lambda seed: np.asarray(
            ravel_pytree(posterior.init(jax.random.key(seed % 2**31)))[0]
        ),
    )
    trace = nutpie.sample(model, chains=4, cores=1, seed=1, progress_bar=False)
    positions = jax.vmap(jax.vmap(unravel))(np.asarray(trace.posterior["position"]))
    constrain = jax.vmap(jax.vmap(lambda position: posterior.constrain(position, data)))
    return {site: np.asarray(value) for site, value in constrain(positions).items()}


if __name__ == "__main__":
    main()
