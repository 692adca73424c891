"""Files that are whole or not there, and refusals of those that no run wrote."""

import json
import os
from pathlib import Path
from typing import Any

JSON = dict[str, Any]


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also when the machine stops."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


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


def refuse_links(folder: Path) -> None:
    """Refuse symbolic links anywhere below a folder: they may lead out of it."""
    for directory, directories, files in os.walk(folder):
        for name in [*directories, *files]:
            path = Path(directory) / name
            if path.is_symlink():
                raise ValueError(
                    f"got the symbolic link {str(path)!r}, expected files alone: a run makes no "
                    "links, and what they point to is not the run's; replace it by the file"
                )
