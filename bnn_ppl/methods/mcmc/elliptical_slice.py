"""Elliptical slice sampling."""

import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from bnn_ppl.methods.defaults import EXACT, SAMPLED
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.model.posterior import Posterior, with_prior_read
from bnn_ppl.model.trace import Array, Batch, Position


@describe(
    EXACT,
    gives="exact draws, for a few parameters",
    cost="values on all rows, no gradients, a few per step",
    counts=SAMPLED._replace(num_draws=1000, thin=10),
    length="300 warm-up steps, 1,000 draws 10 steps apart",
)
def elliptical_slice(posterior: Posterior) -> Method:
    r"""Elliptical slice sampling: slices along ellipses through the position and a Gaussian draw.

    With :math:`\nu \sim N(0, \Sigma)`, where :math:`\Sigma` has the prior's variances, an angle
    :math:`\theta` is drawn uniformly, and redrawn from a shrinking bracket until the point

    .. math:: w' = w \cos\theta + \nu \sin\theta

    lies on the slice, :math:`\pi(w') / N(w'; 0, \Sigma) > u\, \pi(w) / N(w; 0, \Sigma)` with u
    uniform on (0, 1) (Murray, Adams & MacKay, 2010; the kernel is BlackJAX's). There is nothing to
    tune. Any density :math:`\pi` is sampled exactly (Nishihara, Murray & Adams, 2014), but the
    ratio is the likelihood only if the prior is Gaussian with mean 0. The method is meant for that
    case, with few parameters whose prior is about as wide as their posterior, as in a subspace
    (:func:`bnn_ppl.subspace`).

    Parameters
    ----------
    posterior
        Posterior to sample.
    """
    from blackjax.mcmc import elliptical_slice as kernels

    posterior = with_prior_read(posterior)

    def standardised(position: Position) -> Position:
        return {site: w / posterior.prior.std[site] for site, w in position.items()}

    def log_normal(position: Position) -> Array:
        return -0.5 * optax.tree.norm(standardised(position), squared=True)

    def init(key: Array, position: Position, batch: Batch) -> kernels.EllipSliceState:
        del key
        return kernels.EllipSliceState(position, posterior.logdensity(position, batch))

    def step(
        key: Array, state: kernels.EllipSliceState, batch: Batch
    ) -> tuple[kernels.EllipSliceState, dict[str, Array]]:
        stds = {s: jnp.full_like(w, posterior.prior.std[s]) for s, w in state.position.items()}
        variances = ravel_pytree(stds)[0] ** 2
        kernel = kernels.build_kernel(variances, jnp.zeros_like(variances))
        start = state.position
        lp, change = posterior.logdensity_from(start, batch)

        def log_ratio(w: Position) -> Array:
            """Give the change from the start, where a large density would round off log(u)."""
            ratio = change(w) - (log_normal(w) - log_normal(start))
            ratio = jnp.nan_to_num(ratio, nan=-jnp.inf)  # the kernel would accept NaN
            # Where the bracket has shrunk to the start, rounding must not reject that.
            same = [jnp.all(w[site] == start[site]) for site in start]
            return jnp.where(jnp.all(jnp.stack(same)), 0.0, ratio)

        there = kernels.EllipSliceState(start, jnp.zeros_like(lp))
        there, info = kernel(key, there, log_ratio)
        lp += there.logdensity + log_normal(there.position) - log_normal(start)
        return there._replace(logdensity=lp), step_info(lp, info.subiter)

    return Method(
        init,
        step,
        lambda key, state: state.position,
        settings={"method": "elliptical_slice"},
        logdensity=posterior.logdensity,
        all_rows=True,
    )
