"""Sessions of topics in a ring: history, cursors, health, confirmations."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from skipring.api import topic_session as topic_session_module
from skipring.api.subscription import Subscription
from skipring.api.topic_session import HealthState, SyncTracker, TopicSession
from skipring.core.batches import RECORDS_MAX, BatchRecord, RecordBatch
from skipring.core.effects import Deliver, Origin, PeerInSync
from skipring.core.peers import NodeId
from skipring.core.replication import Replication
from skipring.core.subscriber import Subscriber
from skipring.errors import CursorError
from skipring.net.event_loop import Timer
from skipring.storage.store import LogStore
from skipring.testing import Cluster
from tests.support.connections import DEADLINE_S, read_payloads, to

# -- readers in a ring -----------------------------------------------------------------------


async def test_start_new_skips_history_when_joining() -> None:
    async with Cluster(n=3) as cluster:
        for number in range(30):
            await cluster.publish("n00", b"old %d" % number)
        await cluster.wait_healthy()
        async with (
            to(cluster) as node,
            Subscription(session := TopicSession(node.session, cluster.topic, "new")) as news,
        ):
            await cluster.until(lambda: session.reader.end == 30)
            assert news.lag == 0
            await news.synced(DEADLINE_S)
            await cluster.publish("n01", b"new")
            assert await read_payloads(news, 1) == [b"new"]
            assert news.lag == 0


async def test_history_ends_when_every_neighbour_has_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    confirmed: set[str] = set()
    monkeypatch.setattr(Replication, "in_sync", property(lambda _: frozenset(confirmed)))
    monkeypatch.setattr(Subscriber, "ring_neighbours", lambda _: ["a", "b"])
    async with Cluster(n=0) as cluster, to(cluster) as node:
        topic = TopicSession(node.session, "t", "new")
        await topic.open()
        await cluster.until(lambda: topic.health().state is not HealthState.JOINING)
        old = (BatchRecord(b"x", 1),)
        batch = RecordBatch.of(old, publisher="a", first=0, topic="t")
        for offset, nodes in enumerate(("a", "b", "ac")):
            confirmed.clear()
            confirmed.update(nodes)
            topic.on_confirmed(PeerInSync(nodes[-1], b"root"))
            topic.reader.on_deliver(
                Deliver((batch,), (old,), offset, offset + 1, Origin.REPAIR, hops=0)
            )
            assert topic.reader.offset == offset + 1  # skipped
        confirmed.update("ab")
        topic.on_confirmed(PeerInSync("b", b"root"))
        topic.reader.on_deliver(Deliver((batch,), (old,), 3, 4, Origin.REPAIR, hops=0))
        assert topic.reader.offset == 3  # not skipped


async def test_subscription_in_sync_has_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[Timer] = set()

    class WatchedTimer(Timer):
        def start(self, period_s: float | None = None) -> None:
            super().start(period_s)
            running.add(self)

        def stop(self) -> None:
            super().stop()
            running.discard(self)

    monkeypatch.setattr(topic_session_module, "Timer", WatchedTimer)
    async with Cluster(n=2) as cluster, to(cluster) as node, node.subscribe("t") as topic:
        assert len(running) == 1
        await topic.synced(DEADLINE_S)
        await cluster.until(lambda: not running)


async def test_datetime_start_reads_publications_since_then() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as first, first.subscribe("orders") as writer:
        await writer.publish(b"before")
        [before] = await writer.read_available()
        since = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=before.time + 1)
        await cluster.until(lambda: time.time_ns() // 1000 > before.time)
        await writer.publish(b"after")
        async with to(cluster) as second, second.subscribe("orders", since) as reader:
            await reader.synced(DEADLINE_S)
            assert [each.payload for each in await reader.read_available()] == [b"after"]


# -- cursors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("as_text", [False, True])
async def test_reading_resumes_at_cursor(tmp_path: Path, as_text: bool) -> None:
    async with Cluster(n=0) as cluster:
        async with to(cluster, tmp_path) as node, node.subscribe("a.b") as topic:
            assert topic.cursor().offset == 0
            for number in range(5):
                await topic.publish(b"%d" % number)
            assert await read_payloads(topic, 2) == [b"0", b"1"]
        kept = topic.cursor()  # also valid after the block
        start = str(kept) if as_text else kept
        async with to(cluster, tmp_path) as node, node.subscribe("a.b", start) as topic:
            assert topic.lag == 3
            assert await read_payloads(topic, 3) == [b"2", b"3", b"4"]
            await topic.publish(b"5")
            assert await read_payloads(topic, 1) == [b"5"]
            assert topic.cursor().offset == 6


async def test_cursor_inside_a_batch_resumes_exactly(tmp_path: Path) -> None:
    payloads = [b"%d" % number for number in range(RECORDS_MAX + 10)]
    async with Cluster(n=0) as cluster:
        async with to(cluster, tmp_path) as node, node.subscribe("t") as topic:
            ids = await topic.publish_many(payloads)
        for read in (1, RECORDS_MAX - 1, RECORDS_MAX, RECORDS_MAX + 1):
            async with to(cluster, tmp_path) as node, node.subscribe("t") as topic:
                assert await read_payloads(topic, read) == payloads[:read]
                kept = str(topic.cursor())
            async with to(cluster, tmp_path) as node, node.subscribe("t", kept) as topic:
                assert [each.id for each in await topic.read_available()] == ids[read:]


async def test_cursor_inside_a_batch_is_refused_if_the_batch_differs(tmp_path: Path) -> None:
    directory, backup = tmp_path / "data", tmp_path / "backup"
    async with Cluster(n=0) as cluster:
        stored(directory, b"A")
        shutil.copytree(directory, backup)
        stored(directory, b"B", b"C", as_batch=True)
        kept = await read_until(cluster, directory, 2)  # before C
        shutil.rmtree(directory)
        shutil.copytree(backup, directory)
        stored(directory, b"B", b"D", as_batch=True)
        async with to(cluster, directory) as node:
            with pytest.raises(CursorError, match=r'restored.*lost.*start="all"'):
                node.subscribe("t", start=kept)


async def test_cursor_never_exceeds_durable_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Cluster(n=0) as cluster,
        to(cluster, tmp_path) as node,
        Subscription(session := TopicSession(node.session, "t", "all")) as topic,
    ):
        await topic.publish(b"durable")
        with monkeypatch.context() as patch:
            patch.setattr(LogStore, "commit", lambda *_: time.sleep(0.001))
            publishing = asyncio.create_task(topic.publish(b"not yet"))
            assert await read_payloads(topic, 2) == [b"durable", b"not yet"]
            assert (session.reader.offset, topic.cursor().offset) == (2, 1)
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
        await topic.publish(b"durable again")
        assert topic.cursor().offset == 2


async def test_mismatched_cursor_is_refused_without_joining(tmp_path: Path) -> None:
    async with Cluster(n=0) as cluster:
        async with to(cluster, tmp_path / "one") as node, node.subscribe("t") as topic:
            await topic.publish(b"x")
            kept = topic.cursor()
            with pytest.raises(CursorError, match=r"belongs to topic 't', not to 'u'.*start=.all."):
                await node.subscribe("u", kept).__aenter__()
        wrong = [
            replace(kept, epoch=kept.epoch + 1, offset=1),
            replace(kept, offset=2),
            replace(kept, offset=1),  # with the chain value of offset 0
        ]
        async with to(cluster, tmp_path / "one") as node:
            for cursor in wrong:
                with pytest.raises(CursorError, match=r'has lost pub.*start="all"'):
                    await node.subscribe("t", cursor).__aenter__()
            assert node.session.host.machine("t") is None
            async with node.subscribe("t", replace(kept, epoch=kept.epoch + 1)) as topic:
                assert await read_payloads(topic, 1) == [b"x"]  # offset 0 is equal in every epoch
        async with to(cluster, tmp_path / "two") as node:
            with pytest.raises(CursorError, match=r'another data directory.*start="all"'):
                await node.subscribe("t", kept).__aenter__()
        async with to(cluster) as node, node.subscribe("u") as other:
            with pytest.raises(CursorError, match=r'in memory.*start="all"'):
                await node.subscribe("t", kept).__aenter__()
            with pytest.raises(CursorError, match="data_dir"):
                other.cursor()


async def test_cursor_is_checked_again_when_block_is_entered(tmp_path: Path) -> None:
    async with Cluster(n=0) as cluster:
        async with to(cluster, tmp_path / "one") as node, node.subscribe("t") as topic:
            await topic.publish(b"x")
            kept = topic.cursor()
        node = to(cluster, tmp_path / "two")
        early = node.subscribe("t", start=kept)  # no directory is open yet
        async with node:
            with pytest.raises(CursorError, match="another data directory"):
                await early.__aenter__()


# -- cursors and a restored data directory ----------------------------------------------------


def stored(directory: Path, *payloads: bytes, as_batch: bool = False) -> None:
    """Write publications in this order into a directory whose node does not run."""
    with LogStore.open(directory) as store:
        log = store.log("t")
        records = [BatchRecord(payload) for payload in payloads]
        for part in [records] if as_batch else [[record] for record in records]:
            first = part[0].payload[0]
            log.append(RecordBatch.of(part, publisher="p", first=first, topic="t"))
        store.commit()


async def read_until(cluster: Cluster, directory: Path, count: int) -> str:
    """Read the first publications of a directory; return the text of the cursor behind them."""
    async with to(cluster, directory) as node, node.subscribe("t") as topic:
        await read_payloads(topic, count)
        return str(topic.cursor())


async def test_cursor_is_refused_after_restore_and_refill_in_another_order(tmp_path: Path) -> None:
    directory, backup = tmp_path / "data", tmp_path / "backup"
    async with Cluster(n=0) as cluster:
        stored(directory, b"A")
        shutil.copytree(directory, backup)
        stored(directory, b"B", b"C")
        before, kept = (
            await read_until(cluster, directory, 1),
            await read_until(cluster, directory, 3),
        )
        shutil.rmtree(directory)
        shutil.copytree(backup, directory)
        stored(directory, b"D", b"C", b"B", b"E")  # the id before the cursor is C again
        async with to(cluster, directory) as node:
            with pytest.raises(CursorError, match=r'restored.*lost.*start="all"'):
                node.subscribe("t", start=kept)
            async with node.subscribe("t", start=before) as topic:
                assert await read_payloads(topic, 4) == [b"D", b"C", b"B", b"E"]


async def test_cursor_stays_valid_after_restore_and_refill_in_same_order(tmp_path: Path) -> None:
    directory, backup = tmp_path / "data", tmp_path / "backup"
    async with Cluster(n=0) as cluster:
        stored(directory, b"A")
        shutil.copytree(directory, backup)
        stored(directory, b"B", b"C")
        kept = await read_until(cluster, directory, 3)
        shutil.rmtree(directory)
        shutil.copytree(backup, directory)
        async with to(cluster, directory) as node:
            with pytest.raises(CursorError, match="restored"):
                node.subscribe("t", start=kept)
        stored(directory, b"B", b"C", b"D")
        async with to(cluster, directory) as node, node.subscribe("t", start=kept) as topic:
            assert await read_payloads(topic, 1) == [b"D"]


# -- health ----------------------------------------------------------------------------------


async def test_synced_means_neighbours_have_the_publication() -> None:
    async with Cluster(n=3) as cluster, to(cluster) as node, node.subscribe(cluster.topic) as news:
        await news.publish(b"mine")
        await news.synced(DEADLINE_S)
        having = [name for name in cluster.nodes if cluster.payloads(name) == [b"mine"]]
        assert len(having) >= 2
        await cluster.until(lambda: news.health().state is HealthState.STABLE)
        assert news.health().reasons == ()


async def test_lost_neighbour_is_reported_in_health() -> None:
    async with Cluster(n=1) as cluster, to(cluster) as node, node.subscribe(cluster.topic) as news:
        await news.synced(DEADLINE_S)
        cluster.kill("n00")
        await cluster.until(lambda: news.health().state is HealthState.DEGRADED)
        assert news.health().reasons == ("the connection to n00, a ring neighbour, is lost",)
        with pytest.raises(TimeoutError, match="n00 did not confirm"):
            await news.synced(timeout=0.01)


# -- confirmations of neighbours --------------------------------------------------------------


class Scene:
    """Confirmations of a node whose neighbours the test sets."""

    def __init__(self, neighbours: list[NodeId] | None) -> None:
        self.neighbours = neighbours
        self.confirmed: frozenset[NodeId] = frozenset()
        self.asked = 0
        self.confirmations = SyncTracker(
            lambda: self.neighbours, lambda: self.confirmed, self._ask, tick_s=0.001
        )

    def _ask(self) -> None:
        self.asked += 1

    def confirm(self, *nodes: NodeId, root: bytes = b"root") -> None:
        self.confirmed |= set(nodes)
        for node in nodes:
            self.confirmations.on_confirmed(PeerInSync(node, root))


def test_topic_is_in_sync_once_every_neighbour_has_confirmed() -> None:
    scene = Scene(["a", "b"])
    scene.confirm("a")
    assert not scene.confirmations.are_complete
    scene.confirm("b")
    assert scene.confirmations.are_complete
    scene.confirmed = frozenset()  # after a repair
    assert "a" not in scene.confirmations
    assert not scene.confirmations.are_complete


def test_single_member_is_complete_and_node_without_label_is_not() -> None:
    assert Scene([]).confirmations.are_complete
    assert not Scene(None).confirmations.are_complete


def test_waiting_caller_asks_the_neighbours_every_tick() -> None:
    scene = Scene(["a"])
    assert asyncio.run(scene.confirmations.all_equal(0.05)) == "a did not confirm in time"
    assert scene.asked > 1


def test_timeout_names_neighbours_that_did_not_confirm() -> None:
    async def missing(neighbours: list[NodeId] | None) -> str | None:
        scene = Scene(neighbours)
        waiting = asyncio.create_task(scene.confirmations.all_equal(0.05))
        await asyncio.sleep(0)
        scene.confirm("a", root=b"one")
        scene.confirm("b", root=b"two")
        return await waiting

    assert asyncio.run(missing(["a"])) is None
    assert asyncio.run(missing([])) is None
    assert "has not assigned a place" in (asyncio.run(missing(None)) or "")
    assert "publications keep arriving" in (asyncio.run(missing(["a", "b"])) or "")
    assert "c and d did not confirm" in (asyncio.run(missing(["a", "c", "d"])) or "")
