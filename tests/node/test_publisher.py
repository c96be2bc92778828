"""``publish(replicas=k)`` returns when k other members have stored the publication durably."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import skipring
from skipring.api.subscription import Subscription
from skipring.core.effects import HeldBy
from skipring.core.events import PublishRequested
from skipring.errors import InputError, ReplicationError
from skipring.storage.store import PublicationStore
from skipring.testing import Cluster
from tests.support.connections import healthy_cluster
from tests.support.rings import until

TICK_S = 0.05
SOON_S = 10.0


@asynccontextmanager
async def subscribed(
    n: int, data_dir: Path | None = None
) -> AsyncIterator[tuple[Cluster, Subscription]]:
    """Yield a healthy cluster and a subscription of another program without a disk."""
    async with (
        healthy_cluster(n, data_dir=data_dir) as cluster,
        skipring.connect(cluster.url, tick_s=TICK_S) as node,
        node.subscribe(cluster.topic) as news,
    ):
        yield cluster, news


@pytest.mark.parametrize("replicas", [1, 2, 3])
async def test_publication_is_on_the_disks_of_other_members(tmp_path: Path, replicas: int) -> None:
    async with subscribed(3, tmp_path) as (cluster, news):
        made = await news.publish(b"x", replicas=replicas, timeout=30)
        durable = [
            name
            for name in cluster.nodes
            if (machine := cluster.node(name).machine(cluster.topic)) is not None
            and (offset := machine.replica.offset_of(made)) is not None
            and offset < machine.replica.log.written_end  # type: ignore[attr-defined]
        ]
        assert len(durable) >= replicas
        names = cluster.nodes
    stored = 0
    for name in names:
        with PublicationStore.open(tmp_path / name) as store:
            stored += made in {key for key, _ in store.archive("news").entries()}
    assert stored >= replicas


async def test_members_commit_early_for_replicas(tmp_path: Path) -> None:
    """Stop the ticks: no member commits by itself before the deadline."""
    async with healthy_cluster(n=2, tick_s=0.1, data_dir=tmp_path) as cluster:
        node = cluster.node("n00")
        for each in cluster.nodes:
            cluster.node(each).ticker.stop()
        async with asyncio.timeout(SOON_S):
            (made,) = await node.publish(cluster.topic, PublishRequested(payload=b"x"))
            await node.replications.reached(cluster.topic, made, 1, SOON_S)


async def test_members_without_a_disk_do_not_count() -> None:
    async with subscribed(3) as (_, news):
        await until(lambda: news.health().state == "stable")
        with pytest.raises(ReplicationError, match="0 of 1 other members") as caught:
            await news.publish(b"x", replicas=1, timeout=30)
        assert caught.value.confirmed == 0
        assert "0 other members with a data directory" in str(caught.value)
        assert (await anext(news)).id == caught.value.id


async def test_more_replicas_than_members_raise_an_error_with_the_number(tmp_path: Path) -> None:
    async with subscribed(2, tmp_path) as (_, news):
        async with asyncio.timeout(SOON_S):
            with pytest.raises(ReplicationError, match="2 of 5") as caught:
                await news.publish(b"x", replicas=5, timeout=60)
        assert caught.value.confirmed == 2


async def test_timeout_raises_an_error_with_the_number(tmp_path: Path) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        with cluster.partition(["n00"], ["n01"]):
            node = cluster.node("n00")
            with pytest.raises(ReplicationError, match=r"0 of 1 .* within 0\.2 s"):
                await node.replications.reached(cluster.topic, b"x" * 32, 1, 0.2)


@pytest.mark.parametrize("replicas", [-1, 1.5, True, "1"])
async def test_number_of_replicas_is_checked_before_anything_is_published(replicas: object) -> None:
    async with subscribed(1) as (_, news):
        with pytest.raises(InputError, match="replicas: expected a number of members"):
            await news.publish(b"x", replicas=replicas)  # type: ignore[arg-type]
        assert news.lag == 0


async def test_blocking_publish_waits_for_replicas(tmp_path: Path) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:

        def use() -> tuple[bytes, int]:
            node = skipring.blocking.connect(cluster.url, tick_s=TICK_S).open()
            news = node.subscribe(cluster.topic).open()
            made = news.publish(b"x", replicas=2)
            return made, node.close()

        made, unconfirmed = await asyncio.to_thread(use)
        assert unconfirmed == 0
        for name in cluster.nodes:
            machine = cluster.node(name).machine(cluster.topic)
            assert machine is not None
            assert machine.replica.offset_of(made) is not None


async def test_member_that_confirms_twice_counts_once(tmp_path: Path) -> None:
    async with healthy_cluster(n=1, data_dir=tmp_path) as cluster:
        node = cluster.node("n00")
        (made,) = await node.publish(cluster.topic, PublishRequested(payload=b"x"))
        reached = asyncio.create_task(node.replications.reached(cluster.topic, made, 2, SOON_S))
        await asyncio.sleep(0)
        for _ in range(2):
            node.replications.on_held(cluster.topic, HeldBy("liar", (made,), True))
        with pytest.raises(ReplicationError) as raised:
            await reached
    assert raised.value.confirmed == 1
