"""The fits of a search for a setting: where they are kept, and how long they may take."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import warn
from bnn_ppl.runtime.interrupts import deadline
from bnn_ppl.runtime.progress import Show, phases_named
from bnn_ppl.storage.checkpoint import alone_in
from bnn_ppl.storage.files import DamagedError
from bnn_ppl.storage.recorder import stops_unsaid

Run = Callable[..., Any]  # bnn_ppl.run, which itself searches for a scale

NUM_CHAINS = 2  # of a fit


class Search(NamedTuple):
    """How the fits of a search are run, where they are kept, and how long it may take."""

    run_fit: Run
    wanted: str  # what is searched for, in words
    place: str | Path | None
    end: float  # by time.monotonic
    progress: Show

    @classmethod
    def of(
        cls,
        run: Run,
        wanted: str,
        folder: str | Path | None = None,
        max_minutes: float | None = None,
        progress: Show = False,
    ) -> "Search":
        """Begin a search, which may take so long."""
        return cls(run, wanted, folder, deadline(max_minutes), progress)

    def folder(self, fit: str) -> Path | None:
        """Give the folder of a fit."""
        return None if self.place is None else Path(self.place) / fit

    def alone(self) -> AbstractContextManager[None]:
        """Refuse a search that another process makes at the same place."""
        return alone_in(None if self.place is None else Path(self.place))

    @contextmanager
    def told(self, part: str) -> Iterator[None]:
        """Show the progress of fits as that of a part of the search."""
        with phases_named(f"{self.wanted}, {part}"):
            yield

    def is_over(self) -> bool:
        """Whether its time has passed."""
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Give the time left, infinite where there is no limit."""
        return self.end - time.monotonic()

    def run(
        self,
        key: jax.Array,
        posterior: Posterior,
        method: Method,
        seconds: float | None = None,
        **options: Any,
    ) -> Any:
        """Run a fit, as far as it gets in the time left; raise if there is none, or by Ctrl-C.

        `seconds` are another limit, which may be infinite.
        """
        left = self.seconds_left() if seconds is None else seconds
        if left <= 0:
            raise self._too_late()
        end = time.monotonic() + left
        fit = partial(
            self.run_fit,
            key,
            posterior,
            method,
            num_chains=NUM_CHAINS,
            max_minutes=None if math.isinf(left) else left / 60,
            progress=self.progress,
            verdict=False,
            **options,
        )
        with stops_unsaid():
            found = anew_if_damaged(fit, options.get("folder"))
        if "stopped" in found.attrs and time.monotonic() < end:
            if self.place is not None:
                kept = f"stopped in the search for the {self.wanted}, kept in {self.place}"
                print(f"{kept}: the same call or command resumes it", file=sys.stderr)
            raise KeyboardInterrupt
        return found

    def _too_late(self) -> TimeoutError:
        how = ", or give it" if self.place is None else "; the same call goes on from here"
        return TimeoutError(
            f"got max_minutes that passed in the search for the {self.wanted}, expected more: "
            f"give more minutes{how}"
        )


def anew_if_damaged(fit: Callable[[], Any], folder: Path | None) -> Any:
    """Make a fit; where what is kept of it is damaged, begin it again."""
    try:
        return fit()
    except DamagedError as error:
        if folder is None:
            raise
        warn(f"{str(error).partition(', expected')[0]}: this fit begins again")
    shutil.rmtree(folder)
    return fit()
