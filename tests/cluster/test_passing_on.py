"""What is passed on goes as the bytes that came, but for its hops; a part of it is written anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Send, Store
from skipring.core.events import Event, Flush, PublishRequested
from skipring.core.log import MemoryLog
from skipring.core.messages import PublishMany, PublishNew
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.core.state import legitimate_state
from skipring.core.subscriber import Subscriber
from skipring.net.addresses import AddressBook
from skipring.node import sender as driver_module
from skipring.node.sender import Driver
from skipring.wire.codec import decode, encode
from skipring.wire.framing import DATA, Frame
from skipring.wire.rpc import Address, WireMessage
from tests.support.machines import ME, TOPIC, Scripted
from tests.wire.samples import the_frame

OTHERS = ["b", "e", "f", "j", "k"]  # the neighbours of m in a ring of 16, but for the sender, a


class Host:
    """A driver between a machine that keeps late and links that write down what they send."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, bytes]] = []
        self.counts: Counter[str] = Counter()
        self.answers: list[Effect] | None = None  # instead of the machine's
        self._archive = MemoryLog()
        config = ProtocolConfig(repairs=False, defers_storage=True)
        self._machine = Subscriber(
            ME, topic=TOPIC, rng=Scripted(1), config=config, archive=self._archive
        )
        self._machine.load(legitimate_state(2, ["a", "b", ME, *"defghijklnopq"]))
        self.driver = Driver(
            self,
            node=ME,
            book=AddressBook(),
            supervisors=(),
            keep=self._keep,
            answer=lambda *_: None,
        )
        self.driver.links = self  # type: ignore[assignment]

    def handle(self, topic: TopicId, event: Event) -> list[Effect]:
        assert topic == TOPIC
        return self._machine.handle(event) if self.answers is None else self.answers

    def tick(self) -> list[tuple[TopicId, list[Effect]]]:
        return []

    def send(self, to: NodeId, frame: bytes) -> None:
        self.sent.append((to, frame))

    def _keep(self, topic: TopicId, effect: Effect) -> None:
        del topic
        if isinstance(effect, Store):
            self._archive.write(effect.offset, *effect.publications)

    def receive(self, frame: Frame) -> list[bytes]:
        """Take a frame from a; what is sent to all other neighbours, each frame once."""
        self.sent.clear()
        self.driver.receive("a", decode(frame), frame)
        frames = list(dict.fromkeys(frame for _, frame in self.sent))
        for each in frames:
            assert sorted(to for to, sent in self.sent if sent == each) == OTHERS
        return frames


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[WireMessage]:
    """Every message that was written anew."""
    made: list[WireMessage] = []

    def noting(topic: TopicId, message: WireMessage, hints: Mapping[NodeId, Address]) -> bytes:
        made.append(message)
        return encode(topic, message, hints)

    monkeypatch.setattr(driver_module, "encode", noting)
    return made


def made(seq: int, publisher: NodeId = "z") -> Publication:
    return Publication(publisher=publisher, seq=seq, payload=b"news", headers={"n": "1"})


def came(message: PublishNew | PublishMany) -> Frame:
    """A frame as others of this revision write it."""
    return the_frame(encode(TOPIC, message))


# -- as it came ------------------------------------------------------------------------------


def test_a_publication_is_passed_on_as_it_came_one_hop_further(
    host: Host, written: list[WireMessage]
) -> None:
    assert host.receive(came(PublishNew(made(0), 3))) == [encode(TOPIC, PublishNew(made(0), 4))]
    assert written == []


def test_a_pack_is_passed_on_as_it_came_one_hop_further(
    host: Host, written: list[WireMessage]
) -> None:
    pack = (made(0), made(1), made(7))
    assert host.receive(came(PublishMany(pack, 0))) == [encode(TOPIC, PublishMany(pack, 1))]
    assert written == []


def test_a_body_that_is_written_in_another_way_goes_on_as_it_is(
    host: Host, written: list[WireMessage]
) -> None:
    """A payload behind a length of four bytes, where one would do."""
    body = came(PublishNew(made(0), 3)).body
    other = body.replace(b"\xc4\x04news", b"\xc6\0\0\0\x04news")
    assert other != body
    [passed] = host.receive(Frame(DATA, other))
    end = len(other) - len(msgspec.msgpack.encode(TOPIC)) - 1
    assert the_frame(passed).body == other[: end - 1] + b"\x04" + other[end:]
    assert written == []


# -- written anew ----------------------------------------------------------------------------


def test_if_only_a_part_is_new_that_is_written_anew(host: Host, written: list[WireMessage]) -> None:
    host.receive(came(PublishMany((made(0), made(1)))))
    assert host.receive(came(PublishMany((made(1), made(2)), 4))) == [
        encode(TOPIC, PublishNew(made(2), 5))
    ]
    assert host.receive(came(PublishMany((made(2), made(3), made(4)), 0))) == [
        encode(TOPIC, PublishMany((made(3), made(4)), 1))
    ]
    assert len(written) == 2


def test_what_is_known_is_not_passed_on(host: Host) -> None:
    host.receive(came(PublishMany((made(0), made(1)))))
    assert host.receive(came(PublishNew(made(0)))) == []
    assert host.receive(came(PublishMany((made(1), made(0))))) == []


def test_what_ids_had_to_decide_of_goes_on_complete(host: Host) -> None:
    pack = (made(3), made(0, "y"), made(2))
    assert host.receive(came(PublishMany(pack, 1))) == [encode(TOPIC, PublishMany(pack, 2))]


@pytest.mark.parametrize(("before", "after"), [(126, 127), (127, 128), (254, 255), (255, 255)])
def test_hops_of_any_size_are_counted_on(host: Host, before: int, after: int) -> None:
    pack = (made(0), made(1))
    assert host.receive(came(PublishMany(pack, before))) == [
        encode(TOPIC, PublishMany(pack, after))
    ]


def test_a_pack_of_one_goes_on_as_one(host: Host) -> None:
    assert host.receive(came(PublishMany((made(0),), 0))) == [encode(TOPIC, PublishNew(made(0), 1))]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (PublishNew(made(0)), PublishNew(made(1))),
        (PublishMany((made(0), made(1))), PublishMany((made(0), made(2)))),
        (PublishMany((made(0), made(1))), PublishNew(made(1))),
    ],
)
def test_something_else_never_goes_out_in_the_bytes_of_what_has_just_come(
    host: Host, message: PublishNew | PublishMany, answer: PublishNew | PublishMany
) -> None:
    host.answers = [Send(node, answer) for node in OTHERS]
    assert host.receive(came(message)) == [encode(TOPIC, answer)]


def test_nothing_goes_out_in_the_bytes_of_what_came_before(host: Host) -> None:
    host.receive(came(PublishNew(made(0))))
    host.sent.clear()
    host.driver.give(TOPIC, PublishRequested(payload=b"own"))
    own = Publication(publisher=ME, seq=0, payload=b"own")
    assert {frame for _, frame in host.sent} == {encode(TOPIC, PublishNew(own, 0))}
    host.driver.give(TOPIC, Flush())
    [second] = host.receive(came(PublishNew(made(1), 7)))
    assert second == encode(TOPIC, PublishNew(made(1), 8))
