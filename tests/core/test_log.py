"""Log in memory: a sequence of batches; offsets count records and only grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.log import (
    EntryFilter,
    EntryPage,
    Log,
    LogEntry,
    MemoryLog,
    PageLimits,
    publisher_tag,
)
from skipring.core.publications import SEQ_BELIEVED_MAX
from tests.support.batches import batch, batch_of, opaque_batch

A0, A1 = batch(b""), batch_of(b"x", b"y", b"z", first=1)
B5 = batch_of(b"", b"", publisher="b", first=5)


def limits(
    *,
    bytes_max: int = 1 << 40,
    entries_max: int = 1 << 40,
    scanned_bytes_max: int = 1 << 40,
    scanned_entries_max: int = 1 << 40,
) -> PageLimits:
    return PageLimits(bytes_max, entries_max, scanned_bytes_max, scanned_entries_max)


NO_LIMITS = limits()


def entries(log: Log, start: int = 0, end: int = 1 << 40) -> list[tuple[int, RecordBatch]]:
    return [(entry.offset, entry.batch) for entry in log.read_range(start, end)]


def given_at_once() -> MemoryLog:
    return MemoryLog([A0, A1, B5])


def appended_one_by_one() -> MemoryLog:
    log = MemoryLog()
    assert [log.append(each) for each in (A0, A1, B5)] == [0, 1, 4]
    return log


both_ways = pytest.mark.parametrize("make", [given_at_once, appended_one_by_one])


def test_empty_log_holds_nothing() -> None:
    log: Log = MemoryLog()
    assert (log.end, log.records) == (0, 0)
    assert log.read(0) is None
    assert entries(log) == []
    assert list(log.entries()) == []
    assert log.read_page(0, 9, NO_LIMITS) == EntryPage([], 9)
    assert log.newest("a") == {}


@both_ways
def test_batches_are_stored_in_order_and_occupy_an_offset_for_each_record(
    make: Callable[[], MemoryLog],
) -> None:
    log: Log = make()
    assert (log.end, log.records) == (6, 6)
    assert entries(log) == [(0, A0), (1, A1), (4, B5)]
    assert list(log.entries()) == [(A0.id, 0), (A1.id, 1), (B5.id, 4)]
    assert [entry.end for entry in log.read_range(0, 6)] == [1, 4, 6]


@both_ways
def test_every_offset_of_a_batch_leads_to_its_entry(make: Callable[[], MemoryLog]) -> None:
    log = make()
    found = [log.read(offset) for offset in range(-1, 7)]
    first, second, third = (LogEntry(at, b"", each) for at, each in ((0, A0), (1, A1), (4, B5)))
    assert found == [None, first, second, second, second, third, third, None]


@both_ways
@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 6, [A0, A1, B5]),
        (0, 1, [A0]),
        (0, 2, [A0, A1]),
        (2, 3, [A1]),
        (3, 5, [A1, B5]),
        (4, 6, [B5]),
        (5, 99, [B5]),
        (6, 99, []),
        (3, 3, []),
    ],
)
def test_range_has_the_batches_with_a_record_between_two_offsets(
    make: Callable[[], MemoryLog], start: int, end: int, found: list[RecordBatch]
) -> None:
    assert [each for _, each in entries(make(), start, end)] == found


@both_ways
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_T12_discard_removes_the_batch_that_contains_an_offset_and_keeps_other_offsets(
    make: Callable[[], MemoryLog], offset: int
) -> None:
    log = make()
    assert log.discard(offset) == A1.count == 3
    assert (log.end, log.records) == (6, 3)
    assert entries(log) == [(0, A0), (4, B5)]
    assert [log.read(absent) for absent in (1, 2, 3)] == [None] * 3
    assert list(log.entries()) == [(A0.id, 0), (B5.id, 4)]
    assert log.append(A1) == 6
    assert log.read(8) == LogEntry(6, b"", A1)


@pytest.mark.parametrize("stored", [(), (A0,), (A0, A1)])
@pytest.mark.parametrize("offset", [-1, 4, 7])
def test_T12_discard_of_an_unknown_offset_changes_nothing(
    stored: tuple[RecordBatch, ...], offset: int
) -> None:
    log = MemoryLog(stored)
    assert log.discard(offset) == 0
    assert [each for _, each in entries(log)] == list(stored)


def test_T12_discarded_batch_can_be_discarded_again() -> None:
    log = given_at_once()
    assert [log.discard(offset) for offset in (1, 3, 1)] == [3, 0, 0]
    assert [each for _, each in entries(log)] == [A0, B5]


def test_T10_entries_are_the_stored_ids_whether_right_or_wrong() -> None:
    wrong = replace(A0, id=b"x" * 32)
    assert list(MemoryLog([wrong]).entries()) == [(b"x" * 32, 0)]


@pytest.mark.parametrize("count", [0, -3])
def test_corrupt_number_of_records_does_not_stop_the_log(count: int) -> None:
    wrong = replace(A1, count=count)
    log = MemoryLog([A0, wrong, B5])
    assert entries(log) == [(0, A0), (1, wrong), (2, B5)]
    assert [log.read(offset) for offset in (1, 2)] == [*log.read_range(1, 3)]
    log.discard(1)
    assert entries(log) == [(0, A0), (2, B5)]


def test_newest_number_of_an_incarnation_is_that_of_its_last_record() -> None:
    log = MemoryLog([A1, B5, A0])
    assert [log.newest(publisher) for publisher in ("a", "b", "c")] == [{0: 3}, {0: 6}, {}]


def test_unordered_and_incredible_numbers_are_not_the_newest() -> None:
    sink = replace(batch(first=70), unordered=True).with_id("t")
    far = batch(first=SEQ_BELIEVED_MAX)
    assert MemoryLog([A0, sink, far]).newest("a") == {0: 0}


def test_list_passed_to_a_log_is_not_changed() -> None:
    given_list = [A0]
    MemoryLog(given_list).append(A1)
    assert given_list == [A0]


# -- pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "found", "following"),
    [
        ({"entries_max": 1}, [A0], 1),
        ({"entries_max": 2}, [A0, A1], 4),
        ({"bytes_max": 1}, [A0], 1),
        ({"bytes_max": A0.size_bytes + 1}, [A0, A1], 4),
        ({"scanned_entries_max": 1}, [A0], 1),
        ({"scanned_bytes_max": A0.size_bytes + 1}, [A0, A1], 4),
        ({}, [A0, A1, B5], 6),
    ],
    ids=str,
)
def test_page_ends_at_each_limit(
    limit: dict[str, int], found: list[RecordBatch], following: int
) -> None:
    page = given_at_once().read_page(0, 6, limits(**limit))
    assert [entry.batch for entry in page.entries] == found
    assert page.next == following


def test_page_that_starts_or_ends_within_a_batch_has_the_whole_batch() -> None:
    log = given_at_once()
    assert [e.offset for e in log.read_page(2, 3, NO_LIMITS).entries] == [1]
    assert [e.offset for e in log.read_page(3, 5, NO_LIMITS).entries] == [1, 4]


def test_page_has_only_ids_that_begin_with_one_of_the_bytes_and_scans_the_others() -> None:
    stored = [opaque_batch(bytes([first]) * 32) for first in (7, 9, 8, 7)]
    log = MemoryLog(stored)
    page = log.read_page(0, 4, NO_LIMITS, EntryFilter(range(7, 8)))
    assert [entry.offset for entry in page.entries] == [0, 3]
    page = log.read_page(1, 4, limits(scanned_entries_max=2), EntryFilter(range(7, 8)))
    assert page == EntryPage([], 3)


def test_batch_without_an_id_is_under_no_prefix() -> None:
    assert MemoryLog([opaque_batch(b"")]).read_page(0, 1, NO_LIMITS).entries == []


@given(
    st.lists(st.integers(1, 5), max_size=20),
    st.sets(st.integers(0, 60)),
    st.integers(1, 4),
    st.integers(0, 400),
)
def test_pages_together_contain_every_stored_batch_once(
    counts: list[int], discarded: set[int], entries_max: int, bytes_max: int
) -> None:
    made = [batch_of(*[b"x"] * count, first=10 * n) for n, count in enumerate(counts)]
    log = MemoryLog(made)
    for offset in discarded:
        log.discard(offset)
    found, start = [], 0
    small = limits(bytes_max=bytes_max, entries_max=entries_max, scanned_entries_max=6)
    while start < log.end:
        page = log.read_page(start, log.end, small)
        assert page.next > start
        assert len(page.entries) <= entries_max
        found += page.entries
        start = page.next
    assert found == list(log.read_range(0, log.end))
    assert log.end == sum(counts)
    assert log.records == sum(entry.batch.count for entry in found)
    assert all(not discarded & {*range(entry.offset, entry.end)} for entry in found)


@pytest.mark.parametrize(
    ("offset", "low"), [(0, 0), (1, 1), (3, 1), (4, 4), (5, 4), (6, 6), (9, 6)]
)
def test_trim_drops_whole_batches_below_an_offset(offset: int, low: int) -> None:
    log = given_at_once()
    assert log.trim(offset) == low
    assert (log.low, log.end, log.records) == (low, 6, 6 - low)
    assert entries(log) == [(at, each) for at, each in entries(given_at_once()) if at >= low]
    assert [offset for _, offset in log.entries()] == [at for at in (0, 1, 4) if at >= low]
    assert all(log.read(each) is None for each in range(low))
    assert (log.count_trimmed(0, 6), log.count_absent(0, 6)) == (low, 0)
    assert log.trim(offset) == 0
    assert log.append(A1) == 6
    assert log.read(7) == LogEntry(6, b"", A1)


def test_low_never_falls() -> None:
    log = given_at_once()
    assert (log.trim(4), log.trim(1), log.low) == (4, 0, 4)


def test_removed_batch_is_trimmed_and_not_absent() -> None:
    log = given_at_once()
    assert [log.remove(offset) for offset in (2, 1, 6, -1)] == [3, 0, 0, 0]
    assert entries(log) == [(0, A0), (4, B5)]
    assert (log.low, log.end, log.records) == (0, 6, 3)
    assert (log.count_trimmed(0, 6), log.count_trimmed(2, 6), log.count_absent(0, 6)) == (3, 2, 0)
    log.append(A1)
    assert log.discard(6) == 3
    assert (log.count_trimmed(0, 9), log.count_absent(0, 9), log.records) == (3, 3, 3)
    assert (log.discard(2), log.remove(7)) == (0, 0)


def test_low_passes_removed_batches() -> None:
    log = given_at_once()
    log.remove(1)
    assert log.low == 0
    log.remove(0)
    assert (log.low, log.count_trimmed(0, 6)) == (4, 4)
    log.remove(4)
    assert (log.low, log.records, log.extents()[0].records) == (6, 0, 0)


def test_numbers_of_dropped_batches_are_not_issued_again() -> None:
    log = given_at_once()
    before = log.newest(A0.publisher), log.newest("b")
    log.remove(2)
    log.trim(6)
    assert (log.newest(A0.publisher), log.newest("b")) == before
    assert before != ({}, {})


def test_extent_counts_what_is_stored() -> None:
    log = given_at_once()
    log.trim(1)
    (extent,) = log.extents()
    assert extent[:4] == (1, 6, 5, A1.size_bytes + B5.size_bytes)
    log.remove(1)
    assert log.extents()[0][:4] == (4, 6, 2, B5.size_bytes)


def test_filter_by_tag_excludes_other_publishers() -> None:
    batches = [batch(publisher=f"p{number}", first=0) for number in range(20)]
    tag = publisher_tag("p3")
    wanted = EntryFilter(tags=range(tag, tag + 1))
    entries = MemoryLog(batches).read_page(0, 99, limits(), wanted).entries
    assert [each.batch.publisher for each in entries] == [
        each.publisher for each in batches if publisher_tag(each.publisher) == tag
    ]
