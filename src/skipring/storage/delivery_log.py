"""Delivery log of a node: arrival time, hops and origin of each publication.

The content is telemetry. A damaged file loses no publication, so no method raises.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from struct import pack
from threading import Lock
from typing import Final, NamedTuple, Self

from skipring.core.effects import Origin
from skipring.core.peers import TopicId
from skipring.storage.delivery_file import FAILURES, FILE, Body, DeliveryFile, parsed
from skipring.storage.store import PublicationStore
from skipring.storage.topic_log import TopicLog

ON_DISK_MAX: Final = 1_000_000  # Limit: the last offsets of a topic, about 10 MB.
IN_MEMORY_MAX: Final = 100_000  # Limit: without a disk, or while writes fail.
CHUNK_MAX: Final = 1024  # Guess: the last chunk is rewritten until it is full.

_PLACES: Final = {origin: place for place, origin in enumerate(Origin)}


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
    """Deliveries of a node in all its topics; without a file they are in memory.

    ``write`` may run in another thread, one call at a time, concurrently with ``record`` and
    ``read``.
    """

    def __init__(
        self, store: PublicationStore | None = None, file: DeliveryFile | None = None
    ) -> None:
        self.failures = 0  # failed accesses to the file
        self.error: str | None = None  # reason of the last failed write; None after a success
        self._store = store
        self._file = file
        self._topics: dict[TopicId, list[_Chunk]] = {}  # in the order of their offsets
        self._latest: dict[TopicId, _Chunk] = {}  # the chunk that gets the next delivery
        self._obsolete: list[int] = []  # rows to delete
        self._lock = Lock()  # guards state that a write in another thread changes

    @classmethod
    def open(cls, directory: Path, store: PublicationStore) -> Self:
        """Open the delivery log beside a store; drop unusable content."""
        trace = cls(store, DeliveryFile(directory / FILE))
        trace._load({topic: store.archive(topic) for topic in store.topics})
        return trace

    def close(self) -> None:
        """Close the file and drop unwritten deliveries; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def record(
        self, topic: TopicId, offset: int, time_us: int, hops: int, origin: Origin, count: int = 1
    ) -> None:
        """Record deliveries; earlier records of these and of later offsets become obsolete."""
        end = offset + count
        while offset < end:
            chunk = self._latest.get(topic)
            if chunk is None or chunk.end != offset or offset - chunk.start >= CHUNK_MAX:
                chunk = self._begun(topic, offset)
            part = min(end - offset, chunk.start + CHUNK_MAX - offset)
            if part == 1:  # the usual case
                chunk.times.append(time_us)
                chunk.hops.append(hops)
                chunk.origins.append(_PLACES[origin])
            else:
                chunk.times.extend(array("q", (time_us,)) * part)
                chunk.hops.extend(bytes((hops,)) * part)
                chunk.origins.extend(bytes((_PLACES[origin],)) * part)
            offset += part
            chunk.end = offset  # last: a write in another thread reads up to the end

    def forget(self, topic: TopicId) -> None:
        """Drop all deliveries of a topic."""
        with self._lock:
            self._cut(topic, 0)
            self._topics.pop(topic, None)
            self._latest.pop(topic, None)

    def end(self, topic: TopicId) -> int:
        """Return the offset after the last recorded delivery."""
        chunks = self._topics.get(topic)
        return chunks[-1].end if chunks else 0

    def read(self, topic: TopicId, start: int, end: int, count: int) -> Iterator[DeliveryRows]:
        """Yield the first ``count`` recorded deliveries between two offsets, in order."""
        with self._lock:
            known = self._topics.get(topic, [])
            chunks = known[bisect_right(known, start, key=_end_of) :]
        for chunk in chunks:
            first = max(start, chunk.start)
            last = min(end, chunk.end, first + count)
            if last <= first:
                return
            found = self._contents(topic, chunk)
            if found is not None:
                count -= last - first
                part = slice(first - chunk.start, last - chunk.start)
                yield DeliveryRows(first, found.times[part], found.hops[part], found.origins[part])

    def _contents(self, topic: TopicId, chunk: _Chunk) -> DeliveryRows | None:
        """Return the content of a chunk; None if it is unreadable."""
        with self._lock:
            if chunk.times:
                hops, origins = bytes(chunk.hops), bytes(chunk.origins)
                return DeliveryRows(chunk.start, chunk.times, hops, origins)
        body = self._body_in(chunk.row) if chunk.row is not None else None
        if body is None or (body.topic, body.start) != (topic, chunk.start):
            return None
        return DeliveryRows(body.start, body.unpacked(), body.hops, body.origins)

    def _body_in(self, row: int) -> Body | None:
        try:
            return parsed(self._file.read(row)) if self._file is not None else None
        except FAILURES:
            return None  # the next write detects a damaged file

    # -- chunks --------------------------------------------------------------------------------

    def _begun(self, topic: TopicId, offset: int) -> _Chunk:
        """Start a chunk at an offset; drop the oldest chunks beyond the limit."""
        with self._lock:
            latest = self._latest.get(topic)
            if latest is not None and latest.written >= latest.end:
                latest.release()
            self._cut(topic, offset)
            chunks = self._topics.get(topic, [])
            kept = [chunk for chunk in chunks if chunk.end > offset - chunk.limit]
            if len(kept) < len(chunks):
                self._drop(chunk for chunk in chunks if chunk.end <= offset - chunk.limit)
            begun = self._latest[topic] = _Chunk(offset, offset)
            self._topics[topic] = [*kept, begun]
            return begun

    def _cut(self, topic: TopicId, offset: int) -> None:
        """Drop the deliveries of a topic from an offset on."""
        chunks = self._topics.get(topic, [])
        while chunks and chunks[-1].end > offset:
            last = chunks[-1]
            last.end = max(last.start, offset)
            if last.end == last.start:
                self._drop([chunks.pop()])

    def _drop(self, chunks: Iterable[_Chunk]) -> None:
        self._obsolete += (chunk.row for chunk in chunks if chunk.row is not None)

    # -- the file ------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Return True if there is a file that lacks deliveries."""
        unwritten = (chunk.written < chunk.end for chunk in self._latest.values())
        return self._file is not None and any(unwritten)

    def write(self) -> None:
        """Write the deliveries of durable publications.

        The file never contains the delivery of a publication that a crash revokes.
        """
        file = self._file
        if file is None:
            return
        with self._lock:
            due = [each for topic in self._topics for each in self._due(topic)]
            obsolete, self._obsolete = self._obsolete, []
        if not due and not obsolete:
            return
        try:
            rows = file.write(((each.chunk.row, self._body_of(each)) for each in due), obsolete)
        except FAILURES as error:
            self._fail(file, error, obsolete)
            return
        self.error = None
        with self._lock:
            for each, row in zip(due, rows, strict=True):
                self._commit(each, row)

    def _due(self, topic: TopicId) -> list[_Due]:
        """Return the chunks of a topic that the file lacks, in the order of offsets."""
        assert self._store is not None
        durable_end = self._store.archive(topic).durable_end
        newest = takewhile(lambda chunk: chunk.times, reversed(self._topics[topic]))
        found = [_Due(topic, chunk, min(chunk.end, durable_end)) for chunk in newest]
        return [due for due in reversed(found) if due.end > due.chunk.written]

    def _body_of(self, due: _Due) -> bytes:
        assert self._store is not None
        chunk, length = due.chunk, due.end - due.chunk.start
        return Body(
            store=self._store.id,
            topic=due.topic,
            epoch=self._store.archive(due.topic).epoch,
            start=chunk.start,
            times=pack(f"<{length}q", *chunk.times[:length]),
            hops=bytes(chunk.hops[:length]),
            origins=bytes(chunk.origins[:length]),
        ).sealed()

    def _commit(self, due: _Due, row: int) -> None:
        chunk = due.chunk
        chunk.row, chunk.written = row, due.end
        if chunk.end == chunk.start:  # it was cut during the write
            self._drop([chunk])
        is_full = chunk.end - chunk.start >= CHUNK_MAX
        if chunk.written >= chunk.end and (is_full or self._latest.get(due.topic) is not chunk):
            chunk.release()

    def _fail(self, file: DeliveryFile, error: Exception, obsolete: Iterable[int]) -> None:
        """Count a failure; discard the file if it is damaged, otherwise keep it for a retry."""
        self.failures += 1
        self.error = str(error)
        if not file.is_damaged(error):
            with self._lock:
                self._obsolete += obsolete
            return
        with self._lock:
            self._obsolete.clear()
            for topic, chunks in self._topics.items():
                self._topics[topic] = [chunk for chunk in chunks if chunk.times]
                for chunk in self._topics[topic]:
                    chunk.row, chunk.written = None, chunk.start
        with suppress(*FAILURES):
            file.discard()

    def _load(self, archives: Mapping[TopicId, TopicLog]) -> None:
        assert self._file is not None
        try:
            for row, data in self._file.rows():
                self._take(row, parsed(data), archives)
        except FAILURES as error:
            self._topics.clear()
            self._fail(self._file, error, ())
        self.write()  # deletes obsolete rows before their offsets are assigned again

    def _take(self, row: int, body: Body | None, archives: Mapping[TopicId, TopicLog]) -> None:
        """Use a chunk of the file if its store and epoch match; later chunks take precedence."""
        archive = archives.get(body.topic) if body is not None else None
        if body is None or archive is None or not self._is_of(archive, body):
            self._obsolete.append(row)
            return
        self._cut(body.topic, body.start)
        self._topics.setdefault(body.topic, []).append(_Chunk(body.start, body.end, row))

    def _is_of(self, archive: TopicLog, body: Body) -> bool:
        assert self._store is not None
        is_same = (body.store, body.epoch) == (self._store.id, archive.epoch)
        return is_same and body.end <= archive.end


class _Chunk:
    """Deliveries at consecutive offsets: in memory, in a row of the file, or in both."""

    __slots__ = ("end", "hops", "origins", "row", "start", "times", "written")

    def __init__(self, start: int, end: int, row: int | None = None) -> None:
        self.start = start
        self.end = end  # records from there on are obsolete
        self.row = row
        self.written = start if row is None else end  # the file has all before this offset
        self.release()

    def release(self) -> None:
        """Drop the content from memory."""
        self.times = array("q")
        self.hops, self.origins = bytearray(), bytearray()

    @property
    def limit(self) -> int:
        """Return the number of newer offsets after which the chunk is dropped."""
        return IN_MEMORY_MAX if self.times else ON_DISK_MAX


class _Due(NamedTuple):
    """Part of a chunk to be written: all deliveries before ``end``."""

    topic: TopicId
    chunk: _Chunk
    end: int


def _end_of(chunk: _Chunk) -> int:
    return chunk.end
