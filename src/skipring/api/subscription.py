"""Subscription to one topic of a connection: read, publish, health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from random import Random
from types import TracebackType
from typing import Final, Protocol, Self, cast

from msgspec import Struct

from skipring.api.reader import (
    READ_AT_ONCE,
    Cursor,
    DeliveredPublication,
    Reader,
    Start,
    checked_start,
)
from skipring.api.sync import SyncTracker
from skipring.core.effects import Deliver, Origin, PeerInSync
from skipring.core.events import PublishRequested
from skipring.core.log import Log, MemoryLog
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication as StoredPublication
from skipring.errors import CursorError, InputError, MessageError, SkipringError, StorageError
from skipring.net.addresses import supervisor_at
from skipring.node.drain import Departure
from skipring.node.host import NodeHost
from skipring.node.replication_wait import REPLICAS_TIMEOUT_S
from skipring.node.timer import Timer
from skipring.observability.clock import publication_time_us, time_us
from skipring.storage.store import PublicationStore
from skipring.storage.topic_log import TopicLog
from skipring.wire.limits import PAYLOAD_BYTES_MAX, check_publication, shown
from skipring.wire.rpc import Address

LEAVE_S: Final = 5.0  # Guess: a caller that stops does not want to wait much longer.
# Guess: after this many bytes a publisher lets connections write; their queues hold 64 times as
# many bytes.
PUBLISHED_AT_ONCE_BYTES: Final = 1 << 18
PUBLICATION_BYTES_MIN: Final = 1 << 12  # Guess: the overhead of a small publication.
PUBLISHED_TOGETHER: Final = 256  # Guess: this number of publications shares a commit and a message.
READ_MANY: Final = 1024  # Guess: enough to spread the cost of a call.


class HealthState(StrEnum):
    """State of a subscription."""

    JOINING = "joining"  # the supervisor has not assigned a label yet
    SYNCING = "syncing"  # a ring neighbour has not confirmed yet to be in sync
    STABLE = "stable"
    DEGRADED = "degraded"  # a condition that held before does not hold now


class Health(Struct, frozen=True):
    """State of a subscription, its reasons, and the number of unread publications."""

    state: HealthState
    reasons: tuple[str, ...] = ()
    lag: int = 0


class Record(Struct, frozen=True):
    """Input of ``publish_many``: a payload with its key and headers.

    >>> Record(b"a book", key=b"42", headers={"src": "web"}).key
    b'42'
    """

    payload: bytes
    key: bytes | None = None
    headers: Mapping[str, str] | None = None


class Host(Protocol):
    """Part of the connection that a subscription uses."""

    @property
    def node(self) -> NodeHost:
        """Return the node."""

    @property
    def tick_s(self) -> float:
        """Return the length of a tick."""

    @property
    def store(self) -> PublicationStore | None:
        """Return the store on disk; None if publications are in memory."""

    @property
    def is_failing_to_store(self) -> bool:
        """Return True if a commit has failed and uncommitted data remains."""

    def supervisor_of(self, topic: TopicId) -> Address:
        """Return the address of the supervisor of a topic."""

    def open(self, subscription: Subscription) -> Log:
        """Join the ring of a topic; return its log."""

    def on_left(self, subscription: Subscription) -> None:
        """Stop deliveries to a subscription."""

    @property
    def drain_s(self) -> float:
        """Return how long a subscription waits at its end until others have what it holds."""

    def on_drained(self, departure: Departure, *, is_alone: bool) -> None:
        """Count the publications of a topic that no other member has confirmed."""


class Subscription:
    """One topic: an iterator over its publications, and the methods to publish in it.

    It keeps no publications: a reader has a position in the log and continues from there at its own
    speed. A single reader gets everything; several readers share the publications.

    >>> import asyncio, skipring
    >>> from skipring.testing import Cluster
    >>> async def scene() -> list[bytes]:
    ...     async with (
    ...         Cluster(n=2, topic="orders") as cluster,
    ...         skipring.connect(cluster.url, tick_s=0.05) as node,
    ...         node.subscribe("orders") as orders,
    ...     ):
    ...         await orders.publish(b"one", key=b"42", headers={"src": "web"})
    ...         await orders.synced(timeout=30)
    ...         return [orders.health().state.value, (await anext(orders)).payload]
    >>> asyncio.run(scene())
    ['stable', b'one']
    """

    def __init__(self, host: Host, topic: TopicId, start: Start) -> None:
        self.topic = topic
        self._host = host
        self._start = checked_start(start)
        self._archive: Log = MemoryLog()
        self._store_id: str | None = None
        self._last_cursors: list[Cursor] = []  # set on leaving: the store may be closed
        self.reader = Reader(topic, self._archive, "all", now=0)
        self._unread: Callable[[], int | None] = lambda: None  # read, but not handed out
        self._published_bytes = 0  # since the last yield to the loop
        self._is_open = False
        self._has_been_opened = False
        self._confirmations = SyncTracker(self._neighbours, self._confirm, host.tick_s)
        self._ticker = Timer(self._on_tick, host.tick_s, Random())

    async def __aenter__(self) -> Self:
        store = self._host.store
        self.check_start()  # publications may have been lost since ``subscribe``
        now = time_us()
        self._archive = self._host.open(self)
        self._store_id = None if store is None else store.id
        self.reader = Reader(self.topic, self._archive, self._start, now)
        self._is_open = self._has_been_opened = True
        self._ticker.start()
        return self

    def check_start(self) -> None:
        """Raise CursorError if the start is a cursor that does not point into the store."""
        if isinstance(self._start, Cursor):
            self._start.check(self._host.store, self.topic)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.leave()

    async def leave(self) -> bool:
        """Leave the topic; return True if the supervisor confirms within five seconds.

        First hand over what is held here, for at most ``drain_s`` of the connection: until one
        remaining member has confirmed everything.
        """
        if not self._is_open:
            return True
        self._is_open = False
        self._ticker.stop()
        self.reader.close()
        try:
            await self._drain()
            return await self._host.node.unsubscribe(self.topic, LEAVE_S)
        finally:
            if self._store_id is not None:  # the second one is valid once it is on disk
                last = self._cursor_at(min(self._handed_out(), self._archive.end))
                self._last_cursors = [self.cursor(), last]
            self._host.on_left(self)

    async def _drain(self) -> None:
        """Hand over what is held here to a remaining member (decision 0049)."""
        node = self._host.node
        departure = await node.drain(self.topic, self._host.drain_s, waits_alone=True)
        machine = node.machine(self.topic)
        is_alone = machine is not None and machine.label is not None and not machine.neighbours()
        self._host.on_drained(departure, is_alone=is_alone)

    # -- publishing --------------------------------------------------------------------------

    async def publish(
        self,
        payload: bytes,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        replicas: int = 0,
        timeout: float = REPLICAS_TIMEOUT_S,  # noqa: ASYNC109  (for replicas only)
    ) -> bytes:
        """Publish; return the id once it is stored here. No other node needs to be reachable.

        With ``replicas`` return once that number of other members has stored it durably. Raise
        ReplicationError, which states how many have, if that takes longer than ``timeout`` or this
        node has fewer neighbours. Raise StorageError if the disk fails: if ``may_be_published`` is
        True, other members may have the publication, and ``retry`` sends the same one again. Raise
        InputError, and publish nothing, if an argument is too large or of the wrong type.
        """
        self._check_open()
        check_replicas(replicas)
        (made,) = await self._publish([self._request(payload, key, headers)])
        if replicas:
            await self._host.node.replications.reached(self.topic, made, replicas, timeout)
        return made

    async def publish_many(self, records: Iterable[bytes | Record]) -> list[bytes]:
        """Publish payloads or records in order; return their ids once they are stored here.

        They share commits and messages: for many small ones this costs a fraction of ``publish``.
        Raise InputError with the index of the first invalid one, and publish nothing. Raise
        StorageError if the disk fails: its ``ids`` are those of the records that were sent.
        """
        self._check_open()
        if not isinstance(records, Iterable):
            raise InputError(
                "publish_many takes an iterable of payloads or records, "
                f"not {type(records).__name__}"
            )
        made: list[bytes] = []
        now = publication_time_us()
        requests = [
            PublishRequested(payload=record, time=now)
            if type(record) is bytes and len(record) <= PAYLOAD_BYTES_MAX
            else self._record_request(index, record)
            for index, record in enumerate(records)
        ]
        for start in range(0, len(requests), PUBLISHED_TOGETHER):
            try:
                made += await self._publish(requests[start : start + PUBLISHED_TOGETHER])
            except StorageError as error:
                raise type(error)(str(error), ids=(*made, *error.ids)) from error
        return made

    async def retry(self, error: StorageError) -> list[bytes]:
        """Send the publications of a failed call again; return their ids once they are durable.

        They keep their ids, so no member gets one twice. After a failed ``publish_many`` the ids
        are those of the first records; publish the other records afterwards. Raise StorageError
        if the disk still fails.
        """
        self._check_open()
        await self._host.node.resend(self.topic, error.ids)
        return list(error.ids)

    def _record_request(self, index: int, record: bytes | Record) -> PublishRequested:
        try:
            if isinstance(record, Record):
                return self._request(record.payload, record.key, record.headers)
            return self._request(record)
        except InputError as error:
            raise InputError(f"records[{index}]: {error}") from None

    def _request(
        self, payload: bytes, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> PublishRequested:
        """Return a validated request; the node does not validate it again."""
        request = PublishRequested(
            payload=_as_bytes(payload, "a payload"),
            time=publication_time_us(),
            key=None if key is None else _as_bytes(key, "a key"),
            headers=_as_headers(headers or {}),
        )
        checked = StoredPublication(
            publisher=self._host.node.name,
            seq=0,
            payload=request.payload,
            time=request.time,
            key=request.key,
            headers=request.headers,
        )
        try:
            check_publication(checked)
        except MessageError as error:
            raise InputError(str(error)) from None
        return request

    async def _publish(self, requests: Sequence[PublishRequested]) -> list[bytes]:
        made = await self._host.node.publish(self.topic, *requests)
        self._published_bytes += sum([PUBLICATION_BYTES_MIN + len(r.payload) for r in requests])
        if self._published_bytes >= PUBLISHED_AT_ONCE_BYTES:
            self._published_bytes = 0
            await asyncio.sleep(0)  # without a disk nothing else makes a busy publisher yield
        return made

    # -- reading -----------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[DeliveredPublication]:
        return self

    async def __anext__(self) -> DeliveredPublication:
        """Return the next publication, in the order in which they were stored here."""
        self._check_opened()
        publication = await self.reader.next()
        if publication is None:
            raise StopAsyncIteration
        return publication

    async def read(self, timeout: float | None = None) -> DeliveredPublication | None:  # noqa: ASYNC109  (None, no error)
        """Return the next publication; None after the timeout or when the topic was left."""
        self._check_opened()
        return await self.reader.next(timeout)

    async def read_many(
        self,
        limit: int = READ_MANY,
        timeout: float | None = None,  # noqa: ASYNC109  (an empty list, no error)
    ) -> list[DeliveredPublication]:
        """Wait for a publication, then return all available ones, up to a limit.

        Return an empty list after the timeout or when the topic was left.
        """
        check_limit(limit)
        self._check_opened()
        reader = self.reader
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while await reader.arrival(deadline):
            if found := reader.fetch(limit):
                return found
        return []

    async def read_available(self, limit: int | None = None) -> list[DeliveredPublication]:
        """Return the available unread publications, at most ``limit`` of them."""
        self._check_opened()
        reader, end = self.reader, self.reader.end  # later arrivals belong to the next call
        found: list[DeliveredPublication] = []
        while reader.is_open and reader.offset < end and len(found) != limit:
            found += reader.fetch(READ_AT_ONCE if limit is None else limit - len(found), end)
            await asyncio.sleep(0)
        return found

    @property
    def lag(self) -> int:
        """Return the number of publications that are stored here and unread.

        With a datetime as start, publications that were stored before count until the reader
        reaches them.
        """
        return self.reader.lag

    def cursor(self) -> Cursor:
        """Return the position after the last publication that was handed out, to start there again.

        It is never beyond the durable mark: after a crash a reader may get the last few
        publications again, and misses none. Raise CursorError if the node keeps its publications in
        memory.
        """
        if self._store_id is None or not isinstance(self._archive, TopicLog):
            raise CursorError(
                "a cursor points into a data directory, and there is none; "
                "use it inside the block, on a connection with a data_dir"
            )
        durable_end = self._archive.durable_end
        for cursor in reversed(self._last_cursors):
            if cursor.offset <= durable_end:
                return cursor
        return self._cursor_at(min(self._handed_out(), durable_end))

    def read_ahead(self, unread: Callable[[], int | None]) -> None:
        """Let the caller buffer publications it has read; cursors stay before the first of them.

        ``unread`` returns the offset of that publication, or None.
        """
        self._unread = unread

    def _handed_out(self) -> int:
        """Return the offset after the last publication that the application has."""
        unread = self._unread()
        return self.reader.offset if unread is None else unread

    def _cursor_at(self, offset: int) -> Cursor:
        assert self._store_id is not None
        assert isinstance(self._archive, TopicLog)
        chain = self._archive.chain_at(offset)
        return Cursor(self._store_id, self.topic, self._archive.epoch, offset, chain)

    def on_deliver(self, delivery: Deliver) -> None:
        """Pass publications that were stored here to the reader."""
        if delivery.origin is Origin.REPAIR:
            self._confirmations.on_repair()
        self.reader.on_deliver(delivery)

    # -- health ------------------------------------------------------------------------------

    async def synced(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  (the error has a reason)
        """Wait until every ring neighbour has confirmed to be in sync.

        Raise TimeoutError, which names the missing neighbours, if that takes longer.
        """
        self._check_open()
        missing = await self._confirmations.all_equal(timeout)
        if missing is not None:
            if self._neighbours() is None:
                missing = "; ".join(self._joining_reasons())
            raise TimeoutError(f"{shown(self.topic)} is not synced after {timeout:g} s: {missing}")

    def health(self) -> Health:
        """Return the current state of the subscription and its reasons."""
        neighbours = self._neighbours()
        if neighbours is None:
            return self._health(HealthState.JOINING, self._joining_reasons())
        links = self._host.node.links
        reasons = [
            f"the connection to {node}, a ring neighbour, is lost"
            for node in neighbours
            if node in self._confirmations and not links.is_linked(node)
        ]
        if self._host.is_failing_to_store:
            reasons.append("the newest publications could not be written to disk")
        if reasons:
            return self._health(HealthState.DEGRADED, reasons)
        reasons = [
            f"{node}, a ring neighbour, has not confirmed yet that it has what we have"
            for node in neighbours
            if node not in self._confirmations
        ]
        return self._health(HealthState.SYNCING if reasons else HealthState.STABLE, reasons)

    def _health(self, state: HealthState, reasons: Iterable[str]) -> Health:
        return Health(state, tuple(reasons), self.lag)

    def _joining_reasons(self) -> Iterable[str]:
        if not self._is_open:
            return ["not subscribed"]
        address, node = self._host.supervisor_of(self.topic), self._host.node
        if self.topic in node.refusals:
            return [f"the supervisor at {address} says: {shown(node.refusals[self.topic])}"]
        supervisor = supervisor_at(address)
        if (why := node.links.why_unreachable(supervisor)) is not None:
            return [why]
        if not node.links.is_linked(supervisor):
            return [f"there is no connection to the supervisor at {address}"]
        return [f"the supervisor at {address} has not answered yet"]

    def on_confirmed(self, confirmed: PeerInSync) -> None:
        """Record that a ring neighbour is in sync."""
        self._confirmations.on_confirmed(confirmed)
        self._record_sync()

    def _on_tick(self) -> None:
        self._confirmations.on_tick()
        self._record_sync()

    def _record_sync(self) -> None:
        if self._confirmations.are_complete:
            self.reader.end_history()

    def _confirm(self) -> None:
        self._check_open()  # a caller that still waits when the topic is left gets an error
        self._host.node.confirm(self.topic)

    def _neighbours(self) -> list[NodeId] | None:
        """Return the distinct ring neighbours; None while this node has no label."""
        machine = self._host.node.machine(self.topic) if self._is_open else None
        if machine is None or machine.label is None:
            return None
        return machine.ring_neighbours()

    @property
    def has_been_opened(self) -> bool:
        """Return True once the block was entered, also after it was left."""
        return self._has_been_opened

    def _check_opened(self) -> None:
        if not self._has_been_opened:
            raise SkipringError(never_opened(self.topic, "async "))

    def _check_open(self) -> None:
        self._check_opened()
        if not self._is_open:
            raise SkipringError(
                f"not subscribed to {shown(self.topic)} any more: its block was left; "
                "subscribe again"
            )


def never_opened(topic: TopicId, prefix: str = "") -> str:
    """Return the error text for a subscription that is used before its block was entered."""
    return (
        f"not subscribed to {shown(topic)} yet; open the subscription first: "
        f"`{prefix}with node.subscribe({shown(topic)}) as subscription: "
        f"{prefix}for publication in subscription: ...`"
    )


def check_limit(limit: int) -> None:
    """Raise InputError for a limit below 1."""
    if limit < 1:
        raise InputError(f"read_many takes a limit of 1 or more, not {limit}")


def check_replicas(replicas: object) -> None:
    """Raise InputError if the value is no number of members."""
    if type(replicas) is not int or replicas < 0:
        raise InputError(f"replicas is a number of members, 0 or more, not {replicas!r}")


def _as_bytes(value: object, what: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InputError(f"{what} is bytes, not {type(value).__name__}")
    return bytes(value)


def _as_headers(headers: object) -> dict[str, str]:
    if isinstance(headers, Mapping):
        given = dict(headers)
        if all(isinstance(text, str) for item in given.items() for text in item):
            return cast("dict[str, str]", given)
    raise InputError("headers are a mapping from text to text")
