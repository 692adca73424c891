"""Random networks: a Flax network whose weights are NumPyro sample sites."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen, nnx
from jax.lax import conv_general_dilated
from numpyro import handlers
from numpyro.primitives import Messenger, apply_stack

from bnn_ppl.model.normalisation.batch_norm import check_state, keep_no_averages
from bnn_ppl.model.prior.prior_distributions import CorrelatedInputs, SumFilter
from bnn_ppl.model.prior.site_priors import POINT, Point, Prior, prior_by_site
from bnn_ppl.nets.conversion.kernel_shapes import AS_KERNEL, marked
from bnn_ppl.nets.parts.convolution import convolution
from bnn_ppl.runtime.machines.devices import is_accelerator

Change: TypeAlias = Callable[[str, nnx.Module], Any]
Parts: TypeAlias = tuple[nnx.GraphDef, nnx.State, nnx.State]  # structure, weights, other state

OF_INITIAL_WEIGHTS = "of_initial_weights"  # a field of the message that asks for their key


class InitialValue:
    """A site's initial weights, found by ``Posterior.init`` in the ``infer`` of the site.

    Equal to any other: JAX compares what goes with a trace, and an array has no truth value.
    """

    def __init__(self, array: jax.Array):
        self.array = array

    def __eq__(self, other: object) -> bool:
        """Ignore the array."""
        return isinstance(other, InitialValue)

    def __hash__(self) -> int:
        """Give all of them the same."""
        return hash(InitialValue)


_CHANGES: ContextVar[tuple[Change, ...]] = ContextVar("changes", default=())


@contextmanager
def changed_networks(change: Change) -> Iterator[None]:
    """Within this context, replace every random network by ``change(name, module)``.

    The name is the first part of its sites' names as the model's trace has them, with what
    ``handlers.scope`` puts in front. The module is the trace's own and may be changed in place.
    This is how methods reach the layers of a network inside a model written without them in mind.
    """
    token = _CHANGES.set((*_CHANGES.get(), change))
    try:
        yield
    finally:
        _CHANGES.reset(token)


def active_changes() -> tuple[Change, ...]:
    """Give the changes of all contexts now entered, outermost first."""
    return _CHANGES.get()


def random_network(name: str, net: Callable[..., nnx.Module] | nnx.Module, prior: Prior) -> Any:
    """Put a prior on the weights of a network; call inside a NumPyro model.

    Each parameter with a prior becomes one sample site named by its path in the module, for example
    ``net.layers.0.kernel``. The module is returned with the sampled weights in it, so it is called
    like any other: ``f = random_network("net", net, prior); f(x)``.

    Parameters
    ----------
    name
        First part of every site name.
    net
        A factory that gives an ``nnx.Module`` when called with ``rngs=`` (each chain then starts
        from its own initialisation), or a ready module (all chains start at the weights it has when
        the posterior is first run). Linen modules, Equinox modules and functions of a tree of
        weights go through :func:`bnn_ppl.nets.from_linen`, ``from_equinox``, ``from_function``.
    prior
        A distribution for each weight; or a function ``(site_name, shape) -> distribution``, which
        may itself sample (a scale shared by the tensor, say); or a dict of these by site, whose
        keys are names or shell patterns (``"net.layers.1.*"``, ``"*"``), with or without the
        network's name in front: a name comes before all patterns, and of several patterns the first
        counts. A distribution without batch shape is independent over the weights; its event
        dimensions, if any, are the parameter's last ones.

        In place of a distribution may stand ``"fixed"``, for weights that stay as they are in a
        ready module and are no sites, or ``priors.point(prior)``, for weights that are optimised
        together with all others before a run and then held: :func:`bnn_ppl.fit_points`.
        ``"point"`` is that under a flat prior.

    Returns
    -------
    nnx.Module
        The network with the weights of this trace.

    Raises
    ------
    TypeError
        If `net` is not a factory or an ``nnx.Module``, or `prior` gives no distribution.
    ValueError
        If the dict prior misses a parameter or has a key that fits none; if a word is neither
        ``"fixed"`` nor ``"point"``, or weights of a factory are to be fixed; if a prior of whole
        filters is given for a kernel with other axes; or if the network draws noise of its own
        (dropout), also when it is called, or has an ``nnx.Variable`` that is neither a weight nor
        the statistics of an ``nnx.BatchNorm``, or is in eval mode with those of a new network.

    Notes
    -----
    Arrays that are no ``nnx.Param`` are constants of the network, such as random features. Those
    that a factory draws are drawn once: they are the same for all chains and keys.

    An ``nnx.BatchNorm`` in eval mode normalises by the statistics that the network came with. One
    in train mode normalises by those of the batch, and in predictions by those of the training
    rows, recomputed for each draw; methods whose density must be a product over rows refuse it.
    """
    graph, weights, rest = _parts(net)
    variables = {".".join([name, *map(str, path)]): (path, leaf) for path, leaf in _flat(weights)}
    choose = prior_by_site(prior, name, list(variables))
    chosen, seen, found = [], _Seen(), name
    for site, (path, leaf) in variables.items():
        own = choose(site, _told_shape(choose, site, leaf))
        if isinstance(own, str):  # "fixed"
            _check_given(net, site)
        else:
            with seen:
                leaf = leaf.replace(_sample(site, leaf.get_value(), own))
            found = f"{seen.name.removesuffix(site)}{name}"
        chosen.append((path, leaf))
    network: Any = nnx.merge(graph, nnx.from_flat_state(chosen), rest)
    _use_our_convolution(network)
    _refuse_noise(network, rest)
    keep_no_averages(found, network)
    for change in active_changes():
        network = change(found, network)
    return network


class _Seen(Messenger):
    """Note the name that a site has in the trace, where ``handlers.scope`` puts more in front."""

    name = ""

    def postprocess_message(self, message: dict) -> None:
        self.name = message["name"]


def _told_shape(choose: Callable, site: str, leaf: Any) -> tuple[int, ...]:
    """Give the shape that a prior is told: a kernel's with the outputs last, if that is known.

    But that of the weights, if the prior gives a distribution with a shape.
    """
    shape = leaf.get_metadata(AS_KERNEL, None)
    if shape is None:
        return leaf.shape
    with handlers.block(), handlers.seed(rng_seed=0):  # a hierarchical prior has sites of its own
        tried = choose(site, shape)
    tried = tried.prior if isinstance(tried, Point) else tried
    if isinstance(tried, CorrelatedInputs | SumFilter):
        raise ValueError(
            f"got a prior of whole filters for {site!r}, whose layer keeps its kernel {leaf.shape} "
            "in another order, expected (..., inputs, outputs): use another prior, or a network of "
            "nnx.Linear and nnx.Conv such as nets.MLP"
        )
    has_shape = isinstance(tried, dist.Distribution) and tried.batch_shape
    return leaf.shape if has_shape else shape


def _parts(net: Any) -> Parts:
    """Give the structure of a network, its weights and its other state, once checked."""
    if isinstance(net, nnx.Module):
        return _split(net, ready=True)
    _check_builds(net)
    # Inside a seeded trace the key makes every chain start elsewhere. Without one (a log-density
    # evaluation) only the shapes matter.
    key = _initial_key()
    known = _traced_factory(net, jax.config.values["jax_enable_x64"]) if _is_ours(net) else None
    if known is not None:
        graph, shapes, rest = known.shapes
        return graph, shapes if key is None else known.weights(key), rest
    module = _build(net, jax.random.key(0))
    graph, weights, rest = _split(module, ready=False)
    if _keeps_arrays(module):
        graph, rest = _constants(net, jax.config.values["jax_enable_x64"])
    if key is not None:
        _, weights, _ = _split(_build(net, key), ready=False)
    return graph, weights, rest


def _keeps_arrays(module: nnx.Module) -> bool:
    """Whether a network has arrays that are no variables, such as random features."""
    layers = (layer for _, layer in nnx.iter_modules(module))
    return any(
        isinstance(v, jax.Array | np.ndarray) for layer in layers for v in vars(layer).values()
    )


@lru_cache(maxsize=64)
def _constants(net: Any, double: bool) -> tuple[nnx.GraphDef, nnx.State]:
    """Give all but the weights, computed once: the same in all traces, and not at each step."""
    with jax.ensure_compile_time_eval():
        (graph, _, rest), (_, _, again) = (
            _split(_build(net, jax.random.key(0)), ready=False) for _ in range(2)
        )
        pairs = zip(jax.tree.leaves(rest), jax.tree.leaves(again), strict=True)
        same = all(bool((a == b).all()) for a, b in pairs)
    if not same:
        raise ValueError(
            "got a factory whose networks have other arrays each time, expected the same for the "
            "same rngs: draw them from rngs (jax.random), not by NumPy, or pass one network"
        )
    return graph, rest


def _initial_key() -> jax.Array | None:
    """Ask for a key as ``numpyro.prng_key`` does, by a message that says what it is for."""
    message: Any = {
        "type": "prng_key",
        "fn": lambda rng_key: rng_key,
        "args": (),
        "kwargs": {"rng_key": None},
        "value": None,
        OF_INITIAL_WEIGHTS: True,
    }
    return apply_stack(message)["value"]


def _split(module: nnx.Module, *, ready: bool) -> Parts:
    _refuse_stochastic_layers(module)
    graph, weights, rest = nnx.split(module, nnx.Param, ...)  # type: ignore[misc]
    check_state(module, rest, ready=ready)
    return graph, marked(module, weights), rest


def _is_ours(net: Any) -> bool:
    """Whether a factory makes a network of this package, which keeps no array but its state."""
    made = net.func if isinstance(net, partial) else net
    return isinstance(made, type) and made.__module__.startswith("bnn_ppl.nets.")


class _Factory(NamedTuple):
    """A factory of ours, traced once for all models, since that takes most of the time of each."""

    shapes: Parts  # in place of weights
    weights: Callable[[jax.Array], nnx.State]  # of a key


@lru_cache(maxsize=64)
def _traced_factory(
    net: Any,
    double: bool,  # part of the cache's key alone: tracing reads it
) -> _Factory | None:
    """Trace what a factory makes; None if it has more state than weights.

    Without a key only shapes are needed: a program that initialises weights, though all of them are
    sites, takes a tenth longer to trace and compile.
    """
    found: list[tuple] = []

    def initial(key: jax.Array) -> nnx.State:
        graph, weights, rest = _split(_build(net, key), ready=False)
        found.append((graph, rest, bool(jax.tree.leaves(rest))))
        return weights

    weights = jax.jit(initial)
    shapes = jax.eval_shape(weights, jax.eval_shape(jax.random.key, 0))
    graph, rest, has_state = found[0]
    return None if has_state else _Factory((graph, shapes, rest), weights)


def _build(net: Any, key: jax.Array) -> nnx.Module:
    try:
        module = net(rngs=nnx.Rngs(key))
    except TypeError as error:
        if "required positional argument" not in str(error):
            raise
        raise TypeError(
            f"got a network that needs more than rngs=: {error}, expected a factory that takes "
            "rngs= alone: bind the other arguments by partial(Net, ...)"
        ) from error
    if not isinstance(module, nnx.Module):
        raise TypeError(
            f"got a {type(module).__name__} from net(rngs=...), expected an nnx.Module: "
            "pass a factory such as partial(bnn_ppl.nets.MLP, 6, (50,), 2)"
        )
    return module


def _check_builds(net: Any) -> None:
    """Refuse what cannot be called with ``rngs=`` to build a network."""
    if isinstance(net, linen.Module):
        raise TypeError(
            f"got the linen module {type(net).__name__}, expected an nnx network: "
            "use bnn_ppl.nets.from_linen(module, example_input)"
        )
    name = getattr(net, "__name__", type(net).__name__)
    takes_rngs = callable(net)
    with suppress(ValueError, TypeError):  # no signature to read
        known = inspect.signature(net).parameters
        takes_rngs = "rngs" in known or any(p.kind is p.VAR_KEYWORD for p in known.values())
    if not takes_rngs:
        raise TypeError(
            f"got {name} as network, which does not take rngs=, expected a factory of an "
            "nnx.Module: pass one such as partial(bnn_ppl.nets.MLP, 6, (50,), 2), or convert it by "
            "nets.from_function, from_equinox or from_linen"
        )


def _use_our_convolution(network: nnx.Module) -> None:
    """Use our convolution in this copy of the network, where JAX's is slow inside loops."""
    if not is_accelerator():
        for _, layer in nnx.iter_modules(network):
            if isinstance(layer, nnx.Conv) and layer.conv_general_dilated is conv_general_dilated:
                layer.conv_general_dilated = convolution


def _flat(state: nnx.State) -> list[tuple[tuple, nnx.Variable]]:
    return list(nnx.to_flat_state(state))


def _refuse_stochastic_layers(module: nnx.Module) -> None:
    layers = list(nnx.iter_modules(module))
    training = (isinstance(e, nnx.BatchNorm) and not e.use_running_average for _, e in layers)
    # In eval mode, a new network's BatchNorm would have the statistics of no rows.
    advice = "call .eval()"
    if any(training):
        advice = (
            "call net.set_attributes(nnx.Dropout, deterministic=True), which leaves BatchNorm in "
            "train mode, with the statistics of the training rows"
        )
    for path, layer in layers:
        if isinstance(layer, nnx.Dropout) and not layer.deterministic and layer.rate > 0:
            raise ValueError(
                f"got an active Dropout at {'.'.join(map(str, path))}, expected a deterministic "
                f"network: weights are sampled already, so remove it or {advice}"
            )


def _refuse_noise(network: nnx.Module, state: nnx.State) -> None:
    """Have this copy of the network refuse to draw noise, which would be the same at each call."""
    if not any(isinstance(each, nnx.RngState) for _, each in _flat(state)):
        return
    for path, stream in nnx.iter_graph(network):
        if type(stream) is nnx.RngStream:
            own: Any = stream
            own.place = ".".join(map(str, path))
            own.__class__ = _Refused


class _Refused(nnx.RngStream):
    def __call__(self) -> Any:
        own: Any = self
        return _RefusedKey(own.place)

    def fork(self, **_: Any) -> Any:
        return self().used


class _RefusedKey:
    """A key that may be drawn but not used: an initial carry of zeros takes one."""

    def __init__(self, place: str):
        self._place = place

    def __getattr__(self, name: str) -> Any:
        raise ValueError(
            f"got a network that draws noise from the random stream {self._place}, expected a "
            "deterministic one: weights are sampled already, so remove it or call .eval()"
        )


def _check_given(net: Any, site: str) -> None:
    """Refuse to fix weights that are new each time."""
    if not isinstance(net, nnx.Module):
        raise ValueError(
            f"got 'fixed' for {site!r} of a factory, which makes new weights for each key, "
            "expected given ones: pass a ready module, such as net(rngs=nnx.Rngs(0))"
        )


def _sample(site: str, initial: jax.Array, prior: dist.Distribution | Point) -> jax.Array:
    """Sample one parameter; its initial value travels along for ``Posterior.init``."""
    infer: dict[str, Any] = {"initial_value": InitialValue(initial)}
    if isinstance(prior, Point):
        prior, infer = prior.prior, infer | {POINT: True}
    batch_shape = initial.shape[: initial.ndim - prior.event_dim]
    return numpyro.sample(site, prior.expand(batch_shape).to_event(), infer=infer)
