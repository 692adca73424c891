"""Likelihoods by the names that the command line gives them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bnn_ppl.analysis.metrics.calibration_check import INNER
from bnn_ppl.analysis.verdict.findings import AT_FLOOR
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.data.tables.finding import names_are_numbers
from bnn_ppl.data.tables.reading import streamed_files
from bnn_ppl.data.tables.roles import ROLES, apart
from bnn_ppl.data.tables.user_files import is_file
from bnn_ppl.model.likelihoods.likelihood import LIKELIHOODS, Description, Likelihood
from bnn_ppl.runtime.names import hint

_USUAL = {"normal": "numbers", "categorical": "classes"}  # of regressor and classifier
_OPTIONS = "num_parts", "levels"  # of single likelihoods
_OF_NORMAL = "noise", "noise_floor", "covariance"
_MOST_COUNTED = 2**20  # rows of classes on disk; more are scaled down to about as many


def chosen_likelihood(problem: Problem) -> Description | None:
    """Look up the likelihood by its name; None for the usual ones.

    Raises ValueError if there is none of that name.
    """
    name = problem.likelihood.likelihood.replace("-", "_")
    if name == "auto" or name in _USUAL:
        return None
    if name not in LIKELIHOODS:
        names = sorted(["auto", *_USUAL, *LIKELIHOODS])
        raise ValueError(
            f"got --likelihood {name}{hint(name, names)} expected one of {', '.join(names)}"
        )
    return LIKELIHOODS[name]


def noises_to_compare(
    problem: Problem, data: Any, table: Any, judged: Mapping[str, Any], choice: str | None
) -> str:
    """Say which other noise may fit better, where a single Gaussian does not fit; else "".

    `table` is that of the calibration check, `judged` the attributes of the draws with the verdict,
    `choice` what the run has chosen over what. Where the draws are wrong, or where the noise is at
    its floor, this makes the intervals so.
    """
    chosen = problem.likelihood
    one_sd = data.num_classes is None and chosen.noise in ("auto", "learnt")
    if not one_sd or chosen.covariance == "full" or chosen_likelihood(problem) is not None:
        return ""
    if judged.get("converged") == 0 or AT_FLOOR in judged.get("verdict", ""):
        return ""
    few_large = ((table.by == INNER) & (table.finding == "too wide")).any()
    varying = any(_varies(lines) for _, lines in table.groupby("output"))
    if not few_large and not varying:
        return ""
    options = ["--likelihood student_t"]
    if "heteroscedastic" not in (choice or ""):
        options.insert(0 if varying else 1, "--noise heteroscedastic")
    return f"a single Gaussian does not fit the errors: {' or '.join(options)} may fit better\n"


def _varies(lines: Any) -> bool:
    """Whether intervals of an output are too narrow for some rows alone: else the fit is wrong."""
    narrow, inner = lines.finding == "too narrow", lines.by == INNER
    thirds = narrow[(lines.by != "") & ~inner]
    return bool(thirds.any() and not thirds.all() and not narrow[inner].any())


def keeps_units(problem: Problem) -> bool:
    """Whether y stays in its own units."""
    chosen = chosen_likelihood(problem)
    return chosen is not None and not chosen.targets.standardised


def have_same_units(names: Sequence[str]) -> bool:
    """Whether y has the same units with all likelihoods of these names."""
    each = [LIKELIHOODS.get(name.replace("-", "_")) for name in names]
    return len({chosen is None or chosen.targets.standardised for chosen in each}) < 2


def reads_classes(problem: Problem) -> bool | None:
    """Whether a file's numbers are to be classes, as the likelihood says; None if it does not."""
    chosen = chosen_likelihood(problem)
    name = problem.data.data
    if problem.data.classes is not None or not (is_file(name) or streamed_files(name) is not None):
        return None
    if chosen is None:
        return {"normal": False, "categorical": True}.get(problem.likelihood.likelihood)
    return chosen.targets.of_classes


def likelihood_of(problem: Problem, data: Any) -> Likelihood | None:
    """Build the likelihood for the training targets; None for the usual ones.

    Of rows on disk, classes are those of all rows, numbers those of some.
    """
    chosen = chosen_likelihood(problem)
    if chosen is None:
        return None
    check_likelihood(problem, data)
    given = {name: getattr(problem.likelihood, name) for name in chosen.options}
    given = {name: value for name, value in given.items() if value is not None}
    columns = apart(data.train.x, data.roles)[1] if data.roles else {}
    given |= {name: columns[name] for name in chosen.columns_of_y if name in columns}
    y = _classes_of_rows(problem, data) if chosen.targets.of_classes else data.train.y
    return chosen.build(np.asarray(y, float), **given)


def _classes_of_rows(problem: Problem, data: Any) -> np.ndarray:
    """Give the classes of all training rows, in any order; refuse one that no training row has."""
    y, counts = data.train.y, None if data.stream is None else data.stream.class_counts
    if counts is not None:
        scale = max(1.0, counts.sum() / _MOST_COUNTED)
        y = np.repeat(np.arange(len(counts)), np.ceil(counts / scale).astype(int))
    num = max(2, data.num_classes)
    missing = np.setdiff1d(np.arange(num), y)
    if len(missing):
        names = data.class_names or list(range(num))
        raise ValueError(
            f"got no training row of class {names[missing[0]]} of {num} for --likelihood "
            f"{problem.likelihood.likelihood}, expected some of each: number the classes anew, or "
            "choose another --split"
        )
    return y


def check_likelihood(problem: Problem, data: Any) -> None:
    """Refuse a likelihood that is not of such targets, or lacks a column of theirs."""
    chosen, name = chosen_likelihood(problem), problem.likelihood.likelihood
    of_classes = data.num_classes is not None
    wanted = _USUAL.get(name) if chosen is None else chosen.targets.words
    is_of_classes = name == "categorical" if chosen is None else chosen.targets.of_classes
    if wanted is not None and of_classes != is_of_classes:
        do = "--classes False reads numbers" if of_classes else "--classes True makes classes of y"
        do = f"{do}, or " if _may_be_either(problem, data) else ""
        got = f"{data.num_classes} classes" if of_classes else "numbers"
        raise ValueError(
            f"got {got} of {problem.data.data} for --likelihood {name}, expected {wanted}: {do}"
            "choose another likelihood"
        )
    if chosen is None:
        return
    if not of_classes and np.ndim(data.train.y) > 1 and not chosen.of_several:
        raise ValueError(
            f"got several outputs with --likelihood {name}, expected one: choose one --target, or "
            "another --likelihood"
        )
    for role in (role for role in chosen.required if role not in data.roles):
        raise ValueError(
            f"got --likelihood {name} without --{role}, expected the column of {role}: name it"
        )


def _may_be_either(problem: Problem, data: Any) -> bool:
    """Whether y of a file can be read as classes and as numbers."""
    if not is_file(problem.data.data):
        return False
    if data.num_classes is not None:
        return not data.class_names or names_are_numbers(data.encoding)
    y = np.asarray(data.train.y, float) * data.y_scale + data.y_mean
    return y.ndim == 1 and np.allclose(y, np.rint(y), rtol=1e-6, atol=1e-4)


def impossible_y(problem: Problem, data: Any, rows: Any, of: str) -> str:
    """Say which y of rows x, y in the units of the data the likelihood rules out; "" if none."""
    chosen = chosen_likelihood(problem)
    if chosen is None or rows.y is None:
        return ""
    y = np.asarray(rows.y, float) * data.y_scale + data.y_mean
    trials = apart(rows.x, data.roles)[1].get("trials") if data.roles else None
    most = np.inf if trials is None else trials.reshape(-1, *[1] * (y.ndim - 1))
    impossible = ~chosen.targets.allowed(y) | (y > most)
    wrong = np.flatnonzero(impossible.reshape(len(y), -1).any(1))
    if not len(wrong):
        return ""
    where = f"{len(wrong)} of {len(y)} {of} (first {wrong[:5].tolist()}, from 0)"
    return _impossible_in_words(chosen, y[impossible][0], where)


def _impossible_in_words(chosen: Description, value: float, where: str) -> str:
    beyond = ", at most the trials" * (chosen.name == "binomial")
    return (
        f"got y={value:g} for the likelihood {chosen.name} in {where}, expected "
        f"{chosen.targets.words}{beyond}: correct y, or choose another likelihood"
    )


def refuse_y(problem: Problem, y: np.ndarray, numbers: np.ndarray) -> None:
    """Refuse y on disk that the likelihood rules out, and say in which of the numbered rows."""
    chosen = chosen_likelihood(problem)
    if chosen is None or (allowed := chosen.targets.allowed(y)).all():
        return
    wrong = numbers[~allowed.reshape(len(y), -1).all(1)]
    where = f"rows {wrong[:5].tolist()} of the folder, from 0"
    raise ValueError(_impossible_in_words(chosen, y[~allowed][0], where))


def refuse_options_of_others(problem: Problem, data: Any) -> None:
    """Refuse options and columns that the chosen likelihood does not use, and impossible y."""
    check_likelihood(problem, data)
    if told := impossible_y(problem, data, data.test, "test rows"):
        raise ValueError(told)
    chosen, options = chosen_likelihood(problem), problem.likelihood
    usual, described = options._field_defaults, LIKELIHOODS.values()
    takers = {name: [each.name for each in described if name in each.options] for name in _OPTIONS}
    takers |= {role: [each.name for each in described if role in each.columns] for role in ROLES}
    given = [name for name in _OPTIONS if getattr(options, name) is not None]
    given += [role for role in data.roles if role != "weights"]
    if chosen is not None:
        takers |= {name: ["normal"] for name in _OF_NORMAL}
        given += [name for name in _OF_NORMAL if getattr(options, name) != usual[name]]
    for name in given:
        if chosen is None or chosen.name not in takers[name]:
            raise ValueError(
                f"got --{name.replace('_', '-')} with --likelihood {options.likelihood}, expected "
                f"--likelihood {' or '.join(takers[name])}: drop one"
            )


def in_words_of_y(problem: Problem, data: Any) -> str:
    """Say what y is taken for."""
    chosen = chosen_likelihood(problem)
    if chosen is not None:
        of = f" of {data.num_classes} classes" if data.num_classes is not None else ""
        ordered = chosen.name == "ordinal" and data.class_names
        order = f", in this order: {', '.join(data.class_names)}" if ordered else ""
        return f"{chosen.name.replace('_', ' ')} likelihood{of}{order}"
    return "regression" if data.num_classes is None else f"{data.num_classes} classes"
