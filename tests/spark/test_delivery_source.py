"""Deliveries of a live ring as tables and streams, recorded by every member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from skipring.errors import InputError, MessageError, UnreachableError
from skipring.net.access import Access
from skipring.spark.delivery_source import (
    STORES_MAX,
    DeliveriesDataSource,
    Marks,
    TraceBatchReader,
    TracePosition,
    TraceStreamReader,
    advanced,
    from_json,
    parse_options,
    to_arrow,
    to_json,
)
from skipring.spark.ring_client import RingClient
from skipring.wire.rpc import DeliveryPage
from tests.spark.reading import rows_of
from tests.spark.rings import TOPIC, Ring, running_ring

NODES = ["n00", "n01", "n02", "n03"]
COUNT = 20


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    with running_ring(4, tmp_path_factory.mktemp("ring")) as ring:
        ring.publish((f"{number}".encode() for number in range(COUNT)), "n01")
        ring.wait_durable()
        yield ring


def stream_reader(supervisor: str, **options: str) -> TraceStreamReader:
    given = {"supervisor": supervisor, "subscribe": TOPIC, "startingOffsets": "earliest"}
    return TraceStreamReader(parse_options({**given, **options}, is_stream=True))


def pairs_of(rows: Iterable[dict[str, Any]]) -> Counter[tuple[str, bytes]]:
    return Counter((row["node"], row["id"]) for row in rows)


# -- reads --------------------------------------------------------------------------------------


def test_every_member_reports_the_arrival_of_each_publication(ring: Ring) -> None:
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


def test_tasks_of_a_process_share_a_client(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RingClient] = []

    def counted(access: Access) -> RingClient:
        made.append(RingClient(access))
        return made[-1]

    options = {"supervisor": ring.supervisor, "subscribe": TOPIC}
    reader = TraceBatchReader(parse_options(options, is_stream=False))
    partitions = reader.partitions()
    monkeypatch.setattr("skipring.spark.ring_client._kept", {})
    monkeypatch.setattr("skipring.spark.ring_client.RingClient", counted)
    monkeypatch.setattr("skipring.spark.delivery_source.RingClient", counted)
    assert len(rows_of(reader, partitions)) == COUNT * len(NODES)
    (client,) = made
    client.close()


def test_stream_reads_every_delivery_once_in_limited_batches(ring: Ring) -> None:
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


def test_stream_from_the_latest_reads_only_later_deliveries(tmp_path: Path) -> None:
    with running_ring(2, tmp_path) as ring:
        ring.publish([b"before"])
        ring.wait_durable()
        reader = stream_reader(ring.supervisor, startingOffsets="latest")
        offset = reader.initialOffset()
        assert reader.latestOffset(offset, ReadAllAvailable()) is offset
        ring.publish([b"after"])
        ring.wait_durable()
        end = reader.latestOffset(offset, ReadAllAvailable())
        rows = rows_of(reader, reader.partitions(offset, end))
        reader.stop()
        assert sorted(row["node"] for row in rows) == ["n00", "n01"]


def test_lost_store_is_skipped(ring: Ring) -> None:
    reader = stream_reader(ring.supervisor)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    end[TOPIC]["gone"] = {"epoch": 0, "offset": 7}
    rows = rows_of(reader, reader.partitions(reader.initialOffset(), end))
    again = reader.latestOffset(end, ReadAllAvailable())
    reader.stop()
    assert len(rows) == COUNT * len(NODES)
    assert again is end  # its mark is kept


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
        ({"includeHeaders": "true"}, "unknown option 'includeheaders'; the options are supervisor"),
        ({"startingOffsets": '{"orders": {"store": "s", "epoch": 0, "offset": 1}}'}, "earliest"),
        ({"startingOffsets": "yesterday"}, "startingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"subscribe": ""}, "subscribe"),
    ],
)
def test_invalid_option_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        stream_reader("127.0.0.1:1", **options)


def test_names_of_options_are_checked_before_a_query_runs() -> None:
    with pytest.raises(InputError, match="unknown option 'topik'"):
        DeliveriesDataSource({"topik": "orders"}).schema()
    assert "`origin` string" in DeliveriesDataSource({"SUBSCRIBE": "orders"}).schema()


# -- marks -------------------------------------------------------------------------------------


def marks(**stores: tuple[int, int]) -> dict[str, dict[str, TracePosition]]:
    return {TOPIC: {store: TracePosition(*mark) for store, mark in stores.items()}}


@pytest.mark.parametrize(
    ("before", "ends", "rows_max", "after"),
    [
        (  # a new store is read from its start, a silent one keeps its mark
            marks(a=(0, 5), silent=(0, 9)),
            marks(a=(0, 8), new=(2, 3)),
            None,
            marks(a=(0, 8), new=(2, 3), silent=(0, 9)),
        ),
        # a store in another epoch is read from its start
        (marks(a=(0, 5)), marks(a=(1, 4)), 2, marks(a=(1, 2))),
        # the limit is shared, and every store advances
        ({}, marks(a=(0, 900), b=(0, 99), c=(0, 1)), 100, marks(a=(0, 90), b=(0, 9), c=(0, 1))),
    ],
    ids=["new and silent", "epoch", "limit"],
)
def test_marks_advance_to_the_ends_within_the_limit(
    before: Marks, ends: Marks, rows_max: int | None, after: Marks
) -> None:
    assert advanced(before, ends, rows_max) == after


def test_number_of_stored_marks_is_limited_and_present_stores_take_precedence() -> None:
    gone = {f"a{number:04}": TracePosition(0, 1) for number in range(STORES_MAX)}
    after = advanced({TOPIC: gone}, {TOPIC: {"z": TracePosition(0, 1)}}, None)
    assert len(after[TOPIC]) == STORES_MAX
    assert "z" in after[TOPIC]


def test_marks_survive_their_json_form_and_others_are_refused() -> None:
    kept = to_json(marks(a=(1, 5)))
    assert kept == {TOPIC: {"a": {"epoch": 1, "offset": 5}}}
    assert from_json(kept) == marks(a=(1, 5))
    with pytest.raises(InputError, match="cannot be read"):
        from_json({TOPIC: {"a": 5}})


# -- pages -------------------------------------------------------------------------------------

PAGE = DeliveryPage(
    request=1, next=None, offsets=(4,), times=(7,), hops=b"\x02", origins=b"\x02", ids=b"i" * 32
)


def test_page_becomes_a_record_batch() -> None:
    nothing = replace(PAGE, offsets=(), times=(), hops=b"", origins=b"", ids=b"")
    assert to_arrow(TOPIC, "n07", nothing).num_rows == 0
    (row,) = to_arrow(TOPIC, "n07", PAGE).to_pylist()
    assert (row["offset"], row["hops"], row["origin"], row["id"]) == (4, 2, "repair", b"i" * 32)
    assert row["arrived"].timestamp() == pytest.approx(7e-6)


@pytest.mark.parametrize(
    "wrong", [{"times": ()}, {"ids": b"short"}, {"origins": b"\x03"}, {"hops": b"\x00\x00"}]
)
def test_malformed_page_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="n07"):
        to_arrow(TOPIC, "n07", replace(PAGE, **wrong))
