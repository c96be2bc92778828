"""Segment of a log: a file of entries, and the index of their places in memory.

The index of a sealed segment is read from its footer. Without an intact footer a scan of the file
rebuilds it; the scan also finds the entries behind damaged bytes.
"""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from pathlib import Path
from typing import Final, NamedTuple, Self

from msgspec.structs import replace

from skipring.core.peers import TopicId
from skipring.core.publications import COUNTER_BITS, ID_BYTES, SEQ_BELIEVED_MAX, SequenceId
from skipring.storage.segments.format import (
    ENTRY_BYTES_MAX,
    HEADER_BYTES_MAX,
    ID_AT,
    MARKER,
    START_OF_CHAIN,
    TRAILER_BYTES,
    Entry,
    SegmentFooter,
    SegmentHeader,
    decode_entry,
    decode_footer,
    decode_header,
    decode_place,
    encode_footer,
    entry_bytes,
    footer_bytes,
)

SUFFIX: Final = ".log"
CHUNK_BYTES: Final = 4 << 20  # Guess: one read of a scan; half of it has room for any entry.
_OFFSETS_MAX: Final = 1 << 26  # of a segment; a record has more than one byte
_POSITION_MAX: Final = (1 << 32) - 1
_BLOCK_BYTES: Final = 1 << 16  # Guess: a disk error makes one block unreadable.


class FileCache:
    """Open files, the least recently used closed first; for one thread at a time."""

    def __init__(self, flags: int, files_max: int = 32) -> None:  # Guess: few segments are in use.
        self._flags = flags | os.O_CLOEXEC
        self._files_max = files_max
        self._files: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path, flags: int = 0) -> int:
        """Return the descriptor of a file, opened with additional flags if it is not open."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._open(path, flags)
            if len(self._files) > self._files_max:
                os.close(self._files.popitem(last=False)[1])
        else:
            self._files.move_to_end(path)
        return file

    def _open(self, path: Path, flags: int) -> int:
        try:
            return os.open(path, self._flags | flags, 0o600)
        except FileNotFoundError:
            if self._flags & (os.O_WRONLY | os.O_RDWR):
                raise
            return os.open(os.devnull, self._flags)  # a lost file reads as damaged entries

    def drop(self, path: Path) -> None:
        """Close the descriptor of a file, if it is open."""
        file = self._files.pop(path, None)
        if file is not None:
            os.close(file)

    def close(self) -> None:
        """Close all descriptors."""
        while self._files:
            os.close(self._files.popitem()[1])


class EntryIndex:
    """Places of entries in one segment: 8 bytes of memory for each."""

    __slots__ = ("chain", "end", "newest", "offsets", "positions", "size", "start")

    def __init__(self, start: int, chain: bytes, size: int) -> None:
        self.start = start  # offsets in the index are relative to it
        self.chain = chain  # running digest after the last entry
        self.end = start  # offset after the last record
        self.size = size  # position after the last entry
        self.positions = array("I")
        self.offsets = array("I")
        self.newest: dict[SequenceId, int] = {}

    @classmethod
    def after(cls, other: EntryIndex) -> Self:
        """Return an empty index for the entries after those of another index."""
        index = cls(other.start, other.chain, other.size)
        index.end = other.end
        return index

    def add(self, entry: Entry, position: int, size: int) -> None:
        """Add an entry after the last one."""
        batch = entry.batch
        self.positions.append(position)
        self.offsets.append(entry.offset - self.start)
        self.size, self.end, self.chain = position + size, entry.end, entry.chain
        newest = batch.end - 1
        if not batch.unordered and newest < SEQ_BELIEVED_MAX:
            sequence = batch.publisher, newest >> COUNTER_BITS
            if self.newest.get(sequence, -1) < newest:
                self.newest[sequence] = newest

    def extend(self, other: EntryIndex) -> None:
        """Add the entries of an index of the same segment."""
        self.positions.extend(other.positions)
        self.offsets.extend(other.offsets)
        self.size, self.end, self.chain = other.size, other.end, other.chain
        merge_newest(self.newest, other.newest)

    def adopt(self, footer: SegmentFooter) -> None:
        """Replace the content with that of a footer."""
        self.positions = _unpacked(footer.positions)
        self.offsets = _unpacked(footer.offsets)
        self.size, self.end, self.chain = footer.at, footer.end, footer.chain
        self.newest = {(node, incarnation): last for node, incarnation, last in footer.newest}

    def cut(self, boundary: int, file: int) -> None:
        """Remove the entries that end after an offset."""
        count = bisect_left(self.offsets, boundary - self.start)
        while count:
            entry = self.read(file, count - 1)
            if entry is not None and entry.end <= boundary:
                self.end, self.chain = entry.end, entry.chain
                break
            count -= 1
        if count < len(self.positions):
            self.size = self.positions[count]
        if not count:
            self.end = self.start
        del self.positions[count:], self.offsets[count:]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the position and the size in bytes of the entries before ``last``."""
        begin = self.positions[first]
        return begin, (self.positions[last] if last < len(self.positions) else self.size) - begin

    def read(self, file: int, number: int) -> Entry | None:
        """Return an entry; None if it is damaged."""
        position, size = self.span(number, number + 1)
        entry = decode_entry(read_at(file, min(size, ENTRY_BYTES_MAX), position))
        is_right = entry is not None and entry.offset == self.start + self.offsets[number]
        return entry if is_right else None


class LogSegment:
    """File of entries with its index."""

    __slots__ = ("footer_bytes", "header", "index", "path")

    def __init__(self, path: Path, header: SegmentHeader, size: int) -> None:
        self.path = path
        self.header = header
        self.index = EntryIndex(header.start, header.chain, size)
        self.footer_bytes = 0  # 0: the segment is not sealed

    @property
    def is_sealed(self) -> bool:
        """Return True if the segment has a footer."""
        return self.footer_bytes > 0

    def adopt(self, footer: SegmentFooter, size: int) -> None:
        """Use the index in the footer of the file."""
        self.index.adopt(footer)
        self.seal(size)

    def seal(self, size: int) -> None:
        """Record that the file has a footer of this size after its entries; 0: none."""
        self.footer_bytes = size

    def follow(self, chain: bytes) -> None:
        """Replace the digest of a damaged header with that of the previous segment."""
        self.header = replace(self.header, chain=chain)

    def ids(self, files: FileCache) -> Iterator[bytes]:
        """Yield the stored ids of the confirmed entries."""
        index = self.index
        if self.is_sealed:
            data = read_at(files.get(self.path), self.footer_bytes, index.size)
            footer = decode_footer(data, index.size)
            if footer is not None:
                ids = footer.ids
                yield from (ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES))
                return
        data, base = b"", 0
        for position in index.positions:
            at = position + ID_AT - base
            if at + ID_BYTES > len(data):
                data, base = _read_chunk(files.get(self.path), position, index.size), position
                at = ID_AT
            yield data[at : at + ID_BYTES]

    def footer(self, files: FileCache, tail: EntryIndex, tail_ids: bytes = b"") -> bytes:
        """Return the footer of the segment with the entries of a tail."""
        whole = EntryIndex(self.header.start, self.header.chain, self.index.size)
        whole.extend(self.index)
        whole.extend(tail)
        footer = SegmentFooter(
            header=self.header,
            at=whole.size,
            ids=b"".join(self.ids(files)) + tail_ids,
            positions=_packed(whole.positions),
            offsets=_packed(whole.offsets),
            end=whole.end,
            chain=whole.chain,
            newest=[(*sequence, number) for sequence, number in sorted(whole.newest.items())],
        )
        return encode_footer(footer)


class LostRange(NamedTuple):
    """Offsets without an intact entry, and the bytes in the file in their place."""

    start: int
    end: int
    position: int
    size: int


class LoadedSegment(NamedTuple):
    """Segment as it was found on the disk."""

    segment: LogSegment
    has_header: bool  # False: the digest before the first entry is unknown
    file_bytes: int
    losses: list[LostRange]  # found by a scan


def segment_name(start: int) -> str:
    """Return the file name of the segment that begins at an offset."""
    return f"{start:020}{SUFFIX}"


def load_header(path: Path) -> SegmentHeader | None:
    """Return the header of a segment file, or its copy in the footer; None if both are damaged."""
    with open_file(path) as file:
        found = decode_header(read_at(file, HEADER_BYTES_MAX, 0))
        footer = None if found else _read_footer(file, os.fstat(file).st_size)
    if found is not None:
        return found[0]
    return footer[0].header if footer is not None else None


def load_segment(path: Path, topic: TopicId, start: int) -> LoadedSegment | None:
    """Read the index of a segment file; None if the file belongs to another topic or offset."""
    with open_file(path) as file:
        size = os.fstat(file).st_size
        found = decode_header(read_at(file, HEADER_BYTES_MAX, 0))
        footer = _read_footer(file, size)
        header, entries_at = found or (footer[0].header if footer is not None else None, 0)
        has_header = header is not None
        if header is None:
            header = SegmentHeader(topic, start, START_OF_CHAIN)  # the chain is unknown
        if (header.topic, header.start) != (topic, start):
            return None
        segment = LogSegment(path, header, entries_at)
        if footer is not None and footer[0].header == header:
            segment.adopt(*footer)
            return LoadedSegment(segment, has_header, size, [])
        losses = _scan(file, min(size, _POSITION_MAX), segment.index, topic)
        return LoadedSegment(segment, has_header, size, losses)


@contextmanager
def open_file(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file; close it after the block."""
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def read_at(file: int, size: int, position: int) -> bytes:
    """Return bytes of a file; no bytes after a read error of the disk."""
    try:
        return os.pread(file, size, position)
    except OSError as error:
        if error.errno != EIO:
            raise
        return b""


def merge_newest(newest: dict[SequenceId, int], other: dict[SequenceId, int]) -> None:
    """Keep the larger number of each sequence."""
    for sequence, number in other.items():
        if newest.get(sequence, -1) < number:
            newest[sequence] = number


def _read_footer(file: int, file_bytes: int) -> tuple[SegmentFooter, int] | None:
    """Return the footer and its size; None if there is no intact footer."""
    trailer_at = file_bytes - TRAILER_BYTES
    size = footer_bytes(read_at(file, TRAILER_BYTES, trailer_at)) if trailer_at >= 0 else 0
    if not 0 < size <= file_bytes:
        return None
    footer = decode_footer(read_at(file, size, file_bytes - size), file_bytes - size)
    return (footer, size) if footer is not None else None


def _scan(file: int, file_bytes: int, index: EntryIndex, topic: TopicId) -> list[LostRange]:
    """Fill an index with the intact entries of a file; return the gaps between them."""
    losses: list[LostRange] = []
    at = base = index.size
    data = b""
    while at < file_bytes:
        seen = base + len(data)
        if seen < file_bytes and at + CHUNK_BYTES // 2 > seen:
            data, base = _read_chunk(file, at, file_bytes), at
        entry = decode_entry(data, at - base)
        if entry is None or not _is_next(entry, at, index, topic):
            at = base + _next_candidate(data, at - base)
            continue
        if at > index.size or entry.offset > index.end:
            losses.append(LostRange(index.end, entry.offset, index.size, at - index.size))
        index.add(entry, at, entry_bytes(data, at - base))
        at = index.size
    return losses


def _is_next(entry: Entry, at: int, index: EntryIndex, topic: TopicId) -> bool:
    """Return True if an intact entry belongs after the last one.

    Behind damaged bytes, a part of a payload may look like an entry. An entry there needs a genuine
    id and an offset that is possible in this segment.
    """
    if at == index.size and entry.offset == index.end:
        return True
    is_possible = index.end <= entry.offset < index.start + _OFFSETS_MAX
    return is_possible and entry.batch.is_genuine(topic)


def _next_candidate(data: bytes, at: int) -> int:
    """Return the next position where an entry may begin.

    If the size of the damaged entry leads to another entry, its payload is not searched.
    """
    place = decode_place(data, at)
    if place is not None and decode_entry(data, at + place.size) is not None:
        return at + place.size
    found = data.find(MARKER, at + 1)
    # The start of a marker at the end of the chunk is read again with the next chunk.
    return found if found >= 0 else max(at + 1, len(data) - len(MARKER) + 1)


def _read_chunk(file: int, position: int, file_bytes: int) -> bytes:
    """Read the next bytes of a file; replace unreadable blocks with zeros."""
    size = min(CHUNK_BYTES, file_bytes - position)
    data = read_at(file, size, position)
    if len(data) < size:
        blocks = range(position, position + size, _BLOCK_BYTES)
        ends = [min(begin + _BLOCK_BYTES, position + size) for begin in blocks]
        parts = zip(blocks, ends, strict=True)
        data = b"".join([read_at(file, e - b, b).ljust(e - b, b"\0") for b, e in parts])
    return data


def _packed(numbers: array[int]) -> bytes:
    """Return 4 bytes for each number, little-endian."""
    if sys.byteorder == "big":
        numbers = array("I", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _unpacked(data: bytes) -> array[int]:
    """Return the numbers of ``_packed``."""
    numbers = array("I")
    numbers.frombytes(data[: len(data) // 4 * 4])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
