"""Predictions of a network linearised about given weights."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import Partial
from numpyro.distributions import Distribution

from bnn_ppl.analysis.prediction.draw_statistics import CENTRE
from bnn_ppl.model.network import changed_networks
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import Values
from bnn_ppl.storage.inference_data import sites_of, with_points_of

if TYPE_CHECKING:
    import arviz


def linearised(
    posterior: Posterior, values: "Mapping[str, Any] | arviz.InferenceData"
) -> Posterior:
    r"""Give the posterior that predicts with its networks linearised about given weights.

    .. math:: f(x, w) \to f(x, w^*) + J(x) (w - w^*), \qquad J(x) = \partial f(x, w^*) / \partial w

    A Gaussian about a mode with the Gauss-Newton curvature approximates the posterior of this
    linearised network rather than of the original one, in which its draws can predict badly (Immer
    et al., 2021). So draws from :func:`bnn_ppl.laplace` predict like this by default, which is the
    same as::

        predict(linearised(posterior, draws), draws, data)

    Each chain has its own weights w*, and their average is that of a mixture of Laplace
    approximations. Sites outside networks keep their drawn values.

    Parameters
    ----------
    posterior
        The posterior that was approximated.
    values
        The weights w*: a dict of arrays by site, or an InferenceData, of which each chain has its
        fitted mean if there is one, else its only draw.

    Returns
    -------
    Posterior
        The same except for ``predictive(values, x)``; densities remain those of the original
        network. Linearised about several chains, it predicts with draws of as many.

    Raises
    ------
    ValueError
        If a site is missing or has another shape, the network has batch normalisation in train
        mode, or there are several draws without a fitted distribution.
    """
    if hasattr(values, "posterior"):
        posterior = with_points_of(values, posterior)
    statistics = posterior.rows.batch_statistics
    if statistics is not None:
        raise ValueError(
            f"got the BatchNorm {statistics.layers[0]} in train mode to linearise, "
            "expected fixed statistics: pass a trained network after .eval()"
        )
    each = [_checked(posterior.whole, own) for own in _values(posterior.whole, values)]
    centres = {site: jnp.stack([own[site] for own in each]) for site in each[0]}
    # Only this function is captured, not the posterior: `predict` caches programs by it, and the
    # cache must not keep the data alive. The centres are numbers of a program, not constants.
    predictive = Partial(_predictive, posterior.predictive, centres)
    return posterior._replace(
        predictive=predictive,
        prior=posterior.prior._replace(open_scale=None),
        sites=posterior.sites._replace(centres=len(each)),
    )


def _predictive(
    of_network: Callable, centres: Values, values: Values, x: Any, *y: Any
) -> Distribution:
    count = len(next(iter(centres.values())))
    if count > 1 and CENTRE not in values:
        raise ValueError(
            f"got values of a draw for a posterior linearised about {count} chains, expected the "
            "chain too: linearise about one, draws.isel(chain=[0])"
        )
    number = values.get(CENTRE, 0)
    centre = {site: each[number] for site, each in centres.items()}
    own = {site: value for site, value in values.items() if site != CENTRE}
    with changed_networks(_linearised_about(centre)):
        return of_network(own, x, *y)


def _linearised_about(centre: Values) -> Callable[[str, nnx.Module], Callable]:
    def change(name: str, module: nnx.Module) -> Callable:
        graph, weights, rest = nnx.split(module, nnx.Param, ...)  # type: ignore[misc]
        variables: dict[str, tuple[tuple, Any]] = {
            ".".join([name, *map(str, path)]): (path, leaf)
            for path, leaf in nnx.to_flat_state(weights)
        }
        own = {site: leaf[...] for site, (_, leaf) in variables.items()}
        # Weights that are held are where they are.
        at = {site: jnp.asarray(centre.get(site, leaf), leaf.dtype) for site, leaf in own.items()}

        def network(*args: Any, **kwargs: Any) -> Any:
            def outputs(tensors: Values) -> Any:
                leaves = [(path, leaf.replace(tensors[s])) for s, (path, leaf) in variables.items()]
                called: Any = nnx.merge(graph, nnx.from_flat_state(leaves), rest)
                return called(*args, **kwargs)

            away = jax.tree.map(jnp.subtract, own, at)
            return jax.tree.map(jnp.add, *jax.jvp(outputs, (at,), (away,)))

        return network

    return change


def _values(posterior: Posterior, given: Any) -> list[Mapping[str, Any]]:
    """Give the values of each chain's centre."""
    if not hasattr(given, "posterior"):
        return [given]
    draws = sites_of(posterior, given)
    num_chains, num_draws = next(iter(draws.values())).shape[:2]
    if has_centres(posterior, given):
        locs = {site: np.asarray(given["fitted"][f"{site}.loc"]) for site in posterior.sites.names}
        return [
            posterior.constrain({site: jnp.asarray(loc[chain]) for site, loc in locs.items()})
            for chain in range(num_chains)
        ]
    if num_draws != 1:
        raise ValueError(
            f"got {num_draws} draws without a fitted mean to linearise about, expected one of each "
            "chain: select it by draws.isel(draw=[0])"
        )
    only = {site: each.values[:, 0] for site, each in draws.items()}
    return [{site: each[chain] for site, each in only.items()} for chain in range(num_chains)]


def has_centres(posterior: Posterior, draws: Any) -> bool:
    """Whether draws hold the mean of a fitted distribution for each site of a posterior."""
    return "fitted" in draws and all(
        f"{site}.loc" in draws["fitted"] for site in posterior.whole.sites.names
    )


def _checked(posterior: Posterior, values: Mapping[str, Any]) -> Values:
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    for site, expected in jax.eval_shape(posterior.constrain, shapes).items():
        got = jnp.shape(values[site]) if site in values else "nothing"
        if got != expected.shape:
            raise ValueError(
                f"got {got} for the site {site!r}, expected an array {expected.shape}: pass one "
                "draw with all sites of this model"
            )
    return {site: jnp.asarray(values[site]) for site in shapes}
