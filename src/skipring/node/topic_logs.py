"""Logs of all topics of a node, the commits of their store, and the record of deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from skipring.core.effects import Deliver, Origin, Store
from skipring.core.log import Log, MemoryLog
from skipring.core.peers import TopicId
from skipring.node.arrival_tap import ArrivalTap
from skipring.node.group_commit import DeliveryLogFlusher, GroupCommit
from skipring.observability.clock import time_us
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import PublicationStore
from skipring.storage.topic_log import TopicLog

# Guess: deliveries are telemetry, and a write takes 0.3 ms.
DELIVERY_LOG_TICKS: Final = 8

WritableLog = MemoryLog | TopicLog


class TopicLogs:
    """Logs of one node, in memory or in a store."""

    def __init__(
        self,
        commits: GroupCommit,
        arrivals: ArrivalTap,
        store: PublicationStore | None,
        trace: DeliveryLog | None,
    ) -> None:
        self.deliveries: Counter[tuple[TopicId, Origin]] = Counter()
        self.quarantined = 0  # corrupt records
        self.trace = trace if trace is not None else DeliveryLog()
        self._commits = commits
        self._arrivals = arrivals
        self._store = store
        self._logs: dict[TopicId, WritableLog] = {}
        self._flusher = DeliveryLogFlusher(self.trace)

    @property
    def store_id(self) -> str:
        """Return the id of the store that offsets refer to; empty in memory."""
        return self._store.id if self._store is not None else ""

    def open(self, topic: TopicId) -> Log:
        """Return the log of a topic, to which ``append`` adds from now on."""
        log = MemoryLog() if self._store is None else self._store.archive(topic)
        self._logs[topic] = log
        return log

    def forget(self, topic: TopicId) -> None:
        """Drop the counters of a topic that the node has left, and its log if it is in memory."""
        if self._store is None:
            self._logs.pop(topic, None)
            self.trace.forget(topic)
        for origin in Origin:
            self.deliveries.pop((topic, origin), None)

    def append(self, topic: TopicId, effect: Store) -> None:
        """Append publications; commit early if much is uncommitted."""
        self._logs[topic].write(effect.offset, *effect.publications, encoded=effect.encoded)
        self._commits.on_written(effect.size_bytes)

    def quarantine(self, topic: TopicId, offset: int) -> None:
        """Remove a corrupt record from use."""
        self.quarantined += 1
        self._logs[topic].discard(offset)

    def record(self, topic: TopicId, delivery: Deliver) -> None:
        """Record a delivery: counters, delivery log, monitors."""
        count, origin = len(delivery.publications), delivery.origin
        self.deliveries[topic, origin] += count
        self.trace.record(topic, delivery.offset, time_us(), delivery.hops, origin, count)
        if self._arrivals.is_watched:
            self._arrivals.on_delivered(topic, delivery)

    def lose(self, topic: TopicId, offsets: Iterable[int]) -> None:
        """Delete records without any notice, as a failing disk would (fault injection)."""
        for offset in offsets:
            self._logs[topic].discard(offset)

    def on_tick(self, ticks: int) -> None:
        """Commit received publications, once a tick: their publishers have them on disk."""
        self._commits.request_commit()
        if ticks % DELIVERY_LOG_TICKS == 0:
            self._flusher.request_write()

    async def close(self) -> None:
        """Write the delivery log and close it."""
        await self._flusher.close()
