"""The posterior on the plane through three weight vectors."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bnn_ppl.analysis.weight_space.plane import grid_lines, shares_of_corners, triangle_of
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.features import rows_with_features
from bnn_ppl.model.rows.streamed_rows import StreamedRows
from bnn_ppl.model.trace import Batch, Position
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.machines.devices import (
    by_chain,
    by_row,
    chain_mesh,
    everywhere,
    over_chains,
    products_in,
)
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.storage.inference_data import sites_of, with_points_of

if TYPE_CHECKING:
    import arviz
    import xarray

Array = jax.Array


def surface(
    posterior: Posterior,
    corners: Mapping[str, Position],
    *,
    num_points: int = 41,
    margin: float = 0.25,
    mesh: Mesh | None = None,
    progress: bool | Literal["json"] = True,
) -> "xarray.Dataset":
    r"""Log-density, log-likelihood and log-prior on the plane through three positions.

    The plane of Garipov et al. (2018, figure 1) and Izmailov et al. (2021), in unconstrained space.
    With corners :math:`w_1, w_2, w_3` its points are

    .. math:: w(u, v) = w_1 + u \hat u + v \hat v, \quad
        \hat u = \frac{w_2 - w_1}{\|w_2 - w_1\|}, \quad
        \hat v \propto (w_3 - w_1) - \langle w_3 - w_1, \hat u \rangle \hat u,

    so that distances on the plane are distances between weights. Points are spread over the
    devices; each device holds the weights of one point at a time, so memory does not grow with the
    number of points.

    Parameters
    ----------
    posterior
        The posterior whose density to evaluate.
    corners
        Three positions by name, unconstrained as for the functions of `posterior`, and not on one
        line: from :func:`corners`, or any others.
    num_points
        Number of evenly spaced grid lines along each axis, 2 or more. Lines through the corners
        are added, so that every corner is a grid point.
    margin
        Width of the strip around the triangle, as a share of the longer side of the rectangle that
        encloses it; 0 or more.
    mesh
        Devices, as in :func:`bnn_ppl.run`: points are spread over the axis "chain", rows of the
        data over "data". By default all devices share the points.
    progress
        As in :func:`bnn_ppl.run`.

    Returns
    -------
    xarray.Dataset
        Coordinates ``u`` and ``v`` (Euclidean distances in unconstrained space, from the first
        corner) and ``corner`` (names). By (v, u), in nats: ``log_density``, unnormalised, tempered
        as the posterior is, with the log-Jacobian of constrained sites; ``log_likelihood`` of all
        rows and ``log_prior`` of the constrained values, both untempered. ``corners``
        (corner, axis): where the corners lie. The values at the corners are
        ``surface.sel(u=surface.corners.sel(axis="u"), v=surface.corners.sel(axis="v"))``.

    Raises
    ------
    ValueError
        If there are not three corners, they lie on one line or differ from the posterior in sites
        or shapes, the prior leaves its scale open, a number is out of range, the mesh has other
        axes, or its devices share the rows of a stream.
    """
    check_count("num_points", num_points, least=2)
    if not 0 <= margin < math.inf:
        raise ValueError(f"got margin={margin}, expected a share of 0 or more; 0.25 is usual")
    if posterior.prior.open_scale is not None:
        raise ValueError(
            "got a posterior whose prior leaves its scale open, expected the scale that the run "
            "found: pass posterior.open_scale.hold(draws.attrs['prior_scale'])"
        )
    positions = _three_positions(posterior, corners)
    triangle = triangle_of(positions)
    u, v = grid_lines(triangle, num_points, margin)
    mesh = chain_mesh(jax.device_count() if mesh is None else len(mesh.devices), mesh)
    _check_sharing(posterior, mesh)
    values = _on_devices(posterior, positions, shares_of_corners(u, v, triangle), mesh, progress)
    return _dataset(posterior, list(corners), triangle, u, v, values)


def corners(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    which: Sequence[tuple[int, int]] | None = None,
) -> dict[str, Position]:
    """Three draws of a run as corners of a `surface`.

    Parameters
    ----------
    posterior, draws
        As for :func:`bnn_ppl.function_draws`.
    which
        Three pairs (chain, draw); negative numbers count from the end. By default the last draw of
        each of the first three chains, or the first, middle and last draw of the first chain if
        there are fewer than three.

    Returns
    -------
    dict of str to position
        Named by what distinguishes them: chain, draw or both.

    Raises
    ------
    ValueError
        If there are too few draws, a chain or draw does not exist, there are not three pairs, or
        the draws lack a site.
    """
    sizes = draws["posterior"].sizes
    chosen = _default_corners(sizes["chain"], sizes["draw"]) if which is None else list(which)
    if len(chosen) != 3:
        raise ValueError(f"got which={which!r}, expected three pairs (chain, draw)")
    positions = [corner(posterior, draws, *pair) for pair in chosen]
    absolute = [(chain % sizes["chain"], draw % sizes["draw"]) for chain, draw in chosen]
    return dict(zip(_names(absolute), positions, strict=True))


def corner(
    posterior: Posterior, draws: "arviz.InferenceData", chain: int = 0, draw: int = -1
) -> Position:
    """One draw of a run as a position, for the `corners` of a `surface` through several runs.

    Parameters
    ----------
    posterior
        The posterior that was sampled, or another of the same model.
    draws
        From :func:`bnn_ppl.run`.
    chain, draw
        Chain and draw numbers; negative numbers count from the end.

    Returns
    -------
    position
        In unconstrained space.

    Raises
    ------
    ValueError
        If that draw does not exist, or the draws lack a site.
    """
    held = with_points_of(draws, posterior)
    sites = sites_of(held, draws)
    for name, number in (("chain", chain), ("draw", draw)):
        count = draws["posterior"].sizes[name]
        if not -count <= number < count:
            raise ValueError(f"got {name} {number}, expected one from {-count} to {count - 1}")
    values = {site: jnp.asarray(found[chain, draw].values) for site, found in sites.items()}
    # A posterior with points has them among its sites: those held are the same at each corner.
    values |= {site: held.sites.held[site] for site in posterior.sites.points}
    return jax.jit(posterior.unconstrain)(values, posterior.rows.examples)


# --- corners


def _default_corners(num_chains: int, num_draws: int) -> list[tuple[int, int]]:
    if num_chains >= 3:
        return [(chain, -1) for chain in range(3)]
    if num_draws >= 3:
        return [(0, 0), (0, num_draws // 2), (0, -1)]
    raise ValueError(
        f"got {num_chains} chains of {num_draws} draws, expected three of either: use more draws, "
        "or give a corner from each of several runs"
    )


def _names(pairs: list[tuple[int, int]]) -> list[str]:
    chains, draws = map(set, zip(*pairs, strict=True))
    if len(set(pairs)) < 3:
        raise ValueError(f"got the draws (chain, draw) {pairs}, expected three different ones")
    if len(draws) == 1:
        return [f"chain {chain}" for chain, _ in pairs]
    if len(chains) == 1:
        return [f"draw {draw}" for _, draw in pairs]
    return [f"chain {chain}, draw {draw}" for chain, draw in pairs]


# --- on the devices


def _on_devices(
    posterior: Posterior,
    positions: tuple[Position, ...],
    shares: np.ndarray,
    mesh: Mesh,
    progress: bool | Literal["json"],
) -> dict[str, np.ndarray]:
    """Values (points,), one point per device at a time."""
    num_points, num_at_once = len(shares), mesh.shape["chain"]
    num_blocks = math.ceil(num_points / num_at_once)
    # The last block is filled up with repeated points.
    blocks = np.resize(shares.astype(jnp.result_type(float)), (num_blocks, num_at_once, 2))
    values_at = jax.jit(over_chains(_values_at(posterior), mesh, num_mapped=1))
    shared = everywhere(positions, mesh), _all_rows(posterior, mesh)
    found: list[dict[str, np.ndarray]] = []
    highest = -math.inf
    with products_in(posterior.density.precision), reporting(progress, num_points) as report:
        for block in blocks:
            values = values_at(by_chain(block, mesh), *shared)
            found.append(multihost_utils.process_allgather(values, tiled=True))
            highest = float(np.fmax(highest, found[-1]["log_density"].max()))
            done = min(len(found) * num_at_once, num_points)
            report("points of the plane", done, {"highest": highest})
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:num_points], *found)


def _all_rows(posterior: Posterior, mesh: Mesh) -> Batch:
    """Put all rows on the devices, or what reads those of a stream chunk by chunk."""
    rows = posterior.rows.full_batch
    if isinstance(rows, StreamedRows):
        return everywhere(rows, mesh)
    return by_row(rows_with_features(posterior, mesh.shape["data"]), mesh)


def _values_at(posterior: Posterior) -> Callable[..., dict[str, Array]]:
    def values_at(shares: Array, positions: tuple[Position, ...], batch: Batch) -> dict[str, Array]:
        second, third = shares
        first = 1 - second - third
        position = jax.tree.map(
            lambda one, two, three: first * one + second * two + third * three, *positions
        )
        terms = posterior.density.terms(position, batch)
        return {
            "log_density": posterior.density.total(terms, batch),
            "log_likelihood": jnp.sum(terms.log_likelihood),
            "log_prior": terms.log_prior,
        }

    return values_at


def _dataset(
    posterior: Posterior,
    names: list[str],
    triangle: np.ndarray,
    u: np.ndarray,
    v: np.ndarray,
    values: dict[str, np.ndarray],
) -> "xarray.Dataset":
    import xarray

    grids: dict[str, Any] = {
        name: (("v", "u"), value.reshape(len(v), len(u)), {"units": "nats"})
        for name, value in values.items()
    }
    return xarray.Dataset(
        grids | {"corners": (("corner", "axis"), triangle)},
        coords={"u": u, "v": v, "corner": names, "axis": ["u", "v"]},
        attrs={
            "temperature": posterior.density.temperature,
            "tempered": posterior.density.tempered,
            "num_weights": posterior.num_weights,
        },
    )


# --- bad input


def _check_sharing(posterior: Posterior, mesh: Mesh) -> None:
    shards = mesh.shape["data"]
    if shards > 1 and isinstance(posterior.rows.full_batch, StreamedRows):
        raise ValueError(
            f"got a mesh of {shards} devices that share rows for a stream, expected one device for "
            "each point: use a mesh of shape (points, 1)"
        )


def _three_positions(posterior: Posterior, corners: Mapping[str, Position]) -> tuple[Position, ...]:
    """Positions in the order of the corners, their sites in the order of the posterior."""
    if not isinstance(corners, Mapping) or len(corners) != 3:
        raise ValueError(
            f"got {len(corners)} corners in a {type(corners).__name__}, expected three positions "
            "by name: use bnn_ppl.surface.corners(posterior, draws)"
        )
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    expected = {site: leaf.shape for site, leaf in shapes.items()}
    for name, position in corners.items():
        got = {site: np.shape(leaf) for site, leaf in position.items()}
        if got != expected:
            differing = ", ".join(
                f"{site} {got.get(site, 'missing')}, not {expected.get(site, 'a site')}"
                for site in dict.fromkeys(itertools.chain(expected, got))
                if got.get(site) != expected.get(site)
            )
            raise ValueError(
                f"got the corner {name!r} with {differing}, expected the sites and shapes of the "
                "posterior: use draws of the same model"
            )
    return tuple(
        {site: jnp.asarray(position[site], float) for site in expected}
        for position in corners.values()
    )
