"""Change log: each change of a node's place in the ring, its sender and its rule."""

from __future__ import annotations

from random import Random

from skipring.core.config import ProtocolConfig
from skipring.core.events import (
    Event,
    Flush,
    Overwritten,
    PublishRequested,
    Received,
    ResendRequested,
    SubmitRequested,
    SubscribeRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.labels import Label
from skipring.core.messages import (
    UNRECORDED,
    Introduce,
    IntroduceShortcut,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    SetConfiguration,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId
from skipring.core.roster import Roster
from skipring.core.state import SubscriberState, legitimate_state
from skipring.core.topics import SubscriberTopics
from skipring.node.change_log import (
    CAUSES,
    KEPT,
    UNEXPLAINED,
    WHY,
    ChangeLog,
    NodeChange,
    explanation,
)
from skipring.wire.codec import encode
from skipring.wire.limits import JOURNAL_CHARACTERS_MAX
from skipring.wire.rpc import ChangeEntry, ChangePage
from skipring.world.adversaries.builders import database_of
from tests.support.machines import label, peer

TOPIC = "news"
NODES = [f"n{number:02}" for number in range(16)]


class Stage:
    """The change log of one node in one topic, with its clock."""

    def __init__(self) -> None:
        self.now_us = 5_000_000
        self.topics = SubscriberTopics("n00", rng=Random(0), config=ProtocolConfig())
        self.journals = ChangeLog(self.topics, lambda: self.now_us)
        self.journals.handle(TOPIC, SubscribeRequested())

    def load(self, state: SubscriberState) -> None:
        self.journals.handle(TOPIC, Overwritten(state))

    def give(self, event: Event) -> list[ChangeEntry]:
        """Return the entries that one event adds."""
        before = self.journals.entries(TOPIC)
        if isinstance(event, Tick):
            self.journals.on_tick()
        self.journals.handle(TOPIC, event)
        return [entry for entry in self.journals.entries(TOPIC) if entry not in before]

    def legitimate(self, index: int = 0) -> None:
        self.load(legitimate_state(index, ["n00" if i == index else f"x{i}" for i in range(8)]))


def fields(entries: list[ChangeEntry]) -> dict[str, tuple[str, str]]:
    return {entry.field: (entry.before, entry.after) for entry in entries}


def test_change_log_begins_with_the_subscription() -> None:
    (entry,) = Stage().journals.entries(TOPIC)
    assert entry == ChangeEntry(
        tick=0,
        time=5_000_000,
        cause="SubscribeRequested",
        sender=None,
        field="member",
        before="no",
        after="yes",
        why="the application subscribes to the topic (section 4.1)",
    )


def test_configuration_is_recorded_with_sender_and_time() -> None:
    stage = Stage()
    stage.journals.on_tick()
    stage.now_us += 2_000_000
    message = SetConfiguration(peer("1", "n01"), Label(0), peer("1", "n01"))
    found = stage.give(Received(message, SUPERVISOR))
    assert fields(found) == {
        "label": ("none", "0"),
        "right": ("none", "(1, n01)"),
        "ring": ("none", "(1, n01)"),
    }
    assert {(entry.cause, entry.sender, entry.tick, entry.time) for entry in found} == {
        ("SetConfiguration", SUPERVISOR, 1, 7_000_000)
    }
    assert "SetData, Algorithm 4" in found[0].why


def test_nearer_neighbour_that_introduces_itself_is_explained_by_algorithm_1() -> None:
    stage = Stage()
    stage.load(SubscriberState(label=label("0"), right=peer("1", "b"), ring=peer("1", "b")))
    found = stage.give(Received(Introduce(peer("01", "c"), EdgeKind.LINE, first_hand=True), "c"))
    assert fields(found) == {"right": ("(1, b)", "(01, c)")}
    assert found[0].why == "a nearer neighbour introduced itself (Linearize, Algorithm 1; R2)"


def test_departed_neighbour_is_removed_by_b7_and_its_shortcut_stays_open() -> None:
    stage = Stage()
    stage.legitimate()
    found = stage.give(Received(RemoveConnections("x1"), "x1"))
    assert fields(found) == {"shortcut 1": ("x1", "empty")}
    assert "(B9)" in found[0].why
    found = stage.give(Received(RemoveConnections("x4"), "x4"))
    assert fields(found) == {"right": ("(001, x4)", "none")}
    assert "B7" in found[0].why


def test_shortcuts_open_and_close_with_the_chains_and_get_holders() -> None:
    stage = Stage()
    stage.legitimate()
    stage.load(
        SubscriberState(
            label=Label(0),
            right=peer("001", "x4"),
            ring=peer("111", "x7"),
            shortcuts={label("0001"): "y"},
        )
    )
    found = stage.give(Tick())
    assert fields(found) == {
        "shortcut 0001": ("y", "none"),
        "shortcut 01": ("none", "empty"),
        "shortcut 1": ("none", "empty"),
        "shortcut 11": ("none", "empty"),
    }
    assert all("section 3.2.2" in entry.why for entry in found)
    found = stage.give(Received(IntroduceShortcut(peer("01", "x2")), "x4"))
    assert fields(found) == {"shortcut 01": ("empty", "x2")}
    found = stage.give(Received(IntroduceShortcut(peer("01", "z")), "x4"))
    assert fields(found) == {"shortcut 01": ("x2", "z")}
    assert "R1" in found[0].why


def test_reference_to_the_node_itself_is_explained_by_b2() -> None:
    stage = Stage()
    stage.load(SubscriberState(label=label("01"), left=peer("0", SUPERVISOR)))
    found = stage.give(Tick())
    assert fields(found)["left"] == ("(0, supervisor)", "none")
    assert "(B2)" in found[0].why


def test_change_log_of_a_left_topic_is_dropped() -> None:
    stage = Stage()
    stage.legitimate()
    stage.give(UnsubscribeRequested())
    assert stage.journals.entries(TOPIC)[-1].field == "member"
    stage.give(Received(UNRECORDED, SUPERVISOR))
    assert stage.journals.entries(TOPIC) == ()


def test_only_the_last_changes_are_kept() -> None:
    stage = Stage()
    for number in range(3 * KEPT):
        stage.give(Received(SetConfiguration(None, label("0"), None), SUPERVISOR))
        stage.give(Received(SetConfiguration(None, Label.nth(number + 1), None), SUPERVISOR))
    entries = stage.journals.entries(TOPIC)
    assert len(entries) == KEPT
    assert entries[-1].after == Label.nth(3 * KEPT).bits


def test_publications_cause_no_comparison_of_places() -> None:
    requests = {PublishRequested, SubmitRequested, ResendRequested, Flush}
    assert not CAUSES & {PublishNew, PublishMany, Publications, *requests}


def test_every_change_from_a_scrambled_to_a_legitimate_ring_is_explained() -> None:
    everything: list[ChangeEntry] = []
    for seed in range(30):
        everything += _healing(Random(seed))
    assert len({(entry.cause, entry.field.partition(" ")[0]) for entry in everything}) > 12
    assert [entry for entry in everything if entry.why == UNEXPLAINED] == []


def _healing(rng: Random) -> list[ChangeEntry]:
    """Return the change logs of a ring that converged from a random state."""
    roster = Roster()
    roster.load(database_of(NODES), 0)
    roster.repair()
    topics = {
        node: SubscriberTopics(node, rng=Random(node), config=ProtocolConfig()) for node in NODES
    }
    nodes = {node: ChangeLog(each) for node, each in topics.items()}
    for node, journals in nodes.items():
        journals.handle(TOPIC, SubscribeRequested())
        journals.handle(TOPIC, Overwritten(_anything(rng, node)))
    channel: list[tuple[NodeId, Received]] = []
    for _ in range(6):
        for node, journals in nodes.items():
            channel += _sent(node, journals.handle(TOPIC, Tick()))
        rng.shuffle(channel)
        now, channel = channel, []
        for to, received in now:
            if to == SUPERVISOR:
                about = getattr(received.message, "node", None)
                if about in nodes and rng.random() < 0.3:
                    answer = Received(roster.configuration_of(about), SUPERVISOR)
                    channel += _sent(about, nodes[about].handle(TOPIC, answer))
            elif to in nodes:
                channel += _sent(to, nodes[to].handle(TOPIC, received))
    return [entry for journals in nodes.values() for entry in journals.entries(TOPIC)]


def _sent(sender: NodeId, effects: list[object]) -> list[tuple[NodeId, Received]]:
    return [
        (effect.to, Received(effect.message, sender)) for effect in effects if hasattr(effect, "to")
    ]


def _anything(rng: Random, node: NodeId) -> SubscriberState:
    def some() -> NodeId:
        return rng.choice([*NODES, SUPERVISOR])

    def edge() -> object:
        return peer(Label.nth(rng.randrange(20)).bits, some()) if rng.random() < 0.8 else None

    return SubscriberState(
        label=Label.nth(rng.randrange(20)) if rng.random() < 0.9 else None,
        left=edge(),
        right=edge(),
        ring=edge(),
        shortcuts={Label.nth(rng.randrange(20)): rng.choice([some(), None]) for _ in range(4)},
    )


def test_every_explanation_is_short_cites_a_rule_and_is_encodable() -> None:
    sentences = [*WHY.values(), explanation("Tick", "left", NodeChange.VOID)]
    for why in sentences:
        assert len(why) <= JOURNAL_CHARACTERS_MAX
        assert why.endswith(")") or "(S2)" in why
    text = "x" * JOURNAL_CHARACTERS_MAX
    longest = ChangeEntry(2**63 - 1, 2**63 - 1, text, "x" * 64, text, text, text, text)
    encode("x" * 255, ChangePage(1, 1, (longest,) * KEPT))
