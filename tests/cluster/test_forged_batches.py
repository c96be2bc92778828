"""Forged batches, over sockets: each is dropped and counted, refused, or harmless."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from skipring.core.batches import RECORDS_MAX, BatchRecord, RecordBatch
from skipring.core.limits import NUMBER_MAX
from skipring.core.messages import Publications, PublishMany, PublishNew
from skipring.core.publications import COUNTERS, incarnation_at
from skipring.node.host import NodeHost
from skipring.observability.clock import time_us
from skipring.testing import Cluster
from skipring.wire.codec import encode
from skipring.wire.handshake import Role
from skipring.wire.rpc import Publish
from tests.support.attacks import send_stream
from tests.support.batches import batch_of, with_rows
from tests.support.connections import healthy_cluster
from tests.support.exchanges import greeting_of
from tests.support.rings import TOPIC, until

VICTIM = "n00"


def batch(*payloads: bytes, publisher: str = "p", first: int = 5) -> RecordBatch:
    return batch_of(*payloads, publisher=publisher, first=first, topic=TOPIC)


# Ways in which a batch reaches a node, without those that a node has to ask for.
CARRIERS: dict[str, Callable[[RecordBatch], bytes]] = {
    "PublishNew": lambda made: greeting_of("stranger") + encode(TOPIC, PublishNew(made)),
    "PublishMany": lambda made: (
        greeting_of("stranger") + encode(TOPIC, PublishMany((made, batch(b"sound", first=900))))
    ),
    "Publications": lambda made: (
        greeting_of("stranger") + encode(TOPIC, Publications((batch(b"sound", first=900), made)))
    ),
    "Publish": lambda made: greeting_of("stranger", Role.CLIENT) + encode(TOPIC, Publish(1, made)),
}
over_every_carrier = pytest.mark.parametrize("carrier", CARRIERS)


@asynccontextmanager
async def attacked(directory: Path) -> AsyncIterator[Cluster]:
    """Yield a healthy cluster; assert that it takes publications and is healthy afterwards."""
    async with healthy_cluster(n=2, data_dir=directory) as cluster:
        yield cluster
        for name in cluster.nodes:
            await cluster.publish(name, b"after, from %b" % name.encode())
        await cluster.wait_healthy()
        for name in cluster.nodes:
            stored, delivered = cluster.payloads(name), cluster.delivered(name)
            assert sorted(stored) == sorted(delivered)
            assert {b"after, from n00", b"after, from n01"} <= set(stored)


def port_of(node: NodeHost) -> int:
    return int(node.address.rpartition(":")[2])


async def attack(cluster: Cluster, *streams: bytes) -> None:
    for stream in streams:
        await send_stream(port_of(cluster.node(VICTIM)), stream)


# -- dropped -----------------------------------------------------------------------------------

# Well-formed batches with the id of their fields, unless the id itself is wrong.
DROPPED: dict[str, RecordBatch] = {
    "a count above the number of records": with_rows([[b"bad"]], count=2, topic=TOPIC),
    "a count below the number of records": with_rows([[b"bad"]] * 2, count=1, topic=TOPIC),
    "a count of 256 with one record": with_rows([[b"bad"]], count=256, topic=TOPIC),
    "a last number out of range": batch(b"bad", b"bad", first=NUMBER_MAX),
    "another topic": batch_of(b"bad", topic="bills"),
    "the id of another batch": replace(batch(b"bad"), id=batch(b"other").id),
    "another publisher under the same id": replace(batch(b"bad"), publisher="q"),
    "another number under the same id": replace(batch(b"bad"), first=6),
    "another flag under the same id": replace(batch(b"bad"), unordered=True),
    "no records in the body": with_rows([], topic=TOPIC),
    "257 records in the body": with_rows([[b"bad"]] * 257, count=256, topic=TOPIC),
}


@over_every_carrier
async def test_forged_batch_is_dropped_and_counted(carrier: str, tmp_path: Path) -> None:
    async with attacked(tmp_path) as cluster:
        node = cluster.node(VICTIM)
        for count, (name, made) in enumerate(DROPPED.items(), start=1):
            await attack(cluster, CARRIERS[carrier](made))
            await until(lambda: node.links.counts["invalid batch"] == count, lambda: name)  # noqa: B023
        assert set(cluster.payloads(VICTIM)) <= {b"sound"}


# -- accepted and harmless ---------------------------------------------------------------------

NEXT = incarnation_at(time_us()) * COUNTERS
FULL = RecordBatch.of(
    [BatchRecord(b"", headers={"h": "x" * 2000})] * RECORDS_MAX, publisher="p", first=0, topic=TOPIC
)

# Different batches with overlapping numbers, all under the name of a member.
OVERLAPPING: list[RecordBatch] = [
    batch(b"0", b"1", b"2", publisher=VICTIM, first=NEXT),
    batch(b"1", b"2", b"3", publisher=VICTIM, first=NEXT + 1),
    batch(b"1", b"2", publisher=VICTIM, first=NEXT + 1),
    batch(b"0", publisher=VICTIM, first=NEXT),
    batch(b"other", publisher=VICTIM, first=NEXT),
    replace(batch(b"0", publisher=VICTIM, first=NEXT), unordered=True).with_id(TOPIC),
    batch(b"of two incarnations", b"", publisher=VICTIM, first=NEXT + COUNTERS - 1),
    batch(b"the largest number", publisher=VICTIM, first=NUMBER_MAX),
]


def batches_at(cluster: Cluster, name: str) -> list[RecordBatch]:
    log = cluster.node(name).logs.by_topic[TOPIC]
    return [entry.batch for entry in log.read_range(0, log.end)]


async def test_batches_with_overlapping_numbers_are_all_kept_and_no_number_is_reused(
    tmp_path: Path,
) -> None:
    async with attacked(tmp_path) as cluster:
        for made in OVERLAPPING:
            await attack(cluster, CARRIERS["PublishNew"](made))
        own = [await cluster.publish(VICTIM, b"own")]
        await cluster.wait_healthy()
        cluster.kill(VICTIM)
        await cluster.restart(VICTIM)
        await attack(cluster, CARRIERS["PublishNew"](OVERLAPPING[0]))
        own.append(await cluster.publish(VICTIM, b"own"))
        await cluster.wait_healthy()
        for name in cluster.nodes:
            kept = batches_at(cluster, name)
            assert len(kept) == len(OVERLAPPING) + len(own)
            assert {each.id for each in OVERLAPPING} < {each.id for each in kept}
            mine = [each.first for each in kept if set(own) & set(each.record_ids())]
            others = [each for each in kept if not set(own) & set(each.record_ids())]
            assert len(set(mine)) == len(own)
            assert not any(each.first <= number < each.end for each in others for number in mine)


@over_every_carrier
async def test_batch_of_256_long_records_is_stored_everywhere(carrier: str, tmp_path: Path) -> None:
    async with attacked(tmp_path) as cluster:
        await attack(cluster, CARRIERS[carrier](FULL))
        await cluster.wait_healthy()
        for name in cluster.nodes:
            assert cluster.payloads(name).count(b"") == RECORDS_MAX
            assert cluster.node(name).links.counts["not encodable"] == 0
