"""Group commit: shared commits, the durable mark, and a full disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from skipring.core.events import PublishRequested
from skipring.core.log_messages import Refused
from skipring.core.publications import Publication
from skipring.errors import StorageError, StoreFullError
from skipring.node import group_commit as durability_module
from skipring.node.group_commit import GroupCommit
from skipring.node.host import NodeHost
from skipring.rpc.client import RpcClient
from skipring.storage.store import PublicationStore
from skipring.wire.rpc import Publish, PublishAck
from tests.support.rings import TOPIC, LiveRing, live_ring, until

pytestmark = pytest.mark.usefixtures("loop")


class GatedStore:
    """A store whose commits wait at gates and report the number of writes that they cover."""

    def __init__(self) -> None:
        self.door = threading.Event()  # before a commit reads its contents
        self.door.set()
        self.gate = threading.Event()
        self.last_gate = threading.Event()  # before the durable mark advances
        self.last_gate.set()
        self.begun = threading.Semaphore(0)
        self.unwritten = 0
        self.tried = 0
        self.written: list[int] = []
        self.error: StorageError | None = None
        self.late_error: StorageError | None = None  # raised when the durable mark should advance

    def write(self, count: int = 1) -> None:
        self.unwritten += count

    def commit(self, on_durable: Callable[[], None]) -> None:
        self.tried += 1
        self.door.wait()
        taken = self.unwritten
        self.begun.release()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.unwritten -= taken
        if taken:
            self.written.append(taken)
        on_durable()
        self.last_gate.wait()
        if self.late_error is not None:
            raise self.late_error


@contextmanager
def gated() -> Iterator[tuple[GatedStore, GroupCommit]]:
    store = GatedStore()
    try:
        yield store, GroupCommit(store)  # type: ignore[arg-type]
    finally:
        for gate in (store.door, store.gate, store.last_gate):
            gate.set()


async def begun(store: GatedStore) -> None:
    """Wait until a commit has begun."""
    await until(lambda: store.begun.acquire(blocking=False))


# -- sharing ---------------------------------------------------------------------------------


async def test_waiters_during_a_commit_share_the_next_one() -> None:
    with gated() as (store, durability):
        store.write()
        first = asyncio.create_task(durability.wait_durable())
        await begun(store)
        later = []
        for _ in range(20):
            store.write()
            later.append(asyncio.create_task(durability.wait_durable()))
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, *later)
        assert store.written == [1, 20]


async def test_commit_that_began_before_a_write_does_not_complete_it() -> None:
    with gated() as (store, durability):
        store.write()
        durability.request_commit()
        await begun(store)
        store.write()
        waits = asyncio.create_task(durability.wait_durable())
        store.gate.set()
        await waits
        assert store.written == [1, 1]


async def test_cancelled_waiter_does_not_cancel_the_commit_of_others() -> None:
    with gated() as (store, durability):
        store.write(2)
        gives_up, waits = (asyncio.create_task(durability.wait_durable()) for _ in range(2))
        await begun(store)
        gives_up.cancel()
        await asyncio.wait([gives_up])
        assert gives_up.cancelled()
        assert not waits.done()
        store.gate.set()
        await waits
        assert store.written == [2]


async def test_requested_commit_during_a_commit_follows_it() -> None:
    with gated() as (store, durability):
        store.write()
        durability.request_commit()
        await begun(store)
        store.write(2)
        durability.request_commit()
        store.gate.set()
        await until(lambda: durability.unwritten == 0)
        assert store.written == [1, 2]


async def test_failed_commit_is_not_retried_immediately() -> None:
    with gated() as (store, durability):
        store.error = StoreFullError("no room")
        store.write()
        durability.request_commit()
        await begun(store)
        durability.request_commit()
        store.gate.set()
        await until(lambda: durability.failures > 0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert store.tried == 1


async def test_bytes_of_a_running_commit_do_not_count_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(durability_module, "EAGER_BYTES", 100)
    with gated() as (store, durability):
        store.write()
        durability.on_written(101)  # begins a commit
        await begun(store)
        store.write()
        durability.on_written(100)
        store.gate.set()
        await until(lambda: durability.commits == 1)
        assert (store.tried, durability.unwritten) == (1, 1)
        durability.on_written(1)
        await until(lambda: store.tried == 2)


async def test_waiting_without_writes_returns_immediately() -> None:
    with gated() as (store, durability):
        await durability.wait_durable()
        durability.request_commit()
        await GroupCommit(None).wait_durable()
        assert (durability.commits, store.written) == (0, [])
        assert durability.unwritten == GroupCommit(None).unwritten == 0


async def test_failure_is_raised_for_every_waiter() -> None:
    with gated() as (store, durability):
        store.error = StoreFullError("no room")
        store.write(3)
        waits = [asyncio.create_task(durability.wait_durable()) for _ in range(3)]
        store.gate.set()
        told = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in told] == [StoreFullError] * 3
        assert len({id(each) for each in told}) == 3, "each has its own traceback"
        assert 1 <= durability.failures < 3
        with pytest.raises(StoreFullError):
            await durability.wait_durable()
        store.error = None
        await durability.wait_durable()
        assert durability.error is None


async def test_uncommitted_bytes_are_counted_until_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(durability_module, "WAITING_BYTES_MAX", 100)
    with gated() as (store, durability):
        store.write()
        durability.on_written(101)
        assert durability.is_backpressured
        store.error = StoreFullError("no room")
        store.gate.set()
        with pytest.raises(StoreFullError):
            await durability.wait_durable()
        assert durability.is_backpressured
        store.error = None
        await durability.wait_durable()
        assert not durability.is_backpressured


async def test_backpressure_ends_when_everything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Start the commit thread late; it includes publications that arrived meanwhile."""
    monkeypatch.setattr(durability_module, "WAITING_BYTES_MAX", 100)
    with gated() as (store, durability):
        store.door.clear()
        store.gate.set()
        store.write()
        durability.on_written(1)
        durability.request_commit()
        await until(lambda: store.tried == 1)
        store.write()
        durability.on_written(101)
        store.door.set()
        await until(lambda: durability.commits == 1)
        assert durability.unwritten == 0
        assert not durability.is_backpressured


# -- written and durable -----------------------------------------------------------------------


async def test_publications_are_sent_once_written_and_before_the_durable_mark() -> None:
    with gated() as (store, durability):
        told: list[str] = []
        store.last_gate.clear()
        store.write()
        durability.call_when_durable(lambda: told.append("written"))
        waits = asyncio.create_task(durability.wait_durable())
        await begun(store)
        assert told == []
        store.gate.set()
        await until(lambda: told == ["written"])
        assert not waits.done(), "it is not promised"
        store.last_gate.set()
        await waits


async def test_function_is_called_once_and_after_the_commit_of_earlier_data() -> None:
    with gated() as (store, durability):
        told: list[int] = []
        durability.call_when_durable(lambda: told.append(0))
        assert told == [0]  # everything is on disk
        store.write()
        durability.request_commit()
        await begun(store)
        store.write()
        durability.call_when_durable(lambda: told.append(1))
        store.gate.set()
        await until(lambda: durability.unwritten == 0)
        await until(lambda: told == [0, 1])
        assert store.written == [1, 1]
        durability.on_tick()
        assert told == [0, 1]


async def test_failed_durable_mark_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability_module, "WAITING_BYTES_MAX", 100)
    with gated() as (store, durability):
        store.gate.set()
        store.late_error = StoreFullError("no room")
        store.write()
        durability.on_written(101)
        with pytest.raises(StoreFullError):
            await durability.wait_durable()
        assert durability.unwritten == 0
        assert durability.is_backpressured
        with pytest.raises(StoreFullError):
            await durability.wait_durable()
        store.late_error = None
        durability.request_commit()  # as every tick does
        await until(lambda: durability.error is None)
        assert not durability.is_backpressured
        tried = store.tried
        durability.request_commit()
        assert store.tried == tried, "nothing is left to be done"


async def test_failed_commit_makes_nothing_durable() -> None:
    with gated() as (store, durability):
        store.gate.set()
        store.error = StoreFullError("no room")
        store.write()
        told: list[str] = []
        durability.call_when_durable(lambda: told.append("durable"))
        with pytest.raises(StoreFullError):
            await durability.wait_durable()
        durability.on_tick()
        assert told == []
        store.error = None
        await durability.wait_durable()
        await until(lambda: told == ["durable"])


async def test_write_included_in_an_earlier_commit_is_durable() -> None:
    """Commit a write whose publisher was cancelled, and write nothing afterwards."""
    with gated() as (store, durability):
        store.door.clear()
        store.gate.set()
        store.write()
        durability.request_commit()
        await until(lambda: store.tried == 1)
        store.write()
        told: list[str] = []
        durability.call_when_durable(lambda: told.append("durable"))
        assert told == []
        store.door.set()
        await until(lambda: told == ["durable"])
        assert (store.tried, durability.unwritten) == (1, 0)


async def test_publication_is_sent_once_written_and_acknowledged_once_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PublicationStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("publisher", store)
            await ring.wait_healthy()
            for each in ring.nodes.values():
                each.ticker.stop()  # nothing arrives by anti-entropy
            gate, promise = threading.Event(), store._promise

            def late_promise() -> None:
                gate.wait()
                promise()

            monkeypatch.setattr(store, "_promise", late_promise)
            try:
                publishing = asyncio.create_task(publish(node, 1))
                await until(lambda: held(ring, "other") == 1)
                assert not publishing.done()
                assert store.archive(TOPIC).durable_end == 0, "not durable yet"
            finally:
                gate.set()
            await publishing
            assert store.archive(TOPIC).durable_end == 1


# -- full disk ---------------------------------------------------------------------------------


def fill(store: PublicationStore) -> None:
    """Stop the file of the store from growing."""
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")


def make_room(store: PublicationStore) -> None:
    store._db.execute("PRAGMA max_page_count = 1000000")


async def publish(node: NodeHost, number: int, size: int = 20_000) -> bytes:
    payload = number.to_bytes(4, "big") + bytes(size)
    (made,) = await node.publish(TOPIC, PublishRequested(payload=payload))
    return made


def held(ring: LiveRing, name: str) -> int:
    machine = ring.nodes[name].machine(TOPIC)
    assert machine is not None
    return len(machine.index())


async def test_full_disk_is_reported_and_the_node_keeps_serving(tmp_path: Path) -> None:
    with PublicationStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("full", store)
            await publish(node, 1)
            await ring.wait_healthy()
            fill(store)
            with pytest.raises(StoreFullError, match="disk is full"):
                await publish(node, 2)
            kept = held(ring, "full")
            for number in (3, 4):
                with pytest.raises(StoreFullError):
                    await publish(node, number)
            assert held(ring, "full") == kept == 2, "those were refused before anything is kept"
            await publish(ring.nodes["other"], 5)
            await until(lambda: held(ring, "full") >= 3)
            await ring.join("late")  # it gets everything, also from the full member
            await ring.wait_healthy()
            make_room(store)
            await until(lambda: node.durability.error is None)
            await until(lambda: node.durability.unwritten == 0)
            made = await publish(node, 6)
            await ring.wait_healthy()
            assert held(ring, "late") == 4
    with PublicationStore.open(tmp_path) as again:
        ids = [key for key, _ in again.archive(TOPIC).entries()]
        assert len(ids) == 4
        assert made in ids


async def test_backlog_from_others_is_bounded_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, size = 200_000, 20_000
    monkeypatch.setattr(durability_module, "WAITING_BYTES_MAX", bound)
    with PublicationStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("full", store)
            await publish(node, 0)
            await ring.wait_healthy()
            fill(store)
            for number in range(1, 60):
                await publish(ring.nodes["other"], number, size)
            await until(lambda: node.links.counts["store full"] > 0)
            await until(lambda: node.durability.error is not None)
            # A chunk of anti-entropy may be the one beyond the limit.
            waiting = node.durability.waiting_bytes
            assert bound < waiting < bound + 2 * ring.settings.config.chunk_bytes
            assert held(ring, "full") < 60
            make_room(store)
            await ring.wait_healthy()
            assert held(ring, "full") == 60
            await until(lambda: node.durability.unwritten == 0)
    with PublicationStore.open(tmp_path) as again:
        assert len(list(again.archive(TOPIC).entries())) == 60


async def test_publishing_for_clients_is_refused_with_a_reason_while_the_disk_is_full(
    tmp_path: Path,
) -> None:
    with PublicationStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("full", store)
            await publish(node, 1)
            fill(store)
            with pytest.raises(StoreFullError):
                await publish(node, 2)
            made = Publication(publisher="p", seq=0, payload=bytes(20_000))
            async with RpcClient([ring.supervisor.address], rng=Random(1)) as outsider:
                outsider.book.learn({"full": node.address})
                answer = await outsider.request(
                    TOPIC, "full", lambda number: Publish(number, made), PublishAck
                )
            assert isinstance(answer, Refused)
            assert "disk is full" in answer.reason


async def test_node_that_leaves_while_publishing_for_a_client_refuses(tmp_path: Path) -> None:
    with PublicationStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("full", store)
            await publish(node, 1)
            fill(store)
            with pytest.raises(StoreFullError):
                await publish(node, 2)
            made = Publication(publisher="p", seq=0, payload=bytes(20_000))
            async with RpcClient([ring.supervisor.address], rng=Random(1)) as outsider:
                outsider.book.learn({"full": node.address})
                with slow_commits(store) as gate:
                    make_room(store)
                    asked = asyncio.create_task(
                        outsider.request(
                            TOPIC, "full", lambda n: Publish(n, made), PublishAck, timeout_s=3
                        )
                    )
                    await until(lambda: len(node.errands) > 0)
                    await node.unsubscribe(TOPIC, 5)
                    gate.set()
                    answer = await asked
            del ring.nodes["full"]
            await node.close()
            assert isinstance(answer, Refused)


@contextmanager
def slow_commits(store: PublicationStore) -> Iterator[threading.Event]:
    """Block commits until the event is set."""
    gate, commit = threading.Event(), store.commit

    def waiting(on_durable: Callable[[], object]) -> None:
        gate.wait()
        commit(on_durable)

    store.commit = waiting  # type: ignore[method-assign]
    try:
        yield gate
    finally:
        gate.set()
        del store.commit  # type: ignore[method-assign]
