"""Reading a topic through its members: order, failover and end conditions."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from skipring.core.publications import Publication
from skipring.errors import InputError, UnreachableError
from skipring.net.access import Access
from skipring.rpc.client import RpcClient
from skipring.rpc.tail import TailPlan, TopicTail, Until, follow_topic
from skipring.testing import Cluster
from tests.support.rings import TOPIC, live_ring
from tests.support.scenes import inside

DEADLINE_S = 60.0


def access_to(cluster: Cluster) -> Access:
    return Access.explicit(cluster.url)


def payloads(publications: list[Publication]) -> list[bytes]:
    return sorted(each.payload for each in publications)


def never() -> bool:
    return False


async def read_until(tail: TopicTail, count: int) -> list[Publication]:
    found: list[Publication] = []
    while len(found) < count:
        found += await tail.read()
        await asyncio.sleep(0)
    return found


@inside(Cluster, n=3)
async def test_history_is_read_completely_and_ends_in_sync(cluster: Cluster, /) -> None:
    for number in range(30):
        await cluster.publish(cluster.nodes[number % 3], b"%02d" % number)
    found: list[Publication] = []
    plan = TailPlan(until=Until.IN_SYNC, wait_s=DEADLINE_S)

    def emit(publication: Publication) -> bool:
        found.append(publication)
        return False

    await follow_topic(
        access_to(cluster), cluster.topic, plan, emit, report=print, is_stopped=never
    )
    assert payloads(found) == [b"%02d" % number for number in range(30)]
    assert len({each.id for each in found}) == 30


@inside(Cluster, n=3)
async def test_reading_does_not_join_the_ring(cluster: Cluster, /) -> None:
    await cluster.publish(cluster.nodes[0], b"one")
    await cluster.wait_healthy()
    client = RpcClient(access_to(cluster).supervisors, rng=Random(0))
    async with client:
        await read_until(TopicTail(client, cluster.topic), 1)
        assert set(await client.locate(cluster.topic)) == set(cluster.nodes)
    assert cluster.violations() == []


@inside(Cluster, n=3)
async def test_tail_continues_at_another_member_without_duplicates(cluster: Cluster, /) -> None:
    for number in range(5):
        await cluster.publish(cluster.nodes[0], b"%d" % number)
    await cluster.wait_healthy()
    async with RpcClient(access_to(cluster).supervisors, rng=Random(0)) as client:
        tail = TopicTail(client, cluster.topic)
        found = await read_until(tail, 5)
        served = max(cluster.nodes)  # of equal counts the last name is chosen
        cluster.kill(served)
        await cluster.publish(min(cluster.nodes), b"5")
        found += await read_until(tail, 1)
    assert payloads(found) == [b"%d" % number for number in range(6)]


def test_tail_reads_a_restarted_member_from_the_start_of_its_log() -> None:
    """Restart a member without a disk, which refills its log in another order."""

    async def scene() -> None:
        async with live_ring() as ring:
            client = RpcClient(ring.settings.supervisors, rng=Random(0))
            first = await ring.join("a")
            await ring.wait_healthy()
            for number in range(4):
                await ring.publish("a", b"%d" % number)
            async with client:
                tail = TopicTail(client, TOPIC)
                assert payloads(await read_until(tail, 4)) == [b"0", b"1", b"2", b"3"]
                port = int(first.address.rpartition(":")[2])
                await ring.kill("a")
                await ring.join("a", port=port)
                await ring.wait_healthy()
                for number in range(10, 16):
                    await ring.publish("a", b"%d" % number)
                found = await read_until(tail, 6)
                assert payloads(found) == [b"%d" % number for number in range(10, 16)]

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))


@inside(Cluster, n=3)
async def test_new_tail_skips_history(cluster: Cluster, /) -> None:
    await cluster.publish(cluster.nodes[0], b"old")
    await cluster.wait_healthy()
    async with RpcClient(access_to(cluster).supervisors, rng=Random(0)) as client:
        tail = TopicTail(client, cluster.topic, is_new=True)
        assert await tail.read() == []
        await cluster.publish(cluster.nodes[0], b"new")
        assert payloads(await read_until(tail, 1)) == [b"new"]


@inside(Cluster, n=1)
async def test_topic_without_members_is_reported_and_ends_after_the_wait(
    cluster: Cluster, /
) -> None:
    def never(_: object = None) -> bool:
        return False

    reports: list[str] = []
    plan = TailPlan(until=Until.LOG_END, wait_s=0.3)
    with pytest.raises(UnreachableError, match="'other' has no members"):
        await follow_topic(
            access_to(cluster), "other", plan, never, report=reports.append, is_stopped=never
        )
    assert len(reports) == 1


@inside(Cluster, n=1)
async def test_stopped_reader_ends_without_new_publications(cluster: Cluster, /) -> None:
    polls = iter([False, False, True])
    plan = TailPlan(until=Until.STOPPED)
    await follow_topic(
        access_to(cluster),
        cluster.topic,
        plan,
        lambda _: False,
        report=print,
        is_stopped=lambda: next(polls),
    )
    assert list(polls) == []


@inside(Cluster, n=1)
async def test_reader_ends_when_emit_is_satisfied(cluster: Cluster, /) -> None:
    for number in range(3):
        await cluster.publish(cluster.nodes[0], b"%d" % number)
    found: list[Publication] = []
    plan = TailPlan(until=Until.STOPPED)

    def emit(publication: Publication) -> bool:
        found.append(publication)
        return len(found) == 2

    await follow_topic(
        access_to(cluster), cluster.topic, plan, emit, report=print, is_stopped=never
    )
    assert len(found) == 2


def test_unusable_topic_is_refused() -> None:
    plan = TailPlan(until=Until.STOPPED)
    with pytest.raises(InputError, match="a topic has 1 to 255 bytes"):
        asyncio.run(
            follow_topic(
                Access(supervisors=("127.0.0.1:1",)),
                "",
                plan,
                lambda _: False,
                report=print,
                is_stopped=never,
            )
        )
