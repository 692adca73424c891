"""The numbers of a posterior that its programs take as arguments, and what is traced with them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import jax

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import recipe_of

Numbers = list[Any]
Make: TypeAlias = Callable[[Numbers], tuple[Posterior, Method]]


def numbers_to_run(posterior: Posterior, method: Method) -> tuple[Numbers, Make | None]:
    """Give the posterior's numbers, and the posterior and the method as a function of them.

    None for the function where they cannot be made anew: programs then take them as they are.
    Equal arguments give equal functions.
    """
    of_posterior, of_method = recipe_of(posterior), recipe_of(method)
    if of_posterior is None or of_method is None:
        return [], None
    numbers = of_posterior.numbers
    make = _make(of_posterior.make, of_method.make, tuple(map(jax.typeof, numbers)))
    return ([], None) if make is None else (numbers, make)


@lru_cache(maxsize=8)
def _make(of_posterior: Callable, of_method: Callable, types: tuple) -> Make | None:
    def make(numbers: Numbers) -> tuple[Posterior, Method]:
        posterior = of_posterior(numbers)
        return posterior, of_method(posterior)

    def traced(numbers: Numbers) -> dict[str, jax.Array]:
        return make(numbers)[0].prior.std

    try:
        jax.eval_shape(traced, list(types))
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        return None  # a number decides what the program does, such as how many steps it takes
    return make
