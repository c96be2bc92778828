"""Segment logs with known batches, their damage, and the batches that remain."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EIO
from pathlib import Path

import pytest

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.storage.segments import tail
from skipring.storage.segments.format import decode_entry, entry_bytes
from skipring.storage.segments.log import SegmentLog
from skipring.storage.segments.store import TOPICS, LogStore
from skipring.storage.segments.topic_directory import QUARANTINE, directory_name

NEWS = "news"
SMALL = 1000  # bytes of a segment: about six batches of two records


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
    return LogStore.open(directory, segment_bytes_max=SMALL)


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
    assert raw_offsets(log) == [offset for offset in found if offset < log.durable_end]
    return list(found)


def raw_offsets(log: SegmentLog, bytes_max: int = 300) -> list[int]:
    """Return the offsets of the intact entries in the raw ranges of a log."""
    found: list[int] = []
    start = 0
    while (part := log.raw_range(start, log.end, bytes_max)) is not None:
        assert part.start < part.end
        at = 0
        while at < len(part.data):
            entry = decode_entry(part.data, at)
            if entry is not None:
                assert entry == log.read(entry.offset)
                found.append(entry.offset)
            at += entry_bytes(part.data, at)
        assert at == len(part.data)
        start = part.end
    return found


def state(directory: Path, topic: str = NEWS) -> tuple[list[int], int, int]:
    """Open a store; return readable offsets, end and epoch of a topic."""
    with opened(directory) as store:
        log = store.log(topic)
        return offsets(log, topic), log.end, log.epoch


class FailingDisk:
    """Calls of the system that write, of which one fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail_at = -1
        self.calls = 0
        self.error = OSError(EIO, "disk error")
        self.before: Callable[[], None] = lambda: None
        writes = os.pwritev

        def pwritev(file: int, pieces: list[bytes], position: int) -> int:
            data = b"".join(pieces)
            half = writes(file, [data[: len(data) // 2]], position)
            self.step()
            return half + writes(file, [data[half:]], position + half)

        monkeypatch.setattr(os, "pwritev", pwritev)
        for owner, name in (
            (os, "fsync"),
            (os, "truncate"),
            (os, "ftruncate"),
            (tail, "sync_data"),
            (Path, "replace"),
            (Path, "unlink"),
            (Path, "mkdir"),
        ):
            monkeypatch.setattr(owner, name, self.stepped(getattr(owner, name)))

    def stepped(self, call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **options: object) -> object:
            self.step()
            return call(*args, **options)

        return wrapper

    def step(self) -> None:
        self.before()
        self.calls += 1
        if self.calls - 1 == self.fail_at:
            raise self.error
