"""Statistics of a segment: they exclude entries, and never a matching entry."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.limits import NUMBER_MAX
from skipring.core.log import ANY_BYTE, EntryFilter, publisher_tag
from skipring.storage.statistics import (
    GAP_BYTES_MAX,
    WINDOW_ENTRIES,
    EntryStatistics,
    SegmentStatistics,
)

PUBLISHERS = [f"p{number}" for number in range(7)]


def batch(first: int, *times: int) -> RecordBatch:
    records = [BatchRecord(b"payload", time) for time in times or (first,)]
    publisher = PUBLISHERS[first % len(PUBLISHERS)]
    return RecordBatch.of(records, publisher=publisher, first=first, topic="news")


def statistics_of(batches: list[RecordBatch]) -> EntryStatistics:
    found = EntryStatistics()
    for each in batches:
        found.add(each)
    return found


def all_selected(
    statistics: EntryStatistics, positions: array[int], wanted: EntryFilter, bytes_max: int = 900
) -> list[int]:
    """Return the entries that reads one after the other select."""
    found: list[int] = []
    first = 0
    while first < len(positions):
        numbers, following = statistics.selected(positions, first, bytes_max, wanted)
        assert following > first
        found += numbers
        first = following
    return found


class CountingBytes(bytearray):
    """Bytes that count those that a search reads."""

    read = 0

    def __getitem__(self, place: slice) -> bytearray:  # type: ignore[override]
        found = bytearray(super().__getitem__(place))
        self.read += len(found)
        return found


def test_search_for_the_next_match_reads_as_far_as_the_match() -> None:
    firsts = CountingBytes(WINDOW_ENTRIES)
    firsts[100] = firsts[300] = 1
    positions = array("I", range(0, len(firsts) * 2 * GAP_BYTES_MAX, 2 * GAP_BYTES_MAX))
    statistics = EntryStatistics(firsts)
    wanted = EntryFilter(range(1, 2))
    assert statistics.selected(positions, 0, 9 * GAP_BYTES_MAX, wanted) == ([100], 300)
    assert firsts.read < 1000


@given(
    count=st.integers(1, 80),
    gaps=st.lists(st.sampled_from([90, 900, 2 * GAP_BYTES_MAX]), min_size=80, max_size=80),
    first=st.integers(0, 255),
    wanted=st.none() | st.frozensets(st.sampled_from(PUBLISHERS)),
    lowest=st.integers(0, 255),
)
def test_every_match_is_selected_once_and_in_order(
    count: int, gaps: list[int], first: int, wanted: frozenset[str] | None, lowest: int
) -> None:
    batches = [batch(number) for number in range(count)]
    positions = array("I", [sum(gaps[:number]) for number in range(count)])
    firsts = range(first, 256)
    found = all_selected(
        statistics_of(batches), positions, EntryFilter(firsts, wanted, tags=range(lowest, 256))
    )
    matches = [
        number
        for number, each in enumerate(batches)
        if each.id[0] in firsts
        and (wanted is None or each.publisher in wanted)
        and publisher_tag(each.publisher) >= lowest
    ]
    assert found == sorted(set(found))
    tags = {publisher_tag(each) for each in (PUBLISHERS if wanted is None else wanted)}
    assert all(lowest <= publisher_tag(batches[n].publisher) in tags for n in found)
    assert set(matches) <= set(found)
    assert all(batches[number].id[0] in firsts for number in found)


@pytest.mark.parametrize(
    ("times", "is_possible"),
    [(range(10), False), (range(10, 11), True), (range(30, 90), True), (range(31, 90), False)],
)
def test_segment_outside_the_wanted_times_is_skipped(times: range, is_possible: bool) -> None:
    statistics = statistics_of([batch(1, 20, 10), batch(2, 0, 0), batch(3, 30)])
    stored = statistics.stored()
    assert (stored.earliest, stored.latest) == (10, 30)
    positions = array("I", [0, 50, 100])
    wanted = EntryFilter(times=times)
    assert statistics.selected(positions, 0, 999, wanted) == ([0, 1, 2] * is_possible, 3)


def test_statistics_survive_the_footer_and_continue() -> None:
    batches = [batch(number) for number in range(9)]
    ids = b"".join(each.id for each in batches[:5])
    stored = statistics_of(batches[:5]).stored()
    restored = EntryStatistics.of(
        ids, msgpack.decode(msgpack.encode(stored), type=SegmentStatistics)
    )
    restored.extend(statistics_of(batches[5:]))
    assert restored.stored() == statistics_of(batches).stored()


def test_batch_with_an_unreadable_body_has_every_time() -> None:
    found = statistics_of([replace(batch(7), body=b"\xc1")])
    assert (found.earliest, found.latest) == (0, NUMBER_MAX)


def test_search_is_limited_to_a_window() -> None:
    found = EntryStatistics(bytearray(3 * WINDOW_ENTRIES), bytearray(3 * WINDOW_ENTRIES))
    wanted = EntryFilter(range(9, 10))
    positions = array("I", range(3 * WINDOW_ENTRIES))
    assert found.selected(positions, 5, 1000, wanted) == ([], 5 + WINDOW_ENTRIES)
    assert found.selected(positions, 3 * WINDOW_ENTRIES - 1, 9, EntryFilter(ANY_BYTE)) == (
        [3 * WINDOW_ENTRIES - 1],
        3 * WINDOW_ENTRIES,
    )
