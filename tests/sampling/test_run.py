"""What run gives back, refuses and survives."""

import gc
import json
import signal
import sys
import weakref
from collections import OrderedDict
from functools import partial
from importlib.metadata import PackageNotFoundError
from weakref import WeakKeyDictionary

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from interrupts import press_ctrl_c

import bnn_ppl as bnn
from bnn_ppl.methods.layers.layers import tapped
from bnn_ppl.methods.method import Counts, Method
from bnn_ppl.sampling.setup.run_spec import RunSpec
from bnn_ppl.sampling.setup.setup_checks import check_setup
from bnn_ppl.storage.arviz_versions import draws_of_arrays

X = np.linspace(-1, 1, 12)[:, None]
Y = X[:, 0] * 2 + 0.1


def line(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(slope * x[:, 0], scale), obs=y)


POSTERIOR = bnn.condition(line, (X, Y))
NUTS = bnn.nuts(POSTERIOR)  # so that it is compiled once for all tests


@pytest.fixture
def posterior():
    return POSTERIOR


def short(posterior, method=NUTS, **options):
    options = {"num_chains": 2, "num_warmup": 10, "num_draws": 6, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


def test_result_has_arviz_groups_names_and_facts(posterior):
    draws = short(posterior)
    assert set(draws) == {*("posterior", "sample_stats", "warmup_sample_stats", "observed_data")}
    assert dict(draws.posterior.sizes) == {"chain": 2, "draw": 6}
    names = {"acceptance_rate", "diverging", "energy", "lp", "step_size", "n_steps"}
    assert set(draws.sample_stats) == names
    assert draws.sample_stats.diverging.dtype == bool
    facts = draws.attrs
    assert facts["method"] == "nuts" and facts["temperature"] == 1.0
    assert facts["gradient_evaluations"] > draws.sample_stats.n_steps.sum()  # warm-up counts too
    assert json.loads(facts["settings"])["target_acceptance"] == 0.9
    assert set(json.loads(facts["versions"])) >= {"jax", "numpyro", "blackjax"}
    assert facts["sampling_time"] > 0
    assert set(arviz.summary(draws).index) == {"slope", "scale"}


def test_a_copy_of_the_package_that_is_not_installed_runs(posterior, monkeypatch):
    def version(package):
        if package == "bnn_ppl":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr("bnn_ppl.sampling.run_metadata.version", version)
    facts = short(posterior).attrs
    assert facts["inference_library_version"] == "not installed"
    assert json.loads(facts["versions"])["jax"] == "1.0"


def test_draws_are_constrained(posterior):
    assert (short(posterior).posterior["scale"] > 0).all()


def test_lp_is_the_log_density_of_the_draw(posterior):
    draws = short(posterior)
    values = {site: draws.posterior[site].values[1, 3] for site in ("slope", "scale")}
    position = posterior.unconstrain(values)
    expected = posterior.logdensity(position, posterior.data)
    np.testing.assert_allclose(draws.sample_stats.lp.values[1, 3], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_draws": 0}, "num_draws=0"),
        ({"num_draws": True}, "num_draws=True"),
        ({"num_chains": 0}, "num_chains=0"),
        ({"num_warmup": -1}, "num_warmup=-1"),
        ({"thin": 1.5}, "thin=1.5"),
    ],
)
def test_counts_out_of_range_are_refused(posterior, options, words):
    with pytest.raises(ValueError, match=words):
        short(posterior, **options)


def test_a_batch_size_that_nobody_chose_is_one_that_the_devices_share(posterior):
    mesh = jax.make_mesh((1, 2), ("chain", "data"), devices=jax.devices()[:2])
    method = bnn.sgld(posterior, step_size=1e-4)

    def prepared(own, given=None):
        usual = method._replace(counts=method.counts._replace(batch_size=own))
        spec = RunSpec(mesh=mesh, batch_size=given)
        length = check_setup(posterior, usual, spec.length(posterior, usual), spec)[1]
        return length.minibatches.size

    assert [prepared(own) for own in (1, 4, 5, None)] == [2, 4, 4, None]
    assert prepared(5, given=np.int64(4)) == 4
    with pytest.raises(ValueError, match="got batch_size=5 on 2 devices.*a multiple of 2"):
        prepared(4, given=5)
    run = partial(short, posterior, method._replace(counts=Counts(batch_size=5), start=None))
    assert run(mesh=mesh, num_chains=1).attrs["batch_size"] == 4


def test_used_folder_is_refused_before_sampling(posterior, tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="holds no run"):
        short(posterior, folder=tmp_path)


def test_a_folder_that_cannot_be_made_is_refused_before_sampling(posterior, tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(
        OSError, match=r"cannot be made \(.*mine.txt is a file\), expected one that"
    ):
        short(posterior, folder=tmp_path / "mine.txt" / "run")


def test_a_folder_may_be_of_the_users_home(posterior, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    draws = short(posterior, folder="~/run")
    loaded = bnn.diagnostics.load("~/run")
    assert (tmp_path / "run").is_dir()
    np.testing.assert_array_equal(loaded.posterior["slope"], draws.posterior["slope"])


def test_several_keys_are_refused(posterior):
    keys = jax.random.split(jax.random.key(0))
    with pytest.raises(TypeError, match=r"shape \(2,\), expected one key, as jax.random.key"):
        bnn.run(keys, posterior, bnn.nuts(posterior))


def test_folder_opens_again_with_the_same_draws(posterior, tmp_path):
    draws = short(posterior, folder=tmp_path / "run")
    loaded = bnn.diagnostics.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.posterior["slope"], draws.posterior["slope"])
    assert loaded.attrs["method"] == "nuts"


def test_start_that_is_not_finite_names_sites_and_rows(posterior):
    nowhere = short(posterior)
    nowhere.posterior["slope"][:] = np.nan
    with pytest.raises(ValueError, match=r"slope.*12 of 12 rows"):
        short(posterior, init=nowhere)


def test_init_without_a_site_is_refused(posterior):
    with pytest.raises(ValueError, match="scale"):
        short(posterior, init=draws_of_arrays({"posterior": {"slope": np.zeros((2, 3))}}))


def resting(posterior):
    """Give a method whose draws stay where the chain starts."""
    return bnn.sgld(posterior, 1e-12)


def test_every_chain_starts_at_a_position_given_as_init(posterior):
    position = {"scale": np.log(0.3), "slope": 1.5}  # unconstrained, in any order
    draws = short(posterior, resting(posterior), num_warmup=0, num_draws=1, init=position)
    np.testing.assert_allclose(draws.posterior["slope"], 1.5, atol=1e-3)
    np.testing.assert_allclose(draws.posterior["scale"], 0.3, rtol=1e-3)


@pytest.mark.parametrize(
    ("init", "error", "words"),
    [
        ({"slope": 1.0}, ValueError, r"got init with scale left out, expected of shape \(\)"),
        ({"slope": 1.0, "scale": 0.0, "a": 0}, ValueError, "got init with a of shape .* left out"),
        (
            {"slope": np.zeros(3), "scale": 0.0},
            ValueError,
            r"got init with slope of shape \(3,\), expected of shape \(\): a position has",
        ),
        ([1.0, 0.0], TypeError, "got init of type list, expected the InferenceData that"),
    ],
)
def test_a_position_of_another_model_is_refused(posterior, init, error, words):
    with pytest.raises(error, match=words):
        short(posterior, resting(posterior), init=init)


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
def test_members_of_an_ensemble_are_chains_of_one_draw_without_a_warning(posterior):
    draws = short(posterior, resting(posterior), num_warmup=0, num_draws=1, num_chains=3)
    bnn.predict(posterior, draws, (X, Y))
    functions = bnn.function_draws(posterior, draws, X)
    assert dict(functions.posterior.sizes) == {"chain": 3, "draw": 1, "row": 12}


def counter() -> Method:
    """Count steps: the simplest method there is."""

    def init(key, position, batch):
        return jnp.zeros((), int)

    def step(key, state, batch):
        return state + 1, {"n_steps": jnp.ones((), int), "diverging": state == 2}

    def draw(key, state):
        return {"slope": state * 1.0, "scale": jnp.zeros(())}

    return Method(init, step, draw)


def test_a_users_own_method_runs_and_thin_counts_steps(posterior):
    draws = short(posterior, counter(), num_warmup=4, num_draws=3, thin=5)
    np.testing.assert_array_equal(draws.posterior["slope"][0], [9, 14, 19])
    np.testing.assert_array_equal(draws.sample_stats.n_steps[0], [5, 5, 5])
    assert draws.attrs["gradient_evaluations"] == 2 * (4 + 15)
    assert draws.attrs["method"] == "own"


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (bnn.nuts, {"batch_size": 5}, "got batch_size=5 for nuts, whose steps compare"),
        (bnn.mclmc, {"batch_size": 5}, "got batch_size=5 for mclmc"),
        (bnn.mclmc, {"num_warmup": 0}, r"mclmc tunes its steps.*set num_warmup > 0 \(got 0\)"),
        (
            lambda posterior: bnn.sgld(
                posterior, 1e-4, preconditioner=bnn.preconditioners.scale_adapted()
            ),
            {"num_warmup": 0},
            r"sgld tunes its steps.*set num_warmup > 0 \(got 0\)",
        ),
        (
            lambda posterior: bnn.nuts(bnn.condition(line, posterior.data, temperature=2.0)),
            {},
            "got nuts built with another posterior",
        ),
    ],
)
def test_a_method_is_run_as_it_must_be(posterior, make, options, words):
    with pytest.raises(ValueError, match=words):
        short(posterior, make(posterior), **options)


@pytest.mark.thorough
def test_bootstrapped_chains_start_at_their_own_rows(posterior):
    """A density of all rows at the start would be what the first proposals are compared with."""

    def init(key, position, batch):
        return batch[1]

    def step(key, state, batch):
        return state, {"same": jnp.all(jnp.sort(state) == jnp.sort(batch[1]))}

    def draw(key, state):
        return {"slope": state.sum(), "scale": jnp.zeros(())}

    draws = short(posterior, Method(init, step, draw), bootstrap=True)
    assert draws.sample_stats["same"].all()
    sums = draws.posterior["slope"].values[:, 0]
    assert len({*sums.tolist(), float(posterior.data[1].sum())}) == 3  # other rows for each


def test_a_divergence_between_draws_is_not_lost(posterior):
    draws = short(posterior, counter(), num_warmup=0, num_draws=2, thin=5)
    np.testing.assert_array_equal(draws.sample_stats.diverging[0], [True, False])


@pytest.mark.thorough
def test_a_sampler_is_not_drawn_from_without_steps(posterior):
    with pytest.raises(ValueError, match="got thin=0 for hmc, expected at least 1"):
        short(posterior, bnn.hmc(posterior), num_warmup=2, num_draws=3, thin=0)
    assert short(posterior, bnn.hmc(posterior), num_draws=1, thin=0).posterior.sizes["draw"] == 1


def test_thin_zero_draws_without_stepping(posterior):
    draws = short(posterior, counter(), num_warmup=2, num_draws=3, thin=0)
    np.testing.assert_array_equal(draws.posterior["slope"], np.full((2, 3), 2.0))


@pytest.mark.thorough
def test_keep_chooses_what_is_recorded(posterior):
    draws = short(posterior, keep=lambda values: {"twice": 2 * values["slope"]})
    whole = short(posterior)
    assert set(draws.posterior) == {"twice"}
    np.testing.assert_allclose(draws.posterior["twice"], 2 * whole.posterior["slope"], rtol=1e-6)


@pytest.mark.parametrize(
    "keep",
    [
        lambda values: values["slope"],
        lambda values: {},
        lambda values: {"a": {"b": values["slope"]}},
        lambda values: {"draw": values["slope"]},
        lambda values: {"a": values["slope"].astype(jnp.bfloat16)},
        lambda values: {"a": values["slope"] + 1j},
    ],
)
def test_what_cannot_be_recorded_is_refused_before_sampling(posterior, keep, tmp_path):
    with pytest.raises(ValueError, match="got .*expected .*: "):
        short(posterior, keep=keep, folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_booleans_integers_and_empty_arrays_are_recorded(posterior, tmp_path):
    def keep(values):
        big = values["slope"] > 0
        return {"big": big, "count": big.astype(jnp.uint8), "none": jnp.zeros((0, 3))}

    stored = short(posterior, keep=keep, folder=tmp_path)
    in_memory = short(posterior, keep=keep)
    for name in in_memory.posterior:
        np.testing.assert_array_equal(stored.posterior[name], in_memory.posterior[name])


def interrupt_at(monkeypatch, chunk):
    """Press Ctrl-C at a chunk; one draw per chunk."""
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 1)
    press_ctrl_c(monkeypatch, chunk)


@pytest.mark.thorough
def test_interrupt_keeps_the_draws_so_far(posterior, monkeypatch, capsys):
    interrupt_at(monkeypatch, chunk=4)  # warm-up takes the first two
    draws = short(posterior, num_warmup=2, num_draws=50)
    assert draws.posterior.sizes["draw"] == 2
    assert np.isfinite(draws.posterior["slope"]).all()
    assert "stopped: 2 of 50 draws are kept" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupt_in_warm_up_ends_the_run(posterior, monkeypatch):
    interrupt_at(monkeypatch, chunk=1)
    with pytest.raises(KeyboardInterrupt):
        short(posterior)


def test_chunks_do_not_change_the_draws(posterior, monkeypatch):
    whole = short(posterior)
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 1)
    one_by_one = short(posterior)
    for name in whole.posterior:
        np.testing.assert_array_equal(one_by_one.posterior[name], whole.posterior[name])
    # Buffers of another length are another program, whose sums may end in another digit.
    for name in whole.sample_stats:
        np.testing.assert_allclose(
            one_by_one.sample_stats[name], whole.sample_stats[name], rtol=1e-5, atol=1e-5
        )


def test_an_error_in_a_chunk_keeps_what_the_chunks_before_it_computed(
    posterior, monkeypatch, tmp_path
):
    def fail(done, *args):
        if done.draws == 3:
            raise RuntimeError("out of memory")
        return {}

    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 1)
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "_shown", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        short(posterior, folder=tmp_path)
    assert bnn.diagnostics.load(tmp_path).posterior.sizes["draw"] == 3


def test_progress_is_lines_where_there_is_no_terminal(posterior, capsys, monkeypatch):
    monkeypatch.setattr("bnn_ppl.runtime.compilation.programs._kept", OrderedDict())
    monkeypatch.setattr("bnn_ppl.runtime.compilation.programs._of_trace", WeakKeyDictionary())
    short(posterior, progress=True)
    first, warmup, between, last = capsys.readouterr().err.splitlines()
    assert first == between == "compiling"
    assert warmup.startswith("warmup 1/16, acceptance 0.")
    assert last.startswith("draws 16/16, acceptance 0.") and "lp " in last
    short(posterior, progress=True)
    assert "compiling" not in capsys.readouterr().err  # nothing is compiled twice


@pytest.mark.thorough
def test_progress_counts_steps_so_that_the_time_left_is_right_for_long_draws(posterior, capsys):
    short(posterior, progress="json", thin=5)
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert last["done"] == last["total"] == 10 + 6 * 5 and last["draws"] == 6


def test_progress_is_a_bar_in_a_terminal(posterior, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    short(posterior, progress=True)
    shown = capsys.readouterr().err
    assert "acceptance=" in shown and "16/16" in shown and "step_size=" in shown


@pytest.mark.thorough
def test_divergences_are_told_at_the_end(posterior, verdicts):
    unstable = bnn.hmc(posterior, step_size=100.0, trajectory_length=300.0)
    with pytest.warns(bnn.VerdictWarning) as caught:
        draws = bnn.run(jax.random.key(0), posterior, unstable, num_chains=2, num_draws=3)
    count = int(draws.sample_stats["diverging"].sum())
    assert count > 0
    told = str(caught[-1].message)
    assert "diverge" in told and (count < 6 or told.startswith("all chains diverge"))
    with pytest.warns(bnn.VerdictWarning, match="independent draws|disagree"):
        draws = short(posterior)
    assert "diverge" not in draws.attrs["verdict"]


@pytest.mark.parametrize("progress", ["bar", None, 1])
def test_another_kind_of_progress_is_refused(posterior, progress):
    with pytest.raises(ValueError, match="expected True, False or 'json'"):
        short(posterior, progress=progress)


def test_progress_is_json_for_machines(posterior, capsys, tmp_path):
    short(posterior, progress="json", folder=tmp_path)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[-1]["done"] == lines[-1]["total"] == 16 and lines[-1]["phase"] == "draws"
    assert {"rate", "seconds_left", "acceptance", "divergences", "disk_MB"} <= set(lines[-1])


@pytest.mark.thorough
def test_matmul_precision_is_the_highest_unless_chosen_and_recorded(posterior):
    seen = []

    def keep(values):
        product = jnp.ones((2, 2)) @ jnp.ones((2, 2))
        seen.append(jax.config.jax_default_matmul_precision)
        return values | {"product": product}

    assert short(posterior, keep=keep).attrs["matmul_precision"] == "highest"
    with jax.default_matmul_precision("bfloat16"):
        assert short(posterior, keep=keep).attrs["matmul_precision"] == "bfloat16"
    assert "highest" in seen and "bfloat16" in seen


@pytest.mark.thorough
def test_divergences_stop_no_chain_and_are_counted():
    def cliff(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        scale = jnp.where(jnp.abs(w[0]) > 0.5, jnp.nan, 1.0)
        numpyro.sample("y", dist.Normal(w[1] * x[:, 0], scale), obs=y)

    posterior = bnn.condition(cliff, (X, Y))
    start = draws_of_arrays({"posterior": {"w": np.zeros((2, 1, 2))}})
    method = bnn.hmc(posterior, 0.4, 2.0)
    draws = short(posterior, method, num_warmup=0, num_draws=50, init=start)
    assert draws.sample_stats.diverging.sum() > 0
    assert (np.abs(draws.posterior["w"].values[..., 0]) <= 0.5).all()
    assert np.isfinite(draws.sample_stats.lp).all()


def fitted_normal() -> Method:
    """Fit the mean of y over the batches of warm-up; `finish` halves it."""

    def init(key, position, batch):
        return jnp.zeros(()), jnp.zeros((), int)

    def step(key, state, batch):
        return (state[0] + batch[1].mean(), state[1] + 1), {}

    def draw(key, state):
        return {"slope": state[0], "scale": jnp.zeros(())}

    return Method(
        init,
        step,
        draw,
        settings={"method": "fitted_normal"},
        finish=lambda state: (state[0] / state[1] / 2, state[1]),
        fitted=lambda state: {"slope.loc": state[0], "pair": jnp.stack([state[0], 1.0])},
    )


def test_a_fit_is_finished_once_and_its_parameters_are_recorded(posterior, tmp_path):
    options = {"num_warmup": 4, "thin": 0}
    draws = short(posterior, fitted_normal(), **options)
    np.testing.assert_allclose(draws.posterior["slope"], Y.mean() / 2, rtol=1e-5)
    assert draws.fitted["pair"].shape == (2, 2) and draws.fitted["pair"].dims[0] == "chain"
    np.testing.assert_allclose(draws.fitted["slope.loc"], Y.mean() / 2, rtol=1e-5)
    short(posterior, fitted_normal(), folder=tmp_path, num_draws=2, **options)
    stored = short(posterior, fitted_normal(), folder=tmp_path, **options)  # resumes after it
    for group in ("posterior", "fitted"):
        for name in draws[group]:
            np.testing.assert_array_equal(stored[group][name], draws[group][name])


def test_a_fit_without_warm_up_is_refused(posterior):
    with pytest.raises(ValueError, match=r"fitted_normal fits.*set num_warmup > 0 \(got 0\)"):
        short(posterior, fitted_normal(), num_warmup=0, thin=0)


def test_damaged_parameters_are_named_and_the_draws_still_open(posterior, tmp_path):
    short(posterior, fitted_normal(), num_warmup=2, thin=0, folder=tmp_path)
    for content in (b"PK nonsense", b""):
        (tmp_path / "fitted-0.npz").write_bytes(content)
        with pytest.warns(UserWarning, match=r"fitted-0.npz.*damaged"):
            opened = bnn.diagnostics.load(tmp_path)
        assert "posterior" in opened.groups() and "fitted" not in opened.groups()


def test_parameters_of_an_earlier_end_do_not_stay(posterior, tmp_path):
    """Those of a second process, say, where the run is resumed with one."""
    options = {"num_warmup": 2, "thin": 0, "folder": tmp_path}
    short(posterior, fitted_normal(), num_draws=2, **options)
    (tmp_path / "fitted-1.npz").write_bytes((tmp_path / "fitted-0.npz").read_bytes())
    assert "fitted" not in bnn.diagnostics.load(tmp_path)  # of four chains, where there are two
    assert short(posterior, fitted_normal(), **options).fitted.sizes["chain"] == 2


def test_a_call_that_is_refused_leaves_the_parameters(posterior, tmp_path):
    options = {"num_warmup": 2, "thin": 0, "folder": tmp_path}
    short(posterior, fitted_normal(), num_draws=3, **options)
    with pytest.raises(ValueError, match="num_draws=2"):
        short(posterior, fitted_normal(), num_draws=2, **options)
    assert bnn.diagnostics.load(tmp_path).fitted.sizes["chain"] == 2


# --- what is compiled serves equal runs


def traced_steps(posterior):
    """Give a method, and a list that grows with each tracing of its step."""
    method, traced = bnn.hmc(posterior, 0.1, 0.3), []

    def step(*args):
        traced.append(1)
        return method.step(*args)

    return method._replace(step=step), traced


def test_a_step_is_traced_once_for_its_shapes_and_its_loop(posterior):
    method, traced = traced_steps(posterior)
    short(posterior, method)
    assert len(traced) == 1


def test_a_run_of_equal_shape_and_a_resumed_one_trace_nothing(posterior, tmp_path):
    method, traced = traced_steps(posterior)
    first = short(posterior, method, folder=tmp_path / "run")
    traced.clear()
    short(posterior, method, num_warmup=3, num_draws=9)
    again = bnn.run(jax.random.key(1), posterior, method, num_chains=2, num_draws=2, progress=False)
    longer = short(posterior, method, folder=tmp_path / "run", num_draws=12)
    assert not traced
    assert (again.posterior["slope"][:, -1].values != first.posterior["slope"][:, 1].values).all()
    np.testing.assert_array_equal(longer.posterior["slope"][:, :6], first.posterior["slope"])


@pytest.mark.thorough
def test_a_folder_of_samplers_that_drew_other_numbers_is_refused(posterior, monkeypatch, tmp_path):
    draws = short(posterior, folder=tmp_path)
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.run_metadata"], "_GENERATION", -1)
    with pytest.raises(ValueError, match=r"got sampler_generation=-1, .*another folder"):
        short(posterior, folder=tmp_path)
    kept = bnn.diagnostics.load(tmp_path).posterior
    np.testing.assert_array_equal(kept["slope"], draws.posterior["slope"])


@pytest.mark.thorough
def test_what_is_kept_of_draws_may_change_from_run_to_run(posterior):
    method = bnn.hmc(posterior, 0.1, 0.3)

    class Keep:
        factor = 1.0
        __hash__ = None

        def __call__(self, values):
            return {"slope": self.factor * values["slope"]}

    keep = Keep()
    first = short(posterior, method, num_warmup=0, keep=keep)
    keep.factor = 2.0
    second = short(posterior, method, num_warmup=0, keep=keep)
    np.testing.assert_allclose(second.posterior["slope"], 2 * first.posterior["slope"], rtol=1e-6)


def test_a_fit_run_again_is_finished_at_its_own_last_step(posterior):
    method = fitted_normal()
    longer = {"num_warmup": 5, "thin": 0}
    short(posterior, method, num_warmup=2, thin=0)
    again, fresh = short(posterior, method, **longer), short(posterior, fitted_normal(), **longer)
    for name in fresh.fitted:
        np.testing.assert_array_equal(again.fitted[name], fresh.fitted[name])


@pytest.mark.thorough
def test_a_start_whose_terms_only_overflow_together_is_refused():
    def model(x, y=None):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    posterior = bnn.condition(model, (X, np.full(12, 1e19)))
    with pytest.raises(ValueError, match="their sum overflows"):
        short(posterior, bnn.hmc(posterior, 0.1, 0.1))


@pytest.mark.thorough
def test_a_change_of_networks_is_seen_by_the_next_run():
    net = partial(bnn.nets.MLP, 1, (), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 1.0), (X, Y))
    method = bnn.hmc(posterior, 0.1, 0.3)
    plain = short(posterior, method, num_warmup=0)
    with tapped(lambda name, layer, inputs: 0 * layer(inputs)):
        changed = short(posterior, method, num_warmup=0)
    assert (changed.sample_stats["lp"] != plain.sample_stats["lp"]).all()
    np.testing.assert_array_equal(
        short(posterior, method, num_warmup=0).sample_stats["lp"], plain.sample_stats["lp"]
    )


def test_starts_from_draws_and_fitted_parameters_are_traced_once(posterior):
    traced = []

    def counting(function):
        def counted(*args):
            traced.append(function)
            return function(*args)

        return counted

    posterior = posterior._replace(unconstrain=counting(posterior.unconstrain))
    method = fitted_normal()
    method = method._replace(fitted=counting(method.fitted))
    options = {"num_warmup": 2, "thin": 0}
    draws = short(posterior, method, **options)
    for _ in range(2):
        short(posterior, method, init=draws, **options)
    assert len(traced) == 2


@pytest.mark.thorough
def test_posteriors_of_earlier_runs_are_not_kept_for_ever():
    posterior = bnn.condition(line, (X, Y))
    gone = weakref.ref(posterior.logdensity)
    short(posterior, bnn.nuts(posterior), num_warmup=1, num_draws=1)
    del posterior
    for _ in range(2):  # whose warm-up and draws are what is kept
        other = bnn.condition(line, (X, Y))
        short(other, bnn.nuts(other), num_warmup=1, num_draws=1)
    gc.collect()
    assert gone() is None
