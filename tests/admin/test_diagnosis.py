"""Diagnoses: violations of a topic or a node, their repair, and advice for the operator."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from skipring.admin.diagnosis import (
    LAYERS,
    REPAIRS,
    SILENT,
    Diagnosis,
    diagnose,
    explain,
    wait_healthy,
)
from skipring.admin.inspector import Inspection, TopicContents, open_inspector
from skipring.core.peers import NodeId
from skipring.core.retention.charter import Charter, Policy
from skipring.core.state import SubscriberState, SupervisorState, legitimate_state
from skipring.errors import InputError
from skipring.testing import Cluster
from skipring.wire.rpc import ChangeEntry, ChangePage, NodeHealth, TopicTerms
from skipring.world.adversaries.builders import database_of
from skipring.world.legitimacy import Layer
from skipring.world.snapshot import Snapshot
from tests.support.batches import batch_of
from tests.support.scenes import in_loop
from tests.support.statuses import status_of

NODES = ("a", "b", "c", "d")
DEADLINE_S = 30.0
LOOKS_MAX = 200


def seen(
    states: dict[NodeId, SubscriberState] | None = None,
    crashed: tuple[NodeId, ...] = (),
    recorded: tuple[NodeId, ...] = NODES,
    *,
    health: NodeHealth | None = None,
    offsets_us: dict[str, int] | None = None,
) -> Inspection:
    """Return the inspection of a legitimate ring, changed by the arguments.

    ``health`` is that of node a.
    """
    live = {
        node: legitimate_state(index, NODES)
        for index, node in enumerate(NODES)
        if node not in crashed
    }
    live |= states or {}
    statuses = {node: status_of(state) for node, state in live.items()}
    if health is not None:
        statuses["a"] = replace(statuses["a"], health=health)
    return Inspection(
        snapshot=Snapshot(
            topic="news",
            supervisor=SupervisorState(database=database_of(recorded)),
            subscribers=live,
            crashed=crashed,
        ),
        statuses=statuses,
        clock_offsets_us=offsets_us or {},
    )


def with_publication(node: NodeId) -> SubscriberState:
    publication = batch_of(b"hello", b"again", publisher="p", topic="news")
    return replace(legitimate_state(NODES.index(node), NODES), publications=(publication,))


def test_legitimate_ring_is_healthy() -> None:
    diagnosis = diagnose(seen())
    assert diagnosis.is_healthy
    assert (diagnosis.members, diagnosis.publications) == (4, 0)
    assert diagnosis.violations == diagnosis.advice == ()


def test_topic_without_members_is_not_healthy() -> None:
    inspection = Inspection(snapshot=Snapshot(topic="news", subscribers={}), statuses={})
    diagnosis = diagnose(inspection)
    assert not diagnosis.is_healthy
    assert "'news' has no members" in diagnosis.advice[0]


def test_advice_states_when_an_unresponsive_member_is_evicted() -> None:
    diagnosis = diagnose(seen(crashed=("d",)))
    assert not diagnosis.is_legitimate
    assert diagnosis.silent == ("d",)
    assert diagnosis.advice[0].startswith("d: no answer.")
    assert "9 to 18 intervals" in diagnosis.advice[0]


def test_unrecorded_member_yields_advice_about_supervisor_list() -> None:
    diagnosis = diagnose(seen({"e": SubscriberState()}))
    assert any(
        text.startswith("e: ") and "list of supervisors" in text for text in diagnosis.advice
    )


def test_missing_publications_are_distinguished_from_broken_ring() -> None:
    diagnosis = diagnose(seen({node: with_publication(node) for node in "abc"}))
    assert diagnosis.is_legitimate
    assert not diagnosis.has_all_publications
    assert not diagnosis.is_healthy
    assert [str(each) for each in diagnosis.violations] == ["PUB: d lacks 2 of 2 publications"]
    assert "check again" in diagnosis.advice[0]


def test_advice_for_degraded_ring_says_that_it_heals() -> None:
    wrong = replace(legitimate_state(1, NODES), left=None)
    diagnosis = diagnose(seen({"b": wrong}))
    assert {each.layer for each in diagnosis.violations} == {Layer.RING}
    assert "heals by itself" in diagnosis.advice[0]


def test_every_visible_layer_has_a_name_and_a_repair() -> None:
    visible = [layer for layer in Layer if layer is not Layer.CHANNELS]
    assert list(REPAIRS) == visible
    assert list(LAYERS) == list(Layer)


# -- one node --------------------------------------------------------------------------------


def test_explanation_contains_only_violations_of_the_node() -> None:
    states = {
        "b": replace(legitimate_state(1, NODES), left=None, shortcuts={}),
        "c": replace(legitimate_state(2, NODES), right=None),
    }
    inspection = seen(states)
    found = [str(each) for each in explain(inspection, "b", None).violations]
    assert found == ["L2: b.left is none, should be (01, c)", "L3: b lacks its shortcut to 0"]
    assert explain(inspection, "a", None).violations == ()
    assert explain(inspection, "a", None).is_well


def test_explanation_contains_the_change_log() -> None:
    entry = ChangeEntry(3, 1, "Tick", None, "left", "none", "(0, a)", "why")
    explanation = explain(seen(), "b", ChangePage(1, 9, (entry,)))
    assert (explanation.tick, explanation.journal) == (9, (entry,))
    assert explanation.standing == "a member under label 1"


def test_every_standing_of_a_node_has_a_description() -> None:
    inspection = seen({"e": SubscriberState(), "f": SubscriberState(member=False)}, crashed=("x",))
    away = SubscriberState(member=False)
    inspection = Inspection(
        snapshot=replace(
            inspection.snapshot, subscribers=inspection.snapshot.subscribers | {"g": away}
        ),
        statuses=inspection.statuses,
    )
    standings = {node: explain(inspection, node, None).standing for node in "aefgx"}
    assert standings == {
        "a": "a member under label 0",
        "e": "a member without a label",
        "f": "it is leaving",
        "g": "it is not in the topic",
        "x": SILENT,
    }
    assert not explain(inspection, "x", None).is_well


@pytest.mark.parametrize("name", ["z", "", "x" * 1000, "b.left"])
def test_unknown_node_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(InputError, match="its nodes are a, b, c, d") as refused:
        explain(seen(), name, None)
    assert len(str(refused.value)) < 200


# -- live processes ----------------------------------------------------------------------------


def texts(diagnosis: Diagnosis, layer: Layer) -> list[str]:
    return [each.text for each in diagnosis.violations if each.layer is layer]


def test_ring_with_unconnected_neighbours_is_not_healthy() -> None:
    diagnosis = diagnose(seen(health=NodeHealth(unlinked=("b",))))
    assert diagnosis.is_legitimate
    assert not diagnosis.is_linked
    assert not diagnosis.is_healthy
    assert texts(diagnosis, Layer.LINKS) == ["a has no connection to its neighbour b"]
    assert any("firewalls" in sentence for sentence in diagnosis.advice)


def test_neighbour_silent_for_two_intervals_is_reported() -> None:
    diagnosis = diagnose(seen(health=NodeHealth(silent={"b": 1, "c": 2})))
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
    diagnosis = diagnose(seen(health=health))
    assert not diagnosis.is_healthy
    (found,) = texts(diagnosis, Layer.PROCESSES)
    assert found.startswith(text)
    assert diagnosis.advice
    assert explain(seen(health=health), "a", None).violations == diagnosis.violations


def test_batches_of_a_clone_are_only_a_warning() -> None:
    diagnosis = diagnose(seen(health=NodeHealth(overlapping=2)))
    assert diagnosis.is_healthy
    (warning,) = diagnosis.warnings
    assert "batches with its current sequence numbers arrived from other members: 2" in warning


def test_quarantined_records_and_incarnations_ahead_are_only_warnings() -> None:
    diagnosis = diagnose(seen(health=NodeHealth(quarantined=1, ahead=2)))
    assert diagnosis.is_healthy
    assert [sentence.split(":")[0] for sentence in diagnosis.warnings] == [
        "a has found 1 damaged or missing record since it started",
        "a",
    ]


def test_stored_batches_from_the_future_make_a_topic_unhealthy() -> None:
    diagnosis = diagnose(seen(health=NodeHealth(terms=TopicTerms(future=7))))
    assert not diagnosis.is_healthy
    (text,) = texts(diagnosis, Layer.PROCESSES)
    assert text == "a hides 7 stored batches with times in the future"


@pytest.mark.parametrize(("days", "warns"), [(0, False), (14, False), (16, True)])
def test_member_without_a_confirmation_for_half_of_the_grace_is_a_warning(
    days: int, warns: bool
) -> None:
    charter = Charter(stamp=1, policy=Policy(compact=True, tombstones_s=30 * 86_400))
    time = 10**15
    terms = TopicTerms(acting=charter, confirmed=time - days * 86_400 * 1_000_000)
    diagnosis = diagnose(seen(health=NodeHealth(time=time, terms=terms)))
    assert diagnosis.is_healthy
    assert [f"for {days}.0 days" in each for each in diagnosis.warnings] == [True] * warns


def test_clock_one_minute_from_the_median_is_a_warning() -> None:
    hour_us = 3600 * 1_000_000
    offsets = {"a": 59_000_000, "b": 0, "c": -hour_us, "d": 0}
    (warning,) = diagnose(seen(offsets_us=offsets)).warnings
    assert warning == "c: its clock is 3600 s behind the clocks of other members."


def test_wrong_clock_of_the_inspecting_process_causes_no_warning() -> None:
    offsets = dict.fromkeys(NODES, 10**13)
    assert diagnose(seen(offsets_us=offsets)).warnings == ()


@in_loop
async def test_doctor_reports_partition_while_every_variable_is_legitimate() -> None:
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
