"""Order of the publications that a tail reads from a member (docs/ordering.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Final, NamedTuple

from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.publications import Publication
from skipring.observability.clock import time_us
from skipring.order.gaps import Gap, Order, Release
from skipring.order.publisher_order import PublisherOrder
from skipring.order.time_order import TimeOrder

GAP_WAIT_S: Final = 2.0  # Guess; four times as long, because a tail knows no ring neighbours.
TIME_WAIT_S: Final = 2.0  # Guess; it has to cover the delays of the network and of clocks.
STEP_S: Final = 0.1  # Guess: the tail asks its member for more this often.


class TailBatch(NamedTuple):
    """Batch that a tail has read: its first number, and those publications that are wanted."""

    batch: RecordBatch
    first: int
    publications: list[Publication]


class TailOrder:
    """Order of the batches of a tail; it holds publications back in memory."""

    def __init__(self, order: Order, *, is_new: bool) -> None:
        self._order: PublisherOrder[Publication] | TimeOrder[Publication]
        if order is Order.TIME:
            self._order = TimeOrder(wait_s=TIME_WAIT_S, clock_us=time_us())
        else:
            self._order = PublisherOrder(wait_s=GAP_WAIT_S, step_s=STEP_S, from_start=not is_new)

    def add(
        self, batches: Iterable[TailBatch], now_s: float, *, is_at_end: bool
    ) -> Iterator[Publication | Gap]:
        """Add batches; yield what is released, at the end of the log also what is overdue."""
        order = self._order
        order.on_time(now_s, time_us())
        for batch, first, publications in batches:
            if batch.unordered:
                yield from publications
            else:
                yield from _marked(order.add(batch.publisher, first, batch.end, publications))
        if is_at_end:
            yield from _marked(order.expire(order.now, -inf))

    def flush(self) -> Iterator[Publication | Gap]:
        """Yield what is held back: the tail has ended."""
        yield from _marked(self._order.flush())


def _marked(released: Iterable[Release[Publication] | Gap]) -> Iterator[Publication | Gap]:
    for each in released:
        if isinstance(each, Gap):
            yield each
        elif each.is_late or each.is_ahead:
            yield from (replace(one, late=True) for one in each.publications)
        else:
            yield from each.publications
