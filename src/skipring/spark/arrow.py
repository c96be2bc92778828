"""Schemas, and the conversion of log pages to Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES, Publication, ids_of
from skipring.errors import MessageError
from skipring.spark.offsets import Entry
from skipring.storage.record import decoded_page
from skipring.wire.rpc import LogPage

# Kafka's columns first, so that a Spark user is at home. Batch: the partition is the number of the
# prefix; stream: 0. The offset is the one of the member that was read.
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

# How a publication came to a node, as the node has noted it.
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
    """The columns of a read."""
    return PUBLICATION_WITH_HEADERS if with_headers else PUBLICATION


def spark_schema(schema: pa.Schema) -> str:
    """The same columns as Spark writes them."""
    return ", ".join(f"`{field.name}` {_NAMES[field.type]}" for field in schema)


class ArrowRows:
    """Publications that were read, each with its offset and the id that its fields give (T10)."""

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
        """What is in a page; MessageError if it is not what a member should send."""
        publications = decoded_page(page.publications)
        count = len(publications)
        if (len(page.offsets), len(page.ids)) != (count, ID_BYTES * count):
            raise MessageError(f"a page of {topic!r} has other offsets or ids than publications")
        ids = ids_of(publications, topic)
        rows = cls(topic, page.offsets, publications, ids)
        return rows if b"".join(ids) == page.ids else rows._believed(page.ids)

    def _believed(self, claimed: bytes) -> ArrowRows:
        """Those whose fields give the id that was claimed: the others are spoilt."""
        places = range(len(self.ids))
        spans = (claimed[ID_BYTES * place : ID_BYTES * (place + 1)] for place in places)
        pairs = zip(places, self.ids, spans, strict=True)
        return self.where([place for place, key, said in pairs if key == said])

    def where(self, chosen: Sequence[int]) -> ArrowRows:
        """Some of them, by their places."""
        return ArrowRows(
            self.topic,
            [self.offsets[place] for place in chosen],
            [self.publications[place] for place in chosen],
            [self.ids[place] for place in chosen],
        )

    def without(self, ids: set[bytes] | frozenset[bytes]) -> ArrowRows:
        """Those that have none of these ids."""
        if not ids or ids.isdisjoint(self.ids):
            return self
        return self.where([place for place, key in enumerate(self.ids) if key not in ids])

    def once(self) -> ArrowRows:
        """Each of them once, should some come twice."""
        return self.where(sorted({key: place for place, key in enumerate(self.ids)}.values()))

    def since(self, time: int) -> ArrowRows:
        """Those that were not published earlier."""
        if not time:
            return self
        return self.where([i for i, each in enumerate(self.publications) if each.time >= time])

    def to_arrow(self, partition: int, *, with_headers: bool) -> pa.RecordBatch:
        """As Spark takes them."""
        count, publications = len(self.ids), self.publications
        columns = {
            "key": [each.key for each in publications],
            "value": [each.payload for each in publications],
            "topic": pa.repeat(pa.scalar(self.topic), count),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
            "offset": self.offsets,
            # What has no time was published at an unknown one.
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
    """Offsets and ids in a page without contents."""
    ids = [page.ids[at : at + ID_BYTES] for at in range(0, len(page.ids), ID_BYTES)]
    if len(page.ids) % ID_BYTES or len(ids) != len(page.offsets):
        raise MessageError("a page has other offsets than ids")
    return list(zip(page.offsets, ids, strict=True))
