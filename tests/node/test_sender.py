"""The sender: effects in order, frames encoded once, and only messages for the machines."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from skipring.core.effects import Deliver, Discard, Effect, Origin, Send, Store, Unsubscribed
from skipring.core.events import Event, Received, SubscribeRequested
from skipring.core.messages import (
    MESSAGE_TYPES,
    Digest,
    IntroduceShortcut,
    PublishNew,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import SUPERVISOR
from skipring.core.publications import Publication
from skipring.net.addresses import AddressBook, supervisor_of
from skipring.node import sender as driver_module
from skipring.node.sender import Driver
from skipring.wire.claimed_sender import names_another
from skipring.wire.codec import Envelope, decode, encode
from skipring.wire.rpc import RUNTIME_TYPES, FindMembers, ReportUnresponsive, WireMessage
from tests.support.machines import label, peer
from tests.wire.samples import PUBLICATION, SAMPLES, the_frame

TOPIC = "news"
SUPERVISORS = ("10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000")
TOO_BIG = PublishNew(Publication(publisher="a", seq=1, payload=bytes(1 << 20)))


class Host:
    """A sender between machines and links that only record calls."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []  # stored and sent effects
        self.events: list[tuple[str, Event]] = []  # events that reached the machines
        self.asked: list[tuple[Any, ...]] = []  # messages for the runtime
        self.answers: list[Effect] = []  # effects of the machine for any event
        self.ticks: list[tuple[str, list[Effect]]] = []
        self.counts: Counter[str] = Counter()
        self.book = AddressBook()
        self.driver = Driver(
            self,
            node="me",
            book=self.book,
            supervisors=SUPERVISORS,
            keep=lambda topic, effect: self.log.append((topic, effect)),
            answer=lambda *given: self.asked.append(given),
        )
        self.driver.links = self  # type: ignore[assignment]

    def handle(self, topic: str, event: Event) -> list[Effect]:
        self.events.append((topic, event))
        return self.answers

    def tick(self) -> list[tuple[str, list[Effect]]]:
        return self.ticks

    def send(self, to: str, frame: bytes) -> None:
        self.log.append((to, decode(the_frame(frame))))

    def send_to_supervisor(self, address: str, frame: bytes) -> None:
        self.log.append((address, decode(the_frame(frame))))

    @property
    def sent(self) -> list[tuple[str, Any, dict[str, str]]]:
        """Return receiver, message and hints of each frame."""
        return [(to, it.message, it.hints) for to, it in self.log if isinstance(it, Envelope)]


@pytest.fixture
def host() -> Host:
    return Host()


# -- effects ---------------------------------------------------------------------------------


def test_effects_are_performed_in_order(host: Host) -> None:
    store, left, discard = Store(3, (PUBLICATION,)), Unsubscribed(), Discard(9)
    deliver = Deliver((PUBLICATION,), 3, Origin.OWN, 0)
    first, second = Digest("a", 1), Digest("a", 2)
    host.driver.perform(
        TOPIC,
        [store, Send("x", first), deliver, Send("y", second), discard, Send("x", first), left],
    )
    assert host.log == [
        (TOPIC, store),
        ("x", Envelope(first, TOPIC)),
        (TOPIC, deliver),
        ("y", Envelope(second, TOPIC)),
        (TOPIC, discard),
        ("x", Envelope(first, TOPIC)),
        (TOPIC, left),
    ]


def test_effects_of_an_event_are_performed_in_its_topic(host: Host) -> None:
    host.answers = [Send("x", Digest("a", 1)), Unsubscribed()]
    host.driver.give("prices", SubscribeRequested())
    assert host.events == [("prices", SubscribeRequested())]
    assert host.log == [("x", Envelope(Digest("a", 1), "prices")), ("prices", Unsubscribed())]


def test_tick_performs_the_effects_of_every_topic_under_its_name(host: Host) -> None:
    message = Digest("a", 1)
    host.ticks = [("one", [Send("x", message)]), ("two", [Send("x", message), Unsubscribed()])]
    host.driver.tick()
    assert host.log == [
        ("x", Envelope(message, "one")),
        ("x", Envelope(message, "two")),
        ("two", Unsubscribed()),
    ]


@pytest.mark.parametrize("topic", [f"t{number}" for number in range(8)])
def test_message_for_the_supervisor_goes_to_the_supervisor_of_the_topic(
    host: Host, topic: str
) -> None:
    host.driver.perform(topic, [Send(SUPERVISOR, Subscribe("me")), Send("x", Digest("a", 1))])
    assert [to for to, *_ in host.sent] == [supervisor_of(topic, SUPERVISORS), "x"]


# -- frames ----------------------------------------------------------------------------------


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record every message that is encoded."""
    made: list[object] = []

    def counting(topic: str, message: WireMessage, hints: dict[str, str]) -> bytes:
        made.append(message)
        return encode(topic, message, hints)

    monkeypatch.setattr(driver_module, "encode", counting)
    return made


def test_message_to_several_receivers_is_encoded_once(host: Host, encoded: list[object]) -> None:
    message = PublishNew(PUBLICATION, 1)
    host.driver.perform(
        TOPIC, [Send("x", message), Send("y", message), Unsubscribed(), Send("z", message)]
    )
    assert [to for to, *_ in host.sent] == ["x", "y", "z"]
    assert len(encoded) == 1


def test_different_message_never_reuses_the_previous_frame(
    host: Host, encoded: list[object]
) -> None:
    messages = [Digest("a", number // 2) for number in range(6)]  # pairs of equal messages
    host.driver.perform(TOPIC, [Send("x", message) for message in messages])
    assert [message for _, message, _ in host.sent] == messages
    host.driver.perform("other", [Send("x", messages[-1])])
    assert host.log[-1] == ("x", Envelope(messages[-1], "other"))


# -- hints -----------------------------------------------------------------------------------


def test_hints_are_given_for_named_nodes_in_the_address_book(host: Host) -> None:
    host.book.greet("a", "10.1.0.1:1")
    host.book.learn({"b": "10.1.0.2:1", "not named": "10.1.0.3:1"})
    host.driver.perform(
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


def test_node_gives_no_hint_about_itself(host: Host) -> None:
    host.book.greet("me", "10.1.0.1:1")
    host.driver.perform(TOPIC, [Send("x", IntroduceShortcut(peer("0", "me")))])
    assert host.sent == [("x", IntroduceShortcut(peer("0", "me")), {})]


def test_node_without_listen_address_gets_no_hint(host: Host) -> None:
    host.book.greet("a", "")
    host.driver.perform(TOPIC, [Send("x", IntroduceShortcut(peer("0", "a")))])
    assert host.sent == [("x", IntroduceShortcut(peer("0", "a")), {})]


# -- messages that cannot be sent ------------------------------------------------------------


def test_unencodable_message_is_counted_and_the_rest_is_sent(host: Host) -> None:
    good = Digest("a", 1)
    host.driver.perform(
        TOPIC,
        [Send("x", good), Send("x", TOO_BIG), Unsubscribed(), Send("y", good), Send("z", good)],
    )
    assert host.log == [
        ("x", Envelope(good, TOPIC)),
        (TOPIC, Unsubscribed()),
        ("y", Envelope(good, TOPIC)),
        ("z", Envelope(good, TOPIC)),
    ]
    assert host.counts == {"not encodable": 1}


@pytest.mark.parametrize(
    "publication",
    [
        Publication(publisher="a", seq=1),
        Publication(publisher="a", seq=1, payload=b"", headers={"half": "\ud800"}),
        Publication(publisher="no node at all", seq=1, payload=b""),
        Publication(publisher="a", seq=1 << 70, payload=b""),
    ],
    ids=["no payload", "half a character", "a bad name", "a number too large"],
)
def test_unencodable_publication_does_not_stop_the_sender(
    host: Host, publication: Publication
) -> None:
    host.driver.perform(TOPIC, [Send("x", PublishNew(publication)), Unsubscribed()])
    assert host.log == [(TOPIC, Unsubscribed())]
    assert host.counts == {"not encodable": 1}


@pytest.mark.parametrize("topic", ["", "a\nb", "x" * 256, "\udc00"])
def test_unencodable_topic_does_not_stop_the_sender(host: Host, topic: str) -> None:
    host.driver.perform(topic, [Send("x", Digest("a", 1)), Unsubscribed()])
    assert host.log == [(topic, Unsubscribed())]
    assert host.counts == {"not encodable": 1}


def test_unencodable_message_is_tried_once_for_all_receivers(
    host: Host, encoded: list[object]
) -> None:
    host.driver.perform(TOPIC, [Send(to, TOO_BIG) for to in "xyz"])
    assert host.log == []
    assert len(encoded) == 1


def test_messages_for_supervisors_are_dropped_and_counted_without_any(host: Host) -> None:
    host.driver.supervisors = ()
    host.driver.perform(TOPIC, [Send(SUPERVISOR, Subscribe("me")), Unsubscribed()])
    assert host.log == [(TOPIC, Unsubscribed())]
    assert sum(host.counts.values()) == 1


# -- received messages -----------------------------------------------------------------------


def test_core_messages_reach_the_machine_with_their_sender(host: Host) -> None:
    messages = [message for message in SAMPLES if type(message) in MESSAGE_TYPES]
    messages[messages.index(Unsubscribe(None))] = Unsubscribe("a")
    senders = ["a" if names_another(message, "b") else "b" for message in messages]
    for message, sender in zip(messages, senders, strict=True):
        host.driver.receive(sender, Envelope(message, TOPIC))
    assert host.events == [
        (TOPIC, Received(message, sender))
        for message, sender in zip(messages, senders, strict=True)
    ]
    assert {type(message) for message in messages} == set(MESSAGE_TYPES)


def test_runtime_messages_do_not_reach_the_machines(host: Host) -> None:
    messages = [message for message in SAMPLES if type(message) in RUNTIME_TYPES]
    for message in messages:
        host.driver.receive("x", Envelope(message, TOPIC))
    assert {type(message) for message in messages} == set(RUNTIME_TYPES)
    assert host.asked == [("x", TOPIC, message) for message in messages]
    assert host.events == []
    assert host.log == []


def test_runtime_message_is_sent_like_core_messages(host: Host) -> None:
    host.book.learn({"b": "10.1.0.2:1"})
    host.driver.say(TOPIC, "x", FindMembers(1, 8))
    host.driver.say(TOPIC, SUPERVISOR, ReportUnresponsive("b"))
    host.driver.say(TOPIC, "x", FindMembers(1, 0))  # a limit of 0 is invalid
    assert host.sent == [
        ("x", FindMembers(1, 8), {}),
        (supervisor_of(TOPIC, SUPERVISORS), ReportUnresponsive("b"), {"b": "10.1.0.2:1"}),
    ]
    assert host.counts == {"not encodable": 1}
