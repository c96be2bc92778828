"""Batches: of one record, of several, with any body, and with ids alone."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import msgpack

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.peers import NodeId, TopicId


def batch(
    payload: bytes = b"news", *, publisher: NodeId = "a", first: int = 0, topic: TopicId = "t"
) -> RecordBatch:
    """Return a batch of one record."""
    return batch_of(payload, publisher=publisher, first=first, topic=topic)


def batch_of(
    *payloads: bytes, publisher: NodeId = "a", first: int = 0, topic: TopicId = "t"
) -> RecordBatch:
    """Return a batch with one record for each payload."""
    records = [BatchRecord(payload) for payload in payloads]
    return RecordBatch.of(records, publisher=publisher, first=first, topic=topic)


def with_rows(
    rows: object,
    *,
    count: int = 1,
    publisher: NodeId = "a",
    first: int = 0,
    topic: TopicId = "t",
) -> RecordBatch:
    """Return a batch with any value as its body, under the id of its fields."""
    return RecordBatch(publisher, first, count, msgpack.encode(rows)).with_id(topic)


def opaque_batch(key: bytes, *, publisher: NodeId = "a", first: int = 0) -> RecordBatch:
    """Return a batch of which only the id is known."""
    return RecordBatch(publisher, first, 1, b"", id=key)


def payloads_of(batches: Iterable[RecordBatch]) -> list[bytes]:
    """Return the payloads of all records, in order."""
    return [record.payload for batch in batches for record in batch.records()]
