"""Methods side by side: scores of each prediction, its distance to a reference, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.comparison.compare_errors import bootstrap_errors, noise_floor, sides
from bnn_ppl.analysis.comparison.compare_inputs import (
    UNNAMED,
    ByMethod,
    Variables,
    check_comparable,
    check_names,
    errors_named,
    fit_temperatures,
    reference_variables,
    rows_of,
    variables_by_method,
)
from bnn_ppl.analysis.comparison.compare_sites import check_sites, joined, of_known_rows
from bnn_ppl.analysis.comparison.compare_tables import table_of
from bnn_ppl.analysis.comparison.row_scores import RowScores, row_distances, row_scores, scores_of
from bnn_ppl.analysis.convergence import diagnostics
from bnn_ppl.analysis.convergence.ensemble_spread import are_fits
from bnn_ppl.analysis.metrics.inputs import Prediction, numbered_as_in

if TYPE_CHECKING:
    import arviz
    import pandas


def compare(
    predictions: Mapping[str, Prediction],
    y: ArrayLike | Mapping[str, ArrayLike],
    reference: str | Prediction | None = None,
    *,
    validation: ArrayLike | tuple[dict[str, Prediction], ArrayLike] | None = None,
    draws: dict[str, arviz.InferenceData] | None = None,
    function_rhat: dict[str, Any] | None = None,
    scale: ArrayLike = 1.0,
    by_chain: Mapping[str, Sequence[Prediction]] | None = None,
    standard_errors: bool = False,
) -> pandas.DataFrame:
    """Score predictions of the same rows in a table with one row per method.

    Parameters
    ----------
    predictions : dict of str to Dataset or array (rows, classes)
        By name of the method: results of `predict`, or class probabilities; either all
        classifications or all regressions.
    y : array (rows,), or a dict of these
        True class numbers, or targets in the units of the predictions; of several observed sites,
        by site. Scores are then named as in ``label: accuracy``, after the joint ``nll``, without
        `validation`, `by_chain` and `scale`.
    reference : str, Dataset or array, optional
        The prediction to measure distances to, such as that of long HMC chains: a name in
        ``predictions``, or a prediction that gets no row of its own.
    validation : array of int or bool, or pair, optional
        Rows on which to fit a temperature, for classification. Row numbers (or a mask) of ``y``:
        all scores are then of the other rows. Or a pair (predictions by name, labels) of a
        separate set: all scores are then of all of ``y``.
    draws : dict of str to InferenceData, optional
        Draws behind some of the predictions, for their cost.
    function_rhat : dict of str to InferenceData, Mapping, Series or array, optional
        R-hat in function space of some methods: the result of `function_draws`; the row "function"
        of :func:`bnn_ppl.diagnostics.summary`; or R-hats already computed, of any shape, of which
        NaN values are left out. Independent draws of a fit have none.
    scale : float or array (outputs,)
        What regression targets were divided by; scores are in original units.
    by_chain : dict of str to sequence of Dataset or array, optional
        For some of the predictions, and under "the reference" for a reference that has no row, the
        same prediction by each chain alone, such as ``[predict(posterior, draws.isel(chain=[k]),
        test) for k in range(4)]``, or class probabilities (chains, rows, classes).
    standard_errors : bool
        Whether to add the standard errors of the scores, by bootstrap: over rows, and where
        `by_chain` has at least two chains over chains, those of the reference included. 200
        resamples of the rows and 100 of the chains from a fixed seed.

    Returns
    -------
    pandas.DataFrame
        For classification ``accuracy``, ``nll``, ``calibrated_nll`` and ``temperature`` (with
        ``validation``; Guo et al. 2017, see :func:`bnn_ppl.metrics.fit_temperature`), ``brier``,
        ``ece`` (20 equal-mass bins), and to the reference ``agreement`` and ``total_variation``.

        For regression ``rmse``, ``nll`` (NaN without ``log_prob``), ``gaussian_nll``,
        ``coverage_90``, and to the reference ``wasserstein_1`` and ``wasserstein_2``, distances of
        Gaussians with the predictive mean and variance, averaged over rows. Of several outputs
        also each output's own: ``rmse[0]``, ``gaussian_nll[0]``, ``coverage_90[0]`` and so on.

        For both ``rhat_median`` and ``rhat_max``; ``seconds`` and ``gradient_evaluations`` of the
        whole run including warm-up, ``num_chains``, and ``num_draws`` per chain. NaN where unknown.
        With `standard_errors` each score is followed by its own: ``accuracy_se`` and so on.

        ``attrs["better"]`` says for each column in which one method can be better whether "higher"
        or "lower" is better, or nearest to a given number; ``attrs["reference"]`` is the
        reference's name, None if it has none; ``attrs["reference_scores"]`` holds its own scores
        by column. ``attrs["noise_floor"]`` holds the distances between two halves of the
        reference's chains, every second one and the others, if `by_chain` has them: no method can
        be expected to come much closer. Selections of rows and columns keep them.

    Raises
    ------
    ValueError
        If there are no predictions, they differ in rows, classes or kind, a name is unknown, a
        prediction or y is invalid, or ``validation`` leaves no rows to fit or to score.
    """
    if isinstance(y, Mapping):
        check_sites(predictions, y, scale, validation=validation, by_chain=by_chain)
        options: dict[str, Any] = {"draws": draws, "function_rhat": function_rhat}
        options["standard_errors"] = standard_errors
        tables = {
            site: compare(*of_known_rows(predictions, own, reference, site), **options)
            for site, own in y.items()
        }
        return joined(tables, predictions, reference)
    methods = variables_by_method(predictions)
    y = numbered_as_in(predictions.values(), y)
    target = reference_variables(reference, methods)
    named = reference if isinstance(reference, str) else None
    everyone = methods if target is None else methods | {named or UNNAMED: target}
    check_comparable(everyone, y, next(iter(methods.items())))
    rhats = _by_method("function_rhat", function_rhat, methods, _rhat)
    costs = _by_method("draws", draws, methods, _cost)
    temperatures, scored = fit_temperatures(validation, methods, y)
    known = sides(by_chain, everyone)
    against = None if target is None else known[named or UNNAMED]
    chosen = np.flatnonzero(scored)

    def by_row(name: str, variables: Variables, target: Variables | None) -> RowScores:
        own = rows_of(variables, chosen)
        with errors_named(name):
            found = row_scores(own, y[chosen], scale, temperatures.get(name))
            if target is None:
                return found
            distances = row_distances(own, rows_of(target, chosen), scale)
            return found._replace(by_row=found.by_row | distances.by_row)

    rows = {name: scores_of(by_row(name, each, target)) for name, each in everyone.items()}
    for name, temperature in temperatures.items():
        rows[name]["temperature"] = temperature
    reference_scores = rows.get(named or UNNAMED, {})
    if standard_errors:
        for name in methods:
            spread = bootstrap_errors(partial(by_row, name), known[name], against)
            rows[name] |= {f"{score}_se": error for score, error in spread.items()}
    rows = {name: rows[name] | rhats.get(name, {}) | costs.get(name, {}) for name in methods}
    table = table_of(rows, named, reference_scores)
    table.attrs["noise_floor"] = noise_floor(against, chosen, scale)
    return table


def _by_method(
    what: str, given: dict[str, Any] | None, methods: ByMethod, columns: Callable
) -> dict[str, dict[str, float]]:
    check_names(what, given, methods)
    return {name: columns(source) for name, source in (given or {}).items()}


def _cost(draws: arviz.InferenceData) -> dict[str, float]:
    sizes = draws["posterior"].sizes
    return {
        "seconds": float(draws.attrs.get("sampling_time", np.nan)),
        "gradient_evaluations": draws.attrs.get("gradient_evaluations", np.nan),
        "num_chains": sizes["chain"],
        "num_draws": sizes["draw"],
    }


def _rhat(source: Any) -> dict[str, float]:
    of_fits = hasattr(source, "keys") and "between_median" in source.keys()  # noqa: SIM118
    if of_fits or are_fits(source):
        return {"rhat_median": np.nan, "rhat_max": np.nan}
    if hasattr(source, "posterior"):
        source = diagnostics.rhat(source)
    elif hasattr(source, "keys") and {"rhat_median", "rhat_max"} <= set(source.keys()):
        return {name: float(source[name]) for name in ("rhat_median", "rhat_max")}
    arrays = list(source.values()) if isinstance(source, Mapping) else [source]
    rhat = np.concatenate([np.ravel(np.asarray(array, dtype=float)) for array in arrays])
    rhat = rhat[~np.isnan(rhat)]
    if not rhat.size:
        return {"rhat_median": np.nan, "rhat_max": np.nan}
    return {"rhat_median": float(np.median(rhat)), "rhat_max": float(rhat.max())}
