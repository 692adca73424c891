"""The command line: ``bnn-ppl run``, and the commands on what it leaves.

Options of a method and of ``run`` are read off their signatures and docstrings, so a new argument
there is a new option here.
"""

import sys

import tyro

from bnn_ppl.cli.analysis import chains, correlations, surface
from bnn_ppl.cli.detection import ood
from bnn_ppl.cli.methods import Training
from bnn_ppl.cli.predictions import predict
from bnn_ppl.cli.problem import Problem
from bnn_ppl.cli.results import compare, prune, summary
from bnn_ppl.cli.robustness import adversarial, corruptions, rotations
from bnn_ppl.cli.run import plan_command, run_command
from bnn_ppl.cli.signatures import flowing
from bnn_ppl.cli.studies import continual, label_noise
from bnn_ppl.cli.sweep import sweep_command
from bnn_ppl.runtime.devices import one_device_a_core
from bnn_ppl.runtime.programs import cache_compiled_programs

COMMANDS = (
    summary,
    predict,
    compare,
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


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and do what it says; bad input is one line and exit status 2."""
    _start_jax()
    given, repeated = _parted(sys.argv[1:] if argv is None else argv)
    try:
        _parse(given, repeated)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"bnn-ppl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _parse(arguments: list[str], repeated: list[str]) -> None:
    app = tyro.extras.SubcommandApp()
    sweep = sweep_command(repeated, lambda words: _parse(["run", *words], []))
    for command in (run_command(), plan_command(), sweep, *COMMANDS):
        command.__doc__ = flowing(command.__doc__)
        app.command(command)
    for options in (Problem, Training):
        options.__doc__ = flowing(options.__doc__)
    app.cli(
        prog="bnn-ppl",
        description=(
            "Bayesian neural networks, sampled.  Try: bnn-ppl run hmc --data yacht;  "
            "then: bnn-ppl summary runs/yacht-0-hmc"
        ),
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.CascadeSubcommandArgs),
    )


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Part what stands before two dashes from the run that ``sweep`` repeats, after them."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _start_jax() -> None:
    one_device_a_core()
    cache_compiled_programs()
