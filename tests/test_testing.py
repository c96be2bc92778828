"""The cluster for users' tests: it forms, loses nodes, takes new ones and stops."""

from __future__ import annotations

import asyncio
import doctest

import pytest

from skipring import testing
from skipring.errors import InputError
from skipring.testing import Cluster


def test_the_example_of_the_class_holds() -> None:
    assert doctest.testmod(testing) == (0, 4)


def test_a_cluster_settles_and_everybody_has_everything() -> None:
    async def scene() -> None:
        async with Cluster(n=8) as cluster:
            for name in cluster.nodes:
                await cluster.publish(name, name.encode())
            await cluster.settle()
            assert cluster.violations() == []
            sent = [name.encode() for name in cluster.nodes]
            assert all(sorted(cluster.payloads(name)) == sent for name in cluster.nodes)

    asyncio.run(scene())


def test_survivors_still_hear_each_other_when_a_node_is_killed() -> None:
    async def scene() -> None:
        async with Cluster(n=5) as cluster:
            await cluster.settle()
            cluster.kill("n02")
            assert "n02" not in cluster.nodes
            assert any("n02" in text for text in cluster.violations())
            await cluster.publish("n00", b"after")
            await cluster.until(
                lambda: all(cluster.payloads(name) == [b"after"] for name in cluster.nodes)
            )

    asyncio.run(scene())


def test_a_killed_node_is_evicted_and_the_ring_closes() -> None:
    async def scene() -> None:
        async with Cluster(n=5) as cluster:
            await cluster.settle()
            cluster.kill("n02")
            await cluster.settle(timeout=60)

    asyncio.run(scene())


def test_a_newcomer_gets_everything() -> None:
    async def scene() -> None:
        async with Cluster(n=3) as cluster:
            await cluster.publish("n00", b"before")
            assert await cluster.join() == "n03"
            assert await cluster.join("late") == "late"
            await cluster.settle()
            assert cluster.payloads("late") == [b"before"]

    asyncio.run(scene())


def test_what_does_not_settle_in_time_is_named() -> None:
    async def scene() -> None:
        async with Cluster(n=2, tick_s=60) as cluster:
            await cluster.publish("n00", b"alone")
            with pytest.raises(TimeoutError, match="PUB"):
                await cluster.until(lambda: False, timeout=0)

    asyncio.run(scene())


def test_names_are_checked() -> None:
    async def scene() -> None:
        async with Cluster(n=1) as cluster:
            with pytest.raises(InputError, match="no node called x lives"):
                cluster.kill("x")
            with pytest.raises(InputError, match="take another name"):
                await cluster.join("n00")

    asyncio.run(scene())


def test_nothing_is_left_behind() -> None:
    async def scene() -> None:
        async with Cluster(n=4) as cluster:
            await cluster.settle()
            cluster.kill("n01")
        await cluster.until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(scene())
