"""Compare a prior matched to a Gaussian process with the usual one: RMSE, NLL, R-hat on tables.

For each split, a network of 50 tanh units is sampled by nuts at its defaults under the Gaussian
prior whose scale the evidence finds, and under that of ``bnn.gp_prior`` for the kernel of a
Gaussian process whose length scales scikit-learn fits to the training rows; the process itself
stands beside them.

    python benchmarks/gp_prior.py --data yacht boston --splits 2
"""

import argparse
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

import bnn_ppl as bnn

_MOST_ROWS = 500  # that the process is fitted to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["yacht", "boston"])
    parser.add_argument("--splits", type=int, default=2)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    rows = []
    for name in args.data:
        for split in range(args.splits):
            for way, found in answers(bnn.data.load(name, split=split)).items():
                rows.append({"data": name, "split": split, "prior": way, **found})
                print(rows[-1], flush=True)
    table = pandas.DataFrame(rows).groupby(["data", "prior"], sort=False)
    print(table.mean(numeric_only=True).drop(columns="split").to_markdown(floatfmt=".3g"))


def answers(data: Any) -> dict[str, dict[str, float]]:
    x, y = map(np.asarray, data.train)
    process = fitted_process(x[:_MOST_ROWS], y[:_MOST_ROWS])
    mean, std = process.predict(data.test.x, return_std=True)
    found = {"the process": scored(mean, norm(mean, std).logpdf(data.test.y), data)}
    net = partial(bnn.nets.MLP, x.shape[1], (50,), 1, activation=jnp.tanh)

    def posterior_at(scale: float) -> bnn.Posterior:
        return posterior(bnn.priors.fan_in(scale))

    def posterior(prior: Any) -> bnn.Posterior:
        return bnn.condition(bnn.models.regressor(net, prior, bnn.priors.noise()), (x, y))

    key = jax.random.key(0)
    kernel = process.kernel_.k1  # without the noise
    found["usual"] = sampled(posterior_at(bnn.prior_scale(key, posterior_at)), data)
    found["gp_prior"] = sampled(posterior(bnn.gp_prior(key, net, x, kernel)), data)
    return found


def fitted_process(x: np.ndarray, y: np.ndarray) -> GaussianProcessRegressor:
    smooth = kernels.ConstantKernel(1.0) * kernels.RBF(np.ones(x.shape[1]), (0.05, 100))
    return GaussianProcessRegressor(smooth + kernels.WhiteKernel(0.1, (1e-5, 1))).fit(x, y)


def sampled(posterior: bnn.Posterior, data: Any) -> dict[str, float]:
    began = time.process_time()
    draws = bnn.run(jax.random.key(0), posterior, bnn.nuts(posterior), num_chains=4, progress=False)
    seconds = time.process_time() - began
    prediction = bnn.predict(posterior, draws, data.test)
    functions = bnn.function_draws(posterior, draws, data.test.x)
    rhat = float(np.quantile(bnn.diagnostics.rhat(functions)["mean"].values, 0.95))
    mean, log_prob = (prediction[name].values for name in ("mean", "log_prob"))
    return scored(mean, log_prob, data) | {"rhat": rhat, "cpu_seconds": seconds}


def scored(mean: np.ndarray, log_prob: np.ndarray, data: Any) -> dict[str, float]:
    """Give the errors in the units of y."""
    error = np.sqrt(np.mean((mean.ravel() - np.ravel(data.test.y)) ** 2)) * data.y_scale
    return {"rmse": float(error), "nll": float(np.log(data.y_scale) - log_prob.mean())}


if __name__ == "__main__":
    main()
