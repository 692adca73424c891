"""The optimiser of a method that trains, and what is recorded of it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from bnn_ppl.methods.schedules import Schedule, check_rate, named
from bnn_ppl.runtime.compilation.program_parts import program_digest

Tree = Any

_PROGRAM = "optimizer_program"  # in the settings of a method


def optimizer_of(
    optimizer: optax.GradientTransformation | None,
    learning_rate: float | Schedule | None,
    init: Callable[[jax.Array], Tree],
) -> tuple[bool, dict[str, Any], optax.GradientTransformation]:
    """Return whether the rate is tuned, what is recorded, and the optimiser.

    By default the optimiser is Adam, with a rate of 1 if the rate is tuned. `init` gives the
    parameters that it trains, from a key.
    """
    if learning_rate is not None:
        check_rate("learning_rate", learning_rate)
    if optimizer is not None:
        if not hasattr(optimizer, "update"):
            raise TypeError(
                f"got optimizer={optimizer!r}, expected one of optax, such as optax.sgd(0.01); to "
                "set the rate of Adam, use learning_rate="
            )
        digest = _digest(optimizer, jax.eval_shape(init, jax.random.key(0)))
        recorded = {"learning_rate": "of the optimizer given"}
        return False, recorded | {_PROGRAM: digest}, optimizer
    if learning_rate is None:
        return True, {"learning_rate": "found"}, optax.adam(1.0)
    return False, {"learning_rate": named(learning_rate)}, optax.adam(learning_rate)


def with_optimizer(settings: Mapping[str, Any], name: str, rate: float | str) -> dict[str, Any]:
    """Give the settings of a method whose optimiser is known by its name and rate."""
    known = {"optimizer": name, "learning_rate": rate}
    return {each: value for each, value in settings.items() if each != _PROGRAM} | known


def _digest(optimizer: optax.GradientTransformation, parameters: Tree) -> str | None:
    """Hash what an optimiser does, by which a run knows it again: its arguments cannot be read."""

    def both(gradients: Tree, state: Tree, parameters: Tree) -> Tree:
        updated = optimizer.update(gradients, state, parameters)
        return optimizer.init(parameters), updated

    state = jax.eval_shape(optimizer.init, parameters)
    return program_digest(both, parameters, state, parameters)
