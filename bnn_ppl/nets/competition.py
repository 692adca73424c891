"""Networks of the NeurIPS 2021 competition on approximate inference.

Wilson et al. (2022), "Evaluating Approximate Inference in Bayesian Deep Learning", with the layers
as its competitors coded them (Shen et al., 2024, "Variational Learning is Effective for Large Deep
Networks", section 4.2.4). Its other two are the ResNet20 and an MLP of 50 units.
"""

from flax import nnx

from bnn_ppl.nets.lenet import ConvLayer, Convolutions
from bnn_ppl.nets.parts.layers import Activation, ImageShape, mean_pool


class CompetitionAlexNet(Convolutions):
    """Five convolutions and three dense layers with swish: the competition's CIFAR-10.

    64 and 128 channels of 3x3, each max-pooled by 2, then 256, 128 and 64 of 2x2, all padded to the
    same size; two dense layers of 256 units: 1,488,202 parameters for 32x32x3, 10 classes. The
    competition's prior is normal with variance 0.05. Arguments as of :class:`LeNet`, at least 4
    pixels a side; the activation is swish by default.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        activation: Activation = nnx.swish,
        rngs: nnx.Rngs,
    ):
        layers = [ConvLayer(64, 3), ConvLayer(128, 3)]
        layers += [ConvLayer(width, 2, is_pooled=False) for width in (256, 128, 64)]
        hidden = (256, 256)
        super().__init__(image_shape, num_classes, layers, hidden, activation=activation, rngs=rngs)


class CompetitionLeNet(Convolutions):
    """LeNet-5 with ReLU whose poolings average: the competition's DermaMNIST.

    6 channels of 5x5, padded to the same size, and 16 unpadded, each averaged over 2x2 pixels; then
    120 and 84 units: 61,751 parameters for 28x28x3, 7 classes. The competition's prior is normal
    with variance 0.01. Arguments as of :class:`LeNet`, at least 12 pixels a side.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, *, rngs: nnx.Rngs):
        layers = ConvLayer(6, 5), ConvLayer(16, 5, padding="VALID")
        super().__init__(image_shape, num_classes, layers, (120, 84), pool=mean_pool, rngs=rngs)


class CompetitionCNN(Convolutions):
    """Six 3x3 convolutions with ReLU and a dense layer: the competition's diabetic retinopathy.

    32, 32, 32, 32, 16 and 16 channels, max-pooled by 2 after the second, fourth, fifth and sixth;
    then 128 units: 68,738 parameters for 64x64x3, 2 classes. The competition's prior is normal with
    variance 0.05. Arguments as of :class:`LeNet`, at least 16 pixels a side.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, *, rngs: nnx.Rngs):
        wide = [ConvLayer(32, 3, is_pooled=False), ConvLayer(32, 3)]
        layers = [*wide, *wide, ConvLayer(16, 3), ConvLayer(16, 3)]
        super().__init__(image_shape, num_classes, layers, (128,), rngs=rngs)
