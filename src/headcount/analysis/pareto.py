"""Fronts: which layouts no other layout beats on every objective. All objectives are minimised."""

import moocore
import numpy as np
from numpy.typing import NDArray


def front(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows of `points`, (n, objectives), are on the front; a row with NaN never is.

    A point is beaten when another is at least as good in every objective and better in one, so
    points with the same figures stand or fall together.
    """
    known = ~np.isnan(points).any(axis=1)
    on_front = np.zeros(len(points), dtype=bool)
    if known.any():
        on_front[known] = moocore.is_nondominated(points[known], keep_weakly=True)
    return on_front
