"""What stops a run: Ctrl-C, answered at once and turned into a request, or the end of its time."""

import json
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from tqdm.auto import tqdm

from bnn_ppl.runtime.checks import is_number

_SECONDS_TO_LEAVE = 0.05  # a callback
_LEAST_MINUTES = 1e-9  # a run refuses none
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
    if not _heard():
        yield
        return
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


# --- the time that a run may take


def deadline(max_minutes: float | None) -> float:
    """Give the moment at which a run that starts now is to stop, by ``time.monotonic``.

    Raises
    ------
    ValueError
        If `max_minutes` is not a number above 0.
    """
    if max_minutes is None:
        return math.inf
    if not is_number(max_minutes) or not max_minutes > 0:
        raise ValueError(
            f"got max_minutes={max_minutes!r}, expected a number above 0: leave it out to run "
            "without a limit"
        )
    return time.monotonic() + 60 * float(max_minutes)


def minutes_left(max_minutes: float | None, began: float) -> float | None:
    """Give what is left for a run of the minutes that began at a moment of ``time.monotonic``."""
    if max_minutes is None:
        return None
    return max(max_minutes - (time.monotonic() - began) / 60, _LEAST_MINUTES)


def minutes_until(end: float) -> float | None:
    """Give what is left until a moment of ``time.monotonic``; None without end."""
    return None if math.isinf(end) else max((end - time.monotonic()) / 60, _LEAST_MINUTES)


def pressed_or_late(pressed: Callable[[], bool], end: float) -> Callable[[], bool]:
    """Let the end of the time stop a run as Ctrl-C does."""
    return lambda: pressed() or time.monotonic() >= end
