"""Bare relay, the floor of the measurements: the tree of a ring without its protocol.

Its cost is that of one sync, the sockets and the event loop. It is not a usable system: members
check, store and repair nothing; only the publisher writes to disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final, cast

from skipring.lab.bench.run import POLL_S, READY_S
from skipring.lab.bench.worker import Publisher, Receive, Subscribers
from skipring.net.addresses import split_address

FILE: Final = "relay.log"
LOOPBACK: Final = "127.0.0.1"

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
        """Add the connection to those that are written to."""
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


class RelayPublisher(Publisher):
    """Publisher that writes to a file, syncs it, and sends to its children."""

    async def connect(self) -> None:
        """Listen."""
        self._children: list[asyncio.WriteTransport] = []
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.run.directory / FILE, flags, 0o600)
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
    async with asyncio.timeout(READY_S):
        while True:
            try:
                await loop.create_connection(lambda: member, host, port)
            except ConnectionRefusedError:
                await asyncio.sleep(POLL_S)
            else:
                return


def _address_of(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"
