"""What a method is, a few pure functions, and what it says of itself."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

DrawsFrom: TypeAlias = Literal[
    "chain",
    "point",
    "best_point",
    "average",
    "gaussian",
    "low_rank_gaussian",
    "structured_gaussian",
    "dropout",
]


class Method(NamedTuple):
    """An inference method as :func:`bnn_ppl.run` sees it.

    Attributes
    ----------
    init
        ``key, position, batch -> state``.
    step
        ``key, state, batch -> state, info``: one transition. `info` is a dict of scalars under
        ArviZ's names: some of acceptance_rate, diverging, energy, lp, step_size, n_steps; and
        ``log_weight`` where draws have unequal weights.
    draw
        ``key, state -> position``: one draw, without stepping.
    warmup
        Like `step`; used instead of it during warm-up, where it may adapt. `step` if None.
    settings
        The method's name and arguments, as recorded with the draws.
    finish
        ``state -> state``: called once, after the last warm-up step. Such a method needs warm-up.
    fitted
        ``state -> dict of arrays``: the parameters of the distribution that draws come from,
        recorded once per chain, at the end, in the group ``fitted``.
    logdensity
        The log-density of the posterior it was built with. :func:`bnn_ppl.run` refuses another
        posterior, whose draws it would label wrongly. None for a method that holds no posterior.
    all_rows
        Whether all steps must see the same rows, as a Metropolis test does.
    needs_warmup
        Whether draws are biased unless warm-up has tuned the steps. A `finish` implies it.
    draws_from
        What one chain's draws come from: the states of a "chain"; the last "point" of an
        optimiser, its "best_point" or the "average" of its points; or a fitted distribution.
        "gaussian" has independent weights, its parameters in the group ``fitted`` as
        ``<site>.loc`` and ``<site>.scale``. Recorded with the draws.
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, dict[str, Any]]]
    draw: Callable[..., Any]
    warmup: Callable[..., tuple[Any, dict[str, Any]]] | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    finish: Callable[[Any], Any] | None = None
    fitted: Callable[[Any], dict[str, jax.Array]] | None = None
    logdensity: Callable[..., jax.Array] | None = None
    all_rows: bool = False
    needs_warmup: bool = False
    draws_from: DrawsFrom = "chain"


def step_info(lp: jax.Array, num_gradients: int = 1, **more: jax.Array) -> dict[str, jax.Array]:
    """Make the info of a step without a Metropolis test from its log-density estimate."""
    return {
        "diverging": ~jnp.isfinite(lp),
        "lp": lp,
        "n_steps": jnp.asarray(num_gradients),
        **more,
    }


class Counts(NamedTuple):
    """How long a run is where the caller does not say."""

    num_warmup: int = 100  # steps, or epochs
    in_epochs: bool = False  # what num_warmup counts
    num_draws: int = 200
    thin: int = 1


SAMPLED = Counts()
FITTED = Counts(num_warmup=100, in_epochs=True, num_draws=100, thin=0)


class Description(NamedTuple):
    """What a method says of itself, for the command line, the estimators, docs and tests.

    Attributes
    ----------
    name
        By which users call it.
    build
        ``posterior, options -> Method``.
    gives
        What its draws are, in a few words.
    cost
        What a step costs, in a few words.
    kind
        A "sampler" steps between its draws; a "fit" trains in warm-up, then draws.
    stochastic_gradients
        Whether each step follows the gradient on a minibatch.
    trained_once
        Whether steps after warm-up change nothing, so that only warm-up can be made longer.
    starts_from
        Name of the method whose draws it starts from; None if it needs no other run.
    counts
        How long a run is by default.
    complete
        ``options, running -> options``: fills in options that depend on how long the run is, whose
        arguments of :func:`bnn_ppl.run` are `running`, and refuses those that do not fit it.
    """

    name: str
    build: Callable[..., Method]
    gives: str
    cost: str
    kind: Literal["sampler", "fit"] = "sampler"
    stochastic_gradients: bool = False
    trained_once: bool = False
    starts_from: str | None = None
    counts: Counts = SAMPLED
    complete: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]] = (
        lambda options, running: options
    )


METHODS: dict[str, Description] = {}  # by name, of all modules imported so far

_Build = TypeVar("_Build", bound=Callable[..., Method])


def described_methods() -> list[Description]:
    """Give all methods: samplers on all rows, samplers on minibatches, fits."""

    def group(method: Description) -> tuple:
        return method.kind != "sampler", method.stochastic_gradients, method.name

    return sorted(METHODS.values(), key=group)


def table() -> str:
    """Give the table of methods in Markdown, a row each: name, what it gives, cost of a step."""
    rows = [f"| `{each.name}` | {each.gives} | {each.cost} |" for each in described_methods()]
    return "\n".join(["| method | what it gives | a step costs |", "|---|---|---|", *rows]) + "\n"


def describe(*, name: str | None = None, **description: Any) -> Callable[[_Build], _Build]:
    """Decorate a function of a posterior that gives a Method with what it says of itself.

    Parameters
    ----------
    name
        The function's own by default.
    **description
        Other fields of :class:`Description`.

    Returns
    -------
    Callable
        Gives the function unchanged; its description is then in ``METHODS``.
    """

    def register(build: _Build) -> _Build:
        described = Description(name or build.__name__, build, **description)
        METHODS[described.name] = described
        return build

    return register
