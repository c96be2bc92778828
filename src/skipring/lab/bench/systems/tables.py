"""Clients of key-value stores: a view of skipring, and a bucket of NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from skipring.admin.inspector import TopicContents, open_inspector
from skipring.lab.bench.run import TOPIC

READY_S: Final = 60.0
TICK_S: Final = 1.0

Changes = AsyncIterator[tuple[str, bytes]]


class KeyValueClient(Protocol):
    """Client of a key-value store, in the form that both systems offer."""

    async def put(self, key: str, value: bytes) -> None:
        """Set the value of a key; return once it is stored."""

    async def put_many(self, pairs: Sequence[tuple[str, bytes]]) -> None:
        """Set the values of some keys, in the fastest way."""

    async def get(self, key: str) -> bytes:
        """Return the value of a key."""

    def changes(self) -> Changes:
        """Yield the present values, and then each change."""

    async def live_records(self) -> int:
        """Return the largest number of records that a server stores."""


class KeyValueSystem(NamedTuple):
    """Key-value store: how a client opens it, and subscribes to writes from now on."""

    opened: Callable[[str, Path], AbstractAsyncContextManager[KeyValueClient]]
    subscribed: Callable[[str, Path], AbstractAsyncContextManager[Changes]]


# -- skipring ----------------------------------------------------------------------------------


class _OurView:
    def __init__(self, view: Any, address: str) -> None:
        self._view = view
        self._address = address

    async def put(self, key: str, value: bytes) -> None:
        await self._view.put(key, value)

    async def put_many(self, pairs: Sequence[tuple[str, bytes]]) -> None:
        await self._view.put_many(pairs)

    async def get(self, key: str) -> bytes:
        return bytes(self._view.get(key).value)

    async def changes(self) -> Changes:
        async for change in self._view.watch():
            yield change.key, change.entry.value

    async def live_records(self) -> int:
        async with open_inspector([self._address], TOPIC) as inspector:
            found = await inspector.inspect(TopicContents.NOTHING)
        return max(each.count for each in found.statuses.values() if each.member)


@asynccontextmanager
async def our_view(address: str, directory: Path) -> AsyncIterator[KeyValueClient]:
    """Join a ring with a node of its own, and open a view."""
    import skipring

    async with (
        skipring.connect(address, data_dir=directory, tick_s=TICK_S, drain_s=0) as node,
        node.keyvalue(TOPIC) as view,
    ):
        await view.ready(READY_S)
        yield _OurView(view, address)


@asynccontextmanager
async def our_subscription(address: str, directory: Path) -> AsyncIterator[Changes]:
    """Join the ring with another node, and subscribe to the topic."""
    import skipring

    async with (
        skipring.connect(address, data_dir=directory, tick_s=TICK_S, drain_s=0) as node,
        node.subscribe(TOPIC, "new") as topic,
    ):
        await topic.synced(READY_S)
        yield ((str(each.key, "utf-8"), each.payload) async for each in topic if each.key)


RING: Final = KeyValueSystem(our_view, our_subscription)


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

    async def changes(self) -> Changes:
        watcher = await self._bucket.watchall()
        while True:
            entry = await watcher.updates(timeout=READY_S)
            if entry is not None:  # None marks the end of the present values
                yield entry.key, entry.value

    async def live_records(self) -> int:
        return int((await self._bucket.status()).values)


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


@asynccontextmanager
async def nats_subscription(address: str, _: Path) -> AsyncIterator[Changes]:
    """Subscribe to the stream of the bucket with another client."""
    import nats
    from nats.js.api import DeliverPolicy

    client = await nats.connect(f"nats://{address}")
    try:
        found = await client.jetstream().subscribe(
            "$KV.BENCH.>", ordered_consumer=True, deliver_policy=DeliverPolicy.NEW
        )
        yield ((each.subject, each.data) async for each in found.messages)
    finally:
        await client.close()


NATS: Final = KeyValueSystem(nats_bucket, nats_subscription)
