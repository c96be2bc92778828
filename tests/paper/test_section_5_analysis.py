"""Section 5: convergence and closure, lemma by lemma."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.events import SubscribeRequested
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    CheckTrie,
    Digest,
    GetConfiguration,
    Introduce,
    IntroduceShortcut,
    Message,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import EdgeKind, NodeId
from skipring.core.roster import Roster
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import (
    Layer,
    channel_violations,
    explicit_state,
    is_legitimate,
    is_strictly_legitimate,
    violations,
)
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.conversations import at, place, simulation, standing_ring
from tests.support.machines import loaded_supervisor
from tests.support.runs import assert_heals

every_adversary = pytest.mark.parametrize("code", ADVERSARIES)
undisturbed = pytest.mark.parametrize(
    "code", [code for code, adversary in ADVERSARIES.items() if not adversary.crash_rounds]
)


# -- Network Convergence ---------------------------------------------------------------------


@every_adversary
@pytest.mark.parametrize("n", [5, 9])
def test_every_start_becomes_a_skip_ring_and_stays_one(code: str, n: int) -> None:
    """The theorems Network Convergence and Network Closure."""
    assert_heals(100, n=n, adversary=code, seed=5)


@every_adversary
def test_every_start_becomes_a_skip_ring_with_the_fixes_alone(code: str) -> None:
    """Mode fixed: about n rounds instead of log n, but always."""
    assert_heals(300, n=9, adversary=code, seed=5, mode="fixed")


@pytest.mark.parametrize("scheduler", ["random", "sync", "delay", "swizzle"])
def test_convergence_does_not_depend_on_the_order_of_messages_and_timeouts(scheduler: str) -> None:
    """Section 1.1: fully asynchronous computations and non-FIFO message delivery."""
    for code in ("A05", "A13", "A15", "A17"):
        assert_heals(300, n=9, adversary=code, seed=5, scheduler=scheduler)


def is_connected(world: Snapshot) -> bool:
    """Return True if the references alone, without the supervisor, connect the subscribers."""
    groups = {node: {node} for node in world.subscribers}
    for one, other in world.explicit_edges():
        if other in groups and groups[one] is not groups[other]:
            groups[one] |= groups[other]
            groups.update(dict.fromkeys(groups[other], groups[one]))
    return len({id(group) for group in groups.values()}) == 1


@pytest.mark.parametrize("code", ["A00", "A08", "A09", "A18", "A22"])
def test_weak_connectivity_of_the_subscribers_is_not_needed(code: str) -> None:
    """The theorem requires it; the star to the supervisor (section 1.1) connects enough."""
    assert not is_connected(ADVERSARIES[code].build(9, Random(f"{code}/5")))
    assert_heals(100, n=9, adversary=code, seed=5)


# -- Supervisor Validity, Supervisor Convergence ---------------------------------------------


def members(world: World) -> set[NodeId]:
    return {node for node, machine in world.subscribers.items() if machine.wants}


@every_adversary
def test_database_is_never_corrupted_after_the_first_event(code: str) -> None:
    """The lemma Supervisor Validity: the database will not be corrupted any more."""
    for seed in range(3):
        start = ADVERSARIES[code].build(9, Random(f"{code}/{seed}"))
        host = loaded_supervisor(start.supervisor)
        host.handle(SubscribeRequested())
        database = host.machine.roster.database()
        assert [bits for bits, _ in database] == [Label.nth(i).bits for i in range(len(database))]
        places = Counter(node for _, node in database)
        assert None not in places
        assert set(places.values()) <= {1}


@undisturbed
@pytest.mark.parametrize("mode", ["fixed", "fast"])
def test_all_subscribers_become_recorded_and_stay_so(code: str, mode: str) -> None:
    """Supervisor Convergence: the potential, the number of non-recorded nodes, never increases.

    It may increase while a forged request to unsubscribe is in flight, so the count starts when
    there is none.
    """
    running = Simulation(
        make_scenario({"config": "eager", "n": 9, "adversary": code, "mode": mode, "seed": 7})
    )
    running.run_round()
    potential: list[int] = []
    for _ in range(150):
        forged = any(isinstance(p.message, Unsubscribe) for p in running.world.in_flight())
        if forged:
            potential.clear()
        potential.append(len(members(running.world) - set(running.world.roster.nodes)))
        if is_strictly_legitimate(running.world):
            break
        running.run_round()
    assert potential[-1] == 0
    assert potential == sorted(potential, reverse=True)


# -- layers: Ring Convergence, Shortcut Convergence ------------------------------------------

LAYERS = (Layer.DATABASE, Layer.LABELS, Layer.RING, Layer.SHORTCUTS)


def sound_layers(world: World) -> int:
    """Return how many layers, from the database up, are right and safe from messages in flight."""
    roster = Roster()
    roster.load(world.roster.database(), cursor=0)
    roster.repair()
    live = [parcel for parcel in world.in_flight() if parcel.to not in world.crashed]
    threats = {layer for parcel in live for layer in threatened(parcel, roster, members(world))}
    wrong = {violation.layer for violation in violations(world)} | threats
    return next((i for i, layer in enumerate(LAYERS) if layer in wrong), len(LAYERS))


def threatened(parcel: Parcel, roster: Roster, members: set[NodeId]) -> Iterator[Layer]:
    """Return the lowest layer that a message could disturb, if all layers up to it are right."""
    message = parcel.message
    match message:
        case Unsubscribe(node) if node in roster:
            yield Layer.DATABASE
        case Subscribe(node) if node is not None and node not in members:
            yield Layer.DATABASE
        case SetConfiguration():
            should = roster.configuration_of(parcel.to)
            if message != should:
                yield Layer.LABELS if message.label != should.label else Layer.RING
        case RemoveConnections(node) if node in roster:  # others have no place in the ring
            yield Layer.RING
        case CheckLabel(sender=peer) | Introduce(peer=peer) | IntroduceShortcut(peer=peer):
            if roster.configuration_of(peer.node).label != peer.label:
                is_shortcut = isinstance(message, IntroduceShortcut)
                yield Layer.SHORTCUTS if is_shortcut else Layer.RING


def layers_over_time(code: str, mode: str, n: int, rounds: int) -> list[int]:
    running = Simulation(
        make_scenario({"config": "eager", "n": n, "adversary": code, "mode": mode, "seed": 9})
    )
    sound = []
    for _ in range(rounds):
        sound.append(sound_layers(running.world))
        if sound[-5:] == [len(LAYERS)] * 5:
            break
        running.run_round()
    return sound


@undisturbed
@pytest.mark.parametrize("mode", ["fixed", "fast"])
def test_layer_that_is_right_stays_right(code: str, mode: str) -> None:
    """The order of the lemmas: Supervisor Convergence, Ring Convergence, Shortcut Convergence.

    Each depends on the previous ones, and no event in a later layer disturbs an earlier one: so the
    paper's induction is valid.
    """
    sound = layers_over_time(code, mode, n=9, rounds=150)
    assert sound == sorted(sound)
    assert sound[-1] == len(LAYERS)


def test_shortcuts_disturb_the_ring_in_the_paper() -> None:
    """There a displaced shortcut is linearized (A12: shortcuts are stale), and the ring, which
    was right and undisturbed, breaks: the induction of Shortcut Convergence is circular.
    """
    sound = layers_over_time("A12", "paper", n=17, rounds=30)
    assert sound[0] == LAYERS.index(Layer.SHORTCUTS)  # all layers below are right
    assert min(sound) <= LAYERS.index(Layer.RING)


@pytest.mark.parametrize(
    ("timeouts", "layers"), [(12, {Layer.LABELS}), (24, {Layer.LABELS, Layer.RING})]
)
def test_round_robin_alone_repairs_labels_and_then_the_ring(
    timeouts: int, layers: set[Layer]
) -> None:
    """Proof of Ring Convergence: n Timeouts for the labels, n more for the neighbours.

    In mode fixed, which has no rule that accelerates it; one more round for the last arrivals.
    """
    start = ADVERSARIES["A06"].build(12, Random("5"))
    running = simulation(start, mode="fixed", scheduler="sync")
    for _ in range(timeouts + 1):
        running.run_round()
    assert not layers & {violation.layer for violation in violations(running.world)}


# -- Network Closure -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["paper", "fixed", "fast"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 17])
def test_skip_ring_is_preserved_bit_by_bit(mode: str, n: int) -> None:
    """Supervisor, Ring and Shortcut Closure: without joins and departures nothing changes."""
    running = simulation(standing_ring(n), mode=mode)
    running.run_round()  # the loaded database becomes a roster
    before = explicit_state(running.world)
    for _ in range(60):
        running.run_round()
        assert explicit_state(running.world) == before
        assert is_strictly_legitimate(running.world)


STALE: dict[str, tuple[NodeId, Message]] = {
    "an old configuration": ("b", place("a@0", "1", "a@0")),
    "an old label": ("b", place("a@0", "01", "d@11")),
    "a forged permission": ("b", SetConfiguration(None, None, None)),
    "an old pair": ("a", Introduce(at("d@001"), EdgeKind.LINE, first_hand=True)),
    "an old shortcut": ("a", IntroduceShortcut(at("d@1"))),
    "a request to forget": ("a", RemoveConnections("c")),
}


@pytest.mark.parametrize(("to", "message"), STALE.values(), ids=STALE)
def test_closure_does_not_hold_for_the_explicit_edges_alone(to: NodeId, message: Message) -> None:
    """The theorem: "if the explicit edges already form [SR(n)], then they are preserved".

    It fails with one stale message in flight: the channels are part of the predicate.
    """
    running = simulation(replace(standing_ring("abcd"), channels=(Parcel(to, message),)))
    world = running.world
    assert is_legitimate(world)
    assert not is_strictly_legitimate(world)
    assert len(list(channel_violations(world))) == 1
    before = explicit_state(world)
    world.deliver(world.channels.pop())
    assert explicit_state(world) != before
    assert not is_legitimate(world)
    report = running.run()
    assert report.is_good


def test_stale_request_to_leave_breaks_closure_as_well() -> None:
    """Supervisor Closure excludes it: "both scenarios are forbidden by assumption"."""
    start = replace(standing_ring("abcd"), channels=(Parcel("supervisor", Unsubscribe("b")),))
    running = simulation(start)
    assert is_legitimate(running.world)
    assert not is_strictly_legitimate(running.world)
    running.world.deliver(running.world.channels.pop())
    assert "b" not in running.world.roster
    assert running.run().is_good
    assert "b" in running.world.roster


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16, 37])
def test_number_of_messages_in_a_legitimate_state_is_constant_per_node(n: int) -> None:
    """The abstract: checking costs a constant on expectation, for the supervisor and each node."""
    running = simulation(standing_ring(n), seed=3)
    for _ in range(3):
        running.run_round()
    running.world.sent.clear()
    rounds = 50
    for _ in range(rounds):
        running.run_round()
    sent = dict(running.world.sent)
    requests = sent.pop(GetConfiguration)
    answers = sent.pop(SetConfiguration)
    # A request is answered no later than in the next round, or together with the round robin.
    assert rounds <= answers <= rounds + requests + 1
    assert sent.pop(CheckLabel) == rounds * 2 * n  # to both neighbours on the ring
    assert sent.pop(Digest) == rounds * (n - 1)  # to the parent in the tree
    assert sent.pop(CheckTrie) == rounds * n  # to one neighbour, and all tries are equal
    assert sent.pop(IntroduceShortcut, 0) == rounds * 2 * (n - 2)  # all but labels 0 and 1
    assert sent == {}
