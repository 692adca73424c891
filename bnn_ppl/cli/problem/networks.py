"""Networks by the names that the command line gives them."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

import bnn_ppl as bnn
from bnn_ppl.cli.problem.partly import weight_shapes
from bnn_ppl.cli.problem.problem import Net, Problem
from bnn_ppl.data.tables.roles import apart

NETS: dict[str, Callable] = {
    "lenet": bnn.nets.LeNet,
    "lenet5": bnn.nets.LeNet5,
    "lenet_caffe": bnn.nets.LeNetCaffe,
    "lenet_small": bnn.nets.LeNetSmall,
    "alexnet": bnn.nets.AlexNet,
    "vgg16": bnn.nets.VGG16,
    "resnet20": bnn.nets.ResNet20,
    "resnet18": bnn.nets.ResNet18,
    "resnet50": bnn.nets.ResNet50,
    "preresnet20": bnn.nets.PreResNet,
    "wide_resnet": bnn.nets.WideResNet,
    "cnn_lstm": bnn.nets.CNNLSTM,
    "competition_alexnet": bnn.nets.CompetitionAlexNet,
    "competition_lenet": bnn.nets.CompetitionLeNet,
    "competition_cnn": bnn.nets.CompetitionCNN,
}
USUAL_HIDDEN = (50,)
_LEAST_SIDE, _MOST_SIDE = 15, 48  # pixels of images for LeNet
NORMALISED = ("vgg16", "resnet20", "resnet18", "resnet50", "preresnet20", "wide_resnet")
# The kernel that sees the inputs, in one net or another.
FIRST_KERNELS = (
    "layers.0.kernel",
    "convolutions.0.kernel",
    "stages.0.convolutions.0.kernel",
    "stem.conv.kernel",
    "stem.kernel",
)


def with_usual_net(problem: "Problem", data: Any) -> "Problem":
    """Name the network for inputs of this kind, and its width, where they are left open."""
    chosen = problem.network
    net: Net = chosen.net
    if net == "auto":
        net = "mlp" if chosen.hidden is not None else _usual_net(data.train.x)
    hidden = USUAL_HIDDEN if net == "mlp" and chosen.hidden is None else chosen.hidden
    return problem.changed(net=net, hidden=hidden)


def _usual_net(x: Any) -> Net:
    """Give the network for such inputs."""
    if x.ndim == 2 and x.dtype.kind == "i":
        return "cnn_lstm"
    least, most = (min(x.shape[1:3]), max(x.shape[1:3])) if x.ndim == 4 else (0, 0)
    if least < _LEAST_SIDE:
        return "mlp"
    return "lenet" if most <= _MOST_SIDE else "resnet20"


def network(problem: "Problem", data: Any, num_outputs: int) -> Any:
    """Give the network for the inputs of these data: a factory, or ready, with given weights."""
    problem = with_usual_net(problem, data)
    chosen = problem.network
    factory = _factory(problem, data, num_outputs)
    if chosen.weights is None:
        return factory
    return with_weights(factory, chosen.weights, chosen.new or ())


def with_weights(factory: partial, weights: Path, new: tuple[str, ...]) -> nnx.Module:
    """Build the network with the weights of a file or run, which is read once."""
    changed = weights.stat().st_mtime_ns if weights.exists() else None
    options = tuple(sorted(factory.keywords.items()))
    of_process = (changed, jnp.zeros(()).dtype.name)
    try:
        return _loaded(
            factory.func, factory.args, options, weights.absolute(), tuple(new), of_process
        )
    except ValueError as error:
        raise ValueError(f"{error} (on the command line, --new PATTERN)") from error


@lru_cache(maxsize=1)
def _loaded(
    net: Any, args: tuple, options: tuple, weights: Path, new: tuple[str, ...], _: Any
) -> nnx.Module:
    module: Any = bnn.nets.load_weights(partial(net, *args, **dict(options)), weights, new=new)
    loaded = bnn.nets.match_weights(module, weights).loaded
    statistics = nnx.to_flat_state(nnx.state(module, nnx.BatchStat))
    if any(".".join(map(str, path)) in loaded for path, _ in statistics):
        module.eval()  # normalise by the statistics that came with the weights
    return module


def refuse_unused_new(problem: Problem) -> None:
    """Refuse to say which weights are new where all are."""
    chosen = problem.network
    if chosen.new is not None and chosen.weights is None:
        raise ValueError(
            f"got --new {' '.join(chosen.new)} without --weights, expected both, or neither: "
            "without --weights all weights are new"
        )


def inputs(data: Any) -> Any:
    """Training inputs of a network: x without the columns that have a role of their own."""
    return apart(data.train.x, data.roles)[0] if data.roles else data.train.x


def _factory(problem: "Problem", data: Any, num_outputs: int) -> partial:
    chosen, name = problem.network, problem.data.data
    row_shape = inputs(data).shape[1:]
    if data.num_classes is not None and data.train.y.ndim > 1:
        raise ValueError(
            f"got {name} with a class for each pixel, expected one for each image: train "
            "on it in Python, as examples/camvid.py does"
        )
    refuse_width(chosen.net, chosen.width)
    refuse_norm(chosen.net, chosen.norm)
    if chosen.net == "mlp":
        return partial(bnn.nets.MLP, math.prod(row_shape), chosen.hidden or (), num_outputs)
    axes, kind = (1, "tokens") if chosen.net == "cnn_lstm" else (3, "images")
    if len(row_shape) != axes or (kind == "tokens" and data.train.x.dtype.kind != "i"):
        raise ValueError(f"got --net {chosen.net} for {name}, expected {kind}: use --net mlp")
    options = {"width": chosen.width, "norm": chosen.norm}
    given = {name: value for name, value in options.items() if value is not None}
    return partial(NETS[chosen.net], row_shape, num_outputs, **given)


def refuse_hidden(
    net: str, hidden: tuple[int, ...] | None, usual: tuple[int, ...] | None = None
) -> None:
    """Refuse widths of hidden layers with a network that has its own."""
    if net not in ("mlp", "auto") and hidden != usual:
        raise ValueError(f"got --hidden with --net {net}, expected --net mlp: drop it")


def refuse_width(net: str, width: int | None) -> None:
    """Refuse a width for a network that does not take one."""
    if width is not None and (net not in ("resnet18", "vgg16") or width < 1):
        raise ValueError(
            f"got --width {width} with --net {net}, expected 1 or more with --net resnet18 or vgg16"
            " (for an mlp: --hidden): drop it"
        )


def refuse_norm(net: str, norm: str | None) -> None:
    """Refuse a kind of normalisation for a network that has no choice of it."""
    if norm is not None and net not in NORMALISED:
        raise ValueError(
            f"got --norm {norm} with --net {net}, expected --net {', '.join(NORMALISED)}: drop it"
        )


def first_kernel(problem: "Problem", net: Callable) -> tuple[str, tuple[int, ...]]:
    """Site and shape of the kernel that sees the inputs."""
    if problem.network.net == "cnn_lstm":
        raise ValueError(
            f"got --prior {problem.prior.prior} with --net cnn_lstm, expected inputs that are "
            "numbers, not tokens: use another prior"
        )
    shapes = weight_shapes(net)
    site = next(name for name in FIRST_KERNELS if name in shapes)
    return f"net.{site}", shapes[site]
