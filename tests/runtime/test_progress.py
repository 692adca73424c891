"""What a run shows in terminals and logs, and how it answers Ctrl-C."""

import fcntl
import gc
import hashlib
import json
import os
import re
import signal
import struct
import sys
import termios
import threading
import time

import numpy as np
import pytest
from marks import quick_first

from bnn_ppl.runtime import progress as module
from bnn_ppl.runtime.interrupts import answered, interrupts, raised_for_sure
from bnn_ppl.runtime.progress import COMPILING, checked_progress, in_words, reporting, waiting
from bnn_ppl.sampling.loop.loop import _shown
from bnn_ppl.storage.recorder import Progress, Recorder

FACTS = {
    "acceptance": 0.853,
    "divergences": 0,
    "lp": -366.7,
    "step_size": 0.00233,
    "draws": 123,
    "disk_MB": 12.3,
}
ALL = ["acceptance=0.853", "divergences=0", "lp=-367", "step_size=0.00233", "draws=123"]
ALL += ["disk_MB=12.3"]


class Terminal:
    """A pseudo-terminal of some width in place of standard error."""

    def __init__(self, monkeypatch, width):
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self._theirs = os.fdopen(theirs, "w", encoding="utf-8")
        monkeypatch.setattr(sys, "stderr", self._theirs)

    def shown(self):
        """Give what was shown since the last call, frame by frame."""
        self._theirs.flush()
        os.set_blocking(self._ours, False)
        text = b""
        while True:
            try:
                text += os.read(self._ours, 65536)
            except (BlockingIOError, OSError):
                break
        return [frame.rstrip() for frame in re.split(r"[\r\n]+", text.decode()) if frame.strip()]


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.mark.parametrize("width", [60, 70, 80, 100, 120, 160, 200])
def test_a_bar_fits_its_terminal_with_whole_fields(width, monkeypatch):
    terminal = Terminal(monkeypatch, width)
    with reporting(True, 126_500) as report:
        report("warmup", 1, FACTS)
        report("draws", 63_250, FACTS)
        frame = terminal.shown()[-1]
    assert len(frame) <= width
    phase, bar, fields = frame.split("|")
    assert phase == "draws  50%"
    assert len(bar) >= 10 and set(bar.strip()) <= set("█▏▎▍▌▋▊▉")
    done, clock, *facts = fields.split()
    assert done == "63,250/126,500" and re.fullmatch(r"\[00:0\d\]", clock)
    assert facts == ALL[: len(facts)]  # those that matter most, none of them cut
    assert len(facts) >= {60: 0, 70: 1, 80: 2, 100: 3}.get(width, 4)
    assert width < 160 or facts == ALL


def test_training_that_ended_by_itself_is_told_in_its_own_steps(monkeypatch, capsys):
    facts = {"ended_after": 34_000, "most_steps": 100_000, "step_size": 0.001}
    with reporting(True, 100_100) as report:
        report("warmup", 99_999, facts)
        report("warmup", 100_000, facts)  # said once
    told = "warmup ended after 34,000 of at most 100,000 steps, step_size 0.001\n"
    assert capsys.readouterr().err == told
    with reporting("json", 100_100) as report:
        report("warmup", 100_000, facts)
    assert json.loads(capsys.readouterr().err)["ended_after"] == 34_000
    terminal = Terminal(monkeypatch, 160)
    with reporting(True, 100_100) as report:
        report("warmup", 100_000, facts)
        frame = terminal.shown()[-1]
    assert "| ended after 34,000 of at most 100,000 steps [" in frame
    assert frame.endswith("step_size=0.001")


def test_a_terminal_says_compiling_until_the_first_chunk_is_done_and_between_phases(monkeypatch):
    terminal = Terminal(monkeypatch, 80)
    with reporting(True, 10) as report:
        assert terminal.shown() == ["compiling"]
        report("warmup", 1, {})
        assert terminal.shown()[-1].startswith("warmup  10%|")
        report(COMPILING, 5, {})
        assert terminal.shown() == ["compiling"]
        report("draws", 10, {})
        assert terminal.shown()[-1].startswith("draws 100%|██████████")
    with reporting(True, 10, done=10):
        assert "compiling" not in terminal.shown()[-1]  # nothing is left to do


def test_a_terminal_shows_a_word_while_no_progress_is_known(monkeypatch, capsys):
    with waiting(True, "judging"):
        assert not capsys.readouterr().err  # no terminal
    terminal = Terminal(monkeypatch, 80)
    with waiting(True, "judging"):
        assert terminal.shown() == ["judging"]
    with waiting("json"), waiting(False):
        assert not terminal.shown()


def test_a_log_says_that_it_compiles(capsys):
    with reporting(True, 10) as report:
        report(COMPILING, 0, {})
        report("warmup", 1, {})
        report(COMPILING, 5, {})
    assert capsys.readouterr().err.splitlines() == ["compiling", "warmup 1/10", "compiling"]


@pytest.mark.parametrize(("progress", "lines"), [(np.True_, ["warmup 1/10"]), (np.False_, [])])
def test_numpys_truth_values_say_whether_progress_is_shown(progress, lines, capsys):
    with reporting(progress, 10) as report:
        report("warmup", 1, {})
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize("progress", [None, 1, "yes"])
def test_other_values_than_these_are_refused(progress):
    with pytest.raises(ValueError, match="expected True, False or 'json'"):
        checked_progress(progress)


def test_the_time_left_waits_until_it_can_be_trusted_and_leaves_compiling_out(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(module, "_SECONDS_A_LINE", {"json": 0})
    left = {}
    with reporting("json", 1200) as report:
        report(COMPILING, 0, {})
        clock.now += 60
        # The first steps of a warm-up are slow; from the 11th on there are 20 a second.
        for seconds, done in [(0, 1), (1.5, 11), *((0.5, 11 + 10 * i) for i in range(1, 20))]:
            clock.now += seconds
            report("warmup", done, {})
            told = json.loads(capsys.readouterr().err.splitlines()[-1])
            left[done] = told["seconds_left"]
        assert left[1] is None and left[11] is None  # 1.5 seconds of it
        assert left[31] is not None
        assert left[201] == pytest.approx((1200 - 201) / 20, rel=0.01)
        clock.now += 300  # compiling, again
        report("draws", 202, {})
        assert json.loads(capsys.readouterr().err)["seconds_left"] is None
        clock.now += 10
        report("draws", 302, {})
        assert json.loads(capsys.readouterr().err)["seconds_left"] == pytest.approx(89.8)


def test_a_bar_shows_no_time_left_at_first(monkeypatch):
    clock, terminal = Clock(monkeypatch), Terminal(monkeypatch, 80)
    with reporting(True, 100) as report:
        for done in (1, 2, 3, 4):
            clock.now += 1
            report("draws", done, {})
            assert ("<" in terminal.shown()[-1]) == (done > 2)
        clock.now += 1
        report("draws", 5, {})
        assert "<01:35]" in terminal.shown()[-1]


def _busy():
    """Compute for seconds without a look at signals, as compiled programs do."""
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 8_000_000)


def _press_after(seconds):
    main = threading.main_thread().ident
    threading.Timer(seconds, lambda: signal.pthread_kill(main, signal.SIGINT)).start()


@quick_first("progress", [True, "json"])
def test_ctrl_c_is_answered_before_what_is_computed_is_done(progress, monkeypatch):
    terminal, seen = Terminal(monkeypatch, 80), []
    watch = threading.Timer(0.6, lambda: seen.extend(terminal.shown()))
    with interrupts(progress) as pressed:
        _press_after(0.2)
        watch.start()
        _busy()
        told = list(seen)  # while it computed
        assert pressed()
    expected = "stopping after this chunk, or once compiled"
    assert told == ([expected] if progress is True else ['{"phase": "stopping"}'])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1


def test_the_innermost_answer_to_ctrl_c_holds():
    told = []
    with answered(lambda: told.append("outer")):
        with interrupts(False) as pressed, answered(lambda: told.append("inner")):
            signal.raise_signal(signal.SIGINT)
            while not told:
                time.sleep(0.01)
            assert pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        while len(told) < 2:
            time.sleep(0.01)
    assert told == ["inner", "outer"]


def test_an_event_loop_keeps_its_signals():
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs)
    try:
        with interrupts(True) as pressed:
            signal.raise_signal(signal.SIGINT)
            assert pressed()
        assert os.read(ours, 1) == bytes([signal.SIGINT])
    finally:
        assert signal.set_wakeup_fd(-1) == theirs


@pytest.mark.thorough
def test_an_interrupt_in_a_callback_of_the_garbage_collector_is_not_lost(capsys):
    pressed = []

    def press(phase, info):
        if not pressed:
            pressed.append(phase)
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(press)
    try:
        with raised_for_sure(), pytest.raises(KeyboardInterrupt):
            gc.collect()
            assert pressed
            time.sleep(5)
    finally:
        gc.callbacks.remove(press)
    assert not capsys.readouterr().err  # Python would have told of it, and gone on


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (123_456, "123,456"),
        (1e5, "100,000"),
        (9999.7, "10,000"),
        (-1234.6, "-1,235"),
        (0.00123456, "0.001235"),
        (12.0, "12"),
        (4.7e9, "4.7e+09"),
        (True, "True"),
        ("all", "all"),
    ],
)
def test_numbers_are_written_out_for_people(value, words):
    assert in_words(value, 4) == words


@pytest.mark.parametrize(("second", "shown"), [("ended", -3.0), ("probe", -3.0), ("lost", np.nan)])
def test_the_log_density_shown_is_that_of_the_chains_that_computed_one(second, shown):
    lp = np.array([[-5.0, -3.0], [-1.0, 0.0 if second == "ended" else np.nan]])
    stats = {
        "lp": lp,
        "n_steps": np.array([[1, 1], [1, int(second != "ended")]]),
        "diverging": np.array([[False, False], [False, second == "lost"]]),
    }
    facts = _shown(Progress(), stats, Recorder(), {})
    np.testing.assert_equal(facts["lp"], shown)
    stats["lp"][:], stats["diverging"][:] = np.nan, False
    assert "lp" not in _shown(Progress(), stats, Recorder(), {})
