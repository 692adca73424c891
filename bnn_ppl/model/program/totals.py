"""Multinomial laws whose total differs by row.

NumPyro counts the total among what is fixed of a law, which JAX compares, as it cannot do with
arrays. In the laws here the total is a number as the probabilities are.
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


_KINDS = MultinomialProbsOfRows, MultinomialLogitsOfRows, DirichletMultinomialOfRows


def with_totals_of_rows(law: dist.Distribution) -> dist.Distribution:
    """Give the law with its total, if that is an array, among its numbers."""
    inner = getattr(law, "base_dist", None)
    if inner is not None:
        changed, other = copy.copy(law), with_totals_of_rows(inner)
        changed.base_dist = other
        return law if other is inner else changed
    kind = next((kind for kind in _KINDS if type(law) is kind.__mro__[2]), None)
    if kind is None or not isinstance(law.total_count, jax.Array | np.ndarray):
        return law
    changed = copy.copy(law)
    changed.__class__ = kind
    return changed
