"""Charter of a topic over a connection: set, show, delete, and what readers then see."""

from __future__ import annotations

from datetime import timedelta

import pytest

import skipring
from skipring.api.charter import policy_of
from skipring.core.retention.charter import RETAIN_NOTHING, Policy
from skipring.core.subscriber import Subscriber
from skipring.errors import InputError
from skipring.testing import Cluster
from tests.support.connections import DEADLINE_S

TICK_S = 0.02
EVERY = {"max_age": None, "max_count": None, "max_bytes": None, "compact": False}


def to(cluster: Cluster, *, policy_delay_s: float = 0) -> skipring.Connection:  # type: ignore[name-defined]
    return skipring.connect(cluster.url, tick_s=TICK_S, policy_delay_s=policy_delay_s)


def machine_of(cluster: Cluster, name: str = "n00") -> Subscriber:
    machine = cluster.node(name).machine("t")
    assert machine is not None
    return machine


def test_limits_become_a_policy() -> None:
    limits = EVERY | {"max_age": timedelta(days=7), "tombstones": "keep"}
    assert policy_of(**limits) == Policy(max_age_s=7 * 86_400, tombstones_s=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_age", timedelta(0)),
        ("max_age", 7),
        ("max_count", 0),
        ("max_bytes", "10G"),
        ("compact", 3),
        ("tombstones", None),
    ],
)
def test_invalid_limit_is_named(name: str, value: object) -> None:
    limits = EVERY | {"tombstones": timedelta(days=1), name: value}
    with pytest.raises(InputError) as caught:
        policy_of(**limits)  # type: ignore[arg-type]
    assert caught.value.parameter == name


async def test_oldest_publications_beyond_the_limit_are_dropped_at_every_member() -> None:
    async with (
        Cluster(n=3, topic="t", tick_s=TICK_S) as cluster,
        to(cluster) as node,
        node.subscribe("t") as topic,
    ):
        assert await node.charter("t").show() is None
        made = await node.charter("t").set(max_count=64)
        assert await node.charter("t").show() == made
        for number in range(128):
            await topic.publish(b"%d" % number)
        logs = [machine_of(cluster, name).replica.log for name in cluster.nodes]
        await cluster.until(lambda: all(log.records <= 64 * 17 // 16 + 1 for log in logs))
        await topic.synced(DEADLINE_S)
        assert all(log.records > 64 for log in logs)
        health = topic.health()
        assert health.state is skipring.HealthState.STABLE
        assert any(each.startswith("trimmed up to ") for each in health.reasons)


async def test_reader_skips_charters_and_counts_what_expired() -> None:
    async with (
        Cluster(n=1, topic="t", tick_s=TICK_S) as cluster,
        to(cluster) as node,
        node.subscribe("t") as topic,
    ):
        await node.charter("t").set(max_count=16)
        for number in range(100):
            await topic.publish(b"%d" % number)
        await cluster.until(lambda: machine_of(cluster).replica.log.records <= 18)
        found = await topic.read_available()
        assert [each.payload for each in found] == [b"%d" % n for n in range(100)]
        assert (topic.expired, topic.lag) == (0, 0)  # they were in the memory of the reader


async def test_charter_of_a_topic_with_publications_begins_after_the_delay() -> None:
    async with (
        Cluster(n=2, topic="t", tick_s=TICK_S) as cluster,
        to(cluster, policy_delay_s=600) as node,
    ):
        first = await node.charter("t").set(max_count=9)
        assert first.effective_from == first.stamp
        await cluster.publish("n00", b"news")
        second = await node.charter("t").delete()
        assert second.policy == RETAIN_NOTHING
        assert second.effective_from == second.stamp + 600_000_000
        assert await node.charter("t").show() == second
        retention = machine_of(cluster).replica.retention
        assert retention is not None
        assert retention.policy == first.policy


async def test_later_charter_of_another_writer_wins() -> None:
    async with Cluster(n=2, topic="t") as cluster, to(cluster) as one, to(cluster) as two:
        writers = enumerate((one, two, one), 1)
        made = [await each.charter("t").set(max_count=number) for number, each in writers]
        assert sorted(made, key=lambda charter: charter.stamp) == made
        assert await two.charter("t").show() == made[-1]


async def test_view_of_an_uncompacted_topic_is_refused_with_a_remedy() -> None:
    async with Cluster(n=1, topic="t") as cluster, to(cluster) as node:
        await cluster.publish("n00", b"news")
        with pytest.raises(InputError, match=r"call `node.charter\('t'\).set\(compact=True\)`"):
            async with node.keyvalue("t"):
                pass
        await node.charter("t").set(compact=True)
        async with node.keyvalue("t") as view:
            await view.put("key", b"1")


async def test_view_makes_an_empty_topic_compacted() -> None:
    async with Cluster(n=1, topic="t") as cluster, to(cluster) as node:
        async with node.keyvalue("t") as view:
            for number in range(50):
                await view.put("key", b"%d" % number)
        charter = await node.charter("t").show()
        assert charter is not None
        assert charter.policy == Policy(compact=True)
        await cluster.until(lambda: machine_of(cluster).replica.log.records == 2)


def test_blocking_charter_has_the_same_methods() -> None:
    connection = skipring.blocking.connect("127.0.0.1:1", drain_s=0, tick_s=TICK_S)
    with connection as node, pytest.raises(InputError, match="max_count"):
        node.charter("t").set(max_count=0)
