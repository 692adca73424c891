"""How long a method runs, and which rows it sees, where the caller of ``run`` does not say."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np


class Counts(NamedTuple):
    """Default run length and batch size, used where the caller of ``run`` gives none."""

    num_warmup: int = 0
    num_draws: int = 1
    thin: int = 1
    batch_size: int | None = None  # None for all rows
    num_chains: int = 4  # in the command line and the estimators
    in_epochs: bool = False  # whether num_warmup counts epochs

    def filled(self, num_rows: int, given: Mapping[str, Any]) -> "Counts":
        """Replace given values (not None; batch size "all" becomes None), and count in steps."""
        known: dict[str, Any] = {
            name: int(value) if isinstance(value, np.integer) else value
            for name, value in given.items()
            if value is not None
        }
        if known.get("batch_size") == "all":
            known["batch_size"] = None
        counts = self._replace(**known)
        if self.in_epochs and "num_warmup" not in known:
            size = counts.batch_size
            # An invalid size is refused where the batches are made.
            epoch = max(1, num_rows // size) if isinstance(size, int) and size > 0 else 1
            counts = counts._replace(num_warmup=counts.num_warmup * epoch)
        return counts._replace(in_epochs=False)


SAMPLED = Counts(num_warmup=300, num_draws=200)
FITTED = Counts(num_warmup=100_000, num_draws=100, thin=0)

# Fields of the descriptions of methods of a kind (:class:`bnn_ppl.methods.method.Description`).
# Descriptions give their own fields beside those of a kind, or in their place.
EXACT: dict[str, Any] = {"gives": "exact draws", "bias": "none once the chains have converged"}
TRAJECTORIES = EXACT | {"cost": "gradients on all rows, tens to thousands per draw"}
MINIBATCHES = {
    "gives": "draws",
    "cost": "a gradient on a minibatch",
    "bias": "first order in the step size, plus gradient noise",
    "length": "an ensemble, 6,500 steps of sgnht and of warm-up, 200 draws 20 to 900 steps apart",
    "stochastic_gradients": True,
    "takes_batch_statistics": True,
}
SECOND_ORDER = MINIBATCHES | {
    "bias": "second order in the step size, plus gradient noise",
    "length": "an ensemble, 6,500 warm-up steps, 200 draws 20 to 900 steps apart",
    "takes_batch_statistics": False,
}
FIT: dict[str, Any] = {"kind": "fit", "trained_once": True, "counts": FITTED}
TRAINED = FIT | {
    "stochastic_gradients": True,
    "takes_batch_statistics": True,
    "length": "a mode, then until it stops improving (at most 100,000 steps), 100 draws",
}
MEAN_FIELD = TRAINED | {
    "gives": "independent Gaussians",
    "bias": "too narrow where weights are correlated",
}


def rows_of_share(share: float, num_rows: int) -> int:
    """Give the number of rows in a share of them: the nearest, but at least one."""
    return max(1, round(share * num_rows))


class Batching(NamedTuple):
    """Which rows a method sees.

    Attributes
    ----------
    order
        "epochs": batches drawn without replacement, each row once an epoch. "symmetric": every
        other epoch goes through the batches of the previous one in reverse order. "independent":
        each batch is drawn independently, with replacement, so that gradient noise is white;
        without replacement it sums to zero over an epoch (rows read from disk come in epochs
        nevertheless). "all": every step must see the same rows, as a Metropolis test requires.
    subsample
        Fraction of the rows that each chain sees: its own subset, drawn at random without
        replacement.
    raw_rows
        Whether it reads the layers of networks or changes inputs, and so cannot use features of x
        that are computed once (:mod:`bnn_ppl.model.rows.features`).
    """

    order: Literal["epochs", "symmetric", "independent", "all"] = "epochs"
    subsample: float = 1.0
    raw_rows: bool = False
