"""Noisy K-FAC: a matrix-normal posterior for each layer, and K-FAC, its point estimate."""

from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import TRAINED
from bnn_ppl.methods.laplace_approximation.block_gaussian import blocks_of, drawn, fitted
from bnn_ppl.methods.laplace_approximation.covariance_blocks import Block
from bnn_ppl.methods.laplace_approximation.fisher import evaluated
from bnn_ppl.methods.laplace_approximation.fisher_labels import Labels
from bnn_ppl.methods.layers.layer_calls import called_layers
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.variational.kl_weight import weighted_gradient
from bnn_ppl.methods.variational.mean_field import (
    at_the_mean,
    check_damping,
    gaussian_entropy,
    likelihood_weight,
    running_mean,
)
from bnn_ppl.methods.variational.natural_gradient import NaturalGradient
from bnn_ppl.model.posterior import Posterior, with_prior_read
from bnn_ppl.runtime.checks import check_choice, check_count, check_positive
from bnn_ppl.runtime.compilation.branches import where_needed

Array = jax.Array
Tree = Any
PriorSplit: TypeAlias = Literal["factored", "exact"]

_MEMORIES = 10  # memory lengths of the factors, after which little of their start is left


class Spread(NamedTuple):
    """The covariance as of the last decomposition, by block."""

    covariances: tuple
    log_det: Array  # of the precision of all weights
    damped: tuple | None  # covariances for the steps of the mean, if different


class NoisyKfacState(NamedTuple):
    """A Gaussian over the weights, and the running means that determine its covariance."""

    loc: Tree
    momentum: Tree
    factors: tuple  # of the likelihood's curvature, by block; running means from 0
    prior: Tree  # precision, by site; a running mean that begins at the initial one
    spread: Spread
    num_steps: Array


class Fit(NamedTuple):
    """What is fitted, and how."""

    posterior: Posterior
    blocks: tuple
    labels: Labels
    deterministic: bool
    damping: float  # of the steps, added to the prior's precision


@describe(
    TRAINED,
    gives="a Gaussian, correlated within each layer",
    cost="2 gradients on a minibatch, and eigenvectors now and then",
    bias="layers are independent, inputs and output gradients of a layer too",
    takes_batch_statistics=False,
)
def noisy_kfac(
    posterior: Posterior,
    learning_rate: float | Schedule | None = None,
    *,
    deterministic: bool = False,
    labels: Labels = "sampled",
    prior_split: PriorSplit = "factored",
    damping: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    num_samples: int = 1,
    init_std: float = 0.01,
    decompose_every: int = 10,
    kl_weight: float | Schedule = 1.0,
) -> Method:
    r"""Noisy K-FAC (Zhang et al., 2018, algorithm 2).

    Natural-gradient ascent on the evidence lower bound of a Gaussian that is matrix-normal for the
    kernel and bias of each dense or convolutional layer, :math:`W \sim MN(M, \tfrac{T}{N}
    [A^\gamma]^{-1}, [S^\gamma]^{-1})`. With a the inputs of the layer (and 1 for the bias), g the
    gradient of a row's log-likelihood with respect to its outputs, and V the gradient of the mean
    log-likelihood plus :math:`\tfrac{T}{N} \log p(W)`,

    .. math:: A \gets \beta_2 A + (1 - \beta_2) \overline{a a^T}, \qquad
        S \gets \beta_2 S + (1 - \beta_2) \overline{g g^T}, \qquad
        M \gets M + \alpha [A^\gamma]^{-1} V [S^\gamma]^{-1}

    .. math:: A^\gamma = A + \pi \sqrt\gamma I, \qquad
        S^\gamma = S + \tfrac1\pi \sqrt\gamma I, \qquad
        \pi^2 = \frac{\mathrm{tr}(A) / \dim A}{\mathrm{tr}(S) / \dim S}, \qquad
        \gamma = \frac{T}{N \eta}

    where :math:`\eta` is the variance of a Gaussian prior. V has momentum as in
    :func:`bnn_ppl.vogn`, and a learning rate of 1 gives a Newton step. If the prior variances
    differ between the inputs of a layer, the factors are in units of the prior's standard
    deviations, and :math:`\gamma = T / N`. Weights of other sites, and of layers without factors
    (grouped convolutions), are independent, with the precision
    :math:`\tfrac{N}{T} \overline{g^2} + 1 / \eta`. Train in warm-up and draw without stepping::

        run(key, posterior, noisy_kfac(posterior), num_warmup=20_000, batch_size=128,
            num_draws=100, thin=0)

    Parameters
    ----------
    posterior
        Posterior to approximate.
    learning_rate
        Learning rate :math:`\alpha`, a number or a schedule. None: tuned by trying eight values,
        starting from a point estimate; training stops automatically (as in
        :func:`bnn_ppl.descent`).
    deterministic
        Whether to compute gradients and factors at M instead of at draws, with the point M as the
        result: K-FAC (Martens & Grosse, 2015), with the prior as weight decay.
    labels
        Labels y at which g is taken for S and for the squares. ``"sampled"``: one draw per row from
        the network's own prediction, so that S estimates the Fisher information, as in K-FAC.
        ``"gauss_newton"``: the expectation over these, exact for Normal and Bernoulli likelihoods
        of few outputs and for Categorical ones, otherwise the mean over 32 draws for each row.
        ``"empirical"``: the observed labels.
    prior_split
        ``"factored"``: the prior's precision is split between the factors as above, which adds
        cross terms to the precision. ``"exact"``: it is added to N/T times the Kronecker product of
        A and S in the eigenbasis of the factors, without cross terms.
    damping
        Extrinsic damping (the paper's gamma_ex), added to gamma for the steps of the mean alone.
    beta1
        Decay rate :math:`\beta_1` of the running mean of gradients.
    beta2
        Decay rate :math:`\beta_2` of the running means of A, S and squares: 1 minus the paper's
        beta.
    num_samples
        Number of draws of the weights per step, each with a gradient and factors.
    init_std
        Initial standard deviation of every weight. After t steps its precision has the weight
        :math:`\beta_2^t`, and that of the prior and the curvature of the likelihood have
        :math:`1 - \beta_2^t`.
    decompose_every
        Number of steps between decompositions of the factors (the paper's ``T_inv``).
    kl_weight
        Weight of the divergence from the prior, as in :func:`bnn_ppl.mfvi`; the paper's
        :math:`\lambda`. Needs `learning_rate`.

    Returns
    -------
    Method
        Its group ``fitted`` holds, in unconstrained space, the means (``<site>.loc``), the marginal
        standard deviations (``<site>.scale``), the square roots of the layers' covariances as
        :func:`bnn_ppl.laplace` names them, and ``num_steps``.

    Raises
    ------
    ValueError
        If a number is out of range or an option unknown; if the model calls no dense or
        convolutional layer, or one twice.
    """
    posterior = with_prior_read(posterior)
    training = NaturalGradient(posterior, learning_rate, beta1, beta2, num_samples, kl_weight)
    check_positive("init_std", init_std)
    check_count("decompose_every", decompose_every)
    check_choice("labels", labels, Labels)
    check_choice("prior_split", prior_split, PriorSplit)
    check_damping(damping)
    blocks = _blocks(posterior, prior_split)
    fit = Fit(posterior, blocks, labels, deterministic, likelihood_weight(posterior) * damping)

    def init(key: Array, position: Tree, batch: Any) -> NoisyKfacState:
        del key
        normals = posterior.density.terms(position, batch).normals
        _, prior = at_the_mean(posterior, normals, position, position)
        prior = jax.tree.map(lambda own: jnp.full_like(own, init_std**-2, float), prior)
        factors = tuple(block.begin(position) for block in blocks)
        momentum = jax.tree.map(jnp.zeros_like, position)
        spread = _decomposed(fit, factors, prior)
        return NoisyKfacState(position, momentum, factors, prior, spread, jnp.zeros((), int))

    def step(
        key: Array, state: NoisyKfacState, batch: Any, rate: Array | None = None
    ) -> tuple[NoisyKfacState, dict]:
        lp, gradient, *new = training.estimate(partial(_estimate, fit), key, state, batch)
        factors, prior = running_mean(beta2, (state.factors, state.prior), tuple(new))
        num_steps = state.num_steps + 1
        due, anew = num_steps % decompose_every == 0, partial(_decomposed, fit)
        spread = where_needed(due, anew, lambda *_: state.spread, factors, prior)
        rate = training.rate(rate, state) / (1 - beta1**num_steps)
        momentum = running_mean(beta1, state.momentum, gradient)
        loc = optax.tree.add_scale(state.loc, rate, _preconditioned(fit, spread, momentum))
        info = step_info(lp, num_samples)
        if not deterministic:
            info["elbo"] = lp + gaussian_entropy(posterior.num_weights, spread.log_det)
        return NoisyKfacState(loc, momentum, factors, prior, spread, num_steps), info

    def parameters(state: NoisyKfacState) -> dict[str, Array]:
        own = fitted(blocks, state.loc, state.spread.covariances)
        return own | {"num_steps": state.num_steps}

    settings = {"method": "noisy_kfac", "deterministic": deterministic, "labels": labels}
    settings |= {"prior_split": prior_split, "damping": damping, "init_std": init_std}
    settings |= {"decompose_every": decompose_every} | training.settings
    method = Method(
        init,
        step,
        partial(_position, fit),
        settings=settings,
        fitted=None if deterministic else parameters,
        logdensity=posterior.logdensity,
        draws_from="point" if deterministic else "structured_gaussian",
        raw_rows=True,
    )
    method = training.trained(method, step, _MEMORIES, "lp" if deterministic else "elbo")
    return method._replace(start=None) if deterministic else method


def _estimate(
    fit: Fit, key: Array, state: NoisyKfacState, batch: Any, kl: Array | None
) -> tuple[Array, Tree, tuple, Tree]:
    """Log-density, gradient, factors and the prior's precision at a draw of the weights."""
    posterior, blocks = fit.posterior, fit.blocks
    draw_key, label_key = jax.random.split(key)
    position = _position(fit, draw_key, state)

    gradient, (lp, normals) = weighted_gradient(posterior, position, batch, kl)
    away = optax.tree.sub(position, state.loc)
    gradient, prior = at_the_mean(posterior, normals, gradient, away)
    layers = {name: call for block in blocks for name, call in block.layers.items()}
    rows = evaluated(posterior, layers, fit.labels, position, batch, label_key)
    if kl is not None:
        rows = rows._replace(weights=rows.weights / kl)
    num_rows = rows.present.sum()
    factors = jax.tree.map(lambda own: own / num_rows, tuple(b.curvature(rows) for b in blocks))
    return lp, gradient, factors, prior


def _position(fit: Fit, key: Array, state: NoisyKfacState) -> Tree:
    """Draw the weights, or take the mean."""
    if fit.deterministic:
        return state.loc
    return drawn(fit.blocks, key, state.loc, state.spread.covariances)


def _decomposed(fit: Fit, factors: tuple, prior: Tree) -> Spread:
    covariances, log_det = _covariances(fit.blocks, factors, prior)
    if not fit.damping:
        return Spread(covariances, log_det, None)
    damped = {site: own + fit.damping for site, own in prior.items()}
    return Spread(covariances, log_det, _covariances(fit.blocks, factors, damped)[0])


def _covariances(blocks: tuple, factors: tuple, prior: Tree) -> tuple[tuple, Array]:
    """Return the covariance of each block, and the log-determinant of the full precision."""
    one = jnp.ones(())  # of the prior's multiplier
    fits = [block.fit(own, prior) for block, own in zip(blocks, factors, strict=True)]
    log_det = sum((fit.log_det(one) for fit in fits), jnp.zeros(()))
    return tuple(fit.covariance(one) for fit in fits), log_det


def _preconditioned(fit: Fit, spread: Spread, gradient: Tree) -> Tree:
    """Multiply a gradient by the (damped) covariance."""
    covariances = spread.covariances if spread.damped is None else spread.damped
    change: Tree = {}
    for block, own in zip(fit.blocks, covariances, strict=True):
        change |= block.times(own, gradient)
    return change


def _blocks(posterior: Posterior, prior_split: str) -> tuple[Block, ...]:
    """Divide the sites into layers that have factors, and all others."""
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    few = jax.tree.map(lambda leaf: leaf[:2], posterior.rows.examples)
    calls = called_layers(posterior, shapes, few)
    layers = {name: call for name, call in calls.items() if call.has_factors}
    if not layers:
        raise ValueError(
            "got a model that calls no dense or ungrouped convolutional layer, expected at least "
            "one to factor: use vogn or ivon"
        )
    splits = prior_split == "factored"
    return tuple(blocks_of(posterior, "kronecker", layers, shapes, set(), splits_prior=splits))
