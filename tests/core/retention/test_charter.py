"""Charters: their record, and which of them is in effect."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec import msgpack

from skipring.core.batches import BatchRecord
from skipring.core.retention.charter import (
    CHARTER_KEY,
    Charter,
    CharterRow,
    Policy,
    charter_of,
    charter_record,
    effective,
    superseded,
)
from skipring.core.retention.topic_clock import TopicClock

TOL = 60


def clock_at(own: int, *neighbours: int) -> TopicClock:
    clock = TopicClock(TOL)
    clock.on_tick(own, 0)
    for number, each in enumerate(neighbours):
        clock.record(f"n{number}", each)
    return clock


def row(stamp: int, start: int = 0, *, epoch: int = 0, id_: bytes = b"i") -> CharterRow:
    return Charter(epoch=epoch, stamp=stamp, effective_from=start), id_


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
    ("rows", "expected"),
    [
        ([], None),
        ([row(5), row(7)], row(7)),
        ([row(5, epoch=2), row(7)], row(5, epoch=2)),
        ([row(5, id_=b"x"), row(5, id_=b"y")], row(5, id_=b"y")),
        ([row(5), row(7, 1001)], row(5)),  # not in effect yet
        ([row(5), row(1000 + TOL)], row(1000 + TOL)),
        ([row(5), row(1001 + TOL)], row(5)),  # in the future
        ([row(5, 2000)], None),
    ],
)
def test_effective_charter_is_the_highest_that_has_begun(
    rows: list[CharterRow], expected: CharterRow | None
) -> None:
    found = {effective(order, clock_at(1000)) for order in permutations(rows)}
    assert found == {expected}


def test_charter_begins_by_the_earlier_of_own_and_topic_clock() -> None:
    rows = [row(5), row(7, 900)]
    assert effective(rows, clock_at(800, 1000, 1000)) == row(5)  # own clock is slow
    assert effective(rows, clock_at(1000, 800, 800)) == row(5)
    assert effective(rows, clock_at(900, 1000, 1000)) == row(7, 900)


def test_charter_is_superseded_once_its_successor_is_in_effect() -> None:
    rows = [row(5, id_=b"x"), row(6, id_=b"w"), row(7, 2000, id_=b"y")]
    assert superseded(rows, None) == []
    assert superseded(rows, effective(rows, clock_at(1000))) == [b"x"]
    assert superseded(rows, effective(rows, clock_at(2000))) == [b"x", b"w"]


def test_policy_states_its_limits_in_microseconds() -> None:
    policy = Policy(max_age_s=7, compact=True, tombstones_s=9)
    assert (policy.age_us, policy.tombstones_us) == (7_000_000, 9_000_000)
    assert Policy().tombstones_us is None
    assert Policy(compact=True, tombstones_s=None).tombstones_us is None
    assert [each.is_limited for each in (policy, Policy(), Policy(max_bytes=1))] == [1, 0, 1]
    assert [each.needs_times for each in (policy, Policy(max_count=3))] == [1, 0]
