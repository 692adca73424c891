"""Help of a command that has been shown before, for which JAX need not be imported again.

It is kept in the user's cache folder, under all that it depends on: what was typed, the terminal,
and the source of this package, of Python and of tyro. So another version's is never shown.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bnn_ppl.runtime.files import cache_folder, package_state, replace_file

_OF_TERMINALS = "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"


def asks(words: Sequence[str]) -> bool:
    """Whether help is asked for."""
    return not {"--help", "-h"}.isdisjoint(words)


def known(words: Sequence[str]) -> str | None:
    """Give the help that was shown for these words; None if it was not, or has changed."""
    try:
        return _place(words).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


@contextmanager
def kept(words: Sequence[str]) -> Iterator[None]:
    """Keep what is printed until the command ends without an error; drop that of other sources."""
    printed = sys.stdout
    copied: Any = _Copied(printed)
    sys.stdout = copied
    try:
        yield
    except SystemExit as end:
        text = "".join(copied.texts)
        if not end.code and text:
            with suppress(OSError, ValueError):  # it is only shown more slowly next time
                _keep(_place(words), text)
        raise
    finally:
        sys.stdout = printed


def _keep(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, text.encode())
    for other in place.parent.parent.iterdir():
        if other != place.parent:
            shutil.rmtree(other, ignore_errors=True)


class _Copied:
    """An output that also keeps what is written to it."""

    def __init__(self, output: Any):
        self._output = output
        self.texts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    def write(self, text: str) -> int:
        self.texts.append(text)
        return self._output.write(text)


def _place(words: Sequence[str]) -> Path:
    """Name the file of a help text."""
    terminal: list[Any] = [os.environ.get(name) for name in _OF_TERMINALS]
    terminal += [sys.stdout.isatty(), sys.stdout.encoding, *shutil.get_terminal_size()]
    folder = cache_folder() / "help" / _hash(package_state(), sys.version, version("tyro"))
    return folder / f"{_hash(list(words), terminal)}.txt"


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
