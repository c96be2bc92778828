"""Bundles: small messages of many topics in one frame, and what a reader refuses."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.frames import mutated, mutated_bundle
from skipring.core.messages import (
    CheckLabel,
    ConfigurationAck,
    Digest,
    IntroduceShortcut,
    Ping,
    SetConfiguration,
)
from skipring.core.peers import NodeId
from skipring.errors import MessageError, WireError
from skipring.wire import bundle as bundle_module
from skipring.wire.bundle import (
    KNOWN_BUNDLES_MAX,
    KNOWN_BYTES_MAX,
    KNOWN_MAX,
    MESSAGES_MAX,
    REMEMBERED_MESSAGES_MAX,
    SMALL_TYPES,
    Bundle,
    SmallMessage,
    unbundle,
)
from skipring.wire.codec import FORMATS, decode
from skipring.wire.framing import BUNDLE, CONTROL, CONTROL_BYTES_MAX, Frame, FrameReader
from skipring.wire.rpc import WireMessage
from tests.support.machines import peer, unhurried
from tests.wire.samples import SAMPLES, TOPIC, frames_of

SMALL = [each for each in SAMPLES if type(each) in SMALL_TYPES]
LARGE = [each for each in SAMPLES if type(each) not in SMALL_TYPES]
BOOK = {"b": "10.0.0.2:1", "c": "10.0.0.3:1"}
ACK = msgspec.to_builtins(ConfigurationAck())


def hints_of(nodes: Iterable[NodeId]) -> dict[NodeId, str]:
    return {node: BOOK[node] for node in nodes if node in BOOK}


def written(*sent: tuple[str, Any]) -> list[Frame]:
    """Return the frames of a bundle."""
    bundle = Bundle()
    for topic, message in sent:
        bundle.add(topic, message)
    made = list(bundle.frames(hints_of))
    assert None not in made
    return frames_of(b"".join(each for each in made if each is not None))


def read(frame: Frame) -> list[tuple[str, WireMessage]]:
    """Return the messages of a frame of either kind, with their topics."""
    if frame.kind is CONTROL:
        envelope = decode(frame)
        return [(envelope.topic, envelope.message)]
    return [(each.topic, message) for each in unbundle(frame).groups for message in each.messages]


def body(groups: object, *more: object) -> Frame:
    return Frame(BUNDLE, msgspec.msgpack.encode([groups, *more]))


def encoded(message: WireMessage) -> object:
    """Return a message as the decoder of MessagePack sees it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message))


# -- round trip ------------------------------------------------------------------------------


def test_small_messages_are_control_messages_without_answers_of_their_own_number() -> None:
    assert {type(each) for each in SMALL} == SMALL_TYPES
    assert all(FORMATS[kind].frame_kind is CONTROL for kind in SMALL_TYPES)
    assert all("request" not in kind.__struct_fields__ for kind in SMALL_TYPES)


@unhurried
@given(st.lists(st.tuples(st.sampled_from(["x", "y", "é" * 100]), st.sampled_from(SMALL))))
def test_messages_arrive_in_order_with_their_topics(sent: list[tuple[str, SmallMessage]]) -> None:
    assert [each for frame in (written(*sent) if sent else []) for each in read(frame)] == sent


def test_messages_of_many_topics_share_a_frame() -> None:
    sent = [(f"t{number}", each) for number in range(5) for each in SMALL]
    (frame,) = written(*sent)
    assert frame.kind is BUNDLE
    assert [each.topic for each in unbundle(frame).groups] == [f"t{number}" for number in range(5)]


def test_lone_message_is_sent_in_a_frame_of_its_own() -> None:
    (frame,) = written((TOPIC, IntroduceShortcut(peer("1", "b"))))
    assert frame.kind is CONTROL
    assert decode(frame).hints == {"b": BOOK["b"]}


def test_hints_of_all_messages_are_given_once() -> None:
    shortcuts = [IntroduceShortcut(peer("1", name)) for name in ("b", "c", "b", "unknown")]
    (frame,) = written(*((TOPIC, each) for each in shortcuts))
    assert unbundle(frame).hints == BOOK


def test_bundle_that_is_too_long_becomes_several_frames() -> None:
    sent = [(f"{number:0>255}", Digest("n" * 64, 1)) for number in range(MESSAGES_MAX)]
    frames = written(*sent)
    assert len(frames) > 1
    assert all(len(frame.body) <= CONTROL_BYTES_MAX for frame in frames)
    assert [each for frame in frames for each in read(frame)] == sent


def test_message_without_an_encoding_is_omitted_and_the_others_are_sent() -> None:
    bundle = Bundle()
    for topic in ("a", "\ud800", "b"):
        bundle.add(topic, ConfigurationAck())
    frames = list(bundle.frames(hints_of))
    assert frames.count(None) == 1
    whole = b"".join(each for each in frames if each is not None)
    found = [each for frame in frames_of(whole) for each in read(frame)]
    assert found == [("a", ConfigurationAck()), ("b", ConfigurationAck())]


def test_readers_accept_a_bundle_at_the_limit() -> None:
    (frame,) = written(*((TOPIC, Ping(number)) for number in range(MESSAGES_MAX)))
    assert len(read(frame)) == MESSAGES_MAX


def test_equal_bytes_are_decoded_once() -> None:
    sent = [(TOPIC, CheckLabel(peer("1", "b"), None, "LIN")), (TOPIC, Digest("b", 7))]  # type: ignore[arg-type]
    first, second = (unbundle(written(*sent)[0]).groups[0] for _ in range(2))
    assert first is second
    assert first.is_routine


def test_equal_bundles_are_decoded_once() -> None:
    sent = [(f"t{number}", Digest("b", 7)) for number in range(3)]
    first, second = (unbundle(written(*sent)[0]) for _ in range(2))
    assert first is second


def test_bundle_with_a_message_that_is_not_remembered_is_decoded_again() -> None:
    sent = [("x", Digest("b", 7)), ("y", ConfigurationAck())]
    first, second = (unbundle(written(*sent)[0]) for _ in range(2))
    assert first is not second


def test_equal_configurations_are_decoded_once() -> None:
    sent = [("x", SetConfiguration(None, None, None)), ("y", ConfigurationAck())]
    first, second = (unbundle(written(*sent)[0]).groups for _ in range(2))
    assert first[0] is second[0]
    assert first[1] is not second[1]


def test_remembered_bundles_are_bounded_in_number() -> None:
    frames = [
        written(("x", Digest("b", number)), ("y", Digest("b", 7)))[0]
        for number in range(KNOWN_BUNDLES_MAX + 1)
    ]
    first, *_ = [unbundle(each) for each in frames]
    assert unbundle(frames[0]) is not first
    assert unbundle(frames[-1]) is unbundle(frames[-1])


def test_group_with_another_message_is_not_routine() -> None:
    (frame,) = written((TOPIC, Digest("b", 7)), (TOPIC, SetConfiguration(None, None, None)))
    assert not unbundle(frame).groups[0].is_routine


# -- hostile input ---------------------------------------------------------------------------

REFUSED = {
    "nothing": Frame(BUNDLE, b""),
    "no groups": body([]),
    "a group without messages": body([[TOPIC, []]]),
    "a group that is too short": body([[TOPIC]]),
    "too many messages in a group": body([[TOPIC, [ACK] * (MESSAGES_MAX + 1)]]),
    "too many messages in all groups": body([[TOPIC, [ACK] * MESSAGES_MAX], [TOPIC, [ACK]]]),
    "too many groups": body([[TOPIC, [ACK]]] * (MESSAGES_MAX + 1)),
    "an unknown tag": body([[TOPIC, [[255]]]]),
    "a bundle in a bundle": body([[TOPIC, [[[[TOPIC, [ACK]]]]]]]),
    "an empty topic": body([["", [ACK, ACK]]]),
    "a topic with a control character": body([["a\n", [ACK, ACK]]]),
    "a topic that is too long": body([["x" * 256, [ACK, ACK]]]),
    "a topic that is not UTF-8": Frame(BUNDLE, b"\x91\x91\x92\xa2\xff\xff\x91\x91\x45"),
    "an invalid node": body([[TOPIC, [[9, "a b", 1]]]]),
    "a node of a peer that is invalid": body([[TOPIC, [[7, [[0], ""]]]]]),
    "a position outside the circle": body([[TOPIC, [[7, [[-1], "a"]]]]]),
    "a hint about an unnamed node": body([[TOPIC, [ACK]]], {"z": "10.0.0.1:1"}),
    "an invalid address": body([[TOPIC, [[8, "z"]]]], {"z": "nowhere"}),
    "bytes after the end": Frame(BUNDLE, body([[TOPIC, [ACK]]]).body + b"\x00"),
    "deep nesting": Frame(BUNDLE, b"\x91" * 10_000),
    "deep nesting in a group": Frame(BUNDLE, b"\x91\x91\x92\xa1x" + b"\x91" * 10_000),
}


@pytest.mark.parametrize("frame", REFUSED.values(), ids=REFUSED)
def test_reader_refuses(frame: Frame) -> None:
    with pytest.raises(MessageError):
        unbundle(frame)


@pytest.mark.parametrize("message", LARGE, ids=lambda each: type(each).__name__)
def test_reader_refuses_requests_publications_and_claims_in_a_bundle(message: WireMessage) -> None:
    with pytest.raises(MessageError):
        unbundle(body([[TOPIC, [encoded(message)]]]))


def test_bundle_is_not_a_single_message() -> None:
    (frame,) = written((TOPIC, Ping(1)), (TOPIC, Ping(2)))
    with pytest.raises(WireError):
        decode(frame)


def hostile_group(number: int, message: Sequence[object]) -> Frame:
    """Return a bundle of one group of at most KNOWN_BYTES_MAX bytes, unlike all others."""
    topic = f"{number:06}"
    room = KNOWN_BYTES_MAX - len(topic) - 5
    return body([[topic, [message] * (room // len(msgspec.msgpack.encode(message)))]])


@pytest.mark.parametrize("message", SMALL, ids=lambda each: type(each).__name__)
def test_distinct_groups_of_a_member_use_little_memory(message: SmallMessage) -> None:
    """Groups of any messages, and of few messages with most bytes, would use 90 MB else."""
    raw, count = msgspec.msgpack.encode(message), 500
    for frame in (
        lambda n: hostile_group(n, msgspec.msgpack.decode(raw)),
        lambda n: body([[f"{n:050}", [msgspec.msgpack.decode(raw)] * REMEMBERED_MESSAGES_MAX]]),
    ):
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            unbundle(frame(number))
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (after - before) // count * KNOWN_MAX < 32 << 20


def test_remembered_groups_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "KNOWN_MAX", 3)
    monkeypatch.setattr(bundle_module, "KNOWN_BUNDLES_MAX", 0)
    frames = [body([[f"bounded{number}", [[9, "b", 7]]]]) for number in range(4)]
    first = unbundle(frames[0]).groups[0]
    assert unbundle(frames[0]).groups[0] is first
    for frame in frames[1:]:
        unbundle(frame)
    assert unbundle(frames[0]).groups[0] is not first


@unhurried
@given(st.data())
def test_reader_survives_changed_bytes(data: st.DataObject) -> None:
    """No input raises another error, and none has more messages than the limit."""
    (frame,) = written(*((f"t{number}", each) for number, each in enumerate(SMALL)))
    changed = bytearray(frame.body)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(Frame(BUNDLE, bytes(changed)))
    except WireError:
        return
    assert len(found) <= MESSAGES_MAX


def test_each_of_50000_mutations_is_a_bundle_of_valid_messages_or_a_wire_error() -> None:
    """A message that is read can be sent again, and arrives unchanged."""
    rng = Random(5)
    outcomes: Counter[str] = Counter()
    for _ in range(50_000):
        try:
            for frame in FrameReader().feed(mutated_bundle(rng)):
                found = read(frame)
                outcomes["read"] += 1
                assert 0 < len(found) <= MESSAGES_MAX
                assert all(type(each) in SMALL_TYPES for _, each in found)
                again = [each for made in written(*found) for each in read(made)]
                assert again == found
        except WireError as error:
            outcomes[type(error).__name__] += 1
    assert outcomes["read"] > 2_000
    assert outcomes["MessageError"] > 5_000
    assert outcomes["FramingError"] > 500


def test_mutations_for_attacks_contain_bundles() -> None:
    rng = Random(6)
    kinds = Counter(mutated(rng)[4] for _ in range(2_000))
    assert kinds[BUNDLE] > 50
