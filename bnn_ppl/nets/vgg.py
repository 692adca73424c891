"""VGG for small images."""

from collections.abc import Sequence

import jax
from flax import nnx

from bnn_ppl.nets.mlp import MLP
from bnn_ppl.nets.parts.layers import ConvStage, ImageShape, Norm, check_sides, max_pool

_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_WIDENING = (1, 2, 4, 8, 8)


class VGG(nnx.Module):
    """Five stages of 3x3 convolutions with ReLU, each max-pooled by 2, then dense layers.

    Simonyan & Zisserman (2015), "Very Deep Convolutional Networks for Large-Scale Image
    Recognition", table 1 (A, B, D, E), with the dense layers for small images of Wilson & Izmailov
    (2020), "Bayesian Deep Learning and a Probabilistic Perspective of Generalization". The stages
    have 1, 2, 4, 8 and 8 times `width` channels. Kernels of convolutions start He-normal.

    Parameters
    ----------
    image_shape, num_classes, rngs
        As of :class:`LeNet`. At least 32 pixels a side.
    depth
        11, 13, 16 or 19: the number of convolutions plus 3.
    width
        Channels of the first stage.
    hidden
        Widths of the dense layers before the last; by default two of ``8 width``. ``()`` is the
        VGG of Osawa et al. (2019), "Practical Deep Learning with Bayesian Principles".
    norm
        Normalisation between each convolution and its ReLU: "filter_response", "batch" or None.

    Raises
    ------
    ValueError
        If the images are too small for the poolings, or there is no such depth.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        depth: int = 16,
        width: int = 64,
        hidden: Sequence[int] | None = None,
        norm: Norm | None = None,
        rngs: nnx.Rngs,
    ):
        height, breadth, channels = image_shape
        check_sides(image_shape, 32)
        if depth not in _CONVOLUTIONS:
            raise ValueError(
                f"got depth={depth}, expected one of {', '.join(map(str, _CONVOLUTIONS))}"
            )
        stages = []
        for number, times in zip(_CONVOLUTIONS[depth], _WIDENING, strict=True):
            wider = times * width
            stages.append(ConvStage(channels, wider, number, norm=norm, rngs=rngs))
            channels = wider
        self.stages = nnx.List(stages)
        flat = channels * (height // 32) * (breadth // 32)
        hidden = (channels, channels) if hidden is None else hidden
        self.dense = MLP(flat, hidden, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        for stage in self.stages:
            x = max_pool(stage(x), (2, 2))
        return self.dense(x)


class VGG16(VGG):
    """The :class:`VGG` of depth 16 and, by default, width 64, with its arguments.

    15,245,130 parameters for 32x32x3, 10 classes; 15,257,802 with filter response normalisation,
    15,253,578 with batch normalisation.
    """
