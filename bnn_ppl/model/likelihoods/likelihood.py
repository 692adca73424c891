"""What a likelihood is, and the registry of those that have a name.

A function of the training targets that returns a :class:`Likelihood` and is decorated with
:func:`describe` is public as ``bnn_ppl.likelihoods.<name>`` once
``bnn_ppl/model/likelihoods/__init__.py`` imports it; the command line (``--likelihood``), the
estimators and the tests of all likelihoods then find it.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial

Array = jax.Array
Moments = tuple[float, float]  # where f(x) is 0, and spread, of targets on the scale of f

_LEAST_SPREAD = 0.1  # of logarithms or logits of y, where all are nearly the same
_MOST_CENTER = 57.0  # exp(57 + 30) is still a number of float32
_MOST_LOG = 30.0  # exp(30) is 1e13; beyond it float32 gives densities that are not finite


class Likelihood(NamedTuple):
    """The distribution of y given the outputs of a network.

    Attributes
    ----------
    name : str
        By which it is chosen.
    num_outputs : int
        Number of outputs of the network.
    law : jax.tree_util.Partial
        ``law(outputs, **columns) -> distribution`` of y (rows,), or (rows, targets) as its batch,
        outputs of shape (rows, num_outputs). It samples sites of its own, so call it outside the
        plate of rows. The columns are those that its description names, such as ``exposure``
        (rows,).
    """

    name: str
    num_outputs: int
    law: Partial


class Targets(NamedTuple):
    """What y has to be.

    Attributes
    ----------
    words : str
        For messages.
    allowed : Callable
        Tells of an array y which of its values are.
    standardised : bool
        Whether y is standardised; otherwise it stays in its own units.
    of_classes : bool
        Whether y are class numbers.
    """

    words: str
    allowed: Callable[[np.ndarray], np.ndarray]
    standardised: bool = False
    of_classes: bool = False


REAL = Targets("numbers", np.isfinite, standardised=True)
POSITIVE = Targets("numbers above 0", lambda y: y > 0)
SHARES = Targets("numbers between 0 and 1, without these", lambda y: (y > 0) & (y < 1))
COUNTS = Targets("counts 0, 1, 2, ...", lambda y: (y >= 0) & (y == np.round(y)))
CLASSES = Targets(
    "class numbers 0, 1, 2, ...", lambda y: (y >= 0) & (y == np.round(y)), of_classes=True
)


class Description(NamedTuple):
    """A likelihood as the command line and the estimators find it.

    Attributes
    ----------
    name : str
        By which it is chosen.
    build : Callable
        ``build(y, **options) -> Likelihood``, y being the training targets.
    targets : Targets
        What y has to be.
    law : Callable
        ``law(*numbers, outputs, **columns)``, the numbers being what `build` finds of y.
    columns : tuple of str
        Columns of the rows, that it needs or can use beside x and y.
    columns_of_y : tuple of str
        Those of `columns` that `build` takes too, for y means something else without them.
    required : tuple of str
        Those of `columns_of_y` that have to be given.
    options : tuple of str
        Other keywords of `build`.
    of_several : bool
        Whether it is of several targets too, each by an output of its own.
    """

    name: str
    build: Callable[..., Likelihood]
    targets: Targets
    law: Callable[..., dist.Distribution]
    columns: tuple[str, ...] = ()
    columns_of_y: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    of_several: bool = False

    @property
    def about(self) -> str:
        """What it is for, in a line."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0].rstrip(".")


LIKELIHOODS: dict[str, Description] = {}


def describe(
    targets: Targets,
    law: Callable[..., dist.Distribution],
    columns: tuple[str, ...] = (),
    of_several: bool = False,
) -> Callable[[Callable], Callable]:
    """Register a likelihood under the name of the function that builds it.

    Of several targets it is built for each by itself; the law then gets the numbers of all.
    """

    def register(build: Callable[..., Likelihood]) -> Callable[..., Likelihood]:
        @wraps(build)
        def checked(y: Any, *columns: Any, **options: Any) -> Likelihood:
            values = checked_targets(build.__name__, y, targets, of_several)
            if values.ndim == 1:
                return build(values, *columns, **options)
            laws = [build(own, *columns, **options).law for own in values.T]
            numbers = jax.tree.map(lambda *each: np.array(each), *[each.args for each in laws])
            return Likelihood(build.__name__, len(laws), Partial(laws[0].func, *numbers))

        _, *keywords = inspect.signature(build).parameters.values()
        of_y = [each for each in keywords if each.name in columns]
        LIKELIHOODS[build.__name__] = Description(
            name=build.__name__,
            build=checked,
            targets=targets,
            law=law,
            columns=columns,
            columns_of_y=tuple(each.name for each in of_y),
            required=tuple(each.name for each in of_y if each.default is each.empty),
            options=tuple(each.name for each in keywords if each not in of_y),
            of_several=of_several,
        )
        return checked

    return register


def checked_targets(name: str, y: Any, targets: Targets, of_several: bool) -> np.ndarray:
    """Give y in double precision; ValueError unless it is what the likelihood is of."""
    values = np.asarray(y, np.float64)
    fits = values.ndim == 1 or (of_several and values.ndim == 2 and values.shape[1] > 1)
    if not fits or not values.size:
        expected = "(rows,) or (rows, targets)" if of_several else "(rows,)"
        several = values.ndim == 2 and values.shape[1] > 1 and not of_several
        do = "choose one target, or another likelihood" if several else "reshape it"
        raise ValueError(f"got y of shape {values.shape} for {name}, expected {expected}: {do}")
    wrong = ~(np.isfinite(values) & targets.allowed(values))
    if wrong.any():
        raise ValueError(
            f"got y={values[wrong][0]:g} for the likelihood {name}, expected {targets.words}: "
            "correct y, or choose another likelihood"
        )
    return values


def to_json(likelihood: Likelihood) -> dict[str, Any]:
    """Give a likelihood by name as JSON holds it: with what it knows of the training targets."""
    numbers = [np.asarray(number, float).tolist() for number in likelihood.law.args]
    return likelihood._asdict() | {"law": numbers}


def from_json(record: Mapping[str, Any]) -> Likelihood:
    """Read what `to_json` gave."""
    if record["name"] == "quantile" and record["num_outputs"] == len(record["law"][0]):
        raise ValueError(
            "got a run with the quantile likelihood of an earlier version, expected that of this "
            "one, which has a continuous density: run it again"
        )
    law = Partial(LIKELIHOODS[record["name"]].law, *map(np.asarray, record["law"]))
    return Likelihood(record["name"], record["num_outputs"], law)


# --- what the files of likelihoods share


def center_and_spread(values: np.ndarray) -> Moments:
    """Give the mean of transformed targets, and their standard deviation unless it is tiny."""
    return float(values.mean()), max(float(values.std()), _LEAST_SPREAD)


def exp(center: Any, change: Array) -> Array:
    """Give exp(center + change), finite and above 0 for any change that a chain may try."""
    center = jnp.clip(center, -_MOST_CENTER, _MOST_CENTER)
    return jnp.exp(center) * jnp.exp(jnp.clip(change, -_MOST_LOG, _MOST_LOG))


def by_target(outputs: Array) -> Array:
    """Give outputs (rows, targets) in the shape of y: (rows,) of one target."""
    return outputs[:, 0] if outputs.shape[1] == 1 else outputs


def by_row(column: Any, outputs: Array) -> Array:
    """Give a column (rows,) in a shape that goes with those of `by_target`."""
    column = jnp.asarray(column)
    return column[:, None] if outputs.shape[1] > 1 and column.ndim else column


def sampled(name: str, prior: dist.Distribution, outputs: Array) -> Array:
    """Sample a parameter, of several targets each its own: (targets,)."""
    several = outputs.shape[1] > 1
    return numpyro.sample(name, prior.expand(outputs.shape[1:]).to_event(1) if several else prior)


def around(value: float, spread: float = 1.5) -> dist.Distribution:
    """Give a wide prior of a positive parameter about its estimate by the moments of y."""
    return dist.LogNormal(jnp.log(value), spread)
