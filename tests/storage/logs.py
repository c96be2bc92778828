"""Segment logs with known batches, their damage, and the batches that remain."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EIO
from pathlib import Path

import pytest

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log import ANY_BYTE, EntryFilter, Log, LogEntry, PageLimits
from skipring.storage import topic_log
from skipring.storage.recovery import LoadedSegment, load_segment
from skipring.storage.segment import FileCache
from skipring.storage.segment_format import (
    HEADERS,
    START_OF_CHAIN,
    SegmentHeader,
    encode_entry,
)
from skipring.storage.store import TOPICS, LogStore
from skipring.storage.topic_directory import QUARANTINE, directory_name
from skipring.storage.topic_log import SegmentLog, next_chain

NEWS, CHAT = "news", "chat"
OWNER = "node0"  # publishes every third batch
SMALL = 800  # bytes of a segment: about six batches of two records


def batch(first: int, count: int = 2, topic: str = NEWS, size: int = 20) -> RecordBatch:
    """Return a unique batch."""
    records = [
        BatchRecord((f"{topic} {number} ".encode() * size)[:size], time=1000 + number)
        for number in range(first, first + count)
    ]
    return RecordBatch.of(records, publisher=f"node{first % 3}", first=first, topic=topic)


def write(store: LogStore, *counts: int, topic: str = NEWS) -> None:
    """Append and commit batches of two records, once for each count."""
    log = store.log(topic)
    for count in counts:
        for _ in range(count):
            log.append(batch(log.end, topic=topic))
        store.commit()


def opened(directory: Path) -> LogStore:
    """Open a store with small segments."""
    return LogStore.open(directory, OWNER, segment_bytes_max=SMALL)


def made(directory: Path, *counts: int, topic: str = NEWS) -> Path:
    """Return the directory of the topic in a store that was closed."""
    with opened(directory) as store:
        write(store, *counts, topic=topic)
    return topic_path(directory, topic)


def topic_path(directory: Path, topic: str = NEWS) -> Path:
    """Return the directory of a topic."""
    return directory / TOPICS / directory_name(topic)


def segments(path: Path) -> list[Path]:
    """Return the segment files of a topic, in order."""
    return sorted(path.glob("*.log"))


def quarantined(path: Path) -> list[str]:
    """Return the files in the quarantine of a topic."""
    return sorted(each.name for each in (path / QUARANTINE).glob("*"))


def flip(path: Path, place: int, bits: int = 1) -> None:
    """Flip bits of one byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= bits
    path.write_bytes(data)


def offsets(log: SegmentLog, topic: str = NEWS) -> list[int]:
    """Return the first offsets of the readable batches; assert that all ways of reading agree.

    Every batch equals the written batch of its offset.
    """
    found = {entry.offset: entry for entry in log.read_range(0, log.end)}
    assert list(found) == sorted(found)
    for offset, entry in found.items():
        count = entry.batch.count
        assert entry.batch == batch(offset, count, topic, len(entry.batch.records()[0].payload))
        assert all(log.read(offset + index) == entry for index in range(count))
    assert sum(log.read(offset) is not None for offset in range(log.end)) == sum(
        entry.batch.count for entry in found.values()
    )
    ids = {offset: key for key, offset in log.entries()}
    assert list(ids) == sorted(ids)
    assert {offset: entry.batch.id for offset, entry in found.items()}.items() <= ids.items()
    assert paged(log, PageLimits(300, 100, 1000, 100)) == list(found.values())
    assert log.records >= sum(entry.batch.count for entry in found.values())
    return list(found)


def paged(log: Log, limits: PageLimits, firsts: range = ANY_BYTE, start: int = 0) -> list[LogEntry]:
    """Return the entries of all pages of a log from an offset on."""
    found: list[LogEntry] = []
    while start < log.end:
        entries, following = log.read_page(start, log.end, limits, EntryFilter(firsts))
        assert following > start
        found += entries
        start = following
    return found


SESSION = b"once"
HEADER = SegmentHeader(NEWS, 0, START_OF_CHAIN)


def entries_of(*batches: RecordBatch) -> list[LogEntry]:
    """Return batches as the first entries of a log."""
    found: list[LogEntry] = []
    offset, chain = 0, START_OF_CHAIN
    for each in batches:
        chain = next_chain(chain, each.id, SESSION)
        found.append(LogEntry(offset, chain, each))
        offset += each.count
    return found


def encoded(entry: LogEntry) -> bytes:
    """Return an entry as it is stored."""
    return encode_entry(entry) + entry.batch.body


def segment_file(path: Path, *entries: LogEntry, header: SegmentHeader = HEADER) -> list[int]:
    """Write a segment file; return the position of each entry and of the end."""
    data = HEADERS.encode(header)
    places = [len(data)]
    for entry in entries:
        data += encoded(entry)
        places.append(len(data))
    path.write_bytes(data)
    return places


def loaded(path: Path, topic: str = NEWS) -> LoadedSegment | None:
    """Return a segment as recovery finds it."""
    files = FileCache(os.O_RDONLY)
    try:
        header = SegmentHeader(topic, int(path.stem), START_OF_CHAIN)
        return load_segment(files, path, header, owner=OWNER)
    finally:
        files.close()


def positions(path: Path) -> list[int]:
    """Return the positions of the entries in a segment file and of their end."""
    found = loaded(path)
    assert found is not None
    return [*found.segment.index.positions, found.segment.index.size]


def state(directory: Path, topic: str = NEWS) -> tuple[list[int], int, int]:
    """Open a store; return readable offsets, end and epoch of a topic."""
    with opened(directory) as store:
        log = store.log(topic)
        return offsets(log, topic), log.end, log.epoch


class FailingDisk:
    """Calls of the system that write: one of them fails, and all of one name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail_at = -1
        self.refused = ""
        self.calls = 0
        self.error = OSError(EIO, "disk error")
        self.before: Callable[[], None] = lambda: None
        writes = os.pwrite

        def write_halves(file: int, parts: list[bytes], position: int) -> int:
            data = b"".join(parts)
            half = writes(file, data[: len(data) // 2], position)
            self.step()
            return half + writes(file, data[half:], position + half)

        monkeypatch.setattr(os, "pwritev", write_halves)
        for owner, name in (
            (os, "fsync"),
            (os, "ftruncate"),
            (topic_log, "sync_data"),
            (Path, "replace"),
            (Path, "unlink"),
            (Path, "mkdir"),
        ):
            monkeypatch.setattr(owner, name, self.stepped(getattr(owner, name), name))

    def stepped(self, call: Callable[..., object], name: str) -> Callable[..., object]:
        def wrapper(*args: object, **options: object) -> object:
            self.step(name)
            return call(*args, **options)

        return wrapper

    def step(self, name: str = "pwritev") -> None:
        self.before()
        self.calls += 1
        if self.calls - 1 == self.fail_at or name == self.refused:
            raise self.error


class SyncedDisk:
    """Files of a directory as a power loss leaves them: without what is not synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._root = root
        self._names: dict[int, dict[str, int]] = {}  # entries of each directory, by its inode
        self._contents: dict[int, bytes] = {}
        for path in (root, *root.rglob("*")):
            self._on_synced(path)
        for owner, name in ((os, "fsync"), (topic_log, "sync_data")):
            monkeypatch.setattr(owner, name, self._synced(getattr(owner, name)))

    def _synced(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def wrapper(file: int) -> None:
            call(file)
            self._on_synced(Path(f"/proc/self/fd/{file}").resolve())

        return wrapper

    def _on_synced(self, path: Path) -> None:
        if path.is_dir():
            names = {each.name: each.stat().st_ino for each in path.iterdir()}
            self._names[path.stat().st_ino] = names
        else:
            self._contents[path.stat().st_ino] = path.read_bytes()

    def copy(self, target: Path) -> None:
        """Write the synced state to another directory."""
        self._copy(self._root.stat().st_ino, target)

    def _copy(self, directory: int, target: Path) -> None:
        target.mkdir(parents=True)
        for name, inode in self._names[directory].items():
            if inode in self._names:
                self._copy(inode, target / name)
            else:
                (target / name).write_bytes(self._contents.get(inode, b""))
