"""Traced programs, read: their equations, and the programs inside these."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal


def equations_in(program: Jaxpr) -> Iterator[JaxprEqn]:
    """Give all equations of a program, those of loops, branches and calls included."""
    for equation in program.eqns:
        yield equation
        for inner in programs_in(equation):
            yield from equations_in(inner)


def programs_in(equation: JaxprEqn) -> list[Jaxpr]:
    """Give the programs that an equation runs: a loop's body, branches, a function called."""
    return [program for value in equation.params.values() for program in _programs(value)]


def constants_in(program: Jaxpr) -> Iterator[Any]:
    """Give the constants of the programs inside a program, which its text does not show.

    JAX can also be told to have arrays among the arguments of equations.
    """
    for equation in equations_in(program):
        literals = (atom.val for atom in equation.invars if isinstance(atom, Literal))
        yield from (value for value in literals if np.ndim(value))
        for parameter in equation.params.values():
            for inner in _several(parameter):
                yield from inner.consts if isinstance(inner, ClosedJaxpr) else ()


class Cost(NamedTuple):
    """What matrix products and convolutions cost.

    Attributes
    ----------
    flops
        Floating-point operations, two a multiplication with its addition.
    num_bytes
        Of their arguments and results, each moved once.
    """

    flops: float
    num_bytes: float


def cost_of(program: Jaxpr) -> Cost:
    """Add up the products and convolutions of a program; loops count by their known lengths."""
    flops = num_bytes = 0.0
    for equation in program.eqns:
        times = equation.params.get("length", 1)  # of a scan
        inner = [cost_of(each) for each in programs_in(equation)]
        flops += times * sum(each.flops for each in inner)
        num_bytes += times * sum(each.num_bytes for each in inner)
        if is_product(equation):
            arrays: list[Any] = [each.aval for each in (*equation.invars, *equation.outvars)]
            flops += 2 * arrays[-1].size * _summed(equation)
            num_bytes += sum(array.size * array.dtype.itemsize for array in arrays)
    return Cost(flops, num_bytes)


def is_product(equation: JaxprEqn) -> bool:
    """Whether an equation is a matrix product or a convolution."""
    return equation.primitive.name in ("dot_general", "conv_general_dilated")


def _summed(equation: JaxprEqn) -> int:
    """Give the number of products that each number of a result is the sum of."""
    arrays: list[Any] = [variable.aval for variable in equation.invars]
    left, right = arrays
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return math.prod(left.shape[axis] for axis in contracted)
    _, channels_in, *window = equation.params["dimension_numbers"].rhs_spec
    return math.prod(right.shape[axis] for axis in (channels_in, *window))


def _programs(parameter: Any) -> list[Jaxpr]:
    programs = [p.jaxpr if isinstance(p, ClosedJaxpr) else p for p in _several(parameter)]
    return [program for program in programs if isinstance(program, Jaxpr)]


def _several(parameter: Any) -> tuple | list:
    return parameter if isinstance(parameter, tuple | list) else [parameter]
