"""Programs as users of NumPyro write them, in the form that a posterior has.

A posterior is of continuous sites, and of rows that are all there. :func:`prepared` gives a program
that says the same in that form: plates are whole, since batches are chosen outside; parameters
(``numpyro.param``) are points, which are optimised and then held; what ``obs_mask`` leaves
unobserved is left out, where nothing depends on it; discrete sites of a row are summed out.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial
from numpyro.primitives import Messenger

from bnn_ppl.model.initial import initial_trace
from bnn_ppl.model.network import OF_INITIAL_WEIGHTS, InitialValue
from bnn_ppl.model.prior.site_priors import POINT
from bnn_ppl.model.program.discrete import without_discrete_sites
from bnn_ppl.model.program.totals import with_totals_of_rows
from bnn_ppl.model.structure import explained, used_inputs
from bnn_ppl.model.trace import (
    OF_ROWS,
    factors,
    latent_sites,
    log_prob,
    observed_sites,
    traced,
)

_OBSERVED, _UNOBSERVED = "_observed", "_unobserved"  # what NumPyro adds to the name of a site


class _Changes(NamedTuple):
    """What of a program is to be changed."""

    plates: tuple[str, ...] = ()  # that subsample
    given: tuple[str, ...] = ()  # whose subsample is what rows there are, as subsample_size=len(x)
    params: tuple[tuple[str, tuple[str, ...]], ...] = ()  # with the leaves that no site replaces
    half_observed: tuple[str, ...] = ()  # sites with obs_mask
    left_out: tuple[str, ...] = ()  # of these, with an unobserved part on which nothing depends
    factors: tuple[str, ...] = ()  # with a value for each row
    held: tuple[str, ...] = ()  # sites observed at values of their own, whose density is a constant
    constraints: tuple[str, ...] = ()  # those whose density is not: factors
    totals: tuple[str, ...] = ()  # multinomial sites with a total for each row


def prepared(model: Callable, x: Any, y: Any) -> Callable:
    """Give the program in the form that a posterior has: itself, where it has it already."""
    trace = _sites(model, x, y)
    half = _half_observed(trace)
    plates = [site for site in trace.values() if site["type"] == "plate"]
    params = [site for site in trace.values() if site["type"] == "param"]
    changes = _Changes(
        tuple(site["name"] for site in plates if site["args"][1] not in (None, site["args"][0])),
        tuple(site["name"] for site in plates if site["args"][1] == site["args"][0]),
        # Of the leaves for which sites have been sampled, the trace holds shapes, which have none.
        tuple((site["name"], tuple(_names(site["name"], site["value"]))) for site in params),
        tuple(half),
        tuple(name for name in half if not _is_needed(model, x, y, trace[name + _UNOBSERVED])),
        totals=tuple(
            site["name"]
            for site in trace.values()
            if site["type"] == "sample" and with_totals_of_rows(site["fn"]) is not site["fn"]
        ),
    )
    if any(changes):
        model = Partial(partial(_changed, changes), model)
        trace = _sites(model, x, y)
    own = _observed_at_own_values(model, trace, x, y)
    if own:  # once params are sites, on which their density may depend
        varying = tuple(name for name in own if _varies(model, x, y, trace, name))
        held = tuple(name for name in own if name not in varying)
        model = Partial(partial(_changed, _Changes(held=held, constraints=varying)), model)
        trace = _sites(model, x, y)
    of_rows = _factors_of_rows(model, trace, x, y)
    if of_rows:
        model = Partial(partial(_changed, _Changes(factors=of_rows)), model)
        trace = _sites(model, x, y)
    return without_discrete_sites(model, trace, x, y)


def _sites(model: Callable, x: Any, y: Any) -> dict[str, dict]:
    """Give the sites of a program, whose values are shapes alone."""
    found: dict[str, dict] = {}

    def inspect(x: Any, y: Any) -> None:
        found.update(initial_trace(model, x, y))

    with explained(x):
        jax.eval_shape(inspect, x, y)
    return found


def _changed(changes: _Changes, model: Callable, x: Any, y: Any = None) -> Any:
    with _Changing(changes):
        return model(x, y)


class _Changing(Messenger):
    """Change messages of a program before those outside of it see them."""

    def __init__(self, changes: _Changes) -> None:
        super().__init__()
        self.changes, self.params = changes, dict(changes.params)
        self.sizes: dict[str, int] = {}  # of the plates whose rows are given

    def process_message(self, message: dict) -> None:
        kind, name, changes = message["type"], message.get("name"), self.changes
        if kind == "plate" and name in changes.plates:
            size, _ = message["args"]
            message["value"], message["args"] = jnp.arange(size), (size, size)
        elif kind == "plate" and name in changes.given:
            self.sizes[name], size = message["args"]
            message["value"], message["args"] = jnp.arange(size), (size, size)
        elif kind == "param" and name in self.params:
            self._sample_leaves(message)
        elif kind == "prng_key" and self.params and OF_INITIAL_WEIGHTS not in message:
            message["value"], message["stop"] = jax.random.key(0), True  # for those of a module
        elif kind == "sample" and name in changes.factors:
            message["infer"] = message["infer"] | {OF_ROWS: True}
        elif kind == "sample" and name in changes.held and message["is_observed"]:
            message["stop"] = True
        elif kind == "sample" and name in changes.constraints and message["is_observed"]:
            density = message["fn"].log_prob(message["value"])
            message["observed"], message["fn"] = message["value"], dist.Unit(density)
            message["value"] = message["fn"].sample(None)
        elif kind in ("sample", "deterministic") and changes.half_observed:
            self._leave_out(message)
        if kind == "sample" and name in changes.totals:
            message["fn"] = with_totals_of_rows(message["fn"])
        if kind == "sample" and self.sizes:
            self._scale_once(message)

    def postprocess_message(self, message: dict) -> None:
        if "observed" in message:  # what the program goes on with
            message["value"] = message["observed"]

    def _scale_once(self, message: dict) -> None:
        """Take back the scale of a plate whose rows are given: batches are scaled outside."""
        for frame in message["cond_indep_stack"]:
            if frame.name in self.sizes and self.sizes[frame.name] != frame.size:
                message["scale"] = message["scale"] * frame.size / self.sizes[frame.name]

    def _sample_leaves(self, message: dict) -> None:
        """Have a site, a point, in the place of each leaf of a parameter."""
        name, given = message["name"], message["args"]
        asked = bool(given) and given[0] is None  # by NumPyro, whether it is known
        if asked or message["value"] is not None:  # which numpyro.handlers.substitute gives
            message["stop"] = True
            return
        initial = message["fn"](*given)
        constraint = message["kwargs"].get("constraint", dist.constraints.real)
        leaves, structure = jax.tree.flatten(initial)
        sites = _names(name, initial)
        chosen = [
            _point(site, leaf, constraint) if site in self.params[name] else leaf
            for site, leaf in zip(sites, leaves, strict=True)
        ]
        message["value"], message["stop"] = jax.tree.unflatten(structure, chosen), True

    def _leave_out(self, message: dict) -> None:
        """Leave out the unobserved part of a site, and give the observed one its name."""
        name, half_observed = message["name"], self.changes.half_observed
        whole = name.removesuffix(_UNOBSERVED)
        if whole != name and whole in self.changes.left_out:
            message["value"] = message["fn"].support.feasible_like(jnp.zeros(message["fn"].shape()))
            message["stop"] = True
        elif name in half_observed and message["type"] == "deterministic":
            message["stop"] = True
        elif name.removesuffix(_OBSERVED) in half_observed and name.endswith(_OBSERVED):
            message["name"] = name.removesuffix(_OBSERVED)


def _point(site: str, initial: Any, constraint: Any) -> Any:
    initial = jnp.asarray(initial, float)
    flat = dist.ImproperUniform(constraint, (), initial.shape)
    infer = {"initial_value": InitialValue(initial), POINT: True}
    return numpyro.sample(site, flat, infer=infer)


def _names(name: str, tree: Any) -> list[str]:
    """Name the leaves of a parameter: as itself, or by their paths in it."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    name = name.removesuffix("$params")  # of a module
    return [jax.tree_util.keystr((name, *path), simple=True, separator=".") for path in paths]


def _half_observed(trace: dict[str, dict]) -> list[str]:
    """Name the sites with obs_mask: NumPyro makes one of two, which it names by them."""
    names = {site["name"] for site in latent_sites(trace)}
    wholes = [site["name"].removesuffix(_OBSERVED) for site in observed_sites(trace)]
    made = {name for name, site in trace.items() if site["type"] == "deterministic"}
    return [whole for whole in wholes if whole + _UNOBSERVED in names and whole in made]


def _is_needed(model: Callable, x: Any, y: Any, unobserved: dict) -> bool:
    """Whether the density of another site depends on the unobserved part of one."""
    hidden, value = unobserved["name"], unobserved["value"]

    def others(value: Any, x: Any, y: Any) -> list[Any]:
        trace = initial_trace(model, x, y, {hidden: value})
        sites = (site for site in trace.values() if site["type"] == "sample")
        return [log_prob(site) for site in sites if site["name"] != hidden]

    jaxpr = jax.make_jaxpr(others)(jax.ShapeDtypeStruct(value.shape, value.dtype), x, y)
    used, *_ = used_inputs(jaxpr, [True] * len(jaxpr.out_avals))
    return used


def _observed_at_own_values(
    model: Callable, trace: dict[str, dict], x: Any, y: Any
) -> tuple[str, ...]:
    """Name the sites observed at values that do not depend on y, unless all are."""
    names = [site["name"] for site in observed_sites(trace)]
    if len(names) < 2:
        return ()

    def values(x: Any, y: Any) -> list[Any]:
        found = initial_trace(model, x, y)
        return [found[name]["value"] for name in names]

    of_y = _that_depend(jax.make_jaxpr(values)(x, y), names, len(jax.tree.leaves(x)))
    return tuple(name for name in names if name not in of_y) if of_y else ()


def _varies(model: Callable, x: Any, y: Any, trace: dict[str, dict], name: str) -> bool:
    """Whether the density of a site depends on another site, or on x."""
    latent = {
        site["name"]: jax.ShapeDtypeStruct(jnp.shape(site["value"]), site["value"].dtype)
        for site in latent_sites(trace)
    }

    def density(x: Any, values: Any) -> Any:
        return log_prob(traced(model, x, y, jax.random.key(0), data=values)[name])

    return any(used_inputs(jax.make_jaxpr(density)(x, latent), [True]))


def _that_depend(jaxpr: Any, names: list[str], first: int = 0) -> set[str]:
    """Name the results of a program that depend on its arguments from the first of these on."""
    places = range(len(names))
    return {
        name
        for place, name in enumerate(names)
        if any(used_inputs(jaxpr, [place == other for other in places])[first:])
    }


def _factors_of_rows(model: Callable, trace: dict[str, dict], x: Any, y: Any) -> tuple[str, ...]:
    """Name the factors with a value for each row that depends on the data."""
    names = [site["name"] for site in factors(trace, of_rows=False)]
    if not names:
        return ()

    def densities(x: Any, y: Any) -> list[Any]:
        found = initial_trace(model, x, y)
        return [log_prob(found[name]) for name in names]

    jaxpr, found = jax.make_jaxpr(densities, return_shape=True)(x, y)
    used, rows = _that_depend(jaxpr, names), jax.tree.leaves(x)[0].shape[:1]
    return tuple(
        name
        for name, density in zip(names, found, strict=True)
        if name in used and density.shape[:1] == rows
    )
