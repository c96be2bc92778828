"""Session of a view: policies that change under it, ends of leases, clocks, errors of opening."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import skipring
from skipring.api import key_value_session
from skipring.api.connection import Connection
from skipring.api.key_value_session import KeyValueSession
from skipring.api.keyvalue import BYTES, KeyValue
from skipring.api.topic_session import TopicSession
from skipring.errors import InputError, SkipringError
from skipring.testing import Cluster
from tests.support.connections import DEADLINE_S, TICK_S, InspectedConnection, to


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[Connection]:
    """Connect a node whose charters take effect at once."""
    node = skipring.connect(cluster.url, tick_s=TICK_S, drain_s=0, policy_delay_s=0)
    async with node:
        yield node


def values(view: KeyValue[bytes]) -> dict[str, bytes]:
    return {each.key: each.value for each in view.items()}


def session_of(node: InspectedConnection, topic: str = "t") -> KeyValueSession:
    return KeyValueSession(TopicSession(node.session, topic, "all"))


async def test_view_has_the_keys_of_a_newcomer_after_a_new_limit() -> None:
    async with (
        Cluster(n=2, topic="other") as cluster,
        connected(cluster) as one,
        one.keyvalue("t") as view,
    ):
        await one.charter("t").set(compact=True, max_count=5)
        for number in range(20):
            await view.put(f"k{number}", b"")
        watch = view.watch()
        present = [await anext(watch) for _ in range(len(view))]
        async with connected(cluster) as two, two.keyvalue("t") as newcomer:
            await newcomer.ready(DEADLINE_S)
            await cluster.until(lambda: values(view) == values(newcomer), DEADLINE_S)
        assert 1 <= len(view) <= 5
        removed = [await anext(watch) for _ in range(len(present) - len(view))]
        assert all(each.deleted for each in removed)


@pytest.mark.parametrize("limits", [None, {"max_count": 100}])
async def test_view_ends_with_a_remedy_once_its_topic_is_not_compacted(
    limits: dict[str, Any] | None,
) -> None:
    async with (
        Cluster(n=1, topic="other") as cluster,
        connected(cluster) as node,
        node.keyvalue("t") as view,
    ):
        await view.put("k", b"1")
        watch = view.watch()
        assert (await anext(watch)).is_snapshot
        charter = node.charter("t")
        await (charter.delete() if limits is None else charter.set(**limits))
        remedy = r"does not compact it; call `node\.charter\('t'\)\.set\(compact=True\)`"
        with pytest.raises(SkipringError, match=remedy):
            async with asyncio.timeout(DEADLINE_S):
                await anext(watch)
        for read in (lambda: view.get("k"), view.items, lambda: len(view), view.watch):
            with pytest.raises(SkipringError, match=remedy):
                read()
        with pytest.raises(SkipringError, match=remedy):
            await view.put("k", b"2")
        async with connected(cluster) as other:
            with pytest.raises(InputError, match="'t' is not compacted"):
                await other.keyvalue("t").__aenter__()


async def test_view_of_a_topic_that_is_compacted_later_has_its_values() -> None:
    async with (
        Cluster(n=2, topic="t") as cluster,
        connected(cluster) as node,
        skipring.connect(cluster.url, tick_s=TICK_S, policy_delay_s=3600) as writer,
        writer.subscribe("t") as topic,
    ):
        await topic.publish(b"1", key=b"k")
        await writer.charter("t").set(compact=True)
        async with node.keyvalue("t") as view:
            await view.ready(DEADLINE_S)
            assert values(view) == {"k": b"1"}
            await view.put("k", b"2")
            assert values(view) == {"k": b"2"}


class StoppedTimer:
    """Timer that never calls its function."""

    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Stop nothing."""


async def test_own_lease_that_is_not_renewed_ends_between_ticks_without_other_publications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_value_session, "Timer", StoppedTimer)
    async with Cluster(n=0) as cluster, to(cluster) as node:
        session = session_of(node)
        await session.open()
        view = KeyValue[bytes](session, BYTES)
        watch = view.watch("worker/7")
        await session.write_lease("worker/7", b"here", 0.2)
        assert not (await anext(watch)).deleted
        async with asyncio.timeout(DEADLINE_S / 2):
            assert (await anext(watch)).deleted
        assert len(view) == 0
        await session.close()


async def test_number_of_keys_excludes_ended_leases_at_once() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        session = session_of(node)
        await session.open()
        view = KeyValue[bytes](session, BYTES)
        await session.write_lease("worker/7", b"here", 1e-6)
        assert len(view) == 0
        await session.close()


async def test_leases_end_by_the_clock_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        session = session_of(node)
        await session.open()
        view = KeyValue[bytes](session, BYTES)
        await session.write_lease("worker/7", b"here", 600)
        now = session.now_us()
        assert len(view) == 1
        machine = node.session.host.machine("t")
        assert machine is not None
        retention = machine.replica.retention
        assert retention is not None
        hour = 3600 * 1_000_000
        monkeypatch.setattr(type(retention.clock), "deviation", -hour)  # both neighbours are ahead
        assert session.now_us() >= now + hour
        assert view.get("worker/7") is None
        assert len(view) == 0
        await session.close()


async def test_watch_ends_with_its_connection() -> None:
    async with Cluster(n=0) as cluster:
        node = to(cluster)
        await node.__aenter__()
        view = node.keyvalue("t")
        await view.__aenter__()
        watch = view.watch()
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        await node.close()
        async with asyncio.timeout(DEADLINE_S):
            assert await waiting is None


async def test_closed_view_refuses_every_read() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        async with node.keyvalue("t") as view:
            await view.put("k", b"v")
        for read in (lambda: view.get("k"), view.items, lambda: len(view), view.keys, view.watch):
            with pytest.raises(SkipringError, match="no longer subscribed"):
                read()


async def test_opening_without_a_supervisor_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skipring.api.charter.JOIN_S", 1.0)
    async with Cluster(n=0) as cluster, to(cluster) as node:
        await cluster.stop_supervisor()
        with pytest.raises(
            TimeoutError, match=r"the charter of 't' in 1 s: nothing listens on 127"
        ):
            await node.keyvalue("t").__aenter__()
