"""Inference in a subspace of the weights: along a path, random, or through a curve of modes."""

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.methods.ensembles.descent import descent
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.subspace import Plane, restricted
from bnn_ppl.model.trace import Array, Batch, Position, Terms
from bnn_ppl.runtime.checks import check_count, check_positive
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.sampling.run import run
from bnn_ppl.storage.inference_data import sites_of, with_points_of

if TYPE_CHECKING:
    import arviz

Kind = Literal["pca", "random", "curve"]

_USUAL_RANK = 5
_LEAST_SPREAD = 1e-5  # of a direction, over that of the widest: below it, rounding determines it
_CURVE_POINTS = 5  # where the loss along a curve is evaluated


def subspace(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    rank: int | None = None,
    kind: Kind = "pca",
    *,
    prior_std: float | None = None,
    key: Array | None = None,
) -> Posterior:
    r"""Restrict a posterior to a few directions of the weights, in which any method can sample.

    .. math:: w = \hat w + \sum_{k=1}^{K} z_k\, v_k

    over unconstrained positions w (Izmailov et al., 2019). What it gives is a posterior over z: its
    draws are values of all the sites of the model, and z beside them, so that they predict, compare
    and start other runs like any draws of the model::

        path = run(key, posterior, sgld(posterior))
        inside = subspace(posterior, path)
        draws = run(key, inside, nuts(inside), num_chains=4)
        predict(posterior, draws, data)

    Parameters
    ----------
    posterior
        From :func:`bnn_ppl.condition`.
    draws
        Draws of this model. For "pca" and "random" those of the first chain are the path, in order
        (``draws.isel(chain=[2])`` chooses another); for "curve" the last ones of the first two
        chains are the two points, such as members of an ensemble of :func:`bnn_ppl.descent`.
    rank
        Number K of directions; by default 5, or fewer if the path spans no more. A curve has 2.
    kind
        The directions, and the point :math:`\hat w` that they start from.

        - "pca": the mean of the path, and the K principal components of its M points, each of the
          length of their standard deviation along it, :math:`v_k = s_k u_k / \sqrt{M - 1}` with
          singular values :math:`s_k` and right singular vectors :math:`u_k` of the deviations from
          the mean. A path along which z has variance 1.
        - "random": the mean of the path, and K random directions of norm 1.
        - "curve": the plane of a curve of high density between two points :math:`w_0` and
          :math:`w_1`, which is found here: the bend :math:`\theta` of the quadratic Bézier curve
          that maximises the log-density averaged over the curve (Garipov et al., 2018, equations 2
          and 4). The mean of the two points, :math:`v_1 = (w_0 - w_1) / 2`, and
          :math:`v_2 = w_{1/2} - \hat w` to the middle of the curve.
    prior_std
        Standard deviation s of a prior :math:`z \sim N(0, s^2 I)` that replaces the model's, as in
        the paper. By default the prior is the model's own: the density of z is that of w, and the
        draws are those of the posterior given that w lies in the subspace.
    key
        Key for the random directions, or for training the bend; by default ``jax.random.key(0)``.

    Returns
    -------
    Posterior
        Over positions ``{"z": (K,)}``. ``constrain`` gives the sites' values and z, ``unconstrain``
        the z of the closest point of the subspace. Chains start at :math:`z \sim N(0, I)`.

    Raises
    ------
    TypeError
        If posterior or draws are of another type.
    ValueError
        If the draws lack a site or are of another model, all are equal, or span fewer directions
        than `rank`; if there are not two chains for a curve, or it joins them straight; if a
        number is out of range, or the posterior is itself restricted or has a site named z.

    Notes
    -----
    The temperature is that of `posterior`, 1 unless :func:`bnn_ppl.condition` is given another.
    With it and the model's prior nothing is left to choose. The paper tempers the likelihood alone,
    ``condition(..., temperature=T, tempered="likelihood")``, with T chosen on held-out rows.

    The average over the curve is Gauss-Legendre quadrature at 5 points, at each step of
    :func:`bnn_ppl.descent`, in place of one random point.
    """
    check_arguments(posterior=posterior, draws=draws)
    posterior = with_points_of(draws, posterior)
    _check(posterior, rank, kind, prior_std)
    key = jax.random.key(0) if key is None else key
    check_arguments(key=key)
    if kind == "curve":
        plane = _through_curve(key, posterior, draws)
    else:
        points = _positions(posterior, draws, chains=slice(0, 1), draws_of_each=slice(None))
        plane = _along_path(points, rank) if kind == "pca" else _random(key, points, rank)
    rank = len(jax.tree.leaves(plane.directions)[0])
    settings = {"kind": kind, "rank": rank, "prior_std": prior_std and float(prior_std)}
    return restricted(posterior, plane, prior_std, settings)


def _check(posterior: Posterior, rank: int | None, kind: str, prior_std: float | None) -> None:
    if kind not in get_args(Kind):
        known = ", ".join(map(repr, get_args(Kind)))
        raise ValueError(f"got kind={kind!r}, expected one of {known}")
    if rank is not None:
        check_count("rank", rank)
    if kind == "curve" and rank not in (None, 2):
        raise ValueError(f"got rank={rank} for a curve, expected 2, that of its plane: drop it")
    if prior_std is not None:
        check_positive("prior_std", prior_std)
    if posterior.sites.subspace is not None:
        raise ValueError(
            "got a posterior that is restricted to a subspace, expected one of all weights: pass "
            "what condition(model, data) gave"
        )


def _positions(
    posterior: Posterior, draws: Any, chains: slice, draws_of_each: slice
) -> dict[str, np.ndarray]:
    """Give unconstrained positions by site (points, ...), in double precision."""
    sites = sites_of(posterior, draws)
    values = {site: found[chains, draws_of_each].values for site, found in sites.items()}
    points = {site: jnp.asarray(v.reshape(-1, *v.shape[2:]), float) for site, v in values.items()}
    with products_in(posterior.density.precision):
        found = jax.jit(jax.vmap(posterior.unconstrain, (0, None)))(points, posterior.rows.examples)
    return {site: np.asarray(points, np.float64) for site, points in found.items()}


# --- directions


def _along_path(points: dict[str, np.ndarray], rank: int | None) -> Plane:
    """Give the mean of the points and their principal components."""
    flat, shapes = _flat(points)
    centre = flat.mean(0)
    _, sizes, vectors = np.linalg.svd(flat - centre, full_matrices=False)
    scale = np.abs(flat).max() * np.sqrt(flat.size)
    spanned = int(np.sum(sizes > max(_LEAST_SPREAD * sizes[0], 1e-7 * scale)))
    if not spanned:
        raise ValueError(
            "got draws that are all equal, expected those of a path: take them from a sampler, as "
            "run(key, posterior, sgld(posterior)) gives them"
        )
    if rank is not None and rank > spanned:
        raise ValueError(
            f"got rank={rank} for a path of {len(flat)} draws, which spans {spanned} directions, "
            "expected at most as many: record more draws, or lower rank"
        )
    rank = min(_USUAL_RANK, spanned) if rank is None else rank
    vectors = vectors[:rank]
    # A singular vector has no sign: the largest element of each is positive here.
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(1)[:, None], 1)
    lengths = sizes[:rank, None] / np.sqrt(len(flat) - 1)
    return _plane(centre, np.sign(largest) * lengths * vectors, shapes)


def _random(key: Array, points: dict[str, np.ndarray], rank: int | None) -> Plane:
    """Give the mean of the points and random directions of norm 1."""
    flat, shapes = _flat(points)
    most = flat.shape[1]
    if rank is not None and rank > most:
        raise ValueError(
            f"got rank={rank} for {most} parameters, expected at most as many: lower it"
        )
    rank = min(_USUAL_RANK, most) if rank is None else rank
    normal = np.asarray(jax.random.normal(key, (rank, most)), np.float64)
    return _plane(flat.mean(0), normal / np.linalg.norm(normal, axis=1, keepdims=True), shapes)


def _through_curve(key: Array, posterior: Posterior, draws: Any) -> Plane:
    """Give the plane of a curve between the last draws of two chains."""
    if draws.posterior.sizes["chain"] < 2:
        raise ValueError(
            "got draws of one chain, expected two, whose last draws the curve joins: run descent "
            "with num_chains=2"
        )
    ends, shapes = _flat(_positions(posterior, draws, slice(0, 2), slice(-1, None)))
    centre, along = ends.mean(0), (ends[0] - ends[1]) / 2
    if not np.linalg.norm(along) > _LEAST_SPREAD * np.linalg.norm(ends[0]):
        raise ValueError(
            "got two points that are equal, expected those of two chains: choose others, as by "
            "draws.isel(chain=[0, 2])"
        )
    bend, _ = _flat(_trained_bend(key, posterior, _by_site(jnp.asarray(ends, float), shapes)))
    middle = (bend[0] - centre) / 2  # of the curve, where the bend has half the weight
    height = middle - (middle @ along) / (along @ along) * along
    if np.linalg.norm(height) <= _LEAST_SPREAD * np.linalg.norm(along):
        raise ValueError(
            "got two points that a straight line joins best, expected two modes: choose other "
            "chains, or kind='pca'"
        )
    return _plane(centre, np.stack([along, middle]), shapes)


Shapes = dict[str, tuple[int, ...]]


def _flat(points: dict[str, np.ndarray]) -> tuple[np.ndarray, Shapes]:
    """Give points (points, parameters), and the shapes of their sites."""
    flat = [leaf.reshape(len(leaf), -1) for leaf in points.values()]
    return np.concatenate(flat, 1), {site: leaf.shape[1:] for site, leaf in points.items()}


def _by_site(flat: Any, shapes: Shapes) -> dict[str, Any]:
    """Give arrays (..., *shape) by site of vectors (..., parameters)."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
    parts = jnp.split(flat, ends, axis=-1)
    pairs = zip(shapes.items(), parts, strict=True)
    return {site: part.reshape(flat.shape[:-1] + shape) for (site, shape), part in pairs}


def _plane(centre: np.ndarray, directions: np.ndarray, shapes: Shapes) -> Plane:
    parts = jnp.asarray(centre, float), jnp.asarray(directions, float)
    return Plane(*(_by_site(part, shapes) for part in parts))


# --- the bend of a curve


def _trained_bend(key: Array, posterior: Posterior, ends: Position) -> dict[str, np.ndarray]:
    """Maximise the log-density along the curve over its bend, from the middle of the two ends."""
    along = _along_curve(posterior, ends)
    middle = {site: leaf.mean(0) for site, leaf in ends.items()}
    to_mode = descent(along, noise_rows="training")
    found = run(key, along, to_mode, init=middle, progress=False, verdict=False)
    if "stopped" in found.attrs:
        raise KeyboardInterrupt  # of a curve that is not yet one
    return _positions(posterior, found, slice(0, 1), slice(-1, None))


def _along_curve(posterior: Posterior, ends: Position) -> Posterior:
    """Give a posterior of the bend, whose log-density is the average along the curve."""
    nodes, widths = np.polynomial.legendre.leggauss(_CURVE_POINTS)
    times, shares = jnp.asarray((1 + nodes) / 2, float), jnp.asarray(widths / 2, float)

    def point(time: Array, bend: Position) -> Position:
        weights = (1 - time) ** 2, time**2, 2 * time * (1 - time)

        def between(end: Array, bend: Array) -> Array:
            return weights[0] * end[0] + weights[1] * end[1] + weights[2] * bend

        return jax.tree.map(between, ends, bend)

    def terms(bend: Position, batch: Batch) -> Terms:
        def at(time: Array) -> Terms:
            found = posterior.density.terms(point(time, bend), batch)
            return found._replace(normals={}, row_scale=None)

        return jax.tree.map(partial(jnp.tensordot, shares, axes=1), jax.lax.map(at, times))

    def logdensity(bend: Position, batch: Batch) -> Array:
        return posterior.density.total(terms(bend, batch), batch)

    return posterior._replace(
        density=posterior.density._replace(terms=terms),
        log_likelihood=lambda bend, batch: terms(bend, batch).log_likelihood,
        logdensity=logdensity,
        prior=posterior.prior._replace(open_scale=None),
        recipe=None,
    )
