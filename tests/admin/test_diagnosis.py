"""Diagnoses: violations of a topic or a node, their repair, and advice for the operator."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.admin.diagnosis import LAYERS, REPAIRS, SILENT, diagnose, explain
from skipring.admin.inspector import Inspection
from skipring.core.peers import NodeId
from skipring.core.publications import Publication
from skipring.core.state import SubscriberState, SupervisorState, legitimate_state
from skipring.errors import InputError
from skipring.wire.rpc import ChangeEntry, ChangePage
from skipring.world.adversaries.builders import database_of
from skipring.world.legitimacy import Layer
from skipring.world.snapshot import Snapshot
from tests.support.statuses import status_of

NODES = ("a", "b", "c", "d")


def seen(
    states: dict[NodeId, SubscriberState] | None = None,
    crashed: tuple[NodeId, ...] = (),
    recorded: tuple[NodeId, ...] = NODES,
) -> Inspection:
    """Return the inspection of a legitimate ring, changed by the arguments."""
    live = {
        node: legitimate_state(index, NODES)
        for index, node in enumerate(NODES)
        if node not in crashed
    }
    live |= states or {}
    return Inspection(
        snapshot=Snapshot(
            topic="news",
            supervisor=SupervisorState(database=database_of(recorded)),
            subscribers=live,
            crashed=crashed,
        ),
        statuses={node: status_of(state) for node, state in live.items()},
    )


def with_publication(node: NodeId) -> SubscriberState:
    publication = Publication(publisher="p", seq=0, payload=b"hello").with_id("news")
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


def test_advice_names_only_some_of_many_unresponsive_members() -> None:
    gone = tuple(f"x{number}" for number in range(8))
    diagnosis = diagnose(seen(crashed=gone, recorded=(*NODES, *gone)))
    assert diagnosis.advice[0].startswith("x0, x1, x2, x3, x4 and 3 more: no answer.")


def test_unrecorded_crashed_node_needs_no_advice() -> None:
    assert diagnose(seen(crashed=("x",))).advice == ()


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
    assert [str(each) for each in diagnosis.violations] == ["PUB: d lacks 1 of 1 publications"]
    assert "check again" in diagnosis.advice[0]


def test_advice_for_degraded_ring_says_that_it_heals() -> None:
    wrong = replace(legitimate_state(1, NODES), left=None)
    diagnosis = diagnose(seen({"b": wrong}))
    assert {each.layer for each in diagnosis.violations} == {Layer.RING}
    assert "heals by itself" in diagnosis.advice[0]


def test_every_visible_layer_has_a_name_and_a_repair() -> None:
    visible = [layer for layer in Layer if layer is not Layer.CHANNELS]
    assert list(LAYERS) == list(REPAIRS) == visible


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
    with pytest.raises(InputError, match="there are a, b, c, d") as refused:
        explain(seen(), name, None)
    assert len(str(refused.value)) < 200
