"""Host of a node: publishing with a disk (decision 0051), and leaving a topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skipring import connect
from skipring.core.events import PublishRequested
from skipring.errors import StorageError, StoreFullError
from skipring.net.addresses import supervisor_at
from skipring.node.host import NodeHost
from skipring.testing import Cluster
from skipring.wire.codec import decode
from tests.support.connections import healthy_cluster
from tests.support.disks import Disk
from tests.support.rings import until
from tests.wire.samples import the_frame

PATIENCE_S = 600.0  # longer than any test: a node that waits for a timeout fails
DEADLINE_S = 20.0


def cut(node: NodeHost, cluster: Cluster) -> None:
    """Break the connection of a node to its supervisor."""
    link = node.links.peer(supervisor_at(cluster.supervisor().address)).link
    assert link is not None
    link.abort()


async def test_node_leaves_with_the_confirmation_of_its_supervisor() -> None:
    async with healthy_cluster(n=2) as cluster:
        async with asyncio.timeout(DEADLINE_S):
            assert await cluster.node("n00").unsubscribe(cluster.topic, PATIENCE_S)
        assert cluster.supervisor().members() == {cluster.topic: 1}


async def test_node_does_not_wait_for_a_dead_supervisor() -> None:
    async with healthy_cluster(n=2) as cluster:
        await cluster.stop_supervisor()
        async with asyncio.timeout(DEADLINE_S):
            assert not await cluster.node("n00").unsubscribe(cluster.topic, PATIENCE_S)


async def test_node_stops_waiting_when_its_supervisor_dies() -> None:
    async with healthy_cluster(n=2) as cluster:
        cluster.supervisor().ticker.stop()  # it sends no more answers
        node = cluster.node("n00")
        leaving = asyncio.create_task(node.unsubscribe(cluster.topic, PATIENCE_S))
        ticks = node.ticker.calls + 10
        await until(lambda: node.ticker.calls > ticks)
        assert not leaving.done()
        await cluster.stop_supervisor()
        async with asyncio.timeout(DEADLINE_S):
            assert not await leaving


async def test_leaving_node_repeats_its_request_after_a_reconnection() -> None:
    async with healthy_cluster(n=2) as cluster:
        node = cluster.node("n00")
        leaving = asyncio.create_task(node.unsubscribe(cluster.topic, PATIENCE_S))
        await asyncio.sleep(0)
        cut(node, cluster)
        async with asyncio.timeout(DEADLINE_S):
            assert await leaving
        assert cluster.supervisor().members() == {cluster.topic: 1}


async def test_node_without_supervisor_leaves_every_topic_immediately() -> None:
    async with Cluster(n=1) as cluster:
        node = cluster.node("n00")
        topics = [f"topic-{number}" for number in range(20)]
        for topic in topics:
            node.subscribe(topic)
        await until(lambda: len(cluster.supervisor().members()) == len(topics) + 1)
        await cluster.stop_supervisor()
        async with asyncio.timeout(DEADLINE_S):
            left = await asyncio.gather(*(node.unsubscribe(t, PATIENCE_S) for t in topics))
        assert not any(left)


# -- publishing -------------------------------------------------------------------------------


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_neighbours_get_a_publication_before_its_commit_ends(
    disk: Disk, tmp_path: Path
) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        disk.gate.clear()
        publishing = asyncio.create_task(cluster.publish("n00", b"early"))
        await until(lambda: cluster.delivered("n01") == [b"early"])
        assert not publishing.done()
        disk.gate.set()
        await publishing


async def test_failed_commit_raises_an_error_with_the_ids(disk: Disk, tmp_path: Path) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        disk.error = StoreFullError("no room")
        with pytest.raises(StoreFullError, match="no room") as sent:
            await cluster.publish("n00", b"sent")
        assert sent.value.may_be_published
        assert len(sent.value.ids) == 1
        with pytest.raises(StoreFullError) as refused:
            await cluster.publish("n00", b"refused")
        assert (refused.value.may_be_published, refused.value.ids) == (False, ())
        disk.error = None
        await cluster.wait_healthy()
        assert [cluster.payloads(name) for name in cluster.nodes] == [[b"sent"]] * 2


async def test_retry_publishes_the_same_publications_again(disk: Disk, tmp_path: Path) -> None:
    async with (
        Cluster(n=2) as cluster,
        connect(cluster.url, data_dir=tmp_path, tick_s=0.05) as node,
        node.subscribe(cluster.topic) as news,
    ):
        await news.synced()
        disk.error = StoreFullError("no room")
        with pytest.raises(StorageError) as failed:
            await news.publish_many([b"one", b"two"])
        with pytest.raises(StorageError) as again:
            await news.retry(failed.value)
        assert again.value.ids == failed.value.ids
        disk.error = None
        assert await news.retry(again.value) == list(failed.value.ids)
        await news.synced()
        await until(lambda: sorted(cluster.payloads("n00")) == [b"one", b"two"])
        assert sorted(cluster.delivered("n00")) == [b"one", b"two"]
        assert [(await anext(news)).payload for _ in range(2)] == [b"one", b"two"]


async def test_calls_of_one_loop_iteration_share_a_message(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        node = cluster.node("n00")
        sent: list[int] = []
        send = node.links.send

        def record(to: str, frame: bytes) -> None:
            message = decode(the_frame(frame)).message
            sent.append(len(getattr(message, "publications", ())))
            send(to, frame)

        monkeypatch.setattr(node.links, "send", record)
        calls = [cluster.publish("n00", b"%d" % number) for number in range(20)]
        ids = await asyncio.gather(*calls)
        assert max(sent) == 20
        assert len(set(ids)) == 20
        await cluster.wait_healthy()
        assert cluster.payloads("n01") == [b"%d" % number for number in range(20)]
    assert disk.error is None


async def test_cancelled_call_does_not_stop_the_others(disk: Disk, tmp_path: Path) -> None:
    async with healthy_cluster(n=1, data_dir=tmp_path) as cluster:
        disk.gate.clear()
        first = asyncio.create_task(cluster.publish("n00", b"first"))
        second = asyncio.create_task(cluster.publish("n00", b"second"))
        await until(lambda: len(cluster.delivered("n00")) == 2)
        first.cancel()
        disk.gate.set()
        assert len(await second) == 32


async def test_known_publication_of_a_client_gets_no_second_id(tmp_path: Path) -> None:
    async with healthy_cluster(n=1, data_dir=tmp_path) as cluster:
        node = cluster.node("n00")
        request = PublishRequested(payload=b"x", publisher="client", seq=1)
        calls = (node.publish(cluster.topic, request) for _ in range(3))
        assert sorted(map(len, await asyncio.gather(*calls))) == [0, 0, 1]
