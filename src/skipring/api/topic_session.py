"""Session of one topic: membership in the ring, reader, cursors and health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from math import inf
from time import monotonic
from typing import Final

from msgspec import Struct

from skipring.api.cursor import EPOCH, MICROSECOND, Cursor, Start, checked_start
from skipring.api.ordered_reader import Item, OrderedReader, OrderPlan
from skipring.api.reader import Reader
from skipring.api.session import Session
from skipring.core.effects import PeerInSync
from skipring.core.events import SyncRequested
from skipring.core.limits import shown
from skipring.core.log import Log, MemoryLog
from skipring.core.peers import NodeId, TopicId
from skipring.errors import CursorError, InputError, MessageError, SkipringError
from skipring.net.addresses import supervisor_at
from skipring.net.event_loop import Timer
from skipring.node.host import NodeHost
from skipring.observability.clock import time_us
from skipring.order.gaps import Order
from skipring.storage.topic_log import SegmentLog
from skipring.wire.limits import check_topic

LEAVE_S: Final = 5.0  # Guess: a caller that stops does not want to wait much longer.

# The publications and gaps that were read and not handed out.
Unread = Callable[[], Sequence[Item]]
Neighbours = Callable[[], list[NodeId] | None]


class HealthState(StrEnum):
    """State of a subscription."""

    JOINING = "joining"  # the supervisor has not assigned a label yet
    SYNCING = "syncing"  # a ring neighbour has not confirmed yet that it is in sync
    STABLE = "stable"
    DEGRADED = "degraded"  # a condition that held before does not hold now


class Health(Struct, frozen=True):
    """State of a subscription, its reasons, and the number of unread publications."""

    state: HealthState
    reasons: tuple[str, ...] = ()
    lag: int = 0


def _nothing_unread() -> Sequence[Item]:
    return ()


class TopicSession:
    """State of one subscription, shared by the asynchronous and the blocking API.

    A caller that buffers publications it has read passes ``unread``: cursors stay before the first
    of them. Error texts show the syntax of the caller's API: ``prefix`` precedes "with" and "for".
    """

    def __init__(
        self,
        session: Session,
        topic: TopicId,
        start: Start,
        plan: OrderPlan | None = None,
        *,
        unread: Unread = _nothing_unread,
        prefix: str = "async ",
    ) -> None:
        self.topic = checked_topic(topic)
        self._session = session
        self._plan = plan  # None: the order of arrival
        self._start = checked_start(start)
        self._unread = unread
        self._prefix = prefix
        self._log: Log = MemoryLog()
        self._store_id: str | None = None
        self._last_cursors: list[Cursor] = []  # set on leaving: the store may be closed
        # An empty one before ``open``.
        self.reader: Reader | OrderedReader = Reader(self._log, "all", now=0)
        self.is_open = False
        self._has_been_opened = False
        tick_s = session.settings.tick_s
        self._sync = SyncTracker(self._neighbours, self._confirmed, self._ask_neighbours, tick_s)
        # Until the history ends: a node may become alone, and then no neighbour confirms.
        self._ticker = Timer(self._end_history_in_sync, tick_s, session.rng)
        step_s = plan.step_s if plan else tick_s
        self._order_ticker = Timer(self._tick_order, step_s, session.rng)
        store = session.store if session.is_connected else None
        is_read = store is None or not store.is_unread(self.topic)
        if session.is_connected and is_read:  # otherwise ``open`` checks it
            self._check_start()

    @property
    def connection(self) -> Session:
        """Return the session of the connection."""
        return self._session

    @property
    def host(self) -> NodeHost:
        """Return the host of the node; raise SkipringError if it is not connected."""
        return self._session.host

    def check_open(self) -> None:
        """Raise SkipringError if the topic is not joined."""
        self.check_opened()
        if not self.is_open:
            raise SkipringError(
                f"no longer subscribed to {shown(self.topic)}: its block was left; subscribe again"
            )

    def check_opened(self) -> None:
        """Raise SkipringError if the topic was never joined; the message shows correct usage."""
        if not self._has_been_opened:
            prefix = self._prefix
            raise SkipringError(
                f"not subscribed to {shown(self.topic)} yet; open the subscription first: "
                f"`{prefix}with node.subscribe({shown(self.topic)}) as subscription: "
                f"{prefix}for publication in subscription: ...`"
            )

    # -- membership --------------------------------------------------------------------------

    async def open(self) -> None:
        """Join the ring of the topic."""
        store = self._session.store
        await self._session.read_log(self.topic)
        self._check_start()  # publications may have been lost since the session was made
        now = time_us()
        self._log = self._session.join(self.topic, self.leave)
        self._store_id = None if store is None else store.id
        if self._plan is None:
            self.reader = Reader(self._log, self._start, now)
        else:
            self.reader = OrderedReader(self._log, self._start, self._plan, now)
            self._order_ticker.start()
        self.host.attach(self.topic, self.reader.on_deliver, self.on_confirmed)
        self.is_open = self._has_been_opened = True
        self._ticker.start()

    def _check_start(self) -> None:
        """Raise CursorError if the start is a cursor that does not point into the store."""
        if isinstance(self._start, Cursor):
            order = Order.ARRIVAL if self._plan is None else self._plan.order
            self._start.check(self._session.store, self.topic, order)

    async def leave(self) -> bool:
        """Leave the topic; return True if the supervisor confirms within LEAVE_S.

        First hand over the publications to a remaining member, for at most ``drain_s``.
        """
        if not self.is_open:
            return True
        self.is_open = False
        self._ticker.stop()
        self._order_ticker.stop()
        self.reader.close()
        try:
            await self._drain()
            return await self.host.unsubscribe(self.topic, LEAVE_S)
        finally:
            if self._store_id is not None:  # the second cursor is valid once it is on disk
                last = self._cursor_before(self._log.end)
                self._last_cursors = [self.cursor(), last]
            self._session.remove(self.topic)

    async def _drain(self) -> None:
        """Hand over the publications to a remaining member (decision 0049)."""
        host, drain_s = self.host, self._session.settings.drain_s
        departure = await host.drain(self.topic, drain_s, waits_alone=True)
        machine = host.machine(self.topic)
        is_alone = machine is not None and machine.label is not None and not machine.neighbours()
        self._session.count_unconfirmed(departure, is_alone=is_alone)

    # -- cursors -----------------------------------------------------------------------------

    def cursor(self) -> Cursor:
        """Return the position after the last publication that was handed out.

        It is never beyond the durable mark. Raise CursorError if there is no data directory.
        """
        if self._store_id is None or not isinstance(self._log, SegmentLog):
            raise CursorError(
                "a cursor points into a data directory, and there is none; "
                "use it inside the block, on a connection with a data_dir"
            )
        durable_end = self._log.durable_end
        for cursor in reversed(self._last_cursors):
            if cursor.offset <= durable_end:
                return cursor
        return self._cursor_before(durable_end)

    def _cursor_before(self, limit: int) -> Cursor:
        """Return the position after the last publication handed out, at most an offset."""
        assert self._store_id is not None
        assert isinstance(self._log, SegmentLog)
        offset, saved = self.reader.position(limit, self._unread())
        chain = self._log.chain_at(offset)
        return Cursor(self._store_id, self.topic, self._log.epoch, offset, chain, saved)

    # -- health ------------------------------------------------------------------------------

    def on_confirmed(self, confirmed: PeerInSync) -> None:
        """Record that a ring neighbour is in sync."""
        self._sync.on_confirmed(confirmed)
        self._end_history_in_sync()

    def _tick_order(self) -> None:
        """Let the order of the reader report what is overdue; ask neighbours what is missing."""
        reader, machine = self.reader, self.host.machine(self.topic)
        if machine is None or not isinstance(reader, OrderedReader):
            return
        retention = machine.replica.retention
        reader.on_tick(
            monotonic(),
            self.now_us(),
            self._sync.confirmed_s(),
            is_history=machine.replication.is_backfilling,
            floor=retention.floors.stamps.rows if retention is not None else 0,
        )
        if reader.is_waiting:
            self._ask_neighbours()

    def now_us(self) -> int:
        """Return the time by the topic's clock, or by this node's clock without a charter."""
        machine = self.host.machine(self.topic)
        retention = machine.replica.retention if machine is not None else None
        return time_us() - (retention.clock.deviation if retention is not None else 0)

    def _end_history_in_sync(self) -> None:
        """End the history and the timer once all neighbours are in sync: there is only one."""
        if self._sync.are_complete:
            self.reader.end_history()
            self._ticker.stop()

    async def synced(self, timeout_s: float) -> None:
        """Wait until every ring neighbour has confirmed that it is in sync.

        Raise TimeoutError, which names the missing neighbours, if that takes longer.
        """
        missing = await self._sync.all_equal(timeout_s)
        if missing is not None:
            if self._neighbours() is None:
                missing = "; ".join(self._joining_reasons())
            raise TimeoutError(
                f"{shown(self.topic)} is not synced after {timeout_s:g} s: {missing}"
            )

    def health(self) -> Health:
        """Return the current state and its reasons."""
        neighbours = self._neighbours()
        if neighbours is None:
            return self._health(HealthState.JOINING, self._joining_reasons())
        reasons = [
            f"the connection to {node}, a ring neighbour, is lost"
            for node in neighbours
            if node in self._sync and not self.host.links.is_linked(node)
        ]
        if self.host.durability.error is not None:
            reasons.append("the last publications could not be written to the disk")
        reasons += self._terms_reasons()
        if reasons:
            return self._health(HealthState.DEGRADED, reasons)
        reasons = [
            f"{node}, a ring neighbour, has not confirmed yet that it is in sync"
            for node in neighbours
            if node not in self._sync
        ]
        state = HealthState.SYNCING if reasons else HealthState.STABLE
        return self._health(state, (*reasons, *self._trimmed()))

    def _terms_reasons(self) -> Iterable[str]:
        """Return why the retention of the topic is degraded at this node."""
        machine = self.host.machine(self.topic)
        retention = machine.replica.retention if machine is not None else None
        if retention is None:
            return
        if retention.clock.is_off:
            ahead_s = retention.clock.deviation / 1_000_000
            where = "ahead of" if ahead_s > 0 else "behind"
            yield f"the clock is {abs(ahead_s):.0f} s {where} both neighbours"
        if retention.is_stale:
            yield "this node was away for longer than deletions are remembered"

    def _trimmed(self) -> Iterable[str]:
        """Return what the policy has removed here."""
        machine = self.host.machine(self.topic)
        retention = machine.replica.retention if machine is not None else None
        floor = retention.floors.stamps.rows if retention is not None else 0
        if floor and self.host.logs.dropped[self.topic]:
            yield f"trimmed up to {EPOCH + floor * MICROSECOND:%Y-%m-%d %H:%M:%S} UTC"

    def _health(self, state: HealthState, reasons: Iterable[str]) -> Health:
        return Health(state, tuple(reasons), self.reader.lag)

    def _joining_reasons(self) -> Iterable[str]:
        return [why_not_joined(self._session, self.topic) if self.is_open else "not subscribed"]

    def _ask_neighbours(self) -> None:
        self.check_open()  # a caller that waits gets an error when the topic is left
        self.host.dispatch(self.topic, SyncRequested())

    def _confirmed(self) -> frozenset[NodeId]:
        """Return the ring neighbours that are in sync."""
        machine = self.host.machine(self.topic) if self.is_open else None
        return machine.replication.in_sync if machine is not None else frozenset()

    def _neighbours(self) -> list[NodeId] | None:
        """Return the distinct ring neighbours; None while this node has no label."""
        machine = self.host.machine(self.topic) if self.is_open else None
        if machine is None or machine.label is None:
            return None
        return machine.ring_neighbours()


def why_not_joined(session: Session, topic: TopicId) -> str:
    """Return the reason why the supervisor has not assigned a label yet."""
    address, host = session.supervisor_of(topic), session.host
    if topic in host.refusals:
        return f"the supervisor at {address} refused the join: {shown(host.refusals[topic])}"
    supervisor = supervisor_at(address)
    if (why := host.links.why_unreachable(supervisor)) is not None:
        return why
    if not host.links.is_linked(supervisor):
        return f"there is no connection to the supervisor at {address}"
    return f"the supervisor at {address} has not answered yet"


def checked_topic(topic: object) -> TopicId:
    """Return a valid topic; raise InputError for any other value."""
    if not isinstance(topic, str):
        raise InputError(f"expected a text, got {type(topic).__name__}", parameter="topic")
    try:
        check_topic(topic)
    except MessageError as error:
        raise InputError(str(error), parameter="topic") from None
    return topic


# -- confirmations of neighbours (T19) ------------------------------------------------------


class SyncTracker:
    """Confirmations of the ring neighbours since the last repair."""

    def __init__(
        self,
        neighbours: Neighbours,
        confirmed: Callable[[], frozenset[NodeId]],
        ask: Callable[[], None],
        tick_s: float,
    ) -> None:
        self._neighbours = neighbours  # returns None while this node has no label
        self._confirmed = confirmed
        self._ask = ask
        self._tick_s = tick_s
        self._confirmed_s: dict[NodeId, float] = {}  # when neighbours confirmed last
        self._rounds: list[_Round] = []  # one for each waiting caller

    def __contains__(self, node: NodeId) -> bool:
        return node in self._confirmed()

    @property
    def are_complete(self) -> bool:
        """Return True if all neighbours have confirmed; a node that is alone has no neighbours."""
        neighbours = self._neighbours()
        return neighbours is not None and self._confirmed().issuperset(neighbours)

    def on_confirmed(self, confirmed: PeerInSync) -> None:
        """Record the root of a ring neighbour for the waiting callers."""
        self._confirmed_s[confirmed.node] = monotonic()
        for answers in self._rounds:
            answers.roots[confirmed.node] = confirmed.root
            answers.arrived.set()

    def confirmed_s(self) -> float:
        """Return the time since when all neighbours have confirmed; the past if not all have.

        A node that is alone has no neighbours, and the result is the current time.
        """
        neighbours = self._neighbours()
        if neighbours is None:
            return -inf
        self._confirmed_s = {node: self._confirmed_s.get(node, -inf) for node in neighbours}
        return min(self._confirmed_s.values(), default=monotonic())

    async def all_equal(self, timeout_s: float) -> str | None:
        """Wait until all neighbours have confirmed one state; return the reason after a timeout."""
        answers = _Round()
        self._rounds.append(answers)
        try:
            async with asyncio.timeout(timeout_s):
                while not answers.are_equal(self._neighbours()):
                    self._ask()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._tick_s):
                            await self._equal(answers)
        except TimeoutError:
            return answers.missing(self._neighbours())
        finally:
            self._rounds.remove(answers)
        return None

    async def _equal(self, answers: _Round) -> None:
        while not answers.are_equal(self._neighbours()):
            answers.arrived.clear()
            await answers.arrived.wait()


class _Round:
    """Confirmations that one waiting caller has received from the neighbours."""

    def __init__(self) -> None:
        self.roots: dict[NodeId, bytes] = {}
        self.arrived = asyncio.Event()

    def are_equal(self, neighbours: list[NodeId] | None) -> bool:
        """Return True if all neighbours have confirmed the same root."""
        if neighbours is None:
            return False
        roots = {self.roots.get(node) for node in neighbours}
        return not roots or (len(roots) == 1 and None not in roots)

    def missing(self, neighbours: list[NodeId] | None) -> str:
        """Return the reason why the neighbours are not in sync."""
        if neighbours is None:
            return "the supervisor has not assigned a place in the ring"
        silent = [node for node in neighbours if node not in self.roots]
        if not silent:
            return "publications keep arriving, so the neighbours confirmed different states"
        return f"{' and '.join(silent)} did not confirm in time"
