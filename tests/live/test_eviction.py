"""A live node that was evicted by mistake rejoins within a few ticks."""

from __future__ import annotations

import pytest

from faults.processes import numbered
from skipring.core.events import NodeSuspected
from skipring.core.messages import UNRECORDED
from skipring.wire.codec import encode
from tests.support.rings import TOPIC, LiveRing, live_ring

TICK_S = 0.2  # long enough for the work of 16 nodes in one process on a busy machine
TICKS_MAX = 6  # below the 8 after which the silence of a neighbour makes a node ask (R9)


@pytest.mark.heavy
async def test_node_with_the_last_label_rejoins_a_few_ticks_after_a_wrong_eviction() -> None:
    async with live_ring(*numbered(16), tick_s=TICK_S) as ring:
        await ring.wait_healthy()
        ticks = [await ticks_until_back(ring) for _ in range(3)]
    assert max(ticks) <= TICKS_MAX


async def ticks_until_back(ring: LiveRing) -> int:
    last = ring.supervisor.state(TOPIC).database[-1][1]
    assert last is not None
    evicted = ring.supervisor.ticker.calls
    ring.supervisor.dispatch(TOPIC, NodeSuspected(last))
    ring.supervisor.links.send(last, encode(TOPIC, UNRECORDED))
    await ring.wait_healthy()
    return ring.supervisor.ticker.calls - evicted
