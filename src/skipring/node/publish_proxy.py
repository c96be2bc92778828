"""Publishing on behalf of clients; the reply follows the commit or states the refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, Protocol

from skipring.core.events import PublishRequested
from skipring.core.log_messages import Refused
from skipring.core.peers import NodeId, TopicId
from skipring.core.topics import SubscriberTopics
from skipring.errors import SkipringError
from skipring.node.group_commit import GroupCommit
from skipring.node.sender import Sender
from skipring.wire.limits import one_line
from skipring.wire.rpc import NO_DISK, Publish, PublishAck

PUBLISHING_MAX: Final = 1024  # Limit: publications of clients that wait for their commit.


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
            # The client may retry: the same publisher and number are the same publication.
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
            return "too much waits to be stored; try again"
        return None
