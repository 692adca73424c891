"""Weight draws by group of rows: the rows of a batch see several draws at the price of one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any
Estimate = Callable[[jax.Array, Any], Tree]


def over_groups(estimate: Estimate, num_groups: int) -> Estimate:
    """Average an estimate over groups of a batch's rows, each with a key of its own.

    Gradients at the draws of several groups are averaged over more noise of the weights than those
    of all rows at one draw (Osawa et al., 2019, section 3, where the groups are processes). Group g
    has rows g, g + num_groups, and so on, so that devices which share the rows share each group.
    The groups are taken one after the other, and count by their rows without padding: where they do
    not divide the rows, their numbers of rows differ by one; those beyond one group a row count for
    nothing; with one group it is the estimate itself. An estimate is ``key, batch -> tree of
    floats``, of a batch (x, y) or (x, y, mask).
    """
    if num_groups == 1:
        return estimate

    def mean(key: jax.Array, batch: Any) -> Tree:
        groups, shares = grouped(batch, num_groups)
        keys = jax.vmap(lambda group: jax.random.fold_in(key, group))(jnp.arange(num_groups))

        def add(total: Tree, of_group: tuple[jax.Array, Any, jax.Array]) -> tuple[Tree, None]:
            key, rows, share = of_group

            def plus(a: jax.Array, b: jax.Array) -> jax.Array:
                return a + (share * b).astype(a.dtype)

            return jax.tree.map(plus, total, estimate(key, rows)), None

        first = jax.tree.map(lambda leaf: leaf[0], groups)
        shapes = jax.eval_shape(estimate, key, first)
        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(add, start, (keys, groups, shares))[0]

    return mean


def grouped(batch: Any, num_groups: int) -> tuple[Any, jax.Array]:
    """Give the rows of a batch by group, (group, row, ...), and each group's share of them.

    Where the groups are not equal, they are padded with copies of rows, and have a mask.
    """
    num_rows = len(batch[1])
    size = -(-num_rows // num_groups)
    places = jnp.arange(size * num_groups)

    def by_group(leaf: jax.Array) -> jax.Array:
        whole = leaf if len(places) == num_rows else leaf[places % num_rows]
        return jnp.swapaxes(whole.reshape(size, num_groups, *leaf.shape[1:]), 0, 1)

    x, y, *mask = jax.tree.map(by_group, batch)
    if not mask and len(places) == num_rows:
        return (x, y), jnp.full(num_groups, 1 / num_groups)
    counted = by_group(jnp.ones(num_rows, bool)) if not mask else mask[0]
    counted = counted & jnp.swapaxes((places < num_rows).reshape(size, num_groups), 0, 1)
    num_counted = counted.sum(1, keepdims=True)
    # A group without rows keeps its copies, for an estimate that is finite, and has a share of 0.
    return (x, y, counted | (num_counted == 0)), num_counted[:, 0] / num_counted.sum()
