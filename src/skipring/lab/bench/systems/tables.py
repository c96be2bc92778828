"""Clients of key-value stores: a view of skipring, and a bucket of NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from skipring.lab.bench.run import TOPIC

READY_S: Final = 60.0
TICK_S: Final = 1.0


class KeyValueClient(Protocol):
    """Client of a key-value store, in the form that both systems offer."""

    async def put(self, key: str, value: bytes) -> None:
        """Set the value of a key; return once it is stored."""

    async def put_many(self, pairs: Sequence[tuple[str, bytes]]) -> None:
        """Set the values of some keys, in the fastest way."""

    async def get(self, key: str) -> bytes:
        """Return the value of a key."""

    def changes(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the present values, and then each change."""


# -- skipring ----------------------------------------------------------------------------------


class _OurView:
    def __init__(self, view: Any) -> None:
        self._view = view

    async def put(self, key: str, value: bytes) -> None:
        await self._view.put(key, value)

    async def put_many(self, pairs: Sequence[tuple[str, bytes]]) -> None:
        await self._view.put_many(pairs)

    async def get(self, key: str) -> bytes:
        return bytes(self._view.get(key).value)

    async def changes(self) -> AsyncIterator[tuple[str, bytes]]:
        async for change in self._view.watch():
            yield change.key, change.entry.value


@asynccontextmanager
async def our_view(address: str, directory: Path) -> AsyncIterator[KeyValueClient]:
    """Join a ring with a node of its own, and open a view."""
    import skipring

    async with (
        skipring.connect(address, data_dir=directory, tick_s=TICK_S, drain_s=0) as node,
        node.keyvalue(TOPIC) as view,
    ):
        await view.ready(READY_S)
        yield _OurView(view)


# -- NATS --------------------------------------------------------------------------------------


class _NatsBucket:
    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    async def put(self, key: str, value: bytes) -> None:
        await self._bucket.put(key, value)

    async def put_many(self, pairs: Sequence[tuple[str, bytes]]) -> None:
        await asyncio.gather(*(self._bucket.put(key, value) for key, value in pairs))

    async def get(self, key: str) -> bytes:
        return bytes((await self._bucket.get(key)).value)

    async def changes(self) -> AsyncIterator[tuple[str, bytes]]:
        watcher = await self._bucket.watchall()
        while True:
            entry = await watcher.updates(timeout=READY_S)
            if entry is not None:  # None marks the end of the present values
                yield entry.key, entry.value


@asynccontextmanager
async def nats_bucket(address: str, _: Path) -> AsyncIterator[KeyValueClient]:
    """Connect to the server, and open a bucket."""
    import nats
    from nats.js.api import StorageType

    client = await nats.connect(f"nats://{address}")
    stream = client.jetstream()
    try:
        bucket = await stream.create_key_value(bucket="BENCH", storage=StorageType.FILE)
        yield _NatsBucket(bucket)
    finally:
        await client.close()
