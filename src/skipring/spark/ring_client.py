"""Synchronous RPC client for Spark processes.

Planner, tasks and committer are different processes; each creates and closes its own client.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from random import Random
from typing import Self, TypeVar

from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.net.access import Access
from skipring.net.event_loop import new_loop
from skipring.rpc.client import RpcClient
from skipring.rpc.log_reader import (
    LogRange,
    MemberLog,
    delivery_pages,
    pages,
    survey,
    survey_of,
)
from skipring.wire.rpc import Address, DeliveryPage, LogPage, PublishAck


@cache
def freeze_gc() -> None:
    """Let garbage not be looked for in what this process has loaded; once, for as long as it lives.

    Spark has each of its processes look through everything after each task, before it takes the
    next one. Measured: 20 to 25 ms, as much as is needed to read 5,000 publications.
    """
    gc.freeze()


Result = TypeVar("Result")


class RingClient:
    """An outsider with an event loop of its own, which runs while something is asked."""

    def __init__(self, access: Access) -> None:
        credentials = access.credentials()  # first: the files may be missing
        self._loop = new_loop()
        self._outsider = RpcClient(access.supervisors, rng=Random(), credentials=credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; a second time does nothing."""
        if not self._loop.is_closed():
            self._run(self._outsider.__aexit__(None, None, None))
            self._run(self._loop.shutdown_asyncgens())
            self._loop.close()

    def located(self, topic: TopicId) -> dict[NodeId, Address]:
        """Some members of a topic; UnreachableError if the supervisor does not say."""
        return self._run(self._outsider.locate(topic))

    def survey(
        self, topic: TopicId, bits: int | None, offset: int | None = None
    ) -> list[MemberLog]:
        """How far some members have stored a topic; UnreachableError if nobody says."""
        return self._run(survey(self._outsider, topic, bits, offset=offset))

    def survey_of(
        self, topic: TopicId, node: NodeId, address: Address, offset: int | None = None
    ) -> MemberLog | None:
        """How far a member that is known has stored a topic; None if it does not say."""
        members = [(node, address)]
        found = self._run(survey_of(self._outsider, topic, members, None, offset=offset))
        return found[0] if found else None

    def pages(
        self, topic: TopicId, node: NodeId, address: Address, wanted: LogRange
    ) -> Iterator[LogPage]:
        """What a member has stored, page by page; UnreachableError when it stops answering."""
        return self._each(pages(self._outsider, topic, node, address, wanted))

    def deliveries(
        self, topic: TopicId, node: NodeId, address: Address, wanted: range
    ) -> Iterator[DeliveryPage]:
        """How publications came to a member, page by page; UnreachableError likewise."""
        return self._each(delivery_pages(self._outsider, topic, node, address, wanted))

    def publish(self, topic: TopicId, publications: Sequence[Publication]) -> list[PublishAck]:
        """Publish through a member; returns once all are durable there."""
        return self._run(self._outsider.publish(topic, publications))

    def _each(self, coming: AsyncGenerator[Result, None]) -> Iterator[Result]:
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield self._run(anext(coming))
        finally:
            self._run(coming.aclose())

    def _run(self, work: Awaitable[Result]) -> Result:
        return self._loop.run_until_complete(work)
