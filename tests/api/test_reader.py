"""Reader of one log: start positions, batches, skipped publications, waiting, lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest
from msgspec.structs import replace

from skipring.api import reader as reader_module
from skipring.api.cursor import Start
from skipring.api.reader import FRESH_BYTES_MAX, FRESH_MAX, READ_AT_ONCE, Reader
from skipring.core.batches import RECORDS_MAX, BatchRecord, RecordBatch
from skipring.core.effects import Deliver, Origin
from skipring.core.log import EVERY, EntryFilter, EntryPage, MemoryLog, PageLimits
from skipring.core.retention.charter import Charter, charter_record

NOW = 1_000_000  # microseconds
TOPIC = "news"


# -- one reader and its log ------------------------------------------------------------------


class RecordingLog(MemoryLog):
    """Log that records which offsets are read."""

    def __init__(self) -> None:
        super().__init__()
        self._read: list[int] = []

    def read_page(
        self, start: int, end: int, limits: PageLimits, wanted: EntryFilter = EVERY
    ) -> EntryPage:
        assert start < self.end, "an offset that is not stored is never read"
        self._read.append(start)
        return super().read_page(start, end, limits, wanted)

    def read_offsets(self) -> list[int]:
        """Return the offsets that were read since the last call."""
        read_offsets, self._read = self._read, []
        return read_offsets


class Shelf:
    """Log in memory with a reader that is notified of each stored batch."""

    def __init__(self, start: Start = "all", stored: Iterable[tuple[int, ...]] = ()) -> None:
        self.log = RecordingLog()
        for times in stored:
            self.log.append(self.batch(times))
        self.reader = Reader(self.log, start, NOW)

    def batch(self, times: tuple[int, ...], size: int = 1) -> RecordBatch:
        """Return the next batch, with a record for each time."""
        records = [BatchRecord(b"x" * size, time) for time in times]
        return RecordBatch.of(records, publisher="a", first=self.log.end, topic=TOPIC)

    def put(self, origin: Origin, *times: int, size: int = 1) -> RecordBatch:
        """Store and deliver a batch."""
        batch = self.batch(times, size)
        offset = self.log.append(batch)
        self.deliver(offset, batch, origin=origin)
        return batch

    def deliver(self, offset: int, *batches: RecordBatch, origin: Origin = Origin.SPREAD) -> None:
        records = tuple(batch.records() for batch in batches)
        end = offset + sum(batch.count for batch in batches)
        self.reader.on_deliver(Deliver(batches, records, offset, end, origin, hops=2))

    def read(self, limit: int = 10 * FRESH_MAX) -> list[int]:
        return [publication.offset for publication in self.reader.fetch(limit)]


def test_start_new_skips_only_old_publications_repaired_before_first_sync() -> None:
    shelf = Shelf("new", stored=[(NOW + 1,)])  # 0: stored before the start
    shelf.put(Origin.REPAIR, 0)  # 1
    shelf.put(Origin.REPAIR, NOW - 1)  # 2
    assert (shelf.reader.lag, shelf.reader.offset) == (0, 3)
    shelf.put(Origin.SPREAD, NOW - 1)  # 3: new to all members
    shelf.put(Origin.REPAIR, NOW - 1)  # 4
    shelf.put(Origin.REPAIR, NOW - 1)  # 5
    shelf.put(Origin.REPAIR, NOW)  # 6: published since the start
    shelf.put(Origin.REPAIR, 5)  # 7
    shelf.put(Origin.OWN, NOW + 5)  # 8
    assert shelf.reader.lag == 3
    shelf.reader.end_history()
    shelf.put(Origin.REPAIR, 7)  # 9: delivered, because a doubtful case is delivered
    assert shelf.reader.lag == 4
    assert shelf.read() == [3, 6, 8, 9]
    assert shelf.reader.lag == 0


def test_start_all_skips_nothing() -> None:
    shelf = Shelf("all", stored=[(0,), (5,)])
    shelf.put(Origin.REPAIR, 0)
    assert shelf.reader.lag == 3
    assert shelf.read() == [0, 1, 2]


def test_datetime_start_skips_earlier_publications_of_any_origin() -> None:
    since = datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1)))  # NOW
    shelf = Shelf(since, stored=[(0,), (NOW - 1, NOW)])
    assert shelf.reader.lag == 3  # not examined yet
    shelf.put(Origin.SPREAD, NOW - 1)
    shelf.put(Origin.REPAIR, NOW + 1)
    assert shelf.reader.lag == 4
    assert shelf.read() == [2, 4]
    assert shelf.reader.lag == 0


async def test_reader_that_skips_many_publications_reaches_the_next() -> None:
    shelf = Shelf(datetime.fromtimestamp(1, UTC), stored=[(0,)] * 10 * READ_AT_ONCE)
    assert await shelf.reader.next(timeout_s=0) is None
    shelf.put(Origin.SPREAD, NOW)
    found = await shelf.reader.next(timeout_s=0)
    assert found is not None
    assert found.offset == 10 * READ_AT_ONCE


@pytest.mark.parametrize("size", [1, 3, RECORDS_MAX])
async def test_available_publications_are_read_with_zero_timeout(size: int) -> None:
    shelf = Shelf("all", stored=[(1,) * size] * 3)
    for offset in range(3 * size):
        found = await shelf.reader.next(timeout_s=0)
        assert found is not None
        assert found.offset == offset


# -- batches ---------------------------------------------------------------------------------


def test_fresh_and_stored_publication_have_the_same_fields() -> None:
    records = [BatchRecord(b"p", NOW, b"k", {"h": "1"}), BatchRecord(b"", NOW, b"")]
    batch = RecordBatch.of(records, publisher="b", first=300, topic=TOPIC)
    shelf = Shelf()
    shelf.deliver(shelf.log.append(batch), batch)
    fresh = shelf.reader.fetch(2)
    stored = Reader(shelf.log, "all", NOW).fetch(2)
    assert [(each.publisher, each.seq, each.time) for each in fresh] == [
        ("b", 300, NOW),
        ("b", 301, NOW),
    ]
    assert [(each.payload, each.key, each.headers) for each in fresh] == [
        (b"p", b"k", {"h": "1"}),
        (b"", b"", {}),
    ]
    assert [(each.offset, each.replayed, each.hops) for each in fresh] == [
        (0, False, 2),
        (1, False, 2),
    ]
    assert stored == [replace(each, replayed=True, hops=None) for each in fresh]


def test_ids_are_stable_and_unique() -> None:
    shelf = Shelf()
    batches = [shelf.put(Origin.SPREAD, *times) for times in ((1, 1, 1), (1,), (1,) * RECORDS_MAX)]
    fresh = [each.id for each in shelf.reader.fetch(1000)]
    assert fresh == [key for batch in batches for key in batch.record_ids()]
    assert fresh == [each.id for each in Reader(shelf.log, "all", NOW).fetch(1000)]
    assert len(set(fresh)) == len(fresh)
    assert {len(key) for key in fresh} == {32}


def test_all_publications_of_a_batch_become_available_at_once() -> None:
    shelf = Shelf()
    for count in (1, 5, RECORDS_MAX):
        end = shelf.reader.end
        shelf.put(Origin.SPREAD, *[NOW] * count)
        assert (shelf.reader.end, shelf.reader.lag) == (end + count, count)
        assert shelf.read() == list(range(end, end + count))


async def test_waiting_reader_gets_the_whole_batch() -> None:
    shelf = Shelf()
    waiting = asyncio.ensure_future(shelf.reader.arrival())
    await asyncio.sleep(0)
    shelf.put(Origin.SPREAD, *[NOW] * 7)
    assert await waiting
    assert shelf.read() == list(range(7))


def test_batches_are_read_in_any_portions() -> None:
    shelf = Shelf(stored=[(NOW,) * 7, (NOW,)])
    shelf.put(Origin.SPREAD, *[NOW] * 10)
    shelf.deliver(shelf.log.end, shelf.batch((NOW,) * 2), shelf.batch((NOW,) * 3))
    rng = Random(1)
    found: list[int] = []
    while len(found) < 23:
        limit = rng.randint(1, 4)
        part = shelf.read(limit)
        assert 0 < len(part) <= limit
        found += part
        assert (shelf.reader.offset, shelf.reader.lag) == (len(found), 23 - len(found))
    assert found == list(range(23))


async def test_stored_batch_is_read_from_the_log_once() -> None:
    shelf = Shelf(stored=[(NOW,) * 100, (NOW,) * 50])
    shelf.put(Origin.SPREAD, NOW)
    for offset in range(151):
        found = await shelf.reader.next(timeout_s=0)
        assert found is not None
        assert (found.offset, found.replayed) == (offset, offset < 150)
    assert shelf.log.read_offsets() == [0, 100]


def test_publications_beyond_the_given_end_stay() -> None:
    shelf = Shelf()
    shelf.put(Origin.SPREAD, *[NOW] * 6)
    assert [found.offset for found in shelf.reader.fetch(100, end=4)] == [0, 1, 2, 3]
    assert shelf.reader.fetch(100, end=4) == []
    assert shelf.read() == [4, 5]


def test_hops_are_known_except_after_repair() -> None:
    shelf = Shelf()
    shelf.put(Origin.OWN, NOW)
    shelf.put(Origin.REPAIR, NOW)
    assert [found.hops for found in shelf.reader.fetch(9)] == [2, None]


def test_lost_and_unreadable_batches_are_skipped() -> None:
    shelf = Shelf(stored=[(NOW,), (NOW,) * 3, (NOW,) * 2])
    shelf.log.discard(1)
    for body in (b"", b"\xc1"):
        shelf.log.append(replace(shelf.batch((NOW,) * 4), body=body))
    shelf.log.append(shelf.batch((NOW,)))
    reader = Reader(shelf.log, "all", NOW)
    assert [each.offset for each in reader.fetch(100)] == [0, 4, 5, 14]
    assert reader.lag == 0


def test_lost_offsets_are_skipped_at_once_and_do_not_count_as_lag() -> None:
    shelf = Shelf(stored=[(NOW,), *[(NOW,) * RECORDS_MAX] * 10, (NOW,) * 2])
    for place in range(10):
        shelf.log.discard(1 + place * RECORDS_MAX)
    reader, end = Reader(shelf.log, "all", NOW), 1 + 10 * RECORDS_MAX
    assert reader.lag == 3
    assert [each.offset for each in reader.fetch(100)] == [0, end, end + 1]
    assert len(shelf.log.read_offsets()) <= 3
    assert reader.lag == 0


def test_skipped_and_fresh_offsets_behind_lost_ones_are_found() -> None:
    shelf = Shelf("new", stored=[(NOW,)])
    for time, origin in (
        (NOW, Origin.OWN),
        (0, Origin.REPAIR),
        (0, Origin.REPAIR),
        (NOW, Origin.OWN),
    ):
        shelf.put(origin, time)
    for offset in (1, 2, 3, 4):
        shelf.log.discard(offset)
    assert shelf.read() == [1, 4], "fresh batches are in memory"
    assert (shelf.reader.lag, shelf.reader.offset) == (0, 5)


def test_one_call_reads_a_bounded_number_of_batches_from_the_log() -> None:
    shelf = Shelf(stored=[(NOW, NOW)] * (READ_AT_ONCE + 3))
    assert shelf.read() == list(range(2 * READ_AT_ONCE))
    assert shelf.read() == list(range(2 * READ_AT_ONCE, 2 * READ_AT_ONCE + 6))


# -- the buffer of fresh batches -------------------------------------------------------------


def test_only_the_last_of_many_unread_publications_are_buffered() -> None:
    shelf = Shelf()
    count = 6 * FRESH_MAX // 4
    for _ in range(count // RECORDS_MAX):
        shelf.put(Origin.SPREAD, *[NOW] * RECORDS_MAX)
    assert shelf.reader.buffered == FRESH_MAX
    assert shelf.read() == list(range(count))
    assert shelf.log.read_offsets() == list(range(0, count - FRESH_MAX, RECORDS_MAX))
    assert shelf.reader.buffered == 0


def test_only_the_last_bytes_of_unread_publications_are_buffered() -> None:
    shelf = Shelf()
    for _ in range(10):
        shelf.put(Origin.SPREAD, NOW, size=FRESH_BYTES_MAX // 8)
    assert shelf.read() == list(range(10))
    assert shelf.log.read_offsets() == [0, 1, 2]  # a payload counts with its overhead


def test_batch_that_is_not_in_the_log_yet_stays_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "FRESH_MAX", 2)
    shelf = Shelf()
    for offset in range(4):
        shelf.deliver(offset, shelf.batch((NOW,)))
    assert shelf.read() == [0, 1, 2, 3]


def test_read_publications_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "FRESH_MAX", 8)
    shelf = Shelf()
    for offset in range(0, 400, 8):
        shelf.put(Origin.SPREAD, *[NOW] * 8)
        assert shelf.read() == list(range(offset, offset + 8))
    assert shelf.log.read_offsets() == []


# -- skipped publications inside batches -----------------------------------------------------


def test_start_new_skips_old_publications_inside_repaired_batches() -> None:
    shelf = Shelf("new", stored=[(NOW,)])
    shelf.put(Origin.REPAIR, NOW - 1, NOW - 1, NOW, NOW - 1, NOW, NOW - 1)  # 1 to 6
    assert (shelf.reader.offset, shelf.reader.end, shelf.reader.lag) == (3, 7, 2)
    shelf.put(Origin.SPREAD, NOW - 1, NOW - 1)  # 7, 8: new to all members
    shelf.put(Origin.REPAIR, NOW - 1, NOW - 1)  # 9, 10
    assert shelf.reader.lag == 4
    assert shelf.read() == [3, 5, 7, 8]
    assert (shelf.reader.offset, shelf.reader.lag) == (11, 0)


def test_datetime_start_skips_old_publications_inside_any_batch() -> None:
    shelf = Shelf(datetime.fromtimestamp(1, UTC), stored=[(NOW - 1, NOW)])
    shelf.put(Origin.SPREAD, NOW, NOW - 1, NOW)  # 2 to 4
    shelf.put(Origin.REPAIR, NOW - 1, NOW - 1, NOW)  # 5 to 7
    assert shelf.read() == [1, 2, 4, 7]
    assert (shelf.reader.offset, shelf.reader.lag) == (8, 0)


def test_skipped_publication_stays_skipped_after_it_leaves_the_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_module, "FRESH_MAX", 2)
    shelf = Shelf("new")
    for _ in range(4):
        shelf.put(Origin.REPAIR, NOW, NOW - 1, NOW)
    assert shelf.read() == [0, 2, 3, 5, 6, 8, 9, 11]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_are_read_once_and_in_order(
    seed: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "FRESH_MAX", 10)
    rng = Random(seed)
    shelf = Shelf("new")
    wanted: list[int] = []
    found: list[int] = []
    for _ in range(40):
        origin = rng.choice([Origin.SPREAD, Origin.REPAIR])
        times = [rng.choice([NOW - 1, NOW]) for _ in range(rng.randint(1, 5))]
        start = shelf.reader.end
        shelf.put(origin, *times)
        wanted += [
            offset
            for offset, when in enumerate(times, start)
            if when >= NOW or origin is Origin.SPREAD
        ]
        assert shelf.reader.lag == len(wanted) - len(found)
        if rng.random() < 0.6:
            found += shelf.read(limit)
    while shelf.reader.lag:
        found += shelf.read(limit)
    assert found == wanted


# -- waiting ---------------------------------------------------------------------------------


async def test_waiting_reader_runs_in_the_loop_iteration_after_the_delivery() -> None:
    shelf = Shelf()
    waiting = asyncio.ensure_future(shelf.reader.next())
    await asyncio.sleep(0)
    shelf.put(Origin.SPREAD, NOW)
    await asyncio.sleep(0)
    assert waiting.done()


async def test_reader_cancelled_after_the_delivery_loses_nothing() -> None:
    shelf = Shelf()
    first, second = (asyncio.ensure_future(shelf.reader.next()) for _ in range(2))
    await asyncio.sleep(0)
    shelf.put(Origin.SPREAD, NOW)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    found = await second  # although the delivery had woken up the first one
    assert found is not None
    assert found.offset == 0


async def test_each_of_several_waiting_readers_gets_another_publication() -> None:
    shelf = Shelf()
    waiting = [asyncio.ensure_future(shelf.reader.next()) for _ in range(3)]
    await asyncio.sleep(0)
    shelf.put(Origin.SPREAD, NOW)
    await asyncio.sleep(0)
    assert [each.done() for each in waiting] == [True, False, False]
    shelf.put(Origin.SPREAD, NOW, NOW)
    found = await asyncio.gather(*waiting)
    assert [each.offset for each in found if each is not None] == [0, 1, 2]


async def test_waiting_readers_end_after_the_timeout_or_when_closed() -> None:
    shelf = Shelf("new")
    assert await shelf.reader.next(timeout_s=0.001) is None
    waiting = [asyncio.ensure_future(shelf.reader.next(timeout)) for timeout in (None, 60)]
    await asyncio.sleep(0)
    shelf.put(Origin.REPAIR, NOW - 1)  # skipped: it wakes up no reader
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    shelf.reader.close()
    assert await asyncio.gather(*waiting) == [None, None]


# -- topics with a policy ------------------------------------------------------------------------


def charter_batch(first: int) -> RecordBatch:
    record = charter_record(Charter(stamp=5))
    return RecordBatch.of([record], publisher="a", first=first, topic=TOPIC)


def test_charters_are_skipped_whether_stored_or_new() -> None:
    async def scene() -> None:
        shelf = Shelf()
        for is_charter in (True, False, True, False):
            batch = charter_batch(shelf.log.end) if is_charter else shelf.batch((7,))
            shelf.deliver(shelf.log.append(batch), batch)
        stored = Reader(shelf.log, "all", NOW)
        for reader in (shelf.reader, stored):
            assert [each.offset for each in reader.fetch(9)] == [1, 3]
        following = Reader(shelf.log, "all", NOW)
        assert [(await following.next(0.01)).offset for _ in range(2)] == [1, 3]  # type: ignore[union-attr]
        assert await following.next(0.0) is None

    asyncio.run(scene())


def test_trimmed_publications_are_counted_as_expired_once() -> None:
    shelf = Shelf(stored=[(1, 2), (3,), (4,), (5,), (6,)])
    assert shelf.reader.fetch(1)[0].offset == 0
    shelf.log.trim(4)
    shelf.log.remove(4)
    assert shelf.reader.lag == 1
    assert [each.offset for each in shelf.reader.fetch(9)] == [1, 5]
    assert (shelf.reader.expired, shelf.reader.lag) == (3, 0)


@pytest.mark.parametrize("start", ["all", datetime(1970, 1, 1, tzinfo=UTC)])
def test_reader_below_the_floor_begins_at_the_first_stored_publication(start: Start) -> None:
    shelf = Shelf(stored=[(1,), (2,), (3,)])
    shelf.log.trim(2)
    reader = Reader(shelf.log, start, NOW)
    assert [each.offset for each in reader.fetch(9)] == [2]
    assert reader.expired == 2


def test_everything_may_be_trimmed() -> None:
    shelf = Shelf(stored=[(1,), (2,)])
    shelf.log.trim(2)
    reader = Reader(shelf.log, "all", NOW)
    assert (reader.fetch(9), reader.expired, reader.lag) == ([], 2, 0)
