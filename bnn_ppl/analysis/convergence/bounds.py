"""Sites that lie on a bound of their support, such as a noise on the floor of its prior."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.model.network import active_changes
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.programs import compiled_once

NEAR = 0.05  # of the bound: where the posterior of a scale is cut off by it, not by the data
_MOST_VALUES = 16  # of a site: scales are few, and their names must fit in a line
_FAR = (30.0, 60.0)  # unconstrained values at which every transform has reached a bound, or passed


def sites_on_bounds(posterior: Posterior, sites: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Find small positive sites whose mean is near a bound: name, "lower" or "upper", the bound.

    `sites` holds arrays (chain, draw, ...) of draws of all sites.
    """
    small = {
        site: np.asarray(values, float)
        for site, values in sites.items()
        if np.prod(values.shape[2:]) <= _MOST_VALUES
    }
    positive = tuple(site for site, values in small.items() if values.min() > 0)
    if not positive:
        return []
    last = {site: np.asarray(values[-1, -1]) for site, values in sites.items()}
    # The values of a simplex limit each other, so that none has an interval of its own.
    shapes = jax.eval_shape(posterior.unconstrain, last, posterior.rows.examples)
    positive = tuple(site for site in positive if shapes[site].shape == last[site].shape)
    if not positive:
        return []
    functions = posterior.constrain, posterior.unconstrain
    ends = jax.tree.map(
        np.asarray, _ends(functions, positive, active_changes())(last, posterior.rows.examples)
    )
    found = []
    for number, site in enumerate(positive):
        low, lower, high, higher = ends[site][4 * number : 4 * number + 4]
        mean = small[site].mean((0, 1))
        with np.errstate(invalid="ignore"):
            on_low = (np.abs(low - lower) <= 1e-3 * np.abs(low)) & (mean <= (1 + NEAR) * low)
            on_high = (np.abs(high - higher) <= 1e-3 * np.abs(high)) & (mean >= (1 - NEAR) * high)
        if on_low.any():
            found.append((site, "lower", float(low[on_low].flat[0])))
        elif on_high.any():
            found.append((site, "upper", float(high[on_high].flat[0])))
    return found


@lru_cache(maxsize=2)
def _ends(
    functions: tuple[Callable, Callable],
    chosen: tuple[str, ...],
    changes: tuple,  # part of the cache's key alone: tracing reads the active changes
) -> Callable:
    """Compile the values of all sites with one of `chosen` far down, further down, up, further up.

    At a draw's values of the other sites, on which a support may depend.
    """
    constrain, unconstrain = functions
    far = (-_FAR[0], -_FAR[1], *_FAR)

    def ends(values: dict, data: Any) -> dict:
        position = unconstrain(values, data)

        def moved(site: jax.Array, to: jax.Array) -> dict:
            there = {
                name: jnp.where(site == number, to, position[name])
                for number, name in enumerate(chosen)
            }
            constrained = constrain(position | there, data)
            return {name: constrained[name] for name in chosen}

        numbers = jnp.repeat(jnp.arange(len(chosen)), len(far))
        return jax.vmap(moved)(numbers, jnp.tile(jnp.asarray(far), len(chosen)))

    return compiled_once(ends, runs_once=True)
