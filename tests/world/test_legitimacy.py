"""Legitimacy: detection of every violation, with its layer and description."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.config import Mode, ProtocolConfig, Rules
from skipring.core.labels import Label
from skipring.core.messages import (
    UNRECORDED,
    CheckLabel,
    Digest,
    GetConfiguration,
    Introduce,
    IntroduceShortcut,
    Message,
    Publications,
    PublishNew,
    RemoveConnections,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId, Peer
from skipring.core.prefix import ALL
from skipring.core.publications import ID_BYTES
from skipring.core.state import (
    LivenessState,
    ReplicaState,
    SubscriberMemory,
    SubscriberState,
    legitimate_state,
)
from skipring.core.topology import chains_around
from skipring.sim.engine import World
from skipring.sim.network_faults import Delay
from skipring.sim.schedulers import RandomOrder
from skipring.world.adversaries import ADVERSARIES
from skipring.world.adversaries.builders import with_database, with_states
from skipring.world.format import parse_world
from skipring.world.legitimacy import (
    Layer,
    Violation,
    census,
    channel_violations,
    explicit_state,
    has_all_publications,
    is_legitimate,
    is_strictly_legitimate,
    publication_violations,
    violations,
)
from skipring.world.snapshot import Parcel, Snapshot, View
from tests.support.batches import batch, batch_of, with_rows
from tests.support.conversations import at, place, standing_ring
from tests.world.test_format import EXAMPLE

# In the order of r: a@0, c@01, b@1, d@11. The dead x and the leaver z have no references.
RING = replace(
    standing_ring("abcd"),
    subscribers={**standing_ring("abcd").subscribers, "z": SubscriberState(member=False)},
    crashed=("x",),
)
DATABASE = RING.supervisor.database


def database(*entries: tuple[str, NodeId | None]) -> Snapshot:
    """Return the ring with another database."""
    return with_database(RING, entries)


def changed(node: NodeId, **variables: object) -> Snapshot:
    """Return the ring with other variables of one subscriber."""
    state = replace(RING.subscribers[node], **variables)
    return replace(RING, subscribers={**RING.subscribers, node: state})


def saying(to: NodeId, message: Message) -> Snapshot:
    """Return the ring with one message in flight."""
    return replace(RING, channels=(Parcel(to, message),))


def label(bits: str) -> Label:
    return Label.parse(bits)


def sentences(view: View) -> list[str]:
    return [str(violation) for violation in violations(view)]


def wrong_publications(view: View) -> list[str]:
    return [str(violation) for violation in publication_violations(view)]


def test_undamaged_ring_is_legitimate() -> None:
    assert sentences(RING) == []
    assert is_legitimate(RING)
    assert is_strictly_legitimate(RING)


# --- one violation ---------------------------------------------------------------------

# The repair of such a database moves no member: no other layer is affected.
DATABASES = [
    (
        database(*DATABASE, ("01", None)),
        ["database: label '01' has no subscriber", "database: label '01' occurs 2 times"],
    ),
    (
        database(*DATABASE, ("001", "a")),
        ["database: label '001' is not among the first 4", "database: a is recorded 2 times"],
    ),
    (database(*DATABASE[:3], ("111", "d")), ["database: label '111' is not among the first 4"]),
    (database(*DATABASE[:3], ("110", "d")), ["database: label '110' is not among the first 4"]),
    (database(*DATABASE[:3], ("", "d")), ["database: label '' is not among the first 4"]),
    (
        database(*DATABASE, ("001", SUPERVISOR)),
        [
            "database: supervisor under label '001' is not a live subscriber",
            "database: label '001' is not among the first 4",
        ],
    ),
]
LABELS = [
    (changed("d", label=None), ["d has label none, should be 11"]),
    (changed("d", label=label("111")), ["d has label 111, should be 11"]),
    (changed("d", label=label("0")), ["d has label 0, should be 11"]),
]
EDGES = [
    (changed("a", right=None), ["a.right is none, should be (01, c)"]),
    (changed("a", right=at("b@01")), ["a.right is (01, b), should be (01, c)"]),
    (changed("a", right=at("c@001")), ["a.right is (001, c), should be (01, c)"]),
    (changed("a", left=at("d@11")), ["a.left is (11, d), should be none"]),
    (changed("a", ring=None), ["a.ring is none, should be (11, d)"]),
    (changed("b", left=at("x@01")), ["b.left is (01, x), should be (01, c)"]),
    (changed("b", ring=at("a@0")), ["b.ring is (0, a), should be none"]),
    (changed("d", ring=at("z@0")), ["d.ring is (0, z), should be (0, a)"]),
]
SHORTCUTS = [
    (changed("a", shortcuts={}), ["a lacks its shortcut to 1"]),
    (
        changed("a", shortcuts={label("1"): None}),
        ["a has a shortcut to 1 at no node, should be at b"],
    ),
    (changed("a", shortcuts={label("1"): "c"}), ["a has a shortcut to 1 at c, should be at b"]),
    (
        changed("a", shortcuts={label("1"): "b", label("01"): "c"}),
        ["a has a shortcut to 01, which it should not have"],
    ),
    (
        changed("c", shortcuts={label("111"): None}),
        ["c has a shortcut to 111, which it should not have"],
    ),
]
LEAVERS = [
    (changed("z", label=label("0")), ["z is not a member and still has label 0"]),
    (changed("z", left=at("a@0")), ["z is not a member and still has references"]),
    (changed("z", right=at("a@0")), ["z is not a member and still has references"]),
    (changed("z", ring=at("a@0")), ["z is not a member and still has references"]),
    (
        changed("z", shortcuts={label("0"): None, label("1"): "b"}),
        ["z is not a member and still has references"],
    ),
]
ONE_THING = [
    pytest.param(world, layer, texts, id=f"{layer} {texts[0]}")
    for layer, table in zip(Layer, (DATABASES, LABELS, EDGES, SHORTCUTS, LEAVERS), strict=False)
    for world, texts in table
]


@pytest.mark.parametrize(("world", "layer", "texts"), ONE_THING)
def test_single_violation_is_reported_in_its_layer_only(
    world: Snapshot, layer: Layer, texts: list[str]
) -> None:
    assert list(violations(world)) == [Violation(layer, text) for text in texts]
    assert sentences(world) == [f"{layer}: {text}" for text in texts]
    assert census(world) == {layer: len(texts)}
    assert not is_legitimate(world)
    assert not is_strictly_legitimate(world)


def test_dead_node_in_the_database_is_found() -> None:
    world = with_database(standing_ring("abcd"), [*DATABASE[:3], ("11", "x")])
    assert sentences(world)[:3] == [
        "L0: database: x under label '11' is not a live subscriber",
        "L0: database: d is not recorded",
        "L1: d has label 11 and is not recorded",
    ]


def test_leaver_in_the_database_is_found() -> None:
    world = database(*DATABASE, ("001", "z"))
    assert "L0: database: z under label '001' does not want to be a member" in sentences(world)
    assert not is_legitimate(world)


def test_two_swapped_entries_do_not_violate_the_database() -> None:
    """Every member is recorded under a label of the first n: the subscribers are wrong."""
    world = with_database(standing_ring("ab"), [("0", "b"), ("1", "a")])
    assert sentences(world) == [
        "L1: a has label 0, should be 1",
        "L1: b has label 1, should be 0",
        "L2: a.left is none, should be (0, b)",
        "L2: a.right is (1, b), should be none",
        "L2: a.ring is (1, b), should be (0, b)",
        "L2: b.left is (0, a), should be none",
        "L2: b.right is none, should be (1, a)",
        "L2: b.ring is (0, a), should be (1, a)",
    ]


def test_database_without_members_must_be_empty() -> None:
    world = Snapshot(subscribers={"z": SubscriberState(member=False)})
    assert is_strictly_legitimate(world)
    assert sentences(with_database(world, [("0", None)])) == [
        "L0: database: label '0' has no subscriber",
        "L0: database: label '0' is not among the first 0",
    ]


def test_violations_of_the_example_of_the_design_are_described() -> None:
    example = parse_world(EXAMPLE)
    assert sentences(example) == [
        "L0: database: label '1' has no subscriber",
        "L0: database: label '01' is not among the first 2",
        "L0: database: c under label '00' does not want to be a member",
        "L0: database: label '00' is not among the first 2",
        "L0: database: a is recorded 2 times",
        "L0: database: b is not recorded",
        "L1: b has label 01 and is not recorded",
        "L2: a.right is (01, b), should be (1, c)",
        "L2: b.left is (0, a), should be none",
        "L2: b.right is (1, x), should be none",
        "L3: a has a shortcut to 01, which it should not have",
        "L3: a has a shortcut to 1, which it should not have",
    ]
    assert list(channel_violations(example)) == []
    assert wrong_publications(example) == ["PUB: b lacks 1 of 1 publications"]
    assert census(example) == {"L0": 6, "L1": 1, "L2": 3, "L3": 2, "PUB": 1}


# --- small rings -----------------------------------------------------------------------


@pytest.mark.parametrize("edge", ["left", "right", "ring"])
def test_single_member_must_not_refer_to_itself(edge: str) -> None:
    alone = SubscriberState(label=label("0"), **{edge: at("a@0")})
    world = replace(standing_ring("a"), subscribers={"a": alone})
    assert sentences(world) == [f"L2: a.{edge} is (0, a), should be none"]


@pytest.mark.parametrize("n", range(1, 41))
def test_ring_of_any_size_has_no_violations(n: int) -> None:
    world = standing_ring(n)
    assert sentences(world) == []
    assert is_strictly_legitimate(world)
    assert census(world) == {}


def damages(state: SubscriberState) -> Iterator[tuple[Layer, SubscriberState]]:
    """Yield every variable in turn, changed in every way that makes a difference."""
    yield Layer.LABELS, replace(state, label=None)
    yield Layer.LABELS, replace(state, label=label("0101010101"))
    for edge in ("left", "right", "ring"):
        peer: Peer | None = getattr(state, edge)
        yield Layer.RING, replace(state, **{edge: at("x@01")})
        if peer is not None:
            yield Layer.RING, replace(state, **{edge: None})
            yield Layer.RING, replace(state, **{edge: replace(peer, node="x")})
            yield Layer.RING, replace(state, **{edge: replace(peer, label=label("0101010101"))})
    yield Layer.SHORTCUTS, replace(state, shortcuts=state.shortcuts | {label("0101010101"): None})
    for slot in state.shortcuts:
        rest = {other: node for other, node in state.shortcuts.items() if other != slot}
        yield Layer.SHORTCUTS, replace(state, shortcuts=rest)
        yield Layer.SHORTCUTS, replace(state, shortcuts={**rest, slot: None})
        yield Layer.SHORTCUTS, replace(state, shortcuts={**rest, slot: "x"})


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_every_single_wrong_variable_is_found(n: int) -> None:
    world = standing_ring(n)
    for node, state in world.subscribers.items():
        for layer, damaged in damages(state):
            found = replace(world, subscribers={**world.subscribers, node: damaged})
            assert census(found) == {layer: 1}, (node, damaged)
            assert node in sentences(found)[0]


# --- in flight -------------------------------------------------------------------------

TRUE, FALSE = at("c@01"), at("c@11")
DISTURBING = [
    ("a", place("d@11", "0", "b@1"), "an outdated SetConfiguration"),
    ("a", place("d@11", "01", "c@01"), "an outdated SetConfiguration"),
    ("a", UNRECORDED, "an outdated SetConfiguration"),
    ("z", place("d@11", "0", "c@01"), "an outdated SetConfiguration"),
    ("a", RemoveConnections("c"), "RemoveConnections of c"),
    ("a", RemoveConnections("x"), "RemoveConnections of x"),
    (SUPERVISOR, Unsubscribe("a"), "Unsubscribe of a"),
    (SUPERVISOR, Unsubscribe("z"), "Unsubscribe of z"),
    (SUPERVISOR, Subscribe("z"), "Subscribe of z, which is not a member"),
    (SUPERVISOR, Subscribe("x"), "Subscribe of x, which is not a member"),
    (
        "a",
        CheckLabel(TRUE, label("01"), EdgeKind.LINE),
        "CheckLabel with the wrong receiver label 01",
    ),
    ("a", CheckLabel(TRUE, None, EdgeKind.WRAP), "CheckLabel with the wrong receiver label none"),
    (
        "z",
        CheckLabel(TRUE, label("0"), EdgeKind.LINE),
        "CheckLabel with the wrong receiver label 0",
    ),
    ("a", CheckLabel(FALSE, label("0"), EdgeKind.LINE), "CheckLabel with the wrong pair (11, c)"),
    (
        "a",
        Introduce(FALSE, EdgeKind.LINE, first_hand=True),
        "Introduce with the wrong pair (11, c)",
    ),
    ("a", Introduce(at("z@01"), EdgeKind.WRAP, first_hand=False), "Introduce with the wrong pair"),
    ("a", Introduce(at("x@01"), EdgeKind.LINE, first_hand=False), "Introduce with the wrong pair"),
    ("a", IntroduceShortcut(FALSE), "IntroduceShortcut with the wrong pair (11, c)"),
]
HARMLESS = [
    ("a", place("d@11", "0", "c@01")),
    ("z", UNRECORDED),
    ("a", CheckLabel(TRUE, label("0"), EdgeKind.LINE)),
    ("a", Introduce(TRUE, EdgeKind.WRAP, first_hand=False)),
    ("a", IntroduceShortcut(TRUE)),
    ("a", Digest("x", 7)),
    (SUPERVISOR, GetConfiguration("a")),
    (SUPERVISOR, GetConfiguration("x", 7)),
    (SUPERVISOR, GetConfiguration(None)),
    (SUPERVISOR, Subscribe("a")),
    (SUPERVISOR, Subscribe(None)),
]


@pytest.mark.parametrize(("to", "message", "text"), DISTURBING)
def test_message_that_can_disturb_a_legitimate_state_violates_strict_legitimacy_only(
    to: NodeId, message: Message, text: str
) -> None:
    world = saying(to, message)
    (violation,) = channel_violations(world)
    assert str(violation).startswith(f"strict: in the channel of {to}: {text}")
    assert census(world) == {Layer.CHANNELS: 1}
    assert sentences(world) == []
    assert is_legitimate(world)
    assert not is_strictly_legitimate(world)


@pytest.mark.parametrize(("to", "message"), HARMLESS)
def test_harmless_message_is_not_a_violation(to: NodeId, message: Message) -> None:
    assert is_strictly_legitimate(saying(to, message))


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("to", "message"), HARMLESS)
def test_harmless_message_does_not_change_the_state(
    to: NodeId, message: Message, mode: Mode
) -> None:
    config = ProtocolConfig(rules=Rules.of(mode))
    world, scheduler = World(saying(to, message), seed=0, config=config), RandomOrder()
    for _ in range(5):
        scheduler.run_round(world)
        world.end_round()
        assert explicit_state(world) == explicit_state(RING)


def test_delayed_messages_count_as_messages_in_the_channels() -> None:
    late = (Delay(1.0, 1),)
    world = World(RING, seed=0, config=ProtocolConfig(), faults=late)
    world.unsubscribe("z")
    assert [type(parcel.message) for parcel in world.in_flight()] == [Unsubscribe]
    assert list(world.channels) == []
    assert census(world) == {Layer.CHANNELS: 1}


def test_messages_are_compared_with_the_repaired_database() -> None:
    world = database(*DATABASE[:3], ("110", "d"))
    current, other = place("b@1", "11", "a@0"), place("b@1", "111", "a@0")
    assert census(replace(world, channels=(Parcel("d", current),)))[Layer.CHANNELS] == 0
    assert census(replace(world, channels=(Parcel("d", other),)))[Layer.CHANNELS] == 1


def test_census_counts_every_layer() -> None:
    state = RING.subscribers["a"]
    world = replace(
        RING,
        subscribers={
            **RING.subscribers,
            "a": replace(state, left=at("x@1"), right=None, shortcuts={}),
            "d": replace(RING.subscribers["d"], label=None),
            "z": SubscriberState(member=False, label=label("1"), left=at("a@0")),
        },
        channels=(
            Parcel("a", UNRECORDED),
            Parcel("x", UNRECORDED),
            Parcel(SUPERVISOR, Unsubscribe("z")),
        ),
    )
    world = with_database(world, [*DATABASE, ("01", None)])
    assert census(world) == Counter(
        {
            Layer.DATABASE: 2,
            Layer.LABELS: 1,
            Layer.RING: 2,
            Layer.SHORTCUTS: 1,
            Layer.LEAVERS: 2,
            Layer.CHANNELS: 2,
        }
    )


# --- publications ----------------------------------------------------------------------

NEWS = [batch(first=seq, topic=RING.topic) for seq in range(3)]
JUNK = b"\xff" * 16
WRONG = replace(NEWS[0], id=b"\xff" * 32)


def holding(
    *publications: RecordBatch, world: Snapshot = RING, **others: list[RecordBatch]
) -> Snapshot:
    """Return the world in which all members, or some with others, hold these publications."""
    return with_states(
        world,
        lambda node, state: (
            replace(state, publications=tuple(others.get(node, publications)))
            if state.member or node in others
            else state
        ),
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_publications_are_in_sync_once_every_member_has_all(count: int) -> None:
    world = holding(*NEWS[:count])
    assert wrong_publications(world) == []
    assert has_all_publications(world)
    assert census(world) == {}


def test_member_without_some_publications_is_named() -> None:
    world = holding(*NEWS, b=NEWS[:1], c=[])
    assert wrong_publications(world) == [
        "PUB: b lacks 2 of 3 publications",
        "PUB: c lacks 3 of 3 publications",
    ]
    assert not has_all_publications(world)
    assert is_strictly_legitimate(world)  # its own parameter
    assert census(world) == {Layer.PUBLICATIONS: 2}


@pytest.mark.parametrize("message", [PublishNew(NEWS[0]), Publications((NEWS[0],))])
@pytest.mark.parametrize("to", ["a", "z", "x", SUPERVISOR])
def test_publication_in_flight_to_a_member_must_reach_all(to: NodeId, message: Message) -> None:
    lacking = [f"PUB: {node} lacks 1 of 1 publications" for node in "abcd"]
    assert wrong_publications(saying(to, message)) == (lacking if to == "a" else [])


@pytest.mark.parametrize("publication", [WRONG, with_rows("no records", topic=RING.topic)])
def test_publication_in_flight_that_members_reject_reaches_none(publication: RecordBatch) -> None:
    world = replace(holding(NEWS[0]), channels=(Parcel("b", PublishNew(publication)),))
    assert has_all_publications(world)


def test_publication_of_dead_nodes_or_leavers_only_is_lost() -> None:
    assert has_all_publications(holding(z=NEWS))


def test_wrong_hash_is_found_although_nothing_is_missing() -> None:
    world = holding(*NEWS)
    state = replace(world.subscribers["c"], hashes={ALL: JUNK})
    world = replace(world, subscribers={**world.subscribers, "c": state})
    assert wrong_publications(world) == ["PUB: c has a wrong hash at (all)"]


def test_ids_in_the_trie_only_or_in_the_rows_only_are_found() -> None:
    start = holding(*NEWS)
    lost = ReplicaState(index={b"x" * ID_BYTES: 3})
    hidden = ReplicaState(index={NEWS[0].id: None})
    for holdings, text in (
        (lost, "has lost 1 publications that its trie still has"),
        (hidden, "has 1 publications that its trie lacks"),
    ):
        memory = SubscriberMemory(holdings=holdings)
        world = with_states(start, lambda _, state, memory=memory: replace(state, memory=memory))
        running = World(world, seed=0, config=ProtocolConfig())
        assert wrong_publications(running) == [f"PUB: {node} {text}" for node in "abcd"]


def test_ids_with_wrong_offsets_in_the_trie_are_found() -> None:
    memory = SubscriberMemory(holdings=ReplicaState(index={NEWS[0].id: 1}))
    start = with_states(holding(*NEWS), lambda _, state: replace(state, memory=memory))
    for world in (start, World(start, seed=0, config=ProtocolConfig())):
        texts = [f"PUB: {node} has wrong offsets of 1 publications" for node in "abcd"]
        assert wrong_publications(world) == texts


def test_wrong_chains_are_found_if_they_are_for_the_right_labels() -> None:
    node, state = "a", RING.subscribers["a"]
    around = [peer.label for peer in (state.left or state.ring, state.right or state.ring) if peer]
    chains = chains_around(state.label, *around)
    elsewhere = chains_around(state.label, None, None)
    for remembered, texts in (
        (chains, []),
        (replace(chains, slots=()), ["L3: a has wrong shortcut chains"]),
        (replace(elsewhere, slots=chains.slots), []),
    ):
        wrong = replace(state, memory=SubscriberMemory(chains=remembered))
        assert sentences(replace(RING, subscribers={**RING.subscribers, node: wrong})) == texts


@pytest.mark.parametrize("node", "abcd")
@pytest.mark.parametrize("count", [0, 1, 2])
def test_equal_but_wrong_roots_do_not_hide_missing_publications(node: NodeId, count: int) -> None:
    world = with_states(
        holding(*NEWS, **{node: NEWS[:count]}), lambda _, state: replace(state, hashes={ALL: JUNK})
    )
    assert not has_all_publications(world)


def test_publication_with_a_wrong_id_is_found_even_if_all_members_have_it() -> None:
    world = holding(NEWS[1], WRONG)
    assert wrong_publications(world) == [
        f"PUB: {node} has a's publication 0 under a wrong id" for node in "abcd"
    ]


def test_publication_with_unreadable_records_is_found_even_if_all_members_have_it() -> None:
    world = holding(NEWS[1], with_rows("no records", topic=RING.topic))
    assert wrong_publications(world) == [
        f"PUB: {node} has a's publication 0 with unreadable records" for node in "abcd"
    ]


def test_offsets_of_publications_count_records() -> None:
    start = holding(batch_of(b"one", b"two", topic=RING.topic), batch(first=2, topic=RING.topic))
    for world in (start, World(start, seed=0, config=ProtocolConfig())):
        assert wrong_publications(world) == []


def test_publications_are_not_part_of_the_explicit_state() -> None:
    assert explicit_state(holding(*NEWS)) == explicit_state(RING)


# --- any state -------------------------------------------------------------------------


@pytest.mark.parametrize("code", ADVERSARIES)
def test_running_world_is_judged_like_its_snapshot_without_side_effects(code: str) -> None:
    for seed in range(3):
        start = ADVERSARIES[code].build(7, Random(seed))
        world = World(start, seed=0, config=ProtocolConfig())
        before, is_loaded = world.snapshot(), world.roster.is_loaded
        assert sorted(sentences(world)) == sorted(sentences(start))
        assert list(channel_violations(world)) == list(channel_violations(start))
        assert census(world) == census(start)
        assert world.snapshot() == before
        assert world.roster.is_loaded is is_loaded


# --- closure ---------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "layer", "texts"), ONE_THING)
def test_every_judged_variable_is_part_of_the_explicit_state(
    world: Snapshot, layer: Layer, texts: list[str]
) -> None:
    assert explicit_state(world) != explicit_state(RING)


def test_membership_request_is_part_of_the_explicit_state() -> None:
    assert explicit_state(changed("z", member=True)) != explicit_state(RING)


def test_transient_values_are_not_part_of_the_explicit_state() -> None:
    same = [
        saying("a", UNRECORDED),
        changed("a", silence={"c": LivenessState(3, 8, pending=True)}),
        changed("a", digests={"b": 7}),
        replace(RING, supervisor=replace(RING.supervisor, next=3, queue=("a",))),
        replace(RING, crashed=()),
        replace(RING, subscribers=dict(reversed(RING.subscribers.items()))),
    ]
    for world in same:
        assert explicit_state(world) == explicit_state(RING)


def test_running_world_has_the_explicit_state_of_its_snapshot_before_and_after_repair() -> None:
    world = World(RING, seed=0, config=ProtocolConfig())
    assert explicit_state(world) == explicit_state(RING)
    world.tick(SUPERVISOR)
    assert explicit_state(world) == explicit_state(RING)
    assert isinstance(hash(explicit_state(world)), int)


def test_required_state_equals_the_topology() -> None:
    """A ring whose nodes have the required states is legitimate."""
    rng = Random(1)
    nodes = [f"n{number}" for number in range(11)]
    rng.shuffle(nodes)
    states = {node: legitimate_state(index, nodes) for index, node in enumerate(nodes)}
    entries = [(Label.nth(index).bits, node) for index, node in enumerate(nodes)]
    assert is_strictly_legitimate(with_database(Snapshot(subscribers=states), entries))
