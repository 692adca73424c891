"""The problem of a network that is distilled from a run, which its own folder records."""

from typing import Any

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import posterior_of
from bnn_ppl.cli.problem.likelihoods import chosen_likelihood
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.storage.problem import CHOICE, LAW

# Of the noise, in standard deviations of y: below any that a run finds.
_FLOOR = 1e-4


def student_of(problem: Problem, data: Any) -> tuple[dict[str, Any], bnn.Posterior | None]:
    """Give the options that are others than the run's, and the model to train.

    Of classes these are none, and the model is that of the run. Of numbers, a network for the mean
    and one for the standard deviation, whatever the likelihood.

    Raises
    ------
    ValueError
        If y is in units that no Gaussian is of, as counts are.
    """
    if data.num_classes is not None:
        return {}, None
    chosen = chosen_likelihood(problem)
    if chosen is not None and not chosen.targets.standardised:
        raise ValueError(
            f"got a run with --likelihood {chosen.name}, expected numbers of any sign or classes: "
            "use bnn-ppl compress"
        )
    changed: dict[str, Any] = {
        "noise": "heteroscedastic",
        "noise_floor": _FLOOR,
        "covariance": "diagonal",
    }
    if chosen is not None:
        changed |= {"likelihood": "auto", "num_parts": None, "levels": None}
    posterior = posterior_of(problem.changed(**changed), data)
    return changed | {CHOICE: None} | ({} if chosen is None else {LAW: None}), posterior
