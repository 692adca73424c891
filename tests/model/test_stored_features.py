"""Features of the fixed part in a folder: draws as without, and no half of a file believed."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from interrupts import press_ctrl_c
from marks import quick_first, some_quick

import bnn_ppl as bnn
from bnn_ppl.model.rows import stored_features
from bnn_ppl.model.rows.features import Features

ROWS = 600
RNG = np.random.default_rng(0)
X = {
    "dense": RNG.normal(size=(ROWS, 6)).astype("f"),
    "convolutional": RNG.integers(0, 256, size=(ROWS, 8, 8, 3)).astype(np.uint8),
}
Y = RNG.integers(0, 3, ROWS)
FIXED = {"step_size": 0.005, "trajectory_length": 0.02}


class Dense(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(6, 50, rngs=rngs), nnx.Linear(50, 5, rngs=rngs)])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


class Convolutional(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(3, 4, (3, 3), strides=2, rngs=rngs)
        self.out = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.out(nnx.relu(self.first(x / 128 - 1)).mean((1, 2))))


def backbone(kind, seed=0):
    return {"dense": Dense, "convolutional": Convolutional}[kind](nnx.Rngs(seed))


def on_head(fixed):
    def model(x, y=None):
        f = bnn.random_network("head", partial(nnx.Linear, 5, 3), bnn.priors.normal())
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=f(fixed(x))), obs=y)

    return model


def in_files(folder, kind, x=None):
    """Give a stream of files, which are written unless they are there."""
    if x is not None or not (folder / "x.npy").exists():
        np.save(folder / "x.npy", X[kind] if x is None else x)
        np.save(folder / "y.npy", Y)
    return bnn.data.stream(folder)


def conditioned(tmp_path, kind="dense", fixed=None, features="features", rows=None, **options):
    rows = in_files(tmp_path, kind) if rows is None else rows
    features = None if features is None else tmp_path / features
    return bnn.condition(on_head(fixed or backbone(kind)), rows, features=features, **options)


def sampled(posterior, method, **options):
    options = {"num_chains": 2, "num_warmup": 3, "num_draws": 4, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


def kernels(draws):
    return draws.posterior["head.kernel"].values


def sghmc(posterior):
    return bnn.sghmc(posterior, step_size=1e-3)


MINIBATCHES = {"batch_size": 50, "num_warmup": 20, "thin": 10}


def folders(tmp_path):
    return sorted(path.name for path in (tmp_path / "features").iterdir())


def folder_of(tmp_path):
    (name,) = folders(tmp_path)
    return tmp_path / "features" / name


# --- draws


@quick_first("kind", X)
def test_what_is_stored_are_the_outputs_of_the_fixed_layers(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(stored_features, "_CHUNK_BYTES", 2**12)
    posterior = conditioned(tmp_path, kind)
    rows = posterior.rows.stored_features()
    assert {path.name for path in folder_of(tmp_path).glob("*.npy")} == {"features_0.npy", "y.npy"}
    found = np.load(folder_of(tmp_path) / "features_0.npy")
    expected = backbone(kind)(jnp.asarray(X[kind]))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    x, y = rows.read(np.array([3, 599, 3]))
    np.testing.assert_array_equal(x.arrays[0], found[[3, 599, 3]])
    np.testing.assert_array_equal(y, Y[[3, 599, 3]])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", X)
def test_draws_of_hmc_are_those_of_features_in_memory(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("bnn_ppl.model.rows.streamed_rows._CHUNK_BYTES", 4000)
    memory = bnn.condition(on_head(backbone(kind)), (X[kind], Y))
    disk = conditioned(tmp_path, kind)
    one, other = (sampled(each, bnn.hmc(each, **FIXED)) for each in (memory, disk))
    assert one.attrs["cached_features"] == other.attrs["cached_features"] == 5
    assert np.abs(np.diff(kernels(one), axis=1)).min(2).max() > 0, "the chains move"
    np.testing.assert_allclose(kernels(one), kernels(other), atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", some_quick(X, ("dense",)))
def test_draws_of_minibatches_are_those_of_the_same_stream_without(tmp_path, kind):
    without, disk = (conditioned(tmp_path, kind, features=each) for each in (None, "features"))
    one, other = (sampled(each, sghmc(each), **MINIBATCHES) for each in (without, disk))
    assert "cached_features" not in one.attrs
    assert other.attrs["cached_features"] == 5
    np.testing.assert_allclose(kernels(one), kernels(other), atol=1e-4)
    predictions = [
        bnn.predict(each, draws, each.data)["probs"].values
        for each, draws in ((without, one), (disk, other))
    ]
    np.testing.assert_allclose(*predictions, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_quick(("sghmc", "hmc"), ("sghmc",)))
def test_a_run_reads_the_features_and_not_the_inputs(tmp_path, name, monkeypatch):
    rows = in_files(tmp_path, "dense")
    conditioned(tmp_path, rows=rows).rows.stored_features()
    again = conditioned(tmp_path, rows=bnn.data.stream(tmp_path))

    def refused(numbers):
        raise AssertionError("the inputs were read")

    _ = again.data.examples
    monkeypatch.setattr(again.data, "read", refused)
    method = sghmc(again) if name == "sghmc" else bnn.hmc(again, **FIXED)
    options = MINIBATCHES if name == "sghmc" else {}
    assert np.isfinite(kernels(sampled(again, method, **options))).all()
    assert len(folders(tmp_path)) == 1


@pytest.mark.thorough
def test_a_stopped_run_goes_on_in_the_same_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("bnn_ppl.sampling.loop.compiled_loop._DRAWS_PER_CHUNK", 2)
    options = MINIBATCHES | {"num_warmup": 7, "num_draws": 12}
    posterior = conditioned(tmp_path)
    whole = sampled(posterior, sghmc(posterior), **options)
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, 7)
        stopped = sampled(posterior, sghmc(posterior), folder=tmp_path / "run", **options)
    assert 0 < stopped.posterior.sizes["draw"] < 12
    posterior = conditioned(tmp_path)
    resumed = sampled(posterior, sghmc(posterior), folder=tmp_path / "run", **options)
    np.testing.assert_array_equal(kernels(whole), kernels(resumed))


@pytest.mark.thorough
def test_rows_in_memory_are_read_from_the_folder_too(tmp_path, monkeypatch):
    data = X["dense"], Y
    one = sampled(posterior := conditioned(tmp_path, rows=data), bnn.hmc(posterior, **FIXED))
    monkeypatch.setattr(stored_features, "_compute", None)  # not again
    again = conditioned(tmp_path, rows=data)
    x, _ = bnn.model.rows.features.rows_with_features(again)
    assert isinstance(x, Features) and x.x is again.rows.examples[0]
    np.testing.assert_array_equal(kernels(one), kernels(sampled(again, bnn.hmc(again, **FIXED))))
    assert one.attrs["cached_features"] == 5


@pytest.mark.thorough
def test_inputs_that_the_head_sees_are_stored_beside(tmp_path):
    def model(x, y=None):
        x, offsets = x
        f = bnn.random_network("head", partial(nnx.Linear, 5, 3), bnn.priors.normal())
        logits = f(backbone("dense")(x)) + offsets[:, None] ** 2
        with numpyro.plate("data", len(offsets)):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    offsets = np.linspace(0, 1, ROWS, dtype="f")
    rows = bnn.data.stream((X["dense"], offsets), Y)
    disk = bnn.condition(model, rows, features=tmp_path / "features")
    memory = bnn.condition(model, ((X["dense"], offsets), Y))
    one, other = (sampled(each, bnn.hmc(each, **FIXED)) for each in (memory, disk))
    np.testing.assert_allclose(kernels(one), kernels(other), atol=1e-4)
    np.testing.assert_array_equal(np.load(folder_of(tmp_path) / "x_1.npy"), offsets)
    assert not (folder_of(tmp_path) / "x_0.npy").exists()


# --- which features are believed


def counted(monkeypatch):
    """Note the first rows of the chunks that are computed."""
    starts, chunk = [], stored_features._chunk
    monkeypatch.setattr(
        stored_features, "_chunk", lambda *args: (starts.append(args[-1]), chunk(*args))[1]
    )
    return starts


@pytest.mark.thorough
def test_features_of_other_weights_rows_or_layers_are_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("bnn_ppl.data.streams.streams._EXAMPLES", 64)
    starts = counted(monkeypatch)
    conditioned(tmp_path).rows.stored_features()
    changed = X["dense"].copy()
    changed[577] += 1

    def other_constant(x):
        return backbone("dense")(x * 1.5)

    for number, (fixed, x) in enumerate(
        [(None, None), (backbone("dense", 1), None), (other_constant, None), (None, changed)]
    ):
        computed = len(starts)
        rows = in_files(tmp_path, "dense", x)
        posterior = conditioned(tmp_path, fixed=fixed, rows=rows)
        found = posterior.rows.stored_features().read(np.arange(ROWS))[0].arrays[0]
        expected = (fixed or backbone("dense"))(X["dense"] if x is None else x)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert (len(starts) > computed) == (number > 0)
        assert len(folders(tmp_path)) == number + 1


def test_a_killed_computation_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_features, "_CHUNK_BYTES", 100 * 24)
    monkeypatch.setattr(stored_features, "_SECONDS", -1)  # a note after each chunk
    whole = conditioned(tmp_path, features="other").rows.stored_features().read(np.arange(ROWS))
    chunk = stored_features._chunk

    def killed(*args):
        if args[-1] == 300:
            raise KeyboardInterrupt
        return chunk(*args)

    with monkeypatch.context() as patch:
        patch.setattr(stored_features, "_chunk", killed)
        with pytest.raises(KeyboardInterrupt):
            conditioned(tmp_path).rows.stored_features()
    assert json.loads((folder_of(tmp_path) / "progress.json").read_text()) == {"rows": 300}
    assert not np.load(folder_of(tmp_path) / "features_0.npy")[300:].any(), "not computed yet"
    starts = counted(monkeypatch)
    found = conditioned(tmp_path).rows.stored_features().read(np.arange(ROWS))
    assert starts == [0, 100, 300, 400, 500], "two to see whether rows are independent"
    np.testing.assert_array_equal(found[0].arrays[0], whole[0].arrays[0])
    np.testing.assert_array_equal(found[1], whole[1])


@pytest.mark.thorough
@pytest.mark.parametrize("in_memory", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_progress_is_told_while_features_are_computed_and_not_again(tmp_path, capsys, in_memory):
    lines = []
    for _ in range(2):
        posterior = conditioned(tmp_path, rows=(X["dense"], Y) if in_memory else None)
        sampled(posterior, bnn.sgld(posterior, step_size=1e-5), progress="json")
        told = map(json.loads, capsys.readouterr().err.splitlines())
        lines.append([line for line in told if line["phase"] == "features"])
    assert [lines[0][-1][name] for name in ("done", "total")] == [ROWS, ROWS]
    assert "seconds_left" in lines[0][-1]
    assert lines[1] == []


def test_a_run_that_is_refused_computes_no_features(tmp_path, monkeypatch):
    starts = counted(monkeypatch)
    posterior = conditioned(tmp_path)
    with pytest.raises(ValueError, match="batch_size=50 for hmc"):
        sampled(posterior, bnn.hmc(posterior, **FIXED), batch_size=50)
    assert starts == []


@quick_first("damage", ["progress", "missing", "cut short", "another shape"])
def test_damaged_files_are_computed_again(tmp_path, damage):
    expected = conditioned(tmp_path).rows.stored_features().read(np.arange(ROWS))[0].arrays[0]
    path = folder_of(tmp_path) / "features_0.npy"
    if damage == "progress":
        (folder_of(tmp_path) / "progress.json").write_text('{"rows": 6')
        np.save(path, np.zeros_like(expected))
    elif damage == "missing":
        path.unlink()
    elif damage == "cut short":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        np.save(path, expected[:-1])
    found = conditioned(tmp_path).rows.stored_features().read(np.arange(ROWS))[0].arrays[0]
    np.testing.assert_array_equal(found, expected)


# --- what is refused


@pytest.mark.thorough
def test_what_cannot_be_stored_is_refused_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_features, "_CHUNK_BYTES", 100 * 24)
    net = partial(bnn.nets.MLP, 6, (8,), 3)
    model = bnn.models.classifier(net, bnn.priors.normal())
    with pytest.raises(ValueError, match="without fixed layers"):
        bnn.condition(model, in_files(tmp_path, "dense"), features=tmp_path / "features")

    def centred(x):
        return backbone("dense")(x - x.mean(0))

    posterior = conditioned(tmp_path, fixed=centred)
    with pytest.raises(ValueError, match="depend on the other rows"):
        sampled(posterior, bnn.hmc(posterior, **FIXED))
    monkeypatch.setattr("bnn_ppl.data.streams.streams._EXAMPLES", 64)
    x = X["dense"].copy()
    x[577, 2] = np.nan
    posterior = conditioned(tmp_path, rows=in_files(tmp_path, "dense", x))
    with pytest.raises(ValueError, match=r"x of the stream's rows \[577\]"):
        sampled(posterior, bnn.hmc(posterior, **FIXED))


@pytest.mark.thorough
def test_methods_that_read_layers_see_the_inputs(tmp_path):
    posterior = conditioned(tmp_path)
    draws = sampled(posterior, bnn.vogn(posterior), batch_size=50, num_warmup=20, thin=0)
    assert "cached_features" not in draws.attrs


def test_inputs_that_were_not_read_are_not_made_up(tmp_path):
    posterior = conditioned(tmp_path)
    x, y = posterior.rows.stored_features().read(np.arange(20))
    position = posterior.init(jax.random.key(0))
    with pytest.raises(ValueError, match="only the features were read"):
        posterior.log_likelihood(position, (x._replace(digest="other"), y))
