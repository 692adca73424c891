"""Point estimates: any optax optimiser on the log-density."""

import math
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import optax

from bnn_ppl.methods.defaults import FITTED, MINIBATCHES
from bnn_ppl.methods.ensembles.adversarial_training import with_adversarial_rows
from bnn_ppl.methods.method import (
    Method,
    describe,
    rows_of_share,
    step_info,
)
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.training.early_stopping import stopped_early
from bnn_ppl.methods.training.held_out_groups import HeldOutGroups
from bnn_ppl.methods.training.held_out_noise import (
    held_out_rows,
    held_out_score,
    noise_sites,
    share_held_out,
    share_scored,
    with_noise_held_out,
)
from bnn_ppl.methods.training.held_out_rows import HeldOut
from bnn_ppl.methods.training.optimizers import optimizer_of
from bnn_ppl.methods.training.rate_trials import is_costly, usual_lengths
from bnn_ppl.methods.training.self_paced import self_paced
from bnn_ppl.methods.training.training_lengths import has_convolutions
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.likelihoods.noise_of_x import NOISE_AMPLITUDE
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import Terms

# Standard deviation of a row's change of log-likelihood between good fits, in nats.
_ROW_ERROR = 2.0
_LEAST_ROWS = 100  # of which some are held out; of fewer, those would tell too little
# Power of its step by which a point is weighted in an average: the last ninth of the steps counts.
_RECENCY = 8

Tree = Any
NoiseRows: TypeAlias = Literal["both", "held_out", "training"]


class RowsHeldOut(NamedTuple):
    """The rows that a chain holds out while it finds the noise."""

    seed: jax.Array  # that determines which rows these are
    now: jax.Array  # whether they are still held out, bool


class DescentState(NamedTuple):
    """A point and the state of its optimiser."""

    position: Tree
    optimizer: Tree
    average: Tree  # None if not averaging
    anchor_noise: Tree  # the anchors, standardised, by Gaussian site; None if not anchored
    num_steps: jax.Array
    held_out: RowsHeldOut | None  # None if noise and weights are learnt from the same rows


@describe(
    MINIBATCHES,
    gives="a point; several chains are a deep ensemble",
    bias="a point has no spread",
    length="until it stops improving (at most 100,000 steps)",
    kind="fit",
    counts=FITTED._replace(num_draws=1),
)
def descent(
    posterior: Posterior,
    optimizer: optax.GradientTransformation | None = None,
    *,
    learning_rate: float | Schedule | None = None,
    average_from: int | None = None,
    anchored: bool = False,
    noise_rows: NoiseRows = "both",
    subsample: float = 1.0,
    fgsm_epsilon: float = 0.0,
    held_out: tuple[Any, Any] | None = None,
    check_every: int = 100,
    patience: int = 10,
) -> Method:
    r"""Maximum a posteriori (MAP) estimation by gradient descent with any optax optimiser.

    .. math:: w \gets w + \mathrm{optimizer}(\nabla \log \pi(w) / N)

    The gradient is divided by N, so that learning rates are those for a mean loss. Each chain is
    one solution; several chains are a deep ensemble (Lakshminarayanan et al., 2017), or with
    ``bootstrap=True`` in `run` a bootstrap ensemble, and with ``subsample=0.8`` one whose members
    each see a random 80 % of the rows. Train in warm-up and draw once::

        run(key, posterior, descent(posterior), num_chains=10, num_warmup=5000, batch_size=128,
            num_draws=1, thin=0)

    With constrained sites this maximises the density of the unconstrained position, which is also
    what samplers target; but by default a learnt noise is fitted to held-out rows too, and training
    goes back to its best point, and ends early, where it predicts held-out rows worse (see
    `noise_rows`).

    Parameters
    ----------
    posterior
        Posterior to maximise.
    optimizer
        Any optax optimiser; by default ``optax.adam(learning_rate)``. To resume a run, pass an
        equal one.
    learning_rate
        Learning rate of Adam, a number or a schedule, for all steps of warm-up. None: tuned, and
        training stops automatically; where a step is costly, it starts at Adam's usual 1e-3.
    average_from
        First step of averaging: draw the mean of the points from this step on instead of the last
        point (Polyak & Juditsky, 1992; for network weights Izmailov et al., 2018, without cyclical
        steps).
    anchored
        Whether to pull each weight with a Gaussian prior towards its own draw from that prior,
        where it also starts, instead of towards the prior's mean: randomised maximum a posteriori
        (Pearce et al., 2020). At temperature 1 weights that the data do not determine then spread
        as widely as in the posterior.
    noise_rows
        Rows that a learnt noise (a site with ``noise`` in its name) is fitted to, while each chain
        trains its weights on four fifths of the rows: ``"both"``, training and held-out rows with
        equal weight; or ``"held_out"`` alone, whose noise includes the error of the weights. Of
        noise that depends on x, half of the held-out rows fit level and shape, the others the
        amplitude. The noise is then fixed and the weights are trained on all rows. Without such a
        site, or where a step is costly (a network with convolutions, or a batch of more than 2^21
        rows times weights), each chain holds out its own tenth of at least 100 rows: whenever the
        learning rate falls, and where their mean log-likelihood is below its best by more than 2
        nats over the square root of their number, training goes back to the point at which it was
        best; in the second case it also ends before it would take in all rows. Where a step is
        costly, the point is a mean of all so far, weighted by the eighth power of the step (Shamir
        & Zhang, 2013, section 4), so that training that is cut short is useful too. ``"training"``
        fits everything to all rows throughout, which gives the mode of the posterior, where the
        noise is too small; so does any run with `optimizer`, `learning_rate` or `fgsm_epsilon`.
    subsample
        Fraction of the rows, above 0, that each chain sees: its own subset, drawn at random without
        replacement (subagging; Bühlmann & Yu, 2002), rounded to a whole number. N is then their
        number, so that each chain maximises the posterior given its own rows alone.
    fgsm_epsilon
        If above 0, also train on adversarial inputs: each row's log-likelihood is the mean of those
        at x and at x shifted by this much, in the units of x, along the sign of the loss gradient
        (Lakshminarayanan et al., 2017, algorithm 1). It costs two gradients per step; the recorded
        ``lp`` uses these means.
    held_out
        Held-out rows (x, y) for early stopping, not among those of the posterior: a chain draws the
        point with their highest log-likelihood, and stops once that has not risen for `patience`
        checks.
    check_every
        Number of steps between checks of the held-out rows.
    patience
        Number of checks without improvement after which a chain stops.

    Raises
    ------
    ValueError
        If a number is out of range, the held-out rows do not have the form of the posterior's, or
        adversarial inputs are asked for where x is not one array of floats.
    """
    check_arguments(posterior=posterior)
    finds_rate, recorded, optimizer = optimizer_of(optimizer, learning_rate, posterior.init)
    _check(average_from, subsample, noise_rows)
    num_rows = rows_of_share(subsample, posterior.num_rows)
    loss = partial(_loss, posterior, num_rows)
    num_gradients, value_and_gradient = 1, jax.value_and_grad(loss)
    if fgsm_epsilon:
        num_gradients = 2
        value_and_gradient = with_adversarial_rows(loss, posterior, fgsm_epsilon)
    holds_out = finds_rate and noise_rows != "training" and not fgsm_epsilon
    noises = noise_sites(posterior) if holds_out else set()
    # A noise that is itself held out keeps small networks from overfitting.
    costly = finds_rate and is_costly(posterior, num_rows)
    stops = holds_out and held_out is None and num_rows >= _LEAST_ROWS and (costly or not noises)
    holds_out = bool(noises) or stops
    groups = HeldOutGroups.of(posterior) if holds_out else None
    share_out = share_held_out(posterior)
    weight = 0.5 if noise_rows == "both" else 1.0
    averages = average_from is not None or costly
    of_either = jax.value_and_grad(partial(with_noise_held_out, loss, noises, weight), has_aux=True)

    def init(key: jax.Array, position: Tree, batch: Any) -> DescentState:
        noise = None
        if anchored:
            normals = posterior.density.terms(position, batch).normals
            noise = drawn_anchor_noise(key, {site: position[site] for site in normals})
            position = position | {
                site: loc + scale * noise[site] for site, (loc, scale) in normals.items()
            }
        average = position if averages else None
        rows = RowsHeldOut(jax.random.bits(key), jnp.ones((), bool)) if holds_out else None
        zero = jnp.zeros((), int)
        return DescentState(position, optimizer.init(position), average, noise, zero, rows)

    def step(
        key: jax.Array, state: DescentState, batch: Any, rate: jax.Array | float = 1.0
    ) -> tuple[DescentState, dict]:
        del key
        rows = state.held_out
        if rows is None:
            value, gradient = value_and_gradient(state.position, state.anchor_noise, batch)
        else:
            apart = held_out_rows(rows.seed, batch, share_out, noises, groups)
            apart = jax.tree.map(partial(jnp.logical_and, rows.now), apart)
            (_, value), gradient = of_either(state.position, state.anchor_noise, batch, apart)
        updates, inner = optimizer.update(gradient, state.optimizer, state.position)
        if rows is not None:
            updates |= {site: jnp.where(rows.now, updates[site], 0) for site in noises}
        position = optax.tree.add_scale(state.position, rate, updates)
        average = state.average
        if averages:
            share = _share_of_last(state.num_steps, average_from)
            average = jax.tree.map(lambda mean, w: mean + share * (w - mean), average, position)
        info = step_info(-value * num_rows, num_gradients)
        if rows is not None and stops:
            info["held_out_lp"] = held_out_score(posterior, drawn(state), batch, apart.scored)
        count = state.num_steps + 1
        return DescentState(position, inner, average, state.anchor_noise, count, rows), info

    def objective(info: dict) -> jax.Array:
        return info["lp"] / num_rows

    def prior(state: DescentState, batch: Any) -> jax.Array:
        terms = _terms(posterior, state.position, state.anchor_noise, batch)
        return posterior.density.total(terms.prior_alone, batch) / num_rows

    def drawn(state: DescentState) -> Tree:
        return state.average if averages else state.position

    settings = {"method": "descent", **recorded, "average_from": average_from}
    settings |= {"anchored": anchored} if anchored else {}
    # Without a noise site it still says whether rows are held out, where there are enough.
    kept = noise_rows == "training" and finds_rate and num_rows >= _LEAST_ROWS
    told = noises or (kept and not noise_sites(posterior))
    settings |= {"noise_rows": noise_rows} if told else {}
    settings |= {"subsample": subsample} if subsample < 1 else {}
    settings |= {"fgsm_epsilon": fgsm_epsilon} if fgsm_epsilon else {}
    method = Method(
        init,
        step,
        lambda key, state: drawn(state),
        settings=settings,
        logdensity=posterior.logdensity,
        draws_from="average" if averages else "point",
        subsample=float(subsample),
        raw_rows=bool(fgsm_epsilon) or groups is not None,
    )
    if finds_rate:
        error = _ROW_ERROR / math.sqrt(share_scored(posterior) * num_rows)
        stop = HeldOut(lambda info: info["held_out_lp"], error, must_gain=costly)
        method = self_paced(
            method,
            step,
            objective,
            settled=_on_all_rows if holds_out and (noises or not costly) else None,
            prior=prior,
            held_out=stop if stops else None,
            lengths=usual_lengths(posterior, num_rows),
        )
    if held_out is None:
        return method
    return stopped_early(method, posterior, held_out, check_every=check_every, patience=patience)


def _share_of_last(num_steps: jax.Array, average_from: int | None) -> jax.Array:
    """Give the share of the last point in the average of points.

    With `average_from`, it is their mean from this step on, and before it the last point; otherwise
    a mean with weights that grow with a power of the step (Shamir & Zhang, 2013, section 4), which
    is as good whenever training ends.
    """
    if average_from is None:
        return (_RECENCY + 1) / (num_steps + 1 + _RECENCY)
    return 1.0 / jnp.maximum(num_steps - average_from + 1, 1)


def starting_descent(posterior: Posterior, *, spread: bool = False) -> Method:
    """Descent as the start of other methods: with too large a noise they leave the mode sooner.

    With `spread` it is anchored, so that chains start as far apart as the posterior is wide. Not
    with convolutions, whose steps are so costly that many runs end in warm-up: they then predict
    with these points, and anchored points predict worse.
    """
    spread = spread and not has_convolutions(posterior)
    return descent(posterior, anchored=spread, noise_rows="held_out")


def descent_to_mode(posterior: Posterior) -> Method:
    """Descent to the mode; of noise that depends on x, whose mode overfits, to held-out noise."""
    varies = NOISE_AMPLITUDE in noise_sites(posterior)
    return descent(posterior, noise_rows="both" if varies else "training")


def _terms(posterior: Posterior, position: Tree, anchor_noise: Tree, batch: Any) -> Terms:
    """Give the terms of the log-density, with the anchors as the means of Gaussian priors."""
    terms = posterior.density.terms(position, batch)
    pulls = {}
    for site, noise in (anchor_noise or {}).items():
        # Where the mean or the scale is learnt, the anchor moves with it, and the density needs
        # its constant, which depends on the scale.
        loc, scale = terms.normals[site]
        pulls[site] = dist.Normal(loc + scale * noise, scale).log_prob(position[site])
    return terms._replace(log_priors=terms.log_priors | pulls)


def _loss(
    posterior: Posterior, num_rows: int, position: Tree, anchor_noise: Tree, batch: Any
) -> jax.Array:
    """Return the negative log-density given the rows that a chain sees, per row."""
    terms = _terms(posterior, position, anchor_noise, batch)
    if num_rows < posterior.num_rows:  # to which `total` scales the batch
        share = num_rows / posterior.num_rows
        terms = terms._replace(log_likelihood=share * terms.log_likelihood)
    return -posterior.density.total(terms, batch) / num_rows


def _on_all_rows(state: DescentState) -> DescentState:
    """Train on all rows from here on, with the noise fixed."""
    assert state.held_out is not None
    return state._replace(held_out=state.held_out._replace(now=jnp.zeros((), bool)))


def _check(average_from: int | None, subsample: float, noise_rows: str) -> None:
    if average_from is not None and average_from < 0:
        raise ValueError(f"got average_from={average_from}, expected a step number from 0 up")
    if not 0 < subsample <= 1:
        raise ValueError(f"got subsample={subsample}, expected a share above 0, at most 1")
    if noise_rows not in get_args(NoiseRows):
        raise ValueError(f"got noise_rows={noise_rows!r}, expected one of {get_args(NoiseRows)}")


def drawn_anchor_noise(key: jax.Array, position: Tree) -> Tree:
    """Draw standard Gaussian noise in the shapes of a position, scaled to a mean square of 1.

    In many dimensions nearly all draws are at about that distance from the mean; an anchor at
    exactly that distance has the temperature of the prior (the sum of (w / std)^2 is the number of
    weights).
    """
    noise = gaussian_like(key, position)
    root = jnp.sqrt(
        optax.tree.size(noise) / jnp.maximum(optax.tree.norm(noise, squared=True), 1e-6)
    )
    return optax.tree.scale(root, noise)
