"""A Gaussian whose covariance is block-diagonal: dividing the sites into blocks, and its draws."""

import math
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from bnn_ppl.methods.laplace_approximation.covariance_blocks import (
    Block,
    Diagonal,
    Joint,
    Kronecker,
)
from bnn_ppl.methods.layers.layer_calls import LayerCall, network_of, sites_of
from bnn_ppl.model.posterior import Posterior

Array = jax.Array
Tree = Any
Structure: TypeAlias = Literal["diagonal", "kronecker", "last_layer", "full"]

_MOST_WEIGHTS = 8000  # in a full covariance matrix


def usual_structure(posterior: Posterior, layers: dict[str, LayerCall]) -> Structure:
    """Give the structure by layers or, of a model that calls none, the best that can be had."""
    if layers:
        return "kronecker"
    return "full" if posterior.num_weights <= _MOST_WEIGHTS else "diagonal"


def blocks_of(
    posterior: Posterior,
    structure: Structure,
    layers: dict[str, LayerCall],
    position: Tree,
    scaled: set[str],
    damping: float | None = None,
    splits_prior: bool = False,
) -> list[Block]:
    """Divide the sites into blocks; the multiplier acts on the prior of the sites `scaled`."""
    if structure in ("kronecker", "last_layer") and not layers:
        raise ValueError(
            f"got a model that calls no dense or convolutional layer, expected at least one for "
            f"structure={structure!r}: use 'diagonal' or 'full' (an MLP with features_first does "
            "not call its layers)"
        )
    if structure == "full":
        return [_joint(posterior, list(position), position, scaled)]
    if structure == "last_layer":
        last = {network_of(name): (name, call) for name, call in layers.items()}
        sites = [site for layer in last.values() for site in sites_of(*layer)]
        return [_joint(posterior, sites, position, scaled)]
    layers = {name: call for name, call in layers.items() if call.has_kernel}
    if structure == "diagonal":
        dense = {name: call for name, call in layers.items() if call.num_positions == 1}
        return [_diagonal(posterior, dense, list(position), scaled)]
    num_rows = posterior.num_rows / posterior.density.temperature
    factored = []
    for name, call in layers.items():
        own = sites_of(name, call)
        own = own if scaled.issuperset(own) else []
        factored += [Kronecker(name, call, own, damping, num_rows, splits_prior)]
    taken = {site for block in factored for site in block.sites}
    others = [site for site in position if site not in taken]
    return [*factored, *([_diagonal(posterior, {}, others, scaled)] if others else [])]


def drawn(blocks: Iterable[Block], key: Array, position: Tree, covariances: Iterable) -> Tree:
    """Draw from the Gaussian about a position; sites in no block stay there."""
    position = dict(position)
    for i, (block, own) in enumerate(zip(blocks, covariances, strict=True)):
        for site, change in block.draw(jax.random.fold_in(key, i), own).items():
            position[site] += change
    return position


def fitted(blocks: Iterable[Block], position: Tree, covariances: Iterable) -> dict[str, Array]:
    """Name the Gaussian's parameters for the group ``fitted``."""
    scales = jax.tree.map(jnp.zeros_like, position)
    roots: dict[str, Array] = {}
    for block, own in zip(blocks, covariances, strict=True):
        scales |= block.scales(own)
        roots |= block.root(own)
    locs = {f"{site}.loc": mean for site, mean in position.items()}
    return locs | {f"{site}.scale": scale for site, scale in scales.items()} | roots


def _diagonal(
    posterior: Posterior, layers: dict[str, LayerCall], sites: list[str], scaled: set[str]
) -> Diagonal:
    return Diagonal(posterior, layers, sites, [site for site in sites if site in scaled])


def _joint(posterior: Posterior, sites: list[str], position: Tree, scaled: set[str]) -> Joint:
    shapes = {site: position[site].shape for site in sites}
    num_weights = sum(math.prod(shape) for shape in shapes.values())
    if num_weights > _MOST_WEIGHTS:
        raise ValueError(
            f"got {num_weights} weights with a full covariance, expected at most "
            f"{_MOST_WEIGHTS}: use structure='kronecker'"
        )
    return Joint(posterior, shapes, [site for site in sites if site in scaled])
