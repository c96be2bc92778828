"""Log of one topic: segments on the disk, and the newest publications in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from threading import Lock
from typing import Final, NamedTuple

from skipring.core.log import LogIndex, RecordRun, StoredSegment
from skipring.core.peers import TopicId
from skipring.core.publications import (
    ID_BYTES,
    Encoded,
    Publication,
    SequenceId,
    encoded_all,
    newest_of,
)
from skipring.storage.chain import LOST_ID, LogChain
from skipring.storage.durable_mark import losses_of
from skipring.storage.segment import AnySegment, Segment, SegmentBuilder, SegmentIndex
from skipring.storage.sqlite import QuarantineEntry, lost_ids

SPOILT: Final = "not what was stored there (T12)"


class Batch(NamedTuple):
    """Segments and quarantine entries of a topic for the next commit."""

    drafts: list[SegmentBuilder]
    marks: list[QuarantineEntry]


class TopicLog:
    """Stored log of one topic (implements ``core.log.Log``).

    A written publication is readable at once, and durable after the next commit of its store. The
    commit may run in another thread; all other methods are called in one thread.
    """

    __slots__ = (
        "_chain",
        "_drafts",
        "_fetch",
        "_index",
        "_lock",
        "_lost_ids",
        "_marks",
        "_on_the_way",
        "_places",
        "_quarantined",
        "durable_end",
        "end",
        "epoch",
        "store",
        "topic",
    )

    def __init__(  # noqa: PLR0913  (keyword-only)
        self,
        topic: TopicId,
        fetch: Callable[[int], Segment | None],
        *,
        places: SegmentIndex,
        epoch: int,
        marks: Sequence[QuarantineEntry],
        chain: LogChain,
        store: str = "",
    ) -> None:
        assert chain.end == places.end, "a chain of another log"
        self.topic = topic
        self.store = store  # id of the store
        self.epoch = epoch  # new after a recovery that ends below the durable mark
        self._chain = chain
        self.durable_end = places.end  # the disk has everything before this offset
        self.end = places.end  # the offset after the last publication
        self._fetch = fetch
        self._places = places
        self._lost_ids = lost_ids(topic, marks)
        self._quarantined: set[int] = set()
        for mark in marks:
            if places.covers(mark.start):  # otherwise the offset is a gap
                self._quarantined.update(range(mark.start, mark.start + mark.length))
        self._drafts: list[SegmentBuilder] = []
        self._marks: list[QuarantineEntry] = []
        self._on_the_way = Batch([], [])
        self._index: LogIndex | None = None  # prepared, and not used yet
        self._lock = Lock()  # guards state that a commit in another thread changes

    # -- log interface of core -------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        """Return True: publications are on the disk after the next commit."""
        return True

    def read(self, offset: int) -> Publication | None:
        """Return the publication at an offset; None if it is unreadable."""
        if offset in self._quarantined:
            return None
        segment = self._segment(offset)
        return segment.publication(offset) if segment is not None else None

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield the stored id and the offset of each publication."""
        quarantined = self._quarantined
        for segment in self._segments(0):
            entries = segment.entries()
            yield from (e for e in entries if e[1] not in quarantined) if quarantined else entries

    def publications(self) -> Iterator[Publication]:
        """Return all readable publications in the order of arrival."""
        return (publication for _, publication in self.read_range(0, self.end))

    def newest(self) -> dict[SequenceId, int]:
        """Return the largest number of each sequence of the stored publications.

        Quarantined ones count if they can be read: their numbers have been used.
        """
        return newest_of(number for segment in self._segments(0) for number in segment.numbers())

    def prepare_index(self) -> None:
        """Index the log for the next ``index``, which would take 0.2 s for 100,000 publications."""
        self._index = LogIndex.of(self)

    def index(self) -> LogIndex:
        """Return a new index over the log, the prepared one if there is one."""
        index, self._index = self._index, None
        return index if index is not None else LogIndex.of(self)

    # -- ranges, writes and the chain ------------------------------------------------------

    def read_range(self, start: int, end: int) -> Iterator[tuple[int, Publication]]:
        """Yield the readable publications between two offsets, each with its offset."""
        for segment in self._segments(start):
            for offset in range(max(start, segment.start), min(end, segment.end)):
                publication = None if offset in self._quarantined else segment.publication(offset)
                if publication is not None:
                    yield offset, publication
            if segment.end >= end:
                return

    def stored(
        self,
        start: int,
        end: int,
        firsts: range,
        *,
        count_max: int | None = None,
        is_checked: bool = True,
    ) -> Iterator[StoredSegment]:
        """Yield encoded records between two offsets, with the given first bytes of ids, by segment.

        ``count_max`` limits their number, rounded up to a segment. With ``is_checked`` only intact
        records are yielded; otherwise the caller verifies them.
        """
        quarantined = self._quarantined
        for segment in self._segments(start):
            if segment.start >= end or count_max == 0:
                return
            # Quarantined records do not count, so the segment returns all records.
            wanted = None if quarantined else count_max
            rows = segment.stored(start, end, firsts, count_max=wanted, is_checked=is_checked)
            if quarantined:
                rows = rows.chosen(o not in quarantined for o in rows.offsets).first(count_max)
            if count_max is not None:
                count_max -= len(rows.ids)
            yield StoredSegment(segment.end, segment.size_bytes, rows)

    def contiguous_ranges(
        self, start: int, end: int, count_max: int, bytes_max: int
    ) -> list[RecordRun]:
        """Return contiguous ranges of stored records from an offset on, of about this size.

        They end before the first damaged segment, gap or uncommitted record; after a quarantine
        there are none.
        """
        found: list[RecordRun] = []
        for segment in self._segments(start) if not self._quarantined else ():
            stop = min(end, segment.end, start + count_max)
            if (
                isinstance(segment, SegmentBuilder)
                or not segment.start <= start < stop
                or bytes_max <= 0
            ):
                break
            part = segment.stretch(start, stop, bytes_max)
            if part is None:
                break
            found.append(part)
            start += part.length
            count_max -= part.length
            bytes_max -= len(part.data)
        return found

    def write(
        self, offset: int, *publications: Publication, encoded: Encoded | None = None
    ) -> None:
        """Apply a Store effect at the end of the log; ``encoded`` avoids encoding again."""
        assert offset == self.end, f"offset {offset} after {self.end}"
        self._index = None
        rows = encoded or Encoded.of(encoded_all(publications))
        # Slices of views do not copy the rest for the next segment.
        all_ids = ids = memoryview(b"".join([publication.id for publication in publications]))
        data, sizes = memoryview(rows.data), rows.sizes
        with self._lock:
            while sizes:
                if not self._drafts or self._drafts[-1].is_full:
                    self._drafts.append(SegmentBuilder(self.topic, offset))
                count = self._drafts[-1].fill(ids, data, sizes)
                ids, data = ids[ID_BYTES * count :], data[sum(sizes[:count]) :]
                sizes, offset = sizes[count:], offset + count
        self.end = offset
        self._chain.extend(all_ids)

    def chain_at(self, offset: int) -> bytes:
        """Return the value of the running digest over all ids before an offset (decision 0043)."""
        return self._chain.at(offset, self._ids)

    def _ids(self, start: int, end: int) -> bytes:
        """Return the ids between two offsets; zeros for unknown ids."""
        lost = (self._lost_ids.get(offset, LOST_ID) for offset in range(start, end))
        found = bytearray(b"".join(lost))
        for segment in self._segments(start):
            first, last = max(start, segment.start), min(end, segment.end)
            if first >= last:
                break
            part = segment.ids[ID_BYTES * (first - segment.start) :][: ID_BYTES * (last - first)]
            at = ID_BYTES * (first - start)
            found[at : at + len(part)] = part
        return bytes(found)

    def discard(self, offset: int, reason: str = SPOILT) -> None:
        """Apply a Discard effect: quarantine the record at an offset."""
        place = self._located(offset)
        if offset in self._quarantined or place is None or offset < place[0]:
            return  # no record at this offset
        segment = self._opened(*place)
        data = segment.data(offset) if segment is not None else b""
        self._quarantined.add(offset)
        with self._lock:
            self._marks.append(QuarantineEntry(self.topic, offset, 1, reason, data))

    @property
    def unwritten(self) -> int:
        """Return the number of publications that are in memory only."""
        return self.end - self._places.end

    # -- commits ---------------------------------------------------------------------------

    def prepare(self) -> Batch | None:
        """Return the batch to write; None if there is nothing to write."""
        with self._lock:
            if not self._drafts and not self._marks:
                return None
            self._on_the_way = Batch(self._drafts, self._marks)
            self._drafts, self._marks = [], []
            return self._on_the_way

    def abort(self) -> None:
        """Return the prepared batch to memory after a failed write."""
        with self._lock:
            self._drafts = self._on_the_way.drafts + self._drafts
            self._marks = self._on_the_way.marks + self._marks
            self._on_the_way = Batch([], [])

    def committed(self, rows: Iterable[int]) -> None:
        """Record the rows of the prepared batch after a successful write."""
        with self._lock:
            for draft, row in zip(self._on_the_way.drafts, rows, strict=True):
                self._places.add(draft.start, draft.end, row)
            self._on_the_way = Batch([], [])

    @property
    def written_end(self) -> int:
        """Return the end of the written part; it is durable once the mark is written."""
        return self._places.end

    @property
    def is_known(self) -> bool:
        """Return True if the topic has written or lost publications."""
        return self.written_end > 0 or losses_of(self.epoch) > 0

    # -- lookup ----------------------------------------------------------------------------

    def _located(self, offset: int) -> tuple[int, int, int | SegmentBuilder] | None:
        """Return start, end and source (row or builder) of the first segment after an offset."""
        with self._lock:
            place = self._places.after(offset)
            if place is not None:
                return place
            for draft in chain(self._on_the_way.drafts, self._drafts):
                if offset < draft.end:
                    return draft.start, draft.end, draft
            return None

    def _opened(self, start: int, end: int, source: int | SegmentBuilder) -> AnySegment | None:
        """Return a builder as is, or a stored segment if it has the expected topic and offsets."""
        if isinstance(source, SegmentBuilder):
            return source
        pack = self._fetch(source)
        if pack is None or pack.head.topic != self.topic:
            return None
        return pack if (pack.start, pack.end) == (start, end) else None

    def _segment(self, offset: int) -> AnySegment | None:
        """Return the segment that contains an offset; None if there is none."""
        place = self._located(offset)
        return self._opened(*place) if place is not None and place[0] <= offset else None

    def _segments(self, start: int) -> Iterator[AnySegment]:
        """Yield the readable segments from an offset on, in order."""
        place = self._located(start)
        while place is not None:
            segment = self._opened(*place)
            if segment is not None:
                yield segment
            place = self._located(place[1])
