"""Files that are written whole or not at all, and locks between processes."""

import os
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import IO, TypeAlias

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

_PACKAGE = Path(__file__).parents[1]


def cache_folder() -> Path:
    """Name the package's folder among the user's caches; RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bnn_ppl"


def package_state() -> list[tuple[str, int, int]]:
    """Tell versions of this package apart, also those that are being written."""
    files = sorted(_PACKAGE.rglob("*.py"))
    return [(str(file), (of := file.stat()).st_mtime_ns, of.st_size) for file in files]


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(path, error.strerror or str(error)) from None


def check_can_be_made(path: Path) -> None:
    """Refuse, without making it, a folder where another file or the permissions are in the way."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise _cannot_be_made(path, f"{above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise _cannot_be_made(path, f"no permission to write in {above}")


def _cannot_be_made(path: Path, why: str) -> OSError:
    return OSError(
        f"got folder={str(path)!r}, which cannot be made ({why}), expected one that can: "
        "name another"
    )


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, even if the machine stops."""
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


_Key: TypeAlias = tuple[int, int, int]  # the process, as a fork holds nothing, and the inode


class Holder:
    """One of those in this process that hold a file: free once all are closed or collected."""

    def __init__(self, key: _Key) -> None:
        self.close = weakref.finalize(self, _release, key)

    def __enter__(self) -> "Holder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Closing any file at an inode ends what a process holds there, so the last holder closes them.
_held: dict[_Key, list[IO[str]]] = {}
_num_holders: Counter[_Key] = Counter()
_registry = threading.RLock()  # a holder may be collected while it is taken


def locked(path: Path, *, wait: bool) -> Holder | None:
    """Hold a file that one process at a time can hold, until the holder is closed or collected.

    It is also free once the process ends. None on a system without such locks.

    Raises
    ------
    BlockingIOError
        If another process holds it and `wait` is False.
    """
    if fcntl is None:
        return None
    with _registry:
        if path.exists() and (key := _key(path.stat())) in _held:
            return _held_by_one_more(key)
    file = path.open("w")
    try:
        if wait:  # not in the registry, where others let go
            fcntl.lockf(file, fcntl.LOCK_EX)
        with _registry:  # again: a thread that let go meanwhile has ended this one's too
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            key = _key(os.fstat(file.fileno()))
            _held.setdefault(key, []).append(file)
            return _held_by_one_more(key)
    except OSError as error:
        file.close()
        if wait and isinstance(error, BlockingIOError | PermissionError):  # others hold it
            return locked(path, wait=True)
        raise BlockingIOError(f"{path} is held by another process") from error


def _held_by_one_more(key: _Key) -> Holder:
    _num_holders[key] += 1
    return Holder(key)


def _release(key: _Key) -> None:
    if key[0] != os.getpid():  # a fork does not hold what its parent does
        return
    with _registry:
        _num_holders[key] -= 1
        if not _num_holders[key]:
            del _num_holders[key]
            for file in _held.pop(key):
                file.close()


def _key(of: os.stat_result) -> _Key:
    return os.getpid(), of.st_dev, of.st_ino
