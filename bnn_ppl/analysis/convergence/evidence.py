"""The log evidence of a run, and how far it may be off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from bnn_ppl.analysis.comparison.standard_errors import error_of_mean
from bnn_ppl.methods.method import METHODS

if TYPE_CHECKING:
    import arviz

# Chains that the lineages of the particles of all chains count for, in the error of the mean.
_CHAINS_OF_LINEAGES = 10
# Standard error, as a share of the gap between a bound from below and one from above, of their
# mean. The truth may be at either bound: mostly it is near the lower one.
_OF_GAP = 1 / 2


class LogEvidence(NamedTuple):
    """Log evidence, and the standard error of that number."""

    mean: float
    standard_error: float


def log_evidence(draws: arviz.InferenceData) -> LogEvidence:
    r"""Log evidence of a model, and its standard error.

    It is the logarithm of the mean over chains of their estimates of the evidence: each chain of
    ``tempered_smc`` and ``parallel_tempering`` makes one on its own. The standard error is
    such that twice it is half of a 95 % interval: since few chains do not tell their spread well,
    their standard error is multiplied by half the 97.5 % quantile of Student's t.

    A chain of ``tempered_smc`` makes two, in a forward pass from prior to posterior and in a
    backward pass, and the result is the mean of the two logarithms. Particles that lag behind the
    densities make the first too low and the second too high (Grosse, Ghahramani & Adams, 2015), by
    amounts that chains share. Half of the gap is therefore part of the error. The other part is
    from the spread over chains and, as much as ten chains would tell, from the lineages of the
    particles (:func:`bnn_ppl.tempered_smc`).

    Each chain of ``laplace`` approximates the evidence about its own point. The error of that
    approximation is not known.

    Parameters
    ----------
    draws : arviz.InferenceData
        Draws of ``tempered_smc``, ``parallel_tempering`` or ``laplace``: the group ``fitted`` has
        ``log_evidence`` (chain,).

    Returns
    -------
    LogEvidence
        ``mean`` and ``standard_error``, in nats. Both are NaN if a chain has not come to the
        posterior. The error is also NaN where it is not known: of ``laplace``, of one chain of
        ``parallel_tempering``, and of ``tempered_smc`` if warm-up ended in the backward pass.

    Raises
    ------
    ValueError
        If the draws have none.
    """
    method = getattr(draws, "attrs", {}).get("method", "an unknown method")
    fitted = getattr(draws, "fitted", {})
    if "log_evidence" not in fitted:
        raise ValueError(
            f"got draws of {method} without log_evidence, expected those of a whole run of "
            "tempered_smc, parallel_tempering or laplace"
        )
    by_chain = fitted["log_evidence"].values.astype(float)
    if method in METHODS and METHODS[method].kind == "fit":
        return LogEvidence(log_mean(by_chain), np.nan)
    if method != "tempered_smc":
        return LogEvidence(log_mean(by_chain), error_of_mean(by_chain))
    if "log_evidence_backward" not in fitted:  # stored by a version that went one way only
        return LogEvidence(log_mean(by_chain), np.nan)
    forward, backward = _both_ways(fitted)
    if np.isnan(backward):
        return LogEvidence(forward, np.nan)
    of_each = fitted["log_evidence_error"].values.astype(float)
    error = error_of_mean(by_chain, of_each, _CHAINS_OF_LINEAGES)
    return LogEvidence((forward + backward) / 2, float(np.hypot(error, _OF_GAP * gap(draws))))


def gap(draws: arviz.InferenceData) -> float:
    """Give by how much the backward evidence is above the forward one, in nats; at least 0.

    NaN where a run has not both.
    """
    fitted = getattr(draws, "fitted", {})
    if "log_evidence_backward" not in fitted:
        return np.nan
    forward, backward = _both_ways(fitted)
    return float(np.maximum(backward - forward, 0.0))


def _both_ways(fitted: Any) -> tuple[float, float]:
    forward, backward = (
        fitted[f"log_evidence_{way}"].values.astype(float) for way in ("forward", "backward")
    )
    return log_mean(forward), -log_mean(-backward)


def evidence_in_words(draws: arviz.InferenceData) -> str:
    """Write the log evidence with its standard error, or say that this is not known."""
    mean, error = log_evidence(draws)
    known = f"standard error {error:.2g}" if np.isfinite(error) else "its error is not known"
    return f"{mean:.2f}, {known}"


def log_mean(logs: np.ndarray) -> float:
    """Give the logarithm of the mean."""
    return float(logsumexp(logs) - np.log(len(logs)))
