"""What the tests of samplers whose chains adapt together have in common."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from interrupts import press_ctrl_c
from targets import linear_regression

import bnn_ppl as bnn
from bnn_ppl.sampling.loop.loop import advance
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.run_spec import RunLength
from bnn_ppl.storage.recorder import Progress, Recorder

TARGET = linear_regression()
POSTERIOR = bnn.condition(TARGET.model, TARGET.data)


def warmed_up(method, num_chains, num_warmup):
    """Give the states of all chains after warm-up."""
    lengths = RunLength(num_chains, num_warmup, 1, 1, Minibatches(None, False))
    prepared = prepare(jax.random.key(0), POSTERIOR, method, lengths)
    warmup = prepared._replace(num=prepared.num | {"draws": 0})
    states, _ = advance(warmup, Progress(), Recorder(), lambda *_: None, lambda: False)
    return jax.tree.map(np.asarray, states)


def on_all_devices_and_on_one(monkeypatch, method, num_chains, num_warmup=30):
    """Give the states after some steps of warm-up over all devices and on the first."""
    devices = jax.devices()
    assert len(devices) > 1
    over_all = warmed_up(method, num_chains, num_warmup)
    monkeypatch.setattr(jax, "devices", lambda: devices[:1])
    return over_all, warmed_up(method, num_chains, num_warmup)


# In double precision: in single, a proposal on the edge is accepted on one device and not on four.
_OVER_FOUR = """
import sys, jax, numpy as np
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_enable_x64", True)
import bnn_ppl as bnn
from targets import linear_regression
target = linear_regression()
posterior = bnn.condition(target.model, target.data)
method = getattr(bnn, sys.argv[1])(posterior)
options = dict(num_chains=16, num_warmup=30, num_draws=5, thin=1, progress=False, verdict=False)
devices, found = jax.devices(), []
for count in (1, 2, 4):
    jax.devices = lambda: devices[:count]
    draws = bnn.run(jax.random.key(0), posterior, method, **options)
    assert draws.attrs["devices"].lower().count("cpu") == count
    found.append(draws.posterior["weights"].values)
for other in found[1:]:
    assert other.dtype == np.float64
    np.testing.assert_allclose(other, found[0], rtol=1e-6, atol=1e-6)
"""


def assert_same_draws_on_one_two_and_four_devices(name):
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", _OVER_FOUR, name], env=environment, check=True)


def assert_goes_on_bit_for_bit(method, chunk, folder, monkeypatch):
    """Stop a run of ten draws at a chunk and resume it; give the number of draws it had."""
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 5)
    options = {"num_chains": 8, "num_warmup": 20, "num_draws": 10, "thin": 2, "progress": False}

    def run(**more):
        return bnn.run(jax.random.key(0), POSTERIOR, method, **options, **more)

    with monkeypatch.context() as patch:
        press_ctrl_c(patch, chunk)
        with contextlib.suppress(KeyboardInterrupt):
            run(folder=folder)
    num_done = bnn.diagnostics.load(folder).posterior.sizes["draw"]
    resumed, whole = run(folder=folder), run()
    for group in ("posterior", "sample_stats"):
        for name in whole[group]:
            np.testing.assert_array_equal(resumed[group][name], whole[group][name], err_msg=name)
    return num_done
