"""Directory of one topic's log: name, record of its identity, quarantine."""

from __future__ import annotations

import os
import re
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from msgspec import DecodeError, Struct, msgpack

from skipring.core.peers import TopicId
from skipring.storage.data_dir import make_directory, sync_directory, write_durably
from skipring.storage.segments.segment import SUFFIX, open_file, read_at

RECORD_FILE: Final = "topic"
QUARANTINE: Final = "quarantine"
QUARANTINE_BYTES_MAX: Final = 128 << 20  # Guess: two segments; the oldest files are deleted first.

_MAGIC: Final = b"skiptop1"  # the last byte is the version
_CHECKSUM_BYTES: Final = 4
_EPOCH_BITS: Final = 62  # Limit: the integers of SQLite and Spark.
_HASH_BYTES: Final = 16
_OWN_FILES: Final = (RECORD_FILE, f"{RECORD_FILE}.new")  # the second: an interrupted replacement
_SEGMENT: Final = re.compile(r"(\d{20})" + re.escape(SUFFIX))


class TopicRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Identity of a log, and the offsets that it does not serve."""

    topic: TopicId
    store: str
    epoch: int  # random; a new one after every loss
    absent: list[tuple[int, int]] = []  # ranges of lost and of quarantined offsets


_RECORDS: Final = msgpack.Decoder(TopicRecord)


class OffsetRanges:
    """Set of offsets as sorted, separate ranges."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for start, end in ranges:
            self.add(start, end)

    def __contains__(self, offset: int) -> bool:
        return bool(self._ranges) and self.covers(offset, offset + 1)

    def covers(self, start: int, end: int) -> bool:
        """Return True if all offsets of a range are in the set."""
        number = bisect_right(self._ranges, start, key=lambda each: each[0]) - 1
        return start >= end or (number >= 0 and self._ranges[number][1] >= end)

    def add(self, start: int, end: int) -> None:
        """Add the offsets of a range."""
        if start >= end:
            return
        first = bisect_left(self._ranges, start, key=lambda each: each[1])
        last = bisect_right(self._ranges, end, key=lambda each: each[0])
        touched = self._ranges[first:last]
        if touched:
            start, end = min(start, touched[0][0]), max(end, touched[-1][1])
        self._ranges[first:last] = [(start, end)]

    def below(self, end: int) -> list[tuple[int, int]]:
        """Return the ranges before an offset."""
        return [(first, min(last, end)) for first, last in self._ranges if first < end]


class TopicFiles(NamedTuple):
    """Files in the directory of a topic."""

    segments: dict[int, Path]  # by first offset, in order
    foreign: list[Path]


class TopicDirectory:
    """Directory with the segments of one topic; it may be missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._record = path / RECORD_FILE
        self._quarantine = path / QUARANTINE

    def files(self) -> TopicFiles:
        """Return the segments and the foreign files."""
        segments: dict[int, Path] = {}
        foreign: list[Path] = []
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            match = _SEGMENT.fullmatch(path.name)
            is_file = path.is_file() and not path.is_symlink()
            if match is not None and is_file:
                segments[int(match[1])] = path
            elif path != self._quarantine and not (is_file and path.name in _OWN_FILES):
                foreign.append(path)
        return TopicFiles(segments, foreign)

    def read_record(self) -> TopicRecord | None:
        """Return the record of the topic; None if it is missing, damaged or of another topic."""
        try:
            with open_file(self._record) as file:
                data = read_at(file, os.fstat(file).st_size, 0)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        begin = len(_MAGIC) + _CHECKSUM_BYTES
        block = data[begin:]
        if data[:begin] != _MAGIC + crc32(block).to_bytes(_CHECKSUM_BYTES, "little"):
            return None
        try:
            record = _RECORDS.decode(block)
        except DecodeError:
            return None
        return record if directory_name(record.topic) == self.path.name else None

    def write_record(self, record: TopicRecord) -> None:
        """Replace the record of the topic, durably; create the directory if it is missing."""
        replace_by_directory(self.path)
        block = msgpack.encode(record)
        write_durably(
            self._record, _MAGIC + crc32(block).to_bytes(_CHECKSUM_BYTES, "little") + block
        )

    def quarantine_file(self, path: Path) -> None:
        """Move a file of the directory to the quarantine."""
        aside = self._aside(path.name)
        path.rename(aside)
        with suppress(OSError):
            os.utime(aside)  # its age decides when it is deleted
        self._limit()

    def quarantine_bytes(self, name: str, data: bytes) -> None:
        """Write bytes to the quarantine, unless the disk refuses them."""
        with suppress(OSError):
            path = self._aside(name)
            path.touch(mode=0o600)
            path.write_bytes(data)
            self._limit()

    def _aside(self, name: str) -> Path:
        """Return a free path in the quarantine."""
        replace_by_directory(self._quarantine)
        return self._quarantine / f"{_readable(name[:100])}.{secrets.token_hex(4)}"

    def _limit(self) -> None:
        """Delete the oldest files beyond the limit; the newest one stays."""
        files = [path for path in self._quarantine.iterdir() if path.is_file()]
        states = sorted(((path.stat(), path) for path in files), key=lambda e: -e[0].st_mtime_ns)
        size = 0
        for number, (state, path) in enumerate(states):
            size += state.st_size
            if number and size > QUARANTINE_BYTES_MAX:
                path.unlink(missing_ok=True)


def directory_name(topic: TopicId) -> str:
    """Return the directory name of a topic: a readable part and a hash that makes it unique."""
    data = topic.encode(errors="surrogatepass")
    return f"{_readable(topic[:40])}-{blake2b(data, digest_size=_HASH_BYTES).hexdigest()}"


def replace_by_directory(path: Path) -> None:
    """Create a directory durably if it is missing; rename a file that has its name."""
    if not path.is_dir():
        if os.path.lexists(path):
            path.rename(path.with_name(f"{path.name}.{secrets.token_hex(4)}"))
        make_directory(path)
    sync_directory(path.parent)  # an earlier attempt may have failed here


def _readable(text: str) -> str:
    """Return a text as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text).lstrip(".")


def new_epoch() -> int:
    """Return a random epoch: 62 bits, so it differs from all earlier ones of the topic."""
    return secrets.randbits(_EPOCH_BITS)
