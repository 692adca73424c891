"""The command line: ``bnn-ppl run``, and the commands on what it leaves.

This file answers what needs no JAX, whose import takes a second: the list of commands, the version,
words that are no command, method or option, and a command's help once it has been shown. The rest
is in :mod:`bnn_ppl.cli.parser`.
"""

import os
import sys
from importlib import import_module

from bnn_ppl import __version__
from bnn_ppl.cli import help_cache
from bnn_ppl.cli.words import as_named, check_words, help_text
from bnn_ppl.runtime.import_interrupts import INTERRUPTED


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and do what it says; bad input is one line and exit status 2.

    After Ctrl-C the exit status is 130, even if a run reports on its draws so far, so that a script
    can tell that the command was stopped.
    """
    given, repeated = _parted(sys.argv[1:] if argv is None else argv)
    if not given:
        print(help_text(), file=sys.stderr)
        sys.exit(2)
    try:
        if given[0] in ("--help", "-h"):
            print(help_text(), flush=True)
            sys.exit(0)
        if given[0] == "--version":
            print(f"bnn-ppl {__version__}", flush=True)
            return
        check_words(given)
        given = as_named(given)
        if repeated and given[0] != "sweep":
            raise ValueError(
                f"got words after -- for {given[0]}, expected them for sweep alone: drop them"
            )
        if repeated:
            check_words(["run", *repeated])
            repeated = as_named(["run", *repeated])[1:]
        if not help_cache.asks(given):
            _follow(given, repeated)
        elif (text := help_cache.known(given)) is not None:
            print(text, end="", flush=True)
        else:
            with help_cache.kept(given):
                _follow(given, repeated)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        sys.exit(1)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"bnn-ppl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Part what stands before two dashes from the run that ``sweep`` repeats, after them."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _follow(given: list[str], repeated: list[str]) -> None:
    _start_jax()
    import_module("bnn_ppl.cli.parser").follow(given, repeated)


def _start_jax() -> None:
    from bnn_ppl.runtime.compilation.programs import cache_compiled_programs
    from bnn_ppl.runtime.machines.devices import one_device_a_core

    one_device_a_core()
    cache_compiled_programs()
