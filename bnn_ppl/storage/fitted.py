"""Parameters of fitted distributions on disk.

``folder/fitted-<first chain>.npz`` has the group ``fitted`` of one process's chains, once the run
has ended.
"""

import io
import re
import zipfile
from pathlib import Path

import numpy as np

from bnn_ppl.storage.files import damaged, replace_file


def write_fitted(folder: str | Path, first_chain: int, fitted: dict[str, np.ndarray]) -> None:
    """Write the parameters (chain, ...) of the distributions that some chains draw from."""
    content = io.BytesIO()
    np.savez(content, **fitted)  # type: ignore[arg-type]
    replace_file(Path(folder) / f"fitted-{first_chain}.npz", content.getvalue())


def read_fitted(folder: Path) -> dict[str, np.ndarray]:
    """Read the parameters of all chains; nothing where none were written."""
    parts: list[dict[str, np.ndarray]] = []
    for file in _fitted_files(folder):
        try:
            with np.load(file, allow_pickle=False) as arrays:
                parts.append(dict(arrays))
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise damaged(file, "it is not a file of arrays") from error
        if parts[-1].keys() != parts[0].keys() or not all(map(np.ndim, parts[-1].values())):
            raise damaged(file, "it holds other arrays than the rest")
    names = parts[0] if parts else {}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def remove_fitted(folder: str | Path) -> None:
    """Remove the parameters that an earlier call of the run wrote at its end."""
    for file in _fitted_files(Path(folder)):
        file.unlink()


def _fitted_files(folder: Path) -> list[Path]:
    numbers = {re.fullmatch(r"fitted-(\d+)\.npz", path.name): path for path in folder.iterdir()}
    found = [(int(match[1]), path) for match, path in numbers.items() if match]
    return [path for _, path in sorted(found)]
