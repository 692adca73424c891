"""Measure how long a run takes to start: with an empty compilation cache, and again.

    python benchmarks/start_up.py
    python benchmarks/start_up.py --methods hmc nuts --size 335k

For each method, one process with an empty compilation cache and one with the cache that it left, as
the command line keeps it: seconds to import, to condition the model on the data, to start four
chains, and to trace and compile warm-up. After that it samples; "sampling" is the sum without the
import. Draws are compiled when warm-up has ended. "same shape" is a second run of the same method
in that process, with another key, until its draws are compiled: nothing should be traced again.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

PARTS = ("import", "condition", "start", "warm-up", "sampling", "draws", "same shape")
SAMPLERS = ("hmc", "nuts", "mclmc", "adjusted_mclmc")
ON_MINIBATCHES = ("sgld", "sghmc", "sgnht", "csgld")
FITS = ("descent", "swag", "mfvi", "mc_dropout", "vogn", "ivon")
METHODS = (*SAMPLERS, *ON_MINIBATCHES, *FITS, "laplace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--size", default="yacht", help="yacht: 50 units; or as in problems.py")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(begin(args.child, args.size)))
        return
    print(f"{'':16}{'':8}" + "".join(f"{part:>12}" for part in PARTS))
    for method in args.methods:
        with tempfile.TemporaryDirectory() as cache:
            for which in ("first", "again"):
                seconds = in_fresh_process(method, args.size, cache)
                columns = "".join(f"{seconds[part]:12.2f}" for part in PARTS)
                print(f"{method:16}{which:8}{columns}", flush=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def in_fresh_process(method: str, size: str, cache: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", method, "--size", size]
    settings = {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # as the command line has it
    }
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | settings
    )
    return json.loads(done.stdout.splitlines()[-1])


def begin(method: str, size: str) -> dict[str, float]:
    """Seconds of each stage."""
    times = [time.perf_counter()]

    def lap() -> None:
        times.append(time.perf_counter())

    import jax

    import bnn_ppl as bnn

    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    lap()
    posterior = bnn.condition(*problem(size))
    jax.block_until_ready(posterior.prior_std)
    lap()
    chosen, batch_size = built(method, posterior)
    prepared = prepared_for(0, posterior, chosen, batch_size)
    lap()
    compile_phase(0, prepared)
    lap()
    compile_phase(1, prepared)
    lap()
    prepared = prepared_for(1, posterior, chosen, batch_size)
    compile_phase(0, prepared)
    compile_phase(1, prepared)
    lap()
    imported, conditioned, started, warming, drawing, again = (
        after - before for before, after in itertools.pairwise(times)
    )
    sampling = conditioned + started + warming
    parts = imported, conditioned, started, warming, sampling, drawing, again
    return dict(zip(PARTS, parts, strict=True))


def prepared_for(seed: int, posterior, method, batch_size):
    import jax

    from bnn_ppl.sampling.loop.compiled_loop import one_record
    from bnn_ppl.sampling.loop.minibatches import Minibatches
    from bnn_ppl.sampling.setup.chain_placement import prepare
    from bnn_ppl.sampling.setup.run_spec import RunLength

    lengths = RunLength(4, 2, 2, 1, Minibatches(batch_size, bootstrap=False))
    prepared = prepare(jax.random.key(seed), posterior, method, lengths)
    one_record(prepared)  # as run does, which traces the draws
    jax.block_until_ready(prepared.states)
    return prepared


def compile_phase(which: int, prepared) -> None:
    from bnn_ppl.sampling.loop.compiled_loop import compile_loop

    compile_loop(prepared.phases[which], prepared)


def problem(size: str) -> tuple:
    from functools import partial

    import bnn_ppl as bnn

    if size != "yacht":
        from problems import classifier

        return classifier(size)
    net = partial(bnn.nets.MLP, 6, (50,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), bnn.priors.noise())
    return model, bnn.data.load("yacht").train


def built(method: str, posterior) -> tuple:
    """Build the method with its defaults, and give its batch size."""
    import bnn_ppl as bnn

    make = getattr(bnn, method)
    batch_size = 64 if method in (*ON_MINIBATCHES, *FITS) else None
    if method in ON_MINIBATCHES:
        energies = {"min_energy": -1000, "energy_gap": 10} if method == "csgld" else {}
        return make(posterior, 1e-6, **energies), batch_size
    if method == "swag":
        return make(posterior, bnn.descent(posterior)), batch_size
    return make(posterior), batch_size


if __name__ == "__main__":
    main()
