"""A clock before 1970: publishing states cause and remedy, everything else continues."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from random import Random

import pytest

from skipring.api.connection import connect
from skipring.errors import SkipringError
from skipring.net.access import Access
from skipring.observability import clock as wall_clock
from skipring.observability.clock import BEFORE_1970, publication_time_us, time_us
from skipring.rpc.client import RpcClient
from skipring.rpc.publisher import PublishPlan, publish_all
from skipring.testing import Cluster
from skipring.wire.rpc import ChangePage, DeliveryPage, FetchChanges, FetchDeliveries
from tests.support.rings import TOPIC, live_ring


@pytest.fixture
def before_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall_clock, "time_ns", lambda: -86_400 * 10**9)


def test_time_before_1970_counts_as_zero(before_1970: None) -> None:
    assert time_us() == 0


def test_time_after_1970_is_returned_unchanged() -> None:
    before = time.time_ns() // 1000
    assert before <= time_us() <= publication_time_us() <= time.time_ns() // 1000


@pytest.mark.parametrize("many", [False, True])
def test_publishing_with_a_clock_before_1970_states_cause_and_remedy(
    many: bool, before_1970: None
) -> None:
    async def scene() -> None:
        async with (
            Cluster(n=1) as cluster,
            connect(cluster.url, tick_s=0.05) as node,
            node.subscribe(cluster.topic) as news,
        ):
            with pytest.raises(SkipringError) as caught:
                await (news.publish_many([b"one"]) if many else news.publish(b"one"))
            assert str(caught.value) == BEFORE_1970

    asyncio.run(scene())


def test_client_publishing_with_a_clock_before_1970_gets_the_remedy(
    before_1970: None,
) -> None:
    async def scene() -> None:
        async with live_ring("n0") as ring:
            await ring.settle()
            access = Access(supervisors=(ring.supervisor.address,))
            plan = PublishPlan(topic=TOPIC, is_volatile=True)
            with pytest.raises(SkipringError) as caught:
                await publish_all(access, plan, [b"one"], lambda _: None, lambda _: None)
            assert str(caught.value) == BEFORE_1970

    asyncio.run(scene())


def test_member_with_a_clock_before_1970_receives_and_answers(before_1970: None) -> None:
    async def scene() -> None:
        async with (
            live_ring("n0", "n1") as ring,
            RpcClient([ring.supervisor.address], rng=Random(1)) as client,
        ):
            await ring.publish("n0", b"one")  # by a host with its own clock
            await ring.settle()
            for node in await client.locate(TOPIC):
                assert isinstance(
                    await client.request(TOPIC, node, FetchChanges, ChangePage), ChangePage
                )
                question = partial(FetchDeliveries, start=0, end=1)
                page = await client.request(TOPIC, node, question, DeliveryPage)
                assert isinstance(page, DeliveryPage)
                assert page.times == (0,)

    asyncio.run(scene())
