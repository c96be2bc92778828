"""Tail of a segment: the entries that one commit writes to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from skipring.core.peers import TopicId
from skipring.storage.data_dir import sync_directory
from skipring.storage.segments.format import Entry, SegmentHeader, encode_header
from skipring.storage.segments.segment import EntryIndex, FileCache, LogSegment, segment_name

_PIECES_MAX: Final = 512  # Limit: Linux writes at most 1,024 buffers in one call.
sync_data: Final = getattr(os, "fdatasync", os.fsync)  # not on every platform


class SegmentTail:
    """Entries after the confirmed ones of a segment; ``confirm`` adds them to its index."""

    __slots__ = ("_files", "_footer_bytes", "_ids", "_pieces", "index", "segment")

    def __init__(self, segment: LogSegment, files: FileCache) -> None:
        self.segment = segment
        self.index = EntryIndex.after(segment.index)
        self._files = files
        self._pieces: list[bytes] = []
        self._ids: list[bytes] = []
        self._footer_bytes = 0

    @classmethod
    def new(
        cls, directory: Path, topic: TopicId, entry: Entry, chain: bytes, files: FileCache
    ) -> SegmentTail:
        """Return the tail of a new segment that begins with an entry."""
        header = SegmentHeader(topic, entry.offset, chain)
        size = len(encode_header(header))
        path = directory / segment_name(entry.offset)
        return cls(LogSegment(path, header, size), files)

    @property
    def is_new(self) -> bool:
        """Return True if the segment has no confirmed entry; ``write`` creates its file."""
        return not self.segment.index.positions

    def add(self, entry: Entry, head: bytes) -> None:
        """Add an entry, given its bytes before the body."""
        body = entry.batch.body
        self._pieces += (head, body)
        self._ids.append(entry.batch.id)
        self.index.add(entry, self.index.size, len(head) + len(body))

    def is_full(self, size: int, bytes_max: int) -> bool:
        """Return True if the segment has entries and no room for one more of this size."""
        has_entries = bool(self.index.positions) or not self.is_new
        return has_entries and self.index.size + size > bytes_max

    def write(self, *, is_sealed: bool = False) -> None:
        """Write the entries, and the footer if the commit seals the segment."""
        path, position = self.segment.path, self.segment.index.size
        if self.is_new:
            self._files.drop(path)
            path.unlink(missing_ok=True)  # left by a failed commit
            file = self._files.get(path, os.O_CREAT | os.O_EXCL)
            self._pieces.insert(0, encode_header(self.segment.header))
            position = 0
        else:
            file = self._files.get(path)
        if is_sealed:
            footer = self.segment.footer(self._files, self.index, b"".join(self._ids))
            self._footer_bytes = len(footer)
            self._pieces.append(footer)
        _write(file, self._pieces, position)

    def sync(self) -> None:
        """Make the written entries durable."""
        sync_data(self._files.get(self.segment.path))
        if self.is_new:
            sync_directory(self.segment.path.parent)

    def confirm(self) -> None:
        """Add the entries to the index of the segment."""
        self.segment.index.extend(self.index)
        self.segment.seal(self._footer_bytes)


def cut_unconfirmed(segment: LogSegment, files: FileCache) -> None:
    """Truncate a file after its confirmed entries, if the disk allows it.

    Otherwise recovery ignores the bytes of the failed commit, because the next segment begins with
    the same offset.
    """
    files.drop(segment.path)
    with suppress(OSError):
        os.truncate(segment.path, segment.index.size)


def _write(file: int, pieces: list[bytes], position: int) -> None:
    """Write all pieces at a position; continue after a partial write."""
    for group in _groups(pieces):
        size = sum(map(len, group))
        written = os.pwritev(file, group, position)
        if written < size:
            rest = memoryview(b"".join(group))
            while written < size:
                written += os.pwrite(file, rest[written:], position + written)
        position += size


def _groups(pieces: list[bytes]) -> Iterator[list[bytes]]:
    rest = iter(pieces)
    while group := list(islice(rest, _PIECES_MAX)):
        yield group
