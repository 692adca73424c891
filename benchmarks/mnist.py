"""Measure every method on MNIST, 784-1200-1200-10, 60,000 images.

Compared with Antoran's Bayesian-Neural-Networks, which publishes the same network with 100 draws:
summed test log-likelihood and error in per cent.

    python benchmarks/mnist.py sgld psgld sghmc ensemble --data-dir ~/data
    python benchmarks/mnist.py sghmc --temperature 0.3 --validate

The second command does not use the test images: it trains on the first 55,000 training images and
predicts the last 5,000 (their log-likelihood is doubled, for comparison with 10,000). The settings
are those that did best there. Draws go to runs/mnist-<method>; rerun the command to resume.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import optax

import bnn_ppl as bnn

BATCH = 128


class Setting(NamedTuple):
    """How a method was run."""

    epochs: float  # of warm-up
    step_size: float
    published: tuple[float, float] | None = None
    prior: object = bnn.priors.normal(0.1)
    num_draws: int = 100
    num_chains: int = 1


MIXTURE = bnn.priors.mixture((0.1, 0.0005), (0.75, 0.25))
SETTINGS = {
    "sgld": Setting(6, 4e-6, (-828.3, 1.76)),
    "psgld": Setting(6, 1e-4, (-661.3, 1.76)),
    "sghmc": Setting(6, 8e-7),
    "map": Setting(10, 1e-3, (-572.9, 1.58), num_draws=1),
    "ensemble": Setting(
        8, 1e-3, (-496.5, 1.53), bnn.priors.normal(0.3), num_draws=1, num_chains=10
    ),
    "bbp_gaussian": Setting(12, 1e-3, (-1100.3, 2.60)),
    "bbp_mixture": Setting(12, 1e-3, (-1008.3, 2.38), MIXTURE),
    "bbp_laplace": Setting(12, 1e-3, (-892.9, 2.28), bnn.priors.laplace(0.1 * 2**0.5)),
    "local": Setting(12, 1e-3, (-1086.4, 2.61)),
    "mc_dropout": Setting(30, 1e-3, (-435.5, 1.37), bnn.priors.normal(1.0)),
    "laplace": Setting(1, 0.0, (-1387.2, 2.08)),  # about the draw of "map"
    "linearised": Setting(1, 0.0, (-1387.2, 2.08)),  # the draws of "laplace"
    "vogn": Setting(10, 1e-2),
    "ivon": Setting(10, 0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+", choices=SETTINGS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--validate", action="store_true", help="do not use the test images")
    parser.add_argument("--step-size", type=float, help="these five replace the chosen ones")
    parser.add_argument("--prior-std", type=float)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--num-draws", type=int)
    parser.add_argument("--num-chains", type=int)
    parser.add_argument("--draws-an-epoch", type=float, default=4, help="of the samplers")
    parser.add_argument("--temperature", type=float, default=0.1, help="of the samplers' noise")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    args = parser.parse_args()
    train, test = load(args)
    for name in args.methods:
        print(json.dumps(measure(name, setting(name, args), train, test, args)), flush=True)


def setting(name: str, args: argparse.Namespace) -> Setting:
    chosen = {field: getattr(args, field, None) for field in Setting._fields}
    if args.prior_std:
        chosen["prior"] = bnn.priors.normal(args.prior_std)
    return SETTINGS[name]._replace(**{k: v for k, v in chosen.items() if v is not None})


def load(args: argparse.Namespace) -> tuple[bnn.data.Data, bnn.data.Data]:
    """Training rows, and the rows to predict."""
    data = bnn.data.load("mnist", data_dir=args.data_dir)
    if not args.validate:
        return data.train, data.test
    x, y = data.train
    return bnn.data.Data(x[:55_000], y[:55_000]), bnn.data.Data(x[55_000:], y[55_000:])


def measure(name: str, chosen: Setting, train, test, args: argparse.Namespace) -> dict:
    net = partial(bnn.nets.MLP, 784, (1200, 1200), 10)
    posterior = bnn.condition(bnn.models.classifier(net, chosen.prior), train)
    began = time.perf_counter()
    draws = sample("laplace" if name == "linearised" else name, chosen, posterior, args)
    form = "sampled" if name == "laplace" else None
    prediction = bnn.predict(posterior, draws, test, predictive=form, batch_size=2_000)
    scores = bnn.metrics.summary(prediction, test.y, digits=None)
    return {
        "method": name,
        **chosen._asdict() | {"prior": type(chosen.prior).__name__},
        "prior_std": round(float(chosen.prior.variance) ** 0.5, 3),
        "temperature": args.temperature if name in SAMPLERS else None,
        "predicted": "validation" if args.validate else "test",
        "log_likelihood": round(-10_000 * float(scores["nll"]), 1),
        "error": round(100 * (1 - float(scores["accuracy"])), 2),
        "ece": round(float(scores["ece"]), 4),
        "sampling_minutes": round(draws.attrs["sampling_time"] / 60, 1),
        "minutes": round((time.perf_counter() - began) / 60, 1),
    }


def sample(name: str, chosen: Setting, posterior, args: argparse.Namespace):
    batch_size, init = BATCH, None
    if name == "laplace":
        batch_size, init = 500, sample("map", SETTINGS["map"], posterior, args)
    an_epoch = posterior.num_rows // batch_size
    num_steps = round(chosen.epochs * an_epoch)
    if name in SAMPLERS:
        method = SAMPLERS[name](posterior, chosen.step_size, noise_temperature=args.temperature)
    else:
        method = FITS[name](posterior, optax.cosine_decay_schedule(chosen.step_size, num_steps))
    return bnn.run(
        jax.random.key(0),
        posterior,
        method,
        num_chains=chosen.num_chains,
        num_warmup=num_steps,
        num_draws=chosen.num_draws,
        thin=round(an_epoch / args.draws_an_epoch) if name in SAMPLERS else 0,
        batch_size=batch_size,
        init=init,
        folder=args.folder / f"mnist-{name}{'-validation' if args.validate else ''}",
    )


def fit(method, **options):
    """Make a fit whose learning rate falls to 0; by Adam, except for vogn and ivon."""
    return lambda posterior, rate: method(posterior, learning_rate=rate, **options)


SAMPLERS = {
    "sgld": bnn.sgld,
    "psgld": partial(bnn.sgld, preconditioner=bnn.preconditioners.rmsprop(epsilon=1e-8)),
    "sghmc": bnn.sghmc,
}
FITS = {
    "ensemble": fit(bnn.descent),
    "bbp_gaussian": fit(bnn.mfvi),
    "bbp_mixture": fit(bnn.mfvi),
    "bbp_laplace": fit(bnn.mfvi),
    "local": fit(bnn.mfvi, estimator="local_reparametrisation"),
    "mc_dropout": fit(bnn.mc_dropout),
    "map": fit(bnn.descent),
    "laplace": lambda posterior, rate: bnn.laplace(posterior),
    "vogn": fit(bnn.vogn, beta2=0.9999),
    "ivon": fit(bnn.ivon),
}


if __name__ == "__main__":
    main()
