"""The hundred-layer tiramisu, a classifier of pixels by densely connected convolutions."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from bnn_ppl.nets.parts.layers import ImageShape, Norm, max_pool, norm_layer, square_conv

_DEPTHS = {  # layers in the blocks on the way down, in the bottleneck, and growth
    57: ((4, 4, 4, 4, 4), 4, 12),
    67: ((5, 5, 5, 5, 5), 5, 16),
    103: ((4, 5, 7, 10, 12), 15, 16),
}


class Tiramisu(nnx.Module):
    """Classifier of pixels: dense blocks at coarser and coarser scales and back.

    FC-DenseNet of Jégou et al. (2017), "The One Hundred Layers Tiramisu", tables 1 and 2, as in
    Wilson & Izmailov (2020), with filter response normalisation (Singh & Krishnan, 2020) or, as
    there, batch normalisation, and without dropout. A layer is normalisation, ReLU and a 3x3
    convolution of `growth` channels, and sees its block's input and all layers before it; on the
    way down a block passes on all of these, and a transition normalises, convolves 1x1 and
    max-pools by 2; on the way up a block passes on its layers alone, but for the last, through a
    transposed 3x3 convolution of stride 2, cropped and concatenated with the output of the way down
    at that scale. Kernels start He-normal. For 11 classes 1,387,379 parameters at depth 57,
    3,483,083 at 67 and 9,373,627 at 103: three per normalised channel, where batch normalisation
    has two, and four counting its running mean and variance (3,502,923 and 9,425,163 at 67 and 103,
    the published 3.5 and 9.4 million).

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 2 pixels a side per block, 32 at the
        published depths.
    num_classes
        Number of outputs per pixel.
    depth
        57, 67 or 103; sets the next three.
    blocks
        Layers of each block on the way down, the finest first; on the way up the same.
    bottleneck
        Layers of the block at the coarsest scale.
    growth
        Channels of each layer.
    stem_width
        Channels of the first convolution.
    norm
        Normalisation: "filter_response", or "batch", of the batch in training and of the training
        rows in predictions.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If there is no such depth, or a side cannot be halved as often as there are blocks.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        depth: int = 67,
        blocks: Sequence[int] | None = None,
        bottleneck: int | None = None,
        growth: int | None = None,
        stem_width: int = 48,
        norm: Norm = "filter_response",
        rngs: nnx.Rngs,
    ):
        if depth not in _DEPTHS:
            raise ValueError(f"got depth={depth}, expected one of {', '.join(map(str, _DEPTHS))}")
        usual = _DEPTHS[depth]
        blocks = usual[0] if blocks is None else blocks
        bottleneck = usual[1] if bottleneck is None else bottleneck
        growth = usual[2] if growth is None else growth
        if min(image_shape[:2]) < 2 ** len(blocks):
            raise ValueError(
                f"got images of {image_shape[0]}x{image_shape[1]}, expected at least "
                f"{2 ** len(blocks)} pixels a side for {len(blocks)} blocks"
            )
        block = partial(_DenseBlock, growth=growth, norm=norm, rngs=rngs)
        self.stem = square_conv(image_shape[2], stem_width, 3, 1, rngs=rngs)
        width, down, passed = stem_width, [], []
        for number in blocks:
            down.append(block(width, number))
            width += number * growth
            passed.append(width)
        self.down = nnx.List(down)
        self.pools = nnx.List(_TransitionDown(width, norm=norm, rngs=rngs) for width in passed)
        self.bottleneck = block(width, bottleneck)
        up, widen, last = [], [], bottleneck * growth
        for number, beside in zip(reversed(blocks), reversed(passed), strict=True):
            widen.append(_transposed(last, rngs=rngs))
            up.append(block(last + beside, number))
            width, last = last + beside + number * growth, number * growth
        self.widen, self.up = nnx.List(widen), nnx.List(up)
        self.output = square_conv(width, num_classes, 1, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, height, width, classes)."""
        x = self.stem(x)
        passed = []
        for block, pool in zip(self.down, self.pools, strict=True):
            x = jnp.concatenate([x, block(x)], axis=-1)
            passed.append(x)
            x = pool(x)
        new = self.bottleneck(x)
        for widen, block in zip(self.widen, self.up, strict=True):
            beside = passed.pop()
            height, width = beside.shape[1:3]
            # One pixel more than twice as many, of which the first are kept.
            x = jnp.concatenate([widen(new)[:, :height, :width], beside], axis=-1)
            new = block(x)
        return self.output(jnp.concatenate([x, new], axis=-1))


class _DenseBlock(nnx.Module):
    def __init__(self, in_channels: int, number: int, *, growth: int, norm: Norm, rngs: nnx.Rngs):
        widths = [in_channels + layer * growth for layer in range(number)]
        self.norms = nnx.List(norm_layer(norm, width, rngs=rngs) for width in widths)
        self.convolutions = nnx.List(
            square_conv(width, growth, 3, 1, rngs=rngs) for width in widths
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Give the outputs of the layers, without x."""
        outputs = []
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            outputs.append(convolution(nnx.relu(norm(x))))
            x = jnp.concatenate([x, outputs[-1]], axis=-1)
        return jnp.concatenate(outputs, axis=-1)


class _TransitionDown(nnx.Module):
    def __init__(self, width: int, *, norm: Norm, rngs: nnx.Rngs):
        self.norm = norm_layer(norm, width, rngs=rngs)
        self.conv = square_conv(width, width, 1, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return max_pool(self.conv(nnx.relu(self.norm(x))), (2, 2))


def _transposed(width: int, *, rngs: nnx.Rngs) -> nnx.Conv:
    """Make a transposed 3x3 convolution of stride 2: from n pixels a side to 2n + 1."""
    pads = [(2, 2), (2, 2)]
    return square_conv(width, width, 3, 1, padding=pads, input_dilation=2, rngs=rngs)
