"""Timeouts of ring neighbours: R9, and reports to the failure detector (section 3.3).

In a legitimate state every ring neighbour sends one CheckLabel per interval. A neighbour that does
not is dead or no longer a neighbour; only the supervisor knows. The timeout doubles only after the
supervisor has confirmed the neighbour, so a lost reply never slows the node down.

A crashed neighbour sends nothing at all: the node reports a neighbour after three ticks without
any message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from skipring.core.config import ProtocolConfig
from skipring.core.failure_detector import UNHEARD_TICKS
from skipring.core.peers import NodeId
from skipring.core.state import LivenessState

HEARD: Final = -1  # in place of the ticks: the neighbour has sent a message since the last tick


class Watch(Struct, gc=False):
    """Silence of one neighbour in ticks, and its timeout."""

    node: NodeId
    ticks: int
    threshold: int
    pending: bool


class NeighbourLiveness:
    """Timeouts of the ring neighbours of one subscriber, in a list: there are two or three."""

    __slots__ = ("_config", "_unheard", "_watches")

    def __init__(self, config: ProtocolConfig, unheard: dict[NodeId, int]) -> None:
        """Watch the neighbours; ``unheard`` has each one's ticks without any message.

        The owner sets the entry of a neighbour that sends a message to HEARD.
        """
        self._config = config
        self._watches: list[Watch] = []
        self._unheard = unheard

    def unresponsive(self, neighbours: Sequence[NodeId], *, is_late: bool) -> list[NodeId]:
        """Count one more tick; return the neighbours to report. A late node reports none."""
        unheard = self._unheard
        if is_late:
            unheard.clear()
            return []
        silent: list[NodeId] = []
        for node in neighbours:
            ticks = unheard.get(node, 0)
            unheard[node] = ticks = ticks + 1 if ticks > HEARD else 0  # memory may be corrupted
            if ticks >= UNHEARD_TICKS:
                silent.append(node)
        if len(unheard) > len(neighbours):
            for node in [each for each in unheard if each not in neighbours]:
                del unheard[node]
        return silent

    def on_heard(self, node: NodeId) -> None:
        """Reset the silence of a node that has sent a first-hand message."""
        for watch in self._watches:
            if watch.node == node:
                watch.ticks = 0

    def on_tick(self, neighbours: Sequence[NodeId]) -> bool:
        """Count one more silent tick for each neighbour; return True if a timeout expires."""
        watches = self._watches
        if [watch.node for watch in watches] != neighbours:
            self._watches = watches = [self._watch_over(node) for node in neighbours]
        alarm, ticks_min = False, self._config.neighbour_timeout_ticks_min
        for watch in watches:
            watch.ticks = ticks = max(watch.ticks, 0) + 1  # memory may be corrupted
            if ticks >= ticks_min and ticks >= self._timeout_ticks(watch):
                watch.ticks = 0
                watch.pending = alarm = True
        return alarm

    def _watch_over(self, node: NodeId) -> Watch:
        for watch in self._watches:
            if watch.node == node:
                return watch
        return Watch(node, 0, self._config.neighbour_timeout_ticks_min, False)

    def confirm(self, nodes: Iterable[NodeId]) -> None:
        """Clear the pending flag of nodes that a new configuration names; double their timeout."""
        named = tuple(nodes)
        for watch in self._watches:
            if watch.pending and watch.node in named:
                watch.pending = False
                watch.threshold = self._clamped(2 * self._clamped(watch.threshold))

    def _timeout_ticks(self, watch: Watch) -> int:
        """Return the timeout; the minimum while a request is pending, because it may be lost."""
        return (
            self._config.neighbour_timeout_ticks_min
            if watch.pending
            else self._clamped(watch.threshold)
        )

    def _clamped(self, threshold: int) -> int:
        """Return the threshold within its bounds: memory may be corrupted."""
        return min(
            max(threshold, self._config.neighbour_timeout_ticks_min),
            self._config.neighbour_timeout_ticks_max,
        )

    def load(self, states: Mapping[NodeId, LivenessState]) -> None:
        """Replace the counters; the values may be corrupted."""
        self._watches = [
            Watch(node, state.ticks, state.threshold, state.pending)
            for node, state in states.items()
        ]

    def states(self) -> dict[NodeId, LivenessState]:
        """Return the counters as values."""
        return {
            watch.node: LivenessState(watch.ticks, watch.threshold, watch.pending)
            for watch in self._watches
        }
