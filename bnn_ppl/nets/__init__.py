"""Networks as Flax NNX modules, and bridges from other libraries. One network a file."""

from bnn_ppl.nets.alexnet import AlexNet
from bnn_ppl.nets.bottleneck import BottleneckResNet, ResNet50
from bnn_ppl.nets.cnn_lstm import CNNLSTM
from bnn_ppl.nets.competition import CompetitionAlexNet, CompetitionCNN, CompetitionLeNet
from bnn_ppl.nets.conversion.other_libraries import from_equinox, from_function, from_linen
from bnn_ppl.nets.conversion.weights import WeightMatch, load_weights, match_weights, save_weights
from bnn_ppl.nets.lenet import LeNet, LeNet5, LeNetCaffe, LeNetSmall
from bnn_ppl.nets.low_rank import low_rank
from bnn_ppl.nets.mlp import MLP
from bnn_ppl.nets.parts.layers import FilterResponseNorm
from bnn_ppl.nets.resnet import PreResNet, ResNet, ResNet18, ResNet20, WideResNet
from bnn_ppl.nets.tiramisu import Tiramisu
from bnn_ppl.nets.unet import UNet
from bnn_ppl.nets.vgg import VGG, VGG16

__all__ = [
    "CNNLSTM",
    "MLP",
    "VGG",
    "VGG16",
    "AlexNet",
    "BottleneckResNet",
    "CompetitionAlexNet",
    "CompetitionCNN",
    "CompetitionLeNet",
    "FilterResponseNorm",
    "LeNet",
    "LeNet5",
    "LeNetCaffe",
    "LeNetSmall",
    "PreResNet",
    "ResNet",
    "ResNet18",
    "ResNet20",
    "ResNet50",
    "Tiramisu",
    "UNet",
    "WeightMatch",
    "WideResNet",
    "from_equinox",
    "from_function",
    "from_linen",
    "load_weights",
    "low_rank",
    "match_weights",
    "save_weights",
]
