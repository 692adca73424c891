"""Condition a NumPyro model on data: pure functions over unconstrained positions."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.data.streams import Stream
from bnn_ppl.model.batch_norm import of_the_batch, statistics_found
from bnn_ppl.model.batch_statistics import Layers, batch_statistics, layers_of
from bnn_ppl.model.checks import (
    check_finite,
    check_number_of_rows,
    check_options,
    checked_data,
    distribution_at,
)
from bnn_ppl.model.features import FixedPart, fixed_part
from bnn_ppl.model.initial import initialiser, shapes_and_sites_from_prior
from bnn_ppl.model.microbatch import fitting_microbatch, fitting_rows
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.points import holding, point_shapes, with_points_held
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.prior_summary import prior_summary
from bnn_ppl.model.recipe import Recipe, numbers_of
from bnn_ppl.model.stored_features import stored_features
from bnn_ppl.model.streamed_rows import Chunks, StreamedRows
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
    in_precision,
    terms_of,
    traced,
    unconstrained,
)
from bnn_ppl.runtime.devices import AllRows, MatmulPrecision, products_in
from bnn_ppl.runtime.progress import Show


class Conditions(NamedTuple):
    """What :func:`condition` has checked."""

    examples: Data  # all rows, unless there is a stream
    stream: Stream | None
    chunks: Chunks | None  # of the stream
    observed: str
    shapes: Position  # of a position
    from_prior: set[str]  # sites whose chains start at a draw from it
    points: dict[str, tuple[int, ...]]  # shapes
    temperature: float
    tempered: str
    microbatch: int | None
    automatic: bool  # whether that was chosen here
    precision: MatmulPrecision | None
    layers: Layers | None  # that normalise by their batch
    features: Path | None  # where those of the fixed part are kept


def condition(
    model: Callable[..., Any],
    data: Any,
    *,
    temperature: float = 1.0,
    tempered: Literal["posterior", "likelihood"] = "posterior",
    microbatch: int | None = None,
    precision: MatmulPrecision | None = None,
    features: str | Path | None = None,
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
    features
        Folder where the outputs of fixed layers are kept, computed by the first run that needs
        them. Runs then read them in place of the rows of a stream, and rows in memory are not
        computed again by later processes. Those of other layers, weights or rows are told apart by
        a digest, and none is deleted.

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
        `microbatch` is not a whole number of rows, or `precision` is none of those above; if
        `features` is given for a model without fixed layers.

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
    check_options(temperature, tempered, microbatch, precision)
    check_model(model)
    rows, data = data, checked_data(data.examples if isinstance(data, Stream) else data)
    with statistics_found() as found:
        observed = checked_structure(model, data)
    stream = rows if isinstance(rows, Stream) else None
    if stream is not None:
        check_classes(model, stream, data)
    layers = layers_of(tuple(found), data[0], microbatch, streamed=stream is not None)
    shapes, from_prior = shapes_and_sites_from_prior(model, data)
    by_row = _by_row(model)
    automatic = microbatch is None
    if microbatch is None and layers is None:
        microbatch = fitting_microbatch(by_row, data, shapes)
    if microbatch is not None and microbatch < len(data[1]):
        got = f"microbatch={microbatch} rows"
        check_number_of_rows(lambda w, rows: by_row(rows, w), shapes, data, microbatch, got)
    chunks = None
    if stream is not None:
        chunks = Chunks(stream, data, microbatch or fitting_rows(by_row, data, shapes))
    points = point_shapes(model, data)
    given = Conditions(
        examples=data,
        stream=stream,
        chunks=chunks,
        observed=observed,
        shapes=shapes,
        from_prior=from_prior,
        points=points,
        temperature=float(temperature),
        tempered=tempered,
        microbatch=microbatch,
        automatic=automatic,
        precision=precision,
        layers=layers,
        features=None if features is None else Path(features),
    )
    posterior = _made(model, given, {})
    if features is not None and _with_any_points(posterior, points).fixed_part() is None:
        raise ValueError(
            f"got features={str(features)!r} for a model without fixed layers before the random "
            "ones, whose outputs could be kept, expected some: leave it out"
        )
    return posterior


def _with_any_points(posterior: Posterior, points: dict[str, tuple[int, ...]]) -> Posterior:
    """Hold the points, if there are some, at values that do not matter."""
    values = {site: jnp.zeros(shape) for site, shape in points.items()}
    return posterior.hold(values) if points else posterior


def _made(model: Callable, given: Conditions, held: Values) -> Posterior:
    """Make the posterior with all points held, or with none."""
    numbers, with_numbers = numbers_of((model, held))
    hold = holding(partial(_made, model, given), {} if held else given.points)

    def make(numbers: list[Any]) -> Posterior:
        model, held = with_numbers(numbers)
        return _conditioned(model, held, given)._replace(hold=hold)

    posterior = make(numbers)
    return posterior._replace(recipe=Recipe(make, posterior, numbers)) if numbers else posterior


def _conditioned(model: Callable, held: Values, given: Conditions) -> Posterior:
    """Make the posterior of what :func:`condition` has checked."""
    data, temperature, precision = given.examples, given.temperature, given.precision
    if held:
        model = Partial(with_points_held, dict(held), model)
    rows = data if given.stream is None else given.stream
    num_rows = len(data[1]) if given.stream is None else given.stream.num_rows
    prior_std, precisions = prior_summary(model, data)
    widening = temperature**0.5 if given.tempered == "posterior" else 1.0
    shapes = {site: leaf for site, leaf in given.shapes.items() if site not in held}
    pinned = partial(in_precision, precision)
    terms = pinned(_terms(model, given.microbatch, given.automatic))
    total = partial(_total, temperature, given.tempered, num_rows)

    known = _shapes(data[0])
    of_model = Partial(partial(_predictive, precision, given.observed, known), model)
    statistics, predictive = batch_statistics(model, of_model, given.layers, data[0], precision)

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

    def no_part() -> FixedPart | None:
        return None  # what a batch's statistics have gone into is not a row's own

    at_random = not given.from_prior.isdisjoint(shapes)
    init = initialiser(model, data, log_likelihood, with_sites_from_prior=at_random)

    find = no_part
    if given.layers is None:
        find = cache(pinned(_finder_of_fixed_part(model, shapes, data)))

    def check(position: Position) -> None:
        found = terms(position, data)
        if given.chunks is not None:
            rows = [
                log_likelihood(position, given.chunks.rows(number)[1])
                for number in range(given.chunks.num)
            ]
            found = found._replace(log_likelihood=jnp.concatenate(rows))
        check_finite(found, given.observed)

    return Posterior(
        init=pinned(init),
        from_prior=from_prior,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        logdensity=logdensity,
        logdensity_from=partial(_logdensity_from, terms, total),
        terms=terms,
        total=total,
        constrain=constrain,
        unconstrain=unconstrain,
        predictive=predictive,
        check=check,
        prior_std={site: widening * std for site, std in prior_std.items()},
        precisions=precisions,
        value_shapes=cache(partial(_value_shapes, constrain, shapes)),
        data=rows,
        examples=data,
        all_rows=data if given.chunks is None else StreamedRows(*data, given.chunks),
        num_rows=num_rows,
        num_weights=sum(leaf.size for leaf in shapes.values()),
        temperature=temperature,
        tempered=given.tempered,
        microbatch=None if given.microbatch is None else int(given.microbatch),
        precision=precision,
        fixed_part=find,
        stored_features=_stored_features(given, find),
        batch_statistics=statistics,
        points=() if held else tuple(given.points),
        held=dict(held),
        hold=holding(None, {}),
    )


def _by_row(model: Callable) -> Callable[[Data, Position], Array]:
    return lambda data, position: evaluated(model, None, position, data).log_likelihood


def _terms(
    model: Callable, microbatch: int | None, automatic: bool
) -> Callable[[Position, Batch], Terms]:
    now = partial(evaluated, model, microbatch, automatic=automatic)
    once = jax.jit(now)  # traced once for all that is compiled from it

    def terms(position: Position, batch: Batch) -> Terms:
        # Code that changes networks may also record values of theirs, in this very trace.
        as_is = not active_changes() and of_the_batch()
        return once(position, batch) if as_is else now(position, batch)

    return terms


def _logdensity_from(
    terms: Callable, total: Callable, origin: Position, batch: Batch
) -> tuple[Array, Callable[[Position], Array]]:
    start = terms(origin, batch)

    def change(position: Position) -> Array:
        return total(terms(position, batch).less(start), batch)

    return total(start, batch), change


def _finder_of_fixed_part(
    model: Callable, shapes: Position, data: Data
) -> Callable[[], FixedPart | None]:
    # In the float types of now, whatever those of later: some transforms take no others.
    double = jnp.result_type(float) == jnp.float64

    def find() -> FixedPart | None:
        with jax.enable_x64(double):
            return fixed_part(partial(terms_of, model), shapes, data)

    return find


def _stored_features(
    given: Conditions, find: Callable[[], FixedPart | None]
) -> Callable[..., Stream | None]:
    found: list[Stream | None] = []  # once

    def stored(progress: Show = False) -> Stream | None:
        if given.features is not None and not found:
            rows = given.examples if given.stream is None else given.stream
            most = given.microbatch or len(given.examples[1])
            options = given.features, most, given.precision, progress
            found.append(stored_features(find(), rows, *options))
        return found[0] if found else None

    return stored


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
    if isinstance(batch, AllRows | StreamedRows):
        size = num_rows
    elif len(batch) == 3:  # a sum over devices
        size = jnp.sum(batch[2])
    log_likelihood = num_rows / size * jnp.sum(terms.log_likelihood)
    if tempered == "likelihood":
        return terms.log_prior + log_likelihood / temperature + terms.log_jacobian
    return (terms.log_prior + log_likelihood) / temperature + terms.log_jacobian
