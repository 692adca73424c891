"""Several observed sites: y is a dict by site, held as the columns of one array."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.rows.given_rows import array_of
from bnn_ppl.model.rows.labels import Classes, of_one_kind, whole_numbers
from bnn_ppl.model.trace import Array, unmasked

_MOST = 2**24  # up to which a float32 holds whole numbers


class Target(NamedTuple):
    """An observed site's part of y."""

    site: str
    shape: tuple[int, ...]  # of a row
    is_whole: bool
    names: tuple[Any, ...] | None = None  # of the classes, where the labels are text

    def numbers(self, values: Any) -> np.ndarray:
        """Give values as they are, but labels that have names by their numbers."""
        values = of_one_kind(np.asarray(values))
        if self.names is None or values.dtype.kind != "U":
            return values
        return Classes(len(self.names), self.names).numbers(values, values.ndim)


class Targets(NamedTuple):
    """How the columns of y hold the values of several observed sites."""

    sites: tuple[Target, ...]

    def packed(self, y: Mapping[str, Any]) -> np.ndarray:
        """Give the columns (rows, columns) of a dict of arrays by site."""
        targets, names = {target.site: target for target in self.sites}, self.names
        given = {
            str(name): targets[name].numbers(values) if name in targets else np.asarray(values)
            for name, values in y.items()
        }
        shapes = {name: values.shape[1:] for name, values in given.items()}
        expected = {target.site: target.shape for target in self.sites}
        lengths = {values.shape[:1] for values in given.values()}
        if shapes != expected or len(lengths) != 1 or () in lengths:
            got = ", ".join(f"{name} {values.shape}" for name, values in given.items())
            raise ValueError(
                f"got y of {got or 'nothing'}, expected rows of "
                f"{', '.join(f'{name} {shape}' for name, shape in expected.items())}: give each "
                "observed site its values"
            )
        for target in self.sites:
            values = given[target.site]
            if not target.is_whole:
                continue
            if whole_numbers(values).dtype.kind not in "biu":
                raise ValueError(
                    f"got y of {target.site!r} that are not whole numbers, expected class numbers "
                    "or counts, as in the training rows: leave out the other rows"
                )
            if (largest := abs(values).max(initial=0)) > _MOST:
                raise ValueError(
                    f"got whole numbers as large as {largest} for {target.site!r}, expected at "
                    f"most {_MOST} among several observed sites: give them as floats"
                )
        return np.concatenate(
            [given[name].reshape(len(given[name]), -1).astype(float) for name in names], axis=1
        )

    def unpacked(self, y: Any) -> dict[str, Array]:
        """Give the values of each site, of the columns."""
        found, first = {}, 0
        for target in self.sites:
            last = first + math.prod(target.shape)
            values = y[:, first:last].reshape(-1, *target.shape)
            found[target.site] = values.astype(jnp.int32) if target.is_whole else values
            first = last
        return found

    def columns_of(self, site: str, y: Array) -> Array:
        """Give the columns where only the values of one site are known; the others are 0."""
        parts = [
            y.reshape(len(y), -1).astype(float)
            if target.site == site
            else jnp.zeros((len(y), math.prod(target.shape)))
            for target in self.sites
        ]
        return jnp.concatenate(parts, axis=1)

    def with_columns(self, x: Any, y: Any) -> tuple[Any, np.ndarray]:
        """Give rows (x, columns) of rows (x, y)."""
        return x, self.packed(y)

    @property
    def some_are_whole(self) -> bool:
        """Whether some are classes or counts."""
        return any(target.is_whole for target in self.sites)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(target.site for target in self.sites)


def targets_of(y: Any) -> Targets | None:
    """Give the layout of y that is a dict by site; None for others."""
    if not isinstance(y, Mapping):
        return None
    sites = []
    for name in sorted(y):
        labels = _texts(y[name])
        if labels is not None:
            sites.append(Target(name, labels.shape[1:], True, tuple(np.unique(labels).tolist())))
            continue
        values = whole_numbers(np.asarray(array_of(f"y of {name!r}", y[name])))
        if not values.ndim or not np.size(values):
            raise ValueError(
                f"got y of {name!r} of shape {values.shape}, expected (rows, ...): give its value "
                "in each row"
            )
        is_whole = values.dtype.kind in "iu" and np.asarray(y[name]).dtype.kind in "biu"
        sites.append(Target(name, values.shape[1:], is_whole))
    return Targets(tuple(sites))


def _texts(values: Any) -> np.ndarray | None:
    """Give labels that are text; None for others."""
    try:
        labels = of_one_kind(np.asarray(values))
    except ValueError:  # rows of different lengths, which are refused as numbers
        return None
    return labels if labels.dtype.kind == "U" and labels.size else None


def taking_columns(targets: Targets, model: Callable) -> Callable:
    """Give a program of the columns, of one of a dict."""
    return Partial(partial(_of_columns, targets), model)


def _of_columns(targets: Targets, model: Callable, x: Any, y: Any = None) -> Any:
    return model(x, None if y is None else targets.unpacked(y))


class Joint(dist.Distribution):
    """Independent distributions of several observed sites, given the latent ones, as columns."""

    support = dist.constraints.real_vector
    pytree_data_fields = ("parts",)
    pytree_aux_fields = ("targets",)

    def __init__(self, parts: list[dist.Distribution], targets: Targets, num_rows: int) -> None:
        self.targets = targets
        self.parts = [
            part.expand((num_rows, *target.shape[: len(target.shape) - part.event_dim]))
            for part, target in zip(parts, targets.sites, strict=True)
        ]  # which may share parameters between rows or outputs
        num_columns = sum(math.prod(target.shape) for target in targets.sites)
        super().__init__((num_rows,), (num_columns,), validate_args=False)

    def part(self, site: str) -> dist.Distribution:
        """Give the distribution of one site."""
        return self.parts[self.targets.names.index(site)]

    def log_prob(self, value: Array) -> Array:
        """Give the log density of each row, over all sites."""
        values = self.targets.unpacked(value)
        by_site = [
            self.part(name).log_prob(own).reshape(len(value), -1).sum(1)
            for name, own in values.items()
        ]
        return jnp.sum(jnp.stack(by_site), axis=0)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw the columns."""
        keys = jax.random.split(key, len(self.parts))
        drawn = [part.sample(key, sample_shape) for part, key in zip(self.parts, keys, strict=True)]
        return self._columns(drawn, sample_shape)

    @property
    def mean(self) -> Array:
        """Means of the columns; of classes, of their numbers."""
        return self._columns([_moments(part)[0] for part in self.parts])

    @property
    def variance(self) -> Array:
        """Variances of the columns."""
        return self._columns([_moments(part)[1] for part in self.parts])

    def _columns(self, values: list[Array], sample_shape: tuple[int, ...] = ()) -> Array:
        shape = *sample_shape, *self.batch_shape, -1
        return jnp.concatenate([own.reshape(shape).astype(float) for own in values], axis=-1)


def _moments(part: dist.Distribution) -> tuple[Array, Array]:
    each, shape = unmasked(part), part.shape()
    probs = getattr(each, "probs", None)
    if probs is None or each.event_shape or jnp.ndim(probs) != len(each.batch_shape) + 1:
        return part.mean, part.variance
    numbers = jnp.arange(probs.shape[-1])
    mean = (probs * numbers).sum(-1)
    variance = (probs * numbers**2).sum(-1) - mean**2
    return jnp.broadcast_to(mean, shape), jnp.broadcast_to(variance, shape)
