"""The plane through three positions: coordinates of its corners and the points of a grid."""

import numpy as np

from bnn_ppl.model.trace import Position

# Least height of the triangle over its longest side: below it, rounding determines the plane.
_FLATTEST = 1e-5


def triangle_of(positions: tuple[Position, ...]) -> np.ndarray:
    """Corners (3, 2) in coordinates of the plane, by Gram-Schmidt in double precision."""
    flat = [
        np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in position.values()])
        for position in positions
    ]
    base, side = flat[1] - flat[0], flat[2] - flat[0]
    length = float(np.linalg.norm(base))
    along = float(side @ base) / length if length else 0.0
    height = float(np.linalg.norm(side - along / length * base)) if length else 0.0
    sides = [length, *(float(np.linalg.norm(flat[2] - end)) for end in flat[:2])]
    if not height > _FLATTEST * max(sides):
        raise ValueError(
            f"got three corners on one line (distances {sides[0]:.4g}, {sides[1]:.4g} and "
            f"{sides[2]:.4g}), expected a triangle: choose draws further apart"
        )
    return np.array([[0.0, 0.0], [length, 0.0], [along, height]])


def grid_lines(
    triangle: np.ndarray, num_points: int, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Grid lines u and v around a triangle with a margin, including those through its corners."""
    low, high = triangle.min(0), triangle.max(0)
    strip = margin * (high - low).max()
    u, v = (
        np.union1d(np.linspace(first - strip, last + strip, num_points), through)
        for first, last, through in zip(low, high, triangle.T, strict=True)
    )
    return u, v


def shares_of_corners(u: np.ndarray, v: np.ndarray, triangle: np.ndarray) -> np.ndarray:
    """Shares (points, 2) of the second and third corner in each point; the first has the rest.

    Barycentric coordinates: exactly 0 or 1 at the corners, which are thus free of rounding.
    """
    (_, (length, _), (along, height)) = triangle
    third = np.broadcast_to((v / height)[:, None], (len(v), len(u)))
    second = (u - third * along) / length
    return np.stack([second, third], axis=-1).reshape(-1, 2)
