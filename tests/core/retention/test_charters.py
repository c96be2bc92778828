"""Charters of a topic: which are known, and which one is in effect."""

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log import MemoryLog
from skipring.core.retention.charters import (
    CHARTER_BYTES_MAX,
    CHARTERS_KEPT,
    Charters,
)
from skipring.core.retention.topic_clock import TopicClock
from tests.support.retention import AGED, COUNTED, HOUR, NOW, charter_row, row


def clock_at(now: int = NOW) -> TopicClock:
    clock = TopicClock(60_000_000)
    clock.on_tick(now, now)
    return clock


def known(*batches: RecordBatch, now: int = NOW) -> Charters:
    """Return the charters of a log of these batches, which each have one record."""
    found = Charters(MemoryLog(batches))
    for offset, batch in enumerate(batches):
        found.record(offset, batch, batch.records())
    found.choose(clock_at(now))
    return found


def test_highest_charter_in_effect_acts() -> None:
    rows = [charter_row(AGED), charter_row(COUNTED, seq=1001, stamp=2)]
    late = charter_row(AGED, seq=1002, stamp=3, start=NOW + HOUR)
    found = known(*rows, late)
    assert found.batches() == (rows[1],)
    assert [each.batch for each in found.superseded()] == [rows[0]]


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
    found = Charters(MemoryLog([charter_row(AGED)]))
    other = charter_row(COUNTED, seq=1001, stamp=9)
    found.record(0, other, other.records())
    found.audit()
    found.choose(clock_at())
    assert (found.acting, len(found)) == (None, 0)


def test_charters_are_read_at_saved_offsets_only() -> None:
    log = MemoryLog([row(0), charter_row(AGED), charter_row(COUNTED, seq=1001)])
    found = Charters(log)
    found.load([0, 1, 77, -3])
    assert found.offsets == [1]


def test_number_of_known_charters_is_limited() -> None:
    rows = [charter_row(AGED, seq=k, stamp=k) for k in range(CHARTERS_KEPT + 9)]
    found = known(*rows)
    assert len(found) == CHARTERS_KEPT
    assert found.batches() == (rows[-1],)


def test_charter_below_the_effective_one_or_too_long_is_refused() -> None:
    found = known(charter_row(AGED, stamp=5))
    low = charter_row(COUNTED, seq=1001, stamp=4)
    long = BatchRecord(low.records()[0].payload, 9, low.records()[0].key, {"x": "y" * 5000})
    big = RecordBatch.of([long], publisher="z", first=7, topic="news")
    assert len(big.body) > CHARTER_BYTES_MAX
    assert not found.admits(low, low.records()[0])
    assert not found.admits(big, long)
    assert found.admits(row(1), BatchRecord(b"", key=b"\0other"))
