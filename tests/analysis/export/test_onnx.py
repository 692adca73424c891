"""ONNX graphs predict as the package does, by onnxruntime, and layers without one are named."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx

import bnn_ppl as bnn
from bnn_ppl.analysis.export import onnx_primitives
from bnn_ppl.cli import main

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
SGLD = partial(bnn.sgld, step_size=1e-5)


def answers(folder, rows):
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": np.asarray(rows, float)}), strict=True))


def sampled(model, data, method=SGLD):
    posterior = bnn.condition(model, data)
    run = partial(bnn.run, jax.random.key(0), posterior, num_chains=2, progress=False)
    return posterior, run(method(posterior), num_warmup=3, num_draws=4)


def regression(prior=None, method=SGLD, **options):
    x = RNG.normal(size=(9, 3)).astype(np.float32)
    net = partial(bnn.nets.MLP, 3, (5, 4), 1, **options)
    model = bnn.models.regressor(net, prior or bnn.priors.fan_in(), bnn.priors.noise())
    return *sampled(model, (x, x[:, 0]), method), x


def changing_noise():
    x = RNG.normal(size=(9, 3)).astype(np.float32)

    def model(x, y=None):
        net = partial(bnn.nets.MLP, 3, (5,), 2, activation=jnp.tanh)
        outputs = bnn.random_network("net", net, bnn.priors.fan_in())(x)
        with numpyro.plate("rows", len(x)):
            scale = 0.1 + jax.nn.softplus(outputs[:, 1])
            numpyro.sample("y", dist.Normal(outputs[:, 0], scale), obs=y)

    return *sampled(model, (x, x[:, 0])), x


def classes(net, shape):
    x = RNG.normal(size=(6, *shape)).astype(np.float32)
    model = bnn.models.classifier(net, bnn.priors.fan_in())
    return *sampled(model, (x, np.arange(6) % 3)), x


CASES = {
    "constant noise": regression,
    "silu": partial(regression, activation=nnx.silu),
    "features first": partial(regression, features_first=True),
    "changing noise": changing_noise,
    # Linearised about the centre of each of two chains.
    "laplace": partial(regression, bnn.priors.normal(1.0), bnn.laplace),
    "classes": lambda: classes(partial(bnn.nets.MLP, 4, (5,), 3), (4,)),
    "lenet": lambda: classes(partial(bnn.nets.LeNet, (28, 28, 1), 3), (28, 28, 1)),
    "lenet5": lambda: classes(partial(bnn.nets.LeNet5, (16, 16, 1), 3), (16, 16, 1)),
    "lenet_small": lambda: classes(partial(bnn.nets.LeNetSmall, (16, 16, 2), 3), (16, 16, 2)),
    "resnet": lambda: classes(
        partial(bnn.nets.ResNet, (8, 8, 3), 3, depth=8, widths=(2, 3, 4), norm="filter_response"),
        (8, 8, 3),
    ),
}
QUICK = "constant noise", "changing noise", "classes"


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in CASES],
)
def test_a_graph_predicts_as_the_package_does(name, tmp_path):
    posterior, draws, x = CASES[name]()
    told = bnn.export(posterior, draws, tmp_path / "made", format="onnx")
    assert told.num_draws == 8 and told.platforms == ("ONNX",) and told.seconds.keys() == {1, 1000}
    expected = bnn.predict(posterior, draws, x)
    for rows in (slice(None), slice(2, 3)):
        found = answers(tmp_path / "made", x[rows])
        pairs = {"probabilities": "probs"} if "probs" in expected else {"mean": "mean"}
        pairs |= {} if "probs" in expected else {"variance": "variance"}
        for own, ours in pairs.items():
            np.testing.assert_allclose(found[own], expected[ours][rows], rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_rows_and_answers_are_in_the_units_of_the_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = RNG.normal(size=(40, 2)) * [1, 1000] + [0, 19_000]
    y = 5000 + 30 * x[:, 0] + x[:, 1] / 50
    np.savetxt("table.csv", np.c_[x, y], delimiter=",", header="a,b,y", comments="")
    main(["run", "descent", "--data", "table.csv", "--folder", "run", "--hidden", "4"]
         + ["--num-warmup", "30", "--num-chains", "2", "--noise", "learnt"])  # fmt: skip
    main(["export", "run", "--format", "onnx"])
    main(["export", "run", "--format", "onnx"])  # replaces it
    assert "for ONNX" in capsys.readouterr().out
    np.savetxt("new.csv", x[:5], delimiter=",", header="a,b", comments="")
    main(["predict", "run", "--inputs", "new.csv"])
    expected = np.genfromtxt("run/predictions-new.csv", delimiter=",", names=True)
    found = answers(tmp_path / "run" / "export", x[:5])
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-5)
    np.testing.assert_allclose(np.sqrt(found["variance"]), expected["sd"], rtol=1e-5)
    session = onnxruntime.InferenceSession("run/export/model.onnx")
    columns = json.loads(session.get_modelmeta().custom_metadata_map["columns"])
    assert [column["name"] for column in columns] == ["a", "b"]


def test_a_layer_that_cannot_be_written_is_named(tmp_path):
    x = RNG.integers(0, 20, (6, 16)).astype(np.int32)
    net = partial(bnn.nets.CNNLSTM, (16,), 2, vocabulary_size=20, embedding_size=3, units=4)
    model = bnn.models.classifier(net, bnn.priors.fan_in())
    posterior, draws = sampled(model, (x, np.arange(6) % 2))
    with pytest.raises(ValueError, match=r"got the primitive gather in .*line \d+\), expected"):
        bnn.export(posterior, draws, tmp_path / "made", format="onnx")
    assert not (tmp_path / "made").exists()


def of_primitives(x):
    """Give what networks seldom have."""
    wide = jnp.pad(x[:, 1:3], ((0, 0), (1, 2)), constant_values=0.5)
    first, second = jnp.split(wide, [2], axis=1)
    parts = [jnp.clip(first, -0.3, 0.4), jnp.sort(jnp.arange(3.0)) * second, x[:, ::2] ** 3]
    parts += [jax.lax.rsqrt(1 + x**2), jnp.expm1(x), jnp.where(x > 0, x, jnp.log1p(jnp.abs(x)))]
    parts += [jax.scipy.special.erfc(x), jnp.max(x, 1, keepdims=True), jnp.sign(x), x.T.T]
    parts += [nnx.avg_pool(x[:, :, None], (2,), (1,), "SAME")[..., 0], jax.nn.gelu(x)]
    return jnp.concatenate(parts, axis=1)


def test_primitives_are_written_as_jax_computes_them():
    from onnx import TensorProto, helper

    x = RNG.normal(size=(5, 4)).astype(np.float32)
    graph = onnx_primitives.Graph("x")
    program = onnx_primitives.traced(of_primitives, (4,), np.float32)
    (name,) = onnx_primitives.write(graph, program, ["x"])
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    made = helper.make_graph(
        *(graph.nodes, "made", [value("x", shape=["n", 4])], [value(name, shape=["n", "m"])]),
        graph.constants,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], of_primitives(x), atol=1e-5)
