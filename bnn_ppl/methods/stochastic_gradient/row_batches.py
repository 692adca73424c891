"""Minibatches that a step takes from all rows."""

from collections.abc import Callable
from typing import Any

import jax

from bnn_ppl.runtime.machines.devices import num_row_shards

Tree = Any


def shuffled_batches(
    key: jax.Array, rows: Tree, num_batches: int
) -> tuple[jax.Array, Callable[[jax.Array], Tree]]:
    """Divide the rows at random: the numbers of those of each batch, and what takes a batch.

    Where devices share the rows, each takes its part of a batch from its own rows. Batches are of
    one size; the rows that are left over, fewer than there are batches, are drawn at random too.
    """
    num_rows = len(jax.tree.leaves(rows)[0])
    shards = num_row_shards(num_rows)
    own = num_rows // shards
    num_batches = min(num_batches, own)
    size = own // num_batches

    def of_shard(key: jax.Array) -> jax.Array:
        order = jax.random.permutation(key, own)
        return order[: num_batches * size].reshape(num_batches, size)

    index = jax.vmap(of_shard, out_axes=1)(jax.random.split(key, shards))

    return index, lambda batch: _rows_at(rows, batch)


def random_batch(key: jax.Array, rows: Tree, size: int) -> Tree:
    """Draw a batch with replacement; devices that share the rows draw from their own."""
    num_rows = len(jax.tree.leaves(rows)[0])
    shards = num_row_shards(num_rows)
    index = jax.random.randint(key, (shards, max(1, size // shards)), 0, num_rows // shards)
    return _rows_at(rows, index)


def _rows_at(rows: Tree, index: jax.Array) -> Tree:
    """Take the rows at (shard, place)."""
    shards, size = index.shape

    def of_leaf(leaf: jax.Array) -> jax.Array:
        parts = leaf.reshape(shards, -1, *leaf.shape[1:])
        chosen = jax.vmap(lambda part, places: part[places])(parts, index)
        return chosen.reshape(shards * size, *leaf.shape[1:])

    return jax.tree.map(of_leaf, tuple(rows))
