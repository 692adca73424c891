"""Measure effective draws for their cost compared with BlackJAX and NumPyro.

    taskset -c 1 python benchmarks/effective_draws.py
    taskset -c 1 python benchmarks/effective_draws.py --data yacht --samplers "bnn_ppl hmc"

One hidden layer of 50 units, two chains, each a device of its own, 500 warm-up steps and 1,000
draws, every sampler with its own adaptation and its other settings at their defaults: ours by
`run`, without a verdict; BlackJAX's NUTS after its window adaptation, under ``pmap``; NumPyro's by
``MCMC(chain_method="parallel")``. All chains start at the same positions, and cost is that of a
second call in the process, which compiles nothing: warm-up and draws. R-hat and bulk ESS are those
of each draw's predictions of the test rows (at most 100). mclmc is left out: it is biased and needs
thousands of warm-up steps. Each finished row is appended to benchmarks/stored/effective_draws.csv;
rerun the command to resume. Boston needs BNN_PPL_DATA.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import stored

import bnn_ppl as bnn

WARMUP, DRAWS, CHAINS = 500, 1000, 2
DATA = ["yacht", "energy", "boston", "digits"]
SAMPLERS = ["bnn_ppl hmc", "bnn_ppl nuts", "BlackJAX nuts", "NumPyro NUTS"]
COLUMNS = ["data", "sampler", "weights", "seconds", "cpu_seconds", "gradients"]
COLUMNS += ["rhat", "ess", "lowest_ess"]

Sites = dict[str, Any]
Sampled = tuple[Sites, float]  # values of each site (chain, draw, ...), and gradients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS)
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "effective_draws.csv")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(args.data[0], args.samplers[0])))
        return
    for data in args.data:
        for sampler in args.samplers:
            if not stored.done(args.results, data=data, sampler=sampler):
                row = {"data": data, "sampler": sampler} | child(data, sampler)
                print(row, flush=True)
                stored.append(args.results, row, COLUMNS)


def child(data: str, sampler: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", "--data", data, "--samplers", sampler]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(name: str, sampler: str) -> dict[str, float]:
    jax.config.update("jax_num_cpu_devices", CHAINS)
    data = bnn.data.load(name)
    model = model_of(data)
    posterior = bnn.condition(model, (flat(data.train.x), data.train.y))
    key = jax.random.key(0)
    positions = jax.jit(jax.vmap(posterior.init))(jax.random.split(key, CHAINS))
    package, kernel = sampler.split(" ")
    sample = {"bnn_ppl": ours, "BlackJAX": blackjax_nuts, "NumPyro": numpyro_nuts}[package]
    call = partial(sample(kernel, model, posterior, positions), key)
    call()  # compiles
    began, began_cpu = time.perf_counter(), time.process_time()
    sites, gradients = call()
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    draws = bnn.from_numpyro(posterior, {site: np.asarray(leaf) for site, leaf in sites.items()})
    functions = bnn.function_draws(posterior, draws, flat(data.test.x)[:100])
    values = "probs" if data.num_classes else "mean"
    ess = bnn.diagnostics.ess(functions)[values].values
    return {
        "weights": posterior.num_weights,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "gradients": gradients,
        "rhat": float(np.quantile(bnn.diagnostics.rhat(functions)[values].values, 0.95)),
        "ess": float(np.median(ess)),
        "lowest_ess": float(ess.min()),
    }


def model_of(data: bnn.data.DataSet) -> Callable:
    prior = bnn.priors.fan_in(2**0.5)
    net = partial(bnn.nets.MLP, flat(data.train.x).shape[1], (50,), data.num_classes or 1)
    if data.num_classes:
        return bnn.models.classifier(net, prior)
    return bnn.models.regressor(net, prior, bnn.priors.noise())


def flat(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).reshape(len(x), -1)


def ours(name: str, model: Any, posterior: Any, positions: Any) -> Callable[[Any], Sampled]:
    values = jax.vmap(posterior.constrain)(positions)
    start = bnn.from_numpyro(
        posterior, {site: np.asarray(leaf)[:, None] for site, leaf in values.items()}
    )
    method = getattr(bnn, name)(posterior)
    counts = {"num_chains": CHAINS, "num_warmup": WARMUP, "num_draws": DRAWS}

    def call(key: Any) -> Sampled:
        draws = bnn.run(key, posterior, method, **counts, init=start, progress=False, verdict=False)
        sites = {site: leaf.values for site, leaf in draws.posterior.items()}
        return sites, float(draws.attrs["gradient_evaluations"])

    return call


def blackjax_nuts(
    name: str, model: Any, posterior: Any, positions: Any
) -> Callable[[Any], Sampled]:
    import blackjax

    def chain(key: Any, position: Any, data: Any) -> Any:
        density = partial(posterior.logdensity, batch=data)
        warm_key, draw_key = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density)
        (state, parameters), info = adaptation.run(warm_key, position, WARMUP)
        kernel = blackjax.nuts(density, **parameters).step

        def one(state: Any, key: Any) -> Any:
            state, step = kernel(key, state)
            return state, (posterior.constrain(state.position), step.num_integration_steps)

        _, (values, steps) = jax.lax.scan(one, state, jax.random.split(draw_key, DRAWS))
        return values, steps.sum() + info.info.num_integration_steps.sum()

    over_devices = jax.pmap(chain, in_axes=(0, 0, None))

    def call(key: Any) -> Sampled:
        keys = jax.random.split(key, CHAINS)
        sites, gradients = jax.block_until_ready(over_devices(keys, positions, posterior.data))
        return sites, float(gradients.sum())

    return call


def numpyro_nuts(name: str, model: Any, posterior: Any, positions: Any) -> Callable[[Any], Sampled]:
    import numpyro.infer as infer

    mcmc = infer.MCMC(
        getattr(infer, name)(model),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="parallel",
        progress_bar=False,
        jit_model_args=True,
    )

    def call(key: Any) -> Sampled:
        # init_params are unconstrained positions, as ours.
        options = {"init_params": positions, "extra_fields": ("num_steps",)}
        mcmc.warmup(key, *posterior.data, **options, collect_warmup=True)
        steps = mcmc.get_extra_fields()["num_steps"].sum()
        mcmc.run(mcmc.post_warmup_state.rng_key, *posterior.data, extra_fields=("num_steps",))
        steps += mcmc.get_extra_fields()["num_steps"].sum()
        sites = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
        return sites, float(steps)

    return call


if __name__ == "__main__":
    main()
