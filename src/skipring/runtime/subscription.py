"""One topic of a connection: reading, publishing, and how it is."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from random import Random
from types import TracebackType
from typing import Final, Literal, Protocol, Self, cast

from msgspec import Struct

from skipring.core.archive import Archive, MemoryArchive
from skipring.core.effects import Confirmed, Deliver, Origin
from skipring.core.events import PublishRequested
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.publications import Publication as StoredPublication
from skipring.errors import InputError, MessageError, SkipringError
from skipring.runtime.node import Node
from skipring.runtime.ticker import Ticker
from skipring.wire.runtime_messages import Address
from skipring.wire.values import check_publication, shown

LEAVE_S: Final = 5.0  # Our guess: whoever stops does not want to wait much longer.
HOPS_KEPT: Final = 1024  # Our guess: of so many unread publications we know how they came.
READ_AT_ONCE: Final = 64  # Our guess: then a reader lets the others of its loop go on.
PUBLISHED_AT_ONCE_BYTES: Final = (
    1 << 18
)  # Our guess: then links write; their queues hold 16 times it.
PUBLISHING_BYTES: Final = 1 << 12  # Our guess: what the smallest publication counts as.
ASK_TICKS_MAX: Final = 64  # as quiet_ticks_max in Settings

Start = Literal["all", "new"]


class Publication(Struct, frozen=True, kw_only=True):
    """What somebody has published, as a reader gets it."""

    id: bytes
    publisher: NodeId
    seq: int
    time: int  # microseconds since the epoch at the publisher
    key: bytes | None
    headers: dict[str, str]
    payload: bytes
    replayed: bool  # it was stored here before we subscribed
    hops: int | None  # over how many nodes it has come; None if it was stored, or came by repair


class HealthState(StrEnum):
    """How a subscription is."""

    JOINING = "joining"  # the supervisor has not given us a place yet
    SYNCING = "syncing"  # a ring neighbour has not confirmed yet that it has what we have
    STABLE = "stable"
    DEGRADED = "degraded"  # something that was in order is not any more


class Health(Struct, frozen=True):
    """How a subscription is, why, and how many publications its reader is behind."""

    state: HealthState
    reasons: tuple[str, ...] = ()
    lag: int = 0


class Host(Protocol):
    """What a subscription needs of its connection."""

    @property
    def node(self) -> Node:
        """The node below."""

    @property
    def tick_s(self) -> float:
        """How long a tick is."""

    @property
    def is_failing_to_store(self) -> bool:
        """True if a commit has failed and there still is something to be written."""

    def supervisor_of(self, topic: TopicId) -> Address:
        """Where the supervisor of a topic is."""

    def open(self, subscription: Subscription) -> Archive:
        """Begin to take part in a topic; return where its publications lie."""

    def close(self, subscription: Subscription) -> None:
        """Hand nothing more to a subscription."""


class Subscription:
    """One topic: an iterator over its publications, and the way to publish in it.

    It keeps no publications: a reader has a place in the archive, and reads on from there at its
    own speed. One reader at a time gets everything; several share it among them.

    >>> import asyncio, skipring
    >>> from skipring.testing import Cluster
    >>> async def scene() -> list[bytes]:
    ...     async with (
    ...         Cluster(n=2) as cluster,
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
        self._start = start
        self._archive: Archive = MemoryArchive()
        self._first = 0  # the offset where what comes while we are subscribed begins
        self._next = 0  # the offset to be read next
        self._read = 0  # how many were read
        self._published_bytes = 0  # without letting others of the loop go on
        self._hops: OrderedDict[int, int] = OrderedDict()  # of the newest, by offset
        self._arrived = asyncio.Event()
        self._is_open = False
        self._confirmed: set[NodeId] = set()  # neighbours, since somebody last lacked something
        self._rounds: list[_Round] = []  # of those who wait in ``synced``
        self._ask_ticks = 0  # until we ask the neighbours again
        self._ask_period = 1
        self._ticker = Ticker(self._on_tick, host.tick_s, Random())

    async def __aenter__(self) -> Self:
        self._archive = self._host.open(self)
        self._is_open = True
        self._first = self._archive.end
        self._next = 0 if self._start == "all" else self._first
        self._ticker.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.leave()

    async def leave(self) -> bool:
        """Leave the topic; True if the supervisor has let us go within five seconds."""
        if not self._is_open:
            return True
        self._is_open = False
        self._ticker.stop()
        self._arrived.set()
        try:
            return await self._host.node.unsubscribe(self.topic, LEAVE_S)
        finally:
            self._host.close(self)

    # -- publishing --------------------------------------------------------------------------

    async def publish(
        self, payload: bytes, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Publish; return the id once it is stored here. Nobody else needs to be reachable.

        InputError, and nothing is published, if something is too large or of the wrong kind.
        """
        self._check_open()
        node = self._host.node
        event = PublishRequested(
            payload=_as_bytes(payload, "a payload"),
            time=time.time_ns() // 1000,
            key=None if key is None else _as_bytes(key, "a key"),
            headers=_as_headers(headers or {}),
        )
        checked = StoredPublication(
            publisher=node.name,
            seq=0,
            payload=event.payload,
            time=event.time,
            key=event.key,
            headers=event.headers,
        )
        try:
            check_publication(checked)
        except MessageError as error:
            raise InputError(str(error)) from None
        made = await node.publish(self.topic, event)
        self._published_bytes += PUBLISHING_BYTES + len(event.payload)
        if self._published_bytes >= PUBLISHED_AT_ONCE_BYTES:
            self._published_bytes = 0
            await asyncio.sleep(0)  # without a disk nothing else makes a busy publisher pause
        return made

    # -- reading -----------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Publication]:
        return self

    async def __anext__(self) -> Publication:
        """The next publication, in the order in which they were stored here."""
        while self._is_open:
            self._read += 1
            if self._read % READ_AT_ONCE == 0:
                await asyncio.sleep(0)
            elif self._next < self._archive.end:
                offset = self._next
                self._next += 1
                publication = self._archive.read(offset)
                if publication is not None:  # else it was spoilt, and will come again
                    return self._as_read(offset, publication)
            else:
                self._arrived.clear()
                await self._arrived.wait()
        raise StopAsyncIteration

    def _as_read(self, offset: int, stored: StoredPublication) -> Publication:
        return Publication(
            id=stored.id,
            publisher=stored.publisher,
            seq=stored.seq,
            time=stored.time,
            key=stored.key,
            headers=stored.headers,
            payload=stored.payload or b"",
            replayed=offset < self._first,
            hops=self._hops.pop(offset, None),
        )

    @property
    def lag(self) -> int:
        """How many publications are stored here that were not read yet."""
        return self._archive.end - self._next

    def on_deliver(self, delivery: Deliver) -> None:
        """A publication has been stored here."""
        if delivery.origin is Origin.REPAIR:  # somebody had what we lacked: ask again
            self._confirmed.clear()
            self._ask_ticks, self._ask_period = 0, 1
        else:
            self._hops[delivery.offset] = delivery.hops
            if len(self._hops) > HOPS_KEPT:
                self._hops.popitem(last=False)
        self._arrived.set()

    # -- how it is ---------------------------------------------------------------------------

    async def synced(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  (it says what is missing)
        """Wait until every ring neighbour has confirmed that it has exactly what we have.

        TimeoutError if that takes longer, which says who is missing.
        """
        self._check_open()
        answers = _Round()
        self._rounds.append(answers)
        try:
            async with asyncio.timeout(timeout):
                while not answers.are_equal(self._neighbours()):
                    self._host.node.confirm(self.topic)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._host.tick_s):
                            await self._equal(answers)
        except TimeoutError:
            missing = answers.missing(self._neighbours())
            raise TimeoutError(
                f"{shown(self.topic)} is not synced after {timeout:g} s: {missing}"
            ) from None
        finally:
            self._rounds.remove(answers)

    async def _equal(self, answers: _Round) -> None:
        while not answers.are_equal(self._neighbours()):
            answers.came.clear()
            await answers.came.wait()

    def health(self) -> Health:
        """How the subscription is at this moment, and why."""
        neighbours = self._neighbours()
        if neighbours is None:
            return self._health(HealthState.JOINING, self._joining_reasons())
        links = self._host.node.links
        reasons = [
            f"the connection to {node}, a ring neighbour, is lost"
            for node in neighbours
            if node in self._confirmed and links.peer(node).link is None
        ]
        if self._host.is_failing_to_store:
            reasons.append("what came last could not be written to the disk")
        if reasons:
            return self._health(HealthState.DEGRADED, reasons)
        reasons = [
            f"{node}, a ring neighbour, has not confirmed yet that it has what we have"
            for node in neighbours
            if node not in self._confirmed
        ]
        return self._health(HealthState.SYNCING if reasons else HealthState.STABLE, reasons)

    def _health(self, state: HealthState, reasons: Iterable[str]) -> Health:
        return Health(state, tuple(reasons), self.lag)

    def _joining_reasons(self) -> Iterable[str]:
        if not self._is_open:
            return ["not subscribed"]
        address = self._host.supervisor_of(self.topic)
        links = self._host.node.links
        if links.peer(f"{SUPERVISOR}@{address}", address).link is None:
            return [f"there is no connection to the supervisor at {address}"]
        return [f"the supervisor at {address} has not answered yet"]

    def on_confirmed(self, confirmed: Confirmed) -> None:
        """A ring neighbour has all that we have."""
        self._confirmed.add(confirmed.node)
        for answers in self._rounds:
            answers.roots[confirmed.node] = confirmed.root
            answers.came.set()

    def _on_tick(self) -> None:
        """Ask the neighbours until all have confirmed, ever more rarely."""
        neighbours = self._neighbours() or []
        self._confirmed.intersection_update(neighbours)
        if len(self._confirmed) == len(neighbours):
            self._ask_ticks, self._ask_period = 0, 1
        elif self._ask_ticks > 0:
            self._ask_ticks -= 1
        else:
            self._ask_ticks = self._ask_period - 1
            self._ask_period = min(2 * self._ask_period, ASK_TICKS_MAX)
            self._host.node.confirm(self.topic)

    def _neighbours(self) -> list[NodeId] | None:
        """The distinct ring neighbours; None while we have no place in the ring."""
        machine = self._host.node.machine(self.topic) if self._is_open else None
        if machine is None or machine.label is None:
            return None
        return machine.ring_neighbours()

    def _check_open(self) -> None:
        if not self._is_open:
            raise SkipringError(
                f"not subscribed to {shown(self.topic)}; use it inside `async with ...subscribe()`"
            )


class _Round:
    """What the neighbours have answered to one who waits for all of them."""

    def __init__(self) -> None:
        self.roots: dict[NodeId, bytes] = {}
        self.came = asyncio.Event()

    def are_equal(self, neighbours: list[NodeId] | None) -> bool:
        """True if all neighbours have confirmed one and the same root."""
        if neighbours is None:
            return False
        roots = {self.roots.get(node) for node in neighbours}
        return not roots or (len(roots) == 1 and None not in roots)

    def missing(self, neighbours: list[NodeId] | None) -> str:
        """Why not, in words."""
        if neighbours is None:
            return "the supervisor has not given us a place in the ring"
        silent = [node for node in neighbours if node not in self.roots]
        if not silent:
            return "publications keep coming, so the neighbours confirmed different states"
        return f"{' and '.join(silent)} did not confirm to have what we have"


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
