"""Rings over real sockets: they form, deliver publications and heal."""

from __future__ import annotations

from skipring.node.settings import ANSWER_S
from skipring.testing import Cluster
from tests.support.rings import TOPIC, live_ring, until

NODES = 8


async def test_publishing_works_before_the_ring_is_ready() -> None:
    async with Cluster(NODES) as cluster:
        await cluster.publish("n03", b"early")
        await cluster.wait_healthy()
        assert all(cluster.delivered(name) == [b"early"] for name in cluster.nodes)


async def test_joining_and_leaving_wait_for_no_tick() -> None:
    async with live_ring(tick_s=600.0, answer_s=ANSWER_S) as ring:
        for count, name in enumerate(("a", "b", "c"), 1):
            node = await ring.join(name)
            await until(lambda node=node: node.states()[TOPIC].label is not None)  # type: ignore[misc]
            assert len(ring.supervisor.state(TOPIC).database) == count
        assert await ring.leave("b")
        assert ring.supervisor.ticker.calls == 0
