"""Which weights matter, by what a posterior says of each, and what deleting the others costs."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.predict import predict
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.inference_data import draws_of, in_blocks, sites_of, weights_of

if TYPE_CHECKING:
    import arviz
    import pandas

Arrays = dict[str, np.ndarray]

SHARES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)


def moments(draws: "arviz.InferenceData") -> tuple[Arrays, Arrays]:
    """Mean and standard deviation of each weight over the draws of each chain, in double precision.

    Each chain for itself: chains of a network go to modes with other hidden units in a weight's
    place. Those of the group ``fitted`` (``.loc`` and ``.scale``, in unconstrained space) instead
    where it has a site: they are exact. (For :func:`bnn_ppl.swag` they are the diagonal half's.)
    Draws stream through, a block at a time, and weigh what their ``log_weight`` says, as in
    :func:`bnn_ppl.predict`.

    Parameters
    ----------
    draws
        From :func:`bnn_ppl.run`.

    Returns
    -------
    dict of str to numpy.ndarray, twice
        By recorded site, (chain, ...).

    Raises
    ------
    ValueError
        If there are no draws.
    """
    sites = draws_of(draws, list(map(str, draws["posterior"].data_vars)))
    known = _fitted(draws, sites)
    rest = {site: values for site, values in sites.items() if site not in known}
    pairs = known | (_from_draws(rest, weights_of(draws)) if rest else {})
    means, sds = ({site: pairs[site][i] for site in sites} for i in range(2))
    return means, sds


def signal_to_noise(draws: "arviz.InferenceData") -> Arrays:
    """Give ``abs(mean) / sd`` of each weight (Graves, 2011; Blundell et al., 2015, section 5).

    Parameters
    ----------
    draws
        From :func:`bnn_ppl.run`: several draws a chain, or a fitted distribution's.

    Returns
    -------
    dict of str to numpy.ndarray
        By recorded site, (chain, ...); of `moments`. Infinite where all draws are equal, but
        0 where all are 0.

    Raises
    ------
    ValueError
        If there is one draw alone, which has no spread, or draws are of :func:`bnn_ppl.mc_dropout`,
        whose ratios follow its rate and not the data.
    """
    if draws.attrs.get("method") == "mc_dropout":
        raise ValueError(
            "got draws of mc_dropout, whose signal-to-noise is one number for each rate, expected "
            "a method that learns a spread for each weight: use mfvi, vogn or ivon"
        )
    means, sds = _spread(draws)
    return {site: _ratio(np.abs(means[site]), sds[site]) for site in means}


def divergence_from_prior(posterior: Posterior, draws: "arviz.InferenceData") -> Arrays:
    r"""Give what the data told of each weight, in nats: its divergence from the prior.

    .. math:: \mathrm{KL}(N(m, s^2) \| N(0, \sigma^2)) =
        \log \frac \sigma s + \frac{s^2 + m^2}{2 \sigma^2} - \frac 1 2

    with m and s of `moments` and :math:`\sigma` the site's ``posterior.prior_std``: exact where
    posterior and prior are independent normal distributions, the prior's about 0.

    Parameters
    ----------
    posterior
        The one that was sampled.
    draws
        From :func:`bnn_ppl.run`: several draws a chain, or a fitted distribution's.

    Returns
    -------
    dict of str to numpy.ndarray
        By site whose support is all real numbers, (chain, ...). Infinite where all draws are
        equal.

    Raises
    ------
    ValueError
        If the draws lack a site, or there is one draw alone.
    """
    means, sds = _spread(draws)
    return {
        site: _divergence(means[site], sds[site], float(posterior.prior_std[site]))
        for site in _real_sites(posterior, draws)
    }


def pruned(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    share: float,
    by: str = "signal_to_noise",
) -> "arviz.InferenceData":
    """Delete a share of each chain's weights: those with the lowest score are 0 in its draws.

    A weight is any entry of a site with more than one whose support is all real numbers: kernels
    and biases alike, but neither a learnt noise nor a prior's scales. All compete, across layers
    (Graves, 2011; Blundell et al., 2015, section 5).

    Parameters
    ----------
    posterior
        The one that was sampled.
    draws
        From :func:`bnn_ppl.run`.
    share
        Of the weights, from 0 to below 1; their number is rounded.
    by
        "signal_to_noise" or "kl", see `divergence_from_prior`. Of weights with equal scores those
        of earlier sites go first.

    Returns
    -------
    arviz.InferenceData
        The same draws, in memory, without the group ``fitted``, which they no longer come from.

    Raises
    ------
    ValueError
        If the share is out of range, the score unknown, the draws lack a site, or there is one draw
        alone.
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
) -> "pandas.DataFrame":
    """Say what deleting weights costs the Bayesian model average on some rows.

    Parameters
    ----------
    posterior, draws, by
        As in `pruned`.
    data
        A pair (x, y) of rows to predict, y in the units the model saw.
    shares
        Of the weights that are deleted, each from 0 to below 1.
    batch_size
        Rows at a time; all at once by default.

    Returns
    -------
    pandas.DataFrame
        A row a share: ``share``, ``num_weights`` (left in a chain), ``error`` (1 - accuracy) of
        classes or ``rmse``, and ``nll`` (nats a row), in the units the model saw.

    Raises
    ------
    ValueError
        As `pruned` and :func:`bnn_ppl.predict` do.
    """
    import pandas as pd

    _check_shares(shares)
    scores = _scores(posterior, draws, by)
    rows = []
    for share in shares:
        gone = _lowest(scores, share)
        left = _without(draws, gone, share, by)
        prediction = predict(posterior, left, data, batch_size=batch_size)
        num_left = sum(int(np.sum(~lost[0])) for lost in gone.values())
        rows.append({"share": share, "num_weights": num_left, **_costs(prediction, data[1])})
    return pd.DataFrame(rows)


# --- of each weight


def _fitted(draws: Any, sites: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if "fitted" not in draws.groups():
        return {}
    fitted, names = draws.fitted, {site: (f"{site}.loc", f"{site}.scale") for site in sites}
    return {
        site: (fitted[loc].values.astype(float), fitted[scale].values.astype(float))
        for site, (loc, scale) in names.items()
        if loc in fitted and scale in fitted
    }


def _from_draws(sites: Any, weights: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    chains = [
        _of_chain({site: values[i : i + 1] for site, values in sites.items()}, weights[i : i + 1])
        for i in range(len(weights))
    ]
    return {
        site: (
            np.stack([chain[site][0] for chain in chains]),
            np.stack([chain[site][1] for chain in chains]),
        )
        for site in sites
    }


def _of_chain(sites: Any, weights: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    # Sums of differences from the first draw: as they are of the size of the spread, none cancels.
    first = {site: values[0, 0].values.astype(float) for site, values in sites.items()}
    sums = {site: [np.zeros_like(start), np.zeros_like(start)] for site, start in first.items()}
    for block, share in in_blocks(sites, weights):
        for site, values in block.items():
            change = values - first[site]
            sums[site][0] += np.tensordot(share, change, 1)
            sums[site][1] += np.tensordot(share, change**2, 1)
    pairs = {}
    for site, start in first.items():
        shift, square = (total / weights.sum() for total in sums[site])
        pairs[site] = start + shift, np.sqrt(np.maximum(square - shift**2, 0.0))
    return pairs


def _spread(draws: "arviz.InferenceData") -> tuple[Arrays, Arrays]:
    means, sds = moments(draws)
    if not any(np.any(sd > 0) for sd in sds.values()):
        num = math.prod(draws["posterior"].sizes[axis] for axis in ("chain", "draw"))
        raise ValueError(
            f"got draws ({num}) that are all equal, expected a spread: use more draws or chains, "
            "or a method that fits a distribution"
        )
    return means, sds


def _ratio(size: np.ndarray, sd: np.ndarray) -> np.ndarray:
    certain = np.where(size > 0, np.inf, 0.0)
    return np.divide(size, sd, out=certain, where=sd > 0)


def _divergence(mean: np.ndarray, sd: np.ndarray, prior_sd: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        log_ratio = math.log(prior_sd) - np.log(sd)
    return log_ratio + (sd**2 + mean**2) / (2 * prior_sd**2) - 0.5


def _real_sites(posterior: Posterior, draws: "arviz.InferenceData") -> list[str]:
    """Sites whose support is all real numbers: those that unconstraining leaves as they are."""
    sites = sites_of(posterior, draws)
    values = {site: jnp.asarray(found[0, 0].values, float) for site, found in sites.items()}
    one_row = jax.tree.map(lambda leaf: leaf[:1], posterior.data)
    position = jax.jit(posterior.unconstrain)(values, one_row)
    return [site for site in sites if np.array_equal(position[site], values[site])]


# --- deleting


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
        scores = {site: found[site] for site in _real_sites(posterior, draws)}
    return {site: score for site, score in scores.items() if score[0].size > 1}


def _lowest(scores: Arrays, share: float) -> Arrays:
    """Where the lowest share of a chain's scores together is, by site, (chain, ...)."""
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
    import arviz

    values = draws_of(draws, list(gone))
    left = {
        site: found.copy(data=np.where(gone[site][:, None], 0, found.values))
        for site, found in values.items()
    }
    groups: Any = {name: draws[name] for name in draws.groups() if name != "fitted"}
    groups["posterior"] = draws["posterior"].assign(left)
    return arviz.InferenceData(attrs={**draws.attrs, "pruned": share, "pruned_by": by}, **groups)


def _costs(prediction: Any, y: Any) -> dict[str, float]:
    if "probs" in prediction:
        error = {"error": 1 - metrics.accuracy(prediction, y)}
    else:
        error = {"rmse": metrics.rmse(prediction, y)}
    return error | {"nll": metrics.nll(prediction, y)}
