"""Decisions from predictions: :func:`bnn_ppl.decide`, and ready-made losses.

A loss is any function ``loss(action, y)``, or one of those here: `newsvendor` for amounts, `alarm`
for whether to warn, `reject` for classes that may be left open, `costs` for a table of costs.
"""

from bnn_ppl.analysis.decisions.decide import decide
from bnn_ppl.analysis.decisions.losses import alarm, costs, newsvendor, reject

__all__ = ["alarm", "costs", "decide", "newsvendor", "reject"]
