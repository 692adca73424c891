"""A traced program in parts: what follows from some of its arguments, and what is left to do."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from bnn_ppl.runtime.compilation.jaxprs import constants_in, cost_of

Tree = Any


class Program(NamedTuple):
    """A traced function ``later, now -> result``, the calls in it replaced by what they do.

    Attributes
    ----------
    jaxpr
        Its equations; a call of a compiled function is none.
    constants
        What the function closes over, with the variables of the program that hold it.
    now
        Variables of the leaves of its second argument, which is known first.
    result
        Structure of the result.
    early
        The equations that follow from `now` and constants, in order, as far as the result needs
        them; none that follows from constants alone or has side effects.
    """

    jaxpr: Jaxpr
    constants: dict[Var, Any]
    later: list[Var]
    now: list[Var]
    result: Any
    early: list[JaxprEqn]

    @property
    def digest(self) -> str:
        """Tell programs apart whose early equations are others."""
        names = ",".join(f"{e.primitive.name} {len(e.outvars)}" for e in self.early)
        return hashlib.sha256(names.encode()).hexdigest()[:16]

    @property
    def early_results(self) -> list[Var]:
        """Give all results of the early equations, in order."""
        return [result for equation in self.early for result in equation.outvars]

    def crossing(self) -> list[Var]:
        """Give the early results that other equations, or the result itself, are made of."""
        early, own = set(self.early_results), set(map(id, self.early))
        readers = [e for e in _needed(self.jaxpr.eqns, self.jaxpr.outvars) if id(e) not in own]
        read = [*(v for e in readers for v in e.invars), *self.jaxpr.outvars]
        return list(dict.fromkeys(v for v in read if isinstance(v, Var) and v in early))

    def flops(self, results: Iterable[Var]) -> float:
        """Count the operations of the products and convolutions that lead to some results."""
        return cost_of(self._between([], results)).flops

    def fingerprint(self, results: Iterable[Any]) -> str:
        """Hash what computes some early results, or all: its equations, and the constants in them.

        Equal in other processes, where the parts of functions are at other addresses.
        """
        part = self._between([*self.constants, *self.now], results)
        text = part.pretty_print(use_color=False)
        found = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", text).encode())
        outer = [self.constants[v] for v in part.invars if v in self.constants]
        for value in [*outer, *constants_in(part)]:
            if jax.dtypes.issubdtype(jax.numpy.result_type(value), jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            array = np.asarray(value)
            found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
        return found.hexdigest()[:16]

    def read_beside(self, kept: Collection[Var]) -> list[bool]:
        """Say which leaves of the argument known first the result needs besides early results."""
        given = [*self.constants, *self.later, *self.now, *kept]
        used = set(self._between(given, self.jaxpr.outvars).invars)
        return [variable in used for variable in self.now]

    def evaluate(self, given: dict[Var, Any], results: Iterable[Any]) -> list[Any]:
        """Compute results from given variables; what these are computed from is left out."""
        known = self.constants | given
        part = self._between(known, results)
        return jax.core.eval_jaxpr(part, (), *(known[each] for each in part.invars))

    def _between(self, given: Collection[Var], results: Iterable[Any]) -> Jaxpr:
        results = list(results)
        equations = _needed(self.jaxpr.eqns, results, given)
        used = {v for e in equations for v in e.invars if isinstance(v, Var)} | {*_vars(results)}
        return Jaxpr(
            (), [v for v in given if v in used], results, equations,
            debug_info=self.jaxpr.debug_info,
        )  # fmt: skip


def program_of(function: Callable[[Tree, Tree], Tree], later: Tree, now: Tree) -> Program:
    """Trace ``function(later, now)``; shapes will do for the arguments."""
    traced, shape = jax.make_jaxpr(function, return_shape=True)(later, now)
    flat = jax.make_jaxpr(lambda *args: _without_calls(traced.jaxpr, args))(
        *traced.consts, *jax.tree.leaves((later, now))
    )
    places = iter(flat.jaxpr.invars)
    constants = dict(zip(islice(places, len(traced.consts)), traced.consts, strict=True))
    constants |= dict(zip(flat.jaxpr.constvars, flat.consts, strict=True))
    later_vars = list(islice(places, len(jax.tree.leaves(later))))
    now_vars = list(places)
    early = _early(flat.jaxpr, later_vars, now_vars)
    return Program(flat.jaxpr, constants, later_vars, now_vars, jax.tree.structure(shape), early)


def program_digest(function: Callable[..., Tree], *arguments: Tree) -> str | None:
    """Hash all that a function does; None if it calls back to Python, which its text does not show.

    Shapes will do for the arguments.
    """
    program = program_of(lambda _, given: function(*given), (), arguments)
    calls_back = "callback" in program.jaxpr.pretty_print(use_color=False)
    return None if calls_back else program.fingerprint(program.jaxpr.outvars)


def shape_of(variable: Any) -> jax.ShapeDtypeStruct:
    """Give the shape and dtype of a variable of a program."""
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def _without_calls(program: Jaxpr, args: Iterable[Any]) -> list[Any]:
    """Evaluate a program; traced, it shows the equations of compiled functions one by one."""
    values = dict(zip((*program.constvars, *program.invars), args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in program.eqns:
        given = [read(atom) for atom in equation.invars]
        if equation.primitive.name == "jit":
            inner = equation.params["jaxpr"]
            found = _without_calls(inner.jaxpr, [*inner.consts, *given])
        else:
            found = _evaluated(equation, given, program)
        values |= dict(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in program.outvars]


def _evaluated(equation: JaxprEqn, given: list[Any], program: Jaxpr) -> list[Any]:
    by_variable = {
        v: value for v, value in zip(equation.invars, given, strict=True) if isinstance(v, Var)
    }
    alone = Jaxpr(
        (), list(by_variable), equation.outvars, [equation], debug_info=program.debug_info
    )
    return jax.core.eval_jaxpr(alone, (), *by_variable.values())


def _early(program: Jaxpr, later: list[Var], now: list[Var]) -> list[JaxprEqn]:
    if any(equation.effects for equation in program.eqns):  # a print, say, is to stay in its place
        return []
    from_later, from_now = set(later), set(now)
    early = []
    for equation in _needed(program.eqns, program.outvars):
        given = set(_vars(equation.invars))
        if given & from_later:
            from_later.update(equation.outvars)
        elif given & from_now:
            from_now.update(equation.outvars)
            early.append(equation)
    return early


def _needed(
    equations: Iterable[JaxprEqn], results: Iterable[Any], given: Collection[Var] = ()
) -> list[JaxprEqn]:
    """Give the equations that results follow from, where some variables are given."""
    wanted = {v for v in _vars(results) if v not in given}
    needed = []
    for equation in reversed(list(equations)):
        if wanted.intersection(equation.outvars):
            needed.append(equation)
            wanted.update(v for v in _vars(equation.invars) if v not in given)
    return needed[::-1]


def _vars(atoms: Iterable[Any]) -> list[Var]:
    return [atom for atom in atoms if isinstance(atom, Var)]
