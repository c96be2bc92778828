"""Faults of processes: their effect, their rounds and their end."""

from collections import Counter

import pytest

from skipring.core.config import Preset, ProtocolConfig
from skipring.core.messages import Subscribe
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.state import SubscriberState
from skipring.sim.engine import World
from skipring.sim.process_faults import (
    DRAIN_ROUNDS,
    Churn,
    CrashWave,
    DrainWave,
    Incident,
    OracleDetector,
    PublishLoad,
    SupervisorRestart,
    WrongSuspicion,
)
from skipring.sim.runner import Simulation
from skipring.sim.scenario import Scenario
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.batches import payloads_of
from tests.support.conversations import standing_ring


class Watched(World):
    """A world that records each suspicion with its round."""

    def __init__(self, start: Snapshot, seed: int = 1) -> None:
        super().__init__(start, seed=seed, config=ProtocolConfig())
        self.suspected: list[tuple[int, NodeId]] = []

    def suspect(self, node: NodeId) -> None:
        self.suspected.append((self.round, node))
        super().suspect(node)


def ring_of(n: int, seed: int = 1) -> Watched:
    return Watched(standing_ring(n), seed)


def strike(incident: Incident, world: World, rounds: int) -> None:
    """Run some rounds in which only the incident happens."""
    for _ in range(rounds):
        incident.strike(world)
        world.end_round()


@pytest.mark.parametrize(
    ("incident", "last_round"),
    [
        (CrashWave((3, 9, 6), 0.5), 9),
        (CrashWave((), 0.5), -1),
        (Churn(0.1), 99),
        (Churn(0.1, rounds=7), 6),
        (Churn(0), -1),
        (DrainWave((3, 9), 0.5), 9 + DRAIN_ROUNDS),
        (DrainWave((), 0.5), -1),
        (SupervisorRestart((4, 2)), 4),
        (SupervisorRestart(()), -1),
        (WrongSuspicion(0.1, 30), 29),
        (WrongSuspicion(0.1, 0), -1),
        (PublishLoad(5, 2), 4),
        (PublishLoad(0, 2), -1),
        (OracleDetector(), -1),
        (OracleDetector(50), -1),
    ],
)
def test_incident_states_its_last_round(incident: Incident, last_round: int) -> None:
    assert incident.last_round == last_round


@pytest.mark.parametrize(
    "incident",
    [
        CrashWave((3,), 1),
        Churn(1, rounds=4),
        SupervisorRestart((3,)),
        WrongSuspicion(1, 4),
        PublishLoad(4, 1),
    ],
)
def test_incident_strikes_in_its_last_round_and_not_afterwards(incident: Incident) -> None:
    assert incident.last_round == 3
    for number, strikes in ((3, True), (4, False), (5, False)):
        world = ring_of(8)
        world.round = number
        world.tick(SUPERVISOR)  # repairs the loaded state
        before = world.snapshot()
        incident.strike(world)
        assert (world.snapshot() != before) is strikes


# --- crashes ---------------------------------------------------------------------------


def test_wave_crashes_a_share_in_each_of_its_rounds() -> None:
    world = ring_of(16)
    strike(CrashWave((1, 3), 0.25), world, 5)
    assert Counter(world.crashed.values()) == {1: 4, 3: 3}  # a quarter of 16, then of 12
    assert len(world.subscribers) == 9


@pytest.mark.parametrize("n", [1, 2, 3, 16])
def test_wave_leaves_at_least_one_node(n: int) -> None:
    world = ring_of(n)
    strike(CrashWave((0, 1, 2), 1), world, 3)
    assert len(world.subscribers) == 1


# --- churn -----------------------------------------------------------------------------


def test_drained_members_leave_and_others_leave_at_the_time_limit() -> None:
    world = ring_of(8)
    incident = DrainWave((0,), 0.25)
    incident.strike(world)
    leaving = [n for n, each in world.subscribers.items() if each.replication.is_leaving]
    assert len(leaving) == 2
    world.drained.clear()
    world.drained[leaving[0]] = "n0000"
    for number in (1, DRAIN_ROUNDS):
        world.round = number
        incident.strike(world)
        members = {node for node, each in world.subscribers.items() if each.wants}
        assert world.subscribers.keys() - members == set(leaving[: 1 if number == 1 else 2])


def test_churn_crashes_nodes_while_as_many_join() -> None:
    world = ring_of(2000)
    strike(Churn(0.1), world, 1)
    joiners = [node for node in world.subscribers if node.startswith("j")]
    assert 140 < len(world.crashed) < 260
    assert 140 < len(joiners) < 260
    assert all(machine.member for machine in world.subscribers.values())
    sent = Counter(type(parcel.message) for parcel in world.channels)
    assert sent == {Subscribe: len(joiners)}


def test_churn_never_reuses_a_name() -> None:
    world = ring_of(8)
    strike(Churn(1), world, 20)
    names = [*world.subscribers, *world.crashed]
    joined = [name for name in names if name.startswith("j")]
    assert len(names) == len(set(names)) == 8 + len(joined)
    assert len(joined) > 8


def test_churn_ignores_departed_nodes() -> None:
    start = Snapshot(subscribers={"z": SubscriberState(member=False)})
    world = Watched(start)
    strike(Churn(1), world, 10)
    assert world.snapshot() == start


# --- the supervisor --------------------------------------------------------------------


def test_restarted_supervisor_has_an_empty_database() -> None:
    world = ring_of(8)
    for number in range(5):
        assert len(world.snapshot().supervisor.database) == (8 if number <= 2 else 0)
        strike(SupervisorRestart((2, 4)), world, 1)


def test_supervisor_restarts_in_each_given_round() -> None:
    world, seen = ring_of(8), []
    for _ in range(8):
        before = world.supervisor
        strike(SupervisorRestart((2, 3, 6)), world, 1)
        seen.append(world.supervisor is not before)
    assert [number for number, restarted in enumerate(seen) if restarted] == [2, 3, 6]


# --- suspicions ------------------------------------------------------------------------


def test_wrong_suspicion_evicts_live_nodes() -> None:
    world = ring_of(400)
    strike(WrongSuspicion(0.25, 1), world, 2)
    assert 60 < len(world.suspected) < 140
    assert len(world.subscribers) == 400
    assert world.crashed == {}
    for _, node in world.suspected:
        assert node not in world.roster
    assert len(world.roster) == 400 - len(world.suspected)


@pytest.mark.parametrize("delay", [0, 1, 10])
def test_detector_detects_a_crash_after_its_delay(delay: int) -> None:
    world = ring_of(8)
    strike(OracleDetector(delay), world, 5)
    world.crash("n0003")
    strike(OracleDetector(delay), world, delay + 5)
    assert world.suspected == [(5 + delay, "n0003")]
    assert "n0003" not in world.roster
    assert len(world.roster) == 7


def test_detector_never_accuses_live_nodes() -> None:
    world = ring_of(8)
    strike(OracleDetector(), world, 50)
    assert world.suspected == []


def test_detector_repeats_a_forgotten_suspicion() -> None:
    """Let a suspicion expire, and restart the supervisor; the dead node is suspected again."""
    world = ring_of(4)
    world.crash("n0001")
    strike(OracleDetector(), world, 3)
    world.restart_supervisor()
    strike(OracleDetector(), world, 3)
    assert world.suspected == [(0, "n0001"), (3, "n0001")]
    for _ in range(200):
        world.tick(SUPERVISOR)
    strike(OracleDetector(), world, 3)
    assert len(world.suspected) == 3


def test_detector_accuses_a_dead_node_that_is_recorded_again() -> None:
    world = ring_of(4)
    world.crash("n0001")
    strike(OracleDetector(), world, 1)
    for _ in range(200):
        world.tick(SUPERVISOR)  # the suspicion expires
    world.deliver(Parcel(SUPERVISOR, Subscribe("n0001")))
    assert "n0001" in world.roster
    strike(OracleDetector(), world, 1)
    assert "n0001" not in world.roster


# --- publications ----------------------------------------------------------------------


def published(world: World) -> list[tuple[NodeId, bytes]]:
    """Return each node with its own publications and their payloads."""
    return [
        (node, payload)
        for node, machine in world.subscribers.items()
        for row in machine.batches()
        if row.publisher == node
        for payload in payloads_of([row])
    ]


def test_load_publishes_a_number_in_each_of_its_rounds() -> None:
    world = ring_of(8)
    strike(PublishLoad(3, 5), world, 6)
    payloads = [payload for _, payload in published(world)]
    assert sorted(payloads) == [
        f"round {number} {place}".encode() for number in range(3) for place in range(5)
    ]
    assert len({node for node, _ in published(world)}) > 1
    assert world.deliveries.published == 15


def test_load_publishes_batches() -> None:
    world = ring_of(8)
    strike(PublishLoad(3, 5, batch=2), world, 6)
    assert world.deliveries.published == 15
    assert len({payload for _, payload in published(world)}) == 30


def test_only_members_publish() -> None:
    leaver, member = SubscriberState(member=False), SubscriberState()
    world = Watched(Snapshot(subscribers={"a": leaver, "b": member, "c": leaver}))
    strike(PublishLoad(9, 1), world, 9)
    assert {node for node, _ in published(world)} == {"b"}


# -- crash between sending and storing ---------------------------------------------------------


def test_crashed_publisher_leaves_its_publication_to_its_neighbours() -> None:
    world = ring_of(8)
    publisher = sorted(world.subscribers)[3]
    world.publish_and_crash(publisher, b"last words")
    assert publisher in world.crashed
    assert world.messages > 0
    assert world.deliveries.published == 0  # nothing was stored or delivered at the publisher


@pytest.mark.parametrize("seed", range(5))
def test_survivors_agree_after_publishers_crash_between_sending_and_storing(seed: int) -> None:
    scenario = Scenario(
        n=12, publisher_crashes=(2, 4, 7), seed=seed, publications=5, config=Preset.EAGER
    )
    simulation = Simulation(scenario)
    report = simulation.run()
    assert report.converged
    world = simulation.world
    assert len(world.crashed) == 3
    held = [set(payloads_of(machine.batches())) for machine in world.subscribers.values()]
    assert all(payloads == held[0] for payloads in held)
    assert sum(payload.startswith(b"last of round") for payload in held[0]) == 3


def test_restarted_publisher_recovers_the_publications_sent_before_its_crash() -> None:
    world = ring_of(4)
    publisher = min(world.subscribers)
    world.publish_and_crash(publisher, b"before")
    world.subscribe(publisher)  # with an empty log
    for _ in range(60):
        world.begin_round()
        parcels, world.channels = world.channels, []
        for parcel in parcels:
            world.deliver(parcel)
        for node in world.processes():
            world.tick(node)
        world.end_round()
    assert payloads_of(world.subscribers[publisher].batches()) == [b"before"]
