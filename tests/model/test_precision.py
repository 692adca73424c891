"""The precision of products: that of the posterior, in every program that is made with it."""

import re
from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.cli.tables import machine_plan_table
from bnn_ppl.runtime.compilation.jaxprs import Cost
from bnn_ppl.runtime.machines import machines
from bnn_ppl.runtime.machines.devices import chain_mesh
from bnn_ppl.sampling.planning import machine_plan
from bnn_ppl.sampling.planning.machine_plan import roofline

CODES = {"highest": "HIGHEST", "tensorfloat32": "HIGH", "bfloat16": "DEFAULT"}  # in StableHLO


def mlp(num_rows=23, **options):
    """Give a posterior of a regression."""
    x = np.random.default_rng(0).normal(size=(num_rows, 4)).astype("f")
    net = partial(bnn.nets.MLP, 4, (5,), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(), 0.5)
    return bnn.condition(model, (x, x[:, 0]), **options)


class Convolutions(nnx.Module):
    """Two convolutions, one of them strided, and a dense layer."""

    def __init__(self, *, rngs):
        self.first = nnx.Conv(1, 2, (3, 3), rngs=rngs)
        self.second = nnx.Conv(2, 3, (3, 3), strides=2, rngs=rngs)
        self.last = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.second(nnx.relu(self.first(x)))).mean((1, 2)))


def convolutional(num_rows=11, **options):
    """Give a posterior of classes, of a network with convolutions."""
    x = np.random.default_rng(0).normal(size=(num_rows, 6, 6, 1)).astype("f")
    model = bnn.models.classifier(Convolutions, bnn.priors.normal())
    return bnn.condition(model, (x, np.arange(num_rows) % 3), **options)


def precisions(text):
    """Give the precisions of both factors of all products of a program."""
    products = re.compile(r"stablehlo\.(dot_general|convolution)\b")
    lines = [line for line in text.splitlines() if products.search(line)]
    found = [tuple(re.findall(r"\b(HIGHEST|HIGH|DEFAULT)\b", line)) for line in lines]
    assert all(len(pair) == 2 for pair in found), lines
    return found


@pytest.fixture
def compiled(tmp_path):
    """Write down the text of all programs that are compiled, and give them when called.

    Not of that which reads the prior off a run of the model: it uses no product.
    """
    before = jax.config.values["jax_dump_ir_to"]
    jax.config.update("jax_dump_ir_to", str(tmp_path))

    def texts():
        each = (file.read_text() for file in tmp_path.glob("*.mlir"))
        return "\n".join(text for text in each if "module @jit_summary " not in text)

    yield texts
    jax.config.update("jax_dump_ir_to", before)


# --- the gradient, for machines that are not here


@quick_first("microbatch", [pytest.param(None, marks=pytest.mark.thorough), 4])
@quick_first("precision", CODES)
@quick_first("make", [mlp, convolutional])
def test_all_products_of_a_gradient_have_the_precision(make, precision, microbatch):
    posterior = make(precision=precision, microbatch=microbatch)
    position = jax.eval_shape(posterior.init, jax.random.key(0))
    traced = jax.jit(jax.grad(posterior.logdensity)).trace(position, posterior.data)
    for platform in ("tpu", "cuda"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("stablehlo.convolution" in text) == (make is convolutional)
        found = precisions(text)
        assert len(found) >= 5  # forward and backward
        assert set(found) == {(CODES[precision],) * 2}


def residual(**options):
    """Give a posterior of a network of the package, whose convolutions are its own."""
    x = np.random.default_rng(0).normal(size=(5, 8, 8, 1)).astype("f")
    net = partial(bnn.nets.ResNet, (8, 8, 1), 3, depth=8, widths=(4, 4, 4))
    model = bnn.models.classifier(net, bnn.priors.normal())
    return bnn.condition(model, (x, np.arange(5) % 3), **options)


@pytest.mark.thorough
def test_changes_from_an_origin_and_predictions_have_the_precision():
    posterior = residual(precision="tensorfloat32")
    position = jax.eval_shape(posterior.init, jax.random.key(0))

    def change(position, data):
        of_position = posterior.logdensity_from(position, data)[1]
        return jax.value_and_grad(of_position)(position)

    values = jax.eval_shape(posterior.constrain, position)

    def probs(values, x):
        return posterior.predictive(values, x).probs

    traced = jax.jit(change).trace(position, posterior.data)
    predicted = jax.jit(probs).trace(values, posterior.data[0])
    for each in (traced, predicted):
        for platform in ("cpu", "tpu", "cuda"):
            text = each.lower(lowering_platforms=(platform,)).as_text()
            assert set(precisions(text)) == {("HIGH", "HIGH")}


def test_a_posterior_without_one_follows_jax_when_it_is_traced():
    posterior, chosen = mlp(), mlp(precision="highest")
    position = jax.eval_shape(posterior.init, jax.random.key(0))

    def found(posterior):
        text = jax.jit(posterior.logdensity).lower(position, posterior.data).as_text()
        return set(precisions(text))

    assert found(posterior) == found(chosen) == {("HIGHEST", "HIGHEST")}
    with jax.default_matmul_precision("tensorfloat32"):
        assert found(posterior) == {("HIGH", "HIGH")}
        assert found(chosen) == {("HIGHEST", "HIGHEST")}
    assert found(posterior) == {("HIGHEST", "HIGHEST")}


# --- what is compiled here


def of_classes(posterior, draws):
    rows = posterior.data
    bnn.predict(posterior, draws, rows)
    bnn.function_draws(posterior, draws, rows[0])
    bnn.correlations.function_correlations(posterior, draws, rows[0], progress=False)
    bnn.adversarial.fgsm(posterior, draws, rows, epsilon=0.1)


def of_reals(posterior, draws):
    rows = posterior.data
    bnn.predict(posterior, draws, rows)
    bnn.predict_quantiles(posterior, draws, rows[0], (0.5,))
    bnn.predictive_draws(jax.random.key(1), posterior, draws, rows)
    bnn.chain_budget(posterior, draws, rows, progress=False)
    corners = bnn.surface.corners(posterior, draws)
    bnn.surface.surface(posterior, corners, num_points=2, progress=False)


@pytest.mark.thorough
@pytest.mark.parametrize(("make", "analyse"), [(convolutional, of_classes), (mlp, of_reals)])
@pytest.mark.parametrize("precision", ["highest", "tensorfloat32"])
def test_runs_and_what_is_done_with_their_draws(compiled, verdicts, make, analyse, precision):
    # Neither JAX's default nor its configuration, nor what the other case has compiled.
    with jax.default_matmul_precision("bfloat16"):
        posterior = make(precision=precision)
        method = bnn.hmc(posterior, 1e-3, 2e-3)
        draws = bnn.run(jax.random.key(0), posterior, method, num_draws=3, progress=False)
        analyse(posterior, draws)
    assert draws.attrs["matmul_precision"] == precision
    found = precisions(compiled())
    assert len(found) > 20 and set(found) == {(CODES[precision],) * 2}


@pytest.mark.thorough
def test_methods_that_multiply_matrices_of_their_own(compiled):
    posterior = mlp(precision="tensorfloat32")
    start = bnn.descent(posterior)
    draws = bnn.run(jax.random.key(0), posterior, start, num_warmup=3, thin=0, progress=False)
    laplace = bnn.laplace(posterior, "full")
    draws = bnn.run(jax.random.key(0), posterior, laplace, num_warmup=1, init=draws, progress=False)
    bnn.predict_closed_form(posterior, draws, posterior.data)
    bnn.plan(jax.random.key(0), posterior, bnn.hmc(posterior, 0.1, 0.2), trial_seconds=0.01)
    found = precisions(compiled())
    assert len(found) > 20 and set(found) == {("HIGH", "HIGH")}


@pytest.mark.thorough
def test_a_run_is_resumed_in_its_precision_alone(tmp_path):
    def run(**options):
        posterior = mlp(7, **options)
        method = bnn.sgld(posterior, 1e-3)
        options = {"num_draws": 3, "num_warmup": 2, "folder": tmp_path, "progress": False}
        return bnn.run(jax.random.key(0), posterior, method, **options)

    assert run(precision="bfloat16").attrs["matmul_precision"] == "bfloat16"
    message = "got matmul_precision='highest', expected matmul_precision='bfloat16'"
    with pytest.raises(ValueError, match=message) as refused:
        run()
    assert "\n" not in str(refused.value)
    with jax.default_matmul_precision("bfloat16"):
        assert run().posterior.sizes["draw"] == 3


# --- what it costs


def test_the_roofline_is_that_of_the_precision():
    tpu, gpu = (machines._DEVICES[name] for name in ("tpu:v5e", "gpu:h200"))
    rates = {name: 1e15 / roofline(tpu, 1e15, 1.0, name) for name in CODES}
    assert rates["bfloat16"] == pytest.approx(3 * rates["tensorfloat32"])
    assert rates["bfloat16"] == pytest.approx(6 * rates["highest"]) == 197e12
    assert roofline(gpu, 67e12, 1.0, "highest") == pytest.approx(1.0)
    assert roofline(gpu, 494e12, 1.0, "tensorfloat32") == pytest.approx(1.0)
    assert {roofline(gpu, 1.0, 4.8e12, name) for name in CODES} == {1.0}  # by the bytes


@quick_first(
    ("num_bytes", "told"),
    [(1e6, "0.318 ms in tensorfloat32, 0.106 ms in bfloat16"), (1e12, "as long in every")],
)
def test_a_plan_says_what_other_precisions_would_take(monkeypatch, num_bytes, told):
    # Without a compiler for it: the roofline of a gradient is of its cost alone.
    target = machines.Machine("tpu:v5e:1x1", machines._DEVICES["tpu:v5e"], np.array(jax.devices()))
    monkeypatch.setattr(machine_plan, "_gradient", lambda *args: Cost(20.9e9, num_bytes))
    monkeypatch.setattr(machine_plan, "mesh_of", lambda machine, num_chains: chain_mesh(num_chains))
    posterior = mlp(precision="highest")
    method = bnn.hmc(posterior, 0.1, 0.2)
    with jax.default_matmul_precision("bfloat16"):
        found = machine_plan.plan_for_machine(posterior, method, target, num_chains=2, num_warmup=0)
    assert found.precision == "highest"
    assert found.gradient_seconds == found.seconds_by_precision["highest"]
    if num_bytes == 1e6:
        assert found.gradient_seconds == pytest.approx(20.9e9 / 197e12 * 6)
    assert told in machine_plan_table(found)
