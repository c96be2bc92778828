"""A supervisor process: lets subscribers in and out, and sees nothing of what they publish."""

from __future__ import annotations

from fnmatch import fnmatchcase
from random import Random
from typing import Self

from skipring.core.effects import Effect
from skipring.core.events import NodeSuspected
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.state import SupervisorState
from skipring.core.topics import SupervisorTopics
from skipring.errors import StorageError
from skipring.runtime.addresses import AddressBook
from skipring.runtime.detector import Detector
from skipring.runtime.driver import Driver
from skipring.runtime.links import Links
from skipring.runtime.settings import Settings
from skipring.runtime.ticker import Ticker
from skipring.storage.supervisor import SupervisorStore
from skipring.wire.codec import Envelope
from skipring.wire.greeting import Greeting, Role
from skipring.wire.runtime_messages import (
    Address,
    Locate,
    Members,
    Probe,
    ReportSilent,
    RuntimeMessage,
    WireMessage,
)


class SupervisorServer:
    """Serves the topics of one supervisor over sockets."""

    def __init__(
        self, settings: Settings, *, rng: Random, store: SupervisorStore | None = None
    ) -> None:
        self._store = store
        self._allowed = settings.allowed_topics
        self._topics = SupervisorTopics(config=settings.config)
        self._rng = rng
        book = self._book = AddressBook()
        self._driver = Driver(
            self._topics,
            node=SUPERVISOR,
            book=book,
            supervisors=(),
            keep=_nothing_to_keep,
            answer=self._on_runtime_message,
        )
        self._detector = Detector()
        greeting = Greeting(node=SUPERVISOR, address="", role=Role.SUPERVISOR)
        self.links = Links(greeting, book, self._receive, rng)
        self._driver.links = self.links
        self._ticker = Ticker(self._tick, settings.tick_s, rng)
        self.address: Address = ""

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 picks a free one. What the store remembers may be wrong: it is mended."""
        for topic, state in (self._store.load() if self._store is not None else {}).items():
            self._topics.load(topic, state)
        self.address = await self.links.listen(host, port)
        self._ticker.start()
        return self

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage]) -> None:
        self._detector.hear(sender)
        if self._allowed and not any(fnmatchcase(envelope.topic, glob) for glob in self._allowed):
            self.links.counts["topic not allowed"] += 1
            return
        self._driver.receive(sender, envelope)

    def _on_runtime_message(self, sender: NodeId, topic: TopicId, message: RuntimeMessage) -> None:
        match message:
            case ReportSilent(node=node):
                self._detector.report(topic, node, sender)
            case Locate(request=request, count=count):
                self._driver.say(topic, sender, Members(request, self._members(topic, count)))
            case _:
                pass  # an answer to nobody

    def _members(self, topic: TopicId, count: int) -> dict[NodeId, Address]:
        """Some members of a topic and where they listen, by chance."""
        machine = self._topics.machine(topic)
        nodes = list(machine.roster.nodes) if machine is not None else []
        chosen = self._rng.sample(nodes, min(count, len(nodes)))
        return self._book.hints(chosen)

    def _tick(self) -> None:
        """Run the machines, and look after those who were reported silent (section 3.3)."""
        self._driver.tick()
        self._detector.tick()
        for topic, node in self._detector.to_probe():
            self._driver.say(topic, node, Probe(0))
        for topic, node in self._detector.to_evict():
            self._driver.give(topic, NodeSuspected(node))
        self._remember()

    def _remember(self) -> None:
        """Keep the databases: a supervisor that comes back with them disturbs nobody."""
        if self._store is None:
            return
        try:
            for topic, state in self._topics.states().items():
                self._store.save(topic, state)
        except StorageError:
            self.links.counts["not stored"] += 1  # it may be lost: the ring tells it again

    def state(self, topic: TopicId) -> SupervisorState:
        """The database of a topic as a value."""
        machine = self._topics.machine(topic)
        return machine.state() if machine is not None else SupervisorState()

    async def close(self) -> None:
        """Stop serving."""
        self._ticker.stop()
        await self.links.close()


def _nothing_to_keep(topic: TopicId, effect: Effect) -> None:
    raise AssertionError(f"a supervisor only sends, in {topic} it wants {effect}")
