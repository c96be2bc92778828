"""Blocking key-value view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Self, TypeVar

from skipring.api.key_value_table import Change, Entry
from skipring.api.keyvalue import KeyValue as AsyncKeyValue
from skipring.api.keyvalue import KeyValueWatch
from skipring.blocking.loop_thread import LoopThread
from skipring.core.peers import TopicId

_V = TypeVar("_V")


class KeyValue(Generic[_V]):
    """Newest value of each key of a topic, as stored at this node."""

    def __init__(self, thread: LoopThread, view: AsyncKeyValue[_V]) -> None:
        self._thread = thread
        self._view = view

    @property
    def json(self) -> KeyValue[Any]:
        """Return the same view with values that are stored as JSON."""
        return KeyValue(self._thread, self._view.json)

    @property
    def topic(self) -> TopicId:
        """Return the topic."""
        return self._view.topic

    def open(self) -> Self:
        """Join the ring of the topic and read the stored values."""
        self._thread.call(self._view.__aenter__)
        return self

    def close(self) -> None:
        """Leave the topic in a bounded time; a second call does nothing."""
        if self._thread.is_running:  # otherwise closing the connection has left it
            self._thread.call(self._view.close)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: str | bytes) -> Entry[_V] | None:
        """Return the entry of a key, or None if it has no value; wait for no other thread."""
        return self._view.get(key)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys with a prefix, sorted."""
        return self._thread.run(partial(self._view.keys, prefix))

    def items(self, prefix: str = "") -> list[Entry[_V]]:
        """Return the entries of the keys with a prefix, sorted by key."""
        return self._thread.run(partial(self._view.items, prefix))

    def __len__(self) -> int:
        """Return the number of keys that have a value."""
        return self._thread.run(partial(len, self._view))

    def watch(self, key: str | bytes | None = None, *, prefix: str = "") -> Iterator[Change[_V]]:
        """Yield the present values, then the changes, of some keys, until the view is closed.

        A slow watcher skips intermediate values of a key, never the last one.
        """
        make = partial(self._view.watch, key, prefix=prefix)
        return self._changes(self._thread.run(make))

    def _changes(self, watch: KeyValueWatch[_V]) -> Iterator[Change[_V]]:
        while (change := self._thread.call(watch.next)) is not None:
            yield change

    def ready(self, timeout: float = 30.0) -> None:
        """Wait until both ring neighbours have confirmed that this node has all they have.

        Raise TimeoutError, which names the missing neighbours, if that takes longer.
        """
        self._thread.call(self._view.ready, timeout)

    def put(self, key: str | bytes, value: _V) -> bytes:
        """Set the value of a key; return the id of the publication once it is stored here."""
        return self._thread.call(self._view.put, key, value)

    def put_many(self, values: Mapping[str, _V] | Iterable[tuple[str | bytes, _V]]) -> list[bytes]:
        """Set the values of several keys, in order; return the ids once they are stored here."""
        return self._thread.call(self._view.put_many, values)

    def delete(self, key: str | bytes) -> bytes:
        """Delete a key; return the id of the tombstone once it is stored here."""
        return self._thread.call(self._view.delete, key)

    @contextmanager
    def lease(self, key: str | bytes, value: _V, *, ttl: float) -> Iterator[None]:
        """Hold a value for the time of a block; delete it at the end.

        If the process dies, every view deletes it ``ttl`` seconds after the last renewal.
        """
        lease = self._view.lease(key, value, ttl=ttl)
        self._thread.call(lease.__aenter__)
        try:
            yield
        finally:
            if self._thread.is_running:
                self._thread.call(lease.__aexit__, None, None, None)
