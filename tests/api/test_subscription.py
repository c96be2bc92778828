"""Reading: start positions, lag, cursors, and concurrent or cancelled readers."""

from __future__ import annotations

import asyncio
import doctest
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

from skipring.api import reader as reading
from skipring.api.reader import READ_AT_ONCE, Publication, Reader, Start, checked_start
from skipring.api.subscription import Record, Subscription
from skipring.api.topic_session import HealthState, TopicSession
from skipring.core.effects import Deliver, Origin, PeerInSync
from skipring.core.log import MemoryLog
from skipring.core.publications import Publication as StoredPublication
from skipring.core.subscriber import Subscriber
from skipring.errors import CursorError, InputError, SkipringError, StorageError
from skipring.storage.store import PublicationStore
from skipring.testing import Cluster
from tests.support.connections import InspectedConnection, inspected

TICK_S = 0.05
DEADLINE_S = 60.0  # for operations that take a second or two
NOW = 1_000_000
NEVER_OPENED = (
    r"not subscribed to 'news' yet.* `async with node.subscribe\('news'\) as subscription: "
    r"async for publication in subscription: ...`"
)


def to(cluster: Cluster, data_dir: Path | None = None) -> InspectedConnection:
    return inspected(cluster.url, tick_s=TICK_S, data_dir=data_dir, drain_s=0)


async def read_some(source: Subscription, many: int) -> list[bytes]:
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(source)).payload for _ in range(many)]


async def collect(source: Subscription) -> list[Publication]:
    return [publication async for publication in source]


def test_docstring_examples_pass() -> None:
    assert doctest.testmod(reading) == (0, 2)


# -- one reader and its log ------------------------------------------------------------------


class Shelf:
    """A log in memory and a reader that is notified of each stored publication."""

    def __init__(self, start: Start, times: tuple[int, ...] = ()) -> None:
        self.archive = MemoryLog([self.publication(at, when) for at, when in enumerate(times)])
        self.reader = Reader("news", self.archive, start, NOW)

    @staticmethod
    def publication(seq: int, when: int) -> StoredPublication:
        return StoredPublication(publisher="a", seq=seq, time=when, payload=b"x").with_id("t")

    def put(self, origin: Origin, when: int) -> None:
        offset = self.archive.end
        made = self.publication(offset, when)
        self.archive.write(offset, made)
        self.reader.on_deliver(Deliver((made,), offset, origin, hops=1))

    def read(self) -> list[int]:
        return [publication.offset for publication in self.reader.fetch(READ_AT_ONCE)]


def test_start_new_skips_only_old_publications_repaired_before_first_sync() -> None:
    shelf = Shelf("new", times=(NOW + 1,))  # 0: stored before the start
    shelf.put(Origin.REPAIR, 0)  # 1
    shelf.put(Origin.REPAIR, NOW - 1)  # 2
    assert (shelf.reader.lag, shelf.reader.offset) == (0, 3)
    shelf.put(Origin.SPREAD, NOW - 1)  # 3: new to all members
    shelf.put(Origin.REPAIR, NOW - 1)  # 4
    shelf.put(Origin.REPAIR, NOW - 1)  # 5
    shelf.put(Origin.REPAIR, NOW)  # 6: published since the start
    shelf.put(Origin.REPAIR, 5)  # 7
    shelf.put(Origin.OWN, NOW + 5)  # 8
    assert shelf.reader.lag == 3
    shelf.reader.end_history()
    shelf.put(Origin.REPAIR, 7)  # 9: delivered, because a doubtful case is delivered
    assert shelf.reader.lag == 4
    assert shelf.read() == [3, 6, 8, 9]
    assert shelf.reader.lag == 0


def test_start_all_skips_nothing() -> None:
    shelf = Shelf("all", times=(0, 5))
    shelf.put(Origin.REPAIR, 0)
    assert shelf.reader.lag == 3
    assert shelf.read() == [0, 1, 2]


def test_datetime_start_skips_earlier_publications_of_any_origin() -> None:
    since = datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1)))  # NOW
    shelf = Shelf(since, times=(0, NOW - 1, NOW))
    assert shelf.reader.lag == 3  # not examined yet
    shelf.put(Origin.SPREAD, NOW - 1)
    shelf.put(Origin.REPAIR, NOW + 1)
    assert shelf.reader.lag == 4
    assert shelf.read() == [2, 4]
    assert shelf.reader.lag == 0


def test_reader_that_skips_many_publications_reaches_the_next() -> None:
    async def scene() -> None:
        shelf = Shelf(datetime.fromtimestamp(1, UTC), times=(0,) * 10 * READ_AT_ONCE)
        assert await shelf.reader.next(timeout_s=0) is None
        shelf.put(Origin.SPREAD, NOW)
        found = await shelf.reader.next(timeout_s=0)
        assert found is not None
        assert found.offset == 10 * READ_AT_ONCE

    asyncio.run(scene())


def test_available_publications_are_read_with_zero_timeout() -> None:
    async def scene() -> None:
        shelf = Shelf("all", times=(1,) * 3 * READ_AT_ONCE)
        for offset in range(3 * READ_AT_ONCE):
            found = await shelf.reader.next(timeout_s=0)
            assert found is not None
            assert found.offset == offset

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001
        ("yesterday", '"all" or "new"'),
        (3, "a datetime with a time zone or a cursor"),
        (None, "a datetime with a time zone or a cursor"),
        ("c1.5eed.0.1.t", "made by an earlier version.*start=.all."),
        ("c2.5eed.0.x.0123456789abcdef.t", "not a cursor"),
        ("c2.5eed.0.1.0123456789abcdef.", "not a cursor"),
        ("c2.5eed.0.1.0123456789abcde.t", "not a cursor"),
        ("c3.5eed.0.1.0123456789abcdef.t", "not a cursor"),
    ],
)
def test_invalid_start_is_refused(start: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        checked_start(start)


@pytest.mark.parametrize(("start", "found"), [("earliest", [b"stored"]), ("latest", [])])
def test_earliest_and_latest_are_synonyms_of_all_and_new(
    start: str, found: list[bytes], tmp_path: Path
) -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster:
            async with to(cluster, tmp_path) as node, node.subscribe("t") as topic:
                await topic.publish(b"stored")
            async with to(cluster, tmp_path) as node, node.subscribe("t", start=start) as topic:
                assert [each.payload for each in await topic.read_available()] == found

    asyncio.run(scene())


# -- readers in a ring -----------------------------------------------------------------------


def test_start_new_skips_history_when_joining() -> None:
    async def scene() -> None:
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
                assert await read_some(news, 1) == [b"new"]
                assert news.lag == 0

    asyncio.run(scene())


def test_history_ends_when_every_neighbour_has_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster, to(cluster) as node:
            topic = TopicSession(node.session, "t", "new")
            topic.open()
            await cluster.until(lambda: topic.health().state is not HealthState.JOINING)
            old = Shelf.publication(0, 1)
            topic.on_confirmed(PeerInSync("a", b"root"))
            topic.on_deliver(Deliver((old,), 0, Origin.REPAIR, hops=0))
            assert topic.reader.offset == 1  # skipped; both neighbours have to confirm again
            topic.on_confirmed(PeerInSync("b", b"root"))
            topic.on_deliver(Deliver((old,), 1, Origin.REPAIR, hops=0))
            assert topic.reader.offset == 2
            topic.on_confirmed(PeerInSync("b", b"root"))
            topic.on_confirmed(PeerInSync("a", b"root"))
            topic.on_deliver(Deliver((old,), 2, Origin.REPAIR, hops=0))
            assert topic.reader.offset == 2  # not skipped

    monkeypatch.setattr(Subscriber, "ring_neighbours", lambda _: ["a", "b"])
    asyncio.run(scene())


def test_datetime_start_reads_publications_since_then() -> None:
    async def scene() -> None:
        async with (
            Cluster(n=0) as cluster,
            to(cluster) as first,
            first.subscribe("orders") as writer,
        ):
            await writer.publish(b"before")
            [before] = await writer.read_available()
            since = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=before.time + 1)
            await cluster.until(lambda: time.time_ns() // 1000 > before.time)
            await writer.publish(b"after")
            async with to(cluster) as second, second.subscribe("orders", since) as reader:
                await reader.synced(DEADLINE_S)
                assert [each.payload for each in await reader.read_available()] == [b"after"]

    asyncio.run(scene())


# -- cursors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("as_text", [False, True])
def test_reading_resumes_at_cursor(tmp_path: Path, as_text: bool) -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster:
            async with to(cluster, tmp_path) as node, node.subscribe("a.b") as topic:
                assert topic.cursor().offset == 0
                for number in range(5):
                    await topic.publish(b"%d" % number)
                assert await read_some(topic, 2) == [b"0", b"1"]
            kept = topic.cursor()  # also valid after the block
            start = str(kept) if as_text else kept
            async with to(cluster, tmp_path) as node, node.subscribe("a.b", start) as topic:
                assert topic.lag == 3
                assert await read_some(topic, 3) == [b"2", b"3", b"4"]
                await topic.publish(b"5")
                assert await read_some(topic, 1) == [b"5"]
                assert topic.cursor().offset == 6

    asyncio.run(scene())


def test_cursor_is_exact_after_block_when_directory_is_closed(tmp_path: Path) -> None:
    payloads = [b"%d" % number for number in range(200)]

    async def scene() -> None:
        async with Cluster(n=0) as cluster:
            async with to(cluster, tmp_path) as node, node.subscribe("t") as topic:
                await topic.publish_many(payloads)
            for read in range(30, 200, 47):
                async with to(cluster, tmp_path) as node, node.subscribe("t") as topic:
                    assert await read_some(topic, read) == payloads[:read]
                async with to(cluster, tmp_path) as node, node.subscribe("t", topic.cursor()) as on:
                    assert await read_some(on, 200 - read) == payloads[read:]

    asyncio.run(scene())


def test_cursor_never_exceeds_durable_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with (
            Cluster(n=0) as cluster,
            to(cluster, tmp_path) as node,
            Subscription(session := TopicSession(node.session, "t", "all")) as topic,
        ):
            await topic.publish(b"durable")
            with monkeypatch.context() as patch:
                patch.setattr(PublicationStore, "commit", lambda *_: time.sleep(0.001))
                publishing = asyncio.create_task(topic.publish(b"not yet"))
                assert await read_some(topic, 2) == [b"durable", b"not yet"]
                assert (session.reader.offset, topic.cursor().offset) == (2, 1)
                publishing.cancel()
                with suppress(asyncio.CancelledError):
                    await publishing
            await topic.publish(b"durable again")
            assert topic.cursor().offset == 2

    asyncio.run(scene())


def test_mismatched_cursor_is_refused_without_joining(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster:
            async with to(cluster, tmp_path / "one") as node, node.subscribe("t") as topic:
                await topic.publish(b"x")
                kept = topic.cursor()
                with pytest.raises(CursorError, match=r"one of topic 't', not of 'u'.*start=.all."):
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
                    assert await read_some(topic, 1) == [b"x"]  # offset 0 is equal in every epoch
            async with to(cluster, tmp_path / "two") as node:
                with pytest.raises(CursorError, match=r'another data directory.*start="all"'):
                    await node.subscribe("t", kept).__aenter__()
            async with to(cluster) as node, node.subscribe("u") as other:
                with pytest.raises(CursorError, match=r'in memory.*start="all"'):
                    await node.subscribe("t", kept).__aenter__()
                with pytest.raises(CursorError, match="data_dir"):
                    other.cursor()

    asyncio.run(scene())


def test_stale_cursor_is_refused_by_subscribe(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster:
            async with to(cluster, tmp_path / "one") as node, node.subscribe("t") as topic:
                await topic.publish(b"x")
                kept = str(topic.cursor())
            async with to(cluster, tmp_path / "two") as node:
                with pytest.raises(CursorError, match="another data directory"):
                    node.subscribe("t", start=kept)
                async with node.subscribe("t", start="all") as topic:
                    await topic.publish(b"y")
                    assert await read_some(topic, 1) == [b"y"]

    asyncio.run(scene())


def test_cursor_is_checked_again_when_block_is_entered(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster:
            async with to(cluster, tmp_path / "one") as node, node.subscribe("t") as topic:
                await topic.publish(b"x")
                kept = topic.cursor()
            node = to(cluster, tmp_path / "two")
            early = node.subscribe("t", start=kept)  # no directory is open yet
            async with node:
                with pytest.raises(CursorError, match="another data directory"):
                    await early.__aenter__()

    asyncio.run(scene())


# -- cursors and a restored data directory ----------------------------------------------------


def stored(directory: Path, *payloads: bytes) -> None:
    """Write publications in this order into a directory whose node does not run."""
    with PublicationStore.open(directory) as store:
        archive = store.archive("t")
        for payload in payloads:
            publication = StoredPublication(publisher="p", seq=payload[0], payload=payload)
            archive.write(archive.end, publication.with_id("t"))
        store.commit()


async def read_until(cluster: Cluster, directory: Path, count: int) -> str:
    """Read the first publications of a directory; return the text of the cursor behind them."""
    async with to(cluster, directory) as node, node.subscribe("t") as topic:
        await read_some(topic, count)
        return str(topic.cursor())


def test_cursor_is_refused_after_restore_and_refill_in_another_order(
    tmp_path: Path,
) -> None:
    directory, backup = tmp_path / "data", tmp_path / "backup"

    async def scene() -> None:
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
                    assert await read_some(topic, 4) == [b"D", b"C", b"B", b"E"]

    asyncio.run(scene())


def test_cursor_stays_valid_after_restore_and_refill_in_same_order(
    tmp_path: Path,
) -> None:
    directory, backup = tmp_path / "data", tmp_path / "backup"

    async def scene() -> None:
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
                assert await read_some(topic, 1) == [b"D"]

    asyncio.run(scene())


# -- batches of records ----------------------------------------------------------------------


def test_records_are_published_with_keys_and_headers_beside_plain_payloads() -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe("t") as topic:
            records = [
                b"plain",
                Record(b"keyed", key=b"k"),
                Record(b"full", b"k", {"source": "test"}),
                Record(bytearray(b"bare")),
            ]
            ids = await topic.publish_many(iter(records))
            found = await topic.read_available()
            assert [each.id for each in found] == ids
            assert [(each.payload, each.key, each.headers) for each in found] == [
                (b"plain", None, {}),
                (b"keyed", b"k", {}),
                (b"full", b"k", {"source": "test"}),
                (b"bare", None, {}),
            ]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ("text", r"records\[2\]: a payload is bytes, not str"),
        (None, r"records\[2\]: a payload is bytes, not NoneType"),
        (bytes(512 * 1024 + 1), r"records\[2\]: .*524288 is the limit"),
        (Record("text"), r"records\[2\]: a payload is bytes, not str"),  # type: ignore[arg-type]
        (Record(b"x", key="k"), r"records\[2\]: a key is bytes, not str"),  # type: ignore[arg-type]
        (Record(b"x", bytes(1025)), r"records\[2\]: .*1024 is the limit"),
        (Record(b"x", headers={"a": 1}), r"records\[2\]: headers are"),  # type: ignore[dict-item]
    ],
    ids=["text", "none", "long payload", "text in a record", "text as key", "long key", "headers"],
)
def test_invalid_record_is_named_by_index_and_nothing_is_published(
    record: bytes | Record, sentence: str
) -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe("t") as topic:
            with pytest.raises(InputError, match=sentence):
                await topic.publish_many([b"good", Record(b"good"), record, b"good"])
            assert topic.lag == 0

    asyncio.run(scene())


# -- outside the block -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        collect,
        anext,
        Subscription.read,
        Subscription.read_many,
        Subscription.read_available,
        Subscription.synced,
        lambda topic: topic.publish(b"x"),
        lambda topic: topic.publish_many([b"x"]),
        lambda topic: topic.retry(StorageError("no space")),
    ],
    ids=[
        *("iteration", "anext", "read", "read_many", "read_available"),
        *("synced", "publish", "publish_many", "retry"),
    ],
)
def test_subscription_used_without_block_names_the_correct_form(
    use: Callable[[Subscription], Awaitable[object]],
) -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster, to(cluster) as node:
            with pytest.raises(SkipringError, match=NEVER_OPENED):
                async with asyncio.timeout(DEADLINE_S):
                    await use(node.subscribe("news"))

    asyncio.run(scene())


def test_reading_ends_after_block_was_left() -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster, to(cluster) as node:
            async with node.subscribe("news") as news:
                await news.publish(b"x")
            async with asyncio.timeout(DEADLINE_S):
                assert await collect(news) == []
                assert await news.read() is None
                assert await news.read_many() == []
                assert await news.read_available() == []
            with pytest.raises(SkipringError, match="not subscribed to 'news' any more"):
                await news.publish(b"y")

    asyncio.run(scene())


# -- cancelled readers and concurrent readers ------------------------------------------------


def test_reading_without_publications_is_no_error() -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe("t") as topic:
            assert await topic.read(timeout=0) is None
            assert await topic.read(timeout=0.01) is None
            assert await topic.read_available() == []
            for number in range(3 * READ_AT_ONCE):
                await topic.publish(b"%d" % number)
            found = [each.payload for each in await topic.read_available(limit=READ_AT_ONCE + 1)]
            found += [each.payload for each in await topic.read_available()]
            assert found == [b"%d" % number for number in range(3 * READ_AT_ONCE)]
        async with asyncio.timeout(DEADLINE_S):
            assert await topic.read() is None

    asyncio.run(scene())


def test_repeatedly_cancelled_reader_misses_nothing() -> None:
    async def scene() -> None:
        many = 300
        async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe("t") as topic:
            found: list[bytes] = []

            async def read() -> None:
                async for publication in topic:
                    found.append(publication.payload)

            for number in range(many):
                task = asyncio.create_task(read())
                await asyncio.sleep(0)
                await topic.publish(b"%d" % number)
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            found += [each.payload for each in await topic.read_available()]
            assert found == [b"%d" % number for number in range(many)]

    asyncio.run(scene())


def test_concurrent_readers_share_publications_and_all_end() -> None:
    async def scene() -> None:
        many = 200
        async with Cluster(n=0) as cluster, to(cluster) as node:
            async with node.subscribe("t") as topic:

                async def read() -> list[bytes]:
                    found = []
                    async for publication in topic:
                        found.append(publication.payload)
                        await asyncio.sleep(0)
                    return found

                readers = [asyncio.create_task(read()) for _ in range(3)]
                for number in range(many):
                    await topic.publish(b"%d" % number)
                await cluster.until(lambda: topic.lag == 0)
            async with asyncio.timeout(DEADLINE_S):
                found = await asyncio.gather(*readers)
            assert all(found)
            assert sorted(chain.from_iterable(found)) == sorted(
                b"%d" % number for number in range(many)
            )

    asyncio.run(scene())


def test_waiting_for_sync_raises_when_topic_is_left() -> None:
    async def scene() -> None:
        async with Cluster(n=1) as cluster, to(cluster) as node:
            async with node.subscribe(cluster.topic) as news:
                await news.synced(DEADLINE_S)
                cluster.kill("n00")
                waiting = asyncio.create_task(news.synced(DEADLINE_S))
                await asyncio.sleep(0)
            with pytest.raises(SkipringError, match="not subscribed"):
                async with asyncio.timeout(DEADLINE_S):
                    await waiting

    asyncio.run(scene())


def test_cancelled_publish_still_reaches_other_members(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            Cluster(n=0) as cluster,
            to(cluster, tmp_path) as a,
            to(cluster) as b,
            a.subscribe("t") as writer,
            b.subscribe("t") as reader,
        ):
            await reader.synced(DEADLINE_S)
            await writer.synced(DEADLINE_S)
            publishing = asyncio.create_task(writer.publish(b"given up"))
            await cluster.until(lambda: writer.lag == 1)
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
            assert await read_some(reader, 1) == [b"given up"]

    asyncio.run(scene())
