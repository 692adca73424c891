"""SWA-Gaussian: a normal distribution with the moments of another method's iterates."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.descent import descent
from bnn_ppl.methods.method import FITTED, Method, describe
from bnn_ppl.methods.schedules import Schedule, named
from bnn_ppl.methods.shared.random import gaussian_like
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count

Tree = Any


class Moments(NamedTuple):
    """What is kept of the points collected."""

    mean: Tree
    squares: Tree  # sum of squared deviations from the mean
    deviations: Tree  # (rank, ...): the last ones, each from the mean of its time; 0 before
    num_collected: jax.Array


class SwagState(NamedTuple):
    """The method wrapped and the moments of its points."""

    inner: Tree
    moments: Moments
    num_steps: jax.Array


def swag(
    posterior: Posterior,
    inner: Method,
    rank: int = 20,
    *,
    collect_every: int | None = None,
    collect_from: int = 0,
) -> Method:
    r"""SWAG: draw from a normal distribution fitted to the points another method passes through.

    At every collection, of the point w,

    .. math:: \bar w \gets \bar w + (w - \bar w) / n, \qquad
        \hat d \gets w - \bar w \;\text{in place of the oldest of the last}\; R

    and a draw, of standard normal :math:`z_1` (K numbers) and :math:`z_2` (one a weight), is

    .. math:: w = \bar w + \frac{1}{\sqrt 2} \Big(\sigma \odot z_2
        + \frac{1}{\sqrt{K - 1}} \hat D z_1 \Big)

    with :math:`\hat D` the :math:`K = \min(n, R)` deviations held and :math:`\sigma^2` the mean of
    the squared deviations from :math:`\bar w` (Maddox et al., 2019, equation 1 and algorithm 1):
    half the covariance is of low rank, at most K, half diagonal. The variance is summed by
    Welford's recursion, for the difference of mean squares cancels in single precision. Before two
    points are collected a draw is the inner method's own.

    Fit in warm-up, and draw without stepping::

        method = swag(posterior, descent(posterior, optax.sgd(lr)))
        run(key, posterior, method, num_chains=.., num_warmup=steps, num_draws=20, thin=0,
            batch_size=128)

    Several chains are MultiSWAG (Wilson & Izmailov, 2020), a mixture of as many normal
    distributions. The locations in the group ``fitted`` are stochastic weight averages (SWA;
    Izmailov et al., 2018). Networks here keep no batch statistics, so there are none to renew.

    Parameters
    ----------
    posterior
        What `inner` was built with.
    inner
        Any method whose draw is a point that its steps move: :func:`bnn_ppl.descent` at a constant
        learning rate, :func:`bnn_ppl.sgld`. Weights of its draws (``log_weight``) are not heeded.
    rank
        R, from 2 up: deviations held, each as large as the weights.
    collect_every
        Steps from one collection to the next; by default an epoch, that is as many batches as the
        rows fill.
    collect_from
        The first step that collects, counted from 0: one where `inner` has converged, unless
        ``init=`` of `run` starts it there.

    Returns
    -------
    Method
        Its ``fitted`` gives, by site in unconstrained space, ``.loc``, the mean, and ``.scale``,
        the :math:`\sigma` of the diagonal half; and ``num_collected``.

    Raises
    ------
    ValueError
        If a count is out of range, or draws of `inner` are not the point its steps move: fitted in
        warm-up, stopped early, or an average.
    """
    check_arguments(posterior=posterior)
    _check(rank, collect_every, collect_from)
    _check_inner(inner)

    def init(key: jax.Array, position: Tree, batch: Any) -> SwagState:
        zeros, zero = optax.tree.zeros_like(position), jnp.zeros((), int)
        held = jax.tree.map(lambda w: jnp.zeros((rank, *w.shape), w.dtype), position)
        moments = Moments(zeros, zeros, held, zero)
        return SwagState(inner.init(key, position, batch), moments, zero)

    def stepped(take: Any, key: jax.Array, state: SwagState, batch: Any) -> tuple[SwagState, dict]:
        step_key, draw_key = (jax.random.fold_in(key, i) for i in range(2))
        chain, info = take(step_key, state.inner, batch)
        every = collect_every or max(1, posterior.num_rows // batch[1].shape[0])
        since = state.num_steps - collect_from
        due = (since >= 0) & (since % every == 0)

        def collect(_: jax.Array, moments: Moments) -> Moments:
            return _collected(moments, inner.draw(draw_key, chain))

        # A loop that runs once or not at all, in place. Where chains run side by side, cond would
        # compute both branches and choose between two copies of the deviations at every step.
        moments = jax.lax.fori_loop(0, due.astype(int), collect, state.moments)
        return SwagState(chain, moments, state.num_steps + 1), info

    def draw(key: jax.Array, state: SwagState) -> Tree:
        point = inner.draw(key, state.inner)
        drawn = _drawn(key, state.moments)
        return jax.tree.map(partial(jnp.where, state.moments.num_collected > 1), drawn, point)

    def fitted(state: SwagState) -> dict[str, jax.Array]:
        moments = state.moments
        point = inner.draw(jax.random.key(0), state.inner)
        mean = jax.tree.map(partial(jnp.where, moments.num_collected > 1), moments.mean, point)
        return {
            **{f"{site}.loc": loc for site, loc in mean.items()},
            **{f"{site}.scale": scale for site, scale in _sds(moments).items()},
            "num_collected": moments.num_collected,
        }

    settings = {
        **inner.settings,
        "method": "swag",
        "inner": inner.settings.get("method", "own"),
        "rank": rank,
        "collect_every": collect_every or "epoch",
        "collect_from": collect_from,
    }
    warmup = None if inner.warmup is None else partial(stepped, inner.warmup)
    return Method(
        init,
        partial(stepped, inner.step),
        draw,
        warmup,
        settings,
        fitted=fitted,
        logdensity=inner.logdensity,
        all_rows=inner.all_rows,
        needs_warmup=inner.needs_warmup,
        draws_from="low_rank_gaussian",
    )


def _half_of_warmup(options: dict[str, Any], running: Mapping[str, Any]) -> dict[str, Any]:
    """Collect from half-way through warm-up on, or at once where the run starts from draws."""
    start = options.get("collect_from")
    if start is None:
        start = 0 if running.get("init") is not None else running["num_warmup"] // 2
    if not running["thin"] and start >= max(1, running["num_warmup"]):
        raise ValueError(
            f"got collect_from={start} with num_warmup={running['num_warmup']}, expected a smaller "
            "one: no point would be collected"
        )
    return options | {"collect_from": start}


@describe(
    name="swag",
    gives="a Gaussian around the path of SGD; several chains are MultiSWAG",
    cost="a gradient on a minibatch",
    kind="fit",
    stochastic_gradients=True,
    counts=FITTED,
    complete=_half_of_warmup,
)
def swag_around_sgd(
    posterior: Posterior,
    *,
    learning_rate: float | Schedule = 0.01,
    rank: int = 20,
    collect_every: int | None = None,
    collect_from: int | None = None,
) -> Method:
    """Stochastic weight averaging with a Gaussian, around SGD with momentum 0.9.

    Parameters
    ----------
    posterior
        What to approximate.
    learning_rate
        Of SGD.
    rank
        Deviations from the mean that are kept.
    collect_every
        Steps between two points of the average; by default an epoch.
    collect_from
        The first step whose point counts; by default half-way through warm-up, or at once where the
        run starts from the draws of another.
    """
    inner = descent(posterior, optax.sgd(learning_rate, momentum=0.9))
    known = {"optimizer": "sgd", "learning_rate": named(learning_rate)}
    inner = inner._replace(settings={**inner.settings, **known})
    return swag(posterior, inner, rank, collect_every=collect_every, collect_from=collect_from or 0)


def _collected(moments: Moments, point: Tree) -> Moments:
    count = moments.num_collected + 1
    before = optax.tree.sub(point, moments.mean)
    mean = jax.tree.map(lambda m, d: m + d / count, moments.mean, before)
    after = optax.tree.sub(point, mean)
    squares = jax.tree.map(lambda s, b, a: s + b * a, moments.squares, before, after)

    def put(held: jax.Array, deviation: jax.Array) -> jax.Array:
        return held.at[moments.num_collected % len(held)].set(deviation)

    return Moments(mean, squares, jax.tree.map(put, moments.deviations, after), count)


def _drawn(key: jax.Array, moments: Moments) -> Tree:
    rank_key, weight_key = (jax.random.fold_in(key, i) for i in range(2))
    rank = len(jax.tree.leaves(moments.deviations)[0])
    # Rows not yet filled are 0: their numbers change nothing.
    root = jnp.sqrt(jnp.maximum(jnp.minimum(moments.num_collected, rank) - 1, 1.0))
    z1 = jax.random.normal(rank_key, (rank,)) / root
    z2 = gaussian_like(weight_key, moments.mean)

    def drawn(mean: jax.Array, sd: jax.Array, held: jax.Array, z: jax.Array) -> jax.Array:
        return mean + jnp.sqrt(0.5) * (sd * z + jnp.tensordot(z1, held, 1))

    return jax.tree.map(drawn, moments.mean, _sds(moments), moments.deviations, z2)


def _sds(moments: Moments) -> Tree:
    count = jnp.maximum(moments.num_collected, 1)
    return jax.tree.map(lambda squares: jnp.sqrt(squares / count), moments.squares)


def _check_inner(inner: Method) -> None:
    """Refuse draws that are not the point that steps move: they would have no spread."""
    if inner.draws_from not in ("chain", "point") or inner.finish is not None:
        what = "with a finish" if inner.finish is not None else f"({inner.draws_from} draws)"
        raise ValueError(
            f"got {inner.settings.get('method', 'a method')} {what} as inner, expected a method "
            "whose draw is the point that its steps move: use descent or sgld, without early "
            "stopping or averaging"
        )


def _check(rank: int, collect_every: int | None, collect_from: int) -> None:
    counts = {"rank": (rank, 2), "collect_from": (collect_from, 0)}
    if collect_every is not None:
        counts["collect_every"] = (collect_every, 1)
    for name, (count, least) in counts.items():
        check_count(name, count, least)
