"""The parts of gpu.py: each is stored, none is run twice, and one that takes too long is killed."""

import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(tmp_path):
    """Run the program in small; give what it says, its exit status and the stored rows."""
    results = tmp_path / "gpu.csv"

    def run(*options, small=("--small",), **environment):
        words = [sys.executable, BENCHMARKS / "gpu.py", *small, "--results", results, *options]
        words += ["--folder", tmp_path / "runs" / "gpu"]
        kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        done = subprocess.run(
            words, env=kept | environment, capture_output=True, text=True, check=False
        )
        rows = list(csv.DictReader(results.open(newline=""))) if results.exists() else []
        return done.stdout + done.stderr, done.returncode, rows

    return run


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu
    import gpu_parts
    import gpu_posterior

    yield gpu, gpu_parts, gpu_posterior
    for name in ("gpu", "gpu_parts", "gpu_posterior", "gpu_notes", "by_hand", "stored", "timing"):
        sys.modules.pop(name, None)


@pytest.mark.thorough
def test_a_part_over_its_limit_is_killed_and_the_next_one_follows(gpu):
    said, status, rows = gpu("--only", "leapfrogs-1", "leapfrogs-16", "--limit", "0.4")
    order = ["leapfrogs-16: killed after 0.4 s", "leapfrogs-1, 2 of 2", "leapfrogs-1: killed"]
    assert sorted(order, key=said.index) == order
    assert status == 1 and not rows
    assert said.splitlines()[-1].endswith("the same command tries again: leapfrogs-16, leapfrogs-1")


def test_unknown_parts_are_refused_and_known_ones_listed(gpu):
    said, status, _ = gpu("--only", "leapfrog")
    assert status == 2 and "got --only leapfrog, expected parts of --list" in said
    said, status, _ = gpu("--only", "repeat", "--list")
    assert status == 0 and [line.split()[0] for line in said.splitlines()] == [
        "repeat-usual",
        "repeat-deterministic",
    ]


def test_every_part_has_a_function_a_name_of_its_own_and_a_limit(parts):
    driver, functions, _ = parts
    assert len({part.full_name for part in driver.PARTS}) == len(driver.PARTS)
    assert {part.function for part in driver.PARTS} == set(functions.MEASURED)
    # The first one with a ResNet compiles what the others find.
    assert sorted(part.limit for part in driver.PARTS)[-2:] == [90, 150]
    assert all(part.limit >= 60 for part in driver.PARTS)


def test_kernels_of_the_largest_loop_are_counted_with_those_of_graphs_it_calls(parts):
    program = """HloModule m
%graph (a: f32[]) -> f32[] {
  %f = f32[] fusion(%a), kind=kLoop, calls=%x
  ROOT %d = f32[] custom-call(%f)
}
%small (a: f32[]) -> f32[] {
  ROOT %s = f32[] copy(%a)
}
%large (a: f32[]) -> f32[] {
  %c = f32[] call(%a), to_apply=%graph
  %w = f32[] while(%c), condition=%t, body=%small
  ROOT %b = f32[] fusion(%w), kind=kLoop, calls=%x
}
ENTRY %main (a: f32[]) -> f32[] {
  ROOT %w2 = f32[] while(%a), condition=%t, body=%large
}
"""
    assert parts[1].kernels_in_loop(program) == 3


def test_empty_cells_of_a_printed_table_are_left_out(parts):
    text = """a line
       nll agreement rhat  draws
first  0.5     0.911           1
second 0.4     0.950 1.02     20
"""
    assert parts[2].table_of(text, ["first", "second"]) == {
        "first": {"nll": "0.5", "agreement": "0.911", "draws": "1"},
        "second": {"nll": "0.4", "agreement": "0.950", "rhat": "1.02", "draws": "20"},
    }


@pytest.mark.thorough
def test_log_densities_in_float64_are_those_of_the_posterior(parts):
    import jax
    import problems

    import bnn_ppl as bnn

    model, rows = problems.classifier("400")
    posterior = bnn.condition(model, rows)
    errors = parts[1].errors_of_density(posterior)
    assert errors["error_of_a_log_density"] < 1e-5 * abs(
        float(posterior.logdensity(problems.start(posterior), posterior.data))
    )
    assert errors["error_of_a_change"] < 1e-3 < 1e-1 < errors["size_of_a_change"]
    assert jax.config.jax_enable_x64 is False


def check(rows):
    for row in rows:
        quantity, value = row["quantity"], row["value"]
        if quantity == "bit for bit":
            assert value == "yes"  # on a CPU
            continue
        number = float(value)
        assert math.isfinite(number) and number >= 0, row
        if any(word in quantity for word in ("second", "over", "kernels", "acceptance", "size")):
            assert number > 0, row


@pytest.mark.thorough
def test_leapfrogs_are_stored_and_not_measured_again(gpu):
    said, status, rows = gpu("--only", "leapfrogs-1")
    assert status == 0, said
    check(rows)
    assert {row["part"] for row in rows} == {"leapfrogs, small", "parts, small"}
    wanted = {"hmc: kernels a leapfrog", "bare loop: leapfrogs a second", "hmc over bare loop"}
    assert wanted <= {row["quantity"] for row in rows}
    assert rows[-1]["case"] == "leapfrogs-1" and rows[-1]["quantity"] == "seconds"
    said, status, again = gpu("--only", "leapfrogs-1")
    assert status == 0 and "leapfrogs-1: ended before" in said and again == rows
    _, _, other = gpu("--only", "leapfrogs-1", BENCHMARK_COMMIT="another")
    assert len(other) == 2 * len(rows) and other[-1]["commit"] == "another"


@pytest.mark.thorough
def test_a_part_without_its_data_is_left_out(gpu, tmp_path):
    folder = ("--data-dir", tmp_path)
    said, status, rows = gpu("--only", "cifar10-descent-1", *folder, small=(), JAX_PLATFORMS="cpu")
    assert status == 0 and "left out" in said
    assert [(row["case"], row["quantity"]) for row in rows] == [("cifar10-descent-1", "left out")]


@pytest.mark.thorough
@pytest.mark.skipif("sys.platform != 'linux' or Path('/dev/nvidia0').exists()")
def test_full_sizes_are_refused_without_an_accelerator(gpu):
    said, status, rows = gpu("--only", "leapfrogs-1", small=(), JAX_PLATFORMS="")
    assert status == 1 and "expected an accelerator that JAX sees" in said and not rows


ONE_OF_EACH = ["resnet-float32-5000", "training-mlp", "memory-mlp-hmc", "precision-float32"]
ONE_OF_EACH += ["repeat-usual", "cifar10"]


@pytest.mark.parametrize(
    "only",
    [
        pytest.param(["--only", *ONE_OF_EACH], marks=pytest.mark.thorough, id="one of each"),
        pytest.param([], marks=pytest.mark.slow, id="all"),
    ],
)
def test_parts_end_and_none_is_run_again(gpu, only):
    said, status, rows = gpu(*only)
    assert status == 0, said
    check(rows)
    groups = {row["part"].removesuffix(", small") for row in rows}
    assert groups >= {"resnet", "training", "memory", "precision", "repeat", "cifar10", "parts"}
    figures = {row["quantity"] for row in rows if row["part"] == "cifar10, small"}
    assert {"agreement", "total variation"} <= figures
    said, status, again = gpu(*only)
    ended = [row["case"] for row in rows if row["part"] == "parts, small"]
    assert status == 0 and again == rows and said.count("ended before") == len(ended)
