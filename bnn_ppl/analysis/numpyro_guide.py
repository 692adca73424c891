"""A fitted Gaussian as a NumPyro guide."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.inference_data import with_points_of

if TYPE_CHECKING:
    import arviz


def guide(
    posterior: Posterior, draws: "arviz.InferenceData", chain: int = 0
) -> Callable[..., None]:
    """Make a NumPyro guide from the Gaussian that a chain of :func:`bnn_ppl.mfvi` fitted.

    For ``numpyro.infer.Predictive(model, guide=guide, ...)``, ``Trace_ELBO().loss(...)`` and
    anything else that takes a model and its guide. It has no parameters left to learn.

    Parameters
    ----------
    posterior
        The posterior that was approximated.
    draws
        From a method whose ``fitted`` group holds independent Gaussians: mfvi, vogn, ivon.
    chain
        The chain whose Gaussian to use.

    Returns
    -------
    Callable
        ``guide(x, y=None)``, which ignores the model's arguments.

    Raises
    ------
    ValueError
        If the draws have no such group.
    """
    method = draws.attrs.get("method", "another method")
    if draws.attrs.get("draws_from") != "gaussian" or "fitted" not in draws:
        raise ValueError(
            f"got draws of {method}, which fits no independent Gaussians, expected those of mfvi, "
            "vogn or ivon: use the draws themselves"
        )
    posterior = with_points_of(draws, posterior)
    fitted = draws["fitted"].isel(chain=chain)
    gaussians = {
        site: [jnp.asarray(fitted[f"{site}.{part}"].values) for part in ("loc", "scale")]
        for site in posterior.sites.names
    }
    few = jax.tree.map(lambda leaf: leaf[:2], posterior.rows.examples)  # BatchNorm takes no one row

    def fitted_gaussian(x: Any, y: Any = None) -> None:
        del x, y
        position = {
            site: numpyro.sample(
                f"{site}.unconstrained",
                dist.Normal(loc, scale).to_event(),
                infer={"is_auxiliary": True},
            )
            for site, (loc, scale) in gaussians.items()
        }
        values = posterior.constrain(position)
        log_jacobian = posterior.density.terms(position, few).log_jacobian
        for index, (site, value) in enumerate(values.items()):
            # The Jacobian of all sites together; it makes no difference which site carries it.
            density = -log_jacobian if index == 0 else jnp.zeros(())
            numpyro.sample(site, dist.Delta(value, density, event_dim=jnp.ndim(value)))

    return fitted_gaussian
