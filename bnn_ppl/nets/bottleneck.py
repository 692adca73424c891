"""Deep residual networks of bottleneck blocks, for large images."""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from bnn_ppl.nets.parts.layers import Activation, ImageShape, Norm, NormalisedConv, he_normal
from bnn_ppl.nets.resnet import ResidualNetwork

_WIDENING = 4  # of a bottleneck's output over its 3x3 convolution


class BottleneckResNet(ResidualNetwork):
    """Residual network of bottleneck blocks, for images of about 224 pixels a side.

    He et al. (2016), "Deep Residual Learning for Image Recognition", table 1, with filter response
    or, as there, batch normalisation: a 7x7 convolution of stride 2 and a 3x3 max-pooling of stride
    2; a stage of blocks for each of `num_blocks`, of 1, 2, 4, ... times `width` channels, where all
    stages but the first begin with stride 2; the mean over pixels; a dense layer. A block is a 1x1
    convolution to the channels of its stage, a 3x3 one, and a 1x1 one to 4 times as many, each
    normalised; x is added, in the first block of a stage through a 1x1 convolution and a
    normalisation. The stride is that of the 3x3 convolution, as in Goyal et al. (2017), "Accurate,
    Large Minibatch SGD", section 5.1. Convolutions pad with zeros to the same size, have no biases,
    and start He-normal (truncated, by fan-in). Images are halved five times.

    Parameters
    ----------
    image_shape, num_classes, activation, norm, rngs
        As of :class:`ResNet`.
    num_blocks
        Blocks of each stage: (3, 4, 6, 3) is ResNet-50, (3, 4, 23, 3) ResNet-101, (3, 8, 36, 3)
        ResNet-152.
    width
        Channels of the first convolution, and of the 3x3 ones in the first stage.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        num_blocks: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
        activation: Activation = nnx.relu,
        norm: Norm = "filter_response",
        rngs: nnx.Rngs,
    ):
        options: dict[str, Any] = {"use_bias": False, "norm": norm, "rngs": rngs}
        self.stem = NormalisedConv(image_shape[-1], width, 7, 2, **options)
        self.activation = activation
        options["activation"] = activation
        blocks, channels = [], width
        for stage, number in enumerate(num_blocks):
            for index in range(number):
                strides = 2 if stage and not index else 1
                narrow = width * 2**stage
                blocks.append(_Bottleneck(channels, narrow, strides, not index, **options))
                channels = _WIDENING * narrow
        self.blocks = nnx.List(blocks)
        self.output = nnx.Linear(channels, num_classes, kernel_init=he_normal, rngs=rngs)

    def before_blocks(self, x: jax.Array) -> jax.Array:
        """Convolve, and halve by overlapping maxima."""
        x = super().before_blocks(x)
        return nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding="SAME")


class ResNet50(BottleneckResNet):
    """The :class:`BottleneckResNet` of 50 layers with weights: 3, 4, 6 and 3 blocks, its default.

    25,583,592 parameters for 224x224x3, 1000 classes, as for images of any size; 25,557,032 with
    batch normalisation.
    """


class _Bottleneck(nnx.Module):
    def __init__(
        self,
        in_channels: int,
        width: int,
        strides: int,
        is_first: bool,
        *,
        activation: Activation,
        **options: Any,
    ):
        out_channels = _WIDENING * width
        self.narrow = NormalisedConv(in_channels, width, 1, 1, **options)
        self.middle = NormalisedConv(width, width, 3, strides, **options)
        self.widen = NormalisedConv(width, out_channels, 1, 1, **options)
        self.is_first = is_first
        if is_first:
            self.shortcut = NormalisedConv(in_channels, out_channels, 1, strides, **options)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        residual = self.widen(self.activation(self.middle(self.activation(self.narrow(x)))))
        return self.activation(residual + (self.shortcut(x) if self.is_first else x))
