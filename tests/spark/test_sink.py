"""Writes: each row becomes one publication, even if its task runs several times."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from skipring.core.publications import SEQ_BELIEVED_MAX, Publication
from skipring.errors import InputError, UnreachableError
from skipring.spark import register
from skipring.spark.options import WriteOptions
from skipring.spark.sink import BatchWriter, Written, check_columns, publish_rows
from skipring.spark.source import SkipringDataSource
from tests.spark.rings import TOPIC, Ring, running_ring

NUMBERS = MapType(StringType(), IntegerType())
AT = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    with running_ring(2, tmp_path_factory.mktemp("ring")) as ring:
        yield ring


def options(ring: Ring, **given: str) -> WriteOptions:
    return WriteOptions.parse({"supervisor": ring.supervisor, "topic": TOPIC, **given})


def table(count: int, first: int = 0, **columns: Any) -> pa.RecordBatch:  # noqa: ANN401
    values = [b"%d" % number for number in range(first, first + count)]
    return pa.RecordBatch.from_pydict({"value": values, **columns})


def publications(ring: Ring, publisher: str) -> list[Publication]:
    """Return the publications of a publisher, once both nodes have them."""
    ring.wait_in_sync()
    return [each for each in ring.publications("n01") if each.publisher == publisher]


# -- rows --------------------------------------------------------------------------------------


def test_every_row_is_published_with_its_key_time_and_headers(ring: Ring) -> None:
    rows = table(
        2,
        key=[b"k", None],
        timestamp=pa.array([AT, None], pa.timestamp("us", tz="UTC")),
        headers=pa.array([[("source", b"web")], None], pa.map_(pa.string(), pa.binary())),
    )
    written = publish_rows(options(ring, publisher="fields"), "w", "", iter([rows]))
    assert written.publications == 2
    first, second = sorted(publications(ring, "fields"), key=lambda each: each.payload or b"")
    assert (first.payload, first.key, first.headers) == (b"0", b"k", {"source": "web"})
    assert first.time == AT.timestamp() * 1e6
    assert (second.payload, second.key, second.time, second.headers) == (b"1", None, 0, {})


def test_texts_are_published_in_utf_8(ring: Ring) -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["grün"], "key": ["ß"]})
    publish_rows(options(ring, publisher="texts"), "w", "", iter([rows]))
    (published,) = publications(ring, "texts")
    assert (published.payload, published.key) == ("grün".encode(), "ß".encode())


def test_task_that_runs_again_publishes_nothing_twice(ring: Ring) -> None:
    writing = options(ring, publisher="again")
    publish_rows(writing, "w", "7", iter([table(700)]))
    publish_rows(writing, "w", "7", iter([table(300), table(400, 300), table(10, 700)]))
    assert len(publications(ring, "again")) == 710


def test_equal_rows_are_not_the_same_publication(ring: Ring) -> None:
    writing = options(ring, publisher="equal")
    rows = pa.RecordBatch.from_pydict({"value": [b"same", b"same"]})
    for write, batch in (("w", "1"), ("w", "2"), ("v", "1")):
        publish_rows(writing, write, batch, iter([rows]))
    assert len(publications(ring, "equal")) == 6


def test_sequences_exceed_those_of_publishers(ring: Ring) -> None:
    publish_rows(options(ring, publisher="numbers"), "w", "", iter([table(20)]))
    numbers = [publication.seq for publication in publications(ring, "numbers")]
    assert all(SEQ_BELIEVED_MAX <= number < 2 * SEQ_BELIEVED_MAX for number in numbers)
    assert len(set(numbers)) == 20


def test_rows_may_name_their_topics(ring: Ring) -> None:
    rows = table(3, topic=[TOPIC, TOPIC, "elsewhere"])
    writing = WriteOptions.parse({"supervisor": ring.supervisor, "publisher": "topics"})
    with pytest.raises(UnreachableError, match="'elsewhere' has no members"):
        publish_rows(writing, "w", "", iter([rows]))
    assert len(publications(ring, "topics")) == 2


EARLY = pa.array([datetime(1969, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
NOT_TEXT = pa.array([[("name", b"\xff")]], pa.map_(pa.string(), pa.binary()))


@pytest.mark.parametrize(
    ("sentence", "rows"),
    [
        ("a row without a value", {"value": [None]}),
        ("a payload of 524289 bytes", {"value": [bytes(512 * 1024 + 1)]}),
        ("a key of 1025 bytes", {"value": [b""], "key": [bytes(1025)]}),
        ("a topic has 1 to 255 bytes", {"value": [b""], "topic": pa.array([None], pa.string())}),
        ("before 1970", {"value": [b""], "timestamp": EARLY}),
        ("is not UTF-8 text", {"value": [b""], "headers": NOT_TEXT}),
    ],
)
def test_row_that_cannot_be_published_is_refused(
    ring: Ring, sentence: str, rows: dict[str, Any]
) -> None:
    topic = {} if "topic" in rows else {"topic": TOPIC}
    writing = WriteOptions.parse({"supervisor": ring.supervisor, **topic})
    with pytest.raises(InputError) as caught:
        publish_rows(writing, "w", "", iter([pa.RecordBatch.from_pydict(rows)]))
    assert sentence in str(caught.value)


def struct(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


# -- columns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "columns", "topic"),
    [
        ("the rows have no column value (id)", {"id": LongType()}, TOPIC),
        ("column value is bigint, not binary or string", {"value": LongType()}, TOPIC),
        ("column key is bigint, not binary", {"value": StringType(), "key": LongType()}, TOPIC),
        ("column timestamp is string, not", {"value": StringType(), "timestamp": StringType()}, ""),
        ('option "topic", or add a column topic', {"value": StringType()}, ""),
        (
            "column headers is map<string,int>, not",
            {"value": StringType(), "headers": NUMBERS},
            TOPIC,
        ),
    ],
)
def test_columns_that_cannot_be_published_are_refused(
    sentence: str, columns: dict[str, DataType], topic: str
) -> None:
    given = {"supervisor": "127.0.0.1:1"} | ({"topic": topic} if topic else {})
    if "timestamp" in columns:
        columns["topic"] = StringType()
    with pytest.raises(InputError) as caught:
        check_columns(struct(columns), WriteOptions.parse(given))
    assert sentence in str(caught.value)


def test_publications_cannot_be_overwritten() -> None:
    source = SkipringDataSource({"supervisor": "127.0.0.1:1", "topic": TOPIC})
    with pytest.raises(InputError, match="append"):
        source.writer(struct({"value": StringType()}), overwrite=True)


# -- with Spark --------------------------------------------------------------------------------


def rows_of(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(count, numPartitions=partitions).select(
        F.col("id").cast("string").alias("value"), F.lit(AT).alias("timestamp")
    )


class ShakyWriter(BatchWriter):
    """Writer whose first attempt of every task publishes its rows and then fails."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails after it has published its rows")
        return written


class ShakyDataSource(SkipringDataSource):
    """Data source with such a writer."""

    @classmethod
    def name(cls) -> str:
        return "shaky"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return ShakyWriter(WriteOptions.parse(self.options), "shaky")


@pytest.mark.heavy
def test_job_whose_tasks_fail_once_publishes_nothing_twice(spark: SparkSession, ring: Ring) -> None:
    spark.dataSource.register(ShakyDataSource)
    writer = rows_of(spark, 200).write.format("shaky").option("supervisor", ring.supervisor)
    writer.option("topic", TOPIC).option("publisher", "shaky").mode("append").save()
    published = publications(ring, "shaky")
    assert sorted(int(each.payload or b"") for each in published) == list(range(200))


@pytest.mark.heavy
def test_stream_batch_that_runs_again_is_published_once(
    spark: SparkSession, ring: Ring, tmp_path: Path
) -> None:
    register(spark)
    source = str(tmp_path / "source")
    rows_of(spark, 100, 1).write.parquet(source)

    def publish() -> None:
        stream = spark.readStream.schema("value string, timestamp timestamp").parquet(source)
        writer = stream.writeStream.format("skipring").option("supervisor", ring.supervisor)
        writer = writer.option("topic", TOPIC).option("publisher", "stream")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(60)

    publish()
    for commit in (tmp_path / "checkpoint" / "commits").iterdir():
        commit.unlink()  # as if it had been killed before the commit of the batch
    publish()
    assert len(publications(ring, "stream")) == 100
