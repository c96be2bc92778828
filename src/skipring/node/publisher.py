"""Publishing: own records, batches of clients, and copies at other members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final

from skipring.core.batches import BatchRecord, RecordBatch, batch_part, is_reserved
from skipring.core.effects import Deliver, HeldBy
from skipring.core.events import (
    PublishRequested,
    ReplicationRequested,
    ResendRequested,
    SubmitRequested,
)
from skipring.core.limits import shown
from skipring.core.log_messages import BEHIND, NOT_A_MEMBER, Refused
from skipring.core.peers import NodeId, TopicId
from skipring.core.replica import Replica
from skipring.core.retention.retained import FROM_FUTURE, LOWER_CHARTER
from skipring.core.retention.rows import stamp_of
from skipring.core.subscriber import Subscriber
from skipring.core.topics import Dispatch, SubscriberTopics
from skipring.errors import ReplicationError, SkipringError, StorageError
from skipring.node.drain import Departures
from skipring.node.group_commit import GroupCommit, TopicLogs
from skipring.node.sender import Sender
from skipring.wire.limits import one_line
from skipring.wire.rpc import NO_DISK, Publish, PublishAck, WireMessage

REPLICAS_TIMEOUT_S: Final = 30.0  # The default of ``synced``.
FEW_TICKS: Final = 3  # Guess: a ring that is still forming has more members by then.
ACKNOWLEDGED_MAX: Final = 1 << 14  # Guess: a client retries sooner.
PUBLISHING_MAX: Final = 1024  # Limit: publications of clients that wait for their commit.


# -- publications of this node ----------------------------------------------------------------

Calls = list[tuple[Sequence[BatchRecord], "asyncio.Future[list[bytes]]"]]


class Publisher:
    """Publishing in all topics of one node."""

    def __init__(
        self, dispatch: Dispatch, durability: GroupCommit, departures: Departures, logs: TopicLogs
    ) -> None:
        self._dispatch = dispatch
        self._durability = durability
        self._departures = departures
        self._logs = logs
        self._calls: dict[TopicId, Calls] = {}  # of this loop iteration

    async def publish(self, topic: TopicId, *records: BatchRecord) -> list[bytes]:
        """Publish records; return their ids once they are on the disk of this node.

        Neighbours receive the records at once. The calls of one loop iteration share batches; none
        of them waits for others. Raise StorageError with the ids if the commit fails: ``resend``
        sends the same batches again. Raise it without ids, and publish nothing, if an earlier
        commit has failed and fails again.
        """
        if self._durability.error is not None:
            await self._durability.wait_durable()
        ids = await self._published(topic, records)
        await self._wait_durable(ids)
        return ids

    async def submit(self, topic: TopicId, *batches: RecordBatch) -> dict[bytes, int]:
        """Publish batches of clients; return the offsets of new ones once they are on the disk."""
        if self._durability.error is not None:
            await self._durability.wait_durable()
        deliveries = self._stored(topic, SubmitRequested(batches))
        await self._wait_durable([batch.id for batch in batches])
        return {
            batch.id: offset
            for each in deliveries
            for batch, offset in zip(
                each.batches,
                accumulate([batch.count for batch in each.batches], initial=each.offset),
                strict=False,
            )
        }

    async def _wait_durable(self, ids: Sequence[bytes]) -> None:
        try:
            await self._durability.wait_durable()
        except StorageError as error:
            raise type(error)(str(error), ids=tuple(ids)) from error

    async def _published(self, topic: TopicId, records: Sequence[BatchRecord]) -> list[bytes]:
        """Publish with the other calls of this loop iteration; return the ids of ``records``.

        A call is published at once if no other call of this iteration has been made. Later calls
        of the iteration share batches at its end.
        """
        calls = self._calls.get(topic)
        if calls is None:
            self._calls[topic] = []
            asyncio.get_running_loop().call_soon(self._publish_calls, topic)
            return self._publish_now(topic, records)
        ids: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        calls.append((records, ids))
        return await ids

    def _publish_calls(self, topic: TopicId) -> None:
        """Publish the other calls of one loop iteration; a caller may be cancelled meanwhile."""
        calls = self._calls.pop(topic)
        if not calls:
            return
        try:
            ids = self._publish_now(topic, [each for records, _ in calls for each in records])
        except Exception as error:  # noqa: BLE001  (each caller gets it)
            for _, result in calls:
                if not result.done():
                    result.set_exception(error)
            return
        start = 0
        for records, result in calls:
            end = start + len(records)
            if not result.done():
                result.set_result(ids[start:end])
            start = end

    def _publish_now(self, topic: TopicId, records: Sequence[BatchRecord]) -> list[bytes]:
        if not records:
            return []
        deliveries = self._stored(topic, PublishRequested(tuple(records)))
        return [key for each in deliveries for batch in each.batches for key in batch.record_ids()]

    def _stored(self, topic: TopicId, event: PublishRequested | SubmitRequested) -> list[Deliver]:
        """Publish; return the deliveries of new batches, which a drain of this node hands over."""
        self._check_subscribed(topic)
        effects = self._dispatch(topic, event)
        deliveries = [effect for effect in effects if type(effect) is Deliver]
        batches = [batch for deliver in deliveries for batch in deliver.batches]
        self._departures.on_published(topic, batches)
        return deliveries

    def _check_subscribed(self, topic: TopicId) -> None:
        if topic not in self._logs.by_topic:
            raise SkipringError(f"not subscribed to {shown(topic)}: it was left during the call")

    async def resend(self, topic: TopicId, ids: Sequence[bytes]) -> None:
        """Commit and broadcast again the batches of records whose commit failed."""
        self._check_subscribed(topic)
        self._dispatch(topic, ResendRequested(tuple(ids)))
        await self._wait_durable(ids)


# -- copies at other members (``publish(replicas=...)``) --------------------------------------


class _Replicas:
    """Answers about one batch."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.callers = 0  # that wait for publications of this batch
        self.durable: set[NodeId] = set()
        self.volatile: set[NodeId] = set()  # members that store in memory only
        self.members: tuple[NodeId, ...] = ()  # beyond the neighbours
        self.changed = asyncio.Event()


class Replications:
    """Publications of one node that wait for confirmations of other members."""

    def __init__(
        self,
        topics: SubscriberTopics,
        dispatch: Dispatch,
        locate: Callable[[TopicId], None],
        tick_s: float,
    ) -> None:
        self._topics = topics
        self._dispatch = dispatch
        self._locate = locate  # asks the supervisor for members
        self._tick_s = tick_s
        self._waiting: dict[tuple[TopicId, bytes], _Replicas] = {}

    def on_members(self, topic: TopicId, nodes: Iterable[NodeId]) -> None:
        """Record members that the supervisor has named."""
        members = tuple(sorted(nodes))
        for (of, _), replicas in self._waiting.items():
            if of == topic:
                replicas.members = members
                replicas.changed.set()

    def on_held(self, topic: TopicId, effect: HeldBy) -> None:
        """Record that a member holds publications."""
        for key in effect.ids:
            replicas = self._waiting.get((topic, key))
            if replicas is not None:
                (replicas.durable if effect.durable else replicas.volatile).add(effect.node)
                replicas.changed.set()

    async def reached(self, topic: TopicId, key: bytes, count: int, timeout_s: float) -> None:
        """Wait until ``count`` other members have stored a publication durably.

        The node asks its neighbours first, then members that the supervisor names. Raise
        ReplicationError, with the number of confirmations, after the timeout, or if all known
        members have answered and were too few for FEW_TICKS ticks.
        """
        replicas, why = _Replicas(key), None
        try:
            async with asyncio.timeout(timeout_s):
                batch_id = await self._batch_id(topic, key)
                replicas = self._waiting.setdefault((topic, batch_id), _Replicas(batch_id))
                replicas.callers += 1
                why = await self._all(topic, replicas, count)
        except TimeoutError:
            why = f"the others did not answer within {timeout_s:g} s"
        finally:
            if replicas.callers:
                replicas.callers -= 1
                if not replicas.callers:
                    del self._waiting[topic, replicas.key]
        if why is not None:
            confirmed = len(replicas.durable)
            raise ReplicationError(
                f"{confirmed} of {count} other members have stored the publication durably: {why}; "
                "it is stored here",
                id=key,
                confirmed=confirmed,
            )

    async def _batch_id(self, topic: TopicId, key: bytes) -> bytes:
        """Return the id of the batch that contains a record; wait while the index has a backlog."""
        machine = self._topics.machine(topic)
        while machine is not None and machine.replica.has_index_backlog:
            await asyncio.sleep(self._tick_s)
            machine = self._topics.machine(topic)
        found = machine.replica.id_of(batch_part(key)) if machine is not None else None
        return found if found is not None else key

    async def _all(self, topic: TopicId, replicas: _Replicas, count: int) -> str | None:
        """Ask once a tick until enough members confirm; return a reason if too few members can."""
        loop, enough_s, extra = asyncio.get_running_loop(), asyncio.get_running_loop().time(), 0
        while len(replicas.durable) < count:
            machine = self._topics.machine(topic)
            if machine is None:
                return "the topic was left"
            usable = _usable(machine, replicas)
            if machine.label is None or len(usable) >= count:
                enough_s = loop.time()
            elif replicas.durable.issuperset(usable) and (
                loop.time() - enough_s > FEW_TICKS * self._tick_s
            ):
                return f"{len(usable)} other members with a data directory are known"
            else:
                self._locate(topic)
            asked = [node for node in usable if node not in replicas.durable]
            nodes = tuple(asked[: count - len(replicas.durable) + extra])
            self._dispatch(topic, ReplicationRequested((replicas.key,), nodes))
            extra += 1
            await self._answer(replicas, count)
        return None

    async def _answer(self, replicas: _Replicas, count: int) -> None:
        """Wait for enough answers or a tick; return early to ask another member."""
        known = len(replicas.volatile), replicas.members
        with suppress(TimeoutError):
            async with asyncio.timeout(self._tick_s):
                while len(replicas.durable) < count:
                    if (len(replicas.volatile), replicas.members) != known:
                        return
                    replicas.changed.clear()
                    await replicas.changed.wait()


def _usable(machine: Subscriber, replicas: _Replicas) -> list[NodeId]:
    nodes = dict.fromkeys((*machine.neighbours(), *replicas.members))
    return [node for node in nodes if node != machine.node and node not in replicas.volatile]


# -- clients ---------------------------------------------------------------------------------


class PublishProxy:
    """Publications that one node publishes on behalf of clients."""

    def __init__(
        self,
        topics: SubscriberTopics,
        sender: Sender,
        durability: GroupCommit,
        publisher: Publisher,
        *,
        has_disk: bool,
    ) -> None:
        self._topics = topics
        self._sender = sender
        self._durability = durability
        self._publisher = publisher
        self._has_disk = has_disk
        self._tasks: set[asyncio.Task[None]] = set()
        # Offsets of acknowledged batches in topics with a policy, which may drop them.
        self._acknowledged: dict[tuple[TopicId, bytes], int] = {}

    def __len__(self) -> int:
        """Return the number of publications that wait for their commit."""
        return len(self._tasks)

    def begin(self, sender: NodeId, topic: TopicId, message: Publish) -> None:
        """Publish for a client, or refuse at once."""
        why = self._why_not(topic, message)
        if why is not None:
            self._sender.send_message(topic, sender, Refused(message.request, why))
            return
        task = asyncio.get_running_loop().create_task(self._run(sender, topic, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, sender: NodeId, topic: TopicId, message: Publish) -> None:
        try:
            stored = await self._publisher.submit(topic, message.batch)
        except SkipringError as error:
            # The client may retry: the id identifies the batch.
            self._sender.send_message(topic, sender, Refused(message.request, one_line(str(error))))
            return
        answer = self._answer(topic, message, stored.get(message.batch.id))
        self._sender.send_message(topic, sender, answer)

    def _answer(self, topic: TopicId, message: Publish, stored: int | None) -> WireMessage:
        """Return the answer to a client: a batch that was acknowledged once always is."""
        machine, key = self._topics.machine(topic), message.batch.id
        if machine is None:
            return Refused(message.request, NOT_A_MEMBER)
        replica, acknowledged = machine.replica, self._acknowledged
        known = (stored, replica.offset_of(key), acknowledged.get((topic, key)))
        offset = next((each for each in known if each is not None), None)
        if offset is None:
            why = _refusal(replica, message.batch)
            if why is not None:
                return Refused(message.request, why)
            offset = replica.end  # newer records have superseded it
        elif replica.retention is not None:
            acknowledged[topic, key] = offset
            if len(acknowledged) > ACKNOWLEDGED_MAX:
                del acknowledged[next(iter(acknowledged))]
        return PublishAck(message.request, key, offset)

    def _why_not(self, topic: TopicId, message: Publish) -> str | None:
        """Return the reason for a refusal, or None."""
        machine = self._topics.machine(topic)
        if machine is None:
            return NOT_A_MEMBER
        if machine.replica.is_starting:  # it cannot tell whether it has the batch
            return BEHIND
        if machine.replication.is_leaving:  # it could not hand over what it accepts now
            return "it is about to leave the topic"
        if not self._has_disk and not message.volatile:
            return NO_DISK
        if self._durability.is_backpressured or len(self._tasks) >= PUBLISHING_MAX:
            return "too many publications wait for the disk; try again"
        return None


def _refusal(replica: Replica, batch: RecordBatch) -> str | None:
    """Return why a batch of a client was not stored; None if newer records supersede it."""
    records, retention = batch.verified_records(replica.topic), replica.retention
    if records is None or retention is None:
        return "an invalid batch"
    if retention.clock.is_future(stamp_of(records)):
        return FROM_FUTURE
    if is_reserved(records):
        return LOWER_CHARTER
    rows = retention.rows
    return rows.refusal(records, retention.floors.stamps) if rows is not None else None
