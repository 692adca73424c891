"""A best fit is as confident in a gap between the data as in the middle of them.

Sixty points of Wilson & Izmailov (2020) lie in three groups with gaps between them; the true curve
is known. One small network is fitted in four ways: by Hamiltonian Monte Carlo, which samples the
posterior itself; as a deep ensemble, best fits from 10 starting points; by MultiSWAG, a Gaussian
about each of 5 fits; and by NumPyro's own variational inference on the same model (SVI and
AutoNormal).

Prints, for each, the root mean squared error against the true curve, and the epistemic standard
deviation near the data and in the gaps between them. Plots the four bands in one figure.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import arviz
import jax
import numpy as np
import numpyro
import optax
import tyro
from matplotlib.figure import Figure
from numpyro.infer import SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal

import bnn_ppl as bnn
from bnn_ppl.storage.arviz_versions import draws_of_arrays


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "wilson-1d"  # or izmailov-1d, which has noise 0.02
    hidden: tuple[int, ...] = (50, 50)  # width of each hidden layer
    gain: float = 3.0  # scale of the prior, biases included; at small scales all four look alike
    noise: float = 0.5  # standard deviation of the points about the curve
    num_chains: int = 4  # of HMC, and below
    num_warmup: int = 200
    num_draws: int = 200  # of each chain, and of the variational fit
    num_members: int = 10  # of the ensemble; MultiSWAG has half as many
    num_steps: int = 3000  # of each fit; the variational one takes four times as many
    figure: Path = Path("runs/one_dimensional_regression.png")


def main(config: Config) -> dict[str, float]:
    """Fit the network four ways; scores by "<method> <score>"."""
    data = bnn.data.load(config.data)
    reach = np.abs(data.train.x[:, 0]).max()  # the data hold (x, x^2); the network sees x alone
    train, grid = ((x[:, :1] / reach, y) for x, y in (data.train, data.test))
    net = partial(bnn.nets.MLP, 1, config.hidden, 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(config.gain, config.gain), config.noise)
    posterior = bnn.condition(model, train)
    draws = fits(config, posterior) | {"mean-field": variational(config, posterior, model)}

    scores = {}
    figure = Figure(figsize=(14, 4), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    for ax, (name, own) in zip(panels, draws.items(), strict=True):
        prediction = bnn.predict(posterior, own, grid)
        bnn.plots.predictive_band(prediction, grid[0], ax=ax)
        ax.plot(*train, "k.", *grid, "k--", ms=4)
        ax.set_title(name, loc="left")
        found = scored(prediction, grid, train)
        print(f"{name:12}" + "".join(f"  {score} {value:.3f}" for score, value in found.items()))
        scores |= {f"{name} {score}": value for score, value in found.items()}
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.figure, dpi=150)
    return scores


def fits(config: Config, posterior: bnn.Posterior) -> dict[str, arviz.InferenceData]:
    """Draws of HMC, a deep ensemble and MultiSWAG."""
    run = partial(bnn.run, jax.random.key(0), posterior)
    sample = partial(run, num_warmup=config.num_warmup, num_draws=config.num_draws)
    fit = partial(run, num_warmup=config.num_steps, thin=0)
    adam = bnn.descent(posterior, learning_rate=optax.cosine_decay_schedule(0.01, config.num_steps))
    sgd = bnn.descent(posterior, optax.sgd(0.02, momentum=0.9))
    swag = bnn.swag(posterior, sgd, collect_every=20, collect_from=config.num_steps // 2)
    return {
        "HMC": sample(bnn.hmc(posterior), num_chains=config.num_chains),
        "ensemble": fit(adam, num_chains=config.num_members),
        "MultiSWAG": fit(swag, num_chains=config.num_members // 2, num_draws=20, batch_size=20),
    }


def variational(config: Config, posterior: bnn.Posterior, model: Any) -> arviz.InferenceData:
    """Fit NumPyro's own guide to the model; its draws predict as those of a run do."""
    start = init_to_value(values=posterior.constrain(posterior.init(jax.random.key(0))))
    guide = AutoNormal(model, init_loc_fn=start, init_scale=0.01)
    svi = SVI(model, guide, numpyro.optim.Adam(3e-3), Trace_ELBO())
    fit = svi.run(jax.random.key(1), 4 * config.num_steps, *posterior.data, progress_bar=False)
    sites = guide.sample_posterior(jax.random.key(2), fit.params, sample_shape=(config.num_draws,))
    return draws_of_arrays(
        {"posterior": {site: np.asarray(values)[None] for site, values in sites.items()}}
    )


def scored(prediction: Any, grid: tuple, train: tuple) -> dict[str, float]:
    """Error against the true curve, and widths where points are near and where none are."""
    width = np.sqrt(prediction["epistemic_variance"].values)
    far = np.abs(grid[0] - train[0].T).min(1) > 0.1
    inside = np.abs(grid[0][:, 0]) <= 1
    return {
        "error": bnn.metrics.rmse(prediction, grid[1]),
        "width at data": float(width[~far].mean()),
        "width in gaps": float(width[far & inside].mean()),
    }


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
