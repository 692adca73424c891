"""JAX programs as ONNX graphs, one primitive after the other: how each is written.

Another primitive is an entry of `_UNARY`, `_BINARY` or `_WRITTEN`. What does not depend on the rows
is computed while writing, so that only primitives between the rows and the answers need an entry.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

# The number of rows while a program is traced: a prime that is no size of a network, so that sizes
# that are multiples of it are known to be of rows.
ROWS = 1_000_003
_INSIDE = "jaxpr", "call_jaxpr", "fun_jaxpr"  # parameters of primitives that call programs
_ALIKE = "copy", "stop_gradient", "optimization_barrier", "copy_p", "sharding_constraint"
_NOT_LAYERS = "/jax/", "/jax\\", "importlib", "numpyro/", "onnx_p"


class Graph:
    """A graph that grows: its nodes and constants, and the sizes that are known of its values."""

    def __init__(self, rows: str) -> None:
        """Start with an input of `rows`."""
        from onnx import helper, numpy_helper

        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._helper, self._numpy = helper, numpy_helper
        self.node = helper.make_node
        self._rows = self.add("Shape", rows, start=0, end=1)

    def add(self, op: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node and give the name of its output; arrays among its inputs are constants."""
        name = f"v{len(self.nodes)}"
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(self.node(op, names, [name], **attributes))
        return name

    def constant(self, values: Any) -> str:
        """Keep an array in the graph."""
        name = f"c{len(self.constants)}"
        self.constants.append(self._numpy.from_array(np.ascontiguousarray(values), name))
        return name

    def cast(self, value: Any, dtype: Any) -> str:
        """Change the type of a value."""
        return self.add("Cast", value, to=self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, value: Any, shape: Sequence[int]) -> str:
        """Change the shape of a value; the one size that is of rows is inferred."""
        sizes = [-1 if is_of_rows(size) else int(size) for size in shape]
        return self.add("Reshape", value, np.array(sizes, np.int64))

    def transpose(self, value: Any, order: Any) -> Any:
        """Change the order of dimensions."""
        if list(order) == sorted(order):
            return value
        return self.add("Transpose", value, perm=list(map(int, order)))

    def expand(self, value: Any, shape: Sequence[int]) -> str:
        """Repeat a value along dimensions of size one."""
        if not any(map(is_of_rows, shape)):
            return self.add("Expand", value, np.array(shape, np.int64))
        sizes: list[Any] = []
        for size in shape:
            times = np.array([size // ROWS if is_of_rows(size) else size], np.int64)
            sizes.append(self.add("Mul", self._rows, times) if is_of_rows(size) else times)
        return self.add("Expand", value, self.add("Concat", *sizes, axis=0))


def is_of_rows(size: int) -> bool:
    """Whether a size is a multiple of the number of rows."""
    return size > 0 and size % ROWS == 0


def write(graph: Graph, closed: Any, inputs: Sequence[Any]) -> list[Any]:
    """Write a program (a closed jaxpr) into a graph; give names or arrays of its answers.

    Raises
    ------
    ValueError
        If a primitive that depends on the rows has no entry: with the layer that it is of.
    """
    known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known |= dict(zip(closed.jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> Any:
        is_literal = isinstance(atom, Literal)
        return np.asarray(atom.val, atom.aval.dtype) if is_literal else known[atom]

    for eqn in _needed(closed.jaxpr):
        found = _written(graph, eqn, [value(atom) for atom in eqn.invars])
        known |= dict(zip(eqn.outvars, found, strict=True))
    return [value(atom) for atom in closed.jaxpr.outvars]


def _needed(program: Any) -> list[Any]:
    """Leave out equations that no answer depends on, such as checks of arguments."""
    needed, found = set(map(id, program.outvars)), []
    for eqn in reversed(program.eqns):
        if needed & set(map(id, eqn.outvars)):
            needed |= set(map(id, eqn.invars))
            found.append(eqn)
    return found[::-1]


def _written(graph: Graph, eqn: Any, inputs: list[Any]) -> list[Any]:
    inside = next((eqn.params[name] for name in _INSIDE if name in eqn.params), None)
    name = eqn.primitive.name
    if inside is not None and name not in ("scan", "while", "cond"):
        closed = ClosedJaxpr(inside, ()) if isinstance(inside, Jaxpr) else inside
        return write(graph, closed, inputs)
    sizes = [size for out in eqn.outvars for size in out.aval.shape]
    if not any(isinstance(each, str) for each in inputs) and not any(map(is_of_rows, sizes)):
        return _computed(eqn, inputs)
    if name in _ALIKE:
        return inputs
    if name in _UNARY or name in _BINARY:
        return [graph.add((_UNARY | _BINARY)[name], *inputs)]
    if name not in _WRITTEN:
        raise _refused(eqn, f"the primitive {name}")
    found = _WRITTEN[name](graph, eqn, inputs)
    return found if isinstance(found, list) else [found]


def _computed(eqn: Any, inputs: list[Any]) -> list[Any]:
    """Compute what does not depend on the rows."""
    found = eqn.primitive.bind(*map(jax.numpy.asarray, inputs), **eqn.params)
    return list(found) if eqn.primitive.multiple_results else [found]


def _refused(eqn: Any, what: str) -> ValueError:
    """Name the layer, which is the innermost function that is not of JAX."""
    trace = eqn.source_info.traceback
    frames = [] if trace is None else trace.frames
    own = [f for f in frames if not any(part in f.file_name for part in _NOT_LAYERS)]
    own = own or frames
    where = "a layer"
    if own:
        file = own[0].file_name.replace("\\", "/").rsplit("/", 1)[-1]
        where = f"{own[0].function_name} ({file}, line {own[0].line_num})"
    return ValueError(
        f"got {what} in {where}, expected layers that ONNX is written for (dense, convolution, "
        "pooling, elementwise functions): export as stablehlo"
    )


# --- primitives that are one operator

_UNARY = {
    "neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "erf": "Erf",
    "sqrt": "Sqrt", "abs": "Abs", "sin": "Sin", "cos": "Cos", "floor": "Floor", "ceil": "Ceil",
    "sign": "Sign", "not": "Not",
}  # fmt: skip
_BINARY = {
    "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max",
    "min": "Min", "pow": "Pow", "and": "And", "or": "Or", "eq": "Equal", "lt": "Less",
    "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip


# --- primitives that are several, or have parameters


def _number(eqn: Any, value: float) -> np.ndarray:
    return np.asarray(value, eqn.invars[0].aval.dtype)


def _reduced(op: str) -> Callable:
    def written(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
        axes = np.array(eqn.params["axes"], np.int64)
        return graph.add(op, inputs[0], axes, keepdims=0, noop_with_empty_axes=1)

    return written


def _reshaped(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
    shape = eqn.outvars[0].aval.shape
    if sum(map(is_of_rows, shape)) > 1:
        raise _refused(eqn, f"the shape {shape}")
    order = eqn.params.get("dimensions") if eqn.primitive.name == "reshape" else None
    value = inputs[0] if order is None else graph.transpose(inputs[0], order)
    return graph.reshape(value, shape)


def _broadcast(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
    shape, places = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    given = dict(zip(places, eqn.invars[0].aval.shape, strict=True))
    thin = [given.get(place, 1) for place in range(len(shape))]
    same = tuple(thin) == eqn.invars[0].aval.shape
    value = inputs[0] if same else graph.reshape(inputs[0], thin)
    return value if thin == list(shape) else graph.expand(value, shape)


def _sliced(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
    shape, params = eqn.invars[0].aval.shape, eqn.params
    starts, ends = params["start_indices"], params["limit_indices"]
    steps = params["strides"] or (1,) * len(shape)
    each = starts, ends, range(len(shape)), steps
    cut = [k for k, size in enumerate(shape) if (starts[k], ends[k], steps[k]) != (0, size, 1)]
    if any(is_of_rows(shape[k]) for k in cut):
        raise _refused(eqn, "a slice of the rows")
    return graph.add("Slice", inputs[0], *(np.array([v[k] for k in cut], np.int64) for v in each))


def _split(graph: Graph, eqn: Any, inputs: list[Any]) -> list[str]:
    axis, ends = eqn.params["axis"], np.cumsum(eqn.params["sizes"])
    parts = zip([0, *ends[:-1]], ends, strict=True)
    return [
        graph.add("Slice", inputs[0], *(np.array([each], np.int64) for each in (*part, axis)))
        for part in parts
    ]


def _padded(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
    low, high, between = zip(*eqn.params["padding_config"], strict=True)
    if any(between) or min(*low, *high) < 0:
        raise _refused(eqn, "padding between values, or below zero")
    return graph.add("Pad", inputs[0], np.array([*low, *high], np.int64), inputs[1])


def _product(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
    """Write a product of tensors as one of matrices (batch, rows, columns)."""
    contracted, batches = eqn.params["dimension_numbers"]
    parts = []
    for side, atom in enumerate(eqn.invars):
        shape, batch, over = atom.aval.shape, batches[side], contracted[side]
        own = [k for k in range(len(shape)) if k not in (*batch, *over)]
        order = [*batch, *own, *over] if side == 0 else [*batch, *over, *own]
        sizes = [math.prod(shape[k] for k in places) for places in (batch, own, over)]
        matrix = sizes if side == 0 else [sizes[0], sizes[2], sizes[1]]
        parts.append(graph.reshape(graph.transpose(inputs[side], order), matrix))
    shape = eqn.outvars[0].aval.shape
    if sum(map(is_of_rows, shape)) > 1:
        raise _refused(eqn, "a product of rows with rows")
    return graph.reshape(graph.add("MatMul", *parts), shape)


def _convolved(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
    params = eqn.params
    low, high = zip(*params["padding"], strict=True)
    if set(params["lhs_dilation"]) != {1} or params["batch_group_count"] != 1:
        raise _refused(eqn, "a transposed convolution")
    if min(*low, *high) < 0:
        raise _refused(eqn, "padding below zero")
    of_input, of_kernel, of_output = params["dimension_numbers"]
    found = graph.add(
        "Conv",
        graph.transpose(inputs[0], of_input),
        graph.transpose(inputs[1], of_kernel),
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        pads=[*low, *high],
        group=params["feature_group_count"],
    )
    return graph.transpose(found, np.argsort(of_output))


def _pooled(op: str) -> Callable:
    """Give how a pooling is written; a sum is an average times the size of the window."""

    def written(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
        params, shape = eqn.params, eqn.invars[0].aval.shape
        window, low_high = params["window_dimensions"], params["padding"]
        if {*params["base_dilation"], *params["window_dilation"]} != {1}:
            raise _refused(eqn, "a dilated pooling")
        strides = params["window_strides"]
        per_axis = list(zip(window, strides, low_high, strict=True))
        space = [k for k, own in enumerate(per_axis) if own != (1, 1, (0, 0))]
        others = [k for k in range(len(shape)) if k not in space]
        order = [*others, *space]
        flat = graph.reshape(graph.transpose(inputs[0], order), [-1, 1, *(shape[k] for k in space)])
        low, high = zip(*(low_high[k] for k in space), strict=True)
        options: dict[str, Any] = {"kernel_shape": [window[k] for k in space]}
        options |= {"strides": [strides[k] for k in space], "pads": [*low, *high]}
        options |= {"count_include_pad": 1} if op == "AveragePool" else {}
        found = graph.add(op, flat, **options)
        out = eqn.outvars[0].aval
        found = graph.transpose(
            graph.reshape(found, [out.shape[k] for k in order]), np.argsort(order)
        )
        size = np.asarray(math.prod(window), out.dtype)
        return graph.add("Mul", found, size) if op == "AveragePool" else found

    return written


def _selected(graph: Graph, eqn: Any, inputs: list[Any]) -> str:
    which, *cases = inputs
    if len(cases) != 2:
        raise _refused(eqn, f"a choice of {len(cases)}")
    return graph.add("Where", graph.cast(which, bool), cases[1], cases[0])


_WRITTEN: dict[str, Callable[[Graph, Any, list[Any]], Any]] = {
    "square": lambda g, eqn, xs: g.add("Mul", xs[0], xs[0]),
    "log1p": lambda g, eqn, xs: g.add("Log", g.add("Add", xs[0], _number(eqn, 1))),
    "expm1": lambda g, eqn, xs: g.add("Sub", g.add("Exp", xs[0]), _number(eqn, 1)),
    "erfc": lambda g, eqn, xs: g.add("Sub", _number(eqn, 1), g.add("Erf", xs[0])),
    "rsqrt": lambda g, eqn, xs: g.add("Reciprocal", g.add("Sqrt", xs[0])),
    "ne": lambda g, eqn, xs: g.add("Not", g.add("Equal", *xs)),
    "is_finite": lambda g, eqn, xs: g.add(
        "Not", g.add("Or", g.add("IsNaN", xs[0]), g.add("IsInf", xs[0]))
    ),
    "integer_pow": lambda g, eqn, xs: g.add("Pow", xs[0], _number(eqn, eqn.params["y"])),
    "convert_element_type": lambda g, eqn, xs: g.cast(xs[0], eqn.params["new_dtype"]),
    "select_n": _selected,
    "clamp": lambda g, eqn, xs: g.add("Min", g.add("Max", xs[1], xs[0]), xs[2]),
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "expand_dims": _reshaped,
    "transpose": lambda g, eqn, xs: g.transpose(xs[0], eqn.params["permutation"]),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda g, eqn, xs: g.add("Concat", *xs, axis=eqn.params["dimension"]),
    "slice": _sliced,
    "split": _split,
    "pad": _padded,
    "reduce_sum": _reduced("ReduceSum"),
    "reduce_max": _reduced("ReduceMax"),
    "reduce_min": _reduced("ReduceMin"),
    "reduce_prod": _reduced("ReduceProd"),
    "dot_general": _product,
    "conv_general_dilated": _convolved,
    "reduce_window_max": _pooled("MaxPool"),
    "reduce_window_sum": _pooled("AveragePool"),
}


def traced(function: Callable, row_shape: Sequence[int], dtype: Any) -> Any:
    """Trace a function of rows (ROWS, ...), which are one of any number."""
    return jax.make_jaxpr(function)(jax.ShapeDtypeStruct((ROWS, *row_shape), dtype))
