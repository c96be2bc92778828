"""Shortcuts: the slots, the introductions, and displaced references (Algorithm 4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.config import Rule, Rules
from skipring.core.labels import Label
from skipring.core.messages import CheckLabel, IntroduceShortcut, RemoveConnections
from skipring.core.peers import LEFT, SUPERVISOR, EdgeKind, NodeId, Peer
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts
from tests.support.fake_host import Sent
from tests.support.machines import (
    FAST,
    FIXED,
    ME,
    PAPER,
    asked,
    edges,
    label,
    peer,
    ring_at,
    unhurried,
    without,
    written,
)
from tests.support.strategies import labels, peers

NODES = ("a", "b", ME, "z", SUPERVISOR)
# In a ring of eight, 01 has 001 and 011 beside it, and shortcuts to 0 and 1.
A, Z = peer("001", "a"), peer("011", "z")


def quarter(slots: dict[str, NodeId | None] | None = None, *, rules: Rules = FAST) -> Shortcuts:
    """Return the shortcuts of the node with label 01 in a ring of eight."""
    shortcuts = Shortcuts(ring_at("01", left=A, right=Z, rules=rules))
    shortcuts.slots = {label(bits): node for bits, node in (slots or {}).items()}
    return shortcuts


def timeout(shortcuts: Shortcuts, ring: Ring | None = None) -> Sent:
    """Run the part of Timeout under the label and neighbours of ``quarter`` or ``ring``."""
    ring = ring if ring is not None else ring_at("01", left=A, right=Z)
    me = ring.me
    assert me is not None
    return written(lambda out: shortcuts.on_tick(me, ring.pred, ring.succ, out))


def introduce(shortcuts: Shortcuts, subject: Peer) -> Sent:
    return written(lambda out: shortcuts.on_introduce_shortcut(subject, out))


def held(shortcuts: Shortcuts) -> dict[str, NodeId | None]:
    return {own.bits: node for own, node in shortcuts.slots.items()}


def probed(*subjects: Peer) -> Sent:
    """Return the messages that probe each subject."""
    me = peer("01", ME)
    return [(subject.node, CheckLabel(me, subject.label, EdgeKind.LINE)) for subject in subjects]


# -- slots -------------------------------------------------------------------------------------


def test_C5_missing_slots_are_opened_without_a_holder() -> None:
    shortcuts = quarter()
    assert timeout(shortcuts) == []
    assert held(shortcuts) == {"0": None, "1": None}


def test_C5_slots_that_are_still_needed_keep_their_holders() -> None:
    shortcuts = quarter({"1": "y", "0": "b"})
    timeout(shortcuts)
    assert held(shortcuts) == {"0": "b", "1": "y"}


def test_C5_dropped_holders_are_probed() -> None:
    shortcuts = quarter({"0": "b", "11": "x", "0001": None})
    assert timeout(shortcuts) == probed(peer("11", "x"))
    assert held(shortcuts) == {"0": "b", "1": None}


@unhurried
@given(
    st.dictionaries(labels(), st.none() | st.sampled_from(NODES), max_size=6),
    labels(),
    st.none() | peers(NODES),
    st.none() | peers(NODES),
)
def test_C5_slots_are_exactly_the_chain_labels_after_a_timeout(
    slots: dict[Label, NodeId | None], own: Label, left: Peer | None, right: Peer | None
) -> None:
    ring = ring_at(own.bits, left=left, right=right)
    shortcuts = Shortcuts(ring)
    shortcuts.slots = dict(slots)
    me = ring.me
    assert me is not None
    found: list[tuple[Label, ...]] = []
    written(lambda out: found.append(shortcuts.on_tick(me, left, right, out).slots))
    assert tuple(shortcuts.slots) == found[0]


def test_B2_slot_held_by_the_node_itself_or_the_supervisor_is_emptied() -> None:
    shortcuts = quarter({"0": ME, "1": SUPERVISOR})
    assert timeout(shortcuts) == []
    assert held(shortcuts) == {"0": None, "1": None}


@pytest.mark.parametrize("void", [ME, SUPERVISOR])
def test_B2_introduced_shortcut_to_the_node_itself_or_the_supervisor_is_dropped(
    void: NodeId,
) -> None:
    shortcuts = quarter({"0": "b", "1": None})
    assert introduce(shortcuts, peer("0", void)) == []
    assert introduce(shortcuts, peer("11", void)) == []
    assert held(shortcuts) == {"0": "b", "1": None}


def test_B9_RemoveConnections_empties_the_slots_and_keeps_their_labels() -> None:
    shortcuts = quarter({"0": "b", "1": "y", "11": "b"})
    shortcuts.on_remove_connections("b")
    assert held(shortcuts) == {"0": None, "1": "y", "11": None}


# -- introductions -----------------------------------------------------------------------------


def test_C3_last_nodes_of_both_chains_are_introduced_to_each_other() -> None:
    shortcuts = quarter({"0": "b", "1": "y"})
    assert timeout(shortcuts) == [
        ("b", IntroduceShortcut(peer("1", "y"))),
        ("y", IntroduceShortcut(peer("0", "b"))),
    ]


@pytest.mark.parametrize(
    ("bits", "edge", "left", "right"),
    [("011", "right", "01", "1"), ("111", "wrap", "11", "0")],
    ids=["line", "wrap"],
)
def test_C3_leaf_introduces_its_ring_neighbours_to_each_other(
    bits: str, edge: str, left: str, right: str
) -> None:
    a, z = peer(left, "a"), peer(right, "z")
    ring = ring_at(bits, left=a, **{edge: z})
    assert timeout(Shortcuts(ring), ring) == [
        ("a", IntroduceShortcut(z)),
        ("z", IntroduceShortcut(a)),
    ]


@pytest.mark.parametrize(
    "slots",
    [
        {"0": "b", "1": "b"},  # the same node twice
        {"0": None, "1": "y"},  # unknown
        {"0": "b", "1": None},
        {"0": ME, "1": "y"},  # the node itself
        {"0": "b", "1": SUPERVISOR},
    ],
)
def test_C4_no_node_is_introduced_to_itself_to_the_sender_or_to_an_unknown_holder(
    slots: dict[str, NodeId | None],
) -> None:
    assert timeout(quarter(slots)) == []


def test_C4_two_nodes_alone_send_no_introductions() -> None:
    z = peer("1", "z")
    ring = ring_at("0", right=z, wrap=z)
    assert timeout(Shortcuts(ring), ring) == []


# -- R1: displaced references --------------------------------------------------------------------


def test_R1_new_holder_takes_the_slot_and_the_old_one_is_probed() -> None:
    shortcuts = quarter({"0": "b", "1": None})
    assert introduce(shortcuts, peer("0", "c")) == probed(peer("0", "b"))
    assert held(shortcuts) == {"0": "c", "1": None}


def test_R1_introduced_shortcut_without_a_slot_is_probed() -> None:
    shortcuts = quarter({"0": "b", "1": None})
    assert introduce(shortcuts, peer("11", "c")) == probed(peer("11", "c"))
    assert held(shortcuts) == {"0": "b", "1": None}


def test_R1_displaced_shortcut_is_linearized_under_the_label_of_the_slot_without_the_rule() -> None:
    beyond = peer("0", "b")
    fast = quarter({"0": "b"}, rules=without(Rule.PROBE))
    assert introduce(fast, peer("0", "c")) == asked("b")
    # In the paper a farther node is forwarded; a nearer one is stored under another label.
    for bits, stored in (("0001", A), ("0011", peer("0011", "b"))):
        ring = ring_at("01", left=A, right=Z, rules=PAPER)
        shortcuts = Shortcuts(ring)
        shortcuts.slots = {label(bits): "b"}
        introduce(shortcuts, peer(bits, "c"))
        assert ring.neighbours[LEFT] == stored
    assert introduce(quarter({"0": "b"}), peer("0", "c")) == probed(beyond)


@pytest.mark.parametrize("rules", [FAST, FIXED])
@unhurried
@given(
    slots=st.dictionaries(labels(), st.none() | st.sampled_from(NODES), max_size=6),
    subject=peers(NODES),
)
def test_R1_shortcuts_change_no_edge_of_the_ring(
    rules: Rules, slots: dict[Label, NodeId | None], subject: Peer
) -> None:
    ring: Ring = ring_at("01", left=A, right=Z, rules=rules)
    shortcuts = Shortcuts(ring)
    shortcuts.slots = dict(slots)
    before = edges(ring)
    introduce(shortcuts, subject)
    timeout(shortcuts, ring)
    assert edges(ring) == before


def test_node_without_a_label_asks_an_introduced_node_to_forget_it() -> None:
    shortcuts = Shortcuts(ring_at(None))
    assert introduce(shortcuts, peer("0", "b")) == [("b", RemoveConnections(ME))]
    assert shortcuts.slots == {}
