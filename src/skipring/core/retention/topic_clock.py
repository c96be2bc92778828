"""Topic clock: the median of this node's clock and its ring neighbours' clocks (M1, decision 0057).

Rules that destroy rows use the earlier of node and topic clock: a neighbour's wrong clock, or one
broken clock, delays a deletion and never hastens it. A clock of 0 is unknown: then no stamp is in
the future, and nothing ages.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median_low
from typing import Final

from msgspec import Struct

from skipring.core.limits import NUMBER_MAX
from skipring.core.peers import NodeId

NEIGHBOURS: Final = 2  # in a ring of three or more
NEIGHBOURS_MAX: Final = 8  # Limit: clocks in memory; a member has two ring neighbours.


class NeighbourClock(Struct, frozen=True, array_like=True, gc=False):
    """Clock of a neighbour, and the monotonic time of this node when it was received."""

    clock: int
    received: int


class ClockState(Struct, frozen=True, kw_only=True, gc=False):
    """Clocks of a subscriber, in microseconds."""

    own: int = 0
    monotonic: int = 0
    neighbours: dict[NodeId, NeighbourClock] = {}


class TopicClock:
    """Clocks of one member as of its last tick."""

    __slots__ = (
        "_expected",
        "_has_ticked",
        "_monotonic",
        "_neighbours",
        "earlier",
        "horizon",
        "own",
        "tolerance",
        "topic",
    )

    def __init__(self, tolerance_us: int) -> None:
        self.tolerance = tolerance_us  # TOL
        self.own = self.topic = self.earlier = 0
        self.horizon = NUMBER_MAX  # the highest stamp that is not in the future
        self._monotonic = 0
        self._neighbours: dict[NodeId, NeighbourClock] = {}
        self._expected = 0  # ring neighbours
        self._has_ticked = False  # before, this node's monotonic clock is unknown

    @property
    def is_known(self) -> bool:
        """Return True if this member has a clock."""
        return self.own > 0

    def on_tick(self, now: int, monotonic: int) -> None:
        """Set this node's clock; a jump of it does not move the neighbours' clocks."""
        self.own, self._monotonic = _clamped(now), monotonic
        self._has_ticked = True
        self._derive()

    def record(self, node: NodeId, clock: int) -> None:
        """Record the clock that a ring neighbour has sent; 0 is none.

        Before the first tick the clocks cannot be compared: ignore it.
        """
        self._neighbours.pop(node, None)
        if clock > 0 and self._has_ticked:
            self._neighbours[node] = NeighbourClock(_clamped(clock), self._monotonic)
        if len(self._neighbours) > NEIGHBOURS_MAX:
            del self._neighbours[next(iter(self._neighbours))]
        self._derive()

    def retain(self, nodes: Collection[NodeId]) -> None:
        """Forget the clocks of nodes that are no ring neighbours any more."""
        self._expected = len(nodes)
        kept = {node: each for node, each in self._neighbours.items() if node in nodes}
        if len(kept) < len(self._neighbours):
            self._neighbours = kept
            self._derive()

    def _derive(self) -> None:
        others = [self._advanced(each) for each in self._neighbours.values()]
        is_agreed = len(others) > 1 and self.is_known
        self.topic = median_low([self.own, *others]) if is_agreed else self.own
        self.earlier = min(self.own, self.topic)
        self.horizon = min(self.topic + self.tolerance, NUMBER_MAX) if self.own else NUMBER_MAX

    def _advanced(self, neighbour: NeighbourClock) -> int:
        """Return a neighbour's clock now, by this node's monotonic clock."""
        elapsed = max(self._monotonic - neighbour.received, 0)  # memory may be corrupted
        return _clamped(neighbour.clock + elapsed)

    @property
    def is_off(self) -> bool:
        """Return True if this node's clock differs from both neighbours' beyond the tolerance."""
        others = [self._advanced(each) for each in self._neighbours.values()]
        off = [abs(self.own - each) > self.tolerance for each in others]
        return self.is_known and len(off) > 1 and all(off)

    @property
    def is_sure(self) -> bool:
        """Return True if the clocks of all ring neighbours are known, so one wrong clock shows.

        Until then a member that has just started destroys nothing.
        """
        is_complete = len(self._neighbours) >= min(self._expected, NEIGHBOURS)
        return self._has_ticked and (is_complete or not self.is_known)

    def has_clock_of(self, node: NodeId) -> bool:
        """Return True if a ring neighbour has sent its clock."""
        return node in self._neighbours

    @property
    def deviation(self) -> int:
        """Return how far this node's clock is ahead of the topic clock."""
        return self.own - self.topic

    def is_future(self, stamp: int) -> bool:
        """Return True if rows with this stamp are quarantined for now."""
        return stamp > self.horizon

    def stamp(self, last: int, newest: int) -> int:
        """Return the stamp of a new row: above this node's last and the topic's newest (M1.1).

        Stamps in the future are ignored, so a corrupted one does not spoil those that follow.
        """
        follows = [known + 1 for known in (last, newest) if 0 <= known < self.horizon]
        return max(self.topic, *follows, 0)

    def state(self) -> ClockState:
        """Return the clocks as a value."""
        return ClockState(
            own=self.own, monotonic=self._monotonic, neighbours=dict(self._neighbours)
        )

    def load(self, state: ClockState) -> None:
        """Replace the clocks; the value may be corrupted."""
        self.own, self._monotonic = _clamped(state.own), state.monotonic
        self._has_ticked = False
        known = list(state.neighbours.items())[:NEIGHBOURS_MAX]
        self._neighbours = {
            node: NeighbourClock(_clamped(each.clock), each.received) for node, each in known
        }
        self._derive()


def _clamped(clock: int) -> int:
    return min(max(clock, 0), NUMBER_MAX)
