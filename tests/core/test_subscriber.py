"""Subscriber machine, event by event (Algorithm 4)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.config import Rule, Rules
from skipring.core.effects import Unsubscribed
from skipring.core.events import (
    Event,
    Flush,
    NodeSuspected,
    PublishRequested,
    Received,
    ResendRequested,
    SubmitRequested,
    SubscribeRequested,
    SyncRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.labels import Label
from skipring.core.log_messages import FetchLog, GetLogInfo
from skipring.core.messages import (
    MESSAGE_TYPES,
    UNRECORDED,
    CheckAndPublish,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    Digest,
    Draining,
    GetConfiguration,
    Held,
    Introduce,
    IntroduceShortcut,
    Message,
    Ping,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    RequestHandover,
    SetConfiguration,
    Subscribe,
    Terms,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, Peer
from skipring.core.prefix import ALL, Prefix
from skipring.core.ring import asks_supervisor
from skipring.core.state import LivenessState, SubscriberState, legitimate_state
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import RangeSummary, Summary
from tests.support.batches import batch
from tests.support.fake_host import FakeHost, sent
from tests.support.machines import (
    FAST,
    FIXED,
    ME,
    PAPER,
    TOPIC,
    Scripted,
    asked,
    label,
    peer,
    rule_sets,
    subscriber,
    unhurried,
    without,
)
from tests.support.strategies import labels, messages, publications, several, subscriber_states

# The node with label 01 in a ring of eight.
A, Z = peer("001", "a"), peer("011", "z")
QUARTER = SubscriberState(
    label=label("01"), left=A, right=Z, shortcuts={label("0"): "r", label("1"): "s"}
)
FORMER_MEMBER = SubscriberState(member=False)
SUBSCRIBE, UNSUBSCRIBE = (SUPERVISOR, Subscribe(ME)), (SUPERVISOR, Unsubscribe(ME))
CONFIGURATION = SetConfiguration(peer("0", "b"), label("01"), peer("1", "y"))


def leaving(state: SubscriberState) -> SubscriberState:
    return replace(state, member=False)


def unlabelled(state: SubscriberState) -> SubscriberState:
    return replace(state, label=None)


# -- S2: the application's request -------------------------------------------------------------


def test_S2_leaver_sends_unsubscribe_at_every_timeout() -> None:
    host = subscriber(leaving(QUARTER))
    for _ in range(3):
        assert UNSUBSCRIBE in host.tick()
    assert UNSUBSCRIBE not in subscriber(QUARTER).tick()


def test_S2_leaver_answers_a_configuration_with_unsubscribe() -> None:
    host = subscriber(leaving(QUARTER))
    assert host.receive(CONFIGURATION) == [UNSUBSCRIBE]
    assert host.machine.state() == leaving(QUARTER)


def test_S2_leaver_with_permission_drops_everything() -> None:
    host = subscriber(leaving(QUARTER))
    assert host.handle(Received(UNRECORDED)) == [Unsubscribed()]
    assert host.machine.state() == FORMER_MEMBER


def test_S2_unrecorded_node_that_wants_to_stay_keeps_references_and_subscribes() -> None:
    host = subscriber(QUARTER)
    effects = host.handle(Received(UNRECORDED))
    assert sent(effects)[-1] == SUBSCRIBE
    assert Unsubscribed() not in effects
    assert host.machine.state() == unlabelled(QUARTER)
    assert host.receive(UNRECORDED) == [SUBSCRIBE]
    assert host.machine.state() == unlabelled(QUARTER)


def test_S2_node_that_has_left_answers_a_check_with_unsubscribe() -> None:
    message = CheckLabel(A, label("01"), EdgeKind.LINE)
    remove = ("a", RemoveConnections(ME))
    assert subscriber(FORMER_MEMBER).receive(message) == [remove, UNSUBSCRIBE]
    # A leaver with a label sends it at its timeouts; a node that wants to stay never sends it.
    assert UNSUBSCRIBE not in subscriber(leaving(QUARTER)).receive(message)
    assert subscriber(SubscriberState()).receive(message) == [remove]


def test_S2_request_to_subscribe_makes_an_unlabelled_node_subscribe_at_once() -> None:
    host = subscriber(FORMER_MEMBER)
    assert host.request(SubscribeRequested()) == [SUBSCRIBE]
    assert host.machine.wants
    assert subscriber(leaving(QUARTER)).request(SubscribeRequested()) == []


def test_S2_request_to_leave_sends_unsubscribe_at_once_even_without_a_label() -> None:
    host = subscriber(QUARTER)
    assert host.request(UnsubscribeRequested()) == [UNSUBSCRIBE]
    assert host.machine.state() == leaving(QUARTER)  # until the supervisor permits it
    host = subscriber(unlabelled(QUARTER))
    assert host.request(UnsubscribeRequested()) == [UNSUBSCRIBE]
    assert host.machine.state() == FORMER_MEMBER


def test_S2_node_that_has_left_is_silent_and_drops_its_references() -> None:
    host = subscriber(leaving(unlabelled(QUARTER)))
    assert host.tick() == []
    assert host.machine.state() == FORMER_MEMBER


# -- labels ------------------------------------------------------------------------------------


def test_S8_configuration_sets_the_label() -> None:
    host = subscriber(SubscriberState())
    assert host.receive(SetConfiguration(None, label("0"), None)) == []
    assert host.machine.label == label("0")
    host.receive(CONFIGURATION)
    assert (host.machine.label, host.machine.left, host.machine.right, host.machine.ring) == (
        label("01"),
        peer("0", "b"),
        peer("1", "y"),
        None,
    )


@pytest.mark.parametrize("kind", [kind for kind in MESSAGE_TYPES if kind is not SetConfiguration])
@given(data=st.data())
@settings(unhurried, max_examples=10)
def test_S8_no_other_message_changes_a_label(kind: type[Message], data: st.DataObject) -> None:
    host = subscriber(QUARTER)
    host.receive(data.draw(messages(("a", ME, "z", SUPERVISOR), (kind,))))
    assert host.machine.label == QUARTER.label


def test_B8_node_without_a_label_subscribes_and_does_nothing_else() -> None:
    host = subscriber(unlabelled(QUARTER))
    assert host.tick() == [SUBSCRIBE]
    assert host.machine.state() == unlabelled(QUARTER)


def test_B9_forgotten_node_is_removed_from_neighbours_and_shortcuts() -> None:
    host = subscriber(replace(QUARTER, left=peer("001", "r"), ring=peer("0", "r")))
    assert host.receive(RemoveConnections("r")) == []
    assert host.machine.state() == replace(
        QUARTER, left=None, shortcuts={label("0"): None, label("1"): "s"}
    )


# -- B14: requests to the supervisor and their probability -------------------------------------

QUESTION = (SUPERVISOR, GetConfiguration(ME))


def odds_of_asking(state: SubscriberState, rules: Rules = FAST) -> int:
    """Return the n for which the machine asks the supervisor in one of n timeouts by chance."""
    always = Scripted(0)
    host = subscriber(state, rng=always, rules=rules)
    assert QUESTION in host.tick()
    assert QUESTION not in subscriber(state).tick()
    return prod(always.odds)


def test_B14_node_without_a_left_neighbour_asks_every_other_time() -> None:
    assert odds_of_asking(SubscriberState(label=label("0011"))) == 2


def test_B14_wrap_edge_and_shortcuts_are_not_consulted() -> None:
    smaller = {label("001"): "a", label("0"): "r"}
    for right, ring in ((None, peer("0", "b")), (Z, peer("111", "y"))):
        state = SubscriberState(label=label("01"), right=right, ring=ring, shortcuts=smaller)
        assert odds_of_asking(state) == 2


def test_B14_node_with_a_left_neighbour_asks_rarely() -> None:
    assert odds_of_asking(QUARTER) == 2**3 * 2**2


@pytest.mark.parametrize("void", [peer("0", ME), peer("0", SUPERVISOR), peer("1", "z")])
def test_B14_left_neighbour_counts_only_after_its_correction(void: Peer) -> None:
    state = SubscriberState(label=label("01"), left=void)
    assert odds_of_asking(state) == 2


@pytest.mark.parametrize("bits", ["1", "01", "001", "0001", "0" * 59 + "1", "0" * 63 + "1"])
def test_k_plus_1_is_the_exponent_with_which_a_label_of_length_k_asks(bits: str) -> None:
    k = len(bits)
    always = Scripted(0)
    assert asks_supervisor(label(bits).length, always, rare=True)
    assert prod(always.odds) == 2 ** (k + 1) * k**2
    always = Scripted(0)
    assert asks_supervisor(label(bits).length, always, rare=False)
    assert prod(always.odds) == 2**k * k**2


def test_k_plus_1_is_the_exponent_of_the_machine_and_k_without_the_rule() -> None:
    assert odds_of_asking(QUARTER) == 2 * odds_of_asking(QUARTER, without(Rule.RARE_REQUESTS))


# -- R9: silence -------------------------------------------------------------------------------


def questions(machine_ticks: int, *heard: Message, rules: Rules = FAST) -> list[int]:
    """Return the timeouts in which the machine asks, with the same messages before each."""
    host = subscriber(QUARTER, rules=rules)
    found = []
    for count in range(1, machine_ticks + 1):
        for message in heard:
            host.receive(message)
        if QUESTION in host.tick():
            found.append(count)
    return found


def check_by(sender: Peer) -> CheckLabel:
    return CheckLabel(sender, label("01"), EdgeKind.LINE)


def test_R9_silent_neighbour_causes_a_request_for_the_configuration() -> None:
    assert questions(20) == [8, 16]
    assert questions(20, check_by(A)) == [8, 16]
    assert questions(20, rules=without(Rule.NEIGHBOUR_TIMEOUT)) == []


def test_R9_no_request_is_sent_while_both_neighbours_are_heard() -> None:
    assert questions(200, check_by(A), check_by(Z)) == []
    assert questions(200, *(Introduce(x, EdgeKind.LINE, first_hand=True) for x in (A, Z))) == []


def test_R9_second_hand_messages_about_a_neighbour_do_not_count() -> None:
    assert questions(10, *(Introduce(x, EdgeKind.LINE, first_hand=False) for x in (A, Z))) == [8]
    assert questions(10, *(IntroduceShortcut(x) for x in (A, Z))) == [8]


def test_R9_configuration_that_confirms_the_neighbour_doubles_the_wait() -> None:
    host = subscriber(QUARTER)
    found = []
    for count in range(1, 60):
        if QUESTION in host.tick():
            found.append(count)
            host.receive(SetConfiguration(A, label("01"), Z))
    assert found == [8, 8 + 16, 8 + 16 + 32]


def test_R9_silence_of_the_wrap_edge_is_detected() -> None:
    host = subscriber(SubscriberState(label=label("0"), right=A, ring=peer("111", "z")))
    for _ in range(8):
        host.receive(CheckLabel(A, label("0"), EdgeKind.LINE))
        host.tick()
    assert host.machine.state().silence["z"] == LivenessState(0, 8, pending=True)
    assert host.machine.state().silence["a"].pending is False


# -- derived values ----------------------------------------------------------------------------


def wrong_chains(host: FakeHost[Subscriber]) -> None:
    chains = host.machine._shortcuts._chains
    assert chains is not None
    surplus = (*chains.slots, label("0001"))
    host.machine._shortcuts._chains = replace(chains, slots=surplus, parent=None, left_end=None)


def wrong_weight(host: FakeHost[Subscriber]) -> None:
    host.machine._digest._weight += 1


def wrong_tree_edges(host: FakeHost[Subscriber]) -> None:
    spreading = host.machine._broadcast
    spreading._edges, spreading._levels, spreading._view = ["x", None], 60, 7


def wrong_claims(host: FakeHost[Subscriber]) -> None:
    root = host.machine.trie().root()
    host.machine.replication._repair._claims = (
        RangeSummary.make(ALL, [Summary(Prefix(3, 5), root)]),
    )


@pytest.mark.parametrize("corrupt", [wrong_chains, wrong_weight, wrong_tree_edges, wrong_claims])
@pytest.mark.parametrize("ticks", [-(10**30), 0, 1, 15, 10**30])
def test_wrong_derived_values_are_corrected_within_16_ticks(
    corrupt: Callable[[FakeHost[Subscriber]], None], ticks: int
) -> None:
    news = [batch(b"x", publisher="p", first=seq, topic=TOPIC) for seq in (0, 1)]
    right, wrong = (subscriber(replace(QUARTER, publications=tuple(news))) for _ in range(2))
    right.tick()
    wrong.tick()
    corrupt(wrong)
    wrong.machine._audit_ticks = ticks
    right.tick(16 + 6)  # for 6 more ticks a node with a new view floods
    wrong.tick(16 + 6)
    assert wrong.machine.state() == right.machine.state()
    hello = PublishRequested((BatchRecord(b"hello"),))
    assert wrong.request(hello) == right.request(hello)
    assert wrong.tick() == right.tick()


# -- R11: reporting known nodes ----------------------------------------------------------------


def test_R11_node_that_becomes_unrecorded_reports_all_known_nodes_and_then_subscribes() -> None:
    host = subscriber(replace(QUARTER, ring=peer("1", "y")))
    assert host.receive(UNRECORDED) == [*asked("a", "z", "y", "r", "s"), SUBSCRIBE]


def test_R11_each_node_is_reported_once_and_never_the_node_itself_or_the_supervisor() -> None:
    shortcuts = {label("0"): "a", label("1"): ME, label("11"): SUPERVISOR, label("111"): None}
    host = subscriber(replace(QUARTER, right=None, shortcuts=shortcuts))
    assert host.receive(UNRECORDED) == [*asked("a"), SUBSCRIBE]


def test_R11_node_without_a_label_reports_no_node() -> None:
    assert subscriber(unlabelled(QUARTER)).receive(UNRECORDED) == [SUBSCRIBE]


def test_R11_leaver_reports_no_node() -> None:
    assert subscriber(leaving(QUARTER)).receive(UNRECORDED) == []


@pytest.mark.parametrize("rules", [PAPER, FIXED, without(Rule.WAKE)])
def test_without_R11_unrecorded_node_asks_about_left_right_and_ring(rules: Rules) -> None:
    state = replace(QUARTER, ring=peer("1", "y"))
    host = subscriber(state, rules=rules)
    assert host.receive(UNRECORDED) == [*asked("a", "z", "y"), SUBSCRIBE]
    assert host.receive(UNRECORDED) == [SUBSCRIBE]  # it has asked already
    assert subscriber(leaving(state), rules=rules).receive(UNRECORDED) == asked("a", "z", "y")


# -- R14: the digest ---------------------------------------------------------------------------


def test_R14_digest_goes_to_the_parent_at_every_timeout() -> None:
    host = subscriber(QUARTER)
    for _ in range(3):
        assert ("r", Digest(ME, peer("01", ME).weight)) in host.tick()
    off = subscriber(QUARTER, rules=without(Rule.DIGEST))
    assert not [message for _, message in off.tick() if type(message) is Digest]


def test_R14_only_label_0_adds_the_digest_to_its_request() -> None:
    nodes = [ME, "a", "b", "c"]
    host = subscriber(legitimate_state(0, nodes), rng=Scripted(0))
    for node in nodes[1:]:
        host.receive(Digest(node, 1))
    root, children = peer("0", ME).weight, 3
    assert (SUPERVISOR, GetConfiguration(ME, (root + children) % 2**64)) in host.tick()
    assert QUESTION in subscriber(QUARTER, rng=Scripted(0)).tick()
    plain = subscriber(legitimate_state(0, nodes), rng=Scripted(0), rules=without(Rule.DIGEST))
    assert QUESTION in plain.tick()


# -- messages for other machines -----------------------------------------------------------------


@pytest.mark.parametrize("request_type", [Subscribe, Unsubscribe, GetConfiguration])
def test_requests_for_a_supervisor_are_dropped(
    request_type: type[Message],
) -> None:
    host = subscriber(QUARTER)
    assert host.receive(request_type("a")) == []
    assert host.machine.state() == QUARTER


def test_subscriber_ignores_suspicions() -> None:
    host = subscriber(QUARTER)
    assert host.request(NodeSuspected("a")) == []
    assert host.machine.state() == QUARTER


# -- any state, any message ----------------------------------------------------------------------

NODES = ("a", "b", ME, "y", "z", SUPERVISOR)
# Largest number of messages of one event, counted by hand for any set of rules: two for a
# reference that is reported to the supervisor together with this node, one for every other.
RING_MESSAGE_MAX = 4  # two candidates for the wrap edge that both belong to the line
CONFIGURATION_MAX = 7  # three displaced references, two new ones
TIMEOUT_MAX = 15
NEWS = PublishRequested((BatchRecord(b"news"), BatchRecord(b"more")))


def record_ids(batches: tuple[RecordBatch, ...]) -> tuple[bytes, ...]:
    return tuple(key for each in batches for key in each.record_ids())


EVENTS = st.one_of(
    st.sampled_from([Tick(), Flush(), SyncRequested(), NEWS]),
    st.builds(Received, messages(NODES), st.none() | st.sampled_from(NODES)),
    st.sampled_from([SubscribeRequested(), UnsubscribeRequested(), NodeSuspected("a")]),
    st.builds(SubmitRequested, several(publications())),
    st.builds(ResendRequested, several(publications()).map(record_ids)),
)


@given(
    subscriber_states(NODES, publications_max=3),
    st.lists(EVENTS, max_size=8),
    rule_sets(),
    st.integers(0, 9),
)
@settings(unhurried, max_examples=100)
def test_no_state_and_no_message_can_break_a_subscriber(
    state: SubscriberState,
    events: list[Event],
    rules: Rules,
    seed: int,
) -> None:
    host = subscriber(without_void_edges(state), rules=rules, rng=Random(seed))
    for event in events:
        before = host.machine.state()
        effects = host.handle(event)
        addressed = [to for to, _ in sent(effects)]
        assert None not in addressed
        assert ME not in addressed
        if isinstance(event, Received):
            assert len(effects) <= bound(event.message, before)


def without_void_edges(state: SubscriberState) -> SubscriberState:
    """Return the state without void ring edges; no message can create them."""
    edges = {
        name: edge if edge is None or edge.node not in (ME, SUPERVISOR) else None
        for name, edge in (("left", state.left), ("right", state.right), ("ring", state.ring))
    }
    return replace(state, **edges)


def bound(message: Message, state: SubscriberState) -> int:
    """Return the largest number of effects of a message."""
    match message:
        case SetConfiguration(label=None):
            return 3 + len(state.shortcuts) + 1  # R11: every known node is reported
        case SetConfiguration():
            return CONFIGURATION_MAX
        case CheckLabel() | Introduce() | IntroduceShortcut():
            return RING_MESSAGE_MAX
        case Ping() | GetLogInfo() | FetchLog():
            return 1  # Pong, LogInfo, LogPage or Refused
        case _:
            return bound_about_publications(message, state)


def bound_about_publications(  # noqa: PLR0911  (one per type)
    message: Message, state: SubscriberState
) -> int:
    """Return the same bound for publications; a looked-up publication may be gone."""
    held, edges = len(state.publications), 3 + len(state.shortcuts)
    match message:
        case CheckTrie() | CheckAndPublish():
            wanted = message.wanted if isinstance(message, CheckAndPublish) else ()
            said = sum(2 + len(claim.summaries()) for claim in (*message.claims, *wanted))
            # Without T7 each request goes alone; publications go in one chunk, or are deferred.
            return said + 1 + held
        case Publications(publications):
            return 3 * bool(publications)  # Rejected, Store and Deliver
        case PublishNew() | PublishMany():
            return 3 + edges
        case Want():
            return len(message.hops)
        case TrieEqual() | CheckHeld() | RequestHandover():
            return 1
        case Terms(charters=charters):
            return 1 + 3 * bool(charters)
        case Held():
            return 4 + held  # a confirmation, publications in chunks, and the next request
        case Draining(remaining=remaining):
            return len(remaining) + 1
        case _:
            return 0


@given(subscriber_states(NODES), rule_sets())
@unhurried
def test_timeout_sends_at_most_a_constant_and_two_for_each_dropped_shortcut(
    state: SubscriberState, rules: Rules
) -> None:
    host = subscriber(state, rules=rules)
    assert len(host.tick()) <= TIMEOUT_MAX + 2 * len(state.shortcuts)
    held = len(host.machine.shortcuts)
    assert len(host.tick()) <= TIMEOUT_MAX + 2 * held


@given(subscriber_states(NODES), st.lists(messages(NODES), max_size=5))
@unhurried
def test_S2_no_message_changes_the_request_of_the_application(
    state: SubscriberState, received: list[Message]
) -> None:
    host = subscriber(state)
    for message in received:
        host.receive(message)
        host.tick()
    assert host.machine.wants is state.member


@given(labels())
@unhurried
def test_node_alone_with_any_label_sends_at_most_its_request(own: Label) -> None:
    host = subscriber(SubscriberState(label=own), rng=Scripted(0))
    assert [type(message) for _, message in host.tick()] == [GetConfiguration]
