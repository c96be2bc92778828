"""The columns of publications and deliveries, for Arrow and for Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

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
