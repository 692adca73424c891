"""Groups of training rows, of which a chain holds out all rows or none.

Rows of a group, such as those of a patient, resemble each other: weights that have seen some of
them predict the others too well, and the noise of new groups would be understated.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.model.posterior import Posterior

_SEED = 0  # of the hashes by which rows are found


class HeldOutGroups(NamedTuple):
    """The group of each training row, found by a hash of the row: batches do not hold it.

    Attributes
    ----------
    hashes
        Of all training rows, in ascending order (rows,).
    numbers
        Their groups, as numbers from 0 up, in random order (rows,).
    num_groups
        How many there are.
    """

    hashes: np.ndarray
    numbers: np.ndarray
    num_groups: int

    @classmethod
    def of(cls, posterior: Posterior) -> "HeldOutGroups | None":
        """Give those of the training rows; None where there are not two groups."""
        if posterior.rows.groups is None:
            return None
        names, numbers = np.unique(posterior.rows.groups, return_inverse=True)
        if len(names) < 2:
            return None
        with jax.ensure_compile_time_eval():
            hashes = np.asarray(hashes_of_rows(_SEED, posterior.rows.examples))
        order = np.argsort(hashes, kind="stable")
        shuffled = np.random.default_rng(0).permutation(len(names)).astype(np.uint32)
        return cls(hashes[order], shuffled[numbers[order]], len(names))

    def are_held_out(self, seed: Any, rows: Any, share: float) -> jax.Array:
        """Choose the rows (rows,) of a share of the groups, at least one, and not all."""
        found = jnp.searchsorted(self.hashes, hashes_of_rows(_SEED, rows))
        numbers = jnp.asarray(self.numbers)[jnp.minimum(found, len(self.hashes) - 1)]
        first = jnp.asarray(seed, jnp.uint32) % self.num_groups
        most = min(max(round(share * self.num_groups), 1), self.num_groups - 1)
        return (numbers + first) % self.num_groups < most


def hashes_of_rows(seed: Any, rows: Any) -> jax.Array:
    """Hash the content (x, y) of each row; (rows,)."""
    leaves = jax.tree.leaves(rows[:2])
    columns = [jnp.reshape(leaf, (len(leaf), -1)).astype(jnp.float32) for leaf in leaves]
    bits = jax.lax.bitcast_convert_type(jnp.concatenate(columns, axis=1), jnp.uint32)
    # Sums of products with random factors, modulo 2^32, are close to uniform in their high bits.
    factors = jax.random.bits(jax.random.key(seed), bits.shape[1:], jnp.uint32)
    return jnp.sum(bits * factors, axis=1)
