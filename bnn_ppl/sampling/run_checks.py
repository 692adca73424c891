"""What a run is asked for: counts filled in, and refused before any work where they do not fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.training.held_out_scores import steps_between, with_scores
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.event_log import check_event_log
from bnn_ppl.sampling.convergence_target import Target, deadline, first_look, goal_of
from bnn_ppl.sampling.run_metadata import settings_without_prior
from bnn_ppl.sampling.setup.initial_states import check_init
from bnn_ppl.sampling.setup.run_setup import RunLength, check_start, length_of
from bnn_ppl.storage import checkpoint


class Asked(NamedTuple):
    """A method and how long to run it."""

    method: Method  # scoring held-out rows, if that is asked for
    lengths: RunLength
    goal: Target | None


def asked_of(
    posterior: Posterior,
    method: Method,
    header: Mapping[str, Any] | None,
    *,
    until: Mapping[str, Any] | None = None,
    score_every: int | str | None = None,
    held_out: Any = None,
    **counts: Any,
) -> Asked:
    """Fill in the method's own counts (:func:`length_of`).

    `header` is the ``state.json`` of a run to resume.
    """
    lengths = length_of(posterior, method, **counts)
    num_chains, _, num_draws, thin, minibatches = lengths
    method = _scored(method, posterior, score_every, held_out, minibatches.size)
    goal = goal_of(posterior, until, num_chains, num_draws, thin)
    return Asked(method, lengths._replace(num_draws=first_look(goal, num_draws, header)), goal)


def check_run(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    *,
    folder: str | Path | None = None,
    mesh: Any = None,
    max_minutes: float | None = None,
    log_to: str | Path | None = None,
    init: Any = None,
    progress: Any = None,
    **asked: Any,
) -> None:
    """Refuse what :func:`run` would, as far as that does not depend on the prior's numbers.

    For what comes before a run, such as a search for the scale of the prior. Arguments are those of
    :func:`run`, less `keep` and `verdict`.
    """
    del progress
    deadline(max_minutes)
    check_event_log(log_to)
    header = None if folder is None else checkpoint.read_header(folder)
    check_init(init, posterior)
    method, lengths, _ = asked_of(posterior, method, header, **asked)
    _, lengths = check_start(posterior, method, lengths, mesh)
    if folder is None or header is None:
        return
    known = settings_without_prior(key, posterior, lengths)
    stored = {name: v for name, v in header["settings"]["exact"].items() if name in known}
    of_both = ({"exact": exact, "approximate": {}} for exact in (stored, known))
    checkpoint.refuse_difference(folder, *of_both)
    checkpoint.refuse_fewer_draws(folder, header, lengths.num_draws)


def _scored(
    method: Method, posterior: Posterior, score_every: int | str | None, held_out: Any, size: Any
) -> Method:
    """Have the method score held-out rows while it trains, if that is asked for."""
    if score_every is None and held_out is None:
        return method
    if score_every is None or held_out is None:
        missing = "score_every" if score_every is None else "held_out"
        raise ValueError(
            "got one of score_every and held_out, expected both: give "
            f"{missing}=, or drop the other"
        )
    every = steps_between(score_every, posterior.num_rows, size if isinstance(size, int) else None)
    return with_scores(method, posterior, held_out, every)
