"""Programs of a small network for devices that are not here."""

from functools import partial

import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

import bnn_ppl as bnn
from bnn_ppl.sampling.loop.compiled_loop import trace_loop
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.planning.run_shapes import setup_of_shapes
from bnn_ppl.sampling.setup.run_spec import RunLength

RNG = np.random.default_rng(0)


def mlp(num_rows=64):
    net = partial(bnn.nets.MLP, 4, (8,), 3)
    return classifier(net, RNG.normal(size=(num_rows, 4)))


def classifier(net, x):
    y = RNG.integers(0, 3, len(x))
    return bnn.condition(bnn.models.classifier(net, bnn.priors.normal()), (x.astype("f"), y))


def mesh_for(platform, shape=(2, 2)):
    """Describe devices of a platform without having its compiler."""
    device = AbstractDevice(platform, None, {"cuda": "gpu"}.get(platform, platform))
    axes = {"axis_types": (AxisType.Auto,) * 2, "abstract_device": device}
    return AbstractMesh(shape, ("chain", "data"), **axes)


def phases(posterior, method, mesh, num_chains):
    minibatches = Minibatches(None if method.all_rows else 16, False)
    prepared = setup_of_shapes(
        posterior, method, RunLength(num_chains, 50, 10, 1, minibatches), mesh
    )
    return [trace_loop(phase, prepared) for phase in prepared.phases]
