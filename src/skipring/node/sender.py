"""Driver of the machines: events in, effects to connections and logs, in order.

A frame is encoded once and queued for every receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeGuard, cast

from skipring.core.effects import Effect, Send
from skipring.core.events import Event, Received
from skipring.core.messages import Message, PublishMany, PublishNew
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import WireError
from skipring.net.addresses import AddressBook, supervisor_of
from skipring.net.transport import Transport
from skipring.wire.claimed_sender import CLAIMS
from skipring.wire.codec import Envelope, encode, named_nodes, passed_on
from skipring.wire.framing import Frame
from skipring.wire.rpc import (
    Address,
    RuntimeMessage,
    WireMessage,
    is_runtime,
)


class Machines(Protocol):
    """The machines of all topics of a process."""

    def handle(self, topic: TopicId, event: Event) -> list[Effect]:
        """React to one event of one topic."""

    def tick(self) -> list[tuple[TopicId, list[Effect]]]:
        """Run the periodic actions of every topic."""


_NOTHING: Final = (None, None)


def _is_the_same(
    message: WireMessage, came: WireMessage | None
) -> TypeGuard[PublishNew | PublishMany]:
    """True if a message carries exactly the publications that another has brought."""
    if type(message) is PublishNew and type(came) is PublishNew:
        return message.publication is came.publication
    if type(message) is PublishMany and type(came) is PublishMany:
        return message.publications is came.publications
    return False


class Driver:
    """Drives the machines of one process."""

    def __init__(
        self,
        machines: Machines,
        *,
        node: NodeId,
        book: AddressBook,
        supervisors: Sequence[Address],
        keep: Callable[[TopicId, Effect], None],
        answer: Callable[[NodeId, TopicId, RuntimeMessage], None],
    ) -> None:
        self._machines = machines
        self._node = node
        self._book = book
        self.supervisors = tuple(supervisors)  # may be replaced at any time: topics then move
        self._keep = keep
        self._answer = answer
        self.links: Transport | None = None
        # What we react to at this moment: if it is passed on, its bytes are.
        self._came: tuple[WireMessage | None, Frame | None] = _NOTHING

    def receive(
        self, sender: NodeId, envelope: Envelope[WireMessage], frame: Frame | None = None
    ) -> None:
        """Hand a message of a peer to its machine; drop it if it names another sender (0045)."""
        message, topic = envelope.message, envelope.topic
        claim = CLAIMS.get(type(message))
        if claim is not None and not claim(message, sender):
            assert self.links is not None, "a message has come over a link"
            self.links.counts["speaks for another"] += 1
            return
        if is_runtime(message):
            self._answer(sender, topic, message)
            return
        effects = self._machines.handle(topic, Received(cast("Message", message), sender))
        if effects:
            self._came = message, frame
            self.perform(topic, effects)
            self._came = _NOTHING

    def tick(self) -> None:
        """Run the periodic actions of every topic."""
        self.perform_all(self._machines.tick())

    def give(self, topic: TopicId, event: Event) -> None:
        """Let the machine of a topic react to an event."""
        self.perform(topic, self._machines.handle(topic, event))

    def perform_all(self, work: Iterable[tuple[TopicId, list[Effect]]]) -> None:
        """Carry out the effects of several topics."""
        for topic, effects in work:
            self.perform(topic, effects)

    def perform(self, topic: TopicId, effects: Iterable[Effect]) -> None:
        """Carry out effects, in order."""
        made: tuple[WireMessage, bytes | None] | None = None
        for effect in effects:
            if type(effect) is not Send:
                self._keep(topic, effect)
                continue
            message = effect.message
            if made is None or made[0] is not message:
                made = (message, self._frame(topic, message))
            if made[1] is not None:
                self._send(topic, effect.to, made[1])

    def say(self, topic: TopicId, to: NodeId, message: RuntimeMessage) -> None:
        """Send a message of the runtime's own."""
        frame = self._frame(topic, message)
        if frame is not None:
            self._send(topic, to, frame)

    def supervisor_of(self, topic: TopicId) -> Address:
        """Where the supervisor of a topic is."""
        return supervisor_of(topic, self.supervisors)

    def _frame(self, topic: TopicId, message: WireMessage) -> bytes | None:
        message_came, frame_came = self._came
        if frame_came is not None and _is_the_same(message, message_came):
            raw = passed_on(frame_came, topic, message.hops)
            if raw is not None:
                return raw
        hints = self._book.hints(node for node in named_nodes(message) if node != self._node)
        try:
            return encode(topic, message, hints)
        except WireError:
            assert self.links is not None
            self.links.counts["not encodable"] += 1
            return None

    def _send(self, topic: TopicId, to: NodeId, frame: bytes) -> None:
        assert self.links is not None, "the driver has been started"
        if to == SUPERVISOR and not self.supervisors:
            self.links.counts["no supervisor"] += 1
        elif to == SUPERVISOR:
            self.links.send_to_supervisor(self.supervisor_of(topic), frame)
        else:
            self.links.send(to, frame)
