"""Key-value view of a topic: the newest value of each key, read without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import msgspec
from msgspec.structs import replace

from skipring.api.key_value_session import KeyValueSession
from skipring.api.key_value_table import Change, Entry, PendingChanges, text_of_key
from skipring.core.limits import shown
from skipring.core.peers import TopicId
from skipring.core.publications import DELETED
from skipring.errors import InputError, SkipringError

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
        if self._view.has_ended:
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
        self._view.check()
        self._view.expire()
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
