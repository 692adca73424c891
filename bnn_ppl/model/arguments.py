"""Check that arguments are not swapped, before anything is computed from them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bnn_ppl.model.posterior import Posterior


def check_arguments(**given: Any) -> None:
    """Refuse a `key`, `posterior`, `method`, `init` or `draws` of the wrong type."""
    for name, value in given.items():
        fits, source = _EXPECTED[name]
        if not fits(value):
            raise TypeError(f"got {name} of {_described(value)}, expected {source}")


def _is_key(value: Any) -> bool:
    """Recognise random keys, typed or legacy uint32."""
    if not isinstance(value, jax.Array | np.ndarray):
        return False
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value.ndim == 0
    return value.dtype == np.uint32 and value.ndim == 1


def _described(value: Any) -> str:
    shape = f" and shape {value.shape}" if isinstance(value, jax.Array) else ""
    return f"type {type(value).__name__}{shape}"


_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "key": (_is_key, "one key, as jax.random.key(0) gives"),
    "posterior": (
        lambda value: isinstance(value, Posterior),
        "what bnn_ppl.condition(model, data) gives",
    ),
    "method": (
        lambda value: all(hasattr(value, part) for part in ("init", "step", "draw")),
        "a built one, such as bnn_ppl.hmc(posterior)",
    ),
    "init": (
        lambda value: hasattr(value, "posterior"),
        "the InferenceData that bnn_ppl.run gives, or a position, as posterior.init(key) gives",
    ),
    "draws": (
        lambda value: hasattr(value, "groups"),
        "the InferenceData that bnn_ppl.run gives",
    ),
}
