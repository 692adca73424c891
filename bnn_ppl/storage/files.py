"""Files of a run, refused if damaged."""

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

JSON = dict[str, Any]

DRAWS = "draws.zarr"  # in the folder of a run
METADATA, SPARE = "zarr.json", "zarr.json.copy"  # in draws.zarr
PROBLEM = "problem.json"  # of a run of the command line: written first, with a name for the run
COPY = "data.csv"  # of rows from standard input; it is a run's only beside problem.json
LOCK = "state.lock"
STATE, STATE_BEFORE = "state.json", "state-before.json"
RUN = "run_id"  # drawn when a run begins; its files have it, so that those of another are known
DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
DTYPES |= {"float16", "float32", "float64"}  # of what can be recorded

_CHECKSUM = "checksum"
_NAMING_THE_RUN = f"{DRAWS}/{METADATA}", f"{DRAWS}/{SPARE}", STATE, STATE_BEFORE


def read_json(path: Path) -> JSON:
    """Read a JSON object, of what was `sealed` as it was before; refuse anything else."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise damaged(path, "it is missing") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, "it is not JSON") from error
    if not isinstance(content, dict):
        raise damaged(path, "it is not what a run writes there")
    holder = _holder(content)
    if _CHECKSUM in holder and holder.pop(_CHECKSUM) != _checksum(content):
        raise damaged(path, "its checksum is wrong")
    return content  # runs of earlier versions have no checksums


def sealed(content: JSON) -> JSON:
    """Add a checksum; to Zarr's metadata, which have no other place, among the attributes."""
    own = json.loads(json.dumps(content))
    _holder(own)[_CHECKSUM] = _checksum(content)
    return own


def read_of_run(path: Path, run: str | None) -> JSON:
    """Read a JSON object; refuse one of another run."""
    content = read_json(path)
    if _holder(content).get(RUN) != run:
        raise damaged(path, "it is of another run than the other files")
    return content


def run_of(folder: Path) -> str | None:
    """Give the name of a run, as most of its files have it; None for one of an earlier version."""
    found: Counter[str | None] = Counter()
    for name in _NAMING_THE_RUN:
        with suppress(ValueError):
            found[_holder(read_json(folder / name)).get(RUN)] += 1
    return found.most_common(1)[0][0] if found else None


def _holder(content: JSON) -> JSON:
    found = content.get("attributes", content)
    return found if isinstance(found, dict) else content


def _checksum(content: JSON) -> str:
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


class DamagedError(ValueError):
    """What a folder holds is not as a run left it."""


def damaged(path: Path, what: str) -> DamagedError:
    """Make the error that says what is wrong with a file."""
    return DamagedError(
        f"got {str(path)!r}, which is damaged or not a run's ({what}), expected a file as a run "
        "left it: copy the folder again, or name another"
    )


@contextmanager
def storing(path: Path, what: str) -> Iterator[None]:
    """Say what a full disk means for a run."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"got '{error.strerror}' on storing {what} in {str(path)!r}, expected room and "
            "permission to write: what was stored is whole; once the cause is removed, the same "
            "call resumes the run",
        ) from error
