"""Orders of readers in a live ring: newcomers, partitions, restarts, both twins."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

import skipring
from skipring import blocking
from skipring.api import ordered_reader
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.effects import Effect
from skipring.core.events import Event, Received, SyncRequested
from skipring.core.messages import Publications
from skipring.core.publications import COUNTER_BITS
from skipring.core.subscriber import Subscriber
from skipring.errors import CursorError, InputError
from skipring.order.gaps import Gap, GapReason, Release
from skipring.order.publisher_order import PublisherOrder
from skipring.testing import Cluster
from tests.support.connections import to
from tests.support.rings import DEADLINE_S, TOPIC
from tests.support.scenes import inside

TICK_S = 0.05


async def publish(cluster: Cluster, count: int, size: int) -> None:
    """Publish ``count`` batches of ``size`` records, in turns at all nodes."""
    for number in range(count):
        node = cluster.nodes[number % len(cluster.nodes)]
        records = [BatchRecord(b"%d" % number, time.time_ns() // 1000) for _ in range(size)]
        await cluster.node(node).publish(cluster.topic, *records)


def check_numbers(found: list[skipring.Publication]) -> None:
    """Check that the numbers of each sequence begin at the start and have no hole."""
    following: dict[tuple[str, int], int] = {}
    for each in found:
        key = each.publisher, each.seq >> COUNTER_BITS
        assert each.seq == following.get(key, key[1] << COUNTER_BITS), each
        assert not each.late
        following[key] = each.seq + 1


@pytest.mark.parametrize("size", [1, 50])
async def test_newcomer_reads_the_history_in_order_and_holds_nothing_back(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks: list[int] = []

    class RecordingOrder(PublisherOrder[skipring.Publication]):
        def add(
            self, publisher: str, first: int, end: int, publications: list[skipring.Publication]
        ) -> list[Release[skipring.Publication] | Gap]:
            found = super().add(publisher, first, end, publications)
            peaks.append(self.held_records)
            return found

    monkeypatch.setattr(ordered_reader, "PublisherOrder", RecordingOrder)
    async with Cluster(n=3, tick_s=TICK_S, topic=TOPIC) as cluster:
        await cluster.wait_healthy(DEADLINE_S)
        await publish(cluster, 3000 // size * (1 + size // 50), size)
        await cluster.wait_healthy(DEADLINE_S)
        expected = len(cluster.payloads(cluster.nodes[0]))
        async with (
            skipring.connect(cluster.url, tick_s=TICK_S) as node,
            node.subscribe(cluster.topic, order="publisher") as news,
        ):
            found: list[skipring.Publication] = []
            while len(found) < expected:
                found += await news.read_many(timeout=DEADLINE_S)
            assert news.gaps.count == 0
        check_numbers(found)
        assert peaks
        assert max(peaks) == 0


@inside(Cluster, n=4, tick_s=TICK_S, topic=TOPIC)
async def test_both_sides_of_a_partition_are_read_in_order_after_it(cluster: Cluster, /) -> None:
    await cluster.wait_healthy(DEADLINE_S)
    async with (
        skipring.connect(cluster.url, tick_s=TICK_S) as node,
        node.subscribe(cluster.topic, order="publisher", wait=30) as news,
    ):
        await news.synced(DEADLINE_S)
        with cluster.partition():
            await publish(cluster, 200, 2)
        await publish(cluster, 40, 2)
        found: list[skipring.Publication] = []
        while len(found) < 480:
            found += await news.read_many(timeout=DEADLINE_S)
        check_numbers(found)
        assert news.gaps.count == 0


@inside(Cluster, n=2, tick_s=TICK_S, topic=TOPIC)
async def test_missing_publication_that_no_member_has_is_a_gap(cluster: Cluster, /) -> None:
    await cluster.wait_healthy(DEADLINE_S)
    async with (
        skipring.connect(cluster.url, tick_s=TICK_S) as node,
        node.subscribe(cluster.topic, order="publisher", wait=4 * TICK_S) as news,
    ):
        await news.synced(DEADLINE_S)
        host = cluster.node(cluster.nodes[0])
        for first in (0, 6):
            batch = RecordBatch.of([BatchRecord(b"x", 1)], publisher="p", first=first, topic=TOPIC)
            host.dispatch(TOPIC, Received(Publications((batch,)), "p"))
        items = news.with_gaps()
        async with asyncio.timeout(DEADLINE_S):
            before, gap, after = [await anext(items) for _ in range(3)]
        assert isinstance(before, skipring.Publication)
        assert isinstance(after, skipring.Publication)
        assert [(before.seq, before.late), (after.seq, after.late)] == [(0, False), (6, False)]
        assert gap == skipring.Gap("p", 0, 1, 5, GapReason.ABSENT)
        assert news.gaps.missing == 5


@inside(Cluster, n=2, tick_s=TICK_S, topic=TOPIC)
async def test_missing_publication_that_the_policy_has_removed_is_a_gap_before_the_wait(
    cluster: Cluster, /
) -> None:
    await cluster.wait_healthy(DEADLINE_S)
    async with (
        skipring.connect(cluster.url, tick_s=TICK_S, policy_delay_s=0) as node,
        node.subscribe(cluster.topic, order="publisher", wait=3600) as news,
    ):
        await node.charter(cluster.topic).set(max_count=8)
        host, now = cluster.node(cluster.nodes[0]), time.time_ns() // 1000
        for first in (0, 6):
            record = BatchRecord(b"x", now)
            batch = RecordBatch.of([record], publisher="p", first=first, topic=TOPIC)
            host.dispatch(TOPIC, Received(Publications((batch,)), "p"))
        items = news.with_gaps()
        async with asyncio.timeout(DEADLINE_S):
            before = await anext(items)
            await publish(cluster, 40, 1)
            while not isinstance(gap := await anext(items), skipring.Gap):
                pass
        assert isinstance(before, skipring.Publication)
        assert (before.publisher, before.seq) == ("p", 0)
        assert gap == skipring.Gap("p", 0, 1, 5, GapReason.EXPIRED)


@inside(Cluster, n=2, tick_s=TICK_S, topic=TOPIC)
async def test_reader_that_misses_a_publication_asks_its_neighbours(cluster: Cluster, /) -> None:
    await cluster.wait_healthy(DEADLINE_S)
    async with (
        to(cluster) as node,
        node.subscribe(cluster.topic, order="publisher", wait=3600) as news,
    ):
        await news.synced(DEADLINE_S)
        counts, machine = Counter[type[Event]](), node.session.host.machine(TOPIC)
        assert machine is not None
        handle = Subscriber.handle

        def counted(each: Subscriber, event: Event) -> list[Effect]:
            counts[type(event)] += each is machine
            return handle(each, event)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Subscriber, "handle", counted)
            for first in (0, 6):
                batch = RecordBatch.of(
                    [BatchRecord(b"x", 1)], publisher="p", first=first, topic=TOPIC
                )
                cluster.node(cluster.nodes[0]).dispatch(
                    TOPIC, Received(Publications((batch,)), "p")
                )
            assert await news.read(DEADLINE_S) is not None
            waiting = asyncio.create_task(news.read(DEADLINE_S))
            await cluster.until(lambda: counts[SyncRequested] > 0, DEADLINE_S)
            waiting.cancel()


@inside(Cluster, n=3, tick_s=TICK_S, topic=TOPIC)
async def test_times_of_several_publishers_rise(cluster: Cluster, /) -> None:
    async with (
        skipring.connect(cluster.url, tick_s=TICK_S) as node,
        node.subscribe(cluster.topic, order="time", wait=0.5) as news,
    ):
        await publish(cluster, 300, 1)
        found: list[skipring.Publication] = []
        while len(found) < 300:
            found += await news.read_many(timeout=DEADLINE_S)
        times = [each.time for each in found if not each.late]
        assert times == sorted(times)
        assert len({each.id for each in found}) == 300


@pytest.mark.parametrize("order", ["publisher", "time"])
async def test_cursor_resumes_exactly_once(order: str, tmp_path: Path) -> None:
    async with Cluster(n=2, tick_s=TICK_S, topic=TOPIC) as cluster:
        await publish(cluster, 60, 3)
        await cluster.wait_healthy(DEADLINE_S)
        start: skipring.Cursor | str = "all"
        found: list[skipring.Publication] = []
        while len(found) < 180:
            async with (
                skipring.connect(cluster.url, tick_s=TICK_S, data_dir=tmp_path) as node,
                node.subscribe(cluster.topic, start, order=order, wait=0.2) as news,
            ):
                await news.synced(DEADLINE_S)
                for _ in range(50):
                    publication = await news.read(timeout=1 if len(found) >= 180 else DEADLINE_S)
                    if publication is None:
                        break
                    found.append(publication)
                    if len(found) == 180:
                        break
            start = str(news.cursor())
        assert len({each.id for each in found}) == len(found) == 180
        if order == "publisher":
            check_numbers(found)
        async with skipring.connect(cluster.url, tick_s=TICK_S, data_dir=tmp_path) as node:
            with pytest.raises(CursorError, match=f'made with order="{order}"'):
                node.subscribe(cluster.topic, start)


@inside(Cluster, n=2, tick_s=TICK_S, topic=TOPIC)
async def test_blocking_twin_reads_in_order_and_continues(
    cluster: Cluster, /, tmp_path: Path
) -> None:
    await publish(cluster, 40, 3)
    await cluster.wait_healthy(DEADLINE_S)

    def read(start: skipring.Cursor | str, count: int) -> tuple[list[skipring.Publication], str]:
        with (
            blocking.connect(cluster.url, tick_s=TICK_S, data_dir=tmp_path) as node,
            node.subscribe(cluster.topic, start, order="publisher") as news,
        ):
            news.synced(DEADLINE_S)
            items = news.with_gaps()
            found = [next(items) for _ in range(count - 1)]
            last = news.read(DEADLINE_S)
            assert last is not None
            assert news.gaps.count == 0
        publications = [each for each in found if isinstance(each, skipring.Publication)]
        return [*publications, last], str(news.cursor())  # everything is on the disk now

    first, cursor = await asyncio.to_thread(read, "all", 50)
    second, _ = await asyncio.to_thread(read, cursor, 70)
    check_numbers([*first, *second])


async def test_invalid_order_is_refused_before_joining() -> None:
    for module in (skipring, blocking):
        node = module.connect("skipring://127.0.0.1:9")
        with pytest.raises(InputError, match="order: expected"):
            node.subscribe(TOPIC, order="random")
