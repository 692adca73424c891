"""Evaluate a NumPyro model: its sites, their values and the terms of its log-density."""

import math
from collections.abc import Callable
from functools import partial, reduce, wraps
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import ExpandedDistribution, biject_to
from numpyro.primitives import Messenger

from bnn_ppl.model.network import active_changes
from bnn_ppl.model.normalisation.batch_norm import counted_rows
from bnn_ppl.model.prior.site_priors import POINT
from bnn_ppl.model.recipe import arrays_of
from bnn_ppl.model.rows.features import Features, raw_inputs, with_features
from bnn_ppl.model.rows.microbatch import by_chunk, fitting_microbatch
from bnn_ppl.model.rows.streamed_rows import StreamedRows, summed_over_chunks
from bnn_ppl.runtime.machines.devices import num_row_shards, products_in

Array = jax.Array
Position = dict[str, Array]
Values = dict[str, Array]
Data = tuple[Any, Array]
Batch = Data | tuple[Any, Array, Array]

OF_ROWS = "of_rows"  # a key of the dict `infer` of a factor with a value for each row
_WRAPPED = dist.Independent | ExpandedDistribution


class Terms(NamedTuple):
    """What a log-density is the sum of; ``posterior.density.total`` adds it up.

    Attributes
    ----------
    log_priors
        Log prior density of the constrained value, by site: an array of summands, one for each
        element of the value where its elements are independent.
    log_jacobians
        Log-determinant of the Jacobian of the map from the position to the constrained value, by
        site: an array of summands.
    log_likelihood
        Log-likelihood by row, 0 for padding. Of a stream's rows, their sum and what it has been
        rounded by, (2,).
    normals
        Mean and standard deviation of the prior, by site, where it is Gaussian given the other
        sites; they broadcast to the site.
    row_scale
        What each row's log-likelihood was multiplied by (``numpyro.handlers.scale``; 0 where
        ``numpyro.handlers.mask`` hides the row), (rows,); None where nothing scales it.
    """

    log_priors: dict[str, Array]
    log_jacobians: dict[str, Array]
    log_likelihood: Array
    normals: dict[str, tuple[Array, Array]]
    row_scale: Array | None = None

    @property
    def log_prior(self) -> Array:
        """Log prior density of all sites together."""
        return _sum(self.log_priors)

    @property
    def log_jacobian(self) -> Array:
        """Log-determinant of the Jacobian for all sites together."""
        return _sum(self.log_jacobians)

    @property
    def prior_alone(self) -> "Terms":
        """The same without a likelihood: their total is the prior's part of the log-density."""
        return self._replace(log_likelihood=jnp.zeros_like(self.log_likelihood))

    def less(self, others: "Terms") -> "Terms":
        """Subtract the terms at another position, each from its own.

        Of many weights and rows, the two sums are so large that single precision loses their
        difference.
        """
        mine, theirs = (each._replace(normals={}, row_scale=None) for each in (self, others))
        return jax.tree.map(jnp.subtract, mine, theirs)


def _sum(by_site: dict[str, Array]) -> Array:
    return jnp.asarray(sum((jnp.sum(summands) for summands in by_site.values()), 0.0))


def likelihood_alone(log_likelihood: Array) -> Terms:
    """Give terms with no prior: their total is the likelihood's part of the log-density."""
    return Terms({}, {}, log_likelihood, {})


def evaluated(
    model: Callable,
    microbatch: int | None,
    position: Position,
    batch: Batch | StreamedRows,
    *,
    automatic: bool = False,
) -> Terms:
    """Evaluate the terms of the log-density, `microbatch` rows at a time.

    If that number was chosen automatically, for rows of x, another is chosen for their features.
    """
    if isinstance(batch, StreamedRows):
        return _of_stream(model, microbatch, position, batch)
    x, y, *mask = batch
    terms = None
    if isinstance(x, Features) and not active_changes():  # a tap sees the layers of all of x
        terms = _of_features(model, microbatch, automatic, position, x, y)
    if terms is None:
        with counted_rows(mask[0] if mask else None):
            terms = _of_inputs(model, microbatch, position, raw_inputs(x), y)
    if mask:
        terms = terms._replace(log_likelihood=jnp.where(mask[0], terms.log_likelihood, 0.0))
    return terms


def _of_stream(
    model: Callable, microbatch: int | None, position: Position, batch: StreamedRows
) -> Terms:
    arrays, with_arrays = arrays_of(model)

    def by_row(position: Position, arrays: list[Array], rows: Batch) -> Array:
        return evaluated(with_arrays(arrays), microbatch, position, rows).log_likelihood

    # The examples' own likelihood is not used, and the compiler drops it.
    terms = _of_inputs(model, None, position, batch.x, batch.y)
    rows = summed_over_chunks(by_row, position, arrays, batch.chunks)
    return terms._replace(log_likelihood=rows, row_scale=None)


def terms_of(model: Callable, later: tuple[Position, Array], x: Any) -> Terms:
    """Evaluate the terms at (position, y) and x, formed as :mod:`bnn_ppl.model.rows.features`."""
    return _of_inputs(model, None, later[0], x, later[1])


def _of_inputs(
    model: Callable, microbatch: int | None, position: Position, x: Any, y: Array
) -> Terms:
    trace = traced(model, x, y, substitute_fn=_constrained(position))
    log_jacobians = {site: _log_jacobian(trace[site], position[site]) for site in position}
    log_priors = {site: _summands(trace[site]) for site in position}
    log_priors |= {site["name"]: log_prob(site) for site in factors(trace, of_rows=False)}
    rows = _by_row(trace)
    if not active_changes() and _is_fewer(microbatch, len(rows)):  # a tap sees all rows at once
        # The rows just traced are then not used, and the compiler drops them.
        values = {site: trace[site]["value"] for site in position}
        rows = by_chunk(lambda x, y: _by_row(traced(model, x, y, data=values)), microbatch, x, y)
    normals = {site: _normal(trace[site]) for site in position}
    known = {site: normal for site, normal in normals.items() if normal is not None}
    return Terms(log_priors, log_jacobians, rows, known, _row_scale(trace))


def _of_features(
    model: Callable,
    microbatch: int | None,
    automatic: bool,
    position: Position,
    x: Features,
    y: Array,
) -> Terms | None:
    of_all = partial(terms_of, model)
    terms = with_features(of_all, position, y, x)

    def rows_of(data: tuple[Features, Array], position: Position) -> Array:
        found = with_features(of_all, position, data[1], data[0])
        # A program for very few rows can be another one.
        found = of_all((position, data[1]), raw_inputs(data[0])) if found is None else found
        return found.log_likelihood

    if terms is None or not _is_fewer(microbatch, len(y)):
        return terms
    if automatic:
        microbatch = fitting_microbatch(rows_of, (x, y), position)
    if _is_fewer(microbatch, len(y)):
        rows = by_chunk(lambda x, y: rows_of((x, y), position), microbatch, x, y)
        terms = terms._replace(log_likelihood=rows)
    return terms


def _is_fewer(microbatch: int | None, num_rows: int) -> TypeGuard[int]:
    """Whether a device is to work on fewer rows at a time than it has."""
    return microbatch is not None and num_rows // num_row_shards(num_rows) > microbatch


def traced(model: Callable, x: Any, y: Any, key: Array | None = None, **substituted: Any) -> dict:
    """Run the model and give its sites by name."""
    x = raw_inputs(x)
    if key is None and y is None:
        key = jax.random.key(0)  # the observed site is then sampled; its value is never used
    if key is not None:
        model = handlers.seed(model, key)
    if substituted:
        model = handlers.substitute(model, **substituted)
    with _Isolated():
        return handlers.trace(model).get_trace(x, y)


def in_precision(precision: str | None, function: Callable) -> Callable:
    """Have a function's products in a precision, wherever it is called or traced."""

    @wraps(function)
    def pinned(*args: Any, **kwargs: Any) -> Any:
        with products_in(precision):
            return function(*args, **kwargs)

    return pinned


class _Isolated(Messenger):
    """Hide a model from the NumPyro program around it, if there is one.

    Like ``handlers.block``, but keys are hidden too: drawn inside a compiled function, they would
    leave a tracer in a seed handler outside.
    """

    def process_message(self, message: dict) -> None:
        message["stop"] = True


# --- positions and values


def constrained_values(model: Callable, position: Position, data: Batch) -> Values:
    """Map a position to the sites' values on their own support."""
    trace = traced(model, *data[:2], substitute_fn=_constrained(position))
    return {site: trace[site]["value"] for site in position}


def _constrained(position: Position) -> Callable:
    """Substitute each site's constrained value; a support may depend on sites sampled before."""

    def value(site: dict) -> Array | None:
        if site["name"] not in position:
            return None
        return biject_to(site["fn"].support)(position[site["name"]])

    return value


def _log_jacobian(site: dict, unconstrained: Array) -> Array:
    """Give the log-determinant of the map to a site's value; 0 for a point: it has no density."""
    if site["infer"].get(POINT):
        return jnp.zeros(())
    return biject_to(site["fn"].support).log_abs_det_jacobian(unconstrained, site["value"])


def unconstrained(trace: dict) -> Position:
    """Give the position at which the latent sites have the values of a trace."""
    # The run's float type, whatever the initialisers were written in.
    return {
        site["name"]: biject_to(site["fn"].support).inv(site["value"]).astype(float)
        for site in latent_sites(trace)
    }


# --- sites


def latent_sites(trace: dict) -> list[dict]:
    """Give the sample sites that are not observed."""
    sites = (site for site in trace.values() if site["type"] == "sample")
    return [site for site in sites if not site["is_observed"]]


def observed_sites(trace: dict) -> list[dict]:
    """Give the sample sites that are observed, without factors."""
    sites = (site for site in trace.values() if site["type"] == "sample")
    return [site for site in sites if site["is_observed"] and not is_factor(site)]


def factors(trace: dict, *, of_rows: bool) -> list[dict]:
    """Give the factors that are marked as those of rows, or all others, which are of the prior."""
    found = (site for site in trace.values() if site["type"] == "sample" and is_factor(site))
    return [site for site in found if bool(site["infer"].get(OF_ROWS)) == of_rows]


def is_factor(site: dict) -> bool:
    """Whether a site is a ``numpyro.factor``, which has a density and no value."""
    return isinstance(unmasked(site["fn"]), dist.Unit)


def log_prob(site: dict) -> Array:
    """Give the log-density of a site's value, times the site's scale."""
    log_prob = site["fn"].log_prob(site["value"])
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _summands(site: dict) -> Array:
    """Give the log-density of a site's value by element, where its elements are independent."""
    distribution, scale = site["fn"], site["scale"]
    if scale is not None and jnp.ndim(scale) > 0:  # of the shape of a batch, not of the elements
        return log_prob(site)
    while isinstance(distribution, dist.Independent):
        distribution = distribution.base_dist
    return log_prob({**site, "fn": distribution})


def _by_row(trace: dict) -> Array:
    """Log-likelihood by row."""
    likelihood = [*observed_sites(trace), *factors(trace, of_rows=True)]
    by_site = (log_prob(site) for site in likelihood)
    return reduce(jnp.add, (rows.reshape(rows.shape[0], -1).sum(1) for rows in by_site))


def _row_scale(trace: dict) -> Array | None:
    """Give the scale of each row; of several likelihoods one that they share, without masks."""
    likelihood = [*observed_sites(trace), *factors(trace, of_rows=True)]
    first = likelihood[0]
    if len(likelihood) == 1:
        return _scale_of_rows(first)
    scale, shape = first["scale"], first["fn"].batch_shape
    if scale is None or any(site["scale"] is not scale for site in likelihood):
        return None
    if not shape or _has_columns(scale, shape):  # outputs of a row have scales of their own
        return None
    return jnp.broadcast_to(scale, shape).reshape(shape[0], -1)[:, 0]


def _has_columns(scale: Any, shape: tuple[int, ...]) -> bool:
    """Whether a scale differs between the outputs of a row, as it broadcasts to a batch shape."""
    whole = (1,) * (len(shape) - jnp.ndim(scale)) + jnp.shape(scale)
    return math.prod(whole[1:]) > 1


def _scale_of_rows(observed: dict) -> Array | None:
    scale, shape = observed["scale"], observed["fn"].batch_shape
    mask = _mask_of_rows(observed["fn"])
    if scale is None:
        return mask
    if not shape or _has_columns(scale, shape):
        raise ValueError(
            f"got a scale of shape {jnp.shape(scale)} for y of batch shape {shape}, expected one "
            "for all outputs of a row: scale the plate of rows, of shape (rows, 1) there"
        )
    scale = jnp.broadcast_to(scale, shape).reshape(shape[0], -1)[:, 0]
    return scale if mask is None else scale * mask


def _mask_of_rows(distribution: dist.Distribution) -> Array | None:
    """Give 0 for rows with all outputs masked, 1 for others; None without a mask."""
    rows = distribution.batch_shape[:1]
    while isinstance(distribution, _WRAPPED | dist.MaskedDistribution):
        if isinstance(distribution, dist.MaskedDistribution) and rows:
            mask = jnp.broadcast_to(distribution._mask, distribution.batch_shape)
            by_row = mask.reshape(*mask.shape[:1], -1).any(-1)
            return jnp.broadcast_to(by_row, rows).astype(float)
        distribution = distribution.base_dist
    return None


def _normal(site: dict) -> tuple[Array, Array] | None:
    prior = innermost(site["fn"])
    if type(prior) is not dist.Normal or site["scale"] is not None:
        return None
    return prior.loc, prior.scale


def innermost(distribution: dist.Distribution) -> dist.Distribution:
    """Strip plates and event dimensions: the distribution whose parameters have their own shape."""
    while isinstance(distribution, _WRAPPED):
        distribution = distribution.base_dist
    return distribution


def unmasked(distribution: dist.Distribution) -> dist.Distribution:
    """Strip masks too, as :func:`innermost` strips plates and event dimensions."""
    while isinstance(distribution, _WRAPPED | dist.MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def element_support(support: Any) -> Any:
    """Give the support of one element of an event."""
    while isinstance(support, dist.constraints.independent):
        support = support.base_constraint
    return support
