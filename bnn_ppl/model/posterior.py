"""Condition a NumPyro model on data: pure functions over unconstrained positions."""

import math
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.data.streams import Stream
from bnn_ppl.model.checks import (
    check_finite,
    check_number_of_rows,
    checked_data,
    distribution_at,
)
from bnn_ppl.model.initial import initialiser, start
from bnn_ppl.model.microbatch import fitting_microbatch
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.prior_summary import Precision, prior_summary
from bnn_ppl.model.recipe import Recipe, numbers_of
from bnn_ppl.model.structure import check_classes, check_model, checked_structure
from bnn_ppl.model.trace import (
    Array,
    Batch,
    Data,
    Position,
    Terms,
    Values,
    constrained_values,
    evaluated,
    traced,
    unconstrained,
)
from bnn_ppl.runtime.devices import AllRows, MatmulPrecision, products_in


class Posterior(NamedTuple):
    """A model conditioned on data. Build it with :func:`condition`.

    A *position* is a dict from site name to unconstrained array; *values* are the same sites on
    their own support. A *batch* is a pair ``(x, y)`` of rows, or a triple ``(x, y, mask)``: rows
    where the mask is False are padding. They contribute nothing, but must be copies of real rows,
    so that the model is finite there.

    Attributes
    ----------
    init
        ``key, data=data -> position``: a network starts from its own initialisers, every other site
        at one of 16 draws from its prior, chosen by its likelihood.
    from_prior
        ``key, data=data -> values``: every site drawn from the model's prior, untempered.
    log_prior
        ``position -> scalar``: log prior density of the constrained values.
    log_likelihood
        ``position, batch -> (rows,)``: log likelihood of each row; 0 for padding.
    logdensity
        ``position, batch -> scalar``: the tempered log posterior density that samplers see, the
        likelihood scaled from the batch to all rows. Unnormalised.
    logdensity_from
        ``origin, batch -> scalar, (position -> scalar)``: the log-density at an origin, and the
        function of its change from there. Terms are subtracted one by one before they are summed:
        in single precision a Metropolis test needs that, for many weights or rows.
    terms
        ``position, batch -> Terms``: the terms of that sum.
    total
        ``terms, batch -> scalar``: the tempered log-density of the terms, the likelihood scaled
        from the batch to all rows: ``logdensity`` is ``total(terms(position, batch), batch)``.
        Methods that replace a term, or want one part alone, pass terms of their own.
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
        Dict from site to scalar: the standard deviation of the tempered prior (root mean square
        over the site's elements; times sqrt(T) where T divides the prior), the natural unit of
        length for samplers. 1 where it is infinite or unknown, and for constrained sites.
    precisions
        Dict from the site of a precision to its Gamma prior, for sites that a model marks with
        ``infer={"precision_of": site}``, as :func:`bnn_ppl.priors.hierarchical` does.
    value_shapes
        ``() -> dict``: the shape of each site's value.
    data
        The pair (x, y) conditioned on, or the stream of rows.
    examples
        Rows (x, y) in memory: all of `data`, or at most 1,024 of a stream, spread evenly. Where
        the functions above have ``data=data``, they take these.
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
    precision
        Of matrix products and convolutions, of its own functions and of whatever is computed with
        it; None for that of JAX's configuration when they are traced, or else "highest".
    recipe
        How to make it anew with other numbers, if the model has some: see :func:`condition`.
    """

    init: Callable[..., Position]
    from_prior: Callable[..., Values]
    log_prior: Callable[[Position], Array]
    log_likelihood: Callable[[Position, Batch], Array]
    logdensity: Callable[[Position, Batch], Array]
    logdensity_from: Callable[[Position, Batch], tuple[Array, Callable[[Position], Array]]]
    terms: Callable[[Position, Batch], Terms]
    total: Callable[[Terms, Batch], Array]
    constrain: Callable[..., Values]
    unconstrain: Callable[..., Position]
    predictive: Callable[[Values, Any], dist.Distribution]
    check: Callable[[Position], None]
    prior_std: dict[str, Array]
    precisions: dict[str, Precision]
    value_shapes: Callable[[], dict[str, tuple[int, ...]]]
    data: Data | Stream
    examples: Data
    num_rows: int
    num_weights: int
    temperature: float
    tempered: str
    microbatch: int | None
    precision: MatmulPrecision | None
    recipe: Recipe | None = None

    def __repr__(self) -> str:
        """Give the sizes and the temperature, without the data."""
        sizes = f"{self.num_rows} rows, {self.num_weights} unknowns in {len(self.prior_std)} sites"
        return f"Posterior({sizes}, T = {self.temperature:g})"


def condition(
    model: Callable[..., Any],
    data: Any,
    *,
    temperature: float = 1.0,
    tempered: Literal["posterior", "likelihood"] = "posterior",
    microbatch: int | None = None,
    precision: MatmulPrecision | None = None,
) -> Posterior:
    """Condition a NumPyro model on data.

    Parameters
    ----------
    model
        ``model(x, y=None)`` with exactly one observed site, whose rows are conditionally
        independent given the other sites. With or without a network.
    data
        A pair ``(x, y)``: y an array (rows, ...), x an array or a tree of arrays (rows, ...). Or
        rows that stay on disk, from :func:`bnn_ppl.data.stream`.
    temperature
        T > 0. Below 1 a cold, above 1 a warm posterior.
    tempered
        What T divides: ``"posterior"`` gives ``(p(D|w) p(w))^(1/T)``, ``"likelihood"`` gives
        ``p(D|w)^(1/T) p(w)``.
    microbatch
        Rows that a device works on at a time, for data whose gradient does not fit in memory: the
        likelihood of a larger batch is computed in chunks of this many rows, each recomputed in the
        backward pass, and is the same up to rounding. By default all rows, unless the intermediate
        results of their likelihood would together take more than a quarter of the device's memory
        (host devices share the computer's); then as many rows as take a quarter. Methods that
        intercept layers (taps) see whole batches; only :func:`bnn_ppl.vogn` takes them in chunks.
    precision
        Of products and convolutions of float32 on accelerators, here and in all that is done with
        the posterior (runs, predictions, plans), by JAX's names; a CPU computes in float32 always.

        - ``"highest"``: float32; six passes of bfloat16 on a TPU, no tensor cores on a GPU.
        - ``"tensorfloat32"``: TF32 on GPUs since Ampere, three passes of bfloat16 on a TPU.
        - ``"bfloat16"``: one pass of bfloat16 on a TPU, TF32 on a GPU.

        By default as JAX is configured (``jax_default_matmul_precision``), or else "highest". What
        the others do to the energy errors of HMC is in benchmarks/RESULTS.md.

    Returns
    -------
    Posterior
        Pure functions of unconstrained positions; see :class:`Posterior`.

    Raises
    ------
    TypeError
        If `model` is not a function, or is a network.
    ValueError
        If the data contain NaN or infinite values, or x and y differ in length; if the model does
        not have exactly one observed site, or has discrete latent sites, subsampling plates, plates
        of a fixed size with `microbatch`, unsampled parameters or mutable state, or its likelihood
        is not one value per row; if y does not have the shape and kind of its distribution; if T is
        not a finite number above 0, or
        `microbatch` is not a whole number of rows, or `precision` is none of those above.

    Notes
    -----
    The log-density is ``(log p(w) + N/|batch| sum_i log p(y_i | x_i, w)) / T`` plus the
    log-Jacobian of the map from the position to w, which is not tempered: T tempers the density of
    w itself.

    The real numbers in a model are arguments of what is compiled from it: with others, nothing is
    compiled again. They are the leaves of a model that is a ``jax.tree_util.Partial``, as those of
    :mod:`bnn_ppl.models` are: the parameters of its priors and a noise scale, where these are
    distributions, Partials or numbers themselves.
    """
    _check_options(temperature, tempered, microbatch, precision)
    check_model(model)
    source = data
    data = checked_data(source.examples if isinstance(source, Stream) else source)
    observed = checked_structure(model, data)
    if isinstance(source, Stream):
        check_classes(model, source, data)
    rows = source if isinstance(source, Stream) else data
    shapes = jax.eval_shape(partial(start, model), jax.random.key(0), data)
    by_row = _by_row(model)
    if microbatch is None:
        microbatch = fitting_microbatch(by_row, data, shapes)
    if microbatch is not None and microbatch < len(data[1]):
        got = f"microbatch={microbatch} rows"
        check_number_of_rows(lambda w, rows: by_row(rows, w), shapes, data, microbatch, got)
    numbers, with_numbers = numbers_of(model)

    def make(numbers: list[Any]) -> Posterior:
        model = with_numbers(numbers)
        tempering = float(temperature), tempered
        return _conditioned(model, rows, data, observed, *tempering, microbatch, precision)

    posterior = make(numbers)
    return posterior._replace(recipe=Recipe(make, posterior, numbers)) if numbers else posterior


def _conditioned(
    model: Callable,
    rows: Data | Stream,
    data: Data,
    observed: str,
    temperature: float,
    tempered: str,
    microbatch: int | None,
    precision: MatmulPrecision | None,
) -> Posterior:
    """Make the posterior of what :func:`condition` has checked."""
    num_rows = rows.num_rows if isinstance(rows, Stream) else len(rows[1])
    prior_std, precisions = prior_summary(model, data)
    widening = temperature**0.5 if tempered == "posterior" else 1.0
    shapes = jax.eval_shape(partial(start, model), jax.random.key(0), data)
    pinned = partial(_pinned, precision)
    terms = pinned(_terms(model, microbatch))
    total = partial(_total, temperature, tempered, num_rows)

    def log_prior(position: Position) -> Array:
        return terms(position, data).log_prior

    def log_likelihood(position: Position, batch: Batch) -> Array:
        return terms(position, batch).log_likelihood

    def logdensity(position: Position, batch: Batch) -> Array:
        return total(terms(position, batch), batch)

    # Callers that compile these pass the data in, or they would be constants of the program.
    @pinned
    def from_prior(key: Array, data: Batch = data) -> Values:
        trace = traced(model, *data[:2], key)
        return {site: trace[site]["value"] for site in shapes}

    @pinned
    def constrain(position: Position, data: Batch = data) -> Values:
        return constrained_values(model, position, data)

    @pinned
    def unconstrain(values: Values, data: Batch = data) -> Position:
        return unconstrained(traced(model, *data[:2], data=values))

    def check(position: Position) -> None:
        check_finite(terms(position, data), observed)

    return Posterior(
        init=pinned(initialiser(model, data, log_likelihood)),
        from_prior=from_prior,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        logdensity=logdensity,
        logdensity_from=partial(_logdensity_from, terms, total),
        terms=terms,
        total=total,
        constrain=constrain,
        unconstrain=unconstrain,
        predictive=Partial(partial(_predictive, precision, observed, _shapes(data[0])), model),
        check=check,
        prior_std={site: widening * std for site, std in prior_std.items()},
        precisions=precisions,
        value_shapes=cache(partial(_value_shapes, constrain, shapes)),
        data=rows,
        examples=data,
        num_rows=num_rows,
        num_weights=sum(leaf.size for leaf in shapes.values()),
        temperature=temperature,
        tempered=tempered,
        microbatch=None if microbatch is None else int(microbatch),
        precision=precision,
    )


def _check_options(
    temperature: float, tempered: str, microbatch: int | None, precision: str | None
) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"got temperature={temperature}, expected a finite number above 0")
    if tempered not in ("posterior", "likelihood"):
        raise ValueError(f"got tempered={tempered!r}, expected 'posterior' or 'likelihood'")
    if microbatch is not None and not (isinstance(microbatch, int | np.integer) and microbatch > 0):
        raise ValueError(
            f"got microbatch={microbatch!r}, expected a whole number of rows, at least 1: "
            "leave it out to have one chosen"
        )
    known = get_args(MatmulPrecision)
    if precision is not None and precision not in known:
        raise ValueError(
            f"got precision={precision!r}, expected one of {', '.join(map(repr, known))}: leave it "
            "out for that of JAX's configuration"
        )


def _pinned(precision: str | None, function: Callable) -> Callable:
    """Have a function's products in a precision, wherever it is called or traced."""

    @wraps(function)
    def pinned(*args: Any, **kwargs: Any) -> Any:
        with products_in(precision):
            return function(*args, **kwargs)

    return pinned


def _by_row(model: Callable) -> Callable[[Data, Position], Array]:
    return lambda data, position: evaluated(model, None, position, data).log_likelihood


def _terms(model: Callable, microbatch: int | None) -> Callable[[Position, Batch], Terms]:
    now = partial(evaluated, model, microbatch)
    once = jax.jit(now)  # traced once for all that is compiled from it

    def terms(position: Position, batch: Batch) -> Terms:
        # Code that changes networks may also record values of theirs, in this very trace.
        return now(position, batch) if active_changes() else once(position, batch)

    return terms


def _logdensity_from(
    terms: Callable, total: Callable, origin: Position, batch: Batch
) -> tuple[Array, Callable[[Position], Array]]:
    start = terms(origin, batch)

    def change(position: Position) -> Array:
        return total(terms(position, batch).less(start), batch)

    return total(start, batch), change


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _predictive(
    precision: str | None, observed: str, known: Any, model: Callable, values: Values, x: Any
) -> dist.Distribution:
    def of_inputs(x: Any) -> dist.Distribution:
        return traced(model, x, None, data=values)[observed]["fn"]

    with products_in(precision):
        return distribution_at(of_inputs, x, known)


def _value_shapes(constrain: Callable, shapes: Position) -> dict[str, tuple[int, ...]]:
    # In the float type of now: some of NumPyro's transforms take no other.
    dtype = jnp.result_type(float)
    now = {site: jax.ShapeDtypeStruct(leaf.shape, dtype) for site, leaf in shapes.items()}
    return {site: value.shape for site, value in jax.eval_shape(constrain, now).items()}


def _total(temperature: float, tempered: str, num_rows: int, terms: Terms, batch: Batch) -> Array:
    size: int | Array = batch[1].shape[0]
    if isinstance(batch, AllRows):
        size = num_rows
    elif len(batch) == 3:  # a sum over devices
        size = jnp.sum(batch[2])
    log_likelihood = num_rows / size * jnp.sum(terms.log_likelihood)
    if tempered == "likelihood":
        return terms.log_prior + log_likelihood / temperature + terms.log_jacobian
    return (terms.log_prior + log_likelihood) / temperature + terms.log_jacobian
