"""BuildList and BuildRing, message by message (Algorithms 1 and 2).

Labels in the order of the ring: 0, 001, 01, 011, 1, 101, 11, 111. The ring under test belongs to
``m``, mostly with label 01 or 1.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.config import Rule
from skipring.core.messages import (
    CheckLabel,
    Introduce,
    RemoveConnections,
    SetConfiguration,
)
from skipring.core.peers import LEFT, RIGHT, SUPERVISOR, EdgeKind, Peer, Side
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


def test_a_timeout_checks_both_neighbours_under_the_labels_they_are_believed_to_have() -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=a, right=z)
    me = peer("01", ME)
    assert timeout(ring) == [
        ("a", CheckLabel(me, a.label, LINE)),
        ("z", CheckLabel(me, z.label, LINE)),
    ]


def test_a_sender_that_is_wrong_about_our_label_is_told_it_and_not_taken_in() -> None:
    ring = ring_at("01")
    sent = hear(ring, check(peer("001", "a"), believed="11"))
    assert sent == [("a", Introduce(peer("01", ME), LINE, first_hand=True))]
    assert edges(ring) == (None, None, None)


@every_link
def test_the_answer_to_a_wrong_check_is_about_the_same_link(link: EdgeKind) -> None:
    sent = hear(ring_at("01"), check(peer("001", "a"), believed=None, link=link))
    assert sent == [("a", Introduce(peer("01", ME), link, first_hand=True))]


def test_B3_no_left_neighbour_is_minus_infinity_and_no_right_one_plus_infinity() -> None:
    a, z = peer("0", "a"), peer("111", "z")
    ring = ring_at("01")
    assert hear(ring, check(a)) == []
    assert hear(ring, check(z)) == []
    assert edges(ring) == (a, z, None)


@pytest.mark.parametrize(("far", "near"), [("0", "001"), ("111", "011")])
def test_a_nearer_peer_takes_the_place_and_is_told_about_the_farther_one(
    far: str, near: str
) -> None:
    side = Side(far > "01")
    ring = ring_at("01")
    ring.neighbours[side] = peer(far, "a")
    assert hear(ring, check(peer(near, "b"))) == [
        ("b", Introduce(peer(far, "a"), LINE, first_hand=False))
    ]
    assert ring.neighbours[side] == peer(near, "b")


def test_a_neighbour_with_a_new_label_that_is_nearer_stays_under_the_new_label() -> None:
    ring = ring_at("01", left=peer("0", "a"))
    assert hear(ring, check(peer("001", "a"))) == []
    assert edges(ring) == (peer("001", "a"), None, None)


def test_the_neighbours_own_word_changes_nothing_if_all_is_known() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("1", "z"))
    assert hear(ring, check(peer("001", "a"))) == []
    assert hear(ring, check(peer("1", "z"))) == []
    assert edges(ring) == (peer("001", "a"), peer("1", "z"), None)


def test_a_node_known_on_both_sides_is_kept_under_the_label_it_says_itself() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("1", "a"))
    assert hear(ring, check(peer("1", "a"))) == []
    assert edges(ring) == (None, peer("1", "a"), None)


def test_a_neighbour_on_the_wrong_side_changes_sides_at_the_next_timeout() -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=z)
    timeout(ring)
    assert edges(ring) == (None, z, None)
    ring = ring_at("01", right=a)
    timeout(ring)
    assert edges(ring) == (a, None, None)


# -- B2: ourselves and the supervisor ----------------------------------------------------------

void = pytest.mark.parametrize("void", [ME, SUPERVISOR])


@void
@every_link
@either_hand
def test_B2_a_void_reference_is_dropped_when_introduced(
    void: str, link: EdgeKind, first_hand: bool
) -> None:
    for bits in (None, "01"):
        ring = ring_at(bits)
        assert hear(ring, Introduce(peer("001", void), link, first_hand)) == []
        assert edges(ring) == (None, None, None)


@void
@every_link
def test_B2_a_check_by_a_void_sender_is_dropped(void: str, link: EdgeKind) -> None:
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
def test_B2_a_configuration_cannot_bring_void_references(void: str) -> None:
    ring = ring_at("01", left=peer("001", void), wrap=peer("1", void))
    sent = hear(ring, SetConfiguration(peer("0", void), label("01"), peer("1", void)))
    assert sent == []
    assert edges(ring) == (None, None, None)


@void
def test_B2_a_void_reference_is_never_probed(void: str) -> None:
    assert written(lambda out: ring_at("01").probe(peer("0", void), LINE, out)) == []


@void
def test_B2_a_void_edge_is_told_nothing_before_the_first_timeout_either(void: str) -> None:
    wrapped = ring_at("01", wrap=peer("1", void))
    sent = hear(wrapped, check(peer("111", "z"), "01", WRAP))
    linked = ring_at("01", left=peer("001", void), rules=FIXED)
    sent += hear(linked, check(peer("0", "a")))
    assert void not in [to for to, _ in sent]


# -- the wrap edge: BuildRing ------------------------------------------------------------------


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_an_end_of_the_line_offers_itself_along_the_line_to_close_the_ring(side: Side) -> None:
    neighbour = peer("0" if side is LEFT else "1", "a")
    ring = ring_at("01")
    ring.neighbours[side] = neighbour
    assert timeout(ring) == [
        ("a", Introduce(peer("01", ME), WRAP, first_hand=True)),
        ("a", CheckLabel(peer("01", ME), neighbour.label, LINE)),
    ]


def test_an_end_of_the_line_checks_its_wrap_edge() -> None:
    a, z = peer("001", "a"), peer("111", "z")
    ring = ring_at("0", right=a, wrap=z)
    assert ("z", CheckLabel(peer("0", ME), z.label, WRAP)) in timeout(ring)
    assert edges(ring) == (None, a, z)


def test_pred_and_succ_are_found_in_whichever_variable_holds_them() -> None:
    a, z = peer("001", "a"), peer("111", "z")
    first, last = ring_at("0", right=a, wrap=z), ring_at("111", left=z, wrap=a)
    assert (first.pred, first.succ) == (z, a)
    assert (last.pred, last.succ) == (z, a)
    alone = ring_at("0")
    assert (alone.pred, alone.succ) == (None, None)
    unlabelled = ring_at(None, wrap=a)
    assert (unlabelled.pred, unlabelled.succ) == (None, None)


def test_B4_a_wrap_edge_that_has_moved_to_our_other_side_goes_to_the_line_only() -> None:
    ring = ring_at("01", right=peer("1", "z"), wrap=peer("111", "b"))
    assert hear(ring, Introduce(peer("001", "b"), WRAP, first_hand=True)) == []
    assert edges(ring) == (peer("001", "b"), peer("1", "z"), None)


@every_link
def test_B4_a_wrap_edge_that_has_moved_on_its_side_stays_the_wrap_edge(link: EdgeKind) -> None:
    ring = ring_at("01", right=peer("011", "y"), wrap=peer("1", "z"))
    hear(ring, Introduce(peer("111", "z"), link, first_hand=True))
    assert ring.wrap == peer("111", "z")


def test_B5_the_wrap_edge_introduced_once_more_changes_nothing() -> None:
    a, z = peer("001", "a"), peer("111", "z")
    ring = ring_at("0", right=a, wrap=z)
    assert hear(ring, Introduce(z, WRAP, first_hand=True)) == []
    assert hear(ring, check(z, "0", WRAP)) == []
    assert edges(ring) == (None, a, z)


def test_B5_the_farther_candidate_becomes_the_wrap_edge_the_nearer_one_goes_to_the_line() -> None:
    near, far = peer("11", "y"), peer("111", "z")
    ring = ring_at("0", wrap=near)
    sent = hear(ring, Introduce(far, WRAP, first_hand=True))
    assert edges(ring) == (None, None, far)
    assert sent == [
        # The nearer one does not speak for itself here: it is asked first (R2).
        ("y", CheckLabel(peer("0", ME), near.label, LINE)),
        ("y", Introduce(far, LINE, first_hand=False)),
    ]


def test_B5_a_nearer_candidate_that_speaks_for_itself_is_put_on_the_line_at_once() -> None:
    near, far = peer("11", "y"), peer("111", "z")
    ring = ring_at("0", wrap=far)
    sent = hear(ring, Introduce(near, WRAP, first_hand=True))
    assert edges(ring) == (None, near, far)
    assert sent == [("y", Introduce(far, LINE, first_hand=False))]


def test_B5_at_the_right_end_the_smallest_is_the_farthest() -> None:
    near, far = peer("001", "b"), peer("0", "a")
    ring = ring_at("111", wrap=near)
    sent = hear(ring, Introduce(far, WRAP, first_hand=True))
    assert ring.wrap == far
    assert ("b", Introduce(far, LINE, first_hand=False)) in sent


def test_candidates_for_the_wrap_edge_on_both_sides_mean_that_we_are_no_end() -> None:
    ring = ring_at("01", wrap=peer("111", "z"))
    sent = hear(ring, Introduce(peer("0", "a"), WRAP, first_hand=True))
    assert edges(ring) == (peer("0", "a"), None, None)
    assert sent == [("z", CheckLabel(peer("01", ME), label("111"), LINE))]


@pytest.mark.parametrize("wrap", [peer("111", "z"), peer("0", "a")])
def test_B6_a_wrap_edge_with_nobody_on_its_side_is_linearized_as_well(wrap: Peer) -> None:
    ring = ring_at("01", wrap=wrap)
    me = peer("01", ME)
    assert timeout(ring) == [
        (wrap.node, CheckLabel(me, wrap.label, LINE)),  # R2: asked first
        (wrap.node, CheckLabel(me, wrap.label, WRAP)),
    ]
    assert edges(ring) == (None, None, wrap)


@pytest.mark.parametrize("bits", ["111", "0"])
def test_B6_what_is_linearized_is_a_copy_the_wrap_edge_stays(bits: str) -> None:
    ring, wrap = ring_at("01", wrap=peer(bits, "z"), rules=PAPER), peer(bits, "z")
    timeout(ring)
    assert ring.wrap == wrap
    assert wrap in ring.neighbours


def test_B6_a_wrap_edge_with_somebody_on_its_side_is_only_checked() -> None:
    ring = ring_at("01", right=peer("1", "y"), wrap=peer("111", "z"))
    checks = [message for to, message in timeout(ring) if to == "z"]
    assert checks == [CheckLabel(peer("01", ME), label("111"), WRAP)]


# -- without a label, and forgetting -----------------------------------------------------------


@every_link
def test_B7_without_a_label_a_check_is_answered_by_asking_to_be_forgotten(link: EdgeKind) -> None:
    ring = ring_at(None)
    assert hear(ring, check(peer("0", "a"), "01", link)) == [("a", RemoveConnections(ME))]
    assert hear(ring, check(peer("0", "a"), None, link)) == [("a", RemoveConnections(ME))]
    assert edges(ring) == (None, None, None)


@every_link
@either_hand
def test_B7_so_is_an_introduction(link: EdgeKind, first_hand: bool) -> None:
    ring = ring_at(None)
    assert hear(ring, Introduce(peer("0", "a"), link, first_hand)) == [("a", RemoveConnections(ME))]
    assert edges(ring) == (None, None, None)


def test_B9_removing_connections_clears_every_edge_that_holds_the_node() -> None:
    z = peer("1", "z")
    ring = ring_at("01", left=peer("0", "z"), right=z, wrap=peer("11", "z"))
    assert hear(ring, RemoveConnections("z")) == []
    assert edges(ring) == (None, None, None)


def test_B9_removing_connections_leaves_the_edges_of_others() -> None:
    a, y, z = peer("0", "a"), peer("1", "y"), peer("11", "z")
    ring = ring_at("01", left=a, right=y, wrap=z)
    hear(ring, RemoveConnections("b"))
    assert edges(ring) == (a, y, z)
    hear(ring, RemoveConnections("y"))
    assert edges(ring) == (a, None, z)


# -- configurations ----------------------------------------------------------------------------


def configured(bits: str, pred: Peer | None, succ: Peer | None) -> tuple[Peer | None, ...]:
    """The edges of a ring with old ones everywhere after a configuration."""
    old = {"left": peer("0011", "o"), "right": peer("0111", "p"), "wrap": peer("1111", "q")}
    ring = ring_at("01", **old)
    hear(ring, SetConfiguration(pred, label(bits), succ))
    assert ring.me == peer(bits, ME)
    return edges(ring)


def test_B13_in_the_middle_pred_and_succ_become_left_and_right() -> None:
    a, z = peer("001", "a"), peer("011", "z")
    assert configured("01", a, z) == (a, z, None)


def test_B13_at_the_left_end_pred_becomes_the_wrap_edge() -> None:
    a, z = peer("001", "a"), peer("11", "z")
    assert configured("0", z, a) == (None, a, z)


def test_B13_at_the_right_end_succ_becomes_the_wrap_edge() -> None:
    a, y = peer("0", "a"), peer("11", "y")
    assert configured("111", y, a) == (y, None, a)


def test_B13_of_two_nodes_each_is_neighbour_and_wrap_edge_of_the_other() -> None:
    z, a = peer("1", "z"), peer("0", "a")
    assert configured("0", z, z) == (None, z, z)
    assert configured("1", a, a) == (a, None, a)


def test_B13_a_node_that_is_alone_knows_nobody() -> None:
    assert configured("0", None, None) == (None, None, None)


def test_B13_a_configuration_without_pred_clears_everything() -> None:
    assert configured("01", None, peer("1", "z")) == (None, None, None)


def test_B13_without_the_rule_old_neighbours_stay_if_they_are_nearer() -> None:
    ring = ring_at("01", left=peer("0011", "a"), rules=without(Rule.OVERWRITE))
    hear(ring, SetConfiguration(peer("001", "b"), label("01"), peer("1", "z")))
    assert ring.neighbours[LEFT] == peer("0011", "a")


def see_home(bits: str, old: Peer, pred: Peer, succ: Peer) -> list[tuple[str, object]]:
    """What becomes of an old wrap edge by a configuration where R10 is off."""
    ring = ring_at(bits, wrap=old, rules=FIXED)
    return hear(ring, SetConfiguration(pred, label(bits), succ))


def test_B11_an_old_neighbour_that_is_nearer_round_the_wrap_is_shown_to_the_supervisor() -> None:
    # From 0 leftwards: 111 comes before 11, though on the line it is farther away.
    assert see_home("0", peer("111", "o"), peer("11", "z"), peer("001", "a")) == asked("o")
    assert see_home("111", peer("0", "o"), peer("11", "z"), peer("001", "a")) == asked("o")


def test_B11_an_old_neighbour_beyond_both_new_ones_is_passed_on_instead() -> None:
    sent = see_home("0", peer("1", "o"), peer("11", "z"), peer("001", "a"))
    assert sent == [("a", Introduce(peer("1", "o"), LINE, first_hand=False))]


def test_B12_an_old_neighbour_at_the_same_distance_is_shown_to_the_supervisor() -> None:
    assert see_home("0", peer("11", "o"), peer("11", "z"), peer("001", "a")) == asked("o")


def test_B12_so_is_one_on_the_right() -> None:
    assert see_home("0", peer("001", "o"), peer("11", "z"), peer("001", "a")) == asked("o")


def test_B12_one_that_the_configuration_names_is_not_whatever_its_label_was() -> None:
    assert see_home("0", peer("111", "z"), peer("11", "z"), peer("001", "a")) == []


# -- R2: first-hand only -----------------------------------------------------------------------

# Void references are left out: they are dropped whatever is heard (B2).
references = st.none() | peers([node for node in NODES if node not in (ME, SUPERVISOR)])
rings = st.builds(ring_at, labels().map(str), left=references, right=references, wrap=references)


@unhurried
@given(rings, peers(NODES), links)
def test_R2_the_word_of_others_changes_no_edge(ring: Ring, subject: Peer, link: EdgeKind) -> None:
    before = edges(ring)
    hear(ring, Introduce(subject, link, first_hand=False))
    assert edges(ring) == before
    assert ring.me is not None
    if subject.label != ring.me.label:  # who takes us for somebody else does not count
        hear(ring, CheckLabel(subject, subject.label, link))
        assert edges(ring) == before


def test_R2_a_third_party_nearer_than_our_neighbour_is_asked_who_it_is() -> None:
    ring = ring_at("01", left=peer("0", "a"))
    sent = hear(ring, Introduce(peer("001", "b"), LINE, first_hand=False))
    assert sent == [("b", CheckLabel(peer("01", ME), label("001"), LINE))]


def test_R2_a_neighbour_said_to_have_another_label_is_asked_who_it_is() -> None:
    ring = ring_at("01", left=peer("001", "a"))
    sent = hear(ring, Introduce(peer("0", "a"), LINE, first_hand=False))
    assert sent == [("a", CheckLabel(peer("01", ME), label("0"), LINE))]


def test_R2_a_candidate_for_the_wrap_edge_that_others_propose_is_asked_who_it_is() -> None:
    ring = ring_at("0", right=peer("001", "a"))
    sent = hear(ring, Introduce(peer("111", "z"), WRAP, first_hand=False))
    assert sent == [("z", CheckLabel(peer("0", ME), label("111"), WRAP))]
    assert ring.wrap is None


def test_R2_what_is_known_already_needs_no_question() -> None:
    a, z = peer("001", "a"), peer("111", "z")
    ring = ring_at("0", right=a, wrap=z)
    assert hear(ring, Introduce(a, LINE, first_hand=False)) == []
    assert hear(ring, Introduce(z, WRAP, first_hand=False)) == []


def test_R2_in_fixed_a_third_party_beyond_our_neighbour_is_passed_on_to_it() -> None:
    ring = ring_at("01", left=peer("001", "b"), rules=FIXED)
    sent = hear(ring, Introduce(peer("0", "a"), LINE, first_hand=False))
    assert sent == [("b", Introduce(peer("0", "a"), LINE, first_hand=False))]


# -- R8: somebody else with our label ----------------------------------------------------------


@every_link
@either_hand
@pytest.mark.parametrize("node", ["a", "z"])
def test_R8_a_peer_with_our_own_label_is_a_case_for_the_supervisor(
    node: str, link: EdgeKind, first_hand: bool
) -> None:
    ring = ring_at("01")
    assert hear(ring, Introduce(peer("01", node), link, first_hand)) == asked(node)
    assert edges(ring) == (None, None, None)


@every_link
def test_R8_also_if_it_knows_our_label(link: EdgeKind) -> None:
    ring = ring_at("01", left=peer("0", "a"), right=peer("1", "z"))
    assert hear(ring, check(peer("01", "b"), "01", link)) == asked("b")
    assert edges(ring) == (peer("0", "a"), peer("1", "z"), None)


@every_link
def test_R8_also_if_it_is_our_wrap_edge(link: EdgeKind) -> None:
    a, z = peer("0", "a"), peer("1", "z")
    ring = ring_at("01", left=a, wrap=z)
    assert hear(ring, Introduce(peer("01", "z"), link, first_hand=True)) == asked("z")
    assert edges(ring) == (a, None, z)


# -- R10: the supervisor first -----------------------------------------------------------------


def test_R10_references_that_a_configuration_displaces_are_handed_to_the_supervisor() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("011", "b"), wrap=peer("1", "y"))
    sent = hear(ring, SetConfiguration(peer("0", "z"), label("01"), peer("1", "y")))
    assert sent == asked("a", "b")


def test_R10_a_displaced_node_is_handed_over_once() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("011", "a"), wrap=peer("1", "a"))
    assert hear(ring, SetConfiguration(None, label("01"), None)) == asked("a")


@pytest.mark.parametrize("bits", ["0", "011"])
def test_R10_a_neighbour_that_has_moved_away_makes_us_ask_about_both_of_us(bits: str) -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("1", "z"))
    assert hear(ring, check(peer(bits, "a"))) == asked(ME, "a")
    assert edges(ring) == (None, peer("1", "z"), None)


@either_hand
@pytest.mark.parametrize("bits", ["0", "11"])
def test_R10_who_is_farther_than_our_neighbour_is_not_passed_on(
    bits: str, first_hand: bool
) -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=a, right=z)
    assert hear(ring, Introduce(peer(bits, "b"), LINE, first_hand)) == asked("b")
    assert edges(ring) == (a, z, None)


def test_R10_without_the_rule_it_is_passed_on() -> None:
    ring = ring_at("01", left=peer("001", "a"), rules=without(Rule.SUPERVISOR_FIRST))
    sent = hear(ring, check(peer("0", "b")))
    assert sent == [("a", Introduce(peer("0", "b"), LINE, first_hand=False))]


# -- R12: two nodes under one label ------------------------------------------------------------


@every_link
@pytest.mark.parametrize("bits", ["001", "1", "11"])
def test_R12_a_stored_label_under_another_id_makes_us_ask_about_both_and_change_nothing(
    bits: str, link: EdgeKind
) -> None:
    a, y, z = peer("001", "a"), peer("1", "y"), peer("11", "z")
    ring = ring_at("01", left=a, right=y, wrap=z)
    assert hear(ring, check(peer(bits, "b"), "01", link)) == asked(ME, "b")
    assert edges(ring) == (a, y, z)


@every_link
@pytest.mark.parametrize("bits", ["001", "1"])
def test_R12_also_if_the_stranger_is_our_wrap_edge(bits: str, link: EdgeKind) -> None:
    a, y, z = peer("001", "a"), peer("1", "y"), peer("11", "z")
    ring = ring_at("01", left=a, right=y, wrap=z)
    assert hear(ring, Introduce(peer(bits, "z"), link, first_hand=True)) == asked(ME, "z")
    assert edges(ring) == (a, y, z)


def test_R12_a_stranger_that_others_speak_of_makes_no_conflict() -> None:
    ring = ring_at("01", left=peer("001", "a"))
    sent = hear(ring, Introduce(peer("001", "b"), LINE, first_hand=False))
    assert ME not in [getattr(message, "node", None) for _, message in sent]


def test_R12_our_own_label_is_no_conflict_but_a_case_of_R8() -> None:
    ring = ring_at("01", left=peer("01", "a"))
    assert hear(ring, check(peer("01", "b"))) == asked("b")


def test_R12_without_the_rule_the_smaller_id_decides() -> None:
    ring = ring_at("01", left=peer("001", "a"), rules=without(Rule.CONFLICT))
    hear(ring, check(peer("001", "b")))
    assert ring.neighbours[LEFT] == peer("001", "b")


# -- R13: no forwarding of candidates for the wrap edge ----------------------------------------


@either_hand
def test_R13_a_candidate_for_the_wrap_edge_is_not_passed_on(first_hand: bool) -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=a, right=z)
    assert hear(ring, Introduce(peer("11", "y"), WRAP, first_hand)) == asked("y")
    assert edges(ring) == (a, z, None)


def test_R13_a_wrap_edge_of_one_in_the_middle_is_not_passed_on() -> None:
    a, z = peer("001", "a"), peer("1", "z")
    ring = ring_at("01", left=a, right=z, wrap=peer("111", "y"))
    assert timeout(ring)[:1] == asked("y")
    assert edges(ring) == (a, z, None)


def test_R13_without_the_rule_it_is_passed_on() -> None:
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
