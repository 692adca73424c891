"""Draws as ArviZ's InferenceData: making it, and reading sites and weights from it."""

import json
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.labels import Classes, listed
from bnn_ppl.storage.arviz_versions import draws_of_arrays, draws_of_groups, groups_of
from bnn_ppl.storage.files import JSON

if TYPE_CHECKING:
    import arviz
    import xarray

_BYTES_A_BLOCK = 8 * 2**20  # of draws that are on the device at once


def inference_data(
    values: dict[str, np.ndarray],
    stats: dict[str, np.ndarray],
    y: np.ndarray | None,
    attrs: JSON,
    fitted: dict[str, np.ndarray] | None = None,
    dims: dict[str, list[str]] | None = None,
) -> "arviz.InferenceData":
    """Put draws and statistics (chain, draw, ...) and fitted parameters (chain, ...) together.

    `dims` names the dimensions after (chain, draw) of some variables.
    """
    groups = {
        "posterior": values,
        "sample_stats": stats,
        "observed_data": {} if y is None else {"y": y},
    }
    with warnings.catch_warnings():  # members of an ensemble are chains of one draw
        warnings.filterwarnings("ignore", "More chains .* than draws", UserWarning)
        draws = draws_of_arrays(
            {name: group for name, group in groups.items() if group}, attrs, dims
        )
    return with_groups(draws, fitted=dataset_of(fitted, ("chain",))) if fitted else draws


def with_groups(
    draws: "arviz.InferenceData", **groups: "xarray.Dataset | None"
) -> "arviz.InferenceData":
    """Add groups to those of `draws`, or replace them; None takes one away."""
    return draws_of_groups(groups_of(draws) | groups, draws.attrs)


def with_constants(
    draws: "arviz.InferenceData", constants: dict[str, np.ndarray]
) -> "arviz.InferenceData":
    """Add the values at which points are held, if there are any: the group ``constant_data``."""
    return with_groups(draws, constant_data=dataset_of(constants)) if constants else draws


def dataset_of(arrays: dict[str, np.ndarray], first: tuple[str, ...] = ()) -> "xarray.Dataset":
    """Make a dataset of arrays whose `first` dimensions have these names, the rest ArviZ's."""
    import xarray

    return xarray.Dataset(
        {
            name: ([*first, *(f"{name}_dim_{i}" for i in range(np.ndim(a) - len(first)))], a)
            for name, a in arrays.items()
        }
    )


def with_points_of(draws: Any, posterior: Posterior) -> Posterior:
    """Give the posterior that draws are of: at the prior's scale, and with points, as recorded.

    Its classes have the names recorded with the draws, unless they were conditioned on.
    """
    opened = posterior.prior.open_scale
    if opened is not None and "prior_scale" in draws.attrs:
        posterior = opened.hold(float(draws.attrs["prior_scale"]))
    classes = classes_of(draws, posterior)
    posterior = _named(posterior, classes)
    if not posterior.sites.points:
        return posterior
    found = draws["constant_data"] if "constant_data" in draws else {}  # noqa: SIM401
    missing = [site for site in posterior.sites.points if site not in found]
    if missing:
        raise ValueError(
            f"got draws without the values of the points {', '.join(missing)}, expected them in "
            "the group constant_data: use draws that run gave for this posterior"
        )
    held = posterior.hold({site: found[site].values for site in posterior.sites.points})
    return _named(held, classes)


def _named(posterior: Posterior, classes: Classes | None) -> Posterior:
    if posterior.rows.classes is classes:
        return posterior
    return posterior._replace(rows=posterior.rows._replace(classes=classes))


def recorded_classes(posterior: Posterior) -> JSON:
    """Give the attribute ``class_names`` of draws; none where the classes are 0, 1, ..."""
    classes = posterior.rows.classes
    return {"class_names": json.dumps(classes.names)} if classes and classes.names else {}


def classes_of(draws: Any, posterior: Posterior) -> Classes | None:
    """Give the classes that draws tell apart, by the names recorded with them or conditioned on.

    Raises
    ------
    ValueError
        If these are not the same.
    """
    classes = posterior.rows.classes
    if classes is None or "class_names" not in draws.attrs:
        return classes
    recorded = classes._replace(names=tuple(json.loads(draws.attrs["class_names"])))
    if classes.names is None:
        return recorded
    if classes != recorded:
        raise ValueError(
            f"got draws of the classes {listed(recorded.names)} for a posterior of the classes "
            f"{listed(classes.names)}, expected the same: condition on labels of the same names"
        )
    return classes


def with_class_names(
    dataset: "xarray.Dataset", draws: Any, posterior: Posterior
) -> "xarray.Dataset":
    """Give predictions of classes that have names the coordinate ``class``."""
    classes = classes_of(draws, posterior)
    if classes is None or classes.names is None or "class" not in dataset.dims:
        return dataset
    return dataset.assign_coords({"class": np.asarray(classes.names)})


def draws_of(draws: Any, sites: list[str]) -> dict[str, "xarray.DataArray"]:
    """Give arrays (chain, draw, ...) of these sites, unread; refuse draws that lack one."""
    missing = [site for site in sites if site not in draws.posterior]
    if missing:
        raise ValueError(
            f"got draws of {', '.join(map(str, draws.posterior.data_vars))}, expected "
            f"{', '.join(missing)} too: use draws of the same model, recorded without keep="
        )
    lacking = {"chain", "draw"} - set(draws.posterior.sizes)
    if lacking:
        raise ValueError(
            f"got draws without the dimension {' and '.join(sorted(lacking))}, expected both: "
            "select by a list, as in draws.isel(chain=[0])"
        )
    refuse_none(draws)
    return {site: draws.posterior[site].transpose("chain", "draw", ...) for site in sites}


def sites_of(posterior: Posterior, draws: Any) -> dict[str, "xarray.DataArray"]:
    """Give arrays (chain, draw, ...) of the posterior's sites, unread; refuse draws of another."""
    found = draws_of(draws, list(posterior.whole.sites.names))
    for site, shape in posterior.sites.value_shapes().items():
        if found[site].shape[2:] != shape:
            raise ValueError(
                f"got draws of {site} of shape {found[site].shape[2:]}, expected {shape} as in "
                "this posterior: pass the posterior that was sampled"
            )
    return found


def refuse_none(draws: Any) -> None:
    """Refuse a run that has no draws yet."""
    if not draws.posterior.sizes["draw"]:
        raise ValueError("got no draws, expected some: resume the run (the same call again)")


def weights_of(draws: Any) -> np.ndarray:
    """Give the weights of the draws (chain, draw), with mean 1 in each chain; refuse no draws."""
    refuse_none(draws)
    sizes = draws.posterior.sizes
    if "log_weight" not in getattr(draws, "sample_stats", {}):
        return np.ones((sizes["chain"], sizes["draw"]))
    logs = draws.sample_stats["log_weight"].transpose("chain", "draw").values.astype(float)
    if logs.shape != (shape := (sizes["chain"], sizes["draw"])):
        raise ValueError(
            f"got weights of {logs.shape} (chain, draw) for draws of {shape}, expected as many: "
            "select in all groups at once, as in draws.isel(draw=...)"
        )
    # A chain that was stopped before its first step has taken none to weigh its one point by.
    logs = np.where(np.isnan(logs).all(1, keepdims=True), 0.0, logs)
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return weights / weights.mean(1, keepdims=True)


def draws_at(draws: Any, numbers: np.ndarray) -> "arviz.InferenceData":
    """Select draws of each chain by their numbers (chain, draw), in all groups that have them."""
    import xarray

    num_draws, groups = draws["posterior"].sizes["draw"], {}
    chains = xarray.DataArray(np.arange(len(numbers)), dims="chain")
    places = xarray.DataArray(numbers, dims=("chain", "draw"))
    for name, group in groups_of(draws).items():
        if {"chain", "draw"} <= set(group.sizes) and group.sizes["draw"] == num_draws:
            chosen = group.load().isel(chain=chains, draw=places)
            groups[name] = chosen.assign_coords(draw=np.arange(numbers.shape[1]))
    return with_groups(draws, **groups)


def most_independent(weights: np.ndarray) -> float:
    """Give Kish's effective number of weighted draws; infinite for draws of equal weight."""
    if (weights == weights[:, :1]).all():
        return np.inf
    return float(weights.sum() ** 2 / (weights**2).sum())


def in_blocks(
    sites: dict[str, "xarray.DataArray"], weights: np.ndarray
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Give the draws in blocks of bounded size, chain after chain, read as they are needed."""
    num_chains, num_draws = next(iter(sites.values())).shape[:2]
    bytes_all = sum(values.nbytes for values in sites.values())
    size = max(1, _BYTES_A_BLOCK * num_chains * num_draws // bytes_all)
    for chain in range(num_chains):
        for start in range(0, num_draws, size):
            rows = slice(start, start + size)
            block = {site: values[chain, rows].values for site, values in sites.items()}
            yield block, weights[chain, rows]


def with_all_stats(records: dict[str, Any], one_record: dict[str, Any]) -> dict[str, Any]:
    """Add the statistics of steps that were not taken: not a number, none and no."""
    drawn = next(iter(records["posterior"].values())).shape[:2]
    stats = {
        name: np.full(drawn + leaf.shape, np.nan if leaf.dtype.kind == "f" else 0, leaf.dtype)
        for name, leaf in one_record["sample_stats"].items()
        if name not in records["sample_stats"]
    }
    return records | {"sample_stats": records["sample_stats"] | stats}


def thinned(draws: "arviz.InferenceData", num_draws: int | None) -> "arviz.InferenceData":
    """Keep at most so many draws, spread evenly over chains and along them.

    Parameters
    ----------
    draws
        From :func:`bnn_ppl.run`.
    num_draws
        In all chains together, at least 1; None keeps all. Of more chains than that some are left
        out, else each keeps the same number.

    Returns
    -------
    arviz.InferenceData
        Of which the values are read when used, as those of `draws`.

    Raises
    ------
    ValueError
        If `num_draws` is below 1.
    """
    if num_draws is None:
        return draws
    sizes = draws["posterior"].sizes
    chains = evenly(sizes["chain"], num_draws)
    kept: Any = draws.isel(chain=chains, draw=evenly(sizes["draw"], num_draws // len(chains)))
    return kept


def equally_weighted(draws: "arviz.InferenceData", num_draws: int) -> "arviz.InferenceData":
    """Keep at most so many draws, as :func:`thinned`; weighted ones in proportion to weights."""
    if "log_weight" not in draws.get("sample_stats", {}):
        return thinned(draws, num_draws)
    sizes = draws["posterior"].sizes
    some: Any = draws.isel(chain=evenly(sizes["chain"], num_draws))
    each = min(sizes["draw"], num_draws // some["posterior"].sizes["chain"])
    kept = draws_at(some, np.stack([by_weight(own, each) for own in weights_of(some)]))
    return with_groups(kept, sample_stats=kept["sample_stats"].drop_vars("log_weight"))


def by_weight(weights: np.ndarray, number: int) -> NDArray[np.intp]:
    """Give indices of `number` items, each as often as its weight says; evenly of equal weights."""
    if (weights == weights[0]).all():
        return evenly(len(weights), number)
    ends = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(ends, (np.arange(number) + 0.5) / number), len(weights) - 1)


def resampled(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Give values (chain, draw, ...) in their order, each as often as the weights say.

    Copies follow each other, so that statistics of chains take them for one draw that stays.
    """
    if (weights == weights[:, :1]).all():
        return values
    numbers = np.stack([by_weight(own, len(own)) for own in weights])
    found: np.ndarray = values[np.arange(len(values))[:, None], numbers]
    return found


def evenly(length: int, number: int) -> NDArray[np.intp]:
    """Give indices of at most `number` of `length` items, evenly spaced from the first."""
    if number < 1:
        raise ValueError(f"got {number} of {length} to choose, expected at least 1")
    number = min(length, number)
    return np.arange(number) * length // number
