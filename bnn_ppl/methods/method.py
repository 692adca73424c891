"""The interface of inference methods, and the registry of those that exist.

A function of a posterior that returns a :class:`Method` and is decorated with :func:`describe` is
public as ``bnn_ppl.<name>`` once ``bnn_ppl/methods/__init__.py`` imports it, has a command
(``bnn-ppl run <name>``), and is found by the estimators and the tests that all methods must pass.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.methods.defaults import SAMPLED, Batching, Counts, rows_of_share
from bnn_ppl.methods.training.training_lengths import (
    has_convolutions,
    usual_batch_size,
    usual_num_steps,
)
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.recipe import Recipe, recipe_of
from bnn_ppl.runtime.names import known_keywords

PredictiveForm: TypeAlias = Literal["linearised", "closed_form", "sampled"]
DrawsFrom: TypeAlias = Literal[
    "chain",
    "point",
    "best_point",
    "average",
    "gaussian",
    "low_rank_gaussian",
    "structured_gaussian",
    "dropout",
    "particles",
]


class Tuning(NamedTuple):
    """What warm-up does for a method, besides its steps.

    Attributes
    ----------
    begin
        ``state, num_warmup -> state``: called once, before the first warm-up step, for methods that
        plan ahead. Where the info of a warm-up step has ``done`` = True, further ones change
        nothing, and warm-up ends early once all chains are done.
    finish
        ``state -> state``: called once, after the last warm-up step. Implies `needs_warmup`.
    start
        Method whose warm-up the chains go through first, unless `run` is given their start
        (``init=``): they start at its draws.
    needs_warmup
        Whether draws are biased unless warm-up has tuned the method.
    together
        Whether all chains take each warm-up step together, because it exchanges information between
        them (:mod:`bnn_ppl.runtime.machines.chain_exchange`).
    """

    begin: Callable[[Any, jax.Array], Any] | None = None
    finish: Callable[[Any], Any] | None = None
    start: "Method | None" = None
    needs_warmup: bool = False
    together: bool = False

    def of_inner(self) -> "Tuning":
        """Lift the functions of a wrapped method's state to the state of its wrapper."""
        return self._replace(begin=_of_inner(self.begin), finish=_of_inner(self.finish))


def _of_inner(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if function is None:
        return None
    return lambda state, *more: state._replace(inner=function(state.inner, *more))


class _Method(NamedTuple):
    init: Callable[..., Any]
    step: Callable[..., tuple[Any, dict[str, Any]]]
    draw: Callable[..., Any]
    warmup: Callable[..., tuple[Any, dict[str, Any]]] | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    fitted: Callable[[Any], dict[str, jax.Array]] | None = None
    logdensity: Callable[..., jax.Array] | None = None
    draws_from: DrawsFrom = "chain"
    counts: Counts = Counts()
    batching: Batching = Batching()
    tuning: Tuning = Tuning()
    recipe: Recipe | None = None


class Method(_Method):
    """An inference method as :func:`bnn_ppl.run` sees it: pure functions of one chain.

    A position is a dict of the unconstrained values of all sites; a state is any pytree. Only
    `init`, `step` and `draw` are required. Fields of `batching` and `tuning` can be given, and
    replaced, by their own names; ``all_rows=True``, ``symmetric_batches=True`` and
    ``independent_batches=True`` stand for ``order="all"``, ``"symmetric"`` and ``"independent"``.

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
    fitted
        ``state -> dict of arrays``: parameters of the distribution that draws are sampled from,
        recorded in the group ``fitted`` once per chain, at the end of the run.
    logdensity
        Log-density of the posterior it was built with, which lets :func:`bnn_ppl.run` refuse
        another posterior. None if the method holds no posterior.
    draws_from
        Source of a chain's draws: the states of a "chain"; an optimiser's last "point", its
        "best_point" or the "average" of its points; "particles"; or a fitted distribution.
        "gaussian" means independent Gaussians, with parameters ``<site>.loc`` and
        ``<site>.scale`` in the group ``fitted``. Recorded with the draws.
    counts
        Length of a run and batch size, where `run` is given none.
    batching
        Which rows it sees.
    tuning
        What warm-up does for it, besides its steps.
    recipe
        How to rebuild it for another posterior, such as one whose numbers are only known at run
        time; set by :func:`describe`.
    """

    __slots__ = ()

    def __new__(cls, *fields: Any, **named: Any) -> "Method":
        """Gather fields of `batching` and `tuning` that are given by their own names."""
        return super().__new__(cls, *fields, **_gathered(named, Batching(), Tuning()))

    def _replace(self, **changes: Any) -> "Method":
        changed = super()._replace(**_gathered(changes, self.batching, self.tuning))
        return cast(Method, changed)

    @property
    def all_rows(self) -> bool:
        """Whether every step must see the same rows."""
        return self.batching.order == "all"

    def __repr__(self) -> str:
        settings = dict(self.settings)
        name = settings.pop("method", "Method")
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})"


_ORDERS = {
    "all_rows": "all",
    "symmetric_batches": "symmetric",
    "independent_batches": "independent",
}


def _gathered(named: dict[str, Any], batching: Batching, tuning: Tuning) -> dict[str, Any]:
    for name, order in _ORDERS.items():
        if name in named:
            holds = named.pop(name)
            if holds or batching.order == order:
                named["order"] = order if holds else "epochs"
    for part, record in (("batching", batching), ("tuning", tuning)):
        own = {name: named.pop(name) for name in record._fields if name in named}
        if own:
            named[part] = named.get(part, record)._replace(**own)
    return named


def step_info(lp: jax.Array, num_gradients: int = 1, **more: jax.Array) -> dict[str, jax.Array]:
    """Make the info of a step without a Metropolis test, given its estimate of the log-density."""
    return {
        "diverging": ~jnp.isfinite(lp),
        "lp": lp,
        "n_steps": jnp.asarray(num_gradients),
        **more,
    }


def draw_position(key: jax.Array, state: Any) -> Any:
    """Draw where the chain is, for states with a ``chain`` that has a ``position``."""
    del key
    return state.chain.position


class Description(NamedTuple):
    """What the command line, the estimators, the docs and the tests need to know about a method.

    Attributes
    ----------
    build
        ``posterior, **options -> Method``: the decorated function. Its signature and docstring
        become the options and the help of ``bnn-ppl run <name>``.
    gives
        What its draws are, in a few words, for the table of methods.
    cost
        What a step costs, in a few words, for the table of methods.
    length
        Its default run length, in a few words, for its help and the table of methods; by default
        `counts` in words.
    bias
        The bias of its draws, in a few words, for the table of methods; begins with "none" if the
        samplers' tests must find the exact posterior.
    kind
        "sampler" if it steps between draws, "fit" if it trains in warm-up and then draws.
    stochastic_gradients
        Whether each step uses the gradient on a minibatch.
    trained_once
        Whether steps after warm-up change nothing, so that a longer run means a longer warm-up.
    takes_batch_statistics
        Whether it runs on networks with batch normalisation in train mode, where rows depend on
        each other: methods that train on minibatches can; methods that need a density that is a
        product over rows, or per-example gradients, cannot.
    counts
        Default length of a run: ``SAMPLED`` or ``FITTED``, or one adapted from them. The methods
        that it builds use it unless they have their own, with the default batch size if they take
        minibatches.
    predictive
        What its draws are made to predict with, the default of :func:`bnn_ppl.predict`.
    complete
        ``options, running -> options``: fills in options that depend on the run length, and refuses
        those that do not fit it. `running` holds the arguments of :func:`bnn_ppl.run`.
    """

    build: Callable[..., Method]
    gives: str
    cost: str
    bias: str
    length: str = ""
    kind: Literal["sampler", "fit"] = "sampler"
    stochastic_gradients: bool = False
    trained_once: bool = False
    takes_batch_statistics: bool = False
    counts: Counts = SAMPLED
    predictive: PredictiveForm = "sampled"
    complete: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]] = (
        lambda options, running: options
    )

    @property
    def name(self) -> str:
        """Its public name."""
        return self.build.__name__


METHODS: dict[str, Description] = {}  # by name; filled as the modules of methods are imported

_Build = TypeVar("_Build", bound=Callable[..., Method])


def described_methods() -> list[Description]:
    """List all methods: full-batch samplers, minibatch samplers, then fits."""

    def group(method: Description) -> tuple:
        return method.kind != "sampler", method.stochastic_gradients, method.name

    return sorted(METHODS.values(), key=group)


def table() -> str:
    """Write the table of methods in Markdown, with links to their pages."""
    lines = [
        "| method | result | cost of a step | bias | default length |",
        "|---|---|---|---|---|",
    ]
    for each in described_methods():
        page = f"[`{each.name}`]({each.name}.md)"
        lines.append(f"| {page} | {each.gives} | {each.cost} | {each.bias} | {each.length} |")
    return "\n".join(lines) + "\n"


def _for_posterior(posterior: Any, option: Any) -> Any:
    """Build a method that is an option of another method, for its posterior."""
    recipe = recipe_of(option) if isinstance(option, Method) else None
    return option if recipe is None else recipe.make(posterior)


def _refuse_batch_statistics(name: str, posterior: Any) -> None:
    statistics = posterior.rows.batch_statistics
    if statistics is not None:
        able = sorted(each.name for each in METHODS.values() if each.takes_batch_statistics)
        raise ValueError(
            f"got the BatchNorm {statistics.layers[0]} in train mode for {name}, which needs rows "
            "that do not depend on each other: train by one of "
            f"{', '.join(able)}; or pass a trained network after .eval(), with fixed statistics"
        )


def _maker(build: Callable[..., Method], args: tuple, options: dict[str, Any]) -> Callable:
    """Return the function that builds a method with these options for another posterior.

    The same function for the same options if these are numbers and strings alone: functions may
    read values that have changed since.
    """
    maker = _same_maker if all(map(_is_plain, (*args, *options.values()))) else _new_maker
    typed = tuple(map(type, (*args, *options.values())))  # 1 equals 1.0, which is another option
    return maker(build, args, tuple(options.items()), typed)


def _is_plain(option: Any) -> bool:
    return option is None or isinstance(option, bool | int | float | str)


def _new_maker(build: Callable[..., Method], args: tuple, options: tuple, typed: tuple) -> Callable:
    def make(other: Any) -> Method:
        anew = partial(_for_posterior, other)
        return build(other, *map(anew, args), **{name: anew(value) for name, value in options})

    return make


_same_maker = lru_cache(maxsize=64)(_new_maker)


def before_points(posterior: Any) -> Any:
    """Hold the points of a posterior at 0 until their values are known."""
    dtypes = jax.eval_shape(posterior.init, jax.random.key(0))
    shapes = posterior.sites.value_shapes()
    points = posterior.sites.points
    return posterior.hold({site: np.zeros(shapes[site], dtypes[site].dtype) for site in points})


def _before_points(
    build: Callable[..., Method], posterior: Any, args: tuple, options: dict[str, Any]
) -> Method:
    """Build a method for the posterior with its points held at 0; `run` rebuilds it."""
    make = _maker(build, args, options)
    method = make(before_points(posterior))
    method = method._replace(logdensity=posterior.logdensity, recipe=None)
    return method._replace(recipe=Recipe(make, method))


def _with_usual_counts(method: Method, described: Description, posterior: Any) -> Method:
    """Give a method without its own counts the default ones, and the default batch size."""
    if method.counts != Counts():
        return method
    num_rows, size = rows_of_share(method.batching.subsample, posterior.num_rows), None
    if described.stochastic_gradients:
        trains_convolutions = described.kind == "fit" and has_convolutions(posterior)
        size = usual_batch_size(num_rows, posterior.num_weights, trains_convolutions)
    steps = described.counts.num_warmup
    if described.kind == "fit":
        steps = usual_num_steps(steps, num_rows, posterior.num_weights, size)
    return method._replace(counts=described.counts._replace(num_warmup=steps, batch_size=size))


def describe(
    shared: Mapping[str, Any] = MappingProxyType({}), /, *, name: str | None = None, **own: Any
) -> Callable[[_Build], _Build]:
    """Register the decorated function, which builds a Method from a posterior, as a method.

    For example ``@describe(gives="draws", cost="a gradient on all rows", bias="the step size")``.

    Parameters
    ----------
    shared
        Fields of :class:`Description` of a kind of methods, of `methods/defaults.py`.
    name
        Public name of the method; by default that of the function.
    **own
        Other fields, or other values; `gives`, `cost` and `bias` are required.

    Returns
    -------
    Callable
        Decorator that adds a :class:`Description` to ``METHODS`` and returns the function, whose
        methods have the default counts.
    """

    def register(build: _Build) -> _Build:
        @known_keywords
        @wraps(build)
        def built(posterior: Any, *args: Any, **options: Any) -> Method:
            check_arguments(posterior=posterior)
            if not described.takes_batch_statistics:
                _refuse_batch_statistics(described.name, posterior)
            if posterior.sites.points:
                return _before_points(built, posterior, args, options)
            method = build(posterior, *args, **options)._replace(recipe=None)
            method = _with_usual_counts(method, described, posterior)
            return method._replace(recipe=Recipe(_maker(built, args, options), method))

        fields = {**shared, **own}
        counts = fields.get("counts", SAMPLED)
        usual = f"{counts.num_warmup:,} warm-up steps, {counts.num_draws:,} draws"
        built.__name__ = name or build.__name__
        described = Description(built, **({"length": usual} | fields))
        METHODS[described.name] = described
        return cast(_Build, built)

    return register
