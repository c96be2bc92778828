"""World file: parsing, error messages and rendering."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
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
from skipring.core.publications import Publication
from skipring.core.state import (
    LivenessState,
    NumberState,
    SubscriberMemory,
    SubscriberState,
    SupervisorMemory,
    SupervisorState,
    TransferState,
)
from skipring.core.summaries import RangeSummary, Summary
from skipring.errors import WorldFormatError
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries import ADVERSARIES
from skipring.world.format import parse_world, render_world
from skipring.world.snapshot import Parcel, Snapshot
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

HELLO = Publication(publisher="a", seq=0, payload=b"hello").with_id("news")
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


def supervising(memory: object) -> dict[str, Any]:
    """Return the smallest world whose supervisor has this memory."""
    return world_with("supervisor", "memory", value=memory)


def remembering(**memory: object) -> dict[str, Any]:
    """Return the smallest world in which subscriber a has this memory."""
    return world_of(memory=memory)


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


def test_counters_digests_and_queue_are_parsed() -> None:
    tree = world_of(silence={"b": [-3, 64, True]}, digests={"x": 2**64 - 1})
    tree["supervisor"]["queue"] = ["b", "a"]
    snapshot = parse(tree)
    assert snapshot.subscribers["a"].silence == {"b": LivenessState(-3, 64, pending=True)}
    assert snapshot.subscribers["a"].digests == {"x": 2**64 - 1}
    assert snapshot.supervisor.queue == ("b", "a")


def test_publication_is_parsed_with_all_its_fields() -> None:
    extra = {"id": "aB" * 32, "time": 7, "key": "", "headers": {"h": "é"}, "payload": None}
    assert parse(world_publishing(**extra)).subscribers["a"].publications == (
        Publication(
            publisher="p", seq=0, id=b"\xab" * 32, time=7, key=b"", headers={"h": "é"}, payload=None
        ),
    )


@pytest.mark.parametrize("topic", ["news", "sport"])
@pytest.mark.parametrize("fields", [{"payload": ""}, {"payload": "aGVsbG8="}, {}, {"id": None}])
def test_publication_without_an_id_gets_the_id_of_its_fields_in_the_topic(
    topic: str, fields: dict[str, Any]
) -> None:
    (publication,) = (
        parse(world_publishing(**fields) | {"topic": topic}).subscribers["a"].publications
    )
    assert publication.id == publication.id_in(topic)


def test_publication_with_a_wrong_id_keeps_it() -> None:
    tree = world_publishing(payload="aGVsbG8=", id="ab" * 32)
    (publication,) = parse(tree).subscribers["a"].publications
    assert publication.id == b"\xab" * 32
    assert parse_world(render_world(parse(tree))) == parse(tree)


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
        [
            Summary(Prefix.parse("01" * 128), b"Z" * 16),
            Summary(Prefix.parse(node), b"Z" * 16),
        ],
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


@pytest.mark.parametrize("cursor", [0, 10**30, 10**4000])
def test_next_is_any_integer(cursor: int) -> None:
    tree = world_with("supervisor", "next", value=cursor)
    assert parse(tree).supervisor.next == cursor
    assert parse_world(render_world(parse(tree))) == parse(tree)


@pytest.mark.parametrize("topic", ["n", "é" * 127, "a topic: 1/2"])
def test_topic_is_any_short_text(topic: str) -> None:
    assert parse(world(topic=topic)).topic == topic


def test_references_may_name_any_known_node_and_the_supervisor() -> None:
    assert state_of_a(left=["0", "a"], right=["1", "supervisor"], ring=["01", "x"]) == (
        SubscriberState(left=Peer(L0, "a"), right=Peer(L1, SUPERVISOR), ring=Peer(L01, "x"))
    )


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


def test_loaded_world_has_the_memory_of_the_dumped_one() -> None:
    for code in ("A60", "A61", "A62", "A63", "A64", "A65", "A66"):
        start = ADVERSARIES[code].build(9, Random(1))
        world = World(start, seed=0, config=ProtocolConfig())
        again = World(world.snapshot(), seed=0, config=ProtocolConfig())
        assert again.snapshot() == world.snapshot()


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


def test_memory_has_numbers_of_several_sequences_of_one_publisher() -> None:
    numbers = [["a", 1, 4194309], ["a", 2, None]]
    memory = state_of_a(memory={"holdings": {"numbers": numbers}}).memory
    assert memory is not None
    assert memory.holdings.numbers == (NumberState("a", 1, 4194309), NumberState("a", 2, None))


# --- labels that l never produces ------------------------------------------------------


@pytest.mark.parametrize("bits", NEVER)
def test_database_keeps_an_invalid_label(bits: str) -> None:
    snapshot = parse(world_with("supervisor", "database", value=[[bits, "a"], [bits, None]]))
    assert snapshot.supervisor.database == ((bits, "a"), (bits, None))


def test_label_may_have_4096_characters() -> None:
    bits = "0" * 4096
    snapshot = parse(world_with("supervisor", "database", value=[[bits, "a"]]))
    assert snapshot.supervisor.database == ((bits, "a"),)
    assert state_of_a(label=bits).label is None


@pytest.mark.parametrize("bits", [*NEVER, None])
def test_invalid_label_outside_the_database_is_null_and_its_references_are_dropped(
    bits: str | None,
) -> None:
    state = state_of_a(label=bits, left=[bits, "b"], right=["1", "b"], ring=[bits, "x"])
    assert state == SubscriberState(right=Peer(L1, "b"))


@pytest.mark.parametrize("bits", NEVER)
def test_shortcut_under_an_invalid_label_is_dropped(bits: str) -> None:
    assert state_of_a(shortcuts={bits: "b", "1": None}).shortcuts == {L1: None}


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


def test_reference_to_null_is_dropped() -> None:
    assert state_of_a(left=["0", None]) == SubscriberState()
    assert messages_of({"type": "IntroduceShortcut", "peer": ["0", None]}) == []


# --- errors ----------------------------------------------------------------------------

NAN, HUGE = float("nan"), "1" * 10**6

NEWS = {"publisher": "p", "seq": 0}


def world_claiming(**claim: object) -> dict[str, Any]:
    """Return the smallest world with one range summary in the channel of a."""
    return world_saying(type="CheckTrie", sender="b", claims=[claim])


REFUSED: list[tuple[object, str]] = [
    # the file as a whole
    ([], "$: Expected `object`, got `array`"),
    ({}, "$: Object missing required field `format`"),
    (world(format="skipring-world/2", news=1), "$.format: Invalid enum value 'skipring-world/2'"),
    (world(format=1), "$.format: Expected `str`, got `int`"),
    (world(colour=1, shape=2), "$: Object contains unknown field `colour`"),
    (
        world(**{HUGE: 1}),
        "$: Object contains unknown field `111111111111111111111111111111111111111111",
    ),
    # the topic
    (world(topic=5), "$.topic: Expected `str`, got `int`"),
    (world(topic=""), "$.topic: a topic has 1 to 255 bytes, this one has 0"),
    (world(topic="é" * 128), "$.topic: a topic has 1 to 255 bytes, this one has 256"),
    (world(topic="a\nb"), "$.topic: a topic has no control characters, got 'a\\nb'"),
    (world(topic="a\x85"), "$.topic: a topic has no control characters, got 'a\\x85'"),
    (world(topic="\ud800"), "$.topic: lone surrogate in '\\ud800'"),
    # the supervisor
    (world(supervisor=None), "$.supervisor: Expected `object`, got `null`"),
    (world(supervisor={"database": []}), "$.supervisor: Object missing required field `next`"),
    (world_with("supervisor", "n", value=1), "$.supervisor: Object contains unknown field `n`"),
    (world_with("supervisor", "next", value=True), "$.supervisor.next: Expected `int`, got `bool`"),
    (world_with("supervisor", "next", value=1.0), "$.supervisor.next: Expected `int`, got `float`"),
    (world_with("supervisor", "next", value=NAN), "$.supervisor.next: Expected `int`, got `float`"),
    (
        world_with("supervisor", "database", value={}),
        "$.supervisor.database: Expected `array`, got `object`",
    ),
    (
        world_with("supervisor", "database", value=[["0", "a"], ["0"]]),
        "$.supervisor.database[1]: Expected `array` of length 2, got 1",
    ),
    (
        world_with("supervisor", "database", value=[[None, "a"]]),
        "$.supervisor.database[0][0]: Expected `str`, got `null`",
    ),
    (
        world_with("supervisor", "database", value=[["0" * 4097, "a"]]),
        "$.supervisor.database[0][0]: Expected `str` of length <= 4096",
    ),
    (
        world_with("supervisor", "database", value=[["0", "zoe"]]),
        "$.supervisor.database[0][1]: 'zoe' is neither in subscribers nor in crashed",
    ),
    (
        world_with("supervisor", "queue", value=["a", "zoe"]),
        "$.supervisor.queue[1]: 'zoe' is neither in subscribers nor in crashed",
    ),
    (
        world_with("supervisor", "queue", value=[None]),
        "$.supervisor.queue[0]: Expected `str`, got `null`",
    ),
    (supervising(1), "$.supervisor.memory: Expected `object`, got `int`"),
    (supervising({"colour": 1}), "$.supervisor.memory: Object contains unknown field `colour`"),
    (supervising({"ticks": None}), "$.supervisor.memory.ticks: Expected `int`, got `null`"),
    (
        supervising({"answered": [1]}),
        "$.supervisor.memory.answered: Expected `array` of length 2, got 1",
    ),
    (
        supervising({"told": {"a b": 1}}),
        "$.supervisor.memory.told: Expected `str` matching regex '\\\\A[A-Za-z0-9._-]{1",
    ),
    # node names
    (world(subscribers=[]), "$.subscribers: Expected `object`, got `array`"),
    (
        world(subscribers={"a b": {}}),
        "$.subscribers: Expected `str` matching regex '\\\\A[A-Za-z0-9._-]{1,64}\\\\Z'",
    ),
    (
        world(subscribers={"": {}}),
        "$.subscribers: Expected `str` matching regex '\\\\A[A-Za-z0-9._-]{1,64}\\\\Z'",
    ),
    (
        world(subscribers={"a\n": {}}),
        "$.subscribers: Expected `str` matching regex '\\\\A[A-Za-z0-9._-]{1,64}\\\\Z'",
    ),
    (
        world(subscribers={"a" * 65: {}}),
        "$.subscribers: Expected `str` matching regex '\\\\A[A-Za-z0-9._-]{1,64}\\\\Z'",
    ),
    (
        world(subscribers={"supervisor": {}}),
        "$.subscribers: no subscriber can be called 'supervisor'",
    ),
    (world(crashed="x"), "$.crashed: Expected `array`, got `str`"),
    (world(crashed=["x", 1]), "$.crashed[1]: Expected `str`, got `int`"),
    (world(crashed=["supervisor"]), "$.crashed[0]: no subscriber can be called 'supervisor'"),
    (world(crashed=["b"]), "$.subscribers.b: the node is also in crashed"),
    # a subscriber
    (
        world_with("subscribers", "a", value=[]),
        "$.subscribers.a: Expected `object`, got `array`",
    ),
    (
        world_with("subscribers", "a", value={"label": None}),
        "$.subscribers.a: Object missing required field `member`",
    ),
    (world_of(colour="red"), "$.subscribers.a: Object contains unknown field `colour`"),
    (world_of(member=1), "$.subscribers.a.member: Expected `bool`, got `int`"),
    (world_of(label=0), "$.subscribers.a.label: Expected `str`, got `int`"),
    (
        world_of(label="02"),
        "$.subscribers.a.label: Expected `str` matching regex '\\\\A[01]*\\\\Z'",
    ),
    (
        world_of(label="0\n"),
        "$.subscribers.a.label: Expected `str` matching regex '\\\\A[01]*\\\\Z'",
    ),
    (world_of(label=HUGE), "$.subscribers.a.label: Expected `str` of length <= 4096"),
    (world_of(left=5), "$.subscribers.a.left: Expected `array`, got `int`"),
    (world_of(left="0b"), "$.subscribers.a.left: Expected `array`, got `str`"),
    (world_of(right=["0", "b", 1]), "$.subscribers.a.right: Expected `array` of length 2, got 3"),
    (world_of(ring=["0", 1]), "$.subscribers.a.ring[1]: Expected `str`, got `int`"),
    (
        world_of(ring=["b", "0"]),
        "$.subscribers.a.ring[0]: Expected `str` matching regex '\\\\A[01]*\\\\Z'",
    ),
    (
        world_of(ring=["0", "zoe"]),
        "$.subscribers.a.ring[1]: 'zoe' is neither in subscribers nor in crashed",
    ),
    (
        world_of(ring=["00", "zoe"]),
        "$.subscribers.a.ring[1]: 'zoe' is neither in subscribers nor in crashed",
    ),
    (world_of(shortcuts=None), "$.subscribers.a.shortcuts: Expected `object`, got `null`"),
    (
        world_of(shortcuts={"b": "0"}),
        "$.subscribers.a.shortcuts: Expected `str` matching regex '\\\\A[01]*\\\\Z'",
    ),
    (
        world_of(shortcuts={HUGE: "b"}),
        "$.subscribers.a.shortcuts: Expected `str` of length <= 4096",
    ),
    (
        world_of(shortcuts={"01": "zoe"}),
        "$.subscribers.a.shortcuts['01']: 'zoe' is neither in subscribers nor in cras",
    ),
    (
        world_of(shortcuts={"1" * 4096: 1}),
        "$.subscribers.a.shortcuts['1111111111111111111111111111111111111111'...]: Ex",
    ),
    (
        world_of(silence={"zoe": [0, 8, True]}),
        "$.subscribers.a.silence: 'zoe' is neither in subscribers nor in crashed",
    ),
    (
        world_of(silence={"b": [0, 8]}),
        "$.subscribers.a.silence['b']: Expected `array` of at least length 3, got 2",
    ),
    (
        world_of(silence={"b": [True, 8, True]}),
        "$.subscribers.a.silence['b'][0]: Expected `int`, got `bool`",
    ),
    (
        world_of(silence={"b": [0, None, True]}),
        "$.subscribers.a.silence['b'][1]: Expected `int`, got `null`",
    ),
    (
        world_of(silence={"b": [0, 8, 0]}),
        "$.subscribers.a.silence['b'][2]: Expected `bool`, got `int`",
    ),
    (remembering(weight=-1), "$.subscribers.a.memory.weight: Expected `int` >= 0"),
    (
        remembering(chains={"own": "0"}),
        "$.subscribers.a.memory.chains: Object missing required field `pred`",
    ),
    (
        remembering(holdings={"count": -1}),
        "$.subscribers.a.memory.holdings.count: Expected `int` >= 0",
    ),
    (
        remembering(holdings={"index": {"ab": 1}}),
        "$.subscribers.a.memory.holdings.index: Expected `str` matching regex '\\\\A(?:",
    ),
    (
        remembering(announcing={"news": {"00" * 8: [256, []]}}),
        "$.subscribers.a.memory.announcing.news['0000000000000000'][0]: Expected `int",
    ),
    (
        remembering(announcing={"heard": [{"sender": "b", "ids": ["00" * 8], "hops": []}]}),
        "$.subscribers.a.memory.announcing.heard[0]: 8 bytes of short ids with 0 hops",
    ),
    (
        remembering(spreading={"arrivals": [[]]}),
        "$.subscribers.a.memory.spreading.arrivals[0]: Expected `array` of at least l",
    ),
    (
        world_of(digests={"zoe": 1}),
        "$.subscribers.a.digests: 'zoe' is neither in subscribers nor in crashed",
    ),
    (
        world_of(digests={"b": 2**64}),
        "$.subscribers.a.digests['b']: Expected `int` <= 18446744073709551615",
    ),
    (
        world_of(digests={"b": False}),
        "$.subscribers.a.digests['b']: Expected `int`, got `bool`",
    ),
    # publications
    (world_of(publications={}), "$.subscribers.a.publications: Expected `array`, got `object`"),
    (
        world_of(publications=[{"seq": 0}]),
        "$.subscribers.a.publications[0]: Object missing required field `publisher`",
    ),
    (
        world_publishing(payloads=""),
        "$.subscribers.a.publications[0]: Object contains unknown field `payloads`",
    ),
    (
        world_publishing(publisher=""),
        "$.subscribers.a.publications[0].publisher: Expected `str` matching regex '\\\\",
    ),
    (world_publishing(seq="0"), "$.subscribers.a.publications[0].seq: Expected `int`, got `str`"),
    (
        world_publishing(payload="a"),
        "$.subscribers.a.publications[0].payload: Invalid base64 encoded string",
    ),
    (
        world_publishing(payload="aGV sbG8="),
        "$.subscribers.a.publications[0].payload: Invalid base64 encoded string",
    ),
    (
        world_publishing(payload="é==="),
        "$.subscribers.a.publications[0].payload: Invalid base64 encoded string",
    ),
    (
        world_publishing(payload=5),
        "$.subscribers.a.publications[0].payload: Expected `bytes | null`, got `int`",
    ),
    (
        world_publishing(key="_-=="),
        "$.subscribers.a.publications[0].key: Invalid base64 encoded string",
    ),
    (world_publishing(time=-1), "$.subscribers.a.publications[0].time: Expected `int` >= 0"),
    (
        world_publishing(id="ab"),
        "$.subscribers.a.publications[0].id: Expected `str` matching regex '\\\\A(?:[0-",
    ),
    (
        world_publishing(id="zz" * 32),
        "$.subscribers.a.publications[0].id: Expected `str` matching regex '\\\\A(?:[0-",
    ),
    (
        world_publishing(headers=[]),
        "$.subscribers.a.publications[0].headers: Expected `object`, got `array`",
    ),
    (
        world_publishing(headers={"h": 1}),
        "$.subscribers.a.publications[0].headers['h']: Expected `str`, got `int`",
    ),
    # hashes
    (world_of(hashes=[]), "$.subscribers.a.hashes: Expected `object`, got `array`"),
    (world_of(hashes={"0": None}), "$.subscribers.a.hashes['0']: Expected `str`, got `null`"),
    (
        world_of(hashes={"0": "ab" * 8}),
        "$.subscribers.a.hashes['0']: Expected `str` matching regex '\\\\A(?:[0-9A-Fa-f",
    ),
    (
        world_of(hashes={"0": "zz" * 16}),
        "$.subscribers.a.hashes['0']: Expected `str` matching regex '\\\\A(?:[0-9A-Fa-f",
    ),
    (
        world_of(hashes={"02": ""}),
        "$.subscribers.a.hashes: Expected `str` matching regex '\\\\A[01]*\\\\Z'",
    ),
    (world_of(hashes={"0" * 257: ""}), "$.subscribers.a.hashes: Expected `str` of length <= 256"),
    (world_of(hashes={HUGE: ""}), "$.subscribers.a.hashes: Expected `str` of length <= 256"),
    # messages
    (world(channels={}), "$.channels: Expected `array`, got `object`"),
    (world(channels=["a"]), "$.channels[0]: Expected `object`, got `str`"),
    (world(channels=[{"to": "a"}]), "$.channels[0]: Object missing required field `message`"),
    (
        world(channels=[{"to": "a", "message": {}, "by": 1}]),
        "$.channels[0]: Object contains unknown field `by`",
    ),
    (
        world(channels=[{"to": "zoe", "message": {}}]),
        "$.channels[0].message: Object missing required field `type`",
    ),
    (
        world(channels=[{"to": None, "message": {}}]),
        "$.channels[0].message: Object missing required field `type`",
    ),
    (
        world(channels=[{"to": "a", "message": 1}]),
        "$.channels[0].message: Expected `object`, got `int`",
    ),
    (world_saying(), "$.channels[0].message: Object missing required field `type`"),
    (world_saying(type=["Digest"]), "$.channels[0].message.type: Expected `str`, got `list`"),
    (
        world_saying(type="Publish"),
        "$.channels[0].message.type: Invalid value 'Publish'",
    ),
    (world_saying(type="Subscribe"), "$.channels[0].message: Object missing required field `node`"),
    (
        world_saying(type="Subscribe", node="a", digest=1),
        "$.channels[0].message: Object contains unknown field `digest`",
    ),
    (
        world_saying(type="Unsubscribe", node="zoe"),
        "$.channels[0].message.node: 'zoe' is neither in subscribers nor in crashed",
    ),
    (
        world_saying(type="GetConfiguration", node="a", digest=-1),
        "$.channels[0].message.digest: Expected `int` >= 0",
    ),
    (
        world_saying(type="RemoveConnections", node=None),
        "$.channels[0].message.node: Expected `str`, got `null`",
    ),
    (
        world_saying(type="Digest", node="a", digest=None),
        "$.channels[0].message.digest: Expected `int`, got `null`",
    ),
    (
        world_saying(type="IntroduceShortcut", peer=None),
        "$.channels[0].message.peer: Expected `array`, got `null`",
    ),
    (
        world_saying(type="IntroduceShortcut", peer=["0", "zoe"]),
        "$.channels[0].message.peer[1]: 'zoe' is neither in subscribers nor in crashe",
    ),
    (
        world_saying(type="SetConfiguration", pred=[], label=None, succ=None),
        "$.channels[0].message.pred: Expected `array` of length 2, got 0",
    ),
    (
        world_saying(type="CheckLabel", sender=["0", "a"], believed="x", link="LIN"),
        "$.channels[0].message.believed: Expected `str` matching regex '\\\\A[01]*\\\\Z'",
    ),
    (
        world_saying(type="Introduce", peer=["00", "a"], link="LINE", first_hand=True),
        "$.channels[0].message.link: Invalid enum value 'LINE'",
    ),
    (
        world_saying(type="Introduce", peer=["0", "a"], link=["LIN"], first_hand=True),
        "$.channels[0].message.link: Expected `str`, got `array`",
    ),
    (
        world_saying(type="Introduce", peer=["0", "a"], link="CYC", first_hand=1),
        "$.channels[0].message.first_hand: Expected `bool`, got `int`",
    ),
    # messages about publications
    (
        world_saying(type="PublishNew"),
        "$.channels[0].message: Object missing required field `publication`",
    ),
    (
        world_saying(type="PublishNew", publication={"seq": 0}),
        "$.channels[0].message.publication: Object missing required field `publisher`",
    ),
    (
        world_saying(type="PublishNew", publication=NEWS, hops=-1),
        "$.channels[0].message.hops: Expected `int` >= 0",
    ),
    (
        world_saying(type="PublishNew", publication=NEWS, hops=2**64),
        "$.channels[0].message.hops: Expected `int` <= 18446744073709551615",
    ),
    (
        world_saying(type="Publications", publications=[NEWS, 5]),
        "$.channels[0].message.publications[1]: Expected `object`, got `int`",
    ),
    (
        world_saying(type="Publications", publications=[], session=True),
        "$.channels[0].message.session: Expected `int`, got `bool`",
    ),
    (
        world_saying(type="TrieEqual", sender="a", root="ab"),
        "$.channels[0].message.root: Expected `str` matching regex '\\\\A(?:[0-9A-Fa-f]",
    ),
    (
        world_saying(type="TrieEqual", sender="zoe", root="ab" * 16),
        "$.channels[0].message.sender: 'zoe' is neither in subscribers nor in crashed",
    ),
    (
        world_saying(type="CheckTrie", sender=None, claims=[]),
        "$.channels[0].message.sender: Expected `str`, got `null`",
    ),
    (
        world_saying(type="CheckTrie", sender="a", claims={}),
        "$.channels[0].message.claims: Expected `array`, got `object`",
    ),
    (
        world_saying(type="CheckTrie", sender="a", claims=[], session=-1),
        "$.channels[0].message.session: Expected `int` >= 0",
    ),
    (
        world_saying(type="CheckTrie", sender="a", claims=[], confirm=0),
        "$.channels[0].message.confirm: Expected `bool`, got `int`",
    ),
    (
        world_saying(type="CheckTrie", sender="a", claims=[], wanted=[]),
        "$.channels[0].message: Object contains unknown field `wanted`",
    ),
    (
        world_claiming(nodes=[]),
        "$.channels[0].message.claims[0]: Object missing required field `cover`",
    ),
    (
        world_claiming(cover="", labels=[]),
        "$.channels[0].message.claims[0]: Object contains unknown field `labels`",
    ),
    (
        world_claiming(cover=None),
        "$.channels[0].message.claims[0].cover: Expected `str`, got `null`",
    ),
    (
        world_claiming(cover="2"),
        "$.channels[0].message.claims[0].cover: Expected `str` matching regex '\\\\A[01",
    ),
    (
        world_claiming(cover="1" * 257),
        "$.channels[0].message.claims[0].cover: Expected `str` of length <= 256",
    ),
    (
        world_claiming(cover="", nodes={}),
        "$.channels[0].message.claims[0].nodes: Expected `array`, got `object`",
    ),
    (
        world_claiming(cover="", nodes=[["0"]]),
        "$.channels[0].message.claims[0].nodes[0]: Expected `array` of length 2, got ",
    ),
    (
        world_claiming(cover="", nodes=[["0" * 257, "ab" * 8]]),
        "$.channels[0].message.claims[0].nodes[0][0]: Expected `str` of length <= 256",
    ),
    (
        world_claiming(cover="01", nodes=[["010", "ab" * 8], ["00", "ab" * 8]]),
        "$.channels[0].message.claims[0].nodes[1][0]: the label does not begin with t",
    ),
    (
        world_claiming(cover="01", nodes=[["0", "ab" * 8]]),
        "$.channels[0].message.claims[0].nodes[0][0]: the label does not begin with t",
    ),
    (
        world_claiming(cover="", nodes=[["0", "ab" * 9]]),
        "$.channels[0].message.claims[0].nodes[0][1]: Expected `str` matching regex '",
    ),
    (
        world_claiming(cover="", nodes=[["0", "ab" * 8], ["1", "ab" * 16]]),
        "$.channels[0].message.claims[0].nodes[1][1]: the digest is not as long as th",
    ),
    (
        world_claiming(cover="", leaves=["ab"]),
        "$.channels[0].message.claims[0].leaves[0]: Expected `str` matching regex '\\\\",
    ),
    (
        world_claiming(cover="", leaves="ab"),
        "$.channels[0].message.claims[0].leaves: Expected `array`, got `str`",
    ),
    (
        world_saying(type="CheckAndPublish", sender="a", claims=[], wanted=[{}]),
        "$.channels[0].message.wanted[0]: Object missing required field `cover`",
    ),
    (
        world_saying(type="IHave", sender="a", ids=["ab"], hops=[0]),
        "$.channels[0].message.ids[0]: Expected `str` matching regex '\\\\A(?:[0-9A-Fa-",
    ),
    (
        world_saying(type="IHave", sender="a", ids=[], hops=[256]),
        "$.channels[0].message.hops[0]: Expected `int` <= 255",
    ),
    (
        world_saying(type="Want", sender="a", ids=[], hops=[-1]),
        "$.channels[0].message.hops[0]: Expected `int` >= 0",
    ),
    (
        world_saying(type="Want", sender="a", ids=[], hops=5),
        "$.channels[0].message.hops: Expected `array`, got `int`",
    ),
    (
        world_saying(type="Want", sender="a", ids=["ab" * 8], hops=[1, 2]),
        "$.channels[0].message: 8 bytes of short ids with 2 hops",
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
            PLAIN.replace('"next": 0', '"next": -Infinity'),
            "$.supervisor.next: Expected `int`, got `float`",
        ),
        (
            PLAIN.replace('"next": 0', '"next": 1e999'),
            "$.supervisor.next: Expected `int`, got `float`",
        ),
        (
            PLAIN.replace('"b":', '"a":'),
            "$.subscribers: Expected `object`, got `object with the key 'a' twice`",
        ),
        (
            PLAIN.replace('"topic":', '"format":'),
            "$: Expected `object`, got `object with the key 'format' twice`",
        ),
        (
            PLAIN.replace('"left":', '"label":', 1),
            "$.subscribers.a: Expected `object`, got `object with the key 'label' twice`",
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


def test_empty_payload_is_written_and_an_absent_one_is_not() -> None:
    publications = (
        Publication(publisher="p", seq=0, payload=b"", id=b"\xab" * 32),
        Publication(publisher="p", seq=1, id=b"\xcd" * 32),
    )
    snapshot = Snapshot(subscribers={"a": SubscriberState(publications=publications)})
    written = render_world(snapshot)
    assert json.loads(written)["subscribers"]["a"]["publications"] == [
        {"publisher": "p", "seq": 0, "payload": "", "id": "ab" * 32},
        {"publisher": "p", "seq": 1, "id": "cd" * 32},
    ]
    assert written.endswith("}\n")


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


@pytest.mark.parametrize("publications", [0, 20])
@pytest.mark.parametrize("code", ADVERSARIES)
def test_every_start_and_its_successors_survive_a_round_trip(code: str, publications: int) -> None:
    scenario = make_scenario({"n": 9, "adversary": code, "publications": publications})
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


def test_value_that_does_not_belong_in_a_world_is_a_bug() -> None:
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
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_tampered_world_is_parsed_or_refused_in_one_sentence(text: str) -> None:
    assert_read_or_refused(text)


@given(st.integers(0, len(EXAMPLE) - 1), st.integers(0, 20), st.binary(max_size=3))
@example(at=0, cut=len(EXAMPLE), insert=b"null")
@settings(deadline=None, max_examples=300)
def test_damaged_text_is_parsed_or_refused_in_one_sentence(
    at: int, cut: int, insert: bytes
) -> None:
    assert_read_or_refused(EXAMPLE.encode()[:at] + insert + EXAMPLE.encode()[at + cut :])
