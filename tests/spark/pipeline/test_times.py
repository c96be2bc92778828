"""Sets of times: merged ranges, windows and dates."""

from __future__ import annotations

from datetime import date

import pytest

from skipring.spark.pipeline.times import MICROSECONDS, MINUTE_US, SPANS_MAX, Times

HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


def test_adjacent_minutes_are_one_range() -> None:
    assert Times.of_minutes([7, 5, 6]).spans == ((5 * MINUTE_US, 8 * MINUTE_US - 1),)


def test_nearest_ranges_are_merged_beyond_the_limit() -> None:
    minutes = [10 * number for number in range(SPANS_MAX)]
    found = Times.of_minutes([*minutes, 2])
    assert len(found.spans) == SPANS_MAX
    assert found.spans[0] == (0, 3 * MINUTE_US - 1)


def test_windows_are_whole() -> None:
    found = Times.of_minutes([61, 119, 300]).aligned(3600)
    assert found.spans == ((HOUR_US, 2 * HOUR_US - 1), (5 * HOUR_US, 6 * HOUR_US - 1))


def test_ranges_are_extended_and_joined() -> None:
    found = Times.of_minutes([10]).extended(before_s=60, after_s=120)
    assert found.spans == ((9 * MINUTE_US, 13 * MINUTE_US - 1),)
    assert found.joined(Times.of_minutes([12], has_null=True)) == Times(found.spans, has_null=True)
    assert not Times()
    assert Times(has_null=True)


@pytest.mark.parametrize(
    ("span", "expected"),
    [((0, HOUR_US), True), ((HOUR_US, 2 * HOUR_US), False), ((59 * MINUTE_US, DAY_US), True)],
)
def test_file_overlaps_if_it_may_have_rows(span: tuple[int, int], expected: bool) -> None:
    assert Times.of_minutes([5, 59]).overlaps(span) == expected


def test_file_without_times_overlaps_only_rows_without_a_time() -> None:
    assert Times(has_null=True).overlaps(None)
    assert not Times.of_minutes([5]).overlaps(None)


def test_dates_of_a_range_are_found() -> None:
    times = Times.of([(DAY_US - MICROSECONDS, DAY_US)])
    days = [date(1970, 1, day) for day in (1, 2, 3)]
    assert [times.has_date(day) for day in days] == [True, True, False]
    assert not times.has_date(None)
