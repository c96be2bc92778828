"""Key-value views in live rings: partitions, wrong clocks, and many keys."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from time import time_ns
from typing import TYPE_CHECKING

import pytest

from skipring.api import subscription
from skipring.api.key_value_table import Change, KeyValueTable
from skipring.api.reader import Publication
from skipring.core.retention.member import Retention
from skipring.testing import Cluster
from skipring.wire.chaos import ChaosAck, Isolate
from tests.support.connections import DEADLINE_S, InspectedConnection, inspected, to
from tests.support.rings import TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipring.api.keyvalue import KeyValue, KeyValueWatch
    from skipring.core.batches import BatchRecord, RecordBatch

SECOND_US = 1_000_000


def value_of(view: KeyValue[bytes], key: str) -> bytes | None:
    entry = view.get(key)
    return None if entry is None else entry.value


async def until_value(cluster: Cluster, view: KeyValue[bytes], key: str, value: bytes) -> None:
    await cluster.until(lambda: value_of(view, key) == value, DEADLINE_S)


async def change_to(watch: KeyValueWatch[bytes], value: bytes) -> Change[bytes]:
    """Return the change of a watch that sets a value."""
    async with asyncio.timeout(DEADLINE_S):
        while (change := await anext(watch)).entry is None or change.entry.value != value:
            pass
    return change


async def test_write_after_a_read_is_not_marked_as_concurrent() -> None:
    async with (
        Cluster(n=0) as cluster,
        to(cluster) as one,
        to(cluster) as two,
        one.keyvalue(TOPIC) as first,
        two.keyvalue(TOPIC) as second,
    ):
        await first.put("k", b"1")
        watch = first.watch("k")
        await until_value(cluster, second, "k", b"1")
        await second.put("k", b"2")
        change = await change_to(watch, b"2")
        assert not change.concurrent


@contextmanager
def apart(one: InspectedConnection, two: InspectedConnection) -> Iterator[None]:
    """Block all traffic between two nodes inside a block."""

    def isolate(ticks: int) -> None:
        for node, other in ((one, two), (two, one)):
            answer = node.session.host.chaos.handle(TOPIC, Isolate(0, (other.name,), ticks))
            assert isinstance(answer, ChaosAck)

    isolate(1 << 40)
    try:
        yield
    finally:
        isolate(0)


async def test_views_agree_after_a_partition_and_the_losing_side_sees_the_mark() -> None:
    async with (
        Cluster(n=0) as cluster,
        inspected(cluster.url, name="one", drain_s=0, is_chaotic=True) as one,
        inspected(cluster.url, name="two", drain_s=0, is_chaotic=True) as two,
        one.keyvalue(TOPIC) as first,
        two.keyvalue(TOPIC) as second,
    ):
        await first.put("k", b"before")
        await until_value(cluster, second, "k", b"before")
        with apart(one, two):
            await first.put("k", b"loses")
            watch = first.watch("k")
            await second.put("k", b"wins")  # the later one
            assert (value_of(first, "k"), value_of(second, "k")) == (b"loses", b"wins")
        change = await change_to(watch, b"wins")
        assert change.concurrent
        assert change.before is not None
        assert change.before.value == b"loses"
        assert [each.value for each in (*first.items(), *second.items())] == [b"wins"] * 2


async def test_write_after_a_read_wins_although_the_clock_of_its_node_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind_s = 50
    async with (
        Cluster(n=0) as cluster,
        to(cluster) as one,
        inspected(cluster.url, drain_s=0, clock_offset_us=-behind_s * SECOND_US) as two,
        to(cluster) as three,
        one.keyvalue(TOPIC) as first,
        two.keyvalue(TOPIC) as slow,
    ):
        await first.put("k", b"1")
        await until_value(cluster, slow, "k", b"1")
        with monkeypatch.context() as patch:
            patch.setattr(subscription, "time_ns", lambda: time_ns() - behind_s * 1_000_000_000)
            await slow.put("k", b"2")
        await until_value(cluster, first, "k", b"2")
        async with three.keyvalue(TOPIC) as newcomer:
            await newcomer.ready(DEADLINE_S)
            assert value_of(newcomer, "k") == b"2"


async def test_write_from_the_future_does_not_win_at_other_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused, admits = set[bytes](), Retention.admits

    def counted(
        retention: Retention,
        batch: RecordBatch,
        records: Sequence[BatchRecord],
        *,
        is_new: bool = False,
    ) -> bool:
        is_admitted = admits(retention, batch, records, is_new=is_new)
        if not is_admitted:
            refused.update(each.payload for each in records)
        return is_admitted

    monkeypatch.setattr(Retention, "admits", counted)
    async with (
        Cluster(n=0) as cluster,
        to(cluster) as one,
        inspected(cluster.url, drain_s=0, clock_offset_us=3600 * SECOND_US) as two,
        one.keyvalue(TOPIC) as first,
    ):
        await first.put("k", b"1")
        async with two.keyvalue(TOPIC) as ahead:
            await ahead.ready(DEADLINE_S)
            await first.ready(DEADLINE_S)
            assert value_of(ahead, "k") == b"1"
            await ahead.put("k", b"from the future")
            await cluster.until(lambda: b"from the future" in refused, DEADLINE_S)
            await first.put("k", b"2")
            assert value_of(first, "k") == b"2"


@pytest.mark.heavy
async def test_view_of_many_keys_applies_each_write_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, keys = Counter[int](), 100_000
    apply = KeyValueTable.apply

    def counted(table: KeyValueTable, publication: Publication, now: int) -> Change[bytes] | None:
        counts[id(table)] += 1
        return apply(table, publication, now)

    monkeypatch.setattr(KeyValueTable, "apply", counted)
    async with Cluster(n=0) as cluster, to(cluster) as one, one.keyvalue(TOPIC) as first:
        await first.put_many((f"key.{number}", b"") for number in range(keys))
        async with to(cluster) as two, two.keyvalue(TOPIC) as second:
            await second.ready(DEADLINE_S)
            assert len(first) == len(second) == keys
    assert list(counts.values()) == [keys, keys]
