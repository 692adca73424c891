"""Minibatches of a stream: read by the host, ahead of the devices, in an order that is computed."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bnn_ppl.data.streams.permutation import drawn, permuted_in_blocks
from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.method import rows_of_share
from bnn_ppl.model.rows.checks import refuse_nonfinite_rows
from bnn_ppl.runtime.machines.devices import bytes_of
from bnn_ppl.sampling.loop.minibatches import Minibatches

Tree = Any

_PAGE_BYTES = 2**23  # of rows that a chain has read ahead, and among which they are permuted
_FEWEST_BLOCKS = 16  # of a page
_PIECE_BYTES = 2**24  # of batches on the devices; as many again are on their way
_MOST_STEPS = 256  # of a piece


class StreamedBatches:
    """The batches of all chains, in pieces of as many steps each.

    A step's batch depends on the key, the chain and the step's number alone: not on the pieces, the
    devices or the speed of any of them. Each chain has an order of its own. The devices that share
    the rows of a chain have a part of each batch each, and a process reads those of its devices.
    """

    def __init__(
        self,
        stream: Stream,
        examples: Tree,
        minibatches: Minibatches,
        key: jax.Array,
        mesh: Mesh,
        num_chains: int,
    ) -> None:
        assert minibatches.size is not None
        self._stream, self._minibatches, self._size = stream, minibatches, minibatches.size
        self._seed = tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())
        self._num_chains = num_chains
        self._sharding = NamedSharding(mesh, P("chain", None, "data"))
        self._row = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tuple(examples)
        )
        self._kept = rows_of_share(minibatches.subsample, stream.num_rows)
        self._epoch = self._kept // self._size  # steps
        rows = max(_FEWEST_BLOCKS * stream.block, _PAGE_BYTES // max(1, stream.page_row_bytes))
        self._page = max(1, min(self._epoch, rows // self._size))  # steps
        of_step = num_chains * self._size * bytes_of(self._row)
        self.num_steps = max(1, min(_MOST_STEPS, _PIECE_BYTES // max(1, of_step)))  # of a piece
        self._read: dict[tuple[int, int], tuple[tuple[int, int], Tree]] = {}
        self._reader = ThreadPoolExecutor(1, "rows")
        self._ahead: dict[int, Future] = {}

    def shapes(self) -> Tree:
        """Give the shapes and shardings of a piece."""

        def of_piece(row: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            shape = self._shape(row.shape)
            return jax.ShapeDtypeStruct(shape, row.dtype, sharding=self._sharding)

        return jax.tree.map(of_piece, self._row)

    def piece(self, number: int) -> Tree:
        """Give the batches (chain, step, row, ...) of a piece; the next one is then read ahead."""
        for other in set(self._ahead) - {number, number + 1}:
            self._ahead.pop(other).cancel()
        for wanted in (number, number + 1):
            if wanted not in self._ahead:
                self._ahead[wanted] = self._reader.submit(self._placed, wanted)
        return self._ahead[number].result()

    def rows_of(self, chain: int, step: int, part: slice = slice(None)) -> np.ndarray:
        """Give the numbers of the rows in the batch of a step, or in a part of it."""
        epoch, step = divmod(step, self._epoch)
        return self._rows(chain, epoch, range(step, step + 1), part)[0]

    def _rows(self, chain: int, epoch: int, steps: range, part: slice) -> np.ndarray:
        """Give the numbers of rows (step, row) of some steps of an epoch."""
        seed, num = (*self._seed, chain), self._stream.num_rows
        of_sweep = np.arange(steps.start, steps.stop)
        if self._minibatches.symmetric:
            of_sweep = self._epoch - 1 - of_sweep if epoch % 2 else of_sweep
            epoch = epoch // 2
        places = of_sweep[:, None] * self._size + np.arange(self._size)[part]
        blocks = self._stream.block, self._page * self._size
        own = places.ravel()
        rows = permuted_in_blocks(own, self._kept, *blocks, (*seed, 0, epoch))
        if self._minibatches.bootstrap:
            rows = drawn(rows, num, (*seed, 1))
        elif self._kept < num:
            rows = permuted_in_blocks(rows, num, *blocks, (*seed, 2))
        return rows.reshape(places.shape)

    def _shape(self, row: tuple[int, ...]) -> tuple[int, ...]:
        return self._num_chains, self.num_steps, self._size, *row

    def _placed(self, number: int) -> Tree:
        """Read a piece and put it on the devices of this process."""
        indices: Any = self._sharding.addressable_devices_indices_map(self._shape(()))
        on_devices = [
            jax.device_put(self._on_device(number, *index[::2]), device)
            for device, index in indices.items()
        ]
        parts = zip(*map(jax.tree.leaves, on_devices), strict=True)
        leaves = [
            jax.make_array_from_single_device_arrays(
                self._shape(leaves[0].shape[3:]), self._sharding, list(leaves)
            )
            for leaves in parts
        ]
        return jax.tree.unflatten(jax.tree.structure(on_devices[0]), leaves)

    def _on_device(self, number: int, chains: slice, part: slice) -> Tree:
        """Read the part of a piece that a device has."""
        first = number * self.num_steps
        of_chains = [
            _joined([self._steps(chain, *each, part) for each in self._stretches(first)])
            for chain in range(*chains.indices(self._num_chains))
        ]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *of_chains)

    def _stretches(self, first: int) -> list[tuple[int, int, range]]:
        """Divide a piece into stretches of steps of one page: epoch, page, steps in the page."""
        found, step, end = [], first, first + self.num_steps
        while step < end:
            epoch, place = divmod(step, self._epoch)
            page, start = divmod(place, self._page)
            length = min(self._page, self._epoch - page * self._page) - start
            length = min(length, end - step)
            found.append((epoch, page, range(start, start + length)))
            step += length
        return found

    def _steps(self, chain: int, epoch: int, page: int, steps: range, part: slice) -> Tree:
        """Give batches (step, row, ...) of a page, which is read unless it was the last one."""
        first, _, _ = part.indices(self._size)
        known, rows = self._read.get((chain, first), (None, None))
        if known != (epoch, page):
            rows = self._page_of(chain, epoch, page, part)
            self._read[chain, first] = (epoch, page), rows
        return jax.tree.map(lambda leaf: leaf[steps.start : steps.stop], rows)

    def _page_of(self, chain: int, epoch: int, page: int, part: slice) -> Tree:
        steps = range(page * self._page, min((page + 1) * self._page, self._epoch))
        numbers = self._rows(chain, epoch, steps, part)
        rows = self._stream.read(numbers.ravel())
        refuse_nonfinite_rows(rows, numbers.ravel())

        def in_steps(leaf: np.ndarray, row: jax.ShapeDtypeStruct) -> np.ndarray:
            return leaf.reshape(*numbers.shape, *row.shape).astype(row.dtype, copy=False)

        return jax.tree.map(in_steps, tuple(rows), self._row)


def _joined(parts: list[Tree]) -> Tree:
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
