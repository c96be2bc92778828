"""Rows for a lake without a ring: publications and deliveries as the streams return them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from skipring.spark.pipeline.lake import PUBLICATION, TRACE, Name
from skipring.spark.pipeline.microbatch import together
from tests.spark.rings import TOPIC

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

Row = tuple[Any, ...]


def id_of(number: int) -> bytes:
    return blake2b(number.to_bytes(4, "big"), digest_size=32).digest()


def publication(
    number: int, value: bytes | None, *, publisher: str = "ann", at_s: float | None = 0.0
) -> Row:
    """Return a row of the stream of publications; its time is in seconds after noon."""
    time = None if at_s is None else round(1_000_000 * (NOON.timestamp() + at_s))
    headers = {"source": b"test"}
    key = f"k{number}".encode()
    return (key, value, TOPIC, 0, number, time, publisher, number, id_of(number), headers)


def delivery(number: int, node: str, *, at_s: float, hops: int = 1, origin: str = "spread") -> Row:
    """Return a row of the stream of deliveries."""
    return (TOPIC, node, number, id_of(number), NOON + timedelta(seconds=at_s), hops, origin)


def rows(
    spark: SparkSession, publications: Sequence[Row], deliveries: Sequence[Row] = ()
) -> DataFrame:
    """Return a micro-batch."""
    in_microseconds = PUBLICATION.replace("`timestamp` timestamp", "`timestamp` bigint")
    given = spark.createDataFrame(list(publications), in_microseconds)
    return together(
        given.withColumn("timestamp", F.timestamp_micros("timestamp")),
        spark.createDataFrame(list(deliveries), TRACE),
    )


def read(lake: Path, name: Name) -> list[dict[str, Any]]:
    """Return a table as a reader of Parquet without Spark sees it."""
    found = []
    for path in sorted((lake / name).rglob("*.parquet")):
        found += pq.read_table(path, partitioning=None).to_pylist()
    return found


def ids(lake: Path, name: Name) -> list[bytes]:
    return sorted(row["id"] for row in read(lake, name))


def gold(lake: Path) -> dict[tuple[str, datetime | None], dict[str, Any]]:
    """Return the rows of gold by publisher and start of the window."""
    found = read(lake, Name.GOLD)
    keyed = {(row["publisher"], row["window_start"]): row for row in found}
    assert len(keyed) == len(found)
    return keyed
