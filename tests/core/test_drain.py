"""Drain: a member hands everything over to one remaining member before it leaves."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.drain import DRAIN_TICKS_MAX, LEAVING_TICKS
from skipring.core.effects import Drained, Send
from skipring.core.events import NodeSuspected, Received, ReplicationRequested
from skipring.core.handover import HANDOVERS_MAX
from skipring.core.messages import CheckHeld, Draining, RequestHandover
from skipring.core.peers import NodeId
from skipring.core.state import DrainState, SubscriberMemory, SubscriberState
from skipring.sim.engine import World
from skipring.sim.network_faults import Loss
from skipring.sim.schedulers import RandomOrder, Synchronous, run_rounds
from skipring.world.adversaries import ADVERSARIES
from skipring.world.snapshot import Snapshot
from tests.support.batches import batch, batch_of
from tests.support.conversations import standing_ring
from tests.support.machines import subscriber

NAMES = "abcd"
RING = standing_ring(NAMES)
MADE = tuple(
    batch(b"%d" % number, publisher="x", first=number, topic=RING.topic) for number in range(300)
)


def holding(**counts: int) -> Snapshot:
    """Return the ring in which nodes hold the first publications."""
    states = {
        node: replace(state, publications=MADE[: counts.get(node, 0)])
        for node, state in RING.subscribers.items()
    }
    return replace(RING, subscribers=states)


def world_of(start: Snapshot, seed: int = 0, loss: float = 0.0) -> World:
    faults = (Loss(loss),) if loss else ()
    # Without repair: every arrival is a handover.
    config = ProtocolConfig(repairs=False)
    return World(start, seed=seed, config=config, faults=faults)


def rounds_until_drained(world: World, *nodes: NodeId, limit: int = 60) -> int:
    for number in range(limit):
        if all(node in world.drained for node in nodes):
            return number
        run_rounds(world, RandomOrder(), 1)
    raise AssertionError(f"not drained in {limit} rounds: {world.drained}")


def held(world: World, node: NodeId) -> int:
    return world.subscribers[node].count


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_one_remaining_member_holds_everything_after_a_drain(seed: int, loss: float) -> None:
    world = world_of(holding(a=300, b=10), seed, loss)
    world.drain("a")
    rounds_until_drained(world, "a")
    receiver = world.drained["a"]
    assert receiver is not None
    assert held(world, receiver) == 300


def test_members_that_drain_together_do_not_wait_for_each_other() -> None:
    world = world_of(holding(a=300, b=10, c=20, d=30))
    for node in NAMES:
        world.drain(node)
    assert rounds_until_drained(world, *NAMES) <= 2
    assert set(world.drained.values()) == {None}


def test_drain_ends_at_the_member_that_stays() -> None:
    world = world_of(holding(a=300, b=10, c=20))
    for node in "abc":
        world.drain(node)
    rounds_until_drained(world, *"abc")
    assert set(world.drained.values()) == {"d"}
    assert held(world, "d") == 300


LARGE = standing_ring([f"n{number:02}" for number in range(16)])


@pytest.mark.parametrize("node", LARGE.subscribers)
def test_drain_after_the_departure_of_all_neighbours_finds_a_member_that_they_named(
    node: NodeId,
) -> None:
    states = dict(LARGE.subscribers)
    states[node] = replace(states[node], publications=MADE[:100])
    world = world_of(replace(LARGE, subscribers=states))
    neighbours = world.subscribers[node].neighbours()
    for each in neighbours:
        world.drain(each)
    run_rounds(world, RandomOrder(), 2)
    world.drain(node)
    rounds_until_drained(world, node)
    receiver = world.drained[node]
    assert receiver is not None
    assert receiver not in neighbours
    assert held(world, receiver) == 100


def test_names_of_a_leaver_are_forgotten_with_its_announcement() -> None:
    world = world_of(LARGE)
    node = next(iter(LARGE.subscribers))
    for each in world.subscribers[node].neighbours():
        world.drain(each)
    run_rounds(world, RandomOrder(), 2)
    memory = world.subscribers[node].memory()
    assert memory is not None
    assert memory.drain.told
    run_rounds(world, RandomOrder(), LEAVING_TICKS + 1)
    memory = world.subscribers[node].memory()
    assert memory is None or not memory.drain.told


def test_drain_passes_over_a_member_that_cannot_be_reached() -> None:
    world = world_of(holding(a=300))
    world.drain("a")
    for node in "bc":
        world.dispatch("a", NodeSuspected(node))
    rounds_until_drained(world, "a")
    assert world.drained["a"] == "d"


def test_drain_passes_over_a_member_that_does_not_answer() -> None:
    world = world_of(holding(a=300))
    world.crash("b")
    world.crash("c")
    world.drain("a")
    rounds_until_drained(world, "a")
    assert world.drained["a"] == "d"


def test_drain_without_a_reachable_member_ends_at_once() -> None:
    world = world_of(holding(a=300))
    world.drain("a")
    for node in "bcd":
        world.dispatch("a", NodeSuspected(node))
    assert world.drained == {"a": None}
    assert world.subscribers["a"].replication.unconfirmed == 0


def test_nodes_that_request_handovers_do_not_keep_a_drain_from_its_receiver() -> None:
    world = world_of(holding(a=300))
    for number in range(HANDOVERS_MAX):
        request = Received(RequestHandover(f"x{number}", 1), f"x{number}")
        world.subscribers["a"].handle(request)
    world.drain("a")
    memory = world.subscribers["a"].memory()
    assert memory is not None
    assert memory.drain.receiver in set("bcd")


def test_drain_without_a_receiver_counts_everything() -> None:
    start = holding(a=300)
    drain = DrainState(ticks=5, everything=True)
    states = dict(start.subscribers)
    states["a"] = replace(states["a"], memory=SubscriberMemory(drain=drain))
    world = world_of(replace(start, subscribers=states))
    assert world.subscribers["a"].replication.unconfirmed == 300


def test_drain_without_a_receiver_counts_records_of_batches() -> None:
    several = batch_of(b"x", b"y", b"z", first=10**6, topic=RING.topic)
    for drain in (DrainState(ticks=5, everything=True), DrainState(ticks=5, ids=(several.id,))):
        state = SubscriberState(
            member=True, publications=(several,), memory=SubscriberMemory(drain=drain)
        )
        assert subscriber(state).machine.replication.unconfirmed == 3


def test_drain_states_whether_members_remain_that_cannot_be_reached() -> None:
    world = world_of(holding(a=300))
    world.drain("a")
    for node in "bcd":
        world.dispatch("a", NodeSuspected(node))
    assert world.drained_absent == {"a": True}


def test_members_that_drain_together_leave_no_absent_member() -> None:
    world = world_of(holding(a=300, b=10, c=20, d=30))
    for node in NAMES:
        world.drain(node)
    rounds_until_drained(world, *NAMES)
    assert world.drained_absent == dict.fromkeys(NAMES, False)


def test_member_alone_in_the_ring_leaves_no_absent_member() -> None:
    world = world_of(standing_ring("a"))
    world.drain("a")
    assert world.drained_absent == {"a": False}


def test_leaver_takes_back_the_name_of_a_member_that_leaves_too() -> None:
    world = world_of(holding(a=300))
    leaver = world.subscribers["a"]
    world.drain("a")
    leaver.handle(Received(Draining("b", ("x",)), "b"))
    assert "x" in leaver.replication.drain_candidates()
    leaver.handle(Received(Draining("c"), "c"))
    assert "x" in leaver.replication.drain_candidates()  # only b has announced it
    effects = leaver.handle(Received(Draining("d"), "d"))
    assert CheckHeld in {type(e.message) for e in effects if isinstance(e, Send) and e.to == "x"}
    assert Drained(None, absent=False) in leaver.handle(Received(Draining("b"), "b"))


def test_leaver_informs_other_leavers_that_a_neighbour_leaves_too() -> None:
    world = world_of(holding(a=300))
    leaver = world.subscribers["a"]
    world.drain("a")
    leaver.handle(Received(Draining("b"), "b"))
    effects = leaver.handle(Received(Draining("c"), "c"))
    assert Send("b", Draining("a", ("d",))) in effects
    assert leaver.handle(Received(Draining("c"), "c")) == []


def test_drain_of_single_ids_hands_nothing_else_over() -> None:
    world = world_of(holding(a=300))
    own = tuple(each.id for each in MADE[:3])
    world.drain("a", own, everything=False)
    rounds_until_drained(world, "a")
    receiver = world.drained["a"]
    assert receiver is not None
    assert held(world, receiver) == 3
    assert set(world.held_by) == set(own)


def test_unconfirmed_publications_are_counted() -> None:
    world = world_of(holding(a=300))
    world.drain("a")
    assert world.subscribers["a"].replication.unconfirmed == 300


def test_member_that_drains_refuses_to_be_a_receiver() -> None:
    world = world_of(holding())
    world.drain("b")
    run_rounds(world, Synchronous(), 2)
    before = world.sent[Draining]
    world.dispatch("a", ReplicationRequested((MADE[0].id,), ("b",)))
    run_rounds(world, Synchronous(), 2)
    assert world.sent[Draining] == before + 1
    assert world.held_by == {}


def test_member_that_subscribes_again_is_a_receiver_again() -> None:
    world = world_of(holding(a=3))
    world.drain("b")
    run_rounds(world, Synchronous(), 2)
    world.subscribe("b")
    world.dispatch("a", ReplicationRequested((MADE[0].id,), ("b",)))
    run_rounds(world, Synchronous(), 6)
    assert world.held_by == {MADE[0].id: {"b"}}


def test_announcement_is_forgotten_after_64_ticks() -> None:
    start = holding(a=300)
    leaving = DrainState(leaving=dict.fromkeys("bcd", 1 << 40))
    memory = SubscriberMemory(drain=leaving)
    states = dict(start.subscribers)
    states["a"] = replace(states["a"], memory=memory)
    world = world_of(replace(start, subscribers=states))
    run_rounds(world, RandomOrder(), LEAVING_TICKS + 1)
    world.drain("a")
    rounds_until_drained(world, "a")
    assert world.drained["a"] is not None


def test_member_that_wrongly_believes_it_is_leaving_becomes_a_receiver_again() -> None:
    start = holding(a=3)
    states = dict(start.subscribers)
    memory = SubscriberMemory(drain=DrainState(ticks=1 << 40, receiver="gone"))
    states["b"] = replace(states["b"], memory=memory)
    world = world_of(replace(start, subscribers=states))
    run_rounds(world, Synchronous(), DRAIN_TICKS_MAX + 1)
    world.dispatch("a", ReplicationRequested((MADE[0].id,), ("b",)))
    run_rounds(world, Synchronous(), 6)
    assert world.held_by == {MADE[0].id: {"b"}}


@pytest.mark.parametrize("code", ["A64", "A66"])
@pytest.mark.parametrize("seed", range(3))
def test_handovers_of_an_arbitrary_state_die_out(code: str, seed: int) -> None:
    world = World(ADVERSARIES[code].build(8, Random(seed)), seed=seed, config=ProtocolConfig())
    run_rounds(world, RandomOrder(), 150)
    before = world.sent[CheckHeld]
    run_rounds(world, RandomOrder(), 20)
    assert world.sent[CheckHeld] == before
