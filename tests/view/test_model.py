"""The model of a drawn topic: marks, edges and the card of the supervisor."""

from random import Random

import pytest
from msgspec.structs import replace

from skipring.admin.inspector import Inspection
from skipring.core.labels import Label
from skipring.core.peers import Peer
from skipring.core.state import SubscriberState, legitimate_states
from skipring.core.summaries import DIGEST_BYTES
from skipring.core.topology import levels, ring_edges, shortcut_edges
from skipring.view.model import SupervisorCard, TopicView, broken_conditions, make_topic_view
from skipring.view.overview import REQUESTS_BOUND
from skipring.wire.rpc import NodeHealth, NodeStatus
from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import violations
from skipring.world.snapshot import Snapshot
from tests.support.statuses import status_of

CARD = SupervisorCard(
    answers=True,
    address="127.0.0.1:1",
    ticks=1,
    requests=0.0,
    bound=REQUESTS_BOUND,
    suspects=0,
    evictions=0,
    conditions={},
)
NODES = tuple(f"n{number}" for number in range(6))


def drawn(snapshot: Snapshot, **statuses: NodeStatus) -> TopicView:
    """Return the view of nodes without publications, except for the given statuses."""
    empty = {
        node: status_of(state, count=0, root=bytes(DIGEST_BYTES))
        for node, state in snapshot.subscribers.items()
    }
    return make_topic_view(Inspection(snapshot=snapshot, statuses=empty | statuses), CARD, 7, 1.5)


def legitimate(**changed: SubscriberState) -> Snapshot:
    database = tuple((Label.nth(index).bits, node) for index, node in enumerate(NODES))
    world = Snapshot(subscribers=dict(legitimate_states(NODES)) | changed)
    return Snapshot(
        topic=world.topic,
        supervisor=type(world.supervisor)(database=database, next=0),
        subscribers=world.subscribers,
    )


def mark(scene: TopicView, node: str) -> str:
    return next(each.mark for each in scene.nodes if each.node == node)


def test_legitimate_ring_has_the_edges_of_the_paper_and_no_violations() -> None:
    scene = drawn(legitimate())
    label = {each.node: Label.parse(each.label or "") for each in scene.nodes}
    edges = {
        kind: {
            (min(label[e.a], label[e.b]), max(label[e.a], label[e.b]))
            for e in scene.edges
            if e.kind == kind
        }
        for kind in ("ring", "shortcut")
    }
    n = len(NODES)
    assert edges["ring"] == ring_edges(n)
    assert edges["shortcut"] == shortcut_edges(n) - ring_edges(n)
    assert {each.level for each in scene.edges if each.kind == "ring"} == {levels(n)}
    assert all(each.level < levels(n) for each in scene.edges if each.kind == "shortcut")
    assert {each.state for each in scene.edges} == {"right"}
    assert {each.mark for each in scene.nodes} == {"right"}
    assert (scene.legitimate, scene.members, scene.recorded) == (True, n, n)
    assert (scene.number, scene.time) == (7, 1.5)


@pytest.mark.parametrize(
    "health",
    [
        NodeHealth(unlinked=("n1",)),
        NodeHealth(silent={"n1": 2}),
        NodeHealth(not_ready="the backfill is in progress"),
        NodeHealth(disk_error="the disk is full"),
        NodeHealth(clones=("127.0.0.1:2",)),
    ],
    ids=["unlinked", "silent", "not ready", "disk error", "clone"],
)
def test_ring_with_correct_variables_is_not_shown_as_healthy_if_a_process_is_not(
    health: NodeHealth,
) -> None:
    world = legitimate()
    status = status_of(world.subscribers["n0"], count=0, root=bytes(DIGEST_BYTES))
    assert not drawn(world, n0=replace(status, health=health)).legitimate


def test_nodes_are_placed_at_r_of_their_label() -> None:
    turns = {each.label: each.turn for each in drawn(legitimate()).nodes}
    assert turns == {"0": 0, "1": 0.5, "01": 0.25, "11": 0.75, "001": 0.125, "011": 0.375}


def test_tree_reaches_every_node_from_one_root() -> None:
    tree = drawn(legitimate()).tree
    children = [child for _, child in tree]
    assert sorted([*children, NODES[0]]) == sorted(NODES)


def test_wrong_label_is_marked_with_the_right_one() -> None:
    state = dict(legitimate_states(NODES))["n3"]
    wrong = SubscriberState(
        label=Label.parse("0111"),
        left=state.left,
        right=state.right,
        ring=state.ring,
        shortcuts=dict(state.shortcuts),
    )
    scene = drawn(legitimate(n3=wrong))
    (node,) = (each for each in scene.nodes if each.node == "n3")
    assert node.mark == "label"
    assert node.reasons[0] == "n3 has label 0111, should be 11"
    assert scene.wrong["L1"] == 1
    assert not scene.legitimate


def test_wrong_neighbour_is_a_wrong_edge_and_the_right_one_a_missing_edge() -> None:
    state = dict(legitimate_states(NODES))["n2"]
    assert state.right is not None
    wrong = SubscriberState(
        label=state.label,
        left=state.left,
        right=Peer(Label.parse("11"), "n3"),
        ring=state.ring,
        shortcuts=dict(state.shortcuts),
    )
    scene = drawn(legitimate(n2=wrong))
    by_pair = {(each.a, each.b): each for each in scene.edges}
    assert by_pair["n2", "n3"].state == "wrong"
    assert by_pair["n2", "n3"].reason == "n2's right is n3 (11), should be n5 (011)"
    assert by_pair["n2", "n5"].state == "missing"
    assert mark(scene, "n2") == "edges"


def test_dead_node_is_shown_while_it_is_recorded() -> None:
    whole = legitimate()
    others = {node: state for node, state in whole.subscribers.items() if node != "n4"}
    gone = Snapshot(
        topic=whole.topic,
        supervisor=whole.supervisor,
        subscribers=others,
        crashed=("n4", "only-remembered"),
    )
    scene = drawn(gone)
    (dead,) = (each for each in scene.nodes if each.mark == "dead")
    assert (dead.node, dead.label, dead.turn) == ("n4", "001", 0.125)
    assert "still recorded" in dead.reasons[0]


def test_node_that_lacks_publications_is_counted_and_named() -> None:
    whole = legitimate()
    states = whole.subscribers
    full = {
        node: status_of(state, count=5, root=b"r" * DIGEST_BYTES) for node, state in states.items()
    }
    behind = status_of(states["n1"], count=3, root=b"x" * DIGEST_BYTES)
    scene = drawn(whole, **(full | {"n1": behind}))
    assert (scene.wrong["PUB"], scene.roots, scene.publications) == (1, 2, 5)
    (node,) = (each for each in scene.nodes if each.node == "n1")
    assert node.reasons == ("n1 has 3 of 5 publications",)
    assert scene.legitimate  # the ring is legitimate; its publications are a separate matter


@pytest.mark.parametrize("code", sorted(ADVERSARIES))
def test_any_state_of_a_topic_can_be_drawn(code: str) -> None:
    world = ADVERSARIES[code].build(9, Random(1))
    scene = drawn(world)
    members = {node for node, state in world.subscribers.items() if state.member}
    assert {each.node for each in scene.nodes if each.mark != "dead"} == world.subscribers.keys()
    found = list(violations(world))
    assert sum(scene.wrong.values()) == len(found)
    assert scene.legitimate == (bool(members) and not found)
    shown = {each.node for each in scene.nodes}
    assert all({each.a, each.b} <= shown for each in scene.edges)
    assert all(each.reason for each in scene.edges if each.state != "right")
    if scene.legitimate:
        assert {each.state for each in scene.edges} <= {"right"}


@pytest.mark.parametrize(
    ("database", "broken"),
    [
        ([("0", "a"), ("1", "b")], {}),
        ([("0", "a"), ("1", None)], {"i": 1, "iv": 1}),
        ([("0", "a"), ("1", "a"), ("01", "b")], {"ii": 1, "iv": 1}),
        ([("0", "a"), ("01", "b")], {"iii": 1, "iv": 1}),
        ([("0", "a"), ("110", "b")], {"iii": 1, "iv": 1}),
        ([], {}),
    ],
)
def test_four_conditions_of_the_database_are_counted(
    database: list[tuple[str, str | None]], broken: dict[str, int]
) -> None:
    assert broken_conditions(database) == {"i": 0, "ii": 0, "iii": 0, "iv": 0} | broken
