"""Networks as Flax NNX modules, and the bridge for linen ones. One network a file."""

from bnn_ppl.nets.lenet import LeNet
from bnn_ppl.nets.linen import from_linen
from bnn_ppl.nets.mlp import MLP

__all__ = ["MLP", "LeNet", "from_linen"]
