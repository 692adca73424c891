"""The prior precision of most evidence about modes, where one program finds it in a second."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.sampling.setup.numeric_arguments import Make, Numbers, numbers_to_run

Tree = Any


def precision_multipliers(posterior: Posterior, approximation: Method, modes: Tree) -> np.ndarray:
    """Give the multiplier of the prior's precision that a Laplace approximation finds at each mode.

    It is that of a run of the approximation, without what a run does for long ones: it neither
    reports nor stores.

    Parameters
    ----------
    posterior
        With its rows in memory.
    approximation
        From :func:`bnn_ppl.laplace`, with ``prior_precision="marginal_likelihood"``.
    modes
        Positions (mode, ...) by site.

    Returns
    -------
    numpy.ndarray
        (mode,).
    """
    numbers, make = numbers_to_run(posterior, approximation)
    program = _compiled(lambda _: approximation) if make is None else _of_numbers(make)
    with products_in(posterior.density.precision):
        return np.asarray(program(list(map(jnp.asarray, numbers)), modes, posterior.data))


@lru_cache(maxsize=2)
def _of_numbers(make: Make) -> Callable:
    return _compiled(lambda numbers: make(numbers)[1])


def _compiled(method_of: Callable[[Numbers], Method]) -> Callable:
    def multipliers(numbers: Numbers, modes: Tree, rows: Tree) -> jax.Array:
        method = method_of(numbers)
        return jax.lax.map(lambda mode: _multiplier(method, mode, rows), modes)

    return compiled_once(multipliers, runs_once=True)


def _multiplier(method: Method, mode: Tree, rows: Tree) -> jax.Array:
    add, finish, size = method.warmup, method.tuning.finish, method.counts.batch_size
    assert add is not None and finish is not None and size is not None
    key = jax.random.key(0)  # not used

    def batch(number: jax.Array | int) -> Tree:
        def of(leaf: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(leaf, number * size, size)

        return jax.tree.map(of, rows)

    def step(number: jax.Array, state: Tree) -> Tree:
        return add(key, state, batch(number))[0]

    state = method.init(key, mode, batch(0))
    return finish(jax.lax.fori_loop(0, len(rows[1]) // size, step, state)).multiplier
