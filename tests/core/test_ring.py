"""BuildList and BuildRing, message by message (Algorithms 1 and 2).

Labels in the order of the ring: 0, 001, 01, 011, 1, 101, 11, 111. The ring under test belongs to
``m``, mostly with label 01 or 1.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.config import Rule, Rules
from skipring.core.messages import (
    CheckLabel,
    Introduce,
    RemoveConnections,
    SetConfiguration,
)
from skipring.core.peers import LEFT, RIGHT, SUPERVISOR, EdgeKind, NodeId, Peer, Side
from skipring.core.ring import Ring
from tests.support.machines import (
    FIXED,
    ME,
    PAPER,
    asked,
    edges,
    hear,
    label,
    peer,
    ring_at,
    timeout,
    unhurried,
    without,
    written,
)
from tests.support.strategies import labels, links, peers

LINE, WRAP = EdgeKind.LINE, EdgeKind.WRAP
NODES = ("a", "b", ME, "y", "z", SUPERVISOR)
every_link = pytest.mark.parametrize("link", EdgeKind)
either_hand = pytest.mark.parametrize("first_hand", [True, False])


def check(sender: Peer, believed: str | None = "01", link: EdgeKind = LINE) -> CheckLabel:
    return CheckLabel(sender, label(believed) if believed is not None else None, link)


# -- the line: BuildList -----------------------------------------------------------------------


def test_timeout_checks_both_neighbours_under_their_believed_labels() -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=a, right=z)
    me = peer("01", ME)
    assert timeout(ring) == [
        ("a", CheckLabel(me, a.label, LINE)),
        ("z", CheckLabel(me, z.label, LINE)),
    ]


def test_sender_with_a_wrong_belief_gets_the_right_label_and_is_not_stored() -> None:
    ring = ring_at("01")
    sent = hear(ring, check(peer("001", "a"), believed="11"))
    assert sent == [("a", Introduce(peer("01", ME), LINE, first_hand=True))]
    assert edges(ring) == (None, None, None)


@every_link
def test_answer_to_a_wrong_check_is_about_the_same_link(link: EdgeKind) -> None:
    sent = hear(ring_at("01"), check(peer("001", "a"), believed=None, link=link))
    assert sent == [("a", Introduce(peer("01", ME), link, first_hand=True))]


def test_B3_missing_left_neighbour_is_minus_infinity_and_missing_right_one_plus_infinity() -> None:
    a, z = peer("0", "a"), peer("111", "z")
    ring = ring_at("01")
    assert hear(ring, check(a)) == []
    assert hear(ring, check(z)) == []
    assert edges(ring) == (a, z, None)


@pytest.mark.parametrize(("far", "near"), [("0", "001"), ("111", "011")])
def test_nearer_peer_becomes_neighbour_and_is_introduced_to_the_farther_one(
    far: str, near: str
) -> None:
    side = Side(far > "01")
    ring = ring_at("01")
    ring.neighbours[side] = peer(far, "a")
    assert hear(ring, check(peer(near, "b"))) == [
        ("b", Introduce(peer(far, "a"), LINE, first_hand=False))
    ]
    assert ring.neighbours[side] == peer(near, "b")


def test_neighbour_with_a_nearer_new_label_is_stored_under_the_new_label() -> None:
    ring = ring_at("01", left=peer("0", "a"))
    assert hear(ring, check(peer("001", "a"))) == []
    assert edges(ring) == (peer("001", "a"), None, None)


def test_introduction_by_a_known_neighbour_changes_nothing() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("1", "z"))
    assert hear(ring, check(peer("001", "a"))) == []
    assert hear(ring, check(peer("1", "z"))) == []
    assert edges(ring) == (peer("001", "a"), peer("1", "z"), None)


def test_node_stored_on_both_sides_is_kept_under_the_label_it_states_itself() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("1", "a"))
    assert hear(ring, check(peer("1", "a"))) == []
    assert edges(ring) == (None, peer("1", "a"), None)


def test_neighbour_on_the_wrong_side_changes_sides_at_the_next_timeout() -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=z)
    timeout(ring)
    assert edges(ring) == (None, z, None)
    ring = ring_at("01", right=a)
    timeout(ring)
    assert edges(ring) == (a, None, None)


# -- B2: references to the node itself and to the supervisor -------------------------------------

void = pytest.mark.parametrize("void", [ME, SUPERVISOR])


@void
@every_link
@either_hand
def test_B2_void_reference_in_an_introduction_is_dropped(
    void: str, link: EdgeKind, first_hand: bool
) -> None:
    for bits in (None, "01"):
        ring = ring_at(bits)
        assert hear(ring, Introduce(peer("001", void), link, first_hand)) == []
        assert edges(ring) == (None, None, None)


@void
@every_link
def test_B2_check_by_a_void_sender_is_dropped(void: str, link: EdgeKind) -> None:
    for bits, believed in ((None, None), ("01", "01"), ("01", "1")):
        ring = ring_at(bits)
        assert hear(ring, check(peer("001", void), believed, link)) == []
        assert edges(ring) == (None, None, None)


@void
def test_B2_void_neighbours_are_dropped_at_a_timeout(void: str) -> None:
    ring = ring_at("01", left=peer("0", void), right=peer("1", void), wrap=peer("11", void))
    assert timeout(ring) == []
    assert edges(ring) == (None, None, None)


@void
def test_B2_configuration_with_void_references_stores_none(void: str) -> None:
    ring = ring_at("01", left=peer("001", void), wrap=peer("1", void))
    sent = hear(ring, SetConfiguration(peer("0", void), label("01"), peer("1", void)))
    assert sent == []
    assert edges(ring) == (None, None, None)


@void
def test_B2_void_reference_is_never_probed(void: str) -> None:
    assert written(lambda out: ring_at("01").probe(peer("0", void), LINE, out)) == []


@void
def test_B2_void_edge_is_sent_nothing_before_the_first_timeout(void: str) -> None:
    wrapped = ring_at("01", wrap=peer("1", void))
    sent = hear(wrapped, check(peer("111", "z"), "01", WRAP))
    linked = ring_at("01", left=peer("001", void), rules=FIXED)
    sent += hear(linked, check(peer("0", "a")))
    assert void not in [to for to, _ in sent]


# -- the wrap edge: BuildRing ------------------------------------------------------------------


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_end_of_the_line_introduces_itself_along_the_line_to_close_the_ring(side: Side) -> None:
    neighbour = peer("0" if side is LEFT else "1", "a")
    ring = ring_at("01")
    ring.neighbours[side] = neighbour
    assert timeout(ring) == [
        ("a", Introduce(peer("01", ME), WRAP, first_hand=True)),
        ("a", CheckLabel(peer("01", ME), neighbour.label, LINE)),
    ]


def test_end_of_the_line_checks_its_wrap_edge() -> None:
    a, z = peer("001", "a"), peer("111", "z")
    ring = ring_at("0", right=a, wrap=z)
    assert ("z", CheckLabel(peer("0", ME), z.label, WRAP)) in timeout(ring)
    assert edges(ring) == (None, a, z)


def test_pred_and_succ_are_found_in_every_variable_that_may_hold_them() -> None:
    a, z = peer("001", "a"), peer("111", "z")
    first, last = ring_at("0", right=a, wrap=z), ring_at("111", left=z, wrap=a)
    assert (first.pred, first.succ) == (z, a)
    assert (last.pred, last.succ) == (z, a)
    alone = ring_at("0")
    assert (alone.pred, alone.succ) == (None, None)
    unlabelled = ring_at(None, wrap=a)
    assert (unlabelled.pred, unlabelled.succ) == (None, None)


def test_B4_wrap_edge_that_moves_to_the_other_side_goes_to_the_line_only() -> None:
    ring = ring_at("01", right=peer("1", "z"), wrap=peer("111", "b"))
    assert hear(ring, Introduce(peer("001", "b"), WRAP, first_hand=True)) == []
    assert edges(ring) == (peer("001", "b"), peer("1", "z"), None)


@every_link
def test_B4_wrap_edge_that_moves_on_its_side_stays_the_wrap_edge(link: EdgeKind) -> None:
    ring = ring_at("01", right=peer("011", "y"), wrap=peer("1", "z"))
    hear(ring, Introduce(peer("111", "z"), link, first_hand=True))
    assert ring.wrap == peer("111", "z")


def test_B5_repeated_introduction_of_the_wrap_edge_changes_nothing() -> None:
    a, z = peer("001", "a"), peer("111", "z")
    ring = ring_at("0", right=a, wrap=z)
    assert hear(ring, Introduce(z, WRAP, first_hand=True)) == []
    assert hear(ring, check(z, "0", WRAP)) == []
    assert edges(ring) == (None, a, z)


def test_B5_farther_candidate_becomes_the_wrap_edge_and_the_nearer_one_goes_to_the_line() -> None:
    near, far = peer("11", "y"), peer("111", "z")
    ring = ring_at("0", wrap=near)
    sent = hear(ring, Introduce(far, WRAP, first_hand=True))
    assert edges(ring) == (None, None, far)
    assert sent == [
        # The nearer node is not the sender here: it is asked first (R2).
        ("y", CheckLabel(peer("0", ME), near.label, LINE)),
        ("y", Introduce(far, LINE, first_hand=False)),
    ]


def test_B5_nearer_candidate_that_introduces_itself_goes_to_the_line_at_once() -> None:
    near, far = peer("11", "y"), peer("111", "z")
    ring = ring_at("0", wrap=far)
    sent = hear(ring, Introduce(near, WRAP, first_hand=True))
    assert edges(ring) == (None, near, far)
    assert sent == [("y", Introduce(far, LINE, first_hand=False))]


def test_B5_smallest_label_is_the_farthest_at_the_right_end() -> None:
    near, far = peer("001", "b"), peer("0", "a")
    ring = ring_at("111", wrap=near)
    sent = hear(ring, Introduce(far, WRAP, first_hand=True))
    assert ring.wrap == far
    assert ("b", Introduce(far, LINE, first_hand=False)) in sent


def test_candidates_for_the_wrap_edge_on_both_sides_prove_that_the_node_is_not_an_end() -> None:
    ring = ring_at("01", wrap=peer("111", "z"))
    sent = hear(ring, Introduce(peer("0", "a"), WRAP, first_hand=True))
    assert edges(ring) == (peer("0", "a"), None, None)
    assert sent == [("z", CheckLabel(peer("01", ME), label("111"), LINE))]


@pytest.mark.parametrize("wrap", [peer("111", "z"), peer("0", "a")])
def test_B6_wrap_edge_with_an_empty_side_is_linearized_as_well(wrap: Peer) -> None:
    ring = ring_at("01", wrap=wrap)
    me = peer("01", ME)
    assert timeout(ring) == [
        (wrap.node, CheckLabel(me, wrap.label, LINE)),  # R2: asked first
        (wrap.node, CheckLabel(me, wrap.label, WRAP)),
    ]
    assert edges(ring) == (None, None, wrap)


@pytest.mark.parametrize("bits", ["111", "0"])
def test_B6_copy_is_linearized_and_the_wrap_edge_stays(bits: str) -> None:
    ring, wrap = ring_at("01", wrap=peer(bits, "z"), rules=PAPER), peer(bits, "z")
    timeout(ring)
    assert ring.wrap == wrap
    assert wrap in ring.neighbours


def test_B6_wrap_edge_with_a_neighbour_on_its_side_is_only_checked() -> None:
    ring = ring_at("01", right=peer("1", "y"), wrap=peer("111", "z"))
    checks = [message for to, message in timeout(ring) if to == "z"]
    assert checks == [CheckLabel(peer("01", ME), label("111"), WRAP)]


# -- without a label, and RemoveConnections ----------------------------------------------------


@every_link
def test_B7_node_without_a_label_answers_a_check_with_RemoveConnections(link: EdgeKind) -> None:
    ring = ring_at(None)
    assert hear(ring, check(peer("0", "a"), "01", link)) == [("a", RemoveConnections(ME))]
    assert hear(ring, check(peer("0", "a"), None, link)) == [("a", RemoveConnections(ME))]
    assert edges(ring) == (None, None, None)


@every_link
@either_hand
def test_B7_node_without_a_label_answers_an_introduction_with_RemoveConnections(
    link: EdgeKind, first_hand: bool
) -> None:
    ring = ring_at(None)
    assert hear(ring, Introduce(peer("0", "a"), link, first_hand)) == [("a", RemoveConnections(ME))]
    assert edges(ring) == (None, None, None)


def test_B9_RemoveConnections_clears_every_edge_to_the_node() -> None:
    z = peer("1", "z")
    ring = ring_at("01", left=peer("0", "z"), right=z, wrap=peer("11", "z"))
    assert hear(ring, RemoveConnections("z")) == []
    assert edges(ring) == (None, None, None)


def test_B9_RemoveConnections_keeps_the_edges_to_others() -> None:
    a, y, z = peer("0", "a"), peer("1", "y"), peer("11", "z")
    ring = ring_at("01", left=a, right=y, wrap=z)
    hear(ring, RemoveConnections("b"))
    assert edges(ring) == (a, y, z)
    hear(ring, RemoveConnections("y"))
    assert edges(ring) == (a, None, z)


# -- configurations ----------------------------------------------------------------------------


def configured(bits: str, pred: Peer | None, succ: Peer | None) -> tuple[Peer | None, ...]:
    """Return the edges after a configuration, in a ring that had other edges everywhere."""
    old = {"left": peer("0011", "o"), "right": peer("0111", "p"), "wrap": peer("1111", "q")}
    ring = ring_at("01", **old)
    hear(ring, SetConfiguration(pred, label(bits), succ))
    assert ring.me == peer(bits, ME)
    return edges(ring)


def test_B13_pred_and_succ_become_left_and_right_in_the_middle() -> None:
    a, z = peer("001", "a"), peer("011", "z")
    assert configured("01", a, z) == (a, z, None)


def test_B13_pred_becomes_the_wrap_edge_at_the_left_end() -> None:
    a, z = peer("001", "a"), peer("11", "z")
    assert configured("0", z, a) == (None, a, z)


def test_B13_succ_becomes_the_wrap_edge_at_the_right_end() -> None:
    a, y, z = peer("0", "a"), peer("11", "y"), peer("1", "z")
    assert configured("111", y, a) == (y, None, a)
    # Each of two nodes is neighbour and wrap edge of the other; a single node has no edges.
    assert configured("0", z, z) == (None, z, z)
    assert configured("1", a, a) == (a, None, a)
    assert configured("0", None, None) == (None, None, None)


def test_B13_configuration_without_pred_clears_all_edges() -> None:
    assert configured("01", None, peer("1", "z")) == (None, None, None)


def test_B13_nearer_old_neighbours_stay_without_the_rule() -> None:
    ring = ring_at("01", left=peer("0011", "a"), rules=without(Rule.OVERWRITE))
    hear(ring, SetConfiguration(peer("001", "b"), label("01"), peer("1", "z")))
    assert ring.neighbours[LEFT] == peer("0011", "a")


def see_home(bits: str, old: Peer, pred: Peer, succ: Peer) -> list[tuple[str, object]]:
    """Return what a configuration makes of an old wrap edge without R10."""
    ring = ring_at(bits, wrap=old, rules=FIXED)
    return hear(ring, SetConfiguration(pred, label(bits), succ))


def test_B11_old_neighbour_that_is_nearer_round_the_wrap_is_reported_to_the_supervisor() -> None:
    # From 0 leftwards: 111 comes before 11, though on the line it is farther away.
    for bits, old in (("0", "111"), ("111", "0")):
        assert see_home(bits, peer(old, "o"), peer("11", "z"), peer("001", "a")) == asked("o")


def test_B11_old_neighbour_beyond_both_new_ones_is_forwarded_instead() -> None:
    sent = see_home("0", peer("1", "o"), peer("11", "z"), peer("001", "a"))
    assert sent == [("a", Introduce(peer("1", "o"), LINE, first_hand=False))]


@pytest.mark.parametrize("bits", ["11", "001"])
def test_B12_old_neighbour_at_the_same_distance_is_reported_to_the_supervisor(bits: str) -> None:
    assert see_home("0", peer(bits, "o"), peer("11", "z"), peer("001", "a")) == asked("o")


def test_B12_old_neighbour_that_the_configuration_names_is_not_reported() -> None:
    assert see_home("0", peer("111", "z"), peer("11", "z"), peer("001", "a")) == []


# -- R2: first-hand only -----------------------------------------------------------------------

# Void references are excluded: they are dropped on any message (B2).
references = st.none() | peers([node for node in NODES if node not in (ME, SUPERVISOR)])
rings = st.builds(ring_at, labels().map(str), left=references, right=references, wrap=references)


@unhurried
@given(rings, peers(NODES), links)
def test_R2_second_hand_introduction_changes_no_edge(
    ring: Ring, subject: Peer, link: EdgeKind
) -> None:
    before = edges(ring)
    hear(ring, Introduce(subject, link, first_hand=False))
    assert edges(ring) == before
    assert ring.me is not None
    if subject.label != ring.me.label:  # ignore senders with a wrong label for this node
        hear(ring, CheckLabel(subject, subject.label, link))
        assert edges(ring) == before


@pytest.mark.parametrize(
    ("own", "edge", "known", "told", "link"),
    [
        ("01", "left", peer("0", "a"), peer("001", "b"), LINE),  # nearer than the neighbour
        ("01", "left", peer("001", "a"), peer("0", "a"), LINE),  # the neighbour under another label
        ("0", "right", peer("001", "a"), peer("111", "z"), WRAP),  # a candidate for the wrap edge
    ],
    ids=["nearer", "moved", "wrap"],
)
def test_R2_peer_that_a_third_party_introduces_is_probed(
    own: str, edge: str, known: Peer, told: Peer, link: EdgeKind
) -> None:
    ring = ring_at(own, **{edge: known})
    sent = hear(ring, Introduce(told, link, first_hand=False))
    assert sent == [(told.node, CheckLabel(peer(own, ME), told.label, link))]
    assert ring.wrap is None


def test_R2_known_reference_is_not_probed() -> None:
    a, z = peer("001", "a"), peer("111", "z")
    ring = ring_at("0", right=a, wrap=z)
    assert hear(ring, Introduce(a, LINE, first_hand=False)) == []
    assert hear(ring, Introduce(z, WRAP, first_hand=False)) == []


def test_R2_third_party_beyond_the_neighbour_is_forwarded_in_fixed_mode() -> None:
    ring = ring_at("01", left=peer("001", "b"), rules=FIXED)
    sent = hear(ring, Introduce(peer("0", "a"), LINE, first_hand=False))
    assert sent == [("b", Introduce(peer("0", "a"), LINE, first_hand=False))]


# -- R8: another node with this node's label ---------------------------------------------------


@every_link
@either_hand
@pytest.mark.parametrize("node", ["a", "z"])
def test_R8_peer_with_the_own_label_is_reported_to_the_supervisor(
    node: str, link: EdgeKind, first_hand: bool
) -> None:
    ring = ring_at("01")
    assert hear(ring, Introduce(peer("01", node), link, first_hand)) == asked(node)
    assert edges(ring) == (None, None, None)


@every_link
def test_R8_peer_with_the_own_label_is_reported_even_if_it_knows_the_label(link: EdgeKind) -> None:
    ring = ring_at("01", left=peer("0", "a"), right=peer("1", "z"))
    assert hear(ring, check(peer("01", "b"), "01", link)) == asked("b")
    assert edges(ring) == (peer("0", "a"), peer("1", "z"), None)


@every_link
def test_R8_peer_with_the_own_label_is_reported_even_as_wrap_edge(link: EdgeKind) -> None:
    a, z = peer("0", "a"), peer("1", "z")
    ring = ring_at("01", left=a, wrap=z)
    assert hear(ring, Introduce(peer("01", "z"), link, first_hand=True)) == asked("z")
    assert edges(ring) == (a, None, z)


# -- R10: ask the supervisor first -------------------------------------------------------------


def test_R10_references_displaced_by_a_configuration_are_reported_to_the_supervisor() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("011", "b"), wrap=peer("1", "y"))
    sent = hear(ring, SetConfiguration(peer("0", "z"), label("01"), peer("1", "y")))
    assert sent == asked("a", "b")


def test_R10_displaced_node_is_reported_once() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("011", "a"), wrap=peer("1", "a"))
    assert hear(ring, SetConfiguration(None, label("01"), None)) == asked("a")


@pytest.mark.parametrize("bits", ["0", "011"])
def test_R10_neighbour_that_has_moved_away_causes_a_request_about_both_nodes(bits: str) -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("1", "z"))
    assert hear(ring, check(peer(bits, "a"))) == asked(ME, "a")
    assert edges(ring) == (None, peer("1", "z"), None)


@either_hand
@pytest.mark.parametrize("bits", ["0", "11"])
def test_R10_node_farther_than_the_neighbour_is_not_forwarded(bits: str, first_hand: bool) -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=a, right=z)
    assert hear(ring, Introduce(peer(bits, "b"), LINE, first_hand)) == asked("b")
    assert edges(ring) == (a, z, None)


def test_R10_node_farther_than_the_neighbour_is_forwarded_without_the_rule() -> None:
    ring = ring_at("01", left=peer("001", "a"), rules=without(Rule.SUPERVISOR_FIRST))
    sent = hear(ring, check(peer("0", "b")))
    assert sent == [("a", Introduce(peer("0", "b"), LINE, first_hand=False))]


# -- R12: two nodes under one label ------------------------------------------------------------


@every_link
@pytest.mark.parametrize("bits", ["001", "1", "11"])
def test_R12_stored_label_under_another_id_causes_a_request_about_both_and_no_change(
    bits: str, link: EdgeKind
) -> None:
    a, y, z = peer("001", "a"), peer("1", "y"), peer("11", "z")
    ring = ring_at("01", left=a, right=y, wrap=z)
    assert hear(ring, check(peer(bits, "b"), "01", link)) == asked(ME, "b")
    assert edges(ring) == (a, y, z)


@every_link
@pytest.mark.parametrize("bits", ["001", "1"])
def test_R12_stored_label_of_the_wrap_edge_under_another_id_causes_a_request_too(
    bits: str, link: EdgeKind
) -> None:
    a, y, z = peer("001", "a"), peer("1", "y"), peer("11", "z")
    ring = ring_at("01", left=a, right=y, wrap=z)
    assert hear(ring, Introduce(peer(bits, "z"), link, first_hand=True)) == asked(ME, "z")
    assert edges(ring) == (a, y, z)


def test_R12_second_hand_stranger_causes_no_conflict() -> None:
    ring = ring_at("01", left=peer("001", "a"))
    sent = hear(ring, Introduce(peer("001", "b"), LINE, first_hand=False))
    assert ME not in [getattr(message, "node", None) for _, message in sent]


def test_R12_own_label_is_handled_by_R8_and_not_as_a_conflict() -> None:
    ring = ring_at("01", left=peer("01", "a"))
    assert hear(ring, check(peer("01", "b"))) == asked("b")


@pytest.mark.parametrize("rules", [PAPER, without(Rule.CONFLICT)], ids=["paper", "fast"])
@pytest.mark.parametrize("node", ["a", "c"])
def test_R12_first_of_equal_labels_stays_without_the_rule(rules: Rules, node: NodeId) -> None:
    ring = ring_at("01", left=peer("001", "b"), rules=rules)
    hear(ring, check(peer("001", node)))
    assert ring.neighbours[LEFT] == peer("001", "b")


# -- R13: no forwarding of candidates for the wrap edge ----------------------------------------


@either_hand
def test_R13_candidate_for_the_wrap_edge_is_not_forwarded(first_hand: bool) -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=a, right=z)
    assert hear(ring, Introduce(peer("11", "y"), WRAP, first_hand)) == asked("y")
    assert edges(ring) == (a, z, None)


def test_R13_wrap_edge_of_a_node_in_the_middle_is_not_forwarded() -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=a, right=z, wrap=peer("111", "y"))
    assert timeout(ring)[:1] == asked("y")
    assert edges(ring) == (a, z, None)


def test_R13_candidate_for_the_wrap_edge_is_forwarded_without_the_rule() -> None:
    rules = without(Rule.NO_WRAP_FORWARDING)
    y = peer("111", "y")
    onwards = ("a", Introduce(y, WRAP, first_hand=False))
    ring = ring_at("01", left=peer("001", "a"), right=peer("1", "z"), wrap=y, rules=rules)
    assert timeout(ring)[:1] == [onwards]
    assert hear(ring, Introduce(y, WRAP, first_hand=True)) == [onwards]


@unhurried
@given(rings, peers(NODES), links, st.booleans())
def test_R13_and_R10_no_reference_is_forwarded_more_than_one_hop(
    ring: Ring, subject: Peer, link: EdgeKind, first_hand: bool
) -> None:
    sent = hear(ring, Introduce(subject, link, first_hand))
    introduced = [message for _, message in sent if type(message) is Introduce]
    assert first_hand or introduced == []
    for _, message in (*sent, *timeout(ring)):
        if type(message) is Introduce and message.link is WRAP:
            assert message == Introduce(ring.me, WRAP, first_hand=True)
