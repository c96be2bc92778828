"""Batch reads of a live ring: one snapshot, proven, while publishing goes on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.msgpack import Decoder
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from skipring.node.log_server import handle_log_request

import skipring.node.request_server
from skipring.core.events import PublishRequested
from skipring.core.publications import Publication
from skipring.errors import DataLossError, InputError, UnreachableError
from skipring.spark import register
from skipring.spark.batch import BatchReader
from skipring.wire.rpc import FetchLog, LogInfo, LogPage, Refused
from tests.spark.reading import batch_reader, ids_of, rows_of, stop_readers, stream_reader
from tests.spark.rings import TOPIC, Ring, fill, made, running_ring

NODES = ["n00", "n01", "n02", "n03"]
MADE = made(3000)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A ring that no test changes."""
    data_dir = tmp_path_factory.mktemp("ring")
    fill(data_dir, NODES, MADE)
    with running_ring(4, data_dir) as ring:
        yield ring


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many pages were read from each store."""
    counts: Counter[str] = Counter()

    def counted(store: str, *given: Any) -> LogInfo | LogPage | Refused:  # noqa: ANN401
        counts[store] += isinstance(given[1], FetchLog)
        return handle_log_request(store, *given)

    monkeypatch.setattr(skipring.node.request_server, "handle_log_request", counted)
    return counts


# -- what is read ------------------------------------------------------------------------------


def test_a_batch_has_every_publication_once_with_all_its_fields(ring: Ring) -> None:
    reader = batch_reader(ring, includeHeaders="true")
    rows = sorted(rows_of(reader, reader.partitions()), key=lambda row: row["sequence"])
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


def test_headers_are_left_out_unless_they_are_asked_for(ring: Ring) -> None:
    reader = batch_reader(ring)
    assert "headers" not in rows_of(reader, reader.partitions())[0]


def test_the_work_is_spread_over_the_members(ring: Ring, served: Counter[str]) -> None:
    reader = batch_reader(ring, minPartitions="4")
    partitions = reader.partitions()
    assert len(partitions) == 4
    rows_of(reader, partitions)
    assert len(served) == 4


def test_there_are_as_many_partitions_as_asked_for_or_a_few_more(ring: Ring) -> None:
    for wanted, made_up in ((1, 1), (3, 4), (16, 16), (200, 256)):
        reader = batch_reader(ring, minPartitions=str(wanted))
        assert len(reader.partitions()) == made_up


def test_partitions_are_numbered_like_the_prefixes(ring: Ring) -> None:
    reader = batch_reader(ring, minPartitions="16")
    rows = rows_of(reader, reader.partitions())
    assert {row["partition"] for row in rows} == set(range(16))
    assert all(row["id"][0] >> 4 == row["partition"] for row in rows)


def test_what_was_published_earlier_is_left_out(ring: Ring) -> None:
    middle = MADE[1000].time // 1000
    reader = batch_reader(ring, startingTimestamp=str(middle))
    rows = rows_of(reader, reader.partitions())
    assert sorted(row["sequence"] for row in rows) == list(range(1000, 3000))


def test_what_has_no_time_has_no_timestamp(tmp_path: Path) -> None:
    timeless = [replace(publication, time=0, id=b"").with_id(TOPIC) for publication in made(2)]
    fill(tmp_path, ["n00"], timeless)
    with running_ring(1, tmp_path) as ring:
        reader = batch_reader(ring)
        rows = rows_of(reader, reader.partitions())
    assert [row["timestamp"] for row in rows] == [None, None]


def test_several_topics_are_read_together(tmp_path: Path) -> None:
    with running_ring(1, tmp_path) as ring:
        node = ring.cluster.node("n00")
        for topic in ("grün", "empty"):
            ring.call(partial(node.subscribe, topic))
        ring.publish([b"1", b"2"])
        ring.run(node.publish("grün", PublishRequested(payload=b"3")))
        ring.run(ring.cluster.until(lambda: set(node.topics) == {TOPIC, "grün", "empty"}))
        topics = f"{TOPIC},grün,empty"
        for reader in (batch_reader(ring, subscribe=topics), stream_reader(ring, subscribe=topics)):
            if isinstance(reader, BatchReader):
                partitions = reader.partitions()
            else:
                start = reader.initialOffset()
                partitions = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(9)))
            rows = rows_of(reader, partitions)
            found = sorted((row["topic"], row["value"]) for row in rows)
            assert found == [("grün", b"3"), (TOPIC, b"1"), (TOPIC, b"2")]
        stop_readers()


def test_topic_without_members_is_reported(ring: Ring) -> None:
    with pytest.raises(UnreachableError, match="'nothing' has no members"):
        batch_reader(ring, subscribe=f"{TOPIC},nothing").partitions()


def test_a_topic_without_publications_has_no_rows() -> None:
    with running_ring(2) as ring:
        reader = batch_reader(ring)
        assert rows_of(reader, reader.partitions()) == []


def test_a_ring_without_disks_is_read_as_well() -> None:
    with running_ring(2) as ring:
        ring.publish(b"%d" % number for number in range(100))
        ring.settle()
        reader = batch_reader(ring)
        rows = rows_of(reader, reader.partitions())
    numbers = sorted(row["sequence"] for row in rows)
    assert numbers == list(range(numbers[0], numbers[0] + 100))


# -- between two positions ---------------------------------------------------------------------


def position(ring: Ring, offset: int, node: str = "n00") -> str:
    return json.dumps({TOPIC: ring.position(node, offset)})


def test_a_part_of_one_store_is_read(ring: Ring) -> None:
    reader = batch_reader(
        ring, startingOffsets=position(ring, 100), endingOffsets=position(ring, 150)
    )
    rows = rows_of(reader, reader.partitions())
    assert [row["offset"] for row in rows] == list(range(100, 150))
    assert {row["partition"] for row in rows} == {0}
    open_end = batch_reader(ring, startingOffsets=position(ring, 2990), minPartitions="3")
    assert len(open_end.partitions()) == 3
    assert len(rows_of(open_end, open_end.partitions())) == 10
    open_start = batch_reader(ring, endingOffsets=position(ring, 5))
    assert len(rows_of(open_start, open_start.partitions())) == 5


def test_positions_that_cannot_be_read_are_told(ring: Ring) -> None:
    two = batch_reader(
        ring, startingOffsets=position(ring, 1), endingOffsets=position(ring, 5, "n01")
    )
    with pytest.raises(InputError, match="different stores"):
        two.partitions()
    with pytest.raises(InputError, match="has 3000 offsets in that store, and 3001 was asked for"):
        batch_reader(ring, endingOffsets=position(ring, 3001)).partitions()
    gone = '{"orders": {"store": "5eed", "epoch": 0, "offset": 1}}'
    with pytest.raises(DataLossError, match="the store 5eed "):
        batch_reader(ring, startingOffsets=gone).partitions()
    own = ring.position("n00", 100)
    for wrong in ({"epoch": 7}, {"chain": "0123456789abcdef"}, {"offset": 9999, "chain": "00" * 8}):
        given = json.dumps({TOPIC: own | wrong})
        for option in ("startingOffsets", "endingOffsets"):
            with pytest.raises(DataLossError, match="restored from a backup; bring it back, or"):
                batch_reader(ring, **{option: given}).partitions()


def test_chain_value_of_a_given_position_is_checked(ring: Ring) -> None:
    archive = ring.cluster._stores["n00"].archive(TOPIC)
    chains = [ring.call(partial(archive.chain_at, offset)).hex() for offset in (100, 150)]
    given = [ring.position("n00", 100), ring.position("n00", 150)]
    start, end = (
        json.dumps({TOPIC: {**g, "chain": c}}) for g, c in zip(given, chains, strict=True)
    )
    reader = batch_reader(ring, startingOffsets=start, endingOffsets=end)
    rows = rows_of(reader, reader.partitions())
    assert [row["offset"] for row in rows] == list(range(100, 150))


# -- members that go or lie --------------------------------------------------------------------


@pytest.mark.heavy
def test_member_that_stops_after_planning_is_replaced_by_an_agreeing_member(
    tmp_path: Path,
) -> None:
    fill(tmp_path, NODES, MADE)
    with running_ring(4, tmp_path) as ring:
        reader = batch_reader(ring)
        partitions = reader.partitions()
        for node in ("n01", "n02"):
            ring.call(lambda node=node: ring.cluster.kill(node))
        rows = rows_of(reader, partitions)
    assert sorted(ids_of(rows)) == sorted(publication.id for publication in MADE)


def lying(
    monkeypatch: pytest.MonkeyPatch,
    stores: set[str],
    lie: Any,  # noqa: ANN401
) -> None:
    """Let the nodes with these stores send other pages than they should."""

    def offered(store: str, *given: Any) -> Any:  # noqa: ANN401
        said = handle_log_request(store, *given)
        return lie(said) if store in stores and isinstance(said, LogPage) else said

    monkeypatch.setattr(skipring.node.request_server, "handle_log_request", offered)


def without_the_first(page: LogPage) -> LogPage:
    empty = b"\xdd\x00\x00\x00\x00"
    return replace(page, offsets=(), ids=b"", publications=empty)


def spoilt(page: LogPage) -> LogPage:
    """Payloads that do not fit their ids any more."""
    return replace(page, publications=page.publications.replace(b"00000", b"00001"))


def invented(page: LogPage) -> LogPage:
    """Return a page of invented publications with matching ids."""
    changed = page.publications.replace(b"00000", b"00001")
    ids = (each.id_in(TOPIC) for each in Decoder(list[Publication]).decode(changed))
    return replace(page, publications=changed, ids=b"".join(ids))


@pytest.mark.parametrize("lie", [without_the_first, spoilt])
def test_what_one_member_has_lost_is_read_from_another(
    ring: Ring,
    monkeypatch: pytest.MonkeyPatch,
    lie: Any,  # noqa: ANN401
) -> None:
    store = ring.store_of("n01")
    lying(monkeypatch, {store}, lie)
    reader = batch_reader(ring)
    rows = rows_of(reader, reader.partitions())
    assert sorted(ids_of(rows)) == sorted(publication.id for publication in MADE)


def repeated(page: LogPage) -> LogPage:
    """The first publication once more at the end, under an offset of its own."""
    rows = Decoder(list[Raw]).decode(page.publications)
    again = msgspec.msgpack.encode([*rows, *rows[:1]])
    offsets = (*page.offsets, page.offsets[-1] + 1)
    return replace(page, offsets=offsets, ids=page.ids + page.ids[:32], publications=again)


def test_what_a_member_sends_twice_in_a_page_is_read_once(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, {ring.store_of(node) for node in NODES}, repeated)
    reader = batch_reader(ring)
    rows = rows_of(reader, reader.partitions())
    assert sorted(ids_of(rows)) == sorted(publication.id for publication in MADE)


def test_a_read_fails_if_a_member_invents_something(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, {ring.store_of("n01")}, invented)
    reader = batch_reader(ring)
    partitions = reader.partitions()
    with pytest.raises(UnreachableError, match="from n01 on it is not"):
        rows_of(reader, partitions)


def test_read_fails_if_no_member_has_the_agreed_snapshot(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, {ring.store_of(node) for node in NODES}, without_the_first)
    reader = batch_reader(ring)
    partitions = reader.partitions()
    with pytest.raises(UnreachableError, match="is not what 4 members agreed on"):
        rows_of(reader, partitions)


# -- with Spark --------------------------------------------------------------------------------


@pytest.mark.heavy
def test_100_000_publications_are_read_once_each_while_others_publish(
    spark: SparkSession, tmp_path: Path, served: Counter[str]
) -> None:
    register(spark)
    many = made(100_000)
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
        table = (
            spark.read.format("skipring")
            .option("supervisor", ring.supervisor)
            .option("subscribe", TOPIC)
            .load()
        )
        rows = table.select("id", "partition", "publisher").toArrow()
        ring.call(stopped.set)
        assert publishing.result(60) > 0
    ids = rows["id"].to_pylist()
    assert len(set(ids)) == len(ids)
    assert {publication.id for publication in many} <= set(ids)
    assert set(rows["partition"].to_pylist()) == {0, 1}
    assert sum(pages > 0 for pages in served.values()) >= 2
