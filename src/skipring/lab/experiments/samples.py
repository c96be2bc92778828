"""Samples of a world after every round: the rows of the table ``rounds``."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from skipring.core.messages import Message
from skipring.core.peers import NodeId
from skipring.sim.engine import World
from skipring.sim.runner import Counters
from skipring.world.legitimacy import Layer, channel_violations, has_all_publications, violations
from skipring.world.snapshot import SubscriberView

LAYERS: Final = (Layer.DATABASE, Layer.LABELS, Layer.RING, Layer.SHORTCUTS, Layer.LEAVERS)


class Samples:
    """What was seen of a world, from a round on; to be called after every round."""

    def __init__(self, first_round: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self.sent: Counter[type[Message]] = Counter()  # of each kind, when it was last looked at
        self._first_round = first_round
        self._before: Counters | None = None

    def __call__(self, world: World) -> None:
        """Look at the world; rounds before the first one do not count, as those of the churn."""
        if world.round < self._first_round:
            return
        now = Counters.of(world)
        spent = now.since(self._before or now)
        self._before = now
        self.sent = Counter(world.sent)
        holding = layers_holding(world)
        is_explicit = holding == len(LAYERS)
        self.rows.append(
            {
                "round": world.round - self._first_round,
                "explicit": is_explicit,
                "strict": is_explicit and next(channel_violations(world), None) is None,
                "publications": has_all_publications(world),
                "layers": holding,
                "messages": spent.messages,
                "supervisor_requests": spent.supervisor_requests,
                "degree_max": max(degrees(world), default=0),
                "in_flight": sum(1 for _ in world.in_flight()),
            }
        )

    @property
    def degree_peak(self) -> int:
        """The largest degree that was seen."""
        return max((row["degree_max"] for row in self.rows), default=0)


def layers_holding(world: World) -> int:
    """How many of L0 to L4 hold, counted from L0 up to the first that does not."""
    first = next(violations(world), None)
    return len(LAYERS) if first is None else LAYERS.index(first.layer)


def degrees(world: World) -> list[int]:
    """How many other nodes each subscriber refers to."""
    return [_degree(node, machine) for node, machine in world.subscribers.items()]


def _degree(node: NodeId, seen: SubscriberView) -> int:
    known = {peer.node for peer in (seen.left, seen.right, seen.ring) if peer is not None}
    known.update(holder for holder in seen.shortcuts.values() if holder is not None)
    return len(known - {node})
