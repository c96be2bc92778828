"""Forwarding: the received bytes with a new hop count; partly known messages are encoded again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Send, Store
from skipring.core.events import Event, Flush, Overwritten, PublishRequested, Received
from skipring.core.log import MemoryLog
from skipring.core.messages import Message, PublishMany, PublishNew
from skipring.core.peers import NodeId, TopicId
from skipring.core.state import legitimate_state
from skipring.core.subscriber import Subscriber
from skipring.net.addresses import AddressBook
from skipring.net.transport import Transport
from skipring.node import sender as sender_module
from skipring.node.sender import Sender
from skipring.wire.codec import decode, encode
from skipring.wire.framing import DATA, Frame
from skipring.wire.rpc import Address, WireMessage
from tests.support.machines import ME, TOPIC, Scripted
from tests.wire.samples import the_frame

OTHERS = ["b", "e", "f", "j", "k"]  # the neighbours of m in a ring of 16, except the sender a


class ForwardingNode:
    """A sender between a machine and links that record frames."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, bytes]] = []
        self.counts: Counter[str] = Counter()
        self.answers: list[Effect] | None = None  # used instead of the effects of the machine
        self._log = MemoryLog()
        config = ProtocolConfig(repairs=False, defers_indexing=True)
        self._machine = Subscriber(ME, topic=TOPIC, rng=Scripted(1), config=config, log=self._log)
        self._machine.handle(Overwritten(legitimate_state(2, ["a", "b", ME, *"defghijklnopq"])))
        self.book = AddressBook()
        self._sender = Sender(cast("Transport", self), node=ME)

    def dispatch(self, event: Event) -> None:
        """Apply the effects of the machine, or those of the test instead."""
        effects = self._machine.handle(event) if self.answers is None else self.answers
        for effect in effects:
            if isinstance(effect, Send):
                self._sender.send(TOPIC, effect, event)
            elif isinstance(effect, Store):
                for batch in effect.batches:
                    self._log.append(batch)

    def send(self, to: NodeId, frame: bytes) -> None:
        self.sent.append((to, frame))

    def receive(self, frame: Frame) -> list[bytes]:
        """Receive a frame from a; return the distinct frames sent to all other neighbours."""
        self.sent.clear()
        message = cast("Message", decode(frame).message)
        self.dispatch(Received(message, "a", frame))
        frames = list(dict.fromkeys(frame for _, frame in self.sent))
        for each in frames:
            assert sorted(to for to, sent in self.sent if sent == each) == OTHERS
        return frames


@pytest.fixture
def host() -> ForwardingNode:
    return ForwardingNode()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[WireMessage]:
    """Record every message that is encoded again."""
    made: list[WireMessage] = []

    def noting(topic: TopicId, message: WireMessage, hints: Mapping[NodeId, Address]) -> bytes:
        made.append(message)
        return encode(topic, message, hints)

    monkeypatch.setattr(sender_module, "encode", noting)
    return made


def made(first: int, publisher: NodeId = "z") -> RecordBatch:
    """Return a batch of two records."""
    records = [BatchRecord(b"news", headers={"n": "1"}), BatchRecord(b"more", key=b"k")]
    return RecordBatch.of(records, publisher=publisher, first=first, topic=TOPIC)


def came(message: PublishNew | PublishMany) -> Frame:
    """Return a frame as other nodes of this revision encode it."""
    return the_frame(encode(TOPIC, message))


# -- forwarded bytes -------------------------------------------------------------------------


def test_publication_is_forwarded_unchanged_one_hop_further(
    host: ForwardingNode, written: list[WireMessage]
) -> None:
    assert host.receive(came(PublishNew(made(0), 3))) == [encode(TOPIC, PublishNew(made(0), 4))]
    assert written == []


def test_differently_encoded_body_is_forwarded_unchanged(
    host: ForwardingNode, written: list[WireMessage]
) -> None:
    """Encode the size of the batch's body with four bytes, where one would do."""
    body = came(PublishNew(made(0), 3)).body
    inside = made(0).body
    short = b"\xc4" + bytes([len(inside)]) + inside
    assert body.count(short) == 1
    other = body.replace(short, b"\xc6" + len(inside).to_bytes(4, "big") + inside)
    [passed] = host.receive(Frame(DATA, other))
    end = len(other) - len(msgspec.msgpack.encode(TOPIC)) - 1
    assert the_frame(passed).body == other[: end - 1] + b"\x04" + other[end:]
    assert written == []


# -- encoded again ---------------------------------------------------------------------------


def test_new_part_of_a_pack_is_encoded_again(
    host: ForwardingNode, written: list[WireMessage]
) -> None:
    host.receive(came(PublishMany((made(0), made(1)))))
    assert host.receive(came(PublishMany((made(1), made(2)), 4))) == [
        encode(TOPIC, PublishNew(made(2), 5))
    ]
    assert host.receive(came(PublishMany((made(2), made(3), made(4)), 0))) == [
        encode(TOPIC, PublishMany((made(3), made(4)), 1))
    ]
    assert len(written) == 2


def test_invalid_batches_of_a_pack_are_not_forwarded(host: ForwardingNode) -> None:
    forged = replace(made(2), first=7)
    unreadable = RecordBatch("z", 4, 1, b"\xc1").with_id(TOPIC)
    assert host.receive(came(PublishMany((made(0), forged, unreadable, made(1)), 1))) == [
        encode(TOPIC, PublishMany((made(0), made(1)), 2))
    ]
    assert host.receive(came(PublishNew(forged))) == []
    assert host.receive(came(PublishNew(unreadable))) == []


@pytest.mark.parametrize(("before", "after"), [(126, 127), (127, 128), (254, 255), (255, 255)])
def test_hop_counts_of_any_size_are_incremented(
    host: ForwardingNode, before: int, after: int
) -> None:
    pack = (made(0), made(1))
    assert host.receive(came(PublishMany(pack, before))) == [
        encode(TOPIC, PublishMany(pack, after))
    ]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (PublishNew(made(0)), PublishNew(made(1))),
        (PublishMany((made(0), made(1))), PublishMany((made(0), made(2)))),
        (PublishMany((made(0), made(1))), PublishNew(made(1))),
    ],
)
def test_different_message_never_reuses_the_received_bytes(
    host: ForwardingNode, message: PublishNew | PublishMany, answer: PublishNew | PublishMany
) -> None:
    host.answers = [Send(node, answer) for node in OTHERS]
    assert host.receive(came(message)) == [encode(TOPIC, answer)]


def test_later_message_never_reuses_earlier_bytes(host: ForwardingNode) -> None:
    host.receive(came(PublishNew(made(0))))
    host.sent.clear()
    host.dispatch(PublishRequested((BatchRecord(b"own"),)))
    own = RecordBatch.of([BatchRecord(b"own")], publisher=ME, first=0, topic=TOPIC)
    assert {frame for _, frame in host.sent} == {encode(TOPIC, PublishNew(own, 0))}
    host.dispatch(Flush())
    [second] = host.receive(came(PublishNew(made(1), 7)))
    assert second == encode(TOPIC, PublishNew(made(1), 8))
