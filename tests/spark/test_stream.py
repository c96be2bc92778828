"""Stream reads of a live ring, driven as Spark drives them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from skipring.core.publications import Publication
from skipring.errors import DataLossError, UnreachableError
from skipring.spark.offsets import from_json
from skipring.spark.partitions import RangePartition
from skipring.storage.store import PublicationStore
from tests.spark.reading import Query, ids_of, rows_of, stop_readers, stream_reader
from tests.spark.rings import SETTLE_S, TOPIC, Ring, fill, made, running_ring

NODES = ["n00", "n01", "n02"]
MADE = made(500)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    fill(tmp_path, NODES, MADE)
    with running_ring(3, tmp_path) as ring:
        yield ring


@pytest.fixture(autouse=True)
def _stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("skipring.spark.snapshot.AGAIN_S", 0.05)  # a store that is gone stays so
    yield
    stop_readers()


def all_ids(ring: Ring, node: str = "n00") -> list[bytes]:
    """What a node has stored."""
    archive = ring.cluster._stores[node].archive(TOPIC)
    return ring.call(lambda: sorted(publication.id for publication in archive.publications()))


def publish(ring: Ring, first: int, count: int = 10) -> None:
    """Publish at all nodes in turn, and wait until all members have it on disk."""
    nodes = ring.cluster.nodes
    for number in range(first, first + count):
        ring.publish([b"new %d" % number], nodes[number % len(nodes)])
    ring.settle()
    ring.run(
        ring.cluster.until(
            lambda: all(
                store.archive(TOPIC).durable_end == store.archive(TOPIC).end
                for store in ring.cluster._stores.values()
            ),
            timeout=30,
        )
    )


# -- where it begins, and how far it reads -----------------------------------------------------


def test_a_stream_reads_what_is_there_and_then_what_comes(ring: Ring) -> None:
    query = Query(ring)
    assert query.batch() == 500
    assert query.batch() == 0
    publish(ring, 0)
    assert query.batch() == 10
    assert sorted(query.ids) == all_ids(ring)
    assert {row["partition"] for row in query.rows} == {0}


def test_a_stream_begins_at_the_end_if_told_to(ring: Ring) -> None:
    query = Query(ring, startingOffsets="latest")
    assert query.batch() == 0
    publish(ring, 0)
    assert query.batch() == 10


def test_a_stream_begins_at_a_position(ring: Ring) -> None:
    query = Query(ring, startingOffsets=json.dumps({TOPIC: ring.position("n01", 490)}))
    assert query.batch() == 10
    assert [row["offset"] for row in query.rows] == list(range(490, 500))


def test_a_stream_has_nothing_older_than_a_timestamp(ring: Ring) -> None:
    query = Query(ring, startingTimestamp=str(MADE[400].time // 1000))
    assert query.batch() == 100
    assert {row["sequence"] for row in query.rows} == set(range(400, 500))


def test_the_beginning_is_the_same_however_often_it_is_asked_for(ring: Ring) -> None:
    reader = stream_reader(ring, startingOffsets="latest")
    first = reader.initialOffset()
    publish(ring, 0)
    assert reader.initialOffset() == first


def test_a_batch_has_as_many_rows_as_the_limit_allows(ring: Ring) -> None:
    query = Query(ring, maxOffsetsPerTrigger="200")
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(200)
    assert [query.batch(limit) for _ in range(4)] == [200, 200, 100, 0]
    assert sorted(query.ids) == all_ids(ring)
    assert stream_reader(ring).getDefaultReadLimit() == ReadAllAvailable()


def test_a_batch_is_cut_into_partitions_of_offsets(ring: Ring) -> None:
    query = Query(ring, minPartitions="3")
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    partitions = query.reader.partitions(query.offset, end)
    assert len(partitions) == 3
    assert [row["offset"] for row in rows_of(query.reader, partitions)] == list(range(500))


def test_a_query_that_drains_reads_nothing_that_comes_later(ring: Ring) -> None:
    query = Query(ring)
    query.reader.prepareForTriggerAvailableNow()
    publish(ring, 0)
    limit = ReadMaxRows(300)
    assert [query.batch(limit) for _ in range(3)] == [300, 200, 0]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert [query.batch(limit) for _ in range(2)] == [10, 0]


def test_the_end_is_reported_for_the_figures_of_a_query(ring: Ring) -> None:
    reader = stream_reader(ring)
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert from_json(reported)[TOPIC].offset == 500


def test_only_what_is_on_a_disk_is_offered(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = list(ring.cluster._stores.values())
    for store in stores:
        monkeypatch.setattr(type(store), "commit", lambda _: None)
    query = Query(ring)
    assert query.batch() == 500
    for node in NODES:  # it is stored, and not on the disk
        ring.begin(ring.cluster.publish(node, b"in memory"))
    ring.run(
        ring.cluster.until(
            lambda: all(store.archive(TOPIC).end == 503 for store in stores), timeout=30
        )
    )
    assert query.batch() == 0
    monkeypatch.undo()
    publish(ring, 0, 1)
    assert query.batch() == 4


def test_a_ring_without_disks_cannot_be_followed() -> None:
    with running_ring(2) as ring:
        reader = stream_reader(ring)
        with pytest.raises(UnreachableError, match="start a node with a data directory"):
            reader.initialOffset()


def test_a_topic_that_is_added_is_read_from_its_start(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    query.offset = {}
    assert query.batch() == 500


# -- a batch that is run again -----------------------------------------------------------------


def test_a_batch_that_is_run_again_has_the_same_rows(ring: Ring) -> None:
    query = Query(ring, maxOffsetsPerTrigger="100")
    query.batch(ReadMaxRows(100))
    start = query.offset
    end = query.reader.latestOffset(start, ReadMaxRows(100))
    first = query.run(start, end)
    publish(ring, 0)
    query.restart()
    assert query.run(start, end) == first


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_first_batch_that_is_run_again_begins_where_it_began(ring: Ring, starting: str) -> None:
    query = Query(ring, startingOffsets=starting)
    publish(ring, 0)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    first = query.run(query.offset, end)
    publish(ring, 100)
    query.restart()  # Spark has kept the end of the batch, and asks for its beginning again
    again = query.reader.initialOffset()
    assert query.run(again, end) == first
    assert len(first) == (510 if starting == "earliest" else 10)
    query.offset = end
    assert query.batch() == 10


def test_first_batch_can_be_rerun_from_another_start_position(ring: Ring) -> None:
    query = Query(ring)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    elsewhere = next(n for n in NODES if ring.store_of(n) != from_json(end)[TOPIC].store)
    start = {TOPIC: ring.position(elsewhere, 0)}
    assert len(query.run(start, end)) == 500


def test_the_supervisor_is_not_needed_to_go_on(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    publish(ring, 0)
    ring.run(ring.cluster.stop_supervisor())
    assert query.batch() == 10


def test_a_node_that_was_restarted_is_read_on(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    node = node_of(ring, query)
    ring.call(lambda: ring.cluster.kill(node))
    ring.run(ring.cluster.restart(node))
    publish(ring, 0)
    assert query.batch() == 10
    assert node_of(ring, query) == node


# -- a store that is gone ------------------------------------------------------------------------


def node_of(ring: Ring, query: Query) -> str:
    """The node whose store a query reads."""
    store = from_json(query.offset)[TOPIC].store
    return next(node for node in ring.cluster.nodes if ring.store_of(node) == store)


def lose(ring: Ring, node: str) -> None:
    """Let a node be gone for good."""
    ring.call(lambda: ring.cluster.kill(node))


def test_a_store_that_is_gone_is_an_error_that_says_what_to_do(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    start = query.offset
    lose(ring, node_of(ring, query))
    for _ in range(2):
        with pytest.raises(DataLossError) as caught:
            query.batch()
        query.restart()
    assert "is gone" in str(caught.value)
    assert "set failOnDataLoss to false" in str(caught.value)
    with pytest.raises(DataLossError):
        query.run(start, start)


def test_a_task_notices_that_the_store_was_replaced_while_it_reads(ring: Ring) -> None:
    query = Query(ring)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    (partition,) = query.reader.partitions(query.offset, end)
    assert isinstance(partition, RangePartition)
    other = replace(partition, node="n00", address=ring.cluster.node("n00").address)
    if partition.end.store == ring.store_of("n00"):
        other = replace(other, node="n01", address=ring.cluster.node("n01").address)
    with pytest.raises(DataLossError, match="has lost what it had stored"):
        rows_of(query.reader, [other])


def test_a_batch_beyond_what_a_store_has_is_not_cut_short(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    end = {TOPIC: {**query.offset[TOPIC], "offset": 700}}
    with pytest.raises(DataLossError, match="is gone"):
        query.run(query.offset, end)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_reading_goes_on_elsewhere_without_duplicates_if_that_is_allowed(
    ring: Ring, is_restarted: bool
) -> None:
    query = Query(ring, failOnDataLoss="false")
    for number in range(3):
        query.batch()
        publish(ring, 10 * number)
    query.batch(ReadMaxRows(4))  # in the middle of something
    lose(ring, node_of(ring, query))
    publish(ring, 100)
    if is_restarted:
        query.restart()
    while query.batch(ReadMaxRows(7)):
        pass
    survivor = node_of(ring, query)
    assert len(query.ids) == len(set(query.ids))
    assert sorted(query.ids) == all_ids(ring, survivor)


def test_an_error_can_be_answered_by_allowing_to_go_on(ring: Ring) -> None:
    query = Query(ring)
    query.batch()
    lose(ring, node_of(ring, query))
    with pytest.raises(DataLossError):
        query.batch()
    publish(ring, 0)
    query.restart(failOnDataLoss="false")
    assert query.batch() == 10
    assert len(set(query.ids)) == 510


def test_a_batch_whose_store_went_before_it_was_read_is_read_elsewhere(ring: Ring) -> None:
    query = Query(ring, failOnDataLoss="false")
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
    while query.batch(ReadMaxRows(9)):
        pass
    assert len(query.ids) == len(set(query.ids)) == 530


def test_two_stores_may_go_one_after_the_other(ring: Ring) -> None:
    query = Query(ring, failOnDataLoss="false")
    query.batch()
    for number in range(2):
        publish(ring, 100 * number)
        query.batch(ReadMaxRows(3))
        lose(ring, node_of(ring, query))
        publish(ring, 100 * number + 50)
        while query.batch(ReadMaxRows(8)):
            pass
    assert len(query.ids) == len(set(query.ids)) == 540


def test_a_query_that_drains_ends_also_when_its_store_goes(ring: Ring) -> None:
    query = Query(ring, failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    query.batch(ReadMaxRows(450))
    lose(ring, node_of(ring, query))
    batches = [query.batch(ReadMaxRows(30)) for _ in range(4)]
    assert batches[-1] == 0
    assert sorted(query.ids) == all_ids(ring, node_of(ring, query))


# -- a store that was restored from a backup -----------------------------------------------------


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def restore(ring: Ring, directory: Path, backup: Path, refill: list[Publication]) -> None:
    """Put the copy of a node's directory in its place, with what comes back in this order."""
    node = directory.name
    ring.call(lambda: ring.cluster.kill(node))
    ring.run(asyncio.wait_for(ring.cluster._killed[node], SETTLE_S))
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    with PublicationStore.open(directory) as store:
        archive = store.archive(TOPIC)
        archive.write(archive.end, *refill)
        store.commit()
    ring.run(ring.cluster.restart(node))
    ring.settle()


def restored_after(
    ring: Ring, query: Query, tmp_path: Path, backup: Path, read_max: int
) -> list[Publication]:
    """Read some of 30 new publications, then restore the store without them, and refill it.

    It is refilled in the opposite order. Return the new publications in their first order.
    """
    query.batch()
    node = node_of(ring, query)
    shutil.copytree(tmp_path / node, backup)
    publish(ring, 0, 30)
    archive = ring.cluster._stores[node].archive(TOPIC)
    new = ring.call(lambda: [each for _, each in archive.read_range(500, archive.end)])
    assert query.batch(ReadMaxRows(read_max)) == read_max
    restore(ring, tmp_path / node, backup, new[::-1])
    return new


def test_stream_fails_after_its_store_was_restored_and_refilled_in_another_order(
    ring: Ring, tmp_path: Path, backup: Path
) -> None:
    query = Query(ring)
    restored_after(ring, query, tmp_path, backup, 20)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"restored from a backup.*failOnDataLoss"):
            query.batch()
        query.restart()


def test_stream_reads_on_at_its_standby_after_its_store_was_restored_if_that_is_allowed(
    ring: Ring, tmp_path: Path, backup: Path
) -> None:
    query = Query(ring, failOnDataLoss="false")
    restored_after(ring, query, tmp_path, backup, 20)
    while query.batch(ReadMaxRows(7)):
        pass
    assert len(query.ids) == len(set(query.ids)) == 530


def test_batch_that_is_run_again_fails_after_its_store_was_restored(
    ring: Ring, tmp_path: Path, backup: Path
) -> None:
    query = Query(ring)
    query.batch()
    start, node = query.offset, node_of(ring, query)
    shutil.copytree(tmp_path / node, backup)
    publish(ring, 0, 30)
    end = query.reader.latestOffset(start, ReadMaxRows(20))
    planned = query.reader.partitions(start, end)
    archive = ring.cluster._stores[node].archive(TOPIC)
    new = ring.call(lambda: [each for _, each in archive.read_range(500, archive.end)])
    restore(ring, tmp_path / node, backup, new[::-1])
    with pytest.raises(DataLossError, match="restored"):
        query.run(start, end)
    address = ring.cluster.node(node).address
    moved = [replace(each, address=address) for each in planned if isinstance(each, RangePartition)]
    with pytest.raises(DataLossError, match="has lost what it had stored"):
        rows_of(query.reader, moved)  # a task that was planned before
    query.restart(failOnDataLoss="false")
    again = query.run(start, end)
    assert sorted(ids_of(again)) == sorted(each.id for each in new[:20])


def test_stream_does_not_read_on_at_a_standby_that_was_restored(
    ring: Ring, tmp_path: Path, backup: Path
) -> None:
    query = Query(ring, failOnDataLoss="false")
    query.batch()
    standby = from_json(query.offset)[TOPIC].standby
    assert standby is not None
    spare = next(node for node in NODES if ring.store_of(node) == standby.store)
    shutil.copytree(tmp_path / spare, backup)
    publish(ring, 0, 30)
    query.batch(ReadMaxRows(20))
    archive = ring.cluster._stores[spare].archive(TOPIC)
    new = ring.call(lambda: [each for _, each in archive.read_range(500, archive.end)])
    restore(ring, tmp_path / spare, backup, new[::-1])
    lose(ring, node_of(ring, query))
    query.batch()
    assert len(query.ids) == len(set(query.ids))  # what is not known to be unread is skipped


def test_stream_goes_on_after_its_store_was_restored_and_refilled_in_the_same_order(
    ring: Ring, tmp_path: Path, backup: Path
) -> None:
    query = Query(ring)
    query.batch()
    node = node_of(ring, query)
    shutil.copytree(tmp_path / node, backup)
    publish(ring, 0, 30)
    archive = ring.cluster._stores[node].archive(TOPIC)
    new = ring.call(lambda: [each for _, each in archive.read_range(500, archive.end)])
    query.batch(ReadMaxRows(20))
    restore(ring, tmp_path / node, backup, new)
    assert query.batch() == 10
    assert len(query.ids) == len(set(query.ids)) == 530


def test_stream_without_a_standby_skips_once_after_its_store_was_restored_if_that_is_allowed(
    tmp_path: Path, backup: Path
) -> None:
    fill(tmp_path, NODES[:1], MADE)
    with running_ring(1, tmp_path) as ring:
        query = Query(ring, failOnDataLoss="false")
        restored_after(ring, query, tmp_path, backup, 30)  # its end is the query's offset again
        query.restart()  # the old reader would dial the old address first
        assert query.batch() == 0
        publish(ring, 100, 5)
        assert query.batch() == 5
        assert len(query.ids) == len(set(query.ids)) == 535


def test_stream_begins_at_offset_0_of_any_epoch_of_its_store(ring: Ring) -> None:
    start = ring.position("n01", 0) | {"epoch": 7}
    query = Query(ring, startingOffsets=json.dumps({TOPIC: start}))
    assert query.batch() == 500
    publish(ring, 0)
    assert query.batch() == 10
