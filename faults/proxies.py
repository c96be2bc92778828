"""Network that can be cut in one direction or both, with a proxy in front of each process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from threading import Thread
from typing import Final, Self

from skipring.core.peers import NodeId
from skipring.wire.framing import FrameReader
from skipring.wire.handshake import check_greeting
from skipring.wire.rpc import Address

LOOPBACK: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 16

IsCut = Callable[[NodeId, NodeId], bool]  # called with sender and receiver


class Cut(Enum):
    """Behaviour of a connection that is cut."""

    RESET = "connections are reset, new ones refused"
    BLACKHOLE = "nothing passes, and neither side is notified"


class ProxyNetwork:
    """Pairs of sender and receiver that are cut, and the open connections."""

    def __init__(self) -> None:
        self._is_cut: IsCut = lambda _, __: False
        self._kind = Cut.RESET
        self._lines: set[_Line] = set()
        self.refused = 0  # connections that were cut, or opened during a cut

    def cut(self, is_cut: IsCut, kind: Cut) -> None:
        """Block all bytes from some senders to some receivers."""
        self._is_cut, self._kind = is_cut, kind
        for line in list(self._lines):
            self._apply(line)

    def heal(self) -> None:
        """Remove all cuts and deliver the bytes that were held back."""
        self._is_cut = lambda _, __: False
        for line in self._lines:
            line.forth.set()
            line.back.set()

    def _apply(self, line: _Line) -> None:
        is_cut_forth = self._is_cut(line.caller, line.called)
        is_cut_back = self._is_cut(line.called, line.caller)
        if not (is_cut_forth or is_cut_back):
            return
        self.refused += 1
        if self._kind is Cut.RESET:
            line.abort()
            return
        if is_cut_forth:
            line.forth.clear()
        if is_cut_back:
            line.back.clear()

    def add(self, line: _Line) -> None:
        """Record an open connection."""
        self._lines.add(line)
        self._apply(line)

    def remove(self, line: _Line) -> None:
        """Forget a connection that has ended."""
        self._lines.discard(line)


class _Line:
    """Connection through a proxy."""

    def __init__(self, caller: NodeId, called: NodeId, *ends: asyncio.StreamWriter) -> None:
        self.caller = caller
        self.called = called
        self.forth = asyncio.Event()  # set while bytes pass from the caller
        self.back = asyncio.Event()  # set while bytes pass to the caller
        self.forth.set()
        self.back.set()
        self._ends = ends

    def abort(self) -> None:
        """Reset both ends."""
        self.forth.set()  # wakes the waiting pumps
        self.back.set()
        for end in self._ends:
            end.transport.abort()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        """Forward bytes while the gate is open."""
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                await gate.wait()
                writer.write(data)
                await writer.drain()
        await gate.wait()
        self.abort()


class Proxy:
    """Proxy in front of one process."""

    def __init__(self, network: ProxyNetwork, name: NodeId) -> None:
        self._network = network
        self._name = name
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self.address: Address = ""
        self._target: Address = ""  # where the process itself listens

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._on_call, LOOPBACK, 0)
        self.address = f"{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    def forward_to(self, target: Address) -> None:
        """Set the address of the process to forward to."""
        self._target = target

    def _on_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # uvloop raises RuntimeError for a transport that was closed meanwhile.
            with suppress(OSError, asyncio.IncompleteReadError, RuntimeError):
                await self._connect(reader, writer)
        finally:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller, received = await _read_greeting(reader)
        if not self._target:
            raise ConnectionRefusedError("the process has not printed its address yet")
        host, _, port = self._target.rpartition(":")
        back, forth = await asyncio.open_connection(host, int(port))
        line = _Line(caller, self._name, writer, forth)
        self._network.add(line)
        try:
            await line.forth.wait()
            forth.write(received)
            await asyncio.gather(
                line.pump(reader, forth, line.forth), line.pump(back, writer, line.back)
            )
        finally:
            self._network.remove(line)
            line.abort()

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for task in list(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


async def _read_greeting(reader: asyncio.StreamReader) -> tuple[NodeId, bytes]:
    """Return the caller that a greeting names, and all bytes read so far."""
    frames, received = FrameReader(), b""
    while chunk := await reader.read(CHUNK_BYTES):
        received += chunk
        if found := frames.feed(chunk):
            return check_greeting(found[0]).node, received
    raise ConnectionResetError("closed before the greeting")


class ProxiedNetwork:
    """Proxies of several processes, in a thread of their own, inside a ``with`` block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxies")
        self._network = ProxyNetwork()
        self._proxies: dict[NodeId, Proxy] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies.values():
            self._call(proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def listen(self, name: NodeId) -> Address:
        """Start a proxy for a process that is not running yet; return the proxy's address."""
        proxy = self._proxies[name] = Proxy(self._network, name)
        self._call(proxy.start())
        return proxy.address

    def forward_to(self, name: NodeId, address: Address) -> None:
        """Make the proxy of a process forward to the address at which the process listens."""
        self._proxies[name].forward_to(address)

    def cut(self, is_cut: IsCut, kind: Cut) -> None:
        """Block all bytes from some senders to some receivers."""
        self._call(self._run(lambda: self._network.cut(is_cut, kind)))

    def heal(self) -> None:
        """Remove all cuts."""
        self._call(self._run(self._network.heal))

    @staticmethod
    async def _run(call: Callable[[], None]) -> None:
        call()
