"""Runs of several processes, each with chains of its own, into one folder."""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS
from bnn_ppl.storage import run_storage
from bnn_ppl.storage.draws_zarr import zarr_writer

X = np.linspace(-1, 1, 40)[:, None]
OPTIONS = {"num_chains": 4, "num_warmup": 12, "num_draws": 17, "progress": False}


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        f = w[0] + w[1] * x[:, 0] + w[2] * x[:, 0] ** 2
        numpyro.sample("y", dist.Normal(f, noise), obs=y)


def sample(folder, **options):
    """Sample with adaptation of all that adapts, a few draws at a time."""
    sys.modules["bnn_ppl.sampling.loop.compiled_loop"]._DRAWS_PER_CHUNK = 4
    rows = (X, np.sin(3 * X[:, 0]))
    streamed = "ROWS_OF_HOSTS" in os.environ
    posterior = bnn.condition(model, bnn.data.stream(*rows) if streamed else rows)
    name = os.environ.get("METHOD_OF_HOSTS", "hmc")
    method = METHODS[name].build(posterior, **({"max_num_steps": 8} if name == "hmc" else {}))
    return bnn.run(jax.random.key(0), posterior, method, folder=folder, **OPTIONS | options)


# --- tests


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def environment(**variables):
    """Compile once for all processes, and not again the next time."""
    shared = {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return os.environ | shared | variables


def start(*arguments, **options):
    pipe = subprocess.PIPE
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)


def pair(folder, stops=(("-", 0), ("-", 0)), num_chains=4):
    """Start processes on a folder, by default two; where one kills itself, kill the others."""
    port, run = free_port(), (len(stops), num_chains)
    running = [
        start(__file__, port, process, folder, *stop, *run, env=environment())
        for process, stop in enumerate(stops)
    ]
    killed = [stop[0] in ("write_draws", "publish_draws", "meet") for stop in stops]
    try:
        if any(killed):
            assert running[killed.index(True)].wait(100) == -signal.SIGKILL
            return []
        return [json.loads(finished(process).splitlines()[-1]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()


def finished(process, status=0):
    out, err = process.communicate(timeout=100)
    assert process.returncode == status, err[-3000:]
    return out


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The same chains on two devices of one process."""
    return sample(tmp_path_factory.mktemp("one"))


def assert_same(draws, expected):
    for group in ("posterior", "sample_stats", "warmup_sample_stats"):
        assert set(draws[group]) == set(expected[group])
        for name in expected[group]:
            np.testing.assert_array_equal(draws[group][name], expected[group][name])
    assert draws.attrs["num_draws"] == expected.attrs["num_draws"]


@pytest.mark.slow
def test_two_killed_processes_go_on_to_the_draws_of_one(tmp_path, expected):
    folder, copy = tmp_path / "both", tmp_path / "copy"
    pair(folder, [("publish_draws", 7), ("-", 0)])
    seen = bnn.diagnostics.load(folder).posterior.sizes["draw"]
    assert 0 < seen < 17
    shutil.copytree(folder, copy)

    told = pair(folder)
    draws = bnn.diagnostics.load(folder)
    assert_same(draws, expected)
    assert len(json.loads(draws.attrs["devices"])) == 2
    for process, own in enumerate(([0, 2], [2, 4])):  # each wrote its own chains
        written = told[process]["written"]
        assert written and all(chains == own for chains in written)
    found = {re.sub(r"\d+", "n", path.name, count=1) for path in folder.glob("state*")}
    assert found == {"state.json", "state.lock", "state-n-0-2.bin", "state-n-1-2.bin"}

    assert_same(sample(copy), expected)  # one process resumes alone
    assert draws.attrs["gradient_evaluations"] == expected.attrs["gradient_evaluations"]


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "num_chains"), [(2, 1), (4, 1), (4, 2)])
def test_processes_share_the_rows_of_a_chain(num_processes, num_chains, tmp_path):
    stops = [("-", 0)] * num_processes
    told = pair(tmp_path / "whole", stops, num_chains)
    each = num_processes // num_chains
    for process, own in enumerate(told):
        chain = process // each
        written = [[chain, chain + 1]] if process % each == 0 else []
        assert [list(c) for c in {tuple(c) for c in own["written"]}] == written
    whole = bnn.diagnostics.load(tmp_path / "whole")
    one = sample(tmp_path / "one", num_chains=num_chains)
    for site in one.posterior:  # sums over rows differ in their order
        np.testing.assert_allclose(whole.posterior[site], one.posterior[site], rtol=1e-2, atol=1e-3)
    assert whole.attrs["gradient_evaluations"] == one.attrs["gradient_evaluations"]
    pair(tmp_path / "run", [("publish_draws", 7), *stops[1:]], num_chains)
    seen = bnn.diagnostics.load(tmp_path / "run").posterior.sizes["draw"]
    assert 0 < seen < 17
    pair(tmp_path / "run", stops, num_chains)
    assert_same(bnn.diagnostics.load(tmp_path / "run"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["chees", "meads", "laps"])
def test_chains_of_two_processes_adapt_together(method, monkeypatch, tmp_path):
    monkeypatch.setenv("METHOD_OF_HOSTS", method)
    pair(tmp_path / "both", [("publish_draws", 7), ("-", 0)])
    pair(tmp_path / "both")
    assert_same(bnn.diagnostics.load(tmp_path / "both"), sample(tmp_path / "one"))


@pytest.mark.slow
def test_processes_read_all_rows_of_a_stream_for_their_own_chains(monkeypatch, tmp_path):
    monkeypatch.setenv("ROWS_OF_HOSTS", "stream")
    pair(tmp_path / "both", [("publish_draws", 7), ("-", 0)])
    pair(tmp_path / "both")
    assert_same(bnn.diagnostics.load(tmp_path / "both"), sample(tmp_path / "one"))
    told = pair(tmp_path / "few", num_chains=1)
    assert all(one["error"].startswith("got num_chains=1 for hmc on a stream") for one in told)


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "hosts.md"
SOME_RUN = """
import bnn_ppl as bnn
from functools import partial
key, data = jax.random.key(0), bnn.data.load("yacht")
model = bnn.models.regressor(partial(bnn.nets.MLP, 6, (4,), 1), bnn.priors.fan_in(2**0.5))
posterior = bnn.condition(model, data.train)
method = bnn.hmc(posterior, 0.01, 0.05)
"""


@pytest.mark.slow
def test_the_programs_of_the_page_about_hosts_run(tmp_path):
    """As printed, with fewer draws: eight devices in one process, and a process on each host."""
    devices, mesh, script = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    eight = devices.replace("os.cpu_count()", "8")
    shown = "\nprint(draws.posterior.sizes['chain'], draws.attrs['devices'])"
    done = start("-c", eight + SOME_RUN + mesh + shown, env=environment())
    assert finished(done).startswith("4 ")
    (tmp_path / "script.py").write_text(re.sub(r"(num_\w+)=\d\d+", r"\1=4", script))
    host = f"localhost:{free_port()}"
    running = [
        start("script.py", host, process, env=environment(), cwd=tmp_path) for process in (0, 1)
    ]
    assert ["rmse" in finished(process) for process in running] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize(
    ("what", "number"), [("write_draws", 2), ("publish_draws", 2), ("meet", 6)]
)
def test_killed_anywhere_two_processes_go_on(by, what, number, tmp_path, expected):
    stops = [("-", 0), ("-", 0)]
    stops[by] = (what, number)
    for _ in range(2):
        pair(tmp_path / "run", stops)
    pair(tmp_path / "run")
    assert_same(bnn.diagnostics.load(tmp_path / "run"), expected)


@pytest.mark.slow
def test_two_processes_go_on_with_the_run_of_one(tmp_path, expected):
    sample(tmp_path, num_draws=9)
    pair(tmp_path)
    assert_same(bnn.diagnostics.load(tmp_path), expected)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 6])
@pytest.mark.parametrize("by", [0, 1])
def test_interrupt_of_one_process_stops_both_or_none(by, number, tmp_path, expected):
    stops = [("-", 0), ("-", 0)]
    stops[by] = ("_shown", number)
    first, second = pair(tmp_path, stops)
    assert set(first) == set(second)
    pair(tmp_path)
    assert_same(bnn.diagnostics.load(tmp_path), expected)


@pytest.mark.slow
def test_refusals_are_one_line_of_each_process(tmp_path, expected):
    for told in pair("none"):
        assert told["error"].startswith("got several processes and no folder")
    sample(tmp_path, num_warmup=11)
    for told in pair(tmp_path):
        assert told["error"].startswith("got num_warmup=12, expected num_warmup=11")
        assert "\n" not in told["error"]
    (tmp_path / "state.json").unlink()
    first, second = pair(tmp_path)
    assert first["error"].startswith("got draws in") and "without the state.json" in first["error"]
    assert re.match("got folder=.*, which another process could not open", second["error"])


# --- the command line, under Open MPI's variables


def commands(*arguments, cwd):
    port = free_port()
    running = []
    for rank in range(2):
        variables = {
            "OMPI_MCA_orte_hnp_uri": "0.0;tcp://127.0.0.1:1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "JAX_COORDINATOR_PORT": str(port),
        }
        command = ["-m", "bnn_ppl", *arguments, "--distributed"]
        running.append(start(*command, cwd=cwd, env=environment(**variables)))
    return running


RUN = ["run", "hmc", "--data", "yacht", "--hidden", "4", "--max-num-steps", "8"]
RUN += ["--num-chains", "4", "--num-warmup", "0", "--num-draws", "6"]


@pytest.mark.thorough
def test_the_command_on_two_hosts(tmp_path):
    running = commands(*RUN, cwd=tmp_path)
    try:
        (first, told), (second, untold) = (process.communicate(timeout=100) for process in running)
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], (told, untold)
    assert "rmse" in first and "draws 6/6" in told
    # The second says nothing of its own; Gloo's lines run into each other under load.
    ours = ("data ", "model ", "test rows", "rmse", "figure")
    assert not any(words in second for words in ours) and not untold
    folder = tmp_path / "runs" / "yacht-0-hmc"
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert dict(bnn.diagnostics.load(folder).posterior.sizes)["chain"] == 4


@pytest.mark.slow
def test_the_command_refuses_in_one_line_on_every_host(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.txt").write_text("keep me")
    for process in commands(*RUN, "--folder", "here", cwd=tmp_path):
        _, err = process.communicate(timeout=100)
        assert process.returncode == 2
        assert err.startswith("bnn-ppl: got folder='here', which is not empty and holds no run")
        assert err.count("\n") == 1


# --- one of the processes: python test_hosts.py PORT PROCESS FOLDER STOP NUMBER PROCESSES CHAINS


def main(port, process, folder, stop, number, num_processes, num_chains):
    """Run, and at the `number`-th call of what `stop` names end at once or press Ctrl-C."""
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(f"localhost:{port}", int(num_processes), int(process))
    written, write_draws = [], zarr_writer.write_draws

    def noted(writer, chains, *args):
        written.append([chains.start, chains.stop])
        write_draws(writer, chains, *args)

    zarr_writer.write_draws = noted
    loop = sys.modules["bnn_ppl.sampling.loop.loop"]
    owners = {"write_draws": zarr_writer, "publish_draws": zarr_writer}
    owners |= {"meet": run_storage, "_shown": loop}
    if stop in owners:
        owner = owners[stop]
        number_sent = signal.SIGINT if stop == "_shown" else signal.SIGKILL
        setattr(owner, stop, stopping(getattr(owner, stop), int(number), number_sent))
    try:
        sample(folder if folder != "none" else None, num_chains=int(num_chains))
    except (ValueError, OSError) as error:
        print(json.dumps({"error": str(error)}))
    except KeyboardInterrupt:
        print(json.dumps({"error": "interrupt"}))
    else:
        print(json.dumps({"written": written}))


def stopping(function, number, sent):
    calls = itertools.count(1)

    def call(*args):
        if next(calls) == number:
            signal.raise_signal(sent)
        return function(*args)

    return call


if __name__ == "__main__":
    main(*sys.argv[1:])
