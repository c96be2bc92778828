"""Section 4.1: the cost of subscribe and unsubscribe, single and in bulk."""

from collections.abc import Callable
from statistics import median

import pytest

from skipring.core.config import Rule
from skipring.core.events import NodeSuspected
from skipring.core.messages import Introduce, RemoveConnections, Subscribe, Unsubscribe
from skipring.core.peers import NodeId
from skipring.core.supervisor import Supervisor
from skipring.core.topology import neighbours_of
from skipring.sim.runner import Simulation
from skipring.world.adversaries.builders import database_of, node_names
from skipring.world.legitimacy import is_strictly_legitimate
from tests.support.conversations import simulation, standing_ring
from tests.support.fake_host import FakeHost
from tests.support.machines import FIXED, PAPER, supervisor, told, without

AT_ONCE = without(Rule.QUEUE)  # all rules, but the supervisor answers without waiting for a Timeout

# -- the theorem: constant message overhead --------------------------------------------------

SIZES = (4, 16, 64, 256, 1024)


def leavers(n: int) -> list[NodeId]:
    """Return nodes at both ends, beside the last and in between."""
    indices = {0, 1, 2, 3, n // 2 - 1, n // 2, n - 2, n - 1, *neighbours_of(n - 1, n)}
    return [node_names(n)[index] for index in sorted(indices)]


def unsubscribe(host: FakeHost[Supervisor], node: NodeId) -> list[NodeId]:
    return told(host, host.receive(Unsubscribe(node)))


def suspect(host: FakeHost[Supervisor], node: NodeId) -> list[NodeId]:
    return told(host, host.request(NodeSuspected(node)))


@pytest.mark.parametrize("n", SIZES)
def test_subscribe_costs_the_supervisor_one_message_in_the_paper_and_three_with_push(
    n: int,
) -> None:
    """The theorem: constant. With S11 at most two more messages than the one to the newcomer."""
    for rules, cost in ((PAPER, 1), (FIXED, 1), (AT_ONCE, 3)):
        host = supervisor(*node_names(n), rules=rules)
        assert len(told(host, host.receive(Subscribe("v")))) == cost


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("go", "in_paper", "with_push"), [(unsubscribe, 2, 6), (suspect, 1, 5)], ids=["leave", "crash"]
)
def test_departure_costs_the_supervisor_the_same_for_every_n(
    n: int, go: Callable[[Supervisor, NodeId], list[NodeId]], in_paper: int, with_push: int
) -> None:
    """The theorem: constant; the maximum over all tried leavers is the same from 16 on."""
    for rules, cost in ((PAPER, in_paper), (FIXED, in_paper), (AT_ONCE, with_push)):
        told_by = [len(go(supervisor(*node_names(n), rules=rules), node)) for node in leavers(n)]
        assert max(told_by) <= cost
        assert max(told_by) == cost or n < 16


@pytest.mark.parametrize("n", [4, 16, 64, 256, 1024])
def test_one_timeout_sends_all_configurations_with_all_rules(n: int) -> None:
    """R15 defers them until the Timeout, together with the one of the round robin."""
    host = supervisor(*node_names(n))
    host.receive(Subscribe("v"))
    assert len(told(host, host.tick())) <= 4
    host.receive(Unsubscribe("n0002"))
    assert len(told(host, host.tick())) <= 7
    assert len(told(host, host.tick())) == 1


def messages_until_calm(n: int, mode: str, act: Callable[[Simulation], None]) -> int:
    """Return the number of extra messages until the ring is legitimate again."""
    running = simulation(standing_ring(n), mode=mode)
    for _ in range(2):
        running.run_round()
    running.world.sent.clear()
    act(running)
    while True:
        running.run_round()
        if is_strictly_legitimate(running.world):
            return sum(running.world.sent[kind] for kind in (Introduce, RemoveConnections))


def typical_cost(n: int, mode: str) -> float:
    nodes = node_names(n)
    chosen = [nodes[index] for index in range(0, n, max(1, n // 12))]
    return median(
        messages_until_calm(n, mode, lambda running, node=node: running.world.unsubscribe(node))
        for node in chosen
    )


def test_overhead_of_subscribers_for_a_leave_is_constant_with_all_rules() -> None:
    """The theorem includes the subscribers: "constant for subscribe/unsubscribe"."""
    assert all(typical_cost(n, "fast") <= 12 for n in (4, 16, 64, 256))


@pytest.mark.parametrize("mode", ["paper", "fixed"])
def test_overhead_of_subscribers_for_a_leave_grows_if_references_are_forwarded(mode: str) -> None:
    """The references of the relabelled last node are delegated hop by hop: not constant (R10)."""
    assert typical_cost(64, mode) > 4 * typical_cost(4, mode)
    assert typical_cost(64, mode) > 60


# -- bulk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fixed", "fast"])
def test_forty_joins_and_twenty_leaves_in_one_round_are_handled_in_parallel(mode: str) -> None:
    """Section 1.3: "multiple insertions/deletions in parallel without [...] confirmations"."""
    running = simulation(standing_ring(30), mode=mode, max_rounds=400)
    for number in range(40):
        running.world.subscribe(f"new{number:02}")
    for node in node_names(30)[::3] + node_names(30)[1::3]:
        running.world.unsubscribe(node)
    report = running.run()
    assert report.is_good, report.violations
    assert len(running.world.roster) == 50
    assert report.rounds_explicit <= (20 if mode == "fast" else 400)


def test_burst_of_joins_is_recorded_in_the_order_of_the_requests() -> None:
    """Each newcomer gets l(n) for the current n; the database is correct after every join."""
    host = supervisor()
    for number, node in enumerate(node_names(100), 1):
        host.receive(Subscribe(node))
        assert host.machine.roster.database() == database_of(node_names(number))


@pytest.mark.parametrize("mode", ["fixed", "fast"])
def test_all_members_can_leave_at_once(mode: str) -> None:
    running = simulation(standing_ring(12), mode=mode, max_rounds=100)
    for node in node_names(12):
        running.world.unsubscribe(node)
    report = running.run()
    assert report.is_good, report.violations
    assert running.world.roster.database() == ()
    assert list(running.world.snapshot().explicit_edges()) == []


@pytest.mark.parametrize("mode", ["fixed", "fast"])
def test_leaver_that_subscribes_again_stays(mode: str) -> None:
    running = simulation(standing_ring(8), mode=mode, max_rounds=100)
    running.world.unsubscribe("n0003")
    running.run_round()
    running.world.subscribe("n0003")
    report = running.run()
    assert report.is_good, report.violations
    assert "n0003" in running.world.roster
