"""Fronts: which layouts no other layout beats on every objective, and how surely.

All objectives are minimised. Points are (n, objectives); NaN marks what was not measured.
"""

import moocore
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def front(points: Array) -> NDArray[np.bool_]:
    """Which points are on the front; one with NaN never is.

    A point is beaten when another is at least as good in every objective and better in one, so
    points with the same figures stand or fall together.
    """
    known = ~np.isnan(points).any(axis=1)
    on_front = np.zeros(len(points), dtype=bool)
    if known.any():
        on_front[known] = moocore.is_nondominated(points[known], keep_weakly=True)
    return on_front


def membership(draws: Array) -> Array:
    """Share of the draws in which each point is on the front, (n,). draws: (draws, n, objectives)."""
    return np.mean([front(points) for points in draws], axis=0)


def worst(points: Array) -> Array:
    """The worst of each objective, (objectives,): the corner that hypervolume is taken from."""
    corner: Array = np.nanmax(points, axis=0)
    return corner


def hypervolume(points: Array, corner: Array) -> float:
    """Volume that the points dominate before `corner`, in the product of the objectives' units."""
    known = points[~np.isnan(points).any(axis=1)]
    return float(moocore.hypervolume(known, ref=corner)) if len(known) else 0.0


def scaled(points: Array) -> Array:
    """Every objective from 0 (its best) to 1 (its worst), so that they can be weighed together."""
    low, high = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
    return (points - low) / np.where(high > low, high - low, 1)


def knee(points: Array) -> int | None:
    """The front's bend in two objectives: the point farthest below the line between its ends.

    Its place in `points`; None where the front has fewer than three different points, or no bend.
    """
    inside = front(points)
    if len(np.unique(points[inside], axis=0)) < 3:
        return None
    at = np.flatnonzero(inside)
    x, y = scaled(points[at]).T
    first, last = np.argmin(x), np.argmax(x)
    slope = (y[last] - y[first]) / (x[last] - x[first])
    below = y[first] + slope * (x - x[first]) - y
    deepest = int(np.argmax(below))
    return int(at[deepest]) if below[deepest] > 1e-9 else None
