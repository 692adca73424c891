"""Compiled programs, read: what devices send to each other, and in how many loops."""

import math
import re
from collections import Counter
from typing import NamedTuple

_KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
_COLLECTIVE = re.compile(rf" = (.*?) ({_KINDS})(?:-start)?\(")
_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_BODY = re.compile(r"body=%?([\w.\-]+)")
_CALLING = "calls|to_apply|condition|branch_computations|(?:true|false|called)_computations?"
_CALLED = re.compile(rf"(?:{_CALLING})=\{{?([^}},]+(?:, %[^}},]+)*)")
_SHAPE = re.compile(r"([a-z]+)(\d*)\[([\d,]*)\]")


class Collective(NamedTuple):
    """What devices send to each other.

    Attributes
    ----------
    kind
        As XLA names it: all-reduce, all-gather, all-to-all, collective-permute, reduce-scatter.
    num_bytes
        Of its result on a device.
    depth
        Number of loops around it.
    """

    kind: str
    num_bytes: int
    depth: int


def collectives_in(text: str) -> Counter[Collective]:
    """Count the collectives of a compiled program by kind, size and loops around it."""
    lines = computations_in(text)
    depths = _depths(lines)
    found: Counter[Collective] = Counter()
    for name, body in lines.items():
        for line in body:
            match = _COLLECTIVE.search(line)
            if match and name in depths:
                found[Collective(match[2], _bytes(match[1], match[2]), depths[name])] += 1
    return found


def computations_in(text: str) -> dict[str, list[str]]:
    """Give the lines of each computation of a compiled program; "" calls the first."""
    computations: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            name = header[1]
            computations[name] = []
            if line.startswith("ENTRY"):
                computations = {"": [f"calls=%{name}"], **computations}
        elif name:
            computations[name].append(line)
    return computations


def _depths(computations: dict[str, list[str]]) -> dict[str, int]:
    """Give the most loops around each computation that the program runs."""
    depths: dict[str, int] = {}

    def visit(name: str, depth: int) -> None:
        if name not in computations or depths.get(name, -1) >= depth:
            return
        depths[name] = depth
        for line in computations[name]:
            for body in _BODY.findall(line):
                visit(body, depth + 1)
            for called in _CALLED.findall(line):
                for other in called.split(","):
                    visit(other.strip().lstrip("%"), depth)

    visit("", 0)
    return depths


def _bytes(shapes: str, kind: str) -> int:
    """Give the size of a result; of asynchronous ones, which repeat their argument, the larger."""
    sizes = [
        max(1, int(bits or 8) // 8) * math.prod(map(int, filter(None, sides.split(","))))
        for _, bits, sides in _SHAPE.findall(shapes)
    ]
    return sum(sizes) if kind == "all-reduce" else max(sizes, default=0)
