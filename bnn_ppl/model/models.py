"""Ready-made models: a random network and the likelihood of its outputs."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model import priors
from bnn_ppl.model.network import Prior, random_network

Model = Callable[..., None]
Noise: TypeAlias = float | dist.Distribution | Literal["heteroscedastic"]


def classifier(net: Any, prior: Prior) -> Model:
    """Build a classification model: the network's outputs are the logits of a categorical.

    Parameters
    ----------
    net
        As in :func:`bnn_ppl.random_network`; maps x (rows, ...) to logits (rows, classes), or
        (rows, height, width, classes) if every pixel has a label.
    prior
        As in :func:`bnn_ppl.random_network`.

    Returns
    -------
    Callable
        ``model(x, y=None)`` with integer classes y, shape (rows,) or (rows, height, width); the
        pixels of a row are one event.
    """

    def model(prior: Prior, x: jax.Array, y: jax.Array | None = None) -> None:
        logits = random_network("net", net, prior)(x)
        with numpyro.plate("data", logits.shape[0]):
            labels = dist.Categorical(logits=logits).to_event(logits.ndim - 2)
            numpyro.sample("y", labels, obs=y)

    return Partial(model, prior)  # whose numbers are arguments of what is compiled from it


def regressor(net: Any, prior: Prior, noise: Noise | None = None) -> Model:
    """Build a regression model: Gaussian noise about the network's output.

    Parameters
    ----------
    net
        As in :func:`bnn_ppl.random_network`; maps x (rows, ...) to (rows, 1), or to (rows, 2) for
        heteroscedastic noise: mean and, through softplus, standard deviation.
    prior
        As in :func:`bnn_ppl.random_network`.
    noise
        Standard deviation of y about the network, in the units of y: a number (known); a
        distribution, its prior (learnt, as the site ``noise``); or ``"heteroscedastic"``, learnt
        for each x. By default learnt under :func:`bnn_ppl.priors.noise`.

    Returns
    -------
    Callable
        ``model(x, y=None)`` with y real, shape (rows,).

    Raises
    ------
    ValueError
        If `noise` is none of these, or the network has the wrong number of outputs.
    """
    noise = priors.noise() if noise is None else noise
    heteroscedastic = isinstance(noise, str) and noise == "heteroscedastic"
    if not heteroscedastic and not isinstance(noise, dist.Distribution):
        if isinstance(noise, str) or callable(noise) or np.ndim(noise):
            raise ValueError(
                f"got noise={noise!r}, expected a number, a distribution or 'heteroscedastic'"
            )
        if not noise > 0:
            raise ValueError(f"got noise={noise}, expected a standard deviation above 0")

    def model(prior: Prior, noise: Any, x: jax.Array, y: jax.Array | None = None) -> None:
        output = _outputs(random_network("net", net, prior)(x), 2 if heteroscedastic else 1)
        if heteroscedastic:
            std = jax.nn.softplus(output[:, 1])
        elif isinstance(noise, dist.Distribution):
            std = numpyro.sample("noise", noise)
        else:
            std = jnp.asarray(noise, float)
        with numpyro.plate("data", output.shape[0]):
            numpyro.sample("y", dist.Normal(output[:, 0], std), obs=y)

    return Partial(model, prior, noise)


def _outputs(output: jax.Array, expected: int) -> jax.Array:
    if output.ndim != 2 or output.shape[1] != expected:
        raise ValueError(
            f"got network outputs of shape {output.shape}, expected (rows, {expected}): "
            "a heteroscedastic regressor needs two outputs, any other regressor one"
        )
    return output
