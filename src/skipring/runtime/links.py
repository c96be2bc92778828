"""Links: one connection to each peer, shared by all topics, dialled on demand.

Sending only queues, with a bound: a slow or absent peer never holds a machine up. What does not fit
is dropped and counted; the protocol is made for channels that lose messages, and what was published
comes by repair.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, cast

from skipring.core.peers import SUPERVISOR, NodeId
from skipring.errors import GreetingError, WireError
from skipring.runtime.addresses import AddressBook
from skipring.wire.codec import Envelope, decode
from skipring.wire.framing import Frame, FrameReader
from skipring.wire.greeting import Greeting, Role, check_greeting, encode_greeting
from skipring.wire.runtime_messages import Address, WireMessage

QUEUE_BYTES_MAX: Final = 4 << 20  # Our guess: what a slow peer may have waiting.
LINKS_MAX: Final = 4096  # Limit of ours: connections that others have opened.
GREETING_S: Final = 5.0  # Our guess: who says nothing for so long does not want to talk.
DIAL_S: Final = 5.0
CLOSE_S: Final = 0.5  # Our guess: what a peer that reads needs for what is written.
BACK_OFF_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0

Receiver = Callable[[NodeId, Envelope[WireMessage]], None]


class Links:
    """All connections of one process."""

    def __init__(
        self, greeting: Greeting, book: AddressBook, receive: Receiver, rng: Random
    ) -> None:
        self.counts: Counter[str] = Counter()  # of what was dropped, and why
        self.greeting = greeting
        self.book = book
        self.receive = receive
        self.rng = rng
        self._peers: dict[NodeId, _Peer] = {}
        self.connections: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self.is_closed = False
        self._emptied: asyncio.Future[None] | None = None

    async def listen(self, host: str, port: int) -> Address:
        """Accept connections; return where, and say so in greetings from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self, None), host, port)
        bound = self._server.sockets[0].getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        address = f"{shown}:{bound[1]}"
        self.greeting = Greeting(node=self.greeting.node, address=address, role=self.greeting.role)
        return address

    def send(self, to: NodeId, frame: bytes) -> None:
        """Queue a frame for a node that we have a link to, or an address of."""
        self.peer(to).queue(frame)

    def send_to_supervisor(self, address: Address, frame: bytes) -> None:
        """Queue a frame for the supervisor at an address."""
        self.peer(f"{SUPERVISOR}@{address}", address).queue(frame)

    async def close(self) -> None:
        """Stop listening, send what is queued if that is quick, and close every connection."""
        self.is_closed = True
        if self._server is not None:
            self._server.close()
        dialling = [task for peer in list(self._peers.values()) if (task := peer.close())]
        if dialling:
            await asyncio.wait(dialling)
        for link in list(self.connections):
            link.close()
        await self._drain()
        for link in list(self.connections):
            link.abort()
        await asyncio.sleep(0)  # let transports say that they are closed
        if self._server is not None:
            await self._server.wait_closed()

    async def _drain(self) -> None:
        """Wait until all connections are closed, but not for one that does not read."""
        if self.connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=CLOSE_S)

    def on_lost(self, link: _Link) -> None:
        """A connection is gone."""
        self.connections.discard(link)
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)

    def forget(self, name: NodeId, peer: _Peer) -> None:
        """A node has no link, nothing waits for it, and it was not in vain that we called."""
        if self._peers.get(name) is peer:
            del self._peers[name]

    def peer(self, name: NodeId, address: Address | None = None) -> _Peer:
        """The queue of a node, made when it is first needed."""
        if name not in self._peers:
            self._peers[name] = _Peer(self, name, address)
        return self._peers[name]


class _Peer:
    """What waits for one node, and the link it goes over."""

    def __init__(self, links: Links, name: NodeId, address: Address | None) -> None:
        self._links = links
        self._name = name
        self._address = address  # of a supervisor; a node's is looked up
        self._waiting: list[bytes] = []
        self._size = 0
        self._is_scheduled = False
        self._dialling: asyncio.Task[None] | None = None
        self._failures = 0
        self.link: _Link | None = None

    def queue(self, frame: bytes) -> None:
        """Keep a frame until the loop comes round: one write carries all that was said by then."""
        if self._links.is_closed:
            self._links.counts["closed"] += 1
            return
        if self._size + len(frame) > QUEUE_BYTES_MAX:
            self._links.counts["queue full"] += 1
            return
        self._waiting.append(frame)
        self._size += len(frame)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what waits, or dial."""
        self._is_scheduled = False
        if self.link is not None:
            if self._waiting and self.link.can_write:
                self.link.write(b"".join(self._waiting))
                self._waiting.clear()
                self._size = 0
        elif self._waiting and self._dialling is None and not self._links.is_closed:
            address = self._address or self._links.book.find(self._name)
            if address:
                self._dialling = asyncio.get_running_loop().create_task(self._dial(address))
            else:
                self._drop("no address")

    async def _dial(self, address: Address) -> None:
        links, loop = self._links, asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        try:
            if self._failures:  # full jitter: those who lost the same peer do not come at once
                limit = min(BACK_OFF_S * 2**self._failures, BACK_OFF_MAX_S)
                await asyncio.sleep(links.rng.uniform(0, limit))
            async with asyncio.timeout(DIAL_S):
                _, link = await loop.create_connection(
                    lambda: _Link(links, self), host.strip("[]"), int(port)
                )
            await link.settled.wait()
            is_reached = link.is_greeted
        except (OSError, TimeoutError, UnicodeError):  # UnicodeError: a name that is none
            is_reached = False
        finally:
            self._dialling = None
        if not is_reached and self.link is None:
            self._failures = min(self._failures + 1, 16)
            if links.book.find(self._name) == address:
                links.book.doubt(self._name)
            self._drop("cannot connect")

    def on_link(self, link: _Link) -> None:
        """There is a link that has greeted; the newest one is used."""
        self.link = link
        self._failures = 0
        self.flush()

    def is_called(self, node: NodeId) -> bool:
        """True if whoever greets us so is the one we dialled."""
        return node == (SUPERVISOR if self._address is not None else self._name)

    def on_lost(self, link: _Link) -> None:
        """A link is gone; what waits needs another one."""
        if self.link is link:
            self.link = None
            self.flush()
        self._forget_if_idle()

    def _forget_if_idle(self) -> None:
        if not (self.link or self._waiting or self._dialling or self._failures):
            self._links.forget(self._name, self)

    def _drop(self, reason: str) -> None:
        self._links.counts[reason] += len(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._forget_if_idle()

    def close(self) -> asyncio.Task[None] | None:
        """Write what waits, if there is a link; dial no more."""
        if self.link is not None:
            self.flush()
        if self._dialling is not None:
            self._dialling.cancel()
        return self._dialling


class _Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, links: Links, dialled_for: _Peer | None) -> None:
        self._links = links
        self._peer = dialled_for
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._sender: NodeId | None = None  # known from the greeting on
        self._deadline: asyncio.TimerHandle | None = None
        self.can_write = True
        self.is_dialled = dialled_for is not None
        self.is_greeted = False
        self._is_refused = False
        self.settled = asyncio.Event()  # greeted, or lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who we are, and expect the same."""
        self._transport = cast("asyncio.Transport", transport)
        links = self._links
        links.connections.add(self)
        accepted = sum(not link.is_dialled for link in links.connections)
        if not self.is_dialled and accepted > LINKS_MAX:
            self._refuse("too many connections")
            return
        self._transport.write(encode_greeting(links.greeting))
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(GREETING_S, self._refuse, "no greeting")

    def data_received(self, data: bytes) -> None:
        """Cut into frames, and hand over what they hold."""
        try:
            for frame in self._reader.feed(data):
                if self._is_refused:
                    break
                self._take(frame)
        except WireError as error:
            self._refuse(type(error).__name__)

    def _take(self, frame: Frame) -> None:
        if self._sender is None:
            self._on_greeting(check_greeting(frame))
            return
        envelope = decode(frame)
        self._links.book.hear(envelope.hints)
        self._links.receive(self._sender, envelope)

    def _on_greeting(self, greeting: Greeting) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        is_supervisor = greeting.role is Role.SUPERVISOR
        if is_supervisor != (greeting.node == SUPERVISOR):
            raise GreetingError("only a supervisor is called so")
        self._sender = SUPERVISOR if is_supervisor else greeting.node
        if self._peer is not None and not self._peer.is_called(self._sender):
            self._refuse("stranger")  # somebody else lives at that address now
            return
        if not is_supervisor:
            self._links.book.greet(greeting.node, greeting.address)
        self._attach(self._peer if self._peer is not None else self._links.peer(greeting.node))

    def _attach(self, peer: _Peer) -> None:
        self._peer = peer
        self.is_greeted = True
        self.settled.set()
        peer.on_link(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; the next frame dials again."""
        del exc
        if self._deadline is not None:
            self._deadline.cancel()
        self.settled.set()
        self._links.on_lost(self)
        if self._peer is not None:
            self._peer.on_lost(self)

    def pause_writing(self) -> None:
        """The other side reads more slowly than we write: let the bounded queue wait."""
        self.can_write = False

    def resume_writing(self) -> None:
        """It has caught up."""
        self.can_write = True
        if self._peer is not None:
            self._peer.flush()

    def write(self, data: bytes) -> None:
        """Hand bytes to the socket."""
        if self._transport is not None:
            self._transport.write(data)

    def _refuse(self, reason: str) -> None:
        self._links.counts[reason] += 1
        self._is_refused = True
        self.abort()

    def close(self) -> None:
        """Close the connection once what was written is out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
