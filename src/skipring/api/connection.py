"""Connection to a cluster: connect to supervisors and subscribe to topics."""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections.abc import Generator
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self

from skipring.api.reader import Start
from skipring.api.subscription import Subscription
from skipring.core.effects import Deliver, PeerInSync
from skipring.core.log import Log
from skipring.core.peers import NodeId, TopicId
from skipring.errors import (
    IdentityError,
    InputError,
    MessageError,
    SkipringError,
    UnconfirmedWarning,
)
from skipring.net.access import Access
from skipring.net.addresses import (
    is_anywhere,
    join_address,
    local_host_towards,
    parse_address,
    split_address,
    supervisor_of,
)
from skipring.net.sockets import why_not_listening
from skipring.node.drain import DRAIN_S, Departure
from skipring.node.group_commit import opened
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.security.credentials import may_act_as
from skipring.storage.data_dir import check_name, node_id
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import PublicationStore
from skipring.wire.limits import check_topic, shown
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # reads certificates, which few processes need
    from skipring.security.credentials import Credentials

FLUSHES_PER_TICK: Final = 10  # as in NodeSettings
NOT_CONNECTED: Final = "not connected; use it inside `async with skipring.connect(...)`"


class Connection:
    """Node of this process in the rings of the subscribed topics; returned by ``connect``.

    >>> import asyncio, skipring
    >>> from skipring.testing import Cluster
    >>> async def scene() -> bytes:
    ...     async with (
    ...         Cluster(n=2) as cluster,
    ...         skipring.connect(cluster.url, tick_s=0.05) as node,
    ...         node.subscribe(cluster.topic) as news,
    ...     ):
    ...         await cluster.publish(cluster.nodes[0], b"hello")
    ...         async for publication in news:
    ...             return publication.payload
    >>> asyncio.run(scene())
    b'hello'
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        listen: tuple[str, int],
        data_dir: Path | None,
        name: str,
    ) -> None:
        self.name: NodeId = name  # empty until connected, if only the data directory knows it
        self._settings = settings
        self._listen = listen
        self._data_dir = data_dir
        self._node: NodeHost | None = None
        self._is_connected = False
        self._unconfirmed = 0  # own publications that no other member has confirmed
        self._in_doubt = 0  # the same without publications on the disk of a lone node
        self._store: PublicationStore | None = None
        self._subscriptions: dict[TopicId, Subscription] = {}
        self._resources = AsyncExitStack()

    def __await__(self) -> Generator[None, None, NoReturn]:
        """Refuse ``await``: only ``async with`` opens a connection."""
        raise SkipringError(
            "a connection cannot be awaited; open it with "
            "`async with skipring.connect(...) as node: ...`"
        )

    async def __aenter__(self) -> Self:
        if self._node is not None:
            raise SkipringError("this connection has been used; call skipring.connect again")
        async with AsyncExitStack() as resources:
            trace = None
            if self._data_dir is not None:
                self.name = node_id(self._data_dir, self.name or None)
                store = await opened(PublicationStore.open, self._data_dir)
                self._store = resources.enter_context(store)
                trace = await asyncio.to_thread(DeliveryLog.open, self._data_dir, store)
            self._node = NodeHost(
                self.name,
                self._settings,
                rng=Random(),
                deliver=self._deliver,
                on_in_sync=self._on_in_sync,
                store=self._store,
                trace=trace,
            )
            resources.push_async_callback(self._node.close)
            try:
                await self._node.start(*self._listen)
            except OSError as error:
                why = why_not_listening(join_address(*self._listen), error)
                raise InputError(why, parameter="listen") from None
            resources.push_async_callback(self._leave_all)
            self._resources = resources.pop_all()
        self._is_connected = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
        if self._in_doubt:
            count = f"publications that no other member has confirmed: {self._in_doubt}"
            text = f"{count}; {self._where()}"
            warnings.warn(text, UnconfirmedWarning, stacklevel=2)

    async def close(self) -> int:
        """Leave all topics and stop; return how many publications no other member has confirmed.

        Open subscriptions first hand over what they hold, within ``drain_s``. A second call does
        nothing.
        """
        try:
            await self._resources.aclose()
        finally:
            self._is_connected = False
        return self._unconfirmed

    def _where(self) -> str:
        if self._data_dir is None:
            return "they were in memory and are lost"
        return f"they are in {self._data_dir} only, until a node starts with it again"

    def subscribe(self, topic: TopicId, start: Start = "all") -> Subscription:
        """Return a subscription to a topic; its ``async with`` block joins and leaves the ring.

        ``start="all"`` reads everything, stored publications first; ``"new"`` reads publications
        from now on; a datetime reads publications since then; a cursor continues at its position.
        ``"earliest"`` and ``"latest"`` are synonyms of ``"all"`` and ``"new"``. Raise CursorError
        if a cursor does not point into the data directory of this connection.
        """
        if not isinstance(topic, str):
            raise InputError(f"a topic is a text, not {type(topic).__name__}")
        try:
            check_topic(topic)
        except MessageError as error:
            raise InputError(str(error)) from None
        subscription = Subscription(self, topic, start)
        if self._is_connected:  # otherwise entering the block of the subscription fails anyway
            subscription.check_start()
        return subscription

    # -- for subscriptions -------------------------------------------------------------------

    @property
    def node(self) -> NodeHost:
        """Return the node; raise SkipringError outside of the block of the connection."""
        if self._node is None or not self._is_connected:
            raise SkipringError(NOT_CONNECTED)
        return self._node

    @property
    def tick_s(self) -> float:
        """Return the length of a tick."""
        return self._settings.tick_s

    @property
    def drain_s(self) -> float:
        """Return how long a subscription waits at its end until others have what it holds."""
        return self._settings.drain_s

    @property
    def store(self) -> PublicationStore | None:
        """Return the store, None if publications are in memory; raise SkipringError as ``node``."""
        if not self._is_connected:
            raise SkipringError(NOT_CONNECTED)
        return self._store

    def supervisor_of(self, topic: TopicId) -> Address:
        """Return the address of the supervisor of a topic."""
        return supervisor_of(topic, self._settings.supervisors)

    @property
    def is_failing_to_store(self) -> bool:
        """Return True if a commit has failed and uncommitted data remains."""
        return self.node.durability.error is not None

    def open(self, subscription: Subscription) -> Log:
        """Join the ring of a topic; return its log."""
        topic = subscription.topic
        if topic in self._subscriptions:
            raise InputError(f"already subscribed to {shown(topic)} over this connection")
        self.node.subscribe(topic)
        self._subscriptions[topic] = subscription
        machine = self.node.machine(topic)
        assert machine is not None, "a node that has subscribed has a machine"
        return machine.archive

    def on_drained(self, departure: Departure, *, is_alone: bool) -> None:
        """Count the publications of a topic that no other member has confirmed."""
        self._unconfirmed += departure.own_unconfirmed
        is_kept = is_alone and self._data_dir is not None
        if self.drain_s > 0 and not is_kept:
            self._in_doubt += departure.own_unconfirmed

    def on_left(self, subscription: Subscription) -> None:
        """Stop deliveries to a subscription."""
        self._subscriptions.pop(subscription.topic, None)

    def _deliver(self, topic: TopicId, delivery: Deliver) -> None:
        if topic in self._subscriptions:
            self._subscriptions[topic].on_deliver(delivery)

    def _on_in_sync(self, topic: TopicId, confirmed: PeerInSync) -> None:
        if topic in self._subscriptions:
            self._subscriptions[topic].on_confirmed(confirmed)

    async def _leave_all(self) -> None:
        """Leave the topics whose block is still open."""
        await asyncio.gather(*(each.leave() for each in list(self._subscriptions.values())))


# -- arguments of the application ------------------------------------------------------------


def connect(  # noqa: PLR0913  (each is named, and all but the first are optional)
    url: str | None = None,
    *,
    data_dir: str | Path | None = None,
    name: str | None = None,
    tick_s: float = 1.0,
    listen: str | None = None,
    advertise: str | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    drain_s: float = DRAIN_S,
) -> Connection:
    """Return a connection to a cluster, for use in ``async with``.

    ``url`` lists the supervisors: ``skipring://host:port[,host:port...]``, ``host:port`` or a port
    on loopback. Without it the connection uses SKIPRING_SUPERVISOR, the selected context or
    127.0.0.1:7400. With a data directory the node stores its name and all publications there;
    without one they are in memory. ``ca``, ``cert`` and ``key`` are files of ``skipring certs``;
    without them the node is restricted to loopback. When a subscription ends it waits, at most
    ``drain_s``, until another member has what it holds; 0 disables the wait. Raise InputError,
    which names the argument, for an argument that cannot be used.
    """
    if not _is_seconds(tick_s):
        raise InputError(
            f"expected a number of seconds above 0, got {tick_s!r}", parameter="tick_s"
        )
    if not _is_seconds(drain_s) and drain_s != 0:
        raise InputError(
            f"expected a number of seconds, 0 or more, got {drain_s!r}", parameter="drain_s"
        )
    if url is not None and not isinstance(url, str):
        raise InputError(f"expected a text, got {type(url).__name__}", parameter="url")
    directory = None if data_dir is None else Path(data_dir).expanduser()
    access = Access.resolve(url, ca=ca, cert=cert, key=key)
    credentials, is_secured = access.credentials(), access.is_secured
    if advertise is not None:
        split_address(advertise, "advertise", is_secured=is_secured)
        advertise = parse_address(advertise, "advertise")
    supervisors = access.supervisors
    host, port = _listen(listen, supervisors[0], is_secured=is_secured)
    if is_anywhere(host) and advertise is None:
        raise InputError(
            f"peers cannot dial {host}; give the address that they dial in advertise",
            parameter="listen",
        )
    settings = NodeSettings(
        supervisors=supervisors,
        tick_s=tick_s,
        flush_s=tick_s / FLUSHES_PER_TICK,
        advertised=advertise,
        credentials=credentials,
        drain_s=drain_s,
    )
    return Connection(
        settings,
        listen=(host, port),
        data_dir=directory,
        name=_name(name, directory, credentials),
    )


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < inf


def _listen(listen: str | None, supervisor: Address, *, is_secured: bool) -> tuple[str, int]:
    """Return the address to listen at: by default any port of the interface to the supervisor."""
    if listen is None:
        return local_host_towards(supervisor), 0
    return split_address(listen, "listen", is_secured=is_secured)


def _name(name: str | None, directory: Path | None, credentials: Credentials | None) -> NodeId:
    """Return the name of the node; empty if its data directory may contain it."""
    if name is not None:
        check_name(name, parameter="name")
        if credentials is not None and not may_act_as(credentials.name, name):
            raise IdentityError(
                f"the certificate is called {credentials.name}: the node may be called that, or "
                f"{credentials.name}.something, but not {name}"
            )
        return name
    if directory is not None:
        return credentials.name if credentials is not None else ""
    prefix = f"{credentials.name}." if credentials is not None else ""
    return prefix + secrets.token_hex(6)
