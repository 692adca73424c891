"""The functions of a posterior, of a model and data that :func:`condition` has checked."""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.model.initial import LatentSites, initialiser
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.normalisation.batch_norm import of_the_batch
from bnn_ppl.model.normalisation.batch_statistics import Layers, batch_statistics
from bnn_ppl.model.points import holding, with_points_held
from bnn_ppl.model.posterior import Density, Posterior, Prior, Sites, TrainingRows
from bnn_ppl.model.prior.open_scale import OpenScale, at_scale
from bnn_ppl.model.prior.prior_summary import prior_summary
from bnn_ppl.model.program.several_targets import Joint, Targets
from bnn_ppl.model.recipe import Recipe, numbers_of
from bnn_ppl.model.rows.checks import check_finite, distribution_at
from bnn_ppl.model.rows.features import FixedPart, fixed_part
from bnn_ppl.model.rows.labels import Classes
from bnn_ppl.model.rows.stored_features import stored_features
from bnn_ppl.model.rows.streamed_rows import StreamChunks, StreamedRows
from bnn_ppl.model.structure import Observed, observed_value
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
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import AllRows, MatmulPrecision, products_in
from bnn_ppl.runtime.progress import Show


class GivenRows(NamedTuple):
    """The rows that :func:`condition` was given, checked."""

    examples: Data  # all of them, unless there is a stream
    stream: Stream | None
    chunks: StreamChunks | None  # of the stream
    classes: Classes | None
    targets: Targets | None = None  # of several observed sites
    groups: np.ndarray | None = None  # of each row

    @property
    def data(self) -> Data | Stream:
        """What they were given as."""
        return self.examples if self.stream is None else self.stream

    @property
    def num(self) -> int:
        """How many."""
        return len(self.examples[1]) if self.stream is None else self.stream.num_rows

    @property
    def full_batch(self) -> Data | StreamedRows:
        """The batch of all of them."""
        return self.examples if self.chunks is None else StreamedRows(*self.examples, self.chunks)


class ModelSites(NamedTuple):
    """What :func:`condition` has found in the model."""

    observed: Observed
    latent: LatentSites
    open_scale: float | None  # the usual one of priors that leave theirs open
    layers: Layers | None  # that normalise by their batch


class Options(NamedTuple):
    """What :func:`condition` was asked for."""

    temperature: float
    tempered: str
    microbatch: int | None
    automatic: bool  # whether that was chosen here
    precision: MatmulPrecision | None
    features: Path | None  # where those of the fixed part are kept


class Conditions(NamedTuple):
    """What :func:`condition` has checked."""

    rows: GivenRows
    sites: ModelSites
    options: Options


def posterior_of(
    model: Callable, given: Conditions, held: Values, scale: float | None = None
) -> Posterior:
    """Make the posterior with all points held, or with none, its open priors at a scale or open."""
    numbers, with_numbers = numbers_of((model, held, scale))
    hold_points = partial(posterior_of, model, given, scale=scale)
    hold = holding(hold_points, {} if held else given.sites.latent.points)
    opened = None if scale is not None else _open_scale(model, given, held)
    take = partial(_of_rows, model, given, held, scale)

    def make(numbers: list[Any]) -> Posterior:
        model, held, scale = with_numbers(numbers)
        made = _posterior(model if scale is None else Partial(at_scale, scale, model), given, held)
        prior = made.prior._replace(open_scale=opened, scale=scale)
        sites, rows = made.sites._replace(hold=hold), made.rows._replace(take=take)
        return made._replace(prior=prior, sites=sites, rows=rows)

    posterior = make(numbers)
    examples, *others = given.rows
    made_of = (model, held, scale), examples, (*others, given.sites, given.options)
    recipe = Recipe(make, posterior, numbers, made_of)
    return posterior._replace(recipe=recipe) if numbers else posterior


def _of_rows(
    model: Callable, given: Conditions, held: Values, scale: float | None, numbers: Any
) -> Posterior:
    """Make the posterior of some rows alone."""
    if given.rows.stream is not None:
        raise ValueError(
            "got rows of a stream, expected rows in memory to choose some of: condition on arrays"
        )
    examples = jax.tree.map(lambda leaf: leaf[numbers], given.rows.examples)
    groups = None if given.rows.groups is None else given.rows.groups[numbers]
    part = given._replace(rows=given.rows._replace(examples=examples, groups=groups))
    return posterior_of(model, part, held, scale)


def _open_scale(model: Callable, given: Conditions, held: Values) -> OpenScale | None:
    if given.sites.open_scale is None:
        return None
    # Points are fitted anew at each scale: the features of layers before them would fill a folder.
    features = None if given.sites.latent.points else given.options.features
    options = given.options._replace(temperature=1.0, tempered="posterior", features=features)
    untempered = given._replace(options=options)
    hold = lru_cache(maxsize=2)(partial(posterior_of, model, given, held))
    return OpenScale(given.sites.open_scale, hold, partial(posterior_of, model, untempered, held))


def _posterior(model: Callable, given: Conditions, held: Values) -> Posterior:
    data, options = given.rows.examples, given.options
    temperature, tempered, precision = options.temperature, options.tempered, options.precision
    if held:
        model = Partial(with_points_held, dict(held), model)
    shapes = {site: leaf for site, leaf in given.sites.latent.shapes.items() if site not in held}
    pinned = partial(in_precision, precision)
    terms = pinned(_terms(model, options.microbatch, options.automatic))
    total = partial(_total, temperature, tempered, given.rows.num)
    how = temperature, tempered, options.microbatch, precision
    found = given.sites.observed
    value = jax.jit(partial(observed_value, found.name, model)) if found.is_function else None
    density = Density(terms, total, *how, found.is_of_y, value, found.factors, found.is_whole)
    widening = density.prior_temperature**0.5

    x, y = data[0], jax.eval_shape(density.value_of, *data[:2])
    known = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (x, y))
    observed = given.rows.targets or given.sites.observed.name
    of_model = Partial(partial(_predictive, precision, observed, known), model)
    if given.sites.observed.is_factor:
        of_model = Partial(partial(_refused, observed))
    statistics, predictive = batch_statistics(
        model, of_model, given.sites.layers, data[0], precision
    )

    def log_likelihood(position: Position, batch: Batch) -> Array:
        return terms(position, batch).log_likelihood

    def logdensity(position: Position, batch: Batch) -> Array:
        return total(terms(position, batch), batch)

    # Callers that compile these pass the data in, or they would be constants of the program.
    @pinned
    def draw(key: Array, data: Batch = data) -> Values:
        trace = traced(model, *data[:2], key)
        return {site: trace[site]["value"] for site in shapes}

    @pinned
    def constrain(position: Position, data: Batch = data) -> Values:
        return constrained_values(model, position, data)

    @pinned
    def unconstrain(values: Values, data: Batch = data) -> Position:
        return unconstrained(traced(model, *data[:2], data=values))

    @pinned
    def deterministic(values: Values) -> Values:
        trace = traced(model, *data, data=values)
        sites = [site for site in trace.values() if site["type"] == "deterministic"]
        return {site["name"]: site["value"] for site in sites}

    at_random = not given.sites.latent.from_prior.isdisjoint(shapes)
    start = initialiser(model, log_likelihood, with_sites_from_prior=at_random)
    start_alone, start_within = compiled_once(start, runs_once=True), jax.jit(start)

    @pinned
    def init(key: Array, data: Batch = data) -> Position:
        if active_changes() or not of_the_batch():  # code that may record what it sees
            return start(key, data)
        within = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((key, data)))
        return (start_within if within else start_alone)(key, data)

    find_fixed_part = _no_part
    if given.sites.layers is None:
        find_fixed_part = cache(pinned(_finder_of_fixed_part(model, shapes, data)))

    return Posterior(
        init=init,
        log_likelihood=log_likelihood,
        logdensity=logdensity,
        constrain=constrain,
        unconstrain=unconstrain,
        predictive=predictive,
        check=partial(_check, terms, given),
        density=density,
        prior=Prior(draw, prior_summary(model, data, widening)),
        rows=TrainingRows(
            data=given.rows.data,
            num=given.rows.num,
            examples=data,
            full_batch=given.rows.full_batch,
            fixed_part=find_fixed_part,
            stored_features=_stored_features(given, find_fixed_part),
            classes=given.rows.classes,
            batch_statistics=statistics,
            targets=given.rows.targets,
            groups=given.rows.groups,
        ),
        sites=Sites(
            names=tuple(shapes),
            num_weights=sum(leaf.size for leaf in shapes.values()),
            value_shapes=cache(partial(_value_shapes, constrain, shapes)),
            points=() if held else tuple(given.sites.latent.points),
            held=dict(held),
            hold=holding(None, {}),
            deterministic=deterministic,
        ),
    )


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


def _check(terms: Callable, given: Conditions, position: Position) -> None:
    """Refuse a position where the log-density is not finite."""
    found = terms(position, given.rows.examples)
    chunks = given.rows.chunks
    if chunks is not None:
        batches = (chunks.rows(number)[1] for number in range(chunks.num))
        rows = [terms(position, batch).log_likelihood for batch in batches]
        found = found._replace(log_likelihood=jnp.concatenate(rows))
    check_finite(found, given.sites.observed.name)


def _no_part() -> FixedPart | None:
    return None  # what a batch's statistics have gone into is not a row's own


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
        if given.options.features is not None and not found:
            most = given.options.microbatch or len(given.rows.examples[1])
            options = given.options.features, most, given.options.precision, progress
            found.append(stored_features(find(), given.rows.data, *options))
        return found[0] if found else None

    return stored


def _predictive(
    precision: str | None,
    observed: str | Targets,
    known: Any,
    model: Callable,
    values: Values,
    x: Any,
    y: Any = None,
) -> dist.Distribution:
    def of_inputs(x: Any) -> dist.Distribution:
        trace = traced(model, x, y, data=values)
        if isinstance(observed, Targets):
            laws = [trace[name]["fn"] for name in observed.names]
            return Joint(laws, observed, len(jax.tree.leaves(x)[0]))
        return trace[observed]["fn"]

    with products_in(precision):
        return distribution_at(of_inputs, x, known)


def _refused(observed: str | Targets, *_: Any) -> dist.Distribution:
    raise NotImplementedError(
        f"got the factor {observed!r} as likelihood, which has no distribution of y, expected one "
        "to predict with: numpyro.sample('y', ..., obs=y)"
    )


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
