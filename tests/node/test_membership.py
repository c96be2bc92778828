"""Membership: the supervisor that a node obeys."""

from __future__ import annotations

from skipring.core.messages import SetConfiguration
from skipring.net.addresses import supervisor_at
from tests.support.connections import healthy_cluster


async def test_supervisor_is_not_obeyed_in_topics_of_another_supervisor() -> None:
    async with healthy_cluster(n=1, supervisors=2) as cluster:
        node = cluster.node(cluster.nodes[0])
        own = node.supervisor_of(cluster.topic)
        order = SetConfiguration(None, None, None)
        is_obeyed = [
            node.membership.is_obeyed(supervisor_at(address), cluster.topic, order)
            for address in sorted(
                (cluster.supervisor(number).address for number in range(2)),
                key=lambda address: address != own,
            )
        ]
    assert is_obeyed == [True, False]
