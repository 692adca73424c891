"""Draws as the type that the installed ArviZ takes: everything in which its versions differ.

They are an ``arviz.InferenceData`` with ArviZ 0.23 and an ``xarray.DataTree`` from ArviZ 1 on. Both
are mappings from names to groups, with ``attrs`` and ``isel``, so that ``draws["posterior"]``,
``"fitted" in draws``, ``list(draws)`` and ``draws.get(...)`` mean the same. ``draws.groups``,
``map``, ``add_groups`` and ``extend`` do not. A group is a dataset in one and a node of the tree in
the other: sizes, variables and ``isel`` are alike, `as_dataset` gives the rest.
"""

import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.storage.files import JSON

if TYPE_CHECKING:
    import arviz
    import xarray

Arrays = dict[str, np.ndarray]


def import_meanwhile() -> None:
    """Import ArviZ, which takes a second, in a thread while the devices work."""
    if "arviz" not in sys.modules:
        Thread(target=import_module, args=("arviz",), name="import of ArviZ").start()


def draws_of_arrays(
    groups: Mapping[str, Arrays],
    attrs: JSON | None = None,
    dims: dict[str, list[str]] | None = None,
) -> "arviz.InferenceData":
    """Make draws of arrays (chain, draw, ...), and of observed data without these two.

    `dims` names the dimensions after (chain, draw) of some variables.
    """
    import arviz  # 0.23 imports matplotlib, which importing the package must not

    if _has_trees():
        # Members of an ensemble are chains of one draw, which the check would warn of.
        of_root = {"/": attrs or {}}
        return arviz.from_dict(groups, dims=dims, attrs=of_root, check_conventions=False)
    named: dict[str, Any] = dict(groups)
    return arviz.from_dict(**named, dims=dims, attrs=attrs)


def draws_of_groups(
    groups: "Mapping[str, xarray.Dataset | None]", attrs: JSON
) -> "arviz.InferenceData":
    """Make draws of datasets, leaving out those that are None."""
    import arviz
    import xarray

    found: dict[str, Any] = {name: group for name, group in groups.items() if group is not None}
    if not _has_trees():
        return arviz.InferenceData(attrs=attrs, **found)
    tree: Any = xarray.DataTree.from_dict(found)
    tree.attrs = attrs
    return tree


def groups_of(draws: "arviz.InferenceData") -> "dict[str, xarray.Dataset]":
    """Give the groups of draws by name."""
    return {name: as_dataset(draws[name]) for name in draws}


def as_dataset(group: Any) -> Any:
    """Give a group of draws as a dataset; what is not a node of a tree is given back.

    Raises
    ------
    ValueError
        If the node is a whole tree, which has groups in place of variables.
    """
    import xarray

    if not isinstance(group, xarray.DataTree):
        return group
    if group.children:
        raise ValueError(
            f"got a DataTree with groups {', '.join(group.children)}, expected one of them: "
            "give it a group posterior, or choose a group"
        )
    return group.to_dataset()


def smoothed_log_weights(log_weights: np.ndarray, efficiency: float) -> tuple[Any, Any]:
    """Give ArviZ's Pareto-smoothed log weights (..., draw), and k (...)."""
    import arviz

    return arviz.psislw(log_weights, efficiency)


def stacking_weights(log_densities: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Give ArviZ's stacking weights of models, from log densities of rows left out."""
    import arviz
    import xarray

    names = ["elpd_loo", "se", "p_loo", "n_samples", "n_data_points", "warning", "loo_i", "scale"]

    def as_elpd(each: np.ndarray) -> Any:
        # Of these numbers the weights use the last ones alone.
        numbers = each.sum(), 0.0, 0.0, 1, len(each), False
        return arviz.stats.ELPDData(
            data=[*numbers, xarray.DataArray(each, dims="row"), "log"], index=names
        )

    with warnings.catch_warnings():  # of pandas, to ArviZ
        warnings.simplefilter("ignore")
        given = {name: as_elpd(each) for name, each in log_densities.items()}
        table = arviz.compare(given, ic="loo")
    return {name: float(weight) for name, weight in table["weight"].items()}


def _has_trees() -> bool:
    import arviz

    return int(arviz.__version__.split(".")[0]) >= 1
