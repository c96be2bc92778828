"""Log of publications: read by the machines, written by their host (effects Store, Discard).

Offsets only grow. The trie is the index over the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from skipring.core.publications import Encoded, Publication, SequenceId, encoded_all, newest_of
from skipring.core.trie import PublicationTrie

MEMORY_SEGMENT_RECORDS: Final = 1024  # Guess: as many as a segment on disk has.
MEMORY_SEGMENT_BYTES: Final = 4 << 20  # Guess: more than a page contains.


class EncodedRecords(NamedTuple):
    """Encoded publications in order: offset, id and data of each."""

    offsets: list[int]
    ids: list[bytes]
    data: list[bytes]

    def first(self, count: int | None) -> EncodedRecords:
        """Return the first ``count`` records; None: all."""
        offsets, ids, data = self
        return EncodedRecords(offsets[:count], ids[:count], data[:count])

    def chosen(self, marks: Iterable[object]) -> EncodedRecords:
        """Return the records whose flag is True."""
        marks = list(marks)
        offsets, ids, data = self
        return EncodedRecords(
            list(compress(offsets, marks)), list(compress(ids, marks)), list(compress(data, marks))
        )


class RecordRun(NamedTuple):
    """Encoded publications with consecutive offsets, contiguous in a segment."""

    length: int  # number of publications
    ids: memoryview
    data: memoryview


class HistoryPage(Struct, frozen=True, gc=False):
    """Publications of a page in a neighbour's log, with the ids that the neighbour stores.

    A publication that has another id is corrupt. ``encoded`` is the stored form.
    """

    publications: tuple[Publication, ...]
    ids: bytes = b""  # concatenated
    encoded: Encoded | None = None


class StoredSegment(NamedTuple):
    """Records of one segment."""

    end: int  # of the segment
    size_bytes: int  # of the whole segment
    rows: EncodedRecords


class LogIndex(NamedTuple):
    """Trie over the ids of a log, and the largest number of each sequence."""

    trie: PublicationTrie
    newest: dict[SequenceId, int]

    @classmethod
    def of(cls, log: Log) -> LogIndex:
        """Read a log and index it."""
        trie = PublicationTrie()
        trie.add_many(log.entries())
        return cls(trie, log.newest())


class Log(Protocol):
    """Publications of one topic that a subscriber has stored."""

    @property
    def store(self) -> str:
        """Return the id of the store that offsets refer to; empty in memory."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the store that offsets refer to; 0 in memory."""

    @property
    def is_durable(self) -> bool:
        """Return True if publications are on disk after the next commit."""

    @property
    def end(self) -> int:
        """Return the offset after the last publication."""

    @property
    def durable_end(self) -> int:
        """Return the durable mark; 0 in memory."""

    def chain_at(self, offset: int) -> bytes:
        """Return the running digest over all ids before an offset; empty in memory."""

    def read(self, offset: int) -> Publication | None:
        """Return the publication at an offset, or None if it cannot be read."""

    def read_range(self, start: int, end: int) -> Iterator[tuple[int, Publication]]:
        """Yield the readable publications between two offsets, each with its offset."""

    def stored(
        self,
        start: int,
        end: int,
        firsts: range,
        *,
        count_max: int | None = None,
        is_checked: bool = True,
    ) -> Iterator[StoredSegment]:
        """Yield encoded records between two offsets, with the given first bytes of ids, by segment.

        ``count_max`` limits their number, rounded up to a whole segment. With ``is_checked``,
        yield only intact records; otherwise the caller verifies them.
        """

    def contiguous_ranges(
        self, start: int, end: int, count_max: int, bytes_max: int
    ) -> list[RecordRun]:
        """Return contiguous ranges of stored records from an offset on; empty in memory."""

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the id of each publication, as it was stored, and its offset."""

    def publications(self) -> Iterator[Publication]:
        """Yield all readable publications in the order of their offsets."""

    def newest(self) -> dict[SequenceId, int]:
        """Return the largest number of each sequence of the stored publications."""

    def index(self) -> LogIndex:
        """Return a new index over the log; the caller may change it."""


class MemoryLog:
    """Log in memory, for simulations and for nodes without a disk."""

    __slots__ = ("_rows",)

    def __init__(self, publications: Iterable[Publication] = ()) -> None:
        self._rows: list[Publication | None] | None = list(publications) or None

    store: Final = ""
    epoch: Final = 0
    durable_end: Final = 0
    is_durable: Final = False

    @property
    def end(self) -> int:
        """Return the offset after the last publication."""
        return len(self._rows) if self._rows is not None else 0

    def read(self, offset: int) -> Publication | None:
        """Return the publication at an offset, or None if there is none."""
        return self._rows[offset] if self._rows is not None and offset < len(self._rows) else None

    def chain_at(self, offset: int) -> bytes:
        """Return empty bytes: a log in memory has no running digest."""
        del offset
        return b""

    def read_range(self, start: int, end: int) -> Iterator[tuple[int, Publication]]:
        """Yield the publications between two offsets, each with its offset."""
        for offset, publication in enumerate((self._rows or ())[start:end], start):
            if publication is not None:
                yield offset, publication

    def stored(
        self,
        start: int,
        end: int,
        firsts: range,
        *,
        count_max: int | None = None,
        is_checked: bool = True,
    ) -> Iterator[StoredSegment]:
        """Yield encoded records between two offsets, limited in number and size."""
        del count_max, is_checked  # a segment in memory is small and intact
        end = min(end, self.end)
        while start < end:
            segment = self._segment(start, end, firsts)
            yield segment
            start = segment.end

    def _segment(self, start: int, end: int, firsts: range) -> StoredSegment:
        stop, size = start, 0
        chosen: list[tuple[int, Publication]] = []
        for publication in (self._rows or ())[start : min(end, start + MEMORY_SEGMENT_RECORDS)]:
            if publication is not None:
                size += publication.size_bytes
                if publication.id and publication.id[0] in firsts:
                    chosen.append((stop, publication))
            stop += 1
            if size >= MEMORY_SEGMENT_BYTES:
                break
        rows = EncodedRecords(
            [offset for offset, _ in chosen],
            [publication.id for _, publication in chosen],
            encoded_all(publication for _, publication in chosen),
        )
        return StoredSegment(stop, size, rows)

    def contiguous_ranges(
        self, start: int, end: int, count_max: int, bytes_max: int
    ) -> list[RecordRun]:
        """Return an empty list: a log in memory has no segments."""
        del start, end, count_max, bytes_max
        return []

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the id of each publication, as it was stored, and its offset."""
        for offset, publication in enumerate(self._rows or ()):
            if publication is not None:
                yield publication.id, offset

    def publications(self) -> Iterator[Publication]:
        """Yield all publications in the order of their offsets."""
        for publication in self._rows or ():
            if publication is not None:
                yield publication

    def newest(self) -> dict[SequenceId, int]:
        """Return the largest number of each sequence of the stored publications."""
        return newest_of((each.publisher, each.seq) for each in self.publications())

    def index(self) -> LogIndex:
        """Return a new index over the log."""
        return LogIndex.of(self)

    def write(
        self, offset: int, *publications: Publication, encoded: Encoded | None = None
    ) -> None:
        """Apply a Store effect; ``offset`` is the end of the log."""
        del encoded  # used only by a log on disk
        if self._rows is None:
            self._rows = []
        assert offset == len(self._rows), f"offset {offset} after {len(self._rows)} rows"
        self._rows += publications

    def discard(self, offset: int) -> None:
        """Apply a Discard effect."""
        if self._rows is not None and offset < len(self._rows):
            self._rows[offset] = None
