"""Progress of a run: a bar in a terminal, plain lines in a log, JSON lines for programs."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import jax
from tqdm.auto import tqdm

Facts = dict[str, Any]
Report = Callable[[str, int, Facts], None]  # phase, total steps done, facts to show

_SECONDS_A_LINE = {"lines": 10, "json": 1}


@contextmanager
def reporting(progress: bool | Literal["json"], total: int, done: int = 0) -> Iterator[Report]:
    """Give a function that reports the progress of a run of `total` steps.

    True shows a bar with the time left, or a line every ten seconds where there is no terminal;
    "json" writes a line of JSON per second to standard error. Only the first process reports.
    """
    if progress is False or jax.process_index():
        yield lambda phase, done, facts: None
    elif progress == "json" or not (sys.stderr.isatty() or _in_notebook()):
        style = "json" if progress == "json" else "lines"
        yield _lines(style, total)
    else:
        with tqdm(total=total, initial=done, dynamic_ncols=True) as bar:
            yield lambda phase, done, facts: _move(bar, phase, done, facts)


def _move(bar: tqdm, phase: str, done: int, facts: Facts) -> None:
    bar.set_description(phase, refresh=False)
    bar.set_postfix({name: _short(value) for name, value in facts.items()}, refresh=False)
    bar.update(done - bar.n)


def _lines(style: str, total: int) -> Report:
    first: tuple[float, int] | None = None  # when the first chunk was done: compiling is over
    last = -float("inf")

    def report(phase: str, done: int, facts: Facts) -> None:
        nonlocal first, last
        now = time.monotonic()
        began, at_first = first = first or (now, done)
        if now - last < _SECONDS_A_LINE[style] and done < total:
            return
        last = now
        rate = (done - at_first) / (now - began) if done > at_first else None
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
        else:
            shown = ", ".join(f"{name} {_short(value)}" for name, value in facts.items())
            speed = f", {rate:.3g}/s, {_clock(left)} left" if rate and left is not None else ""
            line = f"{phase} {done}/{total}{speed}, {shown}"
        print(line, file=sys.stderr, flush=True)

    return report


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules
