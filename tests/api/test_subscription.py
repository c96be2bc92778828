"""Subscriptions: batches, ids, use outside the block, cancelled and concurrent readers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

from skipring.api.reader import READ_AT_ONCE, Publication
from skipring.api.subscription import Record, Subscription
from skipring.core.batches import RECORDS_MAX
from skipring.errors import InputError, SkipringError, StorageError
from skipring.testing import Cluster
from tests.support.connections import DEADLINE_S, InspectedConnection, read_payloads, to

NEVER_OPENED = (
    r"not subscribed to 'news' yet.* `async with node.subscribe\('news'\) as subscription: "
    r"async for publication in subscription: ...`"
)


async def collect(source: Subscription) -> list[Publication]:
    return [publication async for publication in source]


# -- batches of records ----------------------------------------------------------------------


async def test_records_are_published_with_keys_and_headers_beside_plain_payloads() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe("t") as topic:
        records: list[bytes | Record] = [
            b"plain",
            Record(b"keyed", key=b"k"),
            Record(b"full", b"k", {"source": "test"}),
            Record(bytearray(b"bare")),  # type: ignore[arg-type]
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


def batch_sizes(node: InspectedConnection, topic: str) -> list[int]:
    """Return the number of records of each batch in the log of a node."""
    machine = node.session.host.machine(topic)
    assert machine is not None
    log = machine.replica.log
    return [entry.batch.count for entry in log.read_range(0, log.end)]


@pytest.mark.parametrize("has_disk", [False, True])
async def test_records_of_one_call_share_batches(tmp_path: Path, has_disk: bool) -> None:
    async with (
        Cluster(n=0) as cluster,
        to(cluster, tmp_path if has_disk else None) as node,
        node.subscribe("t") as topic,
    ):
        records = [Record(b"x", b"%d" % n, {"n": str(n)}) if n % 2 else b"x" for n in range(600)]
        ids = await topic.publish_many(records)
        assert batch_sizes(node, "t") == [RECORDS_MAX, RECORDS_MAX, 600 - 2 * RECORDS_MAX]
        found = await topic.read_available()
        assert [each.id for each in found] == ids
        assert [each.key for each in found] == [b"%d" % n if n % 2 else None for n in range(600)]


async def test_batch_has_a_bounded_size() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe("t") as topic:
        ids = await topic.publish_many([bytes(200 * 1024)] * 5)
        assert batch_sizes(node, "t") == [2, 2, 1]
        assert [each.id for each in await topic.read_available()] == ids


async def test_all_records_of_a_batch_reach_the_reader_of_another_member_at_once() -> None:
    async with (
        Cluster(n=2) as cluster,
        to(cluster) as a,
        to(cluster) as b,
        a.subscribe(cluster.topic) as writer,
        b.subscribe(cluster.topic) as reader,
    ):
        await writer.synced(DEADLINE_S)
        await reader.synced(DEADLINE_S)
        made = []
        found: list[Publication] = []
        for _ in range(5):
            made += await writer.publish_many([b"x"] * 100)
            found += await reader.read_many(timeout=DEADLINE_S)
            assert len(found) % 100 == 0
        while len(found) < len(made):
            found += await reader.read_many(timeout=DEADLINE_S)
        assert [each.id for each in found] == made


# -- ids -------------------------------------------------------------------------------------


async def test_ids_are_unique_and_the_same_at_every_member_and_after_a_restart(
    tmp_path: Path,
) -> None:
    async with Cluster(n=0) as cluster:
        async with (
            to(cluster, tmp_path) as a,
            to(cluster) as b,
            a.subscribe("t") as writer,
            b.subscribe("t") as reader,
        ):
            made = [await writer.publish(b"same") for _ in range(3)]
            made += await writer.publish_many([b"same"] * 300)
            assert len(set(made)) == 303
            found = [await anext(reader) for _ in made]
            assert sorted(each.id for each in found) == sorted(made)
            assert len({(each.publisher, each.seq) for each in found}) == 303
        async with to(cluster, tmp_path) as a, a.subscribe("t") as again:
            assert [each.id for each in await again.read_available()] == made


# -- invalid records -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ("text", r"records\[2\]: payload: expected bytes, got str"),
        (None, r"records\[2\]: payload: expected bytes, got NoneType"),
        (bytes(512 * 1024 + 1), r"records\[2\]: .*the limit of 524288"),
        (Record("text"), r"records\[2\]: payload: expected bytes, got str"),  # type: ignore[arg-type]
        (Record(b"x", key="k"), r"records\[2\]: key: expected bytes, got str"),  # type: ignore[arg-type]
        (Record(b"x", b"k" * 1025), r"records\[2\]: .*the limit of 1024"),
        (Record(b"x", b"\0k"), r"records\[2\]: key: keys that start with a zero byte"),
        (Record(b"x", headers={"a": 1}), r"records\[2\]: headers: expected"),  # type: ignore[dict-item]
    ],
    ids=[
        "text",
        "none",
        "long payload",
        "text in a record",
        "text as key",
        "long key",
        "reserved key",
        "headers",
    ],
)
async def test_invalid_record_is_named_by_index_and_nothing_is_published(
    record: bytes | Record, sentence: str
) -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe("t") as topic:
        with pytest.raises(InputError, match=sentence):
            await topic.publish_many([b"good", Record(b"good"), record, b"good"])
        assert topic.lag == 0


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
async def test_subscription_used_without_block_names_the_correct_form(
    use: Callable[[Subscription], Awaitable[object]],
) -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        with pytest.raises(SkipringError, match=NEVER_OPENED):
            async with asyncio.timeout(DEADLINE_S):
                await use(node.subscribe("news"))


async def test_reading_ends_after_block_was_left() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        async with node.subscribe("news") as news:
            await news.publish(b"x")
        async with asyncio.timeout(DEADLINE_S):
            assert await collect(news) == []
            assert await news.read() is None
            assert await news.read_many() == []
            assert await news.read_available() == []
        with pytest.raises(SkipringError, match="no longer subscribed to 'news'"):
            await news.publish(b"y")


# -- cancelled readers and concurrent readers ------------------------------------------------


async def test_reading_without_publications_returns_none_or_an_empty_list() -> None:
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


async def test_repeatedly_cancelled_reader_misses_nothing() -> None:
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


async def test_concurrent_readers_share_publications_and_all_end() -> None:
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


async def test_waiting_for_sync_raises_when_topic_is_left() -> None:
    async with Cluster(n=1) as cluster, to(cluster) as node:
        async with node.subscribe(cluster.topic) as news:
            await news.synced(DEADLINE_S)
            cluster.kill("n00")
            waiting = asyncio.create_task(news.synced(DEADLINE_S))
            await asyncio.sleep(0)
        with pytest.raises(SkipringError, match="no longer subscribed"):
            async with asyncio.timeout(DEADLINE_S):
                await waiting


async def test_cancelled_publish_still_reaches_other_members(tmp_path: Path) -> None:
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
        assert await read_payloads(reader, 1) == [b"given up"]
