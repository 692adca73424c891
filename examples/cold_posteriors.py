"""Do posteriors colder than the Bayesian one predict better? Exact sampling can tell.

A temperature below 1 sharpens the posterior. Where it predicts better (Wenzel et al., 2020),
something is wrong with the model, or with the sampler, if that is biased. So here HMC, which is
exact, samples (p(D|w) p(w))^(1/T) at several T for a small network on a few hundred digits. With
``--tempered likelihood`` only the likelihood is tempered: p(D|w)^(1/T) p(w).

Prints one row per temperature: accuracy, negative log-likelihood and calibration error on the test
digits, agreement with the predictions at T = 1, and the median R-hat of the predictions (cold
posteriors mix less well); then the temperature with the lowest negative log-likelihood. Plots the
scores against the temperature. ``bnn-ppl sweep temperature`` does the same as a command.
"""

import os
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal

import jax
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "digits"  # or another set of images
    subset: int = 200  # training images
    temperatures: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)  # 1 must be among them
    tempered: Literal["posterior", "likelihood"] = "posterior"
    hidden: tuple[int, ...] = (20,)  # width of each hidden layer
    gain: float = 4.0  # scale of the prior, divided by the square root of the fan-in
    num_chains: int = 4
    num_warmup: int = 100
    num_draws: int = 100
    figure: Path = Path("runs/cold_posteriors.png")


def main(config: Config) -> dict[str, float]:
    """Sample at each temperature; scores by "<score> at <temperature>"."""
    data = bnn.data.load(config.data, subset=config.subset)
    num_pixels = prod(data.train.x.shape[1:])
    net = partial(bnn.nets.MLP, num_pixels, config.hidden, data.num_classes)
    model = bnn.models.classifier(net, bnn.priors.fan_in(config.gain))
    predictions, functions = {}, {}
    for temperature in config.temperatures:
        posterior = bnn.condition(
            model, data.train, temperature=temperature, tempered=config.tempered
        )
        draws = bnn.run(
            jax.random.key(0),
            posterior,
            bnn.hmc(posterior),
            num_chains=config.num_chains,
            num_warmup=config.num_warmup,
            num_draws=config.num_draws,
        )
        name = f"{temperature:g}"
        predictions[name] = bnn.predict(posterior, draws, data.test)
        functions[name] = bnn.function_draws(posterior, draws, data.test.x)

    table = bnn.compare(predictions, data.test.y, "1", function_rhat=functions)
    table = table[["accuracy", "nll", "ece", "agreement", "rhat_median"]]
    print(table.to_string(float_format="{:.3f}".format))
    print(f"lowest negative log-likelihood at T = {table['nll'].idxmin()}")
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    figure = bnn.plots.sweep(table.assign(temperature=config.temperatures), ["temperature"])
    figure.savefig(config.figure, dpi=150)
    return {f"{score} at {at}": value for (at, score), value in table.stack().items()}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
