"""Departure from a topic: hand publications over to a remaining member, then unsubscribe.

The machine hands publications over (decision 0049). The node waits for the end of the drain, within
a time limit, and reports the members that it cannot reach.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from msgspec import Struct

from skipring.core.batches import RecordBatch
from skipring.core.effects import Drained, HeldBy
from skipring.core.events import DrainRequested, NodeSuspected, UnsubscribeRequested
from skipring.core.peers import NodeId, TopicId
from skipring.core.subscriber import Subscriber
from skipring.core.topics import Dispatch, SubscriberTopics

DRAIN_S: Final = 10.0  # Guess: the wait of a program at its end; ``drain_s`` of connect.
UNLINKED_S: Final = 0.3  # Guess: a live process accepts a connection sooner.
POLL_S: Final = 0.05  # Guess: short compared with UNLINKED_S.
OWN_MAX: Final = 4096  # Limit: a node that has published more hands over everything.


class Departure(Struct, frozen=True):
    """Result of a drain."""

    receiver: NodeId | None = None  # the member that has confirmed everything
    unconfirmed: int = 0  # upper bound of the publications that were not handed over
    own_unconfirmed: int = 0  # own publications without any confirmation
    on_disk: int = 0  # publications on this disk only: no member remains


class Departures:
    """Drains of one node.

    ``own_batches`` has the batches of this node in each topic that no other member has confirmed,
    up to OWN_MAX, each with its number of records; ``own_counts`` counts all these records.
    """

    def __init__(
        self,
        topics: SubscriberTopics,
        dispatch: Dispatch,
        is_linked: Callable[[NodeId], bool],
        is_supervised: Callable[[TopicId], bool],
        *,
        tick_s: float,
        has_disk: bool,
    ) -> None:
        self._topics = topics
        self._dispatch = dispatch
        self._tick_s = tick_s
        self._is_linked = is_linked
        self._is_supervised = is_supervised
        self._has_disk = has_disk
        self.own_batches: defaultdict[TopicId, dict[bytes, int]] = defaultdict(dict)
        self.own_counts: Counter[TopicId] = Counter()
        self._ends: dict[TopicId, asyncio.Future[Drained]] = {}
        self._left: dict[TopicId, asyncio.Event] = {}  # topics that wait for the supervisor

    def on_held(self, topic: TopicId, effect: HeldBy) -> None:
        """Record that a member holds publications."""
        own = self.own_batches[topic]
        for key in own.keys() & effect.ids:
            self.own_counts[topic] -= own.pop(key)

    def on_published(self, topic: TopicId, batches: Iterable[RecordBatch]) -> None:
        """Record batches of this node."""
        own = self.own_batches[topic]
        for batch in batches:
            if len(own) < OWN_MAX:
                own[batch.id] = batch.count
            self.own_counts[topic] += batch.count

    def on_drained(self, topic: TopicId, effect: Drained) -> None:
        """Record the end of a drain."""
        end = self._ends.get(topic)
        if end is not None and not end.done():
            end.set_result(effect)

    async def drain(
        self, topic: TopicId, timeout_s: float, *, waits_alone: bool = False
    ) -> Departure:
        """Hand over the publications of a topic; return how many were not confirmed in time.

        A node that has published waits until it has a place in the ring. If it is alone there and
        has no disk, it waits for a neighbour if ``waits_alone``. During its first backfill a node
        hands over its own publications only: other members hold the rest.
        """
        end = self._ends[topic] = asyncio.get_running_loop().create_future()
        machine = self._topics.machine(topic)
        everything = machine is None or not machine.replication.is_first_backfill
        try:
            if timeout_s <= 0:  # the caller does not wait
                return self._left_alone(topic, has_members=None)
            async with asyncio.timeout(timeout_s):
                if self.own_counts[topic]:
                    await self._company(topic, waits_alone=waits_alone and not self._has_disk)
                own = self.own_batches[topic]
                ids = tuple(own)
                if sum(own.values()) < self.own_counts[topic]:
                    ids, everything = (), True
                self._dispatch(topic, DrainRequested(ids, everything))
                drained = await self._end(topic, end)
            if drained.node is None:
                return self._left_alone(topic, has_members=drained.absent)
            return self._handed_over(topic, drained.node, everything=everything)
        except TimeoutError:
            left = self.not_handed_over(topic)
            # Own publications may be in ranges that are confirmed.
            return Departure(None, left, min(self.own_counts[topic], left))
        finally:
            self._ends.pop(topic, None)
            self.own_batches.pop(topic, None)
            del self.own_counts[topic]

    def _handed_over(self, topic: TopicId, receiver: NodeId, *, everything: bool) -> Departure:
        """Return the result of a drain with a receiver; quarantined batches stay here."""
        hidden, own = _hidden(self._topics.machine(topic)), self.own_batches[topic]
        own_hidden, count = sum([own.get(key, 0) for key in hidden]), sum(hidden.values())
        if everything:
            return Departure(receiver, count, own_hidden)
        return Departure(
            receiver, count - own_hidden + self.own_counts[topic], self.own_counts[topic]
        )

    def not_handed_over(self, topic: TopicId) -> int:
        """Return an upper bound of the publications that no remaining member has confirmed.

        Before the drain these are all publications that the machine holds.
        """
        machine, end = self._topics.machine(topic), self._ends.get(topic)
        if machine is None:
            return self.own_counts[topic]
        if end is not None and end.done():
            if end.result().node is not None:
                return sum(_hidden(machine).values())
            return machine.replica.log.records
        is_leaving = machine.replication.is_leaving
        return machine.replication.unconfirmed if is_leaving else machine.replica.log.records

    def _left_alone(self, topic: TopicId, *, has_members: bool | None) -> Departure:
        """Return the result of a drain without a receiver; ``has_members`` None: ask the machine.

        If no other member is recorded, or all others leave as well, publications on a disk stay
        there. Otherwise they were not handed over. Without a place in the ring the node
        does not know the other members.
        """
        machine, own = self._topics.machine(topic), self.own_counts[topic]
        if machine is None:
            return Departure(None, own, own)
        if has_members is None:
            has_members = bool(machine.neighbours())
        held = max(machine.replica.log.records, own)
        if self._has_disk and machine.label is not None and not has_members:
            return Departure(None, 0, own, on_disk=held)
        return Departure(None, held, own)

    async def _company(self, topic: TopicId, *, waits_alone: bool) -> None:
        """Wait for a place in the ring, and for a neighbour if ``waits_alone``."""
        unlinked_s = 0.0
        while (machine := self._topics.machine(topic)) is not None:
            if machine.label is not None and (machine.neighbours() or not waits_alone):
                return
            if machine.label is None:
                unlinked_s = 0.0 if self._is_supervised(topic) else unlinked_s + POLL_S
                if unlinked_s > UNLINKED_S:
                    return  # without a supervisor there is no place
            await asyncio.sleep(POLL_S)

    async def _end(self, topic: TopicId, end: asyncio.Future[Drained]) -> Drained:
        """Wait for the end of a drain; members without a link for UNLINKED_S are absent."""
        unlinked_s: dict[NodeId, float] = {}
        while (machine := self._topics.machine(topic)) is not None:
            with suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(end), POLL_S)
            self._report_absent(topic, machine, unlinked_s)
        return Drained(None)

    def _report_absent(
        self, topic: TopicId, machine: Subscriber, unlinked_s: dict[NodeId, float]
    ) -> None:
        for node in machine.replication.drain_candidates():
            waited_s = 0.0 if self._is_linked(node) else unlinked_s.get(node, 0.0) + POLL_S
            unlinked_s[node] = waited_s
            if waited_s > UNLINKED_S:
                self._dispatch(topic, NodeSuspected(node))

    # -- unsubscribe -----------------------------------------------------------------------------

    def on_unsubscribed(self, topic: TopicId) -> None:
        """Record that the supervisor has confirmed an unsubscription."""
        if topic in self._left:
            self._left[topic].set()

    async def unsubscribe(self, topic: TopicId, timeout_s: float) -> bool:
        """Leave a topic; return True if its supervisor confirms that in time.

        Without a connection to the supervisor for UNLINKED_S the node stops waiting: the supervisor
        has ended or cannot be reached, and evicts the node once it is back.
        """
        left = self._left.setdefault(topic, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                return await self._is_released(topic, left)
        except TimeoutError:
            return False
        finally:
            self._left.pop(topic, None)

    async def _is_released(self, topic: TopicId, left: asyncio.Event) -> bool:
        """Ask to leave once a tick, since a message may be lost, and when a connection is lost."""
        wait_s = min(self._tick_s, POLL_S)
        asked_s = unlinked_s = 0.0  # sums of waits: a stalled loop does not shorten them
        self._dispatch(topic, UnsubscribeRequested())
        while not left.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), wait_s)
            asked_s += wait_s
            if self._is_supervised(topic):
                unlinked_s = 0.0
            elif unlinked_s >= UNLINKED_S:
                return left.is_set()
            else:
                asked_s = self._tick_s if not unlinked_s else asked_s  # the last one may be lost
                unlinked_s += wait_s
            if asked_s >= self._tick_s and not left.is_set():
                asked_s = 0.0
                self._dispatch(topic, UnsubscribeRequested())
        return True


def _hidden(machine: Subscriber | None) -> dict[bytes, int]:
    """Return the quarantined batches with their counts: no handover includes them."""
    retention = machine.replica.retention if machine is not None else None
    stored = retention.quarantine.stored() if retention is not None else {}
    return {key: batch.count for key, batch in stored.items()}
