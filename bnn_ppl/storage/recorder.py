"""Where a run's draws go: into memory, or into a folder with all it takes to go on."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bnn_ppl.runtime.devices import by_chain, local_chains, to_host
from bnn_ppl.storage import checkpoint, store
from bnn_ppl.storage.files import damaged
from bnn_ppl.storage.inference_data import inference_data

if TYPE_CHECKING:
    import arviz

Tree = Any
Records = dict[str, dict[str, Any]]
Facts = dict[str, Any]


class Progress(NamedTuple):
    """How far a run is; saved with the samplers' state."""

    warmup: int = 0
    draws: int = 0
    gradient_evaluations: int = 0
    divergences: int = 0
    sampling_time: float = 0.0  # seconds


class Layout(NamedTuple):
    """What a run will record."""

    one_record: Records  # shapes and dtypes, by group and name
    num_chains: int
    num_draws: int
    y: np.ndarray
    facts: Facts


class Memory:
    """Draws in arrays (chain, draw, ...), made for all of them at once."""

    bytes_on_disk = 0

    def __init__(self, layout: Layout):
        if jax.process_count() > 1:
            raise ValueError(
                "got several processes and no folder, expected folder=: each process writes the "
                "draws of its own chains there"
            )
        shape = layout.num_chains, layout.num_draws
        self._layout = layout
        self._records = jax.tree.map(
            lambda leaf: np.zeros(shape + leaf.shape, leaf.dtype), layout.one_record
        )

    def keep(self, at: Progress, states: Tree, records: Records | None) -> None:
        """Copy the last draws."""
        del states
        for group, leaves in (records or {}).items():
            for name, values in leaves.items():
                start = at.draws - values.shape[1]
                self._records[group][name][:, start : at.draws] = values

    def stopped(self, at: Progress) -> None:
        """Say what an interrupted run leaves; without draws that is nothing."""
        if not at.draws:
            raise KeyboardInterrupt
        print(f"stopped: {at.draws} of {self._layout.num_draws} draws are kept", file=sys.stderr)

    def result(self, at: Progress, fitted: dict[str, np.ndarray]) -> "arviz.InferenceData":
        """Give the draws, and the parameters of the distribution they come from."""
        records = jax.tree.map(lambda whole: whole[:, : at.draws], self._records)
        facts = self._layout.facts | _counts(at)
        return inference_data(
            records["posterior"], records["sample_stats"], self._layout.y, facts, fitted
        )


class Folder:
    """Draws and the samplers' state in a folder.

    The state is saved after the draws: a run killed between the two computes what lies between
    them again, with the same result.
    """

    def __init__(self, path: Path, layout: Layout, settings: Facts, mesh: Mesh):
        self._path, self._layout, self._settings, self._mesh = path, layout, settings, mesh
        self._chains = local_chains(mesh, layout.num_chains)
        share = layout.num_chains // jax.process_count()
        if self._chains != slice(jax.process_index() * share, (jax.process_index() + 1) * share):
            raise ValueError(
                f"got a mesh that gives process {jax.process_index()} the chains {self._chains}, "
                f"expected {share} for each, in the order of the processes: keep a row of devices "
                "within a process"
            )
        with _together(path):
            self._header = checkpoint.read_header(path)
            if self._header is not None:
                checkpoint.refuse_difference(path, self._header["settings"], settings)
            if jax.process_index() == 0:
                self._prepare(path)
        if not _everyone(path.is_dir()):
            raise ValueError(
                f"got folder={str(path)!r}, which not every process sees, expected one that "
                "all of them share: name it by its whole path on a shared disk"
            )
        self._saves = self._header["saves"] if self._header else 0
        with _together(path):
            self._writer = store.writer(path, layout.num_draws)  # refuses a damaged one

    def _prepare(self, path: Path) -> None:
        layout = self._layout
        path.mkdir(parents=True, exist_ok=True)
        self._lock = checkpoint.lock(path)  # until this object or the process ends
        checkpoint.tidy(path)
        if self._header is not None:
            return
        if store.num_draws(path):
            raise ValueError(
                f"got draws in {str(path)!r} without the state.json that goes on from them, "
                "expected both or neither: copy it too, or name another folder"
            )
        store.create(path, layout.one_record, layout.num_chains, layout.num_draws, layout.y)

    def resume(self, states: Tree) -> tuple[Tree, Progress]:
        """Give the state and place where the folder's run is, or the ones given if it is new."""
        if self._header is None:
            self._forget_fitted()
            self.keep(Progress(), states, None)
            return states, Progress()
        if set(self._header["progress"]) != set(Progress._fields):
            raise damaged(self._path / "state.json", "it does not say how far the run is")
        at = Progress(**self._header["progress"])
        if at.draws > self._layout.num_draws:
            raise ValueError(
                f"got num_draws={self._layout.num_draws}, expected at least the {at.draws} draws "
                f"that {str(self._path)!r} holds: use diagnostics.load to read them"
            )
        if at.draws > store.committed(self._writer):
            raise ValueError(
                f"got {store.committed(self._writer)} draws in {str(self._path)!r}, expected the "
                f"{at.draws} that its state follows: the folder was changed, copy it again"
            )
        like = jax.eval_shape(lambda tree: tree, states)
        num_chains = self._layout.num_chains
        whole = checkpoint.read_state(self._path, self._header, like, num_chains)
        self._forget_fitted()
        return by_chain(whole, self._mesh), at

    def _forget_fitted(self) -> None:
        """Remove what an earlier end fitted, once nothing is left to refuse: this end writes it."""
        if jax.process_index() == 0:
            store.remove_fitted(self._path)
        _meet("the parameters of an earlier end are gone")

    def keep(self, at: Progress, states: Tree, records: Records | None) -> None:
        """Write the last draws, let readers see them, and save the state that follows them."""
        try:
            if records is not None:
                store.append(self._writer, self._chains, at.draws, records)
            _meet("the draws are written")
            visible = max(at.draws, store.committed(self._writer))
            store.commit(self._writer, visible, self._layout.facts | _counts(at))
            self._saves += 1
            header = {"settings": self._settings, "progress": at._asdict(), "saves": self._saves}
            state = to_host(states)
            checkpoint.save_state(self._path, header, state, partial(_meet, "the state is written"))
        except OSError as error:
            raise OSError(
                error.errno,
                f"got '{error.strerror}' on storing draw {at.draws} in {str(self._path)!r}, "
                "expected room and permission to write: what was stored is whole; mend the cause, "
                "and the same call goes on",
            ) from error

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of the draws that readers see."""
        return store.bytes_on_disk(self._writer)

    def stopped(self, at: Progress) -> None:
        """Say how to go on."""
        print(
            f"stopped after {at.warmup} warm-up steps and {at.draws} of {self._layout.num_draws} "
            f"draws, kept in {self._path}: the same call or command goes on",
            file=sys.stderr,
        )
        if not at.draws:
            raise KeyboardInterrupt

    def result(self, at: Progress, fitted: dict[str, np.ndarray]) -> "arviz.InferenceData":
        """Store the parameters of the distribution that draws come from, and open the draws."""
        del at
        if fitted:
            store.write_fitted(self._path, self._chains.start, fitted)
        _meet("the parameters are written")
        return store.load(self._path)


def _counts(at: Progress) -> Facts:
    return {
        "num_draws": at.draws,
        "gradient_evaluations": at.gradient_evaluations,
        "sampling_time": at.sampling_time,
    }


def _meet(where: str) -> None:
    """Wait until all processes are here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


@contextmanager
def _together(folder: Path) -> Iterator[None]:
    """Do this on every process, and go on when all have; where one fails, all raise.

    Otherwise those that fail end, and the others wait for them.
    """
    try:
        yield
    except Exception:
        _everyone(False)
        raise
    if not _everyone(True):
        raise ValueError(
            f"got folder={str(folder)!r}, which another process could not open, expected all to: "
            "see its message"
        )


def _everyone(yes: bool) -> bool:
    if jax.process_count() == 1:
        return yes
    return bool(multihost_utils.process_allgather(np.asarray(yes)).all())
