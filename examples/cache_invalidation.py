"""Cache invalidation: a writer that changes a row invalidates it in every cache.

    python examples/cache_invalidation.py                               # starts a ring
    python examples/cache_invalidation.py --supervisor 127.0.0.1:7400   # joins a running ring

Three caches serve rows of one database. A writer changes rows and publishes their keys. A cache
queries the database only for rows that it does not have, and serves no old row after it has
received the change. It receives every change: neighbours send a node the publications it missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import skipring
from skipring.testing import Cluster

TOPIC = "prices-changed"
PRICES = {"tea": 4, "coffee": 6, "cocoa": 5}


class Cache:
    """Cache of database rows; a published change invalidates a row."""

    def __init__(self, name: str, database: sqlite3.Connection) -> None:
        self.name = name
        self.queries = 0  # to the database
        self._database = database
        self._rows: dict[str, int] = {}
        self._applied: set[bytes] = set()  # ids of changes
        self._news = asyncio.Condition()

    def price(self, item: str) -> int:
        """Return the price of an item; no other task runs between query and caching."""
        if item not in self._rows:
            self.queries += 1
            query = "SELECT price FROM prices WHERE item = ?"
            (self._rows[item],) = self._database.execute(query, (item,)).fetchone()
        return self._rows[item]

    async def follow(self, changes: skipring.Subscription) -> None:
        """Drop changed rows until the subscription ends."""
        async for change in changes:
            async with self._news:
                self._rows.pop(change.key.decode(), None)
                self._applied.add(change.id)
                self._news.notify_all()

    async def wait_for(self, changes: set[bytes]) -> None:
        """Wait until the cache has applied the changes."""
        async with self._news:
            await self._news.wait_for(lambda: changes <= self._applied)


@asynccontextmanager
async def running(cache: Cache, url: str, tick_s: float) -> AsyncIterator[Cache]:
    """Subscribe a cache to the topic; it starts empty and needs no earlier changes."""
    async with (
        skipring.connect(url, tick_s=tick_s, name=cache.name) as node,
        node.subscribe(TOPIC, start="new") as changes,
        asyncio.TaskGroup() as tasks,
    ):
        await changes.synced(timeout=60)
        following = tasks.create_task(cache.follow(changes))
        try:
            yield cache
        finally:
            following.cancel()


async def run(url: str, tick_s: float) -> None:
    """Fill three caches, change two prices, and read all prices again."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE prices (item TEXT PRIMARY KEY, price INTEGER)")
    database.executemany("INSERT INTO prices VALUES (?, ?)", PRICES.items())
    caches = [Cache(f"cache-{number}", database) for number in (1, 2, 3)]
    async with AsyncExitStack() as stack:
        for cache in caches:
            await stack.enter_async_context(running(cache, url, tick_s))
        writer = await stack.enter_async_context(skipring.connect(url, tick_s=tick_s))
        changes = await stack.enter_async_context(writer.subscribe(TOPIC))
        print("before:", [[cache.price(item) for item in PRICES] for cache in caches])

        published = set()
        for item, price in (("tea", 5), ("cocoa", 7)):
            database.execute("UPDATE prices SET price = ? WHERE item = ?", (price, item))
            # Publish after the update: before it, a cache could read the old row again.
            published.add(await changes.publish(b"", key=item.encode()))
            print(f"writer: {item} costs {price} now")
        async with asyncio.timeout(60):
            for cache in caches:
                await cache.wait_for(published)

        print("after: ", [[cache.price(item) for item in PRICES] for cache in caches])
        print(
            "queries:",
            [cache.queries for cache in caches],
            "(three at first, two after the changes)",
        )


async def main() -> None:
    options = argparse.ArgumentParser(description="Cache invalidation.")
    options.add_argument("--supervisor", metavar="HOST:PORT", help="a running supervisor")
    supervisor = options.parse_args().supervisor
    if supervisor is not None:
        await run(f"skipring://{supervisor}", tick_s=1.0)
        return
    async with Cluster(n=0, tick_s=0.1) as ring:  # only a supervisor; the caches are the members
        await run(ring.url, tick_s=0.1)


if __name__ == "__main__":
    asyncio.run(main())
