"""Statistics of a run as event files."""

import sys
from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.runtime.event_log import event_log

Y = np.array([1.0, 2.0, 6.0])


def normal(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


@pytest.fixture(scope="module")
def problem():
    posterior = bnn.condition(normal, (np.zeros((3, 1)), Y))
    return posterior, bnn.descent(posterior, optax.sgd(0.1))


def sample(problem, **options):
    options = {"num_chains": 2, "num_warmup": 9, "num_draws": 4, "thin": 2} | options
    return bnn.run(jax.random.key(0), *problem, progress=False, **options)


class Writer:
    """Stand for tensorboardX's writer."""

    made: list = []

    def __init__(self, folder):
        self.folder, self.scalars, self.closed = folder, [], False
        Writer.made.append(self)

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def close(self):
        self.closed = True


@pytest.fixture
def writers(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


@pytest.fixture
def three_a_chunk(monkeypatch):
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 3)


@pytest.mark.parametrize("in_folder", [False, True])
def test_each_chain_is_logged_through_warm_up_and_draws(
    in_folder, problem, writers, three_a_chunk, tmp_path
):
    options = {"folder": tmp_path / "run"} if in_folder else {}
    draws = sample(problem, log_to=tmp_path / "log", **options)
    (writer,) = writers
    assert writer.folder == str(tmp_path / "log") and writer.closed
    lp = {(tag, step): value for tag, value, step in writer.scalars if tag.startswith("lp/")}
    steps = sorted({step for _, step in lp})
    assert steps[0] == 1 and 9 in steps and steps[-1] == 9 + 4 * 2
    warmup, after = draws.warmup_sample_stats["lp"].values, draws.sample_stats["lp"].values
    for (tag, step), value in lp.items():
        chain = int(tag.removeprefix("lp/chain_"))
        expected = warmup[chain, step - 1] if step <= 9 else after[chain, (step - 9) // 2 - 1]
        assert value == expected


def test_what_is_not_finite_or_no_number_a_chain_is_left_out(writers):
    with event_log("here") as log:
        log(3, {"lp": np.array([[0.0, np.nan], [1.0, 2.0]]), "bins": np.zeros((2, 2, 5))})
        log(4, {"lp": np.zeros((2, 0))})
    assert writers[0].scalars == [("lp/chain_1", 2.0, 3)]


def test_without_the_library_a_run_is_refused_before_it_starts(problem, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"got log_to= without tensorboardX.*pip install"):
        sample(problem, log_to=tmp_path / "log", folder=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_command_is_refused_before_it_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "sgld", "--log-to", "log"])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and "without tensorboardX" in err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused(problem, tmp_path, writers):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="got log_to=.*where no folder can be made"):
        sample(problem, log_to=tmp_path / "file" / "log")


def test_tensorboard_reads_what_is_logged(problem, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    draws = sample(problem, log_to=tmp_path)
    (file,) = tmp_path.iterdir()
    content, scalars = file.read_bytes(), {}
    while content:  # length, its checksum, the event, its checksum
        length = int.from_bytes(content[:8], "little")
        event, content = Event.FromString(content[12 : 12 + length]), content[16 + length :]
        for value in event.summary.value:
            scalars[value.tag, event.step] = value.simple_value
    last = draws.sample_stats["lp"].values[:, -1]
    for chain in range(2):
        np.testing.assert_allclose(scalars[f"lp/chain_{chain}", 17], last[chain], rtol=1e-6)
