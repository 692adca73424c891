"""The command line: ``bnn-ppl run``, and the commands on what it leaves.

Options of a method and of ``run`` are read off their signatures and docstrings, so a new argument
there is a new option here.
"""

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Any

import tyro

import bnn_ppl as bnn
from bnn_ppl.cli.analysis import chains, correlations, surface
from bnn_ppl.cli.detection import ood
from bnn_ppl.cli.methods import Training
from bnn_ppl.cli.plan import plan_command
from bnn_ppl.cli.predictions import predict
from bnn_ppl.cli.problem import Problem
from bnn_ppl.cli.results import compare, prune, summary
from bnn_ppl.cli.robustness import adversarial, corruptions, rotations
from bnn_ppl.cli.run import run_command
from bnn_ppl.cli.run_arguments import General
from bnn_ppl.cli.score import score
from bnn_ppl.cli.signatures import first_positional, flags_of, flowing
from bnn_ppl.cli.studies import continual, label_noise
from bnn_ppl.cli.subspace import InSubspace
from bnn_ppl.cli.sweep import sweep_command
from bnn_ppl.methods.method import METHODS
from bnn_ppl.runtime.devices import one_device_a_core
from bnn_ppl.runtime.interrupts import answered, raised_for_sure, stopping
from bnn_ppl.runtime.names import hint
from bnn_ppl.runtime.programs import cache_compiled_programs
from bnn_ppl.runtime.starting import INTERRUPTED, imported

COMMANDS = (
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


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and do what it says; bad input is one line and exit status 2.

    After Ctrl-C the exit status is 130, even if a run reports on its draws so far, so that a script
    can tell that the command was stopped.
    """
    given, repeated = _parted(sys.argv[1:] if argv is None else argv)
    if given == ["--version"]:
        print(f"bnn-ppl {bnn.__version__}")
        return
    if not given + repeated:
        with redirect_stdout(sys.stderr), suppress(SystemExit):
            _parse(["--help"], [])
        sys.exit(2)
    _start_jax()
    try:
        imported()
        answer = partial(stopping, "stopping", "--json" in given)
        with raised_for_sure(), answered(answer) as pressed:
            _parse(given, repeated)
            sys.stdout.flush()
            if pressed():
                sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        sys.exit(1)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"bnn-ppl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _parse(arguments: list[str], repeated: list[str]) -> Any:
    """Do what the command line says; what the command returns."""
    app = tyro.extras.SubcommandApp()
    sweep = sweep_command(repeated, lambda words: _parse(["run", *words], []))
    commands = (run_command(), plan_command(), sweep, *COMMANDS)
    for command in commands:
        command.__doc__ = flowing(command.__doc__)
        app.command(command)
    for options in (General, Problem, Training, InSubspace):
        options.__doc__ = flowing(options.__doc__)
    by_name = {command.__name__.replace("_", "-"): command for command in commands}
    _check_words(arguments, by_name)
    # One command alone, so that an error does not suggest the options of others.
    alone = by_name.get(arguments[0].replace("_", "-"))
    if alone is not None:
        prog, words = f"bnn-ppl {arguments[0]}", arguments[1:]
        return tyro.cli(alone, prog=prog, args=words, config=_CONFIG)
    return app.cli(
        prog="bnn-ppl",
        description=(
            "Bayesian neural networks, sampled.  Try: bnn-ppl run hmc --data yacht;  "
            "then: bnn-ppl summary runs/yacht-0-hmc.  bnn-ppl --version prints the version."
        ),
        args=arguments,
        config=_CONFIG,
    )


def _check_words(arguments: list[str], by_name: dict[str, Callable]) -> None:
    """Refuse commands and methods that there are not, with the closest that there is."""
    command, *others = arguments
    if command.startswith("-"):
        return
    if command.replace("-", "_") in METHODS:
        raise ValueError(f"got the method {command!r}, expected a command: bnn-ppl run {command}")
    _check_word("command", command, list(by_name))
    if command in ("run", "plan"):
        flags = flags_of(General, Problem, Training, bnn.run, by_name[command])
        method = first_positional(others, flags)
        if method is not None:
            _check_word("method", method, sorted(METHODS))


def _check_word(what: str, word: str, names: list[str]) -> None:
    if word.replace("_", "-") not in [name.replace("_", "-") for name in names]:
        close = hint(word, names)
        raise ValueError(f"got {what} {word!r}{close} expected one of {', '.join(names)}")


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Part what stands before two dashes from the run that ``sweep`` repeats, after them."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _start_jax() -> None:
    one_device_a_core()
    cache_compiled_programs()
