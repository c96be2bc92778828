"""Clocks: the wall clock, also before 1970, and the longest pause of an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from skipring.api import subscription
from skipring.api.connection import connect
from skipring.errors import SkipringError
from skipring.net.access import Access
from skipring.net.event_loop import new_loop
from skipring.node import host
from skipring.observability import clock as clock_module
from skipring.observability.clock import BEATS, BEFORE_1970, LoopPause, time_us
from skipring.rpc.client import RpcClient
from skipring.rpc.publisher import PublishPlan, publish_all
from skipring.testing import Cluster
from skipring.wire.rpc import ChangePage, DeliveryPage, FetchChanges, FetchDeliveries
from tests.support.rings import TOPIC, live_ring, until

BLOCKED_S = 0.3
TICK_S = 0.1


@pytest.fixture
def before_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (clock_module, subscription, host):
        monkeypatch.setattr(module, "time_ns", lambda: -86_400 * 10**9)


def test_time_before_1970_counts_as_zero(before_1970: None) -> None:
    assert time_us() == 0


@pytest.mark.parametrize("many", [False, True])
async def test_publishing_with_a_clock_before_1970_states_cause_and_remedy(
    many: bool, before_1970: None
) -> None:
    async with (
        Cluster(n=1) as cluster,
        connect(cluster.url, tick_s=0.05) as node,
        node.subscribe(cluster.topic) as news,
    ):
        with pytest.raises(SkipringError) as caught:
            await (news.publish_many([b"one"]) if many else news.publish(b"one"))
        assert str(caught.value) == BEFORE_1970


async def test_client_publishing_with_a_clock_before_1970_gets_the_remedy(
    before_1970: None,
) -> None:
    async with live_ring("n0") as ring:
        await ring.wait_healthy()
        access = Access(supervisors=(ring.supervisor.address,))
        plan = PublishPlan(topic=TOPIC, is_volatile=True)
        with pytest.raises(SkipringError) as caught:
            await publish_all(access, plan, [b"one"], lambda _: None, lambda _: None)
        assert str(caught.value) == BEFORE_1970


async def test_member_with_a_clock_before_1970_receives_and_answers(before_1970: None) -> None:
    async with (
        live_ring("n0", "n1") as ring,
        RpcClient([ring.supervisor.address], rng=Random(1)) as client,
    ):
        await ring.publish("n0", b"one")  # by a host with its own clock
        await ring.wait_healthy()
        for node in await client.locate(TOPIC):
            assert isinstance(
                await client.request(TOPIC, node, FetchChanges, ChangePage), ChangePage
            )
            question = partial(FetchDeliveries, start=0, end=1)
            page = await client.request(TOPIC, node, question, DeliveryPage)
            assert isinstance(page, DeliveryPage)
            assert page.times == (0,)


# --- pauses of an event loop ---------------------------------------------------------------


async def longest_pause_s(pause: LoopPause, is_over: Callable[[], bool]) -> float:
    """Block the loop once; return the longest pause once a condition holds."""
    pause.start()
    try:
        await asyncio.sleep(0)
        time.sleep(BLOCKED_S)  # noqa: ASYNC251  (the pause to be measured)
        await until(is_over)
        return pause.longest_s
    finally:
        pause.stop()
        pause.stop()  # a second call does no harm


def test_delay_of_a_beat_is_at_most_a_period_shorter_than_the_pause() -> None:
    pause = LoopPause(TICK_S, lambda: 0.0)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        pause_s = runner.run(longest_pause_s(pause, lambda: pause.longest_s > 0))
    assert pause_s >= BLOCKED_S - TICK_S / BEATS


def test_time_spent_waiting_for_a_processor_does_not_count() -> None:
    calls = 0

    def waited_s() -> float:  # each time longer than any test takes
        nonlocal calls
        calls += 1
        return 1000.0 * calls

    pause = LoopPause(TICK_S, waited_s)
    assert asyncio.run(longest_pause_s(pause, lambda: calls >= 4)) == 0.0  # two beats


def test_pause_is_measured_with_the_counters_of_the_system() -> None:
    pause = LoopPause(TICK_S)
    assert asyncio.run(longest_pause_s(pause, lambda: pause.longest_s > 0)) > 0
