"""Machines of all topics of a process (section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Unsubscribed
from skipring.core.events import (
    Event,
    Flush,
    PublishManyRequested,
    PublishRequested,
    Received,
    SubscribeRequested,
    Tick,
)
from skipring.core.log import Log, MemoryLog
from skipring.core.peers import NodeId, TopicId
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor

LEFT_MAX: Final = 1024  # Limit: topics that were left, each with its next incarnation.


class SubscriberTopics:
    """All topics of one node; each runs its own BuildSR protocol."""

    def __init__(
        self,
        node: NodeId,
        *,
        rng: Random,
        config: ProtocolConfig,
        open_archive: Callable[[TopicId], Log] = lambda _: MemoryLog(),
        incarnation: int = 0,
    ) -> None:
        self._node = node
        self._incarnation = incarnation  # of a topic that is joined for the first time
        # The next incarnation of topics that were left: joined again, they take other numbers.
        self._left: dict[TopicId, int] = {}
        self._rng = rng
        self._config = config
        self._open_archive = open_archive
        self._machines: dict[TopicId, Subscriber] = {}

    def __contains__(self, topic: TopicId) -> bool:
        return topic in self._machines

    def handle(self, topic: TopicId, event: Event) -> list[Effect]:
        """React to one event of one topic; the effects belong to the same topic."""
        machine = self._machines.get(topic)
        if machine is None:
            # Whoever is not in a topic answers like one that wants nothing of it: references to
            # it are removed, and a configuration is given back.
            is_publishing = isinstance(event, PublishRequested | PublishManyRequested)
            assert not is_publishing, f"not subscribed to {topic}"
            machine = self._make(topic, joins=isinstance(event, SubscribeRequested))
        effects = machine.handle(event)
        if effects and type(effects[-1]) is Unsubscribed:  # the last that a machine asks for
            self._machines.pop(topic, None)
            if self._incarnation:
                self._remember_left(topic, machine.incarnation + 1)
        return effects

    def _remember_left(self, topic: TopicId, incarnation: int) -> None:
        """Remember what follows the incarnation of a topic; of too many, raise that of all."""
        self._left[topic] = max(incarnation, self._left.pop(topic, 0))
        if len(self._left) > LEFT_MAX:
            forgotten = self._left.pop(next(iter(self._left)))
            self._incarnation = max(self._incarnation, forgotten)

    def _make(self, topic: TopicId, *, joins: bool) -> Subscriber:
        machine = Subscriber(
            self._node,
            topic=topic,
            rng=self._rng,
            config=self._config,
            archive=self._open_archive(topic) if joins else None,
            wants=False,
            incarnation=max(self._incarnation, self._left.get(topic, 0)),
        )
        if joins:
            machine.recover()
            self._machines[topic] = machine
        return machine

    def tick(self) -> list[tuple[TopicId, list[Effect]]]:
        """Run the periodic actions of every topic."""
        return [(topic, self.handle(topic, Tick())) for topic in list(self._machines)]

    def machine(self, topic: TopicId) -> Subscriber | None:
        """The machine of a topic we are in."""
        return self._machines.get(topic)

    def machines(self) -> list[tuple[TopicId, Subscriber]]:
        """The machines of all topics we are in."""
        return list(self._machines.items())

    def offset_of(self, topic: TopicId, key: bytes) -> int | None:
        """Where a publication of a topic is stored, or None."""
        machine = self._machines.get(topic)
        return machine.offset_of(key) if machine is not None else None

    def ring_neighbours(self) -> list[tuple[TopicId, NodeId]]:
        """With whom this node shares a ring edge, in which topic."""
        return [
            (topic, node)
            for topic, machine in self._machines.items()
            for node in machine.ring_neighbours()
        ]

    def states(self) -> dict[TopicId, SubscriberState]:
        """The machines of all topics as values."""
        return {topic: machine.state() for topic, machine in self._machines.items()}

    def flush(self) -> list[tuple[TopicId, list[Effect]]]:
        """Say what was put off, in every topic that has something to say."""
        return [
            (topic, self.handle(topic, Flush()))
            for topic, machine in list(self._machines.items())
            if machine.has_to_flush
        ]

    def persist_deferred(self) -> list[tuple[TopicId, list[Effect]]]:
        """Keep all that has arrived, in every topic."""
        return [(topic, machine.persist_deferred()) for topic, machine in self._machines.items()]


class SupervisorTopics:
    """All topics of one supervisor; a topic exists while somebody wants something of it."""

    def __init__(self, *, config: ProtocolConfig) -> None:
        self._config = config
        self._machines: dict[TopicId, Supervisor] = {}

    def __contains__(self, topic: TopicId) -> bool:
        return topic in self._machines

    def __len__(self) -> int:
        return len(self._machines)

    def handle(self, topic: TopicId, event: Event) -> list[Effect]:
        """React to one event of one topic; the effects belong to the same topic."""
        machine = self._machines.get(topic)
        if machine is None:
            machine = Supervisor(config=self._config)
            if isinstance(event, Received):
                self._machines[topic] = machine
        effects = machine.handle(event)
        if machine.is_idle:
            self._machines.pop(topic, None)
        return effects

    def load(self, topic: TopicId, state: SupervisorState) -> None:
        """Take over the database of a topic, however wrong."""
        machine = self._machines[topic] = Supervisor(config=self._config)
        machine.load(state)

    def states(self) -> dict[TopicId, SupervisorState]:
        """The machines of all topics as values."""
        return {topic: machine.state() for topic, machine in self._machines.items()}

    def machine(self, topic: TopicId) -> Supervisor | None:
        """The machine of a topic that somebody wants something of."""
        return self._machines.get(topic)

    def machines(self) -> list[tuple[TopicId, Supervisor]]:
        """The machines of all topics."""
        return list(self._machines.items())

    def tick(self) -> list[tuple[TopicId, list[Effect]]]:
        """Run the periodic actions of every topic."""
        return [(topic, self.handle(topic, Tick())) for topic in list(self._machines)]

    def flush(self, topics: Iterable[TopicId]) -> list[tuple[TopicId, list[Effect]]]:
        """Answer those who wait in some topics."""
        machines = ((topic, self._machines.get(topic)) for topic in topics)
        return [
            (topic, self.handle(topic, Flush()))
            for topic, machine in machines
            if machine is not None and machine.has_to_flush
        ]
