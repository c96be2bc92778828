"""Tracker of the ring neighbours that have confirmed to be in sync (T19)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from skipring.core.effects import PeerInSync
from skipring.core.peers import NodeId

Neighbours = Callable[[], list[NodeId] | None]


class SyncTracker:
    """Confirmations of the ring neighbours since the last repair."""

    def __init__(
        self,
        neighbours: Neighbours,
        confirmed: Callable[[], frozenset[NodeId]],
        ask: Callable[[], None],
        tick_s: float,
    ) -> None:
        self._neighbours = neighbours  # returns None while this node has no label
        self._confirmed = confirmed
        self._ask = ask
        self._tick_s = tick_s
        self._rounds: list[_Round] = []  # one for each waiting caller

    def __contains__(self, node: NodeId) -> bool:
        return node in self._confirmed()

    @property
    def are_complete(self) -> bool:
        """Return True if all neighbours have confirmed; a node that is alone has no neighbours."""
        neighbours = self._neighbours()
        return neighbours is not None and self._confirmed().issuperset(neighbours)

    def on_confirmed(self, confirmed: PeerInSync) -> None:
        """Record the root of a ring neighbour for the waiting callers."""
        for answers in self._rounds:
            answers.roots[confirmed.node] = confirmed.root
            answers.arrived.set()

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
