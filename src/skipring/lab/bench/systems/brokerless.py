"""Systems without a broker: Zenoh in peer mode, ZeroMQ PUB/SUB, and a bare relay as the floor."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, cast

from skipring.lab.bench.run import TOPIC, BenchRun
from skipring.lab.bench.worker import PublisherEndpoint, Receive, Subscribers
from skipring.lab.processes import STARTED_S, UNTIL_POLL_S
from skipring.net.addresses import LOOPBACK, split_address

RELAY_FILE: Final = "relay.log"
DRAINED_AT_ONCE: Final = 500  # Guess: after this many reads the other sockets get a turn.


# -- Zenoh: each subscriber has a session with the publisher ----------------------------------


class ZenohPublisher(PublisherEndpoint):
    """Publisher that listens, and blocks while a subscriber is slow."""

    async def connect(self) -> None:
        """Open the session to which all others connect."""
        import zenoh

        config = _zenoh_config(listen=[f"tcp/{self.run.address}"], connect=[])
        self._session = await asyncio.to_thread(zenoh.open, config)
        self._publisher = self._session.declare_publisher(
            TOPIC, congestion_control=zenoh.CongestionControl.BLOCK
        )

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish; Zenoh batches."""
        for payload in payloads:
            self._publisher.put(payload)


class ZenohSubscribers(Subscribers):
    """Sessions whose callbacks run in threads of Zenoh."""

    async def connect(self) -> None:
        """Open the sessions one at a time."""
        import zenoh

        lock, self._open = Lock(), []
        for receive in self.receivers:
            config = _zenoh_config(listen=[], connect=[f"tcp/{self.run.address}"])
            session = await asyncio.to_thread(zenoh.open, config)
            handler = _zenoh_handler(receive, lock)
            self._open.append((session, session.declare_subscriber(TOPIC, handler)))


def _zenoh_handler(receive: Receive, lock: Lock) -> Callable[[Any], None]:
    def on_sample(sample: Any) -> None:
        payload = sample.payload.to_bytes()
        with lock:
            receive(payload)

    return on_sample


def _zenoh_config(*, listen: list[str], connect: list[str]) -> Any:
    import zenoh

    config = zenoh.Config()
    for name, value in (
        ("mode", "peer"),
        ("scouting/multicast/enabled", False),
        ("scouting/gossip/enabled", False),
        ("listen/endpoints", listen),
        ("connect/endpoints", connect),
    ):
        config.insert_json5(name, json.dumps(value))
    return config


# -- ZeroMQ: plain sockets drained by the loop, and zmq.asyncio -------------------------------


class ZeromqPublisher(PublisherEndpoint):
    """Publisher with one PUB socket without a limit."""

    async def connect(self) -> None:
        """Listen."""
        import zmq

        self._socket = zmq.Context().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(f"tcp://{self.run.address}")

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish; threads of ZeroMQ batch and write."""
        for payload in payloads:
            self._socket.send(payload)


class ZeromqSubscribers(Subscribers):
    """Plain sockets, read until empty when the loop reports them readable."""

    async def connect(self) -> None:
        """Connect and subscribe."""
        import zmq

        context, loop = zmq.Context(), asyncio.get_running_loop()
        self._sockets = []
        for receive in self.receivers:
            socket = _zeromq_socket(context, self.run)
            drain = _zeromq_drain(socket, receive)
            loop.add_reader(socket.getsockopt(zmq.FD), drain)
            loop.call_soon(drain)  # the loop does not report messages that arrived earlier
            self._sockets.append(socket)


class ZeromqAsyncioPublisher(ZeromqPublisher):
    """Same publisher, for subscribers that use zmq.asyncio."""


class ZeromqAsyncioSubscribers(Subscribers):
    """Sockets of zmq.asyncio with one reading task each."""

    async def connect(self) -> None:
        """Connect and subscribe."""
        from zmq.asyncio import Context

        context = Context()
        self._tasks = [
            asyncio.create_task(_read_zeromq(_zeromq_socket(context, self.run), receive))
            for receive in self.receivers
        ]


def _zeromq_socket(context: Any, run: BenchRun) -> Any:
    import zmq

    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(f"tcp://{run.address}")
    socket.subscribe(b"")
    return socket


def _zeromq_drain(socket: Any, receive: Receive) -> Callable[[], None]:
    import zmq

    read, is_empty, at_once, loop = socket.recv, zmq.Again, zmq.NOBLOCK, asyncio.get_running_loop()

    def drain() -> None:
        try:
            for _ in range(DRAINED_AT_ONCE):
                receive(read(at_once))
        except is_empty:
            return
        loop.call_soon(drain)

    return drain


async def _read_zeromq(socket: Any, receive: Receive) -> None:
    while True:
        receive(await socket.recv())


# -- bare relay: the tree of a ring without its protocol --------------------------------------

# It costs one sync, the sockets and the event loop. It is not a usable system: members check, store
# and repair nothing, and only the publisher writes to disk.

_sync: Final = getattr(os, "fdatasync", os.fsync)  # not on every platform


def parent_of(number: int) -> int:
    """Return the parent of a member; the publisher is 0, distances are those of a ring's tree.

    >>> [parent_of(number) for number in range(1, 9)]
    [0, 0, 1, 0, 1, 2, 3, 0]
    """
    return number ^ (1 << (number.bit_length() - 1))


class RelayChild(asyncio.Protocol):
    """Connection to a member that receives everything."""

    def __init__(self, children: list[asyncio.WriteTransport]) -> None:
        self._children = children

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the publisher's or member's children."""
        self._children.append(cast("asyncio.WriteTransport", transport))


class RelayMember(asyncio.Protocol):
    """Member that forwards bytes as they arrive and hands them to a reading task."""

    def __init__(self, size: int) -> None:
        self.children: list[asyncio.WriteTransport] = []
        self._size = size
        self._data: list[bytes] = []
        self._arrived = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Forward bytes from the parent."""
        for transport in self.children:
            transport.write(data)
        self._data.append(data)
        self._arrived.set()

    async def read(self, receive: Receive) -> None:
        """Deliver each payload; all have one size, and TCP may split them anywhere."""
        size = self._size
        while await self._arrived.wait():
            self._arrived.clear()
            data = self._data[0] if len(self._data) == 1 else b"".join(self._data)
            end = len(data) - len(data) % size
            for start in range(0, end, size):
                receive(data[start : start + size])
            self._data = [data[end:]] if end < len(data) else []


class RelayPublisher(PublisherEndpoint):
    """Publisher that writes to a file, syncs it, and sends to its children."""

    async def connect(self) -> None:
        """Listen."""
        self._children: list[asyncio.WriteTransport] = []
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.run.directory / RELAY_FILE, flags, 0o600)
        host, port = split_address(self.run.address, "the relay", is_secured=False)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: RelayChild(self._children), host, port)

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish payloads once they are on disk."""
        data = b"".join(payloads)
        await asyncio.get_running_loop().run_in_executor(None, self._store, data)
        for transport in self._children:
            transport.write(data)

    def _store(self, data: bytes) -> None:
        os.write(self._file, data)
        _sync(self._file)


class RelaySubscribers(Subscribers):
    """Members, each connected to its parent and children."""

    async def connect(self) -> None:
        """Listen, and connect each member to its parent."""
        members = [RelayMember(self.run.size) for _ in self.receivers]
        self._servers = [await _listening(member) for member in members]
        addresses = [self.run.address, *map(_address_of, self._servers)]
        for number, member in enumerate(members, 1):
            await _connect(member, addresses[parent_of(number)])
        self._tasks = [
            asyncio.create_task(member.read(receive))
            for member, receive in zip(members, self.receivers, strict=True)
        ]


async def _listening(member: RelayMember) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: RelayChild(member.children), LOOPBACK, 0)


async def _connect(member: RelayMember, parent: str) -> None:
    """Connect to the parent; retry, since the publisher may not listen yet."""
    loop = asyncio.get_running_loop()
    host, port = split_address(parent, "the relay", is_secured=False)
    async with asyncio.timeout(STARTED_S):
        while True:
            try:
                await loop.create_connection(lambda: member, host, port)
            except ConnectionRefusedError:
                await asyncio.sleep(UNTIL_POLL_S)
            else:
                return


def _address_of(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"
