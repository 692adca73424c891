"""Shapes of kernels as priors are told them: inputs first, outputs last."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.core import meta

AS_KERNEL = "as_kernel"  # metadata of a weight: its shape with the outputs last, for priors

Shape = tuple[int, ...]
Path = tuple[Any, ...]


def marked(module: nnx.Module, weights: nnx.State) -> nnx.State:
    """Note with the weights of a network which layers keep their kernels otherwise."""
    shapes = dict(_of_layers(module))
    if not shapes:
        return weights
    leaves = []
    for path, leaf in nnx.to_flat_state(weights):
        if path in shapes:
            leaf = leaf.copy()  # the module's own stays as it is
            leaf.set_metadata(AS_KERNEL, shapes[path])
        leaves.append((path, leaf))
    return nnx.from_flat_state(leaves)


def _of_layers(module: nnx.Module) -> Iterator[tuple[Path, Shape]]:
    for path, layer in nnx.iter_modules(module):
        if isinstance(layer, nnx.LinearGeneral):
            sizes = len(layer.batch_axis), len(layer.in_features)
            yield (*path, "kernel"), _of_dense(layer.kernel.shape, *sizes)
        elif isinstance(layer, nnx.ConvTranspose) and layer.transpose_kernel:
            yield (*path, "kernel"), _of_transposed(layer.kernel.shape)


@contextmanager
def of_linen() -> Iterator[dict[Path, Shape]]:
    """Find those of the linen layers that are called within this context."""
    found: dict[Path, Shape] = {}

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer, outputs = context.module, call(*args, **kwargs)
        is_call = context.method_name == "__call__"
        known = meta.unbox(layer.variables.get("params", {})) if is_call else {}
        path = (*layer.path, "kernel")
        if isinstance(layer, linen.DenseGeneral) and "kernel" in known:
            num_batch, num_inputs = (
                len(axes) if isinstance(axes, tuple | list) else 1
                for axes in (layer.batch_dims, layer.axis)
            )
            found[path] = _of_dense(jnp.shape(known["kernel"]), num_batch, num_inputs)
        elif isinstance(layer, linen.ConvTranspose) and layer.transpose_kernel and known:
            found[path] = _of_transposed(jnp.shape(known["kernel"]))
        return outputs

    with linen.intercept_methods(note):
        yield found


def _of_dense(shape: Shape, num_batch: int, num_inputs: int) -> Shape:
    inputs = math.prod(shape[num_batch : num_batch + num_inputs])
    return inputs, math.prod(shape) // inputs


def _of_transposed(shape: Shape) -> Shape:
    return *shape[:-2], shape[-1], shape[-2]


def of_equinox(module: Any) -> dict[str, Shape]:
    """Give those of the weights of Equinox's layers, by their names."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(module)[0]:
        owner = module
        for key in path[:-1]:
            owner = getattr(owner, key.name) if hasattr(key, "name") else owner[_place(key)]
        kind = type(owner)
        if kind.__module__.startswith("equinox.") and path:
            shape = jnp.shape(leaf)
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            if kind.__name__ == "Embedding":  # looks up one row for each token
                found[name] = (1, *shape[1:])
            elif getattr(path[-1], "name", "") == "bias":  # of a convolution (out, 1, 1)
                found[name] = (math.prod(shape),)
            else:
                found[name] = (*shape[1:], *shape[:1])
    return found


def _place(key: Any) -> Any:
    return key.idx if hasattr(key, "idx") else key.key
