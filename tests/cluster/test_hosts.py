"""Bounds of nodes and supervisors, and memory that is released."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from skipring.core import topics
from skipring.core.batches import RecordBatch
from skipring.core.effects import Origin
from skipring.errors import UnreachableError
from skipring.node import publisher as errands
from skipring.rpc.client import RpcClient
from skipring.storage.supervisor_store import SupervisorStore
from skipring.testing import Cluster
from tests.support.batches import batch
from tests.support.connections import healthy_cluster
from tests.support.rings import until


def batches(count: int) -> list[RecordBatch]:
    return [batch(b"x", publisher="w", first=first, topic="news") for first in range(count)]


async def test_node_limits_publications_on_behalf_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errands, "PUBLISHING_MAX", 4)
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


async def test_supervisor_limits_the_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPICS_MAX", 2)
    async with Cluster(n=1) as cluster:
        node, supervisor = cluster.node("n00"), cluster.supervisor()
        node.subscribe("second")
        await until(lambda: len(supervisor.members()) == 2)
        node.subscribe("third")
        await until(lambda: "third" in node.refusals)
        assert node.refusals["third"] == "this supervisor has 2 topics, which is the limit"
        assert supervisor.members().keys() == {cluster.topic, "second"}
        assert supervisor.links.counts["too many topics"] > 0


async def test_supervisor_writes_its_database_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    save = SupervisorStore.save
    monkeypatch.setattr(
        SupervisorStore, "save", lambda store, *what: (saved.append(what[0]), save(store, *what))
    )
    async with healthy_cluster(n=3, data_dir=tmp_path) as cluster:
        ticker = cluster.supervisor().ticker
        saved_after = ticker.calls + 1
        await until(lambda: ticker.calls > saved_after)
        saved.clear()
        some_later = ticker.calls + 10
        await until(lambda: ticker.calls > some_later)
        assert saved == []
        await cluster.join()
        await cluster.wait_healthy()
        await until(lambda: saved != [])
    with SupervisorStore.open(tmp_path / "supervisor-0") as store:
        (state,) = store.load().values()
    assert len(state.database) == 4
