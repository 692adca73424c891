"""Draws as InferenceData: building it, saving it, reading it back."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import arviz

_DRAWS = "draws.zarr"


def inference_data(
    values: dict[str, np.ndarray],
    stats: dict[str, np.ndarray],
    y: np.ndarray | None,
    facts: dict[str, Any],
) -> "arviz.InferenceData":
    """Draws and statistics, arrays of shape (chain, draw, ...), as InferenceData."""
    import arviz  # imports matplotlib, which importing the package must not

    return arviz.from_dict(
        posterior=values,
        sample_stats=stats or None,
        observed_data=None if y is None else {"y": y},
        attrs=facts,
    )


def draws_of(draws: Any, sites: list[str]) -> dict[str, np.ndarray]:
    """Arrays (chain, draw, ...) of the sites named; refuse draws that lack one."""
    missing = [site for site in sites if site not in draws.posterior]
    if missing:
        raise ValueError(
            f"got draws of {', '.join(map(str, draws.posterior.data_vars))}, expected "
            f"{', '.join(missing)} too: use draws of the same model, recorded without keep="
        )
    return {site: draws.posterior[site].values for site in sites}


def check_free(folder: str | Path) -> None:
    """Refuse a folder that holds something, before anything is computed."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"got folder={str(folder)!r}, which is not empty, expected a new one: "
            "name another, or remove it first"
        )


def save(folder: str | Path, draws: "arviz.InferenceData") -> None:
    """Write draws to ``folder/draws.zarr``, whole or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{_DRAWS}.{os.getpid()}"
    draws.to_datatree().to_zarr(unfinished, mode="w", zarr_format=3, consolidated=False)
    if (folder / _DRAWS).exists():
        shutil.rmtree(folder / _DRAWS)
    unfinished.rename(folder / _DRAWS)


def load(folder: str | Path) -> "arviz.InferenceData":
    """Open the draws that :func:`save` wrote; values are read when used."""
    import arviz
    import xarray

    path = Path(folder) / _DRAWS
    if not path.is_dir():
        raise FileNotFoundError(
            f"got folder={str(folder)!r} without {_DRAWS}, expected the folder of a run: "
            "pass the folder= that run was given"
        )
    return arviz.InferenceData.from_datatree(
        xarray.open_datatree(path, engine="zarr", consolidated=False)
    )
