"""Small arrays of each chain on disk, such as the parameters of fitted distributions.

``folder/<kind>-<first chain>.npz`` has those of one process's chains. Of the kind ``fitted`` it has
the group of that name, once the run has ended; of the kind ``batch_statistics``
the mean and variance by which each draw normalises. Each file names its run.
"""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from bnn_ppl.runtime.checks import warn
from bnn_ppl.runtime.files import replace_file
from bnn_ppl.storage.files import RUN, damaged

Arrays = dict[str, np.ndarray]

STATISTICS = "batch_statistics"  # the kind, and the group of draws: of each draw of each chain


def write_fitted(
    folder: str | Path, first_chain: int, fitted: Arrays, run: str | None = None
) -> None:
    """Write the parameters (chain, ...) of the distributions that some chains draw from."""
    write_by_chain(Path(folder), "fitted", first_chain, fitted, run)


def read_fitted(folder: Path, run: str | None) -> Arrays:
    """Read the parameters of all chains; nothing where none were written, or some are damaged."""
    parts = [arrays for _, arrays in read_by_chain(folder, "fitted", run)]
    names = parts[0] if parts else {}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def remove_fitted(folder: str | Path) -> None:
    """Remove what an earlier call of the run wrote at its end."""
    for kind in ("fitted", STATISTICS):
        remove_by_chain(Path(folder), kind)


def write_by_chain(
    folder: Path, kind: str, first_chain: int, arrays: Arrays, run: str | None
) -> None:
    """Write arrays (chain, ...) of some chains of a run."""
    content = io.BytesIO()
    named: dict[str, Any] = arrays | ({} if run is None else {RUN: np.array(run)})
    np.savez(content, **named)
    replace_file(folder / f"{kind}-{first_chain}.npz", content.getvalue())


def read_by_chain(folder: Path, kind: str, run: str | None) -> list[tuple[int, Arrays]]:
    """Read the arrays of each file of a kind, with its first chain, in their order.

    Nothing, and a warning, where a file is damaged or of another run.
    """
    parts: list[tuple[int, Arrays]] = []
    for first_chain, file in _files(folder, kind):
        try:
            with np.load(file, allow_pickle=False) as content:
                one = dict(content)
        # What zipfile and NumPy raise depends on the bit that is wrong.
        except Exception as error:
            return _left_out(file, f"it is not a file of arrays: {error}")
        if str(one.pop(RUN, run)) != str(run):
            return _left_out(file, "it is of another run")
        parts.append((first_chain, one))
        if one.keys() != parts[0][1].keys() or not all(map(np.ndim, one.values())):
            return _left_out(file, "it holds other arrays than the rest")
    return parts


def _left_out(file: Path, why: str) -> list:
    warn(
        f"{str(damaged(file, why)).partition(', expected')[0]}, left it out; if the run ends again "
        "(the same call or command), it is written anew"
    )
    return []


def remove_by_chain(folder: Path, kind: str) -> None:
    """Remove all files of a kind."""
    for _, file in _files(folder, kind):
        file.unlink()


def _files(folder: Path, kind: str) -> list[tuple[int, Path]]:
    numbers = {re.fullmatch(rf"{kind}-(\d+)\.npz", path.name): path for path in folder.iterdir()}
    found = [(int(match[1]), path) for match, path in numbers.items() if match]
    return sorted(found)
