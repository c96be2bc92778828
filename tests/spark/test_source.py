"""Data source in Spark: found without registration, typed, with errors that name the mistake."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import create_server
from threading import Event
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent

from skipring.core.log import Log
from skipring.core.log_messages import FetchRecords, LogPage, Refused
from skipring.core.log_pages import record_page
from skipring.spark import FILTERS, register
from skipring.spark.arrow import ROWS_AT_ONCE
from skipring.spark.lag import METRIC, LagListener
from tests.spark.rings import TOPIC, Ring, fill, made, running_ring

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    data_dir = tmp_path_factory.mktemp("ring")
    fill(data_dir, ["n00"], made(20))
    with running_ring(2, data_dir) as ring:
        yield ring


def test_source_is_found_without_registration(spark: SparkSession, ring: Ring) -> None:
    fresh = spark.newSession()  # without the registrations of other tests
    reader = fresh.read.format("skipring").option("supervisor", ring.supervisor)
    table = reader.option("subscribe", TOPIC).option("includeHeaders", "true").load()
    assert dict(table.dtypes) == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "publisher": "string",
        "sequence": "bigint",
        "id": "binary",
        "headers": "array<struct<key:string,value:binary>>",
    }
    assert table.where("headers[0].value = X'74657374'").count() == 20


def read(spark: SparkSession, ring: Ring, schema: str | None = None, **options: str) -> DataFrame:
    register(spark)
    reader = spark.read.format("skipring").options(supervisor=ring.supervisor, **options)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.option("subscribe", TOPIC).load()


QUERIES = (
    ("publisher = 'maker' AND sequence >= 5 AND sequence < 8", 3),
    ("key IN (X'6b33', X'00')", 2),
    ("timestamp < '2023-11-14 22:13:20.002' OR key IS NULL", 2),
    ("timestamp < '2023-11-14 22:13:20.002'", 2),
    ("topic <> 'orders'", 0),
    ("id >= X'00' AND length(value) = 100", 20),
)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_filters_of_a_query_are_evaluated_by_members_or_by_spark(
    spark: SparkSession, ring: Ring, is_enabled: bool
) -> None:
    for text, count in QUERIES:
        table = read(spark, ring, pushFilters="true").where(text)
        spark.conf.set(FILTERS, str(is_enabled).lower())
        assert table.count() == count, text


def test_queries_of_one_table_do_not_share_their_filters(spark: SparkSession, ring: Ring) -> None:
    table = read(spark, ring)
    for text, count in QUERIES:
        assert table.where(text).count() == count, text
    assert table.count() == 20


def test_columns_of_a_schema_are_read(spark: SparkSession, ring: Ring) -> None:
    table = read(spark, ring, "id binary, headers map<string,binary>, timestamp timestamp")
    assert table.columns == ["id", "headers", "timestamp"]
    assert table.where("headers['source'] = X'74657374'").count() == 20
    assert len({row.position for row in read(spark, ring, "position string").collect()}) == 1


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("idd binary", "no column 'idd'; the columns are key, value"),
        ("id string", "column id is binary, not string"),
    ],
)
def test_unknown_column_of_a_schema_is_reported(
    spark: SparkSession, ring: Ring, schema: str, sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        read(spark, ring, schema).count()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_members_evaluate_filters_only_if_they_are_enabled(
    spark: SparkSession, ring: Ring, is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[FetchRecords] = []

    def answered(log: Log, question: FetchRecords, *given: Any) -> LogPage | Refused:  # noqa: ANN401
        asked.append(question)
        return record_page(log, question, *given)

    monkeypatch.setattr("skipring.node.status_server.record_page", answered)
    table = read(spark, ring, pushFilters="true").where("publisher = 'maker'")
    spark.conf.set(FILTERS, str(is_enabled).lower())
    assert table.count() == 20
    assert {each.where.publishers for each in asked} == ({("maker",)} if is_enabled else set())
    asked.clear()
    assert read(spark, ring, pushFilters="false").where("publisher = 'maker'").count() == 20
    assert asked == []


CLOSED = "BrokenPipeError: [Errno 32] Broken pipe"
LIMITED = """
import sys
from skipring.spark import register, session

spark = session.start(master="local[1]", conf={"spark.driver.memory": "512m"})
register(spark)
reader = spark.read.format("skipring").option("supervisor", sys.argv[1])
table = reader.option("subscribe", sys.argv[2]).load()
print(len(table.take(3)), table.limit(4).count(), table.count())
session.stop(spark)
"""


def test_limit_ends_without_an_error_of_the_source(tmp_path: Path) -> None:
    count = 3 * ROWS_AT_ONCE
    fill(tmp_path, ["n00"], made(count))
    with running_ring(1, tmp_path) as large:
        command = [sys.executable, "-c", LIMITED, large.supervisor, TOPIC]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["3", "4", str(count)]
    # PySpark's daemon prints that Spark closed its connection; nothing else is on stderr.
    errors = [line for line in ran.stderr.splitlines() if line and not line.startswith(" ")]
    assert set(errors) <= {"Traceback (most recent call last):", CLOSED}
    assert "skipring" not in ran.stderr


def test_stream_reports_its_lag(spark: SparkSession, ring: Ring, tmp_path: Path) -> None:
    register(spark)
    registry = CollectorRegistry()
    is_recorded = Event()

    class Listener(LagListener):
        def onQueryProgress(self, event: QueryProgressEvent) -> None:
            super().onQueryProgress(event)
            is_recorded.set()

    listener = Listener(registry)
    spark.streams.addListener(listener)
    options = {"supervisor": ring.supervisor, "subscribe": TOPIC, "startingOffsets": "earliest"}
    reader = spark.readStream.format("skipring").options(**options, maxOffsetsPerTrigger="5")
    writing = reader.load().writeStream.format("noop").queryName("slow")
    writing = writing.option("checkpointLocation", str(tmp_path))
    query = writing.trigger(processingTime="1 hour").start()  # one micro-batch
    try:
        assert is_recorded.wait(60)
        lag = registry.get_sample_value(METRIC, {"query": "slow", "topic": TOPIC})
        assert lag == 15
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def test_examples_of_the_guide_run(spark: SparkSession, ring: Ring) -> None:
    register(spark)
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    blocks = re.findall(
        r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    reads = [block for block in blocks if "spark.read." in block and "session.start" not in block]
    names: dict[str, Any] = {"spark": spark}
    for block in reads:
        exec(block.replace("127.0.0.1:7400", ring.supervisor), names)
    assert len(reads) == 3
    assert names["known"].count() == 20
    assert names["later"].count() == 0
    assert names["first"].count() == 0
    assert names["times"].columns == ["id", "publisher", "timestamp"]


def closed_port() -> str:
    with create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("sentence", "options"),
    [
        ("unknown option 'suscribe'; did you mean", {"suscribe": TOPIC}),
        ("nothing listens on", {"supervisor": closed_port()}),
    ],
    ids=["option", "address"],
)
def test_mistake_in_a_batch_is_reported(
    spark: SparkSession, ring: Ring, sentence: str, options: dict[str, str]
) -> None:
    register(spark)
    given = {"supervisor": ring.supervisor, "subscribe": TOPIC, **options}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("skipring").options(**given).load().count()
    assert sentence in str(caught.value)


def test_mistake_in_a_stream_is_reported(spark: SparkSession, ring: Ring, tmp_path: Path) -> None:
    register(spark)
    given = {"supervisor": ring.supervisor, "subscribe": "nothing"}
    stream = spark.readStream.format("skipring").options(**given).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="'nothing' has no members"):
        query.awaitTermination(60)


def test_mistake_in_a_write_is_reported(spark: SparkSession, ring: Ring) -> None:
    register(spark)
    rows = spark.range(3).selectExpr("id AS wrong")
    writer = rows.write.format("skipring").option("supervisor", ring.supervisor)
    with pytest.raises(PySparkException, match="the rows have no column value"):
        writer.option("topic", TOPIC).mode("append").save()
