"""Multinomial laws whose total differs by row.

NumPyro keeps the total in the static part of a law, which JAX compares by equality: arrays fail
there. The laws here keep it among their leaves, as the probabilities are.
"""

import copy

import jax
import numpy as np
import numpyro.distributions as dist


class _OfRows:
    """What the laws below have in common."""

    @classmethod
    def gather_pytree_aux_fields(cls) -> tuple[str, ...]:
        fixed = super().gather_pytree_aux_fields()  # type: ignore[misc]
        return tuple(name for name in fixed if name != "total_count")


class MultinomialProbsOfRows(_OfRows, dist.MultinomialProbs):
    """Counts by their probabilities."""

    pytree_data_fields = ("total_count",)


class MultinomialLogitsOfRows(_OfRows, dist.MultinomialLogits):
    """Counts by their logits."""

    pytree_data_fields = ("total_count",)


class DirichletMultinomialOfRows(_OfRows, dist.DirichletMultinomial):
    """Counts whose probabilities have a Dirichlet distribution."""

    pytree_data_fields = ("total_count",)


_OF_ROWS = {
    dist.MultinomialProbs: MultinomialProbsOfRows,
    dist.MultinomialLogits: MultinomialLogitsOfRows,
    dist.DirichletMultinomial: DirichletMultinomialOfRows,
}


def with_totals_of_rows(law: dist.Distribution) -> dist.Distribution:
    """Give the law with its total, if that is an array, among its leaves; else the law itself."""
    changed = copy.copy(law)
    if hasattr(law, "base_dist"):
        changed.base_dist = with_totals_of_rows(law.base_dist)
        return law if changed.base_dist is law.base_dist else changed
    if type(law) not in _OF_ROWS or not isinstance(law.total_count, jax.Array | np.ndarray):
        return law
    changed.__class__ = _OF_ROWS[type(law)]
    return changed
