"""Sequences of a live node: each run uses an incarnation of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import skipring
from skipring.core.publications import COUNTER_BITS
from skipring.testing import Cluster

DEADLINE_S = 60.0


async def numbers_of_a_run(cluster: Cluster, data_dir: Path | None) -> list[int]:
    async with (
        skipring.connect(cluster.url, name="ann", tick_s=0.05, data_dir=data_dir) as node,
        node.subscribe(cluster.topic, start="new") as news,
    ):
        await news.publish_many([b"same", b"same"])
        return [(await anext(news)).seq for _ in range(2)]


@pytest.mark.parametrize("has_disk", [True, False], ids=["disk", "memory"])
async def test_restarted_publisher_issues_no_number_twice(tmp_path: Path, has_disk: bool) -> None:
    async with asyncio.timeout(DEADLINE_S), Cluster(n=1) as cluster:
        directory = tmp_path if has_disk else None
        runs = [await numbers_of_a_run(cluster, directory) for _ in range(3)]
    assert len({seq for numbers in runs for seq in numbers}) == 6
    assert all(one + 1 == other for one, other in runs)
    assert len({numbers[0] >> COUNTER_BITS for numbers in runs}) == 3


async def test_each_join_uses_an_incarnation_above_those_before_and_that_of_the_handshake() -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        Cluster(n=1) as cluster,
        skipring.connect(cluster.url, name="ann", tick_s=0.05, drain_s=0) as node,
    ):
        numbers = []
        for topic in ("first", "second", "first", "third", "first"):
            news = node.subscribe(topic, start="new")
            async with news:
                await news.publish(b"same")
                numbers.append((await anext(news)).seq)
        book = cluster.supervisor().links.book
        greeted = book.incarnation_at("ann", book.find("ann") or "")
    assert greeted is not None
    incarnations = [greeted, *(number >> COUNTER_BITS for number in numbers)]
    assert incarnations == sorted(set(incarnations))


async def test_rejoined_topic_continues_with_other_numbers() -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        Cluster(n=1) as cluster,
        skipring.connect(cluster.url, name="ann", tick_s=0.05, drain_s=0) as node,
    ):
        seen = set()
        for _ in range(2):
            async with node.subscribe("other", start="new") as other:
                await other.publish(b"same")
                seen.add((await anext(other)).seq)
    assert len(seen) == 2
