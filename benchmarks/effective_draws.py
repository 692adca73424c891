"""Measure effective draws per second in function space compared with BlackJAX and NumPyro.

    python benchmarks/effective_draws.py

50 hidden units on the yacht table (402 weights), one chain per host device, 500 warm-up steps and
1,000 draws, every sampler with its own adaptation: ours by `run`; BlackJAX's NUTS after its window
adaptation, under ``pmap``; NumPyro's by ``MCMC(chain_method="parallel")``. All chains start at the
same positions, and everything is compiled before it is timed. R-hat and bulk ESS are those of each
draw's predictions of the test rows. Warm-up and draws count as time, but the search for our first
step size does not. mclmc is left out: it is biased and needs thousands of warm-up steps.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial

WARMUP, DRAWS = 500, 1000
SAMPLERS = (
    "bnn_ppl hmc",
    "bnn_ppl nuts",
    "bnn_ppl adjusted_mclmc",
    "BlackJAX nuts",
    "NumPyro NUTS",
    "NumPyro HMC",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.seeds[0])))
        return
    columns = ("seconds", "gradients", "R-hat, 95 %", "ESS, median", "least", "a second", "least")
    print(f"{'':24}" + "".join(f"{column:>14}" for column in columns))
    for sampler in args.samplers:
        for seed in args.seeds:
            row = child(sampler, seed)
            print(f"{sampler:24}" + "".join(f"{value:>14.4g}" for value in row), flush=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def child(sampler: str, seed: int) -> list[float]:
    command = [sys.executable, __file__, "--child", sampler, "--seeds", str(seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(sampler: str, seed: int) -> list[float]:
    import jax
    import numpy as np

    num_chains = os.cpu_count()
    jax.config.update("jax_num_cpu_devices", num_chains)

    import bnn_ppl as bnn
    from bnn_ppl.storage.arviz_versions import draws_of_arrays

    data = bnn.data.load("yacht")
    net = partial(bnn.nets.MLP, 6, (50,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), bnn.priors.noise())
    posterior = bnn.condition(model, data.train)
    key = jax.random.key(seed)
    positions = jax.jit(jax.vmap(posterior.init))(jax.random.split(key, num_chains))
    package, name = sampler.split(" ")
    sample = {"bnn_ppl": ours, "BlackJAX": blackjax_nuts, "NumPyro": numpyro}[package]
    seconds, gradients, sites = sample(name, model, posterior, positions, key)
    draws = draws_of_arrays({"posterior": {site: np.asarray(leaf) for site, leaf in sites.items()}})
    functions = bnn.function_draws(posterior, draws, data.test.x)
    rhat = bnn.diagnostics.rhat(functions)["mean"].values
    ess = bnn.diagnostics.ess(functions)["mean"].values
    middle, least = float(np.median(ess)), float(ess.min())
    r95 = float(np.quantile(rhat, 0.95))
    return [seconds, gradients, r95, middle, least, middle / seconds, least / seconds]


def ours(name, model, posterior, positions, key):
    import jax

    import bnn_ppl as bnn
    from bnn_ppl.storage.arviz_versions import draws_of_arrays

    values = jax.vmap(posterior.constrain)(positions)
    import numpy as np

    start = draws_of_arrays(
        {"posterior": {site: np.asarray(leaf)[:, None] for site, leaf in values.items()}}
    )
    draws = bnn.run(
        key,
        posterior,
        getattr(bnn, name)(posterior),
        num_chains=len(next(iter(positions.values()))),
        num_warmup=WARMUP,
        num_draws=DRAWS,
        init=start,
        progress=False,
    )
    sites = {site: leaf.values for site, leaf in draws.posterior.items()}
    return draws.attrs["sampling_time"], draws.attrs["gradient_evaluations"], sites


def blackjax_nuts(name, model, posterior, positions, key):
    import blackjax
    import jax

    def chain(key, position, data):
        density = partial(posterior.logdensity, batch=data)
        warm_key, draw_key = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density)
        (state, parameters), info = adaptation.run(warm_key, position, WARMUP)
        kernel = blackjax.nuts(density, **parameters).step

        def one(state, key):
            state, step = kernel(key, state)
            return state, (posterior.constrain(state.position), step.num_integration_steps)

        _, (values, steps) = jax.lax.scan(one, state, jax.random.split(draw_key, DRAWS))
        return values, steps.sum() + info.info.num_integration_steps.sum()

    keys = jax.random.split(key, len(next(iter(positions.values()))))
    over_devices = jax.pmap(chain, in_axes=(0, 0, None))
    return timed(lambda: over_devices(keys, positions, posterior.data))


def numpyro(name, model, posterior, positions, key):
    import jax
    import numpyro.infer as infer

    kernel = getattr(infer, name)(model)
    mcmc = infer.MCMC(
        kernel,
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=len(next(iter(positions.values()))),
        chain_method="parallel",
        progress_bar=False,
        jit_model_args=True,
    )

    def call():
        # init_params are unconstrained positions, as ours.
        mcmc.run(key, *posterior.data, init_params=positions, extra_fields=("num_steps",))
        steps = mcmc.get_extra_fields()["num_steps"].sum()  # of the draws alone
        return mcmc.get_samples(group_by_chain=True), jax.numpy.asarray(steps)

    return timed(call)


def timed(call):
    import jax

    jax.block_until_ready(call())  # compiles
    began = time.perf_counter()
    values, gradients = jax.block_until_ready(call())
    return time.perf_counter() - began, float(gradients.sum()), values


if __name__ == "__main__":
    main()
