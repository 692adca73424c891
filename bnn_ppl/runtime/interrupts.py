"""Ctrl-C: answered at once, and turned into a request to stop."""

import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from tqdm.auto import tqdm

_SECONDS_TO_LEAVE = 0.05  # a callback
_answers: list[Callable[[], None]] = []  # the last one holds
_heard_once = threading.Event()  # since the first of them began


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

    words = "stopping after this chunk, or once compiled"
    before = signal.signal(signal.SIGINT, request)
    try:
        with answered(partial(stopping, words, progress == "json")):
            yield requested.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def answered(answer: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Call `answer`, on another thread and once, as soon as Ctrl-C is pressed.

    A handler of Python waits for compiled programs, and for the compiler, to return. Yields a
    function that tells whether Ctrl-C has been pressed since the outermost of these began.
    """
    if not _heard():
        yield lambda: False
        return
    _answers.append(answer)
    try:
        if len(_answers) > 1:  # somebody listens already
            yield _heard_once.is_set
        else:
            _heard_once.clear()
            with _listening():
                yield _heard_once.is_set
    finally:
        _answers.pop()


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
            _heard_once.set()
            answer, _answers[-1] = _answers[-1], _nothing
            answer()


def _nothing() -> None:
    pass


@contextmanager
def raised_for_sure() -> Iterator[None]:
    """Raise a KeyboardInterrupt again where it was lost.

    JAX has a callback of the garbage collector, in which it often is raised, and then ignored.
    """
    before, main = sys.unraisablehook, threading.main_thread().ident

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt and main is not None:
            again = threading.Timer(_SECONDS_TO_LEAVE, signal.pthread_kill, (main, signal.SIGINT))
            again.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def stopping(words: str, as_json: bool = False) -> None:
    """Say so in a line of standard error, above progress bars."""
    tqdm.write(json.dumps({"phase": "stopping"}) if as_json else words, file=sys.stderr)


def _heard() -> bool:
    """Whether Ctrl-C reaches this thread: not a job in the background, nor another thread."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return not ignored and threading.current_thread() is threading.main_thread()
