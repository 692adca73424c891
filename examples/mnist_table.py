"""How close do cheap methods come to the posterior? Accuracy does not show it.

One network, 784-50-10 with a fan-in prior, on the 160 training images of MNIST that ship with the
package: few enough for HMC to sample the posterior itself. It is compared with cheaper methods, all
on minibatches except Laplace. ``--subset 60000`` takes all of MNIST (by BNN_PPL_DATA), on which HMC
takes hours: then choose the methods, and another reference.

Prints one row per method: accuracy, negative log-likelihood and calibration error on 2,000 test
images, agreement of its most probable class with HMC's, total variation between its probabilities
and HMC's, seconds and gradient evaluations. Plots the same.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import arviz
import jax
import optax
import tyro

import bnn_ppl as bnn

Fits = dict[str, Callable[[], arviz.InferenceData]]


@dataclass(frozen=True)
class Config:
    """Settings."""

    subset: int = 160  # training images
    num_test: int = 2000  # test images
    methods: tuple[str, ...] = ()  # default: all
    reference: str | None = "hmc"  # the method to compare with
    hidden: tuple[int, ...] = (50,)  # width of each hidden layer
    num_members: int = 10  # size of the ensembles
    num_steps: int = 1000  # of each fit
    batch_size: int = 40
    num_chains: int = 2  # of HMC
    num_warmup: int = 80
    num_draws: int = 80
    figure: Path = Path("runs/mnist_table.png")


def main(config: Config) -> dict[str, float]:
    """Run the methods; scores by "<method> <score>"."""
    data = bnn.data.load("mnist", subset=config.subset)
    test = bnn.data.Data(*(leaf[: config.num_test] for leaf in data.test))
    net = partial(bnn.nets.MLP, 784, config.hidden, 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), data.train)
    fits = methods(config, posterior)
    names = config.methods or tuple(fits)
    if not set(names) <= set(fits):
        raise ValueError(f"got methods {names}, expected some of {', '.join(fits)}")
    if config.reference is not None and config.reference not in names:
        raise ValueError(f"got reference {config.reference!r}, expected one of {names} or None")
    draws = {name: fits[name]() for name in names}
    predictions = {name: bnn.predict(posterior, own, test) for name, own in draws.items()}
    if "laplace" in draws:
        # Its draws are too wide for the network itself, which is linearised (Immer et al., 2021).
        own = bnn.predict(posterior, draws["laplace"], test, predictive="sampled")
        predictions["laplace, not linearised"] = own
    table = bnn.compare(predictions, test.y, config.reference, draws=draws)
    table = table.drop(columns=["brier", "num_chains", "num_draws"])
    print(table.to_string(float_format="{:.4g}".format))
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    bnn.plots.comparison(table).savefig(config.figure, dpi=150)
    return {f"{name} {score}": value for (name, score), value in table.stack().items()}


def methods(config: Config, posterior: bnn.Posterior) -> Fits:
    """Methods by name, as functions that run them."""
    steps = config.num_steps
    rate, natural = (optax.cosine_decay_schedule(start, steps) for start in (1e-2, 1e-1))
    run = partial(bnn.run, jax.random.key(0), posterior)
    fit = partial(run, num_warmup=steps, batch_size=config.batch_size, thin=0)
    gaussian = partial(fit, num_draws=100)
    once = partial(run, num_draws=100, thin=0)
    descent = bnn.descent(posterior, learning_rate=rate)
    ensemble = cache(lambda: fit(descent, num_chains=config.num_members))
    cycle = max(1, steps // 10)
    sample = partial(run, num_chains=config.num_members, num_draws=10, thin=cycle)

    def walk(method: bnn.Method) -> arviz.InferenceData:
        return sample(method, init=ensemble(), batch_size=config.batch_size)

    sgd = bnn.descent(posterior, optax.sgd(0.01, momentum=0.9))
    return {
        "hmc": lambda: run(
            bnn.hmc(posterior), num_chains=config.num_chains, num_warmup=config.num_warmup,
            num_draws=config.num_draws,
        ),
        "map": lambda: ensemble().isel(chain=[0]),
        "ensemble": ensemble,
        "multiswag": lambda: gaussian(
            bnn.swag(posterior, sgd, collect_from=steps // 2), num_chains=config.num_members
        ),
        "sgld": lambda: walk(bnn.sgld(posterior, 1e-5)),
        "sghmc": lambda: walk(bnn.sghmc(posterior, 1e-5)),
        "cyclical sghmc": lambda: walk(
            bnn.sghmc(posterior, bnn.schedules.cyclical(1e-5, cycle), momentum=0.95)
        ),
        "laplace": lambda: once(bnn.laplace(posterior), init=ensemble().isel(chain=[0])),
        "mfvi": lambda: gaussian(bnn.mfvi(posterior, learning_rate=rate)),
        "mc_dropout": lambda: gaussian(bnn.mc_dropout(posterior, learning_rate=rate)),
        "vogn": lambda: gaussian(bnn.vogn(posterior, natural)),  # natural-gradient rates are larger
        "ivon": lambda: gaussian(bnn.ivon(posterior, natural)),
    }  # fmt: skip


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
