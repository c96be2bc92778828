"""One machine per topic, and which event belongs to which (section 4)."""

from random import Random

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Left
from skipring.core.events import (
    NodeSuspected,
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
from skipring.core.peers import SUPERVISOR, Link
from skipring.core.topics import SubscriberTopics, SupervisorTopics
from tests.support.machines import label, peer, sent

ALONE = Received(SetConfiguration(None, label("0"), None))
CHECK = Received(CheckLabel(peer("1", "z"), label("0"), Link.LINE))
SUBSCRIBE = [(SUPERVISOR, Subscribe("m"))]
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
    assert topics.handle("news", Received(UNRECORDED)) == [Left()]
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
