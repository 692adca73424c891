"""Taps: what a method does at each layer of a network inside a model that knows nothing of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import jax
from flax import nnx

from bnn_ppl.model.network import changed_networks

Layer: TypeAlias = nnx.Linear | nnx.Conv
Tap: TypeAlias = Callable[[str, Layer, jax.Array], jax.Array]


@contextmanager
def tapped(tap: Tap) -> Iterator[None]:
    """Within this context each dense and convolutional layer gives ``tap(name, layer, inputs)``.

    The name is the first part of the layer's sites ("net.layers.0"); the layer holds its weights in
    the trace and is called as usual. Layers inside recurrent cells are left alone: they are called
    once a time step, in a loop of their own. Give the posterior's functions as they are: one under
    a ``jax.jit`` of its own may have been traced before, without the tap.

    Raises
    ------
    ValueError
        If a layer is called twice: its weights would be taken for two.
    """

    def change(name: str, network: nnx.Module) -> nnx.Module:
        called: set[str] = set()

        def once(name: str, layer: Layer, inputs: jax.Array) -> jax.Array:
            if name in called:
                raise ValueError(
                    f"got a network that calls {name} more than once, expected once: methods that "
                    "work layer by layer take a call for a layer; use another method"
                )
            called.add(name)
            return tap(name, layer, inputs)

        for path, layer in _layers(network):
            # The class is changed, not the attribute: a layer may sit in any container.
            layer.tap = _Bound(once, ".".join([name, *map(str, path)]), type(layer))
            layer.__class__ = _TAPPED[type(layer)]
        return network

    with changed_networks(change):
        yield


def with_weights(layer: Layer, kernel: jax.Array, bias: jax.Array | None) -> Layer:
    """Give the same layer with other weights."""
    other: Any = nnx.clone(layer)
    other.kernel[...] = kernel
    if bias is not None:
        other.bias[...] = bias
    return other


class _Bound:
    """A tap and the layer it is at; a class, for a network's attributes cannot be functions."""

    def __init__(self, tap: Tap, name: str, kind: type):
        self.tap, self.name, self.kind = tap, name, kind


def _tapped_call(self: Any, inputs: jax.Array) -> jax.Array:
    bound = self.tap
    # To be called as the layer it is; by object's, for flax lets no loop change a module from
    # outside, and this change is over before the loop sees it.
    object.__setattr__(self, "__class__", bound.kind)
    try:
        return bound.tap(bound.name, self, inputs)
    finally:
        object.__setattr__(self, "__class__", _TAPPED[bound.kind])


class _TappedLinear(nnx.Linear):
    __call__ = _tapped_call  # type: ignore[assignment]


class _TappedConv(nnx.Conv):
    __call__ = _tapped_call  # type: ignore[assignment]


_TAPPED: dict[type, type] = {nnx.Linear: _TappedLinear, nnx.Conv: _TappedConv}


def _layers(network: nnx.Module) -> list[tuple[tuple, Any]]:
    modules = list(nnx.iter_modules(network))
    cells = [path for path, module in modules if isinstance(module, nnx.RNNCellBase)]
    return [
        (path, module)
        for path, module in modules
        if type(module) in _TAPPED and not any(path[: len(cell)] == cell for cell in cells)
    ]
