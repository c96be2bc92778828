"""Who acts next: the order of deliveries and Timeouts (section 1.1).

The paper only demands fairness. Each scheduler here is fair and defines what one round is, the
paper's timeout interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from skipring.core.messages import SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.sim.engine import World
from skipring.world.snapshot import Parcel


class Scheduler(Protocol):
    """Runs one round of a world."""

    def run_round(self, world: World) -> None:
        """Let one timeout interval pass."""


class RandomOrder:
    """All messages present and one Timeout of everybody, in uniformly random order.

    Messages sent meanwhile take part, so new ones may overtake old ones.
    """

    def run_round(self, world: World) -> None:
        """Let one timeout interval pass."""
        channels, chance, now = world.channels, world.rng.random, world.round
        waiting = world.processes()
        world.rng.shuffle(waiting)
        old = len(channels)
        while waiting or old:
            pick = int(chance() * (len(channels) + len(waiting)))
            if pick < len(waiting):
                world.tick(waiting.pop())
                continue
            pick -= len(waiting)
            parcel = channels[pick]
            channels[pick] = channels[-1]
            channels.pop()
            if parcel.sent_round < now:
                old -= 1
            world.deliver(parcel)


class Synchronous:
    """All messages present, shuffled; then all Timeouts."""

    def run_round(self, world: World) -> None:
        """Let one timeout interval pass."""
        present, world.channels = world.channels, []
        world.rng.shuffle(present)
        for parcel in present:
            world.deliver(parcel)
        for node in world.processes():
            world.tick(node)
