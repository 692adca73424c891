"""The dense and convolutional layers that a network calls, with their inputs as matrices."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bnn_ppl.methods.layers.layers import Layer, tapped
from bnn_ppl.model.posterior import Posterior

Array = jax.Array
Tree = Any


class LayerCall(NamedTuple):
    """A dense or convolutional layer as the network calls it."""

    kernel_shape: tuple[int, ...]
    has_bias: bool  # among the sites; a bias that is held adds nothing to learn
    num_positions: int  # outputs per row: 1 for a dense layer on (rows, features)
    has_factors: bool  # whether it is a product of the kernel and the inputs, or patches of them
    has_kernel: bool = True  # among the sites


def called_layers(posterior: Posterior, position: Tree, batch: Any) -> dict[str, LayerCall]:
    """List dense and convolutional layers by name, in the order of their calls, by tracing.

    Layers without weights among the sites are left out, and those with constrained weights (say,
    positive ones): these are not the position's own values, so gradients by outputs do not give
    those by the position.
    """
    calls: dict[str, LayerCall] = {}
    num_rows = len(batch[1])

    def note(name: str, layer: Layer, inputs: Array) -> Array:
        outputs = layer(inputs)
        if outputs.ndim < 2 or outputs.shape[0] != num_rows:
            raise ValueError(
                f"got {name} called on {inputs.shape} for {num_rows} rows, expected (rows, ...): "
                "call the network on all rows at once, without vmap"
            )
        kernel_shape = layer.kernel.shape
        num_positions = outputs.size // (num_rows * kernel_shape[-1])
        has_factors = not (isinstance(layer, nnx.Conv) and _unsupported(layer))
        own = [layer.bias is not None and f"{name}.bias" in position, f"{name}.kernel" in position]
        if any(own):
            calls[name] = LayerCall(kernel_shape, own[0], num_positions, has_factors, own[1])
        return outputs

    # A new function: JAX caches traces by function, and a cached one would not call the tap.
    with tapped(note):
        jax.eval_shape(lambda *args: posterior.log_likelihood(*args), position, batch)
    plain = _unchanged_sites(posterior, position, batch)
    return {name: call for name, call in calls.items() if plain.issuperset(sites_of(name, call))}


def network_of(layer: str) -> str:
    """Name of the network that a layer is in."""
    return layer.partition(".")[0]


def sites_of(name: str, call: LayerCall) -> list[str]:
    """Names of the sites among a layer's weights."""
    parts = {"kernel": call.has_kernel, "bias": call.has_bias}
    return [f"{name}.{part}" for part, is_site in parts.items() if is_site]


def by_site(name: str, call: LayerCall, matrix: Array) -> dict[str, Array]:
    """Split a matrix (inputs of the layer and 1 for a bias, outputs) into the layer's sites.

    Its kernel must be one of them.
    """
    num_inputs = len(matrix) - call.has_bias
    parts = [matrix[:num_inputs].reshape(call.kernel_shape), *matrix[num_inputs:]]
    return dict(zip(sites_of(name, call), parts, strict=True))


def _unchanged_sites(posterior: Posterior, position: Tree, batch: Any) -> set[str]:
    found: set[str] = set()

    def inspect(position: Tree) -> None:
        values = posterior.constrain(position, batch)
        found.update(site for site in position if values[site] is position[site])

    jax.eval_shape(inspect, position)
    return found


def inputs_of(layer: Layer, inputs: Array, has_bias: bool) -> Array:
    """Arrange what a layer's kernel multiplies, and 1 for a bias, as (rows, positions, n)."""
    rows = len(inputs)
    flat = _patches(layer, inputs) if isinstance(layer, nnx.Conv) else inputs
    flat = flat.reshape(rows, -1, flat.shape[-1])
    ones = jnp.ones((*flat.shape[:2], int(has_bias)), flat.dtype)
    return jnp.concatenate([flat, ones], -1)


def _patches(layer: nnx.Conv, images: Array) -> Array:
    """Cut images (..., height, width, channels) into patches, one per output position."""
    _check_convolution(layer)
    size = layer.kernel_size
    rank = len(size)
    images = images.reshape(-1, *images.shape[-rank - 1 :])

    def by_axis(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value or 1,) * rank

    patches = jax.lax.conv_general_dilated_patches(
        jnp.moveaxis(images, -1, 1),
        size,
        by_axis(layer.strides),
        _padding(layer.padding, rank),
        lhs_dilation=by_axis(layer.input_dilation),
        rhs_dilation=by_axis(layer.kernel_dilation),
    )  # (rows, channels * height * width of the kernel, ...)
    places = patches.shape[2:]
    patches = patches.reshape(len(images), images.shape[-1], *size, *places)
    kernel_axes = tuple(range(2, 2 + rank))
    places_axes = tuple(range(2 + rank, 2 + 2 * rank))
    patches = patches.transpose(0, *places_axes, *kernel_axes, 1)
    return patches.reshape(len(images), *places, -1)


def _padding(padding: Any, rank: int) -> Any:
    """Convert a convolution's padding to the form of `jax.lax`: a string or a pair per axis."""
    if isinstance(padding, str):
        return padding
    each = (padding,) * rank if isinstance(padding, int) else padding
    return [(p, p) if isinstance(p, int) else tuple(p) for p in each]


def _check_convolution(layer: nnx.Conv) -> None:
    """Refuse convolutions that are not a product of patches and one kernel."""
    got = _unsupported(layer)
    if got:
        raise ValueError(
            f"got a convolution with {got}, expected one group, no mask and padding 'SAME', "
            "'VALID' or explicit: use structure='diagonal'"
        )


def _unsupported(layer: nnx.Conv) -> str:
    """Name what keeps a convolution from being a product of patches and one kernel, if any."""
    padding = layer.padding
    if isinstance(padding, str) and padding not in ("SAME", "VALID"):
        return f"padding={padding!r}"
    if layer.feature_group_count != 1:
        return f"feature_group_count={layer.feature_group_count}"
    return "" if layer.mask is None else "a mask on the kernel"
