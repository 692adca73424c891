"""Stochastic-gradient Langevin dynamics."""

from bnn_ppl.methods.defaults import MINIBATCHES
from bnn_ppl.methods.method import Method, describe
from bnn_ppl.methods.preconditioners import Preconditioner
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.stochastic_gradient.langevin import Dynamics, langevin
from bnn_ppl.model.posterior import Posterior


@describe(MINIBATCHES)
def sgld(
    posterior: Posterior,
    step_size: float | Schedule | None = None,
    *,
    preconditioner: Preconditioner | None = None,
    noise_temperature: float | Schedule = 1.0,
    gibbs_every: int | None = None,
) -> Method:
    r"""Stochastic-gradient Langevin dynamics: minibatch gradient steps with injected noise.

    .. math:: w \gets w + \epsilon M^{-1} g + \sqrt{2 \epsilon T}\, M^{-1/2} \xi,
        \qquad \xi \sim N(0, I)

    with g the gradient of the log-density estimated from the minibatch (Welling & Teh, 2011,
    equation 4, where the step size is twice this one). Run it with ``batch_size=``.

    **Biased**: without a Metropolis test the stationary distribution differs from the posterior to
    first order in the step size (for N(0, 1) its variance is :math:`1 / (1 - \epsilon / 2)`), and
    minibatch noise widens it further.

    Parameters
    ----------
    posterior
        Posterior to sample.
    step_size
        Step size :math:`\epsilon`, a number or a schedule of :mod:`bnn_ppl.schedules`, in squared
        units of the weights. None: tuned in warm-up, together with M (see Notes); the arguments
        below cannot then be given.
    preconditioner
        Diagonal mass matrix M, one of :mod:`bnn_ppl.preconditioners`; by default the identity.
        Needs `step_size`.
    noise_temperature
        Temperature T of the injected noise, a number or a schedule, applied on top of the
        temperature of the posterior. Needs `step_size`.
    gibbs_every
        Number of steps between Gibbs draws of the precisions of :func:`bnn_ppl.priors.hierarchical`
        from their conditional distribution given the weights; in between they are held fixed. By
        default they are updated like the weights. Needs `step_size`.

    Notes
    -----
    Tuning: the chains start where the warm-up of :func:`bnn_ppl.sgnht` ends, which itself starts at
    the optima of ``descent(posterior, anchored=True)``, unanchored where there are convolutions.
    The first warm-up steps (300, or an eighth if warm-up is short) estimate M there, the diagonal
    of the prior's precision plus the empirical Fisher information. After windows of 200, 400, ...
    steps the step size is then multiplied by 0.03 over the measured excess of the kinetic
    temperature (Wenzel et al., 2020, appendix I), to which it is proportional, by at most a factor
    of 2. A window in which the dynamics became unstable is undone, and the step size is then
    limited to a third of that tried. The kinetic and the configurational temperature are recorded;
    in equilibrium both exceed 1 by the discretisation error.

    Raises
    ------
    ValueError
        If a number is out of range, the model has no precisions to draw, or an option needs a step
        size and has none.
    """
    dynamics = Dynamics(0.0, preconditioner, noise_temperature, gibbs_every)
    return langevin(posterior, step_size, dynamics, "sgld")
