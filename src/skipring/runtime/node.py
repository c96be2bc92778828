"""A node process: the subscriber's machines of all its topics, over sockets and an archive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Self

from skipring.core.archive import Archive, MemoryArchive
from skipring.core.effects import Confirmed, Deliver, Discard, Effect, Left, Send, Store
from skipring.core.events import (
    ConfirmRequested,
    PublishRequested,
    SubscribeRequested,
    UnsubscribeRequested,
)
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.state import SubscriberState
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.errors import StorageError
from skipring.runtime.addresses import AddressBook
from skipring.runtime.detector import Watch
from skipring.runtime.driver import Driver
from skipring.runtime.links import Links
from skipring.runtime.settings import Settings
from skipring.runtime.ticker import Ticker
from skipring.storage.archive import StoredArchive
from skipring.storage.publications import PublicationStore
from skipring.wire.codec import Envelope
from skipring.wire.greeting import Greeting, Role
from skipring.wire.runtime_messages import (
    Address,
    Probe,
    ProbeReply,
    Publish,
    Published,
    Refused,
    ReportSilent,
    RuntimeMessage,
    WireMessage,
)

LATE: Final = 2  # Our guess: whose own clock stood still for so many ticks accuses nobody.

WritableArchive = MemoryArchive | StoredArchive
Deliverer = Callable[[TopicId, Deliver], None]
Confirmer = Callable[[TopicId, Confirmed], None]


class Node:
    """One node over sockets, with its publications in memory or in a store."""

    def __init__(
        self,
        name: NodeId,
        settings: Settings,
        *,
        rng: Random,
        deliver: Deliverer,
        store: PublicationStore | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._deliver = deliver
        self._archives: dict[TopicId, WritableArchive] = {}
        self.on_confirmed: Confirmer | None = None  # who wants to hear of confirmations
        self._topics = SubscriberTopics(
            name, rng=rng, config=settings.config, open_archive=self._open_archive
        )
        book = AddressBook()
        self._driver = Driver(
            self._topics,
            node=name,
            book=book,
            supervisors=settings.supervisors,
            keep=self._keep,
            answer=self._on_runtime_message,
        )
        self._watch = Watch()
        self._tick_s = settings.tick_s
        self._last_tick: float | None = None
        greeting = Greeting(node=name, address="", role=Role.NODE)
        self.links = Links(greeting, book, self._receive, rng)
        self._driver.links = self.links
        self._tickers = (
            Ticker(self._tick, settings.tick_s, rng),
            Ticker(self._flush, settings.flush_s, rng),
        )
        self.address: Address = ""
        self._left: dict[TopicId, asyncio.Event] = {}
        self._commit: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # of publishing for others

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 picks a free one."""
        self.address = await self.links.listen(host, port)
        for ticker in self._tickers:
            ticker.start()
        return self

    # -- what the application wants ----------------------------------------------------------

    def subscribe(self, topic: TopicId) -> None:
        """Become a member of a topic."""
        self._driver.give(topic, SubscribeRequested())

    async def unsubscribe(self, topic: TopicId, timeout_s: float) -> bool:
        """Leave a topic; True if the supervisor has let us go in time."""
        left = self._left.setdefault(topic, asyncio.Event())
        self._driver.give(topic, UnsubscribeRequested())
        try:
            async with asyncio.timeout(timeout_s):
                await left.wait()
        except TimeoutError:
            return False
        finally:
            self._left.pop(topic, None)
        return True

    async def publish(self, topic: TopicId, event: PublishRequested) -> bytes:
        """Publish in a topic we are in; return the id once it is durable here, then spread it."""
        effects = self._topics.handle(topic, event)
        stored = [effect.publication for effect in effects if isinstance(effect, Store)]
        self._driver.perform(topic, [e for e in effects if not isinstance(e, Send)])
        await self._durable()
        self._driver.perform(topic, [e for e in effects if isinstance(e, Send)])
        return stored[0].id if stored else b""

    def confirm(self, topic: TopicId) -> None:
        """Ask the ring neighbours in a topic whether they have all that we have (T19)."""
        self._driver.give(topic, ConfirmRequested())

    async def close(self) -> None:
        """Stop at once, as a crash would, but leave the store in order."""
        for ticker in self._tickers:
            ticker.stop()
        await self.links.close()
        if self._store is not None:
            await self._durable()

    # -- time and messages ---------------------------------------------------------------------

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage]) -> None:
        self._watch.hear(envelope.topic, sender)
        self._driver.receive(sender, envelope)

    def _on_runtime_message(self, sender: NodeId, topic: TopicId, message: RuntimeMessage) -> None:
        match message:
            case Probe(nonce=nonce) if sender == SUPERVISOR:
                self._driver.say(topic, SUPERVISOR, ProbeReply(nonce))
            case Publish():
                task = asyncio.get_running_loop().create_task(
                    self._publish_for(sender, topic, message)
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case _:
                pass  # an answer to nobody

    async def _publish_for(self, sender: NodeId, topic: TopicId, message: Publish) -> None:
        """Publish for one that is no member, and say so once it is durable."""
        given = message.publication
        if topic not in self._topics or given.payload is None:
            self._driver.say(topic, sender, Refused(message.request, "not a member of the topic"))
            return
        event = PublishRequested(
            payload=given.payload,
            time=given.time,
            key=given.key,
            headers=given.headers,
            publisher=given.publisher,
            seq=given.seq,
        )
        try:
            await self.publish(topic, event)
        except StorageError as error:
            self._driver.say(topic, sender, Refused(message.request, str(error)))
            return
        key = given.id_in(topic)
        offset = self._topics.offset_of(topic, key)
        self._driver.say(topic, sender, Published(message.request, key, offset or 0))

    def _tick(self) -> None:
        """Run the machines, and report neighbours that have gone silent (section 3.3)."""
        now = asyncio.get_running_loop().time()
        is_late = self._last_tick is None or now - self._last_tick > LATE * self._tick_s
        self._last_tick = now
        self._driver.tick()
        for topic, node in self._watch.tick(self._topics.ring_neighbours(), is_late=is_late):
            self._driver.say(topic, SUPERVISOR, ReportSilent(node))

    # -- effects -----------------------------------------------------------------------------

    def _open_archive(self, topic: TopicId) -> Archive:
        store = self._store
        self._archives[topic] = MemoryArchive() if store is None else store.archive(topic)
        return self._archives[topic]

    def _keep(self, topic: TopicId, effect: Effect) -> None:
        match effect:
            case Store(offset=offset, publication=publication):
                self._archives[topic].write(offset, publication)
            case Discard(offset=offset):
                self._archives[topic].discard(offset)
            case Deliver():
                self._deliver(topic, effect)
            case Left():
                if topic in self._left:
                    self._left[topic].set()
            case Confirmed():
                if self.on_confirmed is not None:
                    self.on_confirmed(topic, effect)
            case Send():
                pass

    def _flush(self) -> None:
        """Say what was put off, and make durable what has come meanwhile."""
        self._driver.perform_all(self._topics.flush())
        if self._store is not None and self._store.unwritten:
            self._start_commit()

    # -- durability --------------------------------------------------------------------------

    async def _durable(self) -> None:
        """Wait until everything written up to now is on the disk; those who wait share a commit."""
        if self._store is None:
            return
        if self._commit is not None:
            await asyncio.wait([self._commit])  # it may have begun before our write
        while self._store.unwritten:
            # Whoever gives up waiting must not end the commit: others wait for it too.
            await asyncio.shield(self._start_commit())

    def _start_commit(self) -> asyncio.Task[None]:
        if self._commit is None or self._commit.done():
            self._commit = asyncio.get_running_loop().create_task(self._run_commit())
        return self._commit

    async def _run_commit(self) -> None:
        assert self._store is not None
        try:
            await asyncio.to_thread(self._store.commit)
        except StorageError:
            self.links.counts["commit failed"] += 1
            raise

    # -- what can be seen --------------------------------------------------------------------

    def machine(self, topic: TopicId) -> Subscriber | None:
        """The machine of a topic we are in, to be looked at only."""
        return self._topics.machine(topic)

    def states(self) -> Mapping[TopicId, SubscriberState]:
        """The machines of all topics as values."""
        return self._topics.states()
