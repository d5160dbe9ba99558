"""Fronts, hypervolume and membership against their definitions, with ties and duplicates."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.analysis import pareto


def sets_of_points(most: int = 12) -> st.SearchStrategy[list[list[int]]]:
    """Points in two or three objectives; few distinct numbers, so ties and duplicates are common."""
    return st.integers(2, 3).flatmap(
        lambda d: st.lists(
            st.lists(st.integers(0, 4), min_size=d, max_size=d), min_size=1, max_size=most
        )
    )


def front_by_definition(points: np.ndarray) -> list[bool]:
    return [not any((q <= p).all() and (q < p).any() for q in points) for p in points]


def volume_by_counting(points: np.ndarray, corner: np.ndarray) -> int:
    """Unit cells below the corner that some point dominates."""
    cells = itertools.product(*(range(int(c)) for c in corner))
    return sum(any((p <= cell).all() for p in points) for cell in map(np.array, cells))


@given(sets_of_points())
@settings(max_examples=200, deadline=None)
def test_front_is_its_definition(points: list[list[int]]) -> None:
    array = np.array(points, dtype=float)
    assert pareto.front(array).tolist() == front_by_definition(array)


@given(sets_of_points(6))
@settings(max_examples=60, deadline=None)
def test_hypervolume_is_the_cells_it_holds(points: list[list[int]]) -> None:
    array = np.array(points, dtype=float)
    corner = np.full(array.shape[1], 5.0)
    assert pareto.hypervolume(array, corner) == volume_by_counting(array, corner)


@given(
    st.integers(2, 3).flatmap(
        lambda d: st.lists(
            st.lists(st.lists(st.integers(0, 3), min_size=d, max_size=d), min_size=5, max_size=5),
            min_size=1,
            max_size=8,
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_membership_is_the_share_of_fronts(draws: list[list[list[int]]]) -> None:
    array = np.array(draws, dtype=float)
    expected = np.mean([front_by_definition(points) for points in array], axis=0)
    assert pareto.membership(array) == pytest.approx(expected)


def test_unmeasured_points_are_on_no_front() -> None:
    points = np.array([[1.0, 2.0], [np.nan, 0.0], [2.0, 1.0], [2.0, 3.0]])
    assert pareto.front(points).tolist() == [True, False, True, False]
    assert pareto.hypervolume(points, np.array([3.0, 3.0])) == 3.0


def test_no_points() -> None:
    assert pareto.front(np.empty((0, 2))).tolist() == []


@given(sets_of_points(10))
@settings(max_examples=100, deadline=None)
def test_knee_lies_deepest_below_the_line_between_the_ends(points: list[list[int]]) -> None:
    array = np.array(points, dtype=float)[:, :2]
    on_front = [p for p, is_on in zip(array, front_by_definition(array), strict=True) if is_on]
    found = pareto.knee(array)
    spread = np.ptp(array, axis=0)
    spread[spread == 0] = 1
    scaled = sorted({tuple((p - array.min(axis=0)) / spread) for p in on_front})
    if len(scaled) < 3:
        assert found is None
        return
    (x0, y0), (x1, y1) = scaled[0], scaled[-1]
    depth = [y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y for x, y in scaled]
    if max(depth) <= 1e-9:
        assert found is None
    else:
        assert found is not None
        x, y = (array[found] - array.min(axis=0)) / spread
        assert y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y == pytest.approx(max(depth))
