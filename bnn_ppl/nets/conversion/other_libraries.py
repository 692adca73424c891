"""Networks of other libraries, and plain functions, as NNX modules."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from bnn_ppl.nets.conversion.kernel_shapes import AS_KERNEL, of_equinox, of_linen

Tree = Any


def from_linen(module: linen.Module, example_input: jax.Array) -> Callable[..., nnx.Module]:
    """Turn a linen module into a factory for :func:`bnn_ppl.random_network`.

    Parameters
    ----------
    module
        A linen module called as ``module(x)``.
    example_input
        Any input of the right shape, for example ``x[:1]``: linen infers shapes from it.

    Returns
    -------
    Callable
        Called with ``rngs=`` it gives an ``nnx.Module`` with freshly initialised weights.
    """

    def factory(*, rngs: nnx.Rngs) -> nnx.Module:
        with of_linen() as shapes:
            bridged = nnx.bridge.lazy_init(nnx.bridge.ToNNX(module, rngs=rngs), example_input)
        for path, weight in nnx.to_flat_state(nnx.state(bridged, nnx.Param)):
            if path in shapes:
                weight.set_metadata(AS_KERNEL, shapes[path])
        bridged.to_nnx__rngs = None  # active dropout then fails instead of freezing one mask
        return bridged

    return factory


def from_function(
    init: Callable[[jax.Array], Tree], apply: Callable[[Tree, Any], Any]
) -> Callable[..., nnx.Module]:
    """Turn a function of a tree of weights into a factory for :func:`bnn_ppl.random_network`.

    Parameters
    ----------
    init
        ``key -> weights``, a tree of arrays; every one gets a prior, under the name of its path,
        such as ``net.dense.0`` for ``weights["dense"][0]``.
    apply
        ``weights, x -> outputs`` with rows first, in x as in the outputs.

    Returns
    -------
    Callable
        Called with ``rngs=`` it gives an ``nnx.Module`` with freshly initialised weights.

    Examples
    --------
    >>> def init(key):
    ...     return {"w": jax.random.normal(key, (6, 1)), "b": jnp.zeros(1)}
    >>> def apply(weights, x):
    ...     return x @ weights["w"] + weights["b"]
    >>> model = bnn.models.regressor(bnn.nets.from_function(init, apply), bnn.priors.normal())
    """

    def factory(*, rngs: nnx.Rngs) -> nnx.Module:
        leaves, structure = _named_leaves(init(rngs.params()))

        def network(weights: dict[str, jax.Array], x: Any) -> Any:
            return apply(jax.tree.unflatten(structure, list(weights.values())), x)

        return _Network(leaves, network)

    return factory


def from_equinox(make: Any) -> Callable[..., nnx.Module]:
    """Turn an Equinox module into a factory for :func:`bnn_ppl.random_network`.

    Its floating-point arrays are the weights (``equinox.is_inexact_array``); all else stays as it
    is. Any other callable pytree will do. Equinox's layers keep their kernels as (out, in, ...); a
    prior that is a function of name and shape, such as :func:`bnn_ppl.priors.fan_in`, is told
    (..., in, out), unless its distribution has the shape of the weights.

    Parameters
    ----------
    make
        ``key -> module``, such as ``lambda key: eqx.nn.MLP(6, 1, 50, 1, key=key)``, or a ready
        module, at whose weights all chains start. The module maps one example, without a leading
        axis of rows, as Equinox's do.

    Returns
    -------
    Callable
        Called with ``rngs=`` it gives an ``nnx.Module``.
    """

    def factory(*, rngs: nnx.Rngs) -> nnx.Module:
        ready = any(map(_is_weight, jax.tree.leaves(make)))
        made = make if ready else make(rngs.params())
        leaves, structure = _named_leaves(made)

        def network(weights: dict[str, jax.Array], x: Any) -> Any:
            module = jax.tree.unflatten(structure, list((leaves | weights).values()))
            return jax.vmap(module)(x)

        weights = {name: leaf for name, leaf in leaves.items() if _is_weight(leaf)}
        return _Network(weights, network, of_equinox(made))

    return factory


class _Network(nnx.Module):
    """A function of named weights and x, which holds the weights as parameters."""

    def __init__(
        self,
        weights: dict[str, jax.Array],
        function: Callable,
        kernel_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ):
        self._names, self._function = tuple(weights), function
        for name, leaf in weights.items():
            more: dict[str, Any] = {AS_KERNEL: kernel_shapes[name]} if name in kernel_shapes else {}
            setattr(self, name, nnx.Param(jnp.asarray(leaf), **more))

    def __call__(self, x: Any) -> Any:
        return self._function({name: getattr(self, name)[...] for name in self._names}, x)


def _named_leaves(tree: Tree) -> tuple[dict[str, Any], Any]:
    """Give the leaves by the names of their paths, in order, and the structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    keystr = jax.tree_util.keystr
    names = (keystr(path, simple=True, separator=".") or "weights" for path, _ in leaves)
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}, structure


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)
