"""Weights of trained networks: loaded by name, from each kind of source, and refused clearly."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.networks import with_weights
from bnn_ppl.cli.problem.problem import Problem

NET = partial(bnn.nets.MLP, 3, (4,), 2)
LAYERS = ["layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.kernel"]


class Small(nnx.Module):
    def __init__(self, *, rngs):
        self.conv = nnx.Conv(2, 5, (3, 3), padding="SAME", rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.out = nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))


def trained(seed=1):
    return NET(rngs=nnx.Rngs(seed))


def equal(a, b):
    a, b = (jax.tree.leaves(nnx.state(m, nnx.Any(nnx.Param, nnx.BatchStat))) for m in (a, b))
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def flat(module):
    leaves = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in leaves}


def test_a_state_and_dicts_nested_or_flat_give_the_same_network():
    module = trained()
    nested = {"layers": [{"kernel": k, "bias": b} for k, b in _kernels_and_biases(module)]}
    for source in (nnx.state(module), nested, flat(module)):
        loaded = bnn.nets.load_weights(NET, source)
        assert equal(loaded, module) and not equal(loaded, NET(rngs=nnx.Rngs(0)))


def _kernels_and_biases(module):
    return [(layer.kernel[...], layer.bias[...]) for layer in module.layers]


def test_a_ready_module_stays_as_it_is():
    own, before = trained(2), trained(2)
    assert equal(bnn.nets.load_weights(own, flat(trained())), trained())
    assert equal(own, before)


@pytest.mark.parametrize("name", ["checkpoint", "weights.safetensors"])
def test_saved_weights_and_statistics_come_back_bit_for_bit(name, tmp_path):
    module = Small(rngs=nnx.Rngs(1))
    module.norm.mean[...] = jnp.arange(5.0)
    bnn.nets.save_weights(module, tmp_path / "new" / name)
    assert equal(bnn.nets.load_weights(Small, tmp_path / "new" / name), module)
    with pytest.raises(FileExistsError, match="which exists, expected a new one"):
        bnn.nets.save_weights(module, tmp_path / "new" / name)


def test_variables_of_linen_fit_the_bridged_network():
    module = linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(2)])
    x = np.ones((1, 3), np.float32)
    variables = module.init(jax.random.key(5), x)
    loaded = bnn.nets.load_weights(bnn.nets.from_linen(module, x), variables)
    np.testing.assert_array_equal(loaded(x), module.apply(variables, x))


def test_pytorch_names_and_axes():
    random = np.random.default_rng(0)
    source = {
        "conv.weight": random.normal(size=(5, 2, 3, 3)).astype(np.float32),
        "conv.bias": random.normal(size=5).astype(np.float32),
        "norm.weight": np.ones(5, np.float32),
        "norm.bias": np.zeros(5, np.float32),
        "norm.running_mean": random.normal(size=5).astype(np.float32),
        "norm.running_var": np.full(5, 2.0, np.float32),
        "norm.num_batches_tracked": np.array(7),
        "fc.weight": random.normal(size=(3, 5)).astype(np.float32),
        "fc.bias": np.zeros(3, np.float32),
    }
    module = bnn.nets.load_weights(Small, source, rename={"fc": "out"})
    x = random.normal(size=(1, 4, 4, 2)).astype(np.float32)
    # PyTorch's definition, channel by channel: cross-correlation, zeros around.
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    at = [[padded[0, i : i + 3, j : j + 3] for j in range(4)] for i in range(4)]
    kernel = source["conv.weight"]
    expected = np.array([[[np.sum(kernel[o].transpose(1, 2, 0) * patch) for o in range(5)]
                          for patch in row] for row in at])  # fmt: skip
    np.testing.assert_allclose(module.conv(x)[0], expected + source["conv.bias"], atol=1e-5)
    row = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(module.out(row), source["fc.weight"] @ row, rtol=1e-5)
    np.testing.assert_array_equal(module.norm.mean[...], source["norm.running_mean"])
    np.testing.assert_array_equal(module.norm.var[...], source["norm.running_var"])
    by_function = bnn.nets.load_weights(Small, source, rename=lambda s: s.replace("fc", "out"))
    assert equal(module, by_function)
    match = bnn.nets.match_weights(Small, source, rename={"fc": "out"})
    assert match.loaded["out.kernel"] == "fc.weight" and not match.missing and not match.extra
    assert "conv.kernel  conv.weight" in str(match)


def refused(source, match, net=NET, **options):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=match) as error:
        bnn.nets.load_weights(net, source, **options)
    assert "\n" not in str(error.value)


def test_what_does_not_fit_is_refused(tmp_path):
    source = flat(trained())
    short = {name: source[name] for name in LAYERS[:2]}
    wrong = source | {"layers.1.kernel": np.zeros((4, 7))}
    refused(short, r"without 2 of the network's 4 weights \(layers.1.bias, layers.1.kernel\)")
    refused(source | {"more": np.zeros(2)}, r"got 1 of 5 weights that the network has not \(more\)")
    refused(wrong, r"layers.1.kernel of shape \(4, 7\), expected \(4, 2\) \(1 of 4 weights")
    refused({"a": np.zeros(2)}, "the source has also a", strict=False)
    refused(source | {"layers.1.weight": np.zeros((2, 4))}, "another for layers.1.kernel")
    refused(source, "got rename= of 'fc', expected a name", rename={"fc": "layers.1"})
    refused(source, r"got new weights 'head.\*', expected a pattern", new="head.*")
    refused({"layers": {"0": "words"}}, "layers.0 of shape|got 1 of|without|expected an array")
    refused(3, "got weights of type int, expected a state")
    refused(tmp_path / "none", "where nothing is, expected a .safetensors file")
    refused(tmp_path, "expected an orbax checkpoint or the folder of a run")
    (tmp_path / "w.pt").write_bytes(b"x")
    refused(tmp_path / "w.pt", "expected a .safetensors file")
    (tmp_path / "w.safetensors").write_bytes(b"x")
    refused(tmp_path / "w.safetensors", "which is damaged or no safetensors file")


def test_first_parts_of_names_are_dropped_or_replaced():
    names = {"layers.1": "model.head"}
    source = {"step": np.array(3)}
    for name, array in flat(trained()).items():
        start, _, last = name.rpartition(".")
        source[f"{names.get(start, f'model.{start}')}.{last}"] = array
    rename = {"model": "", "model.head": "layers.1", "step": None}
    assert equal(bnn.nets.load_weights(NET, source, rename=rename), trained())


@pytest.mark.parametrize("value, match", [(np.nan, "not finite"), (np.int8(1), "dtype int8")])
def test_values_that_are_no_weights_are_refused(value, match):
    source = flat(trained())
    wrong = np.full(source["layers.0.bias"].shape, value)
    refused(source | {"layers.0.bias": wrong}, f"layers.0.bias (of|with values that are) {match}")


@pytest.mark.thorough
def test_a_run_of_which_a_part_is_missing_is_not_read_as_zeros(tmp_path):
    model = bnn.models.regressor(NET, bnn.priors.normal(1.0), "heteroscedastic")
    posterior = bnn.condition(model, (np.ones((4, 3), np.float32), np.ones(4, np.float32)))
    method = bnn.descent(posterior, learning_rate=0.01)
    sizes = {"num_warmup": 1, "num_draws": 1, "thin": 0, "num_chains": 1}
    bnn.run(jax.random.key(0), posterior, method, folder=tmp_path, progress=False, **sizes)
    assert len(flat(bnn.nets.load_weights(NET, tmp_path))) == 4
    array = tmp_path / "draws.zarr" / "posterior" / "net.layers.0.kernel"
    next(path for path in (array / "c").rglob("*") if path.is_file()).unlink()
    refused(tmp_path, "a part of net.layers.0.kernel is missing")


def test_parts_stay_new_where_asked():
    source = flat(trained())
    start = NET(rngs=nnx.Rngs(0))
    for options in ({"strict": False}, {"new": "layers.1.*"}):
        other = source | {"layers.1.kernel": np.zeros((4, 7)), "layers.1.bias": np.zeros(7)}
        loaded = flat(bnn.nets.load_weights(NET, other, **options))
        for name in LAYERS:
            np.testing.assert_array_equal(
                loaded[name], (source if "0" in name else flat(start))[name]
            )
    left = bnn.nets.load_weights(NET, source | {"a.b": np.zeros(1)}, rename={"a": None})
    assert equal(left, trained())


# --- the command line

RUN = ["--data", "yacht", "--hidden", "4", "--prior-scale", "1", "--no-progress"]
SGLD = ["run", "sgld", "--step-size", "1e-5", "--num-warmup", "2", *RUN, "--num-chains", "2"]


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests


def run_refused(capsys, *arguments):
    with pytest.raises(SystemExit):
        cli.main([*arguments])
    return capsys.readouterr().err.strip()


@pytest.mark.thorough
def test_a_run_gives_the_fixed_weights_of_the_next(in_an_empty_folder, capsys):
    cli.main([*SGLD, "--num-draws", "3", "--folder", "a"])
    capsys.readouterr()
    of_run = bnn.diagnostics.load("a").posterior
    loaded = flat(bnn.nets.load_weights(partial(bnn.nets.MLP, 6, (4,), 1), "a"))
    for name, array in loaded.items():
        np.testing.assert_array_equal(array, of_run[f"net.{name}"][0, -1])
    head = [*SGLD, "--bayesian", "layers.1.*", "--others", "fixed", "--weights", "a"]
    cli.main([*head, "--num-draws", "2", "--folder", "b"])
    assert "5 of 33 weights random and the others fixed as given" in capsys.readouterr().out
    cli.main([*head, "--num-draws", "4", "--folder", "b"])
    draws = bnn.diagnostics.load("b").posterior
    assert draws.sizes["draw"] == 4 and "net.layers.0.kernel" not in draws
    settings = json.loads(Path("b/problem.json").read_text())
    assert settings["weights"] == str(Path("a").absolute())
    cli.main(["predict", "b"])


def test_options_of_weights_that_do_not_fit_are_refused(in_an_empty_folder, capsys):
    got = run_refused(capsys, *SGLD, "--new", "layers.1.*")
    assert "got --new layers.1.* without --weights, expected both" in got
    got = run_refused(capsys, *SGLD, "--weights", "nowhere")
    assert "got weights 'nowhere', where nothing is" in got.replace(str(Path.cwd()) + "/", "")
    bnn.nets.save_weights(partial(bnn.nets.MLP, 6, (4,), 3)(rngs=nnx.Rngs(3)), "w.safetensors")
    got = run_refused(capsys, *SGLD, "--weights", "w.safetensors")
    assert "layers.1.bias of shape (3,)" in got


@pytest.mark.thorough
def test_a_head_of_other_classes_is_new(tmp_path):
    module = partial(bnn.nets.MLP, 64, (4,), 10)(rngs=nnx.Rngs(3))
    bnn.nets.save_weights(module, tmp_path / "w")
    problem = Problem.of(data="digits", hidden=(4,), prior_scale=1.0, only_classes=(1, 4, 7))
    problem = problem.changed(
        weights=tmp_path / "w", bayesian=("layers.1.*",), others="fixed", new=("layers.1.*",)
    )
    data, posterior = conditioned(problem)
    start = posterior.init(jax.random.key(0))
    assert start["net.layers.1.kernel"].shape == (4, 3) and len(start) == 2
    hidden = np.maximum(module.layers[0](data.test.x[:5].reshape(5, -1)), 0)
    expected = hidden @ start["net.layers.1.kernel"] + start["net.layers.1.bias"]
    logits = posterior.predictive(start, data.test.x[:5]).logits
    np.testing.assert_allclose(
        jax.nn.log_softmax(logits), jax.nn.log_softmax(expected), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ValueError, match=r"layers.1.bias of shape \(10,\).*--new PATTERN"):
        conditioned(problem.changed(new=None))


def test_statistics_that_come_with_weights_are_used(tmp_path):
    net = partial(Small)
    module = Small(rngs=nnx.Rngs(1))
    module.norm.mean[...] = jnp.arange(5.0)
    bnn.nets.save_weights(module, tmp_path / "w.safetensors")
    ready = with_weights(net, tmp_path / "w.safetensors", ())
    x = np.ones((2, 4, 4, 2), np.float32)
    module.eval()
    np.testing.assert_array_equal(ready(x), module(x))
