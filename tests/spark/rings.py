"""Live ring beside a Spark session: a cluster in a thread of the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log_messages import LogInfo
from skipring.core.publications import Publication
from skipring.net.access import Access
from skipring.spark.ring_client import RingClient
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog
from skipring.testing import Cluster

TOPIC = "orders"
WAIT_S = 60.0
SIZES = (1, 3, 1, 20, 1, 75)  # numbers of records in batches

Result = TypeVar("Result")


class Ring:
    """Cluster whose loop runs in another thread."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        self._loop = loop

    @property
    def supervisor(self) -> str:
        """Return the address of its supervisor."""
        return self.cluster.url.removeprefix("skipring://")

    def log_info(self, node: str, offset: int | None = None) -> LogInfo:
        """Return the state of a node's log, as a client sees it."""
        with RingClient(Access(supervisors=(self.supervisor,))) as client:
            found = client.survey_of(TOPIC, node, self.cluster.node(node).address, offset)
        assert found is not None
        return found.survey

    def store_of(self, node: str) -> str:
        """Return the id of a node's store."""
        return self.log_info(node).store

    def position(self, node: str, offset: int) -> dict[str, object]:
        """Return a place in a node's store, as a user may give it."""
        info = self.log_info(node)
        return {"store": info.store, "epoch": info.epoch, "offset": offset}

    def batches(self, node: str = "n00", start: int = 0) -> list[RecordBatch]:
        """Return the stored batches of a node from an offset on."""
        log = self.log_of(node)
        return self.call(lambda: [entry.batch for entry in log.read_range(start, log.end)])

    def publications(self, node: str = "n00", start: int = 0) -> list[Publication]:
        """Return the stored publications of a node; the offset is that of a batch."""
        return publications_of(self.batches(node, start))

    def log_of(self, node: str) -> SegmentLog:
        """Return the log of a node."""
        machine = self.cluster.node(node).machine(TOPIC)
        assert machine is not None
        assert isinstance(machine.replica.log, SegmentLog)
        return machine.replica.log

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop of the cluster, and wait for its result."""
        return self.begin(work).result(WAIT_S)

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine in the loop of the cluster."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Callable[[], Result]) -> Result:
        """Call a function in the thread of the cluster."""

        async def called() -> Result:
            return work()

        return self.run(called())

    def publish(self, payloads: Iterable[bytes], node: str = "n00") -> None:
        """Publish at a node, one payload after the other."""

        async def publish() -> None:
            for payload in payloads:
                await self.cluster.publish(node, payload)

        self.run(publish())

    def wait_in_sync(self) -> None:
        """Wait until all members have all publications."""
        self.run(self.cluster.wait_healthy(timeout=WAIT_S))

    def wait_durable(self) -> None:
        """Wait until all members have all publications on disk."""
        self.wait_in_sync()
        logs = [self.log_of(node) for node in self.cluster.nodes]
        self.wait_until(lambda: all(log.durable_end == log.end for log in logs))

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, checked in the thread of the cluster."""
        self.run(self.cluster.until(holds, timeout=WAIT_S))


@contextmanager
def running_ring(
    n: int = 4, data_dir: Path | None = None, topic: str = TOPIC, *, tick_s: float | None = None
) -> Iterator[Ring]:
    """Run a healthy ring during the block."""
    with running_loop() as loop:
        ring = Ring(Cluster(n, topic=topic, tick_s=tick_s, data_dir=data_dir), loop)
        ring.run(ring.cluster.__aenter__())
        try:
            ring.wait_in_sync()
            yield ring
        finally:
            ring.run(ring.cluster.__aexit__(None, None, None))


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in its own thread during the block."""
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


def made(
    count: int, size_bytes: int = 100, *, publisher: str = "maker", with_time: bool = True
) -> list[RecordBatch]:
    """Return this number of records with different payloads, in batches of different sizes."""
    start = 1_700_000_000_000_000
    records = [
        BatchRecord(
            payload=f"{seq:08}".encode().ljust(size_bytes, b"."),
            time=start + seq * 1000 if with_time else 0,
            key=f"k{seq % 10}".encode(),
            headers={"source": "test"},
        )
        for seq in range(count)
    ]
    return in_batches(records, publisher)


def in_batches(records: Sequence[BatchRecord], publisher: str = "maker") -> list[RecordBatch]:
    """Return consecutive records in batches of different sizes."""
    found: list[RecordBatch] = []
    first, sizes = 0, cycle(SIZES)
    while first < len(records):
        part = records[first : first + next(sizes)]
        found.append(RecordBatch.of(part, publisher=publisher, first=first, topic=TOPIC))
        first += len(part)
    return found


def publications_of(batches: Iterable[RecordBatch]) -> list[Publication]:
    """Return the records of batches as their readers see them."""
    return [publication for batch in batches for publication in batch.publications()]


def fill(data_dir: Path, nodes: Iterable[str], batches: Sequence[RecordBatch]) -> None:
    """Write batches to the disks of nodes that do not run."""
    for node in nodes:
        with LogStore.open(data_dir / node) as store:
            for batch in batches:
                store.log(TOPIC).append(batch)
            store.commit()
