"""LeNet in the versions used in studies of Bayesian networks, and a small one."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
from flax import nnx

from bnn_ppl.nets.mlp import MLP
from bnn_ppl.nets.parts.layers import Activation, ImageShape, check_sides, max_pool


class LeNet(nnx.Module):
    """Three 5x5 convolutions (6, 16, 120), each with ReLU and 3x3/2 max-pooling, then 84 units.

    As in the full-batch HMC study of Izmailov et al. (2021), "What Are Bayesian Neural Network
    Posteriors Really Like?": 91,946 parameters for 28x28x1, 10 classes.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 15 pixels a side.
    num_classes
        Number of outputs.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If the images are too small.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, *, rngs: nnx.Rngs):
        height, width, channels = image_shape
        check_sides(image_shape, 15)
        conv = partial(nnx.Conv, kernel_size=(5, 5), padding="SAME", rngs=rngs)
        self.convolutions = nnx.List([conv(channels, 6), conv(6, 16), conv(16, 120)])
        self.hidden = nnx.Linear(120 * _pooled(height) * _pooled(width), 84, rngs=rngs)
        self.output = nnx.Linear(84, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        for convolution in self.convolutions:
            x = nnx.relu(convolution(x))
            x = nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding="VALID")
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.output(x)


class ConvLayer(NamedTuple):
    """A convolution of :class:`Convolutions`."""

    width: int  # channels
    size: int  # pixels a side
    is_pooled: bool = True
    padding: str = "SAME"  # "VALID" shrinks the image


class Convolutions(nnx.Module):
    """Convolutions, each with an activation and possibly a pooling by 2; then dense layers."""

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        layers: Sequence[ConvLayer],
        hidden: Sequence[int],
        *,
        activation: Activation = nnx.relu,
        pool: Callable = max_pool,
        rngs: nnx.Rngs,
    ):
        height, width, channels = image_shape
        widths = [channels, *(layer.width for layer in layers)]
        self.convolutions = nnx.List(
            nnx.Conv(m, n, (layer.size, layer.size), padding=layer.padding, rngs=rngs)
            for (m, n), layer in zip(pairwise(widths), layers, strict=True)
        )
        for layer in layers:
            lost = layer.size - 1 if layer.padding == "VALID" else 0
            height, width = ((side - lost) // (1 + layer.is_pooled) for side in (height, width))
        if min(height, width) < 1:
            raise ValueError(
                f"got images of {image_shape[0]}x{image_shape[1]}, too small for the poolings: "
                "expected larger ones"
            )
        flat = widths[-1] * height * width
        self.dense = MLP(flat, hidden, num_classes, activation=activation, rngs=rngs)
        self.pooled = tuple(layer.is_pooled for layer in layers)
        self.activation, self.pool = activation, pool

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        for convolution, pooled in zip(self.convolutions, self.pooled, strict=True):
            x = self.activation(convolution(x))
            x = self.pool(x, (2, 2)) if pooled else x
        return self.dense(x)


class LeNet5(Convolutions):
    """Two unpadded 5x5 convolutions, each with ReLU and max-pooling by 2, then dense layers.

    LeCun et al. (1998), "Gradient-Based Learning Applied to Document Recognition", with ReLU and
    max-pooling as in Osawa et al. (2019), "Practical Deep Learning with Bayesian Principles":
    6 and 16 channels, 120 and 84 units; 62,006 parameters for 32x32x3, 10 classes.

    Parameters
    ----------
    image_shape, num_classes, **options
        As of :class:`LeNet`: rngs. At least 16 pixels a side.
    widths
        Channels of both convolutions.
    hidden
        Units of the dense layers before the last.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        widths: tuple[int, int] = (6, 16),
        hidden: Sequence[int] = (120, 84),
        **options: Any,
    ):
        check_sides(image_shape, 16)
        layers = [ConvLayer(width, 5, padding="VALID") for width in widths]
        super().__init__(image_shape, num_classes, layers, hidden, **options)


class LeNetCaffe(LeNet5):
    """LeNet5 with 20 and 50 channels and one dense layer of 500 units before the last.

    The wider version distributed with Caffe (Jia et al., 2014), as in Wilson & Izmailov (2020),
    "Bayesian Deep Learning and a Probabilistic Perspective of Generalization": 431,080 parameters
    for 28x28x1, 10 classes. Arguments as of :class:`LeNet`, at least 16 pixels a side.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, *, rngs: nnx.Rngs):
        super().__init__(image_shape, num_classes, widths=(20, 50), hidden=(500,), rngs=rngs)


class LeNetSmall(nnx.Module):
    """Two 3x3 convolutions (8, 16) of stride 2, each with tanh, and a dense layer.

    For images as small as 8x8, and a posterior that full-batch HMC samples on a laptop: as in the
    network of LeCun et al. (1989), "Backpropagation Applied to Handwritten Zip Code Recognition",
    strides in place of pooling and tanh leave the log-density smooth. 1,898 parameters for 8x8x1,
    10 classes. Arguments as of :class:`LeNet`, at least 4 pixels a side.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, *, rngs: nnx.Rngs):
        height, width, channels = image_shape
        check_sides(image_shape, 4)
        conv = partial(nnx.Conv, kernel_size=(3, 3), strides=2, padding="SAME", rngs=rngs)
        self.convolutions = nnx.List([conv(channels, 8), conv(8, 16)])
        self.output = nnx.Linear(16 * -(-height // 4) * -(-width // 4), num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        for convolution in self.convolutions:
            x = nnx.tanh(convolution(x))
        return self.output(x.reshape(x.shape[0], -1))


def _pooled(size: int) -> int:
    """Pixels per side after three 3x3/2 poolings."""
    for _ in range(3):
        size = (size - 3) // 2 + 1
    return size
