"""Laplace's approximation: a Gaussian about a mode, as wide as the log-density is curved there."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import FITTED, DrawsFrom, Method, describe, step_info
from bnn_ppl.methods.shared.covariance_blocks import Structure, blocks_of
from bnn_ppl.methods.shared.fisher import Curvature, called_layers, evaluated, shares
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import likelihood_alone

Array = jax.Array
Tree = Any
PriorPrecision: TypeAlias = Literal["model", "marginal_likelihood"]

_FEW_NUMBERS = 1000  # of a site whose prior may correlate them, as a multivariate normal does
_LEAST_PRECISION = 1e-6  # of priors that are not Gaussian, in units of 1 / std^2
_GRID = 161  # multipliers of the prior precision from 1e-4 to 1e4 that are tried
_NARROWINGS = 30  # of the interval about the best, each to 0.62 of its length


class LaplaceState(NamedTuple):
    """A position and the curvature of the batches seen there, or after the last the covariance."""

    position: Tree
    factors: tuple  # of each block
    num_rows: Array  # seen
    log_likelihood: Array  # of all rows, times rows seen
    prior: "Prior"
    log_evidence: Array
    multiplier: Array  # of the Gaussian priors' precision


class Prior(NamedTuple):
    """The prior about the position, as tempered."""

    precision: dict[str, Array]  # minus the second derivative; broadcasts to the site
    log_density: Array
    distance: Array  # sum of precision * (w - mean)^2 of what the multiplier acts on


@describe(
    gives="a Gaussian around a point, and the evidence",
    cost="curvature on a batch; one pass over the rows in all",
    kind="fit",
    trained_once=True,
    starts_from="descent",
    counts=FITTED._replace(num_warmup=1),
)
def laplace(
    posterior: Posterior,
    structure: Structure = "kronecker",
    *,
    curvature: Curvature = "gauss_newton",
    prior_precision: PriorPrecision = "model",
) -> Method:
    r"""Laplace's approximation about the position where the run starts (MacKay, 1992).

    .. math:: q(w) = N(w; w^*, \Lambda^{-1}), \qquad \Lambda = \frac{N}{n T} \sum_{i=1}^{n} F_i
        + \Lambda_0, \qquad
        F_i = E_{y | x_i, w^*} [\nabla \log p(y | x_i, w^*) \nabla \log p(y | x_i, w^*)^T]

    Each warm-up step adds the curvature F of its batch's rows at the position, which stays; after
    the last one the n rows seen stand for all N, the factors are decomposed, and drawing only
    multiplies. Start from a mode, and look at each row once::

        mode = run(key, posterior, descent(posterior), num_warmup=20_000, batch_size=128,
                   num_draws=1, thin=0)
        run(key, posterior, laplace(posterior), init=mode, num_warmup=num_rows // 500,
            batch_size=500, num_draws=100, thin=0)

    T divides the likelihood, and the prior too where the posterior was conditioned so. Draws of the
    weights in a network that is not linear are often too wide for it:
    :func:`bnn_ppl.linearised` predicts with the network that this Gaussian is exact for
    (Immer et al., 2021).

    Parameters
    ----------
    posterior
        What to approximate.
    structure
        ``"diagonal"``: independent weights, from each weight's exact curvature. ``"kronecker"``:
        for each dense and convolutional layer its kernel and bias together, their covariance that
        of a product of inputs and outputs (Ritter et al., 2018; Grosse & Martens, 2016, for
        convolutions); other sites independent. ``"full"``: all sites together. ``"last_layer"``:
        the last such layer's kernel and bias together; other sites stay where they are (Daxberger
        et al., 2021).
    curvature
        ``"gauss_newton"``: the expectation over y above, exact for Normal, Categorical and
        Bernoulli likelihoods. ``"empirical"``: the outer product at the y observed, of any.
    prior_precision
        ``"model"``: the model's own. ``"marginal_likelihood"``: times the number c from 1e-4 to
        1e4 that maximises the log evidence below; the best of 161 on a logarithmic grid, then
        golden sections about it. The position stays: at a mode of the model's own prior, c = 1
        means that no other c is better, and descending again with c times the precision and so on
        ends there.

    Raises
    ------
    ValueError
        If an argument is unknown; if ``"full"`` or ``"last_layer"`` means more than 8,000 weights;
        if no dense or convolutional layer is called where the structure needs one, or a convolution
        is grouped, masked or padded otherwise than with zeros (``"kronecker"``); if a likelihood is
        neither Normal nor of finitely many values (``"gauss_newton"``).

    Notes
    -----
    :math:`\Lambda_0` is diagonal. For a Gaussian site it is 1 / scale^2 given the other sites at
    the position, over T where T divides the prior too. For others it is minus the second derivative
    of log prior (as tempered) and log-Jacobian by each unconstrained number, at least 0, plus
    1e-6 / std^2: priors without curvature (Laplace's) leave what the data do not determine nearly
    free, so prefer a Gaussian one. The numbers of a site of more than 1,000 are taken for
    independent under such a prior.

    A layer's Kronecker factors are means over the rows seen: A of :math:`a a^T`, with a what the
    kernel is multiplied by (and 1 for the bias), and G of :math:`E_y[g g^T]`, with g the gradient
    of the row's log-likelihood by the layer's outputs. Over the positions of a convolution A is
    summed and G averaged. They are whitened by the prior, so that the prior adds to the curvature
    exactly: with s the tempered prior's standard deviations by input (and of the bias), A' = s A s,
    eigenvectors U and eigenvalues l of A' and of G, and Z standard normal,

    .. math:: W = W^* + s\, U_A \left(Z \big/ \sqrt{c + \tfrac{N}{T}\, l_A l_G^T}\right) U_G^T.

    Where a kernel's prior precision differs among the outputs of an input, its mean over them
    counts. The multiplier c acts on a layer whose kernel and bias both have Gaussian priors, and
    is 1 in the others.

    A row's likelihood is taken for the density of its distribution, unscaled (by
    ``numpyro.handlers.scale``).

    The result's group ``fitted`` holds ``<site>.loc`` and ``<site>.scale``, the marginal standard
    deviations of the unconstrained weights (0 of sites that stay), ``prior_precision_multiplier``,
    and ``log_evidence``, of the P weights that do not stay:

    .. math:: \log p(D | w^*) + \log p(w^*; c) + \tfrac{P}{2} \log 2\pi
        - \tfrac12 \log \det \Lambda(c).

    At T = 1 that is Laplace's log p(D), for ``"last_layer"`` log p(D | the other sites); otherwise
    the log of the integral of the tempered density, in which c multiplies the precision of the
    Gaussian priors as tempered.
    """
    check_arguments(posterior=posterior)
    _check(structure, curvature, prior_precision)
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    few = jax.tree.map(lambda leaf: leaf[:2], posterior.data)
    gaussian = set(jax.eval_shape(posterior.terms, shapes, few).normals)
    chosen = gaussian if prior_precision == "marginal_likelihood" else set()
    layers = called_layers(posterior, shapes, few)
    blocks = tuple(blocks_of(posterior, structure, layers, shapes, chosen))
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

    jax.eval_shape(curvature_of, shapes, few)  # refuses what it cannot do

    def warmup(key: Array, state: LaplaceState, batch: Any) -> tuple[LaplaceState, dict]:
        del key
        factors, num_rows = curvature_of(state.position, batch)
        rows = posterior.log_likelihood(state.position, batch)
        log_likelihood = posterior.total(likelihood_alone(rows), batch)
        info = step_info(state.prior.log_density + log_likelihood)
        return _added(state, factors, num_rows, log_likelihood), info

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

    kind: DrawsFrom = "gaussian" if structure == "diagonal" else "structured_gaussian"
    draw, fitted = partial(_drawn, blocks), partial(_fitted, blocks)
    settings = {"method": "laplace", "structure": structure, "curvature": curvature}
    settings |= {"prior_precision": prior_precision}
    density = posterior.logdensity
    return Method(
        init, _stays, draw, warmup, settings, finish, fitted, logdensity=density, draws_from=kind
    )


def _added(
    state: LaplaceState, factors: tuple, num_rows: Array, log_likelihood: Array
) -> LaplaceState:
    return state._replace(
        factors=jax.tree.map(jnp.add, state.factors, factors),
        num_rows=state.num_rows + num_rows,
        log_likelihood=state.log_likelihood + num_rows * log_likelihood,
    )


def _stays(key: Array, state: LaplaceState, batch: Any) -> tuple[LaplaceState, dict]:
    del key, batch
    return state, {}


def _log_evidence(
    state: LaplaceState, fits: list, num_free: int, num_scaled: int, multiplier: Array
) -> Array:
    """Log evidence where `multiplier` times the prior precision of the scaled weights counts."""
    prior = state.prior
    at_mode = state.log_likelihood / state.num_rows + prior.log_density
    # Normalised Gaussians of c times the precision, instead of once.
    change = num_scaled * jnp.log(multiplier) - (multiplier - 1) * prior.distance
    log_det = sum(fit.log_det(multiplier) for fit in fits)
    return at_mode + 0.5 * (change + num_free * math.log(2 * math.pi) - log_det)


def _drawn(blocks: tuple, key: Array, state: LaplaceState) -> Tree:
    position = dict(state.position)
    for i, (block, own) in enumerate(zip(blocks, state.factors, strict=True)):
        for site, change in block.draw(jax.random.fold_in(key, i), own).items():
            position[site] += change
    return position


def _fitted(blocks: tuple, state: LaplaceState) -> dict[str, Array]:
    scales = jax.tree.map(jnp.zeros_like, state.position)
    for block, own in zip(blocks, state.factors, strict=True):
        scales |= block.scales(own)
    return {
        **{f"{site}.loc": mean for site, mean in state.position.items()},
        **{f"{site}.scale": scale for site, scale in scales.items()},
        "log_evidence": state.log_evidence,
        "prior_precision_multiplier": state.multiplier,
    }


# --- the prior


def _prior(
    posterior: Posterior, free: list[str], scaled: list[str], position: Tree, batch: Any
) -> Prior:
    terms = posterior.terms(position, batch)
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
    log_density = share * sum(terms.log_priors[site] for site in free)
    if len(free) == len(position):
        log_density += terms.log_jacobian
    return Prior(precision, log_density, distance)


def _prior_curvature(posterior: Posterior, site: str, position: Tree, batch: Any) -> Array:
    """Minus the second derivative of the log prior by each number of a site."""

    def log_prior(own: Array) -> Array:
        terms = posterior.terms(position | {site: own}, batch)
        no_rows = terms._replace(log_likelihood=jnp.zeros_like(terms.log_likelihood))
        return posterior.total(no_rows, batch)

    own = position[site]

    def along(direction: Array) -> Array:
        return jax.jvp(jax.grad(log_prior), (own,), (direction,))[1]

    if own.size > _FEW_NUMBERS:
        second = along(jnp.ones_like(own))  # the diagonal where there is nothing else, in one go
    else:
        each = jnp.eye(own.size, dtype=own.dtype).reshape(own.size, *own.shape)
        second = jax.lax.map(lambda one: jnp.sum(one * along(one)), each).reshape(own.shape)
    return jnp.maximum(-second, 0.0) + _LEAST_PRECISION / posterior.prior_std[site] ** 2


# --- the multiplier


def _maximiser(function: Callable[[Array], Array]) -> Array:
    """Give the maximiser from -4 to 4: the best of a grid, then golden sections about it."""
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


def _check(structure: str, curvature: str, prior_precision: str) -> None:
    for name, got, known in (
        ("structure", structure, Structure),
        ("curvature", curvature, Curvature),
        ("prior_precision", prior_precision, PriorPrecision),
    ):
        if got not in get_args(known):
            choices = ", ".join(map(repr, get_args(known)))
            raise ValueError(f"got {name}={got!r}, expected one of {choices}")
