"""Draws (chain, draw, ...) read a bounded number of bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.storage.arviz_versions import as_dataset

if TYPE_CHECKING:
    import xarray

SLAB_BYTES = 2**26  # read at once from draws on disk: bounds memory whatever the network's size


def dataset_of(draws: Any) -> Any:
    """Give the group posterior of an InferenceData, or the dataset given."""
    dataset = as_dataset(getattr(draws, "posterior", draws))
    if not hasattr(dataset, "data_vars"):
        raise TypeError(
            f"draws: got {type(draws).__name__}, expected an arviz.InferenceData or an "
            "xarray.Dataset of arrays (chain, draw, ...)"
        )
    return dataset


def chain_draw_first(array: xarray.DataArray) -> xarray.DataArray:
    """Put these two dimensions first."""
    if not {"chain", "draw"} <= set(array.dims):
        raise ValueError(
            f"{array.name}: got dimensions {array.dims}, expected ('chain', 'draw', ...); "
            "rename or add them"
        )
    return array.transpose("chain", "draw", ...)


def check_draws(array: Any) -> None:
    """Refuse what is not an array of real numbers (chain, draw, ...)."""
    if array.dtype.kind not in "biuf":
        raise TypeError(f"draws: got dtype {array.dtype}, expected real numbers; convert them")
    if array.ndim < 2:
        raise ValueError(
            f"draws: got shape {array.shape}, expected (chain, draw, ...), an xarray.Dataset or an "
            "arviz.InferenceData with a group posterior; a single chain is draws[None]"
        )


def slabs(array: Any) -> Iterator[tuple[slice, ...]]:
    """Cut (chain, draw, ...) along its longest remaining axis into slabs of about SLAB_BYTES."""
    everything = (slice(None), slice(None))
    if array.ndim == 2:
        yield everything
        return
    axis = int(np.argmax(array.shape[2:]))
    length = array.shape[2 + axis]
    step = max(1, length * SLAB_BYTES // (array.size * array.dtype.itemsize))
    for start in range(0, length, step):
        yield (*everything, *[slice(None)] * axis, slice(start, start + step))
