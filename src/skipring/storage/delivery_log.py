"""Delivery log of a node: when and how each batch arrived.

The content is telemetry: damaged rows and files are dropped, and no method raises. A topic has two
files of rows; a full one becomes the older one.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from struct import Struct as Layout
from threading import Lock
from typing import Final, NamedTuple, Self, TypeAlias
from zlib import crc32

from msgspec import msgpack

from skipring.core.effects import Origin
from skipring.core.peers import TopicId
from skipring.storage.data_dir import make_directory
from skipring.storage.store import LogStore
from skipring.storage.topic_directory import directory_name

FOLDER: Final = "deliveries"
FILE_BYTES_MAX: Final = 4 << 20  # Guess: 160,000 batches.
IN_MEMORY_BYTES_MAX: Final = 2 << 20  # Limit: of a topic, without a disk or while writes fail.
CHUNK_MAX: Final = 1024  # Guess: deliveries that a reader gets at once, rounded up to a batch.

_KIND: Final = "skipring deliveries 1"
_ROW: Final = Layout("<QQIBB")  # offset, time, count, hops, origin
_CHECKED: Final = Layout(f"<{_ROW.size}sI")  # with a CRC-32
ROW_BYTES: Final = _CHECKED.size
_SEARCHED_MAX: Final = 16  # Guess: damaged rows that a search skips.
ORIGIN_PLACES: Final = {origin: place for place, origin in enumerate(Origin)}


# Topic, offset, time in microseconds since the epoch, hops, origin, and the number of records.
RecordedDelivery: TypeAlias = tuple[TopicId, int, int, int, Origin, int]


class DeliveryRows(NamedTuple):
    """Deliveries at consecutive offsets from ``start``."""

    start: int
    times: Sequence[int]  # microseconds since the epoch
    hops: bytes  # one byte each
    origins: bytes  # one byte each: the place in Origin

    @property
    def end(self) -> int:
        """Return the offset after the last delivery."""
        return self.start + len(self.times)


class DeliveryLog:
    """Deliveries of a node in all its topics; without a disk they are in memory.

    ``write`` may run in another thread, concurrently with the other methods but ``close``.
    """

    def __init__(self, store: LogStore | None = None, directory: Path | None = None) -> None:
        self.failures = 0  # failed writes
        self.error: str | None = None  # reason of the last failed write; None after a success
        self._disk = (store, directory) if store is not None and directory is not None else None
        self.unpacked: deque[RecordedDelivery] = deque()  # since the last packing
        # Record a delivery at offsets after all earlier ones; ``pack`` does the rest of the work.
        self.record: Final = self.unpacked.append
        self._recent: dict[TopicId, bytearray] = {}  # rows that are not in a file
        self._counts: Counter[tuple[TopicId, Origin]] = Counter()  # deliveries since the start
        self._lock = Lock()  # for the packed rows, which a write in another thread removes

    @classmethod
    def open(cls, directory: Path, store: LogStore) -> Self:
        """Open the delivery log beside a store; drop the rows of a topic that has lost its end."""
        trace = cls(store, directory / FOLDER)
        for topic in store.topics:
            if trace.end(topic) > store.log(topic).end:
                trace.forget(topic)
        return trace

    def close(self) -> None:
        """Use the files no more; a second call does nothing."""
        self._disk = None

    def pack(self) -> None:
        """Turn recorded deliveries into rows, and count them; readers and writers call this too."""
        unpacked = self.unpacked
        with self._lock:
            while unpacked:
                topic, offset, time_us, hops, origin, count = unpacked.popleft()
                row = offset, max(time_us, 0), count, min(hops, 255), ORIGIN_PLACES[origin]
                fields = _ROW.pack(*row)
                recent = self._recent.setdefault(topic, bytearray())
                recent += fields + crc32(fields).to_bytes(4, "little")
                self._counts[topic, origin] += count
                if len(recent) > IN_MEMORY_BYTES_MAX:
                    del recent[: len(recent) // ROW_BYTES // 2 * ROW_BYTES]

    def count(self, topic: TopicId, origin: Origin) -> int:
        """Return the number of deliveries of a topic since the start."""
        self.pack()
        return self._counts[topic, origin]

    def reset_counts(self, topic: TopicId) -> None:
        """Forget the counts of a topic that was left."""
        self.pack()
        for origin in Origin:
            self._counts.pop((topic, origin), None)

    def forget(self, topic: TopicId) -> None:
        """Drop all deliveries of a topic."""
        self.pack()
        with self._lock, suppress(OSError):
            self._recent.pop(topic, None)
            for path in self._files(topic)[1]:
                path.unlink(missing_ok=True)

    def end(self, topic: TopicId) -> int:
        """Return the offset after the last recorded delivery."""
        rows = [row for part in self._parts(topic) for row in _intact(part, -_SEARCHED_MAX)]
        return max([offset + count for offset, _, count, *_ in rows], default=0)

    def read(self, topic: TopicId, start: int, end: int, count: int) -> Iterator[DeliveryRows]:
        """Yield the first ``count`` recorded deliveries between two offsets, in order."""
        times, hops, origins = list[int](), bytearray(), bytearray()
        parts = [_intact(part, _place_after(part, start)) for part in self._parts(topic)]
        for offset, time_us, length, hop, origin in chain(*parts):
            first = max(start, offset)
            added = min(offset + length, end, first + count) - first
            if first >= end or not count:
                break
            if added <= 0:
                continue  # it is in two files, while one becomes the older one
            if times and (first > start or len(times) >= CHUNK_MAX):
                yield DeliveryRows(start - len(times), times, bytes(hops), bytes(origins))
                times, hops, origins = [], bytearray(), bytearray()
            times += [time_us] * added
            hops += bytes([hop]) * added
            origins += bytes([origin]) * added
            start, count = first + added, count - added
        if times:
            yield DeliveryRows(start - len(times), times, bytes(hops), bytes(origins))

    @property
    def is_behind(self) -> bool:
        """Return True if there are files that lack deliveries."""
        return self._disk is not None and (bool(self.unpacked) or any(list(self._recent.values())))

    def write(self) -> None:
        """Write the deliveries of durable batches: a crash does not revoke them."""
        if self._disk is None:
            return
        store, directory = self._disk
        self.pack()
        try:
            make_directory(directory)
            for topic, recent in list(self._recent.items()):
                with self._lock:
                    data = bytes(recent)
                data = data[: _place_after(data, store.log(topic).durable_end) * ROW_BYTES]
                if data:
                    _append(*self._files(topic), data)
                with self._lock:
                    del recent[: len(data)]
            self.error = None
        except OSError as error:
            self.failures += 1
            self.error = str(error)

    def _parts(self, topic: TopicId) -> list[bytes]:
        """Return the rows in the files and in memory, the oldest first."""
        self.pack()
        with self._lock:
            found = [bytes(self._recent.get(topic, b""))]
        header, paths = self._files(topic)
        for path in paths:  # in this order: rows move from the memory to these files
            with suppress(OSError):
                data = path.read_bytes()
                found.insert(0, data[len(header) :] if data.startswith(header) else b"")
        return found

    def _files(self, topic: TopicId) -> tuple[bytes, list[Path]]:
        """Return the header of a topic's files, the current and the older one."""
        if self._disk is None:
            return b"", []
        log, name = self._disk[0].log(topic), directory_name(topic)
        header = msgpack.encode((_KIND, log.store, log.epoch, topic))
        return header, [self._disk[1] / f"{name}{suffix}" for suffix in (".rows", ".older")]


def _append(header: bytes, paths: list[Path], data: bytes) -> None:
    """Append rows to the current file; begin a new one if it is full or belongs to another log."""
    current, older = paths
    if current.exists() and current.stat().st_size > FILE_BYTES_MAX:
        current.replace(older)
    with os.fdopen(os.open(current, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        is_own = file.read(len(header)) == header
        rows = (file.seek(0, os.SEEK_END) - len(header)) // ROW_BYTES  # without a partial one
        file.seek(len(header) + rows * ROW_BYTES if is_own else 0)
        file.truncate()
        file.write(data if is_own else header + data)


def _intact(data: bytes, first: int = 0, count: int | None = None) -> Iterator[tuple[int, ...]]:
    """Yield the intact rows from a place on."""
    for place in range(len(data) // ROW_BYTES)[first:][:count]:
        fields, checksum = _CHECKED.unpack_from(data, place * ROW_BYTES)
        if crc32(fields) == checksum:
            yield _ROW.unpack(fields)


def _place_after(data: bytes, offset: int) -> int:
    """Return the place of the first row that ends after an offset; an earlier one if damaged."""

    def end_of(place: int) -> int:
        rows = _intact(data, place, _SEARCHED_MAX)
        return next((start + count for start, _, count, *_ in rows), 1 << 64)

    return bisect_right(range(len(data) // ROW_BYTES), offset, key=end_of)
