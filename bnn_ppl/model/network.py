"""Random networks: a Flax network whose every weight is a NumPyro sample site."""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import jax
import numpyro
import numpyro.distributions as dist
from flax import linen, nnx
from jax.lax import conv_general_dilated

from bnn_ppl.model.batch_norm import check_state, keep_no_averages
from bnn_ppl.nets.convolution import convolution
from bnn_ppl.runtime.devices import is_accelerator

Prior: TypeAlias = (
    dist.Distribution | Mapping[str, dist.Distribution] | Callable[..., dist.Distribution]
)

Change: TypeAlias = Callable[[str, nnx.Module], Any]


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

    The module is the trace's own and may be changed in place. This is how methods reach the layers
    of a network inside a model written without them in mind.
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
    """Put a prior on every weight of a network; call inside a NumPyro model.

    Each parameter becomes one sample site named by its path in the module, for example
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
        A distribution for each weight; or a dict from site name to distribution that names every
        parameter; or a function ``(site_name, shape) -> distribution``, which may itself sample
        (a scale shared by the tensor, say). A distribution without batch shape is independent over
        the weights; its event dimensions, if any, are the parameter's last ones.

    Returns
    -------
    nnx.Module
        The network with the weights of this trace.

    Raises
    ------
    TypeError
        If `net` is not a factory or an ``nnx.Module``, or `prior` gives no distribution.
    ValueError
        If the dict prior misses a parameter or names an unknown one, or if the network draws noise
        of its own (dropout) or has state that is neither a weight nor the statistics of an
        ``nnx.BatchNorm``, or is in eval mode with those of a new network.

    Notes
    -----
    An ``nnx.BatchNorm`` in eval mode normalises by the statistics that the network came with. One
    in train mode normalises by those of the batch, and in predictions by those of the training
    rows, recomputed for each draw; methods whose density must be a product over rows refuse it.
    """
    module = _build(net)
    _refuse_stochastic_layers(module)
    graph, weights, rest = nnx.split(module, nnx.Param, ...)  # type: ignore[misc]
    check_state(module, rest)
    variables = {".".join([name, *map(str, path)]): (path, leaf) for path, leaf in _flat(weights)}
    choose = _per_site(prior, list(variables))
    sampled = [
        (path, leaf.replace(_sample(site, leaf[...], choose)))
        for site, (path, leaf) in variables.items()
    ]
    network: Any = nnx.merge(graph, nnx.from_flat_state(sampled), rest)
    _use_our_convolution(network)
    keep_no_averages(name, network)
    for change in active_changes():
        network = change(name, network)
    return network


def _build(net: Any) -> nnx.Module:
    if isinstance(net, nnx.Module):
        return net
    if isinstance(net, linen.Module):
        raise TypeError(
            f"got the linen module {type(net).__name__}, expected an nnx network: "
            "use bnn_ppl.nets.from_linen(module, example_input)"
        )
    _check_builds(net)
    # Inside a seeded trace the key makes every chain start elsewhere. Without one (a log-density
    # evaluation) only the shapes matter, and the compiler drops the initial values.
    key = numpyro.prng_key()
    try:
        module = net(rngs=nnx.Rngs(jax.random.key(0) if key is None else key))
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
    for path, layer in nnx.iter_modules(module):
        if isinstance(layer, nnx.Dropout) and not layer.deterministic and layer.rate > 0:
            raise ValueError(
                f"got an active Dropout at {'.'.join(map(str, path))}, expected a deterministic "
                "network: weights are sampled already, so remove it or call .eval()"
            )


def _per_site(prior: Prior, sites: list[str]) -> Callable[[str, tuple], dist.Distribution]:
    if isinstance(prior, dist.Distribution):
        return lambda site, shape: prior
    if callable(prior):
        _check_takes_sites(prior)
        _check_has_site(prior, sites)
        return prior
    if not isinstance(prior, Mapping):
        raise _not_a_prior(prior, "bnn_ppl.priors.normal(0.3), a dict by site name or a function")
    for unknown in [site for site in prior if site not in sites]:
        close = difflib.get_close_matches(unknown, sites, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the sites are {', '.join(sites)}"
        raise ValueError(f"got a prior for {unknown!r}, expected a parameter of the net: {hint}")
    missing = [site for site in sites if site not in prior]
    if missing:
        raise ValueError(
            f"got a prior that misses {', '.join(missing)}, expected one for every parameter: "
            "add them, or use a function (site_name, shape) -> distribution"
        )
    return lambda site, shape: prior[site]


def _check_takes_sites(prior: Callable) -> None:
    """Refuse a class or function that was meant to be called, such as ``priors.normal``."""
    function = prior.func if isinstance(prior, partial) else prior
    name = getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(prior).bind("site", ())
        takes_sites = not isinstance(prior, type)
    except ValueError:  # no signature to read
        return
    except TypeError:
        takes_sites = False
    if not takes_sites:
        raise TypeError(
            f"got {name} as prior, expected a distribution or a function (site_name, shape) -> "
            f"distribution: call it, as in {name}(...)"
        )


def _check_has_site(prior: Callable, sites: list[str]) -> None:
    """Refuse a prior of one kernel, such as ``priors.empcov``, for a network without it."""
    site = getattr(prior, "site", None)
    if site is not None and site not in sites:
        raise ValueError(
            f"got a prior for {site!r}, expected a parameter of the net: the sites are "
            f"{', '.join(sites)}; pass one as site="
        )


def _not_a_prior(got: Any, use: str) -> TypeError:
    return TypeError(f"got a {type(got).__name__} as prior, expected a distribution: use {use}")


def _sample(site: str, initial: jax.Array, choose: Callable) -> jax.Array:
    """Sample one parameter; its initial value travels along for ``Posterior.init``."""
    chosen = choose(site, initial.shape)
    if not isinstance(chosen, dist.Distribution):
        raise _not_a_prior(chosen, f"a numpyro Distribution for {site!r}")
    batch_shape = initial.shape[: initial.ndim - chosen.event_dim]
    return numpyro.sample(
        site, chosen.expand(batch_shape).to_event(), infer={"initial_value": InitialValue(initial)}
    )
