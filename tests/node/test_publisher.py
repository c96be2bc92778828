"""Publishing: shared batches, copies at other members, and batches of clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import time_ns

import pytest
from msgspec.structs import replace

import skipring
from skipring.api.subscription import Subscription
from skipring.core.batches import BatchRecord, RecordBatch, batch_part
from skipring.core.effects import HeldBy
from skipring.core.log_messages import Refused
from skipring.core.replica import Replica
from skipring.core.retention.charter import US, Charter, Policy, charter_record
from skipring.core.retention.retained import EXPIRED, FROM_FUTURE, LOWER_CHARTER, WITHOUT_TIME
from skipring.core.subscriber import Subscriber
from skipring.errors import InputError, PolicyError, ReplicationError
from skipring.node.host import NodeHost
from skipring.rpc.client import RpcClient
from skipring.storage.store import LogStore
from skipring.testing import Cluster
from skipring.wire.rpc import Publish, PublishAck
from tests.support.batches import batch_of
from tests.support.connections import healthy_cluster
from tests.support.rings import until

TOPIC = "news"
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


def machine_of(node: NodeHost) -> Subscriber:
    machine = node.machine(TOPIC)
    assert machine is not None
    return machine


# -- shared batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("has_disk", [True, False], ids=["disk", "memory"])
async def test_calls_of_one_loop_iteration_share_batches(tmp_path: Path, has_disk: bool) -> None:
    async with healthy_cluster(n=1, data_dir=tmp_path if has_disk else None) as cluster:
        node = cluster.node("n00")
        calls = (node.publish(TOPIC, BatchRecord(b"%d" % number)) for number in range(100))
        ids = [key for (key,) in await asyncio.gather(*calls)]
        batches = machine_of(node).batches()
        assert [batch.count for batch in batches] == [1, 99]
        assert [key for batch in batches for key in batch.record_ids()] == ids
        assert cluster.payloads("n00") == [b"%d" % number for number in range(100)]


async def test_call_waits_for_no_call_of_a_later_iteration() -> None:
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        for number in range(3):
            await node.publish(TOPIC, BatchRecord(b"%d" % number))
            await asyncio.sleep(0)
        assert [batch.count for batch in machine_of(node).batches()] == [1, 1, 1]


async def test_records_of_one_call_share_batches_with_consecutive_numbers() -> None:
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        ids = await node.publish(TOPIC, *(BatchRecord(b"%d" % n) for n in range(600)))
        batches = machine_of(node).batches()
        assert [batch.count for batch in batches] == [256, 256, 88]
        assert [batch.first for batch in batches[1:]] == [batch.end for batch in batches[:-1]]
        assert [key for batch in batches for key in batch.record_ids()] == ids


async def test_topics_share_no_batch() -> None:
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        node.subscribe("other")
        topics = (TOPIC, "other", TOPIC, "other", TOPIC)
        await asyncio.gather(*(node.publish(each, BatchRecord(each.encode())) for each in topics))
        for topic, counts in ((TOPIC, [1, 2]), ("other", [1, 1])):
            machine = node.machine(topic)
            assert machine is not None
            assert [batch.count for batch in machine.batches()] == counts
            payloads = {each.payload for batch in machine.batches() for each in batch.records()}
            assert payloads == {topic.encode()}


async def test_cancelled_call_publishes_with_the_others() -> None:
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        calls = [asyncio.ensure_future(node.publish(TOPIC, BatchRecord(p))) for p in (b"0", b"1")]
        last = asyncio.ensure_future(node.publish(TOPIC, BatchRecord(b"2")))
        await asyncio.sleep(0)
        calls[1].cancel()
        assert len(await calls[0]) == len(await last) == 1
        await asyncio.wait(calls)
        assert calls[1].cancelled()
        assert cluster.payloads("n00") == [b"0", b"1", b"2"]


async def test_calls_that_share_a_batch_get_the_same_error() -> None:
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        calls = [asyncio.ensure_future(node.publish("other", BatchRecord(b"x"))) for _ in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert ["not subscribed to 'other'" in str(each) for each in results] == [True] * 3


# -- copies at other members ----------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 3])
async def test_publication_is_on_the_disks_of_other_members(tmp_path: Path, replicas: int) -> None:
    async with subscribed(3, tmp_path) as (cluster, news):
        part = batch_part(await news.publish(b"x", replicas=replicas, timeout=30))
        durable = [
            name
            for name in cluster.nodes
            if (found := machine_of(cluster.node(name)).trie().find(part)) is not None
            and found[1] < machine_of(cluster.node(name)).replica.log.durable_end
        ]
        assert len(durable) >= replicas
        names = cluster.nodes
    stored = 0
    for name in names:
        with LogStore.open(tmp_path / name) as store:
            stored += part in {batch_part(key) for key, _ in store.log(TOPIC).entries()}
    assert stored >= replicas


async def test_records_of_one_batch_wait_for_replicas_together(tmp_path: Path) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        node = cluster.node("n00")
        ids = await node.publish(TOPIC, *(BatchRecord(b"%d" % n) for n in range(5)))
        reached = node.replications.reached
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*(reached(TOPIC, key, 1, SOON_S) for key in ids))
            await reached(TOPIC, ids[0], 1, SOON_S)


async def test_call_for_replicas_waits_while_the_index_has_a_backlog(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        node = cluster.node("n00")
        for each in cluster.nodes:
            cluster.node(each).ticker.stop()
        (key,) = await node.publish(TOPIC, BatchRecord(b"x"))
        with monkeypatch.context() as patch:
            patch.setattr(Replica, "has_index_backlog", True)
            patch.setattr(Replica, "index", lambda _: pytest.fail("it would take long"))
            waits = asyncio.create_task(node.replications.reached(TOPIC, key, 1, SOON_S))
            with pytest.raises(ReplicationError, match=r"within 0\.01 s"):
                await node.replications.reached(TOPIC, key, 1, 0.01)
            assert not waits.done()
        async with asyncio.timeout(SOON_S):
            await waits


async def test_members_commit_early_for_replicas(tmp_path: Path) -> None:
    """Stop the ticks: no member commits by itself before the deadline."""
    async with healthy_cluster(n=2, tick_s=0.1, data_dir=tmp_path) as cluster:
        node = cluster.node("n00")
        for each in cluster.nodes:
            cluster.node(each).ticker.stop()
        async with asyncio.timeout(SOON_S):
            (made,) = await node.publish(cluster.topic, BatchRecord(b"x"))
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
            assert machine_of(cluster.node(name)).trie().find(batch_part(made)) is not None


async def test_member_that_confirms_twice_counts_once(tmp_path: Path) -> None:
    async with healthy_cluster(n=1, data_dir=tmp_path) as cluster:
        node = cluster.node("n00")
        (made,) = await node.publish(cluster.topic, BatchRecord(b"x"))
        (stored,) = machine_of(node).batches()
        reached = asyncio.create_task(node.replications.reached(cluster.topic, made, 2, SOON_S))
        await asyncio.sleep(0)
        for _ in range(2):
            node.replications.on_held(cluster.topic, HeldBy("liar", (stored.id,), True))
        with pytest.raises(ReplicationError) as raised:
            await reached
    assert raised.value.confirmed == 1


# -- batches of clients ---------------------------------------------------------------------------


@asynccontextmanager
async def client_of(node: NodeHost) -> AsyncIterator[RpcClient]:
    async with RpcClient(["127.0.0.1:1"], rng=Random(1), is_volatile=True) as client:
        client.book.learn({node.name: node.address})
        yield client


async def asked(client: RpcClient, node: NodeHost, batch: RecordBatch) -> PublishAck | Refused:
    answer = await client.request(
        TOPIC, node.name, lambda number: Publish(number, batch, volatile=True), PublishAck
    )
    assert isinstance(answer, PublishAck | Refused)
    return answer


async def test_acknowledgement_has_the_id_and_the_first_offset_of_the_batch() -> None:
    made = [batch_of(b"x", b"y", publisher="p", first=first, topic=TOPIC) for first in (0, 2)]
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        async with client_of(node) as client:
            for each in (made[0], made[1], made[0]):
                answer = await asked(client, node, each)
                assert isinstance(answer, PublishAck)
                assert (answer.id, answer.offset) == (each.id, each.first)
        assert machine_of(node).batches() == tuple(made)


async def test_invalid_batch_of_a_client_is_refused_and_counted() -> None:
    forged = replace(batch_of(b"x", publisher="p", topic=TOPIC), first=7)
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        async with client_of(node) as client:
            answer = await asked(client, node, forged)
        assert isinstance(answer, Refused)
        assert answer.reason == "an invalid batch"
        assert node.links.counts["invalid batch"] == 1
        assert machine_of(node).batches() == ()


async def test_member_that_reads_its_log_refuses_batches_of_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = batch_of(b"x", publisher="p", topic=TOPIC)
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        async with client_of(node) as client:
            with monkeypatch.context() as patch:
                patch.setattr(Replica, "is_starting", True)
                answer = await asked(client, node, made)
            assert isinstance(answer, Refused)
            assert "reading its log" in answer.reason
            assert isinstance(await asked(client, node, made), PublishAck)


async def test_batch_of_a_client_is_handed_over_before_its_member_leaves() -> None:
    async with healthy_cluster(n=2) as cluster:
        node = cluster.node("n00")
        with cluster.partition(["n00"], ["n01"]):
            await node.submit(TOPIC, batch_of(b"x", b"y", publisher="p", topic=TOPIC))
            assert node.departures.own_counts[TOPIC] == 2
        ended = await node.drain(TOPIC, SOON_S)
        assert (ended.receiver, ended.unconfirmed) == ("n01", 0)
        assert cluster.payloads("n01") == [b"x", b"y"]


# -- batches of clients in topics with a policy -------------------------------------------------


def record_at(time: int, key: bytes = b"k", first: int = 0, payload: bytes = b"x") -> RecordBatch:
    record = BatchRecord(payload, time, key)
    return RecordBatch.of([record], publisher="client", first=first, topic=TOPIC)


@asynccontextmanager
async def limited_node(policy: Policy) -> AsyncIterator[tuple[NodeHost, int]]:
    """Yield the only member of a topic with a policy, and its time."""
    now = time_ns() // 1000
    charter = Charter(stamp=now - US, effective_from=0, policy=policy)
    made = RecordBatch.of([charter_record(charter)], publisher="z", first=0, topic=TOPIC)
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        await node.submit(TOPIC, made)
        await cluster.until(lambda: policy_of(node) == policy)
        yield node, now


def policy_of(node: NodeHost) -> Policy | None:
    retention = machine_of(node).replica.retention
    is_ready = retention is not None and retention.rows is not None and retention.rows.is_complete
    return retention.policy if retention is not None and is_ready else None


@pytest.mark.parametrize("policy", [Policy(compact=True), Policy(max_count=1)])
async def test_retry_is_acknowledged_after_the_policy_has_dropped_the_batch(
    policy: Policy,
) -> None:
    async with limited_node(policy) as (node, now), client_of(node) as client:
        first = record_at(now, payload=b"old")
        acknowledged = await asked(client, node, first)
        for number in range(1, 4):
            newer = record_at(now + number, first=number)
            assert isinstance(await asked(client, node, newer), PublishAck)
        await until(lambda: machine_of(node).replica.offset_of(first.id) is None)
        assert await asked(client, node, first) == replace(acknowledged, request=5)


async def test_superseded_batch_of_a_client_is_acknowledged_at_the_end_of_the_log() -> None:
    async with limited_node(Policy(compact=True)) as (node, now), client_of(node) as client:
        assert isinstance(await asked(client, node, record_at(now)), PublishAck)
        answer = await asked(client, node, record_at(now - 1, first=1))
        assert isinstance(answer, PublishAck)
        assert answer.offset == machine_of(node).replica.end


@pytest.mark.parametrize(
    ("ahead_s", "reason"), [(-7200, EXPIRED), (7200, FROM_FUTURE), (None, WITHOUT_TIME)]
)
async def test_batch_that_the_policy_refuses_has_a_reason(ahead_s: int | None, reason: str) -> None:
    async with limited_node(Policy(max_age_s=3600)) as (node, now), client_of(node) as client:
        await until(lambda: floor_of(node) > 0)
        made = record_at(0 if ahead_s is None else now + ahead_s * US)
        assert await asked(client, node, made) == Refused(1, reason)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_members", located_at(node))
            with pytest.raises(PolicyError, match="refuses a publication: it"):
                await client.publish(TOPIC, [made])


def floor_of(node: NodeHost) -> int:
    retention = machine_of(node).replica.retention
    return retention.floors.stamps.rows if retention is not None else 0


def located_at(node: NodeHost) -> Callable[[str], Awaitable[dict[str, str]]]:
    async def members(_: str) -> dict[str, str]:
        return {node.name: node.address}

    return members


async def test_charter_below_the_effective_one_is_refused_with_a_reason() -> None:
    async with limited_node(Policy(compact=True)) as (node, now), client_of(node) as client:
        lower = Charter(stamp=now - 2 * US, effective_from=0, policy=Policy())
        made = RecordBatch.of([charter_record(lower)], publisher="c", first=1, topic=TOPIC)
        assert await asked(client, node, made) == Refused(1, LOWER_CHARTER)
