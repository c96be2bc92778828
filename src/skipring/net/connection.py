"""One TCP or TLS connection: the peer at the other end, and frames in both directions.

A peer that connects must present a certificate if this process has one, and must complete the
handshake within a few seconds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from time import time
from typing import TYPE_CHECKING, Any, Final, cast

from skipring.core.log_messages import Refused
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.errors import HandshakeError, WireError
from skipring.net.addresses import join_address
from skipring.net.dial_failure import (
    CLOSED,
    FIRST_BYTES_MAX,
    SILENT,
    Cause,
    DialFailure,
    classify_tls_error,
    failure_in,
    failure_of,
    wrong_peer,
)
from skipring.net.work_budget import REQUEST_WAIT_S, WAITING_BYTES_MAX
from skipring.security.credentials import PeerCertificate, may_act_as
from skipring.wire.bundle import unbundle
from skipring.wire.codec import decode, encode
from skipring.wire.framing import BUNDLE, CONTROL_BYTES_MAX, Frame, FrameReader, whole_frame
from skipring.wire.handshake import (
    NAME_TYPES,
    NO_TOPIC,
    NONCE_END,
    Hello,
    NameMessage,
    Role,
    check_greeting,
)
from skipring.wire.rpc import BUSY, CONNECTION_REQUEST, RUNTIME_TYPES, WireMessage, is_request

if TYPE_CHECKING:  # cycles: a peer dials connections, a transport owns them
    from skipring.net.peer import RemotePeer
    from skipring.net.transport import Transport

FAREWELL_S: Final = 0.5  # Guess: enough for a peer to read; an immediate close could lose it.
GREETING_S: Final = 5.0  # Guess: a peer greets at once; a silent peer is not a skipring process.
TURN_AWAY_S: Final = 1.0  # Guess: enough for a peer to read the reason.

OnOver = Callable[[], object]  # called when the peer has greeted, and when the connection is lost
# Messages that concern the connection itself.
_OWN_TYPES: Final = frozenset({Refused, *NAME_TYPES})


class PeerConnection(asyncio.Protocol):
    """One connection to a peer: handshake, frames in both directions, limits."""

    def __init__(self, board: Transport, dialled_for: RemotePeer | None, on_over: OnOver) -> None:
        self._board = board
        self._budget = board.budget
        self._traffic = board.traffic
        self._partial_frames = board.partial_frames
        self._partial_bytes = 0  # size of the unfinished frame
        self._owner = dialled_for
        self._reader = FrameReader()
        # Frames that have arrived and are not handled yet, each with its time of arrival.
        self._waiting: deque[tuple[float, Frame]] = deque()
        self._is_ended = False  # the peer sends no more: close after the waiting frames
        self.waiting_bytes = 0
        self.is_read = True  # False until the waiting frames are handled
        self.transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.address = "unknown"  # address of the peer, for logs
        self.nonce = secrets.randbelow(NONCE_END - 1) + 1  # in this side's greeting
        self.account = self.address  # limits count by account: name, or host before the greeting
        self._is_refused = False
        self._claim: Hello | None = None  # greeting of a node that waits for its name
        self._first = b""  # bytes received before the greeting, to diagnose a failure
        self.failure: DialFailure | None = None  # set if the connection is lost before its greeting
        self.certificate: PeerCertificate | None = None
        self.sender: NodeId | None = None  # known from the greeting on
        self.role, self._is_client = Role.NODE, False
        self.is_dialled = dialled_for is not None
        self.is_greeted = False
        self.can_write = True
        self.began_s = 0.0
        self.is_used = False  # since the last ``check_deadlines``
        self.used_s = 0.0  # time of last use, as of the last ``check_deadlines``
        self._on_over = on_over

    # -- callbacks of the transport ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting and start the deadline for the peer's greeting."""
        self.transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self.began_s = self.used_s = loop.time()
        if where := transport.get_extra_info("peername"):
            self.address, self.account = join_address(where[0], where[1]), where[0]
        if not self._board.admit(self):
            self.refuse("closed")
            return
        shown = cast("Mapping[str, Any] | None", transport.get_extra_info("peercert"))
        self.certificate = PeerCertificate.read(shown) if shown else None
        if not self.check_certificate(time()):
            return
        self.write(self._board.greeting_frame(self.nonce, is_opening=self.is_dialled))
        self._deadline = loop.call_later(GREETING_S, self.refuse, "no greeting", "", SILENT)

    @property
    def local_address(self) -> str:
        """Return the address of this end; empty if the connection is lost."""
        here = self.transport.get_extra_info("sockname") if self.transport is not None else None
        return join_address(here[0], here[1]) if here else ""

    @property
    def certificate_name(self) -> NodeId | None:
        """Return the name in the peer's certificate; None without a certificate."""
        return self.certificate.name if self.certificate else None

    def check_certificate(self, now_s: float) -> bool:
        """Close the connection and return False if the certificate is denied or has expired."""
        why = self._board.distrust(self.certificate, now_s) if self.certificate else None
        if why is not None and not self._is_refused:
            self.refuse(why.reason, why.sentence, DialFailure(Cause.UNTRUSTED, why.sentence))
        return why is None

    def data_received(self, data: bytes) -> None:
        """Split data into frames; handle them now, or in a later turn of the loop."""
        self.is_used = True
        self._traffic["bytes_received"] += len(data)
        is_between_frames = self.sender is not None and not self._reader.buffered_bytes
        whole = whole_frame(data) if is_between_frames else None
        frames = [whole] if whole is not None else self._cut(data)
        if frames:
            self._traffic["frames_received"] += len(frames)
            done = self._handle(frames) if self._budget.left_s > 0 and not self._waiting else 0
            if done < len(frames) and not self._is_refused:  # TLS may deliver more until it closes
                self._keep_waiting(frames[done:], len(data))

    def _cut(self, data: bytes) -> list[Frame]:
        """Return the frames that received bytes complete; limit unfinished ones."""
        if self.sender is None:
            self._first += data[: FIRST_BYTES_MAX - len(self._first)]
        try:
            frames = self._reader.feed(data)
        except WireError as error:
            self._refuse_bytes(error)
            return []
        held = self._reader.buffered_bytes
        if held or self._partial_bytes:
            self._partial_bytes = held
            self._partial_frames.update(self, held, is_new=bool(frames))
            if self.sender is None and held > CONTROL_BYTES_MAX and not frames:
                self._refuse_bytes(HandshakeError("the first frame is longer than a greeting"))
        return frames

    def _handle(self, frames: list[Frame]) -> int:
        """Handle frames until the work budget of this turn is spent; return their number."""
        budget, clock = self._budget, self._budget.clock
        end_s = budget.begin()
        try:
            for done, frame in enumerate(frames):
                if self._is_refused:
                    break
                is_served = not self._is_client or self._can_serve
                if self._claim is not None or not is_served or (done and clock() >= end_s):
                    return done
                self._on_frame(frame)
        except WireError as error:
            self._refuse_bytes(error)
        finally:
            budget.end(self, end_s)
        return len(frames)

    @property
    def _can_serve(self) -> bool:
        """Return False while a client has unread answers, or a node waits for its name."""
        owner = self._owner if self._is_client else None
        return self._claim is None and (owner is None or not owner.is_behind)

    def _keep_waiting(self, frames: list[Frame], size_bytes: int) -> None:
        came_s = self._budget.clock()
        if self._claim is not None:
            frames = [each for each in frames if not self._is_about_name(each)]
        self._waiting.extend((came_s, frame) for frame in frames)
        self.waiting_bytes += size_bytes
        if self.waiting_bytes > WAITING_BYTES_MAX and self.is_read and self.transport is not None:
            self.transport.pause_reading()  # a no-op if it is closing
            self.is_read = False
        self._budget.add(self)

    def _is_about_name(self, frame: Frame) -> bool:
        """Handle a message about a name, even while the sender waits for its own name.

        Two processes that dial each other at the same time ask each other over waiting connections.
        """
        try:
            message = decode(frame).message
        except WireError:
            return False  # ``_on_frame`` refuses it later
        if type(message) not in NAME_TYPES:
            return False
        self._board.on_name_message(self, cast("NameMessage", message))
        return True

    def handle_some(self, end_s: float) -> bool:
        """Handle one waiting frame, and more until ``end_s``; return True if frames are left."""
        clock, waiting = self._budget.clock, self._waiting
        self._budget.begin()
        try:
            while waiting and self._can_serve:
                came_s, frame = waiting.popleft()
                if clock() - came_s > REQUEST_WAIT_S:
                    self._on_late_frame(frame)
                else:
                    self._on_frame(frame)
                if clock() >= end_s:
                    break
        except WireError as error:
            self._refuse_bytes(error)
        finally:
            self._budget.end(self)
        if not waiting:
            self.close() if self._is_ended else self._read_on()
        return bool(waiting) and self._can_serve

    def _read_on(self) -> None:
        transport = self.transport
        if not self.is_read and transport is not None and not transport.is_closing():
            transport.resume_reading()
            if self._partial_bytes:  # reading was paused: restart the deadline
                self._partial_frames.update(self, self._partial_bytes, is_new=True)
        self.is_read = True
        self.waiting_bytes = 0

    def _refuse_bytes(self, error: WireError) -> None:
        self.refuse(type(error).__name__, str(error), failure_in(self._first))

    def eof_received(self) -> bool:
        """Keep the connection open until its waiting frames are handled; TLS closes it anyway."""
        self._is_ended = bool(self._waiting) and not self._board.is_secured
        return self._is_ended

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection; the next queued frame causes a new dial."""
        if self._waiting:
            self._board.counts["connection lost"] += len(self._waiting)
        error = exc if not self.is_greeted else None
        reason, detail = (None, "") if error is None else classify_tls_error(error)
        if reason is not None:  # TLS 1.3 reports only now that the peer refused the certificate
            self._board.refuse(reason, self, detail)
        self.failure = self.failure or (failure_of(exc) if exc is not None else CLOSED)
        if self._deadline is not None:
            self._deadline.cancel()
        self._forget_bytes()
        self._on_over()
        self._board.on_lost(self)
        if self._owner is not None:
            self._owner.on_lost(self)

    def pause_writing(self) -> None:
        """Stop writing: the peer reads too slowly, so frames stay in the bounded queue."""
        self.can_write = False

    def resume_writing(self) -> None:
        """Write the queued frames: the peer has caught up."""
        self.can_write = True
        if self._owner is not None:
            self._owner.flush()
        self._restart_waiting()

    # -- input -------------------------------------------------------------------------------

    def _on_late_frame(self, frame: Frame) -> None:
        """Refuse a late request without serving it: its sender gave up, or sends too many."""
        if self.sender is not None and self._owner is not None and frame.kind is not BUNDLE:
            envelope = decode(frame)
            message = envelope.message
            if is_request(message):
                self._owner.refuse_request(encode(envelope.topic, Refused(message.request, BUSY)))
                return
        self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> None:
        if self.sender is None:
            self._on_greeting(check_greeting(frame))
            return
        if frame.kind is BUNDLE and not self._is_client:
            self._board.receive_bundle(self.sender, unbundle(frame))
            return
        envelope = decode(frame)
        kind = type(envelope.message)
        if kind in _OWN_TYPES and self._is_about_connection(envelope.message):
            return
        if self._is_client and kind not in RUNTIME_TYPES:
            self.refuse("not for clients", kind.__name__)
            return
        if envelope.hints:
            self._board.learn(self.sender, envelope.hints)
        self._board.receive(self.sender, envelope, frame)

    def _is_about_connection(self, message: WireMessage) -> bool:
        """Handle a message about this connection or the names at its ends."""
        if type(message) in NAME_TYPES:
            self._board.on_name_message(self, cast("NameMessage", message))
            return True
        assert isinstance(message, Refused)
        if message.request != CONNECTION_REQUEST:
            return False
        self.failure = DialFailure(Cause.TURNED_AWAY, message.reason)
        self._is_refused = True
        self.abort()
        return True

    def _on_greeting(self, greeting: Hello) -> None:
        if not self._is_believed(greeting):
            shown_name = f"{self.certificate_name} as {greeting.node}"
            failure = DialFailure(Cause.UNTRUSTED, shown_name)
            self.refuse("name not in certificate", shown_name, failure)
        elif self._owner is not None and not self._owner.matches(greeting):
            self.refuse("wrong peer", greeting.node, wrong_peer(greeting))
        elif self._owner is None and greeting.role is Role.SUPERVISOR:
            self.refuse("supervisors do not dial")  # a process dials its supervisors itself
        elif greeting.role is Role.NODE:
            self._claim = greeting
            self._board.claim(self, greeting)
        else:
            self._attach(greeting)

    def _is_believed(self, greeting: Hello) -> bool:
        """Return True if the name fits the role and the peer's certificate permits it."""
        if (greeting.role is Role.SUPERVISOR) != (greeting.node == SUPERVISOR):
            return False
        if not self._board.is_secured:
            return True
        name = self.certificate_name
        if name is None:
            return False
        if greeting.role is Role.SUPERVISOR:
            return may_act_as(SUPERVISOR, name)  # the name in its certificate is below SUPERVISOR
        return may_act_as(name, greeting.node)

    def admit_name(self) -> None:
        """Start to handle messages: the peer holds the name it claimed."""
        greeting, self._claim = self._claim, None
        if greeting is None or self._is_refused:
            return
        self._attach(greeting)
        self._restart_waiting()

    def refuse_name(self, farewell: bytes, why: str) -> None:
        """Drop all messages; send a farewell and close after FAREWELL_S."""
        self._is_refused = True
        self._waiting.clear()
        self._board.refuse("name in use", self, why)
        self.write(farewell)
        if self._owner is not None:
            self._owner.on_lost(self)
        asyncio.get_running_loop().call_later(FAREWELL_S, self.close)

    def displace(self) -> None:
        """Close the connection at once: its peer does not answer."""
        if self._owner is not None:
            self._owner.on_lost(self)
        self.abort()

    def _restart_waiting(self) -> None:
        """Schedule waiting frames with a new arrival time: the loop did not cause their delay."""
        if self._waiting:
            now_s = self._budget.clock()
            self._waiting = deque((now_s, frame) for _, frame in self._waiting)
            self._budget.add(self)

    def _attach(self, greeting: Hello) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.role = greeting.role
        self._is_client = greeting.role is Role.CLIENT
        self.account = self.certificate_name or greeting.node
        why = None if self.is_dialled else self._board.why_no_place(self, self.account)
        if why is not None:
            self._refuse_with_reason("too many connections", why)
            return
        self.is_greeted = True
        self._first = b""
        if self._owner is None:
            self._owner = self._board.register(greeting)
        self.sender = self._owner.name
        self._on_over()
        self._owner.on_link(self)

    # -- output ------------------------------------------------------------------------------

    def write(self, data: bytes, frames: int = 1) -> None:
        """Write frames to the socket."""
        if self.transport is not None:
            self.is_used = True
            self._traffic["bytes_sent"] += len(data)
            self._traffic["frames_sent"] += frames
            self.transport.write(data)

    def check_deadlines(self, now: float) -> None:
        """Record whether the connection was used since the last call."""
        if self.is_used:
            self.is_used, self.used_s = False, now

    def refuse(self, reason: str, detail: str = "", failure: DialFailure | None = None) -> None:
        """Close the connection at once; count and log the reason."""
        self._is_refused = True
        self.failure = failure
        self._board.refuse(reason, self, detail)
        self.abort()

    def _refuse_with_reason(self, reason: str, why: str) -> None:
        """Refuse a connection after its greeting, and send the reason."""
        self._is_refused = True
        self._board.refuse(reason, self, why)
        self.write(encode(NO_TOPIC, Refused(CONNECTION_REQUEST, why)))
        self.close()
        asyncio.get_running_loop().call_later(TURN_AWAY_S, self.abort)  # it may not read the reason

    def make_room(self) -> None:
        """Close the connection: another client needs its place."""
        self._refuse_with_reason(
            "idle client", "this connection was idle, and another client needs a place"
        )

    def _forget_bytes(self) -> None:
        """Free unhandled input now: reference cycles keep the connection object alive longer."""
        self._waiting.clear()
        self._reader = FrameReader()
        self._partial_frames.forget(self)

    def close(self) -> None:
        """Close the connection after the written bytes are sent."""
        self._waiting.clear()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._forget_bytes()
        if self.transport is not None:
            self.transport.abort()
