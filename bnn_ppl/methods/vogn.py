"""Variational online Gauss-Newton (VOGN)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import FITTED, Method, describe, step_info
from bnn_ppl.methods.schedules import Schedule, check_rate, named, value_at
from bnn_ppl.methods.shared.mean_field import (
    averaged,
    check_numbers,
    drawn,
    fitted,
    likelihood_weight,
    prior_normals,
)
from bnn_ppl.methods.shared.per_example_gradients import row_gradients
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior

Tree = Any


class VognState(NamedTuple):
    """A Gaussian over the weights and its running gradient."""

    loc: Tree
    momentum: Tree
    precision: Tree
    num_steps: jax.Array


@describe(
    gives="independent Gaussians",
    cost="1.9 steps of Adam",
    kind="fit",
    stochastic_gradients=True,
    trained_once=True,
    counts=FITTED,
)
def vogn(
    posterior: Posterior,
    learning_rate: float | Schedule = 1e-3,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    num_samples: int = 1,
    init_std: float = 0.01,
    damping: float = 0.0,
) -> Method:
    r"""Variational online Gauss-Newton (Khan et al., 2018, section 3.3; Osawa et al., 2019).

    A natural-gradient step of the evidence lower bound in :math:`q(w) = \prod_j N(w_j; \mu_j,
    1/p_j)`, with the Hessian of the likelihood replaced by the squared gradients of single rows:

    .. math:: w \sim q, \qquad
        g = \frac{N}{T |B|} \sum_{i \in B} \nabla \log p(y_i | x_i, w) - \lambda (\mu - \mu_0),
        \qquad h = \frac{1}{|B|} \sum_{i \in B} (\nabla \log p(y_i | x_i, w))^2

    .. math:: m \gets \beta_1 m + (1 - \beta_1) g, \qquad
        p \gets \beta_2 p + (1 - \beta_2) (\tfrac{N}{T} (h + \gamma) + \lambda), \qquad
        \mu \gets \mu + \alpha \frac{m}{1 - \beta_1^t} / p

    so that a learning rate of 1 is a Newton step. :math:`\mu_0, \lambda` are mean and precision of
    a Gaussian prior. Under any other prior, or a constraint, the gradient of the log prior and
    log-Jacobian at w takes the place of :math:`-\lambda (\mu - \mu_0)`, and the prior's variance
    that of :math:`1/\lambda`. The precision starts at ``init_std**-2``, of which a share of
    :math:`\beta_2^t` is left after t steps: let that be little. Train in warm-up and draw without
    stepping::

        run(key, posterior, vogn(posterior), num_warmup=20_000, batch_size=128,
            num_draws=100, thin=0)

    T is the posterior's temperature; under ``tempered="posterior"`` it divides :math:`\lambda` too,
    which makes the covariance T times as wide. What others take as a multiplier M of the size of
    the data set is here ``condition(..., temperature=1 / M, tempered="likelihood")``: explicit, and
    recorded as a temperature. The squared gradients are those of :mod:`bnn_ppl.row_gradients`:
    exact, of each row, at the price of about one more matrix product a layer.

    Parameters
    ----------
    posterior
        What to approximate.
    learning_rate
        :math:`\alpha`: a number or a schedule.
    beta1
        Memory of the gradient.
    beta2
        Memory of the precision. The noise of the weights grows to its width in ``1 / (1 - beta2)``
        steps, and drowns in a network what the means have not found by then: a short run may do
        better with 0.9999 and a learning rate of 1e-2.
    num_samples
        Draws of the weights a step, each with a gradient.
    init_std
        Standard deviation of every weight at the start. The means start at the run's start.
    damping
        :math:`\gamma`, added to the squared gradients. It makes steps shorter where rows have
        little to say, and q narrower than it should be.

    Returns
    -------
    Method
        Its ``fitted`` gives, by site in unconstrained space, ``.loc``, :math:`\mu`, and ``.scale``,
        :math:`p^{-1/2}`, and ``num_steps``.

    Raises
    ------
    ValueError
        If a number is out of range, or the network calls a layer twice.
    """
    check_arguments(posterior=posterior)
    check_rate("learning_rate", learning_rate)
    check_numbers(num_samples, beta1, beta2, init_std=init_std)
    if not damping >= 0:
        raise ValueError(f"got damping={damping}, expected 0 or more")
    gradients, weight = row_gradients(posterior), likelihood_weight(posterior)

    def init(key: jax.Array, position: Tree, batch: Any) -> VognState:
        del key, batch
        momentum = jax.tree.map(jnp.zeros_like, position)
        precision = jax.tree.map(lambda w: jnp.full_like(w, init_std**-2), position)
        return VognState(position, momentum, precision, jnp.zeros((), int))

    def estimated(key: jax.Array, state: VognState, batch: Any) -> tuple[jax.Array, Tree, Tree]:
        """Log-density, gradient g and precision at a draw."""
        position = drawn(key, state.loc, state.precision)
        lp, normals, gradient, squares = gradients(position, batch)
        prior = {site: std**-2 for site, std in posterior.prior_std.items()}
        for site, normal in prior_normals(posterior, normals).items():
            prior[site] = normal.precision
            gradient[site] += normal.precision * (position[site] - state.loc[site])
        precision = {site: weight * (h + damping) + prior[site] for site, h in squares.items()}
        return lp, gradient, precision

    def step(key: jax.Array, state: VognState, batch: Any) -> tuple[VognState, dict]:
        lp, gradient, target = averaged(lambda key: estimated(key, state, batch), key, num_samples)
        num_steps = state.num_steps + 1
        rate = value_at(learning_rate, state.num_steps) / (1 - beta1**num_steps)
        momentum = _mixed(beta1, state.momentum, gradient)
        precision = _mixed(beta2, state.precision, target)
        loc = jax.tree.map(lambda w, m, p: w + rate * m / p, state.loc, momentum, precision)
        return VognState(loc, momentum, precision, num_steps), step_info(lp, num_samples)

    def draw(key: jax.Array, state: VognState) -> Tree:
        return drawn(key, state.loc, state.precision)

    settings = {
        "method": "vogn",
        "learning_rate": named(learning_rate),
        "beta1": beta1,
        "beta2": beta2,
        "num_samples": num_samples,
        "init_std": init_std,
        "damping": damping,
    }
    return Method(
        init,
        step,
        draw,
        settings=settings,
        fitted=lambda state: fitted(state.loc, state.precision, state.num_steps),
        logdensity=posterior.logdensity,
        draws_from="gaussian",
    )


def _mixed(beta: float, old: Tree, new: Tree) -> Tree:
    return jax.tree.map(lambda a, b: beta * a + (1 - beta) * b, old, new)
