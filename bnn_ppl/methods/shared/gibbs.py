"""Gibbs draws of the precisions that a hierarchical prior learns."""

from typing import Any

import jax
import jax.numpy as jnp

from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.branches import where_needed

Tree = dict[str, Any]


def check_gibbs(posterior: Posterior, every: int, noise_temperature: Any) -> None:
    """Refuse a posterior whose precisions have no Gamma law given the weights."""
    if every < 1:
        raise ValueError(f"got gibbs_every={every}, expected a whole number of steps from 1 up")
    if not posterior.precisions:
        raise ValueError(
            f"got gibbs_every={every} for a model without learnt precisions, expected some: "
            "use bnn_ppl.priors.hierarchical, or leave gibbs_every out"
        )
    if callable(noise_temperature) or noise_temperature != 1:
        raise ValueError(
            f"got gibbs_every={every} with another noise_temperature than 1, expected 1: the "
            "precisions would be drawn at 1; temper by condition(..., tempered='likelihood')"
        )
    if posterior.temperature != 1 and posterior.tempered == "posterior":
        raise ValueError(
            f"got gibbs_every={every} at temperature={posterior.temperature}, expected 1: the "
            "conditional law is Gamma at 1 only; use tempered='likelihood'"
        )


def precisions_drawn(key: jax.Array, posterior: Posterior, position: Tree, due: jax.Array) -> Tree:
    r"""Draw each precision, if that is due, from its law given the weights it governs.

    With w ~ N(0, 1 / tau) and tau ~ Gamma(a, b) that is Gamma(a + n / 2, b + sum w^2 / 2)
    (Springenberg et al., 2016). Positions hold log tau.
    """

    def drawn(position: Tree) -> Tree:
        new = {}
        for index, (site, prior) in enumerate(posterior.precisions.items()):
            weights = position[prior.governs]
            shape = prior.concentration + weights.size / 2
            rate = prior.rate + jnp.sum(weights**2) / 2
            new[site] = jax.random.loggamma(jax.random.fold_in(key, index), shape) - jnp.log(rate)
        return position | new

    return where_needed(due, drawn, lambda position: position, position)
