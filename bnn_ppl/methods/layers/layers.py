"""Taps: functions that a method substitutes for the layers of a network inside a model."""

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
    """Replace the output of each dense and convolutional layer by ``tap(name, layer, inputs)``.

    This holds within the context. The name is the prefix of the layer's sites ("net.layers.0"); the
    layer holds its weights as traced and can be called as usual. Layers inside recurrent cells are
    not tapped: they are called once per time step, in a loop of their own. Call the posterior's
    functions directly: one under a ``jax.jit`` of its own may have been traced before, without the
    tap.
    """

    def change(name: str, network: nnx.Module) -> nnx.Module:
        called: set[str] = set()

        def once(name: str, layer: Layer, inputs: jax.Array) -> jax.Array:
            if name in called:
                raise ValueError(
                    f"got a network that calls {name} more than once, expected one call: methods "
                    "that work layer by layer do not support shared layers; use another method"
                )
            called.add(name)
            return tap(name, layer, inputs)

        for path, layer in _layers(network):
            # The class is changed, not the attribute: a layer may be inside any container.
            layer.tap = _Bound(once, ".".join([name, *map(str, path)]), type(layer))
            layer.__class__ = _TAPPED[type(layer)]
        return network

    with changed_networks(change):
        yield


def with_weights(layer: Layer, kernel: jax.Array, bias: jax.Array | None) -> Layer:
    """Copy a layer with other weights."""
    other: Any = nnx.clone(layer)
    other.kernel[...] = kernel
    if bias is not None:
        other.bias[...] = bias
    return other


class _Bound:
    """A tap and its layer; a class, since the attributes of a network cannot be functions."""

    def __init__(self, tap: Tap, name: str, kind: type):
        self.tap, self.name, self.kind = tap, name, kind


def _tapped_call(self: Any, inputs: jax.Array) -> jax.Array:
    bound = self.tap
    # For the call the layer has its own class again. By `object`'s method, since flax forbids loops
    # to change a module from outside, and this change is undone before the loop can see it.
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
