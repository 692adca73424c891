"""Variational online Gauss-Newton (VOGN)."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import MEAN_FIELD
from bnn_ppl.methods.layers.per_example_gradients import row_gradients
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.variational.mean_field import (
    at_the_mean,
    check_damping,
    drawn,
    entropy,
    fitted,
    likelihood_weight,
    running_mean,
)
from bnn_ppl.methods.variational.natural_gradient import NaturalGradient
from bnn_ppl.model.posterior import Posterior, with_prior_read
from bnn_ppl.runtime.checks import check_positive

Tree = Any

_MEMORIES = 10  # memory lengths of the precision, after which little of its start is left


class VognState(NamedTuple):
    """A Gaussian over the weights, and the momentum of its mean."""

    loc: Tree
    momentum: Tree
    precision: Tree
    num_steps: jax.Array


@describe(MEAN_FIELD, cost="1.9 Adam steps")
def vogn(
    posterior: Posterior,
    learning_rate: float | Schedule | None = None,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    num_samples: int = 1,
    num_groups: int = 1,
    init_std: float | Literal["curvature"] = 0.01,
    damping: float = 0.0,
    kl_weight: float | Schedule = 1.0,
) -> Method:
    r"""Variational online Gauss-Newton (Khan et al., 2018, section 3.3; Osawa et al., 2019).

    Natural-gradient ascent on the evidence lower bound of :math:`q(w) = \prod_j N(w_j; \mu_j,
    1/p_j)`, with the Hessian of the likelihood replaced by squared per-example gradients:

    .. math:: w \sim q, \qquad
        g = \frac{N}{T |B|} \sum_{i \in B} \nabla \log p(y_i | x_i, w) - \lambda (\mu - \mu_0),
        \qquad h = \frac{1}{|B|} \sum_{i \in B} (\nabla \log p(y_i | x_i, w))^2

    .. math:: m \gets \beta_1 m + (1 - \beta_1) g, \qquad
        p \gets \beta_2 p + (1 - \beta_2) (\tfrac{N}{T} (h + \gamma) + \lambda), \qquad
        \mu \gets \mu + \alpha \frac{m}{1 - \beta_1^t} / p

    so that a learning rate of 1 gives a Newton step. :math:`\mu_0` and :math:`\lambda` are the mean
    and precision of a Gaussian prior. Under any other prior, or with a constraint, the gradient of
    the log prior and log-Jacobian at w replaces :math:`-\lambda (\mu - \mu_0)`, and the prior's
    variance replaces :math:`1/\lambda`. The precision starts at ``init_std**-2``, of which a
    fraction :math:`\beta_2^t` remains after t steps: take enough steps to make this fraction small.
    Train in warm-up and draw without stepping::

        run(key, posterior, vogn(posterior), num_warmup=20_000, batch_size=128,
            num_draws=100, thin=0)

    T is the posterior's temperature; with ``tempered="posterior"`` it also divides :math:`\lambda`,
    which multiplies the covariance by T. What other implementations call a multiplier M of the data
    set size is ``condition(..., temperature=1 / M, tempered="likelihood")`` here: explicit, and
    recorded as a temperature. The squared per-example gradients are exact, and cost about one more
    matrix product per layer. A batch that does not fit in memory is processed in chunks, with the
    same result (gradient accumulation): see ``microbatch`` in :func:`bnn_ppl.condition`.

    Parameters
    ----------
    posterior
        Posterior to approximate.
    learning_rate
        Learning rate :math:`\alpha`, a number or a schedule. None: tuned by trying eight values,
        starting from a point estimate; training stops automatically (as in
        :func:`bnn_ppl.descent`).
    beta1
        Decay rate :math:`\beta_1` of the running mean of gradients.
    beta2
        Decay rate :math:`\beta_2` of the running mean of precisions. The weight noise reaches its
        full width in about ``1 / (1 - beta2)`` steps, after which the means of a network hardly
        learn anything new: a short run may do better with 0.9999 and a learning rate of 1e-2.
    num_samples
        Number of draws of the weights per step, each with a gradient.
    num_groups
        Number of groups that the rows of a batch are divided into, each with its own draws of the
        weights: less gradient noise from the weights for the same number of rows, with more random
        numbers per step. Osawa et al. (2019) use one draw per process; here one device processes
        the groups in sequence.
    init_std
        Initial standard deviation of every weight. The means start at the initial position.
        "curvature": the precision starts at that of the first batch, computed at the means,
        :math:`N (h + \gamma) / T + \lambda` (Osawa et al., 2019, in their code). Weights about
        which that batch says nothing are then as wide as under the prior: use large batches.
    damping
        Constant :math:`\gamma` added to the squared gradients. It shortens steps in directions
        where the data are uninformative, and makes q too narrow.
    kl_weight
        Weight of the divergence from the prior, as in :func:`bnn_ppl.mfvi`. A step divides the
        likelihood and its curvature by it. Needs `learning_rate`.

    Returns
    -------
    Method
        Its group ``fitted`` holds, in unconstrained space, the means :math:`\mu`
        (``<site>.loc``), the standard deviations :math:`p^{-1/2}` (``<site>.scale``) and
        ``num_steps``.

    Raises
    ------
    ValueError
        If a number is out of range, or the network calls a layer twice.
    """
    posterior = with_prior_read(posterior)
    options = learning_rate, beta1, beta2, num_samples, kl_weight, num_groups
    fit = NaturalGradient(posterior, *options)
    _check_width(init_std)
    check_damping(damping)
    gradients, weight = row_gradients(posterior), likelihood_weight(posterior)

    def init(key: jax.Array, position: Tree, batch: Any) -> VognState:
        del key, batch
        momentum = jax.tree.map(jnp.zeros_like, position)
        # If the first batch determines it, the weights do not vary in that step.
        start = jnp.inf if init_std == "curvature" else float(init_std) ** -2
        precision = jax.tree.map(lambda w: jnp.full_like(w, start), position)
        return VognState(position, momentum, precision, jnp.zeros((), int))

    def estimated(
        key: jax.Array, state: VognState, batch: Any, kl: jax.Array | None
    ) -> tuple[jax.Array, Tree, Tree]:
        """Log-density, gradient g and precision at a draw."""
        position = drawn(key, state.loc, state.precision)
        lp, normals, gradient, squares = gradients(position, batch, kl)
        away = optax.tree.sub(position, state.loc)
        gradient, prior = at_the_mean(posterior, normals, gradient, away)
        each = weight if kl is None else weight / kl
        precision = {site: each * (h + damping) + prior[site] for site, h in squares.items()}
        return lp, gradient, precision

    def step(
        key: jax.Array, state: VognState, batch: Any, rate: jax.Array | None = None
    ) -> tuple[VognState, dict]:
        lp, gradient, target = fit.estimate(estimated, key, state, batch)
        num_steps = state.num_steps + 1
        rate = fit.rate(rate, state) / (1 - beta1**num_steps)
        momentum = running_mean(beta1, state.momentum, gradient)
        precision = running_mean(beta2, state.precision, target)
        if init_std == "curvature":
            none = num_steps == 1
            precision = jax.tree.map(lambda p, new: jnp.where(none, new, p), precision, target)
        loc = jax.tree.map(lambda w, m, p: w + rate * m / p, state.loc, momentum, precision)
        info = step_info(lp, num_samples, elbo=lp + entropy(precision))
        return VognState(loc, momentum, precision, num_steps), info

    settings = {"method": "vogn", "init_std": init_std, "damping": damping} | fit.settings
    method = Method(
        init,
        step,
        lambda key, state: drawn(key, state.loc, state.precision),
        settings=settings,
        fitted=lambda state: fitted(state.loc, state.precision, state.num_steps),
        logdensity=posterior.logdensity,
        draws_from="gaussian",
        raw_rows=True,
    )
    return fit.trained(method, step, _MEMORIES)


def _check_width(init_std: Any) -> None:
    if isinstance(init_std, str):
        if init_std != "curvature":
            raise ValueError(f"got init_std={init_std!r}, expected a number or 'curvature'")
    else:
        check_positive("init_std", init_std)
