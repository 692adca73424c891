"""Modes up to symmetry: hidden units matched between chains, and the way from chain to chain."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from bnn_ppl.analysis.weight_space.surface import corner
from bnn_ppl.analysis.weight_space.unit_groups import Place, Units, unit_groups
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_rows
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.arviz_versions import groups_of
from bnn_ppl.storage.chain_arrays import STATISTICS
from bnn_ppl.storage.inference_data import sites_of, with_groups, with_points_of

if TYPE_CHECKING:
    import arviz
    import xarray

__all__ = ["barrier", "hidden_units", "matched"]

Arrays = dict[str, np.ndarray]
Change = tuple[Units, np.ndarray, np.ndarray]  # unit order[i] takes the place of i, times a sign

_ROWS_TO_CHECK = 8
_TOLERANCE = 1e-4  # of log-densities in single precision
_MOST_SWEEPS = 100
_NUM_STARTS = 20  # units as they are, then renamed at random: the matching is a local search


def hidden_units(posterior: Posterior) -> list[Units]:
    """Find the groups of hidden units that can be permuted without changing the posterior.

    They are read off the traced log-density (of any network, residual and convolutional ones among
    them) and checked: a random permutation of each must leave the log-density unchanged.

    Parameters
    ----------
    posterior
        From :func:`bnn_ppl.condition`.

    Returns
    -------
    list of Units
        ``size``, the number of units, and ``places``, the axes of sites that their weights lie
        along: of the kernel and bias before them and the kernel behind. ``signed`` says whether a
        unit's sign may change too (odd activations, such as tanh).
    """
    check_arguments(posterior=posterior)
    rows = jax.tree.map(lambda leaf: leaf[:_ROWS_TO_CHECK], posterior.rows.examples)
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    rng = np.random.default_rng(0)
    position = {
        site: rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype) for site, leaf in shapes.items()
    }
    found = unit_groups(posterior.logdensity, position, rows)

    @jax.jit
    def terms(position: Any, rows: Any) -> tuple[Any, jax.Array]:
        found = posterior.density.terms(position, rows)
        return jax.tree.map(jnp.sum, found.log_priors), found.log_likelihood

    def unchanged(units: Units, order: np.ndarray, signs: np.ndarray) -> bool:
        moved = _rearranged(position, units, order, signs)
        with products_in(posterior.density.precision):
            before, after = terms(position, rows), terms(moved, rows)
        pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        return all(np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE) for a, b in pairs)

    kept = []
    for units in found:
        same, reversed_ = np.arange(units.size), np.arange(units.size)[::-1]
        if unchanged(units, reversed_, np.ones(units.size)):
            signs = np.where(rng.random(units.size) < 0.5, -1.0, 1.0)
            signs[0] = -1.0
            kept.append(units._replace(signed=unchanged(units, same, signs)))
    return kept


def matched(posterior: Posterior, draws: "arviz.InferenceData") -> "arviz.InferenceData":
    r"""Rename hidden units so that the chains agree as far as they can.

    Permuting hidden units, or changing the sign of a unit of an odd activation, leaves a network's
    function and its posterior density as they were, so the R-hat of weights says nothing of chains
    that differ in these names alone. Here the units of each chain are matched to those of the first
    (weight matching; Ainsworth, Hayase & Srinivasa, 2023, algorithm 1): group after group of units
    takes the permutation that maximises

    .. math:: \sum_s \sigma_s^{-2} \langle \bar w^{(1)}_s, \bar w^{(c)}_s \rangle,

    a linear assignment, until none of them changes; the best of 20 starts is taken. The means are
    over draws, and :math:`\sigma_s` is the prior's standard deviation of site s. One renaming
    serves all draws of a chain. With several hidden layers the optimum found is a local one.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`. All are read into memory.

    Returns
    -------
    arviz.InferenceData
        The same draws with units renamed. ``bnn.diagnostics.rhat`` and ``ess`` of them are those up
        to symmetry; predictions with them are those with `draws`. In the group ``fitted`` means and
        scales are renamed too; covariances, which are of the units as they were, are left out, and
        so are stored statistics of batch normalisation, which predictions then compute anew.

    Raises
    ------
    ValueError
        If the posterior has no hidden units that can be permuted, or the draws are of another one.
    """
    check_arguments(posterior=posterior, draws=draws)
    shared = posterior.sites.points
    posterior = with_points_of(draws, posterior)
    groups = hidden_units(posterior)
    if not groups:
        points = " beside points, which chains share" if shared else ""
        raise ValueError(
            f"got a posterior without hidden units that can be permuted{points}, expected a "
            "network with hidden layers and a prior that treats their units alike"
        )
    sites = sites_of(posterior, draws)
    values = {site: np.array(array.values) for site, array in sites.items()}
    fitted: Any = groups_of(draws).get("fitted", {})
    # What was fitted by weight, as means and scales are, or by chain alone.
    by_weight = [n for n, own in fitted.items() if n.endswith((".loc", ".scale")) or own.ndim < 2]
    of_fit = {name: np.array(fitted[name]) for name in by_weight}
    means = {site: array.mean(1) for site, array in values.items()}
    precisions = {site: float(std) ** -2 for site, std in posterior.prior.std.items()}
    reference = {site: mean[0] for site, mean in means.items()}
    for chain in range(1, len(next(iter(values.values())))):
        own = {site: mean[chain] for site, mean in means.items()}
        for units, order, signs in _renaming(groups, reference, own, precisions):
            for place in units.places:
                # The draws' axis is before those of a site.
                moved = place._replace(axis=place.axis + 1)
                array = values[place.site][chain]
                values[place.site][chain] = _moved(array, moved, order, signs)
                for part, sign in (("loc", signs), ("scale", np.ones(len(signs)))):
                    if (own_fit := of_fit.get(f"{place.site}.{part}")) is not None:
                        own_fit[chain] = _moved(own_fit[chain], place, order, sign)
    renamed = {site: array.copy(data=values[site]) for site, array in sites.items()}
    changed = {"posterior": draws["posterior"].assign(renamed), STATISTICS: None}
    if len(fitted):
        kept = {name: fitted[name].copy(data=own) for name, own in of_fit.items()}
        changed["fitted"] = fitted[[*kept]].assign(kept)
    return with_groups(draws, **changed)


def barrier(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any = None,
    *,
    chains: tuple[int, int] = (0, 1),
    num_points: int = 25,
) -> "xarray.Dataset":
    """Evaluate the loss on the straight line between the last draws of two chains.

    A barrier between two chains that vanishes once their units are matched (:func:`matched`) means
    that they are in one mode up to symmetry (Entezari et al., 2022).

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`, or :func:`matched`.
    data
        A pair (x, y); by default the training rows.
    chains
        The two chains.
    num_points
        Points on the line, both ends among them; 3 or more.

    Returns
    -------
    xarray.Dataset
        By ``share`` (0 at the first chain, 1 at the second): ``nll``, the mean negative
        log-likelihood of a row in nats. ``barrier``: the most by which it exceeds the straight line
        between its values at the ends.

    Raises
    ------
    ValueError
        If a chain does not exist, `num_points` is below 3, or data or draws do not fit.
    """
    import xarray

    check_arguments(posterior=posterior, draws=draws)
    check_count("num_points", num_points, least=3)
    num_chains = draws["posterior"].sizes["chain"]
    if not all(0 <= chain < num_chains for chain in chains) or len(chains) != 2:
        raise ValueError(
            f"got chains={chains}, expected two chains from 0 to {num_chains - 1}: choose others"
        )
    # The batch of all rows of a stream is what reads them chunk by chunk.
    rows = posterior.rows.full_batch if data is None else tuple(checked_rows(posterior, data))
    num_rows = posterior.num_rows if data is None else len(rows[1])
    ends = [corner(posterior, draws, chain) for chain in chains]
    shares = np.linspace(0, 1, num_points)

    @jax.jit
    def nll(shares: jax.Array, ends: Any, rows: Any) -> jax.Array:
        def at(share: jax.Array) -> jax.Array:
            between = jax.tree.map(lambda a, b: (1 - share) * a + share * b, *ends)
            return -posterior.log_likelihood(between, rows).sum() / num_rows

        return jax.lax.map(at, shares)

    with products_in(posterior.density.precision):
        found = np.asarray(nll(jnp.asarray(shares, float), tuple(ends), rows), float)
    excess = found - (1 - shares) * found[0] - shares * found[-1]
    return xarray.Dataset(
        {"nll": ("share", found), "barrier": excess.max()}, coords={"share": shares}
    )


def _rearranged(arrays: Arrays, units: Units, order: np.ndarray, signs: np.ndarray) -> Arrays:
    arrays = dict(arrays)
    for place in units.places:
        arrays[place.site] = _moved(arrays[place.site], place, order, signs)
    return arrays


def _moved(array: np.ndarray, place: Place, order: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Put unit ``order[i]`` where unit i was, times a sign."""
    starts = len(order) * np.arange(place.repeats)[:, None]
    shape = [1] * array.ndim
    shape[place.axis] = -1
    sign = np.tile(signs, place.repeats).reshape(shape).astype(array.dtype)
    return sign * np.take(array, (starts + order).ravel(), axis=place.axis)


def _renaming(
    groups: list[Units], reference: Arrays, own: Arrays, precisions: dict[str, float]
) -> list[Change]:
    """Give the changes, in their order, that bring a chain's weights closest to those given."""
    rng = np.random.default_rng(0)
    found = []
    for start in range(_NUM_STARTS):
        names = [rng.permutation(units.size) for units in groups] if start else []
        first = [
            (units, order, np.ones(units.size)) for units, order in zip(groups, names, strict=False)
        ]
        renamed = own
        for change in first:
            renamed = _rearranged(renamed, *change)
        changes, renamed = _ascended(groups, reference, renamed, precisions)
        found.append((_overlap(reference, renamed, precisions), start, [*first, *changes]))
    return max(found)[2]


def _ascended(
    groups: list[Units], reference: Arrays, own: Arrays, precisions: dict[str, float]
) -> tuple[list[Change], Arrays]:
    """Match group after group until none of them changes."""
    changes = []
    for _ in range(_MOST_SWEEPS):
        changed = False
        for units in groups:
            order, signs = _assigned(units, reference, own, precisions)
            moved = _rearranged(own, units, order, signs)
            gain = sum(
                precisions[site] * np.vdot(reference[site], moved[site] - own[site])
                for site in {place.site for place in units.places}
            )
            if gain > 1e-6 * abs(_overlap(reference, own, precisions)):
                changes.append((units, order, signs))
                own, changed = moved, True
        if not changed:
            break
    return changes, own


def _overlap(reference: Arrays, own: Arrays, precisions: dict[str, float]) -> float:
    return sum(precisions[site] * float(np.vdot(reference[site], own[site])) for site in own)


def _assigned(
    units: Units, reference: Arrays, own: Arrays, precisions: dict[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Match units by their weights, all other groups as they are."""
    similarity = np.zeros((units.size, units.size))
    for place in units.places:
        left, right = (
            _by_unit(arrays[place.site], place, units.size) for arrays in (reference, own)
        )
        similarity += precisions[place.site] * (left @ right.T)
    score = np.abs(similarity) if units.signed else similarity
    _, order = scipy.optimize.linear_sum_assignment(score, maximize=True)
    signs = np.ones(units.size)
    if units.signed:
        signs = np.where(similarity[np.arange(units.size), order] < 0, -1.0, 1.0)
    return order, signs


def _by_unit(array: np.ndarray, place: Place, size: int) -> np.ndarray:
    """Arrange the weights of a site by unit: (units, rest)."""
    first = np.moveaxis(array, place.axis, 0).astype(float)
    first = first.reshape(place.repeats, size, -1)
    return np.swapaxes(first, 0, 1).reshape(size, -1)
