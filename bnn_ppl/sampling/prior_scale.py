"""The scale of a Gaussian prior, found by the evidence of the training rows."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from bnn_ppl.methods.descent import descent
from bnn_ppl.methods.laplace import laplace
from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import like, recipe_of
from bnn_ppl.runtime.checks import check_count, check_positive
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.points import fit_points
from bnn_ppl.sampling.run import run
from bnn_ppl.sampling.start import check_built_with

_NUM_CHAINS, _NUM_STEPS, _NUM_ROUNDS = 2, 5_000, 2
_MOST_RATIO = 0.7  # of a change to the one before, by which the changes to come are extrapolated

MOST_STEPS = _NUM_CHAINS * _NUM_STEPS * _NUM_ROUNDS  # of a search, all chains together
MOST_SEARCHED = 5e9  # rows times weights up to which a search takes minutes, not hours


def is_searched(posterior: Posterior) -> bool:
    """Whether the scale is searched for: where that is quick and possible."""
    quick = posterior.num_rows * posterior.num_weights <= MOST_SEARCHED
    # The Laplace approximation refuses statistics of the batch.
    possible = jax.process_count() == 1 and posterior.batch_statistics is None
    return quick and possible


def scale_or_usual(posterior_at: Callable[[float], Posterior], usual: float) -> float:
    """Search for the scale where that is quick and possible, else give the usual one."""
    if not is_searched(posterior_at(usual)):
        return usual
    try:
        return prior_scale(jax.random.key(0), posterior_at, round(usual, 3))
    except (ValueError, TypeError, NotImplementedError):
        # There is no Laplace approximation of this model.
        return usual


_found: WeakKeyDictionary[Callable, float] = WeakKeyDictionary()  # by a posterior's log-density


def with_scale_found(
    posterior: Posterior, method: Method, header: Mapping[str, Any] | None, progress: Show
) -> tuple[Posterior, Method]:
    """Give what a run with open priors runs: the posterior at their scale, and the method for it.

    The scale is that of the run to resume, whose ``state.json`` is `header`, or else searched for.
    """
    opened, recipe = posterior.open_scale, recipe_of(method)
    if opened is None:
        return posterior, method
    check_built_with(posterior, method)
    stored = None if header is None else header["settings"]["exact"]
    if recipe is None or (stored is not None and "prior_scale" not in stored):
        # Versions that did not search have run it at the usual scale.
        why = "since this method cannot be built anew" if recipe is None else "as in the run so far"
        _tell(opened.usual, f"the usual one, {why}", progress)
        return posterior, method
    if stored is not None:
        scale, how = stored["prior_scale"], "as in the run so far"
    else:
        scale, how = _searched(posterior, progress)
    _tell(scale, how, progress)
    held = opened.hold(scale)
    return held, recipe.make(held)


def _tell(scale: float, how: str, progress: Show) -> None:
    if progress and jax.process_index() == 0:
        line = f"prior scale {scale:.4g}: {how}"
        if progress == "json":
            line = json.dumps({"phase": "prior_scale", "prior_scale": scale})
        print(line, file=sys.stderr, flush=True)


def _searched(posterior: Posterior, progress: Show) -> tuple[float, str]:
    """Give the scale for the training rows, and how it was found."""
    opened = posterior.open_scale
    assert opened is not None
    if not is_searched(posterior):
        return opened.usual, "the usual one, since a search would take hours or is not possible"
    scale = _found.get(posterior.logdensity)
    if scale is None:
        if progress is True:
            words = "finding the scale of the prior (a number given to the prior is taken as it is)"
            print(words, file=sys.stderr, flush=True)
        scale = scale_or_usual(opened.untempered, opened.usual)
        _found[posterior.logdensity] = scale
    if scale == opened.usual:
        return scale, "the usual one, since this model has no Laplace approximation"
    return scale, "found from the training rows"


def prior_scale(
    key: jax.Array,
    posterior_at: Callable[[float], Posterior],
    start: float = math.sqrt(2),
    *,
    num_rounds: int = _NUM_ROUNDS,
) -> float:
    r"""Find the prior scale that maximises the Laplace approximation of the evidence.

    .. math:: s \gets s / \sqrt c, \qquad
        c = \arg\max_c \log p(D \mid w^*(s), s / \sqrt c)

    Each round finds a mode :math:`w^*` under the scale s, and the multiplier c of the prior's
    precision that maximises the log evidence of a Kronecker-factored Laplace approximation there
    (MacKay, 1992; for networks Immer et al., 2021), a geometric mean over two modes. The changes
    shrink geometrically; those after the last round are extrapolated (Aitken's method). Only
    training rows are used, and all of them: none need be held out. :func:`bnn_ppl.run` does this by
    itself for priors that leave their scale open, such as ``priors.fan_in()``. Points of a partly
    Bayesian network are fitted anew in each round, and the evidence is that of the rest given them.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    posterior_at
        ``scale -> Posterior``: the model, with Gaussian priors of that scale, conditioned on the
        training rows.
    start
        Scale to start from.
    num_rounds
        Rounds, at least one.

    Returns
    -------
    float
        The scale, rounded to three digits.

    Raises
    ------
    ValueError
        If a number is out of range, or the Laplace approximation does not support the model (see
        :func:`bnn_ppl.laplace`).
    """
    check_positive("start", start)
    check_count("num_rounds", num_rounds)
    log_scale, modes, changes = math.log(start), None, [0.0]
    known = None
    for round_key in jax.random.split(key, num_rounds):
        posterior = fit_points(round_key, posterior_at(math.exp(log_scale)), progress=False)
        known = posterior = posterior if known is None else like(posterior, known)
        to_mode = descent(posterior, noise_rows="training")
        modes = _run(round_key, posterior, to_mode, modes, num_warmup=_NUM_STEPS)
        evidence = laplace(posterior, prior_precision="marginal_likelihood")
        found = _run(round_key, posterior, evidence, modes, num_draws=1)
        multipliers = found["fitted"]["prior_precision_multiplier"].to_numpy()
        change = -0.5 * float(np.log(multipliers).mean())
        if not math.isfinite(change):
            break
        changes.append(change)
        log_scale += change
    ratio = changes[-1] / changes[-2] if len(changes) > 2 and changes[-2] else 0.0
    ratio = min(max(ratio, 0.0), _MOST_RATIO)
    return float(f"{math.exp(log_scale + changes[-1] * ratio / (1 - ratio)):.3g}")


def _run(key: jax.Array, posterior: Posterior, method: Any, init: Any, **counts: Any) -> Any:
    found = run(
        key,
        posterior,
        method,
        num_chains=_NUM_CHAINS,
        init=init,
        progress=False,
        verdict=False,
        **counts,
    )
    if "stopped" in found.attrs:
        raise KeyboardInterrupt  # which ends the search too
    return found
