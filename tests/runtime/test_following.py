"""Reading a topic for the command line: what is handed over, and when it ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from skipring.runtime.client import connect
from skipring.runtime.following import follow
from skipring.runtime.reading import Publication
from skipring.testing import Cluster

TICK_S = 0.05
DEADLINE_S = 60.0  # for what takes a second or two


def test_everything_is_handed_over_before_it_ends() -> None:
    async def scene() -> list[bytes]:
        got: list[bytes] = []
        async with Cluster(n=2) as cluster, asyncio.timeout(DEADLINE_S):
            for number in range(30):
                await cluster.publish("n00", b"%d" % number)
            await cluster.settle()
            await follow(
                connect(cluster.url, tick_s=TICK_S),
                cluster.topic,
                lambda each: got.append(each.payload),
                start="all",
                exit_when_synced=True,
            )
        return got

    assert sorted(asyncio.run(scene())) == sorted(b"%d" % number for number in range(30))


@pytest.mark.parametrize("exit_when_synced", [True, False])
def test_one_who_cannot_take_it_ends_it(exit_when_synced: bool) -> None:
    def emit(publication: Publication) -> None:
        raise BrokenPipeError

    async def scene() -> None:
        async with Cluster(n=1) as cluster, asyncio.timeout(DEADLINE_S):
            await cluster.publish("n00", b"one")
            with pytest.raises(BrokenPipeError):
                await follow(
                    connect(cluster.url, tick_s=TICK_S),
                    cluster.topic,
                    emit,
                    start="all",
                    exit_when_synced=exit_when_synced,
                )

    asyncio.run(scene())


def test_it_can_be_cancelled() -> None:
    async def scene() -> None:
        came = asyncio.Event()
        async with Cluster(n=1) as cluster, asyncio.timeout(DEADLINE_S):
            await cluster.publish("n00", b"one")
            following = asyncio.create_task(
                follow(
                    connect(cluster.url, tick_s=TICK_S),
                    cluster.topic,
                    lambda _: came.set(),
                    start="all",
                    exit_when_synced=False,
                )
            )
            await came.wait()
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            assert following.cancelled()

    asyncio.run(scene())
