"""One that publishes without joining the ring: it asks a member to do it (``skipring pub``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from random import Random
from types import TracebackType
from typing import Final, Self, TypeVar

from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.publications import Publication
from skipring.errors import UnreachableError
from skipring.runtime.addresses import AddressBook, supervisor_of
from skipring.runtime.links import Links
from skipring.wire.codec import Envelope, encode
from skipring.wire.greeting import Greeting, Role
from skipring.wire.runtime_messages import (
    Address,
    Locate,
    Members,
    Publish,
    Published,
    Refused,
    RuntimeMessage,
    WireMessage,
)

ANSWER_S: Final = 5.0  # Our guess: whoever has not answered by then will not.
MEMBERS: Final = 4  # to choose from: the first may just have crashed

Answer = TypeVar("Answer", Members, Published)


class Outsider:
    """Talks to supervisors and members, and is none of them."""

    def __init__(self, supervisors: Sequence[Address], *, rng: Random) -> None:
        self.name: NodeId = f"client-{rng.getrandbits(48):012x}"
        self._supervisors = tuple(supervisors)
        self._book = AddressBook()
        greeting = Greeting(node=self.name, address="", role=Role.CLIENT)
        self._links = Links(greeting, self._book, self._receive, rng)
        self._requests = count(1)
        self._waiting: dict[int, asyncio.Future[RuntimeMessage]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        await self._links.close()

    async def publish(self, topic: TopicId, publication: Publication) -> Published:
        """Publish through a member; returns once it is durable there.

        Members are tried one after the other. The id follows from the fields, so what a member
        has taken although its answer was lost is not published twice.
        """
        members = await self._locate(topic)
        for node, address in members.items():
            self._book.hear({node: address})
            request = next(self._requests)
            self._links.send(node, encode(topic, Publish(request, publication)))
            answer = await self._answer_to(request, Published)
            if answer is not None:
                return answer
        raise UnreachableError(
            f"no member of {topic!r} took the publication, of {len(members)} that were asked; "
            "is a node running that subscribes to it?"
        )

    async def _locate(self, topic: TopicId) -> dict[NodeId, Address]:
        address = supervisor_of(topic, self._supervisors)
        request = next(self._requests)
        frame = encode(topic, Locate(request, MEMBERS))
        self._links.send_to_supervisor(address, frame)
        answer = await self._answer_to(request, Members)
        if answer is None:
            raise UnreachableError(f"no supervisor answers at {address}; is it running?")
        return answer.members

    async def _answer_to(self, request: int, kind: type[Answer]) -> Answer | None:
        """The answer to a request; None if it was refused, or none came in time."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await future
        except TimeoutError:
            return None
        finally:
            del self._waiting[request]
        return answer if isinstance(answer, kind) else None

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage]) -> None:
        message = envelope.message
        is_expected = sender == SUPERVISOR or not isinstance(message, Members)
        if isinstance(message, Members | Published | Refused) and is_expected:
            future = self._waiting.get(message.request)
            if future is not None and not future.done():
                future.set_result(message)
