"""What the commands ``run`` and ``plan`` are given alike."""

from functools import partial
from typing import Annotated, Any, Union

import jax
import tyro

import bnn_ppl as bnn
from bnn_ppl.cli.methods import Chosen
from bnn_ppl.cli.signatures import Options, first_paragraph, options_of
from bnn_ppl.methods.method import Description, described_methods

Until = Annotated[tuple[str, ...], tyro.conf.arg(metavar="rhat=NUMBER ess=NUMBER")]

_RUNNING = {"num_chains": None}
_NOT_TYPED = {"key", "posterior", "method", "init", "keep", "folder", "mesh"}
_NOT_TYPED |= {"progress", "until", "verdict", "held_out"}
_SECONDS_TO_REPORT = 900  # other hosts wait for the first one, which reports, before they leave


def until_of(words: tuple[str, ...]) -> dict[str, float] | None:
    """Read rhat=NUMBER and ess=NUMBER; numbers that do not fit are refused by ``run``.

    Raises
    ------
    ValueError
        If a word is of another form.
    """
    try:
        named = {name: float(number) for name, number in (word.split("=") for word in words)}
        if set(named) <= {"rhat", "ess"}:
            return named or None
    except ValueError:
        pass
    raise ValueError(
        f"got --until {' '.join(words)}, expected rhat= or ess= and a number, or both: for example "
        "--until rhat=1.01 ess=400"
    )


def join_hosts() -> None:
    """Join the other hosts of a cluster.

    Raises
    ------
    ValueError
        If no cluster is detected, or it does not answer.
    """
    try:
        jax.distributed.initialize(shutdown_timeout_seconds=_SECONDS_TO_REPORT)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            "got --distributed, expected a cluster that jax.distributed detects (SLURM, Open MPI, "
            f"a TPU pod) and that answers: use the Python functions elsewhere ({error})"
        ) from error


def annotations() -> Options:
    """Give the types of the methods with their options, and of the length of a run."""
    running = options_of(bnn.run, omit=_NOT_TYPED, defaults=_RUNNING, give=dict)

    def chosen(method: Description, **options: Any) -> Chosen:
        return Chosen(method, options)

    methods = tuple(
        Annotated[
            Chosen,
            tyro.conf.subcommand(
                method.name,
                description=f"{first_paragraph(method.build)} By default: {method.length}.",
                constructor=options_of(
                    method.build,
                    omit={"posterior", "optimizer", "held_out"},
                    give=partial(chosen, method),
                ),
            ),
        ]
        for method in described_methods()
    )
    return {
        "method": Union[methods],  # noqa: UP007 (built from a tuple)
        "running": Annotated[dict, tyro.conf.arg(constructor=running)],
    }
