"""The front against its definition, with ties and duplicates."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.analysis.pareto import front


def by_definition(points: np.ndarray) -> list[bool]:
    return [not any((q <= p).all() and (q < p).any() for q in points) for p in points]


# Few distinct numbers, so that ties and duplicates are common.
@given(
    st.integers(2, 3).flatmap(
        lambda d: st.lists(
            st.lists(st.integers(0, 4), min_size=d, max_size=d), min_size=1, max_size=12
        )
    )
)
@settings(max_examples=200, deadline=None)
def test_front_is_its_definition(points: list[list[int]]) -> None:
    array = np.array(points, dtype=float)
    assert front(array).tolist() == by_definition(array)


def test_unmeasured_points_are_on_no_front() -> None:
    points = np.array([[1.0, 2.0], [np.nan, 0.0], [2.0, 1.0], [2.0, 3.0]])
    assert front(points).tolist() == [True, False, True, False]


def test_no_points() -> None:
    assert front(np.empty((0, 2))).tolist() == []
