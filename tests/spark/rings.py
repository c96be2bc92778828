"""A live ring beside a Spark session: a whole cluster in a thread of the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from skipring.core.publications import Publication
from skipring.storage.store import PublicationStore
from skipring.testing import Cluster

TOPIC = "orders"
SETTLE_S = 60.0

Result = TypeVar("Result")


class Ring:
    """A cluster whose loop runs in another thread."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        self._loop = loop

    @property
    def supervisor(self) -> str:
        """Where its supervisor listens."""
        return self.cluster.url.removeprefix("skipring://")

    def store_of(self, node: str) -> str:
        """The id of a node's store."""
        return self.cluster._stores[node].id

    def position(self, node: str, offset: int) -> dict[str, object]:
        """A place in a node's store, as a user may give it."""
        archive = self.cluster._stores[node].archive(TOPIC)
        return {"store": self.store_of(node), "epoch": archive.epoch, "offset": offset}

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Let the cluster do something, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SETTLE_S)

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Let the cluster do something meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Callable[[], Result]) -> Result:
        """Call something in the cluster's thread."""

        async def called() -> Result:
            return work()

        return self.run(called())

    def publish(self, payloads: Iterable[bytes], node: str = "n00") -> None:
        """Publish at a node, one after the other."""
        self.run(self._publish(node, payloads))

    async def _publish(self, node: str, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            await self.cluster.publish(node, payload)

    def settle(self) -> None:
        """Wait until all members are in sync."""
        self.run(self.cluster.wait_healthy(timeout=SETTLE_S))


@contextmanager
def running_ring(
    n: int = 4, data_dir: Path | None = None, topic: str = TOPIC, *, tick_s: float | None = None
) -> Iterator[Ring]:
    """A ring that has formed; it ends with the block."""
    with running_loop() as loop:
        ring = Ring(Cluster(n, topic=topic, tick_s=tick_s, data_dir=data_dir), loop)
        ring.run(ring.cluster.__aenter__())
        try:
            ring.settle()
            yield ring
        finally:
            ring.run(ring.cluster.__aexit__(None, None, None))


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="ring")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def made(count: int, size_bytes: int = 100, publisher: str = "maker") -> list[Publication]:
    """Return publications with different payloads."""
    start = 1_700_000_000_000_000
    publications = (
        Publication(
            publisher=publisher,
            seq=seq,
            payload=f"{seq:08}".encode().ljust(size_bytes, b"."),
            key=f"k{seq % 10}".encode(),
            time=start + seq * 1000,
            headers={"source": "test"},
        )
        for seq in range(count)
    )
    return [publication.with_id(TOPIC) for publication in publications]


def fill(data_dir: Path, nodes: Iterable[str], publications: list[Publication]) -> None:
    """Put publications on the disks of nodes that do not run."""
    for node in nodes:
        with PublicationStore.open(data_dir / node) as store:
            archive = store.archive(TOPIC)
            for offset, publication in enumerate(publications):
                archive.write(offset, publication)
            store.commit()
