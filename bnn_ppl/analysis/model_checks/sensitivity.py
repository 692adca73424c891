"""How far a posterior moves if the prior or the likelihood counts a little more, or less."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bnn_ppl.analysis.convergence.pareto import (
    log_likelihoods,
    pareto_smoothed,
    relative_efficiency,
)
from bnn_ppl.analysis.model_checks.quantities import quantities
from bnn_ppl.analysis.verdict.training_rows import weights_of_rows
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.inference_data import sites_of, thinned, with_points_of

if TYPE_CHECKING:
    import arviz
    import pandas

Array = np.ndarray

SENSITIVE = 0.05  # from which on a quantity is said to move
_CHANGE = 0.01  # of the power
_MOST_DRAWS = 4_000


def check_sensitivity(posterior: Posterior, draws: "arviz.InferenceData") -> "pandas.DataFrame":
    r"""Find how sensitive a posterior is to the weight of its prior and of its likelihood.

    Draws are weighted by :math:`p(w)^{a - 1}` or :math:`p(y \mid w)^{a - 1}`, smoothed by PSIS, for
    powers a of 0.99 and 1.01, and the cumulative Jensen-Shannon distance of a quantity's
    distribution is divided by the change of :math:`\log_2 a` (Kallioinen, Paananen, Bürkner and
    Vehtari, 2024, Statistics and Computing 34).

    Parameters
    ----------
    posterior
        The posterior that was sampled, of rows in memory.
    draws
        From :func:`bnn_ppl.run`: several, of equal weight; at most 4,000 are used.

    Returns
    -------
    pandas.DataFrame
        By quantity (the function at four training rows; scalar sites): ``prior`` and
        ``likelihood``, which move a quantity from 0.05 on, and ``reading``: "informative prior"
        where only the prior does, "possible conflict" where both do, and "" otherwise. The prior is
        that of all sites together.

    Raises
    ------
    ValueError
        If draws are weighted or few, or the rows are those of a long stream.
    """
    import pandas

    check_arguments(posterior=posterior, draws=draws)
    if "log_weight" in draws.get("sample_stats", {}):
        raise ValueError("got weighted draws, expected draws of equal weight: use another method")
    num_rows = len(posterior.rows.examples[1])
    if num_rows < posterior.num_rows:
        raise ValueError(
            f"got a stream of {posterior.num_rows:,} rows, expected rows in memory or at most "
            f"{num_rows:,}: condition on arrays"
        )
    kept = thinned(draws, _MOST_DRAWS)
    posterior = with_points_of(kept, posterior)
    found = quantities(posterior, kept)
    if next(iter(found.values())).size < 20:
        raise ValueError(
            f"got {next(iter(found.values())).size} draws, expected 20 or more: sample more"
        )
    tempers = posterior.density.prior_temperature, posterior.density.temperature
    terms = _log_priors(posterior, kept), _log_likelihood(posterior, kept)
    table = {}
    powers = [
        [_weights(each * sign * _CHANGE / temper, kept) for sign in (-1, 1)]
        for each, temper in zip(terms, tempers, strict=True)
    ]
    for name, each in found.items():
        values = each.reshape(-1).astype(float)
        moved = [np.mean([_distance(values, w) for w in pair]) for pair in powers]
        table[name] = [each / np.log2(1 + _CHANGE) for each in moved]
    result = pandas.DataFrame.from_dict(table, "index", columns=["prior", "likelihood"])
    result["reading"] = [_reading(*row) for row in result.to_numpy()]
    return result


def _reading(prior: float, likelihood: float) -> str:
    if prior < SENSITIVE:
        return ""
    return "possible conflict" if likelihood >= SENSITIVE else "informative prior"


def sensitivity_in_words(table: "pandas.DataFrame") -> str:
    """Say what the table means, in one sentence."""
    worst = table["prior"].idxmax()
    prior, likelihood = table.loc[worst, ["prior", "likelihood"]]
    found = f"prior {prior:.2g}, likelihood {likelihood:.2g}"
    if table["prior"].max() < SENSITIVE:
        return f"the prior moves no quantity (at most {worst!r}: {found})"
    num = int((table["prior"] >= SENSITIVE).sum())
    if (table["reading"] == "possible conflict").any():
        return (
            f"the prior moves {num} of {len(table)} quantities, most {worst!r} ({found}): prior "
            "and data pull it apart, or both inform it; is the prior what you believe?"
        )
    return (
        f"the prior moves {num} of {len(table)} quantities, most {worst!r} ({found}), and the data "
        "hardly do: what is found there is the prior"
    )


def _weights(log_weights: Array, draws: Any) -> Array:
    efficiency = relative_efficiency(draws, log_weights[..., None])
    smoothed, _ = pareto_smoothed(log_weights.reshape(1, -1), efficiency)
    return np.exp(smoothed[0])


def _log_priors(posterior: Posterior, draws: Any) -> Array:
    """Give the log prior density (chain, draw) of the values."""
    sites = {site: values.values for site, values in sites_of(posterior, draws).items()}
    shape = next(iter(sites.values())).shape[:2]

    @jax.jit
    def of_all(sites: Any) -> Any:
        return jax.lax.map(lambda values: posterior.log_prior(posterior.unconstrain(values)), sites)

    flat = {site: a.reshape(-1, *a.shape[2:]) for site, a in sites.items()}
    return np.asarray(of_all(flat), float).reshape(shape)


def _log_likelihood(posterior: Posterior, draws: Any) -> Array:
    """Give the log-likelihood (chain, draw), each row counted as often as the model counts it."""
    counts = weights_of_rows(posterior)
    rows = np.flatnonzero(counts)
    return log_likelihoods(posterior, draws, rows) @ counts[rows]


def _distance(values: Array, weights: Array) -> float:
    """Give the cumulative Jensen-Shannon distance of weighted values from these themselves.

    The larger of those of the values and of their negatives (Nguyen and Vreeken, 2015).
    """
    order = np.argsort(values)
    forwards = _divergence(values[order], weights[order])
    backwards = _divergence(-values[order][::-1], weights[order][::-1])
    return float(np.sqrt(max(forwards, backwards, 0.0)))


def _divergence(ordered: Array, weights: Array) -> float:
    widths = np.diff(ordered)
    if not widths.any():
        return 0.0
    p = (np.arange(len(ordered)) + 1)[:-1] / len(ordered)
    q = np.clip(np.cumsum(weights)[:-1], 1e-300, 1.0)
    middle = np.log2((p + q) / 2)
    p_area, q_area = widths @ p, widths @ q
    found = widths @ (p * (np.log2(p) - middle)) + widths @ (q * (np.log2(q) - middle))
    # The terms that make each of the two divergences at least 0 cancel in their sum.
    return float(found / (p_area + q_area))
