"""Blocking connection and subscription."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from threading import Lock
from time import monotonic
from typing import Final, ParamSpec, Self, TypeVar

from skipring.api.charter import TopicCharter as AsyncTopicCharter
from skipring.api.cursor import Cursor, Start
from skipring.api.key_value_session import KeyValueSession
from skipring.api.keyvalue import BYTES
from skipring.api.keyvalue import KeyValue as AsyncKeyValue
from skipring.api.ordered_reader import Item, OrderedReader, order_plan
from skipring.api.reader import Publication, Reader
from skipring.api.session import Session, new_session
from skipring.api.subscription import READ_MANY, Record, check_limit
from skipring.api.subscription import Subscription as AsyncSubscription
from skipring.api.topic_session import Health, TopicSession, checked_topic
from skipring.blocking.charter import TopicCharter
from skipring.blocking.keyvalue import KeyValue
from skipring.blocking.loop_thread import LoopThread
from skipring.core.peers import NodeId, TopicId
from skipring.errors import StorageError
from skipring.node.publisher import REPLICAS_TIMEOUT_S
from skipring.order.gaps import Gap, GapLog

READ_AHEAD: Final = 16  # Guess: saves most of the cost of waking another thread.

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Connection:
    """Node of this process in the rings of the subscribed topics; returned by ``connect``.

    Several threads can use it at once. Without a ``with`` block, as in a notebook, use ``open`` and
    ``close``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = LoopThread(session)

    @property
    def name(self) -> NodeId:
        """Return the name of the node; empty until opened if it is stored in the directory."""
        return self._session.name

    def open(self) -> Self:
        """Connect; raise SkipringError if it was open before."""
        self._thread.start()
        return self

    def close(self) -> int:
        """Leave all topics and stop; return how many publications no other member has confirmed.

        This takes a bounded time. A second call does nothing.
        """
        self._thread.stop()
        return self._thread.unconfirmed

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def subscribe(
        self,
        topic: TopicId,
        start: Start = "all",
        *,
        order: str = "arrival",
        wait: float | None = None,
        late: str = "mark",
    ) -> Subscription:
        """Return a subscription to a topic; its ``with`` block joins and leaves the ring.

        The arguments are those of ``skipring.Connection.subscribe``. Raise CursorError if a cursor
        does not point into the data directory of this connection.
        """
        plan = order_plan(order, wait_s=wait, late=late, tick_s=self._session.settings.tick_s)
        ahead = _ReadAhead()
        make = partial(
            TopicSession, self._session, topic, start, plan, unread=ahead.items, prefix=""
        )
        found = self._thread.run(make) if self._thread.is_running else make()
        return Subscription(self._thread, found, ahead)

    def charter(self, topic: TopicId) -> TopicCharter:
        """Return the charter of a topic: its limits by age, number and size, and compaction."""
        return TopicCharter(self._thread, AsyncTopicCharter(self._session, checked_topic(topic)))

    def keyvalue(self, topic: TopicId) -> KeyValue[bytes]:
        """Return a key-value view of a topic; its ``with`` block joins and leaves the ring."""
        make = partial(TopicSession, self._session, topic, "all", prefix="")
        found = self._thread.run(make) if self._thread.is_running else make()
        return KeyValue(self._thread, AsyncKeyValue(KeyValueSession(found), BYTES))


def _left_s(deadline: float | None) -> float | None:
    """Return the time until a deadline; None if there is none."""
    return None if deadline is None else max(deadline - monotonic(), 0)


class _ReadAhead:
    """Publications and gaps that the loop has read and that are not handed out yet.

    The lock is held from reading to appending: no thread sees a publication that is in neither
    place.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[Item]:
        """Return the publications and gaps."""
        with self._lock:
            return list(self._items)

    def fill(self, reader: Reader | OrderedReader, limit: int, end: int | None = None) -> None:
        """Read available publications before an offset, until ``limit`` are buffered."""
        with self._lock:
            self._items += reader.fetch_items(limit - len(self._items), end)

    def hand_out(self, reader: Reader | OrderedReader, limit: int | None) -> list[Item]:
        """Remove and return up to ``limit`` of them; none after the topic was left."""
        with self._lock:
            if not reader.is_open:
                return []
            buffered = self._items
            count = len(buffered) if limit is None else min(limit, len(buffered))
            return [buffered.popleft() for _ in range(count)]


class Subscription:
    """One topic: an iterator over its publications, and the methods to publish in it."""

    def __init__(self, thread: LoopThread, topic_session: TopicSession, ahead: _ReadAhead) -> None:
        self._thread = thread
        self._session = topic_session
        self._subscription = AsyncSubscription(topic_session)
        self._ahead = ahead

    @property
    def topic(self) -> TopicId:
        """Return the topic."""
        return self._session.topic

    def open(self) -> Self:
        """Join the ring of the topic."""
        self._thread.call(self._subscription.__aenter__)
        return self

    def close(self) -> None:
        """Leave the topic in a bounded time; a second call does nothing."""
        if self._thread.is_running:  # otherwise closing the connection has left it
            self._thread.call(self._subscription.leave)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(
        self,
        payload: bytes,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        replicas: int = 0,
        timeout: float = REPLICAS_TIMEOUT_S,
    ) -> bytes:
        """Publish; return the id once it is stored here. No other node needs to be reachable.

        With ``replicas`` return once that number of other members has stored it durably. Raise
        ReplicationError, which states how many have, if that takes longer than ``timeout``.
        """
        self._session.check_opened()
        publish = self._subscription.publish
        return self._thread.call(publish, payload, key, headers, replicas=replicas, timeout=timeout)

    def publish_many(self, records: Iterable[bytes | Record]) -> list[bytes]:
        """Publish payloads or records in order; return their ids once they are stored here.

        Raise InputError with the index of the first invalid one, and publish nothing.
        """
        self._session.check_opened()
        return self._thread.call(self._subscription.publish_many, records)

    def retry(self, error: StorageError) -> list[bytes]:
        """Send the publications of a failed call again; return their ids once they are durable.

        They keep their ids, so no member gets one twice. Raise InputError if ``may_be_published``
        is False: the call sent nothing, so publish again. Raise StorageError if the disk still
        fails.
        """
        self._session.check_opened()
        return self._thread.call(self._subscription.retry, error)

    # -- reading -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Publication]:
        """Yield publications in the order of the subscription, until the topic is left."""
        while (publication := self.read()) is not None:
            yield publication

    def with_gaps(self) -> Iterator[Publication | Gap]:
        """Yield publications and, in the order of publishers, gaps before those after them."""
        self._session.check_opened()
        while (item := self._read_item(None)) is not None:
            yield item

    @property
    def gaps(self) -> GapLog:
        """Return the number of gaps and late publications so far, and the last gaps."""
        return self._session.reader.gaps

    def read(self, timeout: float | None = None) -> Publication | None:
        """Return the next publication; None after the timeout or when the topic was left."""
        self._session.check_opened()
        deadline = None if timeout is None else monotonic() + timeout
        item = self._read_item(deadline)
        while isinstance(item, Gap):
            item = self._read_item(deadline)
        return item

    def _read_item(self, deadline: float | None) -> Item | None:
        while not (found := self._ahead.hand_out(self._session.reader, 1)):
            if not self._thread.call(self._fill, READ_AHEAD, _left_s(deadline)):
                return None
            # Otherwise a publication arrived, unless it is skipped or another thread took it.
        return found[0]

    def read_many(self, limit: int = READ_MANY, timeout: float | None = None) -> list[Publication]:
        """Wait for a publication, then return all available ones, up to a limit.

        Return an empty list after the timeout or when the topic was left.
        """
        check_limit(limit)
        self._session.check_opened()
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if not self._thread.call(self._fill, limit, _left_s(deadline)):
                return []
            if found := self._hand_out(limit):
                return found

    def read_available(self, limit: int | None = None) -> list[Publication]:
        """Return the available unread publications, at most ``limit`` of them."""
        self._session.check_opened()
        self._thread.call(self._fill_available, limit)
        return self._hand_out(limit)

    async def _fill(self, limit: int, timeout_s: float | None) -> bool:
        """Buffer up to ``limit`` publications; return False on timeout or after leaving."""
        now = asyncio.get_running_loop().time()
        reader = self._session.reader
        deadline = None if timeout_s is None else now + timeout_s
        if not self._ahead and not await reader.arrival(deadline):
            return False
        self._ahead.fill(reader, limit)
        return reader.is_open

    async def _fill_available(self, limit: int | None) -> None:
        reader, end = self._session.reader, self._session.reader.end
        while reader.is_available(end):
            buffered = len(self._ahead)
            if limit is not None and buffered >= limit:
                return
            self._ahead.fill(reader, buffered + READ_AHEAD, end)
            await asyncio.sleep(0)

    def _hand_out(self, limit: int | None) -> list[Publication]:
        items = self._ahead.hand_out(self._session.reader, limit)
        return [each for each in items if isinstance(each, Publication)]

    @property
    def lag(self) -> int:
        """Return the number of publications that are stored here and unread."""
        return self.health().lag

    @property
    def expired(self) -> int:
        """Return the number of publications that the policy removed before they were read here."""
        return self._session.reader.expired

    def cursor(self) -> Cursor:
        """Return the position after the last publication handed out, to start there again."""
        if self._thread.is_running:
            return self._thread.run(self._session.cursor)
        return self._session.cursor()

    # -- health ------------------------------------------------------------------------------

    def synced(self, timeout: float = 30.0) -> None:
        """Wait until every ring neighbour has confirmed that it is in sync.

        Raise TimeoutError, which names the missing neighbours, if that takes longer.
        """
        self._session.check_opened()
        self._thread.call(self._subscription.synced, timeout)

    def health(self) -> Health:
        """Return the current state of the subscription and its reasons."""
        return self._thread.run(self._current_health)

    def _current_health(self) -> Health:
        health = self._session.health()
        return Health(health.state, health.reasons, health.lag + len(self._ahead))


# -- function of the application ---------------------------------------------------------------


def _blocking(make: Callable[_P, Session]) -> Callable[_P, Connection]:
    @wraps(make, assigned=(), updated=())  # for its parameters only
    def connect(*args: _P.args, **kwargs: _P.kwargs) -> Connection:
        """Return a connection to a cluster, for use in ``with``.

        The arguments are those of ``skipring.connect``. Raise InputError for an invalid argument.
        """
        return Connection(make(*args, **kwargs))

    return connect


connect = _blocking(new_session)
