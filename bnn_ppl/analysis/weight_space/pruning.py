"""Deleting the weights that matter least to a posterior, and what that costs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.metrics.inputs import known_rows
from bnn_ppl.analysis.prediction.predict import predict
from bnn_ppl.analysis.prediction.predictives import made_for
from bnn_ppl.analysis.prediction.several_sites import of_one_site
from bnn_ppl.analysis.weight_space.weight_statistics import (
    Arrays,
    divergence_from_prior,
    moments,
    real_sites,
    signal_to_noise,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import labels_of, rows_to_score
from bnn_ppl.model.rows.given_rows import inputs_and_targets
from bnn_ppl.storage.arviz_versions import draws_of_groups, groups_of
from bnn_ppl.storage.chain_arrays import STATISTICS
from bnn_ppl.storage.inference_data import draws_of

if TYPE_CHECKING:
    import arviz
    import pandas

__all__ = ["divergence_from_prior", "moments", "pruned", "pruning_curve", "signal_to_noise"]

SHARES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)


def pruned(
    posterior: Posterior, draws: "arviz.InferenceData", share: float, by: str = "signal_to_noise"
) -> "arviz.InferenceData":
    """Delete a share of each chain's weights: those with the lowest scores become 0 in its draws.

    Weights are the entries of all sites with more than one entry and support on all real numbers:
    kernels and biases alike, but neither a learnt noise nor a prior's scales. They are ranked
    together across layers (Graves, 2011; Blundell et al., 2015, section 5).

    Parameters
    ----------
    posterior, draws
        As for :func:`bnn_ppl.function_draws`.
    share
        Share of the weights, from 0 to below 1; their number is rounded.
    by
        "signal_to_noise" or "kl", see `divergence_from_prior`. Among equal scores, weights of
        earlier sites are deleted first.

    Returns
    -------
    arviz.InferenceData
        The same draws, in memory. Of the group ``fitted``, which no longer describes them, only the
        mean is left, about which draws of :func:`bnn_ppl.laplace` predict, 0 at the same weights.

    Raises
    ------
    ValueError
        If the share is out of range, the score is unknown, the draws lack a site, or there is a
        single draw.
    """
    _check_shares([share])
    return _without(draws, _lowest(_scores(posterior, draws, by), share), share, by)


def pruning_curve(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    shares: Sequence[float] = SHARES,
    by: str = "signal_to_noise",
    *,
    batch_size: int | None = None,
    scale: float = 1.0,
) -> "pandas.DataFrame":
    """Score the Bayesian model average after deleting shares of the weights.

    Parameters
    ----------
    posterior, draws, by
        As in `pruned`.
    data
        A pair (x, y) of rows to predict, as for :func:`bnn_ppl.predict`.
    shares
        Shares of the weights to delete, each from 0 to below 1.
    batch_size
        Rows at a time; all at once by default.
    scale
        What regression targets were divided by; scores are in original units.

    Returns
    -------
    pandas.DataFrame
        One row per share: ``share``; ``num_weights``, the number left in a chain; ``error``
        (1 - accuracy) for classification or ``rmse`` for regression; and ``nll`` (nats per row).
        Of several observed sites, y a dict, the joint ``nll`` and each site's, ``label: error``.

    Raises
    ------
    ValueError
        As for `pruned` and :func:`bnn_ppl.predict`.
    """
    import pandas as pd

    _check_shares(shares)
    x, y = _scored_rows(posterior, data)
    if isinstance(y, Mapping) and np.any(np.asarray(scale) != 1):
        raise ValueError("got scale= of several observed sites, expected 1: scale each site's")
    scores = _scores(posterior, draws, by)
    labels, rows = labels_of(posterior, y), []
    for share in shares:
        gone = _lowest(scores, share)
        left = _without(draws, gone, share, by)
        prediction = predict(posterior, left, (x, labels), batch_size=batch_size)
        prediction = prediction.drop_vars("class", errors="ignore")  # metrics take the numbers
        num_left = sum(int(np.sum(~lost[0])) for lost in gone.values())
        rows.append({"share": share, "num_weights": num_left, **_costs(prediction, y, scale)})
    return pd.DataFrame(rows)


def _scored_rows(posterior: Posterior, data: Any) -> tuple[Any, Any]:
    """Give x and y; of several observed sites y is a dict by site."""
    targets = posterior.rows.targets
    if targets is None:
        return rows_to_score(posterior, data)
    x, y = inputs_and_targets(data, posterior.rows.examples[0])
    if y is None:
        raise ValueError("got rows without y, expected a pair (x, y): give y to score")
    return x, y if isinstance(y, Mapping) else targets.unpacked(y)


def _check_shares(shares: Sequence[float]) -> None:
    for share in shares:
        if not 0 <= share < 1:
            raise ValueError(f"got share={share}, expected from 0 to below 1; 95 % is share=0.95")


def _scores(posterior: Posterior, draws: "arviz.InferenceData", by: str) -> Arrays:
    if by not in ("signal_to_noise", "kl"):
        raise ValueError(f"got by={by!r}, expected 'signal_to_noise' or 'kl'")
    if by == "kl":
        scores = divergence_from_prior(posterior, draws)
    else:
        found = signal_to_noise(draws)
        scores = {site: found[site] for site in real_sites(posterior, draws)}
    return {site: score for site, score in scores.items() if score[0].size > 1}


def _lowest(scores: Arrays, share: float) -> Arrays:
    """Mask of the lowest share of each chain's scores over all sites, by site (chain, ...)."""
    flat = np.concatenate([score.reshape(len(score), -1) for score in scores.values()], axis=1)
    lowest = np.argsort(flat, axis=1, kind="stable")[:, : round(share * flat.shape[1])]
    gone = np.zeros(flat.shape, bool)
    np.put_along_axis(gone, lowest, True, axis=1)
    ends = np.cumsum([score[0].size for score in scores.values()])[:-1]
    parts = np.split(gone, ends, axis=1)
    return {
        site: part.reshape(score.shape)
        for (site, score), part in zip(scores.items(), parts, strict=True)
    }


def _without(
    draws: "arviz.InferenceData", gone: Arrays, share: float, by: str
) -> "arviz.InferenceData":
    values = draws_of(draws, list(gone))
    left = {
        site: found.copy(data=np.where(gone[site][:, None], 0, found.values))
        for site, found in values.items()
    }
    groups = groups_of(draws) | {"posterior": draws["posterior"].assign(left)}
    groups.pop(STATISTICS, None)  # of the network with all weights: predictions take them anew
    fitted: Any = groups.pop("fitted", {})
    # Weights that are real numbers are their own positions.
    means = {
        name: mean.where(~gone[site], 0) if (site := name.removesuffix(".loc")) in gone else mean
        for name, mean in fitted.items()
        if name.endswith(".loc")
    }
    if means and made_for(draws) == "linearised":
        groups["fitted"] = fitted.drop_vars(set(fitted) - set(means)).assign(means)
    return draws_of_groups(groups, {**draws.attrs, "pruned": share, "pruned_by": by})


def _costs(prediction: Any, y: Any, scale: float) -> dict[str, float]:
    if isinstance(y, Mapping):
        found = {"nll": -float(prediction["log_prob"].mean())}
        for site, values in y.items():
            own = _costs(*known_rows(of_one_site(prediction, site), values), scale)
            found |= {f"{site}: {name}": value for name, value in own.items()}
        return found
    if "probs" in prediction:
        error = {"error": 1 - metrics.accuracy(prediction, y)}
    else:
        error = {"rmse": metrics.rmse(prediction, y, scale=scale)}
    return error | {"nll": metrics.nll(prediction, y, scale=scale)}
