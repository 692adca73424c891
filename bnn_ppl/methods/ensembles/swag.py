"""SWA-Gaussian: a Gaussian with the moments of another method's iterates."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import FITTED, MINIBATCHES
from bnn_ppl.methods.ensembles.descent import descent
from bnn_ppl.methods.method import Method, describe, rows_of_share
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.schedules import Schedule, check_rate, named
from bnn_ppl.methods.stochastic_gradient.sgld import sgld
from bnn_ppl.methods.training.optimizers import with_optimizer
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count, check_positive
from bnn_ppl.runtime.compilation.branches import one_or_other

Tree = Any

_NUM_COLLECTED = 100  # points along the path of sgld
_APART = 60  # steps of sgld, at most; a longer path curves, and weights around its mean fit badly
_FEWEST_TO_TUNE = 100  # steps of sgld before collection begins


class PathMoments(NamedTuple):
    """Mean, squared deviations and last deviations of the points collected so far."""

    mean: Tree
    squares: Tree  # sum of squared deviations from the mean
    deviations: Tree  # (rank, ...): the last ones, each from the mean at that time; 0 if unfilled
    num_collected: jax.Array


class SwagState(NamedTuple):
    """The state of the wrapped method and the moments of its points."""

    inner: Tree
    moments: PathMoments
    collect_from: jax.Array
    collect_every: jax.Array  # 0 for an epoch
    num_steps: jax.Array


def _half_of_warmup(options: dict[str, Any], running: Mapping[str, Any]) -> dict[str, Any]:
    """Collect along SGD from half-way through warm-up, or from step 0 if it starts from draws."""
    start = options.get("collect_from")
    if start is None and options.get("learning_rate") is not None:
        start = 0 if running.get("init") is not None else (running["num_warmup"] or 0) // 2
    if start is not None and not running["thin"] and start >= max(1, running["num_warmup"]):
        raise ValueError(
            f"got collect_from={start} with num_warmup={running['num_warmup']}, expected less than "
            "num_warmup, or no point is collected: lower collect_from or raise num_warmup"
        )
    return options | {"collect_from": start}


@describe(
    MINIBATCHES,
    gives="a Gaussian along a path; several chains are MultiSWAG",
    bias="one Gaussian of rough width about each mode",
    length="a mode, the tuning of sgld, 100 points of its path, 100 draws",
    kind="fit",
    counts=FITTED,
    complete=_half_of_warmup,
)
def swag(
    posterior: Posterior,
    inner: Method | None = None,
    rank: int = 20,
    *,
    learning_rate: float | Schedule | None = None,
    collect_every: int | None = None,
    collect_from: int | None = None,
    scale: float = 1.0,
    fgsm_epsilon: float = 0.0,
) -> Method:
    r"""SWA-Gaussian (SWAG): a Gaussian fitted to the path of another method.

    By default the path is that of :func:`bnn_ppl.sgld`, which tunes itself and samples the
    posterior; with a given learning rate it is that of SGD with momentum 0.9, as published; `inner`
    gives any other.

    Every `collect_every` steps the point w is collected,

    .. math:: \bar w \gets \bar w + (w - \bar w) / n, \qquad
        \hat d \gets w - \bar w \;\text{in place of the oldest of the last}\; R

    and with standard normal :math:`z_1` (K numbers) and :math:`z_2` (one per weight) a draw is

    .. math:: w = \bar w + \sqrt{\frac{s}{2}} \left(\sigma \odot z_2
        + \frac{1}{\sqrt{K - 1}} \hat D z_1 \right)

    with s the `scale`, :math:`\hat D` the :math:`K = \min(n, R)` stored deviations and
    :math:`\sigma^2` the mean squared deviation from :math:`\bar w` (Maddox et al., 2019, equation 1
    and algorithm 1): half the covariance is diagonal, half of rank at most K. With ``rank=0`` all
    of it is diagonal, :math:`w = \bar w + \sqrt s\, \sigma \odot z_2` (SWAG-Diagonal). The variance
    is accumulated by Welford's recursion, since a difference of mean squares suffers from
    cancellation in single precision. Until two points are collected, draws are those of the inner
    method.

    Fit in warm-up, and draw without stepping::

        run(key, posterior, swag(posterior, learning_rate=0.01), num_chains=.., num_warmup=steps)

    Several chains are MultiSWAG (Wilson & Izmailov, 2020), a mixture of Gaussians. The locations in
    the group ``fitted`` are stochastic weight averages (SWA; Izmailov et al., 2018). Batch
    normalisation statistics are recomputed on the training rows for each draw, at prediction.

    Parameters
    ----------
    posterior
        Posterior to approximate.
    inner
        Method built with this posterior, whose draw is the point that its steps update, such as
        :func:`bnn_ppl.descent` with an optimiser of its own, or :func:`bnn_ppl.sghmc`. The weights
        of its draws (``log_weight``) are ignored. None: as `learning_rate` says.
    rank
        Number R of deviations stored, each of the size of the weights: at least 2, or 0 for a
        diagonal covariance.
    learning_rate
        Learning rate of SGD, a number or a schedule. None: the path of sgld from the optimum of
        descent, of which 100 points are collected after its tuning, up to 60 steps apart.
    collect_every
        Number of steps between collected points; by default an epoch, that is, the number of full
        batches in the rows, or up to 60 steps of sgld.
    collect_from
        First step that collects a point, counted from 0; by default the first after the tuning of
        sgld, half-way through warm-up for SGD (on the command line 0 with --init), 0 for an `inner`
        method. The path should have converged by then, unless ``init=`` of `run` starts it from
        converged draws.
    scale
        Factor s of the covariance. Code that omits the factors 1/2 has a scale of s / 2, such as
        that of Wilson and Izmailov, where it is 0.5.
    fgsm_epsilon
        With a learning rate, also train on adversarial inputs, as in :func:`bnn_ppl.descent`: the
        perturbation of each input, in the units of x. 0 for none.

    Returns
    -------
    Method
        Its group ``fitted`` holds, in unconstrained space, the means
        (``<site>.loc``), :math:`\sqrt s\, \sigma` (``<site>.scale``) and ``num_collected``.

    Raises
    ------
    ValueError
        If a number is out of range; the draws of `inner` are not the point that its steps update,
        because it fits a distribution, stops early or averages; or an option of SGD comes without
        it.
    """
    _check(rank, collect_every, collect_from, scale)
    _check_path(inner, learning_rate, fgsm_epsilon)
    if inner is None and learning_rate is None:
        return _along_sgld(posterior, rank, collect_every, collect_from, scale)
    if learning_rate is not None:
        sgd = optax.sgd(learning_rate, momentum=0.9)
        inner = descent(posterior, sgd, fgsm_epsilon=fgsm_epsilon)
        known = with_optimizer(inner.settings, "sgd", named(learning_rate))
        inner = inner._replace(settings=known)
    assert inner is not None
    _check_inner(inner)
    method = _collecting(posterior, inner, rank, collect_every, collect_from or 0, scale)
    if learning_rate is not None and collect_from is None:
        return _from_half_of_warmup(method)
    return method


def _collecting(
    posterior: Posterior,
    inner: Method,
    rank: int,
    collect_every: int | None,
    collect_from: int,
    scale: float,
    tunes_before: bool = False,
) -> Method:
    """Build `swag` from checked arguments.

    With `tunes_before`, warm-up tunes `inner` only until the first collection: along the path, a
    chain that diverges must be restored.
    """
    num_rows = rows_of_share(inner.batching.subsample, posterior.num_rows)

    def init(key: jax.Array, position: Tree, batch: Any) -> SwagState:
        zeros, zero = optax.tree.zeros_like(position), jnp.zeros((), int)
        held = jax.tree.map(lambda w: jnp.zeros((rank, *w.shape), w.dtype), position)
        moments = PathMoments(zeros, zeros, held, zero)
        first, every = jnp.asarray(collect_from, int), jnp.asarray(collect_every or 0, int)
        return SwagState(inner.init(key, position, batch), moments, first, every, zero)

    def collecting(
        inner_step: Any, key: jax.Array, state: SwagState, batch: Any
    ) -> tuple[SwagState, dict]:
        step_key, draw_key = (jax.random.fold_in(key, i) for i in range(2))
        chain, info = inner_step(step_key, state, batch)
        epoch = 1 if inner.all_rows else max(1, num_rows // batch[1].shape[0])
        every = jnp.where(state.collect_every > 0, state.collect_every, epoch)
        since = state.num_steps - state.collect_from
        due = (since >= 0) & (since % every == 0)

        def collect(_: jax.Array, moments: PathMoments) -> PathMoments:
            return _with_point(moments, inner.draw(draw_key, chain))

        # A loop of zero or one iterations updates in place, also under vmap over chains, where a
        # branch would select between two copies of the deviations at every step.
        moments = jax.lax.fori_loop(0, due.astype(int), collect, state.moments)
        state = state._replace(inner=chain, moments=moments, num_steps=state.num_steps + 1)
        return state, info

    def step(key: jax.Array, state: SwagState, batch: Any) -> tuple[Tree, dict]:
        return inner.step(key, state.inner, batch)

    def warmup(key: jax.Array, state: SwagState, batch: Any) -> tuple[Tree, dict]:
        assert inner.warmup is not None
        if not tunes_before:
            return inner.warmup(key, state.inner, batch)
        tuning = state.num_steps < state.collect_from
        return one_or_other(tuning, inner.warmup, inner.step, key, state.inner, batch)

    def draw(key: jax.Array, state: SwagState) -> Tree:
        point = inner.draw(key, state.inner)
        drawn = _gaussian_draw(key, state.moments, scale)
        return jax.tree.map(partial(jnp.where, state.moments.num_collected > 1), drawn, point)

    def fitted(state: SwagState) -> dict[str, jax.Array]:
        return _parameters(state.moments, inner.draw(jax.random.key(0), state.inner), scale)

    batching = inner.batching
    if inner.draws_from == "point" and not inner.all_rows:  # not of samplers, which choose theirs
        batching = batching._replace(order="epochs")
    settings = {
        **inner.settings,
        "method": "swag",
        "inner": inner.settings.get("method", "own"),
        "rank": rank,
        "collect_every": collect_every or "epoch",
        "collect_from": collect_from,
        "scale": scale,
    }
    return Method(
        init,
        partial(collecting, step),
        draw,
        None if inner.warmup is None else partial(collecting, warmup),
        settings,
        fitted=fitted,
        logdensity=inner.logdensity,
        draws_from="low_rank_gaussian" if rank else "gaussian",
        batching=batching,
        begin=inner.tuning.of_inner().begin,
        needs_warmup=inner.tuning.needs_warmup,
        start=inner.tuning.start,
    )


def _parameters(moments: PathMoments, point: Tree, scale: float) -> dict[str, jax.Array]:
    """Return mean and scale by site; `point` is the mean until two points are collected."""
    mean = jax.tree.map(partial(jnp.where, moments.num_collected > 1), moments.mean, point)
    return {
        **{f"{site}.loc": loc for site, loc in mean.items()},
        **{f"{site}.scale": math.sqrt(scale) * sd for site, sd in _sds(moments).items()},
        "num_collected": moments.num_collected,
    }


def _from_half_of_warmup(method: Method) -> Method:
    def begin(state: SwagState, num_warmup: jax.Array) -> SwagState:
        return state._replace(collect_from=jnp.asarray(num_warmup // 2, int))

    settings = {**method.settings, "collect_from": "half of warm-up"}
    return method._replace(begin=begin, settings=settings)


def _along_sgld(
    posterior: Posterior,
    rank: int,
    collect_every: int | None,
    collect_from: int | None,
    scale: float,
) -> Method:
    inner = sgld(posterior)
    every = collect_every or min(_APART, inner.counts.thin)
    first = inner.counts.num_warmup if collect_from is None else collect_from
    if first < _FEWEST_TO_TUNE:
        raise ValueError(
            f"got collect_from={first} without a learning rate, expected at least "
            f"{_FEWEST_TO_TUNE} steps, in which sgld is tuned: leave it out or raise it"
        )
    method = _collecting(posterior, inner, rank, every, first, scale, tunes_before=True)
    counts = FITTED._replace(
        num_warmup=first + _NUM_COLLECTED * every, batch_size=inner.counts.batch_size
    )
    begin = partial(_begin, method, shortens=collect_from is None)
    # At the mode a learnt noise is too small, and the path is slow to leave it.
    return method._replace(start=descent(posterior), counts=counts, begin=begin)


def _begin(method: Method, state: SwagState, num_warmup: jax.Array, *, shortens: bool) -> SwagState:
    """Tune until the first collection; with `shortens`, collect in half of a short warm-up."""
    assert method.tuning.begin is not None
    if shortens:
        start = jnp.minimum(state.collect_from, num_warmup // 2)
        every = jnp.clip((num_warmup - start) // _NUM_COLLECTED, 1, state.collect_every)
        state = state._replace(collect_from=start, collect_every=every)
    return method.tuning.begin(state, state.collect_from)


def _with_point(moments: PathMoments, point: Tree) -> PathMoments:
    count = moments.num_collected + 1
    before = optax.tree.sub(point, moments.mean)
    mean = jax.tree.map(lambda m, d: m + d / count, moments.mean, before)
    after = optax.tree.sub(point, mean)
    squares = jax.tree.map(lambda s, b, a: s + b * a, moments.squares, before, after)

    def put(held: jax.Array, deviation: jax.Array) -> jax.Array:
        if not len(held):
            return held
        return held.at[moments.num_collected % len(held)].set(deviation)

    return PathMoments(mean, squares, jax.tree.map(put, moments.deviations, after), count)


def _gaussian_draw(key: jax.Array, moments: PathMoments, scale: float) -> Tree:
    rank_key, weight_key = (jax.random.fold_in(key, i) for i in range(2))
    rank = len(jax.tree.leaves(moments.deviations)[0])
    half = math.sqrt(scale / 2 if rank else scale)
    # Unfilled deviations are 0 and contribute nothing.
    root = jnp.sqrt(jnp.maximum(jnp.minimum(moments.num_collected, rank) - 1, 1.0))
    z1 = jax.random.normal(rank_key, (rank,)) / root
    z2 = gaussian_like(weight_key, moments.mean)

    def drawn(mean: jax.Array, sd: jax.Array, held: jax.Array, z: jax.Array) -> jax.Array:
        return mean + half * (sd * z + jnp.tensordot(z1, held, 1))

    return jax.tree.map(drawn, moments.mean, _sds(moments), moments.deviations, z2)


def _sds(moments: PathMoments) -> Tree:
    count = jnp.maximum(moments.num_collected, 1)
    return jax.tree.map(lambda squares: jnp.sqrt(squares / count), moments.squares)


def _check_inner(inner: Method) -> None:
    """Refuse a method whose draws are not the point that its steps update: they would not vary."""
    if inner.draws_from not in ("chain", "point") or inner.tuning.finish is not None:
        what = "with a finish" if inner.tuning.finish is not None else f"({inner.draws_from} draws)"
        raise ValueError(
            f"got {inner.settings.get('method', 'a method')} {what} as inner, expected a method "
            "whose draw is the point that its steps update: use descent or sgld, without early "
            "stopping or averaging"
        )


def _check_path(
    inner: Method | None, learning_rate: float | Schedule | None, fgsm_epsilon: float
) -> None:
    """Refuse options of SGD for a path of another method."""
    if inner is not None and (learning_rate is not None or fgsm_epsilon):
        given = "fgsm_epsilon" if learning_rate is None else "learning_rate"
        raise ValueError(f"got inner and {given}, expected one of them: give {given} to inner")
    if learning_rate is not None:
        check_rate("learning_rate", learning_rate)
    elif fgsm_epsilon:
        raise ValueError(
            f"got fgsm_epsilon={fgsm_epsilon} without learning_rate, expected both: sgld, whose "
            "path it is otherwise, samples the posterior of the rows as they are"
        )


def _check(rank: int, collect_every: int | None, collect_from: int | None, scale: float) -> None:
    check_positive("scale", scale)
    if rank != 0:
        check_count("rank", rank, least=2)
    if collect_from is not None:
        check_count("collect_from", collect_from, least=0)
    if collect_every is not None:
        check_count("collect_every", collect_every)
