"""Leaving a topic: confirmed by its supervisor, or abandoned once the supervisor is gone."""

from __future__ import annotations

import asyncio

from skipring.net.addresses import supervisor_at
from skipring.node.host import NodeHost
from skipring.testing import Cluster
from tests.support.connections import healthy_cluster
from tests.support.rings import until

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
