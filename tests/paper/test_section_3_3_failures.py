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
from tests.support.machines import (
    FAST,
    FIXED,
    PAPER,
    deliver,
    give,
    subscriber,
    supervisor,
    tick,
    told,
    without,
)

every_mode = pytest.mark.parametrize("rules", [PAPER, FIXED, FAST], ids=["paper", "fixed", "fast"])


def named_anywhere(running: Simulation) -> set[NodeId | None]:
    """Everybody of whom some live subscriber stores a reference."""
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
def test_the_supervisor_just_has_to_remove_it_from_its_database(
    rules: Rules, victim: NodeId
) -> None:
    """Afterwards the database is the right one for all others: the last takes the free label."""
    nodes = node_names(6)
    machine = supervisor(*nodes, rules=rules)
    give(machine, NodeSuspected(victim))
    left_over = [nodes[-1] if node == victim else node for node in nodes[:-1]]
    assert machine.roster.database() == database_of(left_over)


def test_a_crash_costs_the_supervisor_one_message_in_the_paper() -> None:
    """To the last node, which has moved; the crashed one gets none."""
    machine = supervisor(*node_names(8), rules=PAPER)
    assert told(machine, give(machine, NodeSuspected("n0002"))) == ["n0007"]


def test_with_all_rules_everybody_beside_the_two_places_is_told() -> None:
    """S11: at most five; they would otherwise wait for the round robin."""
    machine = supervisor(*node_names(8), rules=without(Rule.QUEUE))
    nodes = told(machine, give(machine, NodeSuspected("n0002")))
    assert sorted(nodes) == ["n0000", "n0003", "n0004", "n0005", "n0007"]


@every_mode
def test_subscribers_need_no_failure_detector(rules: Rules) -> None:
    """The text: "it suffices to establish only one single failure detector at the supervisor"."""
    machine = subscriber(legitimate_state(2, "abm"), rules=rules)
    before = machine.state()
    assert machine.handle(NodeSuspected("a")) == []
    assert machine.state() == before


@pytest.mark.parametrize("mode", ["fixed", "fast"])
@pytest.mark.parametrize("victim", node_names(8))
def test_the_ring_without_the_crashed_node_becomes_legitimate(mode: str, victim: NodeId) -> None:
    """The challenge of the section: a correct skip ring that does not contain v."""
    running = simulation(standing_ring(8), mode=mode, max_rounds=60)
    running.world.crash(victim)
    report = running.run()
    assert report.is_good, report.violations
    assert len(running.world.roster) == 7
    assert victim not in named_anywhere(running)


@pytest.mark.parametrize("victim", node_names(4))
def test_configurations_that_are_merged_never_let_go_of_the_dead(victim: NodeId) -> None:
    """In the paper's words a configuration joins the neighbours that are there (Ring Closure).

    A dead neighbour that is as near as its successor in office stays: nobody corrects it. So the
    right database alone is not enough, and ours overwrites (B13).
    """
    running = simulation(standing_ring(4), mode="paper", max_rounds=100)
    running.world.crash(victim)
    assert not running.run().converged
    assert len(running.world.roster) == 3
    assert victim in named_anywhere(running)


@pytest.mark.parametrize("delay", [0, 1, 10, 40])
def test_a_late_detector_only_delays_the_repair(delay: int) -> None:
    running = simulation(standing_ring(16), detector_delay=delay, max_rounds=delay + 15)
    for victim in ("n0000", "n0005", "n0011"):
        running.world.crash(victim)
    report = running.run()
    assert report.is_good, report.violations
    assert report.rounds_explicit >= delay


@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_nearly_all_may_crash_at_once(survivors: int) -> None:
    running = simulation(standing_ring(8), max_rounds=30)
    for victim in node_names(8)[survivors:]:
        running.world.crash(victim)
    report = running.run()
    assert report.is_good, report.violations
    assert list(running.world.roster.nodes) == node_names(survivors)


@every_mode
def test_requests_about_the_dead_do_not_bring_them_back(rules: Rules) -> None:
    """S10: neighbours still ask about v, and old messages of v may still arrive."""
    machine = supervisor("a", "b", "c", rules=rules)
    give(machine, NodeSuspected("c"))
    for request in (GetConfiguration("c"), Subscribe("c")):
        said = deliver(machine, request, "a") + tick(machine)
        assert "c" not in machine.roster
        assert "c" not in [to for to, _ in said]


@every_mode
def test_one_that_was_wrongly_suspected_comes_back_by_itself(rules: Rules) -> None:
    """The detector is only eventually correct (section 1.1); the dead do not speak."""
    machine = supervisor("a", "b", "c", rules=rules)
    give(machine, NodeSuspected("c"))
    deliver(machine, Subscribe("c"), "c")
    assert "c" in machine.roster


@pytest.mark.parametrize("seed", range(5))
def test_one_detector_alone_does_not_reach_everybody(seed: int) -> None:
    """A labelled, unrecorded node with a dead left neighbour is nobody's to remove or to call.

    The supervisor has nothing to remove, the node itself asks with a negligible probability, and
    nobody else knows it: without R9 it stays outside for ever, with R9 it notices the silence.
    """
    start = ADVERSARIES["A18"].build(5, Random(f"3.3/{seed}"))
    alone = simulation(start, seed=seed, without=["R9"], max_rounds=300).run()
    assert not alone.converged
    report = simulation(start, seed=seed, max_rounds=40).run()
    assert report.is_good, report.violations


def test_a_dead_neighbour_is_noticed_by_its_silence_even_without_a_detector() -> None:
    """R9 asks the supervisor, who knows no better; nothing is broken by asking."""
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


def test_the_dead_are_checked_upon_like_the_living() -> None:
    """Whoever has a dead neighbour goes on introducing itself to it, and hears nothing."""
    machine = subscriber(legitimate_state(2, "abm"))
    for _ in range(3):
        checked = [to for to, message in tick(machine) if isinstance(message, CheckLabel)]
        assert checked == ["a", "b"]
