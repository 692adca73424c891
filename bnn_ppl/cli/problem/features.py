"""A folder for the features of fixed layers, on the command line: whose it is."""

import json
from pathlib import Path
from typing import Any

from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.subspace import InSubspace
from bnn_ppl.runtime.files import replace_file

_RECORD = "problem.json"
# What neither the fixed layers nor the rows depend on, or what may move.
_OF_THE_REST = {"data_dir", "prior", "prior_scale", "prior_power", "noise"}
_OF_THE_REST |= {"noise_floor", "covariance", "temperature", "tempered", "microbatch"}


def refuse_unused_features(features: Path | None, problem: Problem, inside: InSubspace) -> None:
    """Refuse a folder for the features of a network without fixed layers, or in a subspace."""
    if features is not None and inside.subspace is not None:
        raise ValueError(
            f"got --features {features} with --subspace, expected one of them: drop one"
        )
    if features is not None and problem.prior.bayesian is None:
        raise ValueError(
            f"got --features {features} without --bayesian, expected both: name the weights that "
            "are random, as in --bayesian 'output.*'; the layers before them are then computed once"
        )


def claim(features: Path | None, problem: Problem) -> None:
    """Make the folder this problem's; refuse one of another network or of other data."""
    if features is None:
        return
    settings, record = _settings(problem), features / _RECORD
    if record.is_file():
        _compare(features, _read(record), settings)
        return
    if features.exists() and not (features.is_dir() and not any(features.iterdir())):
        raise ValueError(
            f"got --features {features}, which holds something else, expected a new folder, or one "
            "that --features has made: name another"
        )
    features.mkdir(parents=True, exist_ok=True)
    replace_file(record, (json.dumps(settings, indent=2) + "\n").encode())


def _settings(problem: Problem) -> dict[str, Any]:
    """Give the options that say what the features are, as JSON has them."""
    given = {name: v for name, v in problem.options().items() if name not in _OF_THE_REST}
    given["weights"] = problem.network.weights and str(problem.network.weights.absolute())
    if Path(problem.data.data).exists():
        given["data"] = str(Path(problem.data.data).absolute())
    return json.loads(json.dumps(given))


def _read(record: Path) -> dict[str, Any]:
    try:
        found = json.loads(record.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            f"got {str(record)!r} that cannot be read, expected what --features wrote: name "
            "another folder"
        )
    return found


def _compare(features: Path, known: dict[str, Any], settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if known.get(name, value) != value:
            raise ValueError(
                f"got --features {features}, which has features of {_said(name, known[name])}, "
                f"expected {_said(name, value)}: name another folder, or delete it"
            )


def _said(name: str, value: Any) -> str:
    option = f"--{name.replace('_', '-')}"
    if value is None or value == []:
        return f"no {option}"
    return f"{option} {' '.join(map(str, value)) if isinstance(value, list) else value}"
