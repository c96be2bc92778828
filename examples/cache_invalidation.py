"""Cache invalidation: a writer that changes a row invalidates it in every cache.

    python examples/cache_invalidation.py                               # with a ring of its own
    python examples/cache_invalidation.py --supervisor 127.0.0.1:7400   # in a ring that runs

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
    """Rows of the database, cached until a change of them is published."""

    def __init__(self, name: str, database: sqlite3.Connection) -> None:
        self.name = name
        self.asked = 0  # queries to the database
        self._database = database
        self._rows: dict[str, int] = {}
        self._heard: set[bytes] = set()  # ids of changes
        self._news = asyncio.Condition()

    def price(self, item: str) -> int:
        """The price of an item; nothing else runs between asking for it and keeping it."""
        if item not in self._rows:
            self.asked += 1
            query = "SELECT price FROM prices WHERE item = ?"
            (self._rows[item],) = self._database.execute(query, (item,)).fetchone()
        return self._rows[item]

    async def follow(self, changes: skipring.Subscription) -> None:
        """Forget what has changed, for as long as the topic is followed."""
        async for change in changes:
            async with self._news:
                self._rows.pop(change.key.decode(), None)
                self._heard.add(change.id)
                self._news.notify_all()

    async def hears_of(self, changes: set[bytes]) -> None:
        """Wait until the cache has heard of some changes."""
        async with self._news:
            await self._news.wait_for(lambda: changes <= self._heard)


@asynccontextmanager
async def running(cache: Cache, url: str, tick_s: float) -> AsyncIterator[Cache]:
    """Let a cache follow the topic. It begins empty, so what was published before is no news."""
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


async def story(url: str, tick_s: float) -> None:
    """Warm caches, changed prices, and no old price anywhere."""
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
            # After the change, never before it: else a cache could fetch the old row again.
            published.add(await changes.publish(b"", key=item.encode()))
            print(f"writer: {item} costs {price} now")
        async with asyncio.timeout(60):
            for cache in caches:
                await cache.hears_of(published)

        print("after: ", [[cache.price(item) for item in PRICES] for cache in caches])
        print("rows asked for:", [cache.asked for cache in caches], "(three to begin, two since)")


async def main() -> None:
    options = argparse.ArgumentParser(description="Cache invalidation.")
    options.add_argument("--supervisor", metavar="HOST:PORT", help="a supervisor that runs")
    supervisor = options.parse_args().supervisor
    if supervisor is not None:
        await story(f"skipring://{supervisor}", tick_s=1.0)
        return
    async with Cluster(n=0, tick_s=0.1) as ring:  # only a supervisor: the caches are the ring
        await story(ring.url, tick_s=0.1)


if __name__ == "__main__":
    asyncio.run(main())
