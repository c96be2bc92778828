"""Writes: rows become batches, the same ones each time their task runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from skipring.core.batches import BATCH_BYTES_MAX, BODY_BYTES_MAX, RECORDS_MAX, RecordBatch
from skipring.core.limits import HEADERS_BYTES_MAX, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from skipring.core.peers import TopicId
from skipring.core.publications import SEQ_BELIEVED_MAX, Publication
from skipring.core.retention.charter import UNLIMITED, Policy
from skipring.errors import InputError, UnreachableError
from skipring.spark import register
from skipring.spark.options import WriteOptions
from skipring.spark.ring_client import RingClient
from skipring.spark.sink import (
    OPEN_BYTES_MAX,
    BatchWriter,
    Written,
    check_columns,
    publish_rows,
)
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
    values = pa.array([b"%d" % number for number in range(first, first + count)], pa.binary())
    return pa.RecordBatch.from_pydict({"value": values, **columns})


def numbered(numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in numbers]})


def publications(ring: Ring, publisher: str) -> list[Publication]:
    """Return the publications of a publisher, once both nodes have them."""
    ring.wait_in_sync()
    return [each for each in ring.publications("n01") if each.publisher == publisher]


def values(ring: Ring, publisher: str) -> list[bytes]:
    """Return the payloads of a publisher, sorted by their numbers."""
    return sorted((each.payload for each in publications(ring, publisher)), key=int)


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
    first, second = publications(ring, "fields")
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
    for _ in range(2):
        publish_rows(writing, "w", "7", iter([table(700)]))
        publish_rows(writing, "w", "7", iter([table(300), table(0), table(400, 300)]))
    assert values(ring, "again") == [b"%d" % number for number in range(700)]


def test_task_that_failed_is_completed_by_its_next_attempt(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipring.spark.sink.AT_ONCE", 1)
    writing = options(ring, publisher="failed")

    def failing() -> Iterator[pa.RecordBatch]:
        yield table(600)
        raise RuntimeError("the first attempt fails")

    with pytest.raises(RuntimeError):
        publish_rows(writing, "w", "", failing())
    assert 0 < len(values(ring, "failed")) < 600
    publish_rows(writing, "w", "", iter([table(700)]))
    assert values(ring, "failed") == [b"%d" % number for number in range(700)]


def test_task_with_rows_in_another_order_publishes_changed_batches_again(ring: Ring) -> None:
    writing = options(ring, publisher="order")
    numbers = list(range(2 * RECORDS_MAX))
    publish_rows(writing, "w", "7", iter([numbered(numbers)]))
    numbers[0], numbers[1] = numbers[1], numbers[0]
    publish_rows(writing, "w", "7", iter([numbered(numbers)]))
    counts = Counter(values(ring, "order"))
    repeated = {b"%d" % number for number in range(RECORDS_MAX)}  # the other batch is the same
    assert {value for value, count in counts.items() if count == 2} == repeated
    assert len(counts) == 2 * RECORDS_MAX
    assert counts.total() == 3 * RECORDS_MAX


def test_equal_rows_are_not_the_same_publication(ring: Ring) -> None:
    writing = options(ring, publisher="equal")
    rows = pa.RecordBatch.from_pydict({"value": [b"same", b"same"]})
    for write, batch in (("w", "1"), ("w", "2"), ("v", "1")):
        publish_rows(writing, write, batch, iter([rows]))
    assert len(publications(ring, "equal")) == 6


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


# -- batches -----------------------------------------------------------------------------------

NOWHERE = WriteOptions.parse({"supervisor": "127.0.0.1:1"})


@contextmanager
def recorded(policy: Policy = UNLIMITED) -> Iterator[list[tuple[TopicId, RecordBatch]]]:
    """Record published batches instead of sending them."""
    found: list[tuple[TopicId, RecordBatch]] = []

    def publish(_: RingClient, topic: TopicId, batches: Sequence[RecordBatch]) -> None:
        found.extend((topic, batch) for batch in batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RingClient, "publish", publish)
        patch.setattr(RingClient, "policy", lambda *_: policy)
        yield found


def batches_of(
    tables: Iterable[pa.RecordBatch], write: str = "w", batch: str = "7"
) -> list[tuple[TopicId, RecordBatch]]:
    """Return the batches that a task makes of its rows."""
    with recorded() as found:
        publish_rows(NOWHERE, write, batch, iter(tables))
    return found


def sliced(rows: pa.RecordBatch, places: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table, cut at some places."""
    for start, end in pairwise([0, *sorted(places), rows.num_rows]):
        yield rows.slice(start, end - start)


ROWS = 1500
SIZES = [(number * 7919) % 4001 for number in range(ROWS)]
MIXED = pa.RecordBatch.from_pydict(
    {
        "value": [bytes(size) for size in SIZES],
        "topic": [f"topic-{size % 3}" for size in SIZES],
        "key": [None if size % 5 else b"key" for size in SIZES],
    }
)


@pytest.fixture(scope="module")
def mixed() -> list[tuple[TopicId, RecordBatch]]:
    return batches_of([MIXED])


@pytest.mark.parametrize("policy", [Policy(max_age_s=60), Policy(compact=True)])
def test_rows_without_a_time_get_that_of_the_plan_if_the_policy_needs_it(policy: Policy) -> None:
    times = pa.array([None, AT, None], pa.timestamp("us", tz="UTC"))
    rows = table(3, timestamp=times, topic=pa.array(["t"] * 3))
    with recorded(policy) as found:
        for _ in range(2):
            publish_rows(NOWHERE, "w", "7", iter([rows]), planned_us=1000)
    half = len(found) // 2
    assert found[:half] == found[half:], "a task that runs again"
    records = [each for _, batch in found[:half] for each in batch.records()]
    given = round(AT.timestamp() * 1_000_000)
    assert [each.time for each in records] == [1001, given, 1003]
    assert half == (3 if policy.compact else 1)


@settings(max_examples=20)
@given(places=st.sets(st.integers(0, ROWS), max_size=30))
def test_batches_do_not_depend_on_the_sizes_of_arrow_batches(
    mixed: list[tuple[TopicId, RecordBatch]], places: set[int]
) -> None:
    assert batches_of(sliced(MIXED, places)) == mixed


def test_rows_of_each_topic_stay_in_order_and_their_batches_are_within_the_limits(
    mixed: list[tuple[TopicId, RecordBatch]],
) -> None:
    for topic in ("topic-0", "topic-1", "topic-2"):
        batches = [batch for other, batch in mixed if other == topic]
        sizes = [len(each.payload) for batch in batches for each in batch.records()]
        assert sizes == [size for size in SIZES if f"topic-{size % 3}" == topic]
        assert all(batch.is_genuine(topic) and batch.unordered for batch in batches)
        assert all(len(batch.body) <= BATCH_BYTES_MAX for batch in batches)
        # Each is full: of records, or of bytes up to one more record.
        for batch in batches[:-1]:
            assert batch.count == RECORDS_MAX or len(batch.body) > BATCH_BYTES_MAX - 4200


def test_open_batches_of_many_topics_are_finished_at_the_limit_of_memory() -> None:
    count = OPEN_BYTES_MAX // PAYLOAD_BYTES_MAX
    topics = ["first", *(f"topic-{number}" for number in range(count)), "first"]
    payloads = [b"first", *(bytes(PAYLOAD_BYTES_MAX) for _ in range(count)), b"last"]
    rows = pa.RecordBatch.from_pydict({"value": payloads, "topic": topics})
    assert [topic for topic, _ in batches_of([rows])] == topics


def test_largest_rows_are_alone_in_their_batches() -> None:
    largest = {"value": [bytes(PAYLOAD_BYTES_MAX)] * 2, "key": [bytes(KEY_BYTES_MAX)] * 2}
    headers = [[("name", bytes(HEADERS_BYTES_MAX - 4))]] * 2
    rows = pa.RecordBatch.from_pydict(
        {
            **largest,
            "topic": [TOPIC] * 2,
            "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
        }
    )
    made = [batch for _, batch in batches_of([rows])]
    assert [batch.count for batch in made] == [1, 1]
    assert all(len(batch.body) <= BODY_BYTES_MAX for batch in made)


def test_numbers_exceed_those_of_publishers_and_differ_between_places() -> None:
    rows = table(3 * RECORDS_MAX, topic=[TOPIC] * 3 * RECORDS_MAX)
    places = [("w", "7"), ("w", "8"), ("v", "7"), ("w", "")]
    made = [batch for write, batch in places for _, batch in batches_of([rows], write, batch)]
    assert all(batch.first >= SEQ_BELIEVED_MAX for batch in made)
    assert all(batch.end <= 1 << 63 for batch in made)
    numbers = [number for batch in made for number in range(batch.first, batch.end)]
    assert len(set(numbers)) == len(numbers) == len(places) * rows.num_rows


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
    assert sorted(int(each.payload) for each in published) == list(range(200))


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
