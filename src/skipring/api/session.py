"""Session of a connection: its node, its store, and the receivers of its topics."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from skipring.core.limits import check_name, shown
from skipring.core.log import Log
from skipring.core.peers import NodeId, TopicId
from skipring.errors import IdentityError, InputError, SkipringError
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
from skipring.node.settings import FLUSHES_PER_TICK, POLICY_DELAY_S, NodeSettings, node_id
from skipring.security.credentials import may_act_as
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import LogStore
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # reads certificates, which few processes need
    from skipring.security.credentials import Credentials

NOT_CONNECTED: Final = "not connected; use it inside `async with skipring.connect(...)`"

Leave = Callable[[], Awaitable[bool]]


class Session:
    """State of one connection, shared by the asynchronous and the blocking API."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        listen: tuple[str, int],
        data_dir: Path | None,
        name: NodeId,
    ) -> None:
        self.settings = settings
        self._name = name
        self._listen = listen
        self._data_dir = data_dir
        self._host: NodeHost | None = None
        self.rng = Random()  # of all topics: its state takes 2.5 KiB
        self._store: LogStore | None = None
        self._leaves: dict[TopicId, Leave] = {}  # how to leave each joined topic
        self._resources = AsyncExitStack()
        self._is_connected = False
        self._unconfirmed = 0  # own publications that no other member has confirmed
        self._in_doubt = 0  # the same without publications on the disk of a lone node

    @property
    def name(self) -> NodeId:
        """Return the name of the node; empty until connected if it is stored in the directory."""
        return self._name

    @property
    def is_connected(self) -> bool:
        """Return True from the end of ``open`` to the end of ``close``."""
        return self._is_connected

    @property
    def host(self) -> NodeHost:
        """Return the host of the node; raise SkipringError if it is not connected."""
        if self._host is None or not self._is_connected:
            raise SkipringError(NOT_CONNECTED)
        return self._host

    @property
    def store(self) -> LogStore | None:
        """Return the store, None if publications are in memory; raise as ``host`` does."""
        if not self._is_connected:
            raise SkipringError(NOT_CONNECTED)
        return self._store

    async def open(self) -> None:
        """Open the data directory and listen; raise SkipringError if it was open before."""
        if self._host is not None:
            raise SkipringError("this connection has been used; call skipring.connect again")
        async with AsyncExitStack() as resources:
            trace = None
            if self._data_dir is not None:
                self._name = node_id(self._data_dir, self._name or None)
                store = await opened(partial(LogStore.open, owner=self._name), self._data_dir)
                self._store = resources.enter_context(store)
                trace = await asyncio.to_thread(DeliveryLog.open, self._data_dir, store)
            self._host = NodeHost(
                self._name,
                self.settings,
                rng=self.rng,
                store=self._store,
                trace=trace,
            )
            resources.push_async_callback(self._host.close)
            try:
                await self._host.start(*self._listen)
            except OSError as error:
                why = why_not_listening(join_address(*self._listen), error)
                raise InputError(why, parameter="listen") from None
            resources.push_async_callback(self._leave_all)
            self._resources = resources.pop_all()
        self._is_connected = True

    async def close(self) -> int:
        """Leave all topics and stop; return how many publications no other member has confirmed.

        A second call does nothing.
        """
        try:
            await self._resources.aclose()
        finally:
            self._is_connected = False
        return self._unconfirmed

    async def _leave_all(self) -> None:
        """Leave the topics that are still subscribed."""
        await asyncio.gather(*(leave() for leave in list(self._leaves.values())))

    @property
    def doubt(self) -> str | None:
        """Return a warning about publications that may be lost; None if there are none."""
        if not self._in_doubt:
            return None
        count = f"publications that no other member has confirmed: {self._in_doubt}"
        if self._data_dir is None:
            return f"{count}; they were in memory and are lost"
        return f"{count}; they are in {self._data_dir} only, until a node starts with it again"

    # -- topics ------------------------------------------------------------------------------

    async def read_log(self, topic: TopicId) -> None:
        """Open the log of a topic in a thread if its files have to be read."""
        store = self.store
        if store is not None and store.is_unread(topic):
            await asyncio.to_thread(store.log, topic)

    def join(self, topic: TopicId, leave: Leave) -> Log:
        """Join the ring of a topic; return its log. Closing the session calls ``leave``."""
        if topic in self._leaves:
            raise InputError(
                f"already subscribed to {shown(topic)} over this connection", parameter="topic"
            )
        self.host.subscribe(topic)
        self._leaves[topic] = leave
        machine = self.host.machine(topic)
        assert machine is not None, "a node that has subscribed has a machine"
        return machine.replica.log

    def count_unconfirmed(self, departure: Departure, *, is_alone: bool) -> None:
        """Count the publications of a topic that no other member has confirmed."""
        self._unconfirmed += departure.own_unconfirmed
        is_kept = is_alone and self._data_dir is not None
        if self.settings.drain_s > 0 and not is_kept:
            self._in_doubt += departure.own_unconfirmed

    def remove(self, topic: TopicId) -> None:
        """Forget a topic that was left, and stop its deliveries."""
        self._leaves.pop(topic, None)
        if self._host is not None:
            self._host.detach(topic)

    def supervisor_of(self, topic: TopicId) -> Address:
        """Return the address of the supervisor of a topic."""
        return supervisor_of(topic, self.settings.supervisors)


# -- arguments of the application ------------------------------------------------------------


def new_session(  # noqa: PLR0913  (the parameters of skipring.connect)
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
    policy_delay_s: float = POLICY_DELAY_S,
) -> Session:
    """Return a session for the arguments of ``skipring.connect``; raise the same InputError."""
    _check_seconds(tick_s, "tick_s", " above 0", is_allowed=False)
    for value, parameter in ((drain_s, "drain_s"), (policy_delay_s, "policy_delay_s")):
        _check_seconds(value, parameter, ", 0 or more", is_allowed=value == 0)
    if url is not None and not isinstance(url, str):
        raise InputError(f"expected a text, got {type(url).__name__}", parameter="url")
    directory = None if data_dir is None else Path(data_dir).expanduser()
    access = Access.resolve(url, ca=ca, cert=cert, key=key)
    credentials, is_secured = access.credentials(), access.is_secured
    if advertise is not None:
        split_address(advertise, "advertise", is_secured=is_secured)
        advertise = parse_address(advertise, "advertise")
    host, port = _listen_address(listen, access.supervisors[0], is_secured=is_secured)
    _check_dialled(host, advertise)
    settings = NodeSettings(
        supervisors=access.supervisors,
        tick_s=tick_s,
        flush_s=tick_s / FLUSHES_PER_TICK,
        advertised=advertise,
        credentials=credentials,
        drain_s=drain_s,
        policy_delay_s=policy_delay_s,
    )
    node = _node_name(name, directory, credentials)
    return Session(settings, listen=(host, port), data_dir=directory, name=node)


def _check_dialled(host: str, advertise: str | None) -> None:
    """Raise InputError if peers have no address to dial."""
    if is_anywhere(host) and advertise is None:
        raise InputError(
            f"peers cannot dial {host}; give the address that they dial in advertise",
            parameter="listen",
        )


def _check_seconds(value: object, parameter: str, what: str, *, is_allowed: bool) -> None:
    """Raise InputError unless ``is_allowed`` or the value is a positive number of seconds."""
    if not is_allowed and not (isinstance(value, int | float) and 0 < value < inf):
        raise InputError(f"expected a number of seconds{what}, got {value!r}", parameter=parameter)


def _listen_address(
    listen: str | None, supervisor: Address, *, is_secured: bool
) -> tuple[str, int]:
    """Return the address to listen on: by default any port of the interface to the supervisor."""
    if listen is None:
        return local_host_towards(supervisor), 0
    return split_address(listen, "listen", is_secured=is_secured)


def _node_name(name: str | None, directory: Path | None, credentials: Credentials | None) -> NodeId:
    """Return the name of the node; empty if its data directory may contain it."""
    if name is not None:
        check_name(name, parameter="name")
        if credentials is not None and not may_act_as(credentials.name, name):
            raise IdentityError(
                f"the certificate is called {credentials.name}: the node may be called that, or "
                f"{credentials.name}.something, but not {name}",
                parameter="name",
            )
        return name
    if directory is not None:
        return credentials.name if credentials is not None else ""
    prefix = f"{credentials.name}." if credentials is not None else ""
    return prefix + secrets.token_hex(6)
