"""Record batches: consecutive records of one publisher with one id.

A batch is the paper's publication (section 4.2): ids, trie, announcements, repair and storage work
on batches, and a member has all records of a batch or none (decision 53). Messages and world files
keep the paper's word for it.

A batch without a body is *opaque*: only its id is known. World files without payloads contain such
batches, and members list the batches of their log in this form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct as Layout
from typing import Annotated, Final, Self

from msgspec import DecodeError, Meta, Raw, Struct, msgpack
from msgspec.structs import replace

from skipring.core.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NUMBER_MAX,
    PAYLOAD_BYTES_MAX,
    check_text,
    match_node,
)
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import (
    ID_BYTES,
    Publication,
    PublicationId,
)
from skipring.errors import MessageError

RECORDS_MAX: Final = 256  # Guess; the index in a record id would allow 65,536.
BATCH_BYTES_MAX: Final = 512 * 1024  # Guess: the body of a batch of two or more records.
# Limit of a body. The largest accepted record is shorter: 512 KiB of payload, key and headers
# (``limits``), a number and the sizes of 132 fields.
BODY_BYTES_MAX: Final = 528 * 1024
OVERHEAD_BYTES: Final = 64  # Guess: size of a batch in a message besides its body.
BATCH_PART: Final = ID_BYTES - 2  # bytes of a batch id in the ids of its records
_ARRAY_BYTES: Final = 3  # before the records in a body
_FIXARRAY_MAX: Final = 15  # elements of a msgpack array whose header has one byte

_NUMBERS: Final = Layout(">QH?")  # first number, count, flag

_ID: Final = blake2b(digest_size=ID_BYTES, person=b"skipring batch")

RESERVED: Final = b"\x00"  # first byte of the keys that skipring uses itself

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


class BatchRecord(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Record of a batch: what the application publishes."""

    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
    time: Number = 0  # microseconds since the epoch at the publisher; 0 if unknown
    key: Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)] | None = None
    headers: Annotated[dict[str, str], Meta(max_length=HEADERS_MAX)] = {}


def is_reserved(records: Sequence[BatchRecord]) -> bool:
    """Return True if a batch is a reserved row: a single record with a reserved key.

    Reserved rows are never below a floor and do not count towards limits.

    >>> is_reserved([BatchRecord(b"", key=b"k")])
    False
    """
    if len(records) != 1:
        return False
    key = records[0].key
    return key is not None and key.startswith(RESERVED)  # this is the hot path


def check_record(record: BatchRecord) -> None:
    """Check a record of the application: raise MessageError if a field exceeds its limit."""
    size, key = len(record.payload), record.key
    if size > PAYLOAD_BYTES_MAX:
        raise MessageError(f"a payload of {size} bytes exceeds the limit of {PAYLOAD_BYTES_MAX}")
    if key is not None and len(key) > KEY_BYTES_MAX:
        raise MessageError(f"a key of {len(key)} bytes exceeds the limit of {KEY_BYTES_MAX}")
    if not 0 <= record.time <= NUMBER_MAX:
        raise MessageError("a time outside 0 to 2^63-1")
    if len(record.headers) > HEADERS_MAX:
        raise MessageError(f"{len(record.headers)} headers exceed the limit of {HEADERS_MAX}")
    size = 0
    for item in record.headers.items():
        for text in item:
            check_text(text)
            size += len(text.encode())
    if size > HEADERS_BYTES_MAX:
        raise MessageError(f"headers of {size} bytes exceed the limit of {HEADERS_BYTES_MAX}")


_ENCODER: Final = msgpack.Encoder()
_RECORDS: Final[msgpack.Decoder[tuple[BatchRecord, ...]]] = msgpack.Decoder(
    Annotated[tuple[BatchRecord, ...], Meta(min_length=1, max_length=RECORDS_MAX)]
)


class RecordBatch(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Consecutive records of one publisher and incarnation in one topic.

    The ``id`` is the hash of the topic and all other fields. It covers the encoded body, so no
    canonical encoding is needed.
    """

    publisher: NodeId
    first: Number  # sequence number of the first record
    count: Annotated[int, Meta(ge=1, le=RECORDS_MAX)]
    body: Annotated[bytes, Meta(max_length=BODY_BYTES_MAX)]  # msgpack array of records
    unordered: bool = False  # published by a sink: numbers identify but do not order
    id: PublicationId = b""

    @classmethod
    def of(
        cls,
        records: Sequence[BatchRecord],
        *,
        publisher: NodeId,
        first: int,
        topic: TopicId,
        unordered: bool = False,
    ) -> Self:
        """Encode records as one batch and compute its id."""
        body = _ENCODER.encode(records)
        return cls(publisher, first, len(records), body, unordered).with_id(topic)

    @classmethod
    def split(
        cls, records: Iterable[BatchRecord], *, publisher: NodeId, first: int, topic: TopicId
    ) -> Iterator[Self]:
        """Split records into as few batches as the limits of number and size allow, in order.

        The result depends on the records only, not on the calls that published them.
        """
        for rows in _parts(map(_ENCODER.encode, records)):
            body = _array_header(len(rows)) + b"".join(rows)
            yield cls(publisher, first, len(rows), body).with_id(topic)
            first += len(rows)

    def with_id(self, topic: TopicId) -> Self:
        """Return the batch with the id of its fields; an opaque batch keeps its id."""
        if not self.body and len(self.id) == ID_BYTES:
            return self
        return replace(self, id=self.id_in(topic))

    def id_in(self, topic: TopicId) -> bytes:
        """Return the id in a topic: 256 bits over all fields (section 4.2)."""
        state = _hash_state(topic, self.publisher).copy()
        state.update(_NUMBERS.pack(self.first, self.count, self.unordered))
        state.update(self.body)
        return state.digest()

    def is_genuine(self, topic: TopicId) -> bool:
        """Return True if the numbers are in range and the id is the hash of the fields.

        Of an opaque batch, only the length of the id is checked.
        """
        if not self._has_possible_numbers:
            return False
        return self.id == self.id_in(topic) if self.body else len(self.id) == ID_BYTES

    @property
    def is_acceptable(self) -> bool:
        """Return True if readers accept these fields in a message; the id is not verified."""
        is_short = len(self.body) <= BODY_BYTES_MAX and len(self.id) == ID_BYTES
        is_named = match_node(self.publisher) is not None
        return self._has_possible_numbers and is_short and is_named

    @property
    def _has_possible_numbers(self) -> bool:
        """Return True if the count and the numbers of all records are in range."""
        count, first = self.count, self.first
        return 0 < count <= RECORDS_MAX and first >= 0 and first + count <= NUMBER_MAX + 1

    @property
    def end(self) -> int:
        """Return the sequence number after the last record."""
        return self.first + self.count

    @property
    def size_bytes(self) -> int:
        """Return the approximate size in a message."""
        return OVERHEAD_BYTES + len(self.body)

    def verified_records(self, topic: TopicId) -> tuple[BatchRecord, ...] | None:
        """Decode the records; return None if the batch is not genuine or its body is unreadable.

        This is the hot path: ``is_genuine`` and ``records`` in one call.
        """
        count, first, body = self.count, self.first, self.body
        if not (0 < count <= RECORDS_MAX and 0 <= first <= NUMBER_MAX + 1 - count):
            return None
        if not body:
            return () if len(self.id) == ID_BYTES else None
        state = _hash_state(topic, self.publisher).copy()
        state.update(_NUMBERS.pack(first, count, self.unordered))
        state.update(body)
        if state.digest() != self.id:
            return None
        try:
            records = _RECORDS.decode(body)
        except (DecodeError, ValueError):  # ValueError: not UTF-8
            return None
        return records if len(records) == count else None

    def records(self) -> tuple[BatchRecord, ...]:
        """Decode the records; none if the batch is opaque.

        Raise ValueError if the body is invalid or has another number of records.
        """
        if not self.body:
            return ()
        try:
            records = _RECORDS.decode(self.body)
        except DecodeError as error:
            raise ValueError(f"body of a batch: {error}") from error
        if len(records) != self.count:
            raise ValueError(f"{len(records)} records in a batch of {self.count}")
        return records

    def readable_records(self) -> tuple[BatchRecord, ...]:
        """Decode the records; none if they cannot be read: the scrub quarantines such a batch."""
        try:
            return self.records()
        except ValueError:
            return ()

    def publications(self) -> list[Publication]:
        """Decode the records, each with its publisher, number and id (``records``)."""
        return [
            Publication(
                publisher=self.publisher,
                seq=self.first + index,
                payload=each.payload,
                time=each.time,
                key=each.key,
                headers=each.headers,
                id=self.record_id(index),
            )
            for index, each in enumerate(self.records())
        ]

    def record_id(self, index: int) -> bytes:
        """Return the id of a record: 30 bytes of the batch id, then the index."""
        return self.id[:BATCH_PART] + index.to_bytes(2, "big")

    def record_ids(self) -> list[bytes]:
        """Return the ids of all records."""
        part = self.id[:BATCH_PART]
        return [part + index.to_bytes(2, "big") for index in range(self.count)]


class _Fields(Struct, array_like=True, gc=False):
    """Record of a batch whose other fields are decoded only as far as a filter needs them."""

    payload: Raw
    time: int = 0
    key: bytes | None = None
    headers: Raw = Raw(b"\x80")


_FIELDS: Final = msgpack.Decoder(list[_Fields])
_NO_PAYLOAD: Final = Raw(b"\xc4\x00")


def matching(
    batch: RecordBatch, includes: Callable[[int, bytes | None], bool] | None, *, payloads: bool
) -> RecordBatch | None:
    """Return a batch if one of its records is wanted, with empty payloads on request.

    ``includes`` gets the time and the key of a record. A batch that cannot be decoded has none.
    """
    try:
        records = _FIELDS.decode(batch.body)
    except DecodeError:
        return None
    if includes is not None and not any(includes(each.time, each.key) for each in records):
        return None
    if payloads:
        return batch
    for each in records:
        each.payload = _NO_PAYLOAD
    return replace(batch, body=_ENCODER.encode(records))


def batch_part(record_id: bytes) -> bytes:
    """Return the first bytes of the id of the batch that contains a record."""
    return record_id[:BATCH_PART]


def in_chunks(batches: Iterable[RecordBatch], size: int) -> Iterator[tuple[RecordBatch, ...]]:
    """Yield batches in groups of at most ``size`` bytes; a larger one is alone (T14)."""
    chunk: list[RecordBatch] = []
    chunk_bytes = 0
    for batch in batches:
        if chunk and chunk_bytes + batch.size_bytes > size:
            yield tuple(chunk)
            chunk, chunk_bytes = [], 0
        chunk.append(batch)
        chunk_bytes += batch.size_bytes
    if chunk:
        yield tuple(chunk)


def _parts(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split encoded records at the limits of a batch; a larger record is alone in its part."""
    part: list[bytes] = []
    size = _ARRAY_BYTES
    for row in rows:
        if part and (len(part) == RECORDS_MAX or size + len(row) > BATCH_BYTES_MAX):
            yield part
            part, size = [], _ARRAY_BYTES
        part.append(row)
        size += len(row)
    if part:
        yield part


def _array_header(count: int) -> bytes:
    """Return the msgpack header of an array."""
    return bytes([0x90 | count]) if count <= _FIXARRAY_MAX else b"\xdc" + count.to_bytes(2, "big")


@lru_cache(maxsize=1024)  # most batches of a topic come from few publishers
def _hash_state(topic: TopicId, publisher: NodeId) -> blake2b:
    """Return the hash state after topic and publisher; callers copy it."""
    state = _ID.copy()
    for text in (topic, publisher):
        data = text.encode()
        state.update(len(data).to_bytes(4, "big") + data)
    return state


def in_sequence(batches: Iterable[RecordBatch]) -> list[RecordBatch]:
    """Return batches with those of each publisher by their numbers, in the places they had.

    >>> made = [RecordBatch(name, first, 1, b"") for name, first in (("a", 2), ("b", 5), ("a", 1))]
    >>> [(each.publisher, each.first) for each in in_sequence(made)]
    [('a', 1), ('b', 5), ('a', 2)]
    """
    given = list(batches)
    by_publisher: dict[NodeId, list[RecordBatch]] = {}
    for each in given:
        by_publisher.setdefault(each.publisher, []).append(each)
    rising = {
        name: iter(sorted(found, key=lambda batch: batch.first))
        for name, found in by_publisher.items()
    }
    return [next(rising[each.publisher]) for each in given]
