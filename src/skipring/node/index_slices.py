"""Answers to requests that need the whole index, in slices of bounded time.

After a backfill, thousands of publications are not indexed yet. The node computes their digests in
slices of about 10 ms, frees the event loop between two slices, and answers afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from skipring.core.peers import NodeId, TopicId
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.wire.rpc import BUSY, GetLogInfo, GetNodeStatus, Refused, RuntimeMessage

Question: TypeAlias = GetNodeStatus | GetLogInfo
Answerer: TypeAlias = Callable[[TopicId, Subscriber | None, Question], RuntimeMessage]
Say: TypeAlias = Callable[[TopicId, NodeId, RuntimeMessage], None]

WAITING_MAX: Final = 256  # Limit of ours: requests that wait for the index of one topic.
# Guess: few publications arrive meanwhile; the answer indexes the rest of them at once.
SPARE_SLICES: Final = 8


class StatusServer:
    """Requests that wait for an index, by topic."""

    def __init__(self, topics: SubscriberTopics, answer: Answerer, say: Say) -> None:
        self._topics = topics
        self._answer = answer
        self._say = say
        self._waiting: dict[TopicId, list[tuple[NodeId, Question]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, sender: NodeId, topic: TopicId, question: Question) -> None:
        """Answer a request, at once if few publications are not indexed."""
        machine = self._topics.machine(topic)
        needs_index = isinstance(question, GetNodeStatus) or question.bits is not None
        if topic in self._waiting:
            self._wait(sender, topic, question)
        elif machine is None or not needs_index or machine.index_some():
            self._say(topic, sender, self._answer(topic, machine, question))
        else:
            self._waiting[topic] = [(sender, question)]
            task = asyncio.get_running_loop().create_task(self._index(topic, machine))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _wait(self, sender: NodeId, topic: TopicId, question: Question) -> None:
        waiting = self._waiting[topic]
        if len(waiting) < WAITING_MAX:
            waiting.append((sender, question))
        else:
            self._say(topic, sender, Refused(question.request, BUSY))

    async def _index(self, topic: TopicId, machine: Subscriber) -> None:
        """Index in slices, then answer every waiting request."""
        for _ in range(machine.slices_to_index + SPARE_SLICES):
            await asyncio.sleep(0)
            if self._topics.machine(topic) is not machine or machine.index_some():
                break
        current = self._topics.machine(topic)
        for sender, question in self._waiting.pop(topic):
            self._say(topic, sender, self._answer(topic, current, question))

    def close(self) -> None:
        """Cancel all waiting requests."""
        for task in self._tasks:
            task.cancel()
