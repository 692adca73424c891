"""Warn of data on a scale that the prior of a model does not expect, before a run shows it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import BernoulliLogits, CategoricalLogits

from bnn_ppl.model.rows.labels import listed
from bnn_ppl.model.trace import Array, Data, innermost, traced
from bnn_ppl.runtime.checks import warn

# Within these, data need no look at the prior and cost nothing. Whole numbers may be tokens.
_LARGE_Y, _SMALL_Y, _LARGE_X, _LARGE_WHOLE_X = 100.0, 0.01, 1e4, 1e6
_FACTOR = 50.0  # between the spread of y and that of a draw from the prior
_LARGE_LOGIT = 1000.0
_ROWS_SEEN, _ROWS_DRAWN, _DRAWS = 1024, 16, 16
_MOST_SITES = 20  # of deeper networks, a draw takes a minute to compile
_SD_OF_MEDIAN = 1.4826  # of the absolute deviations of a Gaussian


def warn_of_scales(model: Callable, observed: str, num_sites: int, data: Data) -> None:
    """Warn of y that no draw from the prior comes near, and of x that makes its draws too large.

    A few draws at a few rows are made, and only where numbers are unusually large or small. What
    one of them reaches, the prior is taken to expect. Nothing is done for a model of more than 20
    sites beside the observed one.
    """
    if num_sites > _MOST_SITES:
        return
    x, y = _some(data, _ROWS_SEEN)
    values = _by_output(np.asarray(y, np.float64)[None])[0]
    mean, sd = values.mean(0), values.std(0)
    is_real = jnp.issubdtype(y.dtype, jnp.floating)
    unusual = (abs(mean) + sd > _LARGE_Y) | ((sd > 0) & (sd < _SMALL_Y))
    large = _large_inputs(x)
    if not large and not (is_real and unusual.any()):
        return
    drawn = _drawn(model, observed, _some(data[0], _ROWS_DRAWN))
    if drawn is None:
        return
    location = np.median(drawn, axis=(0, 1)) if is_real else 0.0
    spreads = _SD_OF_MEDIAN * np.median(abs(drawn - location), axis=1)  # (draws, outputs)
    if not is_real:
        if large and spreads.min() > _LARGE_LOGIT:
            _warn_of_x(large, f"logits of about {np.median(spreads):.1g}")
        return
    too_small = (sd > 0) & (sd < spreads.min(0) / _FACTOR)
    too_large = abs(mean - location) + sd > _FACTOR * spreads.max(0)
    prior = np.median(spreads, axis=0)
    if large and too_small.any():
        _warn_of_x(large, f"y a standard deviation of about {prior.max():.1g} a priori")
    elif (unusual & (too_small | too_large)).any():
        _warn_of_y(mean, sd, prior)


def _warn_of_y(mean: np.ndarray, sd: np.ndarray, prior: np.ndarray) -> None:
    scale = np.where(sd > 0, sd, np.maximum(abs(mean), 1.0))  # a constant y has no spread
    centred = (abs(mean) > 3 * scale).any()
    by = f"(y - {_numbers(mean)}) / {_numbers(scale)}" if centred else f"y / {_numbers(scale)}"
    warn(
        f"got y of mean {_numbers(mean)} and standard deviation {_numbers(sd)}, expected the scale "
        f"of the model's prior, whose draws have about {_numbers(prior)}: condition on {by}, or "
        "give the model a prior of that scale"
    )


def _warn_of_x(large: dict[str, float], found: str) -> None:
    names, sizes = list(large), [f"{size:.3g}" for size in large.values()]
    warn(
        f"got x as large as {listed(sizes, 5)} in {listed(names, 5)}, which gives {found}, "
        "expected the scale of the model's prior: divide by these numbers, or standardise x"
    )


def _numbers(each: np.ndarray) -> str:
    words = [f"{number:.3g}" for number in each]
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


def _some(rows: Any, most: int) -> Any:
    """Take at most so many rows, spread evenly."""
    num_rows = len(jax.tree.leaves(rows)[0])
    chosen = np.linspace(0, num_rows - 1, min(num_rows, most)).astype(int)
    return jax.tree.map(lambda leaf: leaf[chosen], rows)


def _by_output(values: np.ndarray) -> np.ndarray:
    """Give values (draws, rows, outputs) of y; pixels count as rows of one output."""
    return values if values.ndim == 3 else values.reshape(len(values), -1, 1)


def _large_inputs(x: Any) -> dict[str, float]:
    """Give the largest size of each column, or of each other input, where it is unusual."""
    found: dict[str, float] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        limit = _LARGE_X if jnp.issubdtype(leaf.dtype, jnp.floating) else _LARGE_WHOLE_X
        name, sizes = f"x{jax.tree_util.keystr(path)}", abs(np.asarray(leaf, np.float64))
        if leaf.ndim == 2:
            columns = enumerate(sizes.max(0).tolist())
            found |= {f"column {column} of {name}": s for column, s in columns if s > limit}
        elif sizes.max() > limit:
            found[name] = float(sizes.max())
    return found


def _drawn(model: Callable, observed: str, x: Any) -> np.ndarray | None:
    """Draw y from the prior, or logits where y is a class: (draws, rows, outputs).

    None for models without draws at these rows, such as those with an improper prior or with a
    plate of a fixed size.
    """
    keys = jax.random.split(jax.random.key(0), _DRAWS)
    try:
        lowered = jax.jit(partial(_draw, model, observed)).lower(keys[0], x)
        # A quarter of the time to compile, and these draws take none.
        draw = lowered.compile({"xla_backend_optimization_level": "0"})
        values = [draw(key, x) for key in keys]
    except (NotImplementedError, TypeError, ValueError):
        return None
    finite = np.nan_to_num(np.asarray(values, np.float64), nan=np.inf)
    return _by_output(np.clip(finite, -1e38, 1e38))


def _draw(model: Callable, observed: str, key: Array, x: Any) -> Array:
    site = traced(model, x, None, key)[observed]
    each = innermost(site["fn"])
    if isinstance(each, CategoricalLogits | BernoulliLogits):
        return each.logits.reshape(1, -1)
    return site["value"]
