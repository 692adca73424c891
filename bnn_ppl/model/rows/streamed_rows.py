"""All rows of a stream as one batch: log-likelihood and gradient, accumulated chunk by chunk."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.model.rows.features import shapes_with_rows
from bnn_ppl.runtime.machines.devices import products_in

Array = jax.Array
Tree = Any

_CHUNK_BYTES = 2**20  # of rows: larger ones were no faster on CPUs


@jax.tree_util.register_static
class StreamChunks:
    """Successive rows of a stream in chunks of one size, read one chunk ahead of the devices.

    Attributes
    ----------
    num
        How many chunks there are.
    size
        Rows of a chunk; of the last one some may be padding, which are copies of its first row.
    num_rows
        Rows of all chunks, without padding.
    shapes
        Of a chunk (x, y): shapes and dtypes.
    """

    read_by_host = True  # which `over_chains` must know

    def __init__(self, stream: Stream, examples: Tree, most: int | None) -> None:
        size = max(1, _CHUNK_BYTES // max(1, stream.row_bytes))
        size = min(size, most or size, stream.num_rows)
        size = -(-stream.num_rows // -(-stream.num_rows // size))  # as equal as can be
        size = -(-size // stream.block) * stream.block  # a block is read once
        self.size, self.num_rows = size, stream.num_rows
        self.num = -(-stream.num_rows // size)
        self.shapes = shapes_with_rows(tuple(examples), size)
        self._stream = stream
        self._reader = ThreadPoolExecutor(1, "rows")
        self._ahead: OrderedDict[int, Future] = OrderedDict()
        self._most_ahead = 1 + 2 * len(jax.local_devices())  # each is at a chunk of its own
        self._lock = threading.Lock()

    def read(self, number: Any) -> Tree:
        """Give a chunk (x, y); the next one is then read ahead."""
        number = int(number)
        with self._lock:
            for wanted in (number, (number + 1) % self.num):
                if wanted not in self._ahead:
                    self._ahead[wanted] = self._reader.submit(self._padded, wanted)
                self._ahead.move_to_end(wanted)
            while len(self._ahead) > self._most_ahead:
                self._ahead.popitem(last=False)  # not cancelled: another device may wait for it
            found = self._ahead[number]
        try:
            return found.result()
        except BaseException:  # another attempt may do better
            with self._lock:
                self._ahead.pop(number, None)
            raise

    def rows(self, number: int) -> tuple[np.ndarray, Tree]:
        """Give the numbers of the rows of a chunk, and the rows (x, y), without padding."""
        start = number * self.size
        numbers = np.arange(start, min(start + self.size, self.num_rows))
        try:
            # A program of JAX would wait for the one that waits for these rows, for ever.
            with jax.transfer_guard("disallow_explicit"):
                return numbers, tuple(self._stream.read(numbers))
        except jax.errors.JaxRuntimeError as error:
            if "Disallowed" not in str(error):
                raise
            raise ValueError(
                "got a stream whose transform= computes with JAX for a method that sees all rows, "
                "expected NumPy, as the devices wait for it: use numpy in place of jax.numpy"
            ) from error

    def _padded(self, number: int) -> Tree:
        _, rows = self.rows(number)

        def padded(leaf: np.ndarray, shape: jax.ShapeDtypeStruct) -> np.ndarray:
            leaf = np.asarray(leaf, shape.dtype)
            padding = np.broadcast_to(leaf[:1], (self.size - len(leaf), *leaf.shape[1:]))
            return np.concatenate([leaf, padding]) if len(padding) else leaf

        return jax.tree.map(padded, rows, self.shapes)


class StreamedRows(NamedTuple):
    """All rows of a stream, in the place of a batch; only methods that see all rows take it.

    Attributes
    ----------
    x, y
        Examples of the rows, which have their shapes.
    chunks
        What reads all of them.
    """

    x: Any
    y: Any
    chunks: StreamChunks


def summed_over_chunks(
    by_row: Callable[[Tree, list[Array], tuple], Array],
    position: Tree,
    constants: list[Array],
    chunks: StreamChunks,
) -> Array:
    """Sum the log-likelihood of all rows: a number and the rest that it has been rounded by.

    Differences of such pairs, one part at a time, are as exact as those of the rows one by one.
    A gradient is accumulated with the value, in one pass over the chunks of which nothing is kept.

    ``by_row(position, constants, (x, y, mask))`` is the log-likelihood of each row, 0 for padding,
    and may depend on no other array of a program. There is no gradient by the constants. The chunks
    do not depend on the position, so that one serves all the positions that `vmap` maps.
    """
    precision: str | None = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]

    def over_chunks(add: Callable[[Tree, tuple], Tree], begin: Tree) -> Tree:
        def one(number: Array, carry: Tree) -> Tree:
            x, y = jax.pure_callback(chunks.read, chunks.shapes, number, vmap_method="sequential")
            is_row = number * chunks.size + jnp.arange(chunks.size) < chunks.num_rows
            return add(carry, (x, y, is_row))

        return jax.lax.fori_loop(0, chunks.num, one, begin)

    @jax.custom_vjp
    def total(position: Tree, constants: list[Array]) -> Array:
        def add(so_far: tuple, rows: tuple) -> tuple:
            return _added(so_far, _exact_sum(by_row(position, constants, rows)))

        return jnp.stack(over_chunks(add, (jnp.zeros(()), jnp.zeros(()))))

    def forward(position: Tree, constants: list[Array]) -> tuple[Array, Tree]:
        def add(carry: tuple, rows: tuple) -> tuple:
            def likelihood(position: Tree) -> tuple[Array, Array]:
                found = by_row(position, constants, rows)
                return jnp.sum(found), found

            own, found = jax.grad(likelihood, has_aux=True)(position)
            return _added(carry[0], _exact_sum(found)), optax.tree.add(carry[1], own)

        begin = (jnp.zeros(()), jnp.zeros(())), optax.tree.zeros_like(position)
        with products_in(precision):  # traced when it is differentiated, wherever that is
            found, gradient = over_chunks(add, begin)
        return jnp.stack(found), gradient

    def backward(gradient: Tree, slope: Array) -> tuple[Tree, None]:
        return optax.tree.scale(slope[0], gradient), None  # the rest is rounding, without a slope

    total.defvjp(forward, backward)
    return total(position, constants)


def _exact_sum(numbers: Array) -> tuple[Array, Array]:
    """Sum numbers; give the sum, and the rest that rounding has taken away."""
    numbers = numbers.astype(float)
    pairs, zero = (numbers, jnp.zeros_like(numbers)), jnp.zeros((), numbers.dtype)
    return jax.lax.reduce(pairs, (zero, zero), _added, (0,))


def _added(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Add two sums with their rests (Knuth, 1997, section 4.2.2, theorem B)."""
    high, rest = _two_sum(one[0], other[0])
    return _two_sum(high, rest + (one[1] + other[1]))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    of_b = total - a
    rest = (a - (total - of_b)) + (b - of_b)
    return total, jnp.where(jnp.isfinite(total), rest, 0.0)  # an infinite sum has no rest
