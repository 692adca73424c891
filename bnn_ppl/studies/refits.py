"""A posterior sampled again without some of its rows, which it then predicts."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis.comparison.loo import Loo
from bnn_ppl.analysis.convergence import diagnostics
from bnn_ppl.analysis.convergence.ensemble_spread import are_fits
from bnn_ppl.analysis.convergence.pareto import log_likelihoods
from bnn_ppl.methods.method import Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import recipe_of
from bnn_ppl.runtime.checks import VerdictWarning, check_count
from bnn_ppl.runtime.progress import Show, phases_named
from bnn_ppl.sampling.run import run
from bnn_ppl.sampling.run_verdict import verdict_attributes
from bnn_ppl.storage.inference_data import weights_of

if TYPE_CHECKING:
    import arviz

Array = np.ndarray

MOST_REFITS = 10
_OF_WHOLE_RUNS = "init", "keep", "until", "held_out", "score_every", "folder", "progress"


class Scores(NamedTuple):
    """What rows have that were not trained on."""

    elpd: Array  # (row,): log of the density, averaged over draws
    error: Array  # (row,): Monte Carlo standard error
    converged: bool
    num_draws: int


class Repeated(NamedTuple):
    """How a posterior is sampled again, each time without other rows."""

    key: jax.Array  # of all of them; each has its own, by its number
    posterior: Posterior  # of all rows
    take: Callable[[Array], Posterior]  # numbers -> that of some rows
    make: Callable[[Posterior], Method]
    options: dict[str, Any]  # of `run`
    folder: Path | None  # where each run has a folder of its own; None keeps them in memory
    progress: Show

    def scores(self, number: int, kept: Array, held: Array, name: str, init: Any = None) -> Scores:
        """Sample without the rows held out, and predict these."""
        part = self.take(kept)
        method = self.make(part)
        options = dict(self.options)
        if isinstance(options.get("batch_size"), int | np.integer):
            options["batch_size"] = min(options["batch_size"], len(kept))
        with warnings.catch_warnings(action="ignore", category=VerdictWarning):  # counted instead
            draws = run(
                jax.random.fold_in(self.key, number),
                part,
                method,
                init=init,
                folder=None if self.folder is None else self.folder / name,
                progress=self.progress,
                verdict=False,
                **options,
            )
        converged = verdict_attributes(part, draws).get("converged", 1) != 0
        values = log_likelihoods(part, draws, held, data=self.posterior.rows.examples)
        return Scores(*_averaged(draws, values), converged, values.shape[0] * values.shape[1])


def repeated(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    options: dict[str, Any],
    folder: str | Path | None,
    progress: Show,
) -> Repeated:
    """Check that a posterior can be sampled again without rows, before anything is."""
    check_arguments(key=key, posterior=posterior, method=method)
    for name in _OF_WHOLE_RUNS:
        if name in options:
            raise TypeError(f"got {name}= for runs without some rows, expected none: leave it out")
    take, recipe = posterior.rows.take, recipe_of(method)
    if posterior.sites.subspace is not None or take is None:
        raise ValueError(
            "got a part of a posterior (a subspace, or one of several observed sites), expected a "
            "whole one: without some of its rows it is another"
        )
    if posterior.density.is_whole:
        raise ValueError(
            "got a factor of all rows together, expected rows that are independent given the "
            "sites: some of them cannot be left out"
        )
    if recipe is None:
        raise ValueError(
            f"got {method!r}, which cannot be built for other rows, expected a method as bnn_ppl "
            "gives it: leave its fields as they are"
        )
    place = None if folder is None else Path(folder)
    return Repeated(key, posterior, take, recipe.make, options, place, progress)


def _averaged(draws: Any, values: Array) -> tuple[Array, Array]:
    """Give the log of the mean of exp(values) (chain, draw, row) over draws, and its error."""
    shares = weights_of(draws)[..., None]
    logs = values + np.log(shares / shares.sum())
    found = np.logaddexp.reduce(logs.reshape(-1, values.shape[2]), axis=0)
    relative = np.exp(np.minimum(values - found, 350.0))
    return found, relative.std((0, 1)) / np.sqrt(_num_independent(draws, relative))


def _num_independent(draws: Any, values: Array) -> Any:
    """Give how many independent draws those of all chains are worth, by row.

    Not more than there are: draws that alternate in ranks need not do so in density.
    """
    num = values.shape[0] * values.shape[1]
    if are_fits(draws) or values.shape[1] < 4:
        return num
    found = diagnostics.ess(values)
    return np.where(np.isfinite(found), np.minimum(found, num), num)


def titled(what: str, number: int, total: int, began: float) -> str:
    """Name one of several runs for its progress bar, with the time left of all from the second."""
    if not number:
        return f"{what} 1 of {total}"
    left = (time.monotonic() - began) / number * (total - number)
    return f"{what} {number + 1}/{total}, {int(left // 60)}:{int(left % 60):02d} left"


def length_of(draws: "arviz.InferenceData") -> dict[str, Any]:
    """Give the counts that :func:`bnn_ppl.run` had for these draws; none for others."""
    sizes, attrs = draws["posterior"].sizes, draws.attrs
    if "num_warmup" not in attrs:
        return {}
    size = attrs["batch_size"]
    return {
        "num_chains": sizes["chain"],
        "num_warmup": int(attrs["num_warmup"]),
        "num_draws": sizes["draw"],
        "thin": int(attrs["thin"]),
        "batch_size": size if size == "all" else int(size),
        "bootstrap": bool(attrs.get("bootstrap", 0)),
    }


def refit_loo(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    draws: "arviz.InferenceData",
    found: Loo,
    *,
    most: int = MOST_REFITS,
    folder: str | Path | None = None,
    progress: Show = True,
    **options: Any,
) -> Loo:
    """Sample again without each row whose weights are unreliable, and replace its estimate.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    posterior, method, draws
        As given to :func:`bnn_ppl.run`, and what it gave. Each run of a sampler starts at the last
        of these draws. A prior's scale stays as it was found with all rows.
    found
        From :func:`bnn_ppl.loo` of these draws.
    most
        Rows to sample without, those with the largest k; the others stay as they are.
    folder
        Where each run has a folder of its own, by the number of its row: the same call then resumes
        what was stopped.
    progress
        As for :func:`bnn_ppl.run`, for one run after the other.
    **options
        Arguments of :func:`bnn_ppl.run`, such as `num_warmup`; by default the counts of `draws`.

    Returns
    -------
    Loo
        The same with the log density of each of these rows under the draws without it; its k is
        NaN, and its `how` is "refit".

    Raises
    ------
    ValueError
        If the posterior is a part of one, of a stream or with a factor of all rows, or the method
        was changed since it was built.
    TypeError
        If an option is one of all rows alone, such as `init`.
    """
    check_count("most", most)
    options = length_of(draws) | options
    held = posterior.prior.open_scale
    if held is not None and "prior_scale" in draws.attrs:
        posterior = held.hold(float(draws.attrs["prior_scale"]))
    again = repeated(key, posterior, method, options, folder, progress)
    # A draw of a fitted distribution is no place to fit it at again.
    init = None if are_fits(draws) else draws
    elpd, k, error, how = (each.copy() for each in (found.elpd, found.k, found.error, found.how))
    places, began, failed = found.bad_rows()[:most], time.monotonic(), 0
    for number, place in enumerate(places):
        row = int(found.rows[place])
        kept = np.delete(np.arange(posterior.num_rows), row)
        with phases_named(titled("refit", number, len(places), began)):
            scores = again.scores(row, kept, np.array([row]), f"row-{row}", init)
        elpd[place], error[place] = scores.elpd[0] - found.log_unit, scores.error[0]
        k[place], how[place] = np.nan, "refit"
        failed += not scores.converged
    total = found.not_converged + failed
    return found._replace(elpd=elpd, k=k, error=error, how=how, not_converged=total)
