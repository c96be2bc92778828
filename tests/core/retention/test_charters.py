"""Charters of a topic: which are known, and which one is in effect."""

import pytest

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log import MemoryLog
from skipring.core.retention.charters import (
    CHARTER_BYTES_MAX,
    CHARTERS_KEPT,
    Charters,
)
from skipring.core.retention.topic_clock import TopicClock
from tests.support.retention import AGED, COUNTED, HOUR, NOW, charter_row, row

DELAY = 600_000_000


def clock_at(now: int = NOW) -> TopicClock:
    clock = TopicClock(60_000_000)
    clock.on_tick(now, now)
    return clock


def known(*batches: RecordBatch, now: int = NOW) -> Charters:
    """Return the charters of a log of these batches, which each have one record."""
    found = Charters(MemoryLog(batches), DELAY)
    for offset, batch in enumerate(batches):
        found.record(offset, batch, batch.records())
    found.choose(clock_at(now))
    return found


def test_highest_charter_in_effect_acts() -> None:
    rows = [charter_row(AGED), charter_row(COUNTED, seq=1001, stamp=2)]
    late = charter_row(AGED, seq=1002, stamp=NOW, start=NOW + HOUR)
    found = known(*rows, late)
    assert found.batches() == (rows[1], late)
    assert [each.batch for each in found.superseded(clock_at())] == [rows[0]]


def test_charter_of_a_ring_neighbour_acts_by_the_topic_clock_although_the_own_clock_is_behind() -> (
    None
):
    charter = charter_row(AGED, stamp=NOW, start=NOW)
    found, clock = known(charter), clock_at(NOW - 9 * HOUR)
    for node in "ab":
        clock.record(node, NOW)
    found.choose(clock)
    assert found.acting is None
    found.confirm(charter.id)
    found.choose(clock)
    assert found.batches() == (charter,)


def test_charter_from_the_future_is_removed_and_never_acts() -> None:
    early = charter_row(AGED, stamp=NOW + HOUR)
    found = known(early)
    found.confirm(early.id)
    found.choose(clock_at())
    assert found.acting is None
    assert [each.batch for each in found.early(clock_at())] == [early]


def test_audit_forgets_charters_that_the_log_does_not_have() -> None:
    found = Charters(MemoryLog([charter_row(AGED)]), DELAY)
    other = charter_row(COUNTED, seq=1001, stamp=9)
    found.record(0, other, other.records())
    found.audit()
    found.choose(clock_at())
    assert (found.acting, len(found)) == (None, 0)


def test_charters_are_read_at_saved_offsets_only() -> None:
    log = MemoryLog([row(0), charter_row(AGED), charter_row(COUNTED, seq=1001)])
    found = Charters(log, DELAY)
    found.load([0, 1, 77, -3])
    assert found.offsets == [1]


def test_number_of_known_charters_is_limited_and_the_effective_one_stays() -> None:
    acting = charter_row(AGED, stamp=NOW - 9 * HOUR, start=NOW - 9 * HOUR)
    rows = [
        charter_row(COUNTED, seq=k, stamp=NOW + k, start=NOW + 99 * HOUR)
        for k in range(CHARTERS_KEPT + 9)
    ]
    for order in ([acting, *rows], [*rows, acting], [*rows[::-1], acting]):
        found = known(*order)
        assert len(found) == CHARTERS_KEPT
        assert found.acting is not None
        assert found.batches() == (acting, rows[-1])


def test_charter_that_can_never_act_or_is_too_long_is_refused() -> None:
    found, clock = known(charter_row(AGED, stamp=5)), clock_at()
    low = charter_row(COUNTED, seq=1001, stamp=4)
    long = BatchRecord(low.records()[0].payload, 9, low.records()[0].key, {"x": "y" * 5000})
    big = RecordBatch.of([long], publisher="z", first=7, topic="news")
    assert len(big.body) > CHARTER_BYTES_MAX
    assert not found.admits(low, low.records()[0], clock)
    assert not found.admits(big, long, clock)
    assert found.admits(row(1), BatchRecord(b"", key=b"\0other"), clock)
    assert found.admits(low, low.records()[0], clock_at(HOUR))  # the other one may be cancelled


@pytest.mark.parametrize(
    ("stamp", "is_new", "begin"),
    [
        (NOW - 5, True, NOW + DELAY),
        (NOW - 5, False, NOW - 5 + DELAY),
        (NOW - HOUR, True, NOW + DELAY),  # by a slow clock, or to avoid the delay
        (NOW - HOUR, False, NOW - HOUR + DELAY),  # in the history
    ],
)
def test_charter_of_a_topic_with_publications_begins_after_the_delay_of_this_member(
    stamp: int, is_new: bool, begin: int
) -> None:
    log = MemoryLog([row(0)])
    found = Charters(log, DELAY)
    batch = charter_row(AGED, stamp=stamp, start=0)
    found.record(1, batch, batch.records(), is_new=is_new)
    log.append(batch)
    found.choose(clock_at())
    assert found.begins.get(batch.id, stamp + DELAY) == begin
    found.choose(clock_at(begin - 1))
    assert found.acting is None
    found.choose(clock_at(begin))
    assert found.batches() == (batch,)


def test_charters_before_the_first_publication_begin_at_once() -> None:
    first, second = (charter_row(AGED, seq=1000 + k, stamp=NOW + k, start=NOW + k) for k in (0, 1))
    found = Charters(MemoryLog(), DELAY)
    for offset, batch in enumerate((first, second)):
        found.record(offset, batch, batch.records(), is_new=True)
    assert found.begins == {first.id: NOW, second.id: NOW + 1}


@pytest.mark.parametrize("wrong", [-5, 0, NOW + 99 * HOUR, 1 << 70])
def test_corrupted_begin_delays_a_charter_by_the_policy_delay_at_most(wrong: int) -> None:
    start = NOW + HOUR
    batch = charter_row(AGED, stamp=NOW, start=start)
    found = Charters(MemoryLog([row(0), batch]), DELAY)
    found.load([1], begins={batch.id: wrong})
    for now in (start - DELAY - 1, start - 1):
        found.choose(clock_at(now))
        assert found.acting is None
    found.choose(clock_at(start))
    assert found.acting is not None
