"""World of a simulation: machines, channels, and events from outside."""

from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Origin
from skipring.core.events import SyncRequested
from skipring.core.messages import (
    UNRECORDED,
    GetConfiguration,
    IHave,
    Introduce,
    Publications,
    PublishMany,
    PublishNew,
    Subscribe,
    TrieEqual,
    Want,
)
from skipring.core.peers import SUPERVISOR, EdgeKind
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import COUNTER_BITS
from skipring.core.state import SubscriberState, SupervisorState
from skipring.sim.engine import World
from skipring.sim.network_faults import Delay, Fault
from skipring.sim.schedulers import RandomOrder
from skipring.world.adversaries import ADVERSARIES
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.batches import batch, with_rows
from tests.support.conversations import at, place, standing_ring

RING = standing_ring("abcd")
NEWS = batch(publisher="b", topic=RING.topic)
NEWCOMER = Snapshot(subscribers={"a": SubscriberState()})


def world_of(start: Snapshot, *faults: Fault, seed: int = 0) -> World:
    return World(start, seed=seed, config=ProtocolConfig(), faults=faults)


def run(world: World, rounds: int) -> World:
    scheduler = RandomOrder()
    for _ in range(rounds):
        world.begin_round()
        scheduler.run_round(world)
        world.end_round()
    return world


# --- states as values ------------------------------------------------------------------


@pytest.mark.parametrize("code", ADVERSARIES)
def test_world_shows_its_start_state(code: str) -> None:
    start = ADVERSARIES[code].build(9, Random(3))
    if any(state.memory for state in start.subscribers.values()):
        start = world_of(start).snapshot()  # derived values are kept only if they are wrong
    world = world_of(start)
    queue = tuple(dict.fromkeys(start.supervisor.queue))  # R15: distinct subjects
    assert world.snapshot() == replace(start, supervisor=replace(start.supervisor, queue=queue))
    assert (world.round, world.events, world.messages) == (0, 0, 0)


def test_world_leaves_its_start_unchanged_unless_it_may_consume_it() -> None:
    start = ADVERSARIES["A15"].build(8, Random(0))
    copy = replace(start, subscribers=dict(start.subscribers))
    kept = run(world_of(start), 3)
    assert start == copy

    used = World(start, seed=0, config=ProtocolConfig(), uses_up_start=True)
    assert start.subscribers == {}
    assert run(used, 3).snapshot() == kept.snapshot()


def test_seed_determines_the_run() -> None:
    start = ADVERSARIES["A15"].build(12, Random(0))
    first = run(world_of(start, seed=3), 4).snapshot()
    assert run(world_of(start, seed=3), 4).snapshot() == first
    assert run(world_of(start, seed=4), 4).snapshot() != first


def test_order_of_subscribers_does_not_affect_the_run() -> None:
    start = ADVERSARIES["A15"].build(12, Random(0))
    turned = replace(start, subscribers=dict(reversed(start.subscribers.items())))
    assert run(world_of(turned), 4).snapshot() == run(world_of(start), 4).snapshot()


def test_order_of_shortcuts_does_not_affect_the_run() -> None:
    start = ADVERSARIES["A12"].build(16, Random(0))
    turned = {
        node: replace(state, shortcuts=dict(reversed(state.shortcuts.items())))
        for node, state in start.subscribers.items()
    }
    before, after = run(world_of(start), 4), run(world_of(replace(start, subscribers=turned)), 4)
    assert after.snapshot() == before.snapshot()
    assert after.events == before.events


# --- steps -----------------------------------------------------------------------------


def test_delivery_is_one_event_and_its_answers_are_sent_in_this_round() -> None:
    world = world_of(NEWCOMER)
    world.end_round()
    world.deliver(Parcel("a", UNRECORDED, SUPERVISOR))
    assert world.channels == [Parcel(SUPERVISOR, Subscribe("a"), "a", 0)]
    assert (world.events, world.sent) == (1, {Subscribe: 1})
    world.deliver(Parcel("a", place("-", "0", "-"), SUPERVISOR))
    assert world.events == 2
    assert world.subscribers["a"].label == at("a@0").label


def test_receiver_learns_the_sender_of_a_message() -> None:
    world = world_of(NEWCOMER)
    world.suspect("a")
    stray = Introduce(at("b@1"), EdgeKind.LINE, first_hand=False)
    world.deliver(Parcel(SUPERVISOR, stray, sender=None))
    assert world.supervisor.suspects("a")
    world.deliver(Parcel(SUPERVISOR, stray, sender="a"))
    assert not world.supervisor.suspects("a")


def test_event_of_a_dead_node_is_counted_without_effect() -> None:
    world = world_of(RING)
    world.crash("b")
    world.deliver(Parcel("b", UNRECORDED, SUPERVISOR))
    world.tick("b")
    assert (world.events, world.messages) == (2, 0)


# --- requests of the application and the detector --------------------------------------


def test_new_node_sends_a_subscription() -> None:
    world = world_of(RING)
    world.subscribe("e")
    assert world.subscribers["e"].member
    assert world.channels == [Parcel(SUPERVISOR, Subscribe("e"), "e", 0)]
    assert world.events == 0


def test_publication_is_stored_delivered_and_sent_to_all_neighbours() -> None:
    world = world_of(RING)
    world.publish("c", b"news")
    (publication,) = world.subscribers["c"].batches()
    assert publication == batch(publisher="c", topic=world.topic)
    assert {parcel.to for parcel in world.channels} == {"a", "b"}
    assert {type(parcel.message) for parcel in world.channels} == {PublishNew}
    assert (world.deliveries.published, world.deliveries.received) == (1, 0)
    assert world.events == 0


def test_publication_reaches_every_member_and_every_copy_is_counted() -> None:
    world = run(world_of(RING), 1)
    world.publish("a", b"news")
    run(world, 5)
    assert {len(machine.batches()) for machine in world.subscribers.values()} == {1}
    deliveries = world.deliveries
    assert (deliveries.published, deliveries.received) == (1, 3)
    assert deliveries.copies == deliveries.received + deliveries.duplicates


def test_copy_sent_to_a_dead_node_or_the_supervisor_does_not_count() -> None:
    world = world_of(RING)
    world.crash("b")
    for node in ("b", SUPERVISOR, "c"):
        world.deliver(Parcel(node, PublishNew(NEWS), "a"))
    assert (world.deliveries.copies, world.deliveries.received) == (1, 1)


def test_spread_publications_have_hops_and_repaired_ones_have_none() -> None:
    world = world_of(RING)
    world.deliver(Parcel("a", PublishNew(NEWS, 4), "c"))
    world.deliver(Parcel("b", Publications((NEWS,)), "c"))
    world.deliver(Parcel("b", Publications((NEWS,)), "c"))
    deliveries = world.deliveries
    assert deliveries.by_origin == {Origin.SPREAD: 1, Origin.REPAIR: 1}
    assert (deliveries.hops_mean, deliveries.hops_max) == (5.0, 5)
    assert (deliveries.received, deliveries.copies, deliveries.duplicates) == (2, 3, 1)


def test_corrupt_row_is_discarded() -> None:
    wrong = replace(NEWS, id=b"0" * 32)
    start = replace(RING.subscribers["a"], publications=(wrong, NEWS))
    world = world_of(replace(RING, subscribers=RING.subscribers | {"a": start}))
    world.tick("a")
    assert world.subscribers["a"].batches() == (NEWS,)


@pytest.mark.parametrize(
    "invalid", [replace(NEWS, id=b"0" * 32), with_rows("no records", topic=RING.topic)]
)
def test_rejected_publication_is_not_stored(invalid: RecordBatch) -> None:
    world = world_of(RING)
    world.deliver(Parcel("a", PublishMany((invalid, NEWS)), "c"))
    assert world.subscribers["a"].batches() == (NEWS,)
    assert world.deliveries.received == 1


def test_deferred_messages_are_sent_at_the_tick() -> None:
    world = world_of(RING)
    world.deliver(Parcel("a", IHave("b", NEWS.id[:8], b"\2"), "b"))
    assert world.subscribers["a"].has_to_flush
    events = world.events
    world.tick("a")
    assert not world.subscribers["a"].has_to_flush
    assert Want("a", NEWS.id[:8], b"\2") in [p.message for p in world.channels if p.to == "b"]
    assert world.events == events + 2  # Timeout and Flush


def test_confirmation_of_an_equal_trie_is_recorded() -> None:
    world = world_of(RING)
    world.deliver(Parcel("a", TrieEqual("b", world.subscribers["a"].trie().root()), "b"))
    world.deliver(Parcel("a", TrieEqual("c", b"0" * 16), "c"))
    assert world.subscribers["a"].replication.in_sync == {"b"}


@pytest.mark.parametrize("hashes", [{}, {ALL: b"0" * 16}], ids=["right", "corrupted"])
def test_two_nodes_without_publications_confirm_each_other(hashes: dict[Prefix, bytes]) -> None:
    start = replace(RING.subscribers["a"], hashes=hashes)
    world = run(world_of(replace(RING, subscribers=RING.subscribers | {"a": start})), 20)
    world.dispatch("a", SyncRequested())
    run(world, 3)
    assert "c" in world.subscribers["a"].replication.in_sync


def test_supervisor_evicts_a_suspected_node() -> None:
    world = world_of(RING)
    world.suspect("b")
    assert "b" not in world.roster
    assert "b" in world.subscribers
    world.tick(SUPERVISOR)
    assert {parcel.sender for parcel in world.channels} == {SUPERVISOR}
    assert "b" not in {parcel.to for parcel in world.channels}


# --- crashes and restarts --------------------------------------------------------------


def test_crash_is_silent_and_its_round_is_recorded() -> None:
    world = run(world_of(replace(RING, crashed=("x",))), 2)
    messages = world.messages
    world.crash("b")
    assert world.crashed == {"x": 0, "b": 2}
    assert "b" not in world.subscribers
    assert "b" in world.roster
    assert world.messages == messages
    assert world.snapshot().crashed == ("x", "b")


def test_restarted_subscriber_has_its_log_and_publishes_in_a_new_incarnation() -> None:
    world = world_of(RING)
    world.publish("b", b"stored")
    stored = world.subscribers["b"].batches()
    world.publish_and_crash("b", b"sent")
    world.restart("b", stored, incarnation=3)
    assert world.crashed == {}
    assert world.subscribers["b"].batches() == stored
    world.publish("b", b"later")
    later = world.subscribers["b"].batches()[-1]
    assert (later.first, later.records()[0].payload) == (3 << COUNTER_BITS, b"later")


def test_restarted_supervisor_has_an_empty_roster_and_queue() -> None:
    queue = SupervisorState(database=RING.supervisor.database, next=3, queue=("a", "b"))
    world = world_of(replace(RING, supervisor=queue))
    world.suspect("c")
    world.restart_supervisor()
    assert world.snapshot().supervisor == SupervisorState()
    assert not world.supervisor.suspects("c")
    world.deliver(Parcel(SUPERVISOR, GetConfiguration("a"), "a"))
    world.tick(SUPERVISOR)
    assert Parcel("a", UNRECORDED, SUPERVISOR, 0) in world.channels


# --- delayed messages ------------------------------------------------------------------


def test_delayed_message_is_in_flight_and_in_no_channel_until_its_round() -> None:
    world = world_of(NEWCOMER, Delay(1, 1), Delay(1, 1))
    world.tick("a")
    parcel = Parcel(SUPERVISOR, Subscribe("a"), "a", 0)
    for _ in range(2):
        world.begin_round()
        assert world.channels == []
        assert list(world.in_flight()) == [parcel]
        assert world.snapshot().channels == (Parcel(SUPERVISOR, Subscribe("a"), "a"),)
        world.end_round()
    world.begin_round()
    assert world.channels == [parcel]
    assert list(world.in_flight()) == [parcel]
    world.end_round()
    world.begin_round()
    assert world.channels == [parcel]


def test_snapshot_lists_messages_in_order_of_sending_despite_delays() -> None:
    world = world_of(RING, Delay(0.5, 9))
    for node in "abcd":
        world.tick(node)
    senders = [parcel.sender for parcel in world.snapshot().channels]
    assert senders == sorted(senders)  # they ticked in this order
    assert 0 < len(world.channels) < len(senders)
