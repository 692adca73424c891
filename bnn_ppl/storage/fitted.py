"""Small arrays of each chain on disk, such as the parameters of fitted distributions.

``folder/<kind>-<first chain>.npz`` has those of one process's chains. Of the kind ``fitted`` it has
the group of that name, once the run has ended.
"""

import io
import re
import zipfile
from pathlib import Path

import numpy as np

from bnn_ppl.runtime.files import replace_file
from bnn_ppl.storage.files import damaged

Arrays = dict[str, np.ndarray]


def write_fitted(folder: str | Path, first_chain: int, fitted: Arrays) -> None:
    """Write the parameters (chain, ...) of the distributions that some chains draw from."""
    write_by_chain(Path(folder), "fitted", first_chain, fitted)


def read_fitted(folder: Path) -> Arrays:
    """Read the parameters of all chains; nothing where none were written."""
    parts = [arrays for _, arrays in read_by_chain(folder, "fitted")]
    names = parts[0] if parts else {}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def remove_fitted(folder: str | Path) -> None:
    """Remove the parameters that an earlier call of the run wrote at its end."""
    remove_by_chain(Path(folder), "fitted")


def write_by_chain(folder: Path, kind: str, first_chain: int, arrays: Arrays) -> None:
    """Write arrays (chain, ...) of some chains."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    replace_file(folder / f"{kind}-{first_chain}.npz", content.getvalue())


def read_by_chain(folder: Path, kind: str) -> list[tuple[int, Arrays]]:
    """Read the arrays of each file of a kind, with its first chain, in their order."""
    parts: list[tuple[int, Arrays]] = []
    for first_chain, file in _files(folder, kind):
        try:
            with np.load(file, allow_pickle=False) as arrays:
                parts.append((first_chain, dict(arrays)))
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise damaged(file, "it is not a file of arrays") from error
        one, first = parts[-1][1], parts[0][1]
        if one.keys() != first.keys() or not all(map(np.ndim, one.values())):
            raise damaged(file, "it holds other arrays than the rest")
    return parts


def remove_by_chain(folder: Path, kind: str) -> None:
    """Remove all files of a kind."""
    for _, file in _files(folder, kind):
        file.unlink()


def _files(folder: Path, kind: str) -> list[tuple[int, Path]]:
    numbers = {re.fullmatch(rf"{kind}-(\d+)\.npz", path.name): path for path in folder.iterdir()}
    found = [(int(match[1]), path) for match, path in numbers.items() if match]
    return sorted(found)
