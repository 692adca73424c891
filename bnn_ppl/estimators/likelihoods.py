"""Likelihoods that estimators take by name."""

from collections.abc import Mapping

import numpy as np

from bnn_ppl.model.likelihoods.likelihood import LIKELIHOODS, Likelihood
from bnn_ppl.runtime.names import hint

_USUAL = {False: ("auto", "normal"), True: ("auto", "categorical")}  # by whether y are classes


def is_standardised(name: str) -> bool:
    """Whether y of a regression is standardised."""
    return name not in LIKELIHOODS or LIKELIHOODS[name].targets.standardised


def likelihood_of(
    name: str, y: np.ndarray, columns: Mapping[str, np.ndarray], *, of_classes: bool
) -> Likelihood | None:
    """Build the likelihood of this name for the training targets; None for the usual one.

    Parameters
    ----------
    name
        As the estimator was given it.
    y
        Training targets (rows,) or (rows, targets), standardised if the likelihood is of
        standardised ones.
    columns
        Of X that are for the likelihood, by their roles, such as exposure (rows,).
    of_classes
        Whether they are class numbers.

    Raises
    ------
    ValueError
        If there is none of this name for classes, or for numbers; it has no use for a column, or
        lacks one; or y are not what it is of.
    """
    _refuse_columns_of_others(name, columns)
    if name in _USUAL[of_classes]:
        return None
    known = {e.name for e in LIKELIHOODS.values() if e.targets.of_classes == of_classes}
    if name not in known:
        names = sorted({*_USUAL[of_classes], *known})
        raise ValueError(
            f"got likelihood={name!r}{hint(str(name), names)} expected one of {', '.join(names)}"
        )
    chosen = LIKELIHOODS[name]
    for role in chosen.required:
        if role not in columns:
            raise ValueError(
                f"got likelihood={name!r} without {role}, expected a column of X with them: "
                f"columns=bnn_ppl.data.Columns({role}=...)"
            )
    return chosen.build(
        y, **{role: columns[role] for role in chosen.columns_of_y if role in columns}
    )


def check_more_targets(
    likelihood: Likelihood | None, y: np.ndarray, columns: Mapping[str, np.ndarray]
) -> None:
    """Refuse targets of later rows that those of the first rows could not be, unless classes."""
    if likelihood is not None and not LIKELIHOODS[likelihood.name].targets.of_classes:
        likelihood_of(likelihood.name, y, columns, of_classes=False)


def _refuse_columns_of_others(name: str, columns: Mapping[str, np.ndarray]) -> None:
    for role in columns:
        takers = [each.name for each in LIKELIHOODS.values() if role in each.columns]
        if name not in takers:
            raise ValueError(
                f"got a column of {role} with likelihood={name!r}, expected one of "
                f"{', '.join(takers)}: drop one of them"
            )


def refuse_of_normal(name: str, **options: object) -> None:
    """Refuse options of the normal likelihood with another; ValueError unless they are as usual."""
    for option, value in options.items():
        if value not in ("auto", "learnt", "diagonal"):
            raise ValueError(
                f"got {option}={value!r} with likelihood={name!r}, expected it with 'normal': drop "
                "one of them"
            )
