"""Server for requests of clients, monitors and members to a node.

A request for digests needs the whole index. After a backfill thousands of publications are not
indexed yet: the node indexes them in slices of about 10 ms, frees the event loop between two
slices, and answers afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from skipring.core.effects import Effect
from skipring.core.events import Event, IndexRequested, Received
from skipring.core.log_messages import NOT_A_MEMBER, GetLogInfo, Refused
from skipring.core.peers import NodeId, TopicId
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.net.work_budget import time_limit
from skipring.node.arrival_tap import ArrivalTap
from skipring.node.change_log import ChangeLog
from skipring.node.delivery_server import handle_deliveries_request
from skipring.node.sender import Sender
from skipring.node.status_server import handle_status_request, node_status
from skipring.node.topic_logs import TopicLogs
from skipring.wire.rpc import (
    BUSY,
    FetchArrivals,
    FetchChanges,
    FetchDeliveries,
    FetchPublications,
    GetNodeStatus,
    NodeHealth,
    WireMessage,
)

WAITING_MAX: Final = 256  # Limit: requests that wait for the index of one topic.
# Guess: few publications arrive meanwhile; the answer indexes the rest of them at once.
SPARE_SLICES: Final = 8

IndexQuestion: TypeAlias = GetNodeStatus | GetLogInfo
PageQuestion: TypeAlias = FetchPublications | FetchChanges | FetchDeliveries | FetchArrivals
Dispatch: TypeAlias = Callable[[TopicId, Event], list[Effect]]
HealthOf: TypeAlias = Callable[[TopicId, Subscriber], NodeHealth]


class RequestServer:
    """Answers to requests about the machines and logs of one node."""

    def __init__(  # noqa: PLR0913  (collaborators)
        self,
        topics: SubscriberTopics,
        logs: TopicLogs,
        changes: ChangeLog,
        arrivals: ArrivalTap,
        sender: Sender,
        *,
        dispatch: Dispatch,
        health_of: HealthOf,
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._changes = changes
        self._arrivals = arrivals
        self._sender = sender
        self._dispatch = dispatch
        self._health_of = health_of
        self._waiting: dict[TopicId, list[tuple[NodeId, IndexQuestion]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Cancel all waiting requests."""
        for task in self._tasks:
            task.cancel()

    # -- pages -----------------------------------------------------------------------------------

    def send_page(self, to: NodeId, topic: TopicId, question: PageQuestion) -> None:
        """Send a page; a scan stops at its time limit, and the page says where to continue."""
        self._sender.send_message(topic, to, self._page(topic, question))

    def _page(self, topic: TopicId, question: PageQuestion) -> WireMessage:
        machine, is_spent = self._topics.machine(topic), time_limit()
        match question:
            case FetchDeliveries():
                trace = self._logs.trace
                return handle_deliveries_request(trace, topic, machine, question, is_spent)
            case FetchArrivals() if machine is None:
                return Refused(question.request, NOT_A_MEMBER)
            case FetchArrivals():
                return self._arrivals.answer(topic, question)
            case _:
                return handle_status_request(topic, machine, self._changes, question, is_spent)

    # -- status ----------------------------------------------------------------------------------

    def send_status(self, to: NodeId, topic: TopicId, question: IndexQuestion) -> None:
        """Send a status, at once if few publications are not indexed."""
        machine = self._topics.machine(topic)
        if machine is None or not _needs_index(question, machine):
            self._answer(to, topic, machine, question)
        elif topic in self._waiting:
            self._wait(to, topic, question)
        elif self._is_indexed(topic, machine):
            self._answer(to, topic, machine, question)
        else:
            self._waiting[topic] = [(to, question)]
            task = asyncio.get_running_loop().create_task(self._index(topic, machine))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _wait(self, sender: NodeId, topic: TopicId, question: IndexQuestion) -> None:
        waiting = self._waiting[topic]
        if len(waiting) < WAITING_MAX:
            waiting.append((sender, question))
        else:
            self._sender.send_message(topic, sender, Refused(question.request, BUSY))

    def _is_indexed(self, topic: TopicId, machine: Subscriber) -> bool:
        """Index one slice if something waits; return True if nothing is left."""
        if machine.replica.is_behind:
            self._dispatch(topic, IndexRequested())
        return not machine.replica.is_behind

    async def _index(self, topic: TopicId, machine: Subscriber) -> None:
        for _ in range(machine.replication.slices_to_index + SPARE_SLICES):
            await asyncio.sleep(0)
            if self._topics.machine(topic) is not machine or self._is_indexed(topic, machine):
                break
        current = self._topics.machine(topic)
        for sender, question in self._waiting.pop(topic):
            if (
                current is not None
                and current.replication.is_backfilling
                and current.replica.is_behind
            ):
                self._sender.send_message(topic, sender, Refused(question.request, BUSY))
            else:
                self._answer(sender, topic, current, question)

    def _answer(
        self, to: NodeId, topic: TopicId, machine: Subscriber | None, question: IndexQuestion
    ) -> None:
        answer: WireMessage
        if isinstance(question, GetLogInfo):
            self._dispatch(topic, Received(question, to))
            return
        if machine is None:
            answer = Refused(question.request, NOT_A_MEMBER)
        else:
            health = self._health_of(topic, machine)
            answer = node_status(machine, question.request, health)
        self._sender.send_message(topic, to, answer)


def _needs_index(question: IndexQuestion, machine: Subscriber) -> bool:
    """Return True if the answer contains digests; a status during a backfill has none."""
    if isinstance(question, GetNodeStatus):
        return not machine.replication.is_backfilling
    return question.bits is not None
