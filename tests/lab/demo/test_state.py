"""State of the topic: healthy, or a sentence for each fault."""

from __future__ import annotations

from msgspec.structs import replace

from skipring.core.state import SupervisorState
from skipring.lab.demo.state import state_of, state_without_supervisor
from skipring.world.legitimacy import Layer
from tests.lab.demo.states import TOPIC, checked, published, ring_with, seen
from tests.support.statuses import status_of

ORDERS = published(5)
IDS = [each.id for each in ORDERS]
WORLD = ring_with(8, ORDERS)
NODES = sorted(WORLD.subscribers)


def test_legitimate_ring_in_sync_is_healthy() -> None:
    found = checked(WORLD, ORDERS)
    assert found.is_healthy
    assert found.is_ring_healthy
    assert (found.in_sync, found.published, found.lost) == (8, 5, 0)
    assert len({node.root for node in found.nodes}) == 1


def test_missing_node_is_named() -> None:
    found = state_of(seen(WORLD), {}, [*NODES, "late"], IDS)
    assert not found.is_healthy
    assert not found.is_ring_healthy
    assert found.faults == ("late is not in the ring",)


def test_node_that_lacks_orders_degrades_the_topic_and_not_the_ring() -> None:
    short = replace(WORLD.subscribers[NODES[3]], publications=tuple(ORDERS[:2]))
    world = replace(WORLD, subscribers={**WORLD.subscribers, NODES[3]: short})
    found = checked(world, ORDERS)
    assert found.is_ring_healthy
    assert not found.is_healthy
    assert found.faults == (f"PUB: {NODES[3]} lacks 3 of 5 publications",)
    assert (found.in_sync, found.lost) == (7, 0)


def test_publication_that_no_member_has_is_lost_although_roots_are_equal() -> None:
    found = checked(ring_with(8, ORDERS[:4]), ORDERS)
    assert found.lost == 1
    assert found.faults == ("no member has 1 of the publications",)


def test_member_is_found_despite_an_empty_database() -> None:
    forgetful = replace(WORLD, supervisor=SupervisorState())
    hidden = frozenset(NODES)
    statuses = {node: status_of(state) for node, state in WORLD.subscribers.items()}
    found = state_of(seen(forgetful, without=hidden), statuses, NODES, IDS)
    assert found.missing == ()
    assert found.violations_by_layer[Layer.DATABASE] == 8
    assert found.layout.members == found.in_sync == 8
    assert found.layout.recorded == 0


def test_nodes_are_compared_with_the_last_known_database_without_a_supervisor() -> None:
    statuses = {node: status_of(state) for node, state in WORLD.subscribers.items()}
    found = state_without_supervisor(TOPIC, WORLD.supervisor, statuses, NODES, IDS)
    assert found.faults == ("L0: database: the supervisor does not answer",)
    assert not found.is_ring_healthy
    assert (found.layout.members, found.in_sync) == (8, 8)

    del statuses[NODES[0]]
    found = state_without_supervisor(TOPIC, WORLD.supervisor, statuses, NODES, IDS)
    assert found.missing == (NODES[0],)
    assert len(found.layout.dead) == 1
