"""Held-out rows in the record of a run, by which resuming it with others is refused."""

import zlib
from typing import Any

import jax
import numpy as np


def described(rows: tuple[Any, Any]) -> str:
    """Say how many rows (x, y) there are, with a checksum that tells them from others."""
    content = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(rows))
    return f"{len(rows[1])}, checksum {zlib.crc32(content)}"
