"""Segment of a log: a file of entries, and the index of their places in memory."""

from __future__ import annotations

import os
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from errno import EIO, ENOENT
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from skipring.core.batches import RecordBatch
from skipring.core.log import LogEntry
from skipring.core.publications import COUNTER_BITS, ID_BYTES, SEQ_BELIEVED_MAX, SequenceId
from skipring.storage.segment_format import (
    FOOTERS,
    ID_AT,
    TRAILER_BYTES,
    SegmentFooter,
    SegmentHeader,
    encode_footer,
    footer_bytes,
)

SUFFIX: Final = ".log"
CHUNK_BYTES: Final = 4 << 20  # Guess: one read of a scan; half of it has room for any entry.
_BLOCK_BYTES: Final = 1 << 16  # Guess: a disk error makes one block unreadable.
_PIECES: Final = 1024  # Limit of one write.
_MEAN_BYTES: Final = 1024  # Measured: below this mean size, joining the pieces costs less.


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


def raise_newest(newest: dict[SequenceId, int], batch: RecordBatch) -> None:
    """Record the last number of a batch as the newest of its sequence, if it is larger."""
    last = batch.end - 1
    sequence = batch.publisher, last >> COUNTER_BITS
    if not batch.unordered and newest.get(sequence, -1) < last < SEQ_BELIEVED_MAX:
        newest[sequence] = last


def merge_newest(newest: dict[SequenceId, int], other: dict[SequenceId, int]) -> None:
    """Keep the larger number of each sequence."""
    for sequence, last in other.items():
        newest[sequence] = max(last, newest.get(sequence, -1))


class EntryIndex(Struct, eq=False):
    """Places of consecutive entries of one segment: 8 bytes of memory for each."""

    start: int  # of the segment; offsets in the index are relative to it
    end: int  # offset after the last record
    chain: bytes  # running digest after the last entry
    size: int  # position after the last entry
    positions: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("I"))
    newest: dict[SequenceId, int] = field(default_factory=dict)

    @classmethod
    def of(cls, footer: SegmentFooter) -> EntryIndex:
        """Return the index in a footer."""
        index = cls(footer.header.start, footer.end, footer.chain, footer.at)
        index.positions.frombytes(footer.positions)
        index.offsets.frombytes(footer.offsets)
        index.newest.update({(node, part): last for node, part, last in footer.newest})
        return index

    def add(self, entry: LogEntry, position: int, size: int) -> None:
        """Add an entry after the last one."""
        self.positions.append(position)
        self.offsets.append(entry.offset - self.start)
        self.size, self.end, self.chain = position + size, entry.end, entry.chain
        raise_newest(self.newest, entry.batch)

    def extend(self, other: EntryIndex) -> None:
        """Add the entries of an index that begins where this one ends."""
        self.positions.extend(other.positions)
        self.offsets.extend(other.offsets)
        self.size, self.end, self.chain = other.size, other.end, other.chain
        merge_newest(self.newest, other.newest)


class LogSegment(Struct, eq=False):
    """File of entries with its index."""

    path: Path
    header: SegmentHeader
    index: EntryIndex
    footer_bytes: int = 0  # 0: the segment is not sealed; a start scans its file

    def ids(self, files: FileCache) -> Iterator[bytes]:
        """Yield the stored ids of the entries."""
        index = self.index
        if self.footer_bytes:
            footer = read_footer(files, self.path, index.size + self.footer_bytes)
            if footer is not None:
                ids = footer.ids
                yield from (ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES))
                return
        data, base = b"", 0
        for position in index.positions:
            at = position + ID_AT - base
            if at + ID_BYTES > len(data):
                data, base, at = files.read_chunk(self.path, position, index.size), position, ID_AT
            yield data[at : at + ID_BYTES]

    def seal(self, files: FileCache) -> None:
        """Cut the file after the entries and write the footer, if the disk allows it."""
        index = self.index
        if self.footer_bytes:
            return
        with suppress(OSError):
            footer = SegmentFooter(
                header=self.header,
                at=index.size,
                ids=b"".join(self.ids(files)),
                positions=index.positions.tobytes(),
                offsets=index.offsets.tobytes(),
                end=index.end,
                chain=index.chain,
                newest=[(*sequence, last) for sequence, last in sorted(index.newest.items())],
            )
            data, file = encode_footer(footer), files.get(self.path)
            os.ftruncate(file, index.size)
            write_pieces(file, [data], index.size)
            self.footer_bytes = len(data)


def read_footer(files: FileCache, path: Path, file_bytes: int) -> SegmentFooter | None:
    """Return the footer of a file; None if there is no intact footer."""
    size = footer_bytes(files.read(path, TRAILER_BYTES, max(0, file_bytes - TRAILER_BYTES)))
    at = file_bytes - size
    found = FOOTERS.decode(files.read(path, size, at)) if 0 <= at < file_bytes else None
    return found[0] if found is not None and found[0].at == at else None


def segment_name(start: int) -> str:
    """Return the file name of the segment that begins at an offset."""
    return f"{start:020}{SUFFIX}"
