"""Segment: many publications of one topic in one self-verifying row.

A segment contains, in this order: a head (topic, epoch, first offset, count), the ids, offset and
size of each record, the records in MessagePack without their ids, the head again, and a digest over
all of it. Damage to one record does not affect the others: a record is valid if its id follows from
its fields, and the head exists twice.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, compress, pairwise
from struct import Struct as Layout
from struct import pack, unpack_from
from typing import Annotated, Final, TypeAlias

from msgspec import DecodeError, Meta, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder

from skipring.core.log import EncodedRecords, RecordRun
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES, Publication, number_in, restored


class SegmentIndex:
    """Index of segments: first offset, end and row of each, in the order of offsets."""

    __slots__ = ("_ends", "_rows", "_starts")

    def __init__(self) -> None:
        self._starts, self._ends, self._rows = array("q"), array("q"), array("q")

    def add(self, start: int, end: int, row: int) -> None:
        """Add a segment; if it is not the last, ``sort_and_check`` has to follow."""
        self._starts.append(start)
        self._ends.append(end)
        self._rows.append(row)

    def sort_and_check(self) -> bool:
        """Sort the segments; return False if two have the same offsets."""
        if any(this > after for this, after in pairwise(self._starts)):
            rows = sorted(zip(self._starts, self._ends, self._rows, strict=True))
            self._starts, self._ends, self._rows = (
                array("q", column) for column in zip(*rows, strict=True)
            )
        starts = self._starts[1:]
        return all(end <= after for end, after in zip(self._ends, starts, strict=False))

    @property
    def end(self) -> int:
        """Return the offset after the last publication."""
        return self._ends[-1] if self._ends else 0

    @property
    def count(self) -> int:
        """Return the number of publications in the segments."""
        return sum(self._ends) - sum(self._starts)

    def after(self, offset: int) -> tuple[int, int, int] | None:
        """Return first offset, end and row of the first segment that ends after an offset."""
        index = bisect_right(self._ends, offset)
        if index == len(self._ends):
            return None
        return self._starts[index], self._ends[index], self._rows[index]

    def rows(self) -> Iterator[tuple[int, int]]:
        """Return first offset and row of each segment, in the order of offsets."""
        return zip(self._starts, self._rows, strict=True)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of offsets before the end that are in no segment."""
        end = 0
        for start, following in zip(self._starts, self._ends, strict=True):
            if start > end:
                yield end, start
            end = following

    def covers(self, offset: int) -> bool:
        """Return True if an offset is in a segment."""
        found = self.after(offset)
        return found is not None and found[0] <= offset


PACK_BYTES: Final = 1 << 18  # Guess: a repair reads one publication of many segments.
DIGEST_BYTES: Final = 32

_MAGIC: Final = b"SRP1"  # the last byte is the version
_SIZE: Final = Layout("<I")
_SPAN: Final = Layout("<II")  # begin, relative to the first record, and length
_RECORD_BYTES: Final = ID_BYTES + _SPAN.size  # overhead of a record
_IDS_AT_ONCE: Final = 64
_IDS: Final = Layout(f"{ID_BYTES}s" * _IDS_AT_ONCE)
_CHECK_BYTES: Final = 8
_DIGEST: Final = blake2b(digest_size=DIGEST_BYTES, person=b"skipring pack")
_CHECK: Final = blake2b(digest_size=_CHECK_BYTES, person=b"skipring head")

_Natural = Annotated[int, Meta(ge=0, lt=1 << 62)]  # Limit: sums stay below 2^63.


class Head(Struct, frozen=True, array_like=True, gc=False):
    """Head of a segment: topic, epoch and offsets."""

    topic: TopicId
    epoch: _Natural
    start: _Natural
    count: _Natural

    @property
    def end(self) -> int:
        """Return the offset after the last publication."""
        return self.start + self.count


_ENCODER: Final = Encoder()
_HEADS: Final = Decoder(Head)


@lru_cache(maxsize=256)
def _marks(firsts: range) -> bytes:
    """Return a translation table of bytes: 1 for the first bytes in the range, else 0."""
    return bytes(value in firsts for value in range(256))


class SegmentBuilder:
    """Segment under construction: publications that are in memory only."""

    __slots__ = ("_begins", "_data", "_ids", "_sizes", "start", "topic")

    def __init__(self, topic: TopicId, start: int) -> None:
        self.topic = topic
        self.start = start
        self._ids = bytearray()  # concatenated, as in the segment
        self._data = bytearray()  # records, concatenated
        self._begins: list[int] = []
        self._sizes: list[int] = []

    @property
    def end(self) -> int:
        """Return the offset after the last publication."""
        return self.start + len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """Return the approximate size of the segment."""
        return len(self._data) + _RECORD_BYTES * len(self._sizes)

    @property
    def is_full(self) -> bool:
        """Return True if the next publication belongs to another segment."""
        return self.size_bytes >= PACK_BYTES

    def append(self, key: bytes, data: bytes) -> None:
        """Append an encoded publication."""
        self.fill(key, data, [len(data)])

    def fill(self, ids: bytes | memoryview, data: bytes | memoryview, sizes: list[int]) -> int:
        """Append concatenated records and ids until the segment is full; return the number."""
        assert len(ids) == ID_BYTES * len(sizes), "an invalid id"
        held, count = len(self._sizes), len(sizes)
        begins = list(accumulate(sizes, initial=len(self._data)))
        if begins[-1] + _RECORD_BYTES * (held + count) > PACK_BYTES:
            count = 1 + bisect_left(
                range(1, count),
                PACK_BYTES,
                key=lambda place: begins[place] + _RECORD_BYTES * (held + place),
            )
        self._begins += begins[:count]
        self._sizes += sizes[:count]
        self._ids += ids[: ID_BYTES * count]
        self._data += data[: begins[count] - begins[0]]
        return count

    @property
    def ids(self) -> memoryview:
        """Return the concatenated ids."""
        return memoryview(bytes(self._ids))

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield ids and their offsets."""
        return ((self._id(offset), offset) for offset in range(self.start, self.end))

    def numbers(self) -> Iterator[tuple[NodeId, int]]:
        """Yield publisher and sequence number of each publication."""
        return (number_in(self.data(offset)) for offset in range(self.start, self.end))

    def data(self, offset: int) -> bytes:
        """Return the record at an offset."""
        place = offset - self.start
        begin = self._begins[place]
        return bytes(self._data[begin : begin + self._sizes[place]])

    def stored(
        self,
        start: int,
        end: int,
        firsts: range,
        *,
        count_max: int | None = None,
        is_checked: bool = True,
    ) -> EncodedRecords:
        """Return up to ``count_max`` records between two offsets, selected by first id byte."""
        del is_checked  # records in memory are intact
        offsets = range(max(start, self.start), min(end, self.end))
        chosen = [o for o in offsets if self._ids[ID_BYTES * (o - self.start)] in firsts]
        chosen = chosen[:count_max]
        return EncodedRecords(chosen, [self._id(o) for o in chosen], [self.data(o) for o in chosen])

    def publication(self, offset: int) -> Publication | None:
        """Return the publication at an offset."""
        return restored(self.data(offset), self._id(offset), self.topic)

    def _id(self, offset: int) -> bytes:
        place = ID_BYTES * (offset - self.start)
        return bytes(self._ids[place : place + ID_BYTES])

    def packed(self, epoch: int) -> bytearray:
        """Return the segment as bytes."""
        head = _framed(Head(self.topic, epoch, self.start, len(self._sizes)))
        spans = [0] * (2 * len(self._sizes))
        spans[::2], spans[1::2] = self._begins, self._sizes
        where = pack(f"<{len(spans)}I", *spans)
        content = bytearray().join((head, self._ids, where, self._data, head))
        content += _digest(content)
        return content


class Segment:
    """Segment read from the disk, possibly damaged."""

    __slots__ = ("_body", "_ids", "_is_whole", "head")

    def __init__(self, head: Head, head_bytes: int, body: bytes) -> None:
        self.head = head
        self._body = body
        self._ids = head_bytes  # position of the ids
        self._is_whole: bool | None = None

    @classmethod
    def parse(cls, body: bytes) -> Segment | None:
        """Return the segment, even if damaged; None unless one of its heads is intact."""
        found = _head_at(body, 0) or _head_at(body, body.rfind(_MAGIC))
        return cls(*found, body) if found is not None else None

    @property
    def start(self) -> int:
        """Return the first offset."""
        return self.head.start

    @property
    def end(self) -> int:
        """Return the offset after the last publication."""
        return self.head.end

    @property
    def size_bytes(self) -> int:
        """Return the size of the segment."""
        return len(self._body)

    @property
    def ids(self) -> memoryview:
        """Return the concatenated ids, unverified."""
        return memoryview(self._body)[self._ids : self._ids + ID_BYTES * self.head.count]

    @property
    def digest(self) -> bytes:
        """Return the digest at the end of the segment."""
        return self._body[-DIGEST_BYTES:]

    @property
    def is_whole(self) -> bool:
        """Return True if the digest matches the content."""
        if self._is_whole is None:
            content = memoryview(self._body)[:-DIGEST_BYTES]
            self._is_whole = _digest(content) == self.digest
        return self._is_whole

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield ids and offsets of the intact records."""
        offsets = range(self.start, self.end)
        if self.is_whole:
            return zip(_ids_from(self._body, self._ids, len(offsets)), offsets, strict=True)
        return ((self._id(o), o) for o in offsets if self.publication(o) is not None)

    def numbers(self) -> Iterator[tuple[NodeId, int]]:
        """Yield publisher and sequence number of each intact record."""
        return (number_in(self.data(offset)) for _, offset in self.entries())

    def publication(self, offset: int) -> Publication | None:
        """Return the publication at an offset; None if the record is damaged."""
        data, key = self.data(offset), self._id(offset)
        publication = restored(data, key, self.head.topic)
        if publication is not None and publication.payload is None and not self.is_whole:
            return None
        return publication

    def data(self, offset: int) -> bytes:
        """Return the record at an offset, unverified."""
        spans = self._ids + ID_BYTES * self.head.count
        place = spans + _SPAN.size * (offset - self.start)
        if place + _SPAN.size > len(self._body):
            return b""
        begin, size = _SPAN.unpack_from(self._body, place)
        first = spans + _SPAN.size * self.head.count
        return self._body[first + begin : first + begin + size]

    def stored(
        self,
        start: int,
        end: int,
        firsts: range,
        *,
        count_max: int | None = None,
        is_checked: bool = True,
    ) -> EncodedRecords:
        """Return up to ``count_max`` records between two offsets, selected by first id byte.

        With ``is_checked`` only intact records are returned; otherwise the caller verifies them.
        """
        first, count = max(start, self.start) - self.start, min(end, self.end) - self.start
        begin, stop = self._ids + ID_BYTES * first, self._ids + ID_BYTES * max(count, first)
        chosen = self._body[begin:stop:ID_BYTES].translate(_marks(firsts))
        offsets = list(compress(range(self.start + first, self.end), chosen))
        if self.is_whole if is_checked else self._has_room:
            return self._rows(first, chosen, offsets[:count_max])
        intact = [offset for offset in offsets if self.publication(offset) is not None][:count_max]
        return EncodedRecords(intact, [self._id(o) for o in intact], [self.data(o) for o in intact])

    def stretch(self, start: int, end: int, bytes_max: int) -> RecordRun | None:
        """Return the records between two offsets, up to ``bytes_max``; None if damaged."""
        if not self.is_whole:
            return None
        body, first = memoryview(self._body), start - self.start
        ids_at, spans_at = self._ids + ID_BYTES * first, self._ids + ID_BYTES * self.head.count
        data_at = spans_at + _SPAN.size * self.head.count

        def begin_of(place: int) -> int:
            return data_at + int(_SPAN.unpack_from(body, spans_at + _SPAN.size * place)[0])

        begin = begin_of(first)
        places = range(first + 1, end - self.start)
        length = 1 + bisect_left(places, begin + bytes_max, key=begin_of)
        is_last = first + length == self.head.count
        data_end = len(body) - DIGEST_BYTES - self._ids if is_last else begin_of(first + length)
        return RecordRun(length, body[ids_at : ids_at + ID_BYTES * length], body[begin:data_end])

    @property
    def _has_room(self) -> bool:
        """Return True if the segment is long enough for its ids and spans."""
        return len(self._body) >= self._ids + (ID_BYTES + _SPAN.size) * self.head.count

    def _rows(self, first: int, chosen: bytes, offsets: list[int]) -> EncodedRecords:
        """Return the records at some offsets; ``chosen`` has a byte, 1 or 0, per place."""
        if not offsets:
            return EncodedRecords([], [], [])
        body, ids, count = self._body, self._ids, self.head.count
        chosen = chosen[
            : offsets[-1] + 1 - self.start - first
        ]  # read no span after the last offset
        spans_at = ids + ID_BYTES * count
        spans_format = f"<{2 * len(chosen)}I"
        spans = iter(unpack_from(spans_format, body, spans_at + _SPAN.size * first))
        data = body[spans_at + _SPAN.size * count :]
        return EncodedRecords(
            offsets,
            list(compress(_ids_from(body, ids + ID_BYTES * first, len(chosen)), chosen)),
            [data[at : at + size] for at, size in compress(zip(spans, spans, strict=True), chosen)],
        )

    def _id(self, offset: int) -> bytes:
        place = self._ids + ID_BYTES * (offset - self.start)
        return self._body[place : place + ID_BYTES]


AnySegment: TypeAlias = (
    Segment | SegmentBuilder
)  # publications with consecutive offsets, wherever they are


def _ids_from(body: bytes, at: int, count: int) -> Iterator[bytes]:
    """Return ``count`` concatenated ids, split in blocks of 64 for speed."""
    blocks = count // _IDS_AT_ONCE * _IDS.size
    rest = range(at + blocks, at + ID_BYTES * count, ID_BYTES)
    return chain(
        chain.from_iterable(_IDS.iter_unpack(body[at : at + blocks])),
        (body[place : place + ID_BYTES] for place in rest),
    )


def _framed(head: Head) -> bytes:
    data = _ENCODER.encode(head)
    framed = _MAGIC + _SIZE.pack(len(data)) + data
    return framed + _check(framed)


def _head_at(body: bytes, place: int) -> tuple[Head, int] | None:
    """Return the head at a position and its length; None if it is damaged."""
    begin = place + len(_MAGIC) + _SIZE.size
    if body[place : place + len(_MAGIC)] != _MAGIC or len(body) < begin:
        return None
    end = begin + _SIZE.unpack_from(body, begin - _SIZE.size)[0]
    if _check(body[place:end]) != body[end : end + _CHECK_BYTES]:
        return None
    try:
        return _HEADS.decode(body[begin:end]), end + _CHECK_BYTES - place
    except (DecodeError, ValidationError, ValueError):
        return None


def _digest(content: bytes | bytearray | memoryview) -> bytes:
    state = _DIGEST.copy()
    state.update(content)
    return state.digest()


def _check(content: bytes) -> bytes:
    state = _CHECK.copy()
    state.update(content)
    return state.digest()
