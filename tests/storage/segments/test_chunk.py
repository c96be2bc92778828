"""Chunks of a segment: which entries are read together, and which are contiguous."""

from __future__ import annotations

from itertools import pairwise

import pytest

from skipring.storage.segments.chunk import SegmentChunk
from skipring.storage.segments.format import START_OF_CHAIN, Entry, encode_entry
from skipring.storage.segments.segment import EntryIndex
from skipring.storage.segments.topic_directory import OffsetRanges
from tests.storage.segments.logs import batch

HEADER_BYTES = 50
NONE = OffsetRanges()


def written(gap: bytes = b"") -> tuple[EntryIndex, bytes]:
    """Return six entries from offset 100 on; the gap is before the fourth."""
    index = EntryIndex(100, START_OF_CHAIN, HEADER_BYTES)
    data = bytes(HEADER_BYTES)
    for number in range(6):
        data += gap if number == 3 else b""
        entry = Entry(100 + 2 * number, bytes(16), batch(2 * number))
        encoded = encode_entry(entry) + entry.batch.body
        index.add(entry, len(data), len(encoded))
        data += encoded
    return index, data


def cut(chunk: SegmentChunk, data: bytes) -> bytes:
    return data[chunk.positions[0] : chunk.positions[-1]]


@pytest.mark.parametrize("first", range(6))
def test_chunk_has_at_least_one_entry_within_the_size(first: int) -> None:
    index, data = written()
    ends = [*index.positions[1:], index.size]
    for bytes_max in (0, 1, 150, 200, 400, 10_000):
        chunk = SegmentChunk.of(index, first, bytes_max)
        fitting = sum(end - index.positions[first] <= bytes_max for end in ends[first:])
        assert len(chunk.positions) == len(chunk.offsets) == 1 + max(1, fitting)
        count = len(chunk.offsets) - 1
        assert chunk.end == 100 + 2 * (first + count)
        assert chunk.size == ends[first + count - 1] - index.positions[first]
        found = list(chunk.entries(cut(chunk, data)))
        assert [entry.offset for entry in found] == chunk.offsets[:-1]


def test_contiguous_entries_are_those_of_the_range() -> None:
    index, data = written()
    chunk = SegmentChunk.of(index, 0, 10_000)
    whole = cut(chunk, data)
    assert chunk.contiguous(whole, 0, 200, NONE) == (100, 112, whole)
    part = chunk.contiguous(whole, 103, 107, NONE)
    assert part is not None
    assert (part.start, part.end) == (102, 108)
    assert chunk.contiguous(whole, 112, 200, NONE) is None
    assert chunk.contiguous(whole, 0, 100, NONE) is None
    after = chunk.contiguous(whole, 104, 200, OffsetRanges([(104, 106), (110, 112)]))
    assert after is not None
    assert (after.start, after.end) == (106, 110)


def test_contiguous_entries_end_before_garbage() -> None:
    index, data = written(gap=b"garbage")
    chunk = SegmentChunk.of(index, 0, 10_000)
    first = chunk.contiguous(cut(chunk, data), 0, 200, NONE)
    assert first is not None
    assert (first.start, first.end) == (100, 106)
    assert first.data == data[HEADER_BYTES : HEADER_BYTES + len(first.data)]
    second = chunk.contiguous(cut(chunk, data), first.end, 200, NONE)
    assert second is not None
    assert (second.start, second.end) == (106, 112)


def test_wrong_sizes_and_offsets_end_a_contiguous_range() -> None:
    index, data = written()
    chunk = SegmentChunk.of(index, 0, 10_000)
    whole = cut(chunk, data)
    begin, _ = next(pairwise(p - chunk.positions[0] for p in chunk.positions[2:]))
    for place in (*range(begin, begin + 8), *range(begin + 12, begin + 20)):
        damaged = whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :]
        found = chunk.contiguous(damaged, 0, 200, NONE)
        assert found is not None
        assert (found.start, found.end) == (100, 104)
    short = chunk.contiguous(whole[:-1], 0, 200, NONE)
    assert short is not None
    assert short.end == 110
    assert chunk.contiguous(b"", 0, 200, NONE) is None
    assert list(chunk.entries(b"")) == []
