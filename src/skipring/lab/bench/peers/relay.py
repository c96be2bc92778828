"""A bare relay: a tree of sockets as ours has one, and nothing of what ours does besides.

What it takes is taken by the sync, the sockets and the loop. It is no system that anybody could
use: whatever comes is believed, nothing is kept but by the publisher, nothing that is lost comes
again. It shows how much of a figure of ours can be ours at all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final, cast

from skipring.lab.bench.peers.run import POLL_S, READY_S, BenchRun, Publisher, Receive, Subscribers
from skipring.net.addresses import split_address

FILE: Final = "relay.log"
LOOPBACK: Final = "127.0.0.1"

_sync: Final = getattr(os, "fdatasync", os.fsync)  # not everywhere


def parent_of(number: int) -> int:
    """Who is above a member, as far from the publisher, which is 0, as in the tree of a ring.

    >>> [parent_of(number) for number in range(1, 9)]
    [0, 0, 1, 0, 1, 2, 3, 0]
    """
    return number ^ (1 << (number.bit_length() - 1))


class RelayBelow(asyncio.Protocol):
    """A connection to somebody to whom all is passed on."""

    def __init__(self, below: list[asyncio.WriteTransport]) -> None:
        self._below = below

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where it goes."""
        self._below.append(cast("asyncio.WriteTransport", transport))


class RelayMember(asyncio.Protocol):
    """A member: passes on what comes, as it comes, and hands it to a task that reads."""

    def __init__(self, size: int) -> None:
        self.below: list[asyncio.WriteTransport] = []
        self._size = size
        self._came: list[bytes] = []
        self._arrived = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Something has come from above."""
        for transport in self.below:
            transport.write(data)
        self._came.append(data)
        self._arrived.set()

    async def read(self, receive: Receive) -> None:
        """Hand over every payload; they are of one size, and may be cut anywhere on their way."""
        size = self._size
        while await self._arrived.wait():
            self._arrived.clear()
            data = self._came[0] if len(self._came) == 1 else b"".join(self._came)
            end = len(data) - len(data) % size
            for start in range(0, end, size):
                receive(data[start : start + size])
            self._came = [data[end:]] if end < len(data) else []


class RelayPublisher(Publisher):
    """Writes what it publishes to a file, syncs it, and sends it to those below."""

    async def connect(self) -> None:
        """Listen."""
        self._below: list[asyncio.WriteTransport] = []
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.run.directory / FILE, flags, 0o600)
        host, port = split_address(self.run.address, "the relay", is_secured=False)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: RelayBelow(self._below), host, port)

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these, once they are durable."""
        data = b"".join(payloads)
        await asyncio.get_running_loop().run_in_executor(None, self._store, data)
        for transport in self._below:
            transport.write(data)

    def _store(self, data: bytes) -> None:
        os.write(self._file, data)
        _sync(self._file)


class RelaySubscribers(Subscribers):
    """Members, each connected to the one above it and to those below."""

    async def connect(self) -> None:
        """Listen, and connect to whoever is above."""
        members = [RelayMember(self.run.size) for _ in self.receivers]
        self._servers = [await _listening(member) for member in members]
        addresses = [self.run.address, *map(_address_of, self._servers)]
        for number, member in enumerate(members, 1):
            await _connect(member, addresses[parent_of(number)])
        self._reading = [
            asyncio.create_task(member.read(receive))
            for member, receive in zip(members, self.receivers, strict=True)
        ]


async def _listening(member: RelayMember) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: RelayBelow(member.below), LOOPBACK, 0)


async def _connect(member: RelayMember, above: str) -> None:
    """Connect to whoever is above: the publisher may not listen yet."""
    loop = asyncio.get_running_loop()
    host, port = split_address(above, "the relay", is_secured=False)
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


def publisher(run: BenchRun) -> Publisher:
    """The process that publishes."""
    return RelayPublisher(run)


def subscribers(run: BenchRun, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    return RelaySubscribers(run, receivers)
