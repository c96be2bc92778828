"""Publisher of orders, and damage to disks and memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skipring.core.batches import RecordBatch
from skipring.errors import UnreachableError
from skipring.lab.demo.cluster import BYTES_PER_FLIP, OrderPublisher, flip_bits, scrambled
from skipring.net.addresses import AddressBook
from skipring.storage.segment import SUFFIX
from skipring.storage.store import TOPICS
from skipring.wire.chaos import CorruptTrie, OverwriteDatabase
from skipring.wire.rpc import PublishAck
from tests.lab.demo.states import TOPIC, published, ring_with
from tests.support.statuses import status_of

MEMBERS = dict.fromkeys(("a", "b", "c"), "127.0.0.1:1")


class Members:
    """Members that a client sends requests to; some do not answer."""

    def __init__(self, *silent: str) -> None:
        self.book = AddressBook()
        self.were_asked = asyncio.Event()
        self.taken: list[tuple[str, RecordBatch]] = []
        self._silent = silent

    async def request(
        self, topic: str, to: str, question: Callable[[int], Any], *_: object
    ) -> object:
        self.were_asked.set()
        given = question(1).batch
        if to in self._silent:
            return None
        self.taken.append((to, given))
        return PublishAck(1, given.id, len(self.taken))


def publisher(members: Members) -> OrderPublisher:
    return OrderPublisher(members, TOPIC, lambda: MEMBERS, Random(0))  # type: ignore[arg-type]


def test_orders_go_through_members_in_turn_and_their_ids_are_stored() -> None:
    members = Members()
    orders = publisher(members)
    asyncio.run(orders.publish(9))
    assert Counter(name for name, _ in members.taken) == {"a": 3, "b": 3, "c": 3}
    assert set(orders.acknowledged) == {given.id for _, given in members.taken}
    assert all(given.is_genuine(TOPIC) for _, given in members.taken)
    assert all(len(given.records()) == 1 for _, given in members.taken)


def test_order_goes_to_the_next_member_if_one_does_not_answer() -> None:
    members = Members("b")
    orders = publisher(members)
    asyncio.run(orders.publish(6))
    assert {name for name, _ in members.taken} == {"a", "c"}
    assert len(set(orders.acknowledged)) == 6


def test_order_that_no_member_acknowledges_is_an_error() -> None:
    with pytest.raises(UnreachableError, match="none of 3 nodes has acknowledged order 1"):
        asyncio.run(publisher(Members("a", "b", "c")).publish(1))


def test_publishing_continues_until_the_block_ends_and_every_order_is_acknowledged() -> None:
    members = Members()
    orders = publisher(members)

    async def scene() -> None:
        async with asyncio.timeout(60), orders.running():
            await members.were_asked.wait()

    asyncio.run(scene())
    assert len(orders.acknowledged) == len(members.taken) >= 1


def test_error_of_the_publisher_is_raised_at_the_end_of_the_block() -> None:
    members = Members("a", "b", "c")

    async def scene() -> None:
        async with asyncio.timeout(60), publisher(members).running():
            await members.were_asked.wait()

    with pytest.raises(UnreachableError):
        asyncio.run(scene())


# -- damage -----------------------------------------------------------------------------------


def test_bits_are_flipped_only_in_segments_of_the_store(tmp_path: Path) -> None:
    before = Random(0).randbytes(40 * BYTES_PER_FLIP)
    segments = [f"{TOPICS}/{name}/0{SUFFIX}" for name in ("news", "more")]
    others = ["node-id", f"{TOPICS}/news/topic"]
    for name in (*segments, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(before)
    assert flip_bits(tmp_path, Random(0)) == 80
    assert all((tmp_path / name).read_bytes() == before for name in others)
    for name in segments:
        after = (tmp_path / name).read_bytes()
        changed = [(a ^ b).bit_count() for a, b in zip(before, after, strict=True) if a != b]
        assert changed == [1] * 40


def test_all_processes_are_scrambled_and_one_node_keeps_all_publications() -> None:
    world = ring_with(8, published(20))
    members = {node: status_of(state) for node, state in world.subscribers.items()}
    damages = scrambled(TOPIC, members, 0)
    assert damages.keys() == {*members, "supervisor"}
    assert isinstance(damages["supervisor"][0], OverwriteDatabase)
    lost = {
        node: [each.publications for each in damages[node] if isinstance(each, CorruptTrie)]
        for node in members
    }
    assert lost == {node: [0 if node == min(members) else 10] for node in members}
