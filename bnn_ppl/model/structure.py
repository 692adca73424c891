"""Check a model: observed sites that fit y, and latent sites that can be sampled."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from flax import nnx
from flax.errors import InvalidRngError, ModifyScopeVariableError
from jax.interpreters import partial_eval
from numpyro.distributions import CategoricalLogits, CategoricalProbs

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.model.initial import initial_trace, initial_value
from bnn_ppl.model.program.site_checks import (
    refuse_count,
    refuse_function,
    refuse_numbers,
    refuse_observed,
    refuse_points_alone,
    refuse_site,
)
from bnn_ppl.model.rows.labels import numbered_to_train, whole_numbers
from bnn_ppl.model.trace import (
    Array,
    Data,
    element_support,
    factors,
    innermost,
    is_factor,
    latent_sites,
    log_prob,
    observed_sites,
    traced,
    unmasked,
)
from bnn_ppl.runtime.checks import warn

if TYPE_CHECKING:
    from bnn_ppl.model.program.several_targets import Targets


def check_model(model: Any) -> None:
    """Refuse what is not a model, such as a network, which has no prior yet."""
    function = model.func if isinstance(model, partial) else model
    if not callable(function) or isinstance(function, type | nnx.Module):
        name = function.__name__ if isinstance(function, type) else type(function).__name__
        raise TypeError(
            f"got {name} as model, expected a function model(x, y=None), such as "
            "bnn_ppl.models.classifier(net, prior) gives"
        )


class Observed(NamedTuple):
    """The observed site of a model."""

    name: str
    num_classes: int | None  # where it has some
    is_of_y: bool  # whether its distribution is another one where y is known: of censored y, masks
    factors: tuple[str, ...]  # that are part of the prior, and its scaled or masked sites
    is_whole: bool  # whether one of these is of the data
    is_factor: bool  # whether it is a factor, which has no distribution of y
    is_function: bool  # whether its value is of another shape than y, such as a column of it


def numbered_classes(model: Callable, x: Any, y: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """Give y with numbers in the place of class labels, and the names of the classes.

    Integers from 0 and real numbers are left as they are, and so are those of other models.
    """
    is_whole = y.dtype.kind in "biu" or whole_numbers(y).dtype.kind in "iu"
    from_0 = y.dtype.kind in "iu" and y.min() == 0 and not (y.max() == 1 and y.ndim > 1)
    if from_0 or not (is_whole or y.dtype.kind == "U"):
        return y, None
    found: list[tuple[bool, int | None, int]] = []

    def inspect(x: Any, y: Any) -> None:
        trace = initial_trace(model, x, y)
        laws = [site["fn"] for site in observed_sites(trace) if site["value"] is y]
        found.extend((law.support.is_discrete, _num_classes(law), len(law.shape())) for law in laws)

    with explained(x):
        jax.eval_shape(inspect, x, jax.ShapeDtypeStruct(y.shape, jnp.int32))
    is_discrete, num, num_axes = found[0] if len(found) == 1 else (False, None, 0)
    if not is_discrete:
        return y, None
    return (whole_numbers(y), None) if num is None else numbered_to_train(y, num, num_axes)


def _num_classes(likelihood: dist.Distribution) -> int | None:
    each = unmasked(likelihood)
    if isinstance(each, CategoricalProbs | CategoricalLogits):
        return each.support.upper_bound + 1
    return 2 if element_support(likelihood.support) is dist.constraints.boolean else None


def checked_structure(model: Callable, data: Data, targets: "Targets | None" = None) -> Observed:
    """Trace the model without computing anything and return its observed site.

    With several, whose `targets` y holds, it is the first one of them.
    """
    x, y = data
    values = {} if targets is None else targets.unpacked(y)
    known = np.asarray(y)[~np.isnan(y)] if y.dtype.kind == "f" else y
    whole = whole_numbers(np.asarray(known)).dtype.kind in "iu"  # where it is not missing
    found: list[_Likelihood] = []
    names: list[str] = []
    factor_names: list[str] = []
    observed_names: list[str] = []
    laws: dict[str, dist.Distribution] = {}
    states: dict[str, Any] = {}

    def inspect(x: Any, y: Any) -> tuple[list[Any], list[Any]]:
        trace = initial_trace(model, x, y)
        for site in trace.values():
            refuse_site(site)
        latent, observed = latent_sites(trace), observed_sites(trace)
        of_rows = observed or factors(trace, of_rows=True)
        refuse_count(_named(latent), _named(of_rows), list(values))
        refuse_points_alone(latent)
        for site in observed:
            refuse_observed(site, whole)
            of_some = site["fn"].support.is_discrete and _is_masked(site["fn"])
            if site["value"] is not y or of_some:
                observed_names.append(site["name"])
        for site in of_rows:
            is_y = site["value"] is y or site["name"] in values  # and not a function of it
            if is_factor(site):
                factor_names.append(site["name"])
            elif site["fn"].support.is_discrete:
                laws[site["name"]] = site["fn"]
            num_classes = _num_classes(site["fn"]) if is_y else None
            found.append(_Likelihood(site["name"], jnp.shape(log_prob(site)), is_y, num_classes))
        of_prior = factors(trace, of_rows=False)
        names.extend(_named([*of_prior, *filter(_is_scaled_or_masked, latent)]))
        mutable = (site for site in trace.values() if site["type"] == "mutable")
        states.update((site["name"], jax.tree.map(_shape, site["value"])) for site in mutable)
        return [site["fn"] for site in observed], [log_prob(site) for site in of_prior]

    def arrays(x: Any, y: Any) -> tuple[list[Any], list[Any]]:
        return jax.tree.map(_arrays_in, inspect(x, y), is_leaf=lambda part: isinstance(part, list))

    with explained(x):
        jaxpr, shapes = jax.make_jaxpr(arrays, return_shape=True)(x, y)
    seen = _seen(model, x, y, observed_names)
    for name, shape, *_ in found:
        own = shown = values.get(name, y)
        if name in seen:
            value, is_shown = seen[name]
            if not _is_of_y(value, is_shown, np.asarray(own), bool(values)):
                refuse_function(name)
            shown = value[is_shown]
        if name in laws:
            refuse_numbers(name, shown, laws[name])
        if shape[:1] != y.shape[:1]:
            raise ValueError(
                f"got a log-likelihood of shape {shape} at site {name!r} for "
                f"{y.shape[0]} rows, expected one value per row: rows must be independent given "
                "the latent sites; put the site in numpyro.plate('data', len(x))"
            )
    name, _, is_y, num_classes = found[0]
    places = [part for part, own in enumerate(shapes) for _ in own]
    of_params, of_prior = ([place == part for place in places] for part in range(2))
    _refuse_drawn_noise(model, states, x, y)
    *_, is_of_y = used_inputs(jaxpr, of_params)
    return Observed(
        name,
        num_classes if targets is None else None,
        is_of_y,
        tuple(names),
        any(used_inputs(jaxpr, of_prior)),
        is_factor=not is_y and name in factor_names,
        is_function=targets is None and name in seen and seen[name][0].shape != y.shape,
    )


def observed_value(name: str, model: Callable, x: Any, y: Any) -> Array:
    """Give the value of an observed site, which may be a function of y."""
    return jnp.asarray(initial_trace(model, x, y)[name]["value"])


def _is_of_y(value: np.ndarray, is_shown: np.ndarray, y: np.ndarray, of_several: bool) -> bool:
    """Whether values are those of y; a part of an array y, such as a column, will do too."""
    if value.shape != y.shape:
        if of_several:
            return False
        if value.size != y.size:
            return _is_part(value, is_shown, y)
        is_shown, y = is_shown.ravel(), y.ravel()
        value = value.ravel()
    known = is_shown & ~np.isnan(y)
    span = np.ptp(y[known]) if known.any() else 0.0  # ends may be clipped
    return np.allclose(value[known], y[known], rtol=1e-5, atol=1e-5 * float(span))


def _is_part(value: np.ndarray, is_shown: np.ndarray, y: np.ndarray) -> bool:
    """Whether values are those of columns of y, or the classes that it marks by ones."""
    if value.shape[:1] != y.shape[:1]:  # which is refused as such
        return True
    columns = y.reshape(len(y), -1).T
    own = zip(value.reshape(len(y), -1).T, is_shown.reshape(len(y), -1).T, strict=True)
    if all(any(_is_of_y(*each, column, False) for column in columns) for each in own):
        return True
    if value.shape != y.shape[:-1]:
        return False
    return np.array_equal(value[is_shown], y.argmax(-1)[is_shown])


def _seen(
    model: Callable, x: Any, y: Any, names: list[str]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Give the values of observed sites, and which of their entries no mask hides."""
    if not names:
        return {}

    def value_and_mask(site: dict) -> tuple[Array, Array]:
        law, value = site["fn"], jnp.asarray(site["value"])
        scale = jnp.ones(()) if site["scale"] is None else jnp.asarray(site["scale"])
        mask = (scale != 0).reshape(*scale.shape, *[1] * law.event_dim)
        mask = jnp.broadcast_to(mask, value.shape)
        while law is not unmasked(law):
            if isinstance(law, dist.MaskedDistribution):
                own = jnp.broadcast_to(law._mask, law.batch_shape)
                mask &= own.reshape(*law.batch_shape, *[1] * law.event_dim)
            law = law.base_dist
        return value, mask

    def values_and_masks(key: Array, x: Any, y: Any) -> dict[str, tuple[Array, Array]]:
        trace = traced(model, x, y, key, substitute_fn=initial_value)
        return {name: value_and_mask(trace[name]) for name in names}

    of_key = jax.jit(values_and_masks)
    found, other = (jax.tree.map(np.asarray, of_key(jax.random.key(i), x, y)) for i in range(2))
    for name in names:
        value, is_shown = found[name]  # what a mask hides may be of latent sites
        if not np.array_equal(value[is_shown], other[name][0][is_shown], equal_nan=True):
            refuse_function(name)
    return found


def _arrays_in(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


def used_inputs(jaxpr: Any, outputs: list[bool]) -> list[bool]:
    """Say which arguments of a program some of its results depend on."""
    return partial_eval.dce_jaxpr(jaxpr.jaxpr, outputs)[1]


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _refuse_drawn_noise(model: Callable, states: dict[str, Any], x: Any, y: Any) -> None:
    """Refuse a network that draws noise when called: densities then depend on the keys it holds."""

    def densities(states: dict[str, Any], x: Any, y: Any) -> list[Any]:
        trace = initial_trace(model, x, y, states)
        return [log_prob(site) for site in trace.values() if site["type"] == "sample"]

    if not states:
        return
    jaxpr = jax.make_jaxpr(densities)(states, x, y)
    used = used_inputs(jaxpr, [True] * len(jaxpr.out_avals))
    if any(used[: len(jax.tree.leaves(states))]):
        raise ValueError(
            "got a network that draws noise when called (dropout), expected a deterministic one: "
            "call .eval(), or remove its dropout"
        )


class _Likelihood(NamedTuple):
    """What an observed site, or a factor by row, is like."""

    name: str
    shape: tuple[int, ...]  # of its log density
    is_y: bool  # whether its value is y itself
    num_classes: int | None  # where it is, and has some


def _named(sites: list[dict]) -> list[str]:
    return [site["name"] for site in sites]


def _is_scaled_or_masked(site: dict) -> bool:
    """Whether a latent site has a scale or a mask, which its density has and its draws have not."""
    return site["scale"] is not None or _is_masked(site["fn"])


def _is_masked(distribution: dist.Distribution) -> bool:
    return isinstance(innermost(distribution), dist.MaskedDistribution)


def warn_of_need_of_y(model: Callable, x: Any) -> None:
    """Warn of a program that fails where y is None, as it is for rows to predict."""

    def without_y(x: Any) -> None:
        initial_trace(model, x, None)

    try:
        jax.eval_shape(without_y, x)
    except NotImplementedError:  # a distribution without draws
        return
    except Exception as error:  # whatever a program raises that has just run with y
        warn(
            f"got a model that fails without y ({error}), expected one that is called with y=None "
            "to predict: size plates by x, as in numpyro.plate('data', len(x)), and give obs=None "
            "where y is None"
        )


def check_independent(model: Callable, x: Any, y: Mapping[str, Any]) -> None:
    """Refuse observed sites whose distribution depends on the value of another one.

    Each could not be predicted by itself.
    """
    names = sorted(y)

    def parameters(x: Any, y: Any) -> list[list[Any]]:
        trace = initial_trace(model, x, y)
        return [_arrays_in(trace[name]["fn"]) if name in trace else [] for name in names]

    with explained(x):
        jaxpr, shapes = jax.make_jaxpr(parameters, return_shape=True)(x, y)
    for place, name in enumerate(names):
        of_it = [place == i for i, own in enumerate(shapes) for _ in own]
        used = used_inputs(jaxpr, of_it)[-len(names) :]
        others = [other for other, known in zip(names, used, strict=True) if known]
        if set(others) - {name}:
            raise ValueError(
                f"got the observed site {name!r} that depends on the value of "
                f"{', '.join(set(others) - {name})}, expected sites that are independent given the "
                "latent ones: make one observed site of them, with a joint distribution"
            )


@contextmanager
def explained(x: Any) -> Iterator[None]:
    """Say what is wrong with the network of a model where tracing it fails."""
    try:
        yield
    except ModifyScopeVariableError as error:
        raise ValueError(
            "got a linen network that updates its statistics when called, expected fixed ones: "
            "build it with use_running_average=True, or with flax.nnx.BatchNorm"
        ) from error
    except InvalidRngError as error:
        raise ValueError(
            "got a linen network that draws noise when called (dropout), expected a deterministic "
            "one: build it with deterministic=True, or use mc_dropout for a network without it"
        ) from error
    except TypeError as error:
        if "dot_general" not in str(error):
            raise
        rows = [leaf.shape[1:] for leaf in jax.tree.leaves(x)]
        advice = "build it for them, as in partial(MLP, x.shape[1], ...)"
        if () in rows:
            advice = "give it columns: one is numpy.asarray(x)[:, None]"
        raise ValueError(
            f"got x with rows of {' and '.join(map(str, rows))}, expected rows that the model's "
            f"network takes ({str(error).splitlines()[0].rstrip('.')}): {advice}"
        ) from error


def check_classes(
    model: Callable, stream: Stream, data: Data, targets: "Targets | None" = None
) -> None:
    """Refuse numbers in a stream's y outside a discrete support, which one pass over y finds.

    `data` are rows of it in memory, y as columns if it is of several sites. Of a source that holds
    x and y together only these are known.
    """
    is_whole = data[1].dtype.kind in "iu" if targets is None else targets.some_are_whole
    ends = stream.ends_of_y() if is_whole else None
    if ends is not None:
        x = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], 2, axis=0), data[0])
        y = jax.tree.map(lambda *each: np.stack(each), *ends)
        if targets is not None:  # the numbers of other sites are those of a row
            y = targets.packed(targets.unpacked(np.repeat(data[1][:1], 2, axis=0)) | y)
        checked_structure(model, (x, jnp.asarray(y, data[1].dtype)), targets)
