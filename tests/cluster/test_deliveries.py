"""Delivery logs: served in pages, correct in a live ring, and kept over restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from time import time_ns

import pytest

from skipring.core.batches import RecordBatch
from skipring.core.effects import Origin
from skipring.core.log import Log, MemoryLog
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES
from skipring.node import arrival_tap as arrival_tap_module
from skipring.node.arrival_tap import delivery_page
from skipring.node.group_commit import DeliveryLogFlusher
from skipring.node.host import NodeHost
from skipring.rpc.client import RpcClient
from skipring.storage.delivery_log import FOLDER, ROW_BYTES, DeliveryLog
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog
from skipring.testing import Cluster
from skipring.wire.codec import decode, encode
from skipring.wire.rpc import DeliveryPage, FetchDeliveries
from tests.support.batches import batch_of
from tests.support.connections import healthy_cluster
from tests.support.exchanges import logged, the_line
from tests.support.rings import until
from tests.wire.samples import the_frame

TOPIC = "news"
END = 2**40 - 1
ORIGINS = tuple(Origin)

Delivery = tuple[bytes, int, int, Origin]  # id, time, hops and origin


def batches(count: int, size: int = 10) -> Iterator[RecordBatch]:
    """Yield batches of up to 3 records, of 1 if the records are large; ``count`` records in all."""
    first = 0
    while first < count:
        records = min(1 + first % 3 if size < 1000 else 1, count - first)
        yield batch_of(*[bytes(size)] * records, publisher="p", first=first, topic=TOPIC)
        first += records


def by_offset(page: DeliveryPage) -> dict[int, Delivery]:
    ids = [page.ids[at : at + ID_BYTES] for at in range(0, len(page.ids), ID_BYTES)]
    origins = [ORIGINS[place] for place in page.origins]
    rows = zip(ids, page.times, page.hops, origins, strict=True)
    assert list(page.offsets) == sorted(set(page.offsets))
    return dict(zip(page.offsets, rows, strict=True))


# -- pages -------------------------------------------------------------------------------------


def recorded(trace: DeliveryLog, offsets: range) -> DeliveryLog:
    for offset in offsets:
        trace.record((TOPIC, offset, 10**15 + offset, offset % 9, ORIGINS[offset % 3], 1))
    return trace


def expected(log: Log, offsets: Iterable[int]) -> dict[int, Delivery]:
    stored = {
        offset: key
        for entry in log.read_range(0, log.end)
        for offset, key in enumerate(entry.batch.record_ids(), entry.offset)
    }
    return {
        offset: (stored[offset], 10**15 + offset, offset % 9, ORIGINS[offset % 3])
        for offset in offsets
    }


def paged(
    trace: DeliveryLog, archive: Log, start: int = 0, end: int = END
) -> tuple[dict[int, Delivery], int]:
    """Return the contents of all pages and their number; each page fits into its frame."""
    found: dict[int, Delivery] = {}
    pages, following = 0, start
    while True:
        page = delivery_page(trace, TOPIC, archive, FetchDeliveries(7, following, end))
        assert decode(the_frame(encode("x" * 255, page))).message == page
        part = by_offset(page)
        assert not part.keys() & found.keys()
        found |= part
        pages += 1
        if page.next is None:
            return found, pages
        assert page.next > following
        following = page.next


@contextmanager
def on_disk(directory: Path, count: int, size: int = 10) -> Iterator[tuple[LogStore, SegmentLog]]:
    with LogStore.open(directory) as store:
        log = store.log(TOPIC)
        for batch in batches(count, size):
            log.append(batch)
        store.commit()
        yield store, log


@pytest.mark.parametrize("count", [0, 1, 4096, 9000])
def test_pages_together_are_complete(count: int, tmp_path: Path) -> None:
    with on_disk(tmp_path, count) as (store, archive):
        for trace in (DeliveryLog(), DeliveryLog.open(tmp_path, store)):
            recorded(trace, range(count))
            trace.write()
            found, pages = paged(trace, archive)
            assert found == expected(archive, range(count))
            assert pages == max(1, -(-count // 4096))
            trace.close()
    memory = MemoryLog(batches(count))
    trace = recorded(DeliveryLog(), range(count))
    assert paged(trace, memory)[0] == expected(memory, range(count))


def test_only_the_requested_range_is_served() -> None:
    memory = MemoryLog(batches(100))
    trace = recorded(DeliveryLog(), range(100))
    assert paged(trace, memory, 20, 30)[0] == expected(memory, range(20, 30))
    assert paged(trace, memory, 90)[0] == expected(memory, range(90, 100))
    assert paged(trace, memory, 100)[0] == paged(trace, memory, 30, 20)[0] == {}


def test_page_continues_after_a_gap() -> None:
    memory = MemoryLog(batches(9000))
    trace = recorded(recorded(DeliveryLog(), range(10)), range(8000, 8500))
    found, pages = paged(trace, memory)
    assert (list(found), pages) == ([*range(10), *range(8000, 8500)], 1)


def test_discarded_records_are_not_served(tmp_path: Path) -> None:
    with on_disk(tmp_path, 100) as (_, archive):
        trace = recorded(DeliveryLog(), range(100))
        lost = [archive.read(offset) for offset in (7, 99)]
        absent = {at for entry in lost if entry for at in range(entry.offset, entry.end)}
        assert {7, 99} < absent
        archive.discard(7)
        archive.discard(99)
        others = [offset for offset in range(100) if offset not in absent]
        assert paged(trace, archive)[0] == expected(archive, others)


def test_only_durable_deliveries_are_served(tmp_path: Path) -> None:
    with on_disk(tmp_path, 100) as (store, archive):
        archive.append(batch_of(*[b"x"] * 20, publisher="p", first=100, topic=TOPIC))
        trace = recorded(DeliveryLog(), range(120))
        assert paged(trace, archive)[0] == expected(archive, range(100))
        store.commit()
        assert paged(trace, archive)[0] == expected(archive, range(120))


def test_one_answer_does_not_read_the_whole_disk(tmp_path: Path) -> None:
    with on_disk(tmp_path, 40, size=500_000) as (_, archive):
        found, pages = paged(recorded(DeliveryLog(), range(40)), archive)
        assert found == expected(archive, range(40))
        assert pages > 3


def test_damaged_rows_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_tap_module, "DELIVERIES_MAX", 100)
    with on_disk(tmp_path, 2000) as (store, archive):
        trace = recorded(DeliveryLog.open(tmp_path, store), range(2000))
        trace.write()
        assert not trace.is_behind
        (file,) = (tmp_path / FOLDER).iterdir()
        data = bytearray(file.read_bytes())
        rows = len(data) - 2000 * ROW_BYTES
        data[rows + 700 * ROW_BYTES : rows + 900 * ROW_BYTES] = bytes(200 * ROW_BYTES)
        file.write_bytes(data)
        intact = [*range(700), *range(900, 2000)]
        assert paged(trace, archive)[0] == expected(archive, intact)


def test_page_may_begin_and_end_inside_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryLog([batch_of(*[b"x"] * 100, publisher="p", topic=TOPIC)])
    trace = recorded(DeliveryLog(), range(100))
    assert paged(trace, memory, 20, 30)[0] == expected(memory, range(20, 30))
    monkeypatch.setattr(arrival_tap_module, "DELIVERIES_MAX", 30)
    found, pages = paged(trace, memory)
    assert (found, pages) == (expected(memory, range(100)), 4)


# -- live --------------------------------------------------------------------------------------


async def reported(node: NodeHost, topic: TopicId = TOPIC) -> dict[int, Delivery]:
    """Return the deliveries that a node reports over the wire; on a busy machine in many pages."""
    found: dict[int, Delivery] = {}
    start: int | None = 0
    async with RpcClient(["127.0.0.1:1"], rng=Random(1)) as outsider:
        outsider.book.learn({node.name: node.address})
        while start is not None:
            question = partial(FetchDeliveries, start=start, end=END)
            page = await outsider.request(topic, node.name, question, DeliveryPage)
            assert isinstance(page, DeliveryPage)
            found |= by_offset(page)
            start = page.next
    return found


async def publish_all(cluster: Cluster, count: int = 5) -> dict[bytes, NodeId]:
    """Publish from every node; return the publisher of each id."""
    made = {}
    for number in range(count):
        for name in cluster.nodes:
            made[await cluster.publish(name, f"{name}/{number}".encode())] = name
    await cluster.wait_healthy()
    return made


def check_ways(name: NodeId, found: dict[int, Delivery], made: dict[bytes, NodeId]) -> None:
    """Assert that each publication arrived once, own ones without hops and all others with hops."""
    assert sorted(key for key, _, _, _ in found.values()) == sorted(made)
    for key, _, hops, origin in found.values():
        assert (origin is Origin.OWN) == (made[key] == name)
        assert (hops >= 1) == (origin is Origin.SPREAD)


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_every_node_reports_each_delivery(*, is_on_disk: bool, tmp_path: Path) -> None:
    async with healthy_cluster(n=8, data_dir=tmp_path if is_on_disk else None) as cluster:
        began = time_ns() // 1000
        made = await publish_all(cluster)
        await cluster.until(lambda: is_all_durable(cluster))
        ended = time_ns() // 1000
        spread = 0
        for name in cluster.nodes:
            found = await reported(cluster.node(name))
            assert list(found) == list(range(40))
            check_ways(name, found, made)
            times = [when for _, when, _, _ in found.values()]
            assert times == sorted(times)
            assert began <= times[0] <= times[-1] <= ended
            spread += Counter(origin for *_, origin in found.values())[Origin.SPREAD]
        assert spread > 8 * 35 / 2, "in calm weather little is left to repair"


async def two_ticks(cluster: Cluster) -> None:
    now = {name: cluster.node(name).ticker.calls for name in cluster.nodes}
    await cluster.until(
        lambda: all(cluster.node(name).ticker.calls > now[name] + 1 for name in now)
    )


def is_all_durable(cluster: Cluster) -> bool:
    machines = filter(None, (cluster.node(name).machine(TOPIC) for name in cluster.nodes))
    archives = (machine.replica.log for machine in machines)
    return all(a.durable_end == a.end for a in archives if isinstance(a, SegmentLog))


async def test_member_that_was_away_gets_missed_publications_by_repair(tmp_path: Path) -> None:
    async with healthy_cluster(n=4, data_dir=tmp_path) as cluster:
        before = await publish_all(cluster, 1)
        cluster.kill("n03")
        await cluster.wait_healthy()  # the others have evicted it
        missed = [await cluster.publish("n00", b"missed %d" % number) for number in range(5)]
        await two_ticks(cluster)  # none of them is new any more
        await cluster.restart("n03")
        await cluster.wait_healthy()
        await cluster.until(lambda: is_all_durable(cluster))
        found = await reported(cluster.node("n03"))
        assert list(found) == list(range(9))
        check_ways("n03", dict(list(found.items())[:4]), before)
        ways = {key: (hops, origin) for key, _, hops, origin in list(found.values())[4:]}
        assert ways == dict.fromkeys(missed, (0, Origin.REPAIR))


async def test_restarted_node_keeps_its_deliveries(tmp_path: Path) -> None:
    async with healthy_cluster(n=3, data_dir=tmp_path) as cluster:
        made = await publish_all(cluster)
        await cluster.until(lambda: is_all_durable(cluster))
        before = await reported(cluster.node("n01"))
        for _ in range(3):
            cluster.kill("n01")
            await cluster.restart("n01")
            assert await reported(cluster.node("n01")) == before
        await cluster.wait_healthy()
        made |= await publish_all(cluster)
        await cluster.until(lambda: is_all_durable(cluster))
        after = await reported(cluster.node("n01"))
        assert after.items() >= before.items()
        assert sorted(key for key, *_ in after.values()) == sorted(made)


async def test_node_starts_with_a_damaged_delivery_log(tmp_path: Path) -> None:
    async with Cluster(n=2, data_dir=tmp_path) as cluster:
        await publish_all(cluster)
    for path in (tmp_path / "n01" / FOLDER).iterdir():
        path.write_bytes(b"no deliveries at all" * 1000)
    async with Cluster(n=2, data_dir=tmp_path) as cluster:
        assert await reported(cluster.node("n01")) == {}
        await cluster.wait_healthy()
        key = await cluster.publish("n01", b"again")
        ((found, _, hops, origin),) = (await reported(cluster.node("n01"))).values()
        assert (found, hops, origin) == (key, 0, Origin.OWN)


async def test_member_without_disk_reports_only_deliveries_since_it_rejoined() -> None:
    async with Cluster(n=3) as cluster:
        await publish_all(cluster, 2)
        node = cluster.node("n02")
        first = await reported(cluster.node("n02"))
        assert await node.unsubscribe(TOPIC, 20)
        assert node.logs.trace.end(TOPIC) == 0
        node.subscribe(TOPIC)
        await cluster.wait_healthy()
        found = await reported(cluster.node("n02"))
        assert list(found) == list(range(6))
        assert {origin for *_, origin in found.values()} == {Origin.REPAIR}
        assert min(when for _, when, *_ in found.values()) > max(
            when for _, when, *_ in first.values()
        )


# -- a disk that refuses writes ----------------------------------------------------------------


def has_failed_again(tracing: DeliveryLogFlusher, trace: DeliveryLog, known: int) -> bool:
    """Request a write; return True once more writes have failed than are known."""
    tracing.request_write()
    return trace.failures > known


async def test_failed_write_of_the_delivery_log_is_logged_once(tmp_path: Path) -> None:
    with logged() as lines, on_disk(tmp_path, 100) as (store, archive):
        trace = DeliveryLog.open(tmp_path, store)
        tracing = DeliveryLogFlusher(trace)
        (tmp_path / FOLDER).write_bytes(b"no directory")
        for offset in range(3):
            recorded(trace, range(offset, offset + 1))
            await until(partial(has_failed_again, tracing, trace, trace.failures))
        assert paged(trace, archive)[0] == expected(archive, range(3))
        await tracing.close()
    assert the_line(lines, "delivery_log_failed")["reason"]
