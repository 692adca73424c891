"""Networks of the NeurIPS 2021 competition on approximate inference.

Wilson et al. (2022), "Evaluating Approximate Inference in Bayesian Deep Learning", with the layers
as its competitors coded them (Shen et al., 2024, "Variational Learning is Effective for Large Deep
Networks", section 4.2.4). Its other two are the ResNet20 and an MLP of 50 units.
"""

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx

from bnn_ppl.nets.lenet import Convolutions
from bnn_ppl.nets.parts.layers import mean_pool


class CompetitionAlexNet(Convolutions):
    """Five convolutions and three dense layers with swish: the competition's CIFAR-10.

    64 and 128 channels of 3x3, each max-pooled by 2, then 256, 128 and 64 of 2x2, all padded to the
    same size; two dense layers of 256 units: 1,488,202 parameters for 32x32x3, 10 classes. The
    competition's prior is normal with variance 0.05.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 4 pixels a side.
    num_classes
        Number of outputs.
    activation
        Swish by default.
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
        activation: Callable[[jax.Array], jax.Array] = nnx.swish,
        rngs: nnx.Rngs,
    ):
        layers = (64, 3, True), (128, 3, True), (256, 2, False), (128, 2, False), (64, 2, False)
        build = partial(super().__init__, image_shape, num_classes, layers, (256, 256))
        build(activation=activation, rngs=rngs)


class CompetitionLeNet(Convolutions):
    """LeNet-5 with ReLU whose poolings average: the competition's DermaMNIST.

    6 channels of 5x5, padded to the same size, and 16 unpadded, each averaged over 2x2 pixels; then
    120 and 84 units: 61,751 parameters for 28x28x3, 7 classes. The competition's prior is normal
    with variance 0.01.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 12 pixels a side.
    num_classes
        Number of outputs.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If the images are too small for the poolings.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, rngs: nnx.Rngs):
        layers = (6, 5, True), (16, 5, True)
        build = partial(super().__init__, image_shape, num_classes, layers, (120, 84))
        build(pool=mean_pool, unpadded=(1,), rngs=rngs)


class CompetitionCNN(Convolutions):
    """Six 3x3 convolutions with ReLU and a dense layer: the competition's diabetic retinopathy.

    32, 32, 32, 32, 16 and 16 channels, max-pooled by 2 after the second, fourth, fifth and sixth;
    then 128 units: 68,738 parameters for 64x64x3, 2 classes. The competition's prior is normal with
    variance 0.05.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 16 pixels a side.
    num_classes
        Number of outputs.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If the images are too small for the poolings.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, rngs: nnx.Rngs):
        layers = (32, 3, False), (32, 3, True), (32, 3, False), (32, 3, True)
        narrow = (16, 3, True), (16, 3, True)
        super().__init__(image_shape, num_classes, layers + narrow, (128,), rngs=rngs)
