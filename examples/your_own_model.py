"""A few wrong rows in a table distort a network with Gaussian noise, and its intervals.

On the yacht table a fraction of the training targets is shuffled, as by a slip in a spreadsheet;
the test rows stay correct. Two models are sampled by HMC:

- the ready-made one, with Gaussian noise;
- one written here as a plain NumPyro function, with Student-t noise whose degrees of freedom are
  learnt, so that outliers count little.

Any NumPyro function ``model(x, y=None)`` with one observed site and independent rows will do; the
network in it is one line, and the rest of the package takes the model as it is.

Prints, for both, the RMSE and negative log-likelihood of the correct test rows in units of y, and
how well the chains agree (95 % quantile of the R-hat of the predictions); and the degrees of
freedom.
"""

import os
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "yacht"  # or another table
    split: int = 0
    share_wrong: float = 0.05  # fraction of the training rows whose targets are shuffled
    hidden: tuple[int, ...] = (50,)  # width of each hidden layer
    num_chains: int = 4
    num_warmup: int = 100
    num_draws: int = 100


def student_t_regressor(net: partial, prior: bnn.priors.SitePrior) -> bnn.models.Model:
    """Build a network regression with heavy-tailed noise."""

    def model(x: jax.Array, y: jax.Array | None = None) -> None:
        f = bnn.random_network("net", net, prior)
        scale = numpyro.sample("scale", bnn.priors.noise())
        above_one = numpyro.sample("df_above_one", dist.Gamma(2.0, 0.1))  # so that y has a mean
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.StudentT(1 + above_one, f(x)[:, 0], scale), obs=y)

    return model


def main(config: Config) -> dict[str, float]:
    """Sample both models; scores by "<model> <score>"."""
    data = bnn.data.load(config.data, split=config.split)
    train = data.train.x, exchanged(data.train.y, config.share_wrong)
    net = partial(bnn.nets.MLP, train[0].shape[1], config.hidden, 1)
    models = {
        "Gaussian": bnn.models.regressor(net, bnn.priors.fan_in(2**0.5)),
        "Student-t": student_t_regressor(net, bnn.priors.fan_in(2**0.5)),
    }
    scores: dict[str, float] = {}
    for name, model in models.items():
        posterior = bnn.condition(model, train)
        draws = bnn.run(
            jax.random.key(0),
            posterior,
            bnn.hmc(posterior),
            num_chains=config.num_chains,
            num_warmup=config.num_warmup,
            num_draws=config.num_draws,
        )
        prediction = bnn.predict(posterior, draws, data.test)
        rhat = bnn.diagnostics.rhat(bnn.function_draws(posterior, draws, data.test.x))
        scores |= {
            f"{name} RMSE": bnn.metrics.rmse(prediction, data.test.y, scale=data.y_scale),
            f"{name} NLL": bnn.metrics.nll(prediction, data.test.y, scale=data.y_scale),
            f"{name} R-hat": float(rhat["mean"].quantile(0.95)),
        }
    scores["degrees of freedom"] = 1 + float(draws.posterior["df_above_one"].mean())
    for score, value in scores.items():
        print(f"{score:20} {value:.3f}")
    return scores


def exchanged(y: np.ndarray, share: float) -> np.ndarray:
    """Shuffle the targets of a fraction of the rows."""
    random = np.random.default_rng(0)
    rows = random.choice(len(y), round(share * len(y)), replace=False)
    wrong = y.copy()
    wrong[rows] = y[np.roll(rows, 1)]
    return wrong


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
