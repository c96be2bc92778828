"""The sender: frames encoded once, with hints, for nodes and supervisors."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from faults.samples import BATCH
from skipring.core.batches import RecordBatch
from skipring.core.effects import Send
from skipring.core.events import SubscribeRequested
from skipring.core.messages import (
    Digest,
    IntroduceShortcut,
    PublishNew,
    ReportUnresponsive,
    SetConfiguration,
    Subscribe,
)
from skipring.core.peers import SUPERVISOR
from skipring.net.addresses import AddressBook, supervisor_of
from skipring.net.transport import Transport
from skipring.node import sender as sender_module
from skipring.node.sender import Sender
from skipring.wire.bundle import Bundle, SmallMessage
from skipring.wire.codec import Envelope, decode, encode
from skipring.wire.rpc import FindMembers, WireMessage
from tests.support.machines import label, peer
from tests.wire.samples import the_frame

TOPIC = "news"
SUPERVISORS = ("10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000")
TOO_BIG = PublishNew(RecordBatch("a", 1, 1, bytes(1 << 20), id=bytes(32)))


class RecordingTransport:
    """A sender over a transport that records frames."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []  # receivers and messages
        self.counts: Counter[str] = Counter()
        self.book = AddressBook()
        self.supervisors = SUPERVISORS
        self.sender = Sender(
            cast("Transport", self),
            node="me",
            supervisor_of=lambda topic: (
                supervisor_of(topic, self.supervisors) if self.supervisors else None
            ),
        )

    def perform(self, topic: str, effects: list[Send]) -> None:
        """Send the messages of one event."""
        event = SubscribeRequested()
        for effect in effects:
            self.sender.send(topic, effect, event)

    def send(self, to: str, frame: bytes) -> None:
        self.log.append((to, decode(the_frame(frame))))

    def send_to_supervisor(self, address: str, frame: bytes) -> None:
        self.log.append((address, decode(the_frame(frame))))

    def bundle(self, to: str, topic: str, message: SmallMessage) -> None:
        self._write(to, topic, message)

    def bundle_to_supervisor(self, address: str, topic: str, message: SmallMessage) -> None:
        self._write(address, topic, message)

    def _write(self, to: str, topic: str, message: SmallMessage) -> None:
        """Write a bundle of one message, as a peer does."""
        bundle = Bundle()
        bundle.add(topic, message)
        for frame in bundle.frames(
            lambda nodes: self.book.hints([node for node in nodes if node != "me"])
        ):
            if frame is None:
                self.counts["not encodable"] += 1
            else:
                self.log.append((to, decode(the_frame(frame))))

    @property
    def sent(self) -> list[tuple[str, Any, dict[str, str]]]:
        """Return receiver, message and hints of each frame."""
        return [(to, it.message, it.hints) for to, it in self.log]


@pytest.fixture
def host() -> RecordingTransport:
    return RecordingTransport()


# -- receivers -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [f"t{number}" for number in range(8)])
def test_message_for_the_supervisor_goes_to_the_supervisor_of_the_topic(
    host: RecordingTransport, topic: str
) -> None:
    host.perform(topic, [Send(SUPERVISOR, Subscribe("me")), Send("x", Digest("a", 1))])
    assert [to for to, *_ in host.sent] == [supervisor_of(topic, SUPERVISORS), "x"]


# -- frames ----------------------------------------------------------------------------------


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record every message that is encoded."""
    made: list[object] = []

    def counting(topic: str, message: WireMessage, hints: dict[str, str]) -> bytes:
        made.append(message)
        return encode(topic, message, hints)

    monkeypatch.setattr(sender_module, "encode", counting)
    return made


def test_message_to_several_receivers_is_encoded_once(
    host: RecordingTransport, encoded: list[object]
) -> None:
    message = PublishNew(BATCH, 1)
    host.perform(TOPIC, [Send("x", message), Send("y", message), Send("z", message)])
    assert [to for to, *_ in host.sent] == ["x", "y", "z"]
    assert len(encoded) == 1


def test_different_message_never_reuses_the_previous_frame(
    host: RecordingTransport, encoded: list[object]
) -> None:
    messages = [Digest("a", number // 2) for number in range(6)]  # pairs of equal messages
    host.perform(TOPIC, [Send("x", message) for message in messages])
    assert [message for _, message, _ in host.sent] == messages
    host.perform("other", [Send("x", messages[-1])])
    assert host.log[-1] == ("x", Envelope(messages[-1], "other"))


# -- hints -----------------------------------------------------------------------------------


def test_hints_are_given_for_named_nodes_in_the_address_book(host: RecordingTransport) -> None:
    host.book.greet("a", "10.1.0.1:1")
    host.book.learn({"b": "10.1.0.2:1", "not named": "10.1.0.3:1"})
    host.perform(
        TOPIC,
        [
            Send("x", SetConfiguration(peer("0", "a"), label("01"), peer("1", "b"))),
            Send("x", SetConfiguration(peer("0", "b"), label("01"), peer("1", "unknown"))),
            Send("x", SetConfiguration(None, label("0"), None)),
        ],
    )
    assert [hints for *_, hints in host.sent] == [
        {"a": "10.1.0.1:1", "b": "10.1.0.2:1"},
        {"b": "10.1.0.2:1"},
        {},
    ]


def test_node_gives_no_hint_about_itself(host: RecordingTransport) -> None:
    host.book.greet("me", "10.1.0.1:1")
    host.perform(TOPIC, [Send("x", IntroduceShortcut(peer("0", "me")))])
    assert host.sent == [("x", IntroduceShortcut(peer("0", "me")), {})]


# -- messages that cannot be sent ------------------------------------------------------------


def test_unencodable_message_is_counted_and_the_rest_is_sent(host: RecordingTransport) -> None:
    good = Digest("a", 1)
    host.perform(TOPIC, [Send("x", good), Send("x", TOO_BIG), Send("y", good), Send("z", good)])
    assert host.log == [
        ("x", Envelope(good, TOPIC)),
        ("y", Envelope(good, TOPIC)),
        ("z", Envelope(good, TOPIC)),
    ]
    assert host.counts == {"not encodable": 1}


@pytest.mark.parametrize(
    "batch",
    [
        RecordBatch("a", 1, 1, b"", id=bytes(32)),
        RecordBatch("a", 1, 1, b"\x90"),
        RecordBatch("half \ud800", 1, 1, b"\x90", id=bytes(32)),
        RecordBatch("a", 1 << 70, 1, b"\x90", id=bytes(32)),
    ],
    ids=["no body", "no id", "lone surrogate", "a number too large"],
)
def test_unencodable_batch_does_not_stop_the_sender(
    host: RecordingTransport, batch: RecordBatch
) -> None:
    host.perform(TOPIC, [Send("x", PublishNew(batch))])
    assert host.log == []
    assert host.counts == {"not encodable": 1}


def test_messages_for_supervisors_are_dropped_and_counted_without_any(
    host: RecordingTransport,
) -> None:
    host.supervisors = ()
    host.perform(TOPIC, [Send(SUPERVISOR, Subscribe("me"))])
    assert host.log == []
    assert sum(host.counts.values()) == 1


def test_runtime_message_is_sent_like_core_messages(host: RecordingTransport) -> None:
    host.book.learn({"b": "10.1.0.2:1"})
    host.sender.send_message(TOPIC, "x", FindMembers(1, 8))
    host.sender.send_message(TOPIC, SUPERVISOR, ReportUnresponsive("b"))
    host.sender.send_message(TOPIC, "x", FindMembers(1, 1 << 70))  # too large for any encoding
    assert host.sent == [
        ("x", FindMembers(1, 8), {}),
        (supervisor_of(TOPIC, SUPERVISORS), ReportUnresponsive("b"), {"b": "10.1.0.2:1"}),
    ]
    assert host.counts == {"not encodable": 1}
