"""Names that are not known: which one is meant."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

# What NumPyro, BlackJAX, PyMC and others call what has another name here.
_ELSEWHERE = {
    "chains": "num_chains",
    "draws": "num_draws",
    "init_params": "init",
    "init_strategy": "init",
    "initial_position": "init",
    "inverse_mass_matrix": "mass",
    "lr": "learning_rate",
    "max_num_expansions": "max_num_doublings",
    "max_tree_depth": "max_num_doublings",
    "network": "net",
    "num_burnin_steps": "num_warmup",
    "num_samples": "num_draws",
    "progress_bar": "progress",
    "rng_key": "key",
    "seed": "random_state",
    "target_accept": "target_acceptance",
    "target_accept_prob": "target_acceptance",
    "target_acceptance_rate": "target_acceptance",
    "thinning": "thin",
    "tune": "num_warmup",
}


def meant(word: str, names: Iterable[str]) -> str | None:
    """Give the name that a word most likely stands for, if there is one."""
    names = list(names)
    if _ELSEWHERE.get(word) in names:
        return _ELSEWHERE[word]
    return next(iter(get_close_matches(word.lower(), names, 1)), None)


def hint(word: str, names: Iterable[str], form: str = "{!r}") -> str:
    """Give what follows the word in a message, such as "; did you mean 'hmc'?", or ";"."""
    close = meant(word, names)
    return f"; did you mean {form.format(close)}?" if close else ";"


def known_keywords(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function that is given a keyword it does not take say which one is meant."""
    names = list(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: _P.args, **given: _P.kwargs) -> _R:
        for word in given:
            if word not in names:
                raise TypeError(_unknown(function, args, word, names))
        return function(*args, **given)

    return checked


def _unknown(function: Callable, args: tuple, word: str, names: list[str]) -> str:
    own = [name for name in names if name != "self"]
    of_class = function.__name__ == "__init__"
    name = type(args[0]).__name__ if of_class else function.__name__
    return f"got {word}= for {name}{hint(word, own, '{}=')} expected one of {', '.join(own)}"
