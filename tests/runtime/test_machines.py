"""Programs for machines that are not here: lowered, and compiled where a compiler is installed."""

from functools import partial
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from marks import quick_first, some_quick
from meshes import RNG, classifier, mesh_for, mlp, phases

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.methods.method import METHODS
from bnn_ppl.runtime.compilation.hlo import Collective, collectives_in
from bnn_ppl.runtime.compilation.jaxprs import cost_of, equations_in
from bnn_ppl.runtime.machines.devices import planned_for
from bnn_ppl.runtime.machines.machines import _DEVICES, Machine, machine, mesh_of
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.planning.machine_plan import _needed, plan_for_machine
from bnn_ppl.sampling.planning.run_shapes import setup_of_shapes
from bnn_ppl.sampling.setup.run_spec import RunLength

PLATFORMS = ("tpu", "cuda")
with_tpu_compiler = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="needs the compiler for TPUs: pip install 'jax[tpu]'"
)


def convolutional(num_rows=64):
    net = partial(bnn.nets.ResNet, (8, 8, 1), 3, depth=8, widths=(4, 4, 4))
    return classifier(net, RNG.normal(size=(num_rows, 8, 8, 1)))


# --- lowering, which needs no compiler


def lowered(posterior, method, num_chains=4):
    traced = phases(posterior, method, mesh_for("tpu"), num_chains)
    return [each.lower(lowering_platforms=PLATFORMS).as_text() for each in traced]


def check_text(text):
    assert "f64" not in text, "double precision"
    assert "callback" not in text and "infeed" not in text, "a transfer to the host"


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_quick(("hmc", "sghmc", "laplace"), ("sghmc",)))
def test_some_methods_lower_for_accelerators(name):
    posterior = mlp()
    for text in lowered(posterior, getattr(bnn, name)(posterior)):
        check_text(text)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_lowers_for_accelerators(name):
    posterior = mlp()
    with jax.default_matmul_precision("bfloat16"):
        for text in lowered(posterior, METHODS[name].build(posterior)):
            check_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["highest", "bfloat16"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_lowers_for_accelerators_with_convolutions(name, precision):
    posterior = convolutional()
    with jax.default_matmul_precision(precision):
        for text in lowered(posterior, METHODS[name].build(posterior)):
            check_text(text)


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_laplace_lowers_for_convolutions_with_a_chain_a_device(structure):
    posterior = convolutional()
    for text in lowered(posterior, bnn.laplace(posterior, structure), num_chains=2):
        check_text(text)


def with_planted(fault):
    posterior = mlp()
    method = bnn.descent(posterior)

    def step(key, state, batch):
        state, info = method.step(key, state, batch)
        return state, info | {"lp": fault(info["lp"])}

    return posterior, method._replace(step=step, warmup=None)


def fetched(value):
    return jax.pure_callback(np.asarray, value, value, vmap_method="sequential")


def doubled(value):
    with jax.enable_x64(True):
        return (value.astype(jnp.float64) * 3.0).astype(jnp.float32)


@quick_first("fault", [fetched, doubled])
def test_planted_faults_are_found(fault):
    posterior, method = with_planted(fault)
    with pytest.raises((AssertionError, ValueError), match="double|transfer|require devices"):
        for text in lowered(posterior, method):
            check_text(text)


def primitives(posterior, num_chains):
    traced = phases(posterior, bnn.sghmc(posterior), mesh_for("tpu"), num_chains)[1]
    return list(equations_in(traced.jaxpr.jaxpr))


@pytest.mark.thorough
def test_chains_of_a_device_run_side_by_side_unless_they_convolve():
    def batched(equations):  # products of one chain have two axes
        return any(
            each.primitive.name == "dot_general" and len(each.invars[0].aval.shape) > 2
            for each in equations
        )

    assert batched(primitives(mlp(), num_chains=4))
    assert not batched(primitives(mlp(), num_chains=2))
    grouped = [
        each.params["feature_group_count"]
        for each in primitives(convolutional(), num_chains=4)
        if each.primitive.name == "conv_general_dilated"
    ]
    assert grouped and set(grouped) == {1}


# --- what is planned


@pytest.mark.thorough
def test_the_cost_of_a_gradient_is_the_compilers():
    for make in (mlp, convolutional):
        with planned_for(10**12):
            posterior = make()
        position = jax.eval_shape(posterior.init, jax.random.key(0))

        def logits(position, posterior=posterior):
            return posterior.logdensity(position, posterior.data)

        for function in (logits, jax.grad(logits)):
            found = cost_of(jax.make_jaxpr(function)(position).jaxpr).flops
            whole = jax.jit(function).lower(position).cost_analysis()["flops"]
            assert 0.3 * whole < found < 1.2 * whole  # without element by element, with padding


def test_the_flops_of_products_are_counted_by_hand():
    def function(a, b, image, kernel):
        def twice(carry, _):
            return carry @ b, None

        product = jax.lax.scan(twice, a, length=2)[0]
        return product, jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID")

    a, b = jnp.zeros((3, 4)), jnp.zeros((4, 4))
    image, kernel = jnp.zeros((2, 5, 8, 8)), jnp.zeros((7, 5, 3, 3))
    found = cost_of(jax.make_jaxpr(function)(a, b, image, kernel).jaxpr)
    assert found.flops == 2 * (2 * 3 * 4 * 4) + 2 * (2 * 7 * 6 * 6) * (5 * 3 * 3)
    moved = 2 * (12 + 16 + 12) + image.size + kernel.size + 2 * 7 * 6 * 6
    assert found.num_bytes == 4 * moved


HLO = """
%add (a: f32[], b: f32[]) -> f32[] {
}

%inner (p: (s32[], f32[10])) -> (s32[], f32[10]) {
  %all-reduce.1 = f32[10]{0} all-reduce(%x), to_apply=%add
  %all-gather-start.2 = (f32[5]{0}, f32[10]{0}) all-gather-start(%y), dimensions={0}
}

%outer (p: (s32[], f32[10])) -> (s32[], f32[10]) {
  %while.3 = (s32[], f32[10]) while(%p), condition=%cond, body=%inner
  %all-reduce.4 = (f32[2,3]{1,0}, pred[]) all-reduce(%a, %b), to_apply=%add
}

%fused (p: f32[3]) -> f32[3] {
  %collective-permute.5 = bf16[3]{0} collective-permute(%p), channel_id=1
}

ENTRY %main (p: f32[10]) -> f32[10] {
  %fusion = f32[3]{0} fusion(%q), kind=kLoop, calls=%fused
  %while.6 = (s32[], f32[10]) while(%t), condition=%cond, body=%outer
}
"""


def test_collectives_are_told_by_size_and_loops():
    assert collectives_in(HLO) == {
        Collective("all-reduce", 40, 2): 1,
        Collective("all-gather", 40, 2): 1,
        Collective("all-reduce", 25, 1): 1,
        Collective("collective-permute", 6, 0): 1,
    }


@pytest.mark.parametrize(
    ("message", "num_bytes"),
    [
        ("Ran out of memory in memory space hbm. Used 40.25G of 15.75G hbm.", 40.25 * 2**30),
        ("Ran out of memory on HBM: 512M exceeds 15.75G", 512 * 2**20),
        ("out of memory", None),
    ],
)
def test_what_a_program_needs_is_read_from_the_compilers_refusal(message, num_bytes):
    assert _needed(message) == num_bytes


@pytest.mark.parametrize("name", ["v3:16x16", "tpu:v99:2x2", "gpu:h200"])
def test_machines_that_are_not_known_are_refused(name):
    with pytest.raises(ValueError, match=f"got devices='{name}', expected one of tpu:v3"):
        machine(name)


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="the compiler is there")
def test_the_command_says_which_compiler_is_missing(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["plan", "hmc", "--data", "mnist", "--devices", "tpu:v5e:2x2"])
    assert caught.value.code == 2
    assert "expected jax[tpu]==" in capsys.readouterr().err


# --- what devices send each other


def num_at_once(method):
    """Particles or replicas that a step moves side by side."""
    return method.settings.get("num_particles", method.settings.get("num_replicas", 1))


def check_sent(traced, posterior, num_particles=1, num_gathered=0):
    """Within loops, no more than sums as large as two gradients, of each particle.

    Of methods whose chains see each other, also two vectors as long as the weights of each chain.
    """
    one = 4 * (posterior.num_weights + 8)
    for found in collectives_in(traced.lower().compile().as_text()):
        if found.depth:
            gathers = found.kind == "all-gather" and found.num_bytes <= 2 * one * num_gathered
            assert gathers or (
                found.kind == "all-reduce" and found.num_bytes <= 2 * one * num_particles
            )


def rows_over_two():
    devices = np.array(jax.devices()[:2]).reshape(1, 2)
    return Mesh(devices, ("chain", "data"), axis_types=(AxisType.Auto,) * 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", some_quick(("hmc", "sghmc", "tempered_smc", "parallel_tempering"), ("sghmc",))
)
def test_devices_that_share_rows_send_gradients(name):
    posterior = mlp()
    method = METHODS[name].build(posterior)
    for traced in phases(posterior, method, rows_over_two(), 1):
        check_sent(traced, posterior, num_at_once(method))


@pytest.mark.thorough
def test_noise_that_devices_share_is_found():
    posterior = mlp()
    method = bnn.sghmc(posterior)
    mesh = rows_over_two()

    def step(key, state, batch):
        noise = jax.random.normal(key, (2, posterior.num_weights))
        shared = jax.lax.with_sharding_constraint(noise, NamedSharding(mesh, P("data")))
        state, info = method.step(key, state, batch)
        return state, info | {"lp": info["lp"] + jnp.sort(shared, axis=0)[0, 0]}

    planted = method._replace(step=step, warmup=None)
    with pytest.raises(AssertionError, match="all-gather"):
        for traced in phases(posterior, planted, mesh, 1):
            check_sent(traced, posterior)


# --- compiling for TPUs


@with_tpu_compiler
@pytest.mark.thorough
@pytest.mark.parametrize("num_chains", [1, 2])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_devices_send_each_other_nothing_but_gradients(name, num_chains):
    posterior = mlp()
    target = machine("tpu:v5e:2x2")
    mesh = mesh_of(target, num_chains)
    assert mesh.shape["data"] == 4 // num_chains
    method = METHODS[name].build(posterior)
    num_gathered = num_chains if name == "meads" else 0
    # Chains of laps exchange three vectors as long as the weights, in one sum.
    num_summed = 1.5 if name == "laps" else num_at_once(method)
    for traced in phases(posterior, method, mesh, num_chains):
        check_sent(traced, posterior, num_summed, num_gathered)


@with_tpu_compiler
def test_a_plan_of_hmc_for_four_tpus_has_one_sum_a_gradient(capsys):
    cli.main(["plan", "hmc", "--data", "digits", "--num-chains", "1", "--devices", "tpu:v5e:2x2"])
    shown = capsys.readouterr().out
    assert "fits" in shown and "one gradient" in shown
    with planned_for(machine("tpu:v5e:2x2").device.memory):
        posterior = mlp()
        found = plan_for_machine(
            posterior, bnn.hmc(posterior), machine("tpu:v5e:2x2"), num_chains=1
        )
    deepest = [each for each in found.phases[1].collectives if each.depth == 2]
    assert [each.kind for each in deepest] == ["all-reduce"]
    assert found.phases[1].fits and found.data_shards == 4


def of_five_weights(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([5]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x[:, 0] * w[0], 1.0), obs=y)


@pytest.mark.parametrize(
    ("name", "options", "is_exact"),
    [
        ("mclmc", {}, True),
        pytest.param("adjusted_mclmc", {"max_num_steps": 5}, False, marks=pytest.mark.thorough),
        pytest.param("laps", {"max_num_steps": 5}, False, marks=pytest.mark.thorough),
        pytest.param(
            "parallel_tempering",
            {"num_replicas": 3, "max_num_steps": 5},
            False,
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tempered_smc",
            {"num_particles": 8, "max_num_steps": 3},
            False,
            marks=pytest.mark.thorough,
        ),
        pytest.param("svgd", {"num_particles": 4}, False, marks=pytest.mark.thorough),
        pytest.param("amagold", {"num_minibatches": 3}, False, marks=pytest.mark.thorough),
        pytest.param("nuts", {"max_num_doublings": 3}, False, marks=pytest.mark.thorough),
        pytest.param("ivon", {"num_samples": 2}, False, marks=pytest.mark.thorough),
    ],
)
def test_a_plan_for_a_machine_counts_at_least_the_gradients_of_the_run(name, options, is_exact):
    x = RNG.normal(size=(12, 1)).astype("f")
    posterior = bnn.condition(of_five_weights, (x, x[:, 0]))
    method = getattr(bnn, name)(posterior, **options)
    thin = 0 if name == "ivon" else 3 if name == "mclmc" else 1
    lengths = {"num_chains": 1, "num_warmup": 20, "num_draws": 4, "thin": thin}
    lengths["init"] = {"w": np.full(5, 0.3, "f")}
    here = Machine("gpu:h200:1", _DEVICES["gpu:h200"], np.array(jax.devices()[:1]))
    plan = partial(plan_for_machine, posterior, method, here, **lengths)
    quiet = {"progress": False, "verdict": False}
    draws = bnn.run(jax.random.key(0), posterior, method, **lengths, **quiet)
    taken, most = draws.attrs["gradient_evaluations"], plan().gradients
    assert taken == most if is_exact else taken <= most
    if name == "mclmc":
        assert plan(gradients_a_draw=6).gradients == 20 * 2 + 4 * 6


def collectives_of_draws(num_rows, mesh):
    posterior = mlp(num_rows)
    method = bnn.hmc(posterior, 0.01, 0.05)
    draws = phases(posterior, method, mesh, num_chains=1)[1]
    return collectives_in(draws.lower().compile().as_text())


@pytest.mark.thorough
def test_padding_costs_no_sum_over_devices():
    grid = np.array(jax.devices()[:2]).reshape(1, 2)
    mesh = Mesh(grid, ("chain", "data"), axis_types=(AxisType.Auto,) * 2)
    assert collectives_of_draws(63, mesh) == collectives_of_draws(64, mesh) != {}


@with_tpu_compiler
def test_padding_costs_no_sum_over_tpus():
    mesh = mesh_of(machine("tpu:v5e:2x2"), 1)
    found = collectives_of_draws(62, mesh)
    assert found == collectives_of_draws(64, mesh)
    (of_gradient,) = (each for each in found.elements() if each.depth == 2)
    assert of_gradient.kind == "all-reduce"


def test_a_run_of_shapes_pads_rows_as_a_run_does():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w), obs=y)

    posterior = bnn.condition(model, (np.ones((7, 2), "f"), np.ones(7, "f")))
    lengths = RunLength(4, 5, 5, 1, Minibatches(None, False))
    prepared = setup_of_shapes(posterior, bnn.hmc(posterior), lengths, mesh_for("tpu"))
    x, y, mask = prepared.data  # seven rows over two devices: one of padding
    assert (x.shape, y.shape, mask.shape) == ((8, 2), (8,), (8,))
    assert prepared.positions["w"].shape == (4, 2)
