"""Synchronous RPC client for Spark processes.

Planner, tasks and committer are different processes; each creates and closes its own client.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from random import Random
from time import monotonic
from typing import Final, Self, TypeVar

from skipring.core.batches import RecordBatch
from skipring.core.log_messages import LogPage
from skipring.core.peers import NodeId, TopicId
from skipring.core.retention.charter import UNLIMITED, Policy
from skipring.errors import UnreachableError
from skipring.net.access import Access
from skipring.net.event_loop import new_loop
from skipring.rpc.client import RpcClient
from skipring.rpc.log_reader import (
    LogRange,
    MemberLog,
    delivery_pages,
    pages,
    policy_of,
    survey,
    survey_of,
    topics,
)
from skipring.wire.rpc import Address, DeliveryPage, PublishAck


@cache
def freeze_gc() -> None:
    """Exclude the objects that this process has loaded from garbage collection, once.

    Spark runs a full collection in each of its processes after each task, before the next one.
    Measured: 20 to 25 ms, as long as a read of 5,000 publications.
    """
    gc.freeze()


IDLE_S: Final = 10.0  # Guess: members close connections that do not answer a ping for longer.
NOTICE_S: Final = 0.001  # Guess: the event loop notices closed connections within this time.
_kept: dict[tuple[int, Access], tuple[RingClient, float]] = {}  # by process; at most one


@contextmanager
def task_client(access: Access) -> Iterator[RingClient]:
    """Yield the client of this process, which later tasks use again; close it after an error.

    A process runs one task at a time. A process that was forked has its own client.
    """
    client = _reused(access) or RingClient(access)
    try:
        yield client
    except GeneratorExit:  # Spark needs no more rows
        pass
    except BaseException:
        client.close()
        raise
    client.rest()
    _kept[os.getpid(), access] = client, monotonic()


def _reused(access: Access) -> RingClient | None:
    """Return the client that an earlier task of this process left, if all its connections exist."""
    kept = {access: found for (process, access), found in _kept.items() if process == os.getpid()}
    _kept.clear()
    found = None
    for other, (client, used_s) in kept.items():
        if other == access and monotonic() - used_s <= IDLE_S and client.is_rested():
            found = client
        else:
            client.close()
    return found


Result = TypeVar("Result")


class RingClient:
    """RPC client with its own event loop, which runs only during a call."""

    def __init__(
        self, access: Access, assigned: Mapping[TopicId, frozenset[NodeId]] | None = None
    ) -> None:
        self._supervisors = access.supervisors
        self._assigned = assigned or {}  # members to survey, by topic
        credentials = access.credentials()  # first, because it raises if files are missing
        self._connected = 0
        self._loop = new_loop()
        self._rpc = RpcClient(access.supervisors, rng=Random(), credentials=credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; a no-op if closed."""
        if not self._loop.is_closed():
            self._run(self._rpc.__aexit__(None, None, None))
            self._run(self._loop.shutdown_asyncgens())
            self._loop.close()

    def rest(self) -> None:
        """Record that the event loop does not run for some time."""
        self._connected = self._rpc.connected

    def is_rested(self) -> bool:
        """Return True if no connection was closed since ``rest``."""
        self._run(asyncio.sleep(NOTICE_S))
        return self._rpc.connected == self._connected

    def located(self, topic: TopicId) -> dict[NodeId, Address]:
        """Return some members of a topic; raise UnreachableError without a supervisor."""
        return self._run(self._rpc.locate(topic))

    def survey(
        self, topic: TopicId, bits: int | None, offset: int | None = None
    ) -> list[MemberLog]:
        """Return the log state of some members; raise UnreachableError if none answers."""
        found = self._run(survey(self._rpc, topic, bits, offset=offset))
        nodes = self._assigned.get(topic)
        chosen = [each for each in found if nodes is None or each.node in nodes]
        if not chosen:
            raise UnreachableError(
                f"no assigned member of {topic!r} answers: {sorted(nodes or ())}"
            )
        return chosen

    def policy(self, topic: TopicId) -> Policy:
        """Return the policy of a topic; none if no member answers, as publishing then reports."""
        try:
            return self._run(policy_of(self._rpc, topic))
        except UnreachableError:
            return UNLIMITED

    def topics(self) -> list[TopicId]:
        """Return the topics that have members; raise UnreachableError without a supervisor."""
        return self._run(topics(self._rpc, self._supervisors))

    def survey_of(
        self, topic: TopicId, node: NodeId, address: Address, offset: int | None = None
    ) -> MemberLog | None:
        """Return the log state of a known member; None if it does not answer."""
        members = [(node, address)]
        found = self._run(survey_of(self._rpc, topic, members, None, offset=offset))
        return found[0] if found else None

    def pages(
        self, topic: TopicId, node: NodeId, address: Address, wanted: LogRange
    ) -> Iterator[LogPage]:
        """Yield pages of a member's log; raise UnreachableError if it stops answering."""
        return self._each(pages(self._rpc, topic, node, address, wanted))

    def deliveries(
        self, topic: TopicId, node: NodeId, address: Address, wanted: range
    ) -> Iterator[DeliveryPage]:
        """Yield pages of deliveries at a member; raise UnreachableError if it stops answering."""
        return self._each(delivery_pages(self._rpc, topic, node, address, wanted))

    def publish(self, topic: TopicId, batches: Sequence[RecordBatch]) -> list[PublishAck]:
        """Publish through a member; return once all batches are durable there."""
        return self._run(self._rpc.publish(topic, batches))

    def _each(self, coming: AsyncGenerator[Result, None]) -> Iterator[Result]:
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield self._run(anext(coming))
        finally:
            self._run(coming.aclose())

    def _run(self, work: Awaitable[Result]) -> Result:
        return self._loop.run_until_complete(work)
