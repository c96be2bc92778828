"""Log of one topic: batches in segments on the disk, and the newest ones in memory."""

from __future__ import annotations

import os
import secrets
from bisect import bisect_right
from collections.abc import Iterator
from hashlib import blake2b
from threading import Lock
from typing import Final

from msgspec.structs import replace

from skipring.core.batches import OVERHEAD_BYTES, RecordBatch
from skipring.core.limits import CHAIN_BYTES, SESSION_BYTES, TRIMMED_CHAIN
from skipring.core.log import (
    EVERY,
    EntryFilter,
    EntryPage,
    LogEntry,
    PageLimits,
    SegmentExtent,
)
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES, newest_of
from skipring.core.summaries import DIGEST_BYTES
from skipring.storage.data_dir import sync_directory
from skipring.storage.recovery import RecoveredLog
from skipring.storage.segment import EntryChunk, EntryIndex, FileCache, LogSegment
from skipring.storage.segment_format import START_OF_CHAIN, SegmentHeader, chain_value
from skipring.storage.segment_list import SegmentList
from skipring.storage.topic_directory import TopicDirectory, covers, merged

SEGMENT_BYTES_MAX: Final = 64 << 20  # Guess: the entry that reaches it is the last of a segment.
SEGMENT_BYTES_MIN: Final = 4096  # Guess: a smaller file takes a block of the disk too.
SEGMENTS_OF_LIMIT: Final = 16  # A segment is at most this part of the bytes of its topic.
READ_BYTES: Final = 1 << 20  # Guess: one read of a range.
PASSED_AT_ONCE: Final = 32  # Guess: excluding one costs less, but distant ones are read alone.
_RANGE: Final = PageLimits(READ_BYTES, READ_BYTES, READ_BYTES, READ_BYTES)
_ONE: Final = PageLimits(1, 1, 1, 1)
_CHAIN: Final = blake2b(digest_size=DIGEST_BYTES - SESSION_BYTES, person=b"skipring chain")
sync_data: Final = getattr(os, "fdatasync", os.fsync)  # not on every platform


def next_chain(chain: bytes, batch_id: bytes, session: bytes) -> bytes:
    """Return the digest after one more batch: its session, then the running digest."""
    state = _CHAIN.copy()
    state.update(chain[SESSION_BYTES:] + batch_id)
    return session + state.digest()


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
        self._writers = writers  # used by the thread that commits
        self._changed = changed  # logs for the next commit of the store
        self._owner = recovered.owner
        self._default_bytes_max = self._segment_bytes_max = segment_bytes_max
        self._record = record = recovered.record
        self._is_recorded = recovered.is_recorded  # the record on the disk is up to date
        self.topic, self.store, self.epoch = record.topic, record.store, record.epoch
        self.terms = record.terms
        self._absent = record.absent  # ranges of offsets, from ``low`` on
        self._lock = Lock()  # for state that a commit in another thread uses
        self._segments = SegmentList(recovered.segments, readers, self._lock, record.low)
        self._chain = last.index.chain if (last := self._segments.last) else START_OF_CHAIN
        self._session = secrets.token_bytes(SESSION_BYTES)
        self.low = record.low
        self.end = self.durable_end = self._segments.end
        self._unconfirmed: list[LogEntry] = []  # from ``durable_end`` to ``end``
        self._unconfirmed_bytes = 0  # approximate
        self._discards: list[tuple[int, bytes]] = []  # offsets and entries to quarantine
        self._removed: dict[int, int] = {}  # counts of removed batches in memory, by offset
        self._tail: tuple[LogSegment, EntryIndex] | None = None  # of the current commit
        self._is_tainted = False  # a commit failed: the next one begins a new segment
        self._has_garbage = bool(recovered.segments)  # a commit may have files to reclaim

    @property
    def records(self) -> int:
        """Return the number of records, without absent and trimmed ones."""
        return self.end - self.count_absent(0, self.end) - self.count_trimmed(0, self.end)

    def count_absent(self, start: int, end: int) -> int:
        """Return the number of lost and quarantined records between two offsets."""
        absent = [(max(a, start), min(b, end)) for a, b in self._absent]
        return sum([b - a for a, b in absent if a < b])

    def count_trimmed(self, start: int, end: int) -> int:
        """Return the number of trimmed and removed records between two offsets."""
        above, dropped_between = max(start, self.low), self._segments.dropped_between
        found = dropped_between(above, end)
        if found:  # lost offsets may follow a dropped entry
            found -= sum([dropped_between(max(a, above), min(b, end)) for a, b in self._absent])
        removed = list(self._removed.items())
        found += sum([max(min(at + n, end) - max(at, above), 0) for at, n in removed])
        return found + max(min(end, self.low) - max(start, 0), 0)

    def extents(self) -> list[SegmentExtent]:
        """Return the statistics of the segments, in order, without batches in memory."""
        found = self._segments.extents(self.low)
        absent = [self.count_absent(each.start, each.end) for each in found]
        return [e._replace(records=e.records - n) for e, n in zip(found, absent, strict=True)]

    @property
    def waiting_bytes(self) -> int:
        """Return the size of what the next commit writes, and of segments it seals or rewrites."""
        last_bytes = self._segments.all[-1].index.size if self._segments.all else 0
        sealed_bytes = last_bytes if last_bytes >= self._segment_bytes_max else 0
        sealed_bytes += self._segment_bytes_max if self._has_garbage else 0
        discarded_bytes = sum([len(data) for _, data in self._discards[:]])
        record_bytes = len(self.terms) * (not self._is_recorded)
        return self._unconfirmed_bytes + sealed_bytes + discarded_bytes + record_bytes

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
        start = max(start, self.low)
        while start < min(end, self.end):
            bytes_max = min(limits.bytes_max - size, limits.scanned_bytes_max - scanned)
            entries_left = limits.scanned_entries_max - number
            chunk = self._chunk(start, min(bytes_max, READ_BYTES), entries_left, wanted)
            passed += chunk.passed
            for place, offset in enumerate(chunk.offsets[:-1]):
                if offset >= end:
                    return EntryPage(entries, end)
                entry = None if self._is_absent(offset) else chunk.entry(place, wanted)
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
        self, offset: int, bytes_max: int, entries_max: int, wanted: EntryFilter | None
    ) -> EntryChunk:
        """Read entries of one segment, or of the memory; without a filter also dropped ones."""
        with self._lock:
            if offset >= self.durable_end:
                removed = self._removed if wanted is not None else {}
                entries = self._unconfirmed[self._waiting(offset) :]
                return EntryChunk.of(entries, removed, bytes_max, entries_max)
        return self._segments.chunk(offset, bytes_max, entries_max, wanted)

    def _waiting(self, offset: int) -> int:
        """Return the place in memory of the entry that contains an offset."""
        return bisect_right(self._unconfirmed, offset, key=lambda each: each.offset) - 1

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the stored id of each batch and the offset of its first record."""
        with self._lock:
            inside, end = self._unconfirmed[:], self.durable_end
        for key, offset in self._segments.entries(self.low, end):
            if offset >= self.low and not (self._absent and self._is_absent(offset)):
                yield key, offset
        yield from ((e.batch.id, e.offset) for e in inside if not self._is_gone(e.offset))

    def newest(self, publisher: NodeId) -> dict[int, int]:
        """Return the newest number of each incarnation of the node of the store.

        Quarantined batches count: they used their numbers. Numbers of other names are unknown.
        """
        if publisher != self._owner:
            return {}
        with self._lock:
            found = [seq for each in self._segments.all for seq in each.index.newest.values()]
            found += self._record.newest if self._record.owner == self._owner else []
            batches = [each.batch for each in self._unconfirmed]
        own = [each for each in batches if each.publisher == publisher and not each.unordered]
        return newest_of([*found, *(each.end - 1 for each in own)])

    def chain_at(self, offset: int) -> bytes:
        """Return the chain value over the batches that begin before an offset; zeros if lost."""
        assert 0 <= offset <= self.end, f"offset {offset} beyond {self.end}"
        if offset == self.end:
            return self._chain[:CHAIN_BYTES]
        if offset < min(self.low, self._segments.start):
            return TRIMMED_CHAIN
        if (chain := self._segments.chain_before(offset)) is not None:
            return chain[:CHAIN_BYTES]
        entry = self._chunk(offset - 1, 1, 1, None).entry(0)
        if entry is None or entry.offset >= offset:  # the first entry may be lost
            return bytes(CHAIN_BYTES)
        return chain_value(entry, offset)

    @property
    def disk_bytes(self) -> int:
        """Return the size of the segments, with dropped entries that still take space."""
        with self._lock:
            return self._segments.size_bytes + self._unconfirmed_bytes

    # -- writes ----------------------------------------------------------------------------

    def append(self, batch: RecordBatch) -> int:
        """Append a batch; return the offset of its first record."""
        key, offset = batch.id, self.end
        assert len(key) == ID_BYTES, "a batch without an id"
        self._chain = chain = next_chain(self._chain, key, self._session)
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
        if self._is_gone(offset):
            return 0
        chunk = self._chunk(offset, 1, 1, None)
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

    def _is_gone(self, offset: int) -> bool:
        """Return True unless an offset is stored."""
        if not self.low <= offset < self.end or self._is_absent(offset):
            return True
        with self._lock:
            if offset >= self.durable_end:
                return self._unconfirmed[self._waiting(offset)].offset in self._removed
            index = self._segments.at(offset)[0].index
            return not index.is_live(index.number(offset))

    def trim(self, offset: int) -> int:
        """Drop the batches that end at or below an offset; return the number of their records."""
        before = self.records
        with self._lock:
            start = self.end
            if offset <= self.low:
                return 0
            if offset < self.durable_end:
                index = self._segments.at(offset)[0].index
                start = index.span(index.number(offset))[0]
            elif offset < self.end:
                start = self._unconfirmed[self._waiting(offset)].offset
            if start > self.low:
                self._raise_low(start)
        return before - self.records

    def remove(self, offset: int) -> int:
        """Drop the batch that contains an offset; return the number of its records."""
        if self._is_gone(offset):
            return 0
        with self._lock:
            if offset >= self.durable_end:
                entry = self._unconfirmed[self._waiting(offset)]
                self._removed[entry.offset] = count = entry.end - entry.offset
            else:
                index = self._segments.at(offset)[0].index
                span = index.span(number := index.number(offset))
                count = span[1] - span[0] - self.count_absent(*span)  # lost ones may follow
                index.drop(number)
                self._has_garbage |= self._segments.is_garbage(index)
            self._changed[self.topic] = self
            self._raise_low(self.low)
        return count

    def _raise_low(self, offset: int) -> None:
        """Raise ``low`` to the first batch that is stored from an offset on."""
        self._segments.close_replaced()
        found = self._segments.next_live(offset, self._is_absent)
        if found is None:
            inside = [e.offset for e in self._unconfirmed[max(self._waiting(offset), 0) :]]
            stored = (at for at in inside if at >= offset and at not in self._removed)
            found = next((at for at in stored if not self._is_absent(at)), self.end)
        if found > self.low:
            self.low = low = found
            self._absent = [(max(a, low), b) for a, b in self._absent if b > low]
            self._removed = {at: n for at, n in self._removed.items() if at >= low}
            self._segments.drop_before(low)
            self._is_recorded, self._has_garbage = False, True
            self._changed[self.topic] = self

    def limit_segments(self, bytes_max: int | None) -> None:
        """Limit new segments to a sixteenth of the bytes of the topic; None: to the default."""
        limit = SEGMENT_BYTES_MAX if bytes_max is None else bytes_max // SEGMENTS_OF_LIMIT
        self._segment_bytes_max = min(max(limit, SEGMENT_BYTES_MIN), self._default_bytes_max)

    def save_terms(self, terms: bytes) -> None:
        """Replace the terms. The next commit makes it durable."""
        with self._lock:
            self.terms, self._is_recorded = terms, False
            self._changed[self.topic] = self

    # -- commits ---------------------------------------------------------------------------

    def write(self) -> None:
        """Write entries in memory to the end of one segment, and the record if it has changed."""
        with self._lock:
            entries = self._unconfirmed[:]
            is_recorded, self._is_recorded = self._is_recorded, True
            low = min(self.low, self.durable_end)  # a crash must not lose the entries before it
            changes = {"absent": self._absent, "low": low, "terms": self.terms}
        if not is_recorded:
            record = replace(self._record, **changes)
            self._directory.write_record(record)
            self._record = record
        if self._discards:
            self._quarantine_entries()
        if entries:
            self._write_entries(entries)

    def _quarantine_entries(self) -> None:
        """Write all discarded entries to one file: a commit must not take long for many."""
        discarded = self._discards[:]  # the other thread may append more
        del self._discards[: len(discarded)]
        data = b"".join([each for _, each in discarded])
        self._directory.quarantine_bytes(f"{discarded[0][0]:020}.entries", data)

    def _write_entries(self, entries: list[LogEntry]) -> None:
        """Write entries to the last segment until it is full; begin a new one if it is.

        After a failed commit the last segment is cut and sealed, if the disk allows it. Otherwise
        recovery ignores the unconfirmed entries, because the next segment begins with their offset.
        """
        last = self._segments.last
        is_full = last is None or last.index.size >= self._segment_bytes_max
        if last is None or is_full or last.footer_bytes or self._is_tainted:
            chain = START_OF_CHAIN
            if last is not None:
                last.seal(self._writers)
                chain = last.index.chain
            header = SegmentHeader(self.topic, entries[0].offset, chain)
            last = LogSegment.new(self._directory.path, header, self._owner)
            self._writers.drop(last.path)
            last.path.unlink(missing_ok=True)  # left by a failed commit
        pieces, added = last.encode(entries, self._segment_bytes_max)
        self._tail = last, added
        last.write(pieces, self._writers)

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
                if not segment.index.size:  # the one before is sealed
                    self._is_tainted, self._has_garbage = False, True
                self._segments.extend(segment, added)
                del self._unconfirmed[: len(added.positions)]
                self.durable_end = added.end
                for at in sorted(each for each in self._removed if each < added.end):
                    segment.index.drop(segment.index.number(at))
                self._removed = {at: n for at, n in self._removed.items() if at >= added.end}
                self._segments.drop_before(self.low)
                self._unconfirmed_bytes = sum([e.batch.size_bytes for e in self._unconfirmed])
            self._end_changes()

    def reclaim(self) -> None:
        """Delete the segments without live entries, and rewrite one with few of them."""
        if not self._has_garbage:
            return
        newest = list(self.newest(self._owner).values())

        def record(dropped: dict[int, bytes]) -> None:
            """Record what was dropped, before the files lack it."""
            renewed = replace(self._record, dropped=dropped, owner=self._owner, newest=newest)
            self._directory.write_record(renewed)
            self._record = renewed

        if self._segments.reclaim(self._record.low, self._writers, record):
            sync_directory(self._directory.path)
        with self._lock:
            self._end_changes()

    def _end_changes(self) -> None:
        """Remove the log from the changed ones if it has nothing more to write."""
        self._is_recorded = self._is_recorded and self._record.low == self.low
        self._has_garbage = self._has_garbage and self._segments.has_garbage(self._record.low)
        if not self._unconfirmed and self._is_recorded and not self._has_garbage:
            self._changed.pop(self.topic, None)

    def abort(self) -> None:
        """Record that the commit failed: its entries remain in memory for the next one."""
        with self._lock:
            self._is_tainted = self._is_tainted or self._tail is not None
            self._is_recorded = False  # the directory may be lost
            self._tail = None
