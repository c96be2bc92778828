"""Segments of one log, in order: reads of their entries, and what of them was dropped.

A commit in another thread may add, replace and delete segments; a lock protects the list.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Final

from skipring.core.log import EntryFilter, SegmentExtent
from skipring.storage.compaction import fresh_path, is_spent, is_wasteful, write_compacted
from skipring.storage.segment import EntryChunk, EntryIndex, FileCache, LogSegment
from skipring.storage.segment_format import ENTRY_BYTES_MAX, START_OF_CHAIN

REWRITTEN_MAX: Final = 32 << 20  # Guess: bytes of segments that one commit rewrites.


class SegmentList:
    """Segments of a log, and the open files of their readers."""

    def __init__(
        self, segments: list[LogSegment], readers: FileCache, lock: Lock, end: int
    ) -> None:
        self.all = segments
        self.end = segments[-1].index.end if segments else end
        self._starts = [segment.header.start for segment in segments]
        self._readers = readers
        self._replaced: list[Path] = []  # whose old files are to be closed
        self._lock = lock  # the caller of a method holds it unless stated otherwise

    @property
    def last(self) -> LogSegment | None:
        """Return the last segment."""
        return self.all[-1] if self.all else None

    @property
    def start(self) -> int:
        """Return the offset of the first file, or the end; the caller may not hold the lock."""
        with self._lock:
            return self._starts[0] if self._starts else self.end

    @property
    def size_bytes(self) -> int:
        """Return the size of the files."""
        return sum([each.index.size + each.footer_bytes for each in self.all])

    def chain_before(self, offset: int) -> bytes | None:
        """Return the running digest at the start of a segment; None if no segment begins there."""
        with self._lock:
            if not self.all:
                return START_OF_CHAIN if offset <= self.end else None
            if offset < self._starts[0]:
                return self.all[0].header.chain
            header = self.at(offset)[0].header
            is_known = header.chain != START_OF_CHAIN or offset == self._starts[0]
            return header.chain if header.start == offset and is_known else None

    # -- reads -----------------------------------------------------------------------------

    def at(self, offset: int) -> tuple[LogSegment, int]:
        """Return the last segment that begins at or before an offset, and where the next begins."""
        place = max(0, bisect_right(self._starts, offset) - 1)
        is_last = place + 1 == len(self._starts)
        return self.all[place], self.end if is_last else self._starts[place + 1]

    def chunk(
        self, offset: int, bytes_max: int, entries_max: int, wanted: EntryFilter | None
    ) -> EntryChunk:
        """Read entries of one segment up to a total size; the caller does not hold the lock.

        Without a filter the result includes dropped entries. The first is the last entry that
        begins at or before the offset, if there is any.
        """
        with self._lock:
            segment, after = self.at(offset)
            self._open(segment)
            index = segment.index
            first = index.number(offset)
            numbers, stop = index.selected(first, bytes_max, entries_max, wanted)
            offsets = [index.start + index.offsets[number] for number in numbers]
            is_last = stop == len(index.positions)
            offsets.append(after if is_last else index.start + index.offsets[stop])
            positions = [index.positions[number] for number in numbers]
            ends = (
                [*index.positions[numbers[0] + 1 : numbers[-1] + 2], index.size] if numbers else []
            )
            sizes = [
                min(ends[number - numbers[0]] - at, ENTRY_BYTES_MAX)  # damage may follow
                for number, at in zip(numbers, positions, strict=True)
            ]
        passed = stop - first - len(numbers)
        if not numbers:
            return EntryChunk(offsets, [], [], b"", passed)
        base = positions[0]
        data = self._readers.read(segment.path, positions[-1] + sizes[-1] - base, base)
        return EntryChunk(offsets, [each - base for each in positions], sizes, data, passed)

    def _open(self, segment: LogSegment) -> None:
        """Open the file that fits the index of a segment: a commit may replace it from now on."""
        self.close_replaced()
        with suppress(OSError):  # the read reports it
            self._readers.get(segment.path)

    def close_replaced(self) -> None:
        """Close the files that were replaced or deleted; until then they take space on the disk."""
        while self._replaced:
            self._readers.drop(self._replaced.pop())

    def entries(self, offset: int, end: int) -> Iterator[tuple[bytes, int]]:
        """Yield the stored ids and offsets of the live entries between two offsets.

        The caller does not hold the lock, and the list may change between two entries.
        """
        with closing(FileCache(os.O_RDONLY)) as files:
            while offset < end:
                with self._lock:
                    segment, after = self.at(offset)
                    files.close()
                    with suppress(OSError):
                        files.get(segment.path)  # the file that fits the index
                    index = segment.index
                    first = index.number(offset)
                    offsets = index.offsets[first:]
                found = zip(segment.ids(files, first), offsets, strict=False)
                for number, (key, relative) in enumerate(found, first):
                    if segment.is_replaced:
                        after = index.start + relative
                        break
                    if index.start + relative >= end:
                        return
                    if index.live is None or index.live[number]:
                        yield key, index.start + relative
                offset = after

    # -- dropped entries -------------------------------------------------------------------

    def next_live(self, offset: int, is_absent: Callable[[int], bool]) -> int | None:
        """Return the offset of the first live entry from one on, or None."""
        for place in range(max(0, bisect_right(self._starts, offset) - 1), len(self.all)):
            index = self.all[place].index
            number = index.number(offset)
            number = index.next_live(number + (index.span(number)[1] <= offset))
            while number < len(index.positions):
                if not is_absent(found := index.span(number)[0]):
                    return found
                number = index.next_live(number + 1)
        return None

    def drop_before(self, low: int) -> None:
        """Mark the entries before an offset in its segment, or in the last one, as dropped."""
        if self.all:
            index = self.at(low)[0].index
            index.drop_before(index.number(low) if low < index.end else len(index.positions))

    def dropped_between(self, start: int, end: int) -> int:
        """Return the number of records of dropped entries between two offsets."""
        first = max(0, bisect_right(self._starts, start) - 1)
        segments = self.all[first : bisect_right(self._starts, max(end, 0))]
        return sum([each.index.dropped_between(start, end) for each in segments])

    def extents(self, low: int) -> list[SegmentExtent]:
        """Return the statistics of the segments with records from an offset on."""
        found: list[SegmentExtent] = []
        for segment in self.all:
            index, start = segment.index, max(segment.index.start, low)
            if start < index.end:
                records = index.end - start - index.dropped_between(start, index.end)
                size, times = index.size - index.dropped_bytes, index.statistics
                known = times.earliest, times.latest
                found.append(SegmentExtent(start, index.end, records, size, *known))
        return found

    # -- changes by commits ----------------------------------------------------------------

    def extend(self, segment: LogSegment, added: EntryIndex) -> None:
        """Add entries to the last segment, or a new segment with entries."""
        if segment is not self.last:
            self.all.append(segment)
            self._starts.append(segment.header.start)
        segment.index.extend(added)
        self.end = added.end

    def reclaim(
        self, low: int, files: FileCache, record: Callable[[dict[int, bytes]], None]
    ) -> bool:
        """Delete the segments before an offset and rewrite others; return False if there are none.

        ``record`` stores all dropped entries first: after a crash none of them returns while a file
        lacks others. The caller does not hold the lock.
        """
        with self._lock:
            deleted, compacted = self._deletable(low), self._compactable(low)
            if not deleted and not compacted:
                return False
            kept = [each for each in self.all if each not in deleted]
            marks = [(each, bytes(each.index.live)) for each in kept if each.index.live]
        record({each.header.start: each.index.dropped_offsets(live) for each, live in marks})
        for segment in deleted:
            files.drop(segment.path)
            segment.path.unlink(missing_ok=True)
            with self._lock:
                place = self.all.index(segment)
                del self.all[place], self._starts[place]
                self._retire(segment)
        for segment, live in marks:
            if segment in compacted:
                fresh = write_compacted(segment, live, files)
                with self._lock:
                    self._replace(segment, fresh, live)
                files.drop(segment.path)
        return True

    def has_garbage(self, low: int) -> bool:
        """Return True if there are files to delete or to rewrite."""
        return bool(self._deletable(low) or self._compactable(low))

    def _deletable(self, low: int) -> list[LogSegment]:
        """Return the segments before an offset; the last segment stays, because it has the end."""
        return [segment for segment in self.all[:-1] if segment.index.end <= low]

    def _compactable(self, low: int) -> list[LogSegment]:
        """Return the segments that a commit rewrites. Commits still write to the last one."""
        last = self.last
        used = [each for each in self.all if each is last or each.index.end > low]
        found = [each for each in used if self.is_garbage(each.index)]
        sizes = accumulate([each.index.size for each in found], initial=0)
        return [each for each, before in zip(found, sizes, strict=False) if before < REWRITTEN_MAX]

    def is_garbage(self, index: EntryIndex) -> bool:
        """Return True if a segment should be rewritten; the last one only without live entries."""
        is_last = index is self.all[-1].index
        return is_spent(index) or (is_wasteful(index) and not is_last)

    def _replace(self, old: LogSegment, new: LogSegment, live: bytes) -> None:
        """Replace a segment and its file by a rewritten one.

        ``live`` has the marks of the old one when it was copied: later changes are repeated.
        """
        fresh_path(old.path).replace(old.path)
        index, marks = old.index, bytes(old.index.live or b"")
        changed = int.from_bytes(live, "big") ^ int.from_bytes(marks, "big")
        changes = changed.to_bytes(len(live), "big")
        number = changes.find(1)
        while number >= 0:
            new.index.drop(new.index.number(index.span(number)[0]))
            number = changes.find(1, number + 1)
        self.all[self.all.index(old)] = new
        self._retire(old)

    def _retire(self, segment: LogSegment) -> None:
        segment.retire()
        self._replaced.append(segment.path)
