"""Stochastic-gradient Hamiltonian Monte Carlo."""

from bnn_ppl.methods.defaults import MINIBATCHES
from bnn_ppl.methods.method import Method, describe
from bnn_ppl.methods.preconditioners import Preconditioner
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.stochastic_gradient.langevin import Dynamics, langevin
from bnn_ppl.model.posterior import Posterior


@describe(MINIBATCHES)
def sghmc(
    posterior: Posterior,
    step_size: float | Schedule | None = None,
    *,
    momentum: float | None = None,
    preconditioner: Preconditioner | None = None,
    noise_temperature: float | Schedule = 1.0,
    gibbs_every: int | None = None,
    subtract_noise: bool = False,
    redraw_every: int | None = None,
    clip: float | None = None,
) -> Method:
    r"""Stochastic-gradient Hamiltonian Monte Carlo: underdamped Langevin dynamics.

    .. math:: m \gets \beta m + \sqrt\epsilon\, g + \sqrt{2 (1-\beta) T}\, M^{1/2} \xi, \qquad
        w \gets w + \sqrt\epsilon\, M^{-1} m

    with g the gradient of the log-density estimated from the minibatch; the momentum is kept from
    step to step and not resampled, unless `redraw_every` is given (Chen, Fox & Guestrin, 2014,
    equation 15, in the parametrisation of Izmailov et al., 2021). Run it with ``batch_size=``.

    **Biased** to first order in the step size, like :func:`bnn_ppl.sgld`.

    Parameters
    ----------
    posterior
        Posterior to sample.
    step_size
        Step size :math:`\epsilon`, a number or a schedule of :mod:`bnn_ppl.schedules`, in squared
        units of the weights. None: tuned in warm-up, together with M (see Notes); of the arguments
        below, only `momentum` can then be given.
    momentum
        Momentum decay :math:`\beta`, from 0 (which is sgld) to below 1. By default 0.9, or 0.99 if
        the step size is tuned.
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
    subtract_noise
        Whether to take :math:`M^2` as the variance of the minibatch gradients and inject less noise
        accordingly, of variance :math:`2 (1-\beta) T M - \epsilon M^2` but at least 0
        (Springenberg et al., 2016). Appropriate with
        :func:`bnn_ppl.preconditioners.scale_adapted`, when gradients are mostly noise.
        Needs `step_size`.
    redraw_every
        Number of steps between draws of the momentum from its conditional distribution given the
        weights, to first order in the step size N(-sqrt(epsilon) g / (1 + beta), 2 T M / (1 +
        beta)). (Published code omits the mean, which adds half a kick at each redraw.) By default
        it is never redrawn. Needs `step_size`.
    clip
        Clip gradients whose norm exceeds the mean of the last 1,000 or so by more than this number
        of their standard deviations (20 in Antoran et al.'s code); the first 1,000 are not clipped.
        Clipping **biases** the draws; ``clipped`` in ``sample_stats`` records it. By default no
        gradient is clipped. Needs `step_size`.

    Notes
    -----
    The step size and M are tuned as in :func:`bnn_ppl.sgld`, with two differences. First, friction
    compensates for the noise of a minibatch: g also includes the term :math:`-\tfrac12
    \sqrt\epsilon\, \hat C M^{-1} m` with the covariance :math:`\hat C` of the minibatch's gradient
    (Chen et al., 2014, section 3.3, with a friction larger by its :math:`\hat B`), computed as in
    :func:`bnn_ppl.sgnht`. Minibatches are then drawn with replacement, since otherwise their noise
    would cancel over an epoch. Second, the target error includes what a step would add to the
    kinetic temperature without friction, :math:`\epsilon\, g^\top M^{-1} g / (4 d)` in d
    dimensions, as for :func:`bnn_ppl.sgnht`. A momentum closer to 1 mixes faster if stability, not
    gradient noise, limits the step size.

    Raises
    ------
    ValueError
        If a number is out of range, the model has no precisions to draw, or the preconditioner
        does not fit the other arguments.
    """
    if preconditioner is not None and preconditioner.curvature is not None:
        raise ValueError(
            "got a preconditioner with curvature, expected one without: its correction is for "
            "overdamped dynamics; use sgld"
        )
    if momentum is None:
        momentum = 0.99 if step_size is None else 0.9
    options = preconditioner, noise_temperature, gibbs_every, subtract_noise, redraw_every, clip
    return langevin(posterior, step_size, Dynamics(momentum, *options), "sghmc")
