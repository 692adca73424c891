"""LeNet in the versions used in studies of Bayesian networks, and a small one."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import jax
from flax import nnx

from bnn_ppl.nets.mlp import MLP
from bnn_ppl.nets.parts.layers import max_pool

_pool = partial(nnx.max_pool, window_shape=(3, 3), strides=(2, 2), padding="VALID")


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
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, rngs: nnx.Rngs):
        height, width, channels = image_shape
        if min(height, width) < 15:
            raise ValueError(f"got images of {height}x{width}, expected at least 15 pixels a side")
        conv = partial(nnx.Conv, kernel_size=(5, 5), padding="SAME", rngs=rngs)
        self.convolutions = nnx.List([conv(channels, 6), conv(6, 16), conv(16, 120)])
        self.hidden = nnx.Linear(120 * _pooled(height) * _pooled(width), 84, rngs=rngs)
        self.output = nnx.Linear(84, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        for convolution in self.convolutions:
            x = _pool(nnx.relu(convolution(x)))
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.output(x)


class Convolutions(nnx.Module):
    """Convolutions, each with an activation and possibly a pooling by 2; then dense layers."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        layers: tuple[tuple[int, int, bool], ...],  # width, pixels a side, whether pooled
        hidden: tuple[int, ...],
        *,
        activation: Callable[[jax.Array], jax.Array] = nnx.relu,
        pool: Callable = max_pool,
        unpadded: tuple[int, ...] = (),  # indices of convolutions that shrink the image
        rngs: nnx.Rngs,
    ):
        height, width, channels = image_shape
        widths = [channels, *(layer[0] for layer in layers)]
        self.convolutions = nnx.List(
            nnx.Conv(m, n, (size, size), padding=_padding(at, unpadded), rngs=rngs)
            for at, ((m, n), (_, size, _)) in enumerate(zip(pairwise(widths), layers, strict=True))
        )
        for at, (_, size, pooled) in enumerate(layers):
            lost = size - 1 if at in unpadded else 0
            height, width = ((side - lost) // (1 + pooled) for side in (height, width))
        if min(height, width) < 1:
            raise ValueError(
                f"got images of {image_shape[0]}x{image_shape[1]}, too small for the poolings: "
                "expected larger ones"
            )
        flat = widths[-1] * height * width
        self.dense = MLP(flat, hidden, num_classes, activation=activation, rngs=rngs)
        self.pooled = tuple(pooled for *_, pooled in layers)
        self.activation, self.pool = activation, pool

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        for convolution, pooled in zip(self.convolutions, self.pooled, strict=True):
            x = self.activation(convolution(x))
            x = self.pool(x, (2, 2)) if pooled else x
        return self.dense(x)


def _padding(at: int, unpadded: tuple[int, ...]) -> str:
    return "VALID" if at in unpadded else "SAME"


class LeNet5(Convolutions):
    """Two unpadded 5x5 convolutions, each with ReLU and max-pooling by 2, then dense layers.

    LeCun et al. (1998), "Gradient-Based Learning Applied to Document Recognition", with ReLU and
    max-pooling as in Osawa et al. (2019), "Practical Deep Learning with Bayesian Principles":
    6 and 16 channels, 120 and 84 units; 62,006 parameters for 32x32x3, 10 classes.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 16 pixels a side.
    num_classes
        Number of outputs.
    widths
        Channels of both convolutions.
    hidden
        Units of the dense layers before the last.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If the images are too small for the poolings.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        widths: tuple[int, int] = (6, 16),
        hidden: Sequence[int] = (120, 84),
        rngs: nnx.Rngs,
    ):
        height, width, _ = image_shape
        if min(height, width) < 16:
            raise ValueError(f"got images of {height}x{width}, expected at least 16 pixels a side")
        layers = tuple((width, 5, True) for width in widths)
        build = partial(super().__init__, image_shape, num_classes, layers, tuple(hidden))
        build(unpadded=(0, 1), rngs=rngs)


class LeNetCaffe(LeNet5):
    """LeNet5 with 20 and 50 channels and one dense layer of 500 units before the last.

    The wider version distributed with Caffe (Jia et al., 2014), as in Wilson & Izmailov (2020),
    "Bayesian Deep Learning and a Probabilistic Perspective of Generalization": 431,080 parameters
    for 28x28x1, 10 classes.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 16 pixels a side.
    num_classes
        Number of outputs.
    rngs
        Source of the initial weights.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, rngs: nnx.Rngs):
        super().__init__(image_shape, num_classes, widths=(20, 50), hidden=(500,), rngs=rngs)


class LeNetSmall(nnx.Module):
    """Two 3x3 convolutions (8, 16) of stride 2, each with tanh, and a dense layer.

    For images as small as 8x8, and a posterior that full-batch HMC samples on a laptop: as in the
    network of LeCun et al. (1989), "Backpropagation Applied to Handwritten Zip Code Recognition",
    strides in place of pooling and tanh leave the log-density smooth. 1,898 parameters for 8x8x1,
    10 classes.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 4 pixels a side.
    num_classes
        Number of outputs.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If the images are too small.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, rngs: nnx.Rngs):
        height, width, channels = image_shape
        if min(height, width) < 4:
            raise ValueError(f"got images of {height}x{width}, expected at least 4 pixels a side")
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
