"""Log of one topic: batches in segments on the disk, and the newest ones in memory."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from threading import Lock
from typing import Final, NamedTuple

from msgspec.structs import replace

from skipring.core.batches import OVERHEAD_BYTES, RecordBatch
from skipring.core.limits import CHAIN_BYTES
from skipring.core.log import ANY_BYTE, EVERY, EntryFilter, EntryPage, LogEntry, PageLimits
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES, newest_of
from skipring.storage.data_dir import sync_directory
from skipring.storage.recovery import RecoveredLog
from skipring.storage.segment import (
    EntryIndex,
    FileCache,
    LogSegment,
    segment_name,
    write_pieces,
)
from skipring.storage.segment_format import (
    DIGEST_BYTES,
    ENTRY_BYTES_MAX,
    HEADERS,
    ID_AT,
    START_OF_CHAIN,
    SegmentHeader,
    decode_entry,
    encode_entry,
)
from skipring.storage.topic_directory import TopicDirectory, covers, merged

SEGMENT_BYTES_MAX: Final = 64 << 20  # Guess: the entry that reaches it is the last of a segment.
READ_BYTES: Final = 1 << 20  # Guess: one read of a range.
PASSED_AT_ONCE: Final = (
    32  # Guess: excluding an entry costs less, but distant entries are read alone.
)
_RANGE: Final = PageLimits(READ_BYTES, READ_BYTES, READ_BYTES, READ_BYTES)
_ONE: Final = PageLimits(1, 1, 1, 1)
_CHAIN: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring chain")
sync_data: Final = getattr(os, "fdatasync", os.fsync)  # not on every platform


def next_chain(chain: bytes, batch_id: bytes) -> bytes:
    """Return the running digest after one more batch."""
    state = _CHAIN.copy()
    state.update(chain + batch_id)
    return state.digest()


class _Chunk(NamedTuple):
    """Entries of one segment in order, and their bytes, which may be damaged or cut short."""

    offsets: list[int]  # of each entry, then the offset where the next chunk begins
    positions: list[int]  # of each entry in the data
    sizes: list[int]  # of each entry, at most
    data: bytes
    passed: int = 0  # entries that the index excluded

    def entry(self, number: int, firsts: range = ANY_BYTE) -> LogEntry | None:
        """Return an entry; None if it is damaged, or if its id begins with another byte."""
        at = self.positions[number]
        id_at = at + ID_AT
        if firsts != ANY_BYTE and (id_at >= len(self.data) or self.data[id_at] not in firsts):
            return None
        entry = decode_entry(memoryview(self.data), at)
        return entry if entry is not None and entry.offset == self.offsets[number] else None


class SegmentLog:
    """Stored log of one topic (implements ``core.log.Log``).

    A batch is readable at once, and durable after a commit of its store: ``write`` and ``sync``,
    then ``confirm`` or ``abort``, which may run in another thread. All other methods are called in
    one thread.
    """

    is_durable: Final = True

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
        self._readers = readers
        self._writers = writers  # used by the thread that commits
        self._changed = changed  # logs for the next commit of the store
        self._owner = recovered.owner
        self._segment_bytes_max = segment_bytes_max
        self._record = record = recovered.record
        self._is_recorded = recovered.is_recorded  # the record on the disk is up to date
        self.topic, self.store, self.epoch = record.topic, record.store, record.epoch
        self._absent = record.absent  # ranges of offsets
        self._segments = segments = recovered.segments
        self._starts = [segment.header.start for segment in segments]
        self._start_chain = segments[0].header.chain if segments else START_OF_CHAIN
        self._chain = segments[-1].index.chain if segments else START_OF_CHAIN
        self.end = self.durable_end = segments[-1].index.end if segments else 0
        self._unconfirmed: list[LogEntry] = []  # from ``durable_end`` to ``end``
        self._unconfirmed_bytes = 0  # approximate
        self._discards: deque[tuple[int, bytes]] = deque()  # offsets and entries to quarantine
        self._tail: tuple[LogSegment, EntryIndex] | None = None  # of the current commit
        self._is_tainted = False  # a commit failed: the next one begins a new segment
        self._lock = Lock()  # for state that a commit in another thread uses

    @property
    def records(self) -> int:
        """Return the number of records, without absent ones."""
        return self.end - sum([end - start for start, end in self._absent])

    def count_absent(self, start: int, end: int) -> int:
        """Return the number of lost and quarantined records between two offsets."""
        absent = [(max(a, start), min(b, end)) for a, b in self._absent]
        return sum([b - a for a, b in absent if a < b])

    @property
    def waiting_bytes(self) -> int:
        """Return the size of what the next commit writes, and of a segment that it seals."""
        last_bytes = self._segments[-1].index.size if self._segments else 0
        sealed_bytes = last_bytes if last_bytes >= self._segment_bytes_max else 0
        discarded_bytes = sum([len(data) for _, data in list(self._discards)])
        return self._unconfirmed_bytes + sealed_bytes + discarded_bytes

    # -- reads -----------------------------------------------------------------------------

    def read(self, offset: int) -> LogEntry | None:
        """Return the entry that contains an offset; None if it is absent or damaged."""
        page = self.read_page(offset, offset + 1, _ONE) if offset >= 0 else None
        return page.entries[0] if page is not None and page.entries else None

    def read_range(self, start: int, end: int) -> Iterator[LogEntry]:
        """Yield the readable entries with records between two offsets."""
        while start < min(end, self.end):
            entries, start = self.read_page(start, end, _RANGE)
            yield from entries

    def read_page(
        self, start: int, end: int, limits: PageLimits, wanted: EntryFilter = EVERY
    ) -> EntryPage:
        """Return readable entries with records between two offsets, within limits.

        Entries that the index excludes are not read. Damaged entries are skipped. The file is read
        up to the limit, and to the end of an entry.
        """
        entries: list[LogEntry] = []
        size = scanned = number = passed = 0
        while start < min(end, self.end):
            bytes_max = min(limits.bytes_max - size, limits.scanned_bytes_max - scanned)
            entries_left = limits.scanned_entries_max - number
            chunk = self._chunk(start, min(bytes_max, READ_BYTES), entries_left, wanted)
            passed += chunk.passed
            for place, offset in enumerate(chunk.offsets[:-1]):
                if offset >= end:
                    return EntryPage(entries, end)
                entry = None if self._is_absent(offset) else chunk.entry(place, wanted.firsts)
                entry_size = chunk.sizes[place]
                scanned += entry_size
                number += 1
                if entry is not None and offset + entry.batch.count > start:
                    entries.append(entry)
                    size += entry_size
                is_full = size >= limits.bytes_max or len(entries) >= limits.entries_max
                is_spent = number >= limits.scanned_entries_max
                if is_full or is_spent or scanned >= limits.scanned_bytes_max:
                    return EntryPage(entries, chunk.offsets[place + 1])
            start = chunk.offsets[-1]
            if number + passed // PASSED_AT_ONCE >= limits.scanned_entries_max:
                break
        return EntryPage(entries, min(start, end))

    def _is_absent(self, offset: int) -> bool:
        return bool(self._absent) and covers(self._absent, offset, offset + 1)

    def _chunk(
        self, offset: int, bytes_max: int, entries_max: int = 1, wanted: EntryFilter = EVERY
    ) -> _Chunk:
        """Read entries of one segment, or of the memory, up to a total size.

        Without a filter it is at least one; the first is the last entry that begins at or before
        the offset, if there is any.
        """
        with self._lock:
            if offset >= self.durable_end:
                return self._memory_chunk(offset, bytes_max, entries_max)
            place = max(0, bisect_right(self._starts, offset) - 1)
            segment, after = self._segments[place], self._starts[place + 1 : place + 2]
            index = segment.index
            first = max(0, bisect_right(index.offsets, offset - index.start) - 1)
            numbers, stop = index.selected(first, bytes_max, entries_max, wanted)
            offsets = [index.start + index.offsets[number] for number in numbers]
            is_last = stop == len(index.positions)
            following = after[0] if after else self.durable_end
            offsets.append(following if is_last else index.start + index.offsets[stop])
            positions = [index.positions[number] for number in numbers]
            ends = (
                [*index.positions[numbers[0] + 1 : numbers[-1] + 2], index.size] if numbers else []
            )
            sizes = [
                min(ends[number - numbers[0]] - at, ENTRY_BYTES_MAX)  # a gap may follow
                for number, at in zip(numbers, positions, strict=True)
            ]
        passed = stop - first - len(numbers)
        if not numbers:
            return _Chunk(offsets, [], [], b"", passed)
        base = positions[0]
        data = self._readers.read(segment.path, positions[-1] + sizes[-1] - base, base)
        return _Chunk(offsets, [each - base for each in positions], sizes, data, passed)

    def _memory_chunk(self, offset: int, bytes_max: int, entries_max: int) -> _Chunk:
        """Return entries in memory as they will be stored."""
        first = bisect_right(self._unconfirmed, offset, key=lambda each: each.offset) - 1
        offsets, positions, data = [self._unconfirmed[first].offset], list[int](), bytearray()
        for number in range(first, len(self._unconfirmed)):
            entry = self._unconfirmed[number]
            positions.append(len(data))
            data += encode_entry(entry) + entry.batch.body
            offsets.append(entry.end)
            if len(data) >= bytes_max or len(positions) >= entries_max:
                break
        ends = [*positions[1:], len(data)]
        sizes = [end - at for at, end in zip(positions, ends, strict=True)]
        return _Chunk(offsets, positions, sizes, bytes(data))

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the stored id of each batch and the offset of its first record."""
        with self._lock:
            stored = [(segment, segment.index.offsets[:]) for segment in self._segments]
            inside = [(entry.batch.id, entry.offset) for entry in self._unconfirmed]
        for segment, relative in stored:
            ids, start = segment.ids(self._readers), segment.header.start
            found = ((key, start + each) for key, each in zip(ids, relative, strict=False))
            yield from (each for each in found if not self._absent or not self._is_absent(each[1]))
        yield from (each for each in inside if not self._is_absent(each[1]))

    def newest(self, publisher: NodeId) -> dict[int, int]:
        """Return the newest number of each incarnation of the node of the store.

        Quarantined batches count: they used their numbers. Numbers of other names are unknown.
        """
        if publisher != self._owner:
            return {}
        with self._lock:
            found = [seq for each in self._segments for seq in each.index.newest.values()]
            batches = [each.batch for each in self._unconfirmed]
        own = [each for each in batches if each.publisher == publisher and not each.unordered]
        return newest_of([*found, *(each.end - 1 for each in own)])

    def chain_at(self, offset: int) -> bytes:
        """Return the running digest over the batches that begin before an offset; zeros if lost."""
        assert 0 <= offset <= self.end, f"offset {offset} beyond {self.end}"
        if offset == self.end:
            return self._chain[:CHAIN_BYTES]
        if offset <= (self._starts[0] if self._starts else 0):
            return self._start_chain[:CHAIN_BYTES]
        entry = self._chunk(offset - 1, 1).entry(0)
        is_before = entry is not None and entry.offset < offset  # the first entry may be lost
        return entry.chain[:CHAIN_BYTES] if entry is not None and is_before else bytes(CHAIN_BYTES)

    # -- writes ----------------------------------------------------------------------------

    def append(self, batch: RecordBatch) -> int:
        """Append a batch; return the offset of its first record."""
        key, offset = batch.id, self.end
        assert len(key) == ID_BYTES, "a batch without an id"
        self._chain = chain = next_chain(self._chain, key)
        with self._lock:
            self._unconfirmed.append(LogEntry(offset, chain, batch))
            self._unconfirmed_bytes += OVERHEAD_BYTES + len(batch.body)
            self.end = offset + batch.count
            self._changed[self.topic] = self
        return offset

    def discard(self, offset: int) -> int:
        """Quarantine the batch that contains an offset; return the number of its records.

        The next commit makes this durable.
        """
        if not 0 <= offset < self.end or self._is_absent(offset):
            return 0
        chunk = self._chunk(offset, 1)
        entry = chunk.entry(0)
        start, after = chunk.offsets
        end = entry.end if entry is not None else after  # a damaged one ends where the next begins
        if not start <= offset < end:
            return 0
        with self._lock:
            self._absent = merged([*self._absent, (start, end)])
            self._discards.append((start, chunk.data))
            self._is_recorded = False
            self._changed[self.topic] = self
        return end - start

    # -- commits ---------------------------------------------------------------------------

    def write(self) -> None:
        """Write entries in memory to the end of one segment, and the record if it has changed."""
        with self._lock:
            entries = self._unconfirmed[:]
            is_recorded, self._is_recorded = self._is_recorded, True
            record = replace(self._record, absent=self._absent) if not is_recorded else self._record
        if not is_recorded:
            self._directory.write_record(record)
            self._record = record
        if self._discards:
            self._quarantine_entries()
        if entries:
            self._write_entries(entries)

    def _quarantine_entries(self) -> None:
        """Write all discarded entries to one file: a commit must not take long for many."""
        offset = self._discards[0][0]
        discarded = [self._discards.popleft()[1] for _ in range(len(self._discards))]
        self._directory.quarantine_bytes(f"{offset:020}.entries", b"".join(discarded))

    def _write_entries(self, entries: list[LogEntry]) -> None:
        """Write entries to the last segment until it is full; begin a new one if it is.

        After a failed commit the last segment is cut and sealed, if the disk allows it. Otherwise
        recovery ignores the unconfirmed entries, because the next segment begins with their offset.
        """
        last = self._segments[-1] if self._segments else None
        is_full = last is None or last.index.size >= self._segment_bytes_max
        if last is None or is_full or last.footer_bytes or self._is_tainted:
            chain = self._start_chain
            if last is not None:
                last.seal(self._writers)
                chain = last.index.chain
            start = entries[0].offset
            path = self._directory.path / segment_name(start)
            self._writers.drop(path)
            path.unlink(missing_ok=True)  # left by a failed commit
            header = SegmentHeader(self.topic, start, chain)
            last = LogSegment(path, header, EntryIndex(start, start, chain, 0, self._owner))
        index = last.index
        flags = 0 if index.size else os.O_CREAT | os.O_EXCL
        pieces = [] if index.size else [HEADERS.encode(last.header)]
        begin = index.size + sum(map(len, pieces))
        added = EntryIndex(index.start, index.end, index.chain, begin, self._owner)
        for entry in entries:
            if added.size >= self._segment_bytes_max:
                break
            head, body = encode_entry(entry), entry.batch.body
            pieces += (head, body)
            added.add(entry, added.size, len(head) + len(body))
        self._tail = last, added
        write_pieces(self._writers.get(last.path, flags), pieces, index.size)

    def sync(self) -> None:
        """Make the written entries durable."""
        if self._tail is not None:
            segment, _ = self._tail
            sync_data(self._writers.get(segment.path))
            if not segment.index.size:
                sync_directory(self._directory.path)

    def confirm(self) -> None:
        """Record that the commit succeeded."""
        tail, self._tail = self._tail, None
        with self._lock:
            if tail is not None:
                segment, added = tail
                if not segment.index.size:
                    self._segments.append(segment)
                    self._starts.append(segment.header.start)
                    self._is_tainted = False
                segment.index.extend(added)
                del self._unconfirmed[: len(added.positions)]
                self.durable_end = added.end
                self._unconfirmed_bytes = sum([e.batch.size_bytes for e in self._unconfirmed])
            if not self._unconfirmed and self._is_recorded:
                self._changed.pop(self.topic, None)

    def abort(self) -> None:
        """Record that the commit failed: its entries remain in memory for the next one."""
        with self._lock:
            self._is_tainted = self._is_tainted or self._tail is not None
            self._is_recorded = False  # the directory may be lost
            self._tail = None
