"""Progress of a run: a bar in a terminal, plain lines in a log, JSON lines for programs."""

import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import jax
import numpy as np
from tqdm.auto import tqdm

Show = bool | Literal["json"]  # as `progress` of :func:`bnn_ppl.run`
Facts = dict[str, Any]
Report = Callable[[str, int, Facts], None]  # phase, total steps done, facts to show

COMPILING = "compiling"  # the phase before a program's first step

_SECONDS_A_LINE = {"lines": 10, "json": 1}
_SECONDS_A_BAR = 0.1
_SECONDS_TO_TRUST = 2.0  # of a phase, before which its speed is not shown
_LEAST_BAR = 10  # characters
_LONGEST_PHASE = 24

_names: list[str] = []  # of :func:`phases_named`, the innermost last


_MOST_WRITTEN_OUT = 10**9  # from which on a number is easier to read with an exponent


def in_words(value: Any, digits: int = 3) -> str:
    """Write a number for people, to so many digits: counts and large numbers are written out."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return str(value)
    size = abs(float(value))
    if isinstance(value, int | np.integer) or 10**digits - 0.5 <= size < _MOST_WRITTEN_OUT:
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def checked_progress(progress: Any) -> Show:
    """Give how progress is shown; refuse what says neither that nor that it is not."""
    if isinstance(progress, bool | np.bool_):
        return bool(progress)
    if progress != "json":
        raise ValueError(f"got progress={progress!r}, expected True, False or 'json'")
    return "json"


@contextmanager
def reporting(progress: Show, total: int, done: int = 0) -> Iterator[Report]:
    """Give a function that reports the progress of a run of `total` steps.

    True shows a bar with the time left, or a line every ten seconds where there is no terminal;
    "json" writes a line of JSON per second to standard error. Only the first process reports.
    """
    progress = checked_progress(progress)
    if progress is False or jax.process_index():
        yield lambda phase, done, facts: None
    elif progress == "json" or not _in_terminal():
        yield _named(_lines("json" if progress == "json" else "lines", total))
    else:
        begun = COMPILING if done < total else None
        with tqdm(total=total, initial=done, dynamic_ncols=True, bar_format=begun) as bar:
            try:
                yield _named(_bar(bar))
            finally:
                bar.leave = bar.bar_format != COMPILING


@contextmanager
def phases_named(name: str) -> Iterator[None]:
    """Show the phases of runs that are a part of something else by its name."""
    _names.append(name)
    try:
        yield
    finally:
        _names.pop()


def _named(report: Report) -> Report:
    if not _names:
        return report
    name = _names[-1]
    return lambda phase, done, facts: report(phase if phase == COMPILING else name, done, facts)


@contextmanager
def waiting(progress: Show, what: str = COMPILING) -> Iterator[None]:
    """Show a word in a terminal during work of which no progress is known."""
    if progress is not True or jax.process_index() or not _in_terminal():
        yield
    else:
        with tqdm(total=1, bar_format=what, leave=False):
            yield


def _bar(bar: tqdm) -> Report:
    speed, last = _speed(), ("", -float("inf"))  # what was drawn last, and when

    def report(phase: str, done: int, facts: Facts) -> None:
        nonlocal last
        rate, now = speed(phase, done), time.monotonic()
        told, bar.n = bar.format_dict, done
        line = _in_width(told["ncols"], phase, done, bar.total, told["elapsed"], rate, facts)
        bar.bar_format = COMPILING if phase == COMPILING else line
        if phase != last[0] or done >= bar.total or now - last[1] >= _SECONDS_A_BAR:
            last = phase, now
            bar.refresh()

    return report


def _in_width(
    width: int | None,
    phase: str,
    done: int,
    total: int,
    elapsed: float,
    rate: float | None,
    facts: Facts,
) -> str:
    """Give what stands around the bar, with as many of the facts, first to last, as fit beside it.

    The bar is ``{bar}`` in it, for tqdm to fill.
    """
    phase = phase if len(phase) <= _LONGEST_PHASE else f"{phase[: _LONGEST_PHASE - 1]}…"
    left = f"{phase} {100 * done // max(1, total):3d}%|"
    clock, speed = tqdm.format_interval(elapsed), []
    if rate and done < total:
        clock += f"<{tqdm.format_interval((total - done) / rate)}"
        speed = [f"{in_words(rate)}/s"]
    count, facts = _counted(done, total, facts)
    known = [f"{name}={in_words(value)}" for name, value in facts.items()]
    room = math.inf if width is None else width - len(left) - _LEAST_BAR
    right = "|"
    for text in (count, f"[{clock}]", *known, *speed):
        if len(right) + 1 + len(text) > room:
            break
        right += f" {text}"
    left, right = (text.replace("{", "{{").replace("}", "}}") for text in (left, right))
    return f"{left}{{bar}}{right}"


def _speed() -> Callable[[str, int], float | None]:
    """Give a function that is told each report, and gives steps a second or None if unknown.

    Measured from the end of a phase's first chunk, and so without compiling, over the later half of
    the time since: the first steps of a warm-up may take much longer or shorter than the others.
    """
    points: deque[tuple[float, int]] = deque()
    phase_before, began = "", 0.0

    def speed(phase: str, done: int) -> float | None:
        nonlocal phase_before, began
        now = time.monotonic()
        if phase != phase_before:
            phase_before, began = phase, now
            points.clear()
        points.append((now, done))
        while len(points) > 2 and points[1][0] <= (began + now) / 2:
            points.popleft()
        since, at_first = points[0]
        trusted = now - began >= _SECONDS_TO_TRUST and done > at_first
        return (done - at_first) / (now - since) if trusted else None

    return speed


def _lines(style: str, total: int) -> Report:
    speed, last, told_end = _speed(), -float("inf"), ""

    def report(phase: str, done: int, facts: Facts) -> None:
        nonlocal last, told_end
        rate, now = speed(phase, done), time.monotonic()
        ends = "ended_after" in facts
        if ends:  # told at once, and only once
            if told_end == phase:
                return
            told_end = phase
        elif phase != COMPILING:  # which is always told
            if now - last < _SECONDS_A_LINE[style] and done < total:
                return
            last = now
        left = (total - done) / rate if rate else None
        if style == "json":
            told = {
                "phase": phase,
                "done": done,
                "total": total,
                "rate": rate,
                "seconds_left": left,
            }
            line = json.dumps({name: _finite(value) for name, value in (told | facts).items()})
        elif phase == COMPILING:
            line = phase
        else:
            count, others = _counted(done, total, facts)
            shown = [f"{name} {in_words(value)}" for name, value in others.items()]
            if rate and left is not None and not ends:
                shown = [f"{in_words(rate)}/s", f"{tqdm.format_interval(left)} left", *shown]
            line = ", ".join([f"{phase} {count}", *shown])
        print(line, file=sys.stderr, flush=True)

    return report


def _counted(done: int, total: int, facts: Facts) -> tuple[str, Facts]:
    """Give the steps done, or after how many training ended by itself, and the other facts."""
    if "ended_after" not in facts:
        return f"{done:,}/{total:,}", facts
    others = dict(facts)
    after, most = others.pop("ended_after"), others.pop("most_steps")
    return f"ended after {after:,} of at most {most:,} steps", others


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _in_terminal() -> bool:
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules
