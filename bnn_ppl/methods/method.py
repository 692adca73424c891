"""The interface of inference methods, and the registry of those that exist.

To add a method, write a function of a posterior that returns a :class:`Method`, in a file of its
own in ``bnn_ppl/methods``; decorate it with :func:`describe`; and import it in
``bnn_ppl/methods/__init__.py``. It is then public as ``bnn_ppl.<name>``, has a command
(``bnn-ppl run <name>``), can be chosen in the scikit-learn estimators by name, and is covered by
the tests that all methods must pass.
"""

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
    """An inference method as :func:`bnn_ppl.run` sees it: pure functions of one chain.

    A position is a dict of the unconstrained values of all sites; a state is any pytree. Only
    `init`, `step` and `draw` are required.

    Attributes
    ----------
    init
        ``key, position, batch -> state``.
    step
        ``key, state, batch -> state, info``: one transition. `info` is a dict of scalars named as
        in ArviZ's ``sample_stats`` (acceptance_rate, diverging, energy, lp, step_size, n_steps),
        as far as they apply; ``log_weight`` if draws have unequal weights.
    draw
        ``key, state -> position``: one draw, without stepping.
    warmup
        Replaces `step` during warm-up, where it may adapt; by default `step`.
    settings
        The method's name and arguments, recorded with the draws and compared on resuming.
    finish
        ``state -> state``: called once, after the last warm-up step. Implies `needs_warmup`.
    fitted
        ``state -> dict of arrays``: parameters of the distribution that draws are sampled from,
        recorded in the group ``fitted`` once per chain, at the end of the run.
    logdensity
        Log-density of the posterior it was built with, by which :func:`bnn_ppl.run` refuses to run
        it on another posterior. None if the method holds no posterior.
    all_rows
        Whether every step must see the same rows, as a Metropolis test requires.
    needs_warmup
        Whether draws are biased unless warm-up has tuned the method.
    draws_from
        Source of a chain's draws: the states of a "chain"; an optimiser's last "point", its
        "best_point" or the "average" of its points; or a fitted distribution. "gaussian" means
        independent Gaussians, with parameters ``<site>.loc`` and ``<site>.scale`` in the group
        ``fitted``. Recorded with the draws.
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
    """Make the info of a step without a Metropolis test, given its estimate of the log-density."""
    return {
        "diverging": ~jnp.isfinite(lp),
        "lp": lp,
        "n_steps": jnp.asarray(num_gradients),
        **more,
    }


class Counts(NamedTuple):
    """Default length of a run."""

    num_warmup: int = 100  # steps, or epochs if in_epochs
    in_epochs: bool = False
    num_draws: int = 200
    thin: int = 1


SAMPLED = Counts()
FITTED = Counts(num_warmup=100, in_epochs=True, num_draws=100, thin=0)


class Description(NamedTuple):
    """What the command line, the estimators, the docs and the tests need to know about a method.

    Attributes
    ----------
    name
        Public name of the method.
    build
        ``posterior, **options -> Method``: the decorated function. Its signature and docstring
        become the options and the help of ``bnn-ppl run <name>``.
    gives
        What its draws are, in a few words, for the table of methods.
    cost
        What a step costs, in a few words, for the table of methods.
    bias
        What keeps its draws from the posterior, in a few words, for the table of methods; begins
        with "none" where the samplers' tests must find the exact posterior.
    kind
        "sampler" if it steps between draws, "fit" if it trains in warm-up and then draws.
    stochastic_gradients
        Whether each step uses the gradient on a minibatch.
    trained_once
        Whether steps after warm-up change nothing, so that a longer run means a longer warm-up.
    starts_from
        Name of the method whose draws it starts from; None if it needs no previous run.
    counts
        Default length of a run: ``SAMPLED`` or ``FITTED``, or one adapted from them.
    complete
        ``options, running -> options``: fills in options that depend on the length of the run, and
        refuses those that do not fit it. `running` holds the arguments of :func:`bnn_ppl.run`.
    """

    name: str
    build: Callable[..., Method]
    gives: str
    cost: str
    bias: str
    kind: Literal["sampler", "fit"] = "sampler"
    stochastic_gradients: bool = False
    trained_once: bool = False
    starts_from: str | None = None
    counts: Counts = SAMPLED
    complete: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]] = (
        lambda options, running: options
    )


METHODS: dict[str, Description] = {}  # by name; filled as the modules of methods are imported

_Build = TypeVar("_Build", bound=Callable[..., Method])


def described_methods() -> list[Description]:
    """List all methods: full-batch samplers, minibatch samplers, then fits."""

    def group(method: Description) -> tuple:
        return method.kind != "sampler", method.stochastic_gradients, method.name

    return sorted(METHODS.values(), key=group)


def table() -> str:
    """Write the table of methods in Markdown, with links to their pages."""
    lines = ["| method | result | cost of a step | bias |", "|---|---|---|---|"]
    for each in described_methods():
        page = f"[`{each.name}`]({each.name}.md)"
        lines.append(f"| {page} | {each.gives} | {each.cost} | {each.bias} |")
    return "\n".join(lines) + "\n"


def describe(*, name: str | None = None, **description: Any) -> Callable[[_Build], _Build]:
    """Register the decorated function, which builds a Method from a posterior, as a method.

    For example ``@describe(gives="draws", cost="a gradient on all rows", bias="the step size")``.

    Parameters
    ----------
    name
        Public name of the method; by default the function's.
    **description
        Other fields of :class:`Description`; `gives`, `cost` and `bias` are required.

    Returns
    -------
    Callable
        Decorator that adds a :class:`Description` to ``METHODS`` and returns the function as is.
    """

    def register(build: _Build) -> _Build:
        described = Description(name or build.__name__, build, **description)
        METHODS[described.name] = described
        return build

    return register
