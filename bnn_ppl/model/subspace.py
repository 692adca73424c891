"""A posterior restricted to an affine subspace of its unconstrained positions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from bnn_ppl.model.posterior import Posterior, Prior, Subspace
from bnn_ppl.model.prior.prior_summary import PriorSummary
from bnn_ppl.model.recipe import Recipe, recipe_of
from bnn_ppl.model.trace import Array, Batch, Position, Terms, Values

SITE = "z"  # of the coordinates, in positions and in draws


class Plane(NamedTuple):
    """An affine subspace of the unconstrained positions.

    Attributes
    ----------
    centre
        The position at z = 0.
    directions
        By site, an array (rank, ...): what one unit of each coordinate adds to it.
    """

    centre: Position
    directions: Position

    def at(self, z: Array) -> Position:
        """Give the position at coordinates (rank,)."""
        return jax.tree.map(lambda centre, along: centre + _dot(z, along), *self)

    def projected(self, position: Position) -> Array:
        """Give the coordinates (rank,) of the point of the subspace closest to a position."""
        away = jax.tree.map(jnp.subtract, position, self.centre)
        slopes = jax.tree.map(lambda d, w: _dot(_rows(d), jnp.ravel(w)), self.directions, away)
        squares = jax.tree.map(lambda d: _dot(_rows(d), _rows(d).T), self.directions)
        return jax.scipy.linalg.solve(_sum(squares), _sum(slopes), assume_a="pos")


def restricted(
    posterior: Posterior, plane: Plane, prior_std: float | None, settings: Mapping[str, Any]
) -> Posterior:
    """Restrict a posterior to a plane; see :func:`bnn_ppl.subspace`.

    The plane is an argument of what is compiled, like the numbers of the model's prior: another
    one of the same rank compiles nothing.
    """
    if SITE in plane.centre:
        raise ValueError(
            f"got a model with a site {SITE!r}, expected none, since draws record the coordinates "
            "under this name: rename it"
        )
    recipe = recipe_of(posterior)
    of_model = [] if recipe is None else list(recipe.numbers)
    leaves, structure = jax.tree.flatten(plane)

    def make(numbers: list[Any]) -> Posterior:
        whole = posterior if recipe is None else recipe.make(numbers[: len(of_model)])
        own = jax.tree.unflatten(structure, numbers[len(of_model) :])
        return _restricted(whole, own, prior_std, Subspace(posterior, settings))

    numbers = of_model + leaves
    made = make(numbers)
    return made._replace(recipe=Recipe(make, made, numbers))


def _restricted(
    whole: Posterior, plane: Plane, prior_std: float | None, subspace: Subspace
) -> Posterior:
    rank = len(jax.tree.leaves(plane.directions)[0])

    def terms(position: Position, batch: Batch) -> Terms:
        z = position[SITE]
        found = whole.density.terms(plane.at(z), batch)
        if prior_std is None:
            # The coordinates are not independent, not even where the weights are.
            log_prior, log_jacobian = map(_summands, (found.log_priors, found.log_jacobians))
            normals = {}
        else:
            log_prior, log_jacobian = dist.Normal(0.0, prior_std).log_prob(z), jnp.zeros_like(z)
            normals = {SITE: (jnp.zeros(()), jnp.asarray(prior_std, float))}
        by_site = {SITE: log_prior}, {SITE: log_jacobian}
        return Terms(*by_site, found.log_likelihood, normals, found.row_scale)

    def logdensity(position: Position, batch: Batch) -> Array:
        return whole.density.total(terms(position, batch), batch)

    def init(key: Array, data: Batch = whole.rows.examples) -> Position:
        del data
        return {SITE: jax.random.normal(key, (rank,))}

    def draw(key: Array, data: Batch = whole.rows.examples) -> Values:
        if prior_std is None:
            raise ValueError(
                "got a subspace with the model's prior, which has no draws of its own there, "
                "expected a Gaussian one: subspace(..., prior_std=1.0)"
            )
        return constrain({SITE: prior_std * jax.random.normal(key, (rank,))}, data)

    def constrain(position: Position, data: Batch = whole.rows.examples) -> Values:
        return {**whole.constrain(plane.at(position[SITE]), data), SITE: position[SITE]}

    def unconstrain(values: Values, data: Batch = whole.rows.examples) -> Position:
        sites = {site: values[site] for site in plane.centre}
        return {SITE: plane.projected(whole.unconstrain(sites, data))}

    def summary() -> PriorSummary:
        return PriorSummary({SITE: _prior_std(whole, plane, prior_std)}, {})

    return whole._replace(
        init=init,
        log_likelihood=lambda position, batch: terms(position, batch).log_likelihood,
        logdensity=logdensity,
        density=whole.density._replace(terms=terms),
        constrain=constrain,
        unconstrain=unconstrain,
        check=lambda position: whole.check(plane.at(position[SITE])),
        prior=Prior(draw, summary, scale=whole.prior.scale),
        sites=whole.sites._replace(names=(SITE,), num_weights=rank, subspace=subspace),
        recipe=None,
    )


def _prior_std(whole: Posterior, plane: Plane, prior_std: float | None) -> Array:
    """Give the unit of length: of the model's prior, one over the root mean precision."""
    if prior_std is not None:
        return jnp.asarray(whole.density.prior_temperature**0.5 * prior_std, float)
    rank = len(jax.tree.leaves(plane.directions)[0])
    precisions = {
        site: jnp.sum((along / whole.prior.std[site]) ** 2) / rank
        for site, along in plane.directions.items()
    }
    return _sum(precisions) ** -0.5


def _summands(by_site: dict[str, Array]) -> Array:
    return jnp.concatenate([jnp.ravel(summands) for summands in by_site.values()])


def _rows(directions: Array) -> Array:
    return directions.reshape(len(directions), -1)


def _dot(one: Array, other: Array) -> Array:
    # In float32 whatever products of networks are in: a coordinate moves all weights.
    return jnp.tensordot(one, other, 1, precision=jax.lax.Precision.HIGHEST)


def _sum(by_site: Position) -> Array:
    return sum(by_site.values(), jnp.zeros(()))
