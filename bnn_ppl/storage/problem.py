"""What a run learns: ``problem.json``, which the command line and the estimators write."""

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from bnn_ppl.runtime.files import make_folder, replace_file
from bnn_ppl.storage.files import (
    DRAWS,
    JSON,
    PROBLEM,
    RUN,
    damaged,
    read_json,
    run_of,
    sealed,
)

CHOICE = "choice"  # in words, of what a run has found of its model
LAW = "law"  # of a likelihood by name, with what it knows of the training targets
LEFT_OPEN = "left_open"  # names of the options that a run was to find
ESTIMATOR = "estimator"  # the name of the estimator that made a run; not of the command line's


def is_open(value: Any) -> bool:
    """Whether a setting is left open, for a run to find."""
    return value is None or (isinstance(value, str) and value == "auto")


def write_problem(folder: Path, settings: JSON) -> None:
    """Say what a run in this folder learns, unless a whole file there does since it has begun."""
    begun = (folder / DRAWS).exists()
    with suppress(ValueError, FileNotFoundError):
        read_problem(folder)
        if begun:
            return
    run = run_of(folder) if begun else secrets.token_hex(8)
    make_folder(folder)
    content = json.loads(json.dumps(settings)) | ({} if run is None else {RUN: run})
    replace_file(folder / PROBLEM, f"{json.dumps(sealed(content), indent=2)}\n".encode())


def read_problem(folder: Path) -> JSON:
    """Read what a run learns; refuse a damaged file, and that of another run."""
    path, run = folder / PROBLEM, run_of(folder)
    try:
        settings = read_json(path)
        if settings.pop(RUN, run) != run and (folder / DRAWS).exists():
            raise damaged(path, "it is of another run")
    except ValueError as error:
        got = str(error).partition(", expected")[0]
        raise ValueError(
            f"{got}, expected what run wrote: give the same command, which writes it again, or "
            "take out its checksum if you changed it yourself"
        ) from error
    return settings
