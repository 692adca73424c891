"""The start of a run on devices that share the rows: none of them is sent all rows."""

from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import AxisType, Mesh
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.runtime.machines import devices
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.run_spec import RunLength, RunSpec

RNG = np.random.default_rng(0)
X = RNG.normal(size=(61, 4)).astype("f")


def network():
    net = partial(bnn.nets.MLP, 4, (8,), 3)
    model = bnn.models.classifier(net, bnn.priors.normal())
    return bnn.condition(model, (X, RNG.integers(0, 3, 61)))


def wide_prior():
    """Give a model whose start is one of 16 draws from the prior, by its likelihood."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 3).expand([4]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    return bnn.condition(model, (X, (X @ [1.0, -1, 2, 0]).astype("f")))


def prepared_on(posterior, shape, method=bnn.hmc):
    grid = np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    mesh = Mesh(grid, ("chain", "data"), axis_types=(AxisType.Auto,) * 2)
    lengths = RunLength(2, 5, 5, 1, Minibatches(None, False))
    key = jax.random.key(3)
    return prepare(key, posterior, method(posterior), lengths, RunSpec(mesh=mesh))


@quick_first("make", [network, wide_prior])
def test_no_device_is_sent_all_rows(make, monkeypatch):
    posterior, sent = make(), []
    put = devices._put

    def watched(tree, sharding):
        there = put(tree, sharding)
        for leaf in jax.tree.leaves(there):
            sent.extend(shard.data.shape for shard in leaf.addressable_shards)
        return there

    monkeypatch.setattr(devices, "_put", watched)
    prepared = prepared_on(posterior, (1, 2))
    rows = [shape[0] for shape in sent if shape and shape[0] > 4 and shape[1:] in ((4,), ())]
    assert set(rows) == {31}  # of 61 and one of padding
    for leaf in jax.tree.leaves(prepared.data):
        assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {31}


@pytest.mark.thorough
@pytest.mark.parametrize("make", [pytest.param(network, marks=pytest.mark.thorough), wide_prior])
def test_chains_start_where_they_start_on_one_device(make):
    posterior = make()
    alone = prepared_on(posterior, (1, 1)).positions
    for shape in ((1, 2), (2, 1)):
        found = prepared_on(posterior, shape).positions
        jax.tree.map(np.testing.assert_array_equal, found, alone)
