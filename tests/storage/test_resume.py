"""A run that is killed and called again gives the draws of an uninterrupted one."""

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from interrupts import press_ctrl_c
from killed_runs import SCRIPTS, Killed, assert_same, line

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS, Method
from bnn_ppl.runtime.files import locked
from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.checkpoint import OtherRunError
from bnn_ppl.storage.draws_zarr import zarr_writer

SCRIPT = SCRIPTS / "resumable.py"


@pytest.fixture(scope="module")
def posterior():
    x = np.linspace(-1, 1, 12)[:, None]
    return bnn.condition(line, (x, x[:, 0]))


def walk(speed: float = 1.0) -> Method:
    """Take a random walk whose step shrinks in warm-up: compiles in no time, forgets nothing."""

    def init(key, position, batch):
        return {"at": position["slope"], "scale": jnp.asarray(speed), "count": jnp.zeros((), int)}

    def step(key, state, batch):
        at = state["at"] + state["scale"] * jax.random.normal(key)
        state = state | {"at": at, "count": state["count"] + 1}
        return state, {"lp": -(at**2), "n_steps": jnp.ones((), int), "diverging": at > 1e9}

    def warmup(key, state, batch):
        state, info = step(key, state, batch)
        return state | {"scale": state["scale"] * 0.97}, info

    def draw(key, state):
        return {"slope": state["at"]}

    return Method(init, step, draw, warmup, {"method": "walk", "speed": speed})


WALK = walk()  # so that it is compiled once for all tests


def sample(posterior, folder=None, seed=0, method=None, **options):
    options = {"num_chains": 2, "num_warmup": 7, "num_draws": 9, "progress": False} | options
    return bnn.run(jax.random.key(seed), posterior, method or WALK, folder=folder, **options)


@pytest.fixture(autouse=True)
def thinned_warmup(monkeypatch):
    """Let even these short warm-ups be thinned."""
    monkeypatch.setattr("bnn_ppl.storage.warmup_statistics.MOST_STEPS", 3)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 2)


@pytest.mark.parametrize(
    "stride",
    [29, pytest.param(9, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)],
)
def test_killed_at_any_write_it_opens_and_goes_on_to_the_same_draws(
    stride, posterior, tmp_path, kill_at_write, small_chunks
):
    expected = sample(posterior)
    number, finished = 0, False
    while not finished:
        folder = tmp_path / str(number)
        for _ in kill_at_write(number):
            try:
                sample(posterior, folder)
                finished = True
            except Killed:
                pass
        if (folder / "draws.zarr").exists():
            seen = bnn.diagnostics.load(folder)
            count = seen.posterior.sizes["draw"]
            np.testing.assert_array_equal(
                seen.posterior["slope"], expected.posterior["slope"][:, :count]
            )
        assert_same(sample(posterior, folder), expected)
        number += stride
    assert number > 40


NUM_KILLS = 10


@pytest.mark.slow
def test_killed_by_the_system_at_random_moments(tmp_path):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = [sys.executable, str(SCRIPT)]
    began = time.monotonic()
    subprocess.run([*command, whole, "60"], check=True, env=environment, capture_output=True)
    seconds = time.monotonic() - began
    random = np.random.default_rng()
    seen = []
    for _ in range(NUM_KILLS):
        process = subprocess.Popen(
            [*command, broken, "60"], env=environment, stderr=subprocess.PIPE, text=True
        )
        process.stderr.readline()  # the first chunk is done
        time.sleep(random.uniform(0, seconds / NUM_KILLS / 2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
        opened = bnn.diagnostics.load(broken)
        seen.append(opened.posterior.sizes["draw"])
        assert np.isfinite(opened.posterior["w"].values).all()
    subprocess.run([*command, broken, "60"], check=True, env=environment, capture_output=True)
    assert_same(bnn.diagnostics.load(broken), bnn.diagnostics.load(whole))
    assert seen == sorted(seen)


@pytest.mark.thorough
def test_a_finished_run_is_read_and_more_draws_extend_it(posterior, tmp_path):
    expected = sample(posterior, num_draws=20)
    assert_same(sample(posterior, tmp_path / "run"), sample(posterior))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "loop_of", None)
        again = sample(posterior, tmp_path / "run")
    assert_same(again, sample(posterior))
    assert_same(sample(posterior, tmp_path / "run", num_draws=20), expected)
    with pytest.raises(ValueError, match="got num_draws=3, expected at least the 20 draws"):
        sample(posterior, tmp_path / "run", num_draws=3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, r"got seed=\[0, 1\], expected seed=\[0, 0\]"),
        ({"num_warmup": 8}, "got num_warmup=8, expected num_warmup=7"),
        ({"num_chains": 4}, "got num_chains=4, expected num_chains=2"),
        ({"thin": 2}, "got thin=2, expected thin=1"),
        ({"method": walk(0.5)}, "got speed=0.5, expected speed=1.0"),
        (
            {"keep": lambda values: {"twice": 2 * values["slope"]}},
            "got other sites",
        ),
    ],
)
def test_other_settings_are_refused_and_the_first_difference_named(
    posterior, tmp_path, change, words
):
    sample(posterior, tmp_path)
    with pytest.raises(OtherRunError, match=words):
        sample(posterior, tmp_path, **change)
    assert_same(sample(posterior, tmp_path), sample(posterior))


def test_another_optimizer_is_refused(posterior, tmp_path):
    def fit(rate):
        method = bnn.descent(posterior, optax.sgd(rate))
        return sample(posterior, tmp_path, method=method, num_draws=1, verdict=False)

    for method in (bnn.descent, bnn.mfvi, bnn.svgd):
        given, other = (method(posterior, optax.sgd(rate)).settings for rate in (0.1, 0.2))
        assert given == method(posterior, optax.sgd(0.1)).settings != other
    fit(0.1)
    with pytest.raises(OtherRunError, match="got other steps of the optimizer given, expected"):
        fit(0.2)
    state = tmp_path / "state.json"
    before = json.loads(state.read_text())
    del before["checksum"], before["settings"]["versions"]  # as earlier versions wrote it
    del before["settings"]["exact"]["optimizer_program"]
    state.write_text(json.dumps(before))
    fit(0.1)


def test_another_function_to_keep_is_refused(posterior, tmp_path):
    def keep(scale):
        return {"keep": lambda values: {"slope": scale * values["slope"]}, "verdict": False}

    sample(posterior, tmp_path, **keep(2.0))
    with pytest.raises(OtherRunError, match="got other values of the function given as keep"):
        sample(posterior, tmp_path, **keep(3.0))
    sample(posterior, tmp_path, num_draws=10, **keep(2.0))


@pytest.mark.thorough
def test_another_model_or_other_data_are_refused(posterior, tmp_path):
    sample(posterior, tmp_path)

    def wider(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 2.5))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)

    def noisier(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 2.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 1.1), obs=y)

    x, y = posterior.data
    with pytest.raises(OtherRunError, match="got another prior"):
        sample(bnn.condition(wider, (x, y)), tmp_path)
    with pytest.raises(OtherRunError, match="got another likelihood"):
        sample(bnn.condition(noisier, (x, y)), tmp_path)
    with pytest.raises(OtherRunError, match="got other training rows"):
        sample(bnn.condition(line, (x, y + 1)), tmp_path)
    with pytest.raises(OtherRunError, match="got other groups of the rows"):
        sample(bnn.condition(line, (x, y), groups=np.arange(len(x)) % 3), tmp_path)


@pytest.mark.thorough
def test_names_of_classes_are_stored_with_the_draws(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 1))
    names = np.array(["no", "yes"])[(x[:, 0] > 0).astype(int)]

    def model(x, y=None):
        w = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=w * x[:, 0]), obs=y)

    posterior = bnn.condition(model, (x, names))
    sample(posterior, tmp_path / "run")
    draws = sample(posterior, tmp_path / "run")  # opened again
    stored = bnn.diagnostics.load(tmp_path / "run")
    of_numbers = bnn.condition(model, (x[:1], [0]))
    for each in (draws, stored):
        prediction = bnn.predict(of_numbers, each, (x, names))
        assert prediction["class"].values.tolist() == ["no", "yes"]
    others = bnn.condition(model, (x, np.where(names == "no", "false", "true")))
    with pytest.raises(ValueError, match="draws of the classes no, yes for a posterior of the cl"):
        bnn.predict(others, draws, (x, None))
    with pytest.raises(OtherRunError, match="class_names"):
        sample(others, tmp_path / "run")


@pytest.mark.thorough
def test_killed_while_it_is_extended(posterior, tmp_path, kill_at_write):
    expected = sample(posterior, num_draws=1100)
    for number in range(0, 8, 2):
        folder = tmp_path / str(number)
        sample(posterior, folder, num_draws=5)
        for _ in kill_at_write(number):
            with pytest.raises(Killed):
                sample(posterior, folder, num_draws=1100)
        draws = sample(posterior, folder, num_draws=1100)
        assert_same(draws, expected)
        np.testing.assert_array_equal(draws.posterior["draw"], np.arange(1100))


def test_draws_without_their_state_are_not_overwritten(posterior, tmp_path):
    expected = sample(posterior, tmp_path).posterior["slope"].values
    for name in ("state.json", "state-before.json"):
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match="without the state.json"):
        sample(posterior, tmp_path, seed=1)
    np.testing.assert_array_equal(bnn.diagnostics.load(tmp_path).posterior["slope"], expected)


@pytest.mark.thorough
def test_a_folder_that_another_process_writes_is_refused(posterior, tmp_path):
    script = f"""
import sys
from pathlib import Path
from bnn_ppl.storage import checkpoint
held = checkpoint.lock(Path({str(tmp_path)!r}))
print("held", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="another process writes to"):
            sample(posterior, tmp_path)
        other.stdin.close()
    assert_same(sample(posterior, tmp_path), sample(posterior))


def test_a_folder_stays_locked_when_an_earlier_holder_of_the_process_is_gone(tmp_path):
    """Such as the recorder in the last error of a notebook."""
    script = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+'); "
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )

    def is_free():
        command = [sys.executable, "-c", script, str(tmp_path / "state.lock")]
        return not subprocess.run(command, capture_output=True, check=False).returncode

    first, second = checkpoint.lock(tmp_path), checkpoint.lock(tmp_path)
    del first
    gc.collect()
    assert not is_free()
    second.close()
    assert is_free()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_does_not_hold_what_its_parent_does(tmp_path):
    script = """
import os, pathlib, sys
from bnn_ppl.runtime.files import locked
path = pathlib.Path(sys.argv[1], "lock")
held = locked(path, wait=False)
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1] != 0)
try:
    locked(path, wait=False)
except BlockingIOError:
    os._exit(0)
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


def test_counts_may_be_numpys_and_a_state_may_be_empty(posterior, tmp_path):
    def nothing(key, position, batch):
        return ()

    def step(key, state, batch):
        return (), {}

    def draw(key, state):
        return {"slope": jax.random.normal(key)}

    method = Method(nothing, step, draw)
    counts = {"num_chains": np.int64(2), "num_warmup": np.int32(1), "thin": np.int64(2)}
    counts["batch_size"] = np.int64(4)
    sample(posterior, tmp_path, method=method, **counts)
    more = sample(posterior, tmp_path, method=method, **counts, num_draws=np.int64(12))
    assert more.posterior.sizes["draw"] == 12


@pytest.mark.thorough
def test_one_device_fewer_goes_on(posterior, tmp_path, small_chunks):
    expected = sample(posterior)
    _stop_after(posterior, tmp_path, chunks=5)
    mesh = jax.make_mesh((1, 1), ("chain", "data"), devices=jax.devices()[:1])
    draws = sample(posterior, tmp_path, mesh=mesh)
    np.testing.assert_allclose(draws.posterior["slope"], expected.posterior["slope"], rtol=1e-5)


def test_interrupt_saves_and_says_how_to_go_on(posterior, tmp_path, small_chunks, capsys):
    draws = _stop_after(posterior, tmp_path, chunks=7)
    assert 0 < draws.posterior.sizes["draw"] < 9
    assert "the same call or command resumes" in capsys.readouterr().err
    assert_same(sample(posterior, tmp_path), sample(posterior))


def test_interrupt_in_warm_up_goes_on_too(posterior, tmp_path, small_chunks):
    with pytest.raises(KeyboardInterrupt):
        _stop_after(posterior, tmp_path, chunks=2)
    assert bnn.diagnostics.load(tmp_path).posterior.sizes["draw"] == 0
    assert_same(sample(posterior, tmp_path), sample(posterior))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["tempered_smc", "parallel_tempering", "chees", "meads", "nuts", "sghmc"]
)
def test_methods_that_adapt_resume_within_warm_up(name, posterior, tmp_path, small_chunks):
    method = METHODS[name].build(posterior)
    with suppress(KeyboardInterrupt):  # a fit that has begun is an answer
        assert "stopped" in _stop_after(posterior, tmp_path, chunks=2, method=method).attrs
    assert_same(sample(posterior, tmp_path, method=method), sample(posterior, method=method))


def _stop_after(posterior, folder, chunks, **options):
    """Press Ctrl-C while the given chunk is shown."""
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, chunks)
        return sample(posterior, folder, **{"method": walk()} | options)


def test_full_disk_is_one_line_and_loses_nothing(posterior, tmp_path, small_chunks, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        real = zarr_writer.write_draws
        calls = iter(range(3))
        patch.setattr(
            zarr_writer, "write_draws", lambda *a: real(*a) if next(calls, 9) < 2 else full()
        )
        with pytest.raises(OSError, match="No space left on device.*the same call resumes"):
            sample(posterior, tmp_path)
    assert bnn.diagnostics.load(tmp_path).posterior.sizes["draw"] > 0
    assert_same(sample(posterior, tmp_path), sample(posterior))


def test_folder_that_cannot_be_written_is_refused_at_the_start(posterior, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        sample(posterior, tmp_path / "file" / "run")


def test_folder_that_holds_no_run_is_refused_before_sampling(posterior, tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="holds no run"):
        sample(posterior, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep me"


def test_a_file_system_without_locks_says_so_at_once(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.raises(BlockingIOError):
        locked(tmp_path / "lock", wait=True)
