"""Most methods of the package on the same posterior.

All methods share a network with one hidden layer, a published split of a table, a fan-in prior and
learnt noise. Samplers without a Metropolis test start from members of the ensemble. The settings
are the same for every table and were not tuned to test rows.

Prints one row per method: test RMSE and negative log-likelihood in units of y, the fraction of test
rows covered by the 90 % interval, seconds and gradient evaluations; then the published results of
MC dropout on the same split (Gal & Ghahramani, 2016). Plots the same. ``--methods hmc mfvi`` runs
only these.
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

    data: str = "yacht"  # or energy; others by BNN_PPL_DATA
    split: int = 0
    methods: tuple[str, ...] = ()  # default: all
    hidden: tuple[int, ...] = (50,)  # width of each hidden layer
    num_members: int = 10  # size of the ensembles
    num_steps: int = 5000  # of each fit
    batch_size: int = 32
    num_chains: int = 4  # of samplers
    num_warmup: int = 100  # of exact samplers, which see all rows
    num_draws: int = 100
    figure: Path = Path("runs/uci_table.png")


def main(config: Config) -> dict[str, float]:
    """Run the methods; scores by "<method> <score>"."""
    data = bnn.data.load(config.data, split=config.split)
    net = partial(bnn.nets.MLP, data.train.x.shape[1], config.hidden, 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(2**0.5)), data.train)
    fits = methods(config, posterior)
    names = config.methods or tuple(fits)
    if not set(names) <= set(fits):
        raise ValueError(f"got methods {names}, expected some of {', '.join(fits)}")
    draws = {name: fits[name]() for name in names}
    predictions = {name: bnn.predict(posterior, own, data.test) for name, own in draws.items()}
    if "laplace" in draws:
        # Its draws are too wide for the network itself, which is linearised (Immer et al., 2021).
        own = bnn.predict(posterior, draws["laplace"], data.test, predictive="sampled")
        predictions["laplace, not linearised"] = own
    table = bnn.compare(predictions, data.test.y, draws=draws, scale=data.y_scale)
    table = table[["rmse", "nll", "coverage_90", "seconds", "gradient_evaluations"]]
    print(table.to_string(float_format="{:.4g}".format))
    published = bnn.data.published(config.data, split=config.split)
    if published is not None:
        rmse, nll = published["rmse"], -published["log_likelihood"]
        print(f"published MC dropout on this split: rmse {rmse:.4g}, nll {nll:.4g}")
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    bnn.plots.comparison(table).savefig(config.figure, dpi=150)
    return {f"{name} {score}": value for (name, score), value in table.stack().items()}


def methods(config: Config, posterior: bnn.Posterior) -> Fits:
    """Methods by name, as functions that run them."""
    steps = config.num_steps
    rate, natural = (optax.cosine_decay_schedule(start, steps) for start in (1e-2, 1e-1))
    run = partial(bnn.run, jax.random.key(0), posterior)
    sample = partial(run, num_chains=config.num_chains, num_draws=config.num_draws)
    exact = partial(sample, num_warmup=config.num_warmup)
    fit = partial(run, num_warmup=steps, batch_size=config.batch_size, thin=0)
    gaussian = partial(fit, num_draws=100)
    once = partial(run, num_draws=100, thin=0)
    descent = bnn.descent(posterior, learning_rate=rate)
    ensemble = cache(lambda: fit(descent, num_chains=config.num_members))

    def from_ensemble(method: bnn.Method, **options: int) -> arviz.InferenceData:
        return sample(method, init=ensemble(), thin=max(1, steps // 200), **options)

    walk = partial(from_ensemble, num_warmup=steps // 5, batch_size=config.batch_size)
    sgd = bnn.descent(posterior, optax.sgd(0.01, momentum=0.9))
    return {
        "hmc": lambda: exact(bnn.hmc(posterior)),
        "nuts": lambda: exact(bnn.nuts(posterior)),
        "adjusted_mclmc": lambda: exact(bnn.adjusted_mclmc(posterior)),
        "mclmc": lambda: from_ensemble(bnn.mclmc(posterior), num_warmup=steps),
        "sgld": lambda: walk(bnn.sgld(posterior, 1e-6)),
        "sghmc": lambda: walk(bnn.sghmc(posterior, 1e-6)),
        "sgnht": lambda: walk(bnn.sgnht(posterior, 1e-3)),
        "csgld": lambda: walk(bnn.csgld(posterior, 1e-6, min_energy=-1000, energy_gap=10)),
        "map": lambda: ensemble().isel(chain=[0]),
        "ensemble": ensemble,
        "multiswag": lambda: gaussian(
            bnn.swag(posterior, sgd, collect_from=steps // 2), num_chains=config.num_members // 2
        ),
        "laplace": lambda: once(bnn.laplace(posterior), init=ensemble().isel(chain=[0])),
        "mfvi": lambda: gaussian(bnn.mfvi(posterior, learning_rate=rate)),
        "mc_dropout": lambda: gaussian(bnn.mc_dropout(posterior, learning_rate=rate, rate=0.05)),
        "vogn": lambda: gaussian(bnn.vogn(posterior, natural)),  # natural-gradient rates are larger
        "ivon": lambda: gaussian(bnn.ivon(posterior, natural)),
    }  # fmt: skip


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
