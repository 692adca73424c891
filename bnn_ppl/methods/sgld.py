"""Stochastic-gradient Langevin dynamics."""

from bnn_ppl.methods.method import Method, describe
from bnn_ppl.methods.preconditioners import Preconditioner
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.shared.langevin import langevin
from bnn_ppl.model.posterior import Posterior


@describe(
    gives="draws, biased by the step size",
    cost="a gradient on a minibatch",
    stochastic_gradients=True,
)
def sgld(
    posterior: Posterior,
    step_size: float | Schedule,
    *,
    preconditioner: Preconditioner | None = None,
    noise_temperature: float | Schedule = 1.0,
    gibbs_every: int | None = None,
) -> Method:
    r"""Stochastic-gradient Langevin dynamics: a step along the gradient of a minibatch, and noise.

    .. math:: w \gets w + \epsilon M^{-1} g + \sqrt{2 \epsilon T}\, M^{-1/2} \xi,
        \qquad \xi \sim N(0, I)

    with g the gradient of the log-density estimated from the minibatch (Welling & Teh, 2011,
    equation 4, their step size being twice this one). Run it with ``batch_size=``.

    **Biased**: without Metropolis test the stationary law differs from the posterior in first order
    of the step size (on N(0, 1) its variance is :math:`1 / (1 - \epsilon / 2)`), and the noise of
    minibatches widens it further.

    Parameters
    ----------
    posterior
        What to sample.
    step_size
        :math:`\epsilon`, a number or a schedule of :mod:`bnn_ppl.schedules`, in squared units of
        the weights.
    preconditioner
        M, one of :mod:`bnn_ppl.preconditioners`; 1 by default.
    noise_temperature
        T of the noise, a number or a schedule, on top of the temperature that the posterior was
        conditioned with.
    gibbs_every
        Steps between draws of the precisions of :func:`bnn_ppl.priors.hierarchical` from their law
        given the weights; in between they rest. By default they move like weights.

    Raises
    ------
    ValueError
        If a number is out of range, or the model has no precisions to draw.
    """
    return langevin(
        posterior,
        step_size,
        momentum=0.0,
        preconditioner=preconditioner,
        temperature=noise_temperature,
        gibbs_every=gibbs_every,
        name="sgld",
    )
