"""Measure a microcanonical Langevin ensemble on airfoil, compared with its starting points and HMC.

Ten 16-16-16-16 networks that predict a mean and a noise level for each x: (a) a deep ensemble
by descent; (b) one MCLMC chain from each of its members, after Sommer et al. (2025), who report
RMSE 0.1215 +- 0.0042 and NLL -0.9126 +- 0.0131 for such networks with ReLU; (c) HMC from the same
starting points with the same number of gradients. The published split of 1,202 and 301 rows,
standardised units, NLL of the Gaussian with the moments of the mixture.

    python benchmarks/airfoil.py
    python benchmarks/airfoil.py --choose --seeds 0 --num-nets 4 --activation relu

The second command chooses settings on training rows alone: a fifth of them is held out in place of
the test rows. Seconds count from the start of descent to the predictions, compilation included.
Each row is appended to benchmarks/stored/airfoil.csv. Needs BNN_PPL_DATA.
"""

import argparse
import os
import time
from functools import partial
from pathlib import Path

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import stored
from flax import nnx

import bnn_ppl as bnn

PRIORS = {
    "normal": bnn.priors.normal,
    "laplace": bnn.priors.laplace,
    "student_t": bnn.priors.student_t,
    "fan_in": bnn.priors.fan_in,
}
ACTIVATIONS = {"relu": nnx.relu, "tanh": jnp.tanh, "silu": nnx.silu, "gelu": nnx.gelu}
SETTINGS = ["activation", "hidden", "prior", "scale", "num_nets", "energy_error"]
SETTINGS += ["num_warmup", "num_draws", "thin"]
SCORES = ["rmse", "gaussian_nll", "nll", "function_rhat_median", "function_rhat_95"]
COLUMNS = ["rows", "method", "seed", *SETTINGS, *SCORES, "gradients", "seconds", "cpu_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--choose", action="store_true", help="measure on held-out training rows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["mclmc"])
    parser.add_argument("--activation", choices=ACTIVATIONS, default="tanh")
    parser.add_argument("--hidden", type=int, nargs="+", default=[16] * 4)
    parser.add_argument("--prior", choices=PRIORS, default="normal")
    parser.add_argument("--scale", type=float, default=0.7, help="standard deviation of the prior")
    parser.add_argument("--num-nets", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3000, help="passes over the data in descent")
    parser.add_argument("--learning-rate", type=float, default=1e-2, help="largest learning rate")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--mass", choices=["identity", "diagonal", "prior"], default="identity")
    parser.add_argument("--energy-error", type=float, default=0.02, help="target while drawing")
    parser.add_argument("--first-energy-error", type=float, default=0.5, help="in early warm-up")
    parser.add_argument("--num-warmup", type=int, default=36_000)
    parser.add_argument("--num-draws", type=int, default=240)
    parser.add_argument("--thin", type=int, default=100)
    parser.add_argument("--leapfrogs", type=int, default=200, help="per HMC transition")
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "airfoil.csv")
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    data = bnn.data.load("airfoil")
    data = held_out(data) if args.choose else data
    rows = [row for seed in args.seeds for row in evaluate(data, seed, args)]
    table = pandas.DataFrame(rows, columns=COLUMNS).groupby("method", sort=False)
    print(table[[*SCORES, "seconds"]].mean().T.to_string(float_format="{:.4f}".format))


def held_out(data: bnn.data.DataSet) -> bnn.data.DataSet:
    """Hold out a fifth of the training rows and evaluate there."""
    rows = np.random.default_rng(0).permutation(len(data.train.y))
    kept, held = np.split(rows, [len(rows) * 4 // 5])
    x, y = data.train
    return data._replace(
        train=bnn.data.Data(x[kept], y[kept]), test=bnn.data.Data(x[held], y[held])
    )


def evaluate(data, seed: int, args: argparse.Namespace):
    """Train the ensemble, sample from it by each method, and evaluate each."""
    posterior = bnn.condition(model(data, args), data.train)
    began = clocks()
    start = ensemble(posterior, jax.random.key(seed), args)
    yield report("ensemble", seed, data, posterior, start, began, args)
    spent = clocks() - began
    for name in args.methods:
        began = clocks() - spent
        draws = SAMPLERS[name](posterior, jax.random.key(1000 + seed), start, args)
        yield report(name, seed, data, posterior, draws, began, args)


def clocks() -> np.ndarray:
    """Seconds of the wall clock and of all cores, both from some beginning."""
    return np.array([time.perf_counter(), time.process_time()])


def model(data, args: argparse.Namespace) -> bnn.models.Model:
    net = partial(
        bnn.nets.MLP,
        data.train.x.shape[1],
        tuple(args.hidden),
        2,
        activation=ACTIVATIONS[args.activation],
        features_first=True,
    )
    return bnn.models.regressor(net, PRIORS[args.prior](args.scale), "softplus")


def ensemble(posterior, key: jax.Array, args: argparse.Namespace) -> arviz.InferenceData:
    """Train by Adam at a rate that falls to 0 along half a cosine.

    No early stopping: the held-out likelihood peaks long before the mean is learnt, and networks
    stopped there have larger errors.
    """
    num_steps = args.epochs * (posterior.num_rows // args.batch_size)
    rate = optax.cosine_decay_schedule(args.learning_rate, num_steps)
    method = bnn.descent(posterior, learning_rate=rate)
    counts = {"num_chains": args.num_nets, "num_warmup": num_steps, "thin": 0}
    return bnn.run(key, posterior, method, **counts, batch_size=args.batch_size, progress=False)


def mclmc(posterior, key: jax.Array, start, args: argparse.Namespace) -> arviz.InferenceData:
    errors = args.first_energy_error, args.energy_error
    falling = bnn.schedules.cosine_burn_in(*errors, args.num_warmup)
    method = bnn.mclmc(posterior, mass=args.mass, energy_error=falling)
    counts = {"num_warmup": args.num_warmup, "num_draws": args.num_draws, "thin": args.thin}
    return bnn.run(
        key, posterior, method, num_chains=args.num_nets, init=start, **counts, progress=False
    )


def hmc(posterior, key: jax.Array, start, args: argparse.Namespace) -> arviz.InferenceData:
    """Take as many gradients as `mclmc` in transitions of at most `leapfrogs` steps."""
    method = bnn.hmc(posterior, max_num_steps=args.leapfrogs)
    counts = {
        "num_warmup": 2 * args.num_warmup // args.leapfrogs,
        "num_draws": 2 * args.num_draws * args.thin // args.leapfrogs,
    }
    return bnn.run(
        key, posterior, method, num_chains=args.num_nets, init=start, **counts, progress=False
    )


SAMPLERS = {"mclmc": mclmc, "hmc": hmc}


def report(name: str, seed: int, data, posterior, draws, began: np.ndarray, args) -> dict:
    """Evaluate on the test rows, print a line and store it."""
    prediction = bnn.predict(posterior, draws, data.test)
    seconds, cpu_seconds = clocks() - began
    scores = bnn.metrics.summary(prediction, data.test.y, digits=None)
    row = {"rows": "held out" if args.choose else "test", "method": name, "seed": seed}
    row |= {setting: getattr(args, setting) for setting in SETTINGS}
    row["hidden"] = "-".join(map(str, args.hidden))
    row |= {column: float(scores[column]) for column in ("rmse", "gaussian_nll", "nll")}
    if draws.posterior.sizes["draw"] > 3:
        functions = bnn.function_draws(posterior, draws, data.test.x)
        mixing = bnn.diagnostics.summary(draws, functions).loc["function"]
        row |= {f"function_{column}": mixing[column] for column in ("rhat_median", "rhat_95")}
    row |= {"gradients": draws.attrs["gradient_evaluations"]}
    row |= {"seconds": seconds, "cpu_seconds": cpu_seconds}
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print("  ".join(shown), flush=True)
    stored.append(args.results, row, COLUMNS)
    return row


if __name__ == "__main__":
    main()
