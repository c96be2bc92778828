"""Charters: their record, and which of them is in effect."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from skipring.core.batches import BatchRecord
from skipring.core.limits import NUMBER_MAX
from skipring.core.retention.charter import (
    CHARTER_KEY,
    DELAY_MAX_US,
    FINAL_US,
    UNLIMITED,
    US,
    Charter,
    PlannedCharter,
    Policy,
    charter_of,
    charter_record,
    effective,
    final_charter,
    following_charter,
    rank,
)
from skipring.core.retention.topic_clock import TopicClock

TOL = 60
NOW = 10 * FINAL_US
MINUTE = 60 * US


def clock_at(own: int, *neighbours: int) -> TopicClock:
    clock = TopicClock(TOL)
    clock.on_tick(own, 0)
    for number, each in enumerate(neighbours):
        clock.record(f"n{number}", each)
    return clock


def planned(stamp: int, begin: int = 0, *, id_: bytes = b"i") -> PlannedCharter:
    return PlannedCharter((Charter(stamp=stamp, effective_from=begin), id_), begin)


def minutes(stamp: int, begin: int) -> PlannedCharter:
    """Return a charter that was written and begins at some minutes after NOW."""
    return planned(NOW + stamp * MINUTE, NOW + begin * MINUTE)


def test_charter_is_read_back_from_its_record() -> None:
    charter = Charter(stamp=5, effective_from=9, policy=Policy(max_age_s=7, compact=True))
    assert charter_of(charter_record(charter)) == charter
    assert charter_record(charter).time == 5


def test_unknown_fields_of_later_versions_are_ignored() -> None:
    fields = {"stamp": 5, "policy": {"max_count": 2, "sealed": True}, "admins": [b"k"]}
    record = BatchRecord(msgpack.encode(fields), 5, CHARTER_KEY)
    assert charter_of(record) == Charter(stamp=5, policy=Policy(max_count=2))


@pytest.mark.parametrize(
    "fields", [{}, 3, {"stamp": -1}, {"stamp": 1, "policy": {"max_count": 0}}, {"stamp": "x"}]
)
def test_unreadable_charter_is_no_charter(fields: object) -> None:
    assert charter_of(BatchRecord(msgpack.encode(fields), 5, CHARTER_KEY)) is None


@pytest.mark.parametrize(
    ("epoch", "stamp", "start", "is_one"),
    [(0, 5, 5, 1), (1, 5, 5, 0), (NUMBER_MAX, 5, 5, 0), (0, 6, 6, 0), (0, 5, 6 + DELAY_MAX_US, 0)],
    ids=["sound", "epoch", "greatest epoch", "stamp above the time of its record", "late"],
)
def test_charter_out_of_bounds_is_no_charter(
    epoch: int, stamp: int, start: int, is_one: int
) -> None:
    fields = {"epoch": epoch, "stamp": stamp, "effective_from": start}
    record = BatchRecord(msgpack.encode(fields), 5, CHARTER_KEY)
    assert (charter_of(record) is not None) is bool(is_one)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], None),
        ([planned(5), planned(7)], 1),
        ([planned(5, id_=b"x"), planned(5, id_=b"y")], 1),
        ([planned(5), planned(7, NOW + 1)], 0),  # not in effect yet
        ([planned(5, NOW + 1)], None),
    ],
)
def test_effective_charter_is_the_highest_that_has_begun(
    known: list[PlannedCharter], expected: int | None
) -> None:
    found = {effective(order, clock_at(NOW)) for order in permutations(known)}
    assert found == {None if expected is None else known[expected].row}


def test_charter_begins_by_the_earlier_of_own_and_topic_clock_unless_a_neighbour_confirms_it() -> (
    None
):
    first, second = planned(5), planned(7, 900)
    assert effective([first, second], clock_at(800, 1000, 1000)) == first.row  # own clock is slow
    assert effective([first, second], clock_at(1000, 800, 800)) == first.row
    assert effective([first, second], clock_at(900, 1000, 1000)) == second.row
    assert effective([first, second], clock_at(800, 1000, 1000), b"i") == second.row


POLICY, MISTAKE, UNDO, AGAIN = planned(5), minutes(0, 10), minutes(3, 13), minutes(12, 22)


@pytest.mark.parametrize(
    ("known", "at", "expected"),
    [
        ([POLICY, MISTAKE], 10, MISTAKE),
        ([POLICY, MISTAKE, UNDO], 10, POLICY),
        ([POLICY, MISTAKE, UNDO], 13, UNDO),
        ([POLICY, MISTAKE, minutes(10, 20)], 12, MISTAKE),  # written after it has begun
        ([POLICY, MISTAKE, UNDO, AGAIN], 14, POLICY),  # the undo is cancelled, the mistake stays so
        ([POLICY, MISTAKE, UNDO, AGAIN], 22, AGAIN),
        ([POLICY, MISTAKE, minutes(3, 24 * 60 + 20)], 24 * 60 + 10, MISTAKE),  # final
    ],
)
def test_charter_is_void_once_a_later_one_was_written_before_it_begins(
    known: list[PlannedCharter], at: int, expected: PlannedCharter
) -> None:
    clock = clock_at(NOW + at * MINUTE)
    assert {effective(order, clock) for order in permutations(known)} == {expected.row}


def test_charter_is_settled_a_day_after_it_has_begun() -> None:
    known = [planned(5), planned(6, 9), planned(NOW, NOW + MINUTE)]
    assert final_charter([], clock_at(NOW)) is None
    assert final_charter(known, clock_at(8 + FINAL_US)) == known[0].row
    assert final_charter(known, clock_at(9 + FINAL_US)) == known[1].row
    assert final_charter(known, clock_at(NOW + MINUTE + FINAL_US)) == known[2].row


plans = st.lists(
    st.builds(
        lambda stamp, delay, name: planned(
            stamp * FINAL_US // 4,
            (stamp + delay) * FINAL_US // 4,
            id_=name + bytes([delay]),
        ),
        st.integers(1, 24),
        st.integers(0, 9),
        st.sampled_from([b"i", b"j"]),
    ),
    max_size=6,
)


@given(plans, plans, st.integers(0, 40))
def test_charters_that_are_kept_obey_the_algebra(
    a: list[PlannedCharter], b: list[PlannedCharter], quarters: int
) -> None:
    clock = clock_at(quarters * FINAL_US // 4 + 1)

    def kept(found: Iterable[PlannedCharter]) -> set[PlannedCharter]:
        every = set(found)
        lowest = final_charter(every, clock)
        return {each for each in every if lowest is None or rank(each.row) >= rank(lowest)}

    union = kept([*a, *b])
    assert kept(kept(a) | kept(b)) == union
    assert effective(union, clock) == effective([*a, *b], clock)
    assert kept(a) & union == set(a) & union


def test_following_charter_has_a_higher_stamp_and_the_delay() -> None:
    newest = Charter(stamp=9)
    assert following_charter(UNLIMITED, newest, 5, 7).stamp == 10
    assert following_charter(UNLIMITED, newest, 15, 7).effective_from == 22


def test_policy_states_its_limits_in_microseconds() -> None:
    policy = Policy(max_age_s=7, compact=True, tombstones_s=9)
    assert (policy.age_us, policy.tombstones_us) == (7_000_000, 9_000_000)
    assert Policy().tombstones_us is None
    assert Policy(compact=True, tombstones_s=None).tombstones_us is None
    assert [each.is_limited for each in (policy, Policy(), Policy(max_bytes=1))] == [1, 0, 1]
    assert [each.needs_times for each in (policy, Policy(max_count=3))] == [1, 0]
