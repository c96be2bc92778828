"""Looking at the topic: what is whole, and what is wrong with what is not."""

from __future__ import annotations

from msgspec.structs import replace

from skipring.core.state import SupervisorState
from skipring.lab.demo.sight import sight_of, sight_without_supervisor
from skipring.world.legitimacy import Layer
from tests.lab.demo.worlds import TOPIC, published, ring_with, seen, sight
from tests.support.statuses import status_of

ORDERS = published(5)
IDS = [each.id for each in ORDERS]
WORLD = ring_with(8, ORDERS)
NODES = sorted(WORLD.subscribers)


def test_a_legitimate_ring_in_which_all_have_all_is_whole() -> None:
    found = sight(WORLD, ORDERS)
    assert found.is_whole
    assert found.is_ring_whole
    assert (found.complete, found.published, found.lost) == (8, 5, 0)
    assert len({standing.root for standing in found.standings}) == 1


def test_a_node_that_should_be_there_and_is_not_is_named() -> None:
    found = sight_of(seen(WORLD), {}, [*NODES, "late"], IDS)
    assert not found.is_whole
    assert not found.is_ring_whole
    assert found.faults == ("late is not in the ring",)


def test_a_node_that_lacks_orders_leaves_the_ring_whole_but_not_the_topic() -> None:
    short = replace(WORLD.subscribers[NODES[3]], publications=tuple(ORDERS[:2]))
    world = replace(WORLD, subscribers={**WORLD.subscribers, NODES[3]: short})
    found = sight(world, ORDERS)
    assert found.is_ring_whole
    assert not found.is_whole
    assert found.faults == (f"PUB: {NODES[3]} lacks 3 of 5 publications",)
    assert (found.complete, found.lost) == (7, 0)


def test_what_nobody_has_is_lost_though_all_have_the_same() -> None:
    found = sight(ring_with(8, ORDERS[:4]), ORDERS)
    assert found.lost == 1
    assert found.faults == ("1 publications are with nobody",)


def test_a_supervisor_that_knows_nobody_hides_nobody() -> None:
    forgetful = replace(WORLD, supervisor=SupervisorState())
    hidden = frozenset(NODES)
    statuses = {node: status_of(state) for node, state in WORLD.subscribers.items()}
    found = sight_of(seen(forgetful, without=hidden), statuses, NODES, IDS)
    assert found.missing == ()
    assert found.wrong[Layer.DATABASE] == 8
    assert found.portrait.members == found.complete == 8
    assert found.portrait.recorded == 0


def test_without_a_supervisor_the_ring_is_judged_by_the_last_database() -> None:
    statuses = {node: status_of(state) for node, state in WORLD.subscribers.items()}
    found = sight_without_supervisor(TOPIC, WORLD.supervisor, statuses, NODES, IDS)
    assert found.faults == ("L0: database: the supervisor does not answer",)
    assert not found.is_ring_whole
    assert (found.portrait.members, found.complete) == (8, 8)

    del statuses[NODES[0]]
    found = sight_without_supervisor(TOPIC, WORLD.supervisor, statuses, NODES, IDS)
    assert found.missing == (NODES[0],)
    assert len(found.portrait.dead) == 1
