"""Segment of a log: a file of entries, and the index of their places in memory."""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from errno import EIO, ENOENT
from itertools import compress
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct, field

from skipring.core.log import ANY_BYTE, EVERY, EntryFilter, LogEntry
from skipring.core.peers import NodeId
from skipring.core.publications import COUNTER_BITS, ID_BYTES, raise_newest
from skipring.storage.segment_format import (
    FOOTERS,
    GAP_ID,
    HEADERS,
    ID_AT,
    TRAILER_BYTES,
    SegmentFooter,
    SegmentHeader,
    decode_entry,
    encode_entry,
    encode_footer,
    footer_bytes,
)
from skipring.storage.statistics import EntryStatistics

SUFFIX: Final = ".log"
FILES_MAX: Final = 128  # Guess: few processes write more segments at a time.
CHUNK_BYTES: Final = 4 << 20  # Guess: one read of a scan; half of it has room for any entry.
_BLOCK_BYTES: Final = 1 << 16  # Guess: a disk error makes one block unreadable.
_PIECES: Final = 1024  # Limit of one write.
_MEAN_BYTES: Final = 1024  # Measured: below this mean size, joining the pieces costs less.


class FileCache:
    """Open files, the least recently used closed first; for one thread at a time."""

    def __init__(self, flags: int, files_max: int = FILES_MAX) -> None:
        self._flags = flags | os.O_CLOEXEC
        self._files_max = files_max
        self._files: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path, flags: int = 0) -> int:
        """Return the descriptor of a file, opened with additional flags if it is not open."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = os.open(path, self._flags | flags, 0o600)
            if len(self._files) > self._files_max:
                os.close(self._files.popitem(last=False)[1])
        else:
            self._files.move_to_end(path)
        return file

    def read(self, path: Path, size: int, position: int) -> bytes:
        """Return bytes of a file; none if the file is lost or the disk cannot read them."""
        try:
            return os.pread(self.get(path), size, position)
        except OSError as error:
            if error.errno not in (EIO, ENOENT):
                raise
            return b""

    def read_chunk(self, path: Path, position: int, end: int) -> bytes:
        """Return the bytes up to a position, at most CHUNK_BYTES; zeros for unreadable blocks."""
        size = min(CHUNK_BYTES, end - position)
        data = self.read(path, size, position)
        if len(data) < size:
            end = position + size
            parts = [(at, min(_BLOCK_BYTES, end - at)) for at in range(position, end, _BLOCK_BYTES)]
            data = b"".join([self.read(path, part, at).ljust(part, b"\0") for at, part in parts])
        return data

    def drop(self, path: Path) -> None:
        """Close the descriptor of a file, if it is open."""
        file = self._files.pop(path, None)
        if file is not None:
            os.close(file)

    def close(self) -> None:
        """Close all descriptors."""
        while self._files:
            os.close(self._files.popitem()[1])


def write_pieces(file: int, pieces: list[bytes], position: int) -> None:
    """Write all pieces at a position, long ones without a copy; continue after a partial write."""
    for begin in range(0, len(pieces), _PIECES):
        part = pieces[begin : begin + _PIECES]
        size = sum(map(len, part))
        if size < _MEAN_BYTES * len(part):
            part = [b"".join(part)]
        while size:
            written = os.pwritev(file, part, position)
            size, position = size - written, position + written
            if size:
                part = [b"".join(part)[written:]]


_FLIPPED: Final = bytes([1, 0]) + bytes(254)  # a mark of a live entry to that of a dropped one


class EntryIndex(Struct, eq=False):
    """Places of consecutive entries of one segment: 8 bytes of memory for each.

    Dropped entries have a mark, and gaps are dropped. A dropped entry remains in the file until the
    segment is rewritten.
    """

    start: int  # of the segment; offsets in the index are relative to it
    end: int  # offset after the last record
    chain: bytes  # running digest after the last entry
    size: int  # position after the last entry
    owner: NodeId  # the node of the store
    positions: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("I"))
    newest: dict[int, int] = field(default_factory=dict)  # numbers of the owner, by incarnation
    statistics: EntryStatistics = field(default_factory=EntryStatistics)
    live: bytearray | None = None  # a mark for each entry, 0 for a dropped one; None: all are live
    dropped: int = 0  # number of records
    dropped_bytes: int = 0  # without gaps

    @classmethod
    def of(cls, footer: SegmentFooter, owner: NodeId) -> EntryIndex:
        """Return the index in a footer; the numbers of another owner are not those of this one."""
        index = cls(footer.header.start, footer.end, footer.chain, footer.at, owner)
        index.positions.frombytes(footer.positions)
        index.offsets.frombytes(footer.offsets)
        if footer.owner == owner:
            index.newest.update((seq >> COUNTER_BITS, seq) for seq in footer.newest)
        index.statistics = EntryStatistics.of(footer.ids, footer.statistics)
        at = footer.ids.find(GAP_ID)
        while at >= 0:
            if at % ID_BYTES == 0:
                index.drop(at // ID_BYTES, is_gap=True)
            at = footer.ids.find(GAP_ID, at + 1)
        return index

    def add(self, entry: LogEntry, position: int, size: int) -> None:
        """Add an entry after the last one."""
        self.positions.append(position)
        self.offsets.append(entry.offset - self.start)
        self.size, self.end, self.chain = position + size, entry.end, entry.chain
        if self.live is not None:
            self.live.append(1)
        if entry.batch.id == GAP_ID:
            self.statistics.add_gap()
            self.drop(len(self.positions) - 1, is_gap=True)
            return
        if entry.batch.publisher == self.owner and not entry.batch.unordered:
            raise_newest(self.newest, entry.batch.end - 1)
        self.statistics.add(entry.batch)

    def copy(self, other: EntryIndex, number: int, size: int, *, is_gap: bool) -> None:
        """Add an entry of an index of the same offsets, or a gap in its place."""
        self.positions.append(self.size)
        self.offsets.append(other.offsets[number])
        self.size += size
        if is_gap:
            self.statistics.add_gap()
        else:
            self.statistics.copy(other.statistics, number)

    def extend(self, other: EntryIndex) -> None:
        """Add the live entries of an index that begins where this one ends."""
        if self.live is not None:
            self.live += b"\1" * len(other.positions)
        self.positions.extend(other.positions)
        self.offsets.extend(other.offsets)
        self.size, self.end, self.chain = other.size, other.end, other.chain
        for seq in other.newest.values():
            raise_newest(self.newest, seq)
        self.statistics.extend(other.statistics)

    # -- dropped entries -------------------------------------------------------------------

    def number(self, offset: int) -> int:
        """Return the number of the last entry that begins at or before an offset, or 0."""
        return max(0, bisect_right(self.offsets, offset - self.start) - 1)

    def span(self, number: int) -> tuple[int, int]:
        """Return the offsets from an entry to the next one."""
        is_last = number + 1 == len(self.offsets)
        after = self.end if is_last else self.start + self.offsets[number + 1]
        return self.start + self.offsets[number], after

    def bytes_between(self, first: int, stop: int) -> int:
        """Return the size in the file of the entries with some numbers."""
        end = self.positions[stop] if stop < len(self.positions) else self.size
        return end - self.positions[first] if first < stop else 0

    def is_live(self, number: int) -> bool:
        """Return True unless an entry was dropped."""
        return self.live is None or bool(self.live[number])

    def next_live(self, number: int) -> int:
        """Return the number of the first live entry from one on; the number of entries if none."""
        found = self.live.find(1, number) if self.live is not None else number
        return found if found >= 0 else len(self.positions)

    def drop(self, number: int, *, is_gap: bool = False) -> None:
        """Mark a live entry as dropped."""
        if self.live is None:
            self.live = bytearray(b"\1") * len(self.positions)
        if self.live[number]:
            self.live[number] = 0
            start, end = self.span(number)
            self.dropped += end - start
            self.dropped_bytes += 0 if is_gap else self.bytes_between(number, number + 1)

    def drop_before(self, stop: int) -> None:
        """Mark all entries before a number as dropped."""
        first = self.next_live(0)
        if first >= stop:
            return
        if self.live is None:
            self.live = bytearray(b"\1") * len(self.positions)
        marks, positions = self.live[first:stop], self.positions[first : stop + 1]
        if stop == len(self.positions):
            positions.append(self.size)
        records = self.span(stop - 1)[1] - self.span(first)[0]
        self.dropped += records - self._dropped_records(first, stop)
        self.dropped_bytes += sum(compress(positions[1:], marks)) - sum(compress(positions, marks))
        self.live[first:stop] = bytes(stop - first)

    def dropped_offsets(self, marks: bytes) -> bytes:
        """Return the relative offsets of the entries that have no mark."""
        return _little(array("I", compress(self.offsets, marks.translate(_FLIPPED)))).tobytes()

    def drop_offsets(self, data: bytes) -> None:
        """Mark the entries at some relative offsets as dropped."""
        found = array("I")
        found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
        dropped = set(_little(found))
        for number in [n for n, each in enumerate(self.offsets) if each in dropped]:
            self.drop(number)

    def _dropped_records(self, first: int, stop: int) -> int:
        """Return the number of records of the dropped entries with some numbers."""
        if self.live is None:
            return 0
        marks = self.live[first:stop].translate(_FLIPPED)
        starts, ends = self.offsets[first:stop], self.offsets[first + 1 : stop + 1]
        if stop >= len(self.offsets):
            ends.append(self.end - self.start)
        return sum(compress(ends, marks)) - sum(compress(starts, marks))

    def dropped_between(self, start: int, end: int) -> int:
        """Return the number of dropped records between two offsets."""
        start, end = max(start, self.start), min(end, self.end)
        if start >= end or not self.dropped:
            return 0
        if (start, end) == (self.start, self.end):
            return self.dropped
        first, last = self.number(start), self.number(end - 1)
        outside = 0 if self.is_live(first) else max(start - self.span(first)[0], 0)
        outside += 0 if self.is_live(last) else self.span(last)[1] - end
        return self._dropped_records(first, last + 1) - outside

    def selected(
        self, first: int, bytes_max: int, entries_max: int, wanted: EntryFilter | None
    ) -> tuple[Sequence[int], int]:
        """Return the numbers of entries to read from one on, and the number to continue with.

        Without a filter they include dropped entries.
        """
        if wanted is not None and (wanted != EVERY or self.live is not None):
            live = self.live
            return self.statistics.selected(self.positions, first, bytes_max, wanted, live)
        stop = bisect_left(self.positions, self.positions[first] + bytes_max, first + 1)
        stop = min(stop, first + max(entries_max, 1))
        return range(first, stop), stop


def _little(numbers: array[int]) -> array[int]:
    """Convert numbers between this machine's byte order and that of stored ones."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class LogSegment(Struct, eq=False):
    """File of entries with its index."""

    path: Path
    header: SegmentHeader
    index: EntryIndex
    footer_bytes: int = 0  # 0: the segment is not sealed; a start scans its file
    is_replaced: bool = False  # by a rewritten one, or deleted

    @classmethod
    def new(cls, directory: Path, header: SegmentHeader, owner: NodeId) -> LogSegment:
        """Return a segment without entries; the first write creates the file."""
        start = header.start
        index = EntryIndex(start, start, header.chain, 0, owner)
        return cls(directory / segment_name(start), header, index)

    def encode(self, entries: list[LogEntry], bytes_max: int) -> tuple[list[bytes], EntryIndex]:
        """Return the bytes of the first entries, until the segment is full, and their index."""
        index = self.index
        pieces = [] if index.size else [HEADERS.encode(self.header)]
        begin = index.size + sum(map(len, pieces))
        added = EntryIndex(index.start, index.end, index.chain, begin, index.owner)
        for entry in entries:
            if added.size >= bytes_max:
                break
            head, body = encode_entry(entry), entry.batch.body
            pieces += (head, body)
            added.add(entry, added.size, len(head) + len(body))
        return pieces, added

    def write(self, pieces: list[bytes], files: FileCache) -> None:
        """Write encoded entries after the indexed ones."""
        flags = 0 if self.index.size else os.O_CREAT | os.O_EXCL
        write_pieces(files.get(self.path, flags), pieces, self.index.size)

    def retire(self) -> None:
        """Record that a commit has replaced or deleted the file."""
        self.is_replaced = True

    def ids(self, files: FileCache, first: int = 0) -> Iterator[bytes]:
        """Yield the stored ids of the entries from a number on."""
        index = self.index
        if self.footer_bytes:
            footer = read_footer(files, self.path, index.size + self.footer_bytes)
            if footer is not None:
                ids, begin = footer.ids, first * ID_BYTES
                yield from (ids[at : at + ID_BYTES] for at in range(begin, len(ids), ID_BYTES))
                return
        data, base = b"", 0
        for position in index.positions[first:]:
            at = position + ID_AT - base
            if at + ID_BYTES > len(data):
                data, base, at = files.read_chunk(self.path, position, index.size), position, ID_AT
            yield data[at : at + ID_BYTES]

    def seal(self, files: FileCache) -> None:
        """Cut the file after the entries and write the footer, if the disk allows it."""
        if not self.footer_bytes:
            with suppress(OSError):
                self.write_footer(files)

    def write_footer(self, files: FileCache) -> None:
        """Cut the file after the entries and write the footer."""
        index = self.index
        footer = SegmentFooter(
            header=self.header,
            at=index.size,
            ids=b"".join(self.ids(files)),
            positions=index.positions.tobytes(),
            offsets=index.offsets.tobytes(),
            end=index.end,
            chain=index.chain,
            owner=index.owner,
            newest=sorted(index.newest.values()),
            statistics=index.statistics.stored(),
        )
        data, file = encode_footer(footer), files.get(self.path)
        os.ftruncate(file, index.size)
        write_pieces(file, [data], index.size)
        self.footer_bytes = len(data)


class EntryChunk(NamedTuple):
    """Entries of one segment in order, and their bytes, which may be damaged or cut short."""

    offsets: list[int]  # of each entry, then the offset where the next chunk begins
    positions: list[int]  # of each entry in the data
    sizes: list[int]  # of each entry, at most
    data: bytes
    passed: int = 0  # entries that the index excluded

    @classmethod
    def of(
        cls, entries: list[LogEntry], removed: Container[int], bytes_max: int, entries_max: int
    ) -> EntryChunk:
        """Return the first entries in memory as they will be stored, except removed offsets."""
        offsets, positions, data = list[int](), list[int](), bytearray()
        following = entries[0].offset
        for entry in entries:
            following = entry.end
            if entry.offset not in removed:
                offsets.append(entry.offset)
                positions.append(len(data))
                data += encode_entry(entry) + entry.batch.body
            if len(data) >= bytes_max or len(positions) >= entries_max:
                break
        ends = [*positions[1:], len(data)] if positions else []
        sizes = [end - at for at, end in zip(positions, ends, strict=True)]
        return cls([*offsets, following], positions, sizes, bytes(data))

    def entry(self, number: int, wanted: EntryFilter = EVERY) -> LogEntry | None:
        """Return an entry; None if it is damaged, or if its id or its publisher is not wanted."""
        firsts = wanted.firsts
        at = self.positions[number]
        id_at = at + ID_AT
        if firsts != ANY_BYTE and (id_at >= len(self.data) or self.data[id_at] not in firsts):
            return None
        entry = decode_entry(memoryview(self.data), at)
        if entry is None or entry.offset != self.offsets[number]:
            return None
        return entry if wanted.tags == ANY_BYTE or wanted.includes(entry.batch) else None


def read_footer(files: FileCache, path: Path, file_bytes: int) -> SegmentFooter | None:
    """Return the footer of a file; None if there is no intact footer."""
    size = footer_bytes(files.read(path, TRAILER_BYTES, max(0, file_bytes - TRAILER_BYTES)))
    at = file_bytes - size
    found = FOOTERS.decode(files.read(path, size, at)) if 0 <= at < file_bytes else None
    if found is None or found[0].at != at:
        return None
    footer = found[0]
    return footer if len(footer.ids) == ID_BYTES * len(footer.statistics.tags) else None


def segment_name(start: int) -> str:
    """Return the file name of the segment that begins at an offset."""
    return f"{start:020}{SUFFIX}"
