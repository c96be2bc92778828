"""Supervisor machine, event by event (Algorithm 3, and crashes: section 3.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig, Rule, Rules
from skipring.core.events import (
    Event,
    Flush,
    NodeSuspected,
    Received,
    SubscribeRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.labels import Label
from skipring.core.messages import (
    UNRECORDED,
    CheckLabel,
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
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId
from skipring.core.state import SupervisorState
from skipring.core.supervisor import Supervisor
from skipring.core.topology import levels
from tests.support.machines import (
    deliver,
    give,
    loaded_supervisor,
    peer,
    receivers,
    rule_sets,
    sent,
    supervisor,
    tick,
    told,
    unhurried,
    without,
)
from tests.support.strategies import messages, supervisor_states

AT_ONCE = without(Rule.QUEUE)
FLUSH = Flush()
REQUESTS: tuple[Callable[[NodeId | None], Message], ...] = (
    Subscribe,
    Unsubscribe,
    GetConfiguration,
)


def members(count: int) -> list[NodeId]:
    return [f"n{number:05d}" for number in range(count)]


def configuration(machine: Supervisor, node: NodeId) -> tuple[NodeId, Message]:
    return node, machine.roster.configuration_of(node)


# -- requests ----------------------------------------------------------------------------------


def test_S1_request_about_an_unknown_node_is_answered_with_unrecorded() -> None:
    machine = supervisor("a", "b", rules=AT_ONCE)
    assert deliver(machine, GetConfiguration("x")) == [("x", UNRECORDED)]
    assert "x" not in machine.roster


def test_S1_request_about_a_member_is_answered_with_its_configuration() -> None:
    machine = supervisor("a", "b", rules=AT_ONCE)
    a = peer("0", "a")
    assert deliver(machine, GetConfiguration("b")) == [("b", SetConfiguration(a, Label.nth(1), a))]


def test_newcomer_is_recorded_under_the_next_label_and_gets_its_configuration() -> None:
    machine = supervisor("a", "b", rules=AT_ONCE)
    assert told(machine, deliver(machine, Subscribe("x")))[-1] == "x"
    assert list(machine.roster.nodes) == ["a", "b", "x"]


def test_repeated_subscribe_is_answered_with_the_configuration_and_changes_nothing() -> None:
    machine = supervisor("a", "b", "c", rules=AT_ONCE)
    assert deliver(machine, Subscribe("b")) == [configuration(machine, "b")]
    assert list(machine.roster.nodes) == ["a", "b", "c"]


def test_leaver_gets_the_permission_recorded_or_not() -> None:
    machine = supervisor("a", "b", "c", rules=AT_ONCE)
    assert ("b", UNRECORDED) in deliver(machine, Unsubscribe("b"))
    assert "b" not in machine.roster
    assert deliver(machine, Unsubscribe("x")) == [("x", UNRECORDED)]


# -- S3: repair before everything --------------------------------------------------------------

CORRUPTED = SupervisorState(database=(("1", "a"), ("1", None), ("00", "b"), ("01", "a")))
FIVE_EVENTS: tuple[Event, ...] = (
    Tick(),
    Received(GetConfiguration("x")),
    Received(RemoveConnections("x")),
    NodeSuspected("x"),
    SubscribeRequested(),
)


@pytest.mark.parametrize("event", FIVE_EVENTS, ids=lambda event: type(event).__name__)
def test_S3_database_is_repaired_before_any_event_is_handled(event: Event) -> None:
    machine = loaded_supervisor(CORRUPTED)
    machine.handle(event)
    assert not machine.roster.is_loaded
    assert list(machine.roster.nodes) == ["b", "a"]


def test_S3_request_is_answered_from_the_repaired_database() -> None:
    machine = loaded_supervisor(CORRUPTED, rules=AT_ONCE)
    b = peer("0", "b")
    assert ("a", SetConfiguration(b, Label.nth(1), b)) in deliver(machine, GetConfiguration("a"))


def test_S3_members_affected_by_the_repair_get_their_configurations() -> None:
    machine = loaded_supervisor(CORRUPTED)
    assert sorted(told(machine, tick(machine))) == ["a", "b"]


# -- S6: round robin ---------------------------------------------------------------------------


def test_S6_timeout_with_an_empty_roster_sends_nothing() -> None:
    for rules in (without(), AT_ONCE):
        machine = supervisor(rules=rules)
        assert tick(machine) == []
        assert tick(machine) == []


@pytest.mark.parametrize("cursor", [0, 2, 10**18 + 7, -1, -(10**9)])
def test_S6_round_robin_reaches_all_members_from_any_cursor(cursor: int) -> None:
    machine = supervisor("a", "b", "c", cursor=cursor)
    found = [node for _ in range(3) for node in told(machine, tick(machine))]
    assert sorted(found) == ["a", "b", "c"]


def test_S9_inconsistent_list_is_repaired_and_all_members_get_their_configurations() -> None:
    machine = supervisor("a", "b", "c", "d")
    tick(machine)
    machine.roster._nodes[3] = "a"
    found = [node for _ in range(4) for node in told(machine, tick(machine))]
    assert list(machine.roster.nodes) == ["a", "b", "c"]
    assert set(found) == {"a", "b", "c"}


# -- S10: ignored requests -----------------------------------------------------------------------


@pytest.mark.parametrize("request_type", REQUESTS)
@pytest.mark.parametrize("node", [None, SUPERVISOR, "suspect"])
def test_S10_requests_that_name_no_node_the_supervisor_or_a_suspect_are_ignored(
    request_type: Callable[[NodeId | None], Message], node: NodeId | None
) -> None:
    machine = supervisor("a", rules=AT_ONCE)
    give(machine, NodeSuspected("suspect"))
    before = machine.state()
    assert deliver(machine, request_type(node)) == []
    assert machine.state() == before


def test_S10_suspect_is_evicted_and_its_place_is_filled() -> None:
    machine = supervisor("a", "b", "c")
    give(machine, NodeSuspected("a"))
    assert list(machine.roster.nodes) == ["c", "b"]
    assert machine.suspects("a")


def test_S10_message_from_the_suspect_itself_clears_the_suspicion() -> None:
    machine = supervisor("a", "b", rules=AT_ONCE)
    give(machine, NodeSuspected("b"))
    assert deliver(machine, Subscribe("b"), sender="a") == []
    assert machine.suspects("b")
    deliver(machine, Subscribe("b"), sender="b")
    assert not machine.suspects("b")
    assert "b" in machine.roster


def test_S10_suspicion_expires_after_64_timeouts() -> None:
    machine = supervisor("a")
    give(machine, NodeSuspected("x"))
    for _ in range(63):
        tick(machine)
    assert machine.suspects("x")
    tick(machine)
    assert not machine.suspects("x")


def test_S10_suspect_with_a_pending_request_gets_no_answer() -> None:
    machine = supervisor("a", "b")
    deliver(machine, GetConfiguration("x"))
    give(machine, NodeSuspected("x"))
    assert "x" not in told(machine, tick(machine))
    assert "x" not in machine.state().queue


A = peer("0", "a")
ASTRAY = (
    CheckLabel(A, None, EdgeKind.LINE),
    Introduce(A, EdgeKind.WRAP, first_hand=False),
    IntroduceShortcut(A),
    Digest("a", 1),
)


@pytest.mark.parametrize("message", ASTRAY, ids=lambda message: type(message).__name__)
def test_S10_ring_message_is_answered_with_RemoveConnections(message: Message) -> None:
    machine = supervisor("a", "b")
    assert deliver(machine, message) == [("a", RemoveConnections(SUPERVISOR))]
    assert deliver(machine, message, sender="b") == [("b", RemoveConnections(SUPERVISOR))]


@pytest.mark.parametrize("message", [RemoveConnections("a"), UNRECORDED])
def test_S10_message_without_a_sender_is_dropped(message: Message) -> None:
    machine = supervisor("a", "b")
    assert deliver(machine, message) == []
    assert deliver(machine, message, sender=SUPERVISOR) == []
    assert deliver(machine, message, sender="b") == [("b", RemoveConnections(SUPERVISOR))]


# -- S11: configurations of affected members -----------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 13, 33])
def test_S11_newcomer_and_its_neighbours_get_their_configurations(n: int) -> None:
    machine = supervisor(*members(n), rules=AT_ONCE)
    tick(machine)
    before = {node: machine.roster.configuration_of(node) for node in machine.roster.nodes}
    found = told(machine, deliver(machine, Subscribe("x")))
    assert len(found) == len(set(found)) <= 3
    assert sorted(found) == sorted(
        node
        for node in machine.roster.nodes
        if machine.roster.configuration_of(node) != before.get(node)
    )


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13, 33])
@pytest.mark.parametrize("evicted", [False, True])
def test_S11_members_affected_by_a_departure_or_an_eviction_get_their_configurations(
    n: int, evicted: bool
) -> None:
    for node in members(n):
        machine = supervisor(*members(n), rules=AT_ONCE)
        tick(machine)
        before = {other: machine.roster.configuration_of(other) for other in members(n)}
        event = NodeSuspected(node) if evicted else Received(Unsubscribe(node))
        found = told(machine, give(machine, event))
        changed = [
            other
            for other in members(n)
            if machine.roster.configuration_of(other) != before[other] and other != node
        ]
        assert sorted(found) == sorted(changed + [node] * (not evicted))
        assert len(changed) <= 6


def test_S11_only_the_newcomer_or_the_moved_member_is_informed_without_the_rule() -> None:
    machine = supervisor("a", "b", "c", "d", rules=without(Rule.PUSH, Rule.QUEUE))
    assert told(machine, deliver(machine, Subscribe("x"))) == ["x"]
    assert told(machine, deliver(machine, Unsubscribe("a"))) == ["x", "a"]
    assert told(machine, give(machine, NodeSuspected("b"))) == ["d"]


# -- R14: the digest ---------------------------------------------------------------------------


def calm_supervisor(n: int, *, rules: Rules = AT_ONCE) -> Supervisor:
    """Return a supervisor whose roster has been stable long enough to compare digests."""
    machine = supervisor(*members(n), rules=rules)
    for _ in range(2 * levels(n) + 4):
        tick(machine)
    return machine


def report(machine: Supervisor, difference: int = 1, node: NodeId = "n00000") -> None:
    deliver(machine, GetConfiguration(node, machine.roster.digest + difference))


def load(machine: Supervisor, ticks: int) -> list[int]:
    """Return the number of configurations sent in each of some timeouts."""
    return [len(receivers(tick(machine), SetConfiguration)) for _ in range(ticks)]


def test_R14_two_mismatches_increase_the_configurations_for_16_timeouts() -> None:
    machine = calm_supervisor(64)
    report(machine)
    assert load(machine, 2) == [1, 1]
    report(machine)
    assert load(machine, 18) == [64 // 16 + 1] * 16 + [1, 1]


def test_R14_all_members_get_their_configurations_within_these_timeouts() -> None:
    machine = calm_supervisor(100)
    report(machine)
    report(machine)
    found = [node for _ in range(16) for node in told(machine, tick(machine))]
    assert set(found) == set(members(100))


def test_R14_equal_digest_in_between_restarts_the_count() -> None:
    machine = calm_supervisor(64)
    report(machine)
    report(machine, difference=0)
    report(machine)
    assert load(machine, 2) == [1, 1]


def test_R14_equal_digest_ends_the_alarm() -> None:
    machine = calm_supervisor(64)
    report(machine)
    report(machine)
    assert load(machine, 2) == [5, 5]
    report(machine, difference=0)
    assert load(machine, 2) == [1, 1]


@pytest.mark.parametrize("n", [16, 64])
def test_R14_no_alarm_is_raised_before_the_sum_is_stable_after_a_change(n: int) -> None:
    machine = calm_supervisor(n)
    deliver(machine, Subscribe("x"))
    for _ in range(2 * levels(n + 1) + 4):
        report(machine)
        report(machine)
        assert load(machine, 1) == [1]
    report(machine)
    report(machine)
    assert load(machine, 1) == [(n + 1) // 16 + 1]


def test_R14_digest_of_a_node_other_than_label_0_is_ignored() -> None:
    machine = calm_supervisor(64)
    for _ in range(5):
        report(machine, node="n00001")
    assert load(machine, 2) == [1, 1]


def test_R14_no_digest_is_compared_without_the_rule() -> None:
    machine = calm_supervisor(64, rules=without(Rule.DIGEST, Rule.QUEUE))
    for _ in range(5):
        report(machine)
    assert load(machine, 2) == [1, 1]


# -- R15: the queue ----------------------------------------------------------------------------


def ask_about(machine: Supervisor, nodes: list[NodeId]) -> None:
    for node in nodes:
        assert deliver(machine, GetConfiguration(node)) == []


def strangers(count: int) -> list[NodeId]:
    return [f"x{number:05d}" for number in range(count)]


def test_R15_requests_are_answered_in_the_next_timeout_in_order_of_arrival() -> None:
    machine = supervisor(*"abcdef", cursor=2)
    ask_about(machine, ["e", "x", "b"])
    assert told(machine, tick(machine)) == ["e", "x", "b", "d"]  # d is next in round robin


def test_R15_subject_of_several_requests_is_answered_once() -> None:
    machine = supervisor(*"abc", cursor=1)
    ask_about(machine, ["c", "c", "x", "c", "x"])
    deliver(machine, Subscribe("c"))
    assert told(machine, tick(machine)) == ["c", "x"]
    assert machine.state().queue == ()


def test_R15_answer_states_the_configuration_at_the_time_of_the_answer() -> None:
    machine = supervisor("a")
    ask_about(machine, ["x", "a"])
    deliver(machine, Subscribe("x"))
    assert told(machine, tick(machine)) == ["x", "a"]  # told() compares with the roster now


@pytest.mark.parametrize(
    ("n", "waiting", "budget"),
    [(200, 200, 64), (512, 512, 64), (520, 520, 65), (1024, 1024, 128)],
)
def test_R15_budget_of_members_is_64_or_an_eighth_of_all_known_nodes(
    n: int, waiting: int, budget: int
) -> None:
    machine = supervisor(*members(n), cursor=n - 1)
    ask_about(machine, members(waiting))
    assert told(machine, tick(machine)) == members(n)[:budget]
    assert told(machine, tick(machine)) == members(n)[budget : 2 * budget]


@pytest.mark.parametrize(("count", "budget"), [(200, 64), (1024, 128)])
def test_R15_strangers_have_their_own_budget(count: int, budget: int) -> None:
    machine = supervisor()
    ask_about(machine, strangers(count))
    assert told(machine, tick(machine)) == strangers(count)[:budget]


def test_R15_members_and_strangers_do_not_wait_for_each_other() -> None:
    n = 300
    machine = supervisor(*members(n), cursor=n - 1)
    ask_about(machine, [*strangers(n), *members(n)])
    budget = 2 * n // 8  # an eighth of the members and of the waiting strangers
    assert told(machine, tick(machine)) == [*strangers(n)[:budget], *members(n)[:budget]]


def test_R15_recently_informed_members_are_answered_last_under_load() -> None:
    n = 200
    machine = supervisor(*members(n), cursor=n - 1)
    ask_about(machine, members(3))
    assert told(machine, tick(machine)) == members(3)
    ask_about(machine, members(n))  # the fourth is next in round robin, then the others
    assert told(machine, tick(machine)) == members(n)[3:67]


def test_R15_recently_informed_members_are_answered_last_for_eight_timeouts() -> None:
    n = 200
    for ticks, first in ((7, False), (8, True)):
        machine = supervisor(*members(n), cursor=100)
        ask_about(machine, members(1))
        for _ in range(ticks):
            tick(machine)
        ask_about(machine, members(n))
        assert (members(1)[0] in told(machine, tick(machine))) is first


def test_R15_flush_answers_before_the_next_timeout() -> None:
    machine = supervisor(*"abc", cursor=2)
    assert not machine.has_to_flush
    ask_about(machine, ["b", "x"])
    assert machine.has_to_flush
    assert told(machine, give(machine, FLUSH)) == ["b", "x"]
    assert not machine.has_to_flush
    assert told(machine, tick(machine)) == ["a"]  # the next in round robin


def test_R15_flush_uses_the_rest_of_the_budget_of_the_interval() -> None:
    machine = supervisor(*members(200), cursor=0)
    ask_about(machine, members(60))
    assert told(machine, give(machine, FLUSH)) == members(60)
    ask_about(machine, members(200)[100:120])
    assert told(machine, give(machine, FLUSH)) == members(200)[100:104]  # the budget is 64
    assert not machine.has_to_flush
    assert give(machine, FLUSH) == []
    assert told(machine, tick(machine))[:16] == members(200)[104:120]


def test_R15_answers_wait_for_the_timeout_under_load() -> None:
    machine = supervisor(*members(1024), cursor=0)
    ask_about(machine, members(600))
    assert len(tick(machine)) == 128
    assert not machine.has_to_flush


def test_R15_no_request_is_ever_dropped() -> None:
    machine = supervisor(*members(300), cursor=299)
    subjects = [*strangers(500), *members(300)]
    ask_about(machine, subjects)
    found = [node for _ in range(12) for node in told(machine, tick(machine))]
    assert set(found) == set(subjects)
    assert {node for node in found if found.count(node) > 1} <= set(members(12))  # round robin


def test_R15_endless_names_do_not_fill_the_memory() -> None:
    machine = Supervisor(config=ProtocolConfig(waiting_max=100))
    ask_about(machine, strangers(500))
    assert machine.state().queue == tuple(strangers(500)[:100])


def test_R15_every_request_is_answered_at_once_without_the_rule() -> None:
    machine = supervisor(*"abc", rules=AT_ONCE)
    for _ in range(3):
        assert deliver(machine, GetConfiguration("c")) == [configuration(machine, "c")]


# -- the rest ----------------------------------------------------------------------------------


def test_supervisor_is_no_member_of_any_topic() -> None:
    machine = supervisor("a")
    tick(machine)
    before = machine.state()
    assert give(machine, SubscribeRequested()) == []
    assert give(machine, UnsubscribeRequested()) == []
    assert machine.state() == before


def test_supervisor_without_members_and_requests_is_idle() -> None:
    machine = supervisor()
    tick(machine)
    assert machine.is_idle
    deliver(machine, GetConfiguration("x"))
    assert not machine.is_idle
    tick(machine)
    assert machine.is_idle
    give(machine, NodeSuspected("x"))
    assert not machine.is_idle


# -- any state, any message ----------------------------------------------------------------------

NODES = ("a", "b", "c", "d", "e", SUPERVISOR)
EVENTS = st.one_of(
    st.just(Tick()),
    st.builds(Received, messages(NODES), st.none() | st.sampled_from(NODES)),
    st.builds(NodeSuspected, st.sampled_from(NODES)),
    st.sampled_from([SubscribeRequested(), UnsubscribeRequested()]),
)
CONCERNED_MAX = 7  # by a departure: the leaver and six others


def test_S10_corrupted_queue_does_not_make_the_supervisor_send_to_itself() -> None:
    machine = loaded_supervisor(SupervisorState(queue=("a", SUPERVISOR)))
    assert told(machine, tick(machine)) == ["a"]


@given(supervisor_states(NODES), st.lists(EVENTS, max_size=8), rule_sets())
@settings(unhurried, max_examples=300)
def test_no_state_and_no_message_can_break_a_supervisor(
    state: SupervisorState, events: list[Event], rules: Rules
) -> None:
    queue = tuple(node for node in state.queue if node != SUPERVISOR)
    machine = loaded_supervisor(replace(state, queue=queue), rules=rules)
    repairs = give(machine, SubscribeRequested())  # S3: repair precedes the event
    assert len(repairs) <= len(machine.roster)
    for event in events:
        found = sent(machine.handle(event))
        addressed = [to for to, _ in found]
        assert None not in addressed
        assert SUPERVISOR not in addressed
        if not isinstance(event, Tick):
            assert len(found) <= CONCERNED_MAX
        assert SUPERVISOR not in machine.roster
        assert len(set(machine.roster.nodes)) == len(machine.roster)


@given(supervisor_states(NODES), rule_sets())
@unhurried
def test_every_recorded_node_gets_its_configuration_within_n_timeouts(
    state: SupervisorState, rules: Rules
) -> None:
    machine = loaded_supervisor(state, rules=rules)
    found = [node for _ in range(len(NODES)) for node in receivers(tick(machine), SetConfiguration)]
    assert set(machine.roster.nodes) <= set(found)
