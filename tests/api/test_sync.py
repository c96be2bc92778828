"""Confirmations of neighbours for callers that wait until all are in sync."""

from __future__ import annotations

import asyncio

from skipring.api.topic_session import SyncTracker
from skipring.core.effects import PeerInSync
from skipring.core.peers import NodeId


class Scene:
    """Confirmations of a node whose neighbours the test sets."""

    def __init__(self, neighbours: list[NodeId] | None) -> None:
        self.neighbours = neighbours
        self.confirmed: frozenset[NodeId] = frozenset()
        self.asked = 0
        self.confirmations = SyncTracker(
            lambda: self.neighbours, lambda: self.confirmed, self._ask, tick_s=0.001
        )

    def _ask(self) -> None:
        self.asked += 1

    def confirm(self, *nodes: NodeId, root: bytes = b"root") -> None:
        self.confirmed |= set(nodes)
        for node in nodes:
            self.confirmations.on_confirmed(PeerInSync(node, root))


def test_topic_is_in_sync_once_every_neighbour_has_confirmed() -> None:
    scene = Scene(["a", "b"])
    scene.confirm("a")
    assert not scene.confirmations.are_complete
    scene.confirm("b")
    assert scene.confirmations.are_complete
    scene.confirmed = frozenset()  # after a repair
    assert "a" not in scene.confirmations
    assert not scene.confirmations.are_complete


def test_single_member_is_complete_and_node_without_label_is_not() -> None:
    assert Scene([]).confirmations.are_complete
    assert not Scene(None).confirmations.are_complete


def test_waiting_caller_asks_the_neighbours_every_tick() -> None:
    scene = Scene(["a"])
    assert asyncio.run(scene.confirmations.all_equal(0.05)) == "a did not confirm in time"
    assert scene.asked > 1


def test_timeout_names_neighbours_that_did_not_confirm() -> None:
    async def missing(neighbours: list[NodeId] | None) -> str | None:
        scene = Scene(neighbours)
        waiting = asyncio.create_task(scene.confirmations.all_equal(0.05))
        await asyncio.sleep(0)
        scene.confirm("a", root=b"one")
        scene.confirm("b", root=b"two")
        return await waiting

    assert asyncio.run(missing(["a"])) is None
    assert asyncio.run(missing([])) is None
    assert "has not assigned a place" in (asyncio.run(missing(None)) or "")
    assert "publications keep arriving" in (asyncio.run(missing(["a", "b"])) or "")
    assert "c and d did not confirm" in (asyncio.run(missing(["a", "c", "d"])) or "")
