"""Has a run converged? One line that says so, or what is wrong and the next thing to do."""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnn_ppl.analysis.convergence.evidence import evidence_in_words
from bnn_ppl.analysis.convergence.function_convergence import Mixing, mixing_of
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.analysis.prediction.several_sites import targets_in, view_of
from bnn_ppl.analysis.verdict.advice import Advice, of_confidence, of_inputs
from bnn_ppl.analysis.verdict.findings import (
    Finding,
    of_bounds,
    of_chains,
    of_divergences,
    of_few_rows,
    of_fits,
    of_stops,
    of_tempering,
    of_values,
    scale_advice,
)
from bnn_ppl.analysis.verdict.leave_one_out import HeldOut, LeaveOneOut, held_out, leave_one_out
from bnn_ppl.analysis.verdict.training_rows import RowSample, predict_training_rows
from bnn_ppl.methods.method import METHODS
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.inference_data import weights_of, with_points_of

if TYPE_CHECKING:
    import arviz

_NOTES = (
    "stopped_drawing",
    "uninformative",
    "unsure",
    "too_sure",
    "some_divergences",
    "members",
    "narrow",
    "bound",
)  # which do not keep a run from having converged
# Often due to data of another scale than the prior's, which is then the first thing to mend.
_OF_SCALE = (
    *("not_finite", "worse_than_mean", "all_diverge", "divergences", "stuck", "disagree"),
    "overfits",
)
_WORST_FIRST = (
    "stopped",
    "tempered",
    "constant",
    *_OF_SCALE,
    *("lag", "few_draws", "temperature", "far_from_start", "unfinished", "few_independent"),
    *_NOTES,
)


class Verdict(NamedTuple):
    """Whether a run has converged, in a line, and what was found, worst first."""

    converged: bool
    text: str
    findings: tuple[Finding, ...]


def verdict(posterior: Posterior, draws: "arviz.InferenceData") -> Verdict:
    """Judge whether a run can be used, by what it predicts for rows that it was trained on.

    Looks at no more than 200 training rows and a few hundred draws, spread evenly, which predict
    as in :func:`bnn_ppl.predict`, and at all of the run's statistics. :func:`bnn_ppl.run` does so
    at its end.

    Parameters
    ----------
    posterior, draws
        As of :func:`bnn_ppl.predict`.

    Returns
    -------
    Verdict
        ``converged``; ``text``, one line; ``findings``, each with ``kind``, ``text`` and
        ``advice``, worst first. Chains of a sampler are judged by R-hat and effective sample size
        of the predictions (for regressions, also of the standard deviations of y; and R-hat of its
        log density), by temperatures and by divergences; fits by whether their objective stopped
        improving and how far they fit the data below the point they started from; all by whether
        they predict better than no network: rows they were trained on and, as far as the run can
        tell, rows left out. Inputs that tell nothing about y, predictions far less or far more sure
        than right, members of an ensemble that differ, sites on a bound of their prior and single
        divergences are notes: they leave ``converged`` True.

    Raises
    ------
    TypeError, ValueError
        As :func:`bnn_ppl.predict`.

    Notes
    -----
    It cannot show what no draw has seen: another mode, or the bias of a method. For a method with a
    bias, that is part of the text.
    """
    check_arguments(posterior=posterior, draws=draws)
    posterior = with_points_of(draws, posterior.whole)
    if posterior.rows.targets is not None:
        return _of_sites(posterior, draws)
    predicted = predicting(posterior, draws)
    sample = predict_training_rows(predicted, draws)
    sampled = draws.attrs.get("draws_from", "chain") == "chain" and draws.attrs.get("thin", 1) > 0
    several = sampled or len(sample.center) > 1
    # Each fit of an ensemble may have a noise of its own.
    others = (sample.sd, sample.log_prob) if sampled else ()
    mixes = Mixing(np.nan, np.nan)
    if several:
        # Those looked at may lack the few draws that carry most of the weight.
        looked_at, of_all = np.exp(sample.log_weights), weights_of(draws)
        mixes = mixing_of(sample.center, *others, weights=looked_at, of_all=of_all)
    scores = None if sampled else held_out(posterior, draws)
    found = [*of_stops(draws), *of_tempering(draws)]
    found += [*of_values(sample, draws), *of_divergences(posterior, sample, draws)]
    if "not_finite" not in {finding.kind for finding in found}:
        found += of_chains(sample, draws, mixes) if sampled else of_fits(sample, draws, mixes.rhat)
        # Draws of a sampler are spread as the posterior is, so that they tell of rows left out.
        # Points are not; nor is a Gaussian, by whose importance weights left-out rows scored 0.2
        # to 1.6 nats a row lower than test rows (boston, 804 weights: mfvi, ivon, vogn, laplace).
        left = leave_one_out(sample, posterior.density.temperature) if sampled else None
        found += _of_predictions(posterior, draws, sample, left, scores, found)
        found += [] if sampled else of_few_rows(posterior, draws)
        found += of_bounds(posterior, sample)
        if sample.kind == "mean" and "bound" in {finding.kind for finding in found}:  # says why
            found = [finding for finding in found if finding.kind != "unsure"]
    advice = scale_advice(predicted, sample)
    if advice is not None:
        found = [f._replace(advice=advice) if f.kind in _OF_SCALE else f for f in found]
    found.sort(key=lambda finding: _WORST_FIRST.index(finding.kind))
    converged = all(finding.kind in _NOTES for finding in found)
    good = _good_chains(draws, mixes, sample) if sampled else _good_fits(draws, sample, scores)
    if converged:
        notes = (f"{note.text} ({note.advice})" for note in found)
        return Verdict(True, "; note: ".join([good, *notes]), tuple(found))
    right = sampled and all(each.kind in (*_NOTES, "overfits") for each in found)
    of_draws = f"; the draws have converged: {_agreement(mixes, sample)}" if right else ""
    return Verdict(False, _in_words(found) + of_draws, tuple(found))


def _of_sites(posterior: Posterior, draws: "arviz.InferenceData") -> Verdict:
    """Judge each observed site by itself."""
    names = targets_in(posterior).names
    found = {name: verdict(view_of(posterior, name), draws) for name in names}
    text = "; ".join(f"{name}: {each.text}" for name, each in found.items())
    converged = all(each.converged for each in found.values())
    return Verdict(converged, text, tuple(f for each in found.values() for f in each.findings))


def _of_predictions(
    posterior: Posterior,
    draws: Any,
    sample: RowSample,
    left: LeaveOneOut | None,
    scores: HeldOut | None,
    found: list[Finding],
) -> list[Finding]:
    """Find what is wrong with predictions, given what was found of the draws.

    Findings of the draws that this rules out are dropped from `found`.
    """
    wrong = {finding.kind for finding in found} - {*_NOTES}
    # The density of y may be wrong though the draws are right.
    advice = Advice(_to_learn(draws, wrong), sample.sd is not None and not wrong)
    more = [*of_inputs(posterior, sample, left, scores, advice)]
    if not wrong | {finding.kind for finding in more} - {*_NOTES}:
        more += of_confidence(posterior, sample, left, scores)
    if {"overfits", "uninformative"} & {finding.kind for finding in more}:  # not for want of steps
        found[:] = [finding for finding in found if finding.kind != "unfinished"]
    return more


def _to_learn(draws: Any, wrong: set[str]) -> str:
    """Say what to do if a run has not learnt what the inputs tell."""
    settings = json.loads(draws.attrs.get("settings", "{}"))
    if "unfinished" in wrong:
        return "more steps (num_warmup)"
    if isinstance(settings.get("learning_rate"), float | int):
        return "another learning_rate, or none: one is then found"
    chain = draws.attrs.get("draws_from", "chain") == "chain"
    if not chain or not wrong:
        steps = "shorter steps, " if chain and _bias(draws) else ""
        return f"a wider prior, {steps}or start from another fit (init=)"
    return "more warm-up, shorter steps, or start from a fit (init=)"


def _in_words(found: list[Finding]) -> str:
    worst, *others = found
    also = "; also: " + ", ".join(finding.text for finding in others) if others else ""
    return f"{worst.text}: {worst.advice}{also}"


def _agreement(mixes: Mixing, sample: RowSample) -> str:
    # All draws have no smaller ESS than those looked at; with weights, they may.
    least = "at least " if sample.every > 1 and not np.ptp(sample.log_weights) else ""
    return (
        f"R-hat of predictions at training rows {mixes.rhat:.2f}, {least}{mixes.ess:,.0f} "
        "independent draws"
    )


def _good_chains(draws: Any, mixes: Mixing, sample: RowSample) -> str:
    bias = _bias(draws)
    bias = f"; bias: {bias}" if bias else ""
    evidence = ""
    if "log_evidence" in draws.get("fitted", {}):
        evidence = f"; log evidence {evidence_in_words(draws)}"
    alone = draws.posterior.sizes["chain"] == 1
    of_one = " from one chain (num_chains=4 shows whether others agree)" if alone else ""
    return f"converged: {_agreement(mixes, sample)}{of_one}{evidence}{bias}"


def _good_fits(draws: Any, sample: RowSample, scores: HeldOut | None) -> str:
    settings = json.loads(draws.attrs.get("settings", "{}"))
    if "training_ended" in draws.attrs:
        held_out = "trained: predictions of held-out rows have stopped improving"
        improving = "trained: the objective has stopped improving"
        text = held_out if "rows_held_out" in settings else improving
    elif "learning_rate" in settings:
        steps = draws.attrs.get("num_warmup", 0)
        text = f"trained: {steps:,} steps at the given rate (not checked whether these suffice)"
    else:
        text = "fitted"
    if scores:
        of_training = -np.average(sample.score_by_row, weights=sample.row_weights)
        text += f"; NLL of held-out rows {scores.last:.2f}, of training rows {of_training:.2f}"
    bias = _bias(draws)
    return f"{text}; bias: {bias}" if bias else text


def _bias(draws: Any) -> str:
    if json.loads(draws.attrs.get("settings", "{}")).get("adjusted") is False:
        return "the step size, without a Metropolis test"
    described = METHODS.get(draws.attrs.get("method", ""))
    return "" if described is None or described.bias.startswith("none") else described.bias
