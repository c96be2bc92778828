"""Section 4.1: subscribe and unsubscribe, message by message, and their cost."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise, permutations

import pytest

from skipring.core.config import Rule, Rules
from skipring.core.effects import Unsubscribed
from skipring.core.events import Received, SubscribeRequested, UnsubscribeRequested
from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import (
    UNRECORDED,
    CheckLabel,
    Introduce,
    IntroduceShortcut,
    Message,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId
from skipring.core.roster import Roster
from skipring.core.state import SubscriberState, legitimate_state
from skipring.core.topology import neighbours_of
from skipring.world.adversaries.builders import database_of, node_names
from tests.support.conversations import at, place, simulation, standing_ring
from tests.support.machines import FAST, FIXED, PAPER, subscriber, supervisor, told, without

every_mode = pytest.mark.parametrize("rules", [PAPER, FIXED, FAST], ids=["paper", "fixed", "fast"])

AT_ONCE = without(Rule.QUEUE)  # all rules, but the supervisor answers without waiting for a Timeout


def recorded(*nodes: NodeId) -> Roster:
    roster = Roster()
    roster.load(database_of(nodes), cursor=0)
    roster.repair()
    return roster


# -- subscribe -------------------------------------------------------------------------------


@every_mode
def test_subscribe_is_one_message_to_the_supervisor(rules: Rules) -> None:
    host = subscriber(SubscriberState(member=False), rules=rules)
    assert host.request(SubscribeRequested()) == [(SUPERVISOR, Subscribe("m"))]


def test_supervisor_records_the_newcomer_and_sends_its_configuration() -> None:
    """Actions 1 and 2: insert (l(n), v), send v (pred, l(n), succ). No other message."""
    host = supervisor("a", "b", "c", rules=PAPER)
    assert host.receive(Subscribe("v")) == [("v", place("b@1", "11", "a@0"))]
    assert host.machine.roster.database() == database_of("abcv")


def test_neighbours_of_the_newcomer_are_informed_with_all_rules() -> None:
    """S11: exactly the members whose (pred, label, succ) changed."""
    host = supervisor("a", "b", "c", rules=AT_ONCE)
    assert host.receive(Subscribe("v")) == [
        ("b", place("c@01", "1", "v@11")),
        ("a", place("v@11", "0", "c@01")),
        ("v", place("b@1", "11", "a@0")),
    ]


def test_answers_wait_for_the_timeout_with_all_rules() -> None:
    """R15: a request only marks its subject; many requests about one node get one answer."""
    host = supervisor("a", "b", "c")
    assert [host.receive(Subscribe("v")) for _ in range(5)] == [[]] * 5
    nodes = told(host, host.tick())
    assert sorted(nodes) == ["a", "b", "v"]  # b is next in the round robin, too


@every_mode
def test_recorded_subscriber_only_gets_its_configuration(rules: Rules) -> None:
    """Algorithm 3: "just send all of v's connections to v"."""
    host = supervisor("a", "b", "c", rules=rules)
    said = host.receive(Subscribe("c")) + host.tick()
    assert ("c", place("a@0", "01", "b@1")) in said
    assert host.machine.roster.database() == database_of("abc")


@every_mode
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 100])
def test_database_is_legitimate_as_soon_as_the_request_is_processed(rules: Rules, n: int) -> None:
    """The supervisor "does not rely on additional information from subscribers"."""
    host = supervisor(*node_names(n), rules=rules)
    host.receive(Subscribe("v"))
    assert host.machine.roster.database() == database_of([*node_names(n), "v"])
    host.receive(Unsubscribe("n0000"))
    assert host.machine.roster.database() == database_of(["v", *node_names(n)[1:]])


@every_mode
def test_newcomer_adopts_its_configuration(rules: Rules) -> None:
    host = subscriber(SubscriberState(), rules=rules)
    host.receive(place("a@0", "01", "b@1"))
    assert (host.machine.label, host.machine.left, host.machine.right) == (
        Label.parse("01"),
        at("a@0"),
        at("b@1"),
    )


def test_sixteen_newcomers_to_sr_16_are_placed_between_consecutive_pairs() -> None:
    """The example: they receive the labels 1/32, 3/32, 5/32, ..."""
    roster = recorded(*node_names(16))
    for number in range(16):
        roster.add(f"new{number}")
        given = roster.configuration_of(f"new{number}")
        assert Fraction(given.label.position, CIRCLE) == Fraction(2 * number + 1, 32)
        assert given.pred.node in node_names(16)
        assert given.succ.node in node_names(16)


def test_member_is_reconfigured_by_two_consecutive_joins_and_not_again_until_n_doubles() -> None:
    """The sentence about multiple sequential subscribe operations, from n = 0 to 256.

    Joins are numbered by the n before them. When a member is reconfigured again, the number of the
    second join has exactly doubled. For label 0 the two are the last join of one doubling and the
    first of the next.
    """
    roster = Roster()
    joins: dict[NodeId, list[int]] = defaultdict(list)
    for number, newcomer in enumerate(node_names(256)):
        before = {node: roster.configuration_of(node) for node in roster.nodes}
        roster.add(newcomer)
        for node, configuration in before.items():
            if roster.configuration_of(node) != configuration:
                joins[node].append(number)
    assert len(joins) == 128  # the second half has not been reconfigured yet
    for node, numbers in joins.items():
        seconds = numbers[1::2]
        assert [second - 1 for second in seconds] == numbers[::2][: len(seconds)], node
        assert all(later == 2 * earlier for earlier, later in pairwise(seconds)), node


# -- unsubscribe -----------------------------------------------------------------------------


@every_mode
def test_unsubscribe_is_one_message_to_the_supervisor(rules: Rules) -> None:
    """The subscriber does not change until it gets the permission (section 4)."""
    host = subscriber(legitimate_state(2, "abm"), rules=rules)
    before = host.machine.state()
    assert host.request(UnsubscribeRequested()) == [(SUPERVISOR, Unsubscribe("m"))]
    after = host.machine.state()
    assert (after.label, after.left, after.right) == (before.label, before.left, before.right)


def test_supervisor_moves_the_last_node_and_permits_the_departure() -> None:
    """Actions 1 to 4: w with l(n-1) gets the label and place of v, v gets the permission."""
    host = supervisor(*"abcde", rules=PAPER)
    assert host.receive(Unsubscribe("b")) == [("e", place("c@01", "1", "d@11")), ("b", UNRECORDED)]
    assert host.machine.roster.database() == database_of("aecd")


def test_no_member_moves_if_the_leaver_is_the_last() -> None:
    """Algorithm 3: "just update database"."""
    host = supervisor(*"abcde", rules=PAPER)
    assert host.receive(Unsubscribe("e")) == [("e", UNRECORDED)]
    assert host.machine.roster.database() == database_of("abcd")


@every_mode
def test_only_member_can_leave(rules: Rules) -> None:
    """Algorithm 3, n = 1."""
    host = supervisor("a", rules=rules)
    said = host.receive(Unsubscribe("a")) + host.tick()
    assert said == [("a", UNRECORDED)]
    assert host.machine.roster.database() == ()


@every_mode
def test_unrecorded_node_gets_the_permission_too(rules: Rules) -> None:
    """Algorithm 3 sends SetData(none, none, none) in any case."""
    host = supervisor("a", "b", rules=rules)
    said = host.receive(Unsubscribe("x")) + host.tick()
    assert ("x", UNRECORDED) in said
    assert host.machine.roster.database() == database_of("ab")


def test_nodes_beside_the_two_places_are_informed_with_all_rules() -> None:
    """S11; the neighbours of the leaver are the new ones of the moved node."""
    host = supervisor(*"abcde", rules=AT_ONCE)
    assert host.receive(Unsubscribe("b")) == [
        ("c", place("a@0", "01", "e@1")),
        ("d", place("e@1", "11", "a@0")),
        ("a", place("d@11", "0", "c@01")),
        ("e", place("c@01", "1", "d@11")),
        ("b", UNRECORDED),
    ]


@every_mode
def test_leaver_deletes_all_its_connections_after_the_permission(rules: Rules) -> None:
    """Proof of the lemma: its configuration is (none, none, none), so v.label = none."""
    host = subscriber(legitimate_state(0, ["m", *"abcdefg"]), rules=rules)
    host.request(UnsubscribeRequested())
    assert host.handle(Received(UNRECORDED))[-1] == Unsubscribed()
    assert host.machine.state() == SubscriberState(member=False)


@every_mode
@pytest.mark.parametrize(
    "introduction",
    [
        CheckLabel(at("a@0"), Label.parse("01"), EdgeKind.LINE),
        Introduce(at("a@0"), EdgeKind.LINE, first_hand=True),
        Introduce(at("a@0"), EdgeKind.WRAP, first_hand=True),
        IntroduceShortcut(at("a@0")),
    ],
    ids=lambda message: type(message).__name__,
)
def test_leaver_answers_every_introduction_with_RemoveConnections(
    rules: Rules, introduction: Message
) -> None:
    """Proof of the lemma; it stores none of the references."""
    host = subscriber(SubscriberState(member=False), rules=rules)
    assert ("a", RemoveConnections("m")) in host.receive(introduction)
    assert host.machine.state() == SubscriberState(member=False)


@every_mode
def test_receiver_of_RemoveConnections_forgets_the_leaver(rules: Rules) -> None:
    nodes = ["m", *"abcdefg"]
    host = subscriber(legitimate_state(0, nodes), rules=rules)
    for leaver in "abcdefg":
        host.receive(RemoveConnections(leaver))
    state = host.machine.state()
    assert (state.left, state.right, state.ring) == (None, None, None)
    assert set(state.shortcuts.values()) == {None}


@pytest.mark.parametrize("mode", ["paper", "fixed", "fast"])
@pytest.mark.parametrize("leaver", node_names(8))
def test_leaver_ends_without_references_to_or_from_it(mode: str, leaver: NodeId) -> None:
    """The unsubscribe lemma: v is eventually disconnected, whatever its place in SR(8)."""
    running = simulation(standing_ring(8), mode=mode, max_rounds=150)
    running.world.unsubscribe(leaver)
    report = running.run()
    assert report.is_good, report.violations
    edges = set(running.world.snapshot().explicit_edges())
    assert leaver not in {node for edge in edges for node in edge}
    assert len(running.world.roster) == 7


# -- the last node beside the leaver (S7) ----------------------------------------------------


@pytest.mark.parametrize("n", [3, 4, 8, 16])
def test_triple_of_the_pseudocode_names_a_node_as_its_own_neighbour(n: int) -> None:
    """Algorithm 3 looks up pred_v and succ_v before w moves: wrong if w is one of them."""
    beside_the_last = {i for i in range(n - 1) if n - 1 in neighbours_of(i, n)}
    assert len(beside_the_last) == 2
    assert beside_the_last == set(neighbours_of(n - 1, n))


@pytest.mark.parametrize("rules", [PAPER, FIXED, AT_ONCE], ids=["paper", "fixed", "fast"])
@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
def test_no_configuration_names_a_node_as_its_own_neighbour(rules: Rules, n: int) -> None:
    """Any two members leave, one after the other: configurations are looked up afterwards."""
    for first, second in permutations(node_names(n), 2):
        host = supervisor(*node_names(n), rules=rules)
        said = host.receive(Unsubscribe(first)) + host.receive(Unsubscribe(second))
        for to, message in said:
            assert isinstance(message, SetConfiguration)
            assert to not in {peer.node for peer in (message.pred, message.succ) if peer}


@pytest.mark.parametrize("mode", ["paper", "fixed", "fast"])
@pytest.mark.parametrize("n", [3, 4, 8, 16])
def test_ring_heals_after_both_nodes_beside_the_last_have_left(mode: str, n: int) -> None:
    running = simulation(standing_ring(n), mode=mode, max_rounds=300)
    for index in neighbours_of(n - 1, n):
        running.world.unsubscribe(node_names(n)[index])
    report = running.run()
    assert report.is_good, report.violations
    assert len(running.world.roster) == n - 2
