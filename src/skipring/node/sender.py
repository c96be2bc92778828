"""Outbound side of a process: a message is encoded once and queued for each receiver."""

from __future__ import annotations

from collections.abc import Callable

from skipring.core.effects import Send
from skipring.core.events import Event, Received
from skipring.core.messages import PublishMany, PublishNew
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import WireError
from skipring.net.transport import Transport
from skipring.wire.bundle import SMALL_TYPES, SmallMessage
from skipring.wire.codec import encode, forwarded, named_nodes
from skipring.wire.framing import Frame
from skipring.wire.rpc import Address, WireMessage

SupervisorOf = Callable[[TopicId], Address | None]


def _no_supervisor(_: TopicId) -> None:
    """Return None: the default of a process without supervisors."""


class Sender:
    """Encoder and address resolution in front of a transport."""

    def __init__(
        self,
        transport: Transport,
        *,
        node: NodeId,
        supervisor_of: SupervisorOf = _no_supervisor,
    ) -> None:
        self._transport = transport
        self._node = node
        self._supervisor_of = supervisor_of
        # The frame of the last effect: the receivers of one message share it.
        self._event: Event | None = None
        self._message: WireMessage | None = None
        self._frame: bytes | None = None

    def send(self, topic: TopicId, effect: Send, event: Event) -> None:
        """Queue the message of an effect; reuse the frame of ``event`` for a forwarded one."""
        message = effect.message
        if type(message) in SMALL_TYPES:
            self._bundle(topic, effect.to, message)  # type: ignore[arg-type]
            return
        if message is not self._message or event is not self._event:
            self._event, self._message = event, message
            frame = _forwarded(topic, message, event) if type(event) is Received else None
            self._frame = frame or self._encoded(topic, message)
        if self._frame is None:
            return
        if effect.to == SUPERVISOR:
            self._queue_for_supervisor(topic, self._frame)
        else:
            self._transport.send(effect.to, self._frame)

    def send_message(self, topic: TopicId, to: NodeId, message: WireMessage) -> None:
        """Queue a message of the host, such as a response."""
        if type(message) in SMALL_TYPES:
            self._bundle(topic, to, message)  # type: ignore[arg-type]
            return
        frame = self._encoded(topic, message)
        if frame is None:
            return
        if to == SUPERVISOR:
            self._queue_for_supervisor(topic, frame)
        else:
            self._transport.send(to, frame)

    def _bundle(self, topic: TopicId, to: NodeId, message: SmallMessage) -> None:
        if to != SUPERVISOR:
            self._transport.bundle(to, topic, message)
            return
        address = self._supervisor_of(topic)
        if address is None:
            self._transport.counts["no supervisor"] += 1
        else:
            self._transport.bundle_to_supervisor(address, topic, message)

    def _encoded(self, topic: TopicId, message: WireMessage) -> bytes | None:
        names = [node for node in named_nodes(message) if node != self._node]
        try:
            return encode(topic, message, self._transport.book.hints(names) if names else None)
        except WireError:
            self._transport.counts["not encodable"] += 1
            return None

    def _queue_for_supervisor(self, topic: TopicId, frame: bytes) -> None:
        address = self._supervisor_of(topic)
        if address is None:
            self._transport.counts["no supervisor"] += 1
        else:
            self._transport.send_to_supervisor(address, frame)


def _forwarded(topic: TopicId, message: WireMessage, event: Received) -> bytes | None:
    """Return the received frame with new hops if ``message`` carries the same publications."""
    if not isinstance(event.frame, Frame):
        return None
    received = event.message
    if type(message) is PublishNew and type(received) is PublishNew:
        is_same = message.publication is received.publication
    elif type(message) is PublishMany and type(received) is PublishMany:
        is_same = message.publications is received.publications
    else:
        return None
    return forwarded(event.frame, topic, message.hops) if is_same else None
