"""Chunk of a segment: consecutive entries that one read returns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from skipring.storage.segments.format import Entry, EntryPlace, decode_entry, decode_place
from skipring.storage.segments.segment import EntryIndex
from skipring.storage.segments.topic_directory import OffsetRanges


class RawEntries(NamedTuple):
    """Bytes of contiguous entries; the receiver verifies them."""

    start: int
    end: int  # offset after the last record
    data: bytes


class SegmentChunk(NamedTuple):
    """Places of consecutive entries; the caller reads their bytes."""

    positions: list[int]  # of each entry and of the end, in the file
    offsets: list[int]  # of each entry and of the end, which is that of the next entry

    @classmethod
    def of(cls, index: EntryIndex, first: int, bytes_max: int) -> SegmentChunk:
        """Select entries up to a total size, at least one."""
        limit = index.positions[first] + bytes_max
        stop = max(first + 1, bisect_right(index.positions, limit, first + 1) - 1)
        if index.size <= limit:
            stop = len(index.positions)
        positions = [*index.positions[first : stop + 1], index.size][: stop - first + 1]
        offsets = [index.start + each for each in index.offsets[first : stop + 1]]
        return cls(positions, [*offsets, index.end][: stop - first + 1])

    @property
    def end(self) -> int:
        """Return the offset up to which the chunk has all entries."""
        return self.offsets[-1]

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return self.positions[-1] - self.positions[0]

    def entries(self, data: bytes) -> Iterator[Entry]:
        """Yield the intact entries."""
        view, base = memoryview(data), self.positions[0]
        for position, offset in zip(self.positions[:-1], self.offsets[:-1], strict=True):
            entry = decode_entry(view, position - base)
            if entry is not None and entry.offset == offset:
                yield entry

    def contiguous(
        self, data: bytes, start: int, end: int, absent: OffsetRanges
    ) -> RawEntries | None:
        """Return the first contiguous entries with records between two offsets.

        They end before an absent or damaged entry. Only damaged sizes and offsets are detected.
        """
        first = after = -1  # offsets
        begin = stop = 0  # positions in the data
        for number, offset in enumerate(self.offsets[:-1]):
            place = self._place(data, number)
            at = self.positions[number] - self.positions[0]
            if place is None or place.end <= start or offset >= end or offset in absent:
                if first >= 0:
                    break
            elif first < 0 or (at, offset) == (stop, after):
                if first < 0:
                    first, begin = offset, at
                after, stop = place.end, at + place.size
            else:
                break
        return RawEntries(first, after, data[begin:stop]) if first >= 0 else None

    def _place(self, data: bytes, number: int) -> EntryPlace | None:
        """Return the place of an entry; None if it contradicts the index."""
        at = self.positions[number] - self.positions[0]
        place = decode_place(data, at)
        if place is None or place.offset != self.offsets[number]:
            return None
        size_max = min(len(data), self.positions[number + 1] - self.positions[0]) - at
        is_possible = place.size <= size_max and place.end <= self.offsets[number + 1]
        return place if is_possible else None
