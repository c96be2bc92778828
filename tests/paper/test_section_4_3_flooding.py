"""Section 4.3: a new publication is sent over all edges by every node to which it is new."""

from __future__ import annotations

import pytest

from skipring.core.config import Mode, ProtocolConfig, Rules, Spread
from skipring.core.effects import Origin
from skipring.core.messages import PublishNew
from skipring.core.peers import NodeId
from skipring.core.topology import levels, ring_edges, shortcut_edges
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries.builders import node_names
from skipring.world.legitimacy import has_all_publications, is_legitimate
from tests.support.batches import payloads_of
from tests.support.conversations import standing_ring

SIZES = [*range(2, 20), 31, 32, 33, 64, 100, 127, 128, 129]

every_mode = pytest.mark.parametrize("mode", list(Mode))


def ring_of(n: int, *, mode: Mode = Mode.FAST, repairs: bool = False) -> World:
    """Return SR(n) whose members flood, without anti-entropy."""
    config = ProtocolConfig(rules=Rules.of(mode), spread=Spread.FLOOD, repairs=repairs)
    return World(standing_ring(n), seed=0, config=config)


def deliver_all(world: World) -> None:
    """Deliver all messages in flight and those that follow from them, hop by hop."""
    for _ in range(len(world.subscribers) + 1):  # no path is longer
        present = list(world.channels)
        world.channels.clear()
        for parcel in present:
            world.deliver(parcel)
    assert not world.channels


def flooded(n: int, publisher: NodeId, mode: Mode = Mode.FAST) -> World:
    """Return SR(n) after one publication."""
    world = ring_of(n, mode=mode)
    world.publish(publisher, b"p")
    deliver_all(world)
    return world


def edges_of(n: int, node: NodeId) -> set[NodeId]:
    """Return the neighbours of a node by E_R and E_S."""
    names = node_names(n)
    pairs = [(names[a.index], names[b.index]) for a, b in ring_edges(n) | shortcut_edges(n)]
    return {b if a == node else a for a, b in pairs if node in (a, b)}


@every_mode
def test_publisher_inserts_and_sends_to_all_its_neighbours(mode: Mode) -> None:
    """ "u inserts p into u.T and broadcasts p [...] to all of its neighbors v"."""
    for node in node_names(16):
        world = ring_of(16, mode=mode)
        world.publish(node, b"p")
        assert len(world.subscribers[node].trie()) == 1
        assert {type(parcel.message) for parcel in world.channels} == {PublishNew}
        assert sorted(parcel.to for parcel in world.channels) == sorted(edges_of(16, node))


@every_mode
def test_node_that_receives_a_new_publication_inserts_it_and_sends_it_to_all_its_neighbours(
    mode: Mode,
) -> None:
    """Algorithm 5 includes the sender."""
    world = ring_of(16, mode=mode)
    world.publish("n0000", b"p")
    first = next(parcel for parcel in world.channels if parcel.to == "n0002")
    world.channels.clear()
    world.deliver(first)
    assert len(world.subscribers["n0002"].trie()) == 1
    assert sorted(parcel.to for parcel in world.channels) == sorted(edges_of(16, "n0002"))
    assert "n0000" in edges_of(16, "n0002")


@every_mode
def test_node_drops_a_known_publication(mode: Mode) -> None:
    world = ring_of(16, mode=mode)
    world.publish("n0000", b"p")
    parcel = world.channels[0]
    world.deliver(parcel)
    world.channels.clear()
    world.deliver(parcel)
    assert world.channels == []
    assert len(world.subscribers[parcel.to].batches()) == 1


@pytest.mark.parametrize("n", SIZES)
def test_flood_takes_4n_minus_6_messages_and_reaches_all_nodes(n: int) -> None:
    """One message over each edge in each direction; section 2.1 counts the edges."""
    world = flooded(n, "n0000")
    assert world.sent == {PublishNew: 4 * n - 6}
    assert all(len(machine.trie()) == 1 for machine in world.subscribers.values())


@pytest.mark.parametrize("n", SIZES)
def test_flood_takes_at_most_log_n_hops(n: int) -> None:
    """ "recall that the skip ring has a diameter of log n"."""
    publishers = node_names(n) if n <= 33 else node_names(n)[:: n // 8]
    assert max(flooded(n, node).deliveries.hops_max for node in publishers) <= levels(n)


@every_mode
def test_cost_of_a_flood_does_not_depend_on_the_publisher(mode: Mode) -> None:
    for publisher in node_names(13):
        world = flooded(13, publisher, mode)
        assert world.sent[PublishNew] == 4 * 13 - 6
        assert has_all_publications(world)


def test_publisher_alone_sends_nothing() -> None:
    world = ring_of(1)
    world.publish("n0000", b"p")
    assert world.messages == 0
    assert len(world.subscribers["n0000"].trie()) == 1


@pytest.mark.parametrize("repairs", [False, True])
def test_newcomer_relies_on_the_tries_for_earlier_publications(repairs: bool) -> None:
    """ "if a new subscriber joins a topic, it has to rely on the core BuildSR protocol"."""
    world = ring_of(8, repairs=repairs)
    world.publish("n0003", b"before")
    deliver_all(world)
    world.subscribe("new")
    run_rounds(world, RandomOrder(), 30)
    assert is_legitimate(world)
    world.publish("n0003", b"after")
    run_rounds(world, RandomOrder(), 30)
    payloads = payloads_of(world.subscribers["new"].batches())
    assert set(payloads) == ({b"before", b"after"} if repairs else {b"after"})


@every_mode
def test_convergence_does_not_rely_on_flooding(mode: Mode) -> None:
    """ "note that we do not rely on flooding to show convergence of publications"."""
    world = ring_of(8, mode=mode, repairs=True)
    for node in node_names(8):
        world.publish(node, node.encode())
    world.channels.clear()  # every PublishNew is lost
    for _ in range(200):
        run_rounds(world, RandomOrder(), 1)
        if has_all_publications(world):
            break
    assert has_all_publications(world)
    assert world.deliveries.by_origin == {Origin.OWN: 8, Origin.REPAIR: 8 * 7}
