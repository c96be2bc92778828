"""Topic clock: median of three clocks, and what a broken or corrupted clock can do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.limits import NUMBER_MAX
from skipring.core.retention.topic_clock import ClockState, NeighbourClock, TopicClock

S = 1_000_000
NOW, TOL = 1_700_000_000 * S, 60 * S
numbers = st.integers(-(1 << 70), 1 << 70)


def clock_of(own: int, *others: int, monotonic: int = 0) -> TopicClock:
    clock = TopicClock(TOL)
    clock.on_tick(own, monotonic)
    for name, each in zip("abcdefghijkl", others, strict=False):
        clock.record(name, each)
    return clock


@pytest.mark.parametrize(
    ("own", "others", "topic"),
    [
        (NOW, (), NOW),
        (NOW, (NOW + 900 * S,), NOW),  # one neighbour cannot outvote this member
        (NOW, (NOW - 5, NOW + 9), NOW),
        (NOW + 900 * S, (NOW - 5, NOW + 9), NOW + 9),  # broken own clock
        (NOW, (NOW + 5, 1), NOW),  # broken neighbour
        (NOW, (NOW + 800 * S, NOW + 900 * S), NOW + 800 * S),  # both are broken
        (NOW, (0, NOW + 9), NOW),  # a neighbour without a clock
        (0, (NOW, NOW), 0),  # no own clock
    ],
)
def test_topic_clock_is_the_median_of_own_and_two_neighbours(
    own: int, others: tuple[int, ...], topic: int
) -> None:
    clock = clock_of(own, *others)
    assert (clock.topic, clock.earlier) == (topic, min(own, topic))


def test_two_broken_neighbours_delay_deletions_and_never_hasten_them() -> None:
    for wrong in (900 * S, -900 * S):
        assert clock_of(NOW, NOW + wrong, NOW + wrong + 1).earlier <= NOW


def test_jump_of_own_clock_does_not_move_the_neighbours() -> None:
    clock = clock_of(NOW, NOW, NOW + 1, monotonic=7)
    clock.on_tick(NOW + 3600 * S, 7 + S)
    assert clock.topic == NOW + 1 + S
    assert clock.is_off
    assert clock.deviation == 3600 * S - S - 1


@pytest.mark.parametrize(
    ("others", "is_off"), [((NOW,), False), ((NOW, NOW + 59 * S), False), ((NOW, NOW + 1), True)]
)
def test_clock_is_off_if_it_differs_from_both_neighbours(
    others: tuple[int, ...], is_off: bool
) -> None:
    assert clock_of(NOW + 90 * S, *others).is_off is is_off


def test_clock_that_arrives_before_the_first_tick_is_ignored() -> None:
    clock = TopicClock(TOL)
    for node in "ab":
        clock.record(node, NOW)
    clock.on_tick(NOW + 1, 4850 * S)  # the monotonic clock does not start at 0
    assert (clock.topic, clock.state().neighbours) == (NOW + 1, {})


def test_clocks_of_former_neighbours_are_forgotten() -> None:
    clock = clock_of(NOW, NOW - 9, NOW - 8)
    clock.retain({"b", "c"})
    assert clock.topic == NOW
    assert list(clock.state().neighbours) == ["b"]


def test_number_of_recorded_clocks_is_limited() -> None:
    assert len(clock_of(NOW, *range(NOW, NOW + 12)).state().neighbours) == 8


@pytest.mark.parametrize(
    ("last", "newest", "stamp"),
    [
        (0, 0, NOW),
        (NOW + 5, 0, NOW + 6),
        (NOW + 5, NOW + 8, NOW + 9),
        (NOW + 5, NOW + TOL + 1, NOW + 6),  # from the future
        (1 << 62, -3, NOW),  # corrupted
        (NOW + TOL, NOW + TOL - 1, NOW + TOL),
    ],
)
def test_stamp_follows_what_the_member_has_seen_within_the_tolerance(
    last: int, newest: int, stamp: int
) -> None:
    clock = clock_of(NOW)
    assert clock.stamp(last, newest) == stamp
    assert not clock.is_future(stamp)


def test_without_a_clock_no_stamp_is_in_the_future() -> None:
    clock = TopicClock(TOL)
    assert not clock.is_future(NUMBER_MAX)
    assert (clock.earlier, clock.is_off, clock.stamp(3, 8)) == (0, False, 9)


@given(numbers, numbers, st.dictionaries(st.sampled_from("abcd"), st.tuples(numbers, numbers)))
def test_corrupted_clocks_are_clamped_and_overwritten(
    own: int, monotonic: int, neighbours: dict[str, tuple[int, int]]
) -> None:
    clock = TopicClock(TOL)
    heard = {node: NeighbourClock(*each) for node, each in neighbours.items()}
    clock.load(ClockState(own=own, monotonic=monotonic, neighbours=heard))
    assert 0 <= clock.earlier <= clock.topic <= NUMBER_MAX or clock.earlier == clock.own
    assert 0 <= clock.horizon <= NUMBER_MAX
    clock.on_tick(NOW, 0)
    clock.retain({"a", "b"})
    for node in "ab":
        clock.record(node, NOW)
    assert clock.topic == NOW


def test_state_is_the_clocks() -> None:
    clock, copy = clock_of(NOW, NOW + 1, NOW + 2, monotonic=5), TopicClock(TOL)
    copy.load(clock.state())
    assert (copy.state(), copy.topic) == (clock.state(), NOW + 1)
