"""Residual networks with filter response normalisation in place of batch normalisation."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
from flax import nnx

from bnn_ppl.nets.layers import FilterResponseNorm

Activation = Callable[[jax.Array], jax.Array]

_he_normal = nnx.initializers.he_normal()  # truncated, by fan-in


class ResNet(nnx.Module):
    """Residual network for small images.

    He et al. (2016), "Deep Residual Learning for Image Recognition", section 4.2, normalised as in
    Izmailov et al. (2021), "What Are Bayesian Neural Network Posteriors Really Like?": a 3x3
    convolution; for each width a stage of blocks, where all stages but the first begin with
    stride 2; the mean over pixels; a dense layer. A block of 3x3 convolutions is
    ``act(x + norm(conv(act(norm(conv(x))))))``; where it has stride 2, its x goes through a 1x1
    convolution and a normalisation. Convolutions pad with zeros to the same size; kernels start
    He-normal (truncated, by fan-in), biases at 0.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image.
    num_classes
        Number of outputs.
    depth
        Layers with weights, not counting shortcuts: 2 per block, and 2 more.
    widths
        Channels of each stage.
    activation
        ReLU by default.
    use_bias
        Whether convolutions have biases.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If the depth does not give a whole number of blocks per stage.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        depth: int = 20,
        widths: Sequence[int] = (16, 32, 64),
        activation: Activation = nnx.relu,
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ):
        options: dict[str, Any] = {"use_bias": use_bias, "rngs": rngs}
        self.stem = _NormalisedConv(image_shape[-1], widths[0], 3, 1, **options)
        self.blocks = _blocks(_Block, depth, widths, activation=activation, **options)
        self.output = nnx.Linear(widths[-1], num_classes, kernel_init=_he_normal, rngs=rngs)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        x = self.activation(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.output(x.mean((1, 2)))


class ResNet20(ResNet):
    """The ResNet of Izmailov et al. (2021) on CIFAR-10: 274,042 parameters for 32x32x3, 10 classes.

    ResNet-20-FRN; with swish, by default, or with ReLU: ``activation=flax.nnx.relu``.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image.
    num_classes
        Number of outputs.
    activation
        Swish by default.
    rngs
        Source of the initial weights.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        activation: Activation = nnx.swish,
        rngs: nnx.Rngs,
    ):
        super().__init__(image_shape, num_classes, activation=activation, rngs=rngs)


class ResNet18(ResNet):
    """Wide and shallow: stages of 64, 128, 256 and 512 channels, two blocks each.

    As in Osawa et al. (2019), "Practical Deep Learning with Bayesian Principles", for images of 32
    pixels a side, with filter response normalisation: 11,178,762 parameters for 32x32x3, 10
    classes. Convolutions have no biases.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image.
    num_classes
        Number of outputs.
    activation
        ReLU by default.
    rngs
        Source of the initial weights.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        activation: Activation = nnx.relu,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            image_shape,
            num_classes,
            depth=18,
            widths=(64, 128, 256, 512),
            activation=activation,
            use_bias=False,
            rngs=rngs,
        )


class PreResNet(nnx.Module):
    """Residual network whose blocks normalise and activate before they convolve.

    He et al. (2016), "Identity Mappings in Deep Residual Networks"; as in Wilson & Izmailov (2020),
    "Bayesian Deep Learning and a Probabilistic Perspective of Generalization", with filter response
    normalisation: 272,970 parameters at depth 20 for 32x32x3, 10 classes. As :class:`ResNet`, but a
    block is ``x + conv(act(norm(conv(act(norm(x))))))``, its shortcut at stride 2 a 1x1 convolution
    of x alone; the first convolution is bare, and a normalisation and activation come before the
    mean over pixels. Convolutions have no biases.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image.
    num_classes
        Number of outputs.
    depth
        Layers with weights, not counting shortcuts: 2 per block, and 2 more.
    widths
        Channels of each stage.
    activation
        ReLU by default.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If the depth does not give a whole number of blocks per stage.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        depth: int = 20,
        widths: Sequence[int] = (16, 32, 64),
        activation: Activation = nnx.relu,
        rngs: nnx.Rngs,
    ):
        options: dict[str, Any] = {"use_bias": False, "rngs": rngs}
        self.stem = _conv(image_shape[-1], widths[0], 3, 1, **options)
        self.blocks = _blocks(_PreBlock, depth, widths, activation=activation, **options)
        self.norm = FilterResponseNorm(widths[-1])
        self.output = nnx.Linear(widths[-1], num_classes, kernel_init=_he_normal, rngs=rngs)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.output(self.activation(self.norm(x)).mean((1, 2)))


def _blocks(block: type, depth: int, widths: Sequence[int], **options: Any) -> nnx.List:
    """Blocks of all stages; each stage after the first begins by halving the image."""
    layers_each = 2 * len(widths)
    if depth <= 2 or (depth - 2) % layers_each:
        raise ValueError(
            f"got depth={depth}, expected {layers_each}n + 2 for n blocks in each of "
            f"{len(widths)} stages: {layers_each + 2}, {2 * layers_each + 2}, ..."
        )
    num_blocks = (depth - 2) // layers_each
    blocks = [block(widths[0], widths[0], 1, **options) for _ in range(num_blocks)]
    for before, width in pairwise(widths):
        blocks.append(block(before, width, 2, **options))
        blocks += [block(width, width, 1, **options) for _ in range(num_blocks - 1)]
    return nnx.List(blocks)


def _conv(in_channels: int, out_channels: int, size: int, strides: int, **options: Any) -> nnx.Conv:
    return nnx.Conv(
        in_channels, out_channels, (size, size), strides, kernel_init=_he_normal, **options
    )


class _NormalisedConv(nnx.Module):
    def __init__(
        self, in_channels: int, out_channels: int, size: int, strides: int, **options: Any
    ):
        self.conv = _conv(in_channels, out_channels, size, strides, **options)
        self.norm = FilterResponseNorm(out_channels)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class _Block(nnx.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        strides: int,
        *,
        activation: Activation,
        **options: Any,
    ):
        self.first = _NormalisedConv(in_channels, out_channels, 3, strides, **options)
        self.second = _NormalisedConv(out_channels, out_channels, 3, 1, **options)
        if strides > 1:
            self.shortcut = _NormalisedConv(in_channels, out_channels, 1, strides, **options)
        self.activation, self.strides = activation, strides

    def __call__(self, x: jax.Array) -> jax.Array:
        residual = self.second(self.activation(self.first(x)))
        return self.activation(residual + (self.shortcut(x) if self.strides > 1 else x))


class _PreBlock(nnx.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        strides: int,
        *,
        activation: Activation,
        **options: Any,
    ):
        self.first_norm = FilterResponseNorm(in_channels)
        self.first = _conv(in_channels, out_channels, 3, strides, **options)
        self.second_norm = FilterResponseNorm(out_channels)
        self.second = _conv(out_channels, out_channels, 3, 1, **options)
        if strides > 1:
            self.shortcut = _conv(in_channels, out_channels, 1, strides, **options)
        self.activation, self.strides = activation, strides

    def __call__(self, x: jax.Array) -> jax.Array:
        residual = self.first(self.activation(self.first_norm(x)))
        residual = self.second(self.activation(self.second_norm(residual)))
        return residual + (self.shortcut(x) if self.strides > 1 else x)
