"""Tail of a topic, read through its members without joining the ring.

One member at a time serves its log in the order of its offsets. When it stops serving, the tail
continues at another member, whose log has another order, and skips the batches it has returned. A
member that was restarted may have lost its log or restored it from a backup: the tail reads it
from its start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum, auto
from itertools import chain
from typing import Final

from msgspec import Struct

from skipring.core.batches import RESERVED
from skipring.core.limits import NUMBER_MAX, listed
from skipring.core.log_messages import LogPage
from skipring.core.peers import TopicId
from skipring.core.publications import Publication
from skipring.errors import SkipringError, UnreachableError
from skipring.net.access import Access
from skipring.observability.clock import time_us
from skipring.order.gaps import Gap, Order
from skipring.rpc.client import RpcClient, WaitReport, locate_s, no_members_in, open_client
from skipring.rpc.log_reader import LogRange, MemberLog, pages, readable_batches, survey_of
from skipring.rpc.tail_order import TailBatch, TailOrder
from skipring.wire.limits import LOCATED_MAX

POLL_S: Final = 0.1  # Guess: fast enough for a reader; a poll is one small request to one member.
SEEN_BYTES: Final = 16  # stored part of a batch id; no collision among 2^40 batches


class Until(Enum):
    """Condition that ends following a topic."""

    LOG_END = auto()  # at the end of the member's log
    IN_SYNC = auto()  # once all members have the same publications, and all are read
    STOPPED = auto()  # when the caller stops it


class TailPlan(Struct, frozen=True, kw_only=True):
    """Start and end of following a topic, and the wait for a member."""

    until: Until
    is_new: bool = False  # start at the end of the log
    since: int = 0  # microseconds since the epoch; earlier publications are skipped
    wait_s: float = 0.0  # not used with STOPPED, which waits without a bound
    order: Order = Order.ARRIVAL


def _ignore(gap: Gap) -> None:
    """Ignore a gap."""
    del gap


async def follow_topic(  # noqa: PLR0913  (each callback is named)
    access: Access,
    topic: TopicId,
    plan: TailPlan,
    emit: Callable[[Publication], bool],
    *,
    report: Callable[[str], None],
    is_stopped: Callable[[], bool],
    on_gap: Callable[[Gap], None] = _ignore,
) -> None:
    """Call ``emit`` for each publication of a topic, until it returns True or the plan ends.

    With an order by publisher, call ``on_gap`` for each gap before the publications after it.
    ``report`` receives the reason while no member can be read. Raise UnreachableError if none can
    be read within ``wait_s``.
    """
    since = time_us() if plan.is_new else plan.since
    waiting = WaitReport(report)
    async with open_client(
        access.supervisors,
        topic,
        credentials=access.credentials(),
        locate_s=locate_s(plan.wait_s),
        report=waiting,
    ) as client:
        tail = TopicTail(client, topic, since=since, is_new=plan.is_new)
        order = None if plan.order is Order.ARRIVAL else TailOrder(plan.order, is_new=plan.is_new)

        def consume(item: Publication | Gap) -> bool:
            if isinstance(item, Gap):
                on_gap(item)
                return False
            return emit(item)

        await _follow(tail, plan, order, consume, waiting, is_stopped)


async def _follow(
    tail: TopicTail,
    plan: TailPlan,
    order: TailOrder | None,
    emit: Callable[[Publication | Gap], bool],
    waiting: WaitReport,
    is_stopped: Callable[[], bool],
) -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + plan.wait_s
    while not is_stopped():
        batches: list[TailBatch] = []
        try:
            batches = await tail.read_batches()
            if not batches and await _is_at_end(tail, plan.until):
                any(emit(each) for each in (order.flush() if order is not None else ()))
                return
            deadline = clock() + plan.wait_s
            waiting.reset()
        except UnreachableError as error:
            if plan.until is not Until.STOPPED and clock() >= deadline:
                raise
            waiting(str(error))
        items: Iterable[Publication | Gap] = chain.from_iterable(each[2] for each in batches)
        if order is not None:
            items = order.add(batches, clock(), is_at_end=tail.is_at_log_end)
        if any(emit(each) for each in items):
            return
        if not batches:
            await asyncio.sleep(POLL_S)


async def _is_at_end(tail: TopicTail, until: Until) -> bool:
    match until:
        case Until.LOG_END:
            return tail.is_at_log_end
        case Until.IN_SYNC:
            return await tail.is_in_sync()
        case Until.STOPPED:
            return False


class TopicTail:
    """Position in a topic that moves from member to member as they come and go.

    ``since`` is in microseconds since the epoch: older publications are skipped. With ``is_new``
    the tail starts at the end of the log; after a failover it returns publications after
    ``since``, because another member's log has no such position.
    """

    def __init__(
        self, client: RpcClient, topic: TopicId, *, since: int = 0, is_new: bool = False
    ) -> None:
        self.topic = topic
        self._client = client
        self._since = 0 if is_new else since
        self._since_after_failover = since
        self._starts_at_end = is_new
        self._holder: MemberLog | None = None
        self._next = 0  # offset at the holder
        self._connection: object | None = None  # over which the holder served
        self._seen: set[bytes] = set()  # batches: one has all its records at every member

    async def read(self) -> list[Publication]:
        """Return the next publications, as ``read_batches`` does."""
        return [each for batch in await self.read_batches() for each in batch.publications]

    async def read_batches(self) -> list[TailBatch]:
        """Return the next publications, or an empty list if the member has no more now.

        Raise UnreachableError if no member can be reached; a later call may succeed.
        """
        holder = self._holder or await self._find_holder()
        self._holder = await self._refreshed(holder) or await self._find_holder()
        if self._client.connection_to(self._holder.node) is not self._connection:
            self._start_over(self._holder)
        return await self._read_page(self._holder)

    @property
    def is_at_log_end(self) -> bool:
        """Return True if the member had no more publications when it was last asked."""
        return self._holder is not None and self._next >= self._holder.survey.end

    async def is_in_sync(self) -> bool:
        """Return True if all members that answer have the same publications, and all are read."""
        members = await self._client.locate(self.topic, LOCATED_MAX)
        found = await survey_of(self._client, self.topic, members.items(), bits=0)
        holder = self._holder
        own = next((each for each in found if holder and each.node == holder.node), None)
        if own is None or own.survey.end != self._next:
            return False
        return len({(each.survey.count, each.survey.digests) for each in found}) == 1

    # -- members -------------------------------------------------------------------------------

    async def _find_holder(self) -> MemberLog:
        """Choose the member with the most publications, so that a newcomer is not read first."""
        members = await self._client.locate(self.topic, LOCATED_MAX)
        if not members:
            raise UnreachableError(no_members_in(self.topic))
        found = await survey_of(self._client, self.topic, members.items(), None)
        if not found:
            raise UnreachableError(f"no member of {self.topic!r} answers: {listed(list(members))}")
        holder = max(found, key=lambda holder: (holder.survey.count, holder.node))
        self._start_over(holder)
        if self._starts_at_end:
            self._next, self._starts_at_end = holder.survey.end, False
        return holder

    def _start_over(self, holder: MemberLog) -> None:
        """Read a log from its start; batches that were returned are skipped."""
        self._connection = self._client.connection_to(holder.node)
        self._next = 0
        if not self._starts_at_end:
            self._since = self._since_after_failover

    async def _refreshed(self, holder: MemberLog) -> MemberLog | None:
        """Ask the member for the extent of its log; return None if it is gone or was replaced."""
        found = await survey_of(self._client, self.topic, [(holder.node, holder.address)], None)
        if not found:
            return None
        before, now = holder.survey, found[0].survey
        is_same = (before.store, before.epoch) == (now.store, now.epoch) and now.end >= self._next
        return found[0] if is_same else None

    # -- publications --------------------------------------------------------------------------

    async def _read_page(self, holder: MemberLog) -> list[TailBatch]:
        survey = holder.survey
        if self._next >= survey.end:
            return []
        wanted = LogRange(
            store=survey.store,
            epoch=survey.epoch,
            start=self._next,
            end=min(survey.end, NUMBER_MAX),
        )
        reading = pages(self._client, self.topic, holder.node, holder.address, wanted)
        try:
            page = await anext(reading)
        except SkipringError:  # the member is gone, or has another store: find another one
            self._holder = None
            return []
        finally:
            await reading.aclose()
        start, self._next = self._next, survey.end if page.next is None else page.next
        return self._fresh(page, start)

    def _is_wanted(self, publication: Publication) -> bool:
        is_reserved = (publication.key or b"").startswith(RESERVED)
        return publication.time >= self._since and not is_reserved

    def _fresh(self, page: LogPage, start: int) -> list[TailBatch]:
        """Return the batches of a page that are genuine and not yet returned."""
        fresh: list[TailBatch] = []
        for batch, publications in readable_batches(page, self.topic, start):
            mark = batch.id[:SEEN_BYTES]
            if mark not in self._seen and publications:
                self._seen.add(mark)
                wanted = [each for each in publications if self._is_wanted(each)]
                fresh.append(TailBatch(batch, publications[0].seq, wanted))
        return fresh
