"""Bounds of nodes and supervisors, and memory that is released."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from skipring.core.batches import RecordBatch
from skipring.core.effects import Origin
from skipring.errors import UnreachableError
from skipring.node import publisher as publisher_module
from skipring.rpc.client import RpcClient
from tests.support.batches import batch
from tests.support.connections import healthy_cluster


def batches(count: int) -> list[RecordBatch]:
    return [batch(b"x", publisher="w", first=first, topic="news") for first in range(count)]


async def test_node_limits_publications_on_behalf_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "PUBLISHING_MAX", 4)
    async with healthy_cluster(n=1, data_dir=tmp_path) as cluster:
        address = cluster.supervisor().address
        async with RpcClient([address], rng=Random(1)) as outsider:
            await outsider.publish(cluster.topic, batches(4))
            with pytest.raises(UnreachableError) as caught:
                await outsider.publish(cluster.topic, batches(64)[4:])
    assert "too many publications wait for the disk" in str(caught.value)


async def test_left_topic_keeps_nothing_in_memory() -> None:
    async with healthy_cluster(n=2) as cluster:
        await cluster.publish("n00", b"hello")
        await cluster.wait_healthy()
        node = cluster.node("n00")
        assert node.logs.by_topic
        assert node.logs.trace.count(cluster.topic, Origin.OWN) == 1
        assert await node.unsubscribe(cluster.topic, 20.0)
        assert not node.logs.by_topic
        assert node.logs.trace.count(cluster.topic, Origin.OWN) == 0
