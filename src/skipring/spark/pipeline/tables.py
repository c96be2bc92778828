"""The tables of a lake: their columns, as Spark writes them, and where they lie.

Every table is a directory of Parquet files that any reader can read at any time: what is below it
is whole, and nothing of it is there twice. All but gold are divided by the micro-batch that wrote
them, gold by the day, which is replaced and is missing for a moment then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from skipring.spark.schemas import DELIVERY, publication_schema, spark_schema


class Name(StrEnum):
    """The tables, in the order in which a micro-batch writes them."""

    BRONZE = "bronze"  # publications as they are
    DELIVERIES = "deliveries"  # how they came to the nodes, as the nodes told
    SILVER = "silver"  # publications decoded, each once
    REJECTED = "rejected"  # those that could not be decoded, and why
    GOLD = "gold"  # figures per window, topic and publisher


BATCH: Final = "batch"
# Limit of ours, the year 2262: what pandas can hold. A publication may carry any time at all; of a
# later one than this nothing but the time itself is kept, as of one that is not known.
TIME_END_US: Final = 9_214_646_400_000_000
DATE: Final = "date"

PUBLICATION: Final = spark_schema(publication_schema(with_headers=True))
TRACE: Final = spark_schema(DELIVERY)
DECODED: Final = (
    "id binary, topic string, publisher string, sequence bigint, timestamp timestamp, "
    "key binary, key_text string, kind string, value_text string, value binary, "
    "value_bytes bigint, headers map<string,string>"
)
FIGURES: Final = (
    "topic string, publisher string, window_start timestamp, window_end timestamp, "
    "publications bigint, rejected bigint, value_bytes bigint, "
    "publications_per_s double, bytes_per_s double, "
    "deliveries bigint, nodes bigint, "
    "latency_p50_ms double, latency_p95_ms double, latency_p99_ms double, latency_max_ms double, "
    "hops_mean double, hops_max int, spread_share double, repair_share double"
)
# The date of a publication's time, or of an arrival; for gold, of the start of the window.
SCHEMAS: Final = {
    Name.BRONZE: f"{PUBLICATION}, batch bigint, date date",
    Name.DELIVERIES: f"{TRACE}, batch bigint, date date",
    Name.SILVER: f"{DECODED}, batch bigint, date date",
    Name.REJECTED: f"{PUBLICATION}, reason string, batch bigint, date date",
    Name.GOLD: f"{FIGURES}, date date",
}


def day_of(time: str) -> Column:
    """The date of a time."""
    return F.when(F.unix_micros(time) < TIME_END_US, F.to_date(time))


def make_tables(lake: Path) -> None:
    """Make the directories of the tables, so that tables without rows can be read."""
    for name in Name:
        (lake / name).mkdir(parents=True, exist_ok=True)


def table(spark: SparkSession, lake: Path, name: Name) -> DataFrame:
    """A whole table."""
    return spark.read.schema(SCHEMAS[name]).parquet(str(lake / name))


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Keep rows as long as they are needed more than once."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def batch_folder(lake: Path, name: Name, batch: int) -> Path:
    """Where a micro-batch writes to a table."""
    return lake / name / f"{BATCH}={batch}"
