"""Reader of the logs and delivery logs of members, without joining the ring.

A page contains whole batches: the first may begin before the requested offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct

from skipring.core.batches import RecordBatch
from skipring.core.limits import listed
from skipring.core.log_messages import (
    ANOTHER_STORE,
    FetchLog,
    FetchRecords,
    GetLogInfo,
    LogInfo,
    LogPage,
    RecordFilter,
    Refused,
)
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.core.retention.charter import UNLIMITED, Policy
from skipring.errors import DataLossError, UnreachableError
from skipring.rpc.client import ATTEMPTS, Question, RpcClient, no_members_in
from skipring.wire.limits import LOCATED_MAX
from skipring.wire.rpc import (
    Address,
    DeliveryPage,
    FetchDeliveries,
    GetSupervisorStatus,
    SupervisorStatus,
)

SURVEY_S: Final = 2.5  # Guess: a member on a busy machine answers within this time.
PAGE_S: Final = 10.0  # Guess: a page may be read from a slow disk.

Page = TypeVar("Page", LogPage, DeliveryPage)
LogRequest = FetchLog | FetchRecords | FetchDeliveries
EVERY_RECORD: Final = RecordFilter()
FIXED: Final = ("store", "epoch", "end", "bits", "prefix", "indexed")  # in all pages of a range


class MemberLog(Struct, frozen=True, kw_only=True):
    """Member of a topic with the extent of its log."""

    node: NodeId
    address: Address
    survey: LogInfo


class LogRange(Struct, frozen=True, kw_only=True):
    """Request to a member: offsets from ``start`` to before ``end``, under a prefix."""

    store: str
    epoch: int
    start: int
    end: int
    bits: int = 0
    prefix: int = 0
    has_contents: bool = True
    has_payloads: bool = True
    where: RecordFilter = EVERY_RECORD
    departed: int | None = None  # batches that were dropped after this number, not stored ones
    indexed: bool = False  # only batches that the digests of a survey contain

    def request(self) -> Callable[[int, int], LogRequest]:
        """Return the request for a page: its arguments are the number and the place to continue."""
        kind: Callable[..., LogRequest]
        if self.where == EVERY_RECORD and (self.has_payloads or not self.has_contents):
            kind = partial(FetchLog, contents=self.has_contents)
        else:
            kind = partial(FetchRecords, payloads=self.has_payloads, where=self.where)
        fixed = {name: getattr(self, name) for name in FIXED}
        if self.departed is None:
            return lambda number, place: kind(number, start=place, **fixed)
        return lambda number, place: kind(number, start=self.start, departed=place, **fixed)

    @property
    def place(self) -> int:
        """Return where the first page begins."""
        return self.start if self.departed is None else self.departed


async def survey(
    client: RpcClient,
    topic: TopicId,
    bits: int | None,
    *,
    offset: int | None = None,
) -> list[MemberLog]:
    """Ask some members for the extent of their logs; return the answers, sorted by name.

    The chain values are those at an offset, or at the durable mark. Raise UnreachableError if there
    is no supervisor, no member, or no member that answers.
    """
    members = await client.locate(topic, LOCATED_MAX)
    if not members:
        raise UnreachableError(no_members_in(topic))
    holders = await survey_of(client, topic, members.items(), bits, offset=offset)
    if not holders:
        raise UnreachableError(
            f"no member of {topic!r} answers ({listed(sorted(members))}); can they be reached from "
            "here?"
        )
    return holders


async def policy_of(client: RpcClient, topic: TopicId) -> Policy:
    """Return the policy that some members apply; raise UnreachableError as ``survey`` does."""
    known = (each.survey.policy for each in await survey(client, topic, None))
    return next((each for each in known if each is not None), UNLIMITED)


async def survey_of(
    client: RpcClient,
    topic: TopicId,
    members: Iterable[tuple[NodeId, Address]],
    bits: int | None,
    *,
    offset: int | None = None,
) -> list[MemberLog]:
    """Ask known members for the extent of their logs; omit members that do not answer."""
    question = partial(GetLogInfo, bits=bits, offset=offset)
    asked = (_ask(client, topic, node, address, question) for node, address in sorted(members))
    return [holder for holder in await asyncio.gather(*asked) if holder is not None]


async def _ask(
    client: RpcClient, topic: TopicId, node: NodeId, address: Address, question: Question
) -> MemberLog | None:
    client.book.learn({node: address})
    answer = await client.request(topic, node, question, LogInfo, SURVEY_S)
    if not isinstance(answer, LogInfo):
        return None
    return MemberLog(node=node, address=address, survey=answer)


async def topics(client: RpcClient, supervisors: Iterable[Address]) -> list[TopicId]:
    """Return the topics that have members; raise UnreachableError if a supervisor is missing."""
    found: list[TopicId] = []
    for address in supervisors:
        start: int | None = 0
        while start is not None:
            question = partial(GetSupervisorStatus, start=start)
            page = await client.request_supervisor(
                address, question, SupervisorStatus, SURVEY_S, ATTEMPTS
            )
            if not isinstance(page, SupervisorStatus):
                raise UnreachableError(client.no_supervisor_at(address))
            found += [each.topic for each in page.topics if each.members]
            start = page.next if page.next is not None and page.next > start else None
    return sorted(found)


# -- pages -------------------------------------------------------------------------------------


def pages(
    client: RpcClient, topic: TopicId, node: NodeId, address: Address, wanted: LogRange
) -> AsyncGenerator[LogPage, None]:
    """Yield the stored batches of a member; raise DataLossError if its store has changed."""
    return _in_pages(client, topic, (node, address), LogPage, wanted.request(), wanted.place)


def readable_batches(
    page: LogPage, topic: TopicId, start: int = 0
) -> Iterator[tuple[RecordBatch, list[Publication]]]:
    """Yield the genuine and readable batches of a page, with their records from an offset on.

    Omit damaged batches: anti-entropy repairs the member, and others have them too.
    """
    for offset, batch in zip(page.offsets, page.batches, strict=True):
        if batch.is_genuine(topic):
            with suppress(ValueError):
                yield batch, batch.publications()[max(start - offset, 0) :]


def delivery_pages(
    client: RpcClient, topic: TopicId, node: NodeId, address: Address, wanted: range
) -> AsyncGenerator[DeliveryPage, None]:
    """Yield the delivery records of a member for these offsets."""

    def question(number: int, start: int) -> FetchDeliveries:
        return FetchDeliveries(number, start, wanted.stop)

    return _in_pages(client, topic, (node, address), DeliveryPage, question, wanted.start)


async def _in_pages(
    client: RpcClient,
    topic: TopicId,
    member: tuple[NodeId, Address],
    kind: type[Page],
    question: Callable[[int, int], LogRequest],
    first: int,
) -> AsyncGenerator[Page, None]:
    """Read from a member page by page; prefetch the next page.

    Raise UnreachableError if the member does not answer, or is no longer a member.
    """
    node, _ = member
    client.book.learn(dict([member]))

    async def read(start: int) -> Page:
        answer = await client.request(
            topic, node, lambda number: question(number, start), kind, PAGE_S, ATTEMPTS
        )
        if isinstance(answer, kind) and (answer.next is None or answer.next > start):
            return answer
        why = answer.reason if isinstance(answer, Refused) else "no answer"
        if why == ANOTHER_STORE:
            raise DataLossError(
                f"{node} has lost its stored publications of {topic!r} during the read; run the "
                "query again"
            )
        raise UnreachableError(f"{node} stopped serving {topic!r} at offset {start} ({why})")

    start: int | None = first
    coming = asyncio.ensure_future(read(first))
    try:
        while start is not None:
            page = await coming
            start = page.next
            if start is not None:
                coming = asyncio.ensure_future(read(start))
            yield page
    finally:
        coming.cancel()
