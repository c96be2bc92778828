"""Remote peer: outbound queue, active connection, reconnect with backoff, limits of dial-backs.

An address is proven when a dial by this process finds the expected node there (decision 48). Until
then it is a claim by the node itself, by a supervisor or by another member. A member can claim any
host and port, so dials to claims of members have a budget for each member and one for all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.net.addresses import is_loopback
from skipring.net.connection import PeerConnection
from skipring.net.dial_failure import (
    CLOSED,
    NO_ANSWER,
    SILENT,
    Cause,
    DialFailure,
    classify_tls_error,
    failure_of,
)
from skipring.net.sockets import TROUBLES, dial, speaks_tls
from skipring.wire.bundle import MESSAGES_MAX, Bundle, SmallMessage
from skipring.wire.handshake import Hello
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # a cycle: the transport creates peers
    from skipring.net.transport import Transport

# Measured: with 4 MiB a burst of 250 publications of 16 KiB had to be repaired.
QUEUE_BYTES_MAX: Final = 16 << 20
BEHIND_BYTES: Final = 1 << 20  # Guess: the size of one answer of a repair.
BACK_OFF_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0
# The CLI reports a listener that does not answer within 1 s. Measured: on two cores with eight busy
# processes a supervisor greets within 20 ms.
SILENT_S: Final = 0.7
CROSSING_S: Final = 1.0  # Guess: simultaneous dials of two peers begin within this time.
DIALLING_MAX: Final = 256  # Limit: peers can name any number of nodes.
REFUSED_S: Final = (
    1.0  # Guess: a server that refuses a connection after the greeting does so within this time.
)
SPARE_S: Final = 10.0  # Guess: a second connection that is unused for this time can be closed.
IDLE_S: Final = 60.0  # Guess: neighbours send every tick, so an idle peer is no longer a neighbour.
DIAL_FAILURE_S: Final = 60.0  # Guess: a failed dial is forgotten after this time.
# Guess: a member in a ring of 1,000 has at most 20 neighbours, and supervisors name most of them.
MEMBER_BURST: Final = 16
MEMBER_PER_S: Final = 1.0
ALL_BURST: Final = 64
ALL_PER_S: Final = 8.0
MEMBERS_MAX: Final = 1024  # Limit: members with their own budget.


class RemotePeer:
    """Outbound queue of one peer, and the connections to it."""

    def __init__(self, links: Transport, name: NodeId, address: Address | None) -> None:
        self.name = name
        self.link: PeerConnection | None = None
        self._links = links
        self._address = address  # set for a supervisor; a node's address comes from the book
        self._spare: list[PeerConnection] = []  # also greeted, but not used to send
        self._waiting: list[bytes] = []
        self._bundle: Bundle | None = None  # small messages after the waiting frames
        self._size = 0
        self._is_scheduled = False
        self._dialling: asyncio.Task[None] | None = None
        self.failures = 0
        self._refusals = 0  # number of times the peer refused this process's name
        self._failed_s = 0.0
        self._dialled: Address = ""  # the last address
        self._failure: DialFailure | None = None  # failure of the last dial; None once connected
        self._is_connected = False  # TCP, during a dial

    def send(self, frame: bytes) -> None:
        """Queue a frame; one write carries all frames of a turn. Drop it if the queue is full."""
        if self._links.is_closed:
            self._links.counts["closed"] += 1
            return
        if self._bundle is not None:  # frames keep their order
            self._close_bundle()
        self._enqueue(frame)
        if not self._is_scheduled:
            self._schedule()

    def bundle(self, topic: TopicId, message: SmallMessage) -> None:
        """Queue a small message; those of a turn share a frame."""
        if self._links.is_closed:
            self._links.counts["closed"] += 1
            return
        bundle = self._bundle
        if bundle is None or bundle.count >= MESSAGES_MAX:
            self._close_bundle()
            bundle = self._bundle = Bundle()
        bundle.add(topic, message)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        gathered = self._links.budget.gathered
        if gathered is None:
            asyncio.get_running_loop().call_soon(self.flush)
        else:  # flushed at the end of the batch of received frames
            gathered.append(self)

    def _close_bundle(self) -> None:
        """Queue the bundle as a frame."""
        bundle, self._bundle = self._bundle, None
        for frame in bundle.frames(self._links.hints) if bundle is not None else ():
            if frame is None:
                self._links.counts["not encodable"] += 1
            else:
                self._enqueue(frame)

    def _enqueue(self, frame: bytes) -> None:
        if self._size + len(frame) > QUEUE_BYTES_MAX:
            self._links.counts["queue full"] += 1
            return
        self._waiting.append(frame)
        self._size += len(frame)

    def refuse_request(self, frame: bytes) -> None:
        """Send the refusal of a request that waited too long."""
        self._links.counts["busy"] += 1
        self.send(frame)

    @property
    def account(self) -> NodeId:
        """Return the name in the peer's certificate, or its node name without a certificate."""
        return self.link.account if self.link is not None else self.name

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes in the queue."""
        return self._size

    @property
    def is_dialling(self) -> bool:
        """Return True while a dial is in progress or scheduled."""
        return self._dialling is not None

    @property
    def is_behind(self) -> bool:
        """Return True if the queue exceeds BEHIND_BYTES."""
        return self._size > BEHIND_BYTES

    def flush(self, over: PeerConnection | None = None) -> None:
        """Write the queue, or dial; prefer connection ``over`` if it belongs to this peer."""
        self._is_scheduled = False
        self._close_bundle()
        link = over if over is not None and over in self._spare else self.link
        if link is not None:
            waiting = self._waiting
            if waiting and link.can_write:
                link.write(waiting[0] if len(waiting) == 1 else b"".join(waiting), len(waiting))
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
            self._drop("not loopback")  # without certificates no data leaves this machine
        elif self._address is None and not self._links.may_dial(self.name, address):
            self._drop("dial-back limit")
        else:
            self._links.on_dial()
            self._dialling = asyncio.get_running_loop().create_task(self._dial(address))
            self._dialling.add_done_callback(self._on_dialled)

    def _on_dialled(self, _: asyncio.Task[None]) -> None:
        """Count the end of a dial, successful or not."""
        self._links.on_dial_ended()

    async def _dial(self, address: Address) -> None:
        links = self._links
        try:
            if self.failures:  # full jitter: peers that lost the same peer dial at different times
                limit = min(BACK_OFF_S * 2**self.failures, links.back_off_max_s)
                await asyncio.sleep(links.rng.uniform(0, limit))
            failure = await self._connect(address)
        finally:
            self._dialling = None
        if self._address is None:
            links.on_dialled(self.name, address, is_found=failure is None)
        if failure is not None and self.link is None:
            self._on_failed(asyncio.get_running_loop().time())
            self._on_failure(failure)
            self._drop("cannot connect")

    def on_refused(self, link: PeerConnection, why: str) -> None:
        """Record that the peer refused this process's name after its greeting; dial later."""
        self.on_lost(link)
        self._refusals = min(self._refusals + 1, 16)
        self.failures = self._refusals - 1
        self._on_failed(asyncio.get_running_loop().time())
        link.close()
        self._on_failure(DialFailure(Cause.NAME_TAKEN, why))

    async def _connect(self, address: Address) -> DialFailure | None:
        """Open a connection; return the failure if there is none."""
        self._dialled, self._is_connected = address, False
        slow = asyncio.get_running_loop().call_later(SILENT_S, self._on_slow)
        try:
            link = await dial(self._links, self, address, self._on_connected)
            failure = None if link.is_greeted else link.failure or CLOSED
        except TROUBLES as error:
            self._on_trouble(address, error)
            failure = failure_of(error)
        finally:
            slow.cancel()
        return await self._identified(address, failure)

    async def _identified(
        self, address: Address, failure: DialFailure | None
    ) -> DialFailure | None:
        """Test once whether a supervisor that hangs up before its greeting uses TLS."""
        links = self._links
        is_known = self._address is None or self._address in links.supervisors
        if failure is not CLOSED or is_known or links.is_secured:
            return failure
        if self._failure is not None and self._failure.cause in (Cause.CLOSED, Cause.SECURED):
            return self._failure
        return DialFailure(Cause.SECURED) if await speaks_tls(address) else failure

    def _on_connected(self) -> None:
        self._is_connected = True

    def _on_slow(self) -> None:
        """Report a server that is slow to answer; it may still answer."""
        if self.link is None:
            self._on_failure(SILENT if self._is_connected else NO_ANSWER)

    def _on_failure(self, failure: DialFailure) -> None:
        self._failure = failure
        self._links.on_unreachable(self.name)

    @property
    def why_unreachable(self) -> str | None:
        """Return why the last dial failed, as a sentence; None while connected."""
        if self.link is not None or self._failure is None:
            return None
        return self._failure.sentence(self._dialled, None if self._address else self.name)

    @property
    def is_name_refused(self) -> bool:
        """Return True if the last connection ended because another process holds this name."""
        return self._failure is not None and self._failure.cause is Cause.NAME_TAKEN

    def _on_trouble(self, address: Address, error: Exception) -> None:
        reason, detail = classify_tls_error(error)
        if reason is not None:  # an absent peer is usual, a refused certificate is not
            self._links.log_drop("connect_failed", reason, address, detail)

    # -- called by connections ---------------------------------------------------------------

    def on_link(self, link: PeerConnection) -> None:
        """Use a connection that has greeted: the newest, unless both sides dialled at once.

        If both dialled, both use the connection that the side with the smaller name dialled; the
        other connection is spare.
        """
        old, self.link = self.link, link
        if old is not None:
            if self._prefer_existing(old, link):
                self.link, old = old, link
            self._spare.append(old)
        self._failure = None
        if self._address is not None:
            self._links.supervisors.add(self._address)
        self.flush()

    def _prefer_existing(self, old: PeerConnection, new: PeerConnection) -> bool:
        """Return True if both sides dialled at once and should use the older connection."""
        is_by_both = old.is_dialled != new.is_dialled and new.began_s - old.began_s < CROSSING_S
        return is_by_both and old.is_dialled == (self._links.node < self.name)

    def matches(self, greeting: Hello) -> bool:
        """Return True if the greeting is from the peer that was dialled.

        Without certificates, a dial must find the process that claimed the address.
        """
        if self._address is not None:
            return greeting.node == SUPERVISOR
        claimed = self._links.book.incarnation_at(self.name, self._dialled)
        is_claimant = self._links.is_secured or claimed in (None, greeting.incarnation)
        return greeting.node == self.name and is_claimant

    def on_lost(self, link: PeerConnection) -> None:
        """Forget a closed connection; use a spare one, or dial again if frames are queued."""
        is_known = link is self.link or link in self._spare
        if is_known and link.is_dialled and link.is_greeted:
            self._count_loss(link)
        if link in self._spare:
            self._spare.remove(link)
        if self.link is link:
            self.link = self._spare.pop() if self._spare else None
            if self.link is None and self._failure is not None:
                self._links.on_unreachable(self.name)
            self.flush()
            self._links.on_silent(self.name)
        self._forget_if_idle()

    def _count_loss(self, link: PeerConnection) -> None:
        """Delay the next dial if the peer closed the connection at once, which is a refusal."""
        now_s = asyncio.get_running_loop().time()
        if now_s - link.began_s > REFUSED_S:
            self.failures = self._refusals
            return
        self._on_failed(now_s)
        if link.failure is not None and self.link in (None, link):
            self._failure = link.failure

    def _on_failed(self, now_s: float) -> None:
        self.failures = min(self.failures + 1, 16)
        self._failed_s = now_s
        self._links.record_dial_failure(self)

    # -- end ---------------------------------------------------------------------------------

    def close_idle(self, now: float) -> None:
        """Close unused connections; forget old failed dials."""
        for link in self._spare:
            link.check_deadlines(now)
            if now - link.used_s > SPARE_S:
                link.close()
        if self.link is not None:
            self.link.check_deadlines(now)
            if self._is_idle(self.link, now):
                self.link.close()
        if now - self._failed_s > DIAL_FAILURE_S:
            self.reset_backoff()
        self._forget_if_idle()

    def reset_backoff(self) -> None:
        """Forget failed dials and refusals."""
        self.failures = self._refusals = 0
        self._forget_if_idle()

    def _is_idle(self, link: PeerConnection, now: float) -> bool:
        """Return True if a dialled node has been idle for IDLE_S."""
        return link.is_dialled and self._address is None and now - link.used_s > IDLE_S

    def _forget_if_idle(self) -> None:
        has_queue = self._waiting or self._bundle
        if not (self.link or has_queue or self._dialling or self.failures):
            self._links.forget(self.name, self)

    def _drop(self, reason: str) -> None:
        self._links.counts[reason] += len(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._links.on_silent(self.name)
        self._forget_if_idle()

    def close(self) -> asyncio.Task[None] | None:
        """Write the queue if connected; cancel a dial and return its task."""
        if self.link is not None:
            self.flush()
        if self._dialling is not None:
            self._dialling.cancel()
        return self._dialling


# -- dial-backs ------------------------------------------------------------------------------


class DialBackResult(StrEnum):
    """Result of a dial to an unproven address."""

    PROVEN = "proven"
    FAILED = "failed"
    LIMITED = "limited"


class _Budget(Struct):
    """Token bucket of dials: it refills with time up to a burst."""

    left: float
    at_s: float

    def refill(self, now_s: float, per_s: float, burst: int) -> None:
        self.left = min(burst, self.left + max(0.0, now_s - self.at_s) * per_s)
        self.at_s = now_s


class DialBacks:
    """Budgets and counts of the dials to unproven addresses."""

    def __init__(self) -> None:
        self.counts: Counter[DialBackResult] = Counter()
        self._all = _Budget(ALL_BURST, 0.0)
        self._members: dict[NodeId, _Budget] = {}

    def __len__(self) -> int:
        """Return the number of members with their own budget."""
        return len(self._members)

    def allows(self, member: NodeId, now_s: float) -> bool:
        """Return True and charge the budgets if an address that a member claims may be dialled."""
        budget = self._members.get(member)
        if budget is None:
            budget = self._members[member] = _Budget(MEMBER_BURST, now_s)
            if len(self._members) > MEMBERS_MAX:
                del self._members[next(iter(self._members))]
        budget.refill(now_s, MEMBER_PER_S, MEMBER_BURST)
        self._all.refill(now_s, ALL_PER_S, ALL_BURST)
        if budget.left < 1 or self._all.left < 1:
            self.counts[DialBackResult.LIMITED] += 1
            return False
        budget.left -= 1
        self._all.left -= 1
        return True

    def record(self, *, is_proven: bool) -> None:
        """Count the result of a dial to an unproven address."""
        self.counts[DialBackResult.PROVEN if is_proven else DialBackResult.FAILED] += 1
