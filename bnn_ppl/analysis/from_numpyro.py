"""Draws that NumPyro made of a model here, as those that a run gives."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.inference_data import inference_data, recorded_classes, with_constants

if TYPE_CHECKING:
    import arviz


def from_numpyro(posterior: Posterior, samples: Any) -> "arviz.InferenceData":
    """Make draws of what NumPyro's MCMC, or a guide fitted by its SVI, gave for the same model.

    For :func:`bnn_ppl.predict`, :func:`bnn_ppl.compare`, :func:`bnn_ppl.diagnostics.summary` and
    everything else that takes draws. Any guide will do, normalising flows among them::

        guide = AutoIAFNormal(model)  # or AutoBNAFNormal, AutoMultivariateNormal, ...
        fitted = SVI(model, guide, Adam(0.01), Trace_ELBO()).run(key, 5000, x, y)
        samples = guide.sample_posterior(key, fitted.params, sample_shape=(1000,))
        draws = bnn_ppl.from_numpyro(posterior, samples)

    Parameters
    ----------
    posterior
        From :func:`bnn_ppl.condition`, of the model that was sampled and of its data.
    samples
        A ``numpyro.infer.MCMC`` that has run; or a dict by site of constrained values, (draw, ...)
        as ``guide.sample_posterior``, ``Predictive`` and ``mcmc.get_samples()`` give them, or
        (chain, draw, ...) as ``mcmc.get_samples(group_by_chain=True)`` does. Entries that are not
        sites of the posterior, such as a guide's own latent variable, are left out.

    Returns
    -------
    arviz.InferenceData
        Groups ``posterior`` (chain, draw, ...), one chain unless `samples` tell them apart,
        ``observed_data``, and of an MCMC ``sample_stats`` with its scalar extra fields, under
        ArviZ's names; the attribute ``inference_library`` is "numpyro".

    Raises
    ------
    TypeError
        If posterior or samples are of another type.
    ValueError
        If a site is missing, there are no draws, sites differ in their numbers of draws, or a shape
        is not that of the posterior's site; or if the posterior has points that are not held.

    Notes
    -----
    NumPyro knows nothing of the posterior's temperature: it samples the model as it is. Draws of a
    guide are independent, and R-hat of them says nothing.
    """
    check_arguments(posterior=posterior)
    posterior = posterior.whole
    points = posterior.sites.points
    if points:
        raise ValueError(
            f"got a posterior whose points {', '.join(points)} have no values, expected "
            "them held: bnn_ppl.fit_points gives such a posterior"
        )
    values, stats = _by_chain(samples)
    draws = inference_data(
        _sites(posterior, values),
        stats,
        None if isinstance(posterior.data, Stream) else np.asarray(posterior.data[1]),
        {
            "inference_library": "numpyro",
            "inference_library_version": version("numpyro"),
            "method": "numpyro",
            "draws_from": "chain",
            **recorded_classes(posterior),
        },
    )
    return with_constants(
        draws, {site: np.asarray(value) for site, value in posterior.sites.held.items()}
    )


def _by_chain(samples: Any) -> tuple[Mapping[str, Any], dict[str, np.ndarray]]:
    """Give the samples of an MCMC and its statistics, by chain; a dict as it is."""
    if isinstance(samples, Mapping):
        return samples, {}
    if not (hasattr(samples, "get_samples") and hasattr(samples, "get_extra_fields")):
        raise TypeError(
            f"got samples of type {type(samples).__name__}, expected a dict of arrays by site, as "
            "guide.sample_posterior gives, or a numpyro.infer.MCMC"
        )
    values = samples.get_samples(group_by_chain=True)
    fields = samples.get_extra_fields(group_by_chain=True)
    stats = {_NAMES.get(name, name): np.asarray(field) for name, field in fields.items()}
    energy = {"lp": -stats["lp"]} if "lp" in stats else {}  # NumPyro has its negative
    return values, {name: s for name, s in (stats | energy).items() if s.ndim == 2}


_NAMES = {
    "accept_prob": "acceptance_rate",
    "potential_energy": "lp",
    "num_steps": "n_steps",
    "adapt_state.step_size": "step_size",
}


def _sites(posterior: Posterior, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Give the posterior's sites, (chain, draw, ...); refuse values of another model."""
    shapes = posterior.sites.value_shapes()
    missing = [site for site in shapes if site not in values]
    if missing:
        raise ValueError(
            f"got samples of {', '.join(map(str, values)) or 'nothing'}, expected "
            f"{', '.join(missing)} too: pass samples of the posterior's model"
        )
    arrays = {site: np.asarray(values[site]) for site in shapes}
    leading = {site: a.shape[: max(0, a.ndim - len(shapes[site]))] for site, a in arrays.items()}
    for site, array in arrays.items():
        own = leading[site]
        if len(own) not in (1, 2) or array.shape[len(own) :] != shapes[site]:
            raise ValueError(
                f"got samples of {site} of shape {array.shape}, expected (draw, ...) or (chain, "
                f"draw, ...) before {shapes[site]}, as in this posterior: pass samples of its model"
            )
    first = next(iter(shapes))
    for site, own in leading.items():
        if own != leading[first] or 0 in own:
            raise ValueError(
                f"got {own} samples of {site} and {leading[first]} of {first}, expected as many "
                "draws of each site, at least one: pass samples of one run"
            )
    alone = len(leading[first]) == 1
    return {site: array[None] if alone else array for site, array in arrays.items()}
