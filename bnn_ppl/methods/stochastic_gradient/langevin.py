"""Langevin dynamics with stochastic gradients, and Gibbs draws of precisions, of sgld and sghmc."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.method import Method, step_info
from bnn_ppl.methods.preconditioners import Preconditioner, identity
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.schedules import Schedule, check_rate, named, value_at
from bnn_ppl.methods.stochastic_gradient.momentum import clipped, momentum_given_weights, no_norms
from bnn_ppl.methods.stochastic_gradient.sgnht import sgnht
from bnn_ppl.methods.stochastic_gradient.step_size_tuning import (
    EXCESS,
    Chain,
    Kernel,
    configurational_temperature,
    slowed_gradient,
    tuned,
)
from bnn_ppl.model.posterior import Posterior, with_prior_read
from bnn_ppl.runtime.checks import check_count, check_positive
from bnn_ppl.runtime.compilation.branches import where_needed

Tree = Any


class LangevinState(NamedTuple):
    """State of a chain."""

    position: Tree
    momentum: Tree  # None for overdamped dynamics
    preconditioner: Tree
    num_steps: jax.Array  # taken so far
    norms: Tree = None  # of the gradients, if they are clipped


class Dynamics(NamedTuple):
    """Options of Langevin dynamics, as of :func:`bnn_ppl.sghmc`; without momentum overdamped."""

    momentum: float = 0.0
    preconditioner: Preconditioner | None = None
    noise_temperature: float | Schedule = 1.0
    gibbs_every: int | None = None
    subtract_noise: bool = False
    redraw_every: int | None = None
    clip: float | None = None


def langevin(
    posterior: Posterior, step_size: float | Schedule | None, dynamics: Dynamics, name: str
) -> Method:
    r"""Make a method of underdamped Langevin dynamics, or of overdamped if the momentum is 0.

    .. math:: m \gets \beta m + \sqrt\epsilon\, g + \sqrt{2 (1-\beta) T}\, M^{1/2} \xi, \qquad
        w \gets w + \sqrt\epsilon\, M^{-1} m

    Errors are those of :func:`bnn_ppl.sghmc`; `name` is recorded.
    """
    if step_size is None:
        _check_unused(dynamics)
        return _with_tuning(posterior, dynamics.momentum, name)
    momentum, given, temperature, gibbs_every, subtract_noise, redraw_every, clip = dynamics
    preconditioner = given or identity()
    _check(step_size, dynamics, preconditioner)
    if gibbs_every is not None:
        check_gibbs(posterior, gibbs_every, temperature)
        posterior = with_prior_read(posterior)

    # If only the noise needs a key, it gets the step's own: for 400 weights a split takes a
    # noticeable part of the step.
    several_keys = any((preconditioner.curvature, gibbs_every, redraw_every))

    def init(key: jax.Array, position: Tree, batch: Any) -> LangevinState:
        del key, batch
        start = optax.tree.zeros_like(position) if momentum else None
        norms = None if clip is None else no_norms()
        inner = preconditioner.init(position)
        return LangevinState(position, start, inner, jnp.zeros((), int), norms)

    def step(
        key: jax.Array, state: LangevinState, batch: Any, adapting: bool = False
    ) -> tuple[LangevinState, dict]:
        num_keys = 3 + (redraw_every is not None)
        keys = jax.random.split(key, num_keys) if several_keys else [key] * 3
        noise_key, probe_key, gibbs_key = keys[:3]
        size, heat = (value_at(rate, state.num_steps) for rate in (step_size, temperature))

        def density(position: Tree) -> jax.Array:
            return posterior.logdensity(position, batch)

        lp, gradient, mass, inner, norms = _preconditioned_gradient(
            density, preconditioner, probe_key, state, heat, adapting, clip
        )
        root = jnp.sqrt(size)

        def noise_variance(m: jax.Array) -> jax.Array:
            variance = 2 * (1 - momentum) * heat * m
            return jnp.maximum(variance - size * m**2, 0.0) if subtract_noise else variance

        push = jax.tree.map(
            lambda g, e, m: root * g + jnp.sqrt(noise_variance(m)) * e,
            *(gradient, gaussian_like(noise_key, state.position), mass),
        )
        if momentum:
            before = state.momentum
            if redraw_every is not None:
                due = state.num_steps % redraw_every == 0
                law = partial(momentum_given_weights, keys[3], gradient, mass, size, heat)
                before = jax.tree.map(partial(jnp.where, due), law(momentum), before)
            push = optax.tree.add_scale(push, momentum, before)
        position = jax.tree.map(lambda w, p, m: w + root * p / m, state.position, push, mass)
        if gibbs_every is not None:
            due = state.num_steps % gibbs_every == 0
            position |= {site: state.position[site] for site in posterior.prior.precisions}
            position = precisions_drawn(gibbs_key, posterior, position, due)
        new = push if momentum else None
        info = {} if clip is None else {"clipped": norms.clipped}
        state = LangevinState(position, new, inner, state.num_steps + 1, norms)
        return state, step_info(lp, step_size=size, **info)

    rates = {"step_size": named(step_size), "noise_temperature": named(temperature)}
    settings: dict[str, Any] = {"method": name, "preconditioner": preconditioner.name, **rates}
    settings |= {"gibbs_every": gibbs_every, "subtract_noise": subtract_noise}
    settings |= {"momentum": momentum, "redraw_every": redraw_every} if momentum else {}
    settings |= {"clip": clip} if clip is not None else {}
    warmup = partial(step, adapting=True) if preconditioner.freezes else None
    method = Method(init, step, lambda key, state: state.position, warmup, settings)
    return method._replace(logdensity=posterior.logdensity, needs_warmup=preconditioner.freezes)


def _check_unused(dynamics: Dynamics) -> None:
    """Refuse options that only dynamics of a given step size have."""
    for name, usual in Dynamics._field_defaults.items():
        if name != "momentum" and getattr(dynamics, name) != usual:
            raise ValueError(
                f"got {name} without step_size, expected both: what is found is for plain dynamics"
            )


def _with_tuning(posterior: Posterior, momentum: float, name: str) -> Method:
    """Make a method of Langevin dynamics that finds its step size and mass in warm-up.

    It starts from the warm-up of sgnht, which moves the farthest at a given step size: its friction
    is only what the noise of the gradients needs.
    """
    _check(1.0, Dynamics(momentum), identity())

    def init(key: jax.Array, position: Tree) -> Chain:
        del key
        return Chain(position, optax.tree.zeros_like(position))

    move = partial(langevin_move, posterior, momentum)
    kernel = Kernel(init, move, lambda square: 2 * EXCESS * (1 - momentum) / square)
    settings = {"method": name, "momentum": momentum}
    method = tuned(posterior, kernel, settings, start=sgnht(posterior))
    # Without replacement the noise that is subtracted would cancel over an epoch.
    return method._replace(order="independent") if momentum else method


def langevin_move(
    posterior: Posterior,
    momentum: float,
    key: jax.Array,
    chain: Chain,
    batch: Any,
    size: jax.Array,
    mass: Tree,
) -> tuple[Chain, dict]:
    """Move a position and its momentum by a step, and measure both temperatures."""
    position, before = chain
    root = jnp.sqrt(size)
    if momentum:  # with little friction the minibatch's noise counts (Chen et al., 2014, sec. 3.3)
        velocity = jax.tree.map(jnp.divide, before, mass)
        lp, gradient = slowed_gradient(posterior, position, batch, velocity, root)
    else:
        lp, gradient = jax.value_and_grad(posterior.logdensity)(position, batch)
    injected = optax.tree.scale(2 * (1 - momentum), mass)
    after = jax.tree.map(
        lambda old, g, e, v: momentum * old + root * g + jnp.sqrt(v) * e,
        *(before, gradient, gaussian_like(key, position), injected),
    )
    moved = jax.tree.map(lambda w, p, m: w + root * p / m, position, after, mass)
    # Without a force the momentum has the variance 2 M / (1 + momentum).
    energies = jax.tree.map(lambda p, m: jnp.sum(p**2 / m), after, mass)
    kinetic = (1 + momentum) / 2 * optax.tree.sum(energies) / posterior.num_weights
    info = step_info(
        lp,
        kinetic_temperature=kinetic,
        configurational_temperature=configurational_temperature(position, gradient),
    )
    excess = kinetic - 1
    if momentum:  # what a step of this length would add without friction, as in sgnht
        force = optax.tree.sum(jax.tree.map(lambda g, m: jnp.sum(g**2 / m), gradient, mass))
        excess += size * force / (4 * posterior.num_weights)
    return Chain(moved, after), info | {"excess": excess}


def _preconditioned_gradient(
    density: Callable,
    preconditioner: Preconditioner,
    key: jax.Array,
    state: LangevinState,
    heat: jax.Array,
    adapting: bool,
    clip: float | None,
) -> tuple[jax.Array, Tree, Tree, Tree, Any]:
    """Log-density, gradient (with the correction for a moving mass), mass, and the states."""
    inner, hessian, norms = state.preconditioner, None, state.norms
    if preconditioner.curvature is None:
        lp, gradient = jax.value_and_grad(density)(state.position)
    else:
        lp, gradient, hessian = _with_hessian(key, density, state.position)
    if clip is not None:
        gradient, norms = clipped(gradient, norms, clip)
    if adapting or not preconditioner.freezes:
        inner = preconditioner.update(gradient, hessian, inner)
    if preconditioner.curvature is not None:
        gradient = optax.tree.add_scale(gradient, heat, preconditioner.curvature(inner))
    return lp, gradient, preconditioner.mass(inner), inner, norms


def _with_hessian(key: jax.Array, density: Any, position: Tree) -> tuple[jax.Array, Tree, Tree]:
    """Value, gradient and Hutchinson's unbiased estimate of the Hessian's diagonal.

    For random signs z the mean of z * (H z) is the diagonal of H.
    """
    signs = optax.tree.random_like(key, position, sampler=jax.random.rademacher)
    both = jax.value_and_grad(density)
    (lp, gradient), (_, product) = jax.jvp(both, (position,), (signs,))
    return lp, gradient, optax.tree.mul(signs, product)


def _check(step_size: Any, dynamics: Dynamics, preconditioner: Preconditioner) -> None:
    """Refuse numbers out of range, and a preconditioner that does not estimate gradient noise."""
    momentum, temperature = dynamics.momentum, dynamics.noise_temperature
    check_rate("step_size", step_size)
    if not 0 <= momentum < 1:
        raise ValueError(f"got momentum={momentum}, expected a number from 0 to below 1")
    if not callable(temperature) and not temperature >= 0:
        raise ValueError(
            f"got noise_temperature={temperature}, expected a number of at least 0 or a schedule"
        )
    if dynamics.subtract_noise and not preconditioner.freezes:
        raise ValueError(
            f"got subtract_noise with the preconditioner {preconditioner.name}, expected one that "
            "estimates the gradients' variance in warm-up and then keeps it: use "
            "preconditioners.scale_adapted()"
        )
    if dynamics.redraw_every is not None:
        check_count("redraw_every", dynamics.redraw_every)
        if not momentum:
            raise ValueError("got redraw_every with momentum=0, expected a momentum: drop it")
    if dynamics.clip is not None:
        check_positive("clip", dynamics.clip)


def check_gibbs(posterior: Posterior, every: int, noise_temperature: Any) -> None:
    """Refuse a posterior whose precisions have no Gamma law given the weights."""
    if every < 1:
        raise ValueError(f"got gibbs_every={every}, expected a whole number of steps from 1 up")
    if not posterior.prior.precisions:
        raise ValueError(
            f"got gibbs_every={every} for a model without learnt precisions, expected some: "
            "use bnn_ppl.priors.hierarchical, or leave gibbs_every out"
        )
    if callable(noise_temperature) or noise_temperature != 1:
        raise ValueError(
            f"got gibbs_every={every} with another noise_temperature than 1, expected 1: the "
            "precisions would be drawn at 1; temper by condition(..., tempered='likelihood')"
        )
    temperature = posterior.density.prior_temperature
    if temperature != 1:
        raise ValueError(
            f"got gibbs_every={every} at temperature={temperature}, expected 1: the "
            "conditional law is Gamma at 1 only; use tempered='likelihood'"
        )


def precisions_drawn(key: jax.Array, posterior: Posterior, position: Tree, due: jax.Array) -> Tree:
    r"""Draw each precision, if that is due, from its law given the weights it governs.

    With w ~ N(0, 1 / tau) and tau ~ Gamma(a, b) that is Gamma(a + n / 2, b + sum w^2 / 2)
    (Springenberg et al., 2016). Positions hold log tau.
    """

    def drawn(position: Tree) -> Tree:
        new = {}
        for index, (site, prior) in enumerate(posterior.prior.precisions.items()):
            weights = position[prior.governs]
            shape = prior.concentration + weights.size / 2
            rate = prior.rate + jnp.sum(weights**2) / 2
            new[site] = jax.random.loggamma(jax.random.fold_in(key, index), shape) - jnp.log(rate)
        return position | new

    return where_needed(due, drawn, lambda position: position, position)
