"""The commands: what was typed, parsed and done.

Options of a method and of ``run`` are read off their signatures and docstrings, so a new argument
there is a new option here.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import tyro

from bnn_ppl.cli.signatures import flowing
from bnn_ppl.cli.words import COMMANDS, check_words
from bnn_ppl.runtime.import_interrupts import INTERRUPTED, imported
from bnn_ppl.runtime.interrupts import answered, raised_for_sure, stopping

_CONFIG = tyro.conf.OmitArgPrefixes, tyro.conf.CascadeSubcommandArgs


def follow(given: list[str], repeated: list[str]) -> None:
    """Do what the command line says; `repeated` is the run that ``sweep`` repeats."""
    _file(given[0])  # with all that it imports
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
    command = command_of(arguments[0], repeated)
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


def _file(command: str) -> Any:
    return import_module(f"bnn_ppl.cli.commands.{COMMANDS[command.replace('_', '-')]}")


def command_of(name: str, repeated: list[str]) -> Callable:
    """Give a command by its name; ``sweep`` with the run that it repeats."""

    def run_again(words: list[str]) -> Any:
        check_words(["run", *words])
        return _parse(["run", *words], [])

    if name == "sweep":
        return _file(name).sweep_command(repeated, run_again)
    if name in ("run", "plan"):
        return getattr(_file(name), f"{name}_command")()
    return getattr(_file(name), name.replace("-", "_"))
