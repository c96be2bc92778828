"""Reads of a topic as a table: the newest value of each key, proven like any other read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from skipring.api.key_value_table import DELETED, UNTIL
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.errors import InputError
from skipring.spark import register
from skipring.spark.arrow import PUBLICATION, RowForm
from skipring.spark.batch import TableReader
from skipring.spark.options import ReadOptions
from tests.spark.reading import rows_of
from tests.spark.rings import TOPIC, Ring, fill, running_ring

PUT, OVER = {}, {UNTIL: "1"}
HELD = {UNTIL: str(1 << 62)}
GONE = {DELETED: "1"}


def batch(publisher: str, first: int, *records: BatchRecord) -> RecordBatch:
    return RecordBatch.of(list(records), publisher=publisher, first=first, topic=TOPIC)


BATCHES = [
    batch("a", 0, *(BatchRecord(b"old%d" % n, 10 + n, b"k%d" % n, PUT) for n in range(50))),
    batch("a", 50, BatchRecord(b"no key", 60), BatchRecord(b"charter", 61, b"\x00charter")),
    batch("b", 0, BatchRecord(b"new", 100, b"k1", PUT), BatchRecord(b"", 101, b"k2", GONE)),
    batch("c", 0, BatchRecord(b"older", 5, b"k3", PUT), BatchRecord(b"held", 102, b"k4", HELD)),
    batch("c", 2, BatchRecord(b"over", 103, b"k5", OVER)),
    batch("d", 0, BatchRecord(b"same time", 100, b"k1", PUT)),  # d is after b
]
EXPECTED = {b"k%d" % n: b"old%d" % n for n in range(50)} | {b"k1": b"same time", b"k4": b"held"}
del EXPECTED[b"k2"], EXPECTED[b"k5"]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    data_dir = tmp_path_factory.mktemp("ring")
    fill(data_dir, ["n00", "n01"], BATCHES)
    with running_ring(2, data_dir) as ring:
        yield ring


def reader(ring: Ring, *columns: str) -> TableReader:
    given = {"supervisor": ring.supervisor, "subscribe": TOPIC, "asTable": "true"}
    schema = PUBLICATION
    for name in set(PUBLICATION.names) - set(columns or PUBLICATION.names):
        schema = schema.remove(schema.get_field_index(name))
    return TableReader(ReadOptions.parse(given, is_stream=False), RowForm(schema=schema))


def test_row_is_the_newest_value_of_each_key_without_deletions_and_ended_leases(
    ring: Ring,
) -> None:
    found = reader(ring)
    rows = rows_of(found, found.partitions())
    assert {row["key"]: row["value"] for row in rows} == EXPECTED
    assert len(rows) == len(EXPECTED)
    (row,) = [row for row in rows if row["key"] == b"k1"]
    assert (row["publisher"], row["sequence"], row["topic"]) == ("d", 0, TOPIC)
    assert row["id"] == BATCHES[-1].record_id(0)


def test_columns_that_decide_need_not_be_selected(ring: Ring) -> None:
    found = reader(ring, "value")
    rows = rows_of(found, found.partitions())
    assert sorted(row["value"] for row in rows) == sorted(EXPECTED.values())
    assert all(row.keys() == {"value"} for row in rows)


def test_spark_reads_a_table(ring: Ring, spark: SparkSession) -> None:
    register(spark)
    frame = (
        spark.read.format("skipring")
        .option("supervisor", ring.supervisor)
        .option("subscribe", TOPIC)
        .option("asTable", "true")
        .load()
    )
    found = {
        bytes(row["key"]): bytes(row["value"]) for row in frame.select("key", "value").collect()
    }
    assert found == EXPECTED


@pytest.mark.parametrize(
    ("name", "value"),
    [("startingOffsets", "earliest"), ("minPartitions", "2"), ("pushFilters", "true")],
)
def test_option_that_reads_a_part_of_the_topic_is_refused(name: str, value: str) -> None:
    given = {"subscribe": TOPIC, "asTable": "true", name: value}
    with pytest.raises(InputError, match=f'"asTable" reads whole topics; leave out "{name}"'):
        ReadOptions.parse(given, is_stream=False)


def test_stream_of_a_table_is_refused() -> None:
    with pytest.raises(InputError, match='"asTable" is for batch reads'):
        ReadOptions.parse({"subscribe": TOPIC, "asTable": "true"}, is_stream=True)
