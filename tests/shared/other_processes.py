"""What another process does at the same time."""

import subprocess
import sys
from contextlib import contextmanager

_HOLDING = (
    "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
    "print(flush=True); sys.stdin.read()"
)


@contextmanager
def written_to(folder):
    """Hold the lock of a folder in another process."""
    command = [sys.executable, "-c", _HOLDING, str(folder / "state.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        yield
