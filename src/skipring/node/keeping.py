"""Logs of a node, their commits, and the record of deliveries.

It applies the effects Store, Discard and Deliver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from skipring.core.effects import Deliver, Discard, Effect, Origin, Store
from skipring.core.log import Log, MemoryLog
from skipring.core.peers import TopicId
from skipring.node.arrival_tap import ArrivalTap
from skipring.node.group_commit import DeliveryLogFlusher, GroupCommit
from skipring.observability.clock import time_us
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import PublicationStore
from skipring.storage.topic_log import TopicLog

TRACED_TICKS: Final = 8  # Our guess: how publications came is telemetry, and a write takes 0.3 ms.

WritableArchive = MemoryLog | TopicLog
Deliverer = Callable[[TopicId, Deliver], None]


class Keeping:
    """The archives of one node."""

    def __init__(
        self,
        deliver: Deliverer,
        on_other: Callable[[TopicId, Effect], None],
        store: PublicationStore | None,
        trace: DeliveryLog | None,
    ) -> None:
        self.archives: dict[TopicId, WritableArchive] = {}
        self.arrivals = ArrivalTap()
        self.deliveries: Counter[tuple[TopicId, Origin]] = Counter()
        self.durability = GroupCommit(store)
        self.put_aside = 0  # publications that turned out to be spoilt
        self.trace = trace if trace is not None else DeliveryLog()
        self._deliver = deliver
        self._on_other = on_other  # who carries out what is not about publications
        self._store = store
        self._tracing = DeliveryLogFlusher(self.trace)

    @property
    def store_id(self) -> str:
        """Which store the offsets are of; none in memory."""
        return self._store.id if self._store is not None else ""

    def open_archive(self, topic: TopicId) -> Log:
        """Where the publications of a topic lie, from now on."""
        archive = MemoryLog() if self._store is None else self._store.archive(topic)
        self.archives[topic] = archive
        return archive

    def forget(self, topic: TopicId) -> None:
        """We have left a topic: only what is on the disk stays."""
        if self._store is None:
            self.archives.pop(topic, None)
            self.trace.forget(topic)
        for origin in Origin:
            self.deliveries.pop((topic, origin), None)

    def on_tick(self, ticks: int) -> None:
        """Write what has come.

        Whoever has published it has it on its disk: once a tick is enough. Also what a full disk
        did not take.
        """
        self.arrivals.on_tick()
        self.durability.request_commit()
        if ticks % TRACED_TICKS == 0:
            self._tracing.request_write()

    async def close(self) -> None:
        """Write how the last publications came."""
        await self._tracing.close()

    # -- effects -----------------------------------------------------------------------------

    def carry_out(self, topic: TopicId, effect: Effect) -> None:
        """Carry out an effect that is not to be sent."""
        if type(effect) is Deliver:  # by far the most frequent
            self._hand_over(topic, effect)
            return
        match effect:
            case Store(offset=offset, publications=publications):
                self.archives[topic].write(offset, *publications, encoded=effect.encoded)
                self.durability.note(effect.size_bytes)
                if self.durability.exceeds_eager_threshold and self.durability.error is None:
                    self.durability.request_commit()
            case Discard(offset=offset):
                self.put_aside += 1
                self.archives[topic].discard(offset)
            case _:
                self._on_other(topic, effect)

    def _hand_over(self, topic: TopicId, delivery: Deliver) -> None:
        count, origin = len(delivery.publications), delivery.origin
        self.deliveries[topic, origin] += count
        self.trace.record(topic, delivery.offset, time_us(), delivery.hops, origin, count)
        if self.arrivals.is_watched:
            self.arrivals.on_delivered(topic, delivery)
        self._deliver(topic, delivery)

    def lose(self, topic: TopicId, offsets: Iterable[int]) -> None:
        """Forget what is stored at these offsets, and notice nothing."""
        for offset in offsets:
            self.archives[topic].discard(offset)
