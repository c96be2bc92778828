"""Live feed of arrivals for monitors: sender, hops, and whether the publication was new.

The node records arrivals only while a monitor asks for them, and keeps only the last KEPT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, cast

from skipring.core.effects import Deliver, Origin
from skipring.core.messages import HOPS_MAX, Message, Publications, PublishMany, PublishNew
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.observability.clock import time_us
from skipring.wire.limits import ARRIVALS_MAX
from skipring.wire.rpc import RUNTIME_TYPES, Arrival, ArrivalPage, FetchArrivals, WireMessage
from skipring.world.snapshot import publications_in

KEPT: Final = 2048  # Limit: recorded arrivals of a topic.
PATIENCE_TICKS: Final = 120  # Guess: a monitor asks more often than this.

NEW: Final = (PublishNew, PublishMany)
_PLACES: Final = {origin: place for place, origin in enumerate(Origin)}


class ArrivalTap:
    """Last arrivals in each topic that a monitor watches."""

    def __init__(self, clock_us: Callable[[], int] = time_us) -> None:
        self._clock_us = clock_us
        self._watched: dict[TopicId, _Log] = {}
        self._fresh: int | None = None  # new publications of the current message; None: no message

    @property
    def is_watched(self) -> bool:
        """Return True if a monitor watches a topic."""
        return bool(self._watched)

    def answer(self, topic: TopicId, question: FetchArrivals) -> ArrivalPage:
        """Return the arrivals since a number, and record arrivals in the topic from now on."""
        log = self._watched.setdefault(topic, _Log())
        return log.page(question)

    def on_tick(self) -> None:
        """Drop topics without a request for PATIENCE_TICKS ticks."""
        for topic, log in list(self._watched.items()):
            if log.on_tick() > PATIENCE_TICKS:
                del self._watched[topic]

    @contextmanager
    def handling(self, topic: TopicId, sender: NodeId, message: WireMessage) -> Iterator[None]:
        """Count the new publications while a message is handled, then record its arrival."""
        is_runtime = type(message) in RUNTIME_TYPES
        publications = () if is_runtime else publications_in(cast("Message", message))
        self._fresh = 0 if publications else None
        try:
            yield
        finally:
            fresh, self._fresh = self._fresh, None
        if fresh is not None and topic in self._watched:
            origin = Origin.REPAIR if isinstance(message, Publications) else Origin.SPREAD
            hops = min(message.hops + 1, HOPS_MAX) if isinstance(message, NEW) else 0
            self._record(topic, publications, sender=sender, hops=hops, origin=origin, fresh=fresh)

    def on_delivered(self, topic: TopicId, delivery: Deliver) -> None:
        """Count new publications of the current message, or record them without a sender.

        The node's own publications and those of a backfill have no message.
        """
        new = delivery.publications
        if self._fresh is not None:
            self._fresh += len(new)
        elif topic in self._watched:
            hops, origin = delivery.hops, delivery.origin
            self._record(topic, new, sender=None, hops=hops, origin=origin, fresh=len(new))

    def _record(
        self,
        topic: TopicId,
        publications: tuple[Publication, ...],
        *,
        sender: NodeId | None,
        hops: int,
        origin: Origin,
        fresh: int,
    ) -> None:
        first = publications[0]
        self._watched[topic].add(
            Arrival(
                time=self._clock_us(),
                sender=sender,
                hops=hops,
                origin=_PLACES[origin],
                count=len(publications),
                fresh=min(fresh, len(publications)),
                publisher=first.publisher,
                seq=first.seq,
                published=first.time,
            )
        )


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
