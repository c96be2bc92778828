"""Tracker of the ring neighbours that have confirmed to be in sync (T19)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from skipring.core.effects import PeerInSync
from skipring.core.peers import NodeId

ASK_TICKS_MAX: Final = 64  # as quiet_ticks_max in NodeSettings

Neighbours = Callable[[], list[NodeId] | None]


class SyncTracker:
    """Confirmations of the ring neighbours since the last repair."""

    def __init__(self, neighbours: Neighbours, ask: Callable[[], None], tick_s: float) -> None:
        self._neighbours = neighbours  # returns None while this node has no label
        self._ask = ask
        self._tick_s = tick_s
        self._nodes: set[NodeId] = set()
        self._rounds: list[_Round] = []  # one for each waiting caller
        self._ask_ticks = 0  # until the next question
        self._ask_period = 1

    def __contains__(self, node: NodeId) -> bool:
        return node in self._nodes

    @property
    def are_complete(self) -> bool:
        """Return True if all neighbours have confirmed; a node that is alone has no neighbours."""
        neighbours = self._neighbours()
        return neighbours is not None and self._nodes.issuperset(neighbours)

    def on_confirmed(self, confirmed: PeerInSync) -> None:
        """Record that a ring neighbour is in sync."""
        self._nodes.add(confirmed.node)
        for answers in self._rounds:
            answers.roots[confirmed.node] = confirmed.root
            answers.arrived.set()

    def on_repair(self) -> None:
        """Reset the confirmations: a repair has brought publications that were missing here."""
        self._nodes.clear()
        self._ask_ticks, self._ask_period = 0, 1

    def on_tick(self) -> None:
        """Ask the neighbours until all have confirmed, with doubling intervals."""
        neighbours = self._neighbours() or []
        self._nodes.intersection_update(neighbours)
        if len(self._nodes) == len(neighbours):
            self._ask_ticks, self._ask_period = 0, 1
        elif self._ask_ticks > 0:
            self._ask_ticks -= 1
        else:
            self._ask_ticks = self._ask_period - 1
            self._ask_period = min(2 * self._ask_period, ASK_TICKS_MAX)
            self._ask()

    async def all_equal(self, timeout_s: float) -> str | None:
        """Wait until all neighbours have confirmed one state; return the reason after a timeout."""
        answers = _Round()
        self._rounds.append(answers)
        try:
            async with asyncio.timeout(timeout_s):
                while not answers.are_equal(self._neighbours()):
                    self._ask()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._tick_s):
                            await self._equal(answers)
        except TimeoutError:
            return answers.missing(self._neighbours())
        finally:
            self._rounds.remove(answers)
        return None

    async def _equal(self, answers: _Round) -> None:
        while not answers.are_equal(self._neighbours()):
            answers.arrived.clear()
            await answers.arrived.wait()


class _Round:
    """Confirmations that one waiting caller has received from the neighbours."""

    def __init__(self) -> None:
        self.roots: dict[NodeId, bytes] = {}
        self.arrived = asyncio.Event()

    def are_equal(self, neighbours: list[NodeId] | None) -> bool:
        """Return True if all neighbours have confirmed the same root."""
        if neighbours is None:
            return False
        roots = {self.roots.get(node) for node in neighbours}
        return not roots or (len(roots) == 1 and None not in roots)

    def missing(self, neighbours: list[NodeId] | None) -> str:
        """Return the reason why the neighbours are not in sync."""
        if neighbours is None:
            return "the supervisor has not assigned a place in the ring"
        silent = [node for node in neighbours if node not in self.roots]
        if not silent:
            return "publications keep arriving, so the neighbours confirmed different states"
        return f"{' and '.join(silent)} did not confirm to be in sync"
