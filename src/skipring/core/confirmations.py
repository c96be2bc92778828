"""Confirmations of the ring neighbours that they are in sync (T19)."""

from __future__ import annotations

from collections.abc import Sequence

from skipring.core.config import ProtocolConfig
from skipring.core.peers import NodeId
from skipring.core.state import SyncState


class SyncConfirmations:
    """Ring neighbours of one subscriber that have confirmed since the last repair."""

    __slots__ = ("_ask_ticks", "_config", "_period", "nodes")

    def __init__(self, config: ProtocolConfig) -> None:
        self._config = config
        self.nodes: frozenset[NodeId] = frozenset()
        self._ask_ticks = 0  # until the next question
        self._period = 1

    def on_tick(self, neighbours: Sequence[NodeId]) -> bool:
        """Return True if the neighbours should be asked now; the intervals double."""
        self.nodes &= frozenset(neighbours)
        # Memory may be corrupted: clamp counters to the values that they are set to.
        ticks_max = self._config.quiet_ticks_max
        self._ask_ticks = min(self._ask_ticks, ticks_max)
        self._period = min(max(self._period, 1), ticks_max)
        if len(self.nodes) == len(neighbours):
            self._ask_ticks, self._period = 0, 1
            return False
        if self._ask_ticks > 0:
            self._ask_ticks -= 1
            return False
        self._ask_ticks = self._period - 1
        self._period = min(2 * self._period, ticks_max)
        return True

    def add(self, node: NodeId) -> None:
        """Record that a ring neighbour is in sync."""
        self.nodes |= {node}

    def reset(self) -> None:
        """Drop the confirmations: a repair has brought publications that were missing here."""
        self.nodes = frozenset()
        self._ask_ticks, self._period = 0, 1

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> SyncState:
        """Return the variables as a value."""
        return SyncState(
            confirmed=tuple(sorted(self.nodes)), ask_ticks=self._ask_ticks, period=self._period
        )

    def load(self, state: SyncState) -> None:
        """Replace the variables; the value may be corrupted."""
        self.nodes = frozenset(state.confirmed)
        self._ask_ticks, self._period = state.ask_ticks, state.period
