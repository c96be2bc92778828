"""How publications came to where they are: by spreading or by repair, how far, how often."""

from __future__ import annotations

from collections import Counter

from skipring.core.effects import Deliver, Origin
from skipring.core.messages import Message
from skipring.world.snapshot import publications_in


class Deliveries:
    """What a world has delivered so far."""

    def __init__(self) -> None:
        self.by_origin: Counter[Origin] = Counter()
        self.hops: Counter[int] = Counter()  # of what was spread
        self.copies = 0  # of publications that arrived at live subscribers

    @property
    def published(self) -> int:
        """How many publications were new to the world."""
        return self.by_origin[Origin.OWN]

    @property
    def received(self) -> int:
        """How often a publication was new to somebody it came to."""
        return self.by_origin[Origin.SPREAD] + self.by_origin[Origin.REPAIR]

    @property
    def duplicates(self) -> int:
        """How often a publication came to somebody who had it."""
        return self.copies - self.received

    @property
    def hops_max(self) -> int:
        """The longest way of what was spread."""
        return max(self.hops, default=0)

    @property
    def hops_mean(self) -> float:
        """The average way of what was spread."""
        total = self.hops.total()
        return sum(hops * count for hops, count in self.hops.items()) / total if total else 0.0

    def note(self, delivery: Deliver) -> None:
        """Publications were handed to an application."""
        count = len(delivery.publications)
        self.by_origin[delivery.origin] += count
        if delivery.origin is Origin.SPREAD:
            self.hops[delivery.hops] += count

    def note_receipt(self, message: Message) -> None:
        """A message with publications has arrived."""
        self.copies += len(publications_in(message))
