"""Residual networks with filter response or batch normalisation."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
from flax import nnx

from bnn_ppl.nets.parts.layers import (
    Activation,
    ImageShape,
    Norm,
    NormalisedConv,
    he_normal,
    norm_layer,
    square_conv,
)


class ResidualNetwork(nnx.Module):
    """A first convolution, blocks that add to what they are given, a mean, and a dense layer."""

    stem: Any
    blocks: nnx.List
    output: nnx.Linear
    activation: Activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        x = self.before_blocks(x)
        for block in self.blocks:
            x = block(x)
        return self.output(self.after_blocks(x).mean((1, 2)))

    def before_blocks(self, x: jax.Array) -> jax.Array:
        """Give what the first block sees."""
        return self.activation(self.stem(x))

    def after_blocks(self, x: jax.Array) -> jax.Array:
        """Give what is averaged over pixels."""
        return x


class ResNet(ResidualNetwork):
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
    norm
        Normalisation: "filter_response", or "batch", of the batch in training and of the training
        rows in predictions.
    use_bias
        Whether convolutions have biases; by default not with batch normalisation, which would
        subtract them again.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If the depth does not give a whole number of blocks per stage.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        depth: int = 20,
        widths: Sequence[int] = (16, 32, 64),
        activation: Activation = nnx.relu,
        norm: Norm = "filter_response",
        use_bias: bool | None = None,
        rngs: nnx.Rngs,
    ):
        use_bias = norm != "batch" if use_bias is None else use_bias
        options: dict[str, Any] = {"use_bias": use_bias, "norm": norm, "rngs": rngs}
        self.stem = NormalisedConv(image_shape[-1], widths[0], 3, 1, **options)
        options["activation"] = activation
        self.blocks = _blocks(_Block, depth, (widths[0], *widths), **options)
        self.output = nnx.Linear(widths[-1], num_classes, kernel_init=he_normal, rngs=rngs)
        self.activation = activation


class ResNet20(ResNet):
    """The ResNet of Izmailov et al. (2021) on CIFAR-10: 274,042 parameters for 32x32x3, 10 classes.

    ResNet-20-FRN: a :class:`ResNet`, whose arguments it takes, with swish by default, or with ReLU:
    ``activation=flax.nnx.relu``. With batch normalisation, 272,474 parameters.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        activation: Activation = nnx.swish,
        **options: Any,
    ):
        super().__init__(image_shape, num_classes, activation=activation, **options)


class ResNet18(ResNet):
    """Wide and shallow: stages of 64, 128, 256 and 512 channels, two blocks each.

    As in Osawa et al. (2019), "Practical Deep Learning with Bayesian Principles", for images of 32
    pixels a side: for 32x32x3, 10 classes 11,178,762 parameters with filter response
    normalisation, 11,173,962 with theirs of the batch. Convolutions have no biases.

    Parameters
    ----------
    image_shape, num_classes, **options
        As of :class:`ResNet`: activation, norm and rngs.
    width
        Channels of the first stage; each other has twice as many as the one before. From 1 to 64
        they are the networks of Nakkiran et al. (2020), "Deep Double Descent", but for the
        normalisation.
    """

    def __init__(
        self, image_shape: ImageShape, num_classes: int, *, width: int = 64, **options: Any
    ):
        widths = [width * 2**stage for stage in range(4)]
        super().__init__(
            image_shape, num_classes, depth=18, widths=widths, use_bias=False, **options
        )


class PreResNet(ResidualNetwork):
    """Residual network whose blocks normalise and activate before they convolve.

    He et al. (2016), "Identity Mappings in Deep Residual Networks"; as in Wilson & Izmailov (2020),
    "Bayesian Deep Learning and a Probabilistic Perspective of Generalization": at depth 20 for
    32x32x3, 10 classes 272,970 parameters with filter response normalisation, 272,282 with theirs
    of the batch. As :class:`ResNet`, but a
    block is ``x + conv(act(norm(conv(act(norm(x))))))``, its shortcut at stride 2 a 1x1 convolution
    of x alone; the first convolution is bare, and a normalisation and activation come before the
    mean over pixels. Convolutions have no biases.

    Parameters
    ----------
    image_shape, num_classes, depth, widths, activation, norm, rngs
        As of :class:`ResNet`.
    stem_width
        Channels of the first convolution; by default those of the first stage.

    Raises
    ------
    ValueError
        If the depth does not give a whole number of blocks per stage.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        depth: int = 20,
        widths: Sequence[int] = (16, 32, 64),
        stem_width: int | None = None,
        activation: Activation = nnx.relu,
        norm: Norm = "filter_response",
        rngs: nnx.Rngs,
    ):
        options: dict[str, Any] = {"use_bias": False, "rngs": rngs}
        stem_width = widths[0] if stem_width is None else stem_width
        self.stem = square_conv(image_shape[-1], stem_width, 3, 1, **options)
        options |= {"activation": activation, "norm": norm}
        self.blocks = _blocks(_PreBlock, depth, (stem_width, *widths), **options)
        self.norm = norm_layer(norm, widths[-1], rngs=rngs)
        self.output = nnx.Linear(widths[-1], num_classes, kernel_init=he_normal, rngs=rngs)
        self.activation = activation

    def before_blocks(self, x: jax.Array) -> jax.Array:
        """Convolve alone."""
        return self.stem(x)

    def after_blocks(self, x: jax.Array) -> jax.Array:
        """Normalise and activate."""
        return self.activation(self.norm(x))


class WideResNet(PreResNet):
    """Pre-activation network of few, wide layers: 36.5 million parameters for 32x32x3, 10 classes.

    WRN-28-10 of Zagoruyko & Komodakis (2016), "Wide Residual Networks", table 1, as in Wilson &
    Izmailov (2020), "Bayesian Deep Learning and a Probabilistic Perspective of Generalization",
    without dropout: 36,488,170 parameters with filter response normalisation, 36,479,194 with
    theirs of the batch. A :class:`PreResNet` of three stages of
    16, 32 and 64 channels, times `factor`, after a first convolution of 16 channels.

    Parameters
    ----------
    image_shape, num_classes, **options
        As of :class:`PreResNet`: activation, norm and rngs.
    depth
        Layers with weights, counting the shortcut of each stage, but not the dense layer: 2 per
        block, and 4 more.
    factor
        How many times wider the stages are than those of a :class:`PreResNet`.

    Raises
    ------
    ValueError
        If the depth does not give a whole number of blocks per stage.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        depth: int = 28,
        factor: int = 10,
        **options: Any,
    ):
        if depth <= 4 or (depth - 4) % 6:
            raise ValueError(
                f"got depth={depth}, expected 6n + 4 for n blocks in each of 3 stages: 10, 16, ..."
            )
        widths = [factor * width for width in (16, 32, 64)]
        super().__init__(
            image_shape, num_classes, depth=depth - 2, widths=widths, stem_width=16, **options
        )


def _blocks(block: type, depth: int, widths: Sequence[int], **options: Any) -> nnx.List:
    """Blocks of all stages; each stage after the first begins by halving the image.

    The first of `widths` is that of the stem.
    """
    num_stages = len(widths) - 1
    layers_each = 2 * num_stages
    if depth <= 2 or (depth - 2) % layers_each:
        raise ValueError(
            f"got depth={depth}, expected {layers_each}n + 2 for n blocks in each of "
            f"{num_stages} stages: {layers_each + 2}, {2 * layers_each + 2}, ..."
        )
    num_blocks = (depth - 2) // layers_each
    blocks = []
    for stage, (before, width) in enumerate(pairwise(widths)):
        blocks.append(block(before, width, 2 if stage else 1, **options))
        blocks += [block(width, width, 1, **options) for _ in range(num_blocks - 1)]
    return nnx.List(blocks)


class _Block(nnx.Module):
    def __init__(
        self, in_channels: int, width: int, strides: int, *, activation: Activation, **options: Any
    ):
        self.first = NormalisedConv(in_channels, width, 3, strides, **options)
        self.second = NormalisedConv(width, width, 3, 1, **options)
        if strides > 1:
            self.shortcut = NormalisedConv(in_channels, width, 1, strides, **options)
        self.activation, self.strides = activation, strides

    def __call__(self, x: jax.Array) -> jax.Array:
        residual = self.second(self.activation(self.first(x)))
        return self.activation(residual + (self.shortcut(x) if self.strides > 1 else x))


class _PreBlock(nnx.Module):
    def __init__(
        self,
        in_channels: int,
        width: int,
        strides: int,
        *,
        activation: Activation,
        norm: Norm,
        **options: Any,
    ):
        self.first_norm = norm_layer(norm, in_channels, rngs=options["rngs"])
        self.first = square_conv(in_channels, width, 3, strides, **options)
        self.second_norm = norm_layer(norm, width, rngs=options["rngs"])
        self.second = square_conv(width, width, 3, 1, **options)
        self.widens = strides > 1 or in_channels != width
        if self.widens:
            self.shortcut = square_conv(in_channels, width, 1, strides, **options)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        residual = self.first(self.activation(self.first_norm(x)))
        residual = self.second(self.activation(self.second_norm(residual)))
        return residual + (self.shortcut(x) if self.widens else x)
