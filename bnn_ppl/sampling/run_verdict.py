"""The end of a run: what is recorded and told of whether it has converged."""

import json
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.prediction.per_draw import of_draws
from bnn_ppl.analysis.verdict.training_rows import some_rows
from bnn_ppl.analysis.verdict.verdict import verdict
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import VerdictWarning, warn
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import products_in, to_host
from bnn_ppl.runtime.progress import Show, waiting
from bnn_ppl.sampling.setup.run_setup import RunState

if TYPE_CHECKING:
    import arviz

Tree = Any

_FACTS = ("verdict", "converged")
_STOPPED = {"verdict": "not judged: stopped by Ctrl-C"}  # of this call alone


def verdict_attributes(posterior: Posterior, draws: "arviz.InferenceData") -> dict[str, Any]:
    """Give the attributes ``verdict`` and ``converged`` of draws."""
    if "converged" in draws.attrs:  # of a finished run that was called again: nothing was added
        return {name: draws.attrs[name] for name in _FACTS}
    try:
        found = verdict(posterior, draws)
    # Hours of sampling may be in memory alone: no failure to judge them may lose them.
    except KeyboardInterrupt:
        return _STOPPED
    except Exception as error:
        words = str(error).splitlines() or [type(error).__name__]
        return {"verdict": f"not judged: {words[0]}"}
    return dict(zip(_FACTS, (found.text, int(found.converged)), strict=True))


def judge(state: RunState, draws: "arviz.InferenceData", progress: Show) -> None:
    """Add the verdict to the draws of a run, unless it is there, and tell it."""
    # What a finished run says of its devices and versions is not that of a call that adds nothing.
    is_told = "converged" in draws.attrs and "stopped" not in draws.attrs
    with waiting(progress, "judging"):
        facts = verdict_attributes(state.posterior, draws)
    if facts != _STOPPED and not is_told:
        state.recorder.set_attributes(state.done, facts)
    draws.attrs |= facts
    _tell(facts, progress)


def _tell(facts: dict[str, Any], progress: Show) -> None:
    """Tell the verdict as a run tells its progress; warn of one that is a failure in any case."""
    failed = facts.get("converged") == 0
    if progress == "json":
        line = {"phase": "ended"} | {name: facts.get(name) for name in _FACTS}
        print(json.dumps(line), file=sys.stderr, flush=True)
    if failed:  # not printed besides
        warn(facts["verdict"], VerdictWarning)
    elif progress is True:
        print(facts["verdict"], file=sys.stderr, flush=True)


def log_likelihood_at(posterior: Posterior, positions: Tree) -> dict[str, float]:
    """Give the attribute ``start_log_likelihood``: in nats per row, of the rows that are judged.

    Averaged over the chains' positions. Nothing where it is not finite, or not all on this process.
    """
    # Of several observed sites each is judged by itself; a factor has no density of y.
    several = posterior.rows.targets is not None
    if jax.process_count() > 1 or several or posterior.density.needs_y:
        return {}
    statistics = posterior.rows.batch_statistics
    completed = None if statistics is None else statistics.of_some_rows
    predictive = posterior.predictive if statistics is None else statistics.predictive
    average = _average(posterior.constrain, completed, predictive, active_changes())
    with products_in(posterior.density.precision):
        rows = posterior.rows.examples, some_rows(posterior)
        try:
            found = float(average(to_host(positions), *rows))
        except NotImplementedError:  # a likelihood that is a factor
            return {}
    return {"start_log_likelihood": found} if np.isfinite(found) else {}


@lru_cache(maxsize=2)
def _average(
    constrain: Callable,
    completed: Callable | None,  # values to statistics that predictions need besides
    predictive: Callable,
    changes: tuple,  # part of the cache's key alone: tracing reads the active changes
) -> Callable:
    def average(positions: Tree, data: Tree, rows: Tree) -> jax.Array:
        def complete(position: Tree) -> Tree:
            values = constrain(position, data)
            return values | ({} if completed is None else completed(values))

        values = jax.lax.map(complete, positions)
        at = of_draws(predictive, values, rows[0])
        return jnp.mean(jax.lax.map(lambda own: jnp.mean(at(own).log_prob(rows[1])), values))

    return compiled_once(average, runs_once=True)
