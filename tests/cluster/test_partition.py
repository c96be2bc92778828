"""Network partitions, made by proxies between the nodes, and their repair."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skipring.core.peers import SUPERVISOR, NodeId
from tests.support import rings
from tests.support.exchanges import LOOPS
from tests.support.proxies import Cut, ProxiedRing, proxied_ring
from tests.support.rings import TOPIC, until

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.usefixtures("loop"),
    pytest.mark.parametrize(
        "loop",
        [
            pytest.param(LOOPS["uvloop"], id="uvloop"),
            pytest.param(LOOPS["asyncio"], id="asyncio", marks=pytest.mark.slow),
        ],
        indirect=True,
    ),
]

NAMES = [f"n{number}" for number in range(8)]
OTHERS = {"n1", "n2", "n5", "n7"}  # neighbours of the other nodes in many places
CUT_TICKS = 30  # longer than the eviction of a member with one accuser


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the deadline: a node that was cut off for long retries only after some seconds."""
    monkeypatch.setattr(rings, "DEADLINE_S", 60.0)


def with_supervisor_for_both(one: NodeId, other: NodeId) -> bool:
    return SUPERVISOR not in (one, other) and (one in OTHERS) != (other in OTHERS)


def with_supervisor_for_one_side(one: NodeId, other: NodeId) -> bool:
    return (one in OTHERS) != (other in OTHERS)


async def ticks(ring: ProxiedRing, count: int) -> None:
    end = ring.supervisor.ticker.calls + count
    await until(lambda: ring.supervisor.ticker.calls >= end)


def roots(ring: ProxiedRing) -> set[bytes]:
    machines = [node.machine(TOPIC) for node in ring.nodes.values()]
    return {machine.trie().root() for machine in machines if machine is not None}


async def publish(ring: ProxiedRing, stage: str) -> list[bytes]:
    """Publish from every node."""
    made = [f"{stage} {name}".encode() for name in NAMES]
    for name, payload in zip(NAMES, made, strict=True):
        await ring.publish(name, payload)
    return made


@pytest.mark.parametrize(
    ("is_cut", "kind"),
    [
        (with_supervisor_for_both, Cut.RESET),
        pytest.param(with_supervisor_for_both, Cut.BLACKHOLE, marks=pytest.mark.slow),
        pytest.param(with_supervisor_for_one_side, Cut.RESET, marks=pytest.mark.slow),
        (with_supervisor_for_one_side, Cut.BLACKHOLE),
    ],
)
async def test_two_sides_merge_with_the_publications_of_both(
    is_cut: Callable[[NodeId, NodeId], bool], kind: Cut
) -> None:
    async with proxied_ring(*NAMES) as ring:
        await ring.wait_healthy()
        sent = await publish(ring, "before")
        await ring.wait_healthy()
        ring.network.cut(is_cut, kind)
        sent += await publish(ring, "apart")
        await ticks(ring, CUT_TICKS)
        assert_apart(ring)
        ring.network.heal()
        await ring.wait_healthy()
        sent += await publish(ring, "after")
        await ring.wait_healthy()
        assert len(roots(ring)) == 1
        for name in NAMES:
            assert sorted(ring.delivered[name]) == sorted(sent), name
        assert ring.supervisor.members() == {TOPIC: len(NAMES)}


def assert_apart(ring: ProxiedRing) -> None:
    """Assert that no node has received a publication of the other side."""
    for side in (OTHERS, set(NAMES) - OTHERS):
        unheard = {f"apart {name}".encode() for name in set(NAMES) - side}
        for name in side:
            got = set(ring.delivered[name])
            assert f"apart {name}".encode() in got
            assert not unheard & got


async def test_members_cut_off_only_from_each_other_are_not_evicted() -> None:
    async with proxied_ring(*NAMES) as ring:
        await ring.wait_healthy()
        ring.network.cut(with_supervisor_for_both, Cut.RESET)
        await ticks(ring, 2 * CUT_TICKS)
        assert ring.supervisor.counts["evictions"] == 0
        assert ring.supervisor.counts["ReportUnresponsive"] > 0
        assert ring.supervisor.members() == {TOPIC: len(NAMES)}
        ring.network.heal()
        await ring.wait_healthy()


async def test_members_cut_off_from_the_supervisor_are_evicted_and_return() -> None:
    async with proxied_ring(*NAMES) as ring:
        await ring.wait_healthy()
        ring.network.cut(with_supervisor_for_one_side, Cut.BLACKHOLE)
        await until(lambda: ring.supervisor.members() == {TOPIC: len(NAMES) - len(OTHERS)})
        ring.network.heal()
        await ring.wait_healthy()
        assert ring.supervisor.members() == {TOPIC: len(NAMES)}


async def test_member_reachable_only_indirectly_gets_every_publication() -> None:
    def is_cut(one: NodeId, other: NodeId) -> bool:
        return {one, other} in ({"n0", "n1"}, {"n0", "n2"})

    async with proxied_ring(*NAMES) as ring:
        await ring.wait_healthy()
        ring.network.cut(is_cut, Cut.RESET)
        sent = await publish(ring, "around")
        await until(lambda: all(len(got) == len(sent) for got in ring.delivered.values()))
        assert ring.network.refused > 0
