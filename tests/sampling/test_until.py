"""Draws go on until the predictions are known well enough, or the time is up."""

import itertools
import json
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interrupts import press_ctrl_c
from killed_runs import line
from marks import some_quick

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.methods.method import Method
from bnn_ppl.runtime import interrupts
from bnn_ppl.sampling import convergence_target as module
from bnn_ppl.sampling.setup.run_spec import RunLength

GOAL = {"rhat": 1.05, "ess": 60}


@pytest.fixture(scope="module")
def posterior():
    x = np.linspace(-1, 1, 12)[:, None]
    return bnn.condition(line, (x, x[:, 0]))


def noise(correlation: float = 0.6, bad: float = 0.0) -> Method:
    """Take an autoregressive chain, which mixes as fast as one likes and compiles in no time."""

    def init(key, position, batch):
        return position["slope"]

    def step(key, at, batch):
        at = correlation * at + (1 - correlation**2) ** 0.5 * jax.random.normal(key)
        return at, {"lp": -(at**2), "n_steps": jnp.ones((), int)}

    def draw(key, at):
        return {"slope": jnp.where(bad, jnp.nan, at)}

    return Method(init, step, draw, settings={"method": "noise", "correlation": correlation})


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    """Make chunks small, in all runs that are compared: another program may round otherwise."""
    jax.config.update("jax_disable_most_optimizations", True)  # as conftest.py does for each test
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 8)
        yield


@pytest.fixture
def clock(monkeypatch):
    """Let a second pass whenever the run looks at the clock."""
    ticks = itertools.count()
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def sample(posterior, folder=None, method=None, **options):
    options = {"num_chains": 2, "num_warmup": 3, "num_draws": 20, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method or noise(), folder=folder, **options)


def assert_same(draws, expected):
    for group in ("posterior", "sample_stats"):
        for name in expected[group]:
            np.testing.assert_array_equal(draws[group][name], expected[group][name])
    for fact in ("gradient_evaluations", "num_draws"):
        assert draws.attrs[fact] == expected.attrs[fact]


def quantiles(posterior, draws):
    functions = bnn.function_draws(posterior, draws, posterior.data[0])
    rhat, ess = (
        found["mean"].values
        for found in (bnn.diagnostics.rhat(functions), bnn.diagnostics.ess(functions))
    )
    return np.quantile(rhat, 0.95), np.quantile(ess, 0.05)


@pytest.fixture(scope="module")
def met(posterior, small_chunks):
    return sample(posterior, until=GOAL)


def test_draws_go_on_until_they_are_as_asked_and_not_further(posterior, met):
    count = met.posterior.sizes["draw"]
    looks = [20, 30, 45, 68, 102, 153, 230, 345, 518, 777, 1166, 1749]
    assert count in looks[1:]
    rhat, ess = quantiles(posterior, met)
    assert rhat <= 1.05 and ess >= 60
    before = met.isel(draw=slice(looks[looks.index(count) - 1]))
    rhat, ess = quantiles(posterior, before)
    assert rhat > 1.05 or ess < 60
    assert json.loads(met.attrs["until"]) == GOAL and met.attrs["until_met"] == 1


@pytest.mark.thorough
def test_the_draws_are_those_of_an_ordinary_run(posterior, met, tmp_path):
    ordinary = sample(posterior, num_draws=met.posterior.sizes["draw"])
    assert_same(met, ordinary)
    assert "until" not in ordinary.attrs
    stored = sample(posterior, tmp_path, until=GOAL)
    assert_same(stored, ordinary)
    opened = bnn.diagnostics.load(tmp_path)
    assert opened.attrs["until_met"] == 1 and json.loads(opened.attrs["until"]) == GOAL


def test_what_is_met_at_the_first_look_is_an_ordinary_run(posterior):
    easy = sample(posterior, until={"rhat": 100.0})
    assert_same(easy, sample(posterior))
    assert easy.attrs["until_met"] == 1


@pytest.mark.thorough
def test_a_finished_run_is_read_and_a_higher_goal_extends_it(posterior, met, tmp_path):
    sample(posterior, tmp_path, until={"ess": 5})
    assert_same(sample(posterior, tmp_path, until=GOAL), met)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "loop_of", None)
        again = sample(posterior, tmp_path, until=GOAL)
    assert_same(again, met)
    assert again.attrs["until_met"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", some_quick((1, 4, 9), (4,)))
def test_stopped_by_ctrl_c_it_goes_on_to_the_same_draws(chunk, posterior, met, tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, chunk)
        try:
            draws = sample(posterior, tmp_path, until=GOAL)
        except KeyboardInterrupt:
            assert bnn.diagnostics.load(tmp_path).posterior.sizes["draw"] == 0
        else:
            assert draws.attrs["until_met"] == 0
            assert "until is not met: after" in capsys.readouterr().err
    assert_same(sample(posterior, tmp_path, until=GOAL), met)


def test_stopped_after_its_first_look_it_says_so(posterior):
    numbers = []
    for chunk in range(2, 8):
        with pytest.MonkeyPatch.context() as patch:
            press_ctrl_c(patch, chunk)
            draws = sample(posterior, until={"ess": 1e6}, verdict=False, num_warmup=0)
        assert draws.attrs["stopped_in"] == "draws" and draws.attrs["until_met"] == 0
        numbers.append(draws.attrs["stopped"].split(", after ")[1])
    assert any(" of at most 30 " in number for number in numbers)
    assert "20 of at most 20 draws" not in numbers


@pytest.mark.thorough
def test_stopped_by_the_clock_it_goes_on_to_the_same_draws(posterior, met, tmp_path, clock, capsys):
    counts = []
    while counts[-1:] != [met.posterior.sizes["draw"]]:
        draws = sample(posterior, tmp_path, until=GOAL, max_minutes=0.2)
        counts.append(draws.posterior.sizes["draw"])
    assert len(counts) > 2 and counts == sorted(counts)
    assert_same(draws, met)
    assert draws.attrs["until_met"] == 1
    err = capsys.readouterr().err
    assert "until is not met" in err
    assert "the same call or command resumes the run" in err


@pytest.mark.thorough
def test_max_minutes_alone_stop_a_run_and_keep_its_draws(posterior, tmp_path, clock, capsys):
    draws = sample(posterior, num_draws=1000, max_minutes=0.2)
    count = draws.posterior.sizes["draw"]
    assert 0 < count < 1000
    assert f"stopped: {count} of 1,000 draws are kept" in capsys.readouterr().err
    assert_same(draws, sample(posterior, num_draws=count))
    part = sample(posterior, tmp_path, num_draws=100, max_minutes=0.2)
    assert part.posterior.sizes["draw"] < 100
    while part.posterior.sizes["draw"] < 100:
        part = sample(posterior, tmp_path, num_draws=100, max_minutes=0.2)
    assert_same(part, sample(posterior, num_draws=100))
    assert "until" not in part.attrs


def test_enough_minutes_change_nothing(posterior, met):
    assert_same(sample(posterior, until=GOAL, max_minutes=60), met)


@pytest.mark.thorough
def test_no_draw_in_time_is_an_error_that_says_what_to_do(posterior, tmp_path):
    with pytest.raises(TimeoutError, match="before the first draw.*give more minutes"):
        sample(posterior, max_minutes=1e-9)
    with pytest.raises(TimeoutError, match="the same call"):
        sample(posterior, tmp_path, until=GOAL, max_minutes=1e-9)
    assert_same(sample(posterior, tmp_path), sample(posterior))


def test_what_is_not_finite_is_given_up(posterior, capsys):
    draws = sample(posterior, method=noise(bad=1.0), until=GOAL)
    assert draws.posterior.sizes["draw"] == 20 and draws.attrs["until_met"] == 0
    assert "not all finite" in capsys.readouterr().err


def test_looks_are_told_as_progress(posterior, capsys):
    sample(posterior, until={"rhat": 100, "ess": 1}, progress="json")
    lines = [json.loads(words) for words in capsys.readouterr().err.splitlines()]
    (look,) = [line for line in lines if line["phase"] == "look"]
    assert look["draws"] == 20 and look["ess"] > 1
    sample(posterior, until={"ess": 1}, progress=True)
    assert "checked after 20 draws, ESS" in capsys.readouterr().err


def test_other_inputs_and_at_most_200_rows(posterior):
    def rows(until):
        return module.target_of(posterior, until, RunLength(2, 5, 20, 1, None)).x

    np.testing.assert_array_equal(rows(GOAL), posterior.data[0])
    np.testing.assert_array_equal(rows(GOAL | {"x": np.ones((3, 1))}), np.ones((3, 1)))
    many = rows(GOAL | {"x": np.arange(1000.0)[:, None]})
    assert many.shape == (200, 1) and (many[1:] > many[:-1]).all()
    np.testing.assert_array_equal(many, rows(GOAL | {"x": np.arange(1000.0)[:, None]}))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"until": 1.01}, TypeError, "until=1.01, expected a dict"),
        ({"until": {}}, ValueError, "got until with nothing, expected 'rhat'"),
        ({"until": {"x": np.ones((3, 1))}}, ValueError, "until with 'x', expected 'rhat'"),
        ({"until": {"r_hat": 1.01}}, ValueError, "until with 'r_hat', expected 'rhat'"),
        ({"until": {"rhat": 1.0}}, ValueError, "rhat=1.0, expected a number above 1"),
        ({"until": {"rhat": "1.1"}}, ValueError, "rhat='1.1', expected a number above 1"),
        ({"until": {"ess": float("nan")}}, ValueError, "ess=nan, expected a number above 0"),
        ({"until": {"ess": None, "rhat": 1.1}}, ValueError, "ess=None, expected a number"),
        ({"until": GOAL, "thin": 0}, ValueError, "thin=0.*leave until= out"),
        ({"until": GOAL, "num_chains": 1}, ValueError, "num_chains=1, expected at least 2"),
        ({"until": GOAL, "num_draws": 3}, ValueError, "num_draws=3, expected at least 4"),
        ({"until": GOAL | {"x": np.ones(3)}}, ValueError, r"inputs x of shape \(3,\)"),
        ({"until": GOAL | {"x": np.ones((0, 1))}}, ValueError, "x of no rows"),
        (
            {"until": GOAL, "keep": lambda values: {"twice": 2 * values["slope"]}},
            ValueError,
            "until= and keep=, which leaves out or changes slope",
        ),
        ({"max_minutes": 0}, ValueError, "max_minutes=0, expected a number above 0"),
        ({"max_minutes": "soon"}, ValueError, "max_minutes='soon', expected a number above 0"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    options, error, words, posterior, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys.modules["bnn_ppl.storage.run_storage"], "FolderRecorder", None)
    with pytest.raises(error, match=words):
        sample(posterior, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_ess_alone_needs_one_chain(posterior):
    draws = sample(posterior, num_chains=1, until={"ess": 30})
    assert draws.attrs["until_met"] == 1


@pytest.mark.thorough
def test_the_command_line_draws_until_it_is_good(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [
        "run",
        "sgld",
        "--step-size",
        "1e-6",
        "--hidden",
        "2",
        "--num-chains",
        "2",
        "--num-warmup",
        "5",
    ]
    command += ["--num-draws", "6", "--folder", "out", "--no-progress"]
    monkeypatch.setattr(
        bnn.plots, "report", lambda *a, **k: SimpleNamespace(savefig=lambda *a, **k: 0)
    )
    cli.main([*command, "--until", "rhat=1000", "ess=0.1", "--max-minutes", "30"])
    draws = bnn.diagnostics.load("out")
    assert json.loads(draws.attrs["until"]) == {"rhat": 1000, "ess": 0.1}
    assert draws.attrs["until_met"] == 1
    for wrong in (["rhat"], ["rhat=low"], ["x=3"], ["rhat=0.5"]):
        with pytest.raises(SystemExit):
            cli.main([*command[:-2], "new", "--until", *wrong])
        assert "rhat" in capsys.readouterr().err and not (tmp_path / "new").exists()


@pytest.mark.thorough
def test_the_estimators_draw_until_it_is_good(monkeypatch):
    estimators = pytest.importorskip("bnn_ppl.estimators")
    x = 10 + 5 * np.linspace(-1, 1, 20)[:, None]
    counts = {"num_chains": 2, "num_warmup": 5, "num_draws": 6, "hidden": (2,)}
    goal = {"ess": 5.0, "x": x[:7]}
    fit = estimators.BayesianRegressor(
        lambda posterior: bnn.hmc(posterior, trajectory_length=0.1), random_state=0, **counts
    )
    seen = []
    real = module.target_of
    monkeypatch.setattr(
        sys.modules["bnn_ppl.sampling.run_checks"],
        "target_of",
        lambda *a: seen.append(real(*a)) or seen[-1],
    )
    fit.set_params(until=goal, max_minutes=30).fit(x, x[:, 0])
    assert fit.draws_.attrs["until_met"] == 1
    assert seen[0].x.shape == (7, 1) and np.abs(seen[0].x).max() < 2  # standardised, as the rest
