"""Ctrl-C while the command imports, which takes seconds: one line and status 130, no traceback.

The package imports this file first. In a program of the user's nothing is changed.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

INTERRUPTED = 130  # the exit status after Ctrl-C, as of a shell: 128 and the number of SIGINT


def quiet_while_importing() -> None:
    """End on Ctrl-C with one line, if this process is the command, until `imported`."""
    free = threading.current_thread() is threading.main_thread()
    if free and is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def imported() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_command() -> bool:
    """Whether this is ``bnn-ppl`` or ``python -m bnn_ppl``, which imports under the name -m."""
    words = sys.orig_argv
    by_module = sys.argv[:1] == ["-m"] and "-m" in words
    name = words[words.index("-m") + 1] if by_module else Path((sys.argv or [""])[0]).stem
    return name in ("bnn-ppl", "bnn_ppl")


def _end(number: int, frame: Any) -> None:
    """Leave at once: an exception might be caught, or be shown, by what is being imported."""
    os.write(2, b'{"phase": "stopping"}\n' if "--json" in sys.argv else b"stopping\n")
    os._exit(INTERRUPTED)


quiet_while_importing()
