"""Machines of all topics of a process (section 4), and quotas of topics at a supervisor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, TypeAlias

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Unsubscribed
from skipring.core.events import (
    Event,
    Overwritten,
    PublishRequested,
    Received,
    SubmitRequested,
    SubscribeRequested,
)
from skipring.core.failure_detector import DetectorBudget
from skipring.core.log import Log, MemoryLog
from skipring.core.peers import NodeId, TopicId
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor

Dispatch: TypeAlias = Callable[[TopicId, Event], list[Effect]]  # function of a host

TOPICS_MAX: Final = 10_000  # Limit: each topic costs time at every tick.
TOPICS_PER_NAME_MAX: Final = 2_500  # Limit: a quarter, so one name cannot keep others out.
# Limit: a member asks about its neighbours, 20 in a ring of 1,000.
SUBJECTS_PER_NAME_MAX: Final = 1_024


class SubscriberTopics:
    """Topics of one node; each runs its own BuildSR protocol."""

    def __init__(
        self,
        node: NodeId,
        *,
        rng: Random,
        config: ProtocolConfig,
        open_log: Callable[[TopicId], Log] = lambda _: MemoryLog(),
    ) -> None:
        self._node = node
        self._rng = rng
        self._config = config
        self._open_log = open_log
        self.by_topic: dict[TopicId, Subscriber] = {}  # the machines

    def __contains__(self, topic: TopicId) -> bool:
        return topic in self.by_topic

    def handle(self, topic: TopicId, event: Event) -> list[Effect]:
        """Apply one event of one topic; the effects belong to the same topic."""
        machine = self.by_topic.get(topic)
        if machine is None:
            # A node outside the topic acts like a subscriber that has left: other nodes drop
            # their references to it, and it declines a configuration.
            is_publishing = isinstance(event, PublishRequested | SubmitRequested)
            assert not is_publishing, f"not subscribed to {topic}"
            machine = self._make(topic, event if isinstance(event, SubscribeRequested) else None)
        effects = machine.handle(event)
        if effects and type(effects[-1]) is Unsubscribed:  # always the last effect of a machine
            self.by_topic.pop(topic, None)
        return effects

    def _make(self, topic: TopicId, join: SubscribeRequested | None) -> Subscriber:
        machine = Subscriber(
            self._node,
            topic=topic,
            rng=self._rng,
            config=self._config,
            log=self._open_log(topic) if join is not None else None,
            wants=False,
            incarnation=join.incarnation if join is not None else 0,
        )
        if join is not None:
            self.by_topic[topic] = machine
        return machine

    def machine(self, topic: TopicId) -> Subscriber | None:
        """Return the machine of a topic, or None if this node is not in it."""
        return self.by_topic.get(topic)

    def machines(self) -> list[tuple[TopicId, Subscriber]]:
        """Return the machines of all topics of this node."""
        return list(self.by_topic.items())

    def offset_of(self, topic: TopicId, key: bytes) -> int | None:
        """Return the offset of a publication of a topic, or None."""
        machine = self.by_topic.get(topic)
        return machine.replica.offset_of(key) if machine is not None else None

    def ring_neighbours(self) -> list[tuple[TopicId, NodeId]]:
        """Return the ring neighbours of this node, with their topics."""
        return [
            (topic, node)
            for topic, machine in self.by_topic.items()
            for node in machine.ring_neighbours()
        ]

    def states(self) -> dict[TopicId, SubscriberState]:
        """Return the states of all machines, by topic."""
        return {topic: machine.state() for topic, machine in self.by_topic.items()}

    def names(self) -> list[TopicId]:
        """Return the topics of this node."""
        return list(self.by_topic)


class SupervisorTopics:
    """Topics of one supervisor; an idle topic is removed."""

    def __init__(self, *, config: ProtocolConfig) -> None:
        self._config = config
        self._machines: dict[TopicId, Supervisor] = {}
        self._budget = DetectorBudget()
        self._first = 0  # index of the topic that ticks first

    def __contains__(self, topic: TopicId) -> bool:
        return topic in self._machines

    def __len__(self) -> int:
        return len(self._machines)

    def handle(self, topic: TopicId, event: Event) -> list[Effect]:
        """Apply one event of one topic; the effects belong to the same topic."""
        machine = self._machines.get(topic)
        if machine is None:
            machine = Supervisor(config=self._config, budget=self._budget)
            if isinstance(event, Received | Overwritten):
                self._machines[topic] = machine
        effects = machine.handle(event)
        if machine.is_idle:
            self._machines.pop(topic, None)
        return effects

    def states(self) -> dict[TopicId, SupervisorState]:
        """Return the states of all machines, by topic."""
        return {topic: machine.state() for topic, machine in self._machines.items()}

    def machine(self, topic: TopicId) -> Supervisor | None:
        """Return the machine of a topic, or None if the topic is idle."""
        return self._machines.get(topic)

    def machines(self) -> list[tuple[TopicId, Supervisor]]:
        """Return the machines of all topics."""
        return list(self._machines.items())

    def begin_tick(self) -> list[TopicId]:
        """Renew the budget of the failure detectors; return the topics in the order to tick.

        Each tick starts with another topic, because the first ones use the budget first.
        """
        self._budget.renew()
        topics = list(self._machines)
        self._first = (self._first + 1) % max(len(topics), 1)
        return topics[self._first :] + topics[: self._first]

    def to_flush(self, topics: Iterable[TopicId]) -> list[TopicId]:
        """Return those of the given topics in which nodes wait for an answer."""
        machines = ((topic, self._machines.get(topic)) for topic in topics)
        return [
            topic for topic, machine in machines if machine is not None and machine.has_to_flush
        ]


class Quotas:
    """Use of topics and subjects at one supervisor, by name.

    The supervisor charges a topic to its first member, or to the name that asked for it first. It
    derives the charges from the topics at every tick, so a wrong charge lasts for one tick at most.
    """

    __slots__ = ("_subjects", "_topics", "_total")

    def __init__(self) -> None:
        self._topics: Counter[NodeId] = Counter()
        self._total = 0
        self._subjects: Counter[NodeId] = Counter()  # since the last tick

    def refuse_topic(self, name: NodeId) -> str | None:
        """Charge a new topic to a name, or return the reason for refusal."""
        if self._topics[name] >= TOPICS_PER_NAME_MAX:
            return (
                f"{name} has {TOPICS_PER_NAME_MAX} topics at this supervisor, the limit "
                "of one name; leave some, or use another supervisor"
            )
        if self._total >= TOPICS_MAX:
            return f"this supervisor has {TOPICS_MAX} topics, which is the limit"
        self._topics[name] += 1
        self._total += 1
        return None

    def refuse_subject(self, name: NodeId) -> str | None:
        """Charge a request about another node to a name; return a reason to ignore it, or None."""
        self._subjects[name] += 1
        if self._subjects[name] <= SUBJECTS_PER_NAME_MAX:
            return None
        return (
            f"{name} has asked about {SUBJECTS_PER_NAME_MAX} other nodes in this interval, the "
            "limit of one name; ask again later"
        )

    def is_first_excess(self, name: NodeId) -> bool:
        """Return True for the first ignored request of an interval: only this one is answered."""
        return self._subjects[name] == SUBJECTS_PER_NAME_MAX + 1

    def on_tick(self, owners: Iterable[NodeId]) -> None:
        """Begin an interval; ``owners`` has one entry per topic, the account that pays for it."""
        self._topics = Counter(owners)
        self._total = self._topics.total()
        self._subjects = Counter()
