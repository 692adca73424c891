"""Statistics of warm-up: what is kept, in memory and on disk."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from interrupts import press_ctrl_c
from marks import some_quick

import bnn_ppl as bnn
from bnn_ppl.methods.method import Method
from bnn_ppl.storage import checkpoint, warmup_statistics
from bnn_ppl.storage.inference_data import inference_data, with_groups
from bnn_ppl.storage.warmup_statistics import NO_STATS, read_warmup, with_steps, write_warmup

Y = np.array([1.0, 2.0, 6.0])


def normal(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(normal, (np.zeros((3, 1)), Y))


@pytest.fixture(scope="module")
def descent(posterior):
    return bnn.descent(posterior, optax.sgd(0.1))


def training(end: int) -> Method:
    """Train a counter that ends after `end` steps in its first chain, three later in others."""

    def init(key, position, batch):
        return {"count": jnp.zeros((), int), "end": end + 3 * (position["w"] != 5.0)}

    def step(key, state, batch):
        ended = state["count"] >= state["end"]
        count = state["count"] + ~ended
        info = {"lp": count.astype(float), "n_steps": 1 - ended, "done": count >= state["end"]}
        return state | {"count": count}, info

    return Method(init, step, lambda key, state: {"w": jnp.zeros(())}, settings={"method": "count"})


def sample(posterior, method, **options):
    options = {"num_chains": 2, "num_draws": 1, "thin": 0, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


def starts(*values):
    return inference_data({"w": np.array(values)[:, None]}, {}, None, {})


@pytest.mark.parametrize("most", [1, 7, 1000])
@pytest.mark.parametrize("number", [1, 6, 7, 8, 100, 2500])
def test_the_steps_kept_depend_on_how_many_there_were_alone(number, most, monkeypatch):
    monkeypatch.setattr(warmup_statistics, "MOST_STEPS", most)
    every = np.arange(3 * number).reshape(3, number)
    stride = next(2**k for k in range(20) if number // 2**k <= most)
    expected = [step for step in range(number) if (step + 1) % stride == 0]
    assert len(expected) <= most and (number < most or len(expected) > most // 2 - 1)
    for seed in range(3):
        ends = np.random.default_rng(seed).integers(0, number + 1, size=9)
        kept = NO_STATS
        for first, end in zip([0, *np.sort(ends)], [*np.sort(ends), number], strict=True):
            kept = with_steps(kept, int(first), {"lp": every[:, first:end]})
        np.testing.assert_array_equal(kept.steps, expected)
        np.testing.assert_array_equal(kept.values["lp"], every[:, expected])


@pytest.mark.thorough
def test_a_fit_keeps_its_objective_at_each_step(posterior, descent):
    first = np.array([3.0, -2.0])
    draws = sample(posterior, descent, num_warmup=20, init=starts(*first))
    # Gradient descent on (w^2 / 8 + sum (y - w)^2 / 2) / 3 with step 0.1.
    w, lp = first, []
    for _ in range(20):
        terms = dist.Normal(0, 2).log_prob(w), dist.Normal(w[:, None], 1).log_prob(Y).sum(1)
        lp.append(sum(map(np.asarray, terms)))
        w = w - 0.1 * (w / 4 + (w[:, None] - Y).sum(1)) / 3
    stats = draws.warmup_sample_stats
    assert stats["lp"].dims == ("chain", "step")
    np.testing.assert_array_equal(stats["step"], np.arange(20))
    np.testing.assert_allclose(stats["lp"], np.transpose(lp), rtol=1e-5)
    np.testing.assert_allclose(draws.posterior["w"][:, 0], w, rtol=1e-5)


def test_memory_and_folder_keep_the_same_and_no_more_than_the_most(
    posterior, descent, tmp_path, monkeypatch
):
    monkeypatch.setattr(warmup_statistics, "MOST_STEPS", 8)
    in_memory = sample(posterior, descent, num_warmup=50)
    stored = sample(posterior, descent, num_warmup=50, folder=tmp_path)
    for draws in (in_memory, stored, bnn.diagnostics.load(tmp_path)):
        found = draws.warmup_sample_stats
        np.testing.assert_array_equal(found["step"], [7, 15, 23, 31, 39, 47])
        assert found.identical(in_memory.warmup_sample_stats)
    assert {"lp", "n_steps", "diverging"} <= set(found)


def test_choosing_draws_leaves_them_alone(posterior, descent):
    draws = sample(posterior, descent, num_warmup=3, num_draws=9)
    chosen = draws.isel(draw=[8], chain=[1])
    assert chosen.warmup_sample_stats["lp"].shape == (1, 3)


def test_a_run_without_warm_up_has_no_group(posterior, descent):
    draws = sample(posterior, descent, num_warmup=0, thin=1)
    assert "warmup_sample_stats" not in draws


@pytest.mark.parametrize("chunk", some_quick((1, 3, 512), (3,)))
def test_steps_after_the_end_of_training_are_left_out_however_they_came(
    chunk, posterior, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", chunk
    )
    options = {"num_warmup": 5000, "init": starts(5.0, 1.0), "folder": tmp_path}
    stats = sample(posterior, training(11), **options).warmup_sample_stats
    np.testing.assert_array_equal(stats["step"], np.arange(14))
    np.testing.assert_array_equal(stats["lp"][0], [*range(1, 12), *[np.nan] * 3])
    np.testing.assert_array_equal(stats["n_steps"][0], [1] * 11 + [0] * 3)
    np.testing.assert_array_equal(stats["lp"][1], range(1, 15))


@pytest.mark.thorough
def test_a_run_stopped_in_warm_up_goes_on_with_what_it_kept(
    posterior, descent, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 4)
    monkeypatch.setattr(warmup_statistics, "MOST_STEPS", 8)
    options = {"num_warmup": 50, "folder": tmp_path}
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, chunk=5)
        assert sample(posterior, descent, **options).attrs["stopped_in"] == "warmup"
    so_far = bnn.diagnostics.load(tmp_path).warmup_sample_stats
    assert 0 < len(so_far["step"]) <= 8 and so_far["step"][-1] < 20
    resumed = sample(posterior, descent, **options)
    expected = sample(posterior, descent, num_warmup=50)
    assert resumed.warmup_sample_stats.identical(expected.warmup_sample_stats)


def test_steps_written_by_a_process_that_was_then_killed_are_taken_again(
    posterior, descent, tmp_path, monkeypatch
):
    """The file is written before the state, so it may be ahead of it, and thinner."""
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 4)
    monkeypatch.setattr(warmup_statistics, "MOST_STEPS", 8)
    options = {"num_warmup": 50, "folder": tmp_path}
    saves = iter(range(5))

    def killed(*args):
        if next(saves, None) is None:
            raise SystemExit
        return save(*args)

    save = checkpoint.save_state
    with monkeypatch.context() as patch:
        patch.setattr("bnn_ppl.storage.checkpoint.save_state", killed)
        with pytest.raises(SystemExit):
            sample(posterior, descent, **options)
    kept = bnn.diagnostics.load(tmp_path).warmup_sample_stats["step"]
    done = checkpoint.read_header(tmp_path)["progress"]["warmup"]
    assert done <= kept[-1]
    resumed = sample(posterior, descent, **options)
    expected = sample(posterior, descent, num_warmup=50)
    assert resumed.warmup_sample_stats.identical(expected.warmup_sample_stats)


def test_a_damaged_file_is_left_out(posterior, descent, tmp_path):
    sample(posterior, descent, num_warmup=3, folder=tmp_path)
    (tmp_path / "warmup-0.npz").write_bytes(b"PK nonsense")
    with pytest.warns(UserWarning, match=r"warmup-0.npz.*damaged.*left it out"):
        assert "warmup_sample_stats" not in bnn.diagnostics.load(tmp_path)
    np.savez(tmp_path / "warmup-0.npz", lp=np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"warmup-0.npz.*do not fit together"):
        bnn.diagnostics.load(tmp_path)


def test_the_files_of_several_processes_are_joined_at_the_steps_all_have(tmp_path):
    for first, number in ((0, 5), (2, 4)):
        kept = with_steps(NO_STATS, 0, {"lp": np.arange(2 * number).reshape(2, number) + first})
        write_warmup(tmp_path, first, kept)
    both = read_warmup(tmp_path, 4)
    np.testing.assert_array_equal(both.steps, range(4))
    expected = [[0, 1, 2, 3], [5, 6, 7, 8], [2, 3, 4, 5], [6, 7, 8, 9]]
    np.testing.assert_array_equal(both.values["lp"], expected)
    assert read_warmup(tmp_path, 6) is NO_STATS  # a third one has not written


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 1), (4, 2), (1, 4)])
def test_another_number_of_processes_leaves_all_chains_readable_at_any_time(
    before, after, tmp_path
):
    values = np.arange(12.0).reshape(4, 3)

    def write(process, processes):
        share = 4 // processes
        own = values[process * share : (process + 1) * share]
        write_warmup(tmp_path, process * share, with_steps(NO_STATS, 0, {"lp": own}))

    for process in range(before):
        write(process, before)
    for process in [*range(1, after), 0]:
        np.testing.assert_array_equal(read_warmup(tmp_path, 4).values["lp"], values)
        write(process, after)
    np.testing.assert_array_equal(read_warmup(tmp_path, 4).values["lp"], values)


# --- figures


@pytest.fixture
def warmed():
    """Draws of two chains, the first of which ends after 60 of 80 steps."""
    rising = -np.exp(5 - np.arange(80) / 8)
    lp = np.stack([np.where(np.arange(80) < 60, rising, np.nan), rising - 1])
    sizes = np.geomspace(1, 1e-3, 80)
    stats = {"lp": lp, "step_size": np.stack([sizes, 3 * sizes]), "acceptance_rate": 0.8 + 0 * lp}
    stats["kinetic_temperature"] = np.where(np.arange(80) < 5, 1e9, 1.1) + 0 * lp
    draws = inference_data({"w": np.zeros((2, 9))}, {"lp": np.zeros((2, 9))}, None, {})
    kept = warmup_statistics.warmup_dataset(with_steps(NO_STATS, 0, stats))
    return with_groups(draws, warmup_sample_stats=kept), stats


def test_the_figure_shows_the_objective_of_each_chain_while_it_trains(warmed):
    draws, stats = warmed
    ax = bnn.plots.warmup_objective(draws)
    pale, lines = ax.lines[::2], ax.lines[1::2]
    for chain in range(2):
        np.testing.assert_array_equal(
            pale[chain].get_data(), [np.arange(1, 81), stats["lp"][chain]]
        )
        known, smooth = np.isfinite(stats["lp"][chain]), lines[chain].get_ydata()
        np.testing.assert_array_equal(np.isfinite(smooth), known)
        both = (stats["lp"][chain][9] + stats["lp"][chain][10]) / 2  # windows of two steps
        np.testing.assert_allclose(smooth[10], both)
    low, high = ax.get_ylim()
    assert low > stats["lp"][0][0] and high > np.nanmax(stats["lp"])
    assert ax.get_ylabel() == "log posterior density (nats)"
    fit = draws.copy()
    fit.warmup_sample_stats["elbo"] = fit.warmup_sample_stats["lp"] - 7
    ax = bnn.plots.warmup_objective(fit)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), stats["lp"][0] - 7)
    assert ax.get_ylabel() == "evidence lower bound (nats)"


def test_the_figure_shows_what_is_tuned_around_what_is_aimed_at(warmed):
    draws, stats = warmed
    ax = bnn.plots.warmup_rates(draws)
    (rate,) = ax.lines
    np.testing.assert_allclose(rate.get_ydata(), stats["step_size"].mean(0))
    assert ax.get_yscale() == "log"
    (side,) = (other for other in ax.figure.axes if other is not ax)
    acceptance, temperature = side.lines
    np.testing.assert_allclose(acceptance.get_ydata(), 0.8)
    np.testing.assert_allclose(temperature.get_ydata()[10:], 1.1)
    assert side.get_ylim() == (0, 1.05 * 3)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["step size", "acceptance", "kinetic temperature"]


def test_the_report_shows_warm_up_where_there_was_one(warmed):
    draws, _ = warmed
    y = np.zeros(5)
    prediction = {name: np.ones(5) for name in ("mean", "variance", "log_prob")}
    rhat = np.array([1.01])
    panels = ["Warm-up", "Tuned in warm-up"]
    figure = bnn.plots.report(draws, rhat, rhat, prediction, y)
    assert [ax.get_title("left") for ax in figure.axes[6:8]] == panels
    without = draws.copy()
    del without.warmup_sample_stats
    assert len(bnn.plots.report(without, rhat, rhat, prediction, y).axes) == 6
    less = draws.copy()
    less.warmup_sample_stats = less.warmup_sample_stats[["lp"]]
    objective, rates = bnn.plots.report(less, rhat, rhat, prediction, y).axes[6:]
    assert objective.axison and not rates.axison
    with pytest.raises(ValueError, match="got draws without step_size or .* of warm-up, expected"):
        bnn.plots.warmup_rates(less)
