"""What can be wrong with a run: one function for each kind of evidence, each a few findings."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.distributions import constraints

from bnn_ppl.analysis.convergence.bounds import sites_on_bounds
from bnn_ppl.analysis.convergence.ensemble_spread import LEAST_DRAWS
from bnn_ppl.analysis.convergence.evidence import gap
from bnn_ppl.analysis.convergence.function_convergence import Mixing
from bnn_ppl.analysis.verdict.training_rows import RowSample, support_of_y
from bnn_ppl.methods.training.held_out_noise import ROWS_A_WEIGHT, noise_sites
from bnn_ppl.model.posterior import Posterior

# The largest R-hat that 95 % of the function values may have. Vehtari et al. (2021) ask 1.01 of
# long chains; a network's few hundred draws cannot show that, and above 1.05 chains differ visibly.
MOST_RHAT = 1.05
# The least effective sample size of 95 % of the function values: a mean then has a standard error
# of a tenth of the posterior's sd. Vehtari et al. (2021) ask 400, for tails too.
LEAST_ESS = 100
# Error of a temperature, beyond that of its estimate. A Gaussian's variance is proportional to it,
# so this is 2.5 % of a standard deviation.
MOST_TEMPERATURE_ERROR = 0.05
_PARTS = 10  # of the draws, by whose means the error of a temperature is estimated
# Nats between the log evidence of the forward pass, from prior to posterior, and the backward one.
MOST_GAP = 1.0
# Share of diverging draws that is more than bad luck. Any may bias (Betancourt, 2017,
# arXiv:1701.02434, section 6.2), so fewer are noted.
MOST_DIVERGENT = 0.01
# Nats a row that an approximation may fit worse than the point it was built around: what a Gaussian
# loses whose sd is 2.5 times that of the residuals (log k + 1 / (2 k^2) - 1 / 2).
MOST_LOSS = 0.5
MOST_LOSS_OF_LABELS = 0.1  # for class labels: their probability falls by a tenth
FEW_MEMBERS_RHAT = 2.0  # of fits, above which a few of them do not show all that there are
AT_FLOOR = "is at its floor"  # of a scale, in the words of a verdict
FAR_FROM_STANDARD = 30.0  # times the scale for which networks' priors and initialisers are made
# Of methods that have such a statistic, in place of longer runs.
_ADVICE = {
    "exponent": "more particles (num_particles)",
    "swap_rejection_rate": "more draws, or more replicas (num_replicas)",
    "log_weight": "more draws, or a smaller learning_rate",
}
_MOST_RATIO_OF_NOISE = 3  # of the sd of y in a typical draw to that in one of fifty
_SMALL_NOISE = 0.05  # that one, as a share of the spread of y
# By which the acceptance of draws may miss the target of warm-up before that was too short.
_MOST_SHORT_OF_TARGET = 0.1
# What makes the steps shorter of methods that find their size by it.
_SHORTENING = {
    "target_acceptance": "raise target_acceptance",
    "energy_error": "a smaller energy_error",
}


class Finding(NamedTuple):
    """Something a run's user should know: what kind of thing, what, and the next thing to do."""

    kind: str
    text: str
    advice: str


# --- the end of a run


def of_stops(draws: Any) -> Iterator[Finding]:
    """Find a run that was stopped by the user or the clock before it was done."""
    if "stopped" in draws.attrs:
        drawing = draws.attrs.get("stopped_in") == "draws"
        yield Finding(
            "stopped_drawing" if drawing else "stopped",
            draws.attrs["stopped"],
            "give it more time; with a folder, the same call goes on from there",
        )


# --- predictions


def of_values(sample: RowSample, draws: Any) -> Iterator[Finding]:
    """Find draws that are not finite."""
    drawn = sample.center.shape[:2]
    finite = ~np.isnan(sample.log_prob.reshape(*drawn, -1)).any(2)
    finite &= np.isfinite(sample.center.reshape(*drawn, -1)).all(2) | (sample.kind == "log_prob")
    if not finite.all():
        yield Finding(
            "not_finite",
            f"predictions are not finite in {(~finite).sum():,} of {finite.size:,} draws",
            shorter_steps(draws),
        )


def scale_advice(posterior: Posterior, sample: RowSample) -> str | None:
    """Say which data are far from mean 0 and sd 1, if any are that can be scaled."""
    far = next(filter(None, map(_far, jax.tree.leaves(sample.x))), None)
    if far is not None:
        return f"scale the inputs to mean 0 and sd 1 ({far})"
    far = _far(sample.y)
    support = None if far is None else support_of_y(posterior, sample.sites, sample.x)
    if support is constraints.real:
        return f"scale y to mean 0 and sd 1 ({far})"
    return f"divide y by its mean ({far})" if support is constraints.positive else None


def _far(leaf: Any) -> str | None:
    """Say how far numbers are from mean 0 and sd 1, if they are."""
    values = np.asarray(leaf)
    if values.dtype.kind != "f":
        return None
    columns = values.astype(float).reshape(len(values), -1)
    sd, mean = columns.std(0), np.abs(columns.mean(0))
    if (sd > FAR_FROM_STANDARD).any():
        return f"got an sd of {sd.max():.4g}"
    # A column of ones is as it should be.
    far = (mean > FAR_FROM_STANDARD * sd) & (mean > 1)
    return f"got a mean of {mean[far].max():.4g}" if far.any() else None


# --- chains


def of_tempering(draws: Any) -> Iterator[Finding]:
    """Find particles on their way from the prior to the posterior."""
    stats = draws.get("sample_stats", {})
    if "exponent" in stats and (reached := float(stats["exponent"].min())) < 1:
        yield Finding(
            "tempered",
            f"NOT YET DRAWS OF THE POSTERIOR: warm-up ended after {draws.attrs['num_warmup']:,} "
            f"steps at an exponent of {reached:.2g}, expected 1",
            "raise num_warmup",
        )
    if gap(draws) > MOST_GAP:
        forward, backward = (
            float(draws["fitted"][f"log_evidence_{way}"].mean()) for way in ("forward", "backward")
        )
        yield Finding(
            "lag",
            "THE PARTICLES LAG BEHIND THE DENSITIES: the log evidence of the forward pass is "
            f"{forward:.1f}, of the backward pass {backward:.1f}",
            "more exponents (target_ess nearer to 1)",
        )


def _advice(draws: Any, usual: str) -> str:
    stats = draws.get("sample_stats", {})
    return next((advice for name, advice in _ADVICE.items() if name in stats), usual)


def of_chains(sample: RowSample, draws: Any, mixes: Mixing) -> Iterator[Finding]:
    """Find chains of a sampler that disagree, mix slowly or are at another temperature."""
    num_chains, num_draws = sample.center.shape[:2]
    seen = (sample.center, sample.log_prob)  # where y's mean is known, its spread may still move
    moves = any(np.ptp(values, axis=1).any() for values in seen)
    if num_draws < LEAST_DRAWS:
        made = num_draws * num_chains
        yield Finding(
            "few_draws",
            f"{f'{made:,} draws are' if made > 1 else '1 draw is'} too few to judge convergence",
            f"make at least {LEAST_DRAWS} in each of several chains",
        )
    elif not moves:
        yield Finding("stuck", "no chain moves", f"{shorter_steps(draws)}, or more warm-up")
    elif mixes.rhat > MOST_RHAT and _met(draws).get("rhat", np.inf) > MOST_RHAT:
        who = "chains disagree" if num_chains > 1 else "the chain has not settled"
        yield Finding(
            "disagree",
            f"{who} (R-hat of {mixes.rhat_of} at training rows {mixes.rhat:.4g}, expected at most "
            f"{MOST_RHAT})",
            _advice(
                draws,
                "run longer (more warm-up and draws), or until a target is met (until=, --until)",
            ),
        )
    # The ESS of some draws tells that of all only if it could have been large enough.
    telling = sample.every == 1 or num_chains * num_draws >= 2 * LEAST_ESS
    met = _met(draws).get("ess", 0) >= LEAST_ESS
    weighted = "log_weight" in draws.get("sample_stats", {})
    if moves and telling and mixes.ess < LEAST_ESS and not met:
        yield Finding(
            "few_independent",
            f"only {mixes.ess:,.0f} independent draws ({'weighted ' * weighted}ESS of "
            f"{mixes.ess_of} at training rows, expected at least {LEAST_ESS})",
            _advice(draws, "more draws, or more steps between them (thin)"),
        )
    yield from _of_temperatures(draws)


def _met(draws: Any) -> dict[str, float]:
    """Give what all draws, not only those looked at here, were seen to reach."""
    return json.loads(draws.attrs["until"]) if draws.attrs.get("until_met") else {}


def _of_temperatures(draws: Any) -> Iterator[Finding]:
    stats = draws.get("sample_stats", {})
    if "log_weight" in stats:  # the states are of another, flatter density
        return
    all_rows = draws.attrs.get("batch_size", "all") == "all"
    for kind in ("kinetic", "configurational"):
        if f"{kind}_temperature" not in stats:
            continue
        values = stats[f"{kind}_temperature"].transpose("chain", "draw").values.astype(float)
        values = values[:, np.isfinite(values).all(0)]
        if values.shape[1] < _PARTS:
            continue
        # Draws are correlated, so that the error is that of means over parts of the run.
        parts = np.stack([part.mean(1) for part in np.array_split(values, _PARTS, axis=1)])
        mean, error = values.mean(), parts.std(ddof=1) / np.sqrt(parts.size)
        if abs(mean - 1) > MOST_TEMPERATURE_ERROR + 2 * error:
            text = f"{kind} temperature {mean:.2f} instead of 1"
            advice = shorter_steps(draws) + ("" if all_rows else ", or larger batches")
            early, late = np.array_split(parts, 2)
            gain = abs(early.mean() - 1) - abs(late.mean() - 1)
            if gain > 2 * np.sqrt(early.var() / early.size + late.var() / late.size):
                text += f" ({early.mean():.2f} in the first half of the draws, {late.mean():.2f} in"
                text += " the second)"
                advice = "more warm-up: the temperature is still changing"
            yield Finding("temperature", text, advice)
            return


def shorter_steps(draws: Any) -> str:
    """Say how steps are made shorter; of those found without a target, only warm-up decides."""
    settings = _settings(draws)
    found = settings.get("step_size") in (None, "found")
    by = next((name for name in _SHORTENING if name in settings and found), "")
    if found and not by and "step_size" in settings:
        by = "a longer warm-up, which finds them"
    elif not by:
        rate = "learning_rate" in settings and "step_size" not in settings
        by = f"a smaller {'learning_rate' if rate else 'step_size'}"
    return f"shorter steps ({_SHORTENING.get(by, by)})"


def _finer(draws: Any) -> str:
    """Name the narrower structure of a Laplace approximation that covers all layers."""
    of_layers = _settings(draws).get("structure") == "kronecker"
    return "structure='last_layer' (--structure last_layer), " if of_layers else ""


def _settings(draws: Any) -> dict[str, Any]:
    return json.loads(draws.attrs.get("settings", "{}"))


def _goes_to_0(sample: RowSample) -> bool:
    """Say whether the noise is near 0 in some draws, where no step is short enough."""
    if sample.kind != "mean" or sample.sd is None or sample.y.dtype.kind != "f":
        return False
    sd = sample.sd.mean(axis=tuple(range(2, sample.sd.ndim)))
    least = np.quantile(sd, 0.02)
    small = min(np.median(sd) / _MOST_RATIO_OF_NOISE, _SMALL_NOISE * sample.y.std())
    return bool(least < small)


def _missed_target(draws: Any) -> str:
    """Advise more warm-up where the steps that it found are too long for where the draws went."""
    settings = _settings(draws)
    found = settings.get("step_size") is None and "acceptance_rate" in draws.sample_stats
    if not found or "target_acceptance" not in settings:
        return ""
    rate = float(draws.sample_stats["acceptance_rate"].mean())
    target = settings["target_acceptance"]
    if rate > target - _MOST_SHORT_OF_TARGET:
        return ""
    return f"a longer warm-up (acceptance {rate:.2f}, target {target:g})"


def of_divergences(posterior: Posterior, sample: RowSample, draws: Any) -> Iterator[Finding]:
    """Find draws whose steps were too long; chains that diverge throughout are named."""
    stats = draws.get("sample_stats", {})
    if "diverging" not in stats:
        return
    diverging = stats["diverging"].transpose("chain", "draw").values.astype(bool)
    count, whole = int(diverging.sum()), diverging.all(1)
    if not count:
        return
    advice = shorter_steps(draws)
    sites = _of_learnt_scale(posterior, sample.sites)
    if sites:  # near a scale of 0 no step is short enough
        more = f" and {len(sites) - 1} more" if len(sites) > 1 else ""
        advice = (
            f"write {sites[0]}{more}, whose scale is learnt, non-centred (LocScaleReparam, "
            "docs/guides/diagnosis.md), choose a prior that keeps that scale away from 0, or take "
            f"{advice}"
        )
    elif _goes_to_0(sample):
        advice = "a noise that is bounded further from 0, for example by priors.noise(floor)"
    else:
        advice = _missed_target(draws) or advice
    if whole.all():
        yield Finding("all_diverge", "all chains diverge in all draws", advice)
    elif whole.any():
        chains = ", ".join(map(str, np.flatnonzero(whole)))
        yield Finding(
            "divergences",
            f"all draws diverge in {whole.sum()} of {len(whole)} chains ({chains})",
            f"leave out {'that chain' if whole.sum() == 1 else 'those chains'}, or shorten steps",
        )
    else:
        kind = "divergences" if count / diverging.size > MOST_DIVERGENT else "some_divergences"
        text = f"{count:,} of {diverging.size:,} draws diverged"
        yield Finding(kind, text, advice)


def _of_learnt_scale(posterior: Posterior, sites: dict[str, Any]) -> list[str]:
    """Name the Gaussian sites whose prior's scale is not the same in the first and last draw."""
    rows = posterior.rows.examples

    @jax.jit
    def scales(values: Any, rows: Any) -> dict[str, jax.Array]:
        normals = posterior.density.terms(posterior.unconstrain(values, rows), rows).normals
        return {site: scale for site, (_, scale) in normals.items()}

    first, last = (
        jax.device_get(scales({site: np.asarray(of[at, at]) for site, of in sites.items()}, rows))
        for at in (0, -1)
    )
    return [site for site in first if (first[site] != last[site]).any()]


# --- fits


def of_fits(sample: RowSample, draws: Any, rhat: float) -> Iterator[Finding]:
    """Find training that was cut short, fits far from the data, and members that differ."""
    if draws.attrs.get("training_ended", 1) == 0:
        yield Finding(
            "unfinished",
            f"training ran out of steps ({draws.attrs['num_warmup']:,}) before its objective had "
            "stopped improving",
            "raise num_warmup; held-out rows tell whether that helps (score_every=, held_out=; "
            "--score-every 2epochs --held-out 0.2)",
        )
    start, now = draws.attrs.get("start_log_likelihood"), float(np.mean(sample.log_score))
    most = MOST_LOSS_OF_LABELS if sample.kind == "probs" else MOST_LOSS
    if start is not None and start - now > most:
        yield Finding(
            "far_from_start",
            f"fits the training rows worse by {start - now:.2g} nats per row than the point "
            "it started from",
            f"the approximation is too coarse here; use {_finer(draws)}hmc or an ensemble",
        )
    if sample.center.shape[0] > 1 and rhat > FEW_MEMBERS_RHAT:
        yield Finding(
            "members",
            "members differ much more than the draws within each",
            "use more members (num_chains)",
        )


def of_few_rows(posterior: Posterior, draws: Any) -> Iterator[Finding]:
    """Find fits that learn the noise with so many weights that these explain part of it.

    Of Gaussians only those about points of an optimiser: the noise of the others allows for the
    spread of their weights.
    """
    settings = _settings(draws)
    allows = "gaussian" in draws.attrs.get("draws_from", "") and settings.get("inner") != "descent"
    held_out = "noise_rows" in settings
    few = posterior.num_weights > posterior.num_rows / ROWS_A_WEIGHT
    if few and noise_sites(posterior) and not held_out and not allows:
        yield Finding(
            "narrow",
            f"a fit of {posterior.num_weights:,} weights to {posterior.num_rows:,} rows "
            "understates the noise: intervals may be too narrow",
            "use hmc or sghmc",
        )


def of_bounds(posterior: Posterior, sample: RowSample) -> Iterator[Finding]:
    """Find scales that a bound of their prior determines, not the data."""
    for site, side, bound in sites_on_bounds(posterior, sample.sites):
        advice = "move this bound of its prior to let the data decide"
        if side == "upper":
            text = f"{site} is at its ceiling of {bound:.3g}: its prior allows no more"
        elif "noise" in site:
            text = (
                f"the {site} {AT_FLOOR} of {bound:.3g}: the data are less noisy than the "
                "prior allows"
            )
            advice = (
                "move this bound (--noise-floor, priors.noise(floor)) to let the data decide; with "
                "a lower floor chains mix more slowly, so check R-hat"
            )
        else:
            text = f"{site} {AT_FLOOR} of {bound:.3g}: its prior allows no less"
        yield Finding("bound", text, advice)
