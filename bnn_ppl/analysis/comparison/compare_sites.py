"""Comparisons of predictions of several observed sites: a part of the table for each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.inputs import known_rows
from bnn_ppl.analysis.prediction.several_sites import of_one_site

if TYPE_CHECKING:
    import pandas

_COSTS = "rhat_median", "rhat_max", "seconds", "gradient_evaluations", "num_chains", "num_draws"


def of_known_rows(
    predictions: Mapping[str, Any], y: ArrayLike, reference: Any, site: str
) -> tuple[dict[str, Any], ArrayLike, Any]:
    """Give predictions, targets and reference of a site, of the rows whose target is known."""
    own = {name: known_rows(of_one_site(each, site), y)[0] for name, each in predictions.items()}
    if reference is not None and not isinstance(reference, str):
        reference = known_rows(of_one_site(reference, site), y)[0]
    return own, known_rows(np.asarray(y), y)[1], reference


def joined(
    tables: Mapping[str, "pandas.DataFrame"], predictions: Mapping[str, Any], reference: Any
) -> "pandas.DataFrame":
    """Join the tables of the sites, whose scores are named as in ``label: accuracy``.

    The joint nll is the first column; what does not depend on the site, the costs, stands last.
    """
    import pandas as pd

    parts, attrs = [_joint(predictions)], {"better": {"nll": "lower"}, "reference_scores": {}}
    attrs["noise_floor"] = {}
    for site, table in tables.items():
        of_runs = table[[name for name in _COSTS if name in table]]
        parts.append(table.drop(columns=list(of_runs)).add_prefix(f"{site}: "))
        for name, known in attrs.items():
            of_scores = {k: v for k, v in table.attrs[name].items() if k not in of_runs}
            known |= {f"{site}: {score}": value for score, value in of_scores.items()}
        better = {k: v for k, v in table.attrs["better"].items() if k in of_runs}
    found = pd.concat([*(part for part in parts if len(part.columns)), of_runs], axis=1)
    found.attrs = attrs | {"reference": reference if isinstance(reference, str) else None}
    found.attrs["better"] = {k: v for k, v in (attrs["better"] | better).items() if k in found}
    return found


def _joint(predictions: Mapping[str, Any]) -> "pandas.DataFrame":
    import pandas as pd

    if not all("log_prob" in each for each in predictions.values()):
        return pd.DataFrame(index=list(predictions))
    scores = {name: -float(np.mean(each["log_prob"])) for name, each in predictions.items()}
    return pd.DataFrame({"nll": scores})


def check_sites(
    predictions: Mapping[str, Any], y: Mapping[str, Any], scale: ArrayLike, **of_one: Any
) -> None:
    """Refuse sites that are not predicted, and options that are `of_one` site alone."""
    if not y:
        raise ValueError("got y without a site, expected a dict by site: give y as predict had it")
    for name, option in of_one.items():
        if option is not None:
            raise ValueError(
                f"got {name}= with y of several observed sites, expected y of one: compare the "
                "predictions of bnn_ppl.of_site"
            )
    if np.any(np.asarray(scale) != 1):
        raise ValueError("got scale= of several observed sites, expected 1: scale each site's")
    for name, each in predictions.items():
        missing = [s for s in y if not any(str(own).startswith(f"{s}_") for own in each)]
        if missing:
            raise ValueError(
                f"got y of {missing[0]!r} for {name!r}, a prediction of "
                f"{', '.join(map(str, each))}, expected the sites predicted: give y as predict had "
                "it"
            )
