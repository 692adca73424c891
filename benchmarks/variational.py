"""Measure the cost of a training step of each method that fits, relative to Adam.

    python benchmarks/variational.py

784-1200-1200-10 classifier (2,395,210 weights), batches of 128 drawn on the device from 2,000
MNIST images, prior N(0, 0.1^2). Adam minimises the same log-density divided by the number of rows
(`descent`). Each process times all of them in turn; printed are medians of paired ratios.
"""

from functools import partial

import jax
import optax
from timing import compare, of_method, seconds_a_step

import bnn_ppl as bnn

BATCH = 128


def measure(num_steps: int) -> dict[str, float]:
    """Seconds per step of each."""
    data = bnn.data.load("mnist", subset=160)
    net = partial(bnn.nets.MLP, 784, (1200, 1200), 10)
    model = bnn.models.classifier(net, bnn.priors.normal(0.1))
    posterior = bnn.condition(model, data.test)
    position = posterior.init(jax.random.key(0))
    local = "local_reparametrisation"
    sgd = bnn.descent(posterior, optax.sgd(1e-3))
    methods = {
        "Adam": bnn.descent(posterior),
        "mfvi, weights": bnn.mfvi(posterior),
        "mfvi, local": bnn.mfvi(posterior, estimator=local),
        "mfvi, flipout": bnn.mfvi(posterior, estimator="flipout"),
        "mc_dropout": bnn.mc_dropout(posterior),
        "vogn": bnn.vogn(posterior),
        "ivon": bnn.ivon(posterior),
        "SGD": sgd,
        "swag around SGD": bnn.swag(posterior, sgd),
    }
    programs = {
        name: of_method(posterior, method, position, BATCH) for name, method in methods.items()
    }
    return seconds_a_step(programs, num_steps)


if __name__ == "__main__":
    compare(measure, __file__, __doc__, num_steps=30)
