"""The network that learns to predict as draws do, and how far it is from them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import xlogy

from bnn_ppl.analysis.prediction.per_draw import Array, Tree, each_output
from bnn_ppl.model.conditioning import condition
from bnn_ppl.model.posterior import Posterior

Target = dict[str, Any]  # "probs", or "mean" and "variance", by row


def student_of_numbers(posterior: Posterior) -> Posterior:
    """Give the model of a mean and a standard deviation, each as the model's mean.

    Its sites are two sets of those of the posterior, ``mean.*`` and ``log_sd.*``, and ``log_sd``,
    which is added to the second's mean.
    """
    rows = posterior.rows.examples
    return condition(_moments(posterior), rows, precision=posterior.density.precision)


def _moments(posterior: Posterior) -> Callable:
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))

    def mean_of(name: str, x: Tree) -> Array:
        position = {
            site: numpyro.sample(f"{name}.{site}", _normal(posterior.prior.std[site], leaf.shape))
            for site, leaf in shapes.items()
        }
        with numpyro.handlers.block():  # sites of the posterior are none of this model
            return posterior.predictive(posterior.constrain(position), x).mean

    def model(x: Tree, y: Array | None = None) -> None:
        level = numpyro.sample("log_sd", dist.Normal(0.0, 1.0))
        mean, log_sd = mean_of("mean", x), level + mean_of("log_sd", x)
        law = dist.Normal(mean, jnp.exp(log_sd)).to_event(mean.ndim - 1)
        with numpyro.plate("rows", len(mean)):
            numpyro.sample("y", law, obs=y)

    return model


def _normal(std: Any, shape: tuple[int, ...]) -> dist.Distribution:
    return dist.Normal(0.0, std).expand(shape).to_event(len(shape))


def divergence(law: dist.Distribution, target: Target) -> Array:
    """Give KL(target || law) in nats, by row.

    Of the probabilities of classes (Balan et al., 2015, whose loss is this but for a constant), or
    of Gaussians: the law of a row is Gaussian, and of those closest to any target whose mean and
    variance it has. Of several outputs it is the sum.
    """
    if "probs" in target:
        probs = target["probs"]
        return jnp.sum(xlogy(probs, probs) - probs * _log_probs(law, probs.shape[-1]), -1)
    own = each_output(law)
    ratio = target["variance"] / own.variance
    distance = (target["mean"] - own.mean) ** 2 / own.variance
    each = 0.5 * (ratio - 1 - jnp.log(ratio) + distance)
    return each.reshape(len(each), -1).sum(1)


def _log_probs(law: dist.Distribution, num_classes: int) -> Array:
    """Give log probabilities (rows, classes), also of those that are 0 in single precision."""

    def of_class(label: Array) -> Array:
        return law.log_prob(jnp.full(law.shape(), label))

    return jax.vmap(of_class, out_axes=-1)(jnp.arange(num_classes))


def distances(target: Target, found: Target) -> dict[str, float]:
    """Give the average KL, and the largest changes of probabilities or of mean and sd.

    The latter in standard deviations of the target.
    """
    if "probs" in target:
        law: dist.Distribution = dist.Categorical(probs=jnp.asarray(found["probs"]))
        changes = {"probability": np.abs(found["probs"] - target["probs"])}
    else:
        law = dist.Normal(found["mean"], np.sqrt(found["variance"]))
        sd = np.sqrt(target["variance"])
        changes = {
            "mean": np.abs(found["mean"] - target["mean"]) / sd,
            "sd": np.abs(np.sqrt(found["variance"]) / sd - 1),
        }
    average = {"kl": float(divergence(law, target).mean())}
    return average | {name: float(values.max()) for name, values in changes.items()}
