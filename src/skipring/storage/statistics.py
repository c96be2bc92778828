"""Statistics of the entries of a segment: a read with a filter skips entries and whole segments.

Memory holds two bytes per entry: the first byte of its id and a tag of its publisher. The times of
a segment are one range. A wrong statistic could hide entries, so a footer whose statistics do not
fit its ids is rebuilt by a scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Self

from msgspec import DecodeError, Raw, Struct, field, msgpack

from skipring.core.batches import RecordBatch
from skipring.core.limits import NUMBER_MAX
from skipring.core.log import ANY_BYTE, EntryFilter, publisher_tag
from skipring.core.peers import NodeId
from skipring.core.publications import ID_BYTES

WINDOW_ENTRIES: Final = 1 << 16  # Measured: a search of this number takes less than 0.1 ms.
PART_ENTRIES: Final = 256  # Guess: a part of this size takes about a microsecond.
GAP_BYTES_MAX: Final = 4096  # Guess: reading this takes as long as another call of the system.


class _Timed(Struct, array_like=True, gc=False):
    """Record of a batch, of which only the time is decoded."""

    payload: Raw
    time: int = 0


_TIMES: Final = msgpack.Decoder(list[_Timed])


class SegmentStatistics(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Statistics in the footer of a sealed segment."""

    tags: bytes  # of the publishers, a byte for each entry
    earliest: int  # known time of a record, in microseconds since the epoch
    latest: int  # less than ``earliest`` if no time is known


class EntryStatistics(Struct, eq=False):
    """Statistics of the entries of one segment, in their order."""

    firsts: bytearray = field(default_factory=bytearray)  # first bytes of ids
    tags: bytearray = field(default_factory=bytearray)  # of publishers
    earliest: int = NUMBER_MAX
    latest: int = 0

    @classmethod
    def of(cls, ids: bytes, stored: SegmentStatistics) -> Self:
        """Return the statistics in a footer."""
        firsts = bytearray(ids[::ID_BYTES])
        return cls(firsts, bytearray(stored.tags), stored.earliest, stored.latest)

    def add(self, batch: RecordBatch) -> None:
        """Add the entry of a batch."""
        self.firsts.append(batch.id[0])
        self.tags.append(publisher_tag(batch.publisher))
        earliest, latest = _times(batch.body)
        self._widen(earliest, latest)

    def add_gap(self) -> None:
        """Add an entry without a batch, which no read selects."""
        self.firsts.append(0)
        self.tags.append(0)

    def copy(self, other: EntryStatistics, number: int) -> None:
        """Add an entry of other statistics; their times include its times."""
        self.firsts.append(other.firsts[number])
        self.tags.append(other.tags[number])
        self._widen(other.earliest, other.latest)

    def extend(self, other: EntryStatistics) -> None:
        """Add entries that follow."""
        self.firsts += other.firsts
        self.tags += other.tags
        self._widen(other.earliest, other.latest)

    def _widen(self, earliest: int, latest: int) -> None:
        self.earliest, self.latest = min(self.earliest, earliest), max(self.latest, latest)

    def stored(self) -> SegmentStatistics:
        """Return the content of a footer."""
        return SegmentStatistics(bytes(self.tags), self.earliest, self.latest)

    def selected(
        self,
        positions: Sequence[int],
        first: int,
        bytes_max: int,
        wanted: EntryFilter,
        live: bytearray | None = None,
    ) -> tuple[list[int], int]:
        """Return possible matches from an entry on, close together, and where to continue.

        ``live`` has a mark for each entry, 0 for a dropped one; None: all are live.
        """
        times = wanted.times
        if times is not None and (self.latest < times.start or self.earliest >= times.stop):
            return [], len(positions)
        found: list[int] = []
        last = 0
        for number in self._candidates(first, wanted, live):
            position = positions[number]
            if found:
                size = position - positions[found[0]]
                if size >= bytes_max or position - last > GAP_BYTES_MAX:
                    return found, number
            found.append(number)
            last = positions[number + 1] if number + 1 < len(positions) else position
        return found, min(first + WINDOW_ENTRIES, len(positions))

    def _candidates(self, first: int, wanted: EntryFilter, live: bytearray | None) -> Iterator[int]:
        """Yield the live entries whose id and publisher may match, among WINDOW_ENTRIES.

        It marks them in parts of growing size, so the next match costs what its distance costs.
        """
        end = min(first + WINDOW_ENTRIES, len(self.firsts))
        size = PART_ENTRIES
        while first < end:
            stop = min(first + size, end)
            marks = self._marks(first, stop, wanted)
            if live is not None:
                marks = _both(marks, live[first:stop])
            at = marks.find(1)
            while at >= 0:
                yield first + at
                at = marks.find(1, at + 1)
            first, size = stop, 2 * size

    def _marks(self, first: int, stop: int, wanted: EntryFilter) -> bytes:
        """Return a byte for each entry: 1 if it may match."""
        marks = bytes(self.firsts[first:stop].translate(_marked(wanted.firsts)))
        if wanted.publishers is None and wanted.tags == ANY_BYTE:
            return marks
        tagged = _tagged(wanted.publishers, wanted.tags)
        return _both(marks, self.tags[first:stop].translate(tagged))


def _both(marks: bytes, others: bytearray) -> bytes:
    """Return the marks that are in both sequences."""
    both = int.from_bytes(marks, "big") & int.from_bytes(others, "big")
    return both.to_bytes(len(marks), "big")


@lru_cache(maxsize=256)
def _marked(firsts: range) -> bytes:
    return bytes([byte in firsts for byte in ANY_BYTE])


@lru_cache(maxsize=64)
def _tagged(publishers: frozenset[NodeId] | None, tags: range) -> bytes:
    if publishers is None:
        return _marked(tags)
    found = {publisher_tag(publisher) for publisher in publishers}
    return bytes([tag in found and tag in tags for tag in ANY_BYTE])


def _times(body: bytes) -> tuple[int, int]:
    """Return the first and last known time in a body; every time if the body is unreadable."""
    try:
        times = [each.time for each in _TIMES.decode(body) if each.time]
    except DecodeError:
        return 0, NUMBER_MAX
    return (min(times), max(times)) if times else (NUMBER_MAX, 0)
