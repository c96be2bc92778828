"""Powers of a supervisor: the data it receives, the topics it controls, and their limits."""

from __future__ import annotations

import pytest

from skipring.core.batches import BatchRecord
from skipring.core.events import Flush, PublishRequested, Received
from skipring.core.labels import Label
from skipring.core.messages import PublishMany, PublishNew, SetConfiguration
from skipring.core.peers import SUPERVISOR, Peer
from skipring.core.state import SubscriberState
from tests.support.connections import healthy_cluster
from tests.support.machines import subscriber

CARRIERS = {"PublishNew", "PublishMany", "Publications", "CheckTrie", "CheckAndPublish", "IHave"}


async def test_supervisor_receives_no_publication() -> None:
    async with healthy_cluster(n=4) as cluster:
        for number in range(20):
            await cluster.publish(cluster.nodes[number % 4], b"%d" % number)
        await cluster.wait_healthy()
        received = set(cluster.supervisor().counts)
    assert "Subscribe" in received
    assert not received & CARRIERS


@pytest.mark.parametrize(
    "order",
    [
        SetConfiguration(None, None, None),
        SetConfiguration(Peer(Label.nth(6), "x"), Label.nth(9), Peer(Label.nth(4), "y")),
    ],
    ids=["eviction", "wrong place"],
)
def test_evicted_or_misplaced_member_publishes_over_its_existing_edges(
    order: SetConfiguration,
) -> None:
    host = subscriber(
        SubscriberState(
            label=Label.nth(2),
            left=Peer(Label.nth(0), "a"),
            right=Peer(Label.nth(1), "b"),
            shortcuts={Label.nth(3): "c"},
        )
    )
    host.request(Received(order, SUPERVISOR))
    sent = host.request(PublishRequested((BatchRecord(b"news", 1),))) + host.request(Flush())
    reached = {to for to, message in sent if isinstance(message, PublishNew | PublishMany)}
    assert reached & {"a", "b", "c"}
