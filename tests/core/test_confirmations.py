"""Confirmations of ring neighbours: asked with doubling intervals until all are in sync (T19)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.confirmations import CONFIRMED_TICKS, Completeness, SyncConfirmations
from skipring.core.effects import Outbox, Send
from skipring.core.events import Received, Tick
from skipring.core.messages import (
    UNRECORDED,
    CheckHeld,
    CheckTrie,
    HandoverDone,
    RequestHandover,
    TrieEqual,
)
from skipring.core.peers import NodeId
from skipring.core.state import CompletenessState, SubscriberMemory, SyncState
from skipring.sim.engine import World
from skipring.sim.network_faults import Loss
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.snapshot import Snapshot
from tests.support.backfill import begin
from tests.support.batches import batch
from tests.support.conversations import standing_ring
from tests.support.fake_host import FakeHost

LIVE = ProtocolConfig.live()


def asked(sync: SyncConfirmations, ticks: int, *neighbours: str) -> list[int]:
    """Return the ticks in which the neighbours are asked."""
    return [tick for tick in range(ticks) if sync.on_tick(neighbours)]


def test_neighbours_are_asked_with_doubling_intervals_until_all_confirm() -> None:
    sync = SyncConfirmations(LIVE)
    assert asked(sync, 16, "a", "b") == [0, 1, 3, 7, 15]
    sync.add("a")
    assert asked(sync, 40, "a", "b") != []
    sync.add("b")
    assert asked(sync, 200, "a", "b") == []


def test_repair_and_new_neighbours_start_again() -> None:
    sync = SyncConfirmations(LIVE)
    sync.add("a")
    assert asked(sync, 1, "a") == []
    sync.reset()
    assert asked(sync, 1, "a") == [0]
    sync.add("a")
    assert asked(sync, 2, "a", "c") == [0]
    assert asked(sync, 1) == []
    assert sync.nodes == ()


@pytest.mark.parametrize("ask_ticks", [-(1 << 40), 0, 1 << 40])
@pytest.mark.parametrize("period", [-(1 << 40), 0, 1 << 40])
def test_corrupted_counters_delay_a_question_by_64_ticks_at_most(
    ask_ticks: int, period: int
) -> None:
    sync = SyncConfirmations(LIVE)
    sync.load(SyncState(confirmed=("gone",), ask_ticks=ask_ticks, period=period))
    assert asked(sync, LIVE.quiet_ticks_max + 1, "a") != []
    assert sync.state().confirmed == ()


@pytest.mark.parametrize("confirms", [True, False])
def test_members_of_a_ring_confirm_each_other_if_configured(confirms: bool) -> None:
    config = replace(LIVE, confirms_sync=confirms, repairs=False)
    world = World(standing_ring("abcd"), seed=0, config=config)
    run_rounds(world, RandomOrder(), 6)
    for machine in world.subscribers.values():
        assert (machine.replication.in_sync == set(machine.ring_neighbours())) is confirms
    assert (world.sent[CheckTrie] > 0) is confirms
    assert (world.sent[TrieEqual] > 0) is confirms


# -- completeness --------------------------------------------------------------------------

RING = standing_ring("abcd")
MADE = tuple(
    batch(b"%d" % number, publisher="x", first=number, topic=RING.topic) for number in range(300)
)


def world_of(
    counts: dict[NodeId, int], complete: str = "", *, ring: Snapshot = RING, loss: float = 0.0
) -> World:
    """Return a ring in which nodes hold the first publications, and some nodes are complete."""
    states = {
        node: replace(
            state,
            publications=MADE[: counts.get(node, 0)],
            memory=SubscriberMemory(completeness=CompletenessState(complete=node in complete)),
        )
        for node, state in ring.subscribers.items()
    }
    config = ProtocolConfig(
        repairs=False,
        repair_announce_max=1000,
        requests_handover=True,
        backfills=True,
        backfill_min=1,
    )
    faults = (Loss(loss),) if loss else ()
    return World(replace(ring, subscribers=states), seed=0, config=config, faults=faults)


def rounds_until_complete(world: World, *nodes: NodeId, limit: int = 80) -> int:
    for number in range(limit):
        if all(world.subscribers[node].replication.is_complete for node in nodes):
            return number
        run_rounds(world, RandomOrder(), 1)
    raise AssertionError(f"not complete in {limit} rounds")


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_newcomer_is_complete_when_it_has_all_of_a_complete_neighbour(loss: float) -> None:
    world = world_of({"b": 300, "c": 300, "d": 300}, "bcd", loss=loss)
    rounds_until_complete(world, "a")
    assert world.subscribers["a"].count == 300


def test_member_alone_in_the_ring_is_complete() -> None:
    world = world_of({}, ring=standing_ring("a"))
    assert rounds_until_complete(world, "a") == 1


def test_member_without_a_place_is_not_complete() -> None:
    world = World(
        Snapshot(subscribers={"a": replace(RING.subscribers["a"], label=None)}),
        seed=0,
        config=ProtocolConfig(requests_handover=True),
    )
    world.tick("a")
    assert not world.subscribers["a"].replication.is_complete


def test_newcomer_between_newcomers_needs_all_its_neighbours() -> None:
    world = world_of({"b": 100, "d": 200})
    left = world.subscribers["a"].ring_neighbours()
    rounds_until_complete(world, "a")
    assert world.subscribers["a"].count == max(world.subscribers[node].count for node in left)


def test_all_members_of_a_cold_start_become_complete() -> None:
    world = world_of({"a": 300, "b": 100, "d": 200})
    rounds_until_complete(world, *"abcd")
    assert max(world.subscribers[node].count for node in "abcd") == 300


def test_neighbour_that_does_not_answer_is_passed_over() -> None:
    world = world_of({"b": 300, "c": 300, "d": 300}, "bcd")
    silent, *_ = world.subscribers["a"].ring_neighbours()
    world.crash(silent)
    rounds_until_complete(world, "a")
    assert world.subscribers["a"].count == 300


def test_no_neighbour_is_asked_during_a_backfill() -> None:
    world = world_of({"b": 300}, "b")
    machine = world.subscribers["a"]
    begin(FakeHost(machine))
    world.tick("a")
    assert world.sent[RequestHandover] == 0


def test_neighbour_that_leaves_is_not_asked() -> None:
    world = world_of({"b": 300}, "b")
    left = world.subscribers["a"].ring_neighbours()
    for node in left:
        world.drain(node)
    run_rounds(world, RandomOrder(), 2)
    world.sent.clear()
    world.tick("a")
    assert world.sent[RequestHandover] == 0
    assert not world.subscribers["a"].replication.is_complete


def asked_of(world: World) -> tuple[NodeId, int]:
    """Return the neighbour that a newcomer asks, and the session."""
    effects = world.subscribers["a"].handle(Tick())
    sends = [each for each in effects if isinstance(each, Send)]
    ((to, message),) = [
        (each.to, each.message) for each in sends if isinstance(each.message, RequestHandover)
    ]
    return to, message.session


def test_end_of_a_handover_that_was_not_requested_is_ignored() -> None:
    world = world_of({"b": 300}, "b")
    newcomer = world.subscribers["a"]
    newcomer.handle(Received(HandoverDone("b", 0, complete=True), "b"))
    assert not newcomer.replication.is_complete
    asked, session = asked_of(world)
    other = next(node for node in "bcd" if node != asked)
    newcomer.handle(Received(HandoverDone(other, session, complete=True), other))
    newcomer.handle(Received(HandoverDone(asked, session + 1, complete=True), asked))
    assert not newcomer.replication.is_complete
    newcomer.handle(Received(HandoverDone(asked, session, complete=True), asked))
    assert newcomer.replication.is_complete


def test_member_that_is_wrongly_complete_gets_everything_within_64_requests() -> None:
    world = world_of({"b": 300, "c": 300, "d": 300}, "abcd")
    for _ in range(CONFIRMED_TICKS + 20):
        run_rounds(world, RandomOrder(), 1)
    assert world.subscribers["a"].count == 300


def test_complete_member_asks_once_in_64_ticks() -> None:
    world = world_of(dict.fromkeys("abcd", 300), "abcd")
    for _ in range(4 * CONFIRMED_TICKS):
        run_rounds(world, RandomOrder(), 1)
        assert world.subscribers["a"].replication.is_complete
    assert 3 * 4 <= world.sent[HandoverDone] <= 4 * 4
    assert world.sent[CheckHeld] <= 5 * 4


def test_corrupted_age_of_a_confirmation_heals() -> None:
    for age in (-(1 << 40), 1 << 40):
        completeness, out = Completeness(), Outbox()
        completeness.load(CompletenessState(complete=True, age=age))
        for _ in range(CONFIRMED_TICKS):
            completeness.request("a", ("b",), frozenset(), out)
        assert Send("b", RequestHandover("a", 1)) in out


def test_unrecorded_member_is_no_longer_complete() -> None:
    world = world_of({}, "a")
    world.subscribers["a"].handle(Received(UNRECORDED))
    assert not world.subscribers["a"].replication.is_complete
