"""A node process: the subscriber's machines of all its topics, over sockets and an archive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Self

from skipring.core.archive import Archive, MemoryArchive
from skipring.core.effects import Confirmed, Deliver, Discard, Effect, Left, Send, Store
from skipring.core.events import PublishRequested, SubscribeRequested, UnsubscribeRequested
from skipring.core.peers import NodeId, TopicId
from skipring.core.state import SubscriberState
from skipring.core.topics import SubscriberTopics
from skipring.errors import StorageError
from skipring.runtime.addresses import AddressBook
from skipring.runtime.driver import Driver
from skipring.runtime.links import Links
from skipring.runtime.settings import Settings
from skipring.runtime.ticker import Ticker
from skipring.storage.archive import StoredArchive
from skipring.storage.publications import PublicationStore
from skipring.wire.greeting import Greeting, Role

WritableArchive = MemoryArchive | StoredArchive
Deliverer = Callable[[TopicId, Deliver], None]


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
        self._topics = SubscriberTopics(
            name, rng=rng, config=settings.config, open_archive=self._open_archive
        )
        book = AddressBook()
        self._driver = Driver(
            self._topics, node=name, book=book, supervisors=settings.supervisors, keep=self._keep
        )
        greeting = Greeting(node=name, address="", role=Role.NODE)
        self.links = Links(greeting, book, self._driver.receive, rng)
        self._driver.links = self.links
        self._tickers = (
            Ticker(self._driver.tick, settings.tick_s, rng),
            Ticker(self._flush, settings.flush_s, rng),
        )
        self._left: dict[TopicId, asyncio.Event] = {}
        self._commit: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 picks a free one."""
        await self.links.listen(host, port)
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

    async def close(self) -> None:
        """Stop at once, as a crash would, but leave the store in order."""
        for ticker in self._tickers:
            ticker.stop()
        await self.links.close()
        if self._store is not None:
            await self._durable()

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
            case Confirmed() | Send():
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
            await self._start_commit()

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

    def states(self) -> Mapping[TopicId, SubscriberState]:
        """The machines of all topics as values."""
        return self._topics.states()
