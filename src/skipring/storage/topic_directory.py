"""Directory of one topic's log: name, record of its identity, quarantine."""

from __future__ import annotations

import os
import re
import secrets
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from errno import EIO, EISDIR, ENOENT, ENOTDIR
from hashlib import blake2b
from pathlib import Path
from typing import Final

from msgspec import Struct

from skipring.core.peers import NodeId, TopicId
from skipring.storage.data_dir import make_directory, sync_directory, write_durably
from skipring.storage.segment import SUFFIX
from skipring.storage.segment_format import BlockFormat

RECORD_FILE: Final = "topic"
QUARANTINE: Final = "quarantine"
# Guess: two segments, and a directory that is listed quickly. The oldest files are deleted first.
QUARANTINE_BYTES_MAX: Final = 128 << 20
QUARANTINE_FILES_MAX: Final = 1000

_HASH_BYTES: Final = 16
FRESH: Final = ".new"  # of a file that replaces another one
_OWN_FILES: Final = (RECORD_FILE, f"{RECORD_FILE}{FRESH}")  # the second: an interrupted replacement
_UNREADABLE: Final = frozenset({ENOENT, ENOTDIR, EISDIR, EIO})
_SEGMENT: Final = re.compile(r"(\d{20})" + re.escape(SUFFIX))


class TopicRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Identity of a log, and the offsets that it does not serve."""

    topic: TopicId
    store: str
    epoch: int  # random; a new one after every loss
    absent: list[tuple[int, int]] = []  # ranges of lost and of quarantined offsets
    low: int = 0  # all offsets before it were trimmed
    # Dropped entries of each segment, by its start, when files were last removed: relative offsets.
    dropped: dict[int, bytes] = {}
    owner: NodeId = ""  # the node of the store
    newest: list[int] = []  # the newest number of each incarnation of the owner
    terms: bytes = b""  # of the machine of the topic (``core/log.py:Log.terms``)


_RECORDS: Final = BlockFormat(b"skiptop1", TopicRecord)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of offsets in order, without overlaps and empty ones."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found


def covers(ranges: list[tuple[int, int]], start: int, end: int) -> bool:
    """Return True if one of the merged ranges contains all offsets from a start to an end."""
    number = bisect_right(ranges, start, key=lambda each: each[0]) - 1
    return number >= 0 and ranges[number][1] >= end


class TopicDirectory:
    """Directory with the segments of one topic; it may be missing."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)  # a Path takes 0.8 KiB

    @property
    def path(self) -> Path:
        """Return the path of the directory."""
        return Path(self._path)

    @property
    def _record(self) -> Path:
        return self.path / RECORD_FILE

    @property
    def _quarantine(self) -> Path:
        return self.path / QUARANTINE

    def files(self) -> tuple[dict[int, Path], list[Path]]:
        """Return the segments by first offset, in order, and the foreign files."""
        segments: dict[int, Path] = {}
        foreign: list[Path] = []
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            match = _SEGMENT.fullmatch(path.name)
            is_file = path.is_file() and not path.is_symlink()
            if match is not None and is_file:
                segments[int(match[1])] = path
            elif is_file and _SEGMENT.fullmatch(path.name.removesuffix(FRESH)):
                path.unlink()  # an interrupted replacement
            elif path != self._quarantine and not (is_file and path.name in _OWN_FILES):
                foreign.append(path)
        return segments, foreign

    def read_record(self) -> TopicRecord | None:
        """Return the record of the topic; None if it is missing, damaged or of another topic."""
        try:
            found = _RECORDS.decode(self._record.read_bytes())
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return None
        is_own = found is not None and directory_name(found[0].topic) == self.path.name
        return found[0] if found is not None and is_own else None

    def write_record(self, record: TopicRecord) -> None:
        """Replace the record of the topic, durably; create the directory if it is missing."""
        replace_by_directory(self.path)
        write_durably(self._record, _RECORDS.encode(record))

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
        """Delete the oldest files beyond the limits; the newest one stays."""
        files = [path for path in self._quarantine.iterdir() if path.is_file()]
        states = sorted(((path.stat(), path) for path in files), key=lambda e: -e[0].st_mtime_ns)
        size = 0
        for number, (state, path) in enumerate(states):
            size += state.st_size
            if number and (size > QUARANTINE_BYTES_MAX or number >= QUARANTINE_FILES_MAX):
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
