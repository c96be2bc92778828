"""Host of a node: publishing with a disk (decision 0051), its timers, and leaving a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from skipring import connect
from skipring.admin.diagnosis import diagnose
from skipring.admin.inspector import TopicContents, open_inspector
from skipring.core.batches import BatchRecord
from skipring.core.effects import Effect
from skipring.core.events import Event, Received, Tick
from skipring.core.messages import PublishMany, PublishNew
from skipring.core.publications import COUNTER_BITS
from skipring.core.replica import Replica
from skipring.errors import StorageError, StoreFullError
from skipring.net.addresses import supervisor_at
from skipring.node.host import TOPICS_AT_ONCE, URGENT_FLUSHES, NodeHost
from skipring.node.settings import NodeSettings
from skipring.testing import Cluster
from skipring.wire.codec import encode
from tests.support.batches import batch, batch_of, with_rows
from tests.support.connections import healthy_cluster
from tests.support.disks import Disk
from tests.support.exchanges import hosts
from tests.support.rings import until

PATIENCE_S = 600.0  # longer than any test: a node that waits for a timeout fails
DEADLINE_S = 20.0
TOPIC = "news"


def cut(node: NodeHost, cluster: Cluster) -> None:
    """Break the connection of a node to its supervisor."""
    link = node.links.peer(supervisor_at(cluster.supervisor().address)).link
    assert link is not None
    link.abort()


async def test_node_leaves_with_the_confirmation_of_its_supervisor() -> None:
    async with healthy_cluster(n=2) as cluster:
        async with asyncio.timeout(DEADLINE_S):
            assert await cluster.node("n00").unsubscribe(cluster.topic, PATIENCE_S)
        assert cluster.supervisor().members() == {cluster.topic: 1}


async def test_node_does_not_wait_for_a_dead_supervisor() -> None:
    async with healthy_cluster(n=2) as cluster:
        await cluster.stop_supervisor()
        async with asyncio.timeout(DEADLINE_S):
            assert not await cluster.node("n00").unsubscribe(cluster.topic, PATIENCE_S)


async def test_node_stops_waiting_when_its_supervisor_dies() -> None:
    async with healthy_cluster(n=2) as cluster:
        cluster.supervisor().ticker.stop()  # it sends no more answers
        node = cluster.node("n00")
        leaving = asyncio.create_task(node.unsubscribe(cluster.topic, PATIENCE_S))
        ticks = node.ticker.calls + 10
        await until(lambda: node.ticker.calls > ticks)
        assert not leaving.done()
        await cluster.stop_supervisor()
        async with asyncio.timeout(DEADLINE_S):
            assert not await leaving


async def test_leaving_node_repeats_its_request_after_a_reconnection() -> None:
    async with healthy_cluster(n=2) as cluster:
        node = cluster.node("n00")
        leaving = asyncio.create_task(node.unsubscribe(cluster.topic, PATIENCE_S))
        await asyncio.sleep(0)
        cut(node, cluster)
        async with asyncio.timeout(DEADLINE_S):
            assert await leaving
        assert cluster.supervisor().members() == {cluster.topic: 1}


async def test_node_without_supervisor_leaves_every_topic_immediately() -> None:
    async with Cluster(n=1) as cluster:
        node = cluster.node("n00")
        topics = [f"topic-{number}" for number in range(20)]
        for topic in topics:
            node.subscribe(topic)
        await until(lambda: len(cluster.supervisor().members()) == len(topics) + 1)
        await cluster.stop_supervisor()
        async with asyncio.timeout(DEADLINE_S):
            left = await asyncio.gather(*(node.unsubscribe(t, PATIENCE_S) for t in topics))
        assert not any(left)


# -- publishing -------------------------------------------------------------------------------


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_neighbours_get_a_publication_before_its_commit_ends(
    disk: Disk, tmp_path: Path
) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        disk.gate.clear()
        publishing = asyncio.create_task(cluster.publish("n00", b"early"))
        await until(lambda: cluster.delivered("n01") == [b"early"])
        assert not publishing.done()
        disk.gate.set()
        await publishing


async def test_failed_commit_raises_an_error_with_the_ids(disk: Disk, tmp_path: Path) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        disk.error = StoreFullError("no room")
        with pytest.raises(StoreFullError, match="no room") as sent:
            await cluster.publish("n00", b"sent")
        assert sent.value.may_be_published
        assert len(sent.value.ids) == 1
        with pytest.raises(StoreFullError) as refused:
            await cluster.publish("n00", b"refused")
        assert (refused.value.may_be_published, refused.value.ids) == (False, ())
        disk.error = None
        await cluster.wait_healthy()
        assert [cluster.payloads(name) for name in cluster.nodes] == [[b"sent"]] * 2


async def test_retry_publishes_the_same_publications_again(disk: Disk, tmp_path: Path) -> None:
    async with (
        Cluster(n=2) as cluster,
        connect(cluster.url, data_dir=tmp_path, tick_s=0.05) as node,
        node.subscribe(cluster.topic) as news,
    ):
        await news.synced()
        disk.error = StoreFullError("no room")
        with pytest.raises(StorageError) as failed:
            await news.publish_many([b"one", b"two"])
        with pytest.raises(StorageError) as again:
            await news.retry(failed.value)
        assert again.value.ids == failed.value.ids
        disk.error = None
        assert await news.retry(again.value) == list(failed.value.ids)
        await news.synced()
        await until(lambda: sorted(cluster.payloads("n00")) == [b"one", b"two"])
        assert sorted(cluster.delivered("n00")) == [b"one", b"two"]
        assert [(await anext(news)).payload for _ in range(2)] == [b"one", b"two"]


# -- batches of peers ---------------------------------------------------------------------------


async def test_batches_with_numbers_of_this_process_that_arrive_from_others_are_counted() -> None:
    async with healthy_cluster(n=1) as cluster, hosts("peer") as (peer,):
        node = cluster.node("n00")
        peer.book.learn({"n00": node.address})
        await cluster.publish("n00", b"own")
        machine = node.machine(TOPIC)
        assert machine is not None
        current = machine.replica.own.incarnation << COUNTER_BITS
        clones = [
            batch_of(b"clone", publisher="n00", first=current + n, topic=TOPIC) for n in (0, 1)
        ]
        older = batch_of(b"older", publisher="n00", first=current - 1, topic=TOPIC)
        other = batch_of(b"other", publisher="n01", first=current, topic=TOPIC)
        peer.links.send("n00", encode(TOPIC, PublishMany((*clones, older, other))))
        await until(lambda: len(cluster.delivered("n00")) == 5)
        async with open_inspector([cluster.supervisor().address], TOPIC) as inspector:
            diagnosis = diagnose(await inspector.inspect(TopicContents.DIFFERENCES))
        text = "batches with its current sequence numbers arrived from other members: 2."
        assert [each for each in diagnosis.warnings if text in each]


async def test_invalid_batch_of_a_peer_is_dropped_and_counted_and_its_connection_stays() -> None:
    async with healthy_cluster(n=1) as cluster, hosts("peer") as (peer,):
        node = cluster.node("n00")
        peer.book.learn({"n00": node.address})
        good = batch_of(b"x", b"y", publisher="p", topic=TOPIC)
        forged = replace(good, id=bytes(32))
        unreadable = with_rows([["text"]], publisher="p", topic=TOPIC)
        peer.links.send("n00", encode(TOPIC, PublishNew(forged)))
        peer.links.send("n00", encode(TOPIC, PublishMany((unreadable, good, forged))))
        await until(lambda: cluster.delivered("n00") == [b"x", b"y"])
        assert node.links.counts["invalid batch"] == 3
        link = peer.links.peer("n00").link
        last = batch_of(b"last", publisher="p", first=2, topic=TOPIC)
        peer.links.send("n00", encode(TOPIC, PublishNew(last)))
        await until(lambda: cluster.delivered("n00") == [b"x", b"y", b"last"])
        assert peer.links.peer("n00").link is link is not None


async def test_damaged_records_are_counted_whether_a_start_or_a_read_finds_them(
    tmp_path: Path,
) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        for number in range(3):
            records = [BatchRecord(b"%d.%d" % (number, each)) for each in range(4)]
            await cluster.node("n01").publish(TOPIC, *records)
        await cluster.wait_healthy()
        assert cluster.node("n00").quarantined == 0
        await cluster.node("n00").durability.wait_durable()
        cluster.kill("n00")
        await cluster.restart("n00")  # a start writes no footer: the next one reads all entries
        cluster.kill("n00")
        flip(tmp_path / "n00", b"0.1")
        await cluster.restart("n00")
        assert cluster.node("n00").quarantined == 4
        flip(tmp_path / "n00", b"2.1")
        await until(lambda: cluster.node("n00").quarantined == 8)
        await cluster.wait_healthy()
        async with open_inspector([cluster.supervisor().address], TOPIC) as inspector:
            diagnosis = diagnose(await inspector.inspect(TopicContents.DIFFERENCES))
        assert [each for each in diagnosis.warnings if "8 damaged or missing records" in each]


def flip(directory: Path, payload: bytes) -> None:
    """Change one byte of a payload in the segments of a data directory."""
    (path,) = [each for each in directory.rglob("*.log") if payload in each.read_bytes()]
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(payload))
        file.write(b"x")


# -- timers -------------------------------------------------------------------------------------


class RecordingLoop:
    """Timers that the running loop has started and that are neither over nor cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._handles: list[asyncio.TimerHandle] = []
        loop = asyncio.get_running_loop()
        call_later = loop.call_later
        self._time = loop.time

        def record(delay_s: float, call: Callable[..., object], *args: object) -> object:
            handle = call_later(delay_s, call, *args)
            self._handles.append(handle)
            return handle

        monkeypatch.setattr(loop, "call_later", record)

    @property
    def running(self) -> int:
        """Return the number of running timers."""
        now_s = self._time()
        return sum(not each.cancelled() and each.when() > now_s for each in self._handles)

    @property
    def next_s(self) -> float:
        """Return the time until the next timer."""
        running = [each.when() for each in self._handles if not each.cancelled()]
        return min(running) - self._time()


async def test_flush_timer_runs_only_while_a_topic_waits_for_a_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient = NodeSettings(tick_s=3600.0, flush_s=0.01)
    node = NodeHost("m", patient, rng=Random(0))
    node.subscribe(TOPIC)
    node.subscribe("other")
    timers = RecordingLoop(monkeypatch)
    try:
        assert timers.running == 0, "an idle node has no flush timer"
        for topic in (TOPIC, "other"):
            made = batch(b"x", publisher="p", topic=topic)
            node.dispatch(topic, Received(PublishNew(made), "a"))
        assert timers.running == 1, "one timer serves all topics"
        await until(lambda: timers.running == 0)
        for _ in range(3):  # ticks: the node is quiet now and indexes the batch
            node.dispatch(TOPIC, Tick())
        await until(lambda: timers.running == 0)
        machine = node.machine(TOPIC)
        assert machine is not None
        assert not machine.has_to_flush
        node.dispatch(TOPIC, Tick())
        assert timers.running == 0
    finally:
        await node.close()


async def test_starting_topic_is_flushed_before_the_time_of_a_busy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic reads its log in short intervals, also if another topic waits for a Flush."""
    node = NodeHost("m", NodeSettings(tick_s=3600.0, flush_s=3600.0), rng=Random(0))
    node.subscribe("busy")
    node.subscribe("starting")
    timers = RecordingLoop(monkeypatch)
    try:
        for topic, is_starting in (("busy", False), ("starting", True), ("starting", True)):
            monkeypatch.setattr(Replica, "is_starting", is_starting)
            made = batch(b"x", publisher="p", topic=topic)
            node.dispatch(topic, Received(PublishNew(made), "a"))
        assert timers.running == 1, "one timer serves all topics"
        assert timers.next_s <= 3600.0 / URGENT_FLUSHES
    finally:
        await node.close()


class Ticks:
    """Ticks of the topics of one node, in groups: one for each iteration of the loop."""

    def __init__(self, node: NodeHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[list[str]] = []
        self.scrubs: list[str] = []  # topics that scrub
        self._is_begun = False  # a group, in this iteration
        self._dispatch = node.dispatch
        monkeypatch.setattr(node, "dispatch", self._record)

    def _record(self, topic: str, event: Event) -> list[Effect]:
        if isinstance(event, Tick):
            if not self._is_begun:
                self._is_begun = True
                self.groups.append([])
                asyncio.get_running_loop().call_soon(self._end_group)
            self.groups[-1].append(topic)
            self.scrubs += [topic] if event.scrubs else []
        return self._dispatch(topic, event)

    def _end_group(self) -> None:
        self._is_begun = False


async def test_many_topics_tick_in_groups_once_per_interval_and_scrub_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = NodeHost("m", NodeSettings(tick_s=0.2), rng=Random(0))
    topics = [f"topic-{number}" for number in range(3 * TOPICS_AT_ONCE)]
    for topic in topics:
        node.subscribe(topic)
    ticks = Ticks(node, monkeypatch)
    node.ticker.start()
    try:
        await until(lambda: node.ticker.calls == 4)
        scrubs = ticks.scrubs[:]
        await until(lambda: len(ticks.scrubs) >= len(topics))
    finally:
        await node.close()
    assert len(scrubs) <= 4 * TOPICS_AT_ONCE
    assert sorted(ticks.scrubs[: len(topics)]) == sorted(topics)
    everything = [topic for group in ticks.groups for topic in group]
    assert everything[: 3 * len(topics)] == 3 * topics
    assert len(ticks.groups[0]) == TOPICS_AT_ONCE
