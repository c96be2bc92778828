"""The public API over real sockets: publishing, reading, waiting and refused input."""

from __future__ import annotations

import asyncio
import doctest
import subprocess
import sys
import time
from pathlib import Path

import pytest

import skipring
from skipring.api import connection as connection_module
from skipring.api import subscription, topic_session
from skipring.api.connection import connect
from skipring.api.cursor import Start
from skipring.api.reader import FRESH_MAX, Publication
from skipring.api.subscription import Subscription
from skipring.api.topic_session import HealthState, TopicSession
from skipring.errors import InputError, SkipringError
from skipring.testing import Cluster
from tests.support.connections import DEADLINE_S, TICK_S, to
from tests.support.rings import until

UNUSED_URL = "skipring://127.0.0.1:9"  # no supervisor listens here


async def read_some(source: Subscription, count: int) -> list[Publication]:
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(source) for _ in range(count)]


def payloads(publications: list[Publication]) -> list[bytes]:
    return [publication.payload for publication in publications]


def test_docstring_examples_pass() -> None:
    assert doctest.testmod(connection_module) == (0, 4)
    assert doctest.testmod(subscription) == (0, 5)


# -- publishing and reading ------------------------------------------------------------------


async def test_subscriber_reads_publication_of_another_member() -> None:
    async with (
        Cluster(n=0) as cluster,
        to(cluster, name="a") as a,
        to(cluster, name="b") as b,
        a.subscribe("orders") as writer,
        b.subscribe("orders") as reader,
    ):
        before = time.time_ns() // 1000
        made = await writer.publish(b"one", key=b"42", headers={"src": "web"})
        [got] = await read_some(reader, 1)
        assert (got.id, got.publisher, got.payload) == (made, "a", b"one")
        assert (got.key, got.headers, got.replayed) == (b"42", {"src": "web"}, False)
        assert before <= got.time <= time.time_ns() // 1000
        [own] = await read_some(writer, 1)
        assert (own.id, own.hops) == (made, 0)


async def test_member_of_larger_ring_reads_every_publication_once() -> None:
    async with Cluster(n=4) as cluster:
        sent = [b"%d" % number for number in range(50)]
        for number, payload in enumerate(sent):
            await cluster.publish(cluster.nodes[number % 4], payload)
        async with to(cluster) as node, node.subscribe(cluster.topic) as news:
            got = await read_some(news, 50)
            await news.publish(b"last")
            [last] = await read_some(news, 1)
            await news.synced(DEADLINE_S)
            assert sorted(payloads(got)) == sorted(sent)
            assert (last.payload, news.lag) == (b"last", 0)


async def test_publishing_works_without_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_session, "LEAVE_S", 0.05)  # the supervisor never confirms the leave
    async with connect(UNUSED_URL, tick_s=TICK_S, drain_s=0) as node:
        orders = await node.subscribe("orders").__aenter__()
        made = [await orders.publish(b"%d" % number) for number in range(3)]
        assert [publication.id for publication in await read_some(orders, 3)] == made
        assert orders.health().state is HealthState.JOINING
        await until(lambda: "nothing listens on 127.0.0.1:9;" in orders.health().reasons[0])
        with pytest.raises(TimeoutError, match="nothing listens on"):
            await orders.synced(timeout=0.01)


async def test_slow_reader_misses_nothing_and_buffers_a_bounded_number() -> None:
    many = 3 * FRESH_MAX
    async with (
        Cluster(n=0) as cluster,
        to(cluster) as node,
        Subscription(session := TopicSession(node.session, "orders", "all")) as orders,
    ):
        await orders.publish_many(b"%d" % number for number in range(many))
        assert (orders.lag, orders.health().lag) == (many, many)
        assert session.reader.buffered <= FRESH_MAX
        got = await read_some(orders, many)
        assert payloads(got) == [b"%d" % number for number in range(many)]
        assert (got[0].hops, got[-1].hops) == (None, 0)
        assert (session.reader.buffered, orders.lag) == (0, 0)


async def test_busy_publisher_yields_to_other_tasks() -> None:
    async with (
        Cluster(n=0) as cluster,
        to(cluster) as a,
        to(cluster) as b,
        a.subscribe("orders") as writer,
        b.subscribe("orders") as reader,
    ):
        await writer.synced(DEADLINE_S)
        for _ in range(100):
            await writer.publish(bytes(100_000))
        assert reader.lag > 0
        assert a.session.host.links.counts["queue full"] == 0
        await read_some(reader, 100)


# -- stored publications ---------------------------------------------------------------------


@pytest.mark.parametrize("start", ["all", "new"])
async def test_stored_publications_are_replayed_according_to_start(
    tmp_path: Path, start: Start
) -> None:
    async with Cluster(n=0) as cluster:
        async with to(cluster, data_dir=tmp_path) as node, node.subscribe("orders") as orders:
            name = node.name
            for number in range(5):
                await orders.publish(b"%d" % number)
        async with (
            to(cluster, data_dir=str(tmp_path)) as node,
            node.subscribe("orders", start=start) as orders,
        ):
            assert node.name == name
            await orders.publish(b"5")
            first = 0 if start == "all" else 5
            got = await read_some(orders, 6 - first)
            assert [publication.payload for publication in got] == [
                b"%d" % n for n in range(first, 6)
            ]
            seqs = [publication.seq for publication in got]
            assert seqs == sorted(set(seqs))
            assert [publication.replayed for publication in got] == [True] * (5 - first) + [False]
            assert orders.lag == 0


# -- leaving --------------------------------------------------------------------------------


async def test_closing_leaves_no_task_behind() -> None:
    async with Cluster(n=1) as cluster, to(cluster) as node:
        await node.subscribe(cluster.topic).__aenter__()  # a block that is never left
    await cluster.until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


# -- bad input -------------------------------------------------------------------------------


async def test_invalid_publications_are_refused_before_any_effect() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe("t") as topic:
        for given, sentence in [
            ({"payload": "text"}, "payload: expected bytes, got str"),
            ({"payload": bytes(512 * 1024 + 1)}, "the limit of 524288"),
            ({"payload": b"", "key": b"k" * 1025}, "the limit of 1024"),
            ({"payload": b"", "headers": {"a": 1}}, "headers: expected a mapping"),
            ({"payload": b"", "headers": {"a": "\ud800"}}, "lone surrogate"),
        ]:
            with pytest.raises(InputError, match=sentence):
                await topic.publish(**given)  # type: ignore[arg-type]
        assert topic.lag == 0
        with pytest.raises(InputError, match="already subscribed"):
            await node.subscribe("t").__aenter__()


async def test_awaiting_a_connection_names_the_correct_form() -> None:
    with pytest.raises(SkipringError, match=r"async with skipring.connect\(...\) as node:"):
        await connect(UNUSED_URL)


# -- the package -----------------------------------------------------------------------------


def test_package_exports_public_names_lazily() -> None:
    assert skipring.connect is connect
    assert set(skipring.__all__) <= set(dir(skipring))
    assert not hasattr(skipring, "nothing")
    assert all(hasattr(skipring, name) for name in skipring.__all__)
    program = "import sys, skipring.cli; sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", ["blocking.connect", "errors.CursorError", "Cursor.parse"])
def test_every_public_name_can_be_used_first(name: str) -> None:
    program = f"import skipring; skipring.{name}"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
