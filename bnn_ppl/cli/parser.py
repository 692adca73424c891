"""The commands: what was typed, parsed and done.

Options of a method and of ``run`` are read off their signatures and docstrings, so a new argument
there is a new option here.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tyro

from bnn_ppl.cli.commands.analysis import chains, correlations, surface
from bnn_ppl.cli.commands.detection import ood
from bnn_ppl.cli.commands.plan import plan_command
from bnn_ppl.cli.commands.predictions import predict
from bnn_ppl.cli.commands.results import compare, prune, summary
from bnn_ppl.cli.commands.robustness import adversarial, corruptions, rotations
from bnn_ppl.cli.commands.run import run_command
from bnn_ppl.cli.commands.score import score
from bnn_ppl.cli.commands.studies import continual, label_noise
from bnn_ppl.cli.commands.sweep import sweep_command
from bnn_ppl.cli.signatures import flowing
from bnn_ppl.cli.words import check_words
from bnn_ppl.runtime.import_interrupts import INTERRUPTED, imported
from bnn_ppl.runtime.interrupts import answered, raised_for_sure, stopping

_OF_RUNS = (
    summary,
    predict,
    compare,
    score,
    prune,
    chains,
    correlations,
    surface,
    corruptions,
    rotations,
    adversarial,
    ood,
    continual,
    label_noise,
)
_CONFIG = tyro.conf.OmitArgPrefixes, tyro.conf.CascadeSubcommandArgs


def follow(given: list[str], repeated: list[str]) -> None:
    """Do what the command line says; `repeated` is the run that ``sweep`` repeats."""
    imported()
    answer = partial(stopping, "stopping", "--json" in given)
    with raised_for_sure(), answered(answer) as pressed:
        _parse(given, repeated)
        sys.stdout.flush()
        if pressed():
            sys.exit(INTERRUPTED)


def _parse(arguments: list[str], repeated: list[str]) -> Any:
    """Do what the command line says; what the command returns.

    One command alone is parsed, so that an error does not suggest the options of others.
    """
    command = commands(repeated)[arguments[0].replace("_", "-")]
    for each in (command, *_records(command)):
        each.__doc__ = flowing(each.__doc__)
    prog = f"bnn-ppl {arguments[0]}"
    return tyro.cli(command, prog=prog, args=arguments[1:], config=_CONFIG)


def _records(given: Any) -> Iterator[type]:
    """Give the records of options that a command or a record takes, and those within them."""
    for hint in given.__annotations__.values():
        if isinstance(hint, type) and issubclass(hint, tuple):
            yield hint
            yield from _records(hint)


def commands(repeated: list[str]) -> dict[str, Callable]:
    """Give each command by its name, with the run that ``sweep`` repeats."""

    def run_again(words: list[str]) -> Any:
        check_words(["run", *words])
        return _parse(["run", *words], [])

    functions = (run_command(), plan_command(), sweep_command(repeated, run_again), *_OF_RUNS)
    return {each.__name__.replace("_", "-"): each for each in functions}
