"""Snapshot: a state as a value, its edges, and the nodes named in a message."""

import pytest

from skipring.core.labels import Label
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.messages import (
    CARRIERS,
    MESSAGE_TYPES,
    UNRECORDED,
    CheckAndPublish,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    ConfigurationAck,
    Digest,
    Draining,
    GetConfiguration,
    HandoverDone,
    Held,
    IHave,
    Introduce,
    IntroduceShortcut,
    Message,
    Ping,
    Pong,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    ReportUnresponsive,
    RequestHandover,
    SetConfiguration,
    Subscribe,
    Terms,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import SUPERVISOR, EdgeKind
from skipring.core.retention.floors import FloorStamps
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.topology import ring_edges, shortcut_edges
from skipring.world.snapshot import Parcel, Snapshot, peers_in, publications_in
from tests.support.batches import batch
from tests.support.conversations import at, place, standing_ring

ONE = Label.parse("1")
NEWS = batch(publisher="p", topic="news")
PAIRS: list[tuple[Message, list[str]]] = [
    (place("d@11", "0", "c@01"), ["d@11", "c@01"]),
    (SetConfiguration(None, ONE, at("c@01")), ["c@01"]),
    (SetConfiguration(at("d@11"), ONE, None), ["d@11"]),
    (UNRECORDED, []),
    (CheckLabel(at("a@0"), ONE, EdgeKind.LINE), ["a@0"]),
    (Introduce(at("a@0"), EdgeKind.WRAP, first_hand=True), ["a@0"]),
    (IntroduceShortcut(at("a@0")), ["a@0"]),
    (Subscribe("a"), []),
    (Unsubscribe("a"), []),
    (GetConfiguration("a"), []),
    (RemoveConnections("a"), []),
    (Digest("a", 7), []),
    (CheckTrie("a", ()), []),
    (CheckAndPublish("a", ()), []),
    (Publications((NEWS,)), []),
    (TrieEqual("a", b"0" * 16), []),
    (PublishNew(NEWS), []),
    (PublishMany((NEWS,)), []),
    (IHave("a", b"", b""), []),
    (Want("a", b"", b""), []),
    (CheckHeld("a", 1), []),
    (Held("a", 1, durable=True), []),
    (Draining("a", ("b",)), []),
    (RequestHandover("a", 1), []),
    (HandoverDone("a", 1, complete=True), []),
    (Terms("a", (NEWS,), FloorStamps(), 0), []),
    (ReportUnresponsive("a"), []),
    (Ping(1), []),
    (Pong(1), []),
    (ConfigurationAck(), []),
    (GetLogInfo(1, None, None), []),
    (LogInfo(1, "", 0, 0, 1, 1, (), b""), []),
    (FetchLog(1, "", 0, 0, 1, 0, 0, contents=True), []),
    (LogPage(1, None, (0,), (NEWS,)), []),
    (Refused(1, "busy"), []),
]


@pytest.mark.parametrize(("message", "pairs"), PAIRS)
def test_every_pair_in_a_message_is_found(message: Message, pairs: list[str]) -> None:
    assert peers_in(message) == tuple(at(pair) for pair in pairs)


def test_table_of_pairs_has_every_message() -> None:
    assert {type(message) for message, _ in PAIRS} == set(MESSAGE_TYPES)


@pytest.mark.parametrize(("message", "_"), PAIRS)
def test_only_carriers_carry_publications(message: Message, _: list[str]) -> None:
    carried = (NEWS,) if type(message) in CARRIERS else ()
    assert publications_in(message) == carried


def test_explicit_edges_lead_to_every_stored_reference() -> None:
    state = SubscriberState(
        left=at("a@0"), right=at("b@1"), ring=at("b@11"), shortcuts={ONE: "x", Label.nth(2): None}
    )
    world = Snapshot(subscribers={"a": SubscriberState(), "b": state}, crashed=("x",))
    assert list(world.explicit_edges()) == [("b", "a"), ("b", "b"), ("b", "b"), ("b", "x")]
    assert list(world.implicit_edges()) == []


def test_implicit_edges_lead_to_every_pair_in_a_channel() -> None:
    channels = (
        Parcel("a", place("d@11", "0", "c@01")),
        Parcel("a", RemoveConnections("b")),
        Parcel(SUPERVISOR, Introduce(at("b@1"), EdgeKind.LINE, first_hand=False)),
    )
    world = Snapshot(subscribers={}, channels=channels)
    assert list(world.implicit_edges()) == [("a", "d"), ("a", "c"), (SUPERVISOR, "b")]
    assert list(world.explicit_edges()) == []
    assert tuple(world.in_flight()) == channels


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 23])
def test_explicit_edges_of_a_legitimate_ring_are_those_of_the_skip_ring(n: int) -> None:
    world = standing_ring(n)
    label = {node: state.label for node, state in world.subscribers.items()}
    edges = {(min(label[u], label[v]), max(label[u], label[v])) for u, v in world.explicit_edges()}
    assert edges == ring_edges(n) | shortcut_edges(n)


def test_initial_message_has_no_known_sender() -> None:
    parcel = Parcel("a", UNRECORDED)
    assert parcel.sender is None
    assert parcel.serial < 0


def test_roster_of_a_snapshot_is_unrepaired_and_its_repair_does_not_change_the_snapshot() -> None:
    broken = SupervisorState(database=(("0", None), ("11", "a"), ("110", "x")), next=10**30)
    world = Snapshot(supervisor=broken, subscribers={"a": SubscriberState()}, crashed=("x",))
    roster = world.roster
    assert roster.is_loaded
    assert (roster.database(), roster.cursor) == (broken.database, broken.next)
    roster.repair()
    assert roster.database() == (("0", "x"), ("1", "a"))
    assert world.supervisor == broken
    assert world.roster.database() == broken.database
