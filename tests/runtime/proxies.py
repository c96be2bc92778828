"""A network that can be cut: before each process stands a proxy that knows who calls whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum

from msgspec.structs import replace

from skipring.core.peers import SUPERVISOR, NodeId
from skipring.runtime.node import Node
from skipring.storage.publications import PublicationStore
from skipring.wire.framing import FrameReader
from skipring.wire.greeting import check_greeting
from skipring.wire.runtime_messages import Address
from tests.runtime.rings import LOOPBACK, LiveRing

CHUNK_BYTES = 1 << 16


class Cut(Enum):
    """What becomes of those who are cut off from each other."""

    RESET = "connections are reset, new ones refused"
    BLACKHOLE = "nothing passes, and nobody is told"


class Network:
    """Which pairs can talk to each other, and what they have open."""

    def __init__(self) -> None:
        self._is_cut: Callable[[NodeId, NodeId], bool] = lambda _, __: False
        self._kind = Cut.RESET
        self._lines: set[_Line] = set()
        self.refused = 0  # connections, or those on which nothing passes

    def cut(self, is_cut: Callable[[NodeId, NodeId], bool], kind: Cut) -> None:
        """Let nothing pass any more between some."""
        self._is_cut, self._kind = is_cut, kind
        for line in list(self._lines):
            if is_cut(line.caller, line.called):
                self._stop(line)

    def heal(self) -> None:
        """Let everything pass; also what was on its way."""
        self._is_cut = lambda _, __: False
        for line in self._lines:
            line.passes.set()

    def _stop(self, line: _Line) -> None:
        self.refused += 1
        line.passes.clear()
        if self._kind is Cut.RESET:
            line.abort()

    def add(self, line: _Line) -> None:
        """Somebody has called somebody."""
        self._lines.add(line)
        if self._is_cut(line.caller, line.called):
            self._stop(line)

    def remove(self, line: _Line) -> None:
        """The call is over."""
        self._lines.discard(line)


class _Line:
    """One connection through a proxy."""

    def __init__(self, caller: NodeId, called: NodeId, *ends: asyncio.StreamWriter) -> None:
        self.caller = caller
        self.called = called
        self.passes = asyncio.Event()
        self.passes.set()
        self._ends = ends

    def abort(self) -> None:
        """Reset both ends."""
        self.passes.set()  # for those who wait there to see it
        for end in self._ends:
            end.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes, while something passes at all."""
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                await self.passes.wait()
                writer.write(data)
                await writer.drain()
        await self.passes.wait()
        self.abort()


class Proxy:
    """Stands before one process."""

    def __init__(self, network: Network, name: NodeId) -> None:
        self._network = network
        self._name = name
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self.address: Address = ""
        self.target: Address = ""  # where the process itself listens

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._on_call, LOOPBACK, 0)
        self.address = f"{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    def _on_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # RuntimeError is uvloop's word for a transport that was closed while we waited.
            with suppress(ConnectionError, asyncio.IncompleteReadError, RuntimeError):
                await self._connect(reader, writer)
        finally:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller, said = await _first_words(reader)
        host, _, port = self.target.rpartition(":")
        back, forth = await asyncio.open_connection(host, int(port))
        line = _Line(caller, self._name, writer, forth)
        self._network.add(line)
        try:
            await line.passes.wait()
            forth.write(said)
            await asyncio.gather(line.pump(reader, forth), line.pump(back, writer))
        finally:
            self._network.remove(line)
            line.abort()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for task in list(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


async def _first_words(reader: asyncio.StreamReader) -> tuple[NodeId, bytes]:
    """Who calls, as its greeting says, and all that it has said so far."""
    frames, said = FrameReader(), b""
    while chunk := await reader.read(CHUNK_BYTES):
        said += chunk
        if found := frames.feed(chunk):
            return check_greeting(found[0]).node, said
    raise ConnectionResetError("gone without a greeting")


class ProxiedRing(LiveRing):
    """A ring in which everybody is reached through a proxy."""

    def __init__(self, tick_s: float) -> None:
        self.network = Network()
        self._proxies: list[Proxy] = []
        super().__init__(tick_s)

    async def _proxy(self, name: NodeId) -> Proxy:
        proxy = Proxy(self.network, name)
        self._proxies.append(proxy)
        await proxy.start()
        return proxy

    async def start(self) -> None:
        await super().start()
        proxy = await self._proxy(SUPERVISOR)
        proxy.target = self.supervisor.address
        self.settings = replace(self.settings, supervisors=(proxy.address,))

    async def join(self, name: NodeId, store: PublicationStore | None = None) -> Node:
        proxy = await self._proxy(name)
        self.settings = replace(self.settings, advertised=proxy.address)
        node = await super().join(name, store)
        proxy.target = node.address
        return node

    async def stop(self) -> None:
        await super().stop()
        for proxy in self._proxies:
            await proxy.stop()


@asynccontextmanager
async def proxied_ring(*names: NodeId, tick_s: float = 0.05) -> AsyncIterator[ProxiedRing]:
    ring = ProxiedRing(tick_s)
    await ring.start()
    try:
        for name in names:
            await ring.join(name)
        yield ring
    finally:
        await ring.stop()
