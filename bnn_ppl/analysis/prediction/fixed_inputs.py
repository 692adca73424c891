"""A function of values and inputs, at inputs that stay: what these alone decide, computed once."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Var

from bnn_ppl.model.rows.features import are_small
from bnn_ppl.runtime.compilation.program_parts import Program, program_of, shape_of
from bnn_ppl.runtime.machines.devices import bytes_of

Array = jax.Array
Tree = Any


def at_inputs(
    function: Callable[[Tree, Tree], Tree],
    values: Tree,
    x: Tree,
    known: list[Array] | None = None,
) -> Callable[[Tree], Tree]:
    """Give ``function(values, x)`` as a function of the values, for use in a loop over them.

    What follows from x alone is computed here, once, unless it takes too much memory.

    Parameters
    ----------
    function
        Its result is a tree of arrays, such as a NumPyro distribution.
    values
        Some values, or their shapes.
    x
        Inputs.
    known
        What follows from x, from :func:`known_of_inputs`, if it has been computed before.
    """
    program, kept = _split(function, values, x)
    if program is None:
        return lambda values: function(values, x)
    given = dict(zip(program.now, jax.tree.leaves(x), strict=True))
    found = program.evaluate(given, kept) if known is None else known
    given |= dict(zip(kept, found, strict=True))

    def at(values: Tree) -> Tree:
        own = dict(zip(program.later, jax.tree.leaves(values), strict=True))
        results = program.evaluate(given | own, program.jaxpr.outvars)
        return jax.tree.unflatten(program.result, results)

    return at


def known_of_inputs(function: Callable[[Tree, Tree], Tree], values: Tree, x: Tree) -> list[Array]:
    """Compute what of ``function(values, x)`` follows from x alone, for :func:`at_inputs`."""
    program, kept = _split(function, values, x)
    if program is None:
        return []
    return program.evaluate(dict(zip(program.now, jax.tree.leaves(x), strict=True)), kept)


def _split(
    function: Callable[[Tree, Tree], Tree], values: Tree, x: Tree
) -> tuple[Program | None, list[Var]]:
    """Give the program and what to keep of what follows from x; None where that is nothing."""
    try:
        program = program_of(function, values, x)
    except TypeError:  # a result that is no tree of arrays
        return None, []
    kept = [result for result in program.crossing() if program.flops([result])]
    small = are_small(bytes_of([shape_of(result) for result in kept]), bytes_of(x))
    return (program, kept) if kept and small else (None, [])
