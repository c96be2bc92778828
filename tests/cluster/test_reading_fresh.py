"""Fresh publications in a ring: readable before their commit, read and published in batches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from skipring.api.reader import Publication, Reader
from skipring.api.subscription import READ_MANY, Subscription
from skipring.api.topic_session import TopicSession
from skipring.core.batches import RECORDS_MAX, RecordBatch
from skipring.core.effects import Deliver
from skipring.core.events import Received
from skipring.core.messages import PublishMany, PublishNew
from skipring.errors import InputError
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.storage.store import LogStore
from skipring.testing import Cluster
from tests.support.batches import batch_of
from tests.support.connections import DEADLINE_S, to

TOPIC = "news"


def made(first: int) -> RecordBatch:
    """Return a batch of two records of another publisher."""
    return batch_of(b"x", b"y", publisher="a", first=first, topic=TOPIC)


async def test_closed_node_has_all_delivered_publications_on_its_disk(tmp_path: Path) -> None:
    got: list[tuple[int, RecordBatch]] = []

    def deliver(delivery: Deliver) -> None:
        offset = delivery.offset
        for batch in delivery.batches:
            got.append((offset, batch))
            offset += batch.count

    with LogStore.open(tmp_path) as store:
        patient = NodeSettings(tick_s=1e3, flush_s=1e3)
        node = NodeHost("m", patient, rng=Random(0), store=store)
        await node.start("127.0.0.1", 0)
        try:
            node.subscribe(TOPIC)
            node.attach(TOPIC, deliver)
            node.dispatch(TOPIC, Received(PublishMany((made(0), made(2)))))
            node.dispatch(TOPIC, Received(PublishNew(made(4))))
            log = store.log(TOPIC)
            assert (len(got), log.end, log.durable_end) == (3, 6, 0)
        finally:
            await node.close()
    with LogStore.open(tmp_path) as store:
        log = store.log(TOPIC)
        assert [(entry.offset, entry.batch) for entry in log.read_range(0, log.end)] == got
        assert log.durable_end == log.end == 6


async def test_publish_many_keeps_the_order_and_returns_after_the_commit(tmp_path: Path) -> None:
    payloads = [b"%d" % number for number in range(2 * RECORDS_MAX + 3)]
    async with (
        Cluster(n=0) as cluster,
        to(cluster, tmp_path) as node,
        node.subscribe(TOPIC) as news,
    ):
        ids = await news.publish_many(iter(payloads))
        found = []
        while news.lag:
            found += await news.read_many(timeout=DEADLINE_S)
        assert news.cursor().offset == len(payloads)  # durable
        assert [each.payload for each in found] == payloads
        assert [each.id for each in found] == ids
        first = found[0].seq
        assert [each.seq for each in found] == list(range(first, first + len(payloads)))
        assert len(set(ids)) == len(payloads)


async def test_batches_are_read_once_and_completely_by_other_members() -> None:
    payloads = [b"%d" % number for number in range(600)]
    async with (
        Cluster(n=3) as cluster,
        to(cluster) as first,
        to(cluster) as second,
        first.subscribe(cluster.topic) as writer,
        Subscription(session := TopicSession(second.session, cluster.topic, "all")) as reader,
    ):
        await writer.synced(DEADLINE_S)
        await reader.synced(DEADLINE_S)
        ids = await writer.publish_many(payloads)
        found: list[Publication] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < len(payloads):
                found += await reader.read_many()
        assert sorted(each.id for each in found) == sorted(ids)
        await cluster.until(lambda: session.reader.end == len(payloads))
        assert reader.lag == 0  # no publication twice


async def test_read_many_returns_available_publications_up_to_the_limit() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe(TOPIC) as news:
        await news.publish_many([b"x"] * (READ_MANY + 5))
        limits = (1, 3, READ_MANY - 4)
        found = [await news.read_many(limit, timeout=DEADLINE_S) for limit in limits]
        assert [len(each) for each in found] == [1, 3, READ_MANY - 4]
        assert len(await news.read_many(timeout=DEADLINE_S)) == 5
        assert await news.read_many(timeout=0) == []


@pytest.mark.parametrize("limit", [0, -1])
async def test_read_many_refuses_a_limit_below_one(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe(TOPIC) as news:
        await news.publish(b"x")
        with monkeypatch.context() as patch:
            patch.setattr(Reader, "fetch", lambda *_: pytest.fail("it would never end"))
            with pytest.raises(InputError, match=f"limit: expected 1 or more, got {limit}"):
                await news.read_many(limit, timeout=DEADLINE_S)
        assert len(await news.read_many(timeout=DEADLINE_S)) == 1


async def test_read_many_returns_the_first_publications_that_arrive() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe(TOPIC) as news:
        reading_on = asyncio.ensure_future(news.read_many())
        await asyncio.sleep(0)
        assert not reading_on.done()
        await news.publish_many([b"1", b"2"])
        async with asyncio.timeout(DEADLINE_S):
            assert [each.payload for each in await reading_on] == [b"1", b"2"]
