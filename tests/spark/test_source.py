"""Data source in Spark: found without registration, typed, with errors that name the mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from socket import create_server

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from skipring.spark import register
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
        "headers": "map<string,binary>",
    }
    assert table.where("headers['source'] = X'74657374'").count() == 20


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
