"""Publishing through members: batches, numbers, and retries that add nothing."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from skipring.api.connection import connect
from skipring.core.batches import RECORDS_MAX, BatchRecord, RecordBatch, is_reserved
from skipring.core.publications import Publication
from skipring.errors import InputError
from skipring.net.access import Access
from skipring.rpc import client as rpc_client
from skipring.rpc.client import RpcClient
from skipring.rpc.publisher import PublishedRecord, PublishPlan, publish_all
from skipring.rpc.tail import TopicTail
from skipring.testing import Cluster
from skipring.wire.rpc import Publish, PublishAck
from tests.support.scenes import inside

WAIT_S = 30.0


async def publish(cluster: Cluster, *payloads: bytes) -> list[PublishedRecord]:
    done: list[PublishedRecord] = []
    plan = PublishPlan(topic=cluster.topic, key=b"k", is_volatile=True, wait_s=WAIT_S)
    await publish_all(Access.explicit(cluster.url), plan, payloads, done.append, print)
    return done


def batches(cluster: Cluster, name: str) -> list[RecordBatch]:
    machine = cluster.node(name).machine(cluster.topic)
    assert machine is not None
    log = machine.replica.log
    return [entry.batch for entry in log.read_range(0, log.end)]


@inside(Cluster, n=1)
async def test_available_payloads_share_batches_and_each_has_its_id_and_offset(
    cluster: Cluster, /
) -> None:
    payloads = [b"%d" % number for number in range(2000)]
    done = await publish(cluster, *payloads)
    stored = batches(cluster, "n00")
    assert cluster.payloads("n00") == payloads
    assert [each.id for each in done] == [key for batch in stored for key in batch.record_ids()]
    assert [each.offset for each in done] == list(range(2000))
    # The input is read while a batch is published.
    assert 2000 / RECORDS_MAX <= len(stored) < 2000 / 4


@inside(Cluster, n=1)
async def test_each_publication_is_a_batch_in_a_compacted_topic(cluster: Cluster, /) -> None:
    async with connect(cluster.url, drain_s=0) as node:
        await node.charter(cluster.topic).set(compact=True)
    payloads = [b"%d" % number for number in range(15)]
    done = await publish(cluster, *payloads)
    stored = [each for each in batches(cluster, "n00") if not is_reserved(each.records())]
    assert len({each.id for each in done}) == 15
    assert {each.count for each in stored} == {1}
    assert [each.records()[0].payload for each in stored][-1] == b"14"


@inside(Cluster, n=1)
async def test_long_payloads_are_published_in_several_batches(cluster: Cluster, /) -> None:
    payloads = [bytes([number]) * 300_000 for number in range(5)]
    done = await publish(cluster, *payloads)
    assert cluster.payloads("n00") == payloads
    assert len({each.id for each in done}) == 5


@inside(Cluster, n=1)
async def test_invalid_payload_is_refused_and_not_published(cluster: Cluster, /) -> None:
    with pytest.raises(InputError, match="exceeds the limit of 524288"):
        await publish(cluster, bytes(512 * 1024 + 1))
    assert cluster.payloads("n00") == []


@inside(Cluster, n=1)
async def test_runs_of_a_client_with_the_same_name_repeat_no_number(
    cluster: Cluster, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_client, "Random", partial(Random, 1))
    for _ in range(2):
        await publish(cluster, b"one", b"two")
    stored = batches(cluster, "n00")
    assert len({batch.publisher for batch in stored}) == 1
    numbers = [batch.first + index for batch in stored for index in range(batch.count)]
    assert len(set(numbers)) == 4


def made(client: RpcClient, topic: str, count: int) -> RecordBatch:
    records = [BatchRecord(b"%d" % number) for number in range(count)]
    return RecordBatch.of(records, publisher=client.name, first=0, topic=topic)


@inside(Cluster, n=3)
async def test_retry_at_another_member_adds_nothing(cluster: Cluster, /) -> None:
    topic = cluster.topic
    await cluster.wait_healthy()
    async with RpcClient(Access.explicit(cluster.url).supervisors, rng=Random(0)) as client:
        batch = made(client, topic, 3)
        members = await client.locate(topic)
        for name in (*members, *members):  # each answer before was lost
            question = partial(Publish, batch=batch, volatile=True)
            ack = await client.request(topic, name, question, PublishAck, WAIT_S)
            assert isinstance(ack, PublishAck)
            assert (ack.id, ack.offset) == (batch.id, 0)
    await cluster.wait_healthy()
    for name in cluster.nodes:
        assert batches(cluster, name) == [batch]
        assert cluster.delivered(name) == [b"0", b"1", b"2"]


@inside(Cluster, n=3)
async def test_client_publishes_the_same_batches_through_a_remaining_member(
    cluster: Cluster, /
) -> None:
    topic = cluster.topic
    await cluster.wait_healthy()
    supervisors = Access.explicit(cluster.url).supervisors
    async with RpcClient(supervisors, rng=Random(0), is_volatile=True) as client:
        first, second = made(client, topic, 2), made(client, topic, 3)
        assert [ack.id for ack in await client.publish(topic, [first])] == [first.id]
        served = [name for name in cluster.nodes if cluster.payloads(name)]
        cluster.kill(served[0])
        acks = await client.publish(topic, [first, second])
        assert [ack.id for ack in acks] == [first.id, second.id]
        found: list[Publication] = []
        tail = TopicTail(client, topic)
        while len(found) < 5:
            found += await tail.read()
    assert [each.id for each in found] == [*first.record_ids(), *second.record_ids()]
