"""Drain of a leaving node, and handover of own publications by a closing connection."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from signal import SIGTERM
from types import SimpleNamespace
from typing import cast

import pytest

import skipring
from skipring.api.connection import Connection
from skipring.core.batches import BatchRecord
from skipring.core.effects import HeldBy
from skipring.core.topics import SubscriberTopics
from skipring.errors import UnconfirmedWarning
from skipring.node.drain import Departure, Departures
from skipring.node.process import hand_over
from skipring.node.readings import node_readings
from skipring.testing import Cluster
from skipring.wire.rpc import Publish
from tests.support.batches import batch, batch_of
from tests.support.connections import healthy_cluster
from tests.support.rings import until

TICK_S = 0.05
DRAIN_S = 20.0  # for operations that take a second or two
SOON_S = 5.0  # below every drain that waits
COUNT = 3000
BACKFILL = "the backfill is in progress"


def to(cluster: Cluster, data_dir: Path | None = None, *, drain_s: float = DRAIN_S) -> Connection:
    return skipring.connect(cluster.url, tick_s=TICK_S, data_dir=data_dir, drain_s=drain_s)


async def publish_all(cluster: Cluster, name: str, count: int) -> None:
    for start in range(0, count, 250):
        records = (
            BatchRecord((b"%d " % number).ljust(1024, b"x"))
            for number in range(start, min(count, start + 250))
        )
        await cluster.node(name).publish(cluster.topic, *records)


# --- leaving (D2) -------------------------------------------------------------------------


@pytest.mark.parametrize("has_disk", [True, False], ids=["disk", "memory"])
async def test_rolling_replacement_by_readiness_keeps_everything(
    tmp_path: Path, has_disk: bool
) -> None:
    async with healthy_cluster(n=3, data_dir=tmp_path if has_disk else None) as cluster:
        await publish_all(cluster, "n00", COUNT)
        for old in cluster.nodes:
            await cluster.leave(old)
            source = partial(node_readings, cluster.node(await cluster.join()))
            await until(lambda source=source: not source().unready)  # type: ignore[misc]
        assert not {"n00", "n01", "n02"} & set(cluster.nodes)
        for name in cluster.nodes:
            assert len(cluster.payloads(name)) == COUNT


async def test_new_member_is_not_ready_before_it_has_everything() -> None:
    async with Cluster(n=2) as cluster:
        await publish_all(cluster, "n00", COUNT)
        await cluster.wait_healthy()
        name = await cluster.join()
        source = partial(node_readings, cluster.node(name))
        seen: list[int] = []

        def is_ready() -> bool:
            reasons = source().unready
            seen.append(len(cluster.payloads(name)))
            return not reasons

        await until(is_ready, lambda: str(source().unready))
        assert seen[-1] == COUNT


async def test_readiness_states_the_missing_part() -> None:
    async with healthy_cluster(n=2) as cluster:
        cluster.kill("n01")
        name = await cluster.join()
        machine = cluster.node(name).machine
        source = partial(node_readings, cluster.node(name))
        with cluster.partition([name], ["n00"]):
            await until(lambda: getattr(machine(cluster.topic), "label", None) is not None)
            (reason,) = source().unready
            assert reason.startswith("'news' may be incomplete here: ")
        await until(lambda: not source().unready)


async def test_nodes_that_leave_together_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with healthy_cluster(n=8, data_dir=tmp_path) as cluster:
        await cluster.publish("n00", b"x")
        await cluster.wait_healthy()
        async with asyncio.timeout(SOON_S):
            drains = (cluster.node(name).drain(cluster.topic, DRAIN_S) for name in cluster.nodes)
            ended = await asyncio.gather(*drains)
        assert [departure.unconfirmed for departure in ended] == [0] * 8  # all are on the disks
        assert {departure.on_disk for departure in ended if departure.receiver is None} == {1}


async def test_node_with_disk_counts_publications_unconfirmed_by_an_absent_member(
    tmp_path: Path,
) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        cluster.kill("n01")
        for number in range(5):
            await cluster.publish("n00", b"%d" % number)
        async with asyncio.timeout(SOON_S):
            ended = await cluster.node("n00").drain(cluster.topic, DRAIN_S)
        assert ended == Departure(None, 5, 5)


async def test_single_member_keeps_its_publications_on_its_disk(tmp_path: Path) -> None:
    async with healthy_cluster(n=1, data_dir=tmp_path) as cluster:
        await cluster.publish("n00", b"x")
        ended = await cluster.node("n00").drain(cluster.topic, DRAIN_S)
        assert ended == Departure(None, 0, 1, on_disk=1)


async def test_drain_during_a_backfill_covers_publications_of_an_earlier_run(
    tmp_path: Path,
) -> None:
    async with Cluster(n=2, data_dir=tmp_path, tick_s=1.0) as cluster:
        await until(lambda: all(_neighbours(cluster, name) for name in cluster.nodes))
        with cluster.partition(["n00"], ["n01"]):
            await cluster.publish("n01", b"unspread")
            cluster.kill("n01")
            await cluster.restart("n01")
            node = cluster.node("n01")
            await until(lambda: node.incompleteness(cluster.topic) == BACKFILL)
            ended = await node.drain(cluster.topic, 0.2)
        assert ended == Departure(None, 1)  # no member has confirmed it


async def test_drain_without_time_counts_everything(tmp_path: Path) -> None:
    async with healthy_cluster(n=2, data_dir=tmp_path) as cluster:
        await cluster.publish("n00", b"x")
        await cluster.wait_healthy()
        assert (await cluster.node("n01").drain(cluster.topic, 0)).unconfirmed == 1


async def test_node_without_disk_counts_publications_that_no_other_member_has() -> None:
    async with healthy_cluster(n=2) as cluster:
        await cluster.publish("n00", b"x")
        await cluster.wait_healthy()
        drains = (cluster.node(name).drain(cluster.topic, DRAIN_S) for name in cluster.nodes)
        ended = await asyncio.gather(*drains)
        # One member may have confirmed before it was asked to leave.
        assert {departure.unconfirmed for departure in ended} <= {0, 1}
        assert sum(departure.unconfirmed for departure in ended) >= 1


async def test_drain_does_not_wait_for_dead_members() -> None:
    async with healthy_cluster(n=3) as cluster:
        await cluster.publish("n00", b"x")
        cluster.kill("n01")
        cluster.kill("n02")
        async with asyncio.timeout(SOON_S):
            ended = await cluster.node("n00").drain(cluster.topic, DRAIN_S)
        assert ended.receiver is None


async def test_drain_ends_after_its_timeout_and_counts() -> None:
    async with Cluster(n=2, tick_s=1.0) as cluster:
        await until(lambda: all(_neighbours(cluster, name) for name in cluster.nodes))
        with cluster.partition(["n00"], ["n01"]):
            await cluster.publish("n00", b"x")
            ended = await cluster.node("n00").drain(cluster.topic, 0.2)
        assert ended.unconfirmed == 1


async def test_publications_are_not_handed_over_before_the_drain_has_begun() -> None:
    async with healthy_cluster(n=1) as cluster:
        await cluster.publish("n00", b"x")
        node = cluster.node("n00")
        draining = asyncio.ensure_future(node.drain(cluster.topic, DRAIN_S, waits_alone=True))
        await asyncio.sleep(0)  # it waits for a neighbour now
        assert node.departures.not_handed_over(cluster.topic) == 1
        draining.cancel()


async def test_second_signal_counts_publications_of_a_node_without_label(tmp_path: Path) -> None:
    async with healthy_cluster(n=1, data_dir=tmp_path) as cluster:
        node, stop = cluster.node("n00"), asyncio.get_running_loop().create_future()
        stop.set_result(SIGTERM)
        node.subscribe("other")
        made = asyncio.ensure_future(node.publish("other", BatchRecord(b"x")))
        await asyncio.sleep(0)  # stored, and no supervisor has answered
        assert await hand_over(node, ("other",), DRAIN_S, stop) == 1
        await made


def _neighbours(cluster: Cluster, name: str) -> list[str]:
    machine = cluster.node(name).machine(cluster.topic)
    return machine.ring_neighbours() if machine is not None else []


async def test_draining_node_publishes_for_no_client(tmp_path: Path) -> None:
    async with healthy_cluster(n=1, data_dir=tmp_path) as cluster:
        node, given = cluster.node("n00"), batch(b"x", publisher="x", topic=cluster.topic)
        await node.drain(cluster.topic, DRAIN_S)
        node.publish_proxy.begin("client", cluster.topic, Publish(1, given))
        assert len(node.publish_proxy) == 0
        node.subscribe(cluster.topic)
        node.publish_proxy.begin("client", cluster.topic, Publish(2, given))
        assert len(node.publish_proxy) == 1
        await until(lambda: len(node.publish_proxy) == 0)


# --- closing (D3) -------------------------------------------------------------------------


@pytest.mark.parametrize("has_disk", [True, False], ids=["disk", "memory"])
async def test_publication_of_an_immediately_exiting_program_is_kept(
    tmp_path: Path, has_disk: bool
) -> None:
    async with healthy_cluster(n=3) as cluster:
        for number in range(4):
            data_dir = tmp_path / f"{number}" if has_disk else None
            async with to(cluster, data_dir) as node, node.subscribe(cluster.topic) as news:
                await news.publish(b"%d" % number)
        held = {payload for name in cluster.nodes for payload in cluster.payloads(name)}
        assert held == {b"0", b"1", b"2", b"3"}


async def test_close_returns_0_when_another_member_has_everything() -> None:
    async with Cluster(n=2) as cluster, to(cluster) as node:
        async with node.subscribe(cluster.topic) as news:
            await news.publish(b"x")
        assert await node.close() == 0
        assert await node.close() == 0


async def test_connection_warns_with_the_number_of_unconfirmed_publications() -> None:
    async with Cluster(n=0) as cluster:
        node = await to(cluster, drain_s=0.3).__aenter__()
        async with node.subscribe("alone") as news:
            await news.publish_many([b"x", b"y"])
        with pytest.warns(UnconfirmedWarning, match=r"confirmed: 2; .* memory and are lost"):
            await node.__aexit__(None, None, None)
        assert await node.close() == 2


async def test_single_node_without_disk_waits_for_a_neighbour() -> None:
    async with Cluster(n=0) as cluster:
        async with to(cluster) as node, node.subscribe(cluster.topic) as news:
            await news.publish(b"x")
            leaving = asyncio.ensure_future(news.leave())
            name = await cluster.join()
            assert await leaving
        assert cluster.payloads(name) == [b"x"]
        assert await node.close() == 0


def departures_of(machine: object) -> Departures:
    topics = cast("SubscriberTopics", SimpleNamespace(machine=lambda topic: machine))
    return Departures(
        topics, lambda *_: [], lambda _: True, lambda _: True, tick_s=1.0, has_disk=False
    )


def test_confirmed_batch_is_counted_with_all_its_records() -> None:
    departures = departures_of(None)
    made = [batch_of(*[b"x"] * size, first=first) for size, first in ((3, 0), (1, 3), (5, 4))]
    departures.on_published("news", made)
    assert departures.not_handed_over("news") == 9
    departures.on_held("news", HeldBy("b", (made[0].id, made[2].id, bytes(32)), durable=True))
    departures.on_held("news", HeldBy("c", (made[0].id,), durable=True))
    assert departures.not_handed_over("news") == 1
    assert list(departures.own_batches["news"]) == [made[1].id]


async def test_own_publications_in_confirmed_ranges_are_not_counted_after_a_timeout() -> None:
    count = 10
    machine = SimpleNamespace(
        label="0",
        neighbours=lambda: ["n01"],
        replica=SimpleNamespace(log=SimpleNamespace(records=count)),
        replication=SimpleNamespace(
            drain_candidates=lambda: ["n01"],
            unconfirmed=3,
            is_leaving=True,
            is_first_backfill=False,
        ),
    )
    departures = departures_of(machine)
    departures.own_counts["news"] = count
    ended = await departures.drain("news", 0.01)
    assert ended == Departure(None, 3, 3)
