"""Rings over real sockets: they form, deliver publications and heal."""

from __future__ import annotations

import asyncio
from pathlib import Path

from skipring.node.settings import ANSWER_S
from skipring.testing import Cluster
from tests.support.connections import healthy_cluster
from tests.support.rings import TOPIC, live_ring, until

NODES = 8


async def test_eight_nodes_form_a_ring() -> None:
    async with Cluster(NODES) as cluster:
        await cluster.wait_healthy()


async def test_every_member_receives_each_publication_once() -> None:
    async with healthy_cluster(NODES) as cluster:
        for name in cluster.nodes:
            await cluster.publish(name, name.encode())
        await cluster.wait_healthy()
        sent = [name.encode() for name in cluster.nodes]
        assert all(sorted(cluster.delivered(name)) == sent for name in cluster.nodes)


async def test_publishing_works_before_the_ring_is_ready() -> None:
    async with Cluster(NODES) as cluster:
        await cluster.publish("n03", b"early")
        await cluster.wait_healthy()
        assert all(cluster.delivered(name) == [b"early"] for name in cluster.nodes)


async def test_new_member_gets_earlier_publications() -> None:
    async with Cluster(4) as cluster:
        for number in range(100):
            await cluster.publish("n00", b"%d" % number)
        await cluster.wait_healthy()
        await cluster.join("late")
        await cluster.wait_healthy()
        assert len(cluster.delivered("late")) == 100


async def test_joining_and_leaving_wait_for_no_tick() -> None:
    async with live_ring(tick_s=600.0, answer_s=ANSWER_S) as ring:
        for count, name in enumerate(("a", "b", "c"), 1):
            node = await ring.join(name)
            await until(lambda node=node: node.states()[TOPIC].label is not None)  # type: ignore[misc]
            assert len(ring.supervisor.state(TOPIC).database) == count
        assert await ring.leave("b")
        assert ring.supervisor.ticker.calls == 0


async def test_supervisor_that_lost_its_database_is_restored_by_members() -> None:
    async with healthy_cluster(NODES) as cluster:
        await cluster.stop_supervisor()
        await cluster.start_supervisor(lose_data=True)
        assert cluster.snapshot().supervisor.database == ()
        await cluster.publish("n05", b"meanwhile")
        await cluster.wait_healthy()
        assert all(cluster.delivered(name) == [b"meanwhile"] for name in cluster.nodes)


async def test_member_leaves_and_the_others_close_the_gap() -> None:
    async with healthy_cluster(NODES) as cluster:
        assert await cluster.leave("n02")
        await cluster.wait_healthy()


async def test_crashed_members_are_evicted_and_the_others_close_the_gaps() -> None:
    async with healthy_cluster(NODES) as cluster:
        for name in ("n01", "n04"):
            cluster.kill(name)
        await cluster.publish("n06", b"after")
        await cluster.wait_healthy()
        assert all(cluster.delivered(name) == [b"after"] for name in cluster.nodes)


async def test_publications_survive_a_restart(tmp_path: Path) -> None:
    async with Cluster(2, data_dir=tmp_path) as cluster:
        ids = [await cluster.publish("n01", b"%d" % number) for number in range(20)]
        for name in cluster.nodes:
            cluster.kill(name)
        await cluster.restart("n01")
        stored = cluster.snapshot().subscribers["n01"].publications
        assert [key for batch in stored for key in batch.record_ids()] == ids

        await cluster.restart("n00")
        await cluster.wait_healthy()
        assert sorted(cluster.payloads("n00")) == sorted(cluster.payloads("n01"))


async def test_closing_leaves_no_task_behind() -> None:
    async with healthy_cluster(NODES) as cluster:
        nodes = [cluster.node(name) for name in cluster.nodes]
    await cluster.until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    assert not any(node.links.connections for node in nodes)
