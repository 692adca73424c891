"""Files of a run, refused if damaged."""

import json
from pathlib import Path
from typing import Any

JSON = dict[str, Any]

DRAWS = "draws.zarr"  # in the folder of a run
DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
DTYPES |= {"float16", "float32", "float64"}  # of what can be recorded


def read_json(path: Path) -> JSON:
    """Read a JSON object; refuse anything else."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(path, "it is not JSON") from error
    if not isinstance(content, dict):
        raise damaged(path, "it is not what a run writes there")
    return content


def damaged(path: Path, what: str) -> ValueError:
    """Make the error that says what is wrong with a file."""
    return ValueError(
        f"got {str(path)!r}, which is damaged or not a run's ({what}), expected a file as a run "
        "left it: copy the folder again, or name another"
    )
