"""The machines over real sockets: rings form, spread publications and heal."""

from __future__ import annotations

import asyncio
from pathlib import Path

from skipring.storage.publications import PublicationStore
from tests.runtime.rings import live_ring, until

NAMES = [f"n{number:02d}" for number in range(8)]


def test_eight_nodes_form_a_ring() -> None:
    async def scene() -> None:
        async with live_ring(*NAMES) as ring:
            await ring.settle()

    asyncio.run(scene())


def test_what_is_published_comes_to_everybody_once() -> None:
    async def scene() -> None:
        async with live_ring(*NAMES) as ring:
            await ring.settle()
            for number, name in enumerate(NAMES):
                await ring.publish(name, b"%d" % number)
            await ring.settle()
            sent = sorted(b"%d" % number for number in range(8))
            assert {name: sorted(got) for name, got in ring.delivered.items()} == dict.fromkeys(
                NAMES, sent
            )

    asyncio.run(scene())


def test_publishing_works_before_the_ring_is_ready() -> None:
    async def scene() -> None:
        async with live_ring(*NAMES) as ring:
            await ring.publish("n03", b"early")
            await ring.settle()
            assert all(got == [b"early"] for got in ring.delivered.values())

    asyncio.run(scene())


def test_a_newcomer_gets_what_was_published_before() -> None:
    async def scene() -> None:
        async with live_ring(*NAMES[:4]) as ring:
            for number in range(100):
                await ring.publish("n00", b"%d" % number)
            await ring.settle()
            await ring.join("late")
            await ring.settle()
            assert len(ring.delivered["late"]) == 100

    asyncio.run(scene())


def test_a_supervisor_that_has_lost_everything_is_told_again() -> None:
    async def scene() -> None:
        async with live_ring(*NAMES) as ring:
            await ring.settle()
            await ring.restart_supervisor()
            await ring.publish("n05", b"meanwhile")
            await ring.settle()
            assert all(got == [b"meanwhile"] for got in ring.delivered.values())

    asyncio.run(scene())


def test_one_that_leaves_is_let_go_and_the_others_close_the_gap() -> None:
    async def scene() -> None:
        async with live_ring(*NAMES) as ring:
            await ring.settle()
            assert await ring.leave("n02")
            await ring.settle()

    asyncio.run(scene())


def test_crashes_are_noticed_and_the_others_close_the_gaps() -> None:
    async def scene() -> None:
        async with live_ring(*NAMES) as ring:
            await ring.settle()
            for name in ("n01", "n04"):
                await ring.kill(name)
            await ring.publish("n06", b"after")
            await ring.settle()
            assert all(
                got == [b"after"] for name, got in ring.delivered.items() if name in ring.nodes
            )

    asyncio.run(scene())


def test_what_was_published_is_there_after_a_restart(tmp_path: Path) -> None:
    async def first() -> list[bytes]:
        with PublicationStore.open(tmp_path) as store:
            async with live_ring("other") as ring:
                await ring.join("kept", store)
                return [await ring.publish("kept", b"%d" % number) for number in range(20)]

    async def second(ids: list[bytes]) -> None:
        with PublicationStore.open(tmp_path) as store:
            async with live_ring("other") as ring:
                node = await ring.join("kept", store)
                await until(lambda: len(ring.delivered["other"]) == 20)
                assert sorted(p.id for p in node.states()["news"].publications) == sorted(ids)

    asyncio.run(second(asyncio.run(first())))


def test_nothing_is_left_behind() -> None:
    async def scene() -> None:
        async with live_ring(*NAMES) as ring:
            await ring.settle()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        assert not any(node.links.connections for node in ring.nodes.values())

    asyncio.run(scene())
