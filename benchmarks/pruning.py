"""Measure the cost of deleting weights of Bayes by backprop on MNIST, 784-1200-1200-10.

    python benchmarks/mnist.py bbp_gaussian --data-dir ~/data
    python benchmarks/pruning.py runs/mnist-bbp_gaussian --data-dir ~/data

Antoran's Bayesian-Neural-Networks reports, as error in per cent by the fraction deleted: by
signal-to-noise ratio 0.4 2.66, 0.9 2.66, 0.99 2.75; by divergence from the prior 0.9 3.27, 0.99
4.10.
"""

import argparse
from functools import partial
from pathlib import Path

import bnn_ppl as bnn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.5, 0.9, 0.95, 0.99])
    parser.add_argument("--num-draws", type=int, default=100)
    args = parser.parse_args()
    data = bnn.data.load("mnist", data_dir=args.data_dir)
    net = partial(bnn.nets.MLP, 784, (1200, 1200), 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal(0.1)), data.train)
    draws = bnn.diagnostics.load(args.folder).isel(draw=slice(args.num_draws))
    for by in ("signal_to_noise", "kl"):
        options = {"shares": args.shares, "by": by, "batch_size": 2_000}
        print(by)
        print(bnn.pruning.pruning_curve(posterior, draws, data.test, **options), flush=True)


if __name__ == "__main__":
    main()
