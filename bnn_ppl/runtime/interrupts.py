"""Ctrl-C: answered at once, and turned into a request to stop."""

import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from tqdm.auto import tqdm

_answers: list[Callable[[], None]] = []  # the last one holds


@contextmanager
def interrupts(progress: bool | Literal["json"]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request to stop after the chunk; a second stops at once."""
    requested = threading.Event()
    if not _heard():
        yield requested.is_set
        return

    def request(number: int, frame: Any) -> None:
        requested.set()
        signal.signal(signal.SIGINT, before)

    def answer() -> None:
        if progress == "json":
            print(json.dumps({"phase": "stopping"}), file=sys.stderr, flush=True)
        else:
            say("stopping after this chunk, or once compiled")

    before = signal.signal(signal.SIGINT, request)
    try:
        with answered(answer):
            yield requested.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def answered(answer: Callable[[], None]) -> Iterator[None]:
    """Call `answer`, on another thread, as soon as Ctrl-C is pressed.

    A handler of Python waits for compiled programs, and for the compiler, to return.
    """
    if not _heard():
        yield
        return
    _answers.append(answer)
    try:
        if len(_answers) > 1:  # somebody listens already
            yield
        else:
            with _listening():
                yield
    finally:
        _answers.remove(answer)


@contextmanager
def _listening() -> Iterator[None]:
    ours, told = socket.socketpair()
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    if before != -1:  # an event loop's: leave it its signals
        signal.set_wakeup_fd(before)
    listener = threading.Thread(target=_listen, args=(ours,), daemon=True)
    listener.start()
    try:
        yield
    finally:
        if before == -1:
            signal.set_wakeup_fd(-1)
        told.close()
        listener.join()
        ours.close()


def _listen(ours: socket.socket) -> None:
    while numbers := ours.recv(16):  # nothing once the other end is closed
        if signal.SIGINT in numbers and _answers:
            _answers[-1]()


def say(words: str) -> None:
    """Write a line to standard error, above progress bars."""
    tqdm.write(words, file=sys.stderr)


def _heard() -> bool:
    """Whether Ctrl-C reaches this thread: not a job in the background, nor another thread."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return not ignored and threading.current_thread() is threading.main_thread()
