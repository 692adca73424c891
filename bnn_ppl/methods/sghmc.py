"""Stochastic-gradient Hamiltonian Monte Carlo."""

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
def sghmc(
    posterior: Posterior,
    step_size: float | Schedule,
    *,
    momentum: float = 0.9,
    preconditioner: Preconditioner | None = None,
    noise_temperature: float | Schedule = 1.0,
    gibbs_every: int | None = None,
    subtract_noise: bool = False,
) -> Method:
    r"""Stochastic-gradient Hamiltonian Monte Carlo: underdamped Langevin dynamics.

    .. math:: m \gets \beta m + \sqrt\epsilon\, g + \sqrt{2 (1-\beta) T}\, M^{1/2} \xi, \qquad
        w \gets w + \sqrt\epsilon\, M^{-1} m

    with g the gradient of the log-density estimated from the minibatch; the momentum is carried
    from step to step and never drawn anew (Chen, Fox & Guestrin, 2014, equation 15, in the
    parameters of Izmailov et al., 2021). Run it with ``batch_size=``.

    **Biased** in first order of the step size, as :func:`bnn_ppl.sgld` is.

    Parameters
    ----------
    posterior
        What to sample.
    step_size
        :math:`\epsilon`, a number or a schedule of :mod:`bnn_ppl.schedules`, in squared units of
        the weights.
    momentum
        :math:`\beta`, from 0 (then this is sgld) to below 1.
    preconditioner
        M, one of :mod:`bnn_ppl.preconditioners`; 1 by default.
    noise_temperature
        T of the noise, a number or a schedule, on top of the temperature that the posterior was
        conditioned with.
    gibbs_every
        Steps between draws of the precisions of :func:`bnn_ppl.priors.hierarchical` from their law
        given the weights; in between they rest. By default they move like weights.
    subtract_noise
        Take :math:`M^2` for the variance of the minibatches' gradients, and add so much less noise:
        :math:`2 (1-\beta) T M - \epsilon M^2`, not below 0 (Springenberg et al., 2016). Right with
        :func:`bnn_ppl.preconditioners.scale_adapted`, where gradients are mostly noise.

    Raises
    ------
    ValueError
        If a number is out of range, the model has no precisions to draw, or the preconditioner
        does not go with the other arguments.
    """
    if preconditioner is not None and preconditioner.curvature is not None:
        raise ValueError(
            "got a preconditioner with curvature, expected one without: the term is that of "
            "overdamped dynamics; use sgld"
        )
    return langevin(
        posterior,
        step_size,
        momentum=momentum,
        preconditioner=preconditioner,
        temperature=noise_temperature,
        gibbs_every=gibbs_every,
        subtract_noise=subtract_noise,
        name="sghmc",
    )
