"""Key-value view of a topic: the newest value of each key, read without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from weakref import WeakSet

import msgspec
from msgspec.structs import replace

from skipring.api.charter import newest_charter, publish_policy, wait_for_charter
from skipring.api.key_value_table import (
    AFTER,
    UNTIL,
    Change,
    Entry,
    KeyValueTable,
    PendingChanges,
    bytes_of_key,
    text_of_key,
)
from skipring.api.reader import READ_AT_ONCE
from skipring.api.subscription import Record, Subscription
from skipring.api.topic_session import TopicSession
from skipring.core.limits import shown
from skipring.core.peers import TopicId
from skipring.core.publications import DELETED
from skipring.core.retention.charter import Policy
from skipring.errors import InputError, SkipringError

RENEWALS: Final = 3  # of a lease in its time: two of them may fail
MICROSECONDS: Final = 1_000_000
READ_RECORDS: Final = READ_AT_ONCE * 16  # Guess: about a millisecond of work
CLOCK_S: Final = 60.0  # Guess: the longest time until the view sees that its clock was set.

_V = TypeVar("_V")
_T = TypeVar("_T")


class Codec(msgspec.Struct, frozen=True):
    """Conversion between values of the application and payloads."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def entry(self, entry: Entry[bytes]) -> Entry[Any]:
        """Return an entry with its decoded value; raise SkipringError if that is impossible."""
        try:
            return replace(entry, value=self.decode(entry.value))
        except ValueError as error:
            raise SkipringError(
                f"the value of key {shown(entry.key)}, written by {entry.publisher}, "
                f"cannot be decoded: {error}"
            ) from None


def _as_bytes(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InputError(f"expected bytes, got {type(value).__name__}", parameter="value")
    return bytes(value)


def _as_json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"not representable in JSON: {error}", parameter="value") from None


BYTES: Final = Codec(_as_bytes, bytes)
JSON: Final = Codec(_as_json, msgspec.json.decode)


class KeyValue(Generic[_V]):
    """Newest value of each key of a topic, as stored at this node.

    Reading needs no ``await`` and no network. A write succeeds on an isolated node; of two writes
    the one with the higher revision wins at every member.

    >>> import asyncio, skipring
    >>> from skipring.testing import Cluster
    >>> async def scene() -> list[object]:
    ...     async with (
    ...         Cluster(n=2) as cluster,
    ...         skipring.connect(cluster.url, tick_s=0.05) as node,
    ...         node.keyvalue("settings") as settings,
    ...     ):
    ...         await settings.put("rate", b"10")
    ...         await settings.json.put("shop/open", True)
    ...         return [settings.get("rate").value, settings.json.get("shop/open").value]
    >>> asyncio.run(scene())
    [b'10', True]
    """

    def __init__(self, view: KeyValueSession, codec: Codec) -> None:
        self._view = view
        self._table = view.table
        self._codec = codec

    @property
    def json(self) -> KeyValue[Any]:
        """Return the same view with values that are stored as JSON."""
        return KeyValue(self._view, JSON)

    @property
    def topic(self) -> TopicId:
        """Return the topic."""
        return self._view.session.topic

    async def __aenter__(self) -> Self:
        await self._view.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the topic; watches end."""
        await self._view.close()

    # -- reading -----------------------------------------------------------------------------

    def get(self, key: str | bytes) -> Entry[_V] | None:
        """Return the entry of a key, or None if it has no value."""
        if self._view.task is None or self._view.task.done():
            self._view.check()
        entry = self._table.get(key if type(key) is str else text_of_key(key))
        if entry is None or (entry.until is not None and entry.until <= self._view.now_us()):
            return None
        return entry if self._codec is BYTES else self._codec.entry(entry)  # type: ignore[return-value]

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys with a prefix, sorted."""
        return [entry.key for entry in self._entries(prefix)]

    def items(self, prefix: str = "") -> list[Entry[_V]]:
        """Return the entries of the keys with a prefix, sorted by key."""
        return [self._codec.entry(entry) for entry in self._entries(prefix)]

    def __len__(self) -> int:
        """Return the number of keys that have a value."""
        return len(self._table)

    def _entries(self, prefix: str) -> list[Entry[bytes]]:
        self._view.check()
        self._view.expire()
        return self._table.entries(prefix)

    def watch(self, key: str | bytes | None = None, *, prefix: str = "") -> KeyValueWatch[_V]:
        """Return an iterator over the present values, then over the changes, of some keys.

        A slow watcher skips intermediate values of a key, never the last one. The revisions of a
        key only rise. The iterator ends when the view is closed.
        """
        if key is not None and prefix:
            raise InputError("give a key or a prefix, not both", parameter="prefix")
        self._view.check()
        return KeyValueWatch(
            self._view, self._codec, None if key is None else text_of_key(key), prefix
        )

    async def ready(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  (the error has a reason)
        """Wait until both ring neighbours have confirmed that this node has everything they have.

        Raise TimeoutError, which names the missing neighbours, if that takes longer.
        """
        self._view.check()
        await self._view.session.synced(timeout)
        await self._view.catch_up()

    # -- writing -----------------------------------------------------------------------------

    async def put(self, key: str | bytes, value: _V) -> bytes:
        """Set the value of a key; return the id of the publication once it is stored here.

        ``get`` then returns this value, or one with a higher revision. The errors are those of
        ``Subscription.publish``.
        """
        (made,) = await self._view.write([(key, self._codec.encode(value))], {})
        return made

    async def put_many(
        self, values: Mapping[str, _V] | Iterable[tuple[str | bytes, _V]]
    ) -> list[bytes]:
        """Set the values of several keys, in order; return the ids once they are stored here."""
        pairs = values.items() if isinstance(values, Mapping) else values
        encoded = [(key, self._codec.encode(value)) for key, value in pairs]
        return await self._view.write(encoded, {})

    async def delete(self, key: str | bytes) -> bytes:
        """Delete a key; return the id of the tombstone once it is stored here."""
        (made,) = await self._view.write([(key, b"")], {DELETED: "1"})
        return made

    @asynccontextmanager
    async def lease(self, key: str | bytes, value: _V, *, ttl: float) -> AsyncIterator[None]:
        """Hold a value for the time of a block; delete it at the end.

        The node renews the lease every third of ``ttl`` seconds. If its process dies, every view
        deletes the value ``ttl`` seconds after the last renewal.
        """
        if not ttl > 0:
            raise InputError(f"expected more than 0 s, got {ttl}", parameter="ttl")
        payload = self._codec.encode(value)
        await self._view.write_lease(key, payload, ttl)
        renewal = asyncio.create_task(self._view.renew(key, payload, ttl))
        try:
            yield
        finally:
            renewal.cancel()
            with suppress(asyncio.CancelledError):
                await renewal
            if not self._view.has_ended:
                await self.delete(key)


class KeyValueWatch(Generic[_V]):
    """Iterator over the values and changes of some keys; returned by ``KeyValue.watch``."""

    def __init__(self, view: KeyValueSession, codec: Codec, key: str | None, prefix: str) -> None:
        self._view = view
        self._codec = codec
        self._key = key
        self._prefix = prefix
        view.expire()
        entry = None if key is None else view.table.get(key)
        entries = view.table.entries(prefix) if key is None else [entry] if entry else []
        self._pending = PendingChanges(entries)
        self._arrived = asyncio.Event()
        view.watches.add(self)  # until the caller drops it

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[_V]:
        """Return the next change."""
        change = await self.next()
        if change is None:
            raise StopAsyncIteration
        return change

    async def next(self) -> Change[_V] | None:
        """Return the next change; None when the view is closed."""
        while (change := self._pending.pop_oldest()) is None:
            if self._view.has_ended:
                self._view.check_error()
                return None
            self._arrived.clear()
            await self._arrived.wait()
        entry, before = change.entry, change.before
        return Change(
            change.key,
            None if entry is None else self._codec.entry(entry),
            None if before is None else self._codec.entry(before),
            change.is_snapshot,
            change.concurrent,
        )

    def add(self, change: Change[bytes]) -> None:
        """Add a change of any key."""
        key = change.key
        if key.startswith(self._prefix) if self._key is None else key == self._key:
            self._pending.add(change)
            self._arrived.set()

    def wake_up(self) -> None:
        """Wake up the waiting caller: the view has ended."""
        self._arrived.set()


class KeyValueSession:
    """Table of a topic that one task keeps up to date, and its watches."""

    def __init__(self, session: TopicSession) -> None:
        self.session = session
        self.table = KeyValueTable()
        self.watches: WeakSet[KeyValueWatch[Any]] = WeakSet()
        self.task: asyncio.Task[None] | None = None
        self._subscription = Subscription(session)

    @property
    def has_ended(self) -> bool:
        """Return True if no change will arrive."""
        return self.task is None or self.task.done()

    def check(self) -> None:
        """Raise SkipringError if the view is not open."""
        self.session.check_open()
        self.check_error()

    def check_error(self) -> None:
        """Raise the error that ended the view."""
        task = self.task
        error = task.exception() if task and task.done() and not task.cancelled() else None
        if error is not None:
            raise SkipringError(f"the view of {shown(self.session.topic)} has ended") from error

    def now_us(self) -> int:
        """Return the time by which leases end."""
        return self.session.now_us()

    async def open(self) -> None:
        """Join the topic and read the stored publications."""
        await self._subscription.__aenter__()
        try:
            await self._ensure_compacted()
        except BaseException:
            await self._subscription.leave()
            raise
        self.task = asyncio.create_task(self._follow())
        await self.catch_up()

    async def _ensure_compacted(self) -> None:
        """Make an empty topic a compacted one; raise InputError if it has uncompacted records."""
        session = self.session
        machine = session.host.machine(session.topic)
        assert machine is not None, "a node that has subscribed has a machine"
        await wait_for_charter(session.connection, machine, is_enough_known=True)
        charter = newest_charter(machine)
        if charter is None and not machine.replica.log.records:
            await publish_policy(session.connection, machine, Policy(compact=True))
        elif charter is None or not charter.policy.compact:
            raise InputError(
                f"{shown(session.topic)} is not compacted, so old values of its keys would stay; "
                "set compact=True in its charter, or choose another topic",
                parameter="topic",
            )

    async def close(self) -> None:
        """Leave the topic; watches end."""
        try:
            await self._subscription.leave()
        finally:
            if self.task is not None:
                self.task.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(self.task, return_exceptions=True)
            for watch in list(self.watches):
                watch.wake_up()

    # -- reading -----------------------------------------------------------------------------

    async def _follow(self) -> None:
        reader = self.session.reader
        loop = asyncio.get_running_loop()
        while reader.is_open:
            await reader.arrival(loop.time() + self._wait_s())
            self._apply_available()
            self.expire()

    def _wait_s(self) -> float:
        """Return the time until the next lease ends."""
        end = self.table.next_expiry
        return CLOCK_S if end is None else min((end - self.now_us()) / MICROSECONDS, CLOCK_S)

    async def catch_up(self) -> None:
        """Apply the publications that are stored at the time of the call."""
        reader, end = self.session.reader, self.session.reader.end
        while reader.is_open and reader.offset < end:
            self._apply_available()
            await asyncio.sleep(0)

    def _apply_available(self) -> None:
        """Apply some unread publications; at an ``await`` each is either unread or applied."""
        now = self.now_us()
        for publication in self.session.reader.fetch(READ_RECORDS):
            if (change := self.table.apply(publication, now)) is not None:
                self._announce(change)

    def expire(self) -> None:
        """Delete the values whose lease has ended."""
        for change in self.table.expire(self.now_us()):
            self._announce(change)

    def _announce(self, change: Change[bytes]) -> None:
        for watch in self.watches:
            watch.add(change)

    # -- writing -----------------------------------------------------------------------------

    async def write(
        self, values: Iterable[tuple[str | bytes, bytes]], headers: Mapping[str, str]
    ) -> list[bytes]:
        """Publish writes and apply them; return their ids."""
        self.check()
        records = [self._record(key, payload, headers) for key, payload in values]
        made = await self._subscription.publish_many(records)
        await self.catch_up()
        return made

    def _record(self, key: str | bytes, payload: bytes, headers: Mapping[str, str]) -> Record:
        encoded = bytes_of_key(key)
        replaced = self.table.last_time(text_of_key(encoded))
        after = {} if replaced is None else {AFTER: str(replaced)}
        return Record(payload, encoded, {**headers, **after})

    async def write_lease(self, key: str | bytes, payload: bytes, ttl: float) -> None:
        """Publish a value with a lease that begins now."""
        until = self.now_us() + round(ttl * MICROSECONDS)
        await self.write([(key, payload)], {UNTIL: str(until)})

    async def renew(self, key: str | bytes, payload: bytes, ttl: float) -> None:
        """Renew a lease until cancelled; a failed renewal is tried again at the next one."""
        while True:
            await asyncio.sleep(ttl / RENEWALS)
            with suppress(SkipringError):
                await self.write_lease(key, payload, ttl)
