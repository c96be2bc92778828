"""Order by time: window, late publications, clocks that jump, limits."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.publications import Publication
from skipring.order.gaps import Backlog, Gap, Release, place_of
from skipring.order.time_order import SECOND_US, TimeOrder

START = 1_800_000_000 * SECOND_US
WAIT_S = 2.0
NO_LIMITS = Backlog(1 << 20, 1 << 30)


def made(time_s: float, publisher: str = "a", seq: int = 0, size: int = 1) -> Publication:
    time = START + int(time_s * SECOND_US)
    return Publication(publisher=publisher, seq=seq, payload=b"x" * size, time=time)


def order(limits: Backlog = NO_LIMITS) -> TimeOrder[Publication]:
    return TimeOrder(wait_s=WAIT_S, clock_us=START, limits=limits)


def add(at: TimeOrder[Publication], *publications: Publication) -> list[Release[Publication]]:
    found: list[Release[Publication]] = []
    for each in publications:
        found += released(at.add(each.publisher, each.seq, each.seq + 1, [each]))
    return found


def released(items: list[Release[Publication] | Gap]) -> list[Release[Publication]]:
    return [each for each in items if not isinstance(each, Gap)]


def at_time(
    at: TimeOrder[Publication], now_s: float, clock_s: float | None = None
) -> list[Release[Publication]]:
    clock_s = now_s if clock_s is None else clock_s
    at.on_time(now_s, START + int(clock_s * SECOND_US))
    return released(at.expire(at.now, float("-inf")))


def times(found: list[Release[Publication]]) -> list[float]:
    return [(one.time - START) / SECOND_US for each in found for one in each.publications]


def test_publications_are_released_by_time_once_the_window_has_passed() -> None:
    at = order()
    assert add(at, made(1.0), made(0.5, "b"), made(1.0, seq=1), made(0.75)) == []
    assert times(at_time(at, 2.8)) == [0.5, 0.75]
    assert at.held_records == 2
    found = at_time(at, 3.0)
    assert [each.publications[0].seq for each in found] == [0, 1]


def test_publication_is_late_if_a_later_one_was_released() -> None:
    at = order()
    add(at, made(1.0))
    at_time(at, 3.0)
    (late,) = add(at, made(0.9))
    assert (late.is_late, late.is_ahead) == (True, False)


def test_publication_after_its_window_is_in_order_if_no_later_one_was_released() -> None:
    at = order()
    at_time(at, 100.0)
    assert add(at, made(1.0)) == []
    assert [each.is_late for each in at_time(at, 100.1)] == [False]


def test_publication_ahead_of_the_clock_is_marked_and_makes_no_other_late() -> None:
    at = order()
    (ahead,) = add(at, made(3600.0, "evil"))
    assert ahead.is_ahead
    assert add(at, made(1.0)) == []
    assert times(at_time(at, 3.0)) == [1.0]


def test_clock_that_was_set_back_holds_nothing_for_more_than_four_windows() -> None:
    at = order()
    at_time(at, 10.0)
    add(at, made(11.9))  # within the window of a clock at 10
    at_time(at, 11.0, clock_s=-3600)
    assert times(at_time(at, 10.0 + 4 * WAIT_S, clock_s=-3600 + 7)) == [11.9]


def test_clock_that_was_set_forward_loses_nothing() -> None:
    at = order()
    at_time(at, 1.0)
    add(at, made(1.0), made(0.5))
    found = at_time(at, 2.0, clock_s=7200)
    add(at, made(2.0))
    found += at_time(at, 3.0, clock_s=3.0)
    assert times(found) == [0.5, 1.0, 2.0]


def test_nothing_is_released_before_everything_that_arrived_was_added() -> None:
    at = order()
    add(at, made(0.0))
    at.on_time(100.0, START + 100 * SECOND_US)
    assert at.expire(START, float("-inf")) == []  # arrivals after START are unread


@pytest.mark.parametrize("limits", [Backlog(100, 1 << 20), Backlog(1 << 20, 1000)])
def test_limits_release_the_earliest(limits: Backlog) -> None:
    at = order(limits)
    publications = [made(place / 1000, size=10) for place in range(1000)]
    Random(1).shuffle(publications)
    found = add(at, *publications)
    assert at.held_records <= 100
    assert at.held_bytes <= max(1000, 100 * 10)
    found += released(at.flush())
    assert sorted(times(found)) == sorted(times([Release(publications)]))
    in_order = times([each for each in found if not each.is_late])
    assert in_order == sorted(in_order)


def test_passed_goes_back_to_publications_without_a_reader() -> None:
    at = order()
    first, second = made(1.0), made(1.5)
    add(at, first, second)
    at_time(at, 9.0)
    assert at.passed() == place_of(second)
    assert at.passed([place_of(first)]) == place_of(first)
    again = TimeOrder[Publication](wait_s=WAIT_S, clock_us=START, passed=place_of(first))
    assert add(again, first, second) == []


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4), st.integers(0, 9)), max_size=50))
def test_any_arrivals_are_released_once_and_unmarked_ones_in_order(
    arrivals: list[tuple[int, int, int]],
) -> None:
    at = order(Backlog(10, 1 << 20))
    found: list[Release[Publication]] = []
    now_s = 0.0
    for place, (offset_s, passed_s, jump_s) in enumerate(arrivals):
        now_s += passed_s
        found += add(at, made(now_s + offset_s, "abc"[place % 3], place))
        found += at_time(at, now_s, now_s + (3600 if jump_s == 9 else -jump_s))
    found += released(at.flush())
    every = [one.seq for each in found for one in each.publications]
    assert sorted(every) == list(range(len(arrivals)))
    in_order = [
        place_of(one)
        for each in found
        for one in each.publications
        if not (each.is_late or each.is_ahead)
    ]
    assert in_order == sorted(in_order)


def test_time_order_equals_sorting_when_nothing_is_late() -> None:
    rng, at = Random(5), order()
    publications = [made(place / 100, rng.choice("abc"), place) for place in range(2000)]
    delays = [(each.time / SECOND_US + rng.uniform(0, WAIT_S), each) for each in publications]
    found: list[Release[Publication]] = []
    for now_s, each in sorted(delays, key=lambda arrival: arrival[0]):
        found += at_time(at, now_s - START / SECOND_US)
        found += add(at, each)
    found += released(at.flush())
    assert not any(each.is_late or each.is_ahead for each in found)
    assert [each.publications[0] for each in found] == sorted(publications, key=place_of)
