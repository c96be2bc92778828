"""Confirmations of neighbours, and when a neighbour is asked again."""

from __future__ import annotations

import asyncio

from skipring.api.sync import ASK_TICKS_MAX, SyncTracker
from skipring.core.effects import PeerInSync
from skipring.core.peers import NodeId


class Scene:
    """Confirmations of a node whose neighbours the test sets."""

    def __init__(self, neighbours: list[NodeId] | None) -> None:
        self.neighbours = neighbours
        self.asked = 0
        self.confirmations = SyncTracker(lambda: self.neighbours, self._ask, tick_s=0.001)

    def _ask(self) -> None:
        self.asked += 1

    def confirm(self, *nodes: NodeId, root: bytes = b"root") -> None:
        for node in nodes:
            self.confirmations.on_confirmed(PeerInSync(node, root))


def test_every_neighbour_has_to_confirm_again_after_repair() -> None:
    scene = Scene(["a", "b"])
    scene.confirm("a")
    assert not scene.confirmations.are_complete
    scene.confirm("b")
    assert scene.confirmations.are_complete
    scene.confirmations.on_repair()
    assert "a" not in scene.confirmations
    assert not scene.confirmations.are_complete


def test_single_member_is_complete_and_node_without_label_is_not() -> None:
    assert Scene([]).confirmations.are_complete
    assert not Scene(None).confirmations.are_complete


def test_former_neighbour_is_forgotten() -> None:
    scene = Scene(["a", "b"])
    scene.confirm("a", "b")
    scene.neighbours = ["b", "c"]
    scene.confirmations.on_tick()
    assert "a" not in scene.confirmations
    assert scene.asked == 1


def test_neighbours_are_asked_with_backoff_until_they_confirm() -> None:
    scene = Scene(["a"])
    for _ in range(1 + 2 + 4):
        scene.confirmations.on_tick()
    assert scene.asked == 3
    for _ in range(10 * ASK_TICKS_MAX):
        scene.confirmations.on_tick()
    asked = scene.asked
    assert 10 <= asked <= 16
    scene.confirm("a")
    for _ in range(2 * ASK_TICKS_MAX):
        scene.confirmations.on_tick()
    assert scene.asked == asked
    scene.confirmations.on_repair()
    scene.confirmations.on_tick()
    assert scene.asked == asked + 1


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
