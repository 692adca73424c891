"""Laplace approximation: a Gaussian at a mode, from the curvature of the log-density there."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from bnn_ppl.methods.defaults import FIT, FITTED
from bnn_ppl.methods.ensembles.descent import descent_to_mode, starting_descent
from bnn_ppl.methods.laplace_approximation.block_gaussian import (
    Structure,
    blocks_of,
    drawn,
    fitted,
    usual_structure,
)
from bnn_ppl.methods.laplace_approximation.fisher import evaluated, shares
from bnn_ppl.methods.laplace_approximation.fisher_labels import Curvature
from bnn_ppl.methods.layers.layer_calls import called_layers
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.training.held_out_noise import ROWS_A_WEIGHT
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import check_no_factors, check_number_of_rows
from bnn_ppl.model.trace import Terms, likelihood_alone
from bnn_ppl.runtime.checks import check_choice, check_positive
from bnn_ppl.runtime.compilation.program_parts import program_of

Array = jax.Array
Tree = Any
PriorPrecision: TypeAlias = Literal["model", "marginal_likelihood"]

_BATCH_SIZE = 500  # rows whose curvature is computed at a time
_FEW_NUMBERS = 1000  # elements of a site up to which its prior may correlate them
# Minimum precisions for non-Gaussian priors, in units of 1 / std^2. That of constrained sites is
# what a half-Cauchy, and a uniform on an interval, have at their modes: the likelihood of a noise
# close to its lower bound has almost no curvature in the unconstrained value.
_LEAST_PRECISION, _LEAST_CONSTRAINED = 1e-6, 0.5
_GRID = 161  # multipliers of the prior precision to try, from 1e-4 to 1e4
_NARROWINGS = 30  # golden-section steps from the best of them, each to 0.62 of the interval


class LaplaceState(NamedTuple):
    """A position with the curvature of the batches seen so far, after `finish` the covariance."""

    position: Tree
    factors: tuple  # by block
    num_rows: Array  # rows seen so far
    log_likelihood: Array  # sum over batches of the estimate for all rows times the rows seen
    prior: "Prior"
    log_evidence: Array
    multiplier: Array  # of the precision of Gaussian priors


class Prior(NamedTuple):
    """The (tempered) prior around the position."""

    precision: dict[str, Array]  # minus the second derivative; broadcasts to the site
    log_density: Array
    distance: Array  # sum of precision * (w - mean)^2 over the weights that the multiplier acts on


@describe(
    FIT,
    gives="a Gaussian about a point, and the evidence",
    cost="one pass over the rows in all",
    bias="one mode, and only its local shape",
    length="a mode, one pass over the rows, 100 draws",
    predictive="linearised",
)
def laplace(
    posterior: Posterior,
    structure: Structure | None = None,
    *,
    curvature: Curvature = "gauss_newton",
    prior_precision: PriorPrecision = "model",
    damping: float | None = None,
) -> Method:
    r"""Laplace approximation at the position where the run starts (MacKay, 1992).

    .. math:: q(w) = N(w; w^*, \Lambda^{-1}), \qquad \Lambda = \frac{N}{n T} \sum_{i=1}^{n} F_i
        + \Lambda_0, \qquad
        F_i = E_{y | x_i, w^*} [\nabla \log p(y | x_i, w^*) \nabla \log p(y | x_i, w^*)^T]

    Each warm-up step adds the curvature F of its batch's rows at the position, which does not move;
    after the last step the sum over the n rows seen is scaled to all N and the factors are
    decomposed, so that a draw is only a matrix product. The run starts at the optimum of
    :func:`bnn_ppl.descent`, unless ``init=`` is given: at the mode where there are at least 5 rows
    for each weight; otherwise a learnt noise is that of held-out rows, since a mode then takes
    noise for signal. By default it visits each row once, 500 at a time::

        draws = run(key, posterior, laplace(posterior))
        predict(posterior, draws, data)

    T divides the log-likelihood, and with ``tempered="posterior"`` the log prior too. For a
    nonlinear network these draws are often too wide, so they predict, by default, with the network
    linearised at the mode (:func:`bnn_ppl.linearised`), for which the Gaussian is exact (Immer et
    al., 2021). Several chains are approximations about several modes, averaged.

    Parameters
    ----------
    posterior
        Posterior to approximate.
    structure
        Structure of the covariance. ``"diagonal"``: independent weights, from the exact diagonal of
        the curvature. ``"kronecker"``: one Kronecker-factored block of kernel and bias per dense or
        convolutional layer (Ritter et al., 2018; Grosse & Martens, 2016, for convolutions); weights
        of other sites are independent. ``"full"``: the full covariance of all sites.
        ``"last_layer"``: the full covariance of the last such layer's kernel and bias; all other
        sites stay fixed (Daxberger et al., 2021). By default ``"kronecker"``; for a model without
        such layers ``"full"``, or ``"diagonal"`` if it has more than 8,000 weights.
    curvature
        Curvature F of a row. ``"gauss_newton"``: the expectation over y, exact for Normal and
        Bernoulli likelihoods of few outputs and for Categorical ones; for others (Poisson,
        StudentT) the mean over 32 draws of y for each row. ``"empirical"``: the outer product of
        the gradient at the observed y, for any likelihood.
    prior_precision
        Precision of the prior. ``"model"``: the model's own. ``"marginal_likelihood"``: the model's
        times the number c from 1e-4 to 1e4 that maximises the log evidence (see Notes), found on a
        logarithmic grid of 161 values and refined by golden-section search. The position does not
        move: to optimise both, alternate with refitting the mode under c times the precision, until
        c = 1.
    damping
        Only for ``"kronecker"``: number d added to the diagonal of both factors of a layer, instead
        of the precision of its prior: the precision of the layer is the Kronecker product of
        sqrt(N/T) A + d I and sqrt(N/T) G + d I (Ritter et al., 2018, with d the root of the prior's
        precision). Antoran et al.'s ``hessian_diag_sig``, 0.15 by default, is 1 / d. The log
        evidence is then not that of any model. By default the prior is added exactly (see Notes).

    Raises
    ------
    ValueError
        If an option is unknown; if ``"full"`` or ``"last_layer"`` would cover more than 8,000
        weights; if the structure needs a dense or convolutional layer and none is called; if a
        convolution is grouped, masked or not zero-padded (``"kronecker"``).

    Notes
    -----
    :math:`\Lambda_0` is diagonal. For a site with a Gaussian prior it is 1 / scale^2 given the
    other sites at the position, over T if T also divides the prior. For other sites it is minus the
    second derivative of the (tempered) log prior and log-Jacobian with respect to each
    unconstrained element, at least 1e-6 / std^2; for constrained values at least 1/2, over T
    if T also divides the prior. Priors without curvature (such as the Laplace distribution)
    therefore hardly constrain weights that the data do not determine: prefer a Gaussian prior. The
    elements of sites of more than 1,000 are treated as independent under such a prior.

    A layer's Kronecker factors are means over the rows seen: A of :math:`a a^T`, with a the inputs
    that the kernel multiplies (and 1 for the bias), and G of :math:`E_y[g g^T]`, with g the
    gradient of the row's log-likelihood with respect to the layer's outputs. Over the positions of
    a convolution A is summed and G averaged. They are whitened by the prior, so that adding the
    prior is exact: with s the tempered prior's standard deviations by input (and of the bias),
    A' = s A s, eigenvectors U and eigenvalues l of A' and of G, and Z standard normal,

    .. math:: W = W^* + s\, U_A \left(Z / \sqrt{c + \tfrac{N}{T}\, l_A l_G^T}\right) U_G^T.

    If a kernel's prior precision differs between the outputs of an input, the mean over them is
    used. The multiplier c acts on layers whose kernel and bias both have Gaussian priors, and is 1
    for all others.

    Where ``numpyro.handlers.scale`` multiplies a row's log-likelihood, its curvature is multiplied
    by the same number.

    The group ``fitted`` of the result holds ``<site>.loc`` and ``<site>.scale``, the marginal
    standard deviations of the unconstrained weights (0 for fixed sites); a square root of their
    covariance, ``root`` (full, over all raveled sites) or ``<layer>.root_inputs``,
    ``<layer>.root_outputs`` and ``<layer>.root_along`` (for a layer, :math:`s\, U_A`,
    :math:`U_G` and the numbers that divide Z above); ``prior_precision_multiplier``; and
    ``log_evidence``, over the P weights that are not fixed:

    .. math:: \log p(D | w^*) + \log p(w^*; c) + \tfrac{P}{2} \log 2\pi
        - \tfrac12 \log \det \Lambda(c).

    At T = 1 this is the Laplace approximation of log p(D), for ``"last_layer"`` of log p(D | the
    other sites); otherwise it is that of the log integral of the tempered density, in which c
    multiplies the tempered precision of the Gaussian priors.
    """
    check_choice("structure", structure or "full", Structure)
    check_choice("curvature", curvature, Curvature)
    check_choice("prior_precision", prior_precision, PriorPrecision)
    check_no_factors(posterior, "laplace")
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    rows = posterior.rows.examples
    few = jax.tree.map(lambda leaf: leaf[:2], rows)
    check_number_of_rows(
        posterior.log_likelihood, shapes, rows, len(few[1]), "laplace, by two rows,"
    )
    gaussian = set(jax.eval_shape(posterior.density.terms, shapes, few).normals)
    chosen = gaussian if prior_precision == "marginal_likelihood" else set()
    layers = called_layers(posterior, shapes, few)
    structure = usual_structure(posterior, layers) if structure is None else structure
    _check_damping(damping, structure, prior_precision)
    blocks = tuple(blocks_of(posterior, structure, layers, shapes, chosen, damping))
    tapped = {name: call for block in blocks for name, call in block.layers.items()}
    free = [site for block in blocks for site in block.sites]
    scaled = [site for block in blocks for site in block.scaled]
    num_free, num_scaled = (sum(shapes[site].size for site in sites) for sites in (free, scaled))

    def init(key: Array, position: Tree, batch: Any) -> LaplaceState:
        del key
        prior = _prior(posterior, free, scaled, position, batch)
        factors = tuple(block.begin(position) for block in blocks)
        zero, one = jnp.zeros(()), jnp.ones(())
        return LaplaceState(position, factors, zero, zero, prior, zero, one)

    def curvature_of(position: Tree, batch: Any) -> tuple[tuple, Array]:
        rows = evaluated(posterior, tapped, curvature, position, batch)
        return tuple(block.curvature(rows) for block in blocks), rows.present.sum()

    jax.eval_shape(curvature_of, shapes, few)  # refuses unsupported layers and likelihoods

    def warmup(key: Array, state: LaplaceState, batch: Any) -> tuple[LaplaceState, dict]:
        del key
        factors, num_rows = curvature_of(state.position, batch)
        rows = posterior.log_likelihood(state.position, batch)
        log_likelihood = posterior.density.total(likelihood_alone(rows), batch)
        info = step_info(state.prior.log_density + log_likelihood)
        return state._replace(
            factors=jax.tree.map(jnp.add, state.factors, factors),
            num_rows=state.num_rows + num_rows,
            log_likelihood=state.log_likelihood + num_rows * log_likelihood,
        ), info

    def finish(state: LaplaceState) -> LaplaceState:
        factors = jax.tree.map(lambda leaf: leaf / state.num_rows, state.factors)
        pairs = zip(blocks, factors, strict=True)
        fits = [block.fit(own, state.prior.precision) for block, own in pairs]
        log_evidence = partial(_log_evidence, state, fits, num_free, num_scaled)
        multiplier = jnp.ones(())
        if prior_precision == "marginal_likelihood":
            multiplier = 10.0 ** _maximiser(lambda power: log_evidence(10.0**power))
        return state._replace(
            factors=tuple(fit.covariance(multiplier) for fit in fits),
            log_evidence=log_evidence(multiplier),
            multiplier=multiplier,
        )

    def draw(key: Array, state: LaplaceState) -> Tree:
        return drawn(blocks, key, state.position, state.factors)

    def parameters(state: LaplaceState) -> dict[str, Array]:
        evidence = {"log_evidence": state.log_evidence}
        evidence |= {"prior_precision_multiplier": state.multiplier}
        return fitted(blocks, state.position, state.factors) | evidence

    settings: dict[str, Any] = {"method": "laplace", "structure": structure, "curvature": curvature}
    settings |= {"prior_precision": prior_precision, "damping": damping}
    size = posterior.num_rows // -(-posterior.num_rows // _BATCH_SIZE)  # of batches of one size
    determined = posterior.num_rows >= ROWS_A_WEIGHT * posterior.num_weights
    return Method(
        init,
        lambda key, state, batch: (state, {}),
        draw,
        warmup,
        settings,
        parameters,
        logdensity=posterior.logdensity,
        draws_from="gaussian" if structure == "diagonal" else "structured_gaussian",
        raw_rows=True,
        finish=finish,
        start=(descent_to_mode if determined else starting_descent)(posterior),
        counts=FITTED._replace(num_warmup=1, in_epochs=True, batch_size=size, num_chains=1),
    )


def _log_evidence(
    state: LaplaceState, fits: list, num_free: int, num_scaled: int, multiplier: Array
) -> Array:
    """Log evidence with the prior precision of the scaled weights times `multiplier`."""
    prior = state.prior
    at_mode = state.log_likelihood / state.num_rows + prior.log_density
    # Change in the log prior density when its precision is multiplied by c.
    change = num_scaled * jnp.log(multiplier) - (multiplier - 1) * prior.distance
    log_det = sum(fit.log_det(multiplier) for fit in fits)
    return at_mode + 0.5 * (change + num_free * math.log(2 * math.pi) - log_det)


# --- the prior


def _prior(
    posterior: Posterior, free: list[str], scaled: list[str], position: Tree, batch: Any
) -> Prior:
    terms = posterior.density.terms(position, batch)
    share, _ = shares(posterior, batch)
    precision, distance = {}, jnp.zeros(())
    for site in free:
        if site not in terms.normals:
            precision[site] = _prior_curvature(posterior, site, position, batch)
            continue
        loc, scale = terms.normals[site]
        precision[site] = share / scale**2
        if site in scaled:
            distance += jnp.sum(precision[site] * (position[site] - loc) ** 2)
    log_density = share * sum(jnp.sum(terms.log_priors[site]) for site in free)
    if len(free) == len(position):
        log_density += terms.log_jacobian
    return Prior(precision, log_density, distance)


def _prior_curvature(posterior: Posterior, site: str, position: Tree, batch: Any) -> Array:
    """Minus the second derivative of the log prior with respect to each element of a site."""

    def terms_at(own: Array) -> Terms:
        return posterior.density.terms(position | {site: own}, batch)

    def log_prior(own: Array) -> Array:
        return posterior.density.total(terms_at(own).prior_alone, batch)

    own = position[site]
    program = program_of(lambda _, own: log_prior(own), (), own)

    def alone(own: Array) -> Array:
        """Leave out the likelihood, of which JAX may lack second derivatives."""
        return program.evaluate({program.now[0]: own}, program.jaxpr.outvars)[0]

    def along(direction: Array) -> Array:
        return jax.jvp(jax.grad(alone), (own,), (direction,))[1]

    if own.size > _FEW_NUMBERS:
        second = along(jnp.ones_like(own))  # the diagonal of a diagonal Hessian, in one product
    else:
        each = jnp.eye(own.size, dtype=own.dtype).reshape(own.size, *own.shape)
        second = jax.lax.map(lambda one: jnp.sum(one * along(one)), each).reshape(own.shape)
    constrained = jax.grad(lambda own: terms_at(own).log_jacobian)(own) != 0
    least = jnp.where(constrained, _LEAST_CONSTRAINED, _LEAST_PRECISION)
    return jnp.maximum(-second, least / posterior.prior.std[site] ** 2)


# --- the multiplier


def _maximiser(function: Callable[[Array], Array]) -> Array:
    """Find the maximiser in [-4, 4]: the best on a grid, refined by golden-section search."""
    grid = jnp.linspace(-4.0, 4.0, _GRID)
    values = jax.lax.map(function, grid)
    best = jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values))
    ends = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, _GRID - 1)]
    golden = (math.sqrt(5) - 1) / 2

    def narrowed(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        left, right = high - golden * (high - low), low + golden * (high - low)
        lower = function(left) > function(right)
        return jnp.where(lower, low, left), jnp.where(lower, right, high)

    low, high = jax.lax.fori_loop(0, _NARROWINGS, narrowed, ends)
    return (low + high) / 2


def _check_damping(
    damping: float | None, structure: Structure, prior_precision: PriorPrecision
) -> None:
    if damping is None:
        return
    check_positive("damping", damping)
    if structure != "kronecker" or prior_precision != "model":
        raise ValueError(
            f"got damping with structure={structure!r} and prior_precision={prior_precision!r}, "
            "expected 'kronecker' and 'model': it stands in place of the prior of each layer"
        )
