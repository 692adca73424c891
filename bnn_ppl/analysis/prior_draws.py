"""Draws from a model's prior, in the form of a run's draws."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import check_no_factors, check_proper_priors
from bnn_ppl.model.trace import Data, Values
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.storage.inference_data import inference_data

if TYPE_CHECKING:
    import arviz


def prior_draws(
    key: jax.Array, posterior: Posterior, num_draws: int, num_chains: int = 1
) -> "arviz.InferenceData":
    """Draw every site from the model's prior: what the model believes before it sees y.

    :func:`bnn_ppl.predict` and :func:`bnn_ppl.function_draws` accept the result like the draws of a
    run, and return the prior predictive distribution and functions drawn from the prior.

    Parameters
    ----------
    key
        From ``jax.random.key``. The values of a draw do not depend on the number of draws.
    posterior
        From :func:`bnn_ppl.condition`. The draws are from the prior that the model states: neither
        temperature nor the networks' initialisers affect them.
    num_draws
        Number of draws per chain.
    num_chains
        Number of chains; all draws are independent.

    Returns
    -------
    arviz.InferenceData
        The group ``posterior`` (named as in a run) with every site (chain, draw, ...) on its own
        support, including the scales of hierarchical priors.

    Raises
    ------
    TypeError
        If key or posterior are of another type.
    ValueError
        If a count is below 1, or a prior is improper or has factors, scales or masks.
    """
    check_arguments(key=key, posterior=posterior)
    check_count("num_draws", num_draws)
    check_count("num_chains", num_chains)

    def draw(chain: jax.Array, index: jax.Array, data: Data) -> Values:
        own_key = jax.random.fold_in(jax.random.fold_in(key, chain), index)
        return posterior.prior.draw(own_key, data)

    check_no_factors(posterior, "prior_draws")
    check_proper_priors(posterior.prior.draw, posterior.rows.examples)
    # The data are an argument: captured, they would become a constant of the program.
    every_chain = jax.jit(
        lambda data: jax.lax.map(
            lambda chain: jax.lax.map(lambda i: draw(chain, i, data), jnp.arange(num_draws)),
            jnp.arange(num_chains),
        )
    )
    values = jax.tree.map(np.array, every_chain(posterior.rows.examples))
    facts = {"method": "prior", "seed": np.asarray(jax.random.key_data(key)).tolist()}
    return inference_data(values, {}, None, facts)
