"""A folder of draws made of a run's, which opens as that of a run; it cannot be resumed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from bnn_ppl.storage.arviz_versions import groups_of
from bnn_ppl.storage.chain_arrays import STATISTICS, write_by_chain, write_fitted
from bnn_ppl.storage.draws_zarr import zarr_writer
from bnn_ppl.storage.files import COPY, JSON, PROBLEM, read_json, sealed


def write_run(folder: Path, like: Path, draws: Any, changed: JSON | None = None) -> None:
    """Write draws, made of those of the run in the folder `like`, into a new folder.

    `changed` are the options of its problem that are others than those of the run.

    Raises
    ------
    FileExistsError
        If the folder exists.
    """
    if folder.exists():
        raise FileExistsError(
            f"got the folder {str(folder)!r}, which exists, expected a new one: give another, or "
            "remove it"
        )
    folder.mkdir(parents=True)
    if (like / PROBLEM).is_file():
        content = sealed(read_json(like / PROBLEM) | (changed or {}))
        (folder / PROBLEM).write_text(json.dumps(content, indent=2) + "\n")
        if (like / COPY).is_file():
            shutil.copyfile(like / COPY, folder / COPY)
    groups = groups_of(draws)
    sizes = groups["posterior"].sizes
    records: dict[str, dict[str, Any]] = {
        name: _arrays(groups[name], sizes)
        for name in ("posterior", "sample_stats")
        if name in groups
    }
    records.setdefault("sample_stats", {})
    one = {
        name: {site: np.zeros(own.shape[2:], own.dtype) for site, own in arrays.items()}
        for name, arrays in records.items()
    }
    constants: Any = groups.get("constant_data", {})
    observed = groups["observed_data"]["y"].values if "observed_data" in groups else None
    held = {str(name): values.values for name, values in constants.items()}
    zarr_writer.create_empty(folder, one, sizes["chain"], sizes["draw"], observed, held)
    writer = zarr_writer.open_writer(folder, sizes["draw"])
    zarr_writer.write_draws(writer, slice(0, sizes["chain"]), sizes["draw"], records)
    if "fitted" in groups:
        fitted = {str(name): values.values for name, values in groups["fitted"].items()}
        write_fitted(folder, 0, fitted, writer.run)
    if STATISTICS in groups:
        write_by_chain(folder, STATISTICS, 0, _arrays(groups[STATISTICS], sizes), writer.run)
    zarr_writer.publish_draws(writer, sizes["draw"], dict(draws.attrs))


def _arrays(group: Any, sizes: Any) -> dict[str, np.ndarray]:
    """Give what a group has by chain and draw."""
    return {
        str(name): np.ascontiguousarray(values.transpose("chain", "draw", ...).values)
        for name, values in group.items()
        if {"chain", "draw"} <= set(values.dims) and values.sizes["draw"] == sizes["draw"]
    }
