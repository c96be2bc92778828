"""Soak: the slope of the fitted line."""

from __future__ import annotations

import pytest

from faults.soak import slope


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], 0.0),
        ([(1.0, 5.0)], 0.0),
        ([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)], 2.0),
        ([(0.0, 2.0), (1.0, 1.0), (2.0, 2.0)], 0.0),
        ([(3.0, 1.0), (3.0, 9.0)], 0.0),
    ],
)
def test_slope_is_that_of_the_least_squares_line(
    points: list[tuple[float, float]], expected: float
) -> None:
    assert slope(points) == pytest.approx(expected)
