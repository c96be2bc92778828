"""Section 3.3: subscribers crash without warning, and one failure detector is enough."""

from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import Rule, Rules
from skipring.core.events import NodeSuspected
from skipring.core.messages import CheckLabel, GetConfiguration, Subscribe
from skipring.core.peers import NodeId
from skipring.core.state import legitimate_state
from skipring.sim.runner import Simulation
from skipring.world.adversaries import ADVERSARIES
from skipring.world.adversaries.builders import database_of, node_names
from skipring.world.legitimacy import is_legitimate
from tests.support.conversations import simulation, standing_ring
from tests.support.machines import FAST, FIXED, PAPER, subscriber, supervisor, told, without

every_mode = pytest.mark.parametrize("rules", [PAPER, FIXED, FAST], ids=["paper", "fixed", "fast"])


def named_anywhere(running: Simulation) -> set[NodeId | None]:
    """Return all nodes to which some live subscriber stores a reference."""
    return {node for _, node in running.world.snapshot().explicit_edges()}


def test_messages_to_a_crashed_node_invoke_no_action() -> None:
    """Nodes may still send messages to v, but "these messages do not invoke any action on v"."""
    running = simulation(standing_ring("abcd"), scheduler="sync")
    running.run_round()
    running.world.crash("b")
    for parcel in [parcel for parcel in running.world.channels if parcel.to == "b"]:
        sent = running.world.messages
        running.world.deliver(parcel)
        assert running.world.messages == sent


@every_mode
@pytest.mark.parametrize("victim", node_names(6))
def test_supervisor_only_removes_the_crashed_node_from_its_database(
    rules: Rules, victim: NodeId
) -> None:
    """Afterwards the database is correct for all others: the last node gets the free label."""
    nodes = node_names(6)
    host = supervisor(*nodes, rules=rules)
    host.request(NodeSuspected(victim))
    left_over = [nodes[-1] if node == victim else node for node in nodes[:-1]]
    assert host.machine.roster.database() == database_of(left_over)


def test_crash_costs_the_supervisor_one_message_in_the_paper() -> None:
    """To the last node, which has moved; the crashed node gets none."""
    host = supervisor(*node_names(8), rules=PAPER)
    assert told(host, host.request(NodeSuspected("n0002"))) == ["n0007"]


def test_crash_informs_all_nodes_beside_the_two_places_with_all_rules() -> None:
    """S11: at most five; otherwise they would wait for the round robin."""
    host = supervisor(*node_names(8), rules=without(Rule.QUEUE))
    nodes = told(host, host.request(NodeSuspected("n0002")))
    assert sorted(nodes) == ["n0000", "n0003", "n0004", "n0005", "n0007"]


@every_mode
def test_subscribers_need_no_failure_detector(rules: Rules) -> None:
    """The text: "it suffices to establish only one single failure detector at the supervisor"."""
    host = subscriber(legitimate_state(2, "abm"), rules=rules)
    before = host.machine.state()
    assert host.handle(NodeSuspected("a")) == []
    assert host.machine.state() == before


@pytest.mark.parametrize("mode", ["fixed", "fast"])
@pytest.mark.parametrize("victim", node_names(8))
def test_ring_without_the_crashed_node_becomes_legitimate(mode: str, victim: NodeId) -> None:
    """The challenge of the section: a correct skip ring that does not contain v."""
    running = simulation(standing_ring(8), mode=mode, max_rounds=60)
    running.world.crash(victim)
    report = running.run()
    assert report.is_good, report.violations
    assert len(running.world.roster) == 7
    assert victim not in named_anywhere(running)


@pytest.mark.parametrize("victim", node_names(4))
def test_merged_configurations_never_drop_dead_neighbours(victim: NodeId) -> None:
    """In the paper a configuration is merged with the existing neighbours (Ring Closure).

    A dead neighbour that is as near as its replacement stays, because no node corrects it. So the
    correct database alone is not enough; this implementation overwrites (B13).
    """
    running = simulation(standing_ring(4), mode="paper", max_rounds=100)
    running.world.crash(victim)
    assert not running.run().converged
    assert len(running.world.roster) == 3
    assert victim in named_anywhere(running)


@pytest.mark.parametrize("delay", [0, 1, 10, 40])
def test_late_detector_only_delays_the_repair(delay: int) -> None:
    running = simulation(standing_ring(16), detector_delay=delay, max_rounds=delay + 15)
    for victim in ("n0000", "n0005", "n0011"):
        running.world.crash(victim)
    report = running.run()
    assert report.is_good, report.violations
    assert report.rounds_explicit >= delay


@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_ring_heals_after_a_crash_of_nearly_all_members(survivors: int) -> None:
    running = simulation(standing_ring(8), max_rounds=30)
    for victim in node_names(8)[survivors:]:
        running.world.crash(victim)
    report = running.run()
    assert report.is_good, report.violations
    assert list(running.world.roster.nodes) == node_names(survivors)


@every_mode
def test_requests_about_dead_nodes_do_not_record_them_again(rules: Rules) -> None:
    """S10: neighbours still ask about v, and old messages of v may still arrive."""
    host = supervisor("a", "b", "c", rules=rules)
    host.request(NodeSuspected("c"))
    for request in (GetConfiguration("c"), Subscribe("c")):
        said = host.receive(request, "a") + host.tick()
        assert "c" not in host.machine.roster
        assert "c" not in [to for to, _ in said]


@every_mode
def test_wrongly_suspected_member_rejoins_by_itself(rules: Rules) -> None:
    """The detector is only eventually correct (section 1.1); dead nodes send nothing."""
    host = supervisor("a", "b", "c", rules=rules)
    host.request(NodeSuspected("c"))
    host.receive(Subscribe("c"), "c")
    assert "c" in host.machine.roster


@pytest.mark.parametrize("seed", range(5))
def test_single_detector_misses_an_unrecorded_node_with_a_dead_neighbour(seed: int) -> None:
    """A labelled, unrecorded node has a dead left neighbour, and no other node knows it.

    The supervisor has nothing to remove, and the node asks with a negligible probability. Without
    R9 it stays outside permanently; with R9 it detects the silence.
    """
    start = ADVERSARIES["A18"].build(5, Random(f"3.3/{seed}"))
    alone = simulation(start, seed=seed, without=["R9"], max_rounds=300).run()
    assert not alone.converged
    report = simulation(start, seed=seed, max_rounds=40).run()
    assert report.is_good, report.violations


def test_dead_neighbour_is_detected_by_its_silence_without_a_detector() -> None:
    """R9 asks the supervisor, which does not know of the crash; the request does no harm."""
    start = standing_ring(6)
    states = {node: state for node, state in start.subscribers.items() if node != "n0003"}
    running = simulation(replace(start, subscribers=states, crashed=("n0003",)), detector_delay=999)
    for _ in range(100):
        running.run_round()
    assert "n0003" in running.world.roster
    assert not is_legitimate(running.world)
    running.world.suspect("n0003")
    report = running.run()
    assert report.is_good
    assert report.rounds_explicit <= 10


def test_dead_neighbours_are_checked_like_live_ones() -> None:
    """A node with a dead neighbour keeps introducing itself to it and gets no answer."""
    host = subscriber(legitimate_state(2, "abm"))
    for _ in range(3):
        checked = [to for to, message in host.tick() if isinstance(message, CheckLabel)]
        assert checked == ["a", "b"]
