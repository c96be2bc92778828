"""Batch reads of a live ring: one snapshot, proven, while members publish."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan
from pyspark.sql.streaming.datasource import ReadMaxRows

import skipring
from skipring.api.key_value_table import DELETED, UNTIL
from skipring.core import log_pages
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.limits import SURVEY_BITS_MAX
from skipring.core.log_messages import FetchLog, GetLogInfo, LogPage
from skipring.core.log_pages import answer as true_answer
from skipring.core.replica import Replica
from skipring.core.retention.charter import CHARTER_KEY
from skipring.errors import DataLossError, InputError, SkipringError, UnreachableError
from skipring.spark import register
from skipring.spark.arrow import METADATA, PUBLICATION, ArrowRows, RowForm, publication_schema
from skipring.spark.batch import BatchReader, PrefixPartition, TableReader
from skipring.spark.options import ReadOptions
from tests.spark.reading import (
    batch_reader,
    batch_rows,
    ids_of,
    rows_of,
    stop_readers,
    stream_reader,
)
from tests.spark.rings import TOPIC, Ring, fill, made, publications_of, running_ring

NODES = ["n00", "n01", "n02", "n03"]
COUNT = 3000
BATCHES = made(COUNT)
MADE = publications_of(BATCHES)
MADE_IDS = sorted(publication.id for publication in MADE)

Answer = Callable[[str, Any], Any]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """Return a ring that no test changes."""
    data_dir = tmp_path_factory.mktemp("ring")
    fill(data_dir, NODES, BATCHES)
    with running_ring(4, data_dir) as ring:
        yield ring


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Return a function that changes the answers of all nodes, by store."""

    def install(change: Answer) -> None:
        def handle(replica: Replica, question: GetLogInfo | FetchLog) -> Any:  # noqa: ANN401
            return change(replica.log.store, true_answer(replica, question))

        monkeypatch.setattr(log_pages, "answer", handle)

    return install


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the pages that are read from each store."""
    counts: Counter[str] = Counter()

    def counted(replica: Replica, question: GetLogInfo | FetchLog) -> Any:  # noqa: ANN401
        counts[replica.log.store] += isinstance(question, FetchLog)
        return true_answer(replica, question)

    monkeypatch.setattr(log_pages, "answer", counted)
    return counts


# -- rows --------------------------------------------------------------------------------------


def test_batch_has_every_publication_once_with_all_its_fields(ring: Ring) -> None:
    rows = sorted(
        batch_rows(ring, RowForm(schema=publication_schema("map"))), key=lambda row: row["sequence"]
    )
    assert ids_of(rows) == [publication.id for publication in MADE]
    assert rows[7] == {
        "key": b"k7",
        "value": MADE[7].payload,
        "topic": TOPIC,
        "partition": MADE[7].id[0] >> 7,
        "offset": 7,
        "timestamp": rows[7]["timestamp"],
        "publisher": "maker",
        "sequence": 7,
        "id": MADE[7].id,
        "headers": [("source", b"test")],
    }
    assert rows[7]["timestamp"].timestamp() == pytest.approx(MADE[7].time / 1e6)


@pytest.mark.parametrize(("wanted", "bits"), [(1, 0), (3, 2), (16, 4), (200, 8)])
def test_number_of_prefixes_is_the_next_power_of_two(ring: Ring, wanted: int, bits: int) -> None:
    prefixes = {batch.id[0] >> SURVEY_BITS_MAX - bits for batch in BATCHES}  # some are empty
    assert len(batch_reader(ring, minPartitions=str(wanted)).partitions()) == len(prefixes)


def test_number_of_partitions_depends_on_the_number_of_records(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipring.spark.batch.ROWS_PER_PARTITION", COUNT // 8)
    assert len(batch_reader(ring).partitions()) == 8


def test_partitions_are_prefixes_and_are_read_from_all_members(
    ring: Ring, served: Counter[str]
) -> None:
    rows = batch_rows(ring, minPartitions="16")
    assert {row["partition"] for row in rows} == set(range(16))
    assert all(row["id"][0] >> 4 == row["partition"] for row in rows)
    assert sum(pages > 0 for pages in served.values()) == 4
    assert "headers" not in rows[0]  # unless the option requests them


def test_earlier_publications_than_the_timestamp_are_skipped(ring: Ring) -> None:
    rows = batch_rows(ring, startingTimestamp=str(MADE[400].time // 1000))
    assert sorted(row["sequence"] for row in rows) == list(range(400, COUNT))


def test_publication_without_a_time_has_no_timestamp(tmp_path: Path) -> None:
    fill(tmp_path, ["n00"], made(2, with_time=False))
    with running_ring(1, tmp_path) as ring:
        assert [row["timestamp"] for row in batch_rows(ring)] == [None, None]


def test_several_topics_are_read_together(tmp_path: Path) -> None:
    with running_ring(1, tmp_path) as ring:
        node = ring.cluster.node("n00")
        for topic in ("grün", "empty"):
            ring.call(partial(node.subscribe, topic))
        ring.publish([b"1", b"2"])
        ring.run(node.publish("grün", BatchRecord(b"3")))
        ring.wait_until(lambda: set(node.topics) == {TOPIC, "grün", "empty"})
        topics = f"{TOPIC},grün,empty"
        stream = stream_reader(ring, subscribe=topics)
        start = stream.initialOffset()
        streamed = stream.partitions(start, stream.latestOffset(start, ReadMaxRows(9)))
        for rows in (batch_rows(ring, subscribe=topics), rows_of(stream, streamed)):
            found = sorted((row["topic"], row["value"]) for row in rows)
            assert found == [("grün", b"3"), (TOPIC, b"1"), (TOPIC, b"2")]
        stop_readers()


def test_topic_without_members_is_reported(ring: Ring) -> None:
    with pytest.raises(UnreachableError, match="'nothing' has no members"):
        batch_rows(ring, subscribe=f"{TOPIC},nothing")


def test_ring_without_disks_is_read() -> None:
    with running_ring(2) as ring:
        assert batch_rows(ring) == []
        ring.publish(b"%d" % number for number in range(100))
        ring.wait_in_sync()
        numbers = sorted(row["sequence"] for row in batch_rows(ring))
    assert numbers == list(range(numbers[0], numbers[0] + 100))


# -- between two positions ---------------------------------------------------------------------


def position(ring: Ring, offset: int, node: str = "n00", **changed: object) -> str:
    return json.dumps({TOPIC: ring.position(node, offset) | changed})


@pytest.mark.parametrize(
    ("start", "end", "count", "partitions"),
    [(100, 150, 50, 1), (COUNT - 10, None, 10, 3), (None, 5, 5, 1)],
)
@pytest.mark.parametrize("with_chain", [False, True])
def test_part_of_one_store_is_read(
    ring: Ring, start: int | None, end: int | None, count: int, partitions: int, with_chain: bool
) -> None:
    options = {"minPartitions": str(partitions)}
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if offset is not None:
            chain = {"chain": ring.log_info("n00", offset).chain.hex()} if with_chain else {}
            options[name] = position(ring, offset, **chain)
    reader = batch_reader(ring, **options)
    assert len(reader.partitions()) == partitions
    rows = rows_of(reader, reader.partitions())
    first = start or 0
    assert [row["offset"] for row in rows] == list(range(first, first + count))
    assert {row["partition"] for row in rows} == {0}


def test_positions_of_different_stores_are_refused(ring: Ring) -> None:
    given = {"startingOffsets": position(ring, 1), "endingOffsets": position(ring, 5, "n01")}
    with pytest.raises(InputError, match="different stores"):
        batch_reader(ring, **given).partitions()


RESTORED = "restored from a backup; restore that store, or"


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"offset": COUNT + 1}, InputError, "has 3000 offsets in that store; 3001 is beyond"),
        ({"store": "5eed"}, DataLossError, "the store 5eed "),
        ({"epoch": 7}, DataLossError, RESTORED),
        ({"chain": "0123456789abcdef"}, DataLossError, RESTORED),
        ({"offset": 9999, "chain": "00" * 8}, DataLossError, RESTORED),
    ],
)
def test_position_that_is_not_in_the_store_is_refused(
    ring: Ring,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    changed: dict[str, object],
    kind: type[SkipringError],
    message: str,
) -> None:
    monkeypatch.setattr("skipring.spark.snapshot.AGAIN_S", 0.05)
    given = json.dumps({TOPIC: ring.position("n00", 100) | changed})
    with pytest.raises(kind, match=message):
        batch_reader(ring, **{option: given}).partitions()


# -- filters and columns -----------------------------------------------------------------------

OTHERS = [
    RecordBatch.of(
        [BatchRecord(b"other", MADE[0].time + 5 * number, key=b"k3")],
        publisher="other",
        first=number,
        topic=TOPIC,
    )
    for number in range(40)
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """Return a ring with interleaved record batches of two publishers."""
    data_dir = tmp_path_factory.mktemp("mixed")
    both = [each for pair in zip(BATCHES, OTHERS, strict=False) for each in pair]
    fill(data_dir, NODES, [*both, *BATCHES[len(OTHERS) :]])
    with running_ring(4, data_dir) as ring:
        yield ring


FILTERS: list[tuple[list[Filter], Callable[[dict[str, Any]], bool]]] = [
    ([EqualTo(("publisher",), "other")], lambda row: row["publisher"] == "other"),
    ([EqualTo(("key",), b"k3")], lambda row: row["key"] == b"k3"),
    (
        [GreaterThanOrEqual(("sequence",), 100), LessThan(("sequence",), 130)],
        lambda row: 100 <= row["sequence"] < 130,
    ),
    (
        [LessThan(("timestamp",), datetime.fromtimestamp(MADE[7].time / 1e6, UTC))],
        lambda row: row["timestamp"].timestamp() < MADE[7].time / 1e6,
    ),
    ([EqualTo(("publisher",), "nothing")], lambda _: False),
    ([EqualTo(("topic",), "another")], lambda _: False),
]


@pytest.mark.parametrize(("filters", "passes"), FILTERS, ids=range(len(FILTERS)))
def test_filtered_rows_are_those_that_pass(
    mixed: Ring, filters: list[Filter], passes: Callable[[dict[str, Any]], bool]
) -> None:
    every = batch_rows(mixed)
    reader = batch_reader(mixed)
    assert list(reader.pushFilters(filters)) == []
    rows = rows_of(reader, reader.partitions())
    assert sorted(ids_of(rows)) == sorted(row["id"] for row in every if passes(row))
    ids = batch_reader(mixed, RowForm(schema=pa.schema([PUBLICATION.field("id")])))
    ids.pushFilters(filters)
    assert sorted(ids_of(rows_of(ids, ids.partitions()))) == sorted(ids_of(rows))


def test_filter_on_an_id_reads_one_partition(mixed: Ring) -> None:
    reader = batch_reader(mixed, minPartitions="16")
    rest = reader.pushFilters([EqualTo(("id",), OTHERS[3].record_id(0))])
    assert len(list(rest)) == 1  # Spark drops the other rows
    (partition,) = reader.partitions()
    assert ids_of(rows_of(reader, [partition])) == [OTHERS[3].record_id(0)]


@pytest.mark.parametrize("names", [["id", "timestamp"], ["id", "sequence"]])
def test_read_without_payloads_fetches_none(
    ring: Ring, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[LogPage] = []

    def kept(*given: Any) -> ArrowRows:  # noqa: ANN401
        pages.append(given[1])
        return true_rows(*given)

    true_rows = ArrowRows.of
    monkeypatch.setattr("skipring.spark.batch.ArrowRows.of", kept)
    form = RowForm(schema=pa.schema([PUBLICATION.field(name) for name in names]))
    rows = batch_rows(ring, form)
    assert list(rows[0]) == names
    assert sorted(ids_of(rows)) == MADE_IDS
    assert all(b"........" not in batch.body for page in pages for batch in page.batches)


def test_position_of_a_read_is_the_start_of_the_next(tmp_path: Path) -> None:
    fill(tmp_path, NODES, BATCHES[:90])
    form = RowForm(schema=pa.schema([PUBLICATION.field("id"), *METADATA]))
    with running_ring(2, tmp_path) as ring:
        known = batch_rows(ring, form)
        (position,) = {row["position"] for row in known}
        stores = {(ring.log_info(node).store, ring.log_info(node).epoch) for node in NODES[:2]}
        assert {(row["store"], row["epoch"]) for row in known} <= stores
        ring.publish(b"new %d" % number for number in range(20))
        ring.wait_durable()
        start = json.dumps({TOPIC: json.loads(position)})
        later = batch_rows(ring, form, startingOffsets=start)
        assert len(later) == 20
        every = sorted(publication.id for publication in ring.publications())
        assert sorted(ids_of(known) + ids_of(later)) == every
        (position,) = {row["position"] for row in later}
        start = json.dumps({TOPIC: json.loads(position)})
        assert batch_rows(ring, form, startingOffsets=start) == []
        until = json.dumps({TOPIC: json.loads(known[0]["position"])})
        until_then = batch_rows(ring, form, endingOffsets=until)
        assert sorted(ids_of(until_then)) == sorted(ids_of(known))


def test_topics_are_chosen_by_a_pattern_and_members_by_name(ring: Ring) -> None:
    reader = BatchReader(
        ReadOptions.parse(
            {"supervisor": ring.supervisor, "subscribePattern": "ord.*"}, is_stream=False
        )
    )
    assert len(rows_of(reader, reader.partitions())) == COUNT
    given = {"supervisor": ring.supervisor, "assign": json.dumps({TOPIC: ["n02"]})}
    reader = BatchReader(ReadOptions.parse(given, is_stream=False))
    parts = [each for each in reader.partitions() if isinstance(each, PrefixPartition)]
    assert {source.node for each in parts for source in each.part.sources} == {"n02"}
    given["assign"] = json.dumps({TOPIC: ["absent"]})
    with pytest.raises(UnreachableError, match="no assigned member"):
        BatchReader(ReadOptions.parse(given, is_stream=False)).partitions()


def test_range_of_times_is_read_for_each_topic(ring: Ring) -> None:
    first, last = MADE[100].time // 1000, MADE[110].time // 1000
    options = {
        "startingOffsetsByTimestamp": json.dumps({TOPIC: first, "other": 5}),
        "endingTimestamp": str(last),
    }
    rows = batch_rows(ring, **options)
    assert sorted(row["sequence"] for row in rows) == list(range(100, 110))


# -- members that stop or send wrong pages -----------------------------------------------------


@pytest.mark.heavy
def test_member_that_stops_after_planning_is_replaced_by_an_agreeing_member(
    tmp_path: Path,
) -> None:
    fill(tmp_path, NODES, BATCHES)
    with running_ring(4, tmp_path) as ring:
        reader = batch_reader(ring)
        partitions = reader.partitions()
        for node in ("n01", "n02"):
            ring.call(partial(ring.cluster.kill, node))
        rows = rows_of(reader, partitions)
    assert sorted(ids_of(rows)) == MADE_IDS


def emptied(page: LogPage) -> LogPage:
    return replace(page, offsets=(), batches=())


def corrupted(page: LogPage) -> LogPage:
    """Change payloads, so that the batches do not match their ids."""
    changed = [replace(each, body=each.body.replace(b"00000", b"00001")) for each in page.batches]
    return replace(page, batches=tuple(changed))


def invented(page: LogPage) -> LogPage:
    """Return a page of invented batches with matching ids."""
    return replace(page, batches=tuple(each.with_id(TOPIC) for each in corrupted(page).batches))


def repeated(page: LogPage) -> LogPage:
    """Append the first batch once more, at its own offset."""
    offsets = (*page.offsets, page.offsets[-1] + page.batches[-1].count)
    return replace(page, offsets=offsets, batches=(*page.batches, *page.batches[:1]))


@pytest.mark.parametrize(
    ("nodes", "lie", "error"),
    [
        (["n01"], emptied, None),
        (["n01"], corrupted, None),
        (NODES, repeated, None),
        (["n01"], invented, "from n01 on it is not"),
        (NODES, emptied, "is not what 4 members agreed on"),
    ],
)
def test_wrong_page_is_replaced_by_another_member_or_fails_the_read(
    ring: Ring,
    answer: Callable[[Answer], None],
    nodes: list[str],
    lie: Callable[[LogPage], LogPage],
    error: str | None,
) -> None:
    stores = {ring.store_of(node) for node in nodes}
    answer(lambda store, page: lie(page) if store in stores and isinstance(page, LogPage) else page)
    reader = batch_reader(ring)
    partitions = reader.partitions()
    if error is None:
        assert sorted(ids_of(rows_of(reader, partitions))) == MADE_IDS
    else:
        with pytest.raises(UnreachableError, match=error):
            rows_of(reader, partitions)


# -- with Spark --------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_publications_are_read_once_each_while_members_publish(
    spark: SparkSession, tmp_path: Path, served: Counter[str], count: int
) -> None:
    register(spark)
    many = made(count)
    fill(tmp_path, NODES, many)
    with running_ring(4, tmp_path) as ring:
        stopped = asyncio.Event()

        async def publish() -> int:
            count = 0
            while not stopped.is_set():
                await ring.cluster.publish(NODES[count % 4], b"new %d" % count)
                count += 1
            return count

        publishing = ring.begin(publish())
        options = {"supervisor": ring.supervisor, "subscribe": TOPIC}
        table = spark.read.format("skipring").options(**options).load()
        rows = table.select("id", "partition", "publisher").toArrow()
        ring.call(stopped.set)
        assert publishing.result(60) > 0
    ids = rows["id"].to_pylist()
    assert len(set(ids)) == len(ids)
    assert {publication.id for publication in publications_of(many)} <= set(ids)
    assert set(rows["partition"].to_pylist()) == {0, 1}
    assert sum(pages > 0 for pages in served.values()) >= 2


# -- retention ------------------------------------------------------------------------------


def test_batches_that_are_dropped_after_planning_are_read(tmp_path: Path) -> None:
    single = [BatchRecord(b"%d" % number, 1000 + number) for number in range(250)]
    fill(tmp_path, NODES[:2], [writes("a", n, each) for n, each in enumerate(single)])
    with running_ring(2, tmp_path) as ring:

        async def limit() -> None:
            async with skipring.connect(ring.cluster.url, policy_delay_s=0) as node:
                await node.charter(TOPIC).set(max_count=200)

        logs = [ring.log_of(node) for node in NODES[:2]]
        ring.run(limit())
        ring.wait_until(lambda: all(log.records <= 213 for log in logs))  # 200 + 1/16, a charter
        planned = {each.id for each in ring.publications() if each.key != CHARTER_KEY}
        reader = batch_reader(ring)
        partitions = reader.partitions()
        ring.publish([b"later %d" % number for number in range(40)])
        ring.wait_until(lambda: all(log.low > 60 for log in logs))
        rows = rows_of(reader, partitions)
        assert {row["id"] for row in rows} == planned
        assert not planned <= {each.id for each in ring.publications()}


# -- tables ---------------------------------------------------------------------------------

PUT, OVER = {}, {UNTIL: "1"}
HELD = {UNTIL: str(1 << 62)}
GONE = {DELETED: "1"}


def writes(publisher: str, first: int, *records: BatchRecord) -> RecordBatch:
    return RecordBatch.of(list(records), publisher=publisher, first=first, topic=TOPIC)


WRITES = [
    writes("a", 0, *(BatchRecord(b"old%d" % n, 10 + n, b"k%d" % n, PUT) for n in range(50))),
    writes("a", 50, BatchRecord(b"no key", 60), BatchRecord(b"charter", 61, b"\x00charter")),
    writes("b", 0, BatchRecord(b"new", 100, b"k1", PUT), BatchRecord(b"", 101, b"k2", GONE)),
    writes("c", 0, BatchRecord(b"older", 5, b"k3", PUT), BatchRecord(b"held", 102, b"k4", HELD)),
    writes("c", 2, BatchRecord(b"over", 103, b"k5", OVER)),
    writes("d", 0, BatchRecord(b"same time", 100, b"k1", PUT)),  # d is after b
]
EXPECTED = {b"k%d" % n: b"old%d" % n for n in range(50)} | {b"k1": b"same time", b"k4": b"held"}
del EXPECTED[b"k2"], EXPECTED[b"k5"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    data_dir = tmp_path_factory.mktemp("ring")
    fill(data_dir, ["n00", "n01"], WRITES)
    with running_ring(2, data_dir) as ring:
        yield ring


def table_reader(table: Ring, *columns: str) -> TableReader:
    given = {"supervisor": table.supervisor, "subscribe": TOPIC, "asTable": "true"}
    schema = PUBLICATION
    for name in set(PUBLICATION.names) - set(columns or PUBLICATION.names):
        schema = schema.remove(schema.get_field_index(name))
    return TableReader(ReadOptions.parse(given, is_stream=False), RowForm(schema=schema))


def test_row_is_the_newest_value_of_each_key_without_deletions_and_ended_leases(
    table: Ring,
) -> None:
    found = table_reader(table)
    rows = rows_of(found, found.partitions())
    assert {row["key"]: row["value"] for row in rows} == EXPECTED
    assert len(rows) == len(EXPECTED)
    (row,) = [row for row in rows if row["key"] == b"k1"]
    assert (row["publisher"], row["sequence"], row["topic"]) == ("d", 0, TOPIC)
    assert row["id"] == WRITES[-1].record_id(0)


def test_columns_that_decide_need_not_be_selected(table: Ring) -> None:
    found = table_reader(table, "value")
    rows = rows_of(found, found.partitions())
    assert sorted(row["value"] for row in rows) == sorted(EXPECTED.values())
    assert all(row.keys() == {"value"} for row in rows)


def test_spark_reads_a_table(table: Ring, spark: SparkSession) -> None:
    register(spark)
    frame = (
        spark.read.format("skipring")
        .option("supervisor", table.supervisor)
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
