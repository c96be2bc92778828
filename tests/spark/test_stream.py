"""Stream reads of a live ring, driven as Spark drives them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from skipring.core import log_pages
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.errors import DataLossError, StoreBusyError, UnreachableError
from skipring.spark.offsets import from_json
from skipring.spark.options import ReadOptions
from skipring.spark.partitions import RangePartition
from skipring.spark.stream import StreamReader
from skipring.storage.store import LogStore
from tests.spark.reading import Query, batch_rows, ids_of, rows_of, stop_readers, stream_reader
from tests.spark.rings import TOPIC, Ring, fill, made, publications_of, running_ring

NODES = ["n00", "n01", "n02"]
BATCHES = made(500)
MADE = publications_of(BATCHES)
BATCH_STARTS = [0, *accumulate(batch.count for batch in BATCHES)]


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    fill(tmp_path, NODES, BATCHES)
    with running_ring(3, tmp_path) as ring:
        yield ring


@pytest.fixture(autouse=True)
def _stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("skipring.spark.snapshot.AGAIN_S", 0.05)  # no node restarts meanwhile
    yield
    stop_readers()


def all_ids(ring: Ring, node: str = "n00") -> list[bytes]:
    """Return the ids that a node has stored."""
    return sorted(publication.id for publication in ring.publications(node))


def publish(ring: Ring, first: int, count: int = 10) -> None:
    """Publish at all nodes in turn, and wait until all members have all on disk."""
    nodes = ring.cluster.nodes
    for number in range(first, first + count):
        ring.publish([b"new %d" % number], nodes[number % len(nodes)])
    ring.wait_durable()


def read_once(query: Query, count: int) -> bool:
    """Return True if a query has read this number of publications, each once."""
    return len(query.ids) == len(set(query.ids)) == count


def node_of(ring: Ring, query: Query) -> str:
    """Return the node whose store a query reads."""
    store = from_json(query.offset)[TOPIC].store
    return next(node for node in ring.cluster.nodes if ring.store_of(node) == store)


def node_of_standby(ring: Ring, query: Query) -> str:
    """Return the node where a query would continue."""
    standby = from_json(query.offset)[TOPIC].standby
    assert standby is not None
    return next(node for node in ring.cluster.nodes if ring.store_of(node) == standby.store)


def lose(ring: Ring, node: str) -> None:
    """Remove a node for good."""
    ring.call(partial(ring.cluster.kill, node))


# -- start and limits --------------------------------------------------------------------------


def test_stream_reads_stored_publications_and_then_new_ones(ring: Ring) -> None:
    query = Query(ring)
    reported = query.reader.reportLatestOffset()
    assert reported is not None
    assert from_json(reported)[TOPIC].offset == 500
    assert [query.batch(), query.batch()] == [500, 0]
    publish(ring, 0)
    assert query.batch() == 10
    assert sorted(query.ids) == all_ids(ring)
    assert {row["partition"] for row in query.rows} == {0}
    query.offset = {}  # a topic without an offset is read from its start
    assert query.batch() == 510


def test_stream_starts_at_the_end_which_stays_the_same(ring: Ring) -> None:
    query = Query(ring, startingOffsets="latest")
    first = query.reader.initialOffset()
    assert query.batch() == 0
    publish(ring, 0)
    assert query.reader.initialOffset() == first
    assert query.batch() == 10


@pytest.mark.parametrize("epoch", [None, 7])
def test_stream_starts_at_a_position_and_at_offset_0_of_any_epoch(
    ring: Ring, epoch: int | None
) -> None:
    offset = 490 if epoch is None else 0
    start = ring.position("n01", offset)
    if epoch is not None:
        start |= {"epoch": epoch}
    query = Query(ring, startingOffsets=json.dumps({TOPIC: start}))
    query.batch()
    assert [row["offset"] for row in query.rows] == list(range(offset, 500))
    publish(ring, 0)
    assert query.batch() == 10


def test_stream_skips_publications_older_than_a_timestamp(ring: Ring) -> None:
    query = Query(ring, startingTimestamp=str(MADE[400].time // 1000))
    assert query.batch() == 100
    assert {row["sequence"] for row in query.rows} == set(range(400, 500))


def test_batch_has_as_many_rows_as_the_limit_allows(ring: Ring) -> None:
    query = Query(ring, maxOffsetsPerTrigger="200")
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(200)
    assert [query.batch(limit) for _ in range(4)] == [200, 200, 100, 0]
    assert sorted(query.ids) == all_ids(ring)
    assert stream_reader(ring).getDefaultReadLimit() == ReadAllAvailable()


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_batch_is_split_into_partitions_of_prefixes(ring: Ring, option: str) -> None:
    query = Query(ring, **{option: "3" if option == "minPartitions" else "150"})
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    partitions = query.reader.partitions(query.offset, end)
    assert len(partitions) == 4
    offsets = [row["offset"] for row in rows_of(query.reader, partitions)]
    assert sorted(offsets) == list(range(500))


def test_batch_without_a_standby_is_split_into_partitions_of_offsets(tmp_path: Path) -> None:
    fill(tmp_path, NODES[:1], BATCHES)
    with running_ring(1, tmp_path) as ring:
        query = Query(ring, minPartitions="3")
        end = query.reader.latestOffset(query.offset, ReadAllAvailable())
        partitions = query.reader.partitions(query.offset, end)
        assert len(partitions) == 3
        assert [row["offset"] for row in rows_of(query.reader, partitions)] == list(range(500))
        stop_readers()


def test_small_batch_waits_for_more_publications_or_for_the_delay(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("skipring.spark.stream.monotonic", lambda: now_s)
    query = Query(ring, minOffsetsPerTrigger="8", maxTriggerDelay="30s")
    assert query.batch() == 500
    publish(ring, 0, 3)
    now_s = 29.0
    assert query.batch() == 0
    now_s = 30.0
    assert query.batch() == 3
    publish(ring, 3, 7)
    assert query.batch() == 0
    publish(ring, 10, 1)
    assert query.batch() == 8


def reader_of(ring: Ring, **options: str) -> StreamReader:
    given = {"supervisor": ring.supervisor, "startingOffsets": "earliest", **options}
    return StreamReader(ReadOptions.parse(given, is_stream=True))


def rows_until_now(reader: StreamReader, start: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    end = reader.latestOffset(start, ReadAllAvailable())
    return len(rows_of(reader, reader.partitions(start, end))), end


def test_stream_of_a_pattern_reads_a_topic_that_appears_later(ring: Ring) -> None:
    with closing_reader(reader_of(ring, subscribePattern="ord.*")) as reader:
        count, end = rows_until_now(reader, reader.initialOffset())
        assert (count, sorted(end)) == (500, [TOPIC])
        node = ring.cluster.node("n00")
        ring.call(partial(node.subscribe, "ordinal"))
        ring.call(partial(node.subscribe, "other"))
        for topic in ("ordinal", "other"):
            ring.run(node.publish(topic, BatchRecord(b"1"), BatchRecord(b"2")))
        ring.wait_until(lambda: ring.cluster.supervisor().members().get("ordinal", 0) > 0)
        count, end = rows_until_now(reader, end)
        assert (count, sorted(end)) == (2, [TOPIC, "ordinal"])


def test_stream_reads_only_assigned_members(ring: Ring) -> None:
    with closing_reader(reader_of(ring, assign=json.dumps({TOPIC: ["n01"]}))) as reader:
        count, end = rows_until_now(reader, reader.initialOffset())
        assert count == 500
        assert from_json(end)[TOPIC].store == ring.store_of("n01")
        assert from_json(end)[TOPIC].standby is None


@contextmanager
def closing_reader(reader: StreamReader) -> Iterator[StreamReader]:
    try:
        yield reader
    finally:
        reader.stop()


def test_query_with_available_now_reads_nothing_that_arrives_later(ring: Ring) -> None:
    query = Query(ring)
    query.reader.prepareForTriggerAvailableNow()
    publish(ring, 0)
    limit = ReadMaxRows(300)
    assert [query.batch(limit) for _ in range(3)] == [300, 200, 0]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert [query.batch(limit) for _ in range(2)] == [10, 0]


def test_only_durable_publications_are_read(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogStore, "commit", lambda *_: None)
    query = Query(ring)
    assert query.batch() == 500
    for node in NODES:  # in memory only
        ring.begin(ring.cluster.publish(node, b"in memory"))
    logs = [ring.log_of(node) for node in NODES]
    ring.wait_until(lambda: all(log.end == 503 for log in logs))
    assert query.batch() == 0
    monkeypatch.undo()
    publish(ring, 0, 1)
    assert query.batch() == 4


def test_ring_without_disks_cannot_be_followed() -> None:
    with running_ring(2) as ring:
        reader = stream_reader(ring)
        with pytest.raises(UnreachableError, match="start a node with a data directory"):
            reader.initialOffset()


# -- offsets inside a batch --------------------------------------------------------------------


def publish_batch(ring: Ring, count: int, node: str = "n00") -> None:
    """Publish a batch at a node, and wait until all members have it on disk."""
    records = [BatchRecord(b"%d of %d" % (number, count)) for number in range(count)]
    ring.run(ring.cluster.node(node).publish(TOPIC, *records))
    ring.wait_durable()


def test_trigger_may_end_inside_a_batch(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    publish_batch(ring, 40)
    assert ring.batches(start=500)[0].count == 40
    for size in (7, 7, 7, 7, 7, 5, 0):
        assert query.batch(ReadMaxRows(7)) == size
        query.restart()  # the next trigger continues inside the batch
    assert [row["offset"] for row in query.rows] == list(range(540))
    assert query.ids == [each.id for each in ring.publications(node_of(ring, query))]


def test_stream_starts_and_a_batch_read_ends_inside_a_batch(ring: Ring) -> None:
    publish_batch(ring, 40)
    start, end = ring.position("n01", 511), ring.position("n01", 529)
    query = Query(ring, startingOffsets=json.dumps({TOPIC: start}))
    query.batch()
    given = {"startingOffsets": start, "endingOffsets": end}
    texts = {name: json.dumps({TOPIC: place}) for name, place in given.items()}
    rows = batch_rows(ring, **texts, minPartitions="3")
    assert [row["offset"] for row in query.rows] == list(range(511, 540))
    assert query.rows[:18] == rows


def test_query_inside_a_batch_continues_elsewhere_without_duplicates(ring: Ring) -> None:
    query = Query(ring, failOnDataLoss="false")
    query.batch()
    publish_batch(ring, 40)
    query.batch(ReadMaxRows(11))
    start = query.offset
    end = query.reader.latestOffset(start, ReadMaxRows(9))
    expected = ids_of(query.run(start, end))
    lose(ring, node_of(ring, query))
    query.restart()
    again = query.run(start, end)  # both ends are inside the batch
    assert sorted(ids_of(again)) == sorted(expected)
    query.rows += again
    query.offset = end
    publish_batch(ring, 20, node_of_standby(ring, query))
    query.drain(ReadMaxRows(13))
    assert read_once(query, 560)


# -- batches that run again --------------------------------------------------------------------


def test_batch_that_runs_again_has_the_same_rows(ring: Ring) -> None:
    query = Query(ring, maxOffsetsPerTrigger="100")
    query.batch(ReadMaxRows(100))
    start = query.offset
    end = query.reader.latestOffset(start, ReadMaxRows(100))
    first = query.run(start, end)
    publish(ring, 0)
    query.restart()
    assert query.run(start, end) == first


@pytest.mark.parametrize(("starting", "count"), [("earliest", 510), ("latest", 10)])
def test_first_batch_that_runs_again_starts_where_it_started(
    ring: Ring, starting: str, count: int
) -> None:
    query = Query(ring, startingOffsets=starting)
    publish(ring, 0)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    first = query.run(query.offset, end)
    assert len(first) == count
    publish(ring, 100)
    query.restart()  # Spark has stored the end of the batch, and asks for its start again
    assert query.run(query.reader.initialOffset(), end) == first
    elsewhere = next(n for n in NODES if ring.store_of(n) != from_json(end)[TOPIC].store)
    assert len(query.run({TOPIC: ring.position(elsewhere, 0)}, end)) == count
    query.offset = end
    assert query.batch() == 10


def test_query_continues_without_a_supervisor(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    publish(ring, 0)
    ring.run(ring.cluster.stop_supervisor())
    assert query.batch() == 10


def test_query_continues_at_a_restarted_node(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    node = node_of(ring, query)
    lose(ring, node)
    ring.run(ring.cluster.restart(node))
    publish(ring, 0)
    assert query.batch() == 10
    assert node_of(ring, query) == node


# -- stores that are gone ------------------------------------------------------------------------


def test_lost_store_without_a_standby_is_an_error_with_a_working_remedy(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipring.spark.stream.with_standby", lambda *given: given[3])
    query = Query(ring)
    query.batch()
    start = query.offset
    lose(ring, node_of(ring, query))
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"is gone.*set failOnDataLoss to false"):
            query.batch()
        query.restart()
    with pytest.raises(DataLossError):
        query.run(start, start)
    query.restart(failOnDataLoss="false")
    assert query.batch() == 0
    publish(ring, 0)
    assert query.batch() == 10
    assert read_once(query, 510)


@pytest.mark.parametrize("minimum", ["1", "4"])
def test_task_whose_member_stops_while_it_reads_continues_at_the_standby(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, minimum: str
) -> None:
    monkeypatch.setattr("skipring.spark.arrow.ROWS_AT_ONCE", 30)
    monkeypatch.setattr(log_pages, "CONTENT_PAGE", log_pages.CONTENT_PAGE._replace(entries_max=3))
    query = Query(ring, minPartitions=minimum)
    publish(ring, 0)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    partitions = query.reader.partitions(query.offset, end)
    query.offset = end
    node = node_of(ring, query)
    for partition in partitions:
        for batch in query.reader.read(partition):
            query.rows += batch.to_pylist()
            if node in ring.cluster.nodes:
                lose(ring, node)
    assert read_once(query, 510)
    publish(ring, 100)
    query.batch()
    assert read_once(query, 520)


def test_task_detects_another_store_and_a_batch_beyond_the_end(ring: Ring) -> None:
    query = Query(ring)
    start = query.offset
    end = query.reader.latestOffset(start, ReadAllAvailable())
    (partition,) = query.reader.partitions(start, end)
    assert isinstance(partition, RangePartition)
    node = next(each for each in NODES if ring.store_of(each) != partition.end.store)
    assert partition.fallback
    address = ring.cluster.node(node).address
    other = replace(partition, node=node, address=address, fallback=())
    with pytest.raises(DataLossError, match="has lost stored publications"):
        rows_of(query.reader, [other])
    with pytest.raises(DataLossError, match="is gone"):
        query.run(end, {TOPIC: {**end[TOPIC], "offset": 700, "standby": None}})


@pytest.mark.parametrize("is_restarted", [False, True])
def test_query_continues_elsewhere_without_duplicates(ring: Ring, is_restarted: bool) -> None:
    query = Query(ring)
    for number in range(3):
        query.batch()
        publish(ring, 10 * number)
    query.batch(ReadMaxRows(4))  # a batch that does not end at the end of the log
    lose(ring, node_of(ring, query))
    publish(ring, 100)
    if is_restarted:
        query.restart()
    query.drain(ReadMaxRows(7))
    assert len(query.ids) == len(set(query.ids))
    assert sorted(query.ids) == all_ids(ring, node_of(ring, query))


def test_batch_whose_store_is_lost_before_it_is_read_is_read_elsewhere(ring: Ring) -> None:
    query = Query(ring)
    query.batch(ReadMaxRows(450))
    publish(ring, 0, 30)
    start = query.offset
    end = query.reader.latestOffset(start, ReadMaxRows(60))
    expected = ids_of(query.run(start, end))
    lose(ring, node_of(ring, query))
    query.restart()
    assert sorted(ids_of(query.run(start, end))) == sorted(expected)
    query.rows += query.run(start, end)
    query.offset = end
    query.drain(ReadMaxRows(9))
    assert read_once(query, 530)


def test_two_stores_may_be_lost_one_after_the_other(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    for number in range(2):
        publish(ring, 100 * number)
        query.batch(ReadMaxRows(3))
        lose(ring, node_of(ring, query))
        publish(ring, 100 * number + 50)
        query.drain(ReadMaxRows(8))
    assert read_once(query, 540)


def test_query_with_available_now_ends_after_its_store_is_lost(ring: Ring) -> None:
    query = Query(ring)
    query.reader.prepareForTriggerAvailableNow()
    query.batch(ReadMaxRows(450))
    lose(ring, node_of(ring, query))
    batches = [query.batch(ReadMaxRows(30)) for _ in range(4)]
    assert batches[-1] == 0
    assert sorted(query.ids) == all_ids(ring, node_of(ring, query))


@pytest.mark.parametrize("count", [1, 3])
def test_query_that_is_far_behind_continues_elsewhere(tmp_path: Path, count: int) -> None:
    rng, batches = Random(count), made(5000)
    for node in NODES:  # each has a slightly different order
        places = sorted(range(len(batches)), key=lambda place: place + rng.uniform(0, 8))
        fill(tmp_path, [node], [batches[place] for place in places])
    with running_ring(3, tmp_path) as ring:
        query = Query(ring)
        assert [query.batch(ReadMaxRows(500)) for _ in range(count)] == [500] * count
        lose(ring, node_of(ring, query))
        query.drain(ReadMaxRows(700))
        assert read_once(query, 5000)
        stop_readers()


def test_query_continues_elsewhere_without_a_supervisor(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    node = node_of(ring, query)
    publish(ring, 0)
    start, end = query.offset, query.reader.latestOffset(query.offset, ReadAllAvailable())
    ring.run(ring.cluster.stop_supervisor())
    lose(ring, node)
    assert query.reader.reportLatestOffset() is None
    assert len(query.run(start, end)) == 10  # a micro-batch that was planned before
    assert query.batch() == 10
    assert read_once(query, 510)


def test_query_waits_for_its_only_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, NODES[:1], BATCHES)
    with running_ring(1, tmp_path) as ring:
        query = Query(ring)
        query.batch()
        publish(ring, 0)
        lose(ring, "n00")
        assert query.reader.reportLatestOffset() is None
        with pytest.raises(UnreachableError):
            query.batch()

        def restart(_: float) -> None:
            if "n00" not in ring.cluster.nodes:
                ring.run(ring.cluster.restart("n00"))
                ring.run(ring.cluster.wait_healthy())

        monkeypatch.setattr("skipring.spark.snapshot.sleep", restart)
        assert query.batch() == 10
        assert read_once(query, 510)
        stop_readers()


# -- stores that were restored from a backup -----------------------------------------------------


def restore(ring: Ring, directory: Path, refill: list[RecordBatch]) -> None:
    """Replace the directory of a node by its backup, refilled in this order."""
    node = directory.name
    lose(ring, node)
    ring.wait_until(partial(is_released, directory))
    shutil.rmtree(directory)
    shutil.copytree(directory.with_suffix(".backup"), directory)
    with LogStore.open(directory) as store:
        for batch in refill:
            store.log(TOPIC).append(batch)
        store.commit()
    ring.run(ring.cluster.restart(node))
    ring.wait_in_sync()


def is_released(directory: Path) -> bool:
    """Return True if no process uses a data directory."""
    try:
        LogStore.open(directory).close()
    except StoreBusyError:
        return False
    return True


def publish_after_backup(ring: Ring, directory: Path) -> list[RecordBatch]:
    """Back up a node, then publish 30; return these in the order of the node."""
    shutil.copytree(directory, directory.with_suffix(".backup"))
    publish(ring, 0, 30)
    return ring.batches(directory.name, 500)


def test_stream_continues_at_its_standby_after_its_store_was_restored(
    ring: Ring, tmp_path: Path
) -> None:
    query = Query(ring)
    query.batch()
    directory = tmp_path / node_of(ring, query)
    new = publish_after_backup(ring, directory)
    assert query.batch(ReadMaxRows(20)) == 20
    restore(ring, directory, new[::-1])
    query.drain(ReadMaxRows(7))
    assert read_once(query, 530)


def test_batch_that_runs_again_is_read_elsewhere_after_its_store_was_restored(
    ring: Ring, tmp_path: Path
) -> None:
    query = Query(ring)
    query.batch()
    start, node = query.offset, node_of(ring, query)
    new = publish_after_backup(ring, tmp_path / node)
    end = query.reader.latestOffset(start, ReadMaxRows(20))
    planned = query.reader.partitions(start, end)
    restore(ring, tmp_path / node, new[::-1])
    expected = sorted(each.id for each in publications_of(new)[:20])
    assert sorted(ids_of(query.run(start, end))) == expected
    address = ring.cluster.node(node).address
    moved = [replace(each, address=address) for each in planned if isinstance(each, RangePartition)]
    assert sorted(ids_of(rows_of(query.reader, moved))) == expected
    moved = [replace(each, fallback=()) for each in moved]
    with pytest.raises(DataLossError, match="has lost stored publications"):
        rows_of(query.reader, moved)  # a task that was planned before
    query.restart()
    assert sorted(ids_of(query.run(start, end))) == expected


def test_stream_does_not_continue_at_a_standby_that_was_restored(
    ring: Ring, tmp_path: Path
) -> None:
    query = Query(ring, failOnDataLoss="false")
    query.batch()
    spare = node_of_standby(ring, query)
    new = publish_after_backup(ring, tmp_path / spare)
    query.batch(ReadMaxRows(20))
    restore(ring, tmp_path / spare, new[::-1])
    lose(ring, node_of(ring, query))
    query.batch()
    assert len(query.ids) == len(set(query.ids))  # publications that may have been read are skipped


def test_stream_continues_after_its_store_was_refilled_in_the_same_order(
    ring: Ring, tmp_path: Path
) -> None:
    query = Query(ring)
    query.batch()
    directory = tmp_path / node_of(ring, query)
    new = publish_after_backup(ring, directory)
    query.batch(ReadMaxRows(20))
    restore(ring, directory, new)
    assert query.batch() == 10
    assert read_once(query, 530)


def test_stream_without_a_standby_skips_once_after_its_store_was_restored_if_allowed(
    tmp_path: Path,
) -> None:
    fill(tmp_path, NODES[:1], BATCHES)
    with running_ring(1, tmp_path) as ring:
        query = Query(ring, failOnDataLoss="false")
        query.batch()
        new = publish_after_backup(ring, tmp_path / "n00")
        assert query.batch() == 30
        restore(ring, tmp_path / "n00", new[::-1])  # its end is the offset of the query again
        query.restart()  # the old reader would dial the old address first
        assert query.batch() == 0
        publish(ring, 100, 5)
        assert query.batch() == 5
        assert read_once(query, 535)


# -- retention -------------------------------------------------------------------------------


def trim(ring: Ring, offset: int) -> None:
    """Drop the publications below an offset from the log of each member, as a policy does."""
    for node in NODES:
        ring.call(partial(ring.log_of(node).trim, offset))


def test_new_stream_starts_at_the_first_retained_publication(ring: Ring) -> None:
    trim(ring, BATCH_STARTS[20])
    query = Query(ring)
    assert query.batch() == 500 - BATCH_STARTS[20]
    assert query.batch() == 0


@pytest.mark.parametrize("fails", ["true", "false"])
def test_stream_fails_or_continues_where_unread_publications_have_expired(
    ring: Ring, fails: str
) -> None:
    query = Query(ring, failOnDataLoss=fails, maxOffsetsPerTrigger="50")
    assert query.batch(ReadMaxRows(50)) == 50
    low = BATCH_STARTS[20]
    trim(ring, low)
    if fails == "true":
        with pytest.raises(DataLossError, match=f"{low - 50} publications of 'orders' .* expired"):
            query.batch()
    else:
        assert query.batch() == 500 - low
        assert query.rows[50]["offset"] == low


def test_batch_read_of_a_range_begins_at_the_first_retained_publication(ring: Ring) -> None:
    trim(ring, low := BATCH_STARTS[20])
    rows = batch_rows(ring, endingOffsets=json.dumps({TOPIC: ring.position("n00", 400)}))
    assert [row["offset"] for row in rows] == list(range(low, 400))
