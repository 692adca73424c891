"""How much a run does, with the method's own counts where the caller does not say."""

from typing import Any, NamedTuple

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.sampling.minibatches import Minibatches, minibatches_for


class Lengths(NamedTuple):
    """Counts of a run, and the batches of its steps."""

    num_chains: int
    num_warmup: int
    num_draws: int
    thin: int  # steps from draw to draw
    minibatches: Minibatches


def lengths_of(
    posterior: Posterior,
    method: Method,
    *,
    num_chains: int = 1,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    thin: int | None = None,
    batch_size: Any = None,
    bootstrap: bool = False,
) -> Lengths:
    """Fill in the method's own counts for those of :func:`bnn_ppl.run` that are not given."""
    given = {"num_warmup": num_warmup, "num_draws": num_draws, "thin": thin}
    counts = method.counts.filled(posterior.num_rows, given | {"batch_size": batch_size})
    minibatches = minibatches_for(method, counts.batch_size, bootstrap)
    return Lengths(num_chains, counts.num_warmup, counts.num_draws, counts.thin, minibatches)
