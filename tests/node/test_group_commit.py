"""Group commit: shared commits, in the loop or in a thread, and a full disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from skipring.core.batches import BatchRecord, batch_part
from skipring.core.log_messages import Refused
from skipring.errors import StorageError, StoreFullError
from skipring.node import group_commit as group_commit_module
from skipring.node.group_commit import (
    INLINE_BYTES_MAX,
    INLINE_LOGS_MAX,
    INLINE_WAIT_S_MAX,
    GroupCommit,
)
from skipring.node.host import NodeHost
from skipring.rpc.client import RpcClient
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog
from skipring.wire.rpc import Publish, PublishAck
from tests.support.batches import batch
from tests.support.rings import TOPIC, LiveRing, live_ring, until

pytestmark = pytest.mark.usefixtures("loop")


class GatedStore:
    """A store whose commits wait at gates and report the number of writes that they cover."""

    def __init__(self) -> None:
        self.door = threading.Event()  # before a commit reads its contents
        self.door.set()
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.unwritten = 0
        self.waiting_bytes = 0
        self.waiting_logs = 1
        self.longest_wait_s = 1.0  # a slow disk: commits run in threads
        self.tried = 0
        self.written: list[int] = []
        self.threads: list[threading.Thread] = []  # of all commits
        self.error: StorageError | None = None
        self.late_error: StorageError | None = None  # raised after the data is written

    def write(self, count: int = 1) -> None:
        self.unwritten += count

    def commit(self) -> None:
        self.tried += 1
        self.threads.append(threading.current_thread())
        self.door.wait()
        taken = self.unwritten
        self.begun.release()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.unwritten -= taken
        if taken:
            self.written.append(taken)
        if self.late_error is not None:
            raise self.late_error


@contextmanager
def gated() -> Iterator[tuple[GatedStore, GroupCommit]]:
    store = GatedStore()
    try:
        yield store, GroupCommit(store)  # type: ignore[arg-type]
    finally:
        for gate in (store.door, store.gate):
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
    monkeypatch.setattr(group_commit_module, "WAITING_BYTES_MAX", 100)
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
    monkeypatch.setattr(group_commit_module, "WAITING_BYTES_MAX", 100)
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


# -- functions to call once data is on disk ------------------------------------------------------


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


async def test_commit_that_fails_after_its_writes_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit_module, "WAITING_BYTES_MAX", 100)
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


async def test_publication_is_sent_at_once_and_acknowledged_once_durable(tmp_path: Path) -> None:
    with LogStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("publisher", store)
            await ring.wait_healthy()
            for each in ring.nodes.values():
                each.ticker.stop()  # nothing arrives by anti-entropy
            with slow_commits(store) as gate:
                publishing = asyncio.create_task(publish(node, 1, LARGE))
                await until(lambda: held(ring, "other") == 1)
                assert not publishing.done()
                assert store.log(TOPIC).durable_end == 0, "not durable yet"
                gate.set()
                await publishing
            assert store.log(TOPIC).durable_end == 1


# -- in the loop or in a thread ------------------------------------------------------------------


@contextmanager
def fast() -> Iterator[tuple[GatedStore, GroupCommit]]:
    """Yield a store on a fast disk."""
    with gated() as (store, durability):
        store.gate.set()
        store.longest_wait_s = 0.0
        yield store, durability


async def test_small_commit_on_a_fast_disk_runs_in_the_loop() -> None:
    with fast() as (store, durability):
        for count in (1, 2):
            store.write()
            store.waiting_bytes, store.waiting_logs = INLINE_BYTES_MAX, INLINE_LOGS_MAX
            await durability.wait_durable()
            assert (durability.commits, store.written) == (count, [1] * count)
        assert set(store.threads) == {threading.current_thread()}
        assert asyncio.all_tasks() == {asyncio.current_task()}


def segment_files(directory: Path) -> int:
    return len(list(directory.rglob("*.log")))


async def test_trimmed_segments_are_reclaimed_in_a_thread_at_the_next_tick(tmp_path: Path) -> None:
    threads: list[threading.Thread] = []
    with LogStore.open(tmp_path, segment_bytes_max=800) as store, pytest.MonkeyPatch.context() as c:
        durability, log = GroupCommit(store), store.log(TOPIC)
        for number in range(40):
            log.append(batch(b"%d" % number))
        await durability.wait_durable()
        before = segment_files(tmp_path)
        reclaim = SegmentLog.reclaim
        c.setattr(
            SegmentLog,
            "reclaim",
            lambda log: (threads.append(threading.current_thread()), reclaim(log)),
        )
        store.longest_wait_s = 0.0
        log.trim(30)
        durability.on_tick()
        await until(lambda: store.waiting_logs == 0)
        assert segment_files(tmp_path) < before / 2
        assert threads
        assert threading.main_thread() not in threads
        commits = durability.commits
        durability.on_tick()
        assert durability.commits == commits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("waiting_bytes", INLINE_BYTES_MAX + 1),
        ("waiting_logs", INLINE_LOGS_MAX + 1),
        ("longest_wait_s", 2 * INLINE_WAIT_S_MAX),
    ],
)
async def test_large_or_slow_commit_runs_in_a_thread(name: str, value: float) -> None:
    with fast() as (store, durability):
        store.write()
        setattr(store, name, value)
        await durability.wait_durable()
        assert store.written == [1]
        assert threading.current_thread() not in store.threads


async def test_data_that_arrives_before_the_commit_moves_it_to_a_thread() -> None:
    with fast() as (store, durability):
        store.write()
        waits = asyncio.create_task(durability.wait_durable())
        await asyncio.sleep(0)
        store.waiting_logs = INLINE_LOGS_MAX + 1
        await waits
        assert store.written == [1]
        assert threading.current_thread() not in store.threads


async def test_commit_without_a_waiting_caller_runs_in_a_thread() -> None:
    with fast() as (store, durability):
        store.write()
        durability.on_tick()
        await until(lambda: durability.unwritten == 0)
        assert threading.current_thread() not in store.threads


async def test_functions_of_one_iteration_share_a_commit_in_the_loop() -> None:
    with fast() as (store, durability):
        called: list[int] = []
        store.write()
        durability.call_when_durable(lambda: called.append(0))
        store.write()
        durability.call_when_durable(lambda: called.append(1))
        assert not store.tried, "frames are written to the sockets first"
        await until(lambda: called == [0, 1])
        assert store.written == [2]
        assert set(store.threads) == {threading.current_thread()}


async def test_failed_commit_in_the_loop_keeps_the_functions() -> None:
    with fast() as (store, durability):
        called: list[int] = []
        store.error = StoreFullError("no room")
        store.write()
        durability.call_when_durable(lambda: called.append(0))
        await until(lambda: durability.failures == 1)
        assert called == []
        store.error = None
        durability.on_tick()
        await until(lambda: called == [0])


@pytest.mark.parametrize(("name", "value"), [("waiting_bytes", INLINE_BYTES_MAX + 1)])
async def test_functions_wait_for_a_large_commit_in_a_thread(name: str, value: int) -> None:
    with fast() as (store, durability):
        called: list[int] = []
        setattr(store, name, value)
        store.write()
        durability.call_when_durable(lambda: called.append(0))
        await until(lambda: called == [0])
        assert threading.current_thread() not in store.threads


async def test_commit_in_the_loop_does_not_overtake_a_running_one() -> None:
    with fast() as (store, durability):
        store.gate.clear()
        store.write()
        durability.request_commit()
        await begun(store)
        store.write()
        waits = asyncio.create_task(durability.wait_durable())
        await asyncio.sleep(0)
        store.gate.set()
        await waits
        assert store.written == [1, 1]
        assert threading.current_thread() not in store.threads


async def test_commit_of_many_topics_runs_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    commit = LogStore.commit

    def recording(store: LogStore) -> None:
        threads.append(threading.current_thread())
        commit(store)

    with LogStore.open(tmp_path) as store:
        monkeypatch.setattr(LogStore, "commit", recording)
        monkeypatch.setattr(group_commit_module, "INLINE_WAIT_S_MAX", 60.0)
        durability = GroupCommit(store)
        for count in (1, 1, INLINE_LOGS_MAX, INLINE_LOGS_MAX + 1):  # the first measures the disk
            for number in range(count):
                topic = f"topic-{number}"
                store.log(topic).append(batch(b"%d" % count, topic=topic))
            await durability.wait_durable()
            assert store.unwritten == store.waiting_logs == 0
    main = threading.current_thread()
    assert [thread is main for thread in threads] == [False, True, True, False]


# -- full disk ---------------------------------------------------------------------------------

LARGE = 40_000  # bytes: a commit of this size runs in a thread


class FullDisk:
    """A disk on which no segment can grow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pwritev = os.pwritev
        self._patch = monkeypatch
        self._patch.setattr(os, "pwritev", self._refuse)

    @staticmethod
    def _refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def make_room(self) -> None:
        self._patch.setattr(os, "pwritev", self._pwritev)


async def publish(node: NodeHost, number: int, size: int = 20_000) -> bytes:
    payload = number.to_bytes(4, "big") + bytes(size)
    (made,) = await node.publish(TOPIC, BatchRecord(payload))
    return made


def held(ring: LiveRing, name: str) -> int:
    machine = ring.nodes[name].machine(TOPIC)
    assert machine is not None
    return len(machine.trie())


async def test_full_disk_is_reported_and_the_node_keeps_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("full", store)
            await publish(node, 1)
            await ring.wait_healthy()
            disk = FullDisk(monkeypatch)
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
            disk.make_room()
            await until(lambda: node.durability.error is None)
            await until(lambda: node.durability.unwritten == 0)
            made = await publish(node, 6)
            await ring.wait_healthy()
            assert held(ring, "late") == 4
    with LogStore.open(tmp_path) as again:
        ids = [key for key, _ in again.log(TOPIC).entries()]
        assert len(ids) == 4
        assert batch_part(made) in map(batch_part, ids)


async def test_backlog_from_others_is_bounded_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, size = 200_000, 20_000
    monkeypatch.setattr(group_commit_module, "WAITING_BYTES_MAX", bound)
    with LogStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("full", store)
            await publish(node, 0)
            await ring.wait_healthy()
            disk = FullDisk(monkeypatch)
            for number in range(1, 60):
                await publish(ring.nodes["other"], number, size)
            await until(lambda: node.links.counts["store full"] > 0)
            await until(lambda: node.durability.error is not None)
            # A chunk of anti-entropy may be the one beyond the limit.
            waiting = node.durability.waiting_bytes
            assert bound < waiting < bound + 2 * ring.settings.config.chunk_bytes
            assert held(ring, "full") < 60
            disk.make_room()
            await ring.wait_healthy()
            assert held(ring, "full") == 60
            await until(lambda: node.durability.unwritten == 0)
    with LogStore.open(tmp_path) as again:
        assert len(list(again.log(TOPIC).entries())) == 60


async def test_publishing_for_clients_is_refused_with_a_reason_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("full", store)
            await publish(node, 1)
            FullDisk(monkeypatch)
            with pytest.raises(StoreFullError):
                await publish(node, 2)
            made = batch(bytes(20_000), publisher="p", topic=TOPIC)
            async with RpcClient([ring.supervisor.address], rng=Random(1)) as outsider:
                outsider.book.learn({"full": node.address})
                answer = await outsider.request(
                    TOPIC, "full", lambda number: Publish(number, made), PublishAck
                )
            assert isinstance(answer, Refused)
            assert "disk is full" in answer.reason


async def test_node_that_leaves_while_publishing_for_a_client_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogStore.open(tmp_path) as store:
        async with live_ring("other") as ring:
            node = await ring.join("full", store)
            await publish(node, 1)
            disk = FullDisk(monkeypatch)
            with pytest.raises(StoreFullError):
                await publish(node, 2)
            made = batch(bytes(20_000), publisher="p", topic=TOPIC)
            async with RpcClient([ring.supervisor.address], rng=Random(1)) as outsider:
                outsider.book.learn({"full": node.address})
                with slow_commits(store) as gate:
                    disk.make_room()
                    asked = asyncio.create_task(
                        outsider.request(
                            TOPIC, "full", lambda n: Publish(n, made), PublishAck, timeout_s=3
                        )
                    )
                    await until(lambda: len(node.publish_proxy) > 0)
                    await node.unsubscribe(TOPIC, 5)
                    gate.set()
                    answer = await asked
            del ring.nodes["full"]
            await node.close()
            assert isinstance(answer, Refused)


@contextmanager
def slow_commits(store: LogStore) -> Iterator[threading.Event]:
    """Block commits until the event is set."""
    gate, commit = threading.Event(), store.commit

    def waiting() -> None:
        gate.wait()
        commit()

    store.commit = waiting  # type: ignore[method-assign]
    try:
        yield gate
    finally:
        gate.set()
        del store.commit  # type: ignore[method-assign]
