"""A run that ends early, in whatever phase: what it gives, and that it resumes."""

import gc
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interrupts import press_ctrl_c
from killed_runs import SCRIPTS, Killed, assert_same, line
from marks import quick_first, some_quick

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.methods.method import Counts, Method, step_info
from bnn_ppl.runtime import interrupts as module
from bnn_ppl.sampling.search import scale_search
from bnn_ppl.sampling.search.fits import Search
from bnn_ppl.storage.run_storage import RunStorage


@pytest.fixture(scope="module")
def posterior():
    x = np.linspace(-1, 1, 12)[:, None]
    return bnn.condition(line, (x, x[:, 0]))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 4)


@pytest.fixture
def clock(monkeypatch):
    """Let a second pass whenever the run looks at the clock."""
    ticks = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def trained(start=None, name="trained") -> Method:
    """Move a point half of its way to 1 in each step, with noise that a resumed run must repeat."""

    def init(key, position, batch):
        return {"at": position["slope"], "last": jnp.zeros(())}

    def step(key, state, batch):
        at = state["at"] + 0.5 * (1 - state["at"]) + 1e-3 * jax.random.normal(key)
        return {"at": at, "last": jax.random.normal(key)}, step_info(-(at**2))

    def draw(key, state):
        return {"slope": state["at"] + 1e-3 * jax.random.normal(key)}

    def finish(state):
        return state | {"last": state["last"] + 1}

    counts = Counts(num_warmup=12, num_draws=5, thin=0)
    method = Method(init, step, draw, settings={"method": name}, draws_from="gaussian")
    fitted = {"fitted": lambda state: {"slope.loc": state["at"], "slope.scale": state["last"]}}
    return method._replace(counts=counts, start=start, finish=finish, **fitted)


def walk(start=None) -> Method:
    """Take a random walk, from a fit if there is one."""

    def init(key, position, batch):
        return position["slope"]

    def step(key, at, batch):
        return at + 1e-2 * jax.random.normal(key), step_info(-(at**2))

    counts = Counts(num_warmup=6, num_draws=8)
    settings = {"method": "walk"}
    return Method(
        init, step, lambda key, at: {"slope": at}, settings=settings, counts=counts, start=start
    )


FIT, CHAIN = trained(), walk()
FIT_FROM_FIT = trained(FIT, "second")
CHAIN_FROM_FITS = walk(FIT_FROM_FIT)
ALL = {
    "fit": FIT,
    "chain": CHAIN,
    "fit from fit": FIT_FROM_FIT,
    "chain from fits": CHAIN_FROM_FITS,
}


def sample(posterior, method, folder=None, **options):
    options = {"num_chains": 2, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, folder=folder, **options)


def stopped_at(posterior, chunk, method, folder=None, **options):
    """Press Ctrl-C in the given chunk of all phases."""
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, chunk)
        return sample(posterior, method, folder, **options)


@pytest.mark.parametrize("name", some_quick(ALL, ("chain from fits",)))
def test_a_run_that_is_stopped_after_each_chunk_ends_with_the_same_draws(name, posterior, tmp_path):
    expected, calls, draws = sample(posterior, ALL[name]), 0, None
    while draws is None or "stopped" in draws.attrs:
        calls += 1
        try:
            draws = stopped_at(posterior, 1, ALL[name], tmp_path)
        except KeyboardInterrupt:
            draws = None
    assert_same(draws, expected)
    assert_same(bnn.diagnostics.load(tmp_path), expected)
    assert calls > {"fit": 3, "chain": 3, "fit from fit": 8, "chain from fits": 9}[name]
    assert not (tmp_path / "before").exists()
    for site in expected.get("fitted", {}):
        np.testing.assert_array_equal(draws["fitted"][site], expected["fitted"][site])


@pytest.mark.thorough
def test_killed_at_a_write_of_any_phase_it_goes_on(posterior, tmp_path, kill_at_write):
    expected, number, finished = sample(posterior, CHAIN_FROM_FITS), 0, False
    while not finished:
        for _ in kill_at_write(number):
            with suppress(Killed):
                sample(posterior, CHAIN_FROM_FITS, tmp_path / str(number))
                finished = True
        assert_same(sample(posterior, CHAIN_FROM_FITS, tmp_path / str(number)), expected)
        number += 7
    assert number > 40


@pytest.mark.parametrize("stored", [False, True])
def test_stopped_in_training_it_draws_from_the_fit_so_far(stored, posterior, tmp_path, capsys):
    folder = tmp_path / "run" if stored else None
    draws = stopped_at(posterior, 2, FIT, folder)
    assert draws.posterior.sizes["draw"] == 5
    np.testing.assert_allclose(draws.posterior["slope"], 1, atol=0.2)
    assert (draws["fitted"]["slope.loc"] != 0).all()
    words = "stopped in training by Ctrl-C, after 5 of at most 12 steps; the draws are of the fit"
    assert draws.attrs["stopped"].startswith(words)
    if stored:
        assert_same(bnn.diagnostics.load(folder), draws)
        assert "the same call or command resumes" in capsys.readouterr().err
        assert_same(sample(posterior, FIT, folder), sample(posterior, FIT))
        assert "stopped" not in bnn.diagnostics.load(folder).attrs


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (2, "stopped in the fit by trained that walk starts from by Ctrl-C, after 5 of at most 12"),
        (6, "stopped in the fit by second that walk starts from by Ctrl-C, after 5 of at most 12"),
        (9, "stopped in warm-up by Ctrl-C, after 1 of at most 6 steps; each draw is the one point"),
    ],
)
def test_stopped_between_its_fit_and_its_draws_a_chain_gives_its_point(
    chunk, words, stored, posterior, tmp_path
):
    folder = tmp_path / "run" if stored else None
    draws = stopped_at(posterior, chunk, CHAIN_FROM_FITS, folder)
    assert draws.posterior.sizes["draw"] == 1 and draws.attrs["thin"] == 0
    np.testing.assert_allclose(draws.posterior["slope"], 1, atol=0.2)
    assert np.isnan(draws.sample_stats["lp"]).all() and not draws.sample_stats["n_steps"].any()
    assert draws.attrs["stopped"].startswith(words)
    if stored:
        assert_same(bnn.diagnostics.load(folder), draws)
        whole = sample(posterior, CHAIN_FROM_FITS, folder)
        assert_same(whole, sample(posterior, CHAIN_FROM_FITS))
        assert whole.attrs["thin"] == 1


def test_stopped_before_its_steps_are_tuned_a_chain_gives_the_fit_it_started_from(
    posterior, tmp_path
):
    fit = stopped_at(posterior, 9, CHAIN_FROM_FITS)
    assert "stopped in warm-up by Ctrl-C, after 1 of" in fit.attrs["stopped"]
    for chunk, steps in ((9, 1), (1, 2)):
        draws = stopped_at(posterior, chunk, CHAIN_FROM_FITS, tmp_path)
        assert f"stopped in warm-up by Ctrl-C, after {steps} of" in draws.attrs["stopped"]
        np.testing.assert_array_equal(draws.posterior["slope"], fit.posterior["slope"])
    (file,) = (tmp_path / "before" / "warmup-origin").glob("state-*.bin")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.warns(UserWarning, match="each chain gives the point where it is instead"):
        moved = stopped_at(posterior, 1, CHAIN_FROM_FITS, tmp_path)
    assert (moved.posterior["slope"] != fit.posterior["slope"]).all()
    file.write_bytes(whole)
    tuned = stopped_at(posterior, 2, CHAIN_FROM_FITS, tmp_path)
    assert "stopped at the end of warm-up by Ctrl-C" in tuned.attrs["stopped"]
    assert (tuned.posterior["slope"] != fit.posterior["slope"]).all()


def test_a_fit_whose_training_has_ended_is_whole(posterior):
    def init(key, position, batch):
        return {"at": position["slope"], "count": 0}

    def step(key, state, batch):
        ended = state["count"] >= 6
        info = {"lp": state["at"], "n_steps": 1 - ended, "done": ended}
        return state | {"count": state["count"] + ~ended}, info

    counts = Counts(num_warmup=100_000, num_draws=5, thin=0)
    settings = {"method": "ending"}
    fit = Method(init, step, lambda key, state: {"slope": state["at"]}, settings=settings)
    fit = fit._replace(counts=counts, draws_from="point")
    draws = stopped_at(posterior, 3, walk(fit))
    assert draws.attrs["stopped"].startswith("stopped in warm-up by Ctrl-C, after 0 of at most 6")
    draws = stopped_at(posterior, 3, fit)
    assert draws.attrs["stopped"] == (
        "stopped at the end of training by Ctrl-C; the draws are of this fit"
    )


def test_ctrl_c_that_is_lost_before_the_first_step_is_raised_again(posterior, monkeypatch):
    pressed = []

    def press(phase, info):
        if not pressed:
            pressed.append(phase)
            signal.raise_signal(signal.SIGINT)

    def collect_garbage(folder):
        gc.collect()
        time.sleep(5)

    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.run"], "RunStorage", collect_garbage)
    gc.callbacks.append(press)
    try:
        with pytest.raises(KeyboardInterrupt):
            sample(posterior, FIT)
    finally:
        gc.callbacks.remove(press)
    assert pressed


def test_max_minutes_stop_training_as_ctrl_c_does(posterior, clock):
    draws = sample(posterior, FIT, max_minutes=0.05)
    assert draws.attrs["stopped"].startswith("stopped in training by max_minutes, after")
    draws = sample(posterior, CHAIN_FROM_FITS, max_minutes=0.05)
    assert "starts from by max_minutes, after" in draws.attrs["stopped"]
    draws = sample(posterior, CHAIN, num_draws=100, max_minutes=0.2)
    assert draws.attrs["stopped"].startswith("stopped in drawing by max_minutes, after")


def test_the_verdict_says_so_first(posterior, clock, verdicts):
    draws = sample(posterior, FIT, max_minutes=0.05)
    text, converged = draws.attrs["verdict"], draws.attrs["converged"]
    assert text.startswith("stopped in training by max_minutes, after") and not converged
    assert "give it more time" in text
    draws = sample(posterior, CHAIN_FROM_FITS, num_draws=400, max_minutes=2)
    assert "note: stopped in drawing" in draws.attrs["verdict"] or not draws.attrs["converged"]


def test_a_chain_on_its_way_from_the_prior_is_no_answer(posterior, clock):
    with pytest.raises(TimeoutError, match="before the first draw.*with a folder is resumed by"):
        sample(posterior, CHAIN, max_minutes=0.05)
    with pytest.raises(KeyboardInterrupt):
        stopped_at(posterior, 1, CHAIN)


def test_a_fit_that_is_not_finite_is_no_answer(posterior):
    def broken(state):
        return {"slope": jnp.full((), jnp.nan)}

    method = FIT._replace(draw=lambda key, state: broken(state))
    with pytest.raises(KeyboardInterrupt):
        stopped_at(posterior, 2, method)
    with pytest.raises(KeyboardInterrupt):
        stopped_at(posterior, 2, walk(method))


def test_an_error_without_a_folder_carries_the_draws_before_it(posterior, monkeypatch):
    calls = itertools.count()

    def full(*args):
        if next(calls) == 4:
            raise OSError(28, "No space left on device")

    expected = sample(posterior, CHAIN)
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "_shown", full)
    with pytest.raises(OSError, match="No space left") as error:
        sample(posterior, CHAIN)
    count = error.value.draws.posterior.sizes["draw"]
    assert 0 < count < 8 and "attribute draws" in error.value.__notes__[0]
    np.testing.assert_array_equal(
        error.value.draws.posterior["slope"], expected.posterior["slope"][:, :count]
    )


@pytest.mark.parametrize(
    ("of", "chunk", "words"),
    [
        ("FIT", 1, "stopped in training by {}, after 5 of at most 12 steps; the draws are of the"),
        ("CHAIN_FROM_FITS", 2, "stopped in the fit by trained that walk starts from by {}, after"),
        ("CHAIN_FROM_FITS", 8, "stopped in warm-up by {}, after"),
    ],
)
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_error_before_the_first_draw_carries_draws_of_the_fit(
    of, chunk, words, kind, posterior, monkeypatch
):
    calls = itertools.count()

    def failing(*args):
        if next(calls) == chunk:
            raise kind

    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "_shown", failing)
    with pytest.raises(kind) as error:
        sample(posterior, globals()[of])
    draws = error.value.draws
    assert draws.attrs["stopped"].startswith(words.format(kind.__name__))
    np.testing.assert_allclose(draws.posterior["slope"], 1, atol=0.6)
    assert "of the fit before this error" in error.value.__notes__[0]
    assert not hasattr(error.value, "reached")


def test_an_error_on_the_way_from_the_prior_carries_nothing(posterior, monkeypatch):
    def failing(*args):
        raise OSError

    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "_shown", failing)
    with pytest.raises(OSError) as error:
        sample(posterior, CHAIN)
    assert not hasattr(error.value, "draws")


# --- the search for the scale of the prior


def at_scale(scale):
    x = np.random.default_rng(0).normal(size=(12, 1))
    net = partial(bnn.nets.MLP, 1, (), 1)
    return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(scale), 0.5), (x, x[:, 0]))


@pytest.mark.thorough
def test_a_search_that_is_stopped_after_a_chunk_ends_with_the_same_scale(tmp_path, monkeypatch):
    monkeypatch.setattr("bnn_ppl.sampling.search.scale_search._NUM_STEPS", 20)
    search = partial(bnn.prior_scale, jax.random.key(0), at_scale, num_rounds=1)
    expected, found, calls = search(), None, 0
    while found is None:
        calls += 1
        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            press_ctrl_c(patch, 4)
            found = search(folder=tmp_path)
    assert found == expected and calls > 1


@pytest.mark.thorough
def test_a_search_is_stopped_by_the_clock_and_shown_by_its_name(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("bnn_ppl.sampling.search.scale_search._NUM_STEPS", 20)
    with pytest.raises(TimeoutError, match="search for the prior scale.*the same call goes on"):
        bnn.prior_scale(jax.random.key(0), at_scale, folder=tmp_path, max_minutes=1e-9)
    bnn.prior_scale(jax.random.key(0), at_scale, num_rounds=1, progress="json")
    phases = [json.loads(line)["phase"] for line in capsys.readouterr().err.splitlines()]
    assert {"prior scale, round 1 of 1"} == set(phases) - {"compiling"}


@pytest.mark.thorough
def test_a_search_whose_time_is_up_gives_the_scale_about_the_points_reached(
    clock, monkeypatch, tmp_path
):
    monkeypatch.setattr("bnn_ppl.sampling.search.fits.time", module.time)
    monkeypatch.setattr("bnn_ppl.sampling.search.scale_search._NUM_STEPS", 400)
    search = partial(bnn.prior_scale, jax.random.key(0), at_scale)
    short, whole = search(max_minutes=0.2, folder=tmp_path), search()
    assert 0 < short < np.inf and short != whole
    assert search(folder=tmp_path) == whole


def test_a_fit_of_a_search_whose_time_is_up_says_nothing(
    posterior, clock, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("bnn_ppl.sampling.search.fits.time", module.time)
    search = Search.of(bnn.run, "prior scale", tmp_path)
    found = search.run(jax.random.key(0), posterior, FIT, 5.0, folder=tmp_path / "fit")
    assert "by max_minutes" in found.attrs["stopped"]
    assert not capsys.readouterr().err


def test_ctrl_c_ends_a_search_also_when_its_time_is_up(capsys):
    stopped = SimpleNamespace(attrs={"stopped": "stopped in the draws by Ctrl-C"})
    search = Search(lambda *_, **__: stopped, "prior scale", "place", 0.0, False)
    with pytest.raises(KeyboardInterrupt):
        search.run(None, None, None, math.inf)
    assert "kept in place: the same call or command resumes it" in capsys.readouterr().err


def test_a_scale_that_was_found_in_a_hurry_is_searched_for_again(searched_priors, monkeypatch):
    x = np.random.default_rng(0).normal(size=(12, 1))
    net = partial(bnn.nets.MLP, 1, (), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(), 0.5)
    posterior = bnn.condition(model, (x, x[:, 0]))
    now, calls = [0.0], []

    def search(*_, **__):
        calls.append(now[0])
        now[0] += 30.0
        return 2.0

    monkeypatch.setattr(scale_search, "scale_or_usual", search)
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(scale_search, "time", clock)
    monkeypatch.setattr(module, "time", clock)
    for minutes in (1, 10, 10):
        scale_search._searched(None, posterior, RunStorage(None), now[0] + 60 * minutes, False)
    assert calls == [0.0, 30.0]


@pytest.mark.thorough
def test_the_command_searches_once_and_counts_it(searched_priors, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bnn_ppl.sampling.search.scale_search._NUM_STEPS", 20)
    command = ["run", "descent", "--data", "yacht", "--hidden", "2", "--num-warmup", "20"]
    command += ["--no-progress", "--num-chains", "2"]
    problem = tmp_path / "runs" / "yacht-0-descent" / "problem.json"
    cli.main(command)
    found = json.loads(problem.read_text())["prior_scale"]
    assert f"fan_in({found})" in capsys.readouterr().out
    monkeypatch.setattr("bnn_ppl.cli.problem.search.scale_or_usual", None)
    cli.main(command)
    cli.main([*command, "--folder", str(problem.parent)])
    cli.main([*command, "--seed", "1"])
    other = tmp_path / "runs" / "yacht-0-descent-2" / "problem.json"
    assert json.loads(other.read_text())["prior_scale"] == found


@pytest.mark.thorough
def test_a_command_without_time_for_a_search_takes_the_usual_scale(
    searched_priors, tmp_path, capsys
):
    command = ["run", "descent", "--data", "yacht", "--hidden", "2", "--num-chains", "2"]
    with pytest.raises(SystemExit):
        cli.main([*command, "--folder", str(tmp_path / "run"), "--max-minutes", "1e-6"])
    told = capsys.readouterr().err
    assert "no time to find the scale of the prior: the usual one, 1.41" in told
    assert "passed before the first draw" in told


# --- files


SCRIPT = SCRIPTS / "resumable_start.py"
OF_EACH_FAMILY = (
    *("hmc", "mclmc", "sgld", "sghmc", "tempered_smc", "svgd"),
    *("descent", "mfvi", "ivon", "laplace", "swag", "points"),
)
NUM_KILLS = 6


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_EACH_FAMILY)
def test_killed_at_random_instants_of_all_phases_it_goes_on_to_the_same_draws(name, tmp_path):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = [sys.executable, str(SCRIPT)]
    for folder in (tmp_path / "compiled", whole):
        began = time.monotonic()
        subprocess.run([*command, folder, name], check=True, env=environment, capture_output=True)
    seconds = time.monotonic() - began
    random, ended = np.random.default_rng(), False
    for _ in range(NUM_KILLS):
        with subprocess.Popen(
            [*command, broken, name], env=environment, stderr=subprocess.DEVNULL
        ) as process:
            try:
                process.wait(random.uniform(0.2, 1.0) * seconds)
                ended = True
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        if ended:
            break
    subprocess.run([*command, broken, name], check=True, env=environment, capture_output=True)
    assert_same(bnn.diagnostics.load(broken), bnn.diagnostics.load(whole))


@quick_first("kind", ["truncated", "empty", "flipped", "another"])
def test_a_damaged_state_of_a_fit_begins_that_fit_again(kind, posterior, tmp_path):
    stopped_at(posterior, 2, CHAIN_FROM_FITS, tmp_path)
    for file in (tmp_path / "before" / "start-start").glob("state-*.bin"):
        content = file.read_bytes()
        bad = {"truncated": content[:-1], "empty": b"", "another": content + content}
        bad["flipped"] = bytes([content[0] ^ 1]) + content[1:]
        file.write_bytes(bad[kind])
    with pytest.warns(UserWarning, match="state-.*this phase begins again"):
        draws = sample(posterior, CHAIN_FROM_FITS, tmp_path)
    assert_same(draws, sample(posterior, CHAIN_FROM_FITS))
