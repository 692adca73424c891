"""Inputs at which a network learns to predict as draws do: rows, noisy rows, mixtures of two."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

Tree = Any

_LEAST_ROWS = 10
_NOISE = 0.3  # of a column, in its standard deviations
_NOISE_OF_IMAGES = 0.1  # of a pixel, in those of all pixels


class Inputs(NamedTuple):
    """Inputs of some kinds."""

    x: Tree  # one after another, all of a kind together
    kinds: dict[str, int]  # the number of each kind, in this order

    @property
    def share(self) -> np.ndarray:
        """The weight of each input (inputs,), by which all kinds count alike; their sum is 1."""
        each = [np.full(count, 1 / (count * len(self.kinds))) for count in self.kinds.values()]
        return np.concatenate(each)


def inputs_about(x: Tree, num_inputs: int, rng: np.random.Generator) -> tuple[Inputs, Inputs]:
    """Give inputs to learn from and, about a tenth, inputs held out, of rows of their own.

    As many are rows, rows with Gaussian noise and mixtures of two rows, fewer only where there are
    no more rows. Of whole numbers, such as tokens, there are rows alone.

    Raises
    ------
    ValueError
        If there are fewer than 10 rows.
    """
    num_rows = len(jax.tree.leaves(x)[0])
    if num_rows < _LEAST_ROWS:
        raise ValueError(f"got {num_rows} rows of x, expected at least {_LEAST_ROWS}: give more")
    order, held_out = rng.permutation(num_rows), math.ceil(num_rows / 10)
    rows = order[held_out:], order[:held_out]
    counts = num_inputs - math.ceil(num_inputs / 10), math.ceil(num_inputs / 10)
    own = [_about(x, *each, rng) for each in zip(rows, counts, strict=True)]
    return own[0], own[1]


def _about(x: Tree, rows: np.ndarray, count: int, rng: np.random.Generator) -> Inputs:
    leaves = jax.tree.leaves(x)
    if any(leaf.dtype.kind != "f" for leaf in leaves):
        return Inputs(_at(x, rows[:count]), {"rows": min(count, len(rows))})
    each = math.ceil(count / 3)
    first, second = rng.choice(rows, each), rng.choice(rows, each)
    kinds = {
        "rows": _at(x, rows[:each]),
        "noisy rows": jax.tree.map(lambda leaf: _noisy(leaf, first, rng), x),
        "mixtures": _mixed(x, first, second, rng.uniform(size=each)),
    }
    counts = {name: len(jax.tree.leaves(own)[0]) for name, own in kinds.items()}
    return Inputs(jax.tree.map(lambda *own: np.concatenate(own), *kinds.values()), counts)


def _at(x: Tree, rows: np.ndarray) -> Tree:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], x)


def _noisy(leaf: Any, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Add noise to rows; not to one number a row, such as its weight."""
    leaf = np.asarray(leaf)
    if leaf.ndim < 2:
        return leaf[rows]
    scale = _NOISE * leaf.std(0) if leaf.ndim == 2 else _NOISE_OF_IMAGES * leaf.std()
    noise = rng.normal(size=(len(rows), *leaf.shape[1:]))
    return (leaf[rows] + scale * noise).astype(leaf.dtype)


def _mixed(x: Tree, first: np.ndarray, second: np.ndarray, share: np.ndarray) -> Tree:
    def of_leaf(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        own = share.reshape(-1, *[1] * (leaf.ndim - 1))
        return (own * leaf[first] + (1 - own) * leaf[second]).astype(leaf.dtype)

    return jax.tree.map(of_leaf, x)
