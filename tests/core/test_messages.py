"""Messages: a closed set of frozen values, encoded as they are."""

import msgspec
import pytest
from hypothesis import given
from msgspec.structs import fields

from skipring.core.messages import (
    CARRIERS,
    CLAIMS,
    MESSAGE_TYPES,
    UNRECORDED,
    CheckAndPublish,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    Digest,
    Draining,
    GetConfiguration,
    HandoverDone,
    Held,
    IHave,
    Introduce,
    IntroduceShortcut,
    Message,
    RemoveConnections,
    ReportUnresponsive,
    RequestHandover,
    SetConfiguration,
    Subscribe,
    Terms,
    TrieEqual,
    Unsubscribe,
    Want,
    names_another,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId, Peer
from skipring.wire.rpc import WIRE_TYPES, WireMessage
from tests.support.machines import label, peer, unhurried
from tests.support.strategies import messages
from tests.wire.samples import SAMPLES

TAGS = {
    "Subscribe": 1,
    "Unsubscribe": 2,
    "GetConfiguration": 3,
    "SetConfiguration": 4,
    "CheckLabel": 5,
    "Introduce": 6,
    "IntroduceShortcut": 7,
    "RemoveConnections": 8,
    "Digest": 9,
    "CheckTrie": 10,
    "CheckAndPublish": 11,
    "Publications": 12,
    "TrieEqual": 13,
    "PublishNew": 14,
    "PublishMany": 17,
    "IHave": 15,
    "Want": 16,
    "CheckHeld": 18,
    "Held": 19,
    "Draining": 20,
    "RequestHandover": 21,
    "HandoverDone": 22,
    "Terms": 23,
    "ReportUnresponsive": 66,
    "Ping": 67,
    "Pong": 68,
    "ConfigurationAck": 69,
    "GetLogInfo": 81,
    "LogInfo": 82,
    "FetchLog": 83,
    "LogPage": 84,
    "Refused": 72,
}
decoder = msgspec.msgpack.Decoder(Message)


def test_tags_on_the_wire_are_stable() -> None:
    tags = {kind.__name__: kind.__struct_config__.tag for kind in MESSAGE_TYPES}
    assert tags == TAGS


@unhurried
@given(messages(("a", "b", SUPERVISOR)))
def test_every_message_survives_an_encoding_round_trip(message: Message) -> None:
    assert decoder.decode(msgspec.msgpack.encode(message)) == message


@unhurried
@given(messages(("a", "b", SUPERVISOR)))
def test_every_message_is_a_value(message: Message) -> None:
    assert message == msgspec.structs.replace(message)
    for name in message.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(message, name, None)


@unhurried
@given(messages(("a", "b", SUPERVISOR), set(MESSAGE_TYPES) - CARRIERS))
def test_every_message_without_a_publication_is_hashable(message: Message) -> None:
    assert hash(message) == hash(msgspec.structs.replace(message))


def test_message_is_an_array_that_starts_with_its_tag() -> None:
    message = Introduce(peer("01", "a"), EdgeKind.WRAP, first_hand=True)
    assert msgspec.to_builtins(message) == [6, [[1 << 62], "a"], "CYC", True]


@pytest.mark.parametrize(
    "wire",
    [
        [5, [[1 << 64], "a"], None, "LIN"],  # a label outside the circle
        [5, [[-1], "a"], None, "LIN"],
        [5, [None, "a"], None, "LIN"],  # a reference without a label
        [5, [[0], "a"], None, "SIDEWAYS"],
        [7],
        [10, "a", [[b""]]],  # a range summary without a prefix
        [10, "a", [[b"\x80", b"\xc0"]]],  # a label without a digest
        [10, "a", [[b"\x80", b"", b"", b"1234567"]]],  # a short id that is too short
        [13, "a", b"0" * 15],  # a digest that is too short
        [15, "a", b"0" * 8, b""],  # an id without its hops
        [99, "a"],  # an unknown message
    ],
)
def test_invalid_message_is_refused(wire: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wire, Message)


def test_configuration_of_an_unrecorded_node_is_empty() -> None:
    assert SetConfiguration(None, None, None) == UNRECORDED


def test_messages_distinguish_a_believed_label_from_a_label() -> None:
    own, other = Peer(label("0"), "a"), Peer(label("1"), "a")
    assert CheckLabel(own, None, EdgeKind.LINE) != CheckLabel(other, None, EdgeKind.LINE)


def test_short_ids_are_available_as_a_set_and_one_by_one() -> None:
    message = IHave("a", b"111111112222222211111111", bytes([1, 2, 3]))
    assert message.short_ids() == [(b"11111111", 1), (b"22222222", 2), (b"11111111", 3)]
    assert message.shorts() == {b"11111111", b"22222222"}


# -- claimed sender ---------------------------------------------------------------------------

# They name one node that is not the sender: each is a decision, recorded in 0045.
SUBJECTS = {IntroduceShortcut, ReportUnresponsive}


def of_one_node(kind: type[WireMessage]) -> list[str]:
    """Return the fields of a message that contain one node."""
    return [field.name for field in fields(kind) if field.type in (NodeId, NodeId | None, Peer)]


@pytest.mark.parametrize("kind", WIRE_TYPES)
def test_message_that_names_one_node_is_bound_to_its_sender_or_listed(
    kind: type[WireMessage],
) -> None:
    assert bool(of_one_node(kind)) == (kind in CLAIMS or kind in SUBJECTS)


def test_messages_with_a_sender_are_covered_by_the_field_name() -> None:
    named = {kind for kind in WIRE_TYPES if any(f.name == "sender" for f in fields(kind))}
    handing_over = {CheckHeld, Held, Draining, RequestHandover, HandoverDone}
    comparing = {CheckTrie, CheckAndPublish, TrieEqual, IHave, Want, Terms}
    assert named == {CheckLabel} | comparing | handing_over
    assert set(CLAIMS) == named | {
        Subscribe,
        Unsubscribe,
        GetConfiguration,
        Introduce,
        RemoveConnections,
        Digest,
    }


@pytest.mark.parametrize(
    "sample",
    [each for each in SAMPLES if type(each) in CLAIMS and each != Unsubscribe(None)],
    ids=lambda sample: type(sample).__name__,
)
def test_message_is_accepted_from_the_named_sender(sample: WireMessage) -> None:
    accepted = [peer for peer in ("a", "b", "c") if not names_another(sample, peer)]
    assert len(accepted) == 1
