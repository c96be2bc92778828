"""Publishing on behalf of clients, and waiting until other members have copies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from skipring.core.effects import Effect, HeldBy
from skipring.core.events import Event, PublishRequested, ReplicationRequested
from skipring.core.log_messages import Refused
from skipring.core.peers import NodeId, TopicId
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.errors import ReplicationError, SkipringError
from skipring.node.group_commit import GroupCommit
from skipring.node.sender import Sender
from skipring.wire.limits import one_line
from skipring.wire.rpc import NO_DISK, Publish, PublishAck

REPLICAS_TIMEOUT_S: Final = 30.0  # The default of ``synced``.
FEW_TICKS: Final = 3  # Guess: a ring that is still forming has more members by then.
PUBLISHING_MAX: Final = 1024  # Limit: publications of clients that wait for their commit.

Dispatch = Callable[[TopicId, Event], list[Effect]]


# -- copies at other members (``publish(replicas=...)``) --------------------------------------


class _Replicas:
    """Answers about one publication."""

    def __init__(self, key: bytes) -> None:
        self.key = key
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
        replicas = self._waiting[topic, key] = _Replicas(key)
        try:
            async with asyncio.timeout(timeout_s):
                why = await self._all(topic, replicas, count)
        except TimeoutError:
            why = f"the others did not answer within {timeout_s:g} s"
        finally:
            del self._waiting[topic, key]
        if why is not None:
            confirmed = len(replicas.durable)
            raise ReplicationError(
                f"{confirmed} of {count} other members have stored the publication durably: {why}; "
                "it is stored here",
                id=key,
                confirmed=confirmed,
            )

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
        """Wait for enough answers, at most one tick; return early to ask another member."""
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


class PublishFunction(Protocol):
    """``publish`` of a node."""

    def __call__(self, topic: TopicId, *requests: PublishRequested) -> Awaitable[list[bytes]]:
        """Publish; return the ids once they are on the disk of this node."""


class PublishProxy:
    """Publications that one node publishes on behalf of clients."""

    def __init__(
        self,
        topics: SubscriberTopics,
        sender: Sender,
        durability: GroupCommit,
        publish: PublishFunction,
        *,
        has_disk: bool,
    ) -> None:
        self._topics = topics
        self._sender = sender
        self._durability = durability
        self._publish = publish
        self._has_disk = has_disk
        self._tasks: set[asyncio.Task[None]] = set()

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
        given = message.publication
        assert given.payload is not None, "it was refused"
        event = PublishRequested(
            payload=given.payload,
            time=given.time,
            key=given.key,
            headers=given.headers,
            publisher=given.publisher,
            seq=given.seq,
        )
        try:
            await self._publish(topic, event)
        except SkipringError as error:
            # The client may retry: publisher and number identify the publication.
            self._sender.send_message(topic, sender, Refused(message.request, one_line(str(error))))
            return
        key = given.id_in(topic)
        offset = self._topics.offset_of(topic, key)
        self._sender.send_message(topic, sender, PublishAck(message.request, key, offset or 0))

    def _why_not(self, topic: TopicId, message: Publish) -> str | None:
        """Return the reason for a refusal, or None."""
        machine = self._topics.machine(topic)
        if machine is None:
            return "not a member of the topic"
        if machine.replication.is_leaving:  # it could not hand over what it accepts now
            return "it is about to leave the topic"
        if message.publication.payload is None:
            return "no payload"
        if not self._has_disk and not message.volatile:
            return NO_DISK
        if self._durability.is_backpressured or len(self._tasks) >= PUBLISHING_MAX:
            return "too many publications wait for the disk; try again"
        return None
