"""Key-value views of live rings: reads, writes, watches, leases, conflicts, restarts, errors."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from pathlib import Path

import pytest

from skipring.api.key_value_session import KeyValueSession
from skipring.api.key_value_table import Change
from skipring.api.keyvalue import BYTES, KeyValue, KeyValueWatch
from skipring.api.topic_session import TopicSession
from skipring.errors import InputError, SkipringError
from skipring.testing import Cluster
from tests.support.connections import DEADLINE_S, to


async def next_change(watch: KeyValueWatch[bytes]) -> Change[bytes]:
    async with asyncio.timeout(DEADLINE_S):
        return await anext(watch)


async def wait_value(view: KeyValue[bytes], key: str, value: bytes | None) -> None:
    """Wait until a view has a value of a key."""
    async with asyncio.timeout(DEADLINE_S):
        async for change in view.watch(key):
            if (None if change.entry is None else change.entry.value) == value:
                return
            if value is None and view.get(key) is None:
                return


def value_of(view: KeyValue[bytes], key: str | bytes) -> bytes | None:
    entry = view.get(key)
    return None if entry is None else entry.value


async def test_node_reads_its_own_writes_at_once() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.keyvalue("t") as view:
        made = await view.put("rate", b"10")
        entry = view.get("rate")
        assert entry is not None
        assert (entry.value, entry.id, entry.publisher) == (b"10", made, node.name)
        await view.put("rate", b"11")
        assert value_of(view, b"rate") == b"11"
        await view.delete("rate")
        assert view.get("rate") is None
        assert len(view) == 0


async def test_views_of_two_nodes_become_equal_and_writes_after_reading_win() -> None:
    async with (
        Cluster(n=2) as cluster,
        to(cluster) as one,
        to(cluster) as two,
        one.keyvalue("t") as first,
        two.keyvalue("t") as second,
    ):
        await first.put_many({f"shop/{n}": b"%d" % n for n in range(300)})
        await wait_value(second, "shop/299", b"299")
        await second.ready()
        assert [each.value for each in second.items(prefix="shop/29")] == [
            b"29",
            *(b"%d" % n for n in range(290, 300)),
        ]
        await second.put("shop/1", b"one")
        await wait_value(first, "shop/1", b"one")
        assert first.keys("shop/1") == second.keys("shop/1")
        await first.delete("shop/1")
        await wait_value(second, "shop/1", None)
        assert len(first) == len(second) == 299


async def test_watch_has_the_snapshot_first_and_then_changes() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.keyvalue("t") as view:
        await view.put_many([("a/1", b"1"), ("a/2", b"2"), ("b/1", b"3")])
        watch, one = view.watch(prefix="a/"), view.watch("b/1")
        present = [await next_change(watch), await next_change(watch), await next_change(one)]
        assert [(each.key, each.is_snapshot) for each in present] == [
            ("a/1", True),
            ("a/2", True),
            ("b/1", True),
        ]
        await view.put("a/1", b"new")
        await view.put("b/1", b"new")
        await view.delete("a/2")
        first, second, other = (
            await next_change(watch),
            await next_change(watch),
            await next_change(one),
        )
        assert first.before == present[0].entry
        assert [first.deleted, second.deleted, other.deleted] == [False, True, False]
        assert not any(each.is_snapshot or each.concurrent for each in (first, second, other))


async def test_watch_ends_with_its_view() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        async with node.keyvalue("t") as view:
            watch = view.watch()
            waiting = asyncio.create_task(next_change(watch))
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        with suppress(StopAsyncIteration, RuntimeError):
            await waiting
        assert waiting.done()
        with pytest.raises(SkipringError, match="no longer subscribed"):
            view.get("k")


async def test_watch_that_the_caller_dropped_collects_nothing() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        view = KeyValueSession(TopicSession(node.session, "t", "all"))
        await view.open()
        table = KeyValue[bytes](view, BYTES)
        await table.put("k", b"v")
        async for _ in table.watch():
            break
        gc.collect()
        assert len(view.watches) == 0
        await view.close()


async def test_json_values_share_the_view() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.keyvalue("t") as view:
        await view.json.put("limits", {"max": [1, 2.5], "on": True})
        entry = view.json.get("limits")
        assert entry is not None
        assert entry.value == {"max": [1, 2.5], "on": True}
        assert value_of(view, "limits") == b'{"max":[1,2.5],"on":true}'
        await view.put("raw", b"{")
        with pytest.raises(SkipringError, match=r"value of key 'raw'.* cannot be decoded"):
            view.json.get("raw")
        with pytest.raises(InputError, match="value: not representable in JSON"):
            await view.json.put("k", object())


async def test_invalid_arguments_publish_nothing() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.keyvalue("t") as view:
        with pytest.raises(InputError, match="value: expected bytes, got str"):
            await view.put("k", "text")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="key: expected 1 to 1024 bytes, got 0"):
            await view.put("", b"v")
        with pytest.raises(InputError, match="key: "):
            await view.put_many([("k", b"v"), ("\x00charter", b"v")])
        with pytest.raises(InputError, match="ttl: "):
            async with view.lease("k", b"v", ttl=0):
                raise AssertionError
        with pytest.raises(InputError, match="prefix: "):
            view.watch("k", prefix="p")
        assert len(view) == 0


async def test_view_must_be_opened_first() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        view = node.keyvalue("t")
        with pytest.raises(SkipringError, match="not subscribed to 't' yet"):
            view.get("k")
        with pytest.raises(SkipringError, match="not subscribed to 't' yet"):
            await view.put("k", b"v")


async def test_lease_is_renewed_while_held_and_deleted_afterwards() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.keyvalue("t") as view:
        async with view.lease("worker/7", b"here", ttl=0.3):
            first = view.get("worker/7")
            assert first is not None
            async with asyncio.timeout(DEADLINE_S):
                async for change in view.watch("worker/7"):
                    assert change.entry is not None
                    if change.entry.revision > first.revision:
                        break
        assert view.get("worker/7") is None


async def test_lease_ends_without_its_holder() -> None:
    async with Cluster(n=2) as cluster, to(cluster) as one, to(cluster) as two:
        holder, view = one.keyvalue("t"), two.keyvalue("t")
        async with view:
            async with holder:
                lease = holder.lease("worker/7", b"here", ttl=1)
                await lease.__aenter__()
                await wait_value(view, "worker/7", b"here")
            watch = view.watch("worker/7")  # the holder has left, and deleted nothing
            async with asyncio.timeout(DEADLINE_S):
                while not (await anext(watch)).deleted:
                    pass
            assert view.get("worker/7") is None
            await lease.__aexit__(None, None, None)


async def test_values_and_deletions_survive_a_restart(tmp_path: Path) -> None:
    async with Cluster(n=0) as cluster:
        async with to(cluster, tmp_path) as node, node.keyvalue("t") as view:
            await view.put_many({"a": b"1", "b": b"2"})
            await view.delete("a")
        async with to(cluster, tmp_path) as node, node.keyvalue("t") as view:
            assert [(each.key, each.value) for each in view.items()] == [("b", b"2")]


async def test_views_agree_on_one_of_two_concurrent_writes() -> None:
    async with (
        Cluster(n=2) as cluster,
        to(cluster) as one,
        to(cluster) as two,
        one.keyvalue("t") as first,
        two.keyvalue("t") as second,
    ):
        await first.ready()
        await second.ready()
        await asyncio.gather(first.put("k", b"first"), second.put("k", b"second"))
        await first.put("end", b"first")
        await second.put("end", b"second")
        for view in (first, second):
            await view.ready()
        assert first.get("k") == second.get("k")
        assert value_of(first, "k") in (b"first", b"second")
        assert first.get("end") == second.get("end")
