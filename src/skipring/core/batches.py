"""Record batches: consecutive records of one publisher with one id.

A batch can be the paper's publication (section 4.2): ids, trie, announcements, repair and storage
then work on batches, and a member has all records of a batch or none. No node uses it yet
(decision 53).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Final, Self

from msgspec import DecodeError, Meta, Struct, msgpack
from msgspec.structs import force_setattr

from skipring.core.limits import HEADERS_MAX, KEY_BYTES_MAX, NUMBER_MAX, PAYLOAD_BYTES_MAX
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES, RECORD_BYTES_MAX

RECORDS_MAX: Final = 256  # Guess; the index in a record id would allow 65,536.
BATCH_BYTES_MAX: Final = 512 * 1024  # Guess: the body of a batch of two or more records.
_BATCH_PART: Final = ID_BYTES - 2  # bytes of a batch id in the ids of its records
_ARRAY_BYTES: Final = 3  # before the records in a body
_FIXARRAY_MAX: Final = 15  # elements of a msgpack array whose header has one byte

_ID: Final = blake2b(digest_size=ID_BYTES, person=b"skipring batch")

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


class BatchRecord(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Record of a batch: what the application publishes."""

    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
    time: Number = 0  # microseconds since the epoch at the publisher; 0 if unknown
    key: Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)] | None = None
    headers: Annotated[dict[str, str], Meta(max_length=HEADERS_MAX)] = {}


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
    body: Annotated[bytes, Meta(max_length=RECORD_BYTES_MAX)]  # msgpack array of records
    unordered: bool = False  # published by a sink: numbers identify but do not order
    id: bytes = b""

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
        return cls._with_id(cls(publisher, first, len(records), body, unordered), topic)

    @classmethod
    def split(
        cls, records: Iterable[BatchRecord], *, publisher: NodeId, first: int, topic: TopicId
    ) -> Iterator[Self]:
        """Split records into as few batches as the limits of number and size allow, in order.

        The result depends on the records only, not on the calls that published them.
        """
        for rows in _parts(map(_ENCODER.encode, records)):
            body = _array_header(len(rows)) + b"".join(rows)
            yield cls._with_id(cls(publisher, first, len(rows), body), topic)
            first += len(rows)

    @classmethod
    def _with_id(cls, batch: Self, topic: TopicId) -> Self:
        assert 0 < batch.count <= RECORDS_MAX, f"{batch.count} records in a batch"
        assert len(batch.body) <= RECORD_BYTES_MAX, f"{len(batch.body)} bytes in a batch"
        force_setattr(batch, "id", batch.id_in(topic))
        return batch

    def id_in(self, topic: TopicId) -> bytes:
        """Return the id in a topic: 256 bits over all fields."""
        state = _hash_state(topic, self.publisher).copy()
        numbers = self.first.to_bytes(8, "big") + self.count.to_bytes(2, "big")
        state.update(numbers + (b"\1" if self.unordered else b"\0"))
        state.update(self.body)
        return state.digest()

    def is_genuine(self, topic: TopicId) -> bool:
        """Return True if the id is the hash of the fields."""
        return self.id == self.id_in(topic)

    @property
    def end(self) -> int:
        """Return the sequence number after the last record."""
        return self.first + self.count

    def records(self) -> tuple[BatchRecord, ...]:
        """Decode the records; raise ValueError if the body is invalid or their number differs."""
        try:
            records = _RECORDS.decode(self.body)
        except DecodeError as error:
            raise ValueError(f"body of a batch: {error}") from error
        if len(records) != self.count:
            raise ValueError(f"{len(records)} records in a batch of {self.count}")
        return records

    def record_id(self, index: int) -> bytes:
        """Return the id of a record: 30 bytes of the batch id, then the index."""
        return self.id[:_BATCH_PART] + index.to_bytes(2, "big")


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
