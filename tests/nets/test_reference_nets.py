"""Networks of published studies: sizes, passes written out in NumPy, independence of rows."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from marks import some_quick
from scipy.signal import correlate2d
from scipy.special import expit

import bnn_ppl as bnn
from bnn_ppl import nets
from bnn_ppl.methods.layers.per_example_gradients import row_layers
from bnn_ppl.nets.parts.layers import max_pool

CIFAR = (32, 32, 3)
WIDE = (64, 128, 256, 512, 1024)

# Convolutions of VGG-16 and, at both widths, of U-Net: (size, in, out), with a bias each.
VGG_16 = [(3, 3, 64), (3, 64, 64), (3, 64, 128), (3, 128, 128), (3, 128, 256)]
VGG_16 += [(3, 256, 256)] * 2 + [(3, 256, 512)] + [(3, 512, 512)] * 5
UNET = [(3, 3, 16), (3, 16, 16), (3, 16, 32), (3, 32, 32), (3, 32, 64), (3, 64, 64)]
UNET += [(2, 64, 32), (3, 64, 32), (3, 32, 32), (2, 32, 16), (3, 32, 16), (3, 16, 16), (1, 16, 2)]
ALEXNET = [(11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 256), (3, 256, 256)]


def convolutions(layers):
    return sum(size**2 * m * n + n for size, m, n in layers)


def wide_resnet_28_10():
    """Weights of the convolutions and of the dense layer, then 3 for each normalised channel."""
    convolved, normalised, channels = 9 * 3 * 16, 0, 16
    for width in (160, 320, 640):
        convolved += 9 * channels * width + 7 * 9 * width**2 + channels * width
        normalised += channels + 7 * width
        channels = width
    return convolved + 640 * 10 + 10 + 3 * (normalised + 640)


def resnet_50():
    """Likewise."""
    convolved, normalised, channels = 49 * 3 * 64, 64, 64
    for width, number in ((64, 3), (128, 4), (256, 6), (512, 3)):
        convolved += channels * width + (number - 1) * 4 * width * width
        convolved += number * (9 * width**2 + 4 * width**2) + channels * 4 * width
        normalised += number * 6 * width + 4 * width
        channels = 4 * width
    return convolved + 2048 * 1000 + 1000 + 3 * normalised


def tiramisu(blocks, bottleneck, growth, per_channel, classes=11):
    """Likewise, with so many parameters per normalised channel; a block's input grows by layer."""
    convolved, normalised, width, passed = 9 * 3 * 48 + 48, 0, 48, []

    def block(number):
        nonlocal convolved, normalised
        for layer in range(number):
            channels = width + layer * growth
            convolved += 9 * channels * growth + growth
            normalised += channels

    for number in blocks:
        block(number)
        width += number * growth
        passed.append(width)
        convolved, normalised = convolved + width**2 + width, normalised + width
    block(bottleneck)
    last = bottleneck * growth
    for number in reversed(blocks):
        convolved += 9 * last**2 + last
        width = last + passed.pop()
        block(number)
        last = number * growth
    return convolved + (width + last) * classes + classes + per_channel * normalised


TIRAMISU = {
    57: ((4,) * 5, 4, 12),
    67: ((5,) * 5, 5, 16),
    103: ((4, 5, 7, 10, 12), 15, 16),
}
COUNTS = {
    "ResNet-20-FRN": (partial(nets.ResNet20, CIFAR, 10), 274_042),
    "the same with ReLU": (partial(nets.ResNet20, CIFAR, 10, activation=nnx.relu), 274_042),
    # The usual 11,173,962 have two parameters for each of 4,800 normalised channels.
    "ResNet-18": (partial(nets.ResNet18, CIFAR, 10), 11_173_962 + 4_800),
    # The usual 272,282 of PreResNet-20, with two for each of 688.
    "PreResNet-20": (partial(nets.PreResNet, CIFAR, 10), 272_282 + 688),
    "WRN-28-10": (partial(nets.WideResNet, CIFAR, 10), wide_resnet_28_10()),
    # The usual 36,479,194 and 25,557,032, with two for each of 8,976 and of 26,560.
    "WRN-28-10, published": (partial(nets.WideResNet, CIFAR, 10), 36_479_194 + 8_976),
    "ResNet-50": (partial(nets.ResNet50, (224, 224, 3), 1000), resnet_50()),
    "ResNet-50, published": (
        partial(nets.ResNet50, (224, 224, 3), 1000),
        25_557_032 + 26_560,
    ),
    "CNN-LSTM": (partial(nets.CNNLSTM, (100,), 2), 2_700_098),
    "AlexNet": (partial(nets.AlexNet, CIFAR, 10), convolutions(ALEXNET) + 2570),
    "AlexNet of the competition": (
        partial(nets.CompetitionAlexNet, CIFAR, 10),
        convolutions([(3, 3, 64), (3, 64, 128), (2, 128, 256), (2, 256, 128), (2, 128, 64)])
        + convolutions([(1, 4096, 256), (1, 256, 256), (1, 256, 10)]),
    ),
    "LeNet of the competition": (
        partial(nets.CompetitionLeNet, (28, 28, 3), 7),
        convolutions([(5, 3, 6), (5, 6, 16), (1, 400, 120), (1, 120, 84), (1, 84, 7)]),
    ),
    "CNN of the competition": (
        partial(nets.CompetitionCNN, (64, 64, 3), 2),
        convolutions([(3, 3, 32), *[(3, 32, 32)] * 3, (3, 32, 16), (3, 16, 16)])
        + convolutions([(1, 256, 128), (1, 128, 2)]),
    ),
    "VGG-16": (
        partial(nets.VGG16, CIFAR, 10),
        convolutions(VGG_16) + 2 * (512**2 + 512) + 5130,
    ),
    "VGG-16 normalised": (
        partial(nets.VGG16, CIFAR, 10, norm="filter_response"),
        15_245_130 + 3 * sum(n for _, _, n in VGG_16),
    ),
    "VGG-19 without hidden layers": (
        partial(nets.VGG, CIFAR, 10, depth=19, hidden=()),
        convolutions([*VGG_16, (3, 256, 256), (3, 512, 512), (3, 512, 512)]) + 5130,
    ),
    "LeNet5": (partial(nets.LeNet5, CIFAR, 10), 62_006),
    # Published counts, of networks with batch normalisation.
    "VGG-16-BN": (
        partial(nets.VGG16, CIFAR, 10, norm="batch"),
        15_245_130 + 2 * sum(n for _, _, n in VGG_16),
    ),
    "PreResNet-20-BN": (partial(nets.PreResNet, CIFAR, 10, norm="batch"), 272_282),
    "ResNet-18-BN": (partial(nets.ResNet18, CIFAR, 10, norm="batch"), 11_173_962),
    "WRN-28-10-BN": (partial(nets.WideResNet, CIFAR, 10, norm="batch"), 36_479_194),
    "ResNet-50-BN": (partial(nets.ResNet50, (224, 224, 3), 1000, norm="batch"), 25_557_032),
    # The published 269,722, whose shortcuts have no weights, and theirs: 1x1 convolutions, norms.
    "ResNet-20-BN": (
        partial(nets.ResNet20, CIFAR, 10, norm="batch"),
        269_722 + 16 * 32 + 32 * 64 + 2 * (32 + 64),
    ),
    **{
        f"FC-DenseNet{depth}-BN": (
            partial(nets.Tiramisu, CIFAR, 11, depth=depth, norm="batch"),
            tiramisu(*shape, per_channel=2),
        )
        for depth, shape in TIRAMISU.items()
    },
    "LeNetCaffe": (partial(nets.LeNetCaffe, (28, 28, 1), 10), 431_080),
    "small U-Net": (
        partial(nets.UNet, CIFAR, 2),
        convolutions(UNET) + 3 * sum(n for size, _, n in UNET if size == 3),
    ),
    **{
        f"FC-DenseNet{depth}": (
            partial(nets.Tiramisu, CIFAR, 11, depth=depth),
            tiramisu(*shape, per_channel=3),
        )
        for depth, shape in TIRAMISU.items()
    },
    "U-Net": (partial(nets.UNet, (64, 64, 1), 2, widths=WIDE, normalised=False), 31_030_658),
}


SMALL = tuple(name for name in COUNTS if not name.startswith("FC-DenseNet"))


@pytest.mark.parametrize(
    "case", some_quick(COUNTS, [name for name in SMALL if "50" not in name and "WRN" not in name])
)
def test_number_of_parameters(case):
    factory, expected = COUNTS[case]
    module = nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))
    assert sum(w.size for w in jax.tree.leaves(nnx.state(module, nnx.Param))) == expected


@pytest.mark.parametrize(("depth", "millions"), [(67, 3.5), (103, 9.4)])
def test_tiramisu_has_the_published_size_with_batch_normalisation(depth, millions):
    shape = TIRAMISU[depth]  # with gamma, beta and the running mean and variance
    assert tiramisu(*shape, per_channel=4) / 1e6 == pytest.approx(millions, abs=0.05)
    blocks, bottleneck, _ = shape  # a stem, dense layers, a transition each way, the output
    assert 1 + 2 * sum(blocks) + bottleneck + 2 * len(blocks) + 1 == depth


def test_resnet_20_is_the_reference_with_swish_unless_told():
    module = nnx.eval_shape(lambda: nets.ResNet20(CIFAR, 10, rngs=nnx.Rngs(0)))
    assert module.activation is nnx.swish
    assert all(block.activation is nnx.swish for block in module.blocks)
    assert [block.strides for block in module.blocks] == [1, 1, 1, 2, 1, 1, 2, 1, 1]


class Noted(nnx.Module):
    """A block that notes the shapes of its outputs."""

    def __init__(self, block, notes):
        self.block, self.note = block, notes.append

    def __call__(self, x):
        out = self.block(x)
        self.note(out.shape[1:])
        return out


LARGE = {
    "WRN-28-10": (
        partial(nets.WideResNet, CIFAR, 10),
        [(32, 32, 160)] * 4 + [(16, 16, 320)] * 4 + [(8, 8, 640)] * 4,
    ),
    "ResNet-50": (
        partial(nets.ResNet50, (224, 224, 3), 1000),
        [(56, 56, 256)] * 3 + [(28, 28, 512)] * 4 + [(14, 14, 1024)] * 6 + [(7, 7, 2048)] * 3,
    ),
}


@pytest.mark.parametrize("case", LARGE)
def test_blocks_of_large_residual_networks_have_the_published_sizes(case):
    factory, expected = LARGE[case]
    shapes = []

    def outputs(x):
        module = factory(rngs=nnx.Rngs(0))
        module.blocks = nnx.List([Noted(block, shapes) for block in module.blocks])
        return module(x)

    nnx.eval_shape(outputs, jnp.zeros((1, *factory.args[0])))
    assert shapes == expected


@pytest.mark.parametrize(
    ("factory", "shape"),
    [
        (partial(nets.ResNet20, CIFAR, 10), (2, 10)),
        (partial(nets.ResNet18, CIFAR, 7), (2, 7)),
        (partial(nets.PreResNet, (20, 33, 3), 10, depth=26), (2, 10)),
        (partial(nets.WideResNet, (20, 33, 3), 10, depth=16, factor=4), (2, 10)),
        pytest.param(
            partial(nets.ResNet50, (224, 224, 3), 1000), (2, 1000), marks=pytest.mark.thorough
        ),
        (partial(nets.VGG16, (70, 32, 3), 10), (2, 10)),
        (partial(nets.AlexNet, (29, 80, 3), 10), (2, 10)),
        (partial(nets.UNet, (12, 16, 3), 4), (2, 12, 16, 4)),
        pytest.param(
            partial(nets.Tiramisu, (45, 60, 3), 11), (2, 45, 60, 11), marks=pytest.mark.thorough
        ),
    ],
)
def test_shape_of_the_outputs(factory, shape):
    def outputs(x):
        return factory(rngs=nnx.Rngs(0))(x)

    image_shape = factory.args[0]
    assert nnx.eval_shape(outputs, jnp.zeros((2, *image_shape))).shape == shape


# --- passes in NumPy, a row and a channel at a time


def weight(layer, name):
    return np.asarray(getattr(layer, name)[...])


def convolved(layer, x, strides=1, padding=None):
    """Correlate with the kernel; zeros around, an odd one at the end, so that the size stays."""
    kernel = weight(layer, "kernel")
    sides = []
    for size, length in zip(kernel.shape[:2], x.shape[1:3], strict=True):
        missing = max((-(-length // strides) - 1) * strides + size - length, 0)
        same = (missing // 2, missing - missing // 2)
        sides.append(same if padding is None else (padding, padding))
    x = np.pad(x, [(0, 0), *sides, (0, 0)])
    maps = [
        [
            sum(correlate2d(row[..., m], kernel[..., m, n], "valid") for m in range(row.shape[-1]))
            for n in range(kernel.shape[-1])
        ]
        for row in x
    ]
    out = np.moveaxis(np.array(maps), 1, -1)[:, ::strides, ::strides]
    return out if layer.bias is None else out + weight(layer, "bias")


def dense(layer, x):
    return x @ weight(layer, "kernel") + weight(layer, "bias")


def normalised(layer, x):
    if isinstance(layer, nnx.BatchNorm):
        return normalised_by_batch(layer, x)
    gamma, beta, tau = (weight(layer, name) for name in ("gamma", "beta", "tau"))
    out = np.empty_like(x)
    for row in range(x.shape[0]):
        for c in range(x.shape[-1]):
            image = x[row, :, :, c]
            scaled = image / np.sqrt((image**2).sum() / image.size + 1e-6)
            out[row, :, :, c] = np.maximum(gamma[c] * scaled + beta[c], tau[c])
    return out


def normalised_by_batch(layer, x):
    scale, bias, out = weight(layer, "scale"), weight(layer, "bias"), np.empty_like(x)
    for c in range(x.shape[-1]):
        values = x[..., c]
        apart = values - values.sum() / values.size
        out[..., c] = scale[c] * apart / np.sqrt((apart**2).sum() / values.size + 1e-5) + bias[c]
    return out


def pooled(x):
    """Maximum of 2x2 windows."""
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    corners = [x[:, i:height:2, j:width:2] for i in range(2) for j in range(2)]
    return np.max(corners, axis=0)


def relu(x):
    return np.maximum(x, 0)


def swish(x):
    return x * expit(x)


def mlp(module, x, act=relu):
    x = x.reshape(len(x), -1)
    for layer in module.layers[:-1]:
        x = act(dense(layer, x))
    return dense(module.layers[-1], x)


def resnet(module, x, act, strides):
    def layer(module, x, strides=1):
        return normalised(module.norm, convolved(module.conv, x, strides))

    x = act(layer(module.stem, x))
    for block, step in zip(module.blocks, strides, strict=True):
        residual = layer(block.second, act(layer(block.first, x, step)))
        x = act(residual + (x if step == 1 else layer(block.shortcut, x, step)))
    return dense(module.output, x.mean((1, 2)))


def preresnet(module, x, act, strides):
    x = convolved(module.stem, x)
    for block, step in zip(module.blocks, strides, strict=True):
        residual = convolved(block.first, act(normalised(block.first_norm, x)), step)
        residual = convolved(block.second, act(normalised(block.second_norm, residual)))
        same = residual.shape == x.shape
        x = residual + (x if same else convolved(block.shortcut, x, step))
    return dense(module.output, act(normalised(module.norm, x)).mean((1, 2)))


def halved(x):
    """Maximum of 3x3 windows, every second pixel; beyond the edge there is nothing."""
    for axis in (1, 2):
        length = x.shape[axis]
        before = max((-(-length // 2) - 1) * 2 + 3 - length, 0) // 2
        ends = [np.arange(-before, length, 2)[: -(-length // 2)] + k for k in range(3)]
        inside = [np.clip(at, 0, length - 1) for at in ends]
        x = np.max([x.take(at, axis) for at in inside], axis=0)
    return x


def bottleneck(module, x, strides):
    def layer(module, x, strides=1):
        return normalised(module.norm, convolved(module.conv, x, strides))

    x = halved(relu(layer(module.stem, x, 2)))
    for block, step in zip(module.blocks, strides, strict=True):
        residual = relu(layer(block.middle, relu(layer(block.narrow, x)), step))
        residual = layer(block.widen, residual)
        same = residual.shape == x.shape
        x = relu(residual + (x if same else layer(block.shortcut, x, step)))
    return dense(module.output, x.mean((1, 2)))


def cnn_lstm(module, tokens):
    embedded = weight(module.embedding, "embedding")[tokens]
    kernel, bias = weight(module.convolution, "kernel"), weight(module.convolution, "bias")
    from_input = weight(module.cell.dense_i, "kernel")
    from_output, start = (weight(module.cell.dense_h, name) for name in ("kernel", "bias"))
    outputs = []
    for row in embedded:
        positions = range(len(row) - 4)
        x = relu([bias + sum(row[t + k] @ kernel[k] for k in range(5)) for t in positions])
        c = h = np.zeros(len(from_output))
        for t in range(len(x) // 4):
            gates = x[4 * t : 4 * t + 4].max(0) @ from_input + h @ from_output + start
            i, f, g, o = np.split(gates, 4)
            c = expit(f + 1) * c + expit(i) * np.tanh(g)
            h = expit(o) * np.tanh(c)
        outputs.append(h)
    return dense(module.output, np.array(outputs))


def alexnet(module, x):
    first, second, third, fourth, fifth = module.convolutions
    x = pooled(relu(convolved(first, x, strides=4, padding=5)))
    x = pooled(relu(convolved(second, x)))
    x = relu(convolved(fourth, relu(convolved(third, x))))
    x = pooled(relu(convolved(fifth, x)))
    return dense(module.output, x.reshape(len(x), -1))


def competition_alexnet(module, x):
    for i, convolution in enumerate(module.convolutions):
        x = swish(convolved(convolution, x))
        x = pooled(x) if i < 2 else x
    return mlp(module.dense, x, swish)


def averaged(x):
    """Mean of 2x2 windows of images with sides that are even."""
    return sum(x[:, i::2, j::2] for i in range(2) for j in range(2)) / 4


def competition_lenet(module, x):
    first, second = module.convolutions
    x = averaged(relu(convolved(first, x)))
    return mlp(module.dense, averaged(relu(convolved(second, x, padding=0))))


def competition_cnn(module, x):
    for i, convolution in enumerate(module.convolutions):
        x = relu(convolved(convolution, x))
        x = pooled(x) if i in (1, 3, 4, 5) else x
    return mlp(module.dense, x)


def stage(module, x):
    for i, convolution in enumerate(module.convolutions):
        x = convolved(convolution, x)
        x = relu(normalised(module.norms[i], x) if module.norms else x)
    return x


def vgg(module, x):
    for scale in module.stages:
        x = pooled(stage(scale, x))
    return mlp(module.dense, x)


def lenet5(module, x):
    for convolution in module.convolutions:
        x = pooled(relu(convolved(convolution, x, padding=0)))
    return mlp(module.dense, x)


def lenet_small(module, x):
    for convolution in module.convolutions:
        x = np.tanh(convolved(convolution, x, strides=2))
    return dense(module.output, x.reshape(len(x), -1))


def unet(module, x):
    x = stage(module.down[0], x)
    passed = []
    for scale in module.down[1:]:
        passed.append(x)
        x = stage(scale, pooled(x))
    for finer, widen, scale in zip(passed[::-1], module.widen, module.up, strict=True):
        x = convolved(widen, np.kron(x, np.ones((1, 2, 2, 1))))
        x = stage(scale, np.concatenate([finer, x], axis=-1))
    return convolved(module.output, x)


def transposed(layer, x):
    """Transpose a 3x3 convolution of stride 2, pixel by pixel."""
    kernel, (rows, height, width, _) = weight(layer, "kernel"), x.shape
    out = np.zeros((rows, 2 * height + 1, 2 * width + 1, kernel.shape[3]))
    for i in range(height):
        for j in range(width):
            for k in range(3):
                for m in range(3):
                    out[:, 2 * i + k, 2 * j + m] += x[:, i, j] @ kernel[2 - k, 2 - m]
    return out + weight(layer, "bias")


def fc_densenet(module, x):
    def block(layers, x):
        before = x.shape[-1]
        for norm, convolution in zip(layers.norms, layers.convolutions, strict=True):
            x = np.concatenate([x, convolved(convolution, relu(normalised(norm, x)))], axis=-1)
        return x, x[..., before:]

    x, passed = convolved(module.stem, x), []
    for layers, down in zip(module.down, module.pools, strict=True):
        x, _ = block(layers, x)
        passed.append(x)
        x = pooled(convolved(down.conv, relu(normalised(down.norm, x))))
    x, new = block(module.bottleneck, x)
    for beside, widen, layers in zip(passed[::-1], module.widen, module.up, strict=True):
        wide = transposed(widen, new)[:, : beside.shape[1], : beside.shape[2]]
        x, new = block(layers, np.concatenate([wide, beside], axis=-1))
    return convolved(module.output, x)


TOKENS = partial(nets.CNNLSTM, (21,), 2, vocabulary_size=13, embedding_size=3, filters=4, units=5)
SMALL = {
    "resnet, swish": (
        partial(nets.ResNet, (9, 8, 2), 3, depth=10, widths=(4, 5), activation=nnx.swish),
        partial(resnet, act=swish, strides=(1, 1, 2, 1)),
    ),
    "resnet, relu, no biases, one pixel left": (
        partial(nets.ResNet, (4, 3, 2), 3, depth=8, widths=(4, 5, 6), use_bias=False),
        partial(resnet, act=relu, strides=(1, 2, 2)),
    ),
    "preresnet": (
        partial(nets.PreResNet, (6, 8, 2), 3, depth=10, widths=(4, 5)),
        partial(preresnet, act=relu, strides=(1, 1, 2, 1)),
    ),
    "preresnet, narrower stem": (
        partial(nets.PreResNet, (5, 6, 2), 3, depth=6, widths=(4, 5), stem_width=3),
        partial(preresnet, act=relu, strides=(1, 2)),
    ),
    "bottleneck": (
        partial(nets.BottleneckResNet, (17, 22, 2), 3, num_blocks=(2, 1), width=2),
        partial(bottleneck, strides=(1, 1, 2)),
    ),
    "cnn lstm": (TOKENS, cnn_lstm),
    "alexnet": (partial(nets.AlexNet, (32, 61, 2), 3, widths=(3, 4, 5, 4, 3)), alexnet),
    "competition, alexnet": (
        partial(nets.CompetitionAlexNet, (5, 4, 2), 3),
        competition_alexnet,
    ),
    "competition, lenet": (partial(nets.CompetitionLeNet, (12, 16, 2), 3), competition_lenet),
    "competition, cnn": (partial(nets.CompetitionCNN, (16, 17, 2), 3), competition_cnn),
    "vgg": (partial(nets.VGG, (32, 64, 1), 3, depth=11, width=3), vgg),
    "vgg normalised": (
        partial(nets.VGG, (32, 33, 1), 3, depth=13, width=2, hidden=(), norm="filter_response"),
        vgg,
    ),
    "lenet5": (partial(nets.LeNet5, (16, 23, 2), 3, widths=(4, 5), hidden=(9, 8)), lenet5),
    "lenet small": (partial(nets.LeNetSmall, (7, 10, 2), 3), lenet_small),
    "tiramisu": (
        partial(nets.Tiramisu, (6, 5, 2), 3, blocks=(1, 2), bottleneck=2, growth=2, stem_width=3),
        fc_densenet,
    ),
    "unet": (partial(nets.UNet, (8, 4, 2), 3, widths=(3, 4, 5)), unet),
    "unet without normalisation": (
        partial(nets.UNet, (4, 8, 2), 2, widths=(3, 4), normalised=False),
        unet,
    ),
}
# Their rows depend on each other.
BY_BATCH = {
    "resnet": (
        partial(nets.ResNet, (5, 4, 2), 3, depth=6, widths=(4, 5), norm="batch"),
        partial(resnet, act=relu, strides=(1, 2)),
    ),
    "preresnet": (
        partial(nets.PreResNet, (6, 4, 2), 3, depth=6, widths=(4, 5), norm="batch"),
        partial(preresnet, act=relu, strides=(1, 2)),
    ),
    "tiramisu": (
        partial(
            nets.Tiramisu,
            (4, 5, 2),
            3,
            blocks=(1,),
            bottleneck=1,
            growth=2,
            stem_width=3,
            norm="batch",
        ),
        fc_densenet,
    ),
    "vgg": (
        partial(nets.VGG, (32, 33, 1), 3, depth=11, width=2, hidden=(), norm="batch"),
        vgg,
    ),
}


def inputs(factory, num_rows, seed=0):
    rng = np.random.default_rng(seed)
    (shape, *_) = factory.args
    if factory.func is nets.CNNLSTM:
        return rng.integers(13, size=(num_rows, *shape))
    return rng.normal(size=(num_rows, *shape))


GAINS = "gamma", "scale"


def random_weights(name, shape):
    """Weights that keep a signal on its way, with biases and normalisations that do something."""
    rng = np.random.default_rng([len(name), *shape])
    noise = rng.normal(size=shape)
    if len(shape) > 1:
        return noise * np.sqrt(2 / np.prod(shape[:-1]))
    return 0.2 * np.abs(noise) if name.endswith("tau") else 0.2 * noise + name.endswith(GAINS)


def filled(factory, dtype):
    """Build a network with random weights."""
    graph, state = nnx.split(nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0))))
    weights = [
        (path, w.replace(jnp.asarray(random_weights(".".join(map(str, path)), w.shape), dtype)))
        for path, w in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(weights))


@nnx.jit
def forward(module, x):
    return module(x)


@pytest.mark.parametrize("case", SMALL)
def test_network_equals_a_numpy_pass(case):
    factory, oracle = SMALL[case]
    with jax.enable_x64(True):
        module = filled(factory, np.float64)
        x = inputs(factory, 3)
        np.testing.assert_allclose(forward(module, x), oracle(module, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", BY_BATCH)
def test_network_with_batch_normalisation_equals_a_numpy_pass(case):
    factory, oracle = BY_BATCH[case]
    with jax.enable_x64(True):
        module = filled(factory, np.float64)
        x = inputs(factory, 3)
        np.testing.assert_allclose(forward(module, x), oracle(module, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (3, 1, 1, 6), (1, 1, 7, 6)])
def test_filter_response_normalisation_equals_a_loop_over_rows_and_channels(shape):
    x = np.random.default_rng(1).normal(0, 3, shape)
    with jax.enable_x64(True):
        layer = filled(partial(nets.FilterResponseNorm, 6), np.float64)
        np.testing.assert_allclose(layer(x), normalised(layer, x), rtol=1e-12)


def test_filter_response_normalisation_starts_as_the_positive_part_of_mean_square_1():
    x = np.random.default_rng(2).normal(0, 7, (4, 5, 6, 3)).astype(np.float32)
    layer = nets.FilterResponseNorm(3, rngs=nnx.Rngs(0))
    out = layer(x)
    assert np.all(out >= 0)
    np.testing.assert_allclose(np.square(out + layer(-x)).mean((1, 2)), 1, rtol=1e-5)
    np.testing.assert_allclose(layer(x[:, :1, :1]), x[:, :1, :1] > 0, atol=1e-4)
    np.testing.assert_array_equal(layer(np.zeros((1, 1, 1, 3), np.float32)), 0)


def test_lstm_is_flax_s_with_1_more_in_the_bias_of_the_forget_gate():
    module = filled(TOKENS, np.float32)
    x = np.random.default_rng(3).normal(size=(3, 6, 4)).astype(np.float32)
    ours = nets.cnn_lstm._last_output(module.cell, x)
    module.cell.dense_h.bias[...] += np.repeat([0.0, 1.0, 0.0, 0.0], 5)
    zeros = jnp.zeros((3, 5))
    theirs = nnx.RNN(module.cell)(x, initial_carry=(zeros, zeros))[:, -1]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "window"), [((2, 9, 3), (4,)), ((2, 5, 7, 3), (2, 2))])
def test_max_pooling_and_its_gradient_are_flax_s(shape, window):
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    theirs = partial(nnx.max_pool, window_shape=window, strides=window)
    np.testing.assert_array_equal(max_pool(x, window), theirs(x))
    ours, expected = (
        jax.grad(lambda x, pool=pool: jnp.sin(pool(x)).sum())(x)
        for pool in (partial(max_pool, window=window), theirs)
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_residual_networks_start_he_normal_with_biases_at_0():
    for net in (nets.ResNet, nets.PreResNet):
        module = net((4, 4, 3), 2, depth=4, widths=(64,), rngs=nnx.Rngs(0))
        first = module.blocks[0].first
        kernel = weight(first.conv if net is nets.ResNet else first, "kernel")
        std = np.sqrt(2 / (9 * 64))
        np.testing.assert_allclose(kernel.std(), std, rtol=0.02)
        assert np.abs(kernel).max() < 2 * std / 0.8796  # the normal is cut off at two deviations
    np.testing.assert_array_equal(weight(module.output, "bias"), 0)


# --- as models


def pixel_classifier(net, prior):
    """Classify pixels, a row's independently given the weights: one likelihood a row."""

    def model(x, y=None):
        logits = bnn.random_network("net", net, prior)(x)
        with numpyro.plate("data", len(logits)):
            numpyro.sample("y", dist.Categorical(logits=logits).to_event(2), obs=y)

    return model


@cache
def conditioned(case):
    factory, _ = SMALL[case]
    x = inputs(factory, 4)
    num_classes = factory.args[1]
    pixels = factory.func in (nets.UNet, nets.Tiramisu)
    y_shape = x.shape[:3] if pixels else x.shape[:1]
    y = np.random.default_rng(6).integers(num_classes, size=y_shape)
    build = pixel_classifier if pixels else bnn.models.classifier
    return bnn.condition(build(factory, bnn.priors.normal(0.1)), (x, y))


@pytest.mark.thorough
@pytest.mark.parametrize("case", SMALL)
def test_posterior_has_a_finite_density_whose_gradient_reaches_every_parameter(case):
    # With little optimisation XLA's gradient of a maximum after a normalisation is NaN on CPUs.
    jax.config.update("jax_disable_most_optimizations", False)
    with jax.enable_x64(True):
        posterior = conditioned(case)
        shapes = jax.eval_shape(posterior.init, jax.random.key(0))
        position = {site: random_weights(site, w.shape) for site, w in shapes.items()}
        value_and_gradient = jax.jit(jax.value_and_grad(posterior.logdensity))
        density, gradient = value_and_gradient(position, posterior.data)
        assert np.isfinite(density)
        for site, w in position.items():
            assert np.all(np.isfinite(gradient[site])), site
            of_likelihood = gradient[site] + w / 0.1**2
            assert np.any(np.abs(of_likelihood) > 1e-9), site


@pytest.mark.thorough
@pytest.mark.parametrize("case", SMALL)
def test_methods_that_work_layer_by_layer_find_every_dense_layer_and_convolution(case):
    with jax.enable_x64(True):
        posterior = conditioned(case)
        position = jax.eval_shape(posterior.init, jax.random.key(0))
        names = list(row_layers(posterior))
    kernels = {site.removesuffix(".kernel") for site in position if site.endswith(".kernel")}
    assert sorted(names) == sorted(name for name in kernels if ".cell." not in name)


@pytest.mark.parametrize("case", some_quick(SMALL, ("lenet5", "preresnet", "unet", "cnn lstm")))
def test_a_row_s_output_depends_on_no_other_row(case):
    factory, _ = SMALL[case]
    with jax.enable_x64(True):
        module = filled(factory, np.float64)
        x, others = inputs(factory, 3), inputs(factory, 3, seed=9)
        others[1] = x[1]
        out, changed = forward(module, x), forward(module, others)
    np.testing.assert_array_equal(out[1], changed[1])
    assert np.any(out[0] != changed[0])
    assert np.any(out[2] != changed[2])


REFUSED = {
    r"got depth=21, expected 6n \+ 2 .*: 8, 14": partial(nets.ResNet, CIFAR, 10, depth=21),
    r"got depth=2, expected 8n \+ 2": partial(
        nets.PreResNet, CIFAR, 10, depth=2, widths=(4, 4, 4, 4)
    ),
    r"got depth=26, expected 6n \+ 4 .*: 10, 16": partial(nets.WideResNet, CIFAR, 10, depth=26),
    "got images of 28x40, expected at least 29": partial(nets.AlexNet, (28, 40, 1), 2),
    "got 4 widths": partial(nets.AlexNet, CIFAR, 2, widths=(1, 2, 3, 4)),
    "got images of 32x31, expected at least 32": partial(nets.VGG16, (32, 31, 1), 2),
    "got depth=18, expected one of 11, 13, 16, 19": partial(nets.VGG, CIFAR, 2, depth=18),
    "got images of 11x28, too small": partial(nets.CompetitionLeNet, (11, 28, 3), 2),
    "got images of 15x28, expected at least 16": partial(nets.LeNet5, (15, 28, 1), 2),
    "multiples of 4 for 3 widths": partial(nets.UNet, (28, 30, 1), 2),
    "got depth=56, expected one of 57, 67, 103": partial(nets.Tiramisu, CIFAR, 2, depth=56),
    "got images of 31x40, expected at least 32 pixels": partial(nets.Tiramisu, (31, 40, 3), 2),
    r"got rows of shape \(7,\), expected \(tokens,\) of at least 8": partial(nets.CNNLSTM, (7,), 2),
    r"got rows of shape \(28, 28\)": partial(nets.CNNLSTM, (28, 28), 2),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_network_can_be_made_of_is_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message](rngs=nnx.Rngs(0))
