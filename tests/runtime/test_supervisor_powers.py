"""What a supervisor receives, and where it is obeyed."""

from __future__ import annotations

import asyncio

from skipring.core.messages import SetConfiguration
from skipring.runtime.addresses import supervisor_at
from skipring.testing import Cluster

CARRIERS = {"PublishNew", "PublishMany", "Publications", "CheckTrie", "CheckAndPublish", "IHave"}


def test_supervisor_receives_no_publication() -> None:
    async def scene() -> set[str]:
        async with Cluster(n=4) as cluster:
            await cluster.settle()
            for number in range(20):
                await cluster.publish(cluster.nodes[number % 4], b"%d" % number)
            await cluster.settle()
            return set(cluster.supervisor().counts)

    received = asyncio.run(scene())
    assert "Subscribe" in received
    assert not received & CARRIERS


def test_supervisor_is_not_obeyed_in_topics_of_another() -> None:
    async def scene() -> list[bool]:
        async with Cluster(n=1, supervisors=2) as cluster:
            await cluster.settle()
            node = cluster.node(cluster.nodes[0])
            own = node.supervisor_of(cluster.topic)
            order = SetConfiguration(None, None, None)
            return [
                node.membership.is_obeyed(supervisor_at(address), cluster.topic, order)
                for address in sorted(
                    (cluster.supervisor(number).address for number in range(2)),
                    key=lambda address: address != own,
                )
            ]

    assert asyncio.run(scene()) == [True, False]
