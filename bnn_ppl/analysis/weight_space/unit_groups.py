"""Groups of hidden units whose names can be exchanged, read off the traced log-likelihood."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from bnn_ppl.runtime.compilation.jaxprs import programs_in

# The label of an axis: None where all its elements are equal (broadcast); the number of a group;
# or a pair (repeats, group) where the group's units are repeated, as channels are in the columns
# of a flattened image. Elements of group 0 are not exchangeable: rows, inputs, classes.
Label = None | int | tuple[int, int]
Labels = tuple[Label, ...]

_FIXED = 0
_CALLS = {"pjit", "jit", "closed_call", "core_call", "remat", "checkpoint"}
_CALLS |= {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_ALONG_AXES = {"sort", "rev", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "fft"}


class Place(NamedTuple):
    """An axis of a site along which a group's units lie, `repeats` times one after the other."""

    site: str
    axis: int
    repeats: int


class Units(NamedTuple):
    """A group of `size` hidden units, and everywhere that their weights are."""

    size: int
    places: tuple[Place, ...]
    signed: bool = False  # whether a unit's sign may change too


def unit_groups(function: Callable, position: dict[str, Any], rows: Any) -> list[Units]:
    """Find axes of the sites that can be permuted together without changing a function's value.

    Each axis of each site starts as a group of its own. Wherever the traced computation aligns two
    axes (a sum of products over them, an addition) their groups are joined; an axis aligned with an
    input, or that meets an operation not known here, is not permuted. Of `position` and `rows`, the
    arguments of the function, only the shapes are used.

    Groups are given largest first. What the operations do is not fully known: check that the
    function keeps its value.
    """
    leaves, _ = jax.tree.flatten((position, rows))
    program = jax.make_jaxpr(lambda position, rows: function(position, rows))(position, rows)
    groups = _Groups()
    sites: dict[str, Labels] = {
        site: tuple(groups.new() for _ in position[site].shape) for site in sorted(position)
    }
    rest = len(leaves) - len(sites)
    inputs: list[Labels] = [*sites.values()]
    inputs += [(_FIXED,) * len(leaf.shape) for leaf in leaves[len(leaves) - rest :]]
    constants = [(_FIXED,) * np.ndim(constant) for constant in program.consts]
    _trace(groups, program.jaxpr, constants, inputs)
    return _collected(groups, sites, position)


def _collected(
    groups: "_Groups", sites: dict[str, Labels], position: dict[str, Any]
) -> list[Units]:
    found: dict[int, list[Place]] = {}
    sizes: dict[int, int] = {}
    for site, labels in sites.items():
        for axis, label in enumerate(labels):
            repeats, group = _as_pair(groups.find(label))
            if group == _FIXED:
                continue
            found.setdefault(group, []).append(Place(site, axis, repeats))
            sizes[group] = position[site].shape[axis] // repeats
    units = [Units(sizes[group], tuple(places)) for group, places in found.items()]
    # A group of one place would be an axis that nothing reads.
    kept = [each for each in units if each.size > 1 and len(each.places) > 1]
    return sorted(kept, key=lambda each: -each.size)


class _Groups:
    """Groups of axes, joined as they are found to be aligned (a disjoint-set forest)."""

    def __init__(self) -> None:
        self.parents: list[Label] = [None]

    def new(self) -> int:
        self.parents.append(None)
        return len(self.parents) - 1

    def find(self, label: Label) -> Label:
        """Give the group that a label stands for now."""
        if label is None:
            return None
        repeats, group = _as_pair(label)
        parent = self.parents[group]
        if parent is None:
            return label
        more, root = _as_pair(self.find(parent))
        return root if repeats * more == 1 else (repeats * more, root)

    def join(self, one: Label, other: Label) -> Label:
        """Have two axes permuted together."""
        one, other = self.find(one), self.find(other)
        if one is None or other is None or one == other:
            return other if one is None else one
        (few, first), (many, second) = sorted((_as_pair(one), _as_pair(other)))
        if few > 1 or first == second or _FIXED in (first, second):
            return self.fix(one, other)
        self.parents[first] = (many, second) if many > 1 else second
        return self.find(one)

    def fix(self, *labels: Label) -> Label:
        """Have these axes never permuted."""
        for label in labels:
            label = self.find(label)
            if label is not None and _as_pair(label)[1] != _FIXED:
                self.parents[_as_pair(label)[1]] = _FIXED
        return _FIXED


def _as_pair(label: Label) -> tuple[int, int]:
    assert label is not None
    return label if isinstance(label, tuple) else (1, label)


def _trace(
    groups: _Groups, program: Jaxpr, constants: Sequence[Labels], inputs: Sequence[Labels]
) -> list[Labels]:
    """Go through a program's equations; give the labels of its results."""
    known: dict[Any, Labels] = dict(zip(program.constvars, constants, strict=True))
    known |= dict(zip(program.invars, inputs, strict=True))

    def labels_of(variable: Any) -> Labels:
        # A literal is a number.
        return () if isinstance(variable, Literal) else known[variable]

    for equation in program.eqns:
        arguments = [labels_of(variable) for variable in equation.invars]
        results = _of_equation(groups, equation, arguments)
        known |= dict(zip(equation.outvars, results, strict=True))
    return [labels_of(variable) for variable in program.outvars]


def _of_equation(groups: _Groups, equation: JaxprEqn, arguments: list[Labels]) -> list[Labels]:
    name = equation.primitive.name
    if name in _CALLS:
        (program, *_) = programs_in(equation)
        inner = arguments[len(arguments) - len(program.invars) :]
        constants = [(_FIXED,) * len(_shape(variable)) for variable in program.constvars]
        return _trace(groups, program, constants, inner)
    if name in _RULES:
        return [_RULES[name](groups, equation, arguments)]
    shapes, results = (list(map(_shape, some)) for some in (equation.invars, equation.outvars))
    elementwise = len(results) == 1 and all(_spreads(shape, results[0]) for shape in shapes)
    if elementwise and name not in _ALONG_AXES:
        return [_aligned(groups, arguments, shapes, len(results[0]))]
    if name.startswith(("reduce_", "arg")) and "axes" in equation.params:
        gone = equation.params["axes"]
        kept = [label for axis, label in enumerate(arguments[0]) if axis not in gone]
        return [tuple(kept) for _ in results]
    groups.fix(*(label for labels in arguments for label in labels))
    return [(_FIXED,) * len(shape) for shape in results]


def _shape(variable: Any) -> tuple[int, ...]:
    return getattr(variable.aval, "shape", ())  # keys and tokens have none


def _spreads(shape: tuple[int, ...], over: tuple[int, ...]) -> bool:
    """Whether an array of this shape meets one of the other element by element."""
    return not shape or (
        len(shape) == len(over) and all(a in (1, b) for a, b in zip(shape, over, strict=True))
    )


def _aligned(
    groups: _Groups, arguments: list[Labels], shapes: list[tuple[int, ...]], num_axes: int
) -> Labels:
    found: list[Label] = [None] * num_axes
    for labels, shape in zip(arguments, shapes, strict=True):
        for axis, (label, size) in enumerate(zip(labels, shape, strict=True)):
            found[axis] = groups.join(found[axis], label if size > 1 else None)
    return tuple(found)


def _broadcast(groups: _Groups, equation: JaxprEqn, arguments: list[Labels]) -> Labels:
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    before = _shape(equation.invars[0])
    found: list[Label] = [None] * len(shape)
    for label, size, axis in zip(arguments[0], before, axes, strict=True):
        found[axis] = label if size == shape[axis] else None
    return tuple(found)


def _product(groups: _Groups, equation: JaxprEqn, arguments: list[Labels]) -> Labels:
    (contracted, batched) = equation.params["dimension_numbers"]
    left, right = arguments
    for one, other in zip(*contracted, strict=True):
        groups.join(left[one], right[other])
    both = [groups.join(left[one], right[other]) for one, other in zip(*batched, strict=True)]
    free = [
        label
        for labels, summed, shared in zip(arguments, contracted, batched, strict=True)
        for axis, label in enumerate(labels)
        if axis not in (*summed, *shared)
    ]
    return (*both, *free)


def _convolution(groups: _Groups, equation: JaxprEqn, arguments: list[Labels]) -> Labels:
    image, kernel = arguments
    numbers = equation.params["dimension_numbers"]
    in_image, in_kernel = numbers.lhs_spec, numbers.rhs_spec
    groups.fix(*(image[axis] for axis in in_image[2:]), *(kernel[axis] for axis in in_kernel[2:]))
    grouped = equation.params["feature_group_count"] > 1 or equation.params["batch_group_count"] > 1
    if grouped:
        groups.fix(image[in_image[1]], kernel[in_kernel[0]], kernel[in_kernel[1]])
    else:
        groups.join(image[in_image[1]], kernel[in_kernel[1]])
    found: list[Label] = [_FIXED] * len(image)
    found[numbers.out_spec[0]] = image[in_image[0]]
    found[numbers.out_spec[1]] = kernel[in_kernel[0]]
    return tuple(found)


def _reshape(groups: _Groups, equation: JaxprEqn, arguments: list[Labels]) -> Labels:
    """Keep axes that stay, and flatten axes of which only the last is permuted."""
    before, after = _shape(equation.invars[0]), equation.params["new_sizes"]
    found: list[Label] = []
    start = 0
    for size in after:
        end = start
        while end < len(before) and math.prod(before[start:end]) < size:
            end += 1
        if math.prod(before[start:end]) != size:  # an axis is divided
            groups.fix(*arguments[0])
            return (_FIXED,) * len(after)
        merged = [arguments[0][axis] for axis in range(start, end) if before[axis] > 1]
        found.append(_flattened(groups, merged, [s for s in before[start:end] if s > 1]))
        start = end
        while start < len(before) and before[start] == 1 and size != 1:
            start += 1
    return tuple(found)


def _flattened(groups: _Groups, labels: list[Label], sizes: list[int]) -> Label:
    if len(labels) <= 1:
        return labels[0] if labels else None
    last = groups.find(labels[-1])
    groups.fix(*labels[:-1])
    if last is None or _as_pair(last)[1] == _FIXED:
        return _FIXED
    repeats, group = _as_pair(last)
    return math.prod(sizes[:-1]) * repeats, group


def _transpose(groups: _Groups, equation: JaxprEqn, arguments: list[Labels]) -> Labels:
    return tuple(arguments[0][axis] for axis in equation.params["permutation"])


def _squeeze(groups: _Groups, equation: JaxprEqn, arguments: list[Labels]) -> Labels:
    gone = equation.params["dimensions"]
    return tuple(label for axis, label in enumerate(arguments[0]) if axis not in gone)


def _same_axes(groups: _Groups, equation: JaxprEqn, arguments: list[Labels]) -> Labels:
    """Keep the axes whose length stays, such as the channels of a pooled image; fix the others."""
    before, after = _shape(equation.invars[0]), _shape(equation.outvars[0])
    changed = [axis for axis in range(len(after)) if before[axis] != after[axis]]
    windows = equation.params.get("window_dimensions", (1,) * len(after))
    changed += [axis for axis, window in enumerate(windows) if window > 1]
    groups.fix(*(arguments[0][axis] for axis in changed))
    return tuple(_FIXED if axis in changed else label for axis, label in enumerate(arguments[0]))


_RULES: dict[str, Callable[[_Groups, JaxprEqn, list[Labels]], Labels]] = {
    "broadcast_in_dim": _broadcast,
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "slice": _same_axes,
    "pad": _same_axes,
    "reduce_window": _same_axes,
    "reduce_window_sum": _same_axes,
    "reduce_window_max": _same_axes,
    "reduce_window_min": _same_axes,
}
