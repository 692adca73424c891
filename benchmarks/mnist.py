"""Measure stochastic-gradient samplers and ensembles on MNIST, 784-1200-1200-10, 60,000 images.

Beside Antoran's Bayesian-Neural-Networks, which publishes 100 draws of the same network with a
N(0, 0.1^2) prior at T = 1: summed test log-likelihood and error in per cent.

    python benchmarks/mnist.py sgld psgld sghmc ensemble --data-dir ~/data
    python benchmarks/mnist.py sghmc --temperature 0.3 --validate

The second command leaves the test images alone: the first 55,000 training images train, the last
5,000 are predicted (their log-likelihood is doubled, to compare with 10,000). Settings are those
that did best there. Draws go to runs/mnist-<method>-<temperature>; a second call goes on where one
was stopped.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import jax
import optax

import bnn_ppl as bnn

PUBLISHED = {
    "sgld": (-828.3, 1.76),
    "psgld": (-661.3, 1.76),
    "ensemble": (-496.5, 1.53),
    "one member": (-572.9, 1.58),
}
BATCH = 128
STEP_SIZES = {"sgld": 4e-6, "psgld": 1e-4, "sghmc": 8e-7, "ensemble": 1e-3}
NUM_MEMBERS, EPOCHS_A_MEMBER = 10, 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+", choices=STEP_SIZES)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--step-size", type=float, help="instead of the one chosen")
    parser.add_argument("--prior-std", type=float, default=0.1)
    parser.add_argument("--temperature", type=float, default=0.1, help="of the noise; 1 is Bayes")
    parser.add_argument("--num-warmup-epochs", type=float, default=6)
    parser.add_argument("--num-draws", type=int, default=100)
    parser.add_argument("--draws-an-epoch", type=float, default=4)
    parser.add_argument("--validate", action="store_true", help="leave the test images alone")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    args = parser.parse_args()
    train, test = load(args)
    for name in args.methods:
        print(json.dumps(measure(name, train, test, args)), flush=True)


def load(args: argparse.Namespace) -> tuple[bnn.data.Data, bnn.data.Data]:
    """Training rows, and those to predict."""
    data = bnn.data.load("mnist", data_dir=args.data_dir)
    if not args.validate:
        return data.train, data.test
    x, y = data.train
    return bnn.data.Data(x[:55_000], y[:55_000]), bnn.data.Data(x[55_000:], y[55_000:])


def measure(name: str, train: bnn.data.Data, test: bnn.data.Data, args: argparse.Namespace) -> dict:
    net = partial(bnn.nets.MLP, 784, (1200, 1200), 10)
    prior = bnn.priors.normal(args.prior_std)
    posterior = bnn.condition(bnn.models.classifier(net, prior), train)
    an_epoch = len(train.y) // BATCH
    step_size = args.step_size or STEP_SIZES[name]
    began = time.perf_counter()
    draws = (ensemble if name == "ensemble" else sample)(name, posterior, an_epoch, step_size, args)
    prediction = bnn.predict(posterior, draws, test, batch_size=2_000)
    scores = bnn.metrics.summary(prediction, test.y, digits=None)
    published = PUBLISHED.get(name)
    return {
        "method": name,
        "step_size": step_size,
        "prior_std": args.prior_std,
        "temperature": 0.0 if name == "ensemble" else args.temperature,
        "predicted": "validation" if args.validate else "test",
        "log_likelihood": round(-10_000 * float(scores["nll"]), 1),
        "error": round(100 * (1 - float(scores["accuracy"])), 2),
        "published": published,
        "ece": round(float(scores["ece"]), 4),
        "sampling_minutes": round(draws.attrs["sampling_time"] / 60, 1),
        "minutes": round((time.perf_counter() - began) / 60, 1),
    }


def sample(name, posterior, an_epoch, step_size, args):
    """One chain, as published."""
    mass = bnn.preconditioners.rmsprop(epsilon=1e-8) if name == "psgld" else None
    method = bnn.sghmc if name == "sghmc" else bnn.sgld
    return run(
        name,
        posterior,
        method(posterior, step_size, preconditioner=mass, noise_temperature=args.temperature),
        args,
        num_warmup=round(args.num_warmup_epochs * an_epoch),
        num_draws=args.num_draws,
        thin=round(an_epoch / args.draws_an_epoch),
    )


def ensemble(name, posterior, an_epoch, step_size, args):
    """Members side by side on the cores, each from a start of its own."""
    num_steps = EPOCHS_A_MEMBER * an_epoch
    rate = optax.cosine_decay_schedule(step_size, num_steps)
    method = bnn.descent(posterior, learning_rate=rate)
    return run(name, posterior, method, args, num_chains=NUM_MEMBERS, num_warmup=num_steps, thin=0)


def run(name, posterior, method, args, **options):
    folder = args.folder / f"mnist-{name}{'-validation' if args.validate else ''}"
    if name != "ensemble":
        folder = folder.with_name(f"{folder.name}-{args.temperature:g}")
    return bnn.run(jax.random.key(0), posterior, method, batch_size=BATCH, folder=folder, **options)


if __name__ == "__main__":
    main()
