"""Topics of a process: one machine per topic, and the assignment of events to them (section 4)."""

from collections import Counter
from random import Random

import pytest

from skipring.core import topics as topics_module
from skipring.core.batches import BatchRecord
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Store
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
from skipring.core.peers import SUPERVISOR, EdgeKind, TopicId
from skipring.core.publications import COUNTER_BITS, incarnation_at
from skipring.core.topics import (
    SUBJECTS_PER_NAME_MAX,
    TOPICS_MAX,
    TOPICS_PER_NAME_MAX,
    Quotas,
    SubscriberTopics,
    SupervisorTopics,
)
from tests.support.fake_host import sent
from tests.support.machines import label, peer

ALONE = Received(SetConfiguration(None, label("0"), None))
CHECK = Received(CheckLabel(peer("1", "z"), label("0"), EdgeKind.LINE))
TIME_US = 1_800_000_000_000_000
INCARNATION = incarnation_at(TIME_US, 5)
UNSUBSCRIBE = [(SUPERVISOR, Unsubscribe("m"))]


def ticked(topics: SubscriberTopics | SupervisorTopics) -> list[tuple[TopicId, list[Effect]]]:
    """Run the Timeout of every topic; return the effects by topic."""
    names = topics.names() if isinstance(topics, SubscriberTopics) else sorted(topics.begin_tick())
    return [(topic, topics.handle(topic, Tick())) for topic in names]


def node() -> SubscriberTopics:
    return SubscriberTopics("m", rng=Random(1), config=ProtocolConfig())


def supervisor() -> SupervisorTopics:
    return SupervisorTopics(config=ProtocolConfig())


# -- subscribers -------------------------------------------------------------------------------


def test_node_outside_a_topic_answers_like_a_node_that_has_left_it() -> None:
    topics = node()
    assert sent(topics.handle("news", CHECK)) == [("z", RemoveConnections("m")), *UNSUBSCRIBE]
    assert sent(topics.handle("news", ALONE)) == UNSUBSCRIBE
    assert sent(topics.handle("news", Tick())) == []
    assert "news" not in topics


def test_unrecorded_node_that_wants_to_stay_keeps_the_topic() -> None:
    topics = node()
    topics.handle("news", SubscribeRequested())
    topics.handle("news", Received(UNRECORDED))
    assert "news" in topics


# -- supervisors -------------------------------------------------------------------------------


def test_topic_ends_when_it_has_no_members_and_no_open_requests() -> None:
    topics = supervisor()
    topics.handle("news", Received(Subscribe("a")))
    topics.handle("news", Received(Unsubscribe("a")))
    assert "news" in topics
    assert [sent(effects) for _, effects in ticked(topics)] == [[("a", UNRECORDED)]]
    assert "news" not in topics


def test_request_about_an_unknown_topic_is_answered() -> None:
    topics = supervisor()
    topics.handle("news", Received(GetConfiguration("a")))
    assert [sent(effects) for _, effects in ticked(topics)] == [[("a", UNRECORDED)]]
    assert "news" not in topics


def test_events_other_than_messages_create_no_topic() -> None:
    topics = supervisor()
    assert topics.handle("news", Tick()) == []
    topics.handle("news", NodeSuspected("a"))
    assert "news" not in topics


def test_message_without_a_request_leaves_no_topic_behind() -> None:
    topics = supervisor()
    assert sent(topics.handle("news", CHECK)) == [("z", RemoveConnections(SUPERVISOR))]
    topics.handle("news", Received(Subscribe(None)))
    assert "news" not in topics


# -- incarnations (decision 46) ------------------------------------------------------------------


def number_in(topics: SubscriberTopics, topic: str, incarnation: int) -> int:
    """Join a topic, publish and leave; return the number of the publication."""
    topics.handle(topic, SubscribeRequested(incarnation))
    effects = topics.handle(topic, PublishRequested((BatchRecord(b"x", time=TIME_US),)))
    ((stored,),) = [each.batches for each in effects if isinstance(each, Store)]
    topics.handle(topic, UnsubscribeRequested())
    topics.handle(topic, Received(UNRECORDED))
    assert topic not in topics
    return stored.first


def test_each_join_uses_the_incarnation_of_its_request() -> None:
    topics = node()
    joins = list(enumerate(("a", "b", "a", "a", "b", "c"), INCARNATION))
    found = [number_in(topics, topic, incarnation) >> COUNTER_BITS for incarnation, topic in joins]
    assert found == [incarnation for incarnation, _ in joins]


# -- quotas --------------------------------------------------------------------------------


def test_name_gets_a_quarter_of_the_topics_and_then_a_reason() -> None:
    quotas = Quotas()
    for _ in range(TOPICS_PER_NAME_MAX):
        assert quotas.refuse_topic("a") is None
    reason = quotas.refuse_topic("a")
    assert reason is not None
    assert reason.startswith(f"a has {TOPICS_PER_NAME_MAX} topics at this supervisor")
    assert quotas.refuse_topic("b") is None
    assert 4 * TOPICS_PER_NAME_MAX <= TOPICS_MAX


def test_topics_of_all_names_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "TOPICS_MAX", 3)
    quotas = Quotas()
    answers = [quotas.refuse_topic(name) for name in "abcd"]
    assert answers == [None, None, None, "this supervisor has 3 topics, which is the limit"]


def test_subjects_of_one_interval_are_bounded_and_one_refusal_is_sent() -> None:
    quotas = Quotas()
    refused = sent = 0
    for _ in range(2 * SUBJECTS_PER_NAME_MAX):
        if quotas.refuse_subject("a") is not None:
            refused += 1
            sent += quotas.is_first_excess("a")
    assert (refused, sent) == (SUBJECTS_PER_NAME_MAX, 1)
    assert quotas.refuse_subject("b") is None
    quotas.on_tick([])
    assert quotas.refuse_subject("a") is None


@pytest.mark.parametrize("first", [-(10**9), -1, 0, 1, 3, 10**9])
def test_wrong_index_of_the_first_topic_is_corrected_at_the_next_tick(first: int) -> None:
    topics = supervisor()
    for topic in ("a", "b", "c"):
        topics.handle(topic, Received(Subscribe("m"), "m"))
    topics._first = first
    orders = [topics.begin_tick() for _ in range(4)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert sorted(order[0] for order in orders[:3]) == ["a", "b", "c"]
    assert orders[3] == orders[0]


def test_wrong_charges_are_corrected_within_a_tick() -> None:
    quotas = Quotas()
    quotas._topics = Counter({"a": 10**9, "b": -7})
    quotas._subjects = Counter({"a": 10**9})
    quotas._total = 10**9
    quotas.on_tick(["b", "b"])
    assert quotas.refuse_topic("a") is None
    assert quotas.refuse_subject("a") is None
    allowed = [quotas.refuse_topic("b") is None for _ in range(TOPICS_PER_NAME_MAX)]
    assert sum(allowed) == TOPICS_PER_NAME_MAX - 2  # two topics of b exist
    others = [quotas.refuse_topic(f"x{number}") is None for number in range(TOPICS_MAX)]
    assert sum(others) == TOPICS_MAX - TOPICS_PER_NAME_MAX - 1  # all names together
