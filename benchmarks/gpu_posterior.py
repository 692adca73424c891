"""Parts of gpu.py that are runs: a short one repeated, and the posterior of CIFAR-10."""

import contextlib
import io
import json
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

import jax
import numpy as np
from gpu_notes import FULL, SMALL, Notes

import bnn_ppl as bnn
from bnn_ppl.cli import main as bnn_ppl_command
from bnn_ppl.storage.checkpoint import read_header

NUM_DRAWS = {"descent": 1, "sghmc": 20}
PARTS = Path(__file__).with_name("gpu_parts.py")


def repetition(notes: Notes, case: str) -> None:
    """Run SGHMC on a convolutional network in two processes and compare the draws."""
    files = [notes.folder / f"repeat-{case.replace(' ', '-')}-{k}.npz" for k in (1, 2)]
    for number, file in enumerate(files):
        if not file.exists():  # what a part that was cut has left is of use
            began = time.perf_counter()
            given = {"function": "repeat_once", "file": str(file), "small": notes.small}
            subprocess.run([sys.executable, str(PARTS), json.dumps(given)], check=True)
            seconds = time.perf_counter() - began
            notes.note(case, **{f"seconds of run {number + 1}": seconds})
    first, second = (dict(np.load(file)) for file in files)
    largest = max(float(np.abs(first[site] - second[site]).max()) for site in first)
    same = all(np.array_equal(first[site], second[site]) for site in first)
    notes.note(case, bit_for_bit="yes" if same else "no", largest_difference=largest)
    for file in files:
        file.unlink()


def repeat_once(file: Path, small: bool) -> None:
    """Store the draws of a short run."""
    build, number, num_draws = (SMALL if small else FULL).repeated
    x, y = bnn.data.load("digits").train
    model = bnn.models.classifier(partial(build, x.shape[1:], 10), bnn.priors.normal(1.0))
    posterior = bnn.condition(model, (x[:number], y[:number]))
    draws = bnn.run(
        jax.random.key(0),
        posterior,
        bnn.sghmc(posterior, step_size=1e-5),
        num_chains=2,
        num_warmup=num_draws,
        num_draws=num_draws,
        thin=1,
        batch_size=32,
        progress=False,
        verdict=False,
    )
    kept = file.with_suffix(".part.npz")
    np.savez(kept, **{site: draws.posterior[site].values for site in draws.posterior})
    kept.rename(file)


# --- the posterior of CIFAR-10


class Reference(NamedTuple):
    """A posterior of the command line whose predictions by HMC are known, and runs on it."""

    name: str  # of the reference, in Python
    option: str  # the same in the command
    data: str
    descent: str
    sghmc: str


def commands(reference: tuple[str, str, str], problem: str, descent: str, sghmc: str) -> Reference:
    usual = f"{problem} --num-chains 4 --no-progress"
    descent = f"run descent {usual} --learning-rate 0.003 --rate-schedule cosine {descent}"
    sghmc = f"run sghmc {usual} --init descent --momentum 0.9 {sghmc}"
    sghmc += f" --num-draws {NUM_DRAWS['sghmc']}"
    return Reference(*reference, descent, sghmc)


CIFAR10 = commands(
    ("cifar10", "published", "cifar10"),
    "--data cifar10 --net resnet20 --prior normal --prior-scale 0.447 --batch-size 200",
    "--num-warmup-epochs 8 --max-minutes 0.9",  # a part that ends here has no predictions to make
    "--step-size 3e-7 --num-warmup-epochs 2 --num-epochs 10 --max-minutes 0.5",
)
DIGITS = commands(
    ("digits-lenet", "digits-lenet", "digits"),
    "--data digits --subset 500 --net lenet_small --prior-scale 3 --batch-size 100",
    "--num-warmup-epochs 20 --max-minutes 1",
    "--step-size 1e-5 --num-warmup-epochs 4 --num-epochs 20 --max-minutes 1",
)


def posterior_run(notes: Notes, method: str, last: bool) -> None:
    """Go on with a run for as long as its command says; the last part of descent is to end it."""
    reference = DIGITS if notes.small else CIFAR10
    bnn.data.hmc_reference(reference.name)  # or the part is left out
    if method == "sghmc" and not progress(notes, "descent")["draws"]:
        raise RuntimeError("descent has not ended: the same command goes on with it")
    before = progress(notes, method)
    if before["draws"] == NUM_DRAWS[method]:
        return
    failure = command(getattr(reference, method))
    now = progress(notes, method)
    if failure and now == before:
        bnn.data.load(reference.data)  # or the part is left out
        raise RuntimeError(failure)
    if now["sampling_time"] > before["sampling_time"]:
        gradients, seconds = (now[n] - before[n] for n in ("gradient_evaluations", "sampling_time"))
        notes.note(method, gradients_a_second=gradients / seconds, draws_so_far=now["draws"])
    if last and not now["draws"]:
        raise RuntimeError(f"{method} has not ended: the same command goes on with it")


def progress(notes: Notes, method: str) -> dict[str, float]:
    """Give how far a run is, in the folder that is named as its method."""
    header = read_header(notes.folder / method)
    known = {} if header is None else header["progress"]
    names = ("warmup", "draws", "gradient_evaluations", "sampling_time")
    return {name: known.get(name, 0) for name in names}


def command(words: str, printed: TextIO = sys.stderr) -> str:
    """Run the command line in this process, in the folder of the runs; say why it failed, or ""."""
    arguments = words.split()
    if arguments[0] == "run":
        arguments += ["--folder", arguments[1]]
    print(f"    $ bnn-ppl {' '.join(arguments)}", flush=True)
    messages = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(messages):
            bnn_ppl_command(arguments)
    except SystemExit as stop:
        lines = messages.getvalue().splitlines()
        return (lines[-1] if lines else f"exit status {stop.code}") if stop.code else ""
    return ""


def comparison(notes: Notes) -> None:
    """Note the table of `bnn-ppl compare`: agreement with HMC, scores and cost of each run."""
    reference = DIGITS if notes.small else CIFAR10
    bnn.data.hmc_reference(reference.name)
    runs = [name for name in ("descent", "sghmc") if progress(notes, name)["draws"]]
    if not runs:
        raise RuntimeError("no run has draws to compare")
    printed = io.StringIO()
    words = f"compare {' '.join(runs)} --no-progress --reference {reference.option}"
    if failure := command(words, printed):
        raise RuntimeError(failure)
    for case, figures in table_of(printed.getvalue(), runs).items():
        notes.note(case, **figures)


def table_of(text: str, rows: list[str]) -> dict[str, dict[str, str]]:
    """Give the cells of a printed table, whose columns are aligned on the right; some are empty."""
    lines = text.splitlines()
    head = next(line for line in lines if "agreement" in line)
    ends = {each.group(): each.end() for each in re.finditer(r"\S+", head)}
    begins = [len(max(rows, key=len)), *ends.values()]
    found = {}
    for line in (line for line in lines if line.split()[:1] and line.split()[0] in rows):
        cells = {
            name: line[begin:end].strip()
            for begin, (name, end) in zip(begins, ends.items(), strict=False)
        }
        found[line.split()[0]] = {name: cell for name, cell in cells.items() if cell}
    return found
