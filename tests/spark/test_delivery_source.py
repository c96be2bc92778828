"""Deliveries of a live ring as tables and streams, recorded by every member."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from skipring.errors import InputError, MessageError, UnreachableError
from skipring.spark.delivery_source import (
    STORES_MAX,
    DeliveriesDataSource,
    TraceBatchReader,
    TracePosition,
    TraceStreamReader,
    advanced,
    from_json,
    parse_options,
    to_arrow,
    to_json,
)
from skipring.wire.rpc import DeliveryPage
from tests.spark.pipeline.lakes import settle_on_disks
from tests.spark.rings import TOPIC, Ring, running_ring

NODES = ["n00", "n01", "n02", "n03"]
COUNT = 20


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    with running_ring(4, tmp_path_factory.mktemp("ring")) as ring:
        ring.publish((f"{number}".encode() for number in range(COUNT)), "n01")
        settle_on_disks(ring, COUNT)
        yield ring


def stream_reader(supervisor: str, **options: str) -> TraceStreamReader:
    given = {"supervisor": supervisor, "subscribe": TOPIC, "startingOffsets": "earliest"}
    return TraceStreamReader(parse_options({**given, **options}, is_stream=True))


def rows_of(
    reader: TraceBatchReader | TraceStreamReader, partitions: Iterable[InputPartition]
) -> list[dict[str, Any]]:
    """What tasks read; partitions travel to them as bytes."""
    return [
        row
        for partition in partitions
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]


def pairs_of(rows: Iterable[dict[str, Any]]) -> Counter[tuple[str, bytes]]:
    return Counter((row["node"], row["id"]) for row in rows)


# -- what is read ------------------------------------------------------------------------------


def test_every_member_tells_how_each_publication_came_to_it(ring: Ring) -> None:
    options = {"supervisor": ring.supervisor, "subscribe": TOPIC}
    reader = TraceBatchReader(parse_options(options, is_stream=False))
    rows = rows_of(reader, reader.partitions())
    assert set(pairs_of(rows).values()) == {1}
    assert Counter(row["node"] for row in rows) == dict.fromkeys(NODES, COUNT)
    for row in rows:
        assert row["topic"] == TOPIC
        assert (row["origin"] == "own") == (row["node"] == "n01")
        assert (row["hops"] > 0) == (row["origin"] == "spread")
    assert {row["offset"] for row in rows} == set(range(COUNT))


def test_a_stream_reads_every_delivery_once_in_batches_of_any_size(ring: Ring) -> None:
    reader = stream_reader(ring.supervisor)
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    rows: list[dict[str, Any]] = []
    for _ in range(40):
        end = reader.latestOffset(offset, ReadMaxRows(9))
        if end == offset:
            break
        found = rows_of(reader, reader.partitions(offset, end))
        assert 0 < len(found) <= 9
        offset, rows = end, [*rows, *found]
    reader.stop()
    assert len(pairs_of(rows)) == len(rows) == COUNT * len(NODES)


def test_a_stream_from_the_latest_reads_only_what_comes_then(tmp_path: Path) -> None:
    with running_ring(2, tmp_path) as ring:
        ring.publish([b"before"])
        settle_on_disks(ring, 1)
        reader = stream_reader(ring.supervisor, startingOffsets="latest")
        offset = reader.initialOffset()
        assert reader.latestOffset(offset, ReadAllAvailable()) is offset
        ring.publish([b"after"])
        settle_on_disks(ring, 2)
        end = reader.latestOffset(offset, ReadAllAvailable())
        rows = rows_of(reader, reader.partitions(offset, end))
        reader.stop()
        assert sorted(row["node"] for row in rows) == ["n00", "n01"]


def test_a_store_that_is_gone_is_left_out(ring: Ring) -> None:
    reader = stream_reader(ring.supervisor)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    end[TOPIC]["gone"] = {"epoch": 0, "offset": 7}
    rows = rows_of(reader, reader.partitions(reader.initialOffset(), end))
    again = reader.latestOffset(end, ReadAllAvailable())
    reader.stop()
    assert len(rows) == COUNT * len(NODES)
    assert again is end  # and it is remembered where it was


def test_topic_without_members_is_an_error_that_names_it(ring: Ring) -> None:
    reader = stream_reader(ring.supervisor, subscribe="nowhere")
    with pytest.raises(UnreachableError, match="nowhere"):
        reader.initialOffset()
    reader.stop()


@pytest.mark.heavy
def test_spark_reads_deliveries_as_a_table(spark: SparkSession, ring: Ring) -> None:
    spark.dataSource.register(DeliveriesDataSource)
    reading = spark.read.format("skipring_deliveries").option("supervisor", ring.supervisor)
    rows = reading.option("subscribe", TOPIC).load()
    assert dict(rows.dtypes) == {
        "topic": "string",
        "node": "string",
        "offset": "bigint",
        "id": "binary",
        "arrived": "timestamp",
        "hops": "int",
        "origin": "string",
    }
    assert rows.distinct().count() == COUNT * len(NODES)


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"includeHeaders": "true"}, "unknown option 'includeheaders'; there are supervisor"),
        ({"startingOffsets": '{"orders": {"store": "s", "epoch": 0, "offset": 1}}'}, "earliest"),
        ({"startingOffsets": "yesterday"}, "startingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"subscribe": ""}, "subscribe"),
    ],
)
def test_invalid_option_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        stream_reader("127.0.0.1:1", **options)


def test_the_names_of_options_are_checked_before_anything_runs() -> None:
    with pytest.raises(InputError, match="unknown option 'topik'"):
        DeliveriesDataSource({"topik": "orders"}).schema()
    assert "`origin` string" in DeliveriesDataSource({"SUBSCRIBE": "orders"}).schema()


# -- marks -------------------------------------------------------------------------------------


def test_a_new_store_is_read_from_its_start_and_a_silent_one_stays_where_it_was() -> None:
    before = {TOPIC: {"a": TracePosition(0, 5), "silent": TracePosition(0, 9)}}
    ends = {TOPIC: {"a": TracePosition(0, 8), "new": TracePosition(2, 3)}}
    assert advanced(before, ends, None) == {
        TOPIC: {"a": TracePosition(0, 8), "new": TracePosition(2, 3), "silent": TracePosition(0, 9)}
    }


def test_a_store_in_another_epoch_is_read_anew() -> None:
    before, ends = {TOPIC: {"a": TracePosition(0, 5)}}, {TOPIC: {"a": TracePosition(1, 4)}}
    assert advanced(before, ends, 2) == {TOPIC: {"a": TracePosition(1, 2)}}


def test_limit_is_shared_and_every_store_advances() -> None:
    ends = {
        TOPIC: {"a": TracePosition(0, 900), "b": TracePosition(0, 99), "c": TracePosition(0, 1)}
    }
    assert advanced({}, ends, 100) == {
        TOPIC: {"a": TracePosition(0, 90), "b": TracePosition(0, 9), "c": TracePosition(0, 1)}
    }


def test_not_more_stores_are_remembered_than_the_limit_and_present_ones_first() -> None:
    gone = {f"a{number:04}": TracePosition(0, 1) for number in range(STORES_MAX)}
    after = advanced({TOPIC: gone}, {TOPIC: {"z": TracePosition(0, 1)}}, None)
    assert len(after[TOPIC]) == STORES_MAX
    assert "z" in after[TOPIC]


def test_marks_are_kept_as_json_and_nothing_else_is_taken_for_them() -> None:
    marks = {TOPIC: {"a": TracePosition(1, 5)}}
    assert to_json(marks) == {TOPIC: {"a": {"epoch": 1, "offset": 5}}}
    assert from_json(to_json(marks)) == marks
    with pytest.raises(InputError, match="cannot be read"):
        from_json({TOPIC: {"a": 5}})


# -- pages -------------------------------------------------------------------------------------

PAGE = DeliveryPage(
    request=1, next=None, offsets=(4,), times=(7,), hops=b"\x02", origins=b"\x02", ids=b"i" * 32
)


def test_a_page_becomes_a_batch() -> None:
    (row,) = to_arrow(TOPIC, "n07", PAGE).to_pylist()
    assert (row["offset"], row["hops"], row["origin"], row["id"]) == (4, 2, "repair", b"i" * 32)
    assert row["arrived"].timestamp() == pytest.approx(7e-6)


@pytest.mark.parametrize(
    "wrong", [{"times": ()}, {"ids": b"short"}, {"origins": b"\x03"}, {"hops": b"\x00\x00"}]
)
def test_a_page_that_cannot_be_is_not_taken(wrong: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="n07"):
        to_arrow(TOPIC, "n07", replace(PAGE, **wrong))


def test_an_empty_page_of_columns_is_a_batch_of_none() -> None:
    nothing = replace(PAGE, offsets=(), times=(), hops=b"", origins=b"", ids=b"")
    assert isinstance(to_arrow(TOPIC, "n07", nothing), pa.RecordBatch)
