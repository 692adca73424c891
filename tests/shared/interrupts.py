"""Ctrl-C at a known moment of a run."""

import signal
import sys


def press_ctrl_c(patch, chunk):
    """Press Ctrl-C while the given chunk is shown, until `patch` (a MonkeyPatch) is undone."""
    module = sys.modules["bnn_ppl.sampling.loop.loop"]
    shown, show = [], module._shown

    def press(*args):
        shown.append(args)
        if len(shown) == chunk:
            signal.raise_signal(signal.SIGINT)
        return show(*args)

    patch.setattr(module, "_shown", press)
    return shown
