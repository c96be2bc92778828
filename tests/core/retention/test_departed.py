"""Batches that were dropped while clients read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skipring.core import log_pages
from skipring.core.log import LogEntry, MemoryLog
from skipring.core.log_messages import DEPARTED, FetchLog, FetchRecords, LogPage, Refused
from skipring.core.log_pages import log_page, record_page
from skipring.core.retention import departed as module
from skipring.core.retention.departed import READ_TICKS, Departed
from tests.support.batches import batch

BATCHES = [batch(b"payload %d" % number, first=number) for number in range(6)]


def kept(*offsets: int) -> Departed:
    """Return the batches at some offsets, dropped in this order during a read."""
    found = Departed()
    found.expect_reads()
    for offset in offsets:
        found.add(offset, BATCHES[offset])
    return found


def offsets(found: Departed, count: int) -> list[int] | None:
    entries = found.since(count)
    return None if entries is None else [entry.offset for _, entry in entries]


def test_batches_dropped_after_a_survey_are_kept_in_order() -> None:
    found = kept(4, 1, 3)
    assert [offsets(found, count) for count in range(4)] == [[4, 1, 3], [1, 3], [3], []]


@pytest.mark.parametrize("count", [-1, 4])
def test_unknown_number_of_drops_has_no_answer(count: int) -> None:
    assert offsets(kept(4, 1, 3), count) is None


def test_batches_are_forgotten_some_time_after_the_last_survey() -> None:
    found = kept(4)
    for _ in range(READ_TICKS - 1):
        found.on_tick()
    assert offsets(found, 0) == [4]
    found.on_tick()
    assert (offsets(found, 0), offsets(found, 1)) == (None, [])


def test_batches_dropped_without_a_reader_are_only_counted() -> None:
    found = Departed()
    found.add(0, BATCHES[0])
    assert (found.count, offsets(found, 0), offsets(found, 1)) == (1, None, [])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 2 * BATCHES[0].size_bytes)
    found = kept(0, 1, 2)
    assert (offsets(found, 0), offsets(found, 1)) == (None, [1, 2])


def test_corrupted_batches_and_counters_are_forgotten_with_the_last_read() -> None:
    found = kept(0)
    found._ticks, found._bytes, found.count = 1 << 40, -7, 9
    found._kept = {4: LogEntry(0, b"", BATCHES[0])}
    assert offsets(found, 8) == []
    for _ in range(READ_TICKS + 1):
        found.on_tick()
    assert (offsets(found, 8), offsets(found, 9)) == (None, [])
    found.expect_reads()
    found.add(1, BATCHES[1])
    assert offsets(found, 9) == [1]


def test_pages_have_the_dropped_batches_and_their_wanted_records() -> None:
    log, found = MemoryLog(BATCHES), kept(4, 1)
    asked = FetchLog(7, "", 0, 0, 6, 0, 0, contents=True, departed=0)
    page = log_page(log, asked, found)
    assert isinstance(page, LogPage)
    assert (page.offsets, page.batches) == ((4, 1), (BATCHES[4], BATCHES[1]))
    records = FetchRecords(7, "", 0, 2, 6, 0, 0, payloads=True, departed=0)
    page = record_page(log, records, lambda: False, found)
    assert isinstance(page, LogPage)
    assert (page.offsets, page.next) == ((4,), None)


@pytest.mark.parametrize("has_records", [False, True])
def test_page_of_dropped_batches_stops_at_its_limits_and_continues(
    has_records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = [5, 0, 3, 1, 4, 2]
    log, found = MemoryLog(BATCHES), kept(*dropped)
    monkeypatch.setattr(log_pages, "DEPARTED_MAX", 2)

    def pages(is_spent: Callable[[], bool], end: int) -> list[LogPage]:
        at: int | None = 0
        read = list[LogPage]()
        while at is not None:
            page: object
            if has_records:
                records = FetchRecords(7, "", 0, 0, end, 0, 0, payloads=True, departed=at)
                page = record_page(log, records, is_spent, found)
            else:
                page = log_page(log, FetchLog(7, "", 0, 0, end, 0, 0, True, departed=at), found)
            assert isinstance(page, LogPage)
            assert page.next is None or page.next > at
            read.append(page)
            at = page.next
        return read

    assert [each.offsets for each in pages(lambda: False, 6)] == [(5, 0), (3, 1), (4, 2)]
    assert [each.offsets for each in pages(lambda: False, 1)] == [(0,), (), ()]
    if has_records:
        assert [each.offsets for each in pages(lambda: True, 6)] == [(at,) for at in dropped]


def test_request_for_forgotten_batches_is_refused() -> None:
    asked = FetchLog(7, "", 0, 0, 6, 0, 0, contents=True, departed=0)
    records = FetchRecords(7, "", 0, 2, 6, 0, 0, payloads=True, departed=9)
    log = MemoryLog(BATCHES)
    assert log_page(log, asked) == Refused(7, DEPARTED)
    assert record_page(log, records, lambda: False, kept(1)) == Refused(7, DEPARTED)
