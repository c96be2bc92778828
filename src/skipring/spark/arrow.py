"""Schemas, and the conversion of log pages to Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from skipring.core.log_messages import LogPage
from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES, Publication, decoded_page, ids_of
from skipring.errors import MessageError
from skipring.spark.offsets import Entry

# Kafka's columns first, as Spark users know them. The partition is the number of the prefix in a
# batch, and 0 in a stream. The offset is that of the member that was read.
PUBLICATION: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("publisher", pa.string()),
        ("sequence", pa.int64()),
        ("id", pa.binary()),
    ]
)
HEADERS: Final = pa.field("headers", pa.map_(pa.string(), pa.binary()))
PUBLICATION_WITH_HEADERS: Final = PUBLICATION.append(HEADERS)

# Arrival of a publication at a node, as the node recorded it.
DELIVERY: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("node", pa.string()),
        ("offset", pa.int64()),
        ("id", pa.binary()),
        ("arrived", pa.timestamp("us", tz="UTC")),
        ("hops", pa.int32()),
        ("origin", pa.string()),
    ]
)

_NAMES: Final = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
    HEADERS.type: "map<string,binary>",
}


def publication_schema(*, with_headers: bool) -> pa.Schema:
    """Return the columns of a read."""
    return PUBLICATION_WITH_HEADERS if with_headers else PUBLICATION


def spark_schema(schema: pa.Schema) -> str:
    """Return the columns in Spark's notation."""
    return ", ".join(f"`{field.name}` {_NAMES[field.type]}" for field in schema)


class ArrowRows:
    """Publications of a read, each with its offset and the id computed from its fields (T10)."""

    __slots__ = ("ids", "offsets", "publications", "topic")

    def __init__(
        self,
        topic: TopicId,
        offsets: Sequence[int],
        publications: list[Publication],
        ids: Sequence[bytes],
    ) -> None:
        self.topic = topic
        self.offsets = offsets
        self.publications = publications
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, topic: TopicId, page: LogPage) -> ArrowRows:
        """Return the rows of a page; raise MessageError if the page is malformed."""
        publications = decoded_page(page.publications)
        count = len(publications)
        if (len(page.offsets), len(page.ids)) != (count, ID_BYTES * count):
            raise MessageError(
                f"a page of {topic!r} has another number of offsets or ids than of publications"
            )
        ids = ids_of(publications, topic)
        rows = cls(topic, page.offsets, publications, ids)
        return rows if b"".join(ids) == page.ids else rows._believed(page.ids)

    def _believed(self, claimed: bytes) -> ArrowRows:
        """Return the rows whose computed id equals the claimed id; the others are corrupt."""
        places = range(len(self.ids))
        spans = (claimed[ID_BYTES * place : ID_BYTES * (place + 1)] for place in places)
        pairs = zip(places, self.ids, spans, strict=True)
        return self.where([place for place, key, said in pairs if key == said])

    def where(self, chosen: Sequence[int]) -> ArrowRows:
        """Return the rows at some indices."""
        return ArrowRows(
            self.topic,
            [self.offsets[place] for place in chosen],
            [self.publications[place] for place in chosen],
            [self.ids[place] for place in chosen],
        )

    def without(self, ids: set[bytes] | frozenset[bytes]) -> ArrowRows:
        """Return the rows without these ids."""
        if not ids or ids.isdisjoint(self.ids):
            return self
        return self.where([place for place, key in enumerate(self.ids) if key not in ids])

    def once(self) -> ArrowRows:
        """Return the rows without duplicates."""
        return self.where(sorted({key: place for place, key in enumerate(self.ids)}.values()))

    def since(self, time: int) -> ArrowRows:
        """Return the rows published at or after a time."""
        if not time:
            return self
        return self.where([i for i, each in enumerate(self.publications) if each.time >= time])

    def to_arrow(self, partition: int, *, with_headers: bool) -> pa.RecordBatch:
        """Return the rows as an Arrow record batch."""
        count, publications = len(self.ids), self.publications
        columns = {
            "key": [each.key for each in publications],
            "value": [each.payload for each in publications],
            "topic": pa.repeat(pa.scalar(self.topic), count),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
            "offset": self.offsets,
            # A time of 0 means unknown.
            "timestamp": [each.time or None for each in publications],
            "publisher": [each.publisher for each in publications],
            "sequence": [each.seq for each in publications],
            "id": self.ids,
        }
        arrays = [_array(columns[field.name], field.type) for field in PUBLICATION]
        if with_headers:
            headers = [
                [(name, text.encode()) for name, text in each.headers.items()]
                for each in publications
            ]
            arrays.append(pa.array(headers, publication_schema(with_headers=True)[-1].type))
        return pa.record_batch(arrays, schema=publication_schema(with_headers=with_headers))


def _array(values: pa.Array | Sequence[object], kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def entries(page: LogPage) -> list[Entry]:
    """Return the offsets and ids of a page that has no contents."""
    ids = [page.ids[at : at + ID_BYTES] for at in range(0, len(page.ids), ID_BYTES)]
    if len(page.ids) % ID_BYTES or len(ids) != len(page.offsets):
        raise MessageError("a page has another number of offsets than of ids")
    return list(zip(page.offsets, ids, strict=True))
