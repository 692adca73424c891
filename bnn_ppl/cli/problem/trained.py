"""Weights of a trained network, given on the command line."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

import bnn_ppl as bnn
from bnn_ppl.cli.problem.problem import Problem


def with_weights(factory: partial, weights: Path, new: tuple[str, ...]) -> nnx.Module:
    """Build the network with the weights of a file or run, which is read once."""
    changed = weights.stat().st_mtime_ns if weights.exists() else None
    options = tuple(sorted(factory.keywords.items()))
    of_process = (changed, jnp.zeros(()).dtype.name)
    try:
        return _loaded(
            factory.func, factory.args, options, weights.absolute(), tuple(new), of_process
        )
    except ValueError as error:
        raise ValueError(f"{error} (on the command line, --new PATTERN)") from error


@lru_cache(maxsize=1)
def _loaded(
    net: Any, args: tuple, options: tuple, weights: Path, new: tuple[str, ...], _: Any
) -> nnx.Module:
    module: Any = bnn.nets.load_weights(partial(net, *args, **dict(options)), weights, new=new)
    loaded = bnn.nets.match_weights(module, weights).loaded
    statistics = nnx.to_flat_state(nnx.state(module, nnx.BatchStat))
    if any(".".join(map(str, path)) in loaded for path, _ in statistics):
        module.eval()  # normalise by the statistics that came with the weights
    return module


def refuse_unused_new(problem: "Problem") -> None:
    """Refuse to say which weights are new where all are."""
    chosen = problem.network
    if chosen.new is not None and chosen.weights is None:
        raise ValueError(
            f"got --new {' '.join(chosen.new)} without --weights, expected both, or neither: "
            "without --weights all weights are new"
        )
