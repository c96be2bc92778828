"""Log of one topic: record batches in segments on the disk, and the newest ones in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.limits import CHAIN_BYTES
from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES, SequenceId, newest_of
from skipring.storage.segments.chunk import RawEntries, SegmentChunk
from skipring.storage.segments.format import (
    START_OF_CHAIN,
    Entry,
    encode_entry,
    next_chain,
)
from skipring.storage.segments.recovery import RecoveredLog
from skipring.storage.segments.segment import (
    EntryIndex,
    FileCache,
    LogSegment,
    merge_newest,
    read_at,
)
from skipring.storage.segments.tail import SegmentTail, cut_unconfirmed
from skipring.storage.segments.topic_directory import OffsetRanges, TopicDirectory, TopicRecord

SEGMENT_BYTES_MAX: Final = 64 << 20  # Guess; without the footer.
READ_BYTES: Final = 1 << 20  # Guess: one read of ``read_range``.
DAMAGED: Final = "differs from the stored batch (T12)"


class _Unconfirmed(NamedTuple):
    """Entry in memory, and its bytes before the body."""

    entry: Entry
    head: bytes


class _Discard(NamedTuple):
    """Content of a quarantine file."""

    name: str
    data: bytes


class SegmentLog:
    """Stored log of one topic.

    A batch is readable at once, and durable after the next commit of its store: ``write`` and
    ``sync``, then ``confirm`` or ``abort``, which may run in another thread. All other methods
    are called in one thread.
    """

    def __init__(
        self,
        directory: TopicDirectory,
        recovered: RecoveredLog,
        *,
        readers: FileCache,
        writers: FileCache,
        changed: dict[TopicId, SegmentLog],
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> None:
        self._directory = directory
        self._record = recovered.record
        self._readers = readers
        self._writers = writers  # used by the thread that commits
        self._changed = changed  # logs for the next commit of the store
        self._segment_bytes_max = segment_bytes_max
        self._segments = recovered.segments
        self._starts = [segment.index.start for segment in self._segments]
        self._absent = OffsetRanges(self._record.absent)
        self._newest: dict[SequenceId, int] = {}
        for segment in self._segments:
            self._merge_newest(segment, segment.index)
        last = self._segments[-1].index if self._segments else None
        self._end = last.end if last is not None else 0
        self._chain = last.chain if last is not None else START_OF_CHAIN
        self.durable_end = self._end
        self._is_recorded = recovered.is_recorded
        self._unconfirmed: list[_Unconfirmed] = []
        self._discards: list[_Discard] = []
        self._written = 0, 0  # entries and discards of the current commit
        self._renewed: TopicRecord | None = None  # the record that the current commit writes
        self._tails: list[SegmentTail] = []
        self._is_tainted = False  # a commit failed: the next one begins a new segment
        self._leftovers: list[Path] = []  # segments that failed commits have created
        self._lock = Lock()  # for state that a commit in another thread reads

    # -- identity --------------------------------------------------------------------------

    @property
    def topic(self) -> TopicId:
        """Return the topic."""
        return self._record.topic

    @property
    def store(self) -> str:
        """Return the id of the store that offsets refer to."""
        return self._record.store

    @property
    def epoch(self) -> int:
        """Return the epoch that offsets refer to."""
        return self._record.epoch

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self._end

    # -- reads -----------------------------------------------------------------------------

    def read(self, offset: int) -> Entry | None:
        """Return the entry with the record at an offset; None if it is absent or damaged."""
        if offset in self._absent:
            return None
        entry = self._in_memory(offset)  # first: a commit moves entries from memory to the disk
        if entry is None and (place := self._place(offset)) is not None:
            segment, number = place
            entry = segment.index.read(self._readers.get(segment.path), number)
        return entry if entry is not None and entry.offset <= offset < entry.end else None

    def read_range(self, start: int, end: int) -> Iterator[Entry]:
        """Yield the readable entries with records between two offsets."""
        while start < min(end, self._end):
            inside = self._all_in_memory(start)  # first: as in ``read``
            found = self._chunk(start, READ_BYTES)
            for entry in inside if found is None else found[0].entries(found[1]):
                if entry.offset >= end:
                    return
                if entry.end > start and entry.offset not in self._absent:
                    yield entry
            start = inside[-1].end if found is None else found[0].end

    def raw_range(self, start: int, end: int, bytes_max: int) -> RawEntries | None:
        """Return contiguous durable entries between two offsets as they are stored.

        The range begins with the first readable entry. It ends before an absent or damaged entry,
        and at the end of a segment. Only damaged sizes and offsets are detected: the receiver
        verifies the entries. A single entry may exceed ``bytes_max``.
        """
        while start < min(end, self.durable_end):
            read = self._chunk(start, bytes_max)
            if read is None:
                return None
            chunk, data = read
            found = chunk.contiguous(data, start, end, self._absent)
            if found is not None:
                return found
            start = chunk.end
        return None

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the stored id of each batch and the offset of its first record."""
        start = 0
        while start < self._end:
            inside = self._all_in_memory(start)  # first: as in ``read``
            place = self._place(start)
            if place is None:
                found: Iterable[tuple[bytes, int]] = ((e.batch.id, e.offset) for e in inside)
                start = inside[-1].end
            else:
                found, start = self._stored_ids(*place)
            yield from (each for each in found if each[1] not in self._absent)

    def newest(self) -> dict[SequenceId, int]:
        """Return the largest number of each sequence.

        Quarantined batches count, because their numbers have been used. Unordered batches do not.
        """
        batches = [entry.batch for entry in self._all_in_memory(0) if not entry.batch.unordered]
        newest = newest_of((batch.publisher, batch.end - 1) for batch in batches)
        with self._lock:
            merge_newest(newest, self._newest)
        return newest

    def chain_at(self, offset: int) -> bytes:
        """Return the running digest over the batches that begin before an offset.

        Return zeros if the last of these batches is damaged.
        """
        assert 0 <= offset <= self._end, f"offset {offset} beyond {self._end}"
        entry = self._in_memory(offset - 1)
        if entry is None:
            segment, number, chain = self._chain_place(offset)
            if segment is None:
                return chain[:CHAIN_BYTES]
            entry = segment.index.read(self._readers.get(segment.path), number)
        return entry.chain[:CHAIN_BYTES] if entry is not None else bytes(CHAIN_BYTES)

    def _chain_place(self, offset: int) -> tuple[LogSegment | None, int, bytes]:
        """Return the last stored entry that begins before an offset, or no entry and the digest."""
        with self._lock:
            number = bisect_left(self._starts, offset) - 1
            if number < 0:
                return None, 0, self._segments[0].header.chain if self._segments else START_OF_CHAIN
            segment = self._segments[number]
            index = segment.index
            before = bisect_left(index.offsets, offset - index.start)
            if before == len(index.offsets):
                return None, 0, index.chain
            return (segment, before - 1, b"") if before else (None, 0, segment.header.chain)

    # -- writes ----------------------------------------------------------------------------

    def append(self, batch: RecordBatch) -> int:
        """Append a batch; return the offset of its first record."""
        assert len(batch.id) == ID_BYTES, "a batch without an id"
        self._chain = next_chain(self._chain, batch.id)
        entry = Entry(self._end, self._chain, batch)
        added = _Unconfirmed(entry, encode_entry(entry))
        with self._lock:
            self._unconfirmed.append(added)
            self._end = entry.end
            self._changed[self.topic] = self
        return entry.offset

    def discard(self, offset: int, reason: str = DAMAGED) -> None:
        """Quarantine the batch that contains an offset; the next commit makes this durable."""
        if offset in self._absent:
            return
        entry = self._in_memory(offset)
        if entry is not None:
            start, end, data = entry.offset, entry.end, encode_entry(entry) + entry.batch.body
        elif (place := self._place(offset)) is not None:
            start, end, data = self._raw_entry(*place)
        else:
            return
        if start <= offset < end:
            with self._lock:
                self._absent.add(start, end)
                content = f"{reason}\n".encode() + data
                self._discards.append(_Discard(f"{start:020}.entry", content))
                self._changed[self.topic] = self

    def _raw_entry(self, segment: LogSegment, number: int) -> tuple[int, int, bytes]:
        """Return the offsets and bytes of an entry; a damaged one ends where the next begins."""
        index, file = segment.index, self._readers.get(segment.path)
        entry = index.read(file, number)
        with self._lock:
            is_last = number + 1 == len(index.offsets)
            after = index.end if is_last else index.start + index.offsets[number + 1]
            position, size = index.span(number, number + 1)
        start = index.start + index.offsets[number]
        return start, entry.end if entry is not None else after, read_at(file, size, position)

    @property
    def unwritten(self) -> int:
        """Return the number of records that are in memory only."""
        return self._end - self.durable_end

    # -- commits ---------------------------------------------------------------------------

    def write(self) -> None:
        """Write the entries and discards in memory; sync all segments but the last."""
        with self._lock:
            entries, discards = self._written = len(self._unconfirmed), len(self._discards)
            absent = self._absent.below(self._end)
            is_new = bool(discards) or not self._is_recorded
            self._renewed = replace(self._record, absent=absent) if is_new else None
        if self._renewed is not None:
            self._directory.write_record(self._renewed)
            for discard in self._discards[:discards]:
                self._directory.quarantine_bytes(*discard)
        elif self._is_tainted and not self._directory.path.is_dir():
            self._directory.write_record(self._record)
        last = self._segments[-1] if self._segments else None
        # Recovery would prefer these files to the entries of this commit. The last one is removed
        # first, so a crash leaves no hole.
        for path in sorted(self._leftovers, reverse=True):
            self._writers.drop(path)
            path.unlink(missing_ok=True)
        if last is not None and self._is_tainted and not last.is_sealed:
            cut_unconfirmed(last, self._writers)
        if entries:
            self._write_entries(self._unconfirmed[:entries], last)

    def _write_entries(self, entries: list[_Unconfirmed], last: LogSegment | None) -> None:
        tail: SegmentTail | None = None
        chain = last.index.chain if last is not None else START_OF_CHAIN
        if last is not None and not (self._is_tainted or last.is_sealed):
            tail = SegmentTail(last, self._writers)
            self._tails.append(tail)
        for entry, head in entries:
            size = len(head) + len(entry.batch.body)
            if tail is None or tail.is_full(size, self._segment_bytes_max):
                if tail is not None:
                    chain = tail.index.chain
                    tail.write(is_sealed=True)
                    tail.sync()
                tail = SegmentTail.new(
                    self._directory.path, self.topic, entry, chain, self._writers
                )
                self._tails.append(tail)
            tail.add(entry, head)
        assert tail is not None, "a commit without entries"
        tail.write()

    def sync(self) -> None:
        """Make the written entries durable."""
        if self._tails:
            self._tails[-1].sync()

    def confirm(self) -> None:
        """Record that the commit succeeded."""
        entries, discards = self._written
        with self._lock:
            for tail in self._tails:
                if tail.is_new:
                    self._segments.append(tail.segment)
                    self._starts.append(tail.segment.index.start)
                    self._is_tainted = False
                tail.confirm()
                self._merge_newest(tail.segment, tail.index)
                self.durable_end = tail.index.end
            del self._unconfirmed[:entries], self._discards[:discards]
            if self._renewed is not None:
                self._record = self._renewed
                self._is_recorded = True
            self._tails, self._leftovers = [], []

    def _merge_newest(self, segment: LogSegment, added: EntryIndex) -> None:
        """Add the newest numbers of entries; those of a sealed segment are in its footer."""
        merge_newest(self._newest, added.newest)
        if segment.is_sealed:
            segment.index.newest.clear()

    def abort(self) -> None:
        """Record that the commit failed: its entries remain in memory for the next one."""
        with self._lock:
            self._is_tainted = self._is_tainted or bool(self._tails)
            self._leftovers += [tail.segment.path for tail in self._tails if tail.is_new]
            self._tails = []
            self._changed[self.topic] = self

    # -- lookup ----------------------------------------------------------------------------

    def _place(self, offset: int) -> tuple[LogSegment, int] | None:
        """Return the segment and number of the stored entry at an offset, or of the next one."""
        with self._lock:
            if offset >= self.durable_end:
                return None
            number = max(0, bisect_right(self._starts, offset) - 1)
            if offset >= self._segments[number].index.end:
                number += 1
            segment = self._segments[number]
            before = bisect_right(segment.index.offsets, offset - segment.index.start)
            return segment, max(0, before - 1)

    def _in_memory(self, offset: int) -> Entry | None:
        """Return the entry in memory that contains an offset."""
        with self._lock:
            number = bisect_right(self._unconfirmed, offset, key=lambda each: each.entry.offset)
            entry = self._unconfirmed[number - 1].entry if number else None
            return entry if entry is not None and offset < entry.end else None

    def _all_in_memory(self, start: int) -> list[Entry]:
        """Return the entries in memory that end after an offset."""
        with self._lock:
            return [entry for entry, _ in self._unconfirmed if entry.end > start]

    def _chunk(self, start: int, bytes_max: int) -> tuple[SegmentChunk, bytes] | None:
        """Read stored entries, beginning at an offset; at least one."""
        place = self._place(start)
        if place is None:
            return None
        segment, first = place
        with self._lock:
            chunk = SegmentChunk.of(segment.index, first, bytes_max)
        return chunk, read_at(self._readers.get(segment.path), chunk.size, chunk.positions[0])

    def _stored_ids(
        self, segment: LogSegment, first: int
    ) -> tuple[Iterator[tuple[bytes, int]], int]:
        """Return ids and offsets of a segment's entries, and the offset after them."""
        index = segment.index
        with self._lock:
            offsets, end = index.offsets[first:], index.end
        ids = islice(segment.ids(self._readers), first, None)
        begin = index.start
        return ((key, begin + each) for each, key in zip(offsets, ids, strict=False)), end
