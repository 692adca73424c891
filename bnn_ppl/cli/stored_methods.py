"""The method of a run built anew from what its draws record, to sample again."""

import inspect
import json
from typing import Any

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS, Description

_NOT_TYPED = {"posterior", "held_out"}  # of which draws record no more than a digest


def method_of_run(posterior: bnn.Posterior, draws: Any) -> bnn.Method:
    """Build the method of a run anew, by the settings that its draws record."""
    stored = json.loads(draws.attrs.get("settings", "{}"))
    described = METHODS.get(draws.attrs.get("method", ""))
    if described is None:
        raise _not_known(draws, "which is no method of the package")
    try:
        method = described.build(posterior, **recorded_options(described, stored))
    except (TypeError, ValueError) as error:
        raise _not_known(draws, f"whose settings do not build it ({error})") from error
    again = as_recorded(method)
    for each in sorted(set(again) | (set(stored) - {"rows_scored"})):
        if again.get(each) != stored.get(each):
            raise _not_known(draws, f"with {each}={stored.get(each)}, known by its name alone")
    return method


def as_recorded(method: bnn.Method) -> dict[str, Any]:
    """Give the settings of a method as draws record them."""
    return json.loads(json.dumps(dict(method.settings), default=str))


def recorded_options(described: Description, stored: dict[str, Any]) -> dict[str, Any]:
    """Give the settings that are arguments.

    Words that stand for a rate that is found or for another method, and None for what is infinite,
    are left to the defaults: what is then built records the same, or is refused.
    """
    parameters = inspect.signature(described.build).parameters
    usual = {name: each.default for name, each in parameters.items() if name not in _NOT_TYPED}
    given = {name: value for name, value in stored.items() if name in usual}
    return {
        name: value
        for name, value in given.items()
        if not isinstance(value, str | None) or isinstance(usual[name], type(value))
    }


def _not_known(draws: Any, why: str) -> ValueError:
    method = draws.attrs.get("method", "an unknown method")
    return ValueError(
        f"got draws of {method}, {why}, expected ones whose method can be built from the "
        "folder: use bnn_ppl.k_fold or bnn_ppl.refit_loo in Python"
    )
