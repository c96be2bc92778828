"""Log of batches: read by the machines, written by their host (effects Store, Discard).

Offsets count records and only grow. The trie is the index over the log. Retention trims the records
below an offset, and compaction removes single batches; the offsets of the others do not change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from skipring.core.batches import RecordBatch
from skipring.core.limits import NUMBER_MAX
from skipring.core.peers import NodeId
from skipring.core.publications import ID_BYTES, newest_of, raise_newest
from skipring.core.trie import OFFSET_BYTES, RECORD_BYTES, PublicationTrie

ANY_BYTE: Final = range(256)
DEAD_MIN: Final = 1024  # Guess: reads pass this number of places in 0.1 ms.
PUBLISHERS_MAX: Final = 1024  # Limit: names of which a log in memory keeps dropped numbers.


@lru_cache(maxsize=1024)  # most batches of a topic come from few publishers
def publisher_tag(publisher: NodeId) -> int:
    """Return a byte that depends on the publisher."""
    return crc32(publisher.encode(errors="replace")) & 0xFF


class LogEntry(NamedTuple):
    """Batch with the offset of its first record, and the running digest after it.

    A log in memory has no running digest.
    """

    offset: int
    chain: bytes
    batch: RecordBatch

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.offset + max(self.batch.count, 1)  # memory may be corrupted


class EntryFilter(NamedTuple):
    """Properties of the entries that a read requests; None: any.

    A log returns no entry whose id begins with another byte, or whose publisher has another tag. It
    may return others that have none of the properties: it uses those that its index knows.
    """

    firsts: range = ANY_BYTE  # first bytes of ids
    publishers: frozenset[NodeId] | None = None
    times: range | None = None  # of a record, in microseconds since the epoch
    tags: range = ANY_BYTE  # of publishers

    def includes(self, batch: RecordBatch) -> bool:
        """Return True if the first byte of the id and the tag of the publisher are wanted."""
        if not batch.id or batch.id[0] not in self.firsts:
            return False
        return self.tags == ANY_BYTE or publisher_tag(batch.publisher) in self.tags


EVERY: Final = EntryFilter()


class PageLimits(NamedTuple):
    """Limits of one read: bytes and entries that it returns, and that it scans."""

    bytes_max: int
    entries_max: int
    scanned_bytes_max: int
    scanned_entries_max: int


class EntryPage(NamedTuple):
    """Entries of one read, and the offset at which the next one starts."""

    entries: list[LogEntry]
    next: int


class SegmentExtent(NamedTuple):
    """Statistics of consecutive batches: one segment, known without a read."""

    start: int
    end: int
    records: int  # without absent and trimmed ones
    size_bytes: int  # of the stored batches
    earliest: int  # known time of a record, in microseconds since the epoch
    latest: int  # less than ``earliest`` if no time is known


class Log(Protocol):
    """Batches of one topic that a subscriber has stored."""

    @property
    def store(self) -> str:
        """Return the id of the store that offsets refer to; empty in memory."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the store that offsets refer to; 0 in memory."""

    @property
    def is_durable(self) -> bool:
        """Return True if batches are on disk after the next commit."""

    @property
    def end(self) -> int:
        """Return the offset after the last record."""

    @property
    def durable_end(self) -> int:
        """Return the durable mark; 0 in memory."""

    @property
    def low(self) -> int:
        """Return the first offset that may be stored: all records below it were trimmed."""

    @property
    def records(self) -> int:
        """Return the number of records, without absent and trimmed ones."""

    def count_absent(self, start: int, end: int) -> int:
        """Return the number of lost and quarantined records between two offsets."""

    def count_trimmed(self, start: int, end: int) -> int:
        """Return the number of trimmed and removed records between two offsets."""

    def extents(self) -> list[SegmentExtent]:
        """Return the statistics of the stored segments, in order; the last may lack new batches."""

    def chain_at(self, offset: int) -> bytes:
        """Return the chain value over all batches before an offset; empty in memory.

        Its digest is UNKNOWN_DIGEST among batches that were removed from their file. It is
        TRIMMED_CHAIN below the first stored file.
        """

    def read(self, offset: int) -> LogEntry | None:
        """Return the entry that contains an offset, or None if it cannot be read."""

    def read_range(self, start: int, end: int) -> Iterator[LogEntry]:
        """Yield the readable entries with records between two offsets."""

    def read_page(
        self, start: int, end: int, limits: PageLimits, wanted: EntryFilter = EVERY
    ) -> EntryPage:
        """Return readable entries with records between two offsets, within limits.

        The first entry may exceed the limits.
        """

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the id of each batch, as it was stored, and the offset of its first record."""

    def newest(self, publisher: NodeId) -> dict[int, int]:
        """Return the newest stored number of each incarnation of the node's own name."""

    @property
    def terms(self) -> bytes:
        """Return the bytes of the last ``save_terms``; empty without one."""

    def save_terms(self, terms: bytes) -> None:
        """Replace the terms. Only the host calls this. The next commit makes it durable."""

    def append(self, batch: RecordBatch) -> int:
        """Append a batch; return the offset of its first record. Only the host calls this."""

    def discard(self, offset: int) -> int:
        """Quarantine the batch that contains an offset; return the number of its records.

        Return 0 if the offset is absent. Only the host calls this.
        """

    def trim(self, offset: int) -> int:
        """Drop the batches that end at or below an offset; return the number of their records.

        Only the host calls this. The next commit makes it durable.
        """

    def remove(self, offset: int) -> int:
        """Drop the batch that contains an offset; return the number of its records.

        Return 0 if the offset is absent or trimmed. Only the host calls this. A crash can restore
        removed batches, but then it restores all that were removed after them too.
        """

    def limit_segments(self, bytes_max: int | None) -> None:
        """Limit new segments to a sixteenth of the bytes of the topic; None: to the default."""


class MemoryLog:
    """Log in memory, for simulations and for nodes without a disk."""

    __slots__ = (
        "_batches",
        "_dead",
        "_end",
        "_newest",
        "_records",
        "_removed",
        "_starts",
        "low",
        "terms",
    )

    def __init__(self, batches: Iterable[RecordBatch] = ()) -> None:
        # None uses less memory than empty lists: most logs of a large simulated ring are empty.
        self._batches: list[RecordBatch | None] | None = None
        self._starts: list[int] = _NO_STARTS
        self._end = 0
        self._records = 0
        self._dead = 0  # removed batches that still have a place
        self._removed: dict[int, int] | None = None  # removed counts by offset, from ``low`` on
        self._newest: dict[NodeId, dict[int, int]] | None = None  # numbers of dropped batches
        self.low = 0
        self.terms = b""
        for batch in batches:
            self.append(batch)

    store: Final = ""
    epoch: Final = 0
    durable_end: Final = 0
    is_durable: Final = False

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self._end

    @property
    def records(self) -> int:
        """Return the number of records, without discarded and trimmed ones."""
        return self._records

    def count_absent(self, start: int, end: int) -> int:
        """Return the number of discarded records between two offsets."""
        if self._records == self._end:
            return 0
        found = [(each.offset, each.end) for each in self.read_range(start, end)]
        stored = sum([min(b, end) - max(a, start) for a, b in found])
        return max(end - start, 0) - stored - self.count_trimmed(start, end)

    def count_trimmed(self, start: int, end: int) -> int:
        """Return the number of trimmed and removed records between two offsets."""
        removed = [(at, at + count) for at, count in (self._removed or {}).items()]
        found = [(max(a, start), min(b, end)) for a, b in [(0, self.low), *removed]]
        return sum([b - a for a, b in found if a < b])

    def extents(self) -> list[SegmentExtent]:
        """Return the statistics of all batches as one segment, without their times."""
        batches = [each for each in self._batches or () if each is not None]
        size_bytes = sum([each.size_bytes for each in batches])
        return [SegmentExtent(self.low, self._end, self._records, size_bytes, 0, NUMBER_MAX)]

    def chain_at(self, offset: int) -> bytes:
        """Return empty bytes: a log in memory has no running digest."""
        del offset
        return b""

    def read(self, offset: int) -> LogEntry | None:
        """Return the entry that contains an offset, or None if there is none."""
        return next(self.read_range(offset, offset + 1), None) if offset >= 0 else None

    def read_range(self, start: int, end: int) -> Iterator[LogEntry]:
        """Yield the entries with records between two offsets."""
        batches = self._batches or []
        places = min(len(batches), len(self._starts))  # memory may be corrupted
        for place in range(max(bisect_right(self._starts, start) - 1, 0), places):
            offset, batch = self._starts[place], batches[place]
            if max(offset, start) >= end:
                return
            if batch is not None and (entry := LogEntry(offset, b"", batch)).end > start:
                yield entry

    def read_page(
        self, start: int, end: int, limits: PageLimits, wanted: EntryFilter = EVERY
    ) -> EntryPage:
        """Return entries with records between two offsets, within limits."""
        found: list[LogEntry] = []
        size = scanned = 0
        for number, entry in enumerate(self.read_range(start, end), start=1):
            scanned += entry.batch.size_bytes
            if wanted.includes(entry.batch):
                found.append(entry)
                size += entry.batch.size_bytes
            is_full = size >= limits.bytes_max or len(found) >= limits.entries_max
            is_spent = scanned >= limits.scanned_bytes_max or number >= limits.scanned_entries_max
            if is_full or is_spent:
                return EntryPage(found, entry.end)
        return EntryPage(found, end)

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the id of each batch, as it was stored, and the offset of its first record."""
        for offset, batch in zip(self._starts, self._batches or (), strict=False):
            if batch is not None:
                yield batch.id, offset

    def newest(self, publisher: NodeId) -> dict[int, int]:
        """Return the newest number of each incarnation of a publisher."""
        batches = [each for each in self._batches or () if each and each.publisher == publisher]
        dropped = (self._newest or {}).get(publisher, {}).values()
        return newest_of([*dropped, *(each.end - 1 for each in batches if not each.unordered)])

    def append(self, batch: RecordBatch) -> int:
        """Append a batch; return the offset of its first record."""
        if self._batches is None:
            self._batches, self._starts = [], []
        offset = self._end
        self._batches.append(batch)
        self._starts.append(offset)
        self._end = offset + max(batch.count, 1)  # memory may be corrupted
        self._records += batch.count
        return offset

    def discard(self, offset: int) -> int:
        """Remove the batch that contains an offset; return the number of its records."""
        place = self._place(offset)
        if self._batches is None or place is None:
            return 0
        batch, self._batches[place] = self._batches[place], None
        count = batch.count if batch is not None else 0
        self._records -= count
        return count

    def trim(self, offset: int) -> int:
        """Drop the batches that end at or below an offset; return the number of their records."""
        batches, before = self._batches or [], self._records
        inside = self._place(offset)
        place = bisect_right(self._starts, offset) if inside is None else inside
        for batch in batches[: max(place, 0)]:
            self._drop(batch)
        if place > 0:
            self._raise_low(place)
        return before - self._records

    def remove(self, offset: int) -> int:
        """Drop the batch that contains an offset; return the number of its records."""
        batches, place = self._batches or [], self._place(offset)
        batch = batches[place] if place is not None else None
        if place is None or batch is None:
            return 0
        batches[place] = None
        self._drop(batch)
        if self._removed is None:
            self._removed = {}
        self._removed[self._starts[place]] = max(batch.count, 1)  # memory may be corrupted
        self._raise_low(0)
        self._dead += 1
        if self._dead > len(self._starts) // 2 + DEAD_MIN:
            self._forget_dead()
        return batch.count

    def _place(self, offset: int) -> int | None:
        """Return the place of the batch that contains an offset, or None."""
        place = bisect_right(self._starts, offset) - 1
        if self._batches is None or not 0 <= place < len(self._batches) or offset >= self._end:
            return None
        batch = self._batches[place]
        is_inside = batch is None or offset < self._starts[place] + max(batch.count, 1)
        return place if is_inside else None

    def _forget_dead(self) -> None:
        """Forget the places of dropped batches, so that reads do not pass them."""
        places = [place for place, batch in enumerate(self._batches or ()) if batch is not None]
        self._starts = [self._starts[place] for place in places]
        self._batches, self._dead = [batch for batch in self._batches or () if batch is not None], 0

    def _drop(self, batch: RecordBatch | None) -> None:
        """Count a dropped batch out, and keep its number: it must not be issued again."""
        if batch is None:
            return
        self._records -= batch.count
        if not batch.unordered:
            if self._newest is None:
                self._newest = {}
            raise_newest(self._newest.setdefault(batch.publisher, {}), batch.end - 1)
            if len(self._newest) > PUBLISHERS_MAX:
                del self._newest[next(iter(self._newest))]

    def _raise_low(self, place: int) -> None:
        """Forget the batches before a place, and the dropped ones that follow."""
        batches = self._batches or []
        while place < len(batches) and batches[place] is None:
            place += 1
        if not place:
            return
        del batches[:place], self._starts[:place]
        self.low = self._starts[0] if self._starts else self._end
        if self._removed:
            self._removed = {at: n for at, n in self._removed.items() if at >= self.low} or None

    def limit_segments(self, bytes_max: int | None) -> None:
        """Do nothing: a log in memory has no segments."""

    def save_terms(self, terms: bytes) -> None:
        """Replace the terms."""
        self.terms = terms


def dense_offsets(log: Log) -> dict[int, int]:
    """Return the offsets that the stored batches would have in a log of these batches only."""
    found, end = dict[int, int](), 0
    for entry in log.read_range(0, log.end):
        found[entry.offset] = end
        end += max(entry.batch.count, 1)
    return found


class UnreadEntries:
    """Entries of a log after a start, to be indexed in the order of the first bytes of their ids.

    Neighbouring ids share buckets of the trie. Measured: a third of the time for a million ids.
    """

    def __init__(self, entries: Iterator[tuple[bytes, int]]) -> None:
        self._entries = entries
        self._parts = [bytearray() for _ in range(256)]
        self._sorted: Iterator[tuple[bytes, int]] | None = None  # once all are read

    def index_some(self, trie: PublicationTrie, count: int | None) -> bool:
        """Read or index the next entries, None: all of them; return True if none are left."""
        if self._sorted is None:
            read = list(islice(self._entries, count))
            for key, offset in read:
                self._parts[key[0]] += key + offset.to_bytes(OFFSET_BYTES, "big")
            if len(read) == count:
                return False
            trie.reserve(sum(map(len, self._parts)) // RECORD_BYTES)
            self._sorted = self._in_parts()
        some = list(islice(self._sorted, count))
        trie.add_many(some)
        return len(some) != count

    def _in_parts(self) -> Iterator[tuple[bytes, int]]:
        while self._parts:
            part = bytes(self._parts.pop())
            for at in range(0, len(part), RECORD_BYTES):
                middle, end = at + ID_BYTES, at + RECORD_BYTES
                yield part[at:middle], int.from_bytes(part[middle:end], "big")


_NO_STARTS: Final[list[int]] = []
