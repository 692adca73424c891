"""Batch normalisation inside a random network: by whose mean and variance it normalises."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

Array = jax.Array
_CONSTANT = nnx.RngState | jax.Array | np.ndarray
Statistics = tuple[Array, Array, Array]  # number of values, their mean, their variance; by channel


class _Source(NamedTuple):
    """Where the layers of the networks that are built now have their statistics from."""

    counted: Array | None = None  # rows of a batch that count, (rows,): others are padding
    given: Mapping[str, Array] | None = None  # by name of the layer and "mean" or "var"
    found: dict[str, list[Statistics]] | None = None  # of a batch, by name, are noted here


_OF_THE_BATCH = _Source()
_SOURCE: ContextVar[_Source] = ContextVar("source", default=_OF_THE_BATCH)


@contextmanager
def counted_rows(mask: Array | None) -> Iterator[None]:
    """Within this context, let only the rows where the mask is True into a batch's statistics."""
    with _replaced(counted=mask):
        yield


@contextmanager
def statistics_given(values: Mapping[str, Array]) -> Iterator[None]:
    """Within this context, normalise by the statistics among these values, not by the batch's."""
    with _replaced(given=values):
        yield


@contextmanager
def statistics_found() -> Iterator[dict[str, list[Statistics]]]:
    """Within this context, note the statistics of each batch by the name of the layer."""
    found: dict[str, list[Statistics]] = {}
    with _replaced(found=found):
        yield found


def of_the_batch() -> bool:
    """Say whether networks that are built now have the statistics of their batch, noted nowhere."""
    return _SOURCE.get() is _OF_THE_BATCH


@contextmanager
def _replaced(**fields: Any) -> Iterator[None]:
    token = _SOURCE.set(_SOURCE.get()._replace(**fields))
    try:
        yield
    finally:
        _SOURCE.reset(token)


def keep_no_averages(name: str, network: nnx.Module) -> None:
    """Have the batch normalisation in this copy of a network change nothing when it is called.

    Layers in train mode normalise by the batch, or by statistics given, and update no running
    averages; layers in eval mode normalise by the averages that they have, as they do anyway.
    """
    for path, layer in nnx.iter_modules(network):
        if type(layer) is nnx.BatchNorm:
            # Where its statistics come from is part of the layer, so that a network that compiles
            # parts of itself compiles them anew for another source.
            own: Any = layer
            own.bound = _Bound(".".join([name, *map(str, path)]), _SOURCE.get())
            own.__class__ = _BatchNorm


class _Bound:
    """A layer's name and source; a class, since a tuple of arrays would be state of the network."""

    def __init__(self, name: str, source: _Source):
        self.name, self.source = name, source

    def statistics(self, x: Array, axis: Any, mask: Array | None) -> tuple[Array, Array]:
        """Give mean and variance by channel."""
        if self.source.given is not None:
            mean, var = (self.source.given[name] for name in names_of(self.name))
            return mean, var
        found = _of_batch(self.name, x, axis, _both(self.source.counted, mask, x, self.name))
        if self.source.found is not None:
            self.source.found.setdefault(self.name, []).append(found)
        return found[1:]


class _BatchNorm(nnx.BatchNorm):
    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None
    ) -> Array:
        running = self.use_running_average if use_running_average is None else use_running_average
        if running or running is None:
            return super().__call__(x, running, mask=mask)
        own: Any = self
        fixed: Any = nnx.clone(self)
        fixed.mean[...], fixed.var[...] = own.bound.statistics(x, self.axis, mask)
        return nnx.BatchNorm.__call__(fixed, x, True)


def names_of(layer: str) -> tuple[str, str]:
    """Give the names of a layer's mean and variance among the values of a draw."""
    return f"{layer}.mean", f"{layer}.var"


def _of_batch(name: str, x: Array, axis: Any, where: Array | None) -> Statistics:
    if len(x) < 2:
        raise ValueError(
            f"got one row for the BatchNorm {name}, which normalises by the statistics of its "
            "batch, expected at least 2: use a larger batch_size, or .eval() for fixed statistics"
        )
    channels = {a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
    axes = tuple(a for a in range(x.ndim) if a not in channels)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean, var = jnp.mean(x, axes, where=where), jnp.var(x, axes, where=where)
    if where is None:
        return jnp.full_like(mean, x.size / mean.size), mean, var
    return jnp.sum(jnp.broadcast_to(where, x.shape), axes).astype(mean.dtype), mean, var


def _both(counted: Array | None, mask: Array | None, x: Array, name: str) -> Array | None:
    """Join the mask of the rows and the network's own, either of which may be missing."""
    if counted is None:
        return mask
    if len(x) != len(counted):
        raise ValueError(
            f"got {len(x)} rows in the BatchNorm {name} for a batch of {len(counted)} with "
            "padding, expected as many: keep the rows as the first axis"
        )
    rows = counted.reshape(-1, *[1] * (x.ndim - 1))
    return rows if mask is None else rows & jnp.asarray(mask, bool)


# --- what state a network may have


def check_state(module: nnx.Module, state: nnx.State, *, ready: bool) -> None:
    """Refuse variables that are neither weights nor statistics, and statistics of nothing.

    Plain arrays are constants of the network. A `ready` network is given with its statistics, in
    the place of its factory.
    """
    modules = dict(nnx.iter_modules(module))
    of_linen = [path for path, each in modules.items() if isinstance(each, nnx.bridge.ToNNX)]
    fixed: dict[str, Any] = {}
    for path, variable in nnx.to_flat_state(state):
        name, layer = ".".join(map(str, path)), modules.get(path[:-1])
        known = isinstance(layer, nnx.BatchNorm) or any(path[: len(p)] == p for p in of_linen)
        running = getattr(layer, "use_running_average", True)
        if isinstance(variable, nnx.BatchStat) and known and running:
            fixed[name] = variable[...]
        elif not isinstance(variable, _CONSTANT) and type(layer) is not nnx.BatchNorm:
            raise ValueError(
                f"got {type(variable).__name__} at {name}, expected a network whose only state is "
                "weights, and the statistics of flax.nnx.BatchNorm: make it without other state"
            )
    if fixed and all(_unseen(values, ready) for values in fixed.values()):
        raise ValueError(
            f"got statistics of no rows at {next(iter(fixed))}, those of a new network in eval "
            "mode, expected given ones: pass a trained network, not its factory; or put its "
            "nnx.BatchNorm back in train mode, and the training rows give them: "
            "net.set_attributes(nnx.BatchNorm, use_running_average=False)"
        )


def _unseen(statistics: Array, ready: bool) -> bool:
    """Say whether a mean or variance is that of a new layer; what a factory computes is.

    Those of a ready network are arguments of what is compiled, and were seen when it was
    conditioned.
    """
    if isinstance(statistics, jax.core.Tracer):
        return not ready
    values = np.unique(np.asarray(statistics))
    return len(values) == 1 and values[0] in (0, 1)
