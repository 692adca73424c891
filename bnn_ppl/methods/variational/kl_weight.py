"""The weight of the divergence from the prior in an evidence lower bound."""

import jax

from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import Batch, Position, Terms
from bnn_ppl.runtime.checks import check_positive


def check_kl_weight(kl_weight: float | Schedule, finds_rate: bool) -> bool:
    """Give whether the weight may differ from 1, and refuse one that does without a given rate."""
    if not callable(kl_weight):
        check_positive("kl_weight", kl_weight)
    weighs = callable(kl_weight) or kl_weight != 1
    if weighs and finds_rate:
        raise ValueError(
            "got kl_weight without learning_rate, expected both: without a rate, training ends "
            "when the objective stops improving, which a weight that changes would deceive"
        )
    return weighs


def weighted_gradient(
    posterior: Posterior, position: Position, batch: Batch, kl_weight: jax.Array | None
) -> tuple[Position, tuple[jax.Array, dict]]:
    """Give the gradient of the log-density of :func:`likelihood_weighted` terms.

    With it come the log-density without that weight, and the Gaussian priors.
    """

    def density(position: Position) -> tuple[jax.Array, tuple]:
        terms = posterior.density.terms(position, batch)
        weighted = posterior.density.total(likelihood_weighted(terms, kl_weight), batch)
        return weighted, (posterior.density.total(terms, batch), terms.normals)

    return jax.grad(density, has_aux=True)(position)


def likelihood_weighted(terms: Terms, kl_weight: jax.Array | None) -> Terms:
    """Divide the likelihood by the weight of the divergence: the bound over that weight.

    Natural gradients are of the bound divided by the weight, which has the same maximum.
    """
    if kl_weight is None:
        return terms
    return terms._replace(log_likelihood=terms.log_likelihood / kl_weight)
