"""The scale of a Gaussian prior, found by the evidence of the training rows."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax

from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.run import run
from bnn_ppl.sampling.search import scale_search
from bnn_ppl.sampling.search.fits import Search

scale_or_usual = partial(scale_search.scale_or_usual, run)


def prior_scale(
    key: jax.Array,
    posterior_at: Callable[[float], Posterior],
    start: float = math.sqrt(2),
    *,
    num_rounds: int = scale_search.NUM_ROUNDS,
    folder: str | Path | None = None,
    max_minutes: float | None = None,
    progress: Show = False,
) -> float:
    r"""Find the prior scale that maximises the Laplace approximation of the evidence.

    .. math:: s \gets s / \sqrt c, \qquad
        c = \arg\max_c \log p(D \mid w^*(s), s / \sqrt c)

    Each round finds a mode :math:`w^*` under the scale s, and the multiplier c of the prior's
    precision that maximises the log evidence of a Kronecker-factored Laplace approximation there
    (MacKay, 1992; for networks Immer et al., 2021), a geometric mean over two modes. The changes
    shrink geometrically; those after the last round are extrapolated (Aitken's method). If they do
    not shrink, up to three more rounds are taken where one takes seconds. Only training rows are
    used, and all of them: none need be held out. :func:`bnn_ppl.run` does this by
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
    folder
        Where to keep the fits of the search: the same call with the same folder goes on with one
        that was stopped or killed.
    max_minutes
        Stop training after this time, and take the scale about the points reached.
    progress
        As for :func:`bnn_ppl.run`.

    Returns
    -------
    float
        The scale, rounded to three digits.

    Raises
    ------
    ValueError
        If a number is out of range, another process searches in the same folder, or the Laplace
        approximation does not support the model (see :func:`bnn_ppl.laplace`).
    TimeoutError
        If `max_minutes` pass before the first step.
    """
    search = Search.of(run, scale_search.WANTED, folder, max_minutes, progress)
    return scale_search.search_scale(search, key, posterior_at, start, num_rounds)
