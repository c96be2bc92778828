"""Metrics of real nodes and supervisors: complete, with correct values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from urllib.request import urlopen

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from skipring.core.effects import Origin
from skipring.core.peers import TopicId
from skipring.core.subscriber import Subscriber
from skipring.errors import StoreFullError
from skipring.node.host import NodeHost
from skipring.node.metrics_server import Telemetry, families
from skipring.node.readings import TOPICS_MAX, member_samples, node_readings, supervisor_readings
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.observability.clock import LoopPause
from skipring.observability.metrics import OF_ALL, OF_NODES, OF_SUPERVISORS, HostReadings
from skipring.testing import Cluster
from tests.support.connections import healthy_cluster
from tests.support.rings import LOOPBACK, until

TOPIC = ("news",)
ONLY_UNDER_TLS = {"skipring_certificate_expires_timestamp_seconds"}

Values = dict[tuple[str, tuple[str, ...]], float]


def values(found: Iterable[Metric]) -> Values:
    """Return the value of each metric by name and labels, with the labels sorted by name."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in found
        for sample in family.samples
    }


def names(found: Iterable[Metric]) -> set[str]:
    """Return the exported metric names, also of metrics without a value."""
    return {each.name + ("_total" if each.type == "counter" else "") for each in found}


def node_of(cluster: Cluster, name: str) -> NodeHost:
    return cluster.node(name)


async def scraped(read: Callable[[], HostReadings]) -> Values:
    """Return the values that a collector reads over HTTP."""
    telemetry = Telemetry(read, asyncio.get_running_loop())
    address = telemetry.start("127.0.0.1", 0)

    def read() -> str:
        with urlopen(f"http://{address}/metrics", timeout=30) as response:
            return response.read().decode()

    try:
        return values(text_string_to_metric_families(await asyncio.to_thread(read)))
    finally:
        telemetry.close()


# --- a live ring -------------------------------------------------------------------------


async def test_nodes_and_supervisors_export_the_metrics_of_the_table() -> None:
    async with healthy_cluster(n=3) as cluster:
        of_node = names(families(node_readings(node_of(cluster, "n00"), LoopPause(1.0))))
        of_supervisor = names(families(supervisor_readings(cluster.supervisor(), LoopPause(1.0))))
        assert of_node == {each.name for each in (*OF_ALL, *OF_NODES)} - ONLY_UNDER_TLS
        expected = {each.name for each in (*OF_ALL, *OF_SUPERVISORS)}
        assert of_supervisor == expected - ONLY_UNDER_TLS


async def test_node_metrics_reflect_its_activity() -> None:
    async with healthy_cluster(n=3) as cluster:
        for number in range(5):
            await cluster.publish("n00", b"%d" % number)
        await cluster.wait_healthy()
        for name in ("n00", "n01"):
            source = partial(node_readings, node_of(cluster, name))
            await until(lambda source=source: not source().unready)  # type: ignore[misc]
        own = await scraped(partial(node_readings, node_of(cluster, "n00")))
        other = await scraped(partial(node_readings, node_of(cluster, "n01")))
    for seen in (own, other):
        assert seen["skipring_ready", ()] == 1
        assert seen["skipring_topics", ()] == 1
        assert seen["skipring_joined", TOPIC] == 1
        assert seen["skipring_publications", TOPIC] == 5
        assert seen["skipring_ring_neighbours", TOPIC] == 2
        assert seen["skipring_ring_neighbours_linked", TOPIC] == 2
        assert seen["skipring_supervisor_linked", TOPIC] == 1
        assert seen["skipring_ticks_total", ()] > 0
        assert seen["skipring_links", ()] >= 3
        assert seen["skipring_unwritten_publications", ()] == 0
        for what in ("received_bytes", "sent_bytes", "received_frames", "sent_frames"):
            assert seen[f"skipring_{what}_total", ()] > 0
    came = {origin: other["skipring_deliveries_total", (origin, *TOPIC)] for origin in Origin}
    assert own["skipring_deliveries_total", ("own", *TOPIC)] == 5
    assert came[Origin.OWN] == 0
    assert came[Origin.SPREAD] + came[Origin.REPAIR] == 5


async def test_supervisor_metrics_count_members_and_requests() -> None:
    async with healthy_cluster(n=3) as cluster:
        source = partial(supervisor_readings, cluster.supervisor())
        before = await scraped(source)
        assert before["skipring_ready", ()] == 1
        assert before["skipring_supervisor_topics", ()] == 1
        assert before["skipring_supervisor_members", ()] == 3
        assert before["skipring_supervisor_topic_members", TOPIC] == 3
        assert before["skipring_supervisor_requests_total", ("Subscribe",)] >= 3
        assert before["skipring_supervisor_requests_total", ("FindMembers",)] == 0
        assert before["skipring_supervisor_evictions_total", ()] == 0

        cluster.kill("n02")
        await cluster.wait_healthy()
        after = await scraped(source)
        assert after["skipring_supervisor_members", ()] == 2
        assert after["skipring_supervisor_evictions_total", ()] >= 1
        assert after["skipring_supervisor_probes_total", ()] > 0
        assert after["skipring_supervisor_requests_total", ("ReportUnresponsive",)] > 0


# --- readiness ---------------------------------------------------------------------------


async def test_node_is_ready_once_it_has_a_label_in_every_topic() -> None:
    async with Cluster(n=0) as cluster:
        node = cluster.node(await cluster.join())
        source = partial(node_readings, node)
        (reason,) = source().unready
        where = cluster.supervisor().address
        assert reason == (
            f"no place in the ring of 'news': there is no connection to the supervisor at {where}"
        )
        assert values(families(source()))["skipring_ready", ()] == 0
        await until(lambda: not source().unready, lambda: str(source().unready))

        node.subscribe("weather")
        assert "no place in the ring of 'weather'" in source().unready[0]
        await until(lambda: not source().unready, lambda: str(source().unready))
        await node.close()
        assert source().unready == ("not listening",)


async def test_node_stays_ready_without_its_supervisor() -> None:
    async with healthy_cluster(n=2) as cluster:
        node = cluster.node("n00")
        source = partial(node_readings, node)
        await until(lambda: not source().unready, lambda: str(source().unready))
        await cluster.stop_supervisor()
        linked = ("skipring_supervisor_linked", TOPIC)
        await until(lambda: values(families(source()))[linked] == 0)
        assert source().unready == ()


async def test_node_with_a_failed_commit_is_not_ready() -> None:
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        await until(lambda: not node_readings(node).unready)
        node.durability.error = StoreFullError("no room")
        assert node_readings(node).unready == ("the newest publications are not on disk: no room",)


async def test_readiness_states_the_refusal_of_a_supervisor() -> None:
    settings = NodeSettings(allowed_topics=("orders.*",), tick_s=0.05)
    supervisor = await SupervisorHost(settings, rng=Random(0)).start(LOOPBACK, 0)
    settings = NodeSettings(supervisors=(supervisor.address,), tick_s=0.05)
    node = await NodeHost("n00", settings, rng=Random(1)).start(LOOPBACK, 0)
    try:
        node.subscribe("news")
        await until(
            lambda: "does not allow the topic" in str(node_readings(node).unready),
            lambda: str(node_readings(node).unready),
        )
    finally:
        await node.close()
        await supervisor.close()


async def test_metrics_are_read_without_the_trie() -> None:
    async with healthy_cluster(n=1) as cluster:
        node = cluster.node("n00")
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(Subscriber, "trie")  # indexing takes long after a backfill
            assert node_readings(node).samples["skipring_publications"] == {TOPIC: 0}


# --- bounds ------------------------------------------------------------------------------


def test_invented_topics_do_not_displace_used_ones() -> None:
    invented: dict[TopicId, int] = {f"a{n}": 1 for n in range(2 * TOPICS_MAX)}
    samples = member_samples(invented | {"orders": 3})
    assert len(samples["skipring_supervisor_topic_members"]) == TOPICS_MAX
    assert samples["skipring_supervisor_topic_members"]["orders",] == 3
    assert samples["skipring_supervisor_members"] == {(): 2 * TOPICS_MAX + 3}
    assert samples["skipring_topics_left_out"] == {(): TOPICS_MAX + 1}


async def test_drops_are_counted_by_reason() -> None:
    async with Cluster(n=0) as cluster:
        cluster.supervisor().links.counts.update({"queue full": 2, "not stored": 3})
        seen = values(families(supervisor_readings(cluster.supervisor())))
        assert seen["skipring_dropped_total", ("queue full",)] == 2
        assert ("skipring_dropped_total", ("not stored",)) not in seen
        assert seen["skipring_supervisor_store_failures_total", ()] == 3
