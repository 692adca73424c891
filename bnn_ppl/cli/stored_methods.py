"""The method of a run, from what its draws record: to sample again without some of the rows."""

import inspect
import json
from typing import Any

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS

_OF_ALL_ROWS = "held_out"  # an option whose rows draws do not record


def method_of_run(name: str, posterior: bnn.Posterior, draws: Any) -> bnn.Method:
    """Build the method of a run anew, by the settings that its draws record.

    Parameters
    ----------
    name
        Of the run, for the error.
    posterior
        Of the run.
    draws
        What it drew.

    Raises
    ------
    ValueError
        If the settings do not say all that the method was built with, such as an optimiser.
    """
    stored = json.loads(draws.attrs.get("settings", "{}"))
    described = METHODS.get(draws.attrs.get("method", ""))
    if described is None:
        raise _not_known(name, draws, "which is no method of the package")
    known = set(inspect.signature(described.build).parameters) - {"posterior", _OF_ALL_ROWS}
    options = {each: value for each, value in stored.items() if each in known}
    try:
        method = described.build(posterior, **options)
    except (TypeError, ValueError) as error:
        raise _not_known(name, draws, f"whose settings do not build it ({error})") from error
    again = json.loads(json.dumps(dict(method.settings), default=str))
    for each in sorted(set(again) | (set(stored) - {"rows_scored"})):
        if again.get(each) != stored.get(each):
            raise _not_known(
                name, draws, f"with {each}={stored.get(each)}, known by its name alone"
            )
    return method


def _not_known(name: str, draws: Any, why: str) -> ValueError:
    method = draws.attrs.get("method", "an unknown method")
    return ValueError(
        f"{name}: got draws of {method}, {why}, expected ones whose method can be built from the "
        "folder: use bnn_ppl.k_fold or bnn_ppl.refit_loo in Python"
    )
