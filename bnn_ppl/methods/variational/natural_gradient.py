"""What natural-gradient fits of a Gaussian share: their options, estimates and training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from bnn_ppl.methods.ensembles.descent import starting_descent
from bnn_ppl.methods.method import Method
from bnn_ppl.methods.schedules import Schedule, check_rate, named, value_at
from bnn_ppl.methods.training.rate_trials import usual_lengths
from bnn_ppl.methods.training.self_paced import self_paced
from bnn_ppl.methods.variational.kl_weight import check_kl_weight
from bnn_ppl.methods.variational.mean_field import averaged
from bnn_ppl.methods.variational.row_groups import over_groups
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count

Tree = Any


@dataclass(frozen=True)
class NaturalGradient:
    """Options of a fit by natural gradients, as of :func:`bnn_ppl.vogn`."""

    posterior: Posterior
    learning_rate: float | Schedule | None
    beta1: float
    beta2: float
    num_samples: int
    kl_weight: float | Schedule
    num_groups: int = 1

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_rate("learning_rate", self.learning_rate)
        check_count("num_samples", self.num_samples)
        check_count("num_groups", self.num_groups)
        for name, beta in {"beta1": self.beta1, "beta2": self.beta2}.items():
            if not 0 <= beta < 1:
                raise ValueError(f"got {name}={beta}, expected a number from 0 to below 1")
        check_kl_weight(self.kl_weight, self.finds_rate)

    @property
    def finds_rate(self) -> bool:
        """Whether the learning rate is tuned."""
        return self.learning_rate is None

    @property
    def settings(self) -> dict[str, Any]:
        """The options as they are recorded."""
        rate = "found" if self.learning_rate is None else named(self.learning_rate)
        settings = {"learning_rate": rate}
        settings |= {"beta1": self.beta1, "beta2": self.beta2, "num_samples": self.num_samples}
        settings |= {"kl_weight": named(self.kl_weight)}
        return settings | ({"num_groups": self.num_groups} if self.num_groups != 1 else {})

    def estimate(
        self, at_draw: Callable[..., Tree], key: jax.Array, state: Any, batch: Any
    ) -> Tree:
        """Average ``at_draw(key, state, rows, kl_weight)`` over draws, and over groups of rows."""
        weighs = check_kl_weight(self.kl_weight, self.finds_rate)
        kl = value_at(self.kl_weight, state.num_steps) if weighs else None
        of_rows = over_groups(lambda key, rows: at_draw(key, state, rows, kl), self.num_groups)
        return averaged(lambda key: of_rows(key, batch), key, self.num_samples)

    def rate(self, tuned: jax.Array | None, state: Any) -> jax.Array:
        """Give the learning rate of a step: the tuned one, or that given."""
        if tuned is not None:
            return tuned
        given = 1.0 if self.learning_rate is None else self.learning_rate
        return value_at(given, state.num_steps)

    def trained(
        self, method: Method, step: Callable, memories: int, objective: str = "elbo"
    ) -> Method:
        """Tune the rate, unless it is given, for at least so many memory lengths of `beta2`."""
        if not self.finds_rate:
            return method
        memory = round(memories / (1 - self.beta2))
        start = starting_descent(self.posterior)
        return trained(self.posterior, method, step, objective, start, memory, of_adam=False)


def trained(
    posterior: Posterior,
    method: Method,
    step: Callable,
    objective: str,
    start: Method | None = None,
    memory: int = 0,
    of_adam: bool = True,
) -> Method:
    """Let a fit find its rate and its end by an info of its steps, from the draws of a start."""
    num_rows = posterior.num_rows
    lengths = usual_lengths(posterior, num_rows, of_adam=of_adam)
    paced = self_paced(
        method, step, lambda info: info[objective] / num_rows, memory, lengths=lengths
    )
    return paced._replace(start=start)
