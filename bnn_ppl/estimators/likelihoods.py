"""Likelihoods that estimators take by name."""

import numpy as np

from bnn_ppl.model.likelihoods.likelihood import LIKELIHOODS, Description, Likelihood
from bnn_ppl.runtime.names import hint

_USUAL = {False: ("auto", "normal"), True: ("auto", "categorical")}  # by whether y are classes


def is_standardised(name: str) -> bool:
    """Whether y of a regression is standardised."""
    return name not in LIKELIHOODS or LIKELIHOODS[name].targets.standardised


def likelihood_of(name: str, y: np.ndarray, *, of_classes: bool) -> Likelihood | None:
    """Build the likelihood of this name for the training targets; None for the usual one.

    Parameters
    ----------
    name
        As the estimator was given it.
    y
        Training targets (rows,), standardised if the likelihood is of standardised ones.
    of_classes
        Whether they are class numbers.

    Raises
    ------
    ValueError
        If there is none of this name for classes, or for numbers; or y are not what it is of.
    """
    if name in _USUAL[of_classes]:
        return None
    known = {each.name for each in LIKELIHOODS.values() if _is_possible(each, of_classes)}
    if name not in known:
        names = sorted({*_USUAL[of_classes], *known})
        raise ValueError(
            f"got likelihood={name!r}{hint(str(name), names)} expected one of {', '.join(names)}"
        )
    return LIKELIHOODS[name].build(y)


def refuse_of_normal(name: str, **options: object) -> None:
    """Refuse options of the normal likelihood with another; ValueError unless they are as usual."""
    for option, value in options.items():
        if value not in ("auto", "learnt", "diagonal"):
            raise ValueError(
                f"got {option}={value!r} with likelihood={name!r}, expected it with 'normal': drop "
                "one of them"
            )


def _is_possible(described: Description, of_classes: bool) -> bool:
    """Whether an estimator, which has no columns beside X, can take it."""
    return described.targets.of_classes == of_classes and not described.required
