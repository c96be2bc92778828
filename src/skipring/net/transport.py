"""Transport: one connection to each peer, shared by all topics, dialled on demand.

``send`` only queues, with a bound, so a slow or absent peer never blocks a machine. Frames beyond
the bound are dropped and counted; the protocol tolerates lost messages, and anti-entropy repairs
lost publications.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from random import Random
from time import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from skipring.core.name_registry import CONFLICT_TICKS, Conflict, ProcessId
from skipring.core.peers import NodeId, TopicId
from skipring.net.addresses import AddressBook, join_address, supervisor_at
from skipring.net.connection import PeerConnection
from skipring.net.connection_limits import ConnectionLimits
from skipring.net.dial_failure import HANDSHAKE_REASONS
from skipring.net.name_guard import NameGuard, name_conflict_text
from skipring.net.partial_frames import PartialFrames
from skipring.net.peer import BACK_OFF_MAX_S, QUEUE_BYTES_MAX, DialBacks, RemotePeer
from skipring.net.sockets import Listener
from skipring.net.work_budget import WorkBudget
from skipring.observability.logs import RateLimitedLogger, logger
from skipring.security.credentials import PeerCertificate
from skipring.wire.bundle import SmallMessage, TopicMessages, Unbundled
from skipring.wire.codec import Envelope, encode
from skipring.wire.framing import BUNDLE, Frame
from skipring.wire.handshake import (
    NO_TOPIC,
    AskHolder,
    Hello,
    HolderReply,
    NameMessage,
    NameTaken,
    Role,
    encode_greeting,
)
from skipring.wire.limits import CLONES_MAX
from skipring.wire.rpc import Address, WireMessage

if TYPE_CHECKING:  # Importing it loads cryptography, which few processes need.
    from skipring.security.credentials import Credentials, Distrust

CLOSE_S: Final = 0.5  # Guess: enough for a peer to read the written data.
CLIENTS: Final = "client/"  # prefix of the names of all clients
CHECK_S: Final = 1.0  # Guess: the interval at which certificates of open connections are checked.
SUPERVISORS: Final = supervisor_at("")  # prefix of the names of all supervisors
DIAL_FAILURES_MAX: Final = 1024  # Limit: remembered peers with failed dials.

Receiver = Callable[[NodeId, Envelope[WireMessage], Frame], None]
GroupReceiver = Callable[[NodeId, TopicMessages], None]
_BUNDLED: Final = Frame(BUNDLE, b"")  # in place of the frame of a message in a bundle

_LOG: Final = logger("links")


def _ignore(_: NodeId) -> None:
    """Ignore a change: the default callback."""


class Transport:
    """All connections of one process.

    ``on_unreachable`` gets a peer whose ``why_unreachable`` has changed, ``on_silent`` a peer that
    may have lost frames.
    """

    def __init__(  # noqa: PLR0913  (each is named, and all but the first four can be left out)
        self,
        greeting: Hello,
        book: AddressBook,
        receive: Receiver,
        rng: Random,
        *,
        credentials: Credentials | None = None,
        dials: bool = True,
        back_off_max_s: float = BACK_OFF_MAX_S,
        on_unreachable: Callable[[NodeId], None] = _ignore,
        on_silent: Callable[[NodeId], None] = _ignore,
        receive_group: GroupReceiver | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()  # drops by reason
        self.traffic: Counter[str] = Counter()  # bytes and frames of all connections
        self.on_unreachable, self.on_silent = on_unreachable, on_silent
        self.book, self.rng, self.credentials = book, rng, credentials
        self.receive, self.receive_group = receive, receive_group or self.receive_each
        self.dials = dials  # False for a supervisor: nodes dial it
        self.back_off_max_s = back_off_max_s
        self.connections: set[PeerConnection] = set()
        self.supervisors: set[Address] = set()  # configured supervisors that have greeted
        self.is_closed = False
        self.dialling = 0  # dials in progress
        self.budget = WorkBudget()
        self.partial_frames = PartialFrames()
        self.dial_backs = DialBacks()
        self.places = ConnectionLimits()
        self.certificate_timer: asyncio.TimerHandle | None = None  # None without connections
        self._greeting = greeting
        self.peers: dict[NodeId, RemotePeer] = {}
        self._dial_failures: dict[NodeId, RemotePeer] = {}
        self._client_numbers = count(1)
        self.listener = Listener(self)
        self._emptied: asyncio.Future[None] | None = None
        self._rarely = RateLimitedLogger(_LOG)
        self._names = NameGuard(self._on_conflict)
        self._clones: dict[Address, int] = {}  # other processes with this name: ticks until expiry

    async def listen(self, host: str, port: int, advertised: Address | None = None) -> Address:
        """Accept connections; return the bound address.

        Greetings from now on contain the advertised address, or the bound one if none is given:
        peers may have to dial a different address than this process listens on.
        """
        bound = await self.listener.open(host, port)
        address = join_address(*bound)
        self._greeting = replace(self._greeting, address=advertised or address)
        return address

    def send(self, to: NodeId, frame: bytes) -> None:
        """Queue a frame for a node with a connection or a known address."""
        peer = self.peers.get(to)
        if peer is None:
            peer = self.peer(to)
        peer.send(frame)

    def bundle(self, to: NodeId, topic: TopicId, message: SmallMessage) -> None:
        """Queue a small message for a node; those of a turn share a frame."""
        peer = self.peers.get(to)
        if peer is None:
            peer = self.peer(to)
        peer.bundle(topic, message)

    def bundle_to_supervisor(self, address: Address, topic: TopicId, message: SmallMessage) -> None:
        """Queue a small message for the supervisor at an address."""
        self.peer(supervisor_at(address), address).bundle(topic, message)

    def hints(self, nodes: Iterable[NodeId]) -> dict[NodeId, Address]:
        """Return the known addresses of other nodes, for the receivers of messages."""
        return self.book.hints([node for node in nodes if node != self.node])

    def send_to_supervisor(self, address: Address, frame: bytes) -> None:
        """Queue a frame for the supervisor at an address."""
        self.peer(supervisor_at(address), address).send(frame)

    def account_of(self, name: NodeId) -> NodeId:
        """Return the account for a peer's quotas: the name in its certificate, or its node name."""
        peer = self.peers.get(name)
        return peer.account if peer is not None else name

    def is_behind(self, name: NodeId) -> bool:
        """Return True if a peer has a large backlog of unread data."""
        return name in self.peers and self.peers[name].is_behind

    def is_linked(self, name: NodeId) -> bool:
        """Return True if there is a connection to a peer over which both have greeted."""
        return name in self.peers and self.peers[name].link is not None

    def connection_to(self, name: NodeId) -> PeerConnection | None:
        """Return the active connection to a node; a restarted node has a new one."""
        return self.peers[name].link if name in self.peers else None

    def why_unreachable(self, name: NodeId) -> str | None:
        """Return why the last dial to a node or supervisor failed, as a sentence.

        None while connected, and before a dial has failed. A server that accepts connections and
        does not answer is reported after SILENT_S, and may still answer later. ``supervisor_at``
        gives the names of supervisors.
        """
        return self.peers[name].why_unreachable if name in self.peers else None

    def is_name_refused(self, name: NodeId) -> bool:
        """Return True if a peer refuses this process because another process holds its name."""
        return name in self.peers and self.peers[name].is_name_refused

    def sweep(self) -> None:
        """Close unused connections and forget old failed dials; called once a tick."""
        now = asyncio.get_running_loop().time()
        self._names.on_tick()
        self._clones = {each: left - 1 for each, left in self._clones.items() if left > 1}
        for peer in list(self.peers.values()):
            peer.close_idle(now)

    async def close(self) -> None:
        """Stop listening, write the queues within CLOSE_S and close every connection."""
        self.is_closed = True
        self.listener.close()
        self.partial_frames.close()
        if self.certificate_timer is not None:
            self.certificate_timer.cancel()
        dialling = [task for peer in list(self.peers.values()) if (task := peer.close())]
        if dialling:
            await asyncio.wait(dialling)
        for link in list(self.connections):
            link.close()
        await self._drain()
        for link in list(self.connections):
            link.abort()
        await self.listener.closed()

    async def _drain(self) -> None:
        """Wait until all connections are closed, at most CLOSE_S for a peer that does not read."""
        if self.connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=CLOSE_S)

    def record_dial_failure(self, peer: RemotePeer) -> None:
        """Record a failed dial; forget the oldest record beyond DIAL_FAILURES_MAX."""
        self._dial_failures.pop(peer.name, None)
        self._dial_failures[peer.name] = peer
        if len(self._dial_failures) > DIAL_FAILURES_MAX:
            self._dial_failures.pop(next(iter(self._dial_failures))).reset_backoff()

    def may_dial(self, name: NodeId, address: Address) -> bool:
        """Return True if the address of a node is trusted, or a dial-back is within its budget."""
        member = self.book.claimant(name, address)
        now_s = asyncio.get_running_loop().time()
        return member is None or self.dial_backs.allows(member, now_s)

    def on_dialled(self, name: NodeId, address: Address, *, is_found: bool) -> None:
        """Record whether a dial found a node at an address."""
        if not self.book.is_proven(name, address):
            self.dial_backs.record(is_proven=is_found)
        if is_found:
            self.book.prove(name, address)
        else:
            self.book.doubt(name, address)

    def forget(self, name: NodeId, peer: RemotePeer) -> None:
        """Forget a peer without connection, queued frames or failed dials."""
        if self.peers.get(name) is peer:
            del self.peers[name]
        if self._dial_failures.get(name) is peer:
            del self._dial_failures[name]

    def peer(self, name: NodeId, address: Address | None = None) -> RemotePeer:
        """Return the outbound queue of a node; create it on first use."""
        found = self.peers.get(name)
        if found is None:
            found = self.peers[name] = RemotePeer(self, name, address)
        return found

    # -- called by connections ---------------------------------------------------------------

    def greeting_frame(self, nonce: int, *, is_opening: bool) -> bytes:
        """Return the first frame to send, as the side that opens or accepts a connection."""
        return encode_greeting(replace(self._greeting, nonce=nonce), is_opening=is_opening)

    @property
    def node(self) -> NodeId:
        """Return the name in this process's greeting."""
        return self._greeting.node

    @property
    def incarnation(self) -> int:
        """Return the incarnation in this process's greeting."""
        return self._greeting.incarnation

    @property
    def is_secured(self) -> bool:
        """Return True if peers must present a certificate."""
        return self.credentials is not None

    def admit(self, link: PeerConnection) -> bool:
        """Count a connection; return False if the transport is closed."""
        self.connections.add(link)
        if self.credentials is not None and self.certificate_timer is None and not self.is_closed:
            loop = asyncio.get_running_loop()
            self.certificate_timer = loop.call_later(CHECK_S, self._check_later)
        return not self.is_closed

    def distrust(self, certificate: PeerCertificate, now_s: float) -> Distrust | None:
        """Return why a verified certificate is refused now; None if it is accepted."""
        return self.credentials.distrust(certificate, now_s) if self.credentials else None

    def _check_later(self) -> None:
        """Reload the credentials and check all connections every CHECK_S, while any is open."""
        self.certificate_timer = None
        if self.credentials is not None and self.connections:
            self.credentials.refresh()
            self.check_certificates()
            loop = asyncio.get_running_loop()
            self.certificate_timer = loop.call_later(CHECK_S, self._check_later)

    def check_certificates(self) -> None:
        """Close connections whose certificate is denied or has expired."""
        now_s = time()
        for link in list(self.connections):
            link.check_certificate(now_s)

    def why_no_place(self, link: PeerConnection, name: NodeId) -> str | None:
        """Assign a place to a connection that a peer opened; return the reason if there is none."""
        now_s = asyncio.get_running_loop().time()
        return self.places.occupy(link, name, is_client=link.role is Role.CLIENT, now_s=now_s)

    def register(self, greeting: Hello) -> RemotePeer:
        """Return the outbound queue of a peer that opened a connection and greeted."""
        if greeting.role is Role.CLIENT:
            # No node can have such a name. Each connection has its own number: two clients may
            # share a name, and an answer is for the one client that asked.
            return self.peer(f"{CLIENTS}{greeting.node}#{next(self._client_numbers)}")
        self.book.greet(greeting.node, greeting.address, greeting.incarnation)
        return self.peer(greeting.node)

    def claim(self, link: PeerConnection, greeting: Hello) -> None:
        """Admit a node under its name, now or later, or refuse it."""
        self._names.claim(link, greeting, None if self.is_secured else link.address)

    def on_name_message(self, link: PeerConnection, message: NameMessage) -> None:
        """Handle a message about the name of one end of a connection."""
        match message:
            case AskHolder():
                self._on_ask_holder(link, message)
            case HolderReply():
                self._names.on_reply(link, message)
            case NameTaken():
                self._on_name_taken(link, message)

    def _on_ask_holder(self, link: PeerConnection, message: AskHolder) -> None:
        """Answer at once, unless the peer does not read: such an answer would be late anyway."""
        transport = link.transport
        if self.is_closed or transport is None:
            return
        if transport.get_write_buffer_size() > QUEUE_BYTES_MAX:
            self.counts["unread responses"] += 1
            return
        is_own = self._is_own(link, message)
        link.write(encode(NO_TOPIC, HolderReply(message.connection, is_own)))

    def _is_own(self, asker: PeerConnection, question: AskHolder) -> bool:
        """Return True if this process has another connection, with this nonce, to the asker.

        A third process that relays the nonce has another certificate or, without certificates,
        another address.
        """
        return any(
            link.nonce == question.nonce
            and link.certificate_name == asker.certificate_name
            and (self.is_secured or link.local_address == question.address)
            for link in self.connections
        )

    def _on_name_taken(self, link: PeerConnection, message: NameTaken) -> None:
        """Record a name conflict: a peer refused this process, or another one with its name."""
        other = ProcessId(message.incarnation, message.address)
        why = name_conflict_text(self.node, other, is_refused=message.refused)
        self._rarely.warn("name_conflict", reason=why, address=link.address)
        if link.role is not Role.CLIENT:
            self._clones.pop(other.address, None)
            self._clones[other.address] = CONFLICT_TICKS
            if len(self._clones) > CLONES_MAX:
                del self._clones[next(iter(self._clones))]
        if message.refused and link.is_dialled and link.sender is not None:
            self.peer(link.sender).on_refused(link, why)

    def _on_conflict(self, conflict: Conflict) -> None:
        why = name_conflict_text(conflict.name, conflict.holder, is_refused=True)
        self._rarely.warn("name_conflict", reason=why, address=conflict.refused.address)

    @property
    def clones(self) -> tuple[Address, ...]:
        """Return the addresses of other processes with this name that peers reported recently."""
        return tuple(self._clones)

    def conflicts(self) -> list[Conflict]:
        """Return the names that two live processes claimed recently, as seen by this process."""
        return self._names.conflicts()

    def intercept(self, wrap: Callable[[Receiver], Receiver]) -> None:
        """Replace the receiver of messages by a wrapper, to measure or to drop messages."""
        self.receive = wrap(self.receive)
        self.receive_group = self.receive_each

    def receive_bundle(self, sender: NodeId, bundle: Unbundled) -> None:
        """Learn the hints of a bundle, and pass on its messages."""
        if bundle.hints:
            self.learn(sender, bundle.hints)
        for group in bundle.groups:
            self.receive_group(sender, group)

    def receive_each(self, sender: NodeId, group: TopicMessages) -> None:
        """Pass the messages of a group to the receiver, one by one."""
        for envelope in group.envelopes():
            self.receive(sender, envelope, _BUNDLED)

    def learn(self, sender: NodeId, hints: Mapping[NodeId, Address]) -> None:
        """Learn the addresses in the hints of a message."""
        if self.dials and not sender.startswith(CLIENTS):
            self.book.learn(hints, None if sender.startswith(SUPERVISORS) else sender)

    def on_dial(self) -> None:
        """Count a dial that begins."""
        self.dialling += 1

    def on_dial_ended(self) -> None:
        """Count the end of a dial."""
        self.dialling -= 1

    def on_lost(self, link: PeerConnection) -> None:
        """Forget a connection that is closed."""
        if link not in self.connections:
            return
        self.connections.discard(link)
        self.places.release(link)
        self._names.on_lost(link)
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)

    def refuse(self, reason: str, link: PeerConnection, detail: str = "") -> None:
        """Count and log a refused connection."""
        self.log_drop("connection_refused", reason, link.address, detail)

    def log_drop(self, what: str, reason: str, address: str, detail: str = "") -> None:
        """Count a dropped connection or frame; log it at a limited rate."""
        self.counts[reason] += 1
        kind = detail if reason in HANDSHAKE_REASONS else ""
        self._rarely.warn(what, reason=reason, kind=kind, address=address, detail=detail)
