"""What the commands ``run`` and ``plan`` are given alike."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union

import jax
import tyro

import bnn_ppl as bnn
from bnn_ppl.cli.methods import Chosen
from bnn_ppl.cli.problem.rows import Scored
from bnn_ppl.cli.signatures import Options, first_paragraph, options_of
from bnn_ppl.cli.words import NOT_OF_METHODS, NOT_OF_RUN
from bnn_ppl.methods.method import Description, described_methods
from bnn_ppl.runtime.progress import Show

_RUNNING = {"num_chains": None}
_SECONDS_TO_REPORT = 900  # other hosts wait for the first one, which reports, before they leave


class General(NamedTuple):
    """Seed, start and end, rows to score, files, and what is shown.

    Attributes
    ----------
    seed
        Random seed.
    init
        Folder of another run of the same model, from whose draws the chains start.
    num_epochs
        Epochs over which the draws are spread evenly; replaces --thin.
    num_warmup_epochs
        Epochs of warm-up; replaces --num-warmup.
    until
        Keep drawing past --num-draws until the predictions for (at most 200) rows to score (--on)
        have converged this far, for example rhat=1.01 ess=400: 95 % of them have at most this
        R-hat, and 95 % at least this bulk ESS. --max-minutes sets a time limit.
    on
        Rows to score: by default those held out of training (--held-out, --folds) if there are
        any, otherwise the test rows.
    features
        Folder for the outputs of the fixed layers (--bayesian): computed once, row by row, and
        then read by this run and by later ones of the same network and data. A folder of
        another network or other data is refused.
    folder
        Output folder for draws, report.png and problem.json. By default
        runs/<data>-<split>-<method>, with a number if that holds a run with other settings.
    progress
        Show a progress bar (plain lines where there is no terminal).
    json
        Report progress as lines of JSON on standard error.
    distributed
        Join the other hosts; SLURM, TPU pods and others are detected (jax.distributed).
    strict
        End with exit status 1 if the run has not converged, after storing draws and figures.
    """

    seed: int = 0
    init: Path | None = None
    num_epochs: float | None = None
    num_warmup_epochs: float | None = None
    until: Annotated[tuple[str, ...], tyro.conf.arg(metavar="rhat=NUMBER ess=NUMBER")] = ()
    on: Scored | None = None
    features: Path | None = None
    folder: Path | None = None
    progress: bool = True
    json: bool = False
    distributed: bool = False
    strict: bool = False

    @property
    def shown(self) -> Show:
        """How progress is shown."""
        return "json" if self.json else self.progress


def until_of(words: tuple[str, ...]) -> dict[str, float] | None:
    """Read rhat=NUMBER and ess=NUMBER; numbers that do not fit are refused by ``run``."""
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
    """Join the other hosts of a cluster."""
    try:
        jax.distributed.initialize(shutdown_timeout_seconds=_SECONDS_TO_REPORT)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            "got --distributed, expected a cluster that jax.distributed detects (SLURM, Open MPI, "
            f"a TPU pod) and that answers: use the Python functions elsewhere ({error})"
        ) from error


def annotations() -> Options:
    """Give the types of the methods with their options, and of the length of a run."""
    running = options_of(bnn.run, omit=NOT_OF_RUN, defaults=_RUNNING, give=dict)

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
                    omit=NOT_OF_METHODS,
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
