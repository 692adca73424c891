"""Points: weights that are optimised once and then held, as sites of a model without a prior."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers

from bnn_ppl.model.trace import Array, Values

_NUM_KEPT = 2  # posteriors with points held


def with_points_held(held: Values, model: Callable, x: Any, y: Any = None) -> Any:
    """Run a model with these sites as constants, which nobody outside sees."""
    inner = handlers.substitute(model, data=held)
    return handlers.block(inner, hide=list(held))(x, y)


def holding(
    make: Callable[[Values], Any] | None, shapes: dict[str, tuple[int, ...]]
) -> Callable[[Mapping[str, Any]], Any]:
    """Give ``values -> posterior``, which keeps the last ones that it made.

    What is compiled for a posterior is found again only if it is the same one.
    """
    kept: OrderedDict[str, Any] = OrderedDict()

    def hold(values: Mapping[str, Any]) -> Any:
        held = _checked(values, shapes)
        if make is None or not held:
            raise ValueError("got a posterior without points, expected one with: use it as it is")
        name = digest_of(held)
        if name not in kept:
            kept[name] = make(held)
        kept.move_to_end(name)
        while len(kept) > _NUM_KEPT:
            kept.popitem(last=False)
        return kept[name]

    return hold


def _checked(values: Mapping[str, Any], shapes: dict[str, tuple[int, ...]]) -> Values:
    """Give the values of all points as arrays; refuse other sites or shapes."""
    for site in dict.fromkeys([*values, *shapes]):
        got, expected = (
            "nothing" if shape is None else f"an array {shape}"
            for shape in (jnp.shape(values[site]) if site in values else None, shapes.get(site))
        )
        if got != expected:
            raise ValueError(
                f"got {got} for {site!r}, expected {expected}: pass a value for each point, "
                f"{', '.join(shapes) or 'of which there are none'}"
            )
    return {site: jnp.asarray(values[site], float) for site in shapes}


def digest_of(values: Mapping[str, Array]) -> str:
    """Give a short text that tells values from others."""
    digest = hashlib.sha256()
    for site in sorted(values):
        array = jax.device_get(values[site])
        digest.update(f"{site} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
