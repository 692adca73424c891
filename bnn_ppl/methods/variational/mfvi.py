"""Mean-field variational inference: Bayes by backprop, local reparametrisation, flipout."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bnn_ppl.methods.defaults import MEAN_FIELD
from bnn_ppl.methods.ensembles.descent import starting_descent
from bnn_ppl.methods.layers.layers import Layer, Tap, tapped, with_weights
from bnn_ppl.methods.layers.per_example_gradients import Layers, row_layers
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.schedules import Schedule, named, value_at
from bnn_ppl.methods.training.optimizers import optimizer_of
from bnn_ppl.methods.variational.kl_weight import check_kl_weight
from bnn_ppl.methods.variational.natural_gradient import trained
from bnn_ppl.methods.variational.row_groups import over_groups
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import Terms
from bnn_ppl.runtime.checks import check_choice, check_count, check_positive

Tree = Any
Estimator = Literal["weights", "local_reparametrisation", "flipout"]

_LEAST_VARIANCE = 1e-16  # added to that of activations: the square root has no gradient at 0


class MeanFieldState(NamedTuple):
    """Parameters of a Gaussian over unconstrained weights, and the state of their optimiser."""

    mean: Tree
    log_std: Tree
    optimizer: Tree
    num_steps: jax.Array


@describe(MEAN_FIELD, cost="1.9 Adam steps")
def mfvi(
    posterior: Posterior,
    optimizer: optax.GradientTransformation | None = None,
    *,
    learning_rate: float | Schedule | None = None,
    estimator: Estimator = "weights",
    init_std: float = 0.01,
    num_samples: int = 1,
    num_groups: int = 1,
    kl_weight: float | Schedule = 1.0,
) -> Method:
    r"""Mean-field variational inference: the closest Gaussian with independent weights.

    .. math:: q(w) = \prod_i N(w_i; \mu_i, \sigma_i^2), \qquad
        (\mu, \log \sigma) \gets (\mu, \log \sigma) + \mathrm{optimizer}(\nabla L / N), \qquad
        L = E_q[\log \pi(w)] + H[q]

    :math:`\log \pi` is the (tempered) log-density of the posterior. At temperature 1, L is the
    evidence lower bound; at temperature T it is ``E_q[log p(D|w) + log p(w)] / T + H`` with
    ``tempered="posterior"`` and ``E_q[log p(D|w)] / T - KL(q|p)`` with ``tempered="likelihood"``.
    The expected log prior is in closed form for Gaussian sites and estimated at a draw of q for
    others (Blundell et al., 2015, equation 2, for any prior). Train in warm-up and draw without
    stepping::

        run(key, posterior, mfvi(posterior), num_warmup=20_000, batch_size=128,
            num_draws=100, thin=0)

    The means start at a point estimate, unless `learning_rate` or `optimizer` is given. The
    group ``fitted`` of the result holds the means (``<site>.loc``) and standard deviations
    (``<site>.scale``) of the unconstrained weights, from which :func:`bnn_ppl.guide` makes a
    NumPyro guide. Mean-field Gaussians are too narrow where weights are correlated.

    Parameters
    ----------
    posterior
        Posterior to approximate.
    optimizer
        Any optax optimiser; by default ``optax.adam(learning_rate)``. To resume a run, pass an
        equal one.
    learning_rate
        Learning rate of Adam, a number or a schedule. None: tuned by trying eight values; training
        stops automatically (as in :func:`bnn_ppl.descent`).
    estimator
        Estimator of the expected log-likelihood under q. ``"weights"``: one draw of the weights for
        the whole batch (Bayes by backprop). ``"local_reparametrisation"``: draws of each row's
        activations in dense layers (Kingma et al., 2015, equation 6), flipout in the others.
        ``"flipout"``: one draw per batch whose signs are flipped at random for each row (Wen et
        al., 2018, equation 4), in dense and convolutional layers. The latter two have gradients
        of lower variance. They process a batch as a whole (no ``microbatch``), and fall back to one
        draw per batch for other layers, layers not called on (rows, ...) and constrained weights.
    init_std
        Initial standard deviation of every weight.
    num_samples
        Number of draws per step.
    num_groups
        Number of groups that the rows of a batch are divided into, each with its own draws of the
        weights: less gradient noise from the weights for the same number of rows, with more random
        numbers per step. Osawa et al. (2019) use one draw per process; here one device processes
        the groups in sequence.
    kl_weight
        Weight, a number or a schedule such as :func:`bnn_ppl.schedules.rising`, of the divergence
        from the prior, :math:`-E_q[\log p(w)] - H[q]` (with the prior tempered as above), in the
        objective; the recorded ``elbo`` has weight 1. A weight other than 1 at the end of training
        fits a different posterior. Needs `learning_rate` or `optimizer`.

    Raises
    ------
    ValueError
        If a number is out of range, the estimator is unknown, `kl_weight` comes without a rate, or,
        for the latter two estimators, the network calls a layer twice.
    """
    check_choice("estimator", estimator, Estimator)
    check_positive("init_std", init_std)
    check_count("num_samples", num_samples)
    check_count("num_groups", num_groups)

    def first_parameters(key: jax.Array) -> tuple[Tree, Tree]:
        position = posterior.init(key)
        return position, position

    finds_rate, recorded, optimizer = optimizer_of(optimizer, learning_rate, first_parameters)
    weighs = check_kl_weight(kl_weight, finds_rate)
    layers = {} if estimator == "weights" else row_layers(posterior)

    def init(key: jax.Array, position: Tree, batch: Any) -> MeanFieldState:
        del key, batch
        log_std = jax.tree.map(lambda w: jnp.full_like(w, math.log(init_std)), position)
        return MeanFieldState(
            position, log_std, optimizer.init((position, log_std)), jnp.zeros((), int)
        )

    def expected(key: jax.Array, mean: Tree, log_std: Tree, batch: Any) -> jax.Array:
        """Estimate the expected log-density under q, and that of the prior."""
        std = jax.tree.map(jnp.exp, log_std)
        position = _draw(key, mean, log_std)
        terms = posterior.density.terms(position, batch)
        terms = terms._replace(log_priors=_expected_log_priors(terms, mean, std))
        if estimator != "weights":
            with tapped(_noise_tap(jax.random.fold_in(key, 1), estimator, layers, mean, std)):
                rows = posterior.log_likelihood(position, batch)
            terms = terms._replace(log_likelihood=rows)
        total = posterior.density.total
        return jnp.stack([total(part, batch) for part in (terms, terms.prior_alone)])

    def loss(
        parameters: tuple[Tree, Tree], key: jax.Array, batch: Any, weight: jax.Array | None
    ) -> tuple[jax.Array, Any]:
        mean, log_std = parameters
        keys = jax.random.split(key, num_samples)
        estimate = over_groups(lambda key, rows: expected(key, mean, log_std, rows), num_groups)
        values = [estimate(key, batch) for key in keys]
        value, prior = sum(values[1:], values[0]) / num_samples
        bound = value + _entropy(log_std)
        weighted = bound
        if weight is not None:
            weighted -= (1 - weight) * (prior + _entropy(log_std))
        return -weighted / posterior.num_rows, (value, bound)

    def step(
        key: jax.Array, state: MeanFieldState, batch: Any, rate: jax.Array | float = 1.0
    ) -> tuple[MeanFieldState, dict]:
        parameters = state.mean, state.log_std
        weight = value_at(kl_weight, state.num_steps) if weighs else None
        gradient, (value, bound) = jax.grad(loss, has_aux=True)(parameters, key, batch, weight)
        updates, inner = optimizer.update(gradient, state.optimizer, parameters)
        mean, log_std = optax.tree.add_scale(parameters, rate, updates)
        info = step_info(value, num_samples, elbo=bound)
        return MeanFieldState(mean, log_std, inner, state.num_steps + 1), info

    def draw(key: jax.Array, state: MeanFieldState) -> Tree:
        return _draw(key, state.mean, state.log_std)

    def fitted(state: MeanFieldState) -> dict[str, jax.Array]:
        loc = {f"{site}.loc": mean for site, mean in state.mean.items()}
        return loc | {f"{site}.scale": jnp.exp(s) for site, s in state.log_std.items()}

    settings = {"method": "mfvi", **recorded, "estimator": estimator}
    settings |= {"init_std": init_std, "num_samples": num_samples, "kl_weight": named(kl_weight)}
    settings |= {"num_groups": num_groups} if num_groups != 1 else {}
    method = Method(
        init,
        step,
        draw,
        settings=settings,
        fitted=fitted,
        logdensity=posterior.logdensity,
        draws_from="gaussian",
        raw_rows=estimator != "weights",
    )
    if not finds_rate:
        return method
    return trained(posterior, method, step, "elbo", starting_descent(posterior))


def _draw(key: jax.Array, mean: Tree, log_std: Tree) -> Tree:
    return jax.tree.map(_reparametrised, mean, log_std, gaussian_like(key, mean))


@jax.custom_jvp
def _reparametrised(mean: jax.Array, log_std: jax.Array, noise: jax.Array) -> jax.Array:
    return mean + jnp.exp(log_std) * noise


@_reparametrised.defjvp
def _reparametrised_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    # The derivative with respect to log_std is the deviation from the mean, so the noise, which is
    # expensive, need not be generated again.
    mean, d_mean, d_log_std = primals[0], *tangents[:2]
    weight = _reparametrised(*primals)
    return weight, d_mean + d_log_std * (weight - mean)


def _expected_log_priors(terms: Terms, mean: Tree, std: Tree) -> dict[str, jax.Array]:
    """Replace the log priors of Gaussian sites by their expectation under q."""
    expected = dict(terms.log_priors)
    for site, (loc, scale) in terms.normals.items():
        z_squared = ((mean[site] - loc) ** 2 + std[site] ** 2) / scale**2
        expected[site] = -(0.5 * z_squared + jnp.log(scale) + 0.5 * jnp.log(2 * jnp.pi))
    return expected


def _entropy(log_std: Tree) -> jax.Array:
    constant = 0.5 * jnp.log(2 * jnp.pi * jnp.e)
    return optax.tree.sum(jax.tree.map(lambda s: jnp.sum(s + constant), log_std))


# --- averaging over q layer by layer


def _noise_tap(key: jax.Array, estimator: str, layers: Layers, mean: Tree, std: Tree) -> Tap:
    """Make a tap that draws, row by row, the outputs of the named layers under q."""
    seen: list[str] = []

    def tap(name: str, layer: Layer, inputs: jax.Array) -> jax.Array:
        if name not in layers or not layers[name].sites:
            return layer(inputs)
        seen.append(name)
        own_key = jax.random.fold_in(key, len(seen))
        center = with_weights(layer, *_weights(name, layer, mean, held=lambda own: own))
        deviations = _weights(name, layer, std, held=jnp.zeros_like)
        dense = isinstance(layer, nnx.Linear) and inputs.ndim == 2
        local = dense and estimator == "local_reparametrisation"
        noise = _local_noise if local else _flipped_noise
        return center(inputs) + noise(own_key, layer, deviations, inputs)

    return tap


def _weights(
    name: str, layer: Layer, values: Tree, held: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array | None]:
    """Return kernel and bias: from their sites' values, or `held` of themselves."""

    def one(part: str, weight: nnx.Param) -> jax.Array:
        return values[f"{name}.{part}"] if f"{name}.{part}" in values else held(weight[...])

    bias: Any = layer.bias
    return one("kernel", layer.kernel), None if bias is None else one("bias", bias)


def _local_noise(key: jax.Array, layer: Layer, std: Tree, inputs: jax.Array) -> jax.Array:
    variance = with_weights(layer, *jax.tree.map(jnp.square, std))(inputs**2)
    return jnp.sqrt(variance + _LEAST_VARIANCE) * gaussian_like(key, variance)


def _flipped_noise(key: jax.Array, layer: Layer, std: Tree, inputs: jax.Array) -> jax.Array:
    noise_key, in_key, out_key = jax.random.split(key, 3)
    deviations = jax.tree.map(lambda s, e: s * e, std, gaussian_like(noise_key, std))
    rows, between = inputs.shape[0], (1,) * (inputs.ndim - 2)

    def signs(key: jax.Array, width: int) -> jax.Array:
        return jax.random.rademacher(key, (rows, *between, width), inputs.dtype)

    outputs = with_weights(layer, *deviations)(inputs * signs(in_key, inputs.shape[-1]))
    return outputs * signs(out_key, outputs.shape[-1])
