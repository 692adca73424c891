"""Condition a NumPyro model on data: pure functions over unconstrained positions."""

import math
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from numpyro import handlers
from numpyro.distributions import ExpandedDistribution, biject_to
from numpyro.infer import init_to_median, init_to_uniform
from numpyro.primitives import Messenger

from bnn_ppl.model.network import active_changes
from bnn_ppl.runtime.devices import memory_limit, num_row_shards

if TYPE_CHECKING:
    pass

Array = jax.Array
Position = dict[str, Array]
Values = dict[str, Array]
Data = tuple[Any, Array]
Batch = Data | tuple[Any, Array, Array]

_NUM_STARTS = 16  # draws from the prior, of which one is a chain's start
_MEMORY_SHARE = 1 / 4  # of a device, for the intermediate results of one likelihood


class Terms(NamedTuple):
    """What a log-density is the sum of.

    Attributes
    ----------
    log_priors
        By site, of the constrained values.
    log_jacobian
        Of the map from the position to the constrained values.
    log_likelihood
        By row, 0 for padding.
    normals
        Mean and standard deviation of the prior, by site, where it is Gaussian given the other
        sites; they broadcast to the site.
    """

    log_priors: dict[str, Array]
    log_jacobian: Array
    log_likelihood: Array
    normals: dict[str, tuple[Array, Array]]


class Posterior(NamedTuple):
    """A model conditioned on data. Build it with :func:`condition`.

    A *position* is a dict from site name to unconstrained array; *values* are the same sites on
    their own support. A *batch* is a pair ``(x, y)`` of rows, or a triple ``(x, y, mask)``: rows
    where the mask is False are padding. They must be copies of real rows, so that the model is
    finite there, and count for nothing.

    Attributes
    ----------
    init
        ``key, data=data -> position``: a network from its own initialisers, every other site from
        its prior: one of 16 draws, chosen by its likelihood.
    from_prior
        ``key, data=data -> values``: every site drawn from the model's prior, which no temperature
        changes.
    log_prior
        ``position -> scalar``: log prior density of the constrained values.
    log_likelihood
        ``position, batch -> (rows,)``: log likelihood of each row; 0 for padding.
    logdensity
        ``position, batch -> scalar``: the tempered log posterior density that samplers see, the
        likelihood scaled from the batch to all rows. Unnormalised.
    terms
        ``position, batch -> Terms``: the parts of that sum.
    combined
        ``log_prior, log_likelihood (rows,), batch -> scalar``: the parts put together, the
        likelihood scaled to all rows, each part tempered.
    constrain
        ``position, data=data -> values``.
    unconstrain
        ``values, data=data -> position``.
    predictive
        ``values, x -> Distribution``: the observed site's distribution at inputs x.
    check
        ``position -> None``: raises ValueError naming the sites and rows where the log-density is
        not finite.
    prior_std
        Dict from site to scalar: the standard deviation of the prior as tempered (root mean square
        over the site's elements; times sqrt(T) where T divides the prior), the natural unit of
        length for samplers. 1 where it is infinite or unknown, and for constrained sites.
    precisions
        Dict from the site of a precision to its prior, for sites marked by
        ``infer={"precision_of": site}``, as :func:`bnn_ppl.priors.hierarchical` does.
    value_shapes
        ``() -> dict``: the shape of each site's value.
    data
        The pair (x, y) conditioned on.
    num_rows
        Rows in `data`.
    num_weights
        Unconstrained dimensions.
    temperature
        T; 1 is the Bayes posterior.
    tempered
        ``"posterior"`` or ``"likelihood"``.
    microbatch
        Rows that a device works on at a time; None for all of a batch.
    """

    init: Callable[..., Position]
    from_prior: Callable[..., Values]
    log_prior: Callable[[Position], Array]
    log_likelihood: Callable[[Position, Batch], Array]
    logdensity: Callable[[Position, Batch], Array]
    terms: Callable[[Position, Batch], Terms]
    combined: Callable[[Array, Array, Batch], Array]
    constrain: Callable[..., Values]
    unconstrain: Callable[..., Position]
    predictive: Callable[[Values, Any], dist.Distribution]
    check: Callable[[Position], None]
    prior_std: dict[str, Array]
    precisions: dict[str, "Precision"]
    value_shapes: Callable[[], dict[str, tuple[int, ...]]]
    data: Data
    num_rows: int
    num_weights: int
    temperature: float
    tempered: str
    microbatch: int | None

    def __repr__(self) -> str:
        """Say what it is of, without the data."""
        sizes = f"{self.num_rows} rows, {self.num_weights} unknowns in {len(self.prior_std)} sites"
        return f"Posterior({sizes}, T = {self.temperature:g})"


class Precision(NamedTuple):
    """Gamma prior of the precision of a site that is Gaussian about 0."""

    governs: str
    concentration: Array
    rate: Array


def condition(
    model: Callable[..., Any],
    data: Any,
    *,
    temperature: float = 1.0,
    tempered: Literal["posterior", "likelihood"] = "posterior",
    microbatch: int | None = None,
) -> Posterior:
    """Condition a NumPyro model on data.

    Parameters
    ----------
    model
        ``model(x, y=None)`` with exactly one observed site, whose rows are conditionally
        independent given the other sites. With or without a network.
    data
        A pair ``(x, y)``: y an array (rows, ...), x an array or a tree of arrays (rows, ...).
    temperature
        T > 0. Below 1 a cold, above 1 a warm posterior.
    tempered
        What T divides: ``"posterior"`` gives ``(p(D|w) p(w))^(1/T)``, ``"likelihood"`` gives
        ``p(D|w)^(1/T) p(w)``.
    microbatch
        Rows that a device works on at a time, for data whose gradient does not fit in memory: the
        likelihood of a larger batch is computed in chunks of so many rows, each computed again in
        the backward pass, and is the same to rounding. By default all rows, unless all that the
        likelihood computes from them, stored side by side, would take more than a quarter of the
        device's memory (host devices share the computer's); then as many rows as take a quarter.
        Methods that work layer by layer (taps) see each batch whole.

    Returns
    -------
    Posterior
        Pure functions of unconstrained positions; see :class:`Posterior`.

    Raises
    ------
    TypeError
        If `model` is no function, or a network.
    ValueError
        If the data hold NaN or infinite values or x and y differ in length; if the model has no or
        several observed sites, discrete latent sites, subsampling plates, unsampled parameters or
        mutable state, or a likelihood that is not one value a row; if y is not of the shape and
        kind of its distribution; if T is not a finite number above 0 or `microbatch` not a whole
        one.

    Notes
    -----
    The log-density is ``(log p(w) + N/|batch| sum_i log p(y_i | x_i, w)) / T`` plus the
    log-Jacobian of the map from the position to w, which is not tempered: T tempers the density of
    w itself.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"got temperature={temperature}, expected a finite number above 0")
    if tempered not in ("posterior", "likelihood"):
        raise ValueError(f"got tempered={tempered!r}, expected 'posterior' or 'likelihood'")
    if microbatch is not None and not (isinstance(microbatch, int | np.integer) and microbatch > 0):
        raise ValueError(
            f"got microbatch={microbatch!r}, expected a whole number of rows from 1 up: "
            "leave it out to have one chosen"
        )
    _check_model(model)
    x, y = _checked_data(data)
    num_rows = y.shape[0]
    observed = _checked_structure(model, x, y)
    trace = partial(_trace, model, substitute_fn=init_to_median())  # of scales above a weight
    prior_std, precisions = jax.jit(lambda *args: _about_priors(trace(*args)))(
        x, y, jax.random.key(0)
    )
    widening = temperature**0.5 if tempered == "posterior" else 1.0

    # Callers that compile these pass the data in, or they would be constants of the program.
    def start(key: Array, data: Batch) -> Position:
        return _unconstrained(_trace(model, *data[:2], key, substitute_fn=_initial_value))

    shapes = jax.eval_shape(start, jax.random.key(0), (x, y))
    rows_at_a_time = microbatch or _fitting_microbatch(model, shapes, x, y)
    terms_now = partial(_terms, model, rows_at_a_time)
    terms_once = jax.jit(terms_now)  # traced once for all that is compiled of it

    def all_terms(position: Position, batch: Batch) -> Terms:
        # What changes networks may also read their values, in this very trace.
        return terms_now(position, batch) if active_changes() else terms_once(position, batch)

    def log_prior(position: Position) -> Array:
        return _total(all_terms(position, (x, y)).log_priors)

    def log_likelihood(position: Position, batch: Batch) -> Array:
        return all_terms(position, batch).log_likelihood

    def combined(log_prior: Array, log_likelihood: Array, batch: Batch) -> Array:
        log_likelihood = num_rows / _size(batch) * jnp.sum(log_likelihood)
        if tempered == "likelihood":
            return log_prior + log_likelihood / temperature
        return (log_prior + log_likelihood) / temperature

    def logdensity(position: Position, batch: Batch) -> Array:
        terms = all_terms(position, batch)
        log_prior = _total(terms.log_priors)
        return combined(log_prior, terms.log_likelihood, batch) + terms.log_jacobian

    starts_from_prior = _has_sites_from_prior(model, x, y)

    def init(key: Array, data: Batch = (x, y)) -> Position:
        if not starts_from_prior:
            return start(key, data)

        # A draw from a wide prior can lie where the density overflows, from where no sampler comes
        # back. One of several, chosen by its likelihood, is nearly one of the posterior (sampling
        # importance resampling; Rubin, 1987). The one whose log-likelihood plus Gumbel noise is
        # largest is chosen with probability proportional to the likelihood.
        def keep_larger(best: tuple, one: tuple) -> tuple:
            key, noise = one
            position = start(key, data)
            score = jnp.sum(log_likelihood(position, data))
            score = jnp.nan_to_num(score, nan=-jnp.inf) + noise
            larger = score >= best[1]
            return jax.tree.map(partial(jnp.where, larger), (position, score), best), None

        *several, choice_key = jax.random.split(key, _NUM_STARTS + 1)
        candidates = jnp.stack(several), jax.random.gumbel(choice_key, (_NUM_STARTS,))
        nowhere = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (best, _), _ = jax.lax.scan(keep_larger, (nowhere, -jnp.inf), candidates)
        return best

    def from_prior(key: Array, data: Batch = (x, y)) -> Values:
        trace = _trace(model, *data[:2], key)
        return {site: trace[site]["value"] for site in shapes}

    def constrain(position: Position, data: Batch = (x, y)) -> Values:
        trace = _trace(model, *data[:2], substitute_fn=_constrained(position))
        return {site: trace[site]["value"] for site in position}

    def unconstrain(values: Values, data: Batch = (x, y)) -> Position:
        return _unconstrained(_trace(model, *data[:2], data=values))

    @cache
    def value_shapes() -> dict[str, tuple[int, ...]]:
        return {site: value.shape for site, value in jax.eval_shape(constrain, shapes).items()}

    def predictive(values: Values, x: Any) -> dist.Distribution:
        return _trace(model, x, None, data=values)[observed]["fn"]

    def check(position: Position) -> None:
        _check_finite(all_terms(position, (x, y)), observed)

    return Posterior(
        init=init,
        from_prior=from_prior,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        logdensity=logdensity,
        terms=all_terms,
        combined=combined,
        constrain=constrain,
        unconstrain=unconstrain,
        predictive=predictive,
        check=check,
        prior_std={site: widening * std for site, std in prior_std.items()},
        precisions={
            site: Precision(governs, *gamma) for (site, governs), gamma in precisions.items()
        },
        value_shapes=value_shapes,
        data=(x, y),
        num_rows=num_rows,
        num_weights=sum(leaf.size for leaf in shapes.values()),
        temperature=float(temperature),
        tempered=tempered,
        microbatch=None if rows_at_a_time is None else int(rows_at_a_time),
    )


def checked_rows(posterior: Posterior, data: Any) -> Data:
    """Give rows (x, y) as arrays; refuse any that are not like those conditioned on."""
    rows = _checked_data(data)
    for name, new, seen in zip("xy", rows, posterior.data, strict=True):
        got, expected = (
            [f"{leaf.shape[1:]} {leaf.dtype}" for leaf in jax.tree.leaves(tree)]
            for tree in (new, seen)
        )
        if got != expected:
            raise ValueError(
                f"got {name} with rows of {', '.join(got)}, expected {', '.join(expected)} as in "
                "the data conditioned on: cut both from one array"
            )
    return rows


# --- evaluating the model


def _trace(model: Callable, x: Any, y: Any, key: Array | None = None, **substituted: Any) -> dict:
    if key is None and y is None:
        key = jax.random.key(0)  # the observed site is then sampled; its value is never used
    if key is not None:
        model = handlers.seed(model, key)
    if substituted:
        model = handlers.substitute(model, **substituted)
    with _Apart():
        return handlers.trace(model).get_trace(x, y)


class _Apart(Messenger):
    """Hide a model from the NumPyro program around it, if there is one.

    As ``handlers.block``, and keys are hidden too: drawn inside what is compiled, they would leave
    a seed outside with a tracer.
    """

    def process_message(self, message: dict) -> None:
        message["stop"] = True


def _terms(model: Callable, microbatch: int | None, position: Position, batch: Batch) -> Terms:
    x, y, *mask = batch
    log_jacobians: list[Array] = []
    trace = _trace(model, x, y, substitute_fn=_constrained(position, log_jacobians.append))
    log_priors = {site: jnp.sum(_log_prob(trace[site])) for site in position}
    rows = _rows(trace)
    if active_changes():  # a tap sees all rows at once
        microbatch = None
    if microbatch is not None and len(rows) // num_row_shards(len(rows)) > microbatch:
        # The rows just traced are then not used, and the compiler drops them.
        values = {site: trace[site]["value"] for site in position}
        rows = _by_chunk(lambda x, y: _rows(_trace(model, x, y, data=values)), microbatch, x, y)
    rows = jnp.where(mask[0], rows, 0.0) if mask else rows
    normals = {site: _normal(trace[site]) for site in position}
    known = {site: normal for site, normal in normals.items() if normal is not None}
    return Terms(log_priors, jnp.asarray(sum(log_jacobians, 0.0)), rows, known)


def _normal(site: dict) -> tuple[Array, Array] | None:
    prior = innermost(site["fn"])
    if type(prior) is not dist.Normal or site["scale"] is not None:
        return None
    return prior.loc, prior.scale


def innermost(distribution: dist.Distribution) -> dist.Distribution:
    """Give what plates and events are made of, with parameters of its own shape."""
    while isinstance(distribution, dist.Independent | ExpandedDistribution):
        distribution = distribution.base_dist
    return distribution


def _rows(trace: dict) -> Array:
    """Log-likelihood by row."""
    (observed,) = [site for site in _sample_sites(trace) if site["is_observed"]]
    rows = _log_prob(observed)
    return rows.reshape(rows.shape[0], -1).sum(1)


def _size(batch: Batch) -> int | Array:
    """Rows without the padding."""
    return jnp.sum(batch[2]) if len(batch) == 3 else batch[1].shape[0]


def _constrained(position: Position, record: Callable = lambda log_jacobian: None) -> Callable:
    """Substitute each site's constrained value; a support may depend on sites sampled before."""

    def value(site: dict) -> Array | None:
        if site["name"] not in position:
            return None
        unconstrained = position[site["name"]]
        transform = biject_to(site["fn"].support)
        constrained = transform(unconstrained)
        record(jnp.sum(transform.log_abs_det_jacobian(unconstrained, constrained)))
        return constrained

    return value


def _unconstrained(trace: dict) -> Position:
    # The run's float type, whatever the initialisers were written in.
    return {
        site["name"]: biject_to(site["fn"].support).inv(site["value"]).astype(float)
        for site in _sample_sites(trace)
        if not site["is_observed"]
    }


def _initial_value(site: dict) -> Array | None:
    if site["type"] != "sample" or site["is_observed"]:
        return None
    if "initial_value" in site["infer"]:
        return site["infer"]["initial_value"]
    try:
        key = site["kwargs"]["rng_key"]
        return site["fn"](rng_key=key, sample_shape=site["kwargs"]["sample_shape"])
    except NotImplementedError:  # an improper prior cannot be sampled
        return init_to_uniform(site)


def _has_sites_from_prior(model: Callable, x: Any, y: Any) -> bool:
    """Whether a site's start is drawn from its prior rather than given by a network."""
    found: list[str] = []

    def inspect(x: Any, y: Any) -> None:
        trace = _trace(model, x, y, jax.random.key(0), substitute_fn=_initial_value)
        latent = [site for site in _sample_sites(trace) if not site["is_observed"]]
        found.extend(site["name"] for site in latent if "initial_value" not in site["infer"])

    jax.eval_shape(inspect, x, y)
    return bool(found)


def _sample_sites(trace: dict) -> list[dict]:
    return [site for site in trace.values() if site["type"] == "sample"]


def _log_prob(site: dict) -> Array:
    log_prob = site["fn"].log_prob(site["value"])
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _total(log_probs: dict[str, Array]) -> Array:
    return jnp.asarray(sum(log_probs.values(), 0.0))


def _about_priors(trace: dict) -> tuple[dict, dict]:
    """Give standard deviations by site, and Gammas by site and the site they govern."""
    latent = [site for site in _sample_sites(trace) if not site["is_observed"]]
    std = {site["name"]: _site_std(site["fn"]) for site in latent}
    gammas = {
        (site["name"], site["infer"]["precision_of"]): (site["fn"].concentration, site["fn"].rate)
        for site in latent
        if "precision_of" in site["infer"]
    }
    return std, gammas


def _site_std(prior: dist.Distribution) -> Array:
    try:
        std = jnp.sqrt(jnp.mean(prior.variance)).astype(float)
    except NotImplementedError:
        return jnp.ones(())
    real = _of_each(prior.support) is dist.constraints.real
    return jnp.where(jnp.isfinite(std) & (std > 0), std, 1.0) if real else jnp.ones(())


def _of_each(support: Any) -> Any:
    """Give the support of one element of an event."""
    while isinstance(support, dist.constraints.independent):
        support = support.base_constraint
    return support


# --- rows in chunks


def _by_chunk(function: Callable, size: int, x: Any, y: Array) -> Array:
    """Map rows to a number each, on every device `size` of its own rows at a time.

    Only the results are kept; a gradient computes each chunk once more. The last chunk reaches back
    over rows already done, so that all are of one size without a padded copy of the data.
    """
    num_shards = num_row_shards(len(y))
    num = len(y) // num_shards
    shards = jax.tree.map(lambda leaf: leaf.reshape(num_shards, num, *leaf.shape[1:]), (x, y))
    starts = jnp.array([*range(0, num - size, size), num - size])

    @partial(jax.checkpoint, prevent_cse=False)  # the loop prevents it already
    def rows_from(start: Array) -> Array:
        def chunk(leaf: Array) -> Array:
            leaf = jax.lax.dynamic_slice_in_dim(leaf, start, size, axis=1)
            return leaf.reshape(num_shards * size, *leaf.shape[2:])

        return function(*jax.tree.map(chunk, shards)).reshape(num_shards, size)

    chunks = jnp.moveaxis(jax.lax.map(rows_from, starts), 0, 1)
    done = chunks[:, :-1].reshape(num_shards, -1)
    rest = chunks[:, -1, size - (num - done.shape[1]) :]
    return jnp.concatenate([done, rest], axis=1).reshape(len(y))


def _fitting_microbatch(model: Callable, shapes: Position, x: Any, y: Array) -> int | None:
    """Rows whose intermediate results take a share of the memory; None if all rows do not."""
    limit = memory_limit()
    if limit is None:
        return None

    def rows(data: Data, position: Position) -> Array:
        return _terms(model, None, position, data).log_likelihood

    jaxpr = jax.make_jaxpr(rows)((x, y), shapes).jaxpr
    used = _bytes_from(jaxpr, jaxpr.invars[: len(jax.tree.leaves((x, y)))])
    fitting = _MEMORY_SHARE * limit / max(1, used)
    return None if fitting >= 1 else max(1, int(fitting * len(y)))


def _bytes_from(jaxpr: Jaxpr, sources: Iterable[Var]) -> int:
    """Bytes of all that a program computes from some of its variables."""
    derived, total = set(sources), 0
    for equation in jaxpr.eqns:
        if not any(isinstance(v, Var) and v in derived for v in equation.invars):
            continue
        derived.update(equation.outvars)
        inner = [program for value in equation.params.values() for program in _programs(value)]
        times = equation.params.get("length", 1)  # of a scan
        total += times * sum(_bytes_from(program, program.invars) for program in inner)
        if not inner:
            results: list[Any] = [variable.aval for variable in equation.outvars]
            total += sum(result.size * result.dtype.itemsize for result in results)
    return total


def _programs(parameter: Any) -> list[Jaxpr]:
    several = parameter if isinstance(parameter, tuple | list) else [parameter]
    programs = [p.jaxpr if isinstance(p, ClosedJaxpr) else p for p in several]
    return [program for program in programs if isinstance(program, Jaxpr)]


# --- refusing what would fail silently


def _checked_data(data: Any) -> Data:
    try:
        x, y = data
    except (TypeError, ValueError):
        raise ValueError(
            f"got data of type {type(data).__name__}, expected a pair (x, y): "
            "pass data.train, or a tuple of arrays"
        ) from None
    leaves = jax.tree.leaves(x)
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in [*leaves, y]}
    if len(lengths) != 1 or lengths & {None, 0} or not leaves:
        shapes = dict.fromkeys(str(np.shape(leaf)) for leaf in leaves)
        raise ValueError(
            f"got x of {' and '.join(shapes) or 'nothing'} and y of {np.shape(y)}, expected arrays "
            "(no lists) with as many rows, at least one: one row of x for each of y"
        )
    for name, array in [*(("x", leaf) for leaf in leaves), ("y", y)]:
        _refuse_nonfinite(name, np.asarray(array))
    return jax.tree.map(_as_array, x), _as_array(y)


def _refuse_nonfinite(name: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "biufc":
        raise ValueError(f"got {name} of dtype {array.dtype}, expected numbers: encode it first")
    bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))
    if bad.size:
        raise ValueError(
            f"got NaN or infinite values in {bad.size} of {len(array)} rows of {name} "
            f"(first rows {bad[:5].tolist()}), expected finite numbers: drop or impute them"
        )


def _as_array(array: Any) -> Array:
    array = np.asarray(array)
    return jnp.asarray(array, float if array.dtype.kind == "f" else None)


def _check_model(model: Any) -> None:
    """Refuse what is no model, networks among it: they have no prior yet."""
    function = model.func if isinstance(model, partial) else model
    if not callable(function) or isinstance(function, type | nnx.Module):
        name = function.__name__ if isinstance(function, type) else type(function).__name__
        raise TypeError(
            f"got {name} as model, expected a function model(x, y=None), such as "
            "bnn_ppl.models.classifier(net, prior) gives"
        )


def _checked_structure(model: Callable, x: Any, y: Array) -> str:
    """Trace the model without computing anything and return the name of its observed site."""
    found: dict[str, Any] = {}

    def inspect(x: Any, y: Any) -> None:
        trace = _trace(model, x, y, jax.random.key(0), substitute_fn=_initial_value)
        for site in trace.values():
            _refuse_site(site)
        sites = _sample_sites(trace)
        latent = [site["name"] for site in sites if not site["is_observed"]]
        observed = [site for site in sites if site["is_observed"]]
        _refuse_count(latent, [site["name"] for site in observed])
        _refuse_observed(observed[0])
        found["name"] = observed[0]["name"]
        found["shape"] = jnp.shape(_log_prob(observed[0]))
        if observed[0]["value"] is y:  # as it is, and not a function of it
            found["support"] = observed[0]["fn"].support

    jax.eval_shape(inspect, x, y)
    _refuse_numbers(found["name"], y, found.get("support"))
    if found["shape"][:1] != y.shape[:1]:
        raise ValueError(
            f"got a log-likelihood of shape {found['shape']} at site {found['name']!r} for "
            f"{y.shape[0]} rows, expected one value a row: rows must be independent given the "
            "latent sites; put the site in numpyro.plate('data', len(x))"
        )
    return found["name"]


def _refuse_site(site: dict) -> None:
    name, kind = site["name"], site["type"]
    if kind == "plate" and site["args"][1] is not None and site["args"][1] < site["args"][0]:
        raise ValueError(
            f"got the subsampling plate {name!r}, expected whole plates: a batch is already scaled "
            "to all rows; drop subsample_size"
        )
    if kind == "mutable":
        raise ValueError(
            f"got the mutable state {name!r}, expected a model of sample sites alone: use layers "
            "without running statistics (LayerNorm, GroupNorm)"
        )
    if kind == "param" and jax.tree.leaves(site["value"]):
        raise ValueError(
            f"got the unsampled parameter {name!r}, expected a prior on everything: "
            "use numpyro.sample, or random_network for a net"
        )
    if kind != "sample" or site["is_observed"]:
        return
    if site["fn"].support.is_discrete:
        raise ValueError(
            f"got the discrete latent site {name!r}, expected continuous ones: sum it out of the "
            "likelihood (numpyro.distributions.MixtureSameFamily)"
        )


def _refuse_count(latent: list[str], observed: list[str]) -> None:
    if not observed:
        raise ValueError(
            f"got a model that observes nothing (its sites: {', '.join(latent) or 'none'}), "
            "expected one observed site: numpyro.sample('y', ..., obs=y)"
        )
    if len(observed) > 1:
        raise ValueError(
            f"got {len(observed)} observed sites ({', '.join(observed)}), expected one: "
            "stack them into one y, and write factors as distributions"
        )
    if not latent:
        raise ValueError("got a model without latent sites, expected some: there is no posterior")


def _refuse_observed(site: dict) -> None:
    name, likelihood, value = site["name"], site["fn"], site["value"]
    if isinstance(likelihood, dist.Unit):
        raise ValueError(
            f"got the factor {name!r} as likelihood, expected an observed site, whose distribution "
            "also predicts: numpyro.sample('y', ..., obs=y)"
        )
    # Broadcasting would give every row's likelihood of every other row's y, without a word.
    expected, got = likelihood.shape(), jnp.shape(value)
    if len(expected) > len(got) or any(
        n not in (1, m) for n, m in zip(expected[::-1], got[::-1], strict=False)
    ):
        if expected in ((*got, *got), (*got, 1)):  # the first: against a row, broadcast
            mend = "its parameters are columns (rows, 1); use f(x)[:, 0]"
        elif len(got) == 2 and got[1] > 1:
            mend = "one number a row; one-hot rows are the class numbers y.argmax(1)"
        else:
            mend = "a column (rows, 1) is not (rows,); use y[:, 0]"
        raise ValueError(
            f"got y of shape {got} at site {name!r}, expected the shape {expected} of its "
            f"distribution: {mend}"
        )
    if likelihood.support.is_discrete and not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(
            f"got y of dtype {value.dtype} at the discrete site {name!r}, expected integers: "
            "use y.astype(int)"
        )


def _refuse_numbers(site: str, y: Array, support: Any) -> None:
    """Refuse class numbers that cannot be: for -1 NumPyro takes the last class's density."""
    support = _of_each(support)
    if support is None or not support.is_discrete or not y.size:
        return
    either = support is dist.constraints.boolean
    low: Any = 0 if either else getattr(support, "lower_bound", None)
    high: Any = 1 if either else getattr(support, "upper_bound", None)
    least, most = int(y.min()), int(y.max())
    bounded = isinstance(high, int)
    if (isinstance(low, int) and least < low) or (bounded and most > high):
        expected = f"from {low} to {high}: number the classes from 0"
        if not bounded:
            expected = f"{low} or more: leave out the others, or take another likelihood"
        raise ValueError(f"got y from {least} to {most} at site {site!r}, expected {expected}")


def _check_finite(terms: Terms, observed: str) -> None:
    sites = [site for site, value in terms.log_priors.items() if not np.isfinite(value)]
    rows = np.flatnonzero(~np.isfinite(np.asarray(terms.log_likelihood)))
    problems = [f"the prior of {', '.join(sites)}"] if sites else []
    if rows.size:
        problems.append(
            f"the likelihood {observed!r} at {rows.size} of {len(terms.log_likelihood)} rows "
            f"(first {rows[:5].tolist()})"
        )
    if not np.isfinite(terms.log_jacobian):
        problems.append("a constrained site at the edge of its support")
    if problems:
        raise ValueError(
            f"got a log-density that is not finite at the start: {' and '.join(problems)}; "
            "expected a finite one: check the scale of the data, the supports and init="
        )
