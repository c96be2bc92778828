"""World file: parsing, error messages and rendering."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckAndPublish,
    CheckLabel,
    CheckTrie,
    GetConfiguration,
    IHave,
    Introduce,
    Message,
    Publications,
    PublishNew,
    SetConfiguration,
    Subscribe,
    TrieEqual,
    Want,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, Peer
from skipring.core.prefix import ALL, Prefix
from skipring.core.state import (
    NumberState,
    SubscriberMemory,
    SubscriberState,
    SupervisorMemory,
    SupervisorState,
    TransferState,
)
from skipring.core.summaries import RangeSummary, Summary
from skipring.errors import WorldFormatError
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries import ADVERSARIES
from skipring.world.format import parse_world, render_world
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.batches import batch
from tests.support.strategies import snapshots

FILES = Path(__file__).with_name("files")  # of three adversaries, each after some rounds

# The example of the format, literally.
EXAMPLE = """\
{"format": "skipring-world/1", "topic": "news",
 "supervisor": {"database": [["0", "a"], ["1", null], ["01", "a"], ["00", "c"]], "next": 5},
 "subscribers": {"a": {"member": true, "label": "0", "left": null, "right": ["01", "b"], "ring": ["1", "c"],
                       "shortcuts": {"1": "c", "01": null},
                       "publications": [{"publisher": "a", "seq": 0, "payload": "aGVsbG8="}]},
                 "b": {"member": true, "label": "01", "left": ["0", "a"], "right": ["1", "x"], "ring": null, "shortcuts": {}, "publications": []},
                 "c": {"member": false, "label": null, "left": null, "right": null, "ring": null, "shortcuts": {}, "publications": []}},
 "crashed": ["x"],
 "channels": [{"to": "b", "message": {"type": "Introduce", "peer": ["0", "a"], "link": "LIN", "first_hand": false}},
              {"to": "supervisor", "message": {"type": "GetConfiguration", "node": "a"}}]}
"""  # noqa: E501

HELLO = batch(b"hello", topic="news")
L0, L1, L01 = (Label.parse(bits) for bits in ("0", "1", "01"))
NEVER = ["", "00", "10", "1" * 65]  # l does not produce these, or not within 64 bits


def world(**changes: object) -> dict[str, Any]:
    """Return the smallest world (two subscribers, one crashed node) with some keys changed."""
    subscriber = {"member": True, "label": None, "left": None, "right": None, "ring": None}
    return {
        "format": "skipring-world/1",
        "topic": "news",
        "supervisor": {"database": [], "next": 0},
        "subscribers": {"a": subscriber | {"shortcuts": {}}, "b": subscriber | {"shortcuts": {}}},
        "crashed": ["x"],
    } | changes


def world_with(*path: str, value: object) -> dict[str, Any]:
    """Return the smallest world with the value at a path of keys set."""
    made = copy.deepcopy(world())
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def world_of(**fields: object) -> dict[str, Any]:
    """Return the smallest world with some variables of subscriber a set."""
    made = copy.deepcopy(world())
    made["subscribers"]["a"].update(fields)
    return made


def world_saying(**message: object) -> dict[str, Any]:
    """Return the smallest world with one message in the channel of a."""
    return world(channels=[{"to": "a", "message": message}])


def supervised(**fields: object) -> dict[str, Any]:
    """Return the smallest world with some variables of the supervisor set."""
    made = copy.deepcopy(world())
    made["supervisor"].update(fields)
    return made


def world_publishing(**changes: object) -> dict[str, Any]:
    """Return the smallest world with one publication at a."""
    return world_of(publications=[{"publisher": "p", "seq": 0} | changes])


def parse(tree: object) -> Snapshot:
    return parse_world(json.dumps(tree))


def state_of_a(**fields: object) -> SubscriberState:
    return parse(world_of(**fields)).subscribers["a"]


def messages_of(*messages: dict[str, object]) -> list[Message]:
    channels = [{"to": "a", "message": message} for message in messages]
    return [parcel.message for parcel in parse(world(channels=channels)).channels]


# --- parsing ---------------------------------------------------------------------------


def test_example_of_the_design_is_parsed() -> None:
    assert parse_world(EXAMPLE) == Snapshot(
        topic="news",
        supervisor=SupervisorState(
            database=(("0", "a"), ("1", None), ("01", "a"), ("00", "c")), next=5
        ),
        subscribers={
            "a": SubscriberState(
                label=L0,
                right=Peer(L01, "b"),
                ring=Peer(L1, "c"),
                shortcuts={L1: "c", L01: None},
                publications=(HELLO,),
            ),
            "b": SubscriberState(label=L01, left=Peer(L0, "a"), right=Peer(L1, "x")),
            "c": SubscriberState(member=False),
        },
        crashed=("x",),
        channels=(
            Parcel("b", Introduce(Peer(L0, "a"), EdgeKind.LINE, first_hand=False)),
            Parcel(SUPERVISOR, GetConfiguration("a")),
        ),
    )


def test_example_is_rendered_as_it_was_parsed_with_the_derived_id() -> None:
    written = render_world(parse_world(EXAMPLE))
    expected = json.loads(EXAMPLE)
    expected["subscribers"]["a"]["publications"][0]["id"] = HELLO.id.hex()
    assert json.loads(written) == expected
    assert parse_world(written) == parse_world(EXAMPLE.encode())


def test_optional_keys_default_to_empty() -> None:
    tree = world()
    del tree["crashed"]
    snapshot = parse(tree)
    assert snapshot.crashed == snapshot.channels == snapshot.supervisor.queue == ()
    assert snapshot.subscribers == {"a": SubscriberState(), "b": SubscriberState()}


RECORD = {"payload": "aGVsbG8=", "time": 7, "key": "", "headers": {"h": "é"}}
OTHER = {"payload": ""}
RECORDS = (BatchRecord(b"hello", 7, b"", {"h": "é"}), BatchRecord(b""))


def publication_of(**fields: object) -> RecordBatch:
    """Return the publication of p, number 5, that a world file with these fields describes."""
    (found,) = parse(world_publishing(seq=5, **fields)).subscribers["a"].publications
    return found


def batch_of_p(*records: BatchRecord, unordered: bool = False) -> RecordBatch:
    return RecordBatch.of(records, publisher="p", first=5, topic="news", unordered=unordered)


def test_publication_of_one_record_is_parsed_with_all_its_fields() -> None:
    expected = batch_of_p(RECORDS[0])
    assert publication_of(**RECORD) == expected
    assert publication_of(**RECORD, count=1) == expected
    assert publication_of(records=[RECORD]) == expected
    assert publication_of(**RECORD, id="aB" * 32) == replace(expected, id=b"\xab" * 32)


def test_publication_of_several_records_is_parsed_with_all_its_fields() -> None:
    expected = batch_of_p(*RECORDS)
    assert publication_of(records=[RECORD, OTHER]) == expected
    assert publication_of(records=[RECORD, OTHER], count=2) == expected
    assert publication_of(records=[RECORD, OTHER], unordered=True) == batch_of_p(
        *RECORDS, unordered=True
    )
    assert publication_of(records=[OTHER] * 256).count == 256


def test_publication_without_a_payload_is_opaque() -> None:
    key = b"\xab" * 32
    assert publication_of(id="ab" * 32, payload=None) == RecordBatch("p", 5, 1, b"", id=key)
    assert publication_of(id="ab" * 32, count=3) == RecordBatch("p", 5, 3, b"", id=key)


@pytest.mark.parametrize("topic", ["news", "sport"])
@pytest.mark.parametrize("fields", [OTHER, RECORD, {"records": [RECORD, OTHER]}, {}, {"id": None}])
def test_publication_without_an_id_gets_the_id_of_its_fields_in_the_topic(
    topic: str, fields: dict[str, Any]
) -> None:
    (publication,) = (
        parse(world_publishing(**fields) | {"topic": topic}).subscribers["a"].publications
    )
    assert publication.id == publication.id_in(topic)


def test_hashes_are_parsed_by_prefix() -> None:
    tree = {"": "00" * 16, "01": "Ff" * 16, "1" * 256: "0a" * 16}
    assert state_of_a(hashes=tree).hashes == {
        ALL: b"\x00" * 16,
        Prefix.parse("01"): b"\xff" * 16,
        Prefix.parse("1" * 256): b"\x0a" * 16,
    }


def test_messages_about_tries_are_parsed() -> None:
    node, leaf, digest = "011", "0123456789abcdef", "5a" * 16
    claim = {"cover": "01", "nodes": [["01" * 128, digest], [node, digest]], "leaves": [leaf]}
    made = RangeSummary.make(
        Prefix.parse("01"),
        [Summary(Prefix.parse("01" * 128), b"Z" * 16), Summary(Prefix.parse(node), b"Z" * 16)],
        [bytes.fromhex(leaf)],
    )
    short = RangeSummary.make(ALL, [Summary(ALL, b"Z" * 8)])
    assert messages_of(
        {"type": "CheckTrie", "sender": "b", "claims": []},
        {"type": "CheckTrie", "sender": "x", "claims": [claim], "session": 7, "confirm": True},
        {"type": "CheckAndPublish", "sender": "b", "claims": [], "wanted": [{"cover": ""}, claim]},
        {"type": "CheckTrie", "sender": "b", "claims": [{"cover": "", "nodes": [["", "5a" * 8]]}]},
        {"type": "TrieEqual", "sender": "b", "root": digest},
        {"type": "IHave", "sender": "b", "ids": [leaf, leaf], "hops": [0, 255]},
        {"type": "Want", "sender": "b", "ids": [], "hops": []},
    ) == [
        CheckTrie("b", ()),
        CheckTrie("x", (made,), 7, confirm=True),
        CheckAndPublish("b", (), wanted=(RangeSummary.make(ALL), made)),
        CheckTrie("b", (short,)),
        TrieEqual("b", b"Z" * 16),
        IHave("b", bytes.fromhex(leaf + leaf), b"\x00\xff"),
        Want("b", b"", b""),
    ]


def test_publications_in_flight_are_parsed_like_stored_ones() -> None:
    hello = {"publisher": "a", "seq": 0, "payload": "aGVsbG8="}
    wrong = hello | {"id": "ab" * 32}
    assert messages_of(
        {"type": "PublishNew", "publication": hello},
        {"type": "PublishNew", "publication": wrong, "hops": 3},
        {"type": "Publications", "publications": [hello, wrong], "session": 2**64 - 1},
    ) == [
        PublishNew(HELLO),
        PublishNew(replace(HELLO, id=b"\xab" * 32), 3),
        Publications((HELLO, replace(HELLO, id=b"\xab" * 32)), 2**64 - 1),
    ]


def test_order_of_keys_does_not_affect_the_simulation() -> None:
    tree = world_of(shortcuts={"1": "b", "0": "a"})
    tree["subscribers"] = dict(reversed(tree["subscribers"].items()))
    snapshot = parse(tree)
    assert list(snapshot.subscribers) == ["a", "b"]
    assert list(snapshot.subscribers["a"].shortcuts) == [L0, L1]


@pytest.mark.parametrize("code", [f"A6{digit}" for digit in range(7)])
def test_memory_is_written_and_read_back(code: str) -> None:
    start = ADVERSARIES[code].build(9, Random(1))
    assert parse_world(render_world(start)) == start
    simulation = Simulation(make_scenario({}), start)
    for _ in range(3):
        snapshot = simulation.world.snapshot()
        assert parse_world(render_world(snapshot)) == without_senders(snapshot)
        simulation.run_round()


def without_senders(snapshot: Snapshot) -> Snapshot:
    parcels = tuple(Parcel(parcel.to, parcel.message) for parcel in snapshot.channels)
    return replace(snapshot, channels=parcels)


def test_memory_may_name_nodes_that_are_not_in_the_world() -> None:
    tree = world_with("supervisor", "memory", value={"suspects": {"long-gone": -3}})
    assert parse(tree).supervisor.memory == SupervisorMemory(suspects={"long-gone": -3})
    memory = {"histories": {"source": "long-gone", "source_ticks": 8}}
    assert state_of_a(memory=memory).memory == SubscriberMemory(
        histories=TransferState(source="long-gone", source_ticks=8)
    )


def test_memory_has_numbers_of_several_incarnations() -> None:
    numbers = [[1, 4194309], [2, None]]
    memory = state_of_a(memory={"holdings": {"numbers": numbers}}).memory
    assert memory is not None
    assert memory.holdings.numbers == (NumberState(1, 4194309), NumberState(2, None))


# --- labels that l never produces ------------------------------------------------------


@pytest.mark.parametrize("bits", NEVER)
def test_database_keeps_an_invalid_label(bits: str) -> None:
    snapshot = parse(world_with("supervisor", "database", value=[[bits, "a"], [bits, None]]))
    assert snapshot.supervisor.database == ((bits, "a"), (bits, None))


@pytest.mark.parametrize("bits", [*NEVER, None])
def test_invalid_label_outside_the_database_is_null_and_its_references_are_dropped(
    bits: str | None,
) -> None:
    state = state_of_a(label=bits, left=[bits, "b"], right=["1", "b"], ring=[bits, "x"])
    assert state == SubscriberState(right=Peer(L1, "b"))


@pytest.mark.parametrize("bits", [*NEVER, None])
def test_message_with_an_invalid_label_is_dropped(bits: str | None) -> None:
    assert messages_of(
        {"type": "Introduce", "peer": [bits, "b"], "link": "LIN", "first_hand": True},
        {"type": "IntroduceShortcut", "peer": [bits, "b"]},
        {"type": "CheckLabel", "sender": [bits, "b"], "believed": "0", "link": "CYC"},
        {"type": "CheckLabel", "sender": ["1", "b"], "believed": bits, "link": "CYC"},
        {"type": "SetConfiguration", "pred": [bits, "b"], "label": bits, "succ": ["1", "b"]},
        {"type": "Subscribe", "node": None},
    ) == [
        CheckLabel(Peer(L1, "b"), None, EdgeKind.WRAP),
        SetConfiguration(None, None, Peer(L1, "b")),
        Subscribe(None),
    ]


# --- errors ----------------------------------------------------------------------------

NAN, HUGE = float("nan"), "1" * 10**6

NEWS = {"publisher": "p", "seq": 0}


def world_claiming(**claim: object) -> dict[str, Any]:
    """Return the smallest world with one range summary in the channel of a."""
    return world_saying(type="CheckTrie", sender="b", claims=[claim])


NO_BITS = "Expected `str` matching regex '\\\\A[01]*\\\\Z'"
NO_HEX = "Expected `str` matching regex '\\\\A(?:[0-9A-Fa-f"
UNKNOWN = "'zoe' is neither in subscribers nor in crashed"
NO_NAME = "Expected `str` matching regex '\\\\A[A-Za-z0-9._-]{1,64}\\\\Z'"

# The fields that make a world invalid, and the refusal after the path of the builder.
Row: TypeAlias = tuple[dict[str, Any], str]


def refusals(build: Callable[..., object], path: str, *rows: Row) -> list[tuple[object, str]]:
    """Return invalid worlds and the beginnings of their refusals, "<path><field>: <reason>"."""
    return [(build(**fields), f"{path}{reason}") for fields, reason in rows]


# One row for each kind of check; msgspec's own checks are not repeated for each field.
REFUSED: list[tuple[object, str]] = [
    ([], "$: Expected `object`, got `array`"),
    ({}, "$: Object missing required field `format`"),
    *refusals(
        world,
        "$",  # the file as a whole
        ({"format": "skipring-world/2"}, ".format: Invalid enum value 'skipring-world/2'"),
        ({"colour": 1, "shape": 2}, ": Object contains unknown field `colour`"),
        ({HUGE: 1}, ": Object contains unknown field `111111111111111111111111111111111111111111"),
        ({"topic": ""}, ".topic: a topic has 1 to 255 bytes, this one has 0"),
        ({"topic": "é" * 128}, ".topic: a topic has 1 to 255 bytes, this one has 256"),
        ({"topic": "a\x85"}, ".topic: a topic has no control characters, got 'a\\x85'"),
        ({"topic": "\ud800"}, ".topic: lone surrogate in '\\ud800'"),
        ({"subscribers": {"a\n": {}}}, f".subscribers: {NO_NAME}"),
        (
            {"subscribers": {"supervisor": {}}},
            ".subscribers: no subscriber can be called 'supervisor'",
        ),
        ({"crashed": ["supervisor"]}, ".crashed[0]: no subscriber can be called 'supervisor'"),
        ({"crashed": ["b"]}, ".subscribers.b: the node is also in crashed"),
        (
            {"channels": [{"to": "zoe", "message": {}}]},
            ".channels[0].message: Object missing required field `type`",
        ),
    ),
    *refusals(
        supervised,
        "$.supervisor",  # the supervisor
        ({"n": 1}, ": Object contains unknown field `n`"),
        ({"next": NAN}, ".next: Expected `int`, got `float`"),
        ({"database": [["0" * 4097, "a"]]}, ".database[0][0]: Expected `str` of length <= 4096"),
        ({"database": [["0", "zoe"]]}, f".database[0][1]: {UNKNOWN}"),
        ({"queue": ["a", "zoe"]}, f".queue[1]: {UNKNOWN}"),
        ({"memory": {"colour": 1}}, ".memory: Object contains unknown field `colour`"),
        ({"memory": {"told": {"a b": 1}}}, ".memory.told: Expected `str` matching regex '"),
    ),
    *refusals(
        world_of,
        "$.subscribers.a",  # a subscriber
        ({"label": "02"}, f".label: {NO_BITS}"),
        ({"label": HUGE}, ".label: Expected `str` of length <= 4096"),
        ({"ring": ["b", "0"]}, f".ring[0]: {NO_BITS}"),
        ({"ring": ["0", "zoe"]}, f".ring[1]: {UNKNOWN}"),
        ({"ring": ["00", "zoe"]}, f".ring[1]: {UNKNOWN}"),
        ({"shortcuts": {"b": "0"}}, f".shortcuts: {NO_BITS}"),
        ({"shortcuts": {"01": "zoe"}}, f".shortcuts['01']: {UNKNOWN}"),
        (
            {"shortcuts": {"1" * 4096: 1}},
            ".shortcuts['1111111111111111111111111111111111111111'...]: Ex",
        ),
        ({"silence": {"zoe": [0, 8, True]}}, f".silence: {UNKNOWN}"),
        ({"silence": {"b": [0, 8]}}, ".silence['b']: Expected `array` of at least length 3, got 2"),
        ({"digests": {"zoe": 1}}, f".digests: {UNKNOWN}"),
        ({"digests": {"b": 2**64}}, ".digests['b']: Expected `int` <= 18446744073709551615"),
        ({"hashes": {"0": "zz" * 16}}, f".hashes['0']: {NO_HEX}"),
        ({"hashes": {"02": ""}}, f".hashes: {NO_BITS}"),
        ({"hashes": {"0" * 257: ""}}, ".hashes: Expected `str` of length <= 256"),
        ({"memory": {"holdings": {"index": {"ab": 1}}}}, f".memory.holdings.index: {NO_HEX}"),
        (
            {"memory": {"announcing": {"news": {"00" * 8: [256, []]}}}},
            ".memory.announcing.news['0000000000000000'][0]: Expected `int",
        ),
    ),
    *refusals(
        world_publishing,
        "$.subscribers.a.publications[0]",  # a publication
        ({"payload": "aGV sbG8="}, ".payload: Invalid base64 encoded string"),
        ({"id": "zz" * 32}, f".id: {NO_HEX}"),
        ({"key": ""}, ": time, key and headers without a payload"),
        ({"payload": "", "records": [OTHER]}, ": a publication has payload or records, not both"),
        ({"payload": "", "count": 2}, ": a count of 2 with 1 records"),
        ({"payload": "", "headers": dict.fromkeys(map(str, range(65)), "")}, ": 65 headers exceed"),
        ({"records": []}, ".records: Expected `array` of length >= 1"),
        ({"records": [OTHER] * 257}, ".records: Expected `array` of length <= 256"),
        ({"records": [OTHER], "count": 2}, ": a count of 2 with 1 records"),
        ({"records": [OTHER], "body": ""}, ": a publication has records or body, not both"),
        ({"records": [OTHER], "time": 1}, ": time, key and headers without a payload"),
        ({"count": 257}, ".count: Expected `int` <= 256"),
    ),
    *refusals(
        world_saying,
        "$.channels[0].message",  # a message
        ({"type": ["Digest"]}, ".type: Expected `str`, got `list`"),
        ({"type": "Publish"}, ".type: Invalid value 'Publish'"),
        ({"type": "Unsubscribe", "node": "zoe"}, f".node: {UNKNOWN}"),
        ({"type": "IntroduceShortcut", "peer": ["0", "zoe"]}, f".peer[1]: {UNKNOWN}"),
        (
            {"type": "Introduce", "peer": ["00", "a"], "link": "LINE", "first_hand": True},
            ".link: Invalid enum value 'LINE'",
        ),
        (
            {"type": "Publications", "publications": [NEWS, 5]},
            ".publications[1]: Expected `object`, got `int`",
        ),
        ({"type": "TrieEqual", "sender": "a", "root": "ab"}, f".root: {NO_HEX}"),
        ({"type": "TrieEqual", "sender": "zoe", "root": "ab" * 16}, f".sender: {UNKNOWN}"),
        ({"type": "IHave", "sender": "a", "ids": ["ab"], "hops": [0]}, f".ids[0]: {NO_HEX}"),
        (
            {"type": "IHave", "sender": "a", "ids": [], "hops": [256]},
            ".hops[0]: Expected `int` <= 255",
        ),
        (
            {"type": "Want", "sender": "a", "ids": ["ab" * 8], "hops": [1, 2]},
            ": 8 bytes of short ids with 2 hops",
        ),
    ),
    *refusals(
        world_claiming,
        "$.channels[0].message.claims[0]",  # a range summary
        ({"cover": "1" * 257}, ".cover: Expected `str` of length <= 256"),
        (
            {"cover": "01", "nodes": [["010", "ab" * 8], ["00", "ab" * 8]]},
            ".nodes[1][0]: the label does not begin with t",
        ),
        (
            {"cover": "", "nodes": [["0", "ab" * 9]]},
            ".nodes[0][1]: Expected `str` matching regex '",
        ),
        (
            {"cover": "", "nodes": [["0", "ab" * 8], ["1", "ab" * 16]]},
            ".nodes[1][1]: the digest and the previous one differ",
        ),
        ({"cover": "", "leaves": ["ab"]}, ".leaves[0]: Expected `str` matching regex '"),
    ),
]


def complaint_about(text: str | bytes) -> str:
    with pytest.raises(WorldFormatError) as caught:
        parse_world(text)
    return str(caught.value)


def is_short_sentence(text: str) -> bool:
    return len(text) < 300 and text.isprintable()


@pytest.mark.parametrize(("tree", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_invalid_world_is_refused_in_one_sentence(tree: object, sentence: str) -> None:
    said = complaint_about(json.dumps(tree))
    assert sentence in said
    assert is_short_sentence(said)


PLAIN = json.dumps(world())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1, column 1: not JSON (Expecting value)"),
        ("{}{}", "line 1, column 3: not JSON (Extra data)"),
        ('{"format":\n "a\nb"}', "line 2, column 4: not JSON (Invalid control character at)"),
        (
            "\ufeff" + PLAIN,
            "line 1, column 1: not JSON (Unexpected UTF-8 BOM (decode using utf-8-sig))",
        ),
        (b'{"topic": "\xff"}', "byte 11: not UTF-8"),
        (PLAIN.encode("utf-16"), "byte 0: not UTF-8"),
        ("[" * 10**6, "$: lists and objects are nested too deeply"),
        ('{"a":' * 10**6, "$: lists and objects are nested too deeply"),
        ("NaN", "$: Expected `object`, got `float`"),
        (
            PLAIN.replace('"next": 0', '"next": ' + "9" * 10**4),
            "$.supervisor.next: Expected `int`, got `number of 10000 digits`",
        ),
        (
            PLAIN.replace('"b":', '"a":'),
            "$.subscribers: Expected `object`, got `object with the key 'a' twice`",
        ),
        (
            PLAIN.replace('"label": null', '"label": {"x": 1, "x": 1}'),
            "$.subscribers.a.label: Expected `str`, got `object with the key 'x' twice`",
        ),
    ],
    ids=lambda value: value[:60],
)
def test_values_outside_json_are_refused_too(text: str | bytes, sentence: str) -> None:
    said = complaint_about(text)
    assert sentence in said
    assert is_short_sentence(said)


# --- rendering -------------------------------------------------------------------------


def test_keys_are_sorted_and_each_subscriber_and_message_has_a_line() -> None:
    rest = '"member": true, "publications": [], "right": null, "ring": null, "shortcuts": {}'
    check = '"believed": "1", "link": "CYC", "sender": ["0", "a"], "type": "CheckLabel"'
    assert render_world(
        Snapshot(
            subscribers={"b": SubscriberState(left=Peer(L0, "a")), "a": SubscriberState(label=L0)},
            channels=(
                Parcel("b", CheckLabel(Peer(L0, "a"), L1, EdgeKind.WRAP), "a", 7),
                Parcel("a", GetConfiguration(None)),
            ),
        )
    ).splitlines() == [
        "{",
        '"channels": [',
        f'{{"message": {{{check}}}, "to": "b"}},',
        '{"message": {"node": null, "type": "GetConfiguration"}, "to": "a"}',
        "],",
        '"crashed": [],',
        '"format": "skipring-world/1",',
        '"subscribers": {',
        f'"a": {{"label": "0", "left": null, {rest}}},',
        f'"b": {{"label": null, "left": ["0", "a"], {rest}}}',
        "},",
        '"supervisor": {"database": [], "next": 0},',
        '"topic": "news"',
        "}",
    ]


@pytest.mark.parametrize(
    ("publication", "fields"),
    [
        (batch_of_p(RECORDS[0]), RECORD),
        (batch_of_p(RECORDS[1]), OTHER),
        (batch_of_p(*RECORDS), {"records": [RECORD, OTHER]}),
        (batch_of_p(RECORDS[1], unordered=True), OTHER | {"unordered": True}),
        (RecordBatch("p", 5, 1, b""), {}),
        (RecordBatch("p", 5, 3, b""), {"count": 3}),
        (RecordBatch("p", 5, 1, b"hello"), {"body": "aGVsbG8="}),
        (replace(batch_of_p(*RECORDS), body=b"hello"), {"count": 2, "body": "aGVsbG8="}),
        (replace(batch_of_p(RECORDS[1]), count=2), {"count": 2, "body": "kZTEAADAgA=="}),
        (
            batch_of_p(BatchRecord(b"", headers={"b": "", "a": ""})),
            {"body": "kZTEAADAgqFioKFhoA=="},
        ),
    ],
)
def test_publication_is_written_with_the_shortest_fields(
    publication: RecordBatch, fields: dict[str, Any]
) -> None:
    publication = replace(publication, id=b"\xab" * 32)
    snapshot = Snapshot(subscribers={"a": SubscriberState(publications=(publication,))})
    written = render_world(snapshot)
    assert json.loads(written)["subscribers"]["a"]["publications"] == [
        {"publisher": "p", "seq": 5, "id": "ab" * 32} | fields
    ]
    assert parse_world(written) == snapshot


def test_hashes_are_written_by_their_bits_and_empty_hashes_are_not() -> None:
    states = {
        "a": SubscriberState(hashes={Prefix.parse("01"): b"\xab" * 16, ALL: b"\x00" * 16}),
        "b": SubscriberState(),
    }
    written = json.loads(render_world(Snapshot(subscribers=states)))["subscribers"]
    assert written["a"]["hashes"] == {"": "00" * 16, "01": "ab" * 16}
    assert "hashes" not in written["b"]


def test_default_field_of_a_message_is_left_out() -> None:
    claim = RangeSummary.make(Prefix.parse("01"))
    messages = (
        CheckTrie("a", (claim,)),
        CheckAndPublish("a", (), session=3, wanted=(claim,)),
        Publications(()),
        PublishNew(HELLO, 0),
    )
    channels = tuple(Parcel("a", message) for message in messages)
    written = render_world(Snapshot(subscribers={"a": SubscriberState()}, channels=channels))
    hello = {"publisher": "a", "seq": 0, "payload": "aGVsbG8=", "id": HELLO.id.hex()}
    assert [parcel["message"] for parcel in json.loads(written)["channels"]] == [
        {"type": "CheckTrie", "sender": "a", "claims": [{"cover": "01"}]},
        {
            "type": "CheckAndPublish",
            "sender": "a",
            "claims": [],
            "session": 3,
            "wanted": [{"cover": "01"}],
        },
        {"type": "Publications", "publications": []},
        {"type": "PublishNew", "publication": hello},
    ]


@pytest.mark.parametrize("code", ADVERSARIES)
def test_every_start_and_its_successors_survive_a_round_trip(code: str) -> None:
    scenario = make_scenario({"n": 9, "adversary": code, "publications": 20})
    running = Simulation(scenario, scenario.start())
    for _ in range(4):
        snapshot = running.world.snapshot()
        channels = tuple(replace(parcel, sender=None) for parcel in snapshot.channels)
        written = render_world(snapshot)
        assert parse_world(written) == replace(snapshot, channels=channels)
        assert render_world(parse_world(written)) == written
        running.run_round()


@pytest.mark.parametrize("path", sorted(FILES.glob("*.json")), ids=lambda path: path.stem)
def test_stored_file_is_rendered_byte_for_byte(path: Path) -> None:
    text = path.read_text()
    assert render_world(parse_world(text)) == text


def test_value_that_no_world_file_can_hold_raises_a_type_error() -> None:
    with pytest.raises(TypeError, match="cannot hold a complex"):
        render_world(Snapshot(subscribers={}, topic=1j))  # type: ignore[arg-type]


@given(snapshots(publications_max=2), st.sampled_from(["news", "été", "a b"]))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_state_survives_a_round_trip(snapshot: Snapshot, topic: str) -> None:
    snapshot = replace(snapshot, topic=topic)  # the ids are wrong then, and stay wrong
    written = render_world(snapshot)
    assert parse_world(written) == snapshot
    assert parse_world(written.encode()) == snapshot
    assert render_world(parse_world(written)) == written


# --- tampered files --------------------------------------------------------------------

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=60)
    | st.text("01", max_size=70)
    | st.sampled_from(["a", "b", "supervisor", "LIN", "Digest", "\ud800", "1" * 5000, "\x85" * 99])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=60), inner, max_size=3)
    ),
    max_leaves=5,
)


def slots(tree: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  (JSON is anything)
    """Return every (container, key or index) of a tree."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from slots(tree[key])


@st.composite
def tampered_worlds(draw: st.DrawFn) -> str:
    """Draw world files in which a value is replaced or removed, or a key is added."""
    text = EXAMPLE
    if draw(st.booleans()):
        text = render_world(draw(snapshots(nodes_max=3, parcels_max=4, publications_max=1)))
    tree = json.loads(text)
    container, key = draw(st.sampled_from(list(slots(tree))))
    match draw(st.sampled_from(["replace", "replace", "remove", "rename"])):
        case "replace":
            container[key] = draw(VALUES)
        case "rename" if isinstance(container, dict):
            container[draw(st.text(max_size=99))] = container.pop(key)
        case _:
            del container[key]
    return json.dumps(tree)


def outcome(text: str | bytes) -> Snapshot | str:
    try:
        return parse_world(text)
    except WorldFormatError as error:
        return str(error)


def assert_read_or_refused(text: str | bytes) -> None:
    match outcome(text):
        case Snapshot() as snapshot:
            assert parse_world(render_world(snapshot)) == snapshot
        case str() as sentence:
            assert is_short_sentence(sentence), sentence


@given(tampered_worlds())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_tampered_world_is_parsed_or_refused_in_one_sentence(text: str) -> None:
    assert_read_or_refused(text)


@given(st.integers(0, len(EXAMPLE) - 1), st.integers(0, 20), st.binary(max_size=3))
@example(at=0, cut=len(EXAMPLE), insert=b"null")
@settings(deadline=None, max_examples=300)
def test_damaged_text_is_parsed_or_refused_in_one_sentence(
    at: int, cut: int, insert: bytes
) -> None:
    assert_read_or_refused(EXAMPLE.encode()[:at] + insert + EXAMPLE.encode()[at + cut :])
