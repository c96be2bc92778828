"""Subscription to one topic of a connection: read, publish, health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from time import time_ns
from types import TracebackType
from typing import Final, Self, cast

from msgspec import Struct

from skipring.api.cursor import Cursor
from skipring.api.reader import READ_AT_ONCE, Publication
from skipring.api.topic_session import Health, TopicSession
from skipring.core.batches import RECORDS_MAX, RESERVED, BatchRecord, check_record
from skipring.core.limits import PAYLOAD_BYTES_MAX
from skipring.core.peers import TopicId
from skipring.errors import InputError, MessageError, SkipringError, StorageError
from skipring.node.publisher import REPLICAS_TIMEOUT_S
from skipring.observability.clock import BEFORE_1970, publication_time_us
from skipring.order.gaps import Gap, GapLog

# Guess: after this many bytes a publisher yields, so that connections can write; their queues hold
# 64 times as much.
PUBLISHED_AT_ONCE_BYTES: Final = 1 << 18
PUBLICATION_BYTES_MIN: Final = 1 << 12  # Guess: the overhead of a small publication.
READ_MANY: Final = 1024  # Guess: enough to spread the cost of a call.


class Record(Struct, frozen=True):
    """Input of ``publish_many``: a payload with its key and headers.

    >>> Record(b"a book", key=b"42", headers={"src": "web"}).key
    b'42'
    """

    payload: bytes
    key: bytes | None = None
    headers: Mapping[str, str] | None = None


class Subscription:
    """One topic: an iterator over its publications, and the methods to publish in it.

    The iterator has a position in the log of the node and reads at its own speed. A single reader
    gets every publication; several readers share them.

    >>> import asyncio, skipring
    >>> from skipring.testing import Cluster
    >>> async def scene() -> list[bytes]:
    ...     async with (
    ...         Cluster(n=2, topic="orders") as cluster,
    ...         skipring.connect(cluster.url, tick_s=0.05) as node,
    ...         node.subscribe("orders") as orders,
    ...     ):
    ...         await orders.publish(b"one", key=b"42", headers={"src": "web"})
    ...         await orders.synced(timeout=30)
    ...         return [orders.health().state.value, (await anext(orders)).payload]
    >>> asyncio.run(scene())
    ['stable', b'one']
    """

    def __init__(self, topic_session: TopicSession) -> None:
        self._session = topic_session
        self._topic = topic_session.topic
        self._published_bytes = 0  # since the last yield to the loop

    @property
    def topic(self) -> TopicId:
        """Return the topic."""
        return self._topic

    async def __aenter__(self) -> Self:
        await self._session.open()
        self._host = self._session.host
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.leave()

    async def leave(self) -> bool:
        """Leave the topic; return True if the supervisor confirms within five seconds.

        Before that, hand over the publications: wait until one remaining member has confirmed
        them, for at most ``drain_s`` of the connection.
        """
        return await self._session.leave()

    # -- publishing --------------------------------------------------------------------------

    async def publish(
        self,
        payload: bytes,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        replicas: int = 0,
        timeout: float = REPLICAS_TIMEOUT_S,  # noqa: ASYNC109  (for replicas only)
    ) -> bytes:
        """Publish; return the id once it is stored here. No other node needs to be reachable.

        With ``replicas`` return once that number of other members has stored it durably. Raise
        ReplicationError, which states how many have, if that takes longer than ``timeout`` or the
        topic has fewer other members with a disk. Raise StorageError if the disk fails: if
        ``may_be_published`` is True, other members may have the publication, and ``retry`` sends
        the same one again. Raise InputError, and publish nothing, if an argument is too large or
        of the wrong type.
        """
        if not self._session.is_open:
            self._session.check_open()
        if type(replicas) is not int or replicas < 0:
            raise InputError(
                f"expected a number of members, 0 or more, got {replicas!r}", parameter="replicas"
            )
        (made,) = await self._publish([self._record(payload, key, headers)])
        if replicas:
            await self._host.replications.reached(self._topic, made, replicas, timeout)
        return made

    async def publish_many(self, records: Iterable[bytes | Record]) -> list[bytes]:
        """Publish payloads or records in order; return their ids once they are stored here.

        Up to 256 of them share a batch, a commit and a message: for many small ones this costs a
        fraction of ``publish``. A member has all records of a batch or none. Raise InputError with
        the index of the first invalid record, and publish nothing. Raise StorageError if the disk
        fails: its ``ids`` are those of the records that were sent.
        """
        self._session.check_open()
        if not isinstance(records, Iterable):
            raise InputError(
                f"expected an iterable of payloads or records, got {type(records).__name__}",
                parameter="records",
            )
        made: list[bytes] = []
        now = publication_time_us()
        checked = [
            BatchRecord(record, now)
            if type(record) is bytes and len(record) <= PAYLOAD_BYTES_MAX
            else self._record_at(index, record)
            for index, record in enumerate(records)
        ]
        for start in range(0, len(checked), RECORDS_MAX):
            try:
                made += await self._publish(checked[start : start + RECORDS_MAX])
            except StorageError as error:
                raise type(error)(str(error), ids=(*made, *error.ids)) from error
        return made

    async def retry(self, error: StorageError) -> list[bytes]:
        """Send the publications of a failed call again; return their ids once they are durable.

        They keep their ids, so no member gets one twice. After a failed ``publish_many`` the ids
        are those of the first records; publish the other records afterwards. Raise InputError if
        ``may_be_published`` is False: the call sent nothing, so publish again. Raise StorageError
        if the disk still fails.
        """
        self._session.check_open()
        if not error.may_be_published:
            raise InputError("the failed call sent nothing; publish again", parameter="error")
        await self._host.resend(self._topic, error.ids)
        return list(error.ids)

    def _record_at(self, index: int, record: bytes | Record) -> BatchRecord:
        try:
            if isinstance(record, Record):
                return self._record(record.payload, record.key, record.headers)
            return self._record(record)
        except InputError as error:
            raise InputError(str(error), parameter=f"records[{index}]") from None

    def _record(
        self, payload: bytes, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> BatchRecord:
        """Return a validated record; the node does not validate it again."""
        now = time_ns() // 1000
        if now < 0:
            raise SkipringError(BEFORE_1970)
        is_plain = type(payload) is bytes and key is None and not headers
        if is_plain and len(payload) <= PAYLOAD_BYTES_MAX:
            return BatchRecord(payload, now)
        encoded = None if key is None else _as_bytes(key, "key")
        if encoded is not None and encoded.startswith(RESERVED):
            raise InputError("keys that start with a zero byte are reserved", parameter="key")
        record = BatchRecord(
            _as_bytes(payload, "payload"),
            now,
            encoded,
            _as_headers(headers or {}),
        )
        try:
            check_record(record)
        except MessageError as error:
            raise InputError(str(error)) from None
        return record

    async def _publish(self, records: Sequence[BatchRecord]) -> list[bytes]:
        made = await self._host.publish(self._topic, *records)
        self._published_bytes += sum(
            [PUBLICATION_BYTES_MIN + len(each.payload) for each in records]
        )
        if self._published_bytes >= PUBLISHED_AT_ONCE_BYTES:
            self._published_bytes = 0
            await asyncio.sleep(0)  # without a disk no other await yields to the loop
        return made

    # -- reading -----------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Publication]:
        return self

    async def __anext__(self) -> Publication:
        """Return the next publication in the order of the subscription."""
        if not self._session.is_open:
            self._session.check_opened()
        publication = await self._session.reader.next()
        if publication is None:
            raise StopAsyncIteration
        return publication

    async def with_gaps(self) -> AsyncIterator[Publication | Gap]:
        """Yield publications and, in the order of publishers, gaps before those after them."""
        self._session.check_opened()
        while (item := await self._session.reader.next_item()) is not None:
            yield item

    @property
    def gaps(self) -> GapLog:
        """Return the number of gaps and late publications so far, and the last gaps."""
        return self._session.reader.gaps

    async def read(self, timeout: float | None = None) -> Publication | None:  # noqa: ASYNC109  (None, no error)
        """Return the next publication; None after the timeout or when the topic was left."""
        self._session.check_opened()
        return await self._session.reader.next(timeout)

    async def read_many(
        self,
        limit: int = READ_MANY,
        timeout: float | None = None,  # noqa: ASYNC109  (an empty list, no error)
    ) -> list[Publication]:
        """Wait for a publication, then return all available ones, up to a limit.

        Return an empty list after the timeout or when the topic was left.
        """
        check_limit(limit)
        self._session.check_opened()
        reader = self._session.reader
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while await reader.arrival(deadline):
            if found := reader.fetch(limit):
                return found
        return []

    async def read_available(self, limit: int | None = None) -> list[Publication]:
        """Return the available unread publications, at most ``limit`` of them."""
        self._session.check_opened()
        reader, end = (
            self._session.reader,
            self._session.reader.end,
        )  # later arrivals belong to the next call
        found: list[Publication] = []
        while reader.is_available(end) and len(found) != limit:
            found += reader.fetch(READ_AT_ONCE if limit is None else limit - len(found), end)
            await asyncio.sleep(0)
        return found

    @property
    def lag(self) -> int:
        """Return the number of publications that are stored here and unread.

        With a datetime as start, publications that were stored before count until the reader
        reaches them.
        """
        return self._session.reader.lag

    @property
    def expired(self) -> int:
        """Return the number of publications that the policy removed before they were read here."""
        return self._session.reader.expired

    def cursor(self) -> Cursor:
        """Return the position after the last publication that was handed out, to start there again.

        It is never beyond the durable mark: after a crash a reader may get the last few
        publications again, and misses none. Raise CursorError if the node keeps its publications in
        memory.
        """
        return self._session.cursor()

    # -- health ------------------------------------------------------------------------------

    async def synced(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  (the error has a reason)
        """Wait until every ring neighbour has confirmed that it is in sync.

        Raise TimeoutError, which names the missing neighbours, if that takes longer.
        """
        self._session.check_open()
        await self._session.synced(timeout)

    def health(self) -> Health:
        """Return the current state of the subscription and its reasons."""
        return self._session.health()


def check_limit(limit: int) -> None:
    """Raise InputError for a limit below 1."""
    if limit < 1:
        raise InputError(f"expected 1 or more, got {limit}", parameter="limit")


def _as_bytes(value: object, parameter: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InputError(f"expected bytes, got {type(value).__name__}", parameter=parameter)
    return bytes(value)


def _as_headers(headers: object) -> dict[str, str]:
    if isinstance(headers, Mapping):
        given = dict(headers)
        if all(isinstance(text, str) for item in given.items() for text in item):
            return cast("dict[str, str]", given)
    raise InputError("expected a mapping from text to text", parameter="headers")
