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
from typing import TYPE_CHECKING, Final

from skipring.core.peers import SUPERVISOR, NodeId
from skipring.runtime.addresses import AddressBook, is_loopback, join_address, supervisor_at
from skipring.runtime.link import HANDSHAKE_REASONS, Link, trouble
from skipring.runtime.logs import Rarely, logger
from skipring.runtime.securing import TROUBLES, Doors, dial
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.greeting import Greeting, Role, encode_greeting
from skipring.wire.runtime_messages import Address, WireMessage

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.runtime.credentials import Credentials

QUEUE_BYTES_MAX: Final = 4 << 20  # Our guess: what a slow peer may have waiting.
BEHIND_BYTES: Final = 1 << 20  # Our guess: as much as one answer of a repair brings.
LINKS_MAX: Final = 4096  # Limit of ours: connections that others have opened.
CLOSE_S: Final = 0.5  # Our guess: what a peer that reads needs for what is written.
BACK_OFF_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0
CLIENTS: Final = "client/"  # how the names of all clients begin
CROSSING_S: Final = 1.0  # Our guess: two who dial each other at once do so within it.
DIALLING_MAX: Final = 256  # Limit of ours: others can name as many nodes as they like.
GRUDGES_MAX: Final = 1024  # Limit of ours: whom we could not reach.
SPARE_S: Final = 10.0  # Our guess: a second link to somebody that is not used so long can go.
IDLE_S: Final = 60.0  # Our guess: neighbours talk once a tick, so these are none any more.
GRUDGE_S: Final = 60.0  # Our guess: then we forget that somebody could not be reached.

Receiver = Callable[[NodeId, Envelope[WireMessage], Frame], None]

_LOG: Final = logger("links")


def _ignore(_: NodeId) -> None:
    """Nobody waits for an answer."""


class Links:
    """All connections of one process."""

    def __init__(
        self,
        greeting: Greeting,
        book: AddressBook,
        receive: Receiver,
        rng: Random,
        *,
        credentials: Credentials | None = None,
        dials: bool = True,
    ) -> None:
        self.counts: Counter[str] = Counter()  # of what was dropped, and why
        self.on_silent: Callable[[NodeId], None] = _ignore  # who may not have got what we sent
        self.bytes_received = 0
        self.bytes_sent = 0
        self.frames_received = 0
        self.frames_sent = 0
        self.book = book
        self._receive = receive
        self.rng = rng
        self.credentials = credentials
        self.dials = dials  # False for a supervisor: who wants something of it, keeps a link to it
        self.connections: set[Link] = set()
        self.is_closed = False
        self._greeting = greeting
        self._peers: dict[NodeId, _Peer] = {}
        self._grudges: dict[NodeId, _Peer] = {}
        self._accepted = 0
        self.dialling = 0  # how many we dial at this moment
        self._doors = Doors(self)
        self._emptied: asyncio.Future[None] | None = None
        self._gathering: list[_Peer] | None = None  # whom something is said, while we react
        self._rarely = Rarely(_LOG)

    async def listen(self, host: str, port: int, advertised: Address | None = None) -> Address:
        """Accept connections; return where, and say so in greetings from now on.

        Others may have to use another address than we do: it is the advertised one that they hear.
        """
        bound = await self._doors.open(host, port)
        address = join_address(*bound)
        name, role = self._greeting.node, self._greeting.role
        self._greeting = Greeting(node=name, address=advertised or address, role=role)
        return address

    def send(self, to: NodeId, frame: bytes) -> None:
        """Queue a frame for a node that we have a link to, or an address of."""
        self.peer(to).queue(frame)

    def send_to_supervisor(self, address: Address, frame: bytes) -> None:
        """Queue a frame for the supervisor at an address."""
        self.peer(supervisor_at(address), address).queue(frame)

    def is_behind(self, name: NodeId) -> bool:
        """True if somebody has yet to read much of what we sent."""
        return name in self._peers and self._peers[name].waiting_bytes > BEHIND_BYTES

    def is_linked(self, name: NodeId) -> bool:
        """True if there is a link to somebody, over which both have greeted."""
        return name in self._peers and self._peers[name].link is not None

    def sweep(self) -> None:
        """Close links that nobody needs, and forget whom we could not reach; once a tick."""
        now = asyncio.get_running_loop().time()
        for peer in list(self._peers.values()):
            peer.sweep(now)

    async def close(self) -> None:
        """Stop listening, send what is queued if that is quick, and close every connection."""
        self.is_closed = True
        self._doors.close()
        dialling = [task for peer in list(self._peers.values()) if (task := peer.close())]
        if dialling:
            await asyncio.wait(dialling)
        for link in list(self.connections):
            link.close()
        await self._drain()
        for link in list(self.connections):
            link.abort()
        await self._doors.closed()

    async def _drain(self) -> None:
        """Wait until all connections are closed, but not for one that does not read."""
        if self.connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=CLOSE_S)

    def bear_a_grudge(self, peer: _Peer) -> None:
        """Somebody could not be reached; of too many the first are forgiven."""
        self._grudges.pop(peer.name, None)
        self._grudges[peer.name] = peer
        if len(self._grudges) > GRUDGES_MAX:
            self._grudges.pop(next(iter(self._grudges))).forgive()

    def forget(self, name: NodeId, peer: _Peer) -> None:
        """A node has no link, nothing waits for it, and it was not in vain that we called."""
        if self._peers.get(name) is peer:
            del self._peers[name]
        if self._grudges.get(name) is peer:
            del self._grudges[name]

    def peer(self, name: NodeId, address: Address | None = None) -> _Peer:
        """The queue of a node, made when it is first needed."""
        found = self._peers.get(name)
        if found is None:
            found = self._peers[name] = _Peer(self, name, address)
        return found

    # -- for a link --------------------------------------------------------------------------

    @property
    def greeting_frame(self) -> bytes:
        """What we say first."""
        return encode_greeting(self._greeting)

    @property
    def node(self) -> NodeId:
        """As what we greet."""
        return self._greeting.node

    @property
    def is_secured(self) -> bool:
        """True if whoever talks to us has to show a certificate."""
        return self.credentials is not None

    def admit(self, link: Link) -> bool:
        """A connection is there; False if there are too many."""
        self.connections.add(link)
        self._accepted += not link.is_dialled
        return not self.is_closed and (link.is_dialled or self._accepted <= LINKS_MAX)

    def welcome(self, greeting: Greeting) -> _Peer:
        """Somebody who has dialled us has greeted: its queue."""
        if greeting.role is Role.CLIENT:  # no node can have such a name, nor get its answers
            return self.peer(f"{CLIENTS}{greeting.node}")
        known = self.book.find(greeting.node)
        if self.is_linked(greeting.node) and known not in (None, greeting.address):
            # Restarted just now, or two that should have names of their own.
            self._rarely.warn(
                "two nodes of one name", reason=greeting.node, address=greeting.address
            )
        self.book.greet(greeting.node, greeting.address)
        return self.peer(greeting.node)

    def receive(self, sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
        """A message has come, in a frame."""
        self.frames_received += 1
        if envelope.hints and not sender.startswith(CLIENTS):
            self.book.hear(envelope.hints)
        self._receive(sender, envelope, frame)

    def gather(self) -> None:
        """Keep what is said from now on for ``write_gathered``."""
        self._gathering = []

    def write_gathered(self) -> None:
        """Write what was said since ``gather``, to each in one piece."""
        gathered, self._gathering = self._gathering, None
        for peer in gathered or ():
            peer.flush()

    def schedule(self, peer: _Peer) -> None:
        """Something waits for a node: it is written once we have reacted to what has come.

        At the next turn of the loop, if it is for another reason that we said it.
        """
        if self._gathering is not None:
            self._gathering.append(peer)
        else:
            asyncio.get_running_loop().call_soon(peer.flush)

    def on_lost(self, link: Link) -> None:
        """A connection is gone."""
        if link not in self.connections:
            return
        self.connections.discard(link)
        self._accepted -= not link.is_dialled
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)

    def refuse(self, reason: str, link: Link, detail: str = "") -> None:
        """A connection is dropped; count it and say so."""
        self.complain("connection refused", reason, link.address, detail)

    def complain(self, what: str, reason: str, address: str, detail: str = "") -> None:
        """Count what went wrong with somebody, and say so now and then."""
        self.counts[reason] += 1
        kind = detail if reason in HANDSHAKE_REASONS else ""
        self._rarely.warn(what, reason=reason, kind=kind, address=address, detail=detail)


class _Peer:
    """What waits for one node, and the link it goes over."""

    def __init__(self, links: Links, name: NodeId, address: Address | None) -> None:
        self.name = name
        self.link: Link | None = None
        self._links = links
        self._address = address  # of a supervisor; a node's is looked up
        self._spare: list[Link] = []  # greeted too, but others are used
        self._waiting: list[bytes] = []
        self._size = 0
        self._is_scheduled = False
        self._dialling: asyncio.Task[None] | None = None
        self._failures = 0
        self._failed_s = 0.0

    def queue(self, frame: bytes) -> None:
        """Keep a frame for a while: one write carries all that is said meanwhile."""
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
            self._links.schedule(self)

    @property
    def waiting_bytes(self) -> int:
        """How much waits."""
        return self._size

    def flush(self) -> None:
        """Write what waits, or dial."""
        self._is_scheduled = False
        if self.link is not None:
            waiting, links = self._waiting, self._links
            if waiting and self.link.can_write:
                self.link.write(waiting[0] if len(waiting) == 1 else b"".join(waiting))
                links.bytes_sent += self._size
                links.frames_sent += len(waiting)
                waiting.clear()
                self._size = 0
        elif self._waiting and self._dialling is None and not self._links.is_closed:
            self._dial_or_drop()

    def _dial_or_drop(self) -> None:
        address = self._address or self._links.book.find(self.name)
        if not self._links.dials:
            self._drop("not connected")
        elif not address:
            self._drop("no address")
        elif self._links.dialling >= DIALLING_MAX:
            self._drop("too many dialled")
        elif not self._links.is_secured and not is_loopback(address.rpartition(":")[0].strip("[]")):
            self._drop("not loopback")  # without certificates nothing leaves this machine
        else:
            self._links.dialling += 1
            self._dialling = asyncio.get_running_loop().create_task(self._dial(address))
            self._dialling.add_done_callback(self._on_dialled)

    def _on_dialled(self, _: asyncio.Task[None]) -> None:
        """Dialling is over, whatever came of it."""
        self._links.dialling -= 1

    async def _dial(self, address: Address) -> None:
        links = self._links
        try:
            if self._failures:  # full jitter: those who lost the same peer do not come at once
                limit = min(BACK_OFF_S * 2**self._failures, BACK_OFF_MAX_S)
                await asyncio.sleep(links.rng.uniform(0, limit))
            link = await dial(links, self, address)
            await link.settled.wait()
            is_reached = link.is_greeted
        except TROUBLES as error:
            is_reached = False
            self._on_trouble(address, error)
        finally:
            self._dialling = None
        if not is_reached and self.link is None:
            self._failures = min(self._failures + 1, 16)
            self._failed_s = asyncio.get_running_loop().time()
            links.bear_a_grudge(self)
            if links.book.find(self.name) == address:
                links.book.doubt(self.name)
            self._drop("cannot connect")

    def _on_trouble(self, address: Address, error: Exception) -> None:
        reason, detail = trouble(error)
        if reason is not None:  # nobody there is usual, a certificate that is refused is not
            self._links.complain("cannot connect", reason, address, detail)

    # -- for a link --------------------------------------------------------------------------

    def on_link(self, link: Link) -> None:
        """There is a link that has greeted: the newest is used, unless both sides dialled at once.

        Then both sides take the one that the smaller of them has dialled; the other is spare.
        """
        old, self.link = self.link, link
        if old is not None:
            if self._is_rather(old, link):
                self.link, old = old, link
            self._spare.append(old)
        self._failures = 0
        self.flush()

    def _is_rather(self, old: Link, new: Link) -> bool:
        """True if both sides dialled at once, and the older link is the one to be used."""
        is_by_both = old.is_dialled != new.is_dialled and new.began_s - old.began_s < CROSSING_S
        return is_by_both and old.is_dialled == (self._links.node < self.name)

    def is_called(self, greeting: Greeting) -> bool:
        """True if whoever greets us so is the one we dialled."""
        return greeting.node == (SUPERVISOR if self._address is not None else self.name)

    def on_lost(self, link: Link) -> None:
        """A link is gone; what waits needs another one."""
        if link in self._spare:
            self._spare.remove(link)
        if self.link is link:
            self.link = self._spare.pop() if self._spare else None
            self.flush()
            self._links.on_silent(self.name)
        self._forget_if_idle()

    # -- the end -----------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Close links that nobody uses; forget that somebody could not be reached."""
        for link in self._spare:
            link.look(now)
            if now - link.used_s > SPARE_S:
                link.close()
        if self.link is not None:
            self.link.look(now)
            if self._is_idle(self.link, now):
                self.link.close()
        if now - self._failed_s > GRUDGE_S:
            self.forgive()
        self._forget_if_idle()

    def forgive(self) -> None:
        """Forget that it could not be reached."""
        self._failures = 0
        self._forget_if_idle()

    def _is_idle(self, link: Link, now: float) -> bool:
        """True if a node that we dialled has nothing to do with us any more."""
        return link.is_dialled and self._address is None and now - link.used_s > IDLE_S

    def _forget_if_idle(self) -> None:
        if not (self.link or self._waiting or self._dialling or self._failures):
            self._links.forget(self.name, self)

    def _drop(self, reason: str) -> None:
        self._links.counts[reason] += len(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._links.on_silent(self.name)
        self._forget_if_idle()

    def close(self) -> asyncio.Task[None] | None:
        """Write what waits, if there is a link; dial no more."""
        if self.link is not None:
            self.flush()
        if self._dialling is not None:
            self._dialling.cancel()
        return self._dialling
