"""What a run is asked for, completed by its method, and refused before any work if it is wrong."""

from pathlib import Path
from typing import Any

import jax

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.training.held_out_scores import steps_between, with_scores
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.event_log import check_event_log
from bnn_ppl.runtime.interrupts import deadline
from bnn_ppl.sampling.convergence_target import first_look, target_of
from bnn_ppl.sampling.run_metadata import settings_without_prior
from bnn_ppl.sampling.setup.initial_states import check_init
from bnn_ppl.sampling.setup.run_spec import RunLength, RunSpec, Target
from bnn_ppl.sampling.setup.setup_checks import check_setup
from bnn_ppl.storage.run_storage import RunStorage


def resolve(
    posterior: Posterior, method: Method, spec: RunSpec, storage: RunStorage
) -> tuple[Method, RunLength, Target | None]:
    """Give the method, which scores held-out rows if it is to, the length and the target."""
    length = spec.length(posterior, method)
    method = _scored(method, posterior, spec, length.minibatches.size)
    target = target_of(posterior, spec.until, length)
    num_draws = first_look(target, length.num_draws, storage.num_draws)
    return method, length._replace(num_draws=num_draws), target


def check_spec(
    posterior: Posterior, method: Method, spec: RunSpec, storage: RunStorage
) -> RunLength:
    """Refuse what does not depend on the numbers of the prior; give how long the run is."""
    check_init(spec.init, posterior)
    method, length, _ = resolve(posterior, method, spec, storage)
    return check_setup(posterior, method, length, spec)[1]


def check_run(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    folder: str | Path | None = None,
    **options: Any,
) -> None:
    """Refuse what :func:`run` would, as far as that does not depend on the prior's numbers.

    For what comes before a run, such as a search for the scale of the prior. Arguments are those of
    :func:`run`; `keep` and `verdict` are not looked at.
    """
    deadline(options.get("max_minutes"))
    check_event_log(options.get("log_to"))
    storage = RunStorage(folder)
    length = check_spec(posterior, method, RunSpec.of(options), storage)
    refuse_other_run(key, posterior, length, storage)


def refuse_other_run(
    key: jax.Array, posterior: Posterior, length: RunLength, storage: RunStorage
) -> None:
    """Refuse to resume a run of another key, of other rows or of other counts."""
    if storage.settings is not None:
        storage.refuse_other(settings_without_prior(key, posterior, length), length.num_draws)


def _scored(method: Method, posterior: Posterior, spec: RunSpec, size: int | None) -> Method:
    """Have the method score held-out rows while it trains, if that is asked for."""
    score_every, held_out = spec.score_every, spec.held_out
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
