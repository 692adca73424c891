"""Predictions of a network linearised about given weights."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from numpyro.distributions import Distribution

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
    et al., 2021). So predict with draws from :func:`bnn_ppl.laplace` by::

        predict(linearised(posterior, draws), draws, data)

    Sites outside networks keep their drawn values.

    Parameters
    ----------
    posterior
        The posterior that was approximated.
    values
        The weights w*: a dict of arrays by site, or an InferenceData with one chain, whose fitted
        mean is used if there is one, else its only draw.

    Returns
    -------
    Posterior
        The same except for ``predictive(values, x)``; densities remain those of the original
        network.

    Raises
    ------
    ValueError
        If a site is missing or has another shape, the network has batch normalisation in train
        mode, or there are several chains or, without a fitted
        distribution, several draws.
    """
    if hasattr(values, "posterior"):
        posterior = with_points_of(values, posterior)
    if posterior.batch_statistics is not None:
        raise ValueError(
            f"got the BatchNorm {posterior.batch_statistics.layers[0]} in train mode to linearise, "
            "expected fixed statistics: pass a trained network after .eval()"
        )
    centre = _checked(posterior.whole, _values(posterior.whole, values))
    # Only this function is captured, not the posterior: `predict` caches programs by it, and the
    # cache must not keep the data alive.
    of_network = posterior.predictive

    def predictive(values: Values, x: Any) -> Distribution:
        with changed_networks(_linearised_about(centre)):
            return of_network(values, x)

    return posterior._replace(predictive=predictive, open_scale=None)


def for_prediction(
    posterior: Posterior, draws: "arviz.InferenceData", predictive: str | None = None
) -> Posterior:
    """Linearise for draws of a single Laplace approximation of all weights; others predict as are.

    With `predictive` "linearised" other draws are refused; with "sampled" nothing is linearised.
    """
    method, num_chains = draws.attrs.get("method"), draws["posterior"].sizes["chain"]
    single = is_single_laplace(draws)
    if predictive not in (None, "sampled") and not single:
        raise ValueError(
            f"got predictive={predictive!r} for {method} with {num_chains} chains, expected "
            "laplace with one: use 'sampled'"
        )
    return linearised(posterior, draws) if single and predictive != "sampled" else posterior


def is_single_laplace(draws: "arviz.InferenceData") -> bool:
    """Whether draws are of a single Laplace approximation of all weights."""
    of_all_weights = draws.attrs.get("method") == "laplace" and "subspace" not in draws.attrs
    return of_all_weights and draws["posterior"].sizes["chain"] == 1


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


def _values(posterior: Posterior, given: Any) -> Mapping[str, Any]:
    if not hasattr(given, "posterior"):
        return given
    sites = list(posterior.prior_std)
    if "fitted" in given and f"{sites[0]}.loc" in given["fitted"]:
        _check_count("chains", given["fitted"].sizes["chain"])
        locs = {site: jnp.asarray(given["fitted"][f"{site}.loc"].values[0]) for site in sites}
        return posterior.constrain(locs)
    draws = sites_of(posterior, given)
    for name, count in zip(("chains", "draws"), draws[sites[0]].shape[:2], strict=True):
        _check_count(name, count)
    return {site: values.values[0, 0] for site, values in draws.items()}


def _check_count(name: str, count: int) -> None:
    if count != 1:
        raise ValueError(
            f"got {count} {name} to linearise about, expected one: select it by "
            "draws.isel(chain=[0], draw=[0])"
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
