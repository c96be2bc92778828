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
from tests.support.fake_host import FakeHost, receivers, sent
from tests.support.machines import (
    loaded_supervisor,
    peer,
    rule_sets,
    supervisor,
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


def configuration(host: FakeHost[Supervisor], node: NodeId) -> tuple[NodeId, Message]:
    return node, host.machine.roster.configuration_of(node)


# -- requests ----------------------------------------------------------------------------------


def test_S1_request_about_an_unknown_node_is_answered_with_unrecorded() -> None:
    host = supervisor("a", "b", rules=AT_ONCE)
    assert host.receive(GetConfiguration("x")) == [("x", UNRECORDED)]
    assert "x" not in host.machine.roster


def test_S1_request_about_a_member_is_answered_with_its_configuration() -> None:
    host = supervisor("a", "b", rules=AT_ONCE)
    a = peer("0", "a")
    assert host.receive(GetConfiguration("b")) == [("b", SetConfiguration(a, Label.nth(1), a))]


def test_newcomer_is_recorded_under_the_next_label_and_gets_its_configuration() -> None:
    host = supervisor("a", "b", rules=AT_ONCE)
    assert told(host, host.receive(Subscribe("x")))[-1] == "x"
    assert list(host.machine.roster.nodes) == ["a", "b", "x"]


def test_repeated_subscribe_is_answered_with_the_configuration_and_changes_nothing() -> None:
    host = supervisor("a", "b", "c", rules=AT_ONCE)
    assert host.receive(Subscribe("b")) == [configuration(host, "b")]
    assert list(host.machine.roster.nodes) == ["a", "b", "c"]


def test_leaver_gets_the_permission_whether_recorded_or_not() -> None:
    host = supervisor("a", "b", "c", rules=AT_ONCE)
    assert ("b", UNRECORDED) in host.receive(Unsubscribe("b"))
    assert "b" not in host.machine.roster
    assert host.receive(Unsubscribe("x")) == [("x", UNRECORDED)]


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
    host = loaded_supervisor(CORRUPTED)
    host.handle(event)
    assert not host.machine.roster.is_loaded
    assert list(host.machine.roster.nodes) == ["b", "a"]


def test_S3_members_affected_by_the_repair_get_their_configurations() -> None:
    host = loaded_supervisor(CORRUPTED)
    assert sorted(told(host, host.tick())) == ["a", "b"]


# -- S6: round robin ---------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [0, 2, 10**18 + 7, -1, -(10**9)])
def test_S6_round_robin_reaches_all_members_from_any_cursor(cursor: int) -> None:
    host = supervisor("a", "b", "c", cursor=cursor)
    found = [node for _ in range(3) for node in told(host, host.tick())]
    assert sorted(found) == ["a", "b", "c"]


def test_S9_inconsistent_list_is_repaired_and_all_members_get_their_configurations() -> None:
    host = supervisor("a", "b", "c", "d")
    host.tick()
    host.machine.roster._nodes[3] = "a"
    found = [node for _ in range(4) for node in told(host, host.tick())]
    assert list(host.machine.roster.nodes) == ["a", "b", "c"]
    assert set(found) == {"a", "b", "c"}


# -- S10: ignored requests -----------------------------------------------------------------------


@pytest.mark.parametrize("request_type", REQUESTS)
@pytest.mark.parametrize("node", [None, SUPERVISOR, "suspect"])
def test_S10_requests_that_name_no_node_the_supervisor_or_a_suspect_are_ignored(
    request_type: Callable[[NodeId | None], Message], node: NodeId | None
) -> None:
    host = supervisor("a", rules=AT_ONCE)
    host.request(NodeSuspected("suspect"))
    before = host.machine.state()
    assert host.receive(request_type(node)) == []
    assert host.machine.state() == before


def test_S10_suspect_is_evicted_and_its_place_is_filled() -> None:
    host = supervisor("a", "b", "c")
    host.request(NodeSuspected("a"))
    assert list(host.machine.roster.nodes) == ["c", "b"]
    assert host.machine.suspects("a")


def test_S10_message_from_the_suspect_itself_clears_the_suspicion() -> None:
    host = supervisor("a", "b", rules=AT_ONCE)
    host.request(NodeSuspected("b"))
    assert host.receive(Subscribe("b"), sender="a") == []
    assert host.machine.suspects("b")
    host.receive(Subscribe("b"), sender="b")
    assert not host.machine.suspects("b")
    assert "b" in host.machine.roster


def test_S10_suspicion_expires_after_64_timeouts() -> None:
    host = supervisor("a")
    host.request(NodeSuspected("x"))
    for _ in range(63):
        host.tick()
    assert host.machine.suspects("x")
    host.tick()
    assert not host.machine.suspects("x")


def test_S10_suspect_with_a_pending_request_gets_no_answer() -> None:
    host = supervisor("a", "b")
    host.receive(GetConfiguration("x"))
    host.request(NodeSuspected("x"))
    assert "x" not in told(host, host.tick())
    assert "x" not in host.machine.state().queue


A = peer("0", "a")
ASTRAY = (
    CheckLabel(A, None, EdgeKind.LINE),
    Introduce(A, EdgeKind.WRAP, first_hand=False),
    IntroduceShortcut(A),
    Digest("a", 1),
)


@pytest.mark.parametrize("message", ASTRAY, ids=lambda message: type(message).__name__)
def test_S10_ring_message_is_answered_with_RemoveConnections(message: Message) -> None:
    host = supervisor("a", "b")
    assert host.receive(message) == [("a", RemoveConnections(SUPERVISOR))]
    assert host.receive(message, sender="b") == [("b", RemoveConnections(SUPERVISOR))]


@pytest.mark.parametrize("message", [RemoveConnections("a"), UNRECORDED])
def test_S10_message_without_a_sender_is_dropped(message: Message) -> None:
    host = supervisor("a", "b")
    assert host.receive(message) == []
    assert host.receive(message, sender=SUPERVISOR) == []
    assert host.receive(message, sender="b") == [("b", RemoveConnections(SUPERVISOR))]


# -- S11: configurations of affected members -----------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 13, 33])
def test_S11_newcomer_and_its_neighbours_get_their_configurations(n: int) -> None:
    host = supervisor(*members(n), rules=AT_ONCE)
    host.tick()
    before = {
        node: host.machine.roster.configuration_of(node) for node in host.machine.roster.nodes
    }
    found = told(host, host.receive(Subscribe("x")))
    assert len(found) == len(set(found)) <= 3
    assert sorted(found) == sorted(
        node
        for node in host.machine.roster.nodes
        if host.machine.roster.configuration_of(node) != before.get(node)
    )


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13, 33])
@pytest.mark.parametrize("evicted", [False, True])
def test_S11_members_affected_by_a_departure_or_an_eviction_get_their_configurations(
    n: int, evicted: bool
) -> None:
    for node in members(n):
        host = supervisor(*members(n), rules=AT_ONCE)
        host.tick()
        before = {other: host.machine.roster.configuration_of(other) for other in members(n)}
        event = NodeSuspected(node) if evicted else Received(Unsubscribe(node))
        found = told(host, host.request(event))
        changed = [
            other
            for other in members(n)
            if host.machine.roster.configuration_of(other) != before[other] and other != node
        ]
        assert sorted(found) == sorted(changed + [node] * (not evicted))
        assert len(changed) <= 6


def test_S11_only_the_newcomer_or_the_moved_member_is_informed_without_the_rule() -> None:
    host = supervisor("a", "b", "c", "d", rules=without(Rule.PUSH, Rule.QUEUE))
    assert told(host, host.receive(Subscribe("x"))) == ["x"]
    assert told(host, host.receive(Unsubscribe("a"))) == ["x", "a"]
    assert told(host, host.request(NodeSuspected("b"))) == ["d"]


# -- R14: the digest ---------------------------------------------------------------------------


def calm_supervisor(n: int, *, rules: Rules = AT_ONCE) -> FakeHost[Supervisor]:
    """Return a supervisor whose roster has been stable long enough to compare digests."""
    host = supervisor(*members(n), rules=rules)
    for _ in range(2 * levels(n) + 4):
        host.tick()
    return host


def report(host: FakeHost[Supervisor], difference: int = 1, node: NodeId = "n00000") -> None:
    host.receive(GetConfiguration(node, host.machine.roster.digest() + difference))


def load(host: FakeHost[Supervisor], ticks: int) -> list[int]:
    """Return the number of configurations sent in each of some timeouts."""
    return [len(receivers(host.tick(), SetConfiguration)) for _ in range(ticks)]


def test_R14_two_mismatches_increase_the_configurations_for_16_timeouts() -> None:
    host = calm_supervisor(64)
    report(host)
    assert load(host, 2) == [1, 1]
    report(host)
    assert load(host, 18) == [64 // 16 + 1] * 16 + [1, 1]


def test_R14_all_members_get_their_configurations_within_these_timeouts() -> None:
    host = calm_supervisor(100)
    report(host)
    report(host)
    found = [node for _ in range(16) for node in told(host, host.tick())]
    assert set(found) == set(members(100))


def test_R14_equal_digest_in_between_restarts_the_count() -> None:
    host = calm_supervisor(64)
    report(host)
    report(host, difference=0)
    report(host)
    assert load(host, 2) == [1, 1]


def test_R14_equal_digest_ends_the_alarm() -> None:
    host = calm_supervisor(64)
    report(host)
    report(host)
    assert load(host, 2) == [5, 5]
    report(host, difference=0)
    assert load(host, 2) == [1, 1]


@pytest.mark.parametrize("n", [16, 64])
def test_R14_no_alarm_is_raised_before_the_sum_is_stable_after_a_change(n: int) -> None:
    host = calm_supervisor(n)
    host.receive(Subscribe("x"))
    for _ in range(2 * levels(n + 1) + 4):
        report(host)
        report(host)
        assert load(host, 1) == [1]
    report(host)
    report(host)
    assert load(host, 1) == [(n + 1) // 16 + 1]


def test_R14_digest_of_a_node_other_than_label_0_is_ignored() -> None:
    host = calm_supervisor(64)
    for _ in range(5):
        report(host, node="n00001")
    assert load(host, 2) == [1, 1]


def test_R14_no_digest_is_compared_without_the_rule() -> None:
    host = calm_supervisor(64, rules=without(Rule.DIGEST, Rule.QUEUE))
    for _ in range(5):
        report(host)
    assert load(host, 2) == [1, 1]


# -- R15: the queue ----------------------------------------------------------------------------


def ask_about(host: FakeHost[Supervisor], nodes: list[NodeId]) -> None:
    for node in nodes:
        assert host.receive(GetConfiguration(node)) == []


def strangers(count: int) -> list[NodeId]:
    return [f"x{number:05d}" for number in range(count)]


def test_R15_requests_are_answered_in_the_next_timeout_in_order_of_arrival() -> None:
    host = supervisor(*"abcdef", cursor=2)
    ask_about(host, ["e", "x", "b"])
    assert told(host, host.tick()) == ["e", "x", "b", "d"]  # d is next in round robin


def test_R15_subject_of_several_requests_is_answered_once() -> None:
    host = supervisor(*"abc", cursor=1)
    ask_about(host, ["c", "c", "x", "c", "x"])
    host.receive(Subscribe("c"))
    assert told(host, host.tick()) == ["c", "x"]
    assert host.machine.state().queue == ()


def test_R15_answer_states_the_configuration_at_the_time_of_the_answer() -> None:
    host = supervisor("a")
    ask_about(host, ["x", "a"])
    host.receive(Subscribe("x"))
    assert told(host, host.tick()) == ["x", "a"]  # told() compares with the roster now


@pytest.mark.parametrize(
    ("n", "waiting", "budget"),
    [(200, 200, 64), (512, 512, 64), (520, 520, 65), (1024, 1024, 128)],
)
def test_R15_budget_of_members_is_64_or_an_eighth_of_all_known_nodes(
    n: int, waiting: int, budget: int
) -> None:
    host = supervisor(*members(n), cursor=n - 1)
    ask_about(host, members(waiting))
    assert told(host, host.tick()) == members(n)[:budget]
    assert told(host, host.tick()) == members(n)[budget : 2 * budget]


@pytest.mark.parametrize(("count", "budget"), [(200, 64), (1024, 128)])
def test_R15_strangers_have_their_own_budget(count: int, budget: int) -> None:
    host = supervisor()
    ask_about(host, strangers(count))
    assert told(host, host.tick()) == strangers(count)[:budget]


def test_R15_members_and_strangers_do_not_wait_for_each_other() -> None:
    n = 300
    host = supervisor(*members(n), cursor=n - 1)
    ask_about(host, [*strangers(n), *members(n)])
    budget = 2 * n // 8  # an eighth of the members and of the waiting strangers
    assert told(host, host.tick()) == [*strangers(n)[:budget], *members(n)[:budget]]


def test_R15_recently_informed_members_are_answered_last_under_load() -> None:
    n = 200
    host = supervisor(*members(n), cursor=n - 1)
    ask_about(host, members(3))
    assert told(host, host.tick()) == members(3)
    ask_about(host, members(n))  # the fourth is next in round robin, then the others
    assert told(host, host.tick()) == members(n)[3:67]


def test_R15_recently_informed_members_are_answered_last_for_eight_timeouts() -> None:
    n = 200
    for ticks, first in ((7, False), (8, True)):
        host = supervisor(*members(n), cursor=100)
        ask_about(host, members(1))
        for _ in range(ticks):
            host.tick()
        ask_about(host, members(n))
        assert (members(1)[0] in told(host, host.tick())) is first


def test_R15_flush_answers_before_the_next_timeout() -> None:
    host = supervisor(*"abc", cursor=2)
    assert not host.machine.has_to_flush
    ask_about(host, ["b", "x"])
    assert host.machine.has_to_flush
    assert told(host, host.request(FLUSH)) == ["b", "x"]
    assert not host.machine.has_to_flush
    assert told(host, host.tick()) == ["a"]  # the next in round robin


def test_R15_flush_uses_the_rest_of_the_budget_of_the_interval() -> None:
    host = supervisor(*members(200), cursor=0)
    ask_about(host, members(60))
    assert told(host, host.request(FLUSH)) == members(60)
    ask_about(host, members(200)[100:120])
    assert told(host, host.request(FLUSH)) == members(200)[100:104]  # the budget is 64
    assert not host.machine.has_to_flush
    assert host.request(FLUSH) == []
    assert told(host, host.tick())[:16] == members(200)[104:120]


def test_R15_repeated_answers_between_timeouts_use_a_quarter_of_the_budget() -> None:
    host = supervisor(*members(200), cursor=0)
    ask_about(host, members(10))
    assert told(host, host.request(FLUSH)) == members(10)
    ask_about(host, members(10))
    assert told(host, host.request(FLUSH)) == members(6)  # 16 of 64
    ask_about(host, members(200)[100:120])
    assert told(host, host.request(FLUSH)) == members(200)[100:120]
    assert told(host, host.tick())[:4] == members(10)[6:]


def test_R15_48_nodes_that_join_before_the_timeout_get_their_configurations() -> None:
    host = supervisor()
    answers = 0
    for node in members(48):
        host.receive(Subscribe(node))
        answered = told(host, host.request(FLUSH))
        answers += len(answered)
        assert node in answered
    assert answers <= 64


def test_R15_answers_wait_for_the_timeout_under_load() -> None:
    host = supervisor(*members(1024), cursor=0)
    ask_about(host, members(600))
    assert len(host.tick()) == 128
    assert not host.machine.has_to_flush


def test_R15_no_request_is_ever_dropped() -> None:
    host = supervisor(*members(300), cursor=299)
    subjects = [*strangers(500), *members(300)]
    ask_about(host, subjects)
    found = [node for _ in range(12) for node in told(host, host.tick())]
    assert set(found) == set(subjects)
    assert {node for node in found if found.count(node) > 1} <= set(members(12))  # round robin


def test_R15_endless_names_do_not_fill_the_memory() -> None:
    host = FakeHost(Supervisor(config=ProtocolConfig(waiting_max=100)))
    ask_about(host, strangers(500))
    assert host.machine.state().queue == tuple(strangers(500)[:100])


def test_R15_every_request_is_answered_at_once_without_the_rule() -> None:
    host = supervisor(*"abc", rules=AT_ONCE)
    for _ in range(3):
        assert host.receive(GetConfiguration("c")) == [configuration(host, "c")]


# -- the rest ----------------------------------------------------------------------------------


def test_supervisor_is_not_a_member_of_any_topic() -> None:
    host = supervisor("a")
    host.tick()
    before = host.machine.state()
    assert host.request(SubscribeRequested()) == []
    assert host.request(UnsubscribeRequested()) == []
    assert host.machine.state() == before


def test_supervisor_without_members_and_requests_is_idle() -> None:
    host = supervisor()
    host.tick()
    assert host.machine.is_idle
    host.receive(GetConfiguration("x"))
    assert not host.machine.is_idle
    host.tick()
    assert host.machine.is_idle
    host.request(NodeSuspected("x"))
    assert not host.machine.is_idle


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
    host = loaded_supervisor(SupervisorState(queue=("a", SUPERVISOR)))
    assert told(host, host.tick()) == ["a"]


@given(supervisor_states(NODES), st.lists(EVENTS, max_size=8), rule_sets())
@settings(unhurried, max_examples=100)
def test_no_state_and_no_message_can_break_a_supervisor(
    state: SupervisorState, events: list[Event], rules: Rules
) -> None:
    queue = tuple(node for node in state.queue if node != SUPERVISOR)
    host = loaded_supervisor(replace(state, queue=queue), rules=rules)
    repairs = host.request(SubscribeRequested())  # S3: repair precedes the event
    assert len(repairs) <= len(host.machine.roster)
    for event in events:
        found = sent(host.handle(event))
        addressed = [to for to, _ in found]
        assert None not in addressed
        assert SUPERVISOR not in addressed
        if not isinstance(event, Tick):
            assert len(found) <= CONCERNED_MAX
        assert SUPERVISOR not in host.machine.roster
        assert len(set(host.machine.roster.nodes)) == len(host.machine.roster)


@given(supervisor_states(NODES), rule_sets())
@unhurried
def test_every_recorded_node_gets_its_configuration_within_n_timeouts(
    state: SupervisorState, rules: Rules
) -> None:
    host = loaded_supervisor(state, rules=rules)
    found = [node for _ in range(len(NODES)) for node in receivers(host.tick(), SetConfiguration)]
    assert set(host.machine.roster.nodes) <= set(found)
