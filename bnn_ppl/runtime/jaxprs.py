"""Traced programs, read: their equations, and the programs inside these."""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


def equations_in(program: Jaxpr) -> Iterator[JaxprEqn]:
    """Give all equations of a program, those of loops, branches and calls included."""
    for equation in program.eqns:
        yield equation
        for inner in programs_in(equation):
            yield from equations_in(inner)


def programs_in(equation: JaxprEqn) -> list[Jaxpr]:
    """Give the programs that an equation runs: a loop's body, branches, a function called."""
    return [program for value in equation.params.values() for program in _programs(value)]


def _programs(parameter: Any) -> list[Jaxpr]:
    several = parameter if isinstance(parameter, tuple | list) else [parameter]
    programs = [p.jaxpr if isinstance(p, ClosedJaxpr) else p for p in several]
    return [program for program in programs if isinstance(program, Jaxpr)]
