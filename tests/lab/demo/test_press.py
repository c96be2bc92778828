"""Publishing through whoever takes it, and damaging disks and memories."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skipring.core.publications import Publication
from skipring.errors import UnreachableError
from skipring.lab.demo.harm import BYTES_PER_FLIP, flip_bits, scrambled
from skipring.lab.demo.press import Press
from skipring.net.addresses import AddressBook
from skipring.storage.sqlite import FILE
from skipring.wire.chaos import CorruptTrie, OverwriteDatabase
from skipring.wire.rpc import PublishAck
from tests.lab.demo.worlds import TOPIC, published, ring_with
from tests.support.statuses import status_of

MEMBERS = dict.fromkeys(("a", "b", "c"), "127.0.0.1:1")


class Members:
    """Those whom an outsider would ask: some are deaf."""

    def __init__(self, *deaf: str) -> None:
        self.book = AddressBook()
        self.were_asked = asyncio.Event()
        self.taken: list[tuple[str, Publication]] = []
        self._deaf = deaf

    async def request(
        self, topic: str, to: str, question: Callable[[int], Any], *_: object
    ) -> object:
        self.were_asked.set()
        given = question(1).publication
        if to in self._deaf:
            return None
        self.taken.append((to, given))
        return PublishAck(1, given.id, len(self.taken))


def press(members: Members) -> Press:
    return Press(members, TOPIC, lambda: MEMBERS, Random(0))  # type: ignore[arg-type]


def test_orders_go_through_members_in_turn_and_each_is_remembered() -> None:
    members = Members()
    printing = press(members)
    asyncio.run(printing.publish(9))
    assert Counter(name for name, _ in members.taken) == {"a": 3, "b": 3, "c": 3}
    assert set(printing.acknowledged) == {given.id for _, given in members.taken}
    assert all(given.is_genuine(TOPIC) for _, given in members.taken)


def test_what_one_member_does_not_take_another_does_under_the_same_id() -> None:
    members = Members("b")
    printing = press(members)
    asyncio.run(printing.publish(6))
    assert {name for name, _ in members.taken} == {"a", "c"}
    assert len(set(printing.acknowledged)) == 6


def test_if_nobody_takes_it_that_is_said() -> None:
    with pytest.raises(UnreachableError, match="none of 3 nodes has taken order 1"):
        asyncio.run(press(Members("a", "b", "c")).publish(1))


def test_publishing_goes_on_until_the_block_ends_and_nothing_is_left_unanswered() -> None:
    members = Members()
    printing = press(members)

    async def scene() -> None:
        async with asyncio.timeout(60), printing.running():
            await members.were_asked.wait()

    asyncio.run(scene())
    assert len(printing.acknowledged) == len(members.taken) >= 1


def test_publishing_that_fails_beside_is_told_at_the_end_of_the_block() -> None:
    members = Members("a", "b", "c")

    async def scene() -> None:
        async with asyncio.timeout(60), press(members).running():
            await members.were_asked.wait()

    with pytest.raises(UnreachableError):
        asyncio.run(scene())


# -- harm --------------------------------------------------------------------------------------


def test_bits_are_flipped_in_the_stores_files_only(tmp_path: Path) -> None:
    before = Random(0).randbytes(40 * BYTES_PER_FLIP)
    for name in (FILE, f"{FILE}-wal", "node-id"):
        (tmp_path / name).write_bytes(before)
    assert flip_bits(tmp_path, Random(0)) == 80
    assert (tmp_path / "node-id").read_bytes() == before
    for name in (FILE, f"{FILE}-wal"):
        after = (tmp_path / name).read_bytes()
        changed = [(a ^ b).bit_count() for a, b in zip(before, after, strict=True) if a != b]
        assert changed == [1] * 40


def test_everything_is_scrambled_but_one_node_keeps_all_publications() -> None:
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
