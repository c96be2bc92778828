"""Codec: frames to messages and back, and refusal of all other input."""

import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.batches import BODY_BYTES_MAX, OVERHEAD_BYTES, BatchRecord, RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.log import PageLimits
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.log_pages import CONTENT_PAGE, LISTING_PAGE
from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    Digest,
    Held,
    IHave,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
)
from skipring.core.state import LivenessState
from skipring.core.summaries import RangeSummary
from skipring.errors import MessageError, WireError
from skipring.wire.chaos import Forge, Isolate, Overwrite, OverwriteDatabase
from skipring.wire.codec import (
    CLAIMS_BYTES_MAX,
    FORMATS,
    Envelope,
    decode,
    encode,
    forwarded,
    named_nodes,
)
from skipring.wire.framing import CONTROL, DATA, Frame, FrameKind
from skipring.wire.rpc import (
    Arrival,
    ArrivalPage,
    ChangeEntry,
    ChangePage,
    DatabasePage,
    DeliveryPage,
    FindMembers,
    MemberList,
    NodeStatus,
    Publish,
    PublishAck,
    SupervisorStatus,
    TopicStatus,
    WireMessage,
)
from tests.support.machines import label, peer, unhurried
from tests.support.strategies import publications
from tests.wire.samples import (
    ADDRESS,
    BATCH,
    LISTED,
    SAMPLES,
    TOPIC,
    addresses,
    frames_of,
    the_frame,
    topics,
    travelling,
    wire_messages,
)


def name_of(message: WireMessage) -> str:
    return type(message).__name__


of_every_type = pytest.mark.parametrize("message", SAMPLES, ids=map(name_of, SAMPLES))


# -- round trips -----------------------------------------------------------------------------


@of_every_type
def test_message_of_every_type_survives_a_round_trip(message: WireMessage) -> None:
    assert decode(the_frame(encode(TOPIC, message))) == Envelope(message, TOPIC)


@unhurried
@given(wire_messages(), topics(), st.data())
def test_every_message_survives_a_round_trip_with_topic_and_hints(
    message: WireMessage, topic: str, data: st.DataObject
) -> None:
    known = data.draw(st.lists(st.sampled_from(named_nodes(message) or ("",)), unique=True))
    hints = {node: data.draw(addresses()) for node in known if node}
    sent = encode(topic, message, hints)
    assert decode(the_frame(sent)) == Envelope(message, topic, hints)


@unhurried
@given(st.lists(wire_messages(), max_size=5))
def test_messages_written_together_are_read_together(sent: list[WireMessage]) -> None:
    joined = b"".join(encode(TOPIC, message) for message in sent)
    assert [decode(each).message for each in frames_of(joined)] == sent


@unhurried
@given(publications())
def test_batches_are_encoded_with_their_ids_right_or_wrong(drawn: RecordBatch) -> None:
    batch = travelling(drawn)
    for message in (
        PublishNew(batch, 1),
        PublishMany((batch,), 1),
        Publications((batch, batch)),
        Publish(1, batch),
        LogPage(1, None, (0, 9), (batch, replace(batch, body=b""))),
    ):
        written = encode(TOPIC, message)
        assert decode(the_frame(written)).message == message
        assert batch.id in written
        assert batch.body in written


LARGEST = BatchRecord(
    payload=bytes(512 * 1024),
    time=2**63 - 1,
    key=bytes(1024),
    headers={f"{number:064}": "\U0001f600" * 16 for number in range(64)},
)


def largest_batch(body: bytes | None = None) -> RecordBatch:
    """Return a batch with the longest fields, and the body of the largest record or another."""
    topic = "x" * 255
    made = RecordBatch.of([LARGEST], publisher="x" * 64, first=2**63 - 1, topic=topic)
    return made if body is None else replace(made, count=256, body=body).with_id(topic)


def test_batch_with_the_longest_fields_fits_into_a_frame() -> None:
    for batch in largest_batch(), largest_batch(bytes(BODY_BYTES_MAX)):
        for message in (
            PublishNew(batch, 255),
            PublishMany((batch,), 255),
            Publish(2**63 - 1, batch),
            Publications((batch,)),
            LogPage(2**63 - 1, 2**40 - 1, (2**40 - 1,), (batch,)),
        ):
            assert decode(the_frame(encode("x" * 255, message))).message == message


def test_chunk_of_the_smallest_batches_fits_into_a_frame() -> None:
    each = largest_batch(b"\x91\x91\xc4\0")
    chunk = (each,) * (ProtocolConfig().chunk_bytes // each.size_bytes)
    message = Publications(chunk, 255)
    assert decode(the_frame(encode("x" * 255, message))).message == message


def test_chunk_with_one_more_batch_of_maximal_size_fits_into_a_frame() -> None:
    small = largest_batch(b"\x91\x91\xc4\0")
    size = ProtocolConfig().chunk_bytes
    message = PublishMany((*(small,) * (size // small.size_bytes), largest_batch()), 255)
    assert decode(the_frame(encode("x" * 255, message))).message == message


@pytest.mark.parametrize("limits", [CONTENT_PAGE, LISTING_PAGE], ids=["contents", "listing"])
def test_page_of_a_log_with_one_more_batch_of_maximal_size_fits_into_a_frame(
    limits: PageLimits,
) -> None:
    count = limits.entries_max - 1
    has_bodies = limits is CONTENT_PAGE
    body = bytes(limits.bytes_max // count - OVERHEAD_BYTES if has_bodies else 0)
    last = largest_batch(bytes(BODY_BYTES_MAX if has_bodies else 0))
    offsets = (2**40 - 1,) * (count + 1)
    message = LogPage(2**63 - 1, 2**40 - 1, offsets, (*(largest_batch(body),) * count, last))
    assert decode(the_frame(encode("x" * 255, message))).message == message


def test_all_announcements_of_a_flush_fit_into_a_frame() -> None:
    count = ProtocolConfig().announced_max
    message = IHave("x" * 64, bytes(8 * count), bytes(count))
    assert decode(the_frame(encode("x" * 255, message, {"x" * 64: ADDRESS}))).message == message


def test_additions_of_a_later_revision_to_an_envelope_are_ignored() -> None:
    body = msgspec.msgpack.encode([[1, "a", "new"], TOPIC, {}, b"signature", {"token": [1]}])
    assert decode(Frame(CONTROL, body)) == Envelope(Subscribe("a"), TOPIC)


# -- formats ------------------------------------------------------------------------------


def test_only_publications_claims_inspections_and_damage_use_data_frames() -> None:
    in_data = {kind for kind, form in FORMATS.items() if form.frame_kind is DATA}
    seen = {DatabasePage, NodeStatus, ChangePage, LogPage, DeliveryPage}
    seen |= {SupervisorStatus, ArrivalPage}
    damages = {Overwrite, OverwriteDatabase, Forge, Isolate}
    carried = {PublishNew, PublishMany, Publications, CheckTrie, CheckAndPublish, Publish}
    carried |= {CheckHeld, Held}
    assert in_data == carried | seen | damages


def test_more_claims_are_accepted_than_answered() -> None:
    assert 2 * ProtocolConfig().claims_bytes < CLAIMS_BYTES_MAX


@of_every_type
def test_named_nodes_of_a_message_are_found(message: WireMessage) -> None:
    named = {
        "Subscribe": ("a",),
        "GetConfiguration": ("a",),
        "SetConfiguration": ("a",),
        "CheckLabel": ("a",),
        "Introduce": ("a",),
        "IntroduceShortcut": ("b",),
        "RemoveConnections": ("b",),
        "Digest": ("a",),
        "CheckTrie": ("a",),
        "CheckAndPublish": ("a",),
        "TrieEqual": ("a",),
        "IHave": ("a",),
        "Want": ("a",),
        **dict.fromkeys(("CheckHeld", "Held", "RequestHandover", "HandoverDone", "Terms"), ("a",)),
        "Draining": ("a", "b"),
        "ReportUnresponsive": ("b",),
        "DatabasePage": ("a", "b"),
        "NodeStatus": ("b", "c", "c", "b", "d"),
        "Overwrite": ("b", "c", "e", "b", "d"),
        "OverwriteDatabase": ("a",),
    }
    assert named_nodes(message) == named.get(name_of(message), ())


# -- forwarding ------------------------------------------------------------------------------


@unhurried
@given(st.lists(publications(), min_size=1, max_size=3), st.integers(0, 255), st.integers(0, 255))
def test_forwarded_batches_equal_newly_encoded_ones(
    drawn: list[RecordBatch], came: int, hops: int
) -> None:
    batches = tuple(map(travelling, drawn))
    for message, expected in (
        (PublishNew(batches[0], came), PublishNew(batches[0], hops)),
        (PublishMany(batches, came), PublishMany(batches, hops)),
    ):
        written = forwarded(the_frame(encode(TOPIC, message)), TOPIC, hops)
        assert (written is None) is (came > 127 or hops > 127)  # numbers of two bytes
        assert written in (None, encode(TOPIC, expected))


def test_forwarded_frame_has_the_received_bytes() -> None:
    long_count = encode(TOPIC, PublishNew(BATCH, 3)).replace(b"\x07\x01\xc4", b"\x07\xcd\0\x01\xc4")
    received = Frame(DATA, long_count[5:])
    assert decode(received).message == PublishNew(BATCH, 3)
    written = forwarded(received, TOPIC, 4)
    assert written is not None
    assert written[5:] != encode(TOPIC, PublishNew(BATCH, 4))[5:]  # it was not encoded again
    assert decode(the_frame(written)).message == PublishNew(BATCH, 4)


FIELDS = ["a", 7, 1, BATCH.body, False, BATCH.id]


@pytest.mark.parametrize(
    "message",
    [
        [14, [*FIELDS, b"more"], 3],
        [17, [FIELDS, [*FIELDS, None]], 3],
        [12, [[*FIELDS, b"more"]], 0],
        [70, 1, [*FIELDS, b"more"], False],
        [84, 1, None, [0], [[*FIELDS, b"more"]]],
    ],
)
def test_batch_with_an_unknown_field_is_refused(message: list[object]) -> None:
    with pytest.raises(MessageError):
        decode(Frame(DATA, msgspec.msgpack.encode([message, TOPIC, {}])))


@pytest.mark.parametrize(
    "body",
    [
        [[14, FIELDS, 3, "more"], TOPIC, {}],
        [[14, FIELDS, 3], TOPIC, {}, "more"],
        [[14, FIELDS, 3], TOPIC],
        [[14, FIELDS], TOPIC, {}],
    ],
)
def test_differently_encoded_frame_is_encoded_again(body: list[object]) -> None:
    given_frame = Frame(DATA, msgspec.msgpack.encode(body))
    assert isinstance(decode(given_frame).message, PublishNew)
    assert forwarded(given_frame, TOPIC, 4) is None


def test_number_in_too_many_bytes_is_forwarded_correctly() -> None:
    body = msgspec.msgpack.encode([[14, FIELDS, 3], TOPIC, {}])
    end = msgspec.msgpack.encode(TOPIC) + b"\x80"
    long_way = body[: -len(end) - 1] + b"\xcd\x00\x03" + end
    passed = forwarded(Frame(DATA, long_way), TOPIC, 4)
    assert passed is not None
    assert decode(the_frame(passed)).message == PublishNew(BATCH, 4)


# -- refusals --------------------------------------------------------------------------------


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(MessageError) as refused:
        call()
    text = str(refused.value)
    assert text.isprintable()
    assert 0 < len(text) < 700
    return text


def status(**fields: object) -> NodeStatus:
    (sample,) = (each for each in SAMPLES if isinstance(each, NodeStatus))
    return replace(sample, **fields)


def page(*entries: tuple[str, str | None], queue: tuple[str, ...] = ()) -> DatabasePage:
    return DatabasePage(0, 0, 0, 0, None, entries, queue)


def journal(entry: ChangeEntry, count: int = 1) -> ChangePage:
    return ChangePage(0, 0, (entry,) * count)


CHANGE = ChangeEntry(0, 0, "Tick", None, "left", "none", "none", "why")
TOPIC_SEEN = TopicStatus("news", 1, 1)
ARRIVAL = Arrival(0, None, 0, 0, 1, 1, "a", 0, 0)
LONG = replace(BATCH, body=bytes(512 * 1024))
OUTSIDE: dict[str, WireMessage] = {
    "a node of no name": RemoveConnections(""),
    "a node with a space": RemoveConnections("a b"),
    "a subject of 65 characters": Subscribe("x" * 65),
    "a peer with a bad name": SetConfiguration(None, None, peer("0", "\n")),
    "a digest below 0": Digest("a", -1),
    "a digest of 2^64": Digest("a", 2**64),
    "a session of 2^16": CheckTrie("a", (), 65536),
    "a session below 0": Publications((), -1),
    "hops of 256": PublishNew(BATCH, 256),
    "hops below 0": PublishNew(BATCH, -1),
    "an opaque batch": PublishNew(LISTED),
    "an opaque batch in a pack": PublishMany((BATCH, LISTED)),
    "an opaque batch among others": Publications((BATCH, LISTED)),
    "an opaque batch to publish": Publish(0, LISTED),
    "more batches than a chunk has": Publications((BATCH,) * 8193),
    "more batches than a chunk has in a pack": PublishMany((BATCH,) * 8193),
    "a batch of no records": PublishNew(replace(BATCH, count=0)),
    "a batch of 257 records": PublishNew(replace(BATCH, count=257)),
    "a first number below 0": PublishNew(replace(BATCH, first=-1)),
    "a first number of 2^63": PublishNew(replace(BATCH, first=2**63)),
    "a body above the limit": PublishNew(replace(BATCH, body=bytes(BODY_BYTES_MAX + 1))),
    "a publisher with a bad name": PublishNew(replace(BATCH, publisher="a b")),
    "a publisher of no name": Publish(0, replace(BATCH, publisher="")),
    "half an id of a batch": PublishNew(replace(BATCH, id=BATCH.id[:16])),
    "an id with one more byte": Publications((replace(BATCH, id=BATCH.id + b"x"),)),
    "no id of a batch": PublishMany((replace(BATCH, id=b""),)),
    "no id of a batch to publish": Publish(0, replace(BATCH, id=b"")),
    "more than a data frame": Publications((LONG, LONG)),
    "more short ids than a control frame": IHave("a", bytes(8 * 2000), bytes(2000)),
    "a request for no members": FindMembers(0, 0),
    "a question for too many": FindMembers(0, 33),
    "a request below 0": FindMembers(-1, 1),
    "too many members": MemberList(0, {str(number): ADDRESS for number in range(33)}),
    "a member nowhere": MemberList(0, {"a": ""}),
    "half an id": PublishAck(0, bytes(16), 0),
    "an offset of 2^40": PublishAck(0, bytes(32), 2**40),
    "a long reason": Refused(0, "x" * 501),
    "lone surrogate": Refused(0, "\ud800"),
    "more entries than a page has": page(*(("0", "a"),) * 257),
    "more who wait than a page has": page(queue=("a",) * 257),
    "a label of other characters": page(("012", "a")),
    "a label of 4097 characters": page(("1" * 4097, "a")),
    "an entry with a bad name": page(("0", "a b")),
    "one with a bad name who waits": page(queue=("",)),
    "longer entries than a page has": page(*(("1" * 4096, "a"),) * 70),
    "more shortcuts than levels": status(shortcuts=((label("1"), None),) * 129),
    "a shortcut to a bad name": status(shortcuts=((label("1"), "\n"),)),
    "more watches than levels": status(
        silence={str(number): LivenessState(0, 0, False) for number in range(129)}
    ),
    "a watch over a bad name": status(silence={"": LivenessState(0, 0, False)}),
    "a watch since ever": status(silence={"a": LivenessState(2**63, 0, False)}),
    "more sums than levels": status(digests={str(number): 0 for number in range(129)}),
    "a sum of a bad name": status(digests={"": 0}),
    "a sum below 0": status(digests={"a": -1}),
    "a root of 15 bytes": status(root=bytes(15)),
    "an end of 2^40": status(end=2**40),
    "a count below 0": status(count=-1),
    "a start of 2^40": FetchLog(0, "", 0, 2**40, 0, 0, 0, contents=False),
    "digests for nine bits": GetLogInfo(0, 9, None),
    "a survey beyond 2^40": GetLogInfo(0, None, 2**40),
    "more digests than there are prefixes": LogInfo(0, "", 0, 0, 0, 0, (b"",) * 257, b""),
    "a store that is no number": LogInfo(0, "store", 0, 0, 0, 0, (), b""),
    "a prefix of nine bits": FetchLog(0, "", 0, 0, 0, 8, 256, contents=True),
    "an offset of 2^40 in a page": LogPage(0, None, (2**40,), (BATCH,)),
    "an offset below 0 in a page": LogPage(0, None, (3, -1), (BATCH, BATCH)),
    "more batches than a page has": LogPage(0, None, (0,) * 16_385, (LISTED,) * 16_385),
    "more contents than a page has": LogPage(0, None, (0, 1), (LONG, LONG)),
    "a listed batch without an id": LogPage(0, None, (0,), (replace(LISTED, id=b""),)),
    "a listed batch with half an id": LogPage(0, None, (0,), (replace(LISTED, id=bytes(16)),)),
    "a listed batch of a bad name": LogPage(0, None, (0,), (replace(LISTED, publisher=""),)),
    "a listed batch of no records": LogPage(0, None, (0,), (replace(LISTED, count=0),)),
    "a delivery before the epoch": DeliveryPage(0, None, (1,), (-1,), b"", b"", b""),
    "more hops than a page has": DeliveryPage(0, None, (), (), bytes(16_385), b"", b""),
    "more topics than a page has": SupervisorStatus(0, 0, 0, 0, 0, None, (TOPIC_SEEN,) * 257),
    "a topic of no name": SupervisorStatus(0, 0, 0, 0, 0, None, (replace(TOPIC_SEEN, topic=""),)),
    "fewer members than none": SupervisorStatus(
        0, 0, 0, 0, 0, None, (replace(TOPIC_SEEN, members=-1),)
    ),
    "more arrivals than a page has": ArrivalPage(0, 0, (ARRIVAL,) * 513),
    "an arrival from a bad name": ArrivalPage(0, 0, (replace(ARRIVAL, sender="a b"),)),
    "an arrival of a bad name": ArrivalPage(0, 0, (replace(ARRIVAL, publisher=""),)),
    "an arrival over 256 hops": ArrivalPage(0, 0, (replace(ARRIVAL, hops=256),)),
    "an arrival before the epoch": ArrivalPage(0, 0, (replace(ARRIVAL, time=-1),)),
    "more changes than a journal has": journal(CHANGE, 129),
    "a change of many words": journal(replace(CHANGE, why="x" * 201)),
    "a change that moves the cursor": journal(replace(CHANGE, why="\x1b[2J")),
    "a change by a bad name": journal(replace(CHANGE, sender="")),
    "a change at a tick below 0": journal(replace(CHANGE, tick=-1)),
    "a change at a time below 0": journal(replace(CHANGE, time=-1)),
}


@pytest.mark.parametrize("message", OUTSIDE.values(), ids=OUTSIDE)
def test_value_outside_the_limits_is_refused(message: WireMessage) -> None:
    try:
        body = msgspec.msgpack.encode(Envelope(message, TOPIC))
    except (OverflowError, UnicodeEncodeError):  # not representable in bytes
        refusal(lambda: encode(TOPIC, message))
        return
    refusal(lambda: decode(Frame(FORMATS[type(message)].frame_kind, body)))


def test_batch_that_ends_before_its_id_is_refused() -> None:
    for message in (
        [14, FIELDS[:4], 1],
        [70, 1, FIELDS[:5], False],
        [84, 1, None, [0], [FIELDS[:5]]],
    ):
        body = msgspec.msgpack.encode([message, TOPIC, {}])
        assert refusal(lambda: decode(Frame(DATA, body))) == "an id of 0 bytes instead of 32"  # noqa: B023


def test_page_lists_batches_without_their_bodies() -> None:
    page = LogPage(1, None, (0, 1), (LISTED, BATCH))
    assert decode(the_frame(encode(TOPIC, page))).message == page


@pytest.mark.parametrize("topic", ["", "x" * 256, "a\nb"])
def test_invalid_topic_is_refused_by_the_codec(topic: str) -> None:
    body = msgspec.msgpack.encode(Envelope(Subscribe("a"), topic))
    refusal(lambda: decode(Frame(CONTROL, body)))


@pytest.mark.parametrize("hints", [{"b": ADDRESS}, {"a": "nowhere"}, {"a": ADDRESS, "b": ADDRESS}])
def test_hint_must_be_an_address_of_a_named_node(hints: dict[str, str]) -> None:
    body = msgspec.msgpack.encode(Envelope(Subscribe("a"), TOPIC, hints))
    refusal(lambda: decode(Frame(CONTROL, body)))


@of_every_type
def test_message_in_the_wrong_kind_of_frame_is_refused(message: WireMessage) -> None:
    right = the_frame(encode(TOPIC, message))
    wrong = Frame(CONTROL if right.kind is DATA else DATA, right.body)
    assert f"{name_of(message)} in a " in refusal(lambda: decode(wrong))


MALFORMED: dict[str, tuple[FrameKind, bytes]] = {
    "nothing": (CONTROL, b""),
    "too little for a tag": (CONTROL, b"\x93\x92"),
    "no such tag": (CONTROL, msgspec.msgpack.encode([[63, "a"], TOPIC])),
    "a tag of two bytes": (CONTROL, b"\x92\x92\xcc\x01\xa1a\xa1t"),
    "a map": (CONTROL, b"\x81\x92\x01\xa1a\xa1t"),
    "no topic": (CONTROL, msgspec.msgpack.encode([[1, "a"]])),
    "a topic that is no text": (CONTROL, msgspec.msgpack.encode([[1, "a"], 5])),
    "a topic that is not UTF-8": (CONTROL, b"\x92\x92\x01\xa1a\xa1\xff"),
    "a node that is not UTF-8": (CONTROL, b"\x92\x92\x01\xa1\xff\xa1t"),
    "hints that are no map": (CONTROL, msgspec.msgpack.encode([[1, "a"], TOPIC, 5])),
    "something behind": (CONTROL, msgspec.msgpack.encode([[1, "a"], TOPIC]) + b"\0"),
    "half of it": (CONTROL, msgspec.msgpack.encode([[1, "a"], TOPIC])[:-2]),
    "deep": (CONTROL, b"\x93\x93\x01\xa1a" + b"\x91" * 16_000),
    "a label outside the circle": (CONTROL, msgspec.msgpack.encode([[7, [[-1], "a"]], TOPIC])),
    "a long word": (CONTROL, msgspec.msgpack.encode([[6, [[0], "a"], "\n" * 9000, True], TOPIC])),
    "a float": (CONTROL, msgspec.msgpack.encode([[9, "a", 1.5], TOPIC])),
    "2^32 claims": (DATA, b"\x93\x95\x0a\xa1a\xdd\xff\xff\xff\xff"),
    "2^32 publications": (DATA, b"\x93\x93\x0c\xdd\xff\xff\xff\xff"),
    "a body of 4 GiB": (DATA, b"\x93\x93\x0e\x96\xa1a\x00\x01\xc6\xff\xff\xff\xff"),
    "2^32 fields of a batch": (DATA, b"\x93\x93\x0e\xdd\xff\xff\xff\xff\xa1a\x00\x01\xc4\x00"),
    "a batch as a map": (DATA, msgspec.msgpack.encode([[14, {"publisher": "a"}, 0], TOPIC])),
    "records instead of a body": (
        DATA,
        msgspec.msgpack.encode([[14, ["a", 7, 1, [[b"hello"]], False, bytes(32)], 0], TOPIC]),
    ),
    "more offsets than batches": (
        DATA,
        msgspec.msgpack.encode([[84, 0, None, [0, 1], [FIELDS]], TOPIC]),
    ),
    "something behind a batch": (
        DATA,
        msgspec.msgpack.encode([[14, FIELDS, 0], TOPIC, {}]) + b"\0",
    ),
    "a digest of three bytes": (
        CONTROL,
        msgspec.msgpack.encode([[82, 0, "", 0, 0, 0, 0, [b"abc"], b""], TOPIC]),
    ),
    "a chain value of seven bytes": (
        CONTROL,
        msgspec.msgpack.encode([[82, 0, "", 0, 0, 0, 0, [], bytes(7)], TOPIC]),
    ),
    "more claims than are read": (
        DATA,
        msgspec.msgpack.encode([[10, "a", [[b"\x80", b"\x80" * 2**19]]], TOPIC]),
    ),
}


@pytest.mark.parametrize(("kind", "body"), MALFORMED.values(), ids=MALFORMED)
def test_invalid_message_is_refused_in_one_sentence(kind: FrameKind, body: bytes) -> None:
    tracemalloc.start()
    try:
        refusal(lambda: decode(Frame(kind, body)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@unhurried
@given(st.sampled_from([CONTROL, DATA]), st.binary(max_size=200))
def test_arbitrary_bytes_are_a_message_or_are_refused(kind: FrameKind, body: bytes) -> None:
    try:
        decode(Frame(kind, body))
    except WireError:
        return


@unhurried
@given(wire_messages(), st.data())
def test_message_with_a_wrong_byte_is_valid_or_refused(
    message: WireMessage, data: st.DataObject
) -> None:
    right = the_frame(encode(TOPIC, message))
    body = bytearray(right.body)
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = decode(Frame(right.kind, bytes(body)))
    except WireError:
        return
    encode(received.topic, received.message, received.hints)  # every decoded message is encodable


# -- messages that are not written -----------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Publications((LONG, LONG)),
        IHave("a", bytes(8 * 2000), bytes(2000)),
        page(*(("1" * 4096, "a"),) * 70),
        CheckTrie("a", (RangeSummary(b"\x80", leaves=bytes(CLAIMS_BYTES_MAX)),)),
    ],
    ids=name_of,
)
def test_message_above_the_limit_of_its_type_is_not_written(message: WireMessage) -> None:
    assert " exceeds the limit of " in refusal(lambda: encode(TOPIC, message))


@pytest.mark.parametrize(
    "carrier",
    [
        PublishNew,
        lambda each: PublishMany((each,)),
        lambda each: Publications((each,)),
        lambda each: Publish(0, each),
    ],
    ids=["PublishNew", "PublishMany", "Publications", "Publish"],
)
def test_batch_without_a_body_or_an_id_is_not_written(
    carrier: Callable[[RecordBatch], WireMessage],
) -> None:
    assert refusal(lambda: encode(TOPIC, carrier(LISTED))) == "a batch without a body"
    assert "id of 0 bytes" in refusal(lambda: encode(TOPIC, carrier(replace(BATCH, id=b""))))


# -- pinned bytes ----------------------------------------------------------------------------

# The format of version 3: a change here is a change of the protocol version.
GOLDEN = {
    "Subscribe": "0000000c00939201a161a46e65777380",
    "Unsubscribe": "0000000b00939202c0a46e65777380",
    "GetConfiguration": "0000001500939303a161cfffffffffffffffffa46e65777380",
    "SetConfiguration": "0000001a00939404929100a16191cf4000000000000000c0a46e65777380",
    "CheckLabel": (
        "00000025009394059291cf4000000000000000a16191cf8000000000000000a34c494ea46e65777380"
    ),
    "Introduce": "0000001c009394069291cf4000000000000000a161a3435943c3a46e65777380",
    "IntroduceShortcut": "00000017009392079291cf8000000000000000a162a46e65777380",
    "RemoveConnections": "0000000c00939208a162a46e65777380",
    "Digest": "0000000f00939309a161cd0102a46e65777380",
    "CheckTrie": (
        "000000340193960aa1619194c40180c40160c410000102030405060708090a0b0c0d0e0fc40005c3"
        "c4080001020304050607a46e65777380"
    ),
    "CheckAndPublish": (
        "000000460193960ba1619194c40180c40160c410000102030405060708090a0b0c0d0e0fc4000591"
        "94c401c0c400c400c4083132333435363738c4080001020304050607a46e65777380"
    ),
    "Publications": (
        "0000008d0193940c9296a1610701c4169194c40568656c6c6f01c4016b81a3737263a3776562c2c4"
        "20a2d57600b8cee0b1d6b0199620a46b8cd4f52049d282b546555edcea8d0859b296a1610701c416"
        "9194c40568656c6c6f01c4016b81a3737263a3776562c2c420a2d57600b8cee0b1d6b0199620a46b"
        "8cd4f52049d282b546555edcea8d0859b205c2a46e65777380"
    ),
    "TrieEqual": (
        "000000280093940da161c41000000000000000000000000000000000c4080001020304050607a46e65777380"
    ),
    "PublishNew": (
        "0000004b0193930e96a1610701c4169194c40568656c6c6f01c4016b81a3737263a3776562c2c420"
        "a2d57600b8cee0b1d6b0199620a46b8cd4f52049d282b546555edcea8d0859b203a46e65777380"
    ),
    "PublishMany": (
        "0000008c019393119296a1610701c4169194c40568656c6c6f01c4016b81a3737263a3776562c2c4"
        "20a2d57600b8cee0b1d6b0199620a46b8cd4f52049d282b546555edcea8d0859b296a1610701c416"
        "9194c40568656c6c6f01c4016b81a3737263a3776562c2c420a2d57600b8cee0b1d6b0199620a46b"
        "8cd4f52049d282b546555edcea8d0859b203a46e65777380"
    ),
    "CheckHeld": (
        "0000004b01939512a161099194c40180c40160c410000102030405060708090a0b0c0d0e0fc400c4"
        "20000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa46e65777380"
    ),
    "Held": (
        "0000006e01939713a16109c39194c40180c40160c410000102030405060708090a0b0c0d0e0fc400"
        "c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc42000000000"
        "00000000000000000000000000000000000000000000000000000000a46e65777380"
    ),
    "Draining": "0000000f00939314a16191a162a46e65777380",
    "RequestHandover": "0000000d00939315a16101a46e65777380",
    "HandoverDone": "0000000e00939416a16101c3a46e65777380",
    "Terms": (
        "0000005b00939617a1619196a1610701c4169194c40568656c6c6f01c4016b81a3737263a3776562"
        "c2c420a2d57600b8cee0b1d6b0199620a46b8cd4f52049d282b546555edcea8d0859b293010203cf"
        "00060a24181e4000c3a46e65777380"
    ),
    "IHave": "000000190093940fa161c4083132333435363738c40103a46e65777380",
    "Want": "0000001000939410a161c400c400a46e65777380",
    "FindMembers": "0000000c009393400108a46e65777380",
    "MemberList": (
        "0000002a009393410182a161ae3132372e302e302e313a37343030a162aa5b3a3a315d3a37343031"
        "a46e65777380"
    ),
    "ReportUnresponsive": "0000000c00939242a162a46e65777380",
    "Ping": "0000000b0093924309a46e65777380",
    "Pong": "0000000b0093924409a46e65777380",
    "ConfigurationAck": "0000000a00939145a46e65777380",
    "Publish": (
        "0000004c019394460296a1610701c4169194c40568656c6c6f01c4016b81a3737263a3776562c2c4"
        "20a2d57600b8cee0b1d6b0199620a46b8cd4f52049d282b546555edcea8d0859b2c2a46e65777380"
    ),
    "PublishAck": (
        "000000300093944702c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c"
        "1d1e1fcd03e8a46e65777380"
    ),
    "Refused": (
        "000000260093934802ba6e6f742061206d656d626572206f66207468697320746f706963a46e65777380"
    ),
    "FetchDatabase": "0000000c009393490300a46e65777380",
    "DatabasePage": ("000000200193994a0302cd010201c09292a130a16192a23130c091a16290a46e65777380"),
    "GetNodeStatus": "0000000b0093924b03a46e65777380",
    "NodeStatus": (
        "000000c401939e4c039100c09291cf4000000000000000a1629291cf8000000000000000a1639292"
        "91cf8000000000000000a1639291cf6000000000000000c081a162930103c381a164cd0102c30203"
        "c410000102030405060708090a0b0c0d0e0f9acf00060a24181e400081a1620291a163bc74686520"
        "6261636b66696c6c206973206e6f7420636f6d706c6574650103ad6e6f207370616365206c656674"
        "0491ae3132372e302e302e313a373430309dc0c0930000000000000000c200000000a46e65777380"
    ),
    "FetchChanges": "0000000b0093924f03a46e65777380",
    "ChangePage": (
        "0000003101939450030991980801a9496e74726f64756365a162a46c656674a46e6f6e65a628302c"
        "206229a3776879a46e65777380"
    ),
    "GetLogInfo": "0000000d00939451050109a46e65777380",
    "LogInfo": (
        "0000004400939d5205a4356565640102030392c410000102030405060708090a0b0c0d0e0fc400c40c"
        "000000000000000000000000c408000000000000000000c000a46e65777380"
    ),
    "FetchLog": "0000001b00939c5305a4356565640101cd03e8040fc3c2c0c2a46e65777380",
    "LogPage": (
        "0000007a0193955405099201089296a1610701c4169194c40568656c6c6f01c4016b81a3737263a3"
        "776562c2c420a2d57600b8cee0b1d6b0199620a46b8cd4f52049d282b546555edcea8d0859b296a1"
        "610701c400c2c420a2d57600b8cee0b1d6b0199620a46b8cd4f52049d282b546555edcea8d0859b2"
        "a46e65777380"
    ),
    "FetchRecords": (
        "0000002d00939c5e05a4356565640101cd03e8040fc29591a16192c4016bc400920102920304c401"
        "01c0c2a46e65777380"
    ),
    "FetchDeliveries": "0000000f009394550501cd03e8a46e65777380",
    "DeliveryPage": (
        "000000380193985605c091019102c40103c40101c420000102030405060708090a0b0c0d0e0f1011"
        "12131415161718191a1b1c1d1e1fa46e65777380"
    ),
    "GetSupervisorStatus": "0000000c009393570600a46e65777380",
    "SupervisorStatus": "00000019019398580663010201c09193a46e6577731028a46e65777380",
    "FetchArrivals": "0000000c009393590703a46e65777380",
    "ArrivalPage": "000000190193945a0704919909a16202010302a1610705a46e65777380",
    "AskHolder": ("000000230093945b07cf3fffffffffffffffae3132372e302e302e313a37343030a46e65777380"),
    "HolderReply": "0000000c0093935c07c3a46e65777380",
    "NameTaken": "0000001b0093945d07ae3132372e302e302e313a37343030c3a46e65777380",
    "ChaosPing": "0000000b0093926004a46e65777380",
    "Overwrite": (
        "0000004f019399610491cf80000000000000009291cf4000000000000000a162c0929100a1639292"
        "91cf8000000000000000a1659291cf6000000000000000c081a1629301fdc381a164cd0102a46e65"
        "777380"
    ),
    "OverwriteDatabase": "0000001a01939562049292a130a16192a23130c00791a162a46e65777380",
    "CorruptTrie": "0000000e0093956304020305a46e65777380",
    "Forge": "0000000e0193936404c40100a46e65777380",
    "Isolate": "00000011019394650492a161a1623ca46e65777380",
    "Crash": "0000000b0093926604a46e65777380",
    "ChaosAck": "0000000b0093926704a46e65777380",
}


@of_every_type
def test_bytes_of_each_message_are_stable(message: WireMessage) -> None:
    assert encode(TOPIC, message).hex() == GOLDEN[name_of(message)]
    assert decode(the_frame(bytes.fromhex(GOLDEN[name_of(message)]))).message == message


def test_hint_follows_the_topic() -> None:
    hinted = encode(TOPIC, RemoveConnections("b"), {"b": "h:1"})
    assert hinted.hex() == "0000001200939208a162a46e65777381a162a3683a31"


# Messages of version 2 that version 3 has removed or encodes differently. A peer of version 2 is
# refused by its greeting; a frame of it that arrives nevertheless is refused with a sentence.
VERSION_2 = {
    "Publications": (
        "000000400193930c9297a16107c40568656c6c6f01c4016b81a3737263a3776562c40097a16107c4"
        "0568656c6c6f01c4016b81a3737263a3776562c40005a46e65777380"
    ),
    "PublishNew": (
        "000000250193930e97a16107c40568656c6c6f01c4016b81a3737263a3776562c40003a46e65777380"
    ),
    "PublishMany": (
        "00000040019393119297a16107c40568656c6c6f01c4016b81a3737263a3776562c40097a16107c4"
        "0568656c6c6f01c4016b81a3737263a3776562c40003a46e65777380"
    ),
    "Publish": (
        "00000026019394460297a16107c40568656c6c6f01c4016b81a3737263a3776562c400c2a46e65777380"
    ),
    "FetchPublications": "000000100093954d0300cd03e8c3a46e65777380",
    "PublicationPage": (
        "000000470193944e03029197a16107c40568656c6c6f01c4016b81a3737263a3776562c420000102"
        "030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa46e65777380"
    ),
    "LogPage": "00000014019396540509920108c400c40190a46e65777380",
}


@pytest.mark.parametrize("written", VERSION_2.values(), ids=VERSION_2)
def test_changed_messages_of_version_2_are_refused(written: str) -> None:
    refusal(lambda: decode(the_frame(bytes.fromhex(written))))
