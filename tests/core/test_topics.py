"""One machine per topic, and which event belongs to which (section 4)."""

from random import Random

import pytest

from skipring.core import topics as topics_module
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Store, Unsubscribed
from skipring.core.events import (
    NodeSuspected,
    PublishRequested,
    Received,
    SubscribeRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.messages import (
    UNRECORDED,
    CheckLabel,
    GetConfiguration,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import SUPERVISOR, EdgeKind
from skipring.core.sequences import COUNTER_BITS, incarnation_at
from skipring.core.topics import SubscriberTopics, SupervisorTopics
from tests.support.machines import label, peer, sent

ALONE = Received(SetConfiguration(None, label("0"), None))
CHECK = Received(CheckLabel(peer("1", "z"), label("0"), EdgeKind.LINE))
SUBSCRIBE = [(SUPERVISOR, Subscribe("m"))]
TIME_US = 1_800_000_000_000_000
INCARNATION = incarnation_at(TIME_US, 5)
UNSUBSCRIBE = [(SUPERVISOR, Unsubscribe("m"))]


def node() -> SubscriberTopics:
    return SubscriberTopics("m", rng=Random(1), config=ProtocolConfig())


def supervisor() -> SupervisorTopics:
    return SupervisorTopics(config=ProtocolConfig())


# -- subscribers -------------------------------------------------------------------------------


def test_a_node_is_in_a_topic_from_its_subscription_on() -> None:
    topics = node()
    assert sent(topics.handle("news", SubscribeRequested())) == SUBSCRIBE
    assert "news" in topics
    assert "sport" not in topics


def test_each_topic_has_a_label_of_its_own() -> None:
    topics = node()
    for topic in ("news", "sport"):
        topics.handle(topic, SubscribeRequested())
    topics.handle("news", ALONE)
    assert sent(topics.handle("news", CHECK)) == []
    assert sent(topics.handle("sport", CHECK)) == [("z", RemoveConnections("m"))]


def test_a_timeout_runs_every_topic_and_says_which() -> None:
    topics = node()
    for topic in ("news", "sport"):
        topics.handle(topic, SubscribeRequested())
    assert [(topic, sent(effects)) for topic, effects in topics.tick()] == [
        ("news", SUBSCRIBE),
        ("sport", SUBSCRIBE),
    ]


def test_who_is_in_no_topic_answers_like_one_that_wants_nothing_of_it() -> None:
    topics = node()
    assert sent(topics.handle("news", CHECK)) == [("z", RemoveConnections("m")), *UNSUBSCRIBE]
    assert sent(topics.handle("news", ALONE)) == UNSUBSCRIBE
    assert sent(topics.handle("news", Tick())) == []
    assert "news" not in topics


def test_a_topic_ends_when_the_supervisor_lets_the_node_go_and_not_before() -> None:
    topics = node()
    topics.handle("news", SubscribeRequested())
    topics.handle("news", ALONE)
    assert sent(topics.handle("news", UnsubscribeRequested())) == UNSUBSCRIBE
    assert "news" in topics
    assert topics.handle("news", Received(UNRECORDED)) == [Unsubscribed()]
    assert "news" not in topics
    assert topics.tick() == []


def test_one_that_wants_to_stay_stays_though_it_is_unrecorded() -> None:
    topics = node()
    topics.handle("news", SubscribeRequested())
    topics.handle("news", Received(UNRECORDED))
    assert "news" in topics


# -- supervisors -------------------------------------------------------------------------------


def test_a_supervisor_has_a_database_for_each_topic() -> None:
    topics = supervisor()
    topics.handle("news", Received(Subscribe("a")))
    topics.handle("sport", Received(Subscribe("b")))
    told = {topic: sent(effects) for topic, effects in topics.tick()}
    alone = SetConfiguration(None, label("0"), None)
    assert told == {"news": [("a", alone)], "sport": [("b", alone)]}


def test_a_topic_ends_when_nobody_is_left_and_everybody_has_been_answered() -> None:
    topics = supervisor()
    topics.handle("news", Received(Subscribe("a")))
    topics.handle("news", Received(Unsubscribe("a")))
    assert "news" in topics
    assert [sent(effects) for _, effects in topics.tick()] == [[("a", UNRECORDED)]]
    assert "news" not in topics


def test_a_question_about_a_topic_that_does_not_exist_is_answered() -> None:
    topics = supervisor()
    topics.handle("news", Received(GetConfiguration("a")))
    assert [sent(effects) for _, effects in topics.tick()] == [[("a", UNRECORDED)]]
    assert "news" not in topics


def test_events_other_than_messages_make_no_topic() -> None:
    topics = supervisor()
    assert topics.handle("news", Tick()) == []
    topics.handle("news", NodeSuspected("a"))
    assert "news" not in topics


def test_a_message_that_asks_for_nothing_leaves_no_topic_behind() -> None:
    topics = supervisor()
    assert sent(topics.handle("news", CHECK)) == [("z", RemoveConnections(SUPERVISOR))]
    topics.handle("news", Received(Subscribe(None)))
    assert "news" not in topics


# -- incarnations (decision 46) ------------------------------------------------------------------


def number_in(topics: SubscriberTopics, topic: str) -> int:
    """Join a topic, publish, and leave; return the number of the publication."""
    topics.handle(topic, SubscribeRequested())
    effects = topics.handle(topic, PublishRequested(payload=b"x", time=TIME_US))
    ((stored,),) = [each.publications for each in effects if isinstance(each, Store)]
    topics.handle(topic, UnsubscribeRequested())
    topics.handle(topic, Received(UNRECORDED))
    assert topic not in topics
    return stored.seq


def test_topics_use_the_incarnation_of_the_process_and_one_joined_again_another() -> None:
    topics = SubscriberTopics("m", rng=Random(1), config=ProtocolConfig(), incarnation=INCARNATION)
    found = [number_in(topics, topic) >> COUNTER_BITS for topic in ("a", "b", "a", "a", "b", "c")]
    assert [each - INCARNATION for each in found] == [0, 0, 1, 2, 1, 0]


def test_no_number_is_used_twice_if_the_topics_that_were_left_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics_module, "LEFT_MAX", 2)
    topics = SubscriberTopics("m", rng=Random(1), config=ProtocolConfig(), incarnation=INCARNATION)
    names = [f"t{number % 5}" for number in range(20)]
    used = [(name, number_in(topics, name)) for name in names]
    assert len(set(used)) == len(used)
