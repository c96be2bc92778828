"""Health conditions of live nodes: links, readiness, clones, clocks and disks."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from skipring.admin.diagnosis import Diagnosis, diagnose, explain, wait_healthy
from skipring.admin.inspector import Inspection, TopicContents, open_inspector
from skipring.core.state import SupervisorState, legitimate_state
from skipring.testing import Cluster
from skipring.wire.rpc import NodeHealth
from skipring.world.adversaries.builders import database_of
from skipring.world.legitimacy import Layer
from skipring.world.snapshot import Snapshot
from tests.support.statuses import status_of

NODES = ("a", "b", "c", "d")
DEADLINE_S = 30.0
LOOKS_MAX = 200


def seen(health: NodeHealth, offsets_us: dict[str, int] | None = None) -> Inspection:
    """Return the inspection of a legitimate ring in which node a has this health."""
    live = {node: legitimate_state(index, NODES) for index, node in enumerate(NODES)}
    statuses = {node: status_of(state) for node, state in live.items()}
    return Inspection(
        snapshot=Snapshot(
            topic="news",
            supervisor=SupervisorState(database=database_of(NODES)),
            subscribers=live,
            crashed=(),
        ),
        statuses=statuses | {"a": replace(statuses["a"], health=health)},
        clock_offsets_us=offsets_us or {},
    )


def texts(diagnosis: Diagnosis, layer: Layer) -> list[str]:
    return [each.text for each in diagnosis.violations if each.layer is layer]


def test_ring_with_unconnected_neighbours_is_not_healthy() -> None:
    diagnosis = diagnose(seen(NodeHealth(unlinked=("b",))))
    assert diagnosis.is_legitimate
    assert not diagnosis.is_linked
    assert not diagnosis.is_healthy
    assert texts(diagnosis, Layer.LINKS) == ["a has no connection to its neighbour b"]
    assert any("firewalls" in sentence for sentence in diagnosis.advice)


def test_neighbour_silent_for_two_intervals_is_reported() -> None:
    diagnosis = diagnose(seen(NodeHealth(silent={"b": 1, "c": 2})))
    (text,) = texts(diagnosis, Layer.LINKS)
    assert text == "a has received nothing from its neighbour c for 2 intervals"


@pytest.mark.parametrize(
    ("health", "text"),
    [
        (NodeHealth(not_ready="the backfill is not complete"), "a is not ready: the backfill is"),
        (NodeHealth(disk_error="no space left"), "a cannot store: no space left"),
        (NodeHealth(clones=("h:1", "h:2")), "a is also the name of the process at h:1, h:2"),
    ],
)
def test_process_that_does_not_serve_its_topic_makes_it_unhealthy(
    health: NodeHealth, text: str
) -> None:
    diagnosis = diagnose(seen(health))
    assert not diagnosis.is_healthy
    (found,) = texts(diagnosis, Layer.PROCESSES)
    assert found.startswith(text)
    assert diagnosis.advice
    assert explain(seen(health), "a", None).violations == diagnosis.violations


def test_quarantined_records_and_incarnations_ahead_are_only_warnings() -> None:
    diagnosis = diagnose(seen(NodeHealth(quarantined=1, ahead=2)))
    assert diagnosis.is_healthy
    assert [sentence.split(":")[0] for sentence in diagnosis.warnings] == [
        "a has quarantined 1 damaged record since it started",
        "a",
    ]


def test_clock_one_minute_from_the_median_is_a_warning() -> None:
    hour_us = 3600 * 1_000_000
    offsets = {"a": 59_000_000, "b": 0, "c": -hour_us, "d": 0}
    (warning,) = diagnose(seen(NodeHealth(), offsets)).warnings
    assert warning == "c: its clock is 3600 s behind the clocks of other members."


def test_wrong_clock_of_the_inspecting_process_is_no_warning() -> None:
    offsets = dict.fromkeys(NODES, 10**13)
    assert diagnose(seen(NodeHealth(), offsets)).warnings == ()


def test_doctor_reports_partition_while_every_variable_is_legitimate() -> None:
    async def scene() -> None:
        async with Cluster(n=4) as cluster:
            await cluster.wait_healthy()
            nodes = sorted(cluster.nodes)
            address = cluster.supervisor().address
            async with open_inspector([address], cluster.topic) as inspector:
                assert (await wait_healthy(inspector, DEADLINE_S)).is_healthy
                with cluster.partition(nodes[:2], nodes[2:]):
                    for _ in range(LOOKS_MAX):
                        diagnosis = diagnose(await inspector.inspect(TopicContents.DIFFERENCES))
                        if not diagnosis.is_healthy:
                            break
                        await asyncio.sleep(0.01)
                    assert texts(diagnosis, Layer.LINKS)
                    assert diagnosis.is_legitimate  # no member was evicted yet
                assert (await wait_healthy(inspector, DEADLINE_S)).is_healthy

    asyncio.run(scene())
