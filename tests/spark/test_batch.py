"""Batch reads of a live ring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from skipring.spark import register
from tests.spark.rings import TOPIC, Ring, fill, made, running_ring

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    data_dir = tmp_path_factory.mktemp("ring")
    fill(data_dir, ["n00", "n01", "n02", "n03"], made(3000))
    with running_ring(4, data_dir) as ring:
        yield ring


@pytest.fixture(autouse=True)
def known(spark: SparkSession) -> None:
    register(spark)


def read(spark: SparkSession, ring: Ring, **options: object) -> DataFrame:
    reader = spark.read.format("skipring").option("supervisor", ring.supervisor)
    for name, value in {"subscribe": TOPIC, **options}.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_a_batch_has_every_publication_once_with_all_its_fields(
    spark: SparkSession, ring: Ring
) -> None:
    rows = read(spark, ring, includeHeaders="true").orderBy("sequence").collect()
    expected = made(3000)
    assert [bytes(row.id) for row in rows] == [publication.id for publication in expected]
    first = rows[7]
    assert (bytes(first.key), bytes(first.value), first.topic) == (
        b"k7",
        expected[7].payload,
        TOPIC,
    )
    assert (first.publisher, first.sequence, first.headers) == (
        "maker",
        7,
        {"source": bytearray(b"test")},
    )
    assert first.timestamp.timestamp() == pytest.approx(expected[7].time / 1e6)
    assert first.offset == 7
