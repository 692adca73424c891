"""What is asked of a run, and how long it then is."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import jax
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.sampling.loop.minibatches import Minibatches, minibatches_for

if TYPE_CHECKING:
    import arviz

Recording: TypeAlias = Callable[[dict[str, jax.Array]], Any]  # of the values of a draw
Keep: TypeAlias = Recording | Sequence[str]


class RunLength(NamedTuple):
    """Counts of a run, and the batches of its steps."""

    num_chains: int
    num_warmup: int
    num_draws: int
    thin: int  # steps from draw to draw
    minibatches: Minibatches


class Target(NamedTuple):
    """What the predictions must reach, and the inputs at which they are looked at."""

    rhat: float | None
    ess: float | None
    x: Any

    def met(self, reached: "Convergence") -> bool:
        """Say whether it is reached; what is undefined is not."""
        agree = self.rhat is None or reached.rhat <= self.rhat
        return reached.finite and agree and (self.ess is None or reached.ess >= self.ess)


class Convergence(NamedTuple):
    """What a look found."""

    rhat: float  # 95 % quantile over the means of y, or its sds if that is larger
    ess: float  # 5 % quantile, of the bulk; likewise
    finite: bool


class RunSpec(NamedTuple):
    """The arguments of :func:`bnn_ppl.run` that decide what is drawn, as they are given."""

    num_chains: int = 1
    num_warmup: int | None = None
    num_draws: int | None = None
    thin: int | None = None
    batch_size: int | Literal["all"] | None = None
    bootstrap: bool = False
    init: "arviz.InferenceData | Mapping[str, Any] | None" = None
    keep: Keep | None = None
    mesh: Mesh | None = None
    until: Mapping[str, Any] | None = None
    score_every: int | str | None = None
    held_out: Any = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "RunSpec":
        """Take them out of all arguments of a run."""
        return cls(**{name: options[name] for name in cls._fields if name in options})

    def length(self, posterior: Posterior, method: Method) -> RunLength:
        """Give the counts, those of the method where none are given."""
        names = "num_warmup", "num_draws", "thin", "batch_size"
        given = {name: getattr(self, name) for name in names}
        counts = method.counts.filled(posterior.num_rows, given)
        minibatches = minibatches_for(method, counts.batch_size, self.bootstrap)
        own = counts.num_warmup, counts.num_draws, counts.thin
        return RunLength(self.num_chains, *own, minibatches)
