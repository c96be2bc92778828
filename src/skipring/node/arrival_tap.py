"""Arrivals of publications, for monitors: a live feed, and pages of the delivery log.

The feed has the sender, the hops, and whether the publication was new. The node records it only
while a monitor asks for it, and keeps only the last KEPT arrivals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, cast

from skipring.core.batches import RecordBatch
from skipring.core.effects import Deliver, Origin
from skipring.core.log import Log, LogEntry, PageLimits
from skipring.core.messages import HOPS_MAX, Message, Publications, PublishMany, PublishNew
from skipring.core.peers import NodeId, TopicId
from skipring.net.work_budget import Spent, never_spent
from skipring.observability.clock import time_us
from skipring.storage.delivery_log import ORIGIN_PLACES, DeliveryLog, DeliveryRows
from skipring.wire.limits import ARRIVALS_MAX
from skipring.wire.rpc import (
    RUNTIME_TYPES,
    Arrival,
    ArrivalPage,
    DeliveryPage,
    FetchArrivals,
    FetchDeliveries,
    WireMessage,
)
from skipring.world.snapshot import publications_in

KEPT: Final = 2048  # Limit: recorded arrivals of a topic.
PATIENCE_TICKS: Final = 120  # Guess: a monitor asks more often than this.
DELIVERIES_MAX: Final = 4096  # Measured: four times as many took 35 ms of the loop.

SCAN: Final = PageLimits(1 << 20, 512, 1 << 20, 512)  # Guess: a read takes a few milliseconds.
SCANNED_BYTES_MAX: Final = 4 << 20  # Guess: batches to read for one page of deliveries.

NEW: Final = (PublishNew, PublishMany)


class ArrivalTap:
    """Last arrivals in each topic that a monitor watches."""

    def __init__(self, clock_us: Callable[[], int] = time_us) -> None:
        self.watched: dict[TopicId, _Log] = {}  # nothing is recorded in other topics
        self._clock_us = clock_us
        self._fresh: int | None = None  # new publications of the current message; None: no message

    def answer(self, topic: TopicId, question: FetchArrivals) -> ArrivalPage:
        """Return the arrivals since a number, and record arrivals in the topic from now on."""
        log = self.watched.setdefault(topic, _Log())
        return log.page(question)

    def on_tick(self) -> None:
        """Drop topics without a request for PATIENCE_TICKS ticks."""
        for topic, log in list(self.watched.items()):
            if log.on_tick() > PATIENCE_TICKS:
                del self.watched[topic]

    @contextmanager
    def handling(self, topic: TopicId, sender: NodeId, message: WireMessage) -> Iterator[None]:
        """Count the new publications while a message is handled, then record its arrival."""
        is_runtime = type(message) in RUNTIME_TYPES
        batches = () if is_runtime else publications_in(cast("Message", message))
        self._fresh = 0 if batches else None
        try:
            yield
        finally:
            fresh, self._fresh = self._fresh, None
        if fresh is not None and topic in self.watched:
            origin = Origin.REPAIR if isinstance(message, Publications) else Origin.SPREAD
            hops = min(message.hops + 1, HOPS_MAX) if isinstance(message, NEW) else 0
            self._record(topic, batches, sender=sender, hops=hops, origin=origin, fresh=fresh)

    def on_delivered(self, topic: TopicId, delivery: Deliver) -> None:
        """Count new publications of the current message, or record them without a sender.

        The node's own publications and those of a backfill have no message.
        """
        new = delivery.batches
        if self._fresh is not None:
            self._fresh += _count(new)
        elif topic in self.watched:
            hops, origin = delivery.hops, delivery.origin
            self._record(topic, new, sender=None, hops=hops, origin=origin, fresh=_count(new))

    def _record(
        self,
        topic: TopicId,
        batches: tuple[RecordBatch, ...],
        *,
        sender: NodeId | None,
        hops: int,
        origin: Origin,
        fresh: int,
    ) -> None:
        first, count = batches[0], _count(batches)
        self.watched[topic].add(
            Arrival(
                time=self._clock_us(),
                sender=sender,
                hops=hops,
                origin=ORIGIN_PLACES[origin],
                count=count,
                fresh=min(fresh, count),
                publisher=first.publisher,
                seq=first.first,
                published=_time_of(first),
            )
        )


def _count(batches: tuple[RecordBatch, ...]) -> int:
    """Return the number of records."""
    return sum(batch.count for batch in batches)


def _time_of(batch: RecordBatch) -> int:
    """Return the time of the first record; 0 if it cannot be read."""
    try:
        return batch.records()[0].time
    except (ValueError, IndexError):
        return 0


class _Log:
    """Last arrivals in one topic, numbered from 0."""

    def __init__(self) -> None:
        self._ticks = 0  # since the last request
        self._end = 0
        self._arrivals: deque[Arrival] = deque(maxlen=KEPT)

    def add(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        self._end += 1

    def on_tick(self) -> int:
        """Count a tick; return the number since the last request."""
        self._ticks += 1
        return self._ticks

    def page(self, question: FetchArrivals) -> ArrivalPage:
        self._ticks = 0
        begin = self._end - len(self._arrivals)
        # A larger number is from an earlier run of this node.
        since = question.since if question.since <= self._end else 0
        first = max(since, begin)
        found = tuple(islice(self._arrivals, first - begin, first - begin + ARRIVALS_MAX))
        return ArrivalPage(question.request, first + len(found), found)


# -- delivery log ----------------------------------------------------------------------------


def delivery_page(
    trace: DeliveryLog,
    topic: TopicId,
    archive: Log,
    question: FetchDeliveries,
    is_spent: Spent = never_spent,
) -> DeliveryPage:
    """Return the recorded deliveries between two offsets, up to the size of a page.

    With a disk, only durable offsets are returned: a crash never revokes a returned offset.
    """
    kept_end = archive.durable_end if archive.is_durable else archive.end
    end = min(question.end, kept_end)
    page = _DeliveryColumns()
    inspected = scanned = 0
    for known in trace.read(topic, question.start, end, DELIVERIES_MAX):
        start = known.start
        while start < known.end:
            found = archive.read_page(start, known.end, SCAN)
            for entry in found.entries:
                page.add(known, entry)
                scanned += entry.batch.size_bytes
            start = found.next
            if scanned >= SCANNED_BYTES_MAX or is_spent():
                return page.finished(question, min(start, known.end), end)
        inspected += len(known.times)
        if inspected >= DELIVERIES_MAX:
            return page.finished(question, known.end, end)
    return page.finished(question, end, end)


class _DeliveryColumns:
    """Columns of a page of deliveries."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._hops, self._origins = bytearray(), bytearray()
        self._ids: list[bytes] = []

    def add(self, known: DeliveryRows, entry: LogEntry) -> None:
        """Add the deliveries of the records of a batch."""
        for offset in range(max(entry.offset, known.start), min(entry.end, known.end)):
            place = offset - known.start
            self._offsets.append(offset)
            self._times.append(known.times[place])
            self._hops.append(known.hops[place])
            self._origins.append(known.origins[place])
            self._ids.append(entry.batch.record_id(offset - entry.offset))

    def finished(self, question: FetchDeliveries, reached: int, end: int) -> DeliveryPage:
        """Return the page; the next one starts at ``reached``."""
        return DeliveryPage(
            request=question.request,
            next=reached if reached < end else None,
            offsets=tuple(self._offsets),
            times=tuple(self._times),
            hops=bytes(self._hops),
            origins=bytes(self._origins),
            ids=b"".join(self._ids),
        )
