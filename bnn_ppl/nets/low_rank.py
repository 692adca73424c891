"""Low-rank adapters: a few weights beside the many of a trained layer."""

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bnn_ppl.nets.conversion.weights import Net, few
from bnn_ppl.nets.mlp import MLP

_start_a = nnx.initializers.he_uniform()  # as flax.nnx.LoRA


def low_rank(
    net: Net, rank: int, where: str | Sequence[str] = "*", alpha: float | None = None
) -> Net:
    r"""Add low-rank adapters to dense and convolutional layers.

    .. math:: f(x) = W x + b + \frac{\alpha}{r}\, B A x

    A maps the inputs of a layer to `rank` numbers and B these to its outputs (Hu et al., 2022,
    "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1). B starts at zero, so that
    the network computes the same function as before, bit for bit. With the layers themselves held
    fixed, the posterior of the adapters is that of Yang et al. (2024), "Bayesian Low-rank
    Adaptation for Large Language Models", who take a Laplace approximation.

    The adapters are layers, `lora_a` and `lora_b`, inside the layer that they adapt, without
    biases: their sites are ``net.output.lora_a.kernel`` and ``net.output.lora_b.kernel``, beside
    ``net.output.kernel``, and methods that work layer by layer (Kronecker factors, local
    reparametrisation) see them as they do all others. In a convolution A is one of `rank` channels
    with the same window, strides and padding, and B a convolution of one pixel. Their weights are
    ``flax.nnx.LoRAParam``.

    Parameters
    ----------
    net
        A factory that gives an ``nnx.Module`` when called with ``rngs=``, or a ready module, which
        stays as it is. Of a linen network (:func:`from_linen`) the layers with a ``kernel`` are
        adapted; each call adds the product of the adapters to it.
    rank
        Number of columns of A and rows of B.
    where
        Shell pattern of the layers' paths, such as ``"blocks.*"`` or ``"*.second.conv"``, or
        several.
    alpha
        Scale of the adapters, divided by `rank`; by default `rank` itself.

    Returns
    -------
    nnx.Module or Callable
        As `net`: a module, or a factory.

    Raises
    ------
    ValueError
        If the rank is below 1, or above the number of inputs or of outputs of a layer; if a
        pattern matches no layer; if a layer has adapters already, groups or a mask, or is not
        called by its network (an :class:`MLP` with ``features_first``).
    """
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 1:
        raise ValueError(f"got rank={rank!r}, expected an integer, 1 or more: 4 is usual")
    if alpha is not None and not 0 < alpha < math.inf:
        raise ValueError(f"got alpha={alpha!r}, expected a positive number: leave it out")
    scale = 1.0 if alpha is None else alpha / rank
    patterns = (where,) if isinstance(where, str) else tuple(where)
    if not patterns:
        raise ValueError("got where=() without a pattern, expected one or more: '*' is all layers")
    add = partial(_with_adapters, rank=rank, patterns=patterns, scale=scale)
    if isinstance(net, nnx.Module):
        return add(nnx.clone(net), rngs=nnx.Rngs(0))

    def factory(*, rngs: nnx.Rngs) -> nnx.Module:
        return add(net(rngs=rngs), rngs=rngs)

    nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))  # refuses
    return factory


class _Place(NamedTuple):
    """A layer that can be adapted."""

    path: str
    kernel: nnx.Variable
    add: Callable[..., None]  # called with rank=, scale= and rngs=


def _with_adapters(
    module: nnx.Module, *, rank: int, patterns: tuple[str, ...], scale: float, rngs: nnx.Rngs
) -> nnx.Module:
    if any(isinstance(m, MLP) and m.features_first for _, m in nnx.iter_modules(module)):
        raise ValueError(
            "got an MLP with features_first, which does not call its layers, expected layers that "
            "are called: leave features_first out"
        )
    places = list(_places(module))
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(place.path, pattern) for place in places):
            raise ValueError(
                f"got where={pattern!r}, which matches no layer, expected a pattern of dense or "
                f"convolutional layers: {few([place.path for place in places])}"
            )
    chosen = [p for p in places if any(fnmatch.fnmatchcase(p.path, each) for each in patterns)]
    for place in chosen:
        most = min(math.prod(place.kernel.shape[:-1]), place.kernel.shape[-1])
        if rank > most:
            raise ValueError(
                f"got rank={rank} for {place.path} with a kernel of shape {place.kernel.shape}, "
                f"expected at most {most}: lower it, or leave the layer out of where="
            )
    for place in chosen:
        place.add(rank=rank, scale=scale, rngs=rngs)
    return module


def _places(module: nnx.Module) -> Iterator[_Place]:
    for path, layer in list(nnx.iter_modules(module)):
        name = ".".join(map(str, path))
        if type(layer) in _ADAPTED:
            own: Any = layer
            yield _Place(name, own.kernel, partial(_adapt, layer, name))
        elif isinstance(layer, nnx.bridge.ToNNX):
            for inner, weights in list(_with_kernels(layer)):
                whole = ".".join([*map(str, path), *inner])
                yield _Place(whole, weights["kernel"], partial(_adapt_linen, layer, inner, whole))
        elif isinstance(layer, tuple(_ADAPTED.values())):
            raise ValueError(
                f"got a network with adapters at {name}, expected one without: call low_rank once, "
                "with several patterns"
            )


# --- nnx


def _adapt(layer: Any, name: str, rank: int, scale: float, rngs: nnx.Rngs) -> None:
    options: dict[str, Any] = {
        "use_bias": False,
        "dtype": layer.dtype,
        "param_dtype": layer.param_dtype,
        "precision": layer.precision,
        "rngs": rngs,
    }
    inputs, outputs = layer.in_features, layer.out_features
    convolves = isinstance(layer, nnx.Conv)
    if convolves:
        if layer.feature_group_count != 1 or layer.mask is not None:
            raise ValueError(
                f"got a convolution with groups or a mask at {name}, expected one without: leave "
                "it out of where="
            )
        window = ("strides", "padding", "input_dilation", "kernel_dilation", "conv_general_dilated")
        layer.lora_a = nnx.Conv(
            inputs,
            rank,
            layer.kernel_size,
            kernel_init=_start_a,
            **{name: getattr(layer, name) for name in window},
            **options,
        )
    else:
        layer.lora_a = nnx.Linear(inputs, rank, kernel_init=_start_a, **options)
    layer.lora_b = nnx.Linear(rank, outputs, kernel_init=nnx.initializers.zeros, **options)
    for adapter in (layer.lora_a, layer.lora_b):
        adapter.kernel = nnx.LoRAParam(adapter.kernel[...])
    layer.lora_scale = scale
    layer.__class__ = _ADAPTED[type(layer)]


class LowRankLinear(nnx.Linear):
    """A dense layer with adapters."""

    def __call__(self, inputs: jax.Array, *args: Any, **options: Any) -> jax.Array:
        """Add what the adapters give."""
        return super().__call__(inputs, *args, **options) + _through_adapters(self, inputs)


class LowRankConv(nnx.Conv):
    """A convolution with adapters."""

    def __call__(self, inputs: jax.Array, *args: Any, **options: Any) -> jax.Array:
        """Add what the adapters give."""
        return super().__call__(inputs, *args, **options) + _through_adapters(self, inputs)


def _through_adapters(layer: Any, inputs: jax.Array) -> jax.Array:
    return layer.lora_scale * layer.lora_b(layer.lora_a(inputs))


_ADAPTED: dict[type, type] = {nnx.Linear: LowRankLinear, nnx.Conv: LowRankConv}


# --- linen


class LowRankLinen(nnx.bridge.ToNNX):
    """A linen network with adapters: each call adds their product to the kernels."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the network with the sums as kernels."""
        plain: Any = nnx.clone(self)
        plain.__class__ = nnx.bridge.ToNNX
        for _, weights in _with_kernels(plain):
            if "lora_a" in weights:
                a, b = (weights.pop(name)["kernel"][...] for name in ("lora_a", "lora_b"))
                change = a.reshape(-1, a.shape[-1]) @ b
                kernel = weights["kernel"]
                kernel[...] += self.to_nnx__lora_scale * change.reshape(kernel.shape)
        return plain(*args, **options)


def _adapt_linen(
    network: Any, path: tuple[str, ...], name: str, rank: int, scale: float, rngs: nnx.Rngs
) -> None:
    weights = next(found for inner, found in _with_kernels(network) if inner == path)
    if "lora_a" in weights:
        raise ValueError(
            f"got a network with adapters at {name}, expected one without: call low_rank once, "
            "with several patterns"
        )
    *inputs, outputs = weights["kernel"].shape
    dtype = weights["kernel"].dtype
    start = _start_a(rngs.params(), (*inputs, rank), dtype)
    weights["lora_a"] = {"kernel": nnx.LoRAParam(start)}
    weights["lora_b"] = {"kernel": nnx.LoRAParam(jnp.zeros((rank, outputs), dtype))}
    network.to_nnx__lora_scale = scale
    network.__class__ = LowRankLinen


def _with_kernels(network: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Give the weights of the layers of a linen network that have a kernel, by path."""

    def inside(path: tuple[str, ...], weights: dict[str, Any]) -> Iterator:
        if isinstance(weights.get("kernel"), nnx.Param):
            yield path, weights
        for name, inner in weights.items():
            if isinstance(inner, dict) and not name.startswith("lora_"):
                yield from inside((*path, name), inner)

    for name, weights in list(vars(network).items()):
        if isinstance(weights, dict) and not name.startswith(("to_nnx__", "_pytree__")):
            yield from inside((name,), weights)
