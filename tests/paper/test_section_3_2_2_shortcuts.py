"""Section 3.2.2, Algorithm 4: shortcut labels, and their establishment bottom-up."""

from fractions import Fraction

import pytest
from msgspec.structs import replace

from skipring.core.config import Rules
from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import CheckLabel, Introduce, IntroduceShortcut, Message
from skipring.core.peers import LEFT, RIGHT, EdgeKind, NodeId, Peer
from skipring.core.state import SubscriberState, legitimate_state
from skipring.core.topology import chain, chains_around, levels
from skipring.sim.engine import World
from skipring.world.adversaries.builders import node_names, with_states
from skipring.world.legitimacy import is_legitimate
from skipring.world.snapshot import Snapshot
from tests.support.conversations import at, simulation, standing_ring
from tests.support.machines import FAST, FIXED, PAPER, label, subscriber

every_mode = pytest.mark.parametrize("rules", [PAPER, FIXED, FAST], ids=["paper", "fixed", "fast"])


def values(labels: tuple[Label, ...]) -> list[Fraction]:
    return [Fraction(each.position, CIRCLE) for each in labels]


# -- labels ----------------------------------------------------------------------------------


def test_shortcuts_of_one_quarter_to_the_left_are_an_eighth_and_zero() -> None:
    """The example: 2 * 3/16 - 1/4 = 1/8, then 2 * 1/8 - 1/4 = 0, which is short enough."""
    left = chain(label("01"), label("0011"), LEFT)
    assert values(left) == [Fraction(3, 16), Fraction(1, 8), 0]


def test_shortcuts_of_one_quarter_to_the_right_are_three_eighths_and_one_half() -> None:
    """The example: "the computation of shortcut labels to 3/8 and 1/2 works analogously"."""
    right = chain(label("01"), label("0101"), RIGHT)
    assert values(right) == [Fraction(5, 16), Fraction(3, 8), Fraction(1, 2)]


def test_node_one_quarter_of_sr_16_has_the_shortcuts_of_the_example() -> None:
    """The whole example, at the node that has the label."""
    state = legitimate_state(2, node_names(16))
    assert (state.left.label.bits, state.right.label.bits) == ("0011", "0101")
    assert [slot.bits for slot in state.shortcuts] == ["001", "0", "011", "1"]


def test_no_shortcuts_exist_if_the_label_of_the_neighbour_is_not_longer() -> None:
    """Only if |v.label| < |label_w| does v know that a node beyond w exists."""
    assert chains_around(label("001"), label("0"), label("01")).slots == ()


def test_label_as_long_as_the_own_one_ends_the_chain() -> None:
    """The recursion goes on "until it reaches a label of less or equal length"."""
    assert chain(label("011"), label("001"), LEFT) == (label("001"),)
    assert chain(label("011"), label("01001"), LEFT)[1:] == (label("0011"), label("0"))


@pytest.mark.parametrize("n", [8, 16, 64])
def test_zero_computes_its_left_shortcuts_across_the_wrap(n: int) -> None:
    """The 1 is represented by the subscriber with label 0 (C2)."""
    state = legitimate_state(0, node_names(n))
    assert state.ring is not None
    left = chain(Label(0), state.ring.label, LEFT)
    assert values(left) == [1 - Fraction(2**i, n) for i in range(levels(n))]


# -- introductions ---------------------------------------------------------------------------


def level_neighbours(index: int, n: int) -> tuple[Label, Label]:
    """Return the nodes beside a label in the ring over all labels that are no longer."""
    own = Label.nth(index)
    ring = sorted(Label.nth(x) for x in range(n) if Label.nth(x).length <= own.length)
    place = ring.index(own)
    return ring[place - 1], ring[(place + 1) % len(ring)]


@every_mode
@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8, 11, 16, 31, 40])
def test_each_node_introduces_its_two_neighbours_on_its_own_level(rules: Rules, n: int) -> None:
    """With k = |v.label|, v introduces u to w and w to u; also if one or both of them are only
    ring neighbours (C3: the text has two shortcuts or two ring neighbours).
    """
    nodes = node_names(n)
    for index in range(n):
        host = subscriber(legitimate_state(index, nodes), rules=rules, node=nodes[index])
        said = introductions(host.tick())
        low, high = (Peer(each, nodes[each.index]) for each in level_neighbours(index, n))
        if index < 2:
            assert said == []  # 0 and 1 have only each other on level 1 (C4)
        else:
            assert said == [(low.node, high), (high.node, low)]


def introductions(said: list[tuple[NodeId, Message]]) -> list[tuple[NodeId, Peer]]:
    return [(to, message.peer) for to, message in said if isinstance(message, IntroduceShortcut)]


def test_mixed_case_of_sr_5_introduces_a_shortcut_and_a_neighbour() -> None:
    """01 is between 001 and 1: its level neighbours are the shortcut 0 and the neighbour 1."""
    host = subscriber(legitimate_state(2, "abcde"), node="c")
    assert introductions(host.tick()) == [("a", at("b@1")), ("b", at("a@0"))]


@every_mode
def test_unknown_holder_is_not_introduced(rules: Rules) -> None:
    """C4: v introduces them only if it has both."""
    state = replace(legitimate_state(2, "abcde"), shortcuts={label("0"): None})
    assert introductions(subscriber(state, rules=rules, node="c").tick()) == []


# -- effects of an introduction --------------------------------------------------------------

QUARTER = legitimate_state(2, node_names(16))  # holds 001, 0, 011 and 1


@every_mode
def test_introduced_shortcut_fills_the_slot_of_its_label(rules: Rules) -> None:
    state = replace(QUARTER, shortcuts=dict.fromkeys(QUARTER.shortcuts))
    host = subscriber(state, rules=rules)
    assert host.receive(IntroduceShortcut(at("x@001"))) == []
    assert host.machine.shortcuts[label("001")] == "x"


@every_mode
def test_introduced_shortcut_replaces_the_holder_of_its_label(rules: Rules) -> None:
    """u "replaces the existing node reference w' by w"."""
    host = subscriber(QUARTER, rules=rules)
    host.receive(IntroduceShortcut(at("x@001")))
    assert host.machine.shortcuts == {**QUARTER.shortcuts, label("001"): "x"}


@every_mode
def test_introduction_of_a_known_holder_changes_nothing(rules: Rules) -> None:
    host = subscriber(QUARTER, rules=rules)
    known = Peer(label("001"), QUARTER.shortcuts[label("001")])
    assert host.receive(IntroduceShortcut(known)) == []
    assert host.machine.shortcuts == QUARTER.shortcuts


def test_displaced_shortcut_is_linearized_under_a_wrong_label_in_the_paper() -> None:
    """Algorithm 4: Linearize((l', v')), with the label of the slot, creates a corrupted label.

    The lemma of section 2.2 requires that corrupted labels are never duplicated.
    """
    displaced = QUARTER.shortcuts[label("001")]
    wrong = Introduce(Peer(label("001"), displaced), EdgeKind.LINE, first_hand=False)
    host = subscriber(QUARTER, rules=PAPER)
    assert host.receive(IntroduceShortcut(at("x@001"))) == [(QUARTER.left.node, wrong)]


@pytest.mark.parametrize("rules", [FIXED, FAST], ids=["fixed", "fast"])
def test_displaced_shortcut_is_probed(rules: Rules) -> None:
    """R1: it answers first-hand, and only its own message changes an edge of the ring (R2)."""
    displaced = QUARTER.shortcuts[label("001")]
    host = subscriber(QUARTER, rules=rules)
    question = CheckLabel(at("m@01"), label("001"), EdgeKind.LINE)
    assert host.receive(IntroduceShortcut(at("x@001"))) == [(displaced, question)]


@pytest.mark.parametrize("rules", [FIXED, FAST], ids=["fixed", "fast"])
def test_introduction_of_a_shortcut_changes_no_edge_of_the_ring(rules: Rules) -> None:
    """Ring Closure: they "do not modify the variables v.left, v.right and v.ring"."""
    for bits in ("001", "0", "011", "1", "00101", "0100001", "11"):
        host = subscriber(QUARTER, rules=rules)
        host.receive(IntroduceShortcut(at(f"x@{bits}")))
        after = host.machine.state()
        assert (after.left, after.right, after.ring) == (QUARTER.left, QUARTER.right, QUARTER.ring)


def test_introduction_can_change_an_edge_of_the_ring_in_the_paper() -> None:
    """The sentence of the proof does not hold for Algorithm 4, which linearizes."""
    host = subscriber(QUARTER, rules=PAPER)
    host.receive(IntroduceShortcut(at("x@00111")))
    assert host.machine.left == at("x@00111")


# -- bottom-up -------------------------------------------------------------------------------


def without_shortcuts(n: int) -> Snapshot:
    return with_states(standing_ring(n), lambda _, state: replace(state, shortcuts={}))


def missing_levels(world: World) -> set[int]:
    """Return the levels on which some shortcut is not yet established."""
    nodes = world.roster.nodes
    return {
        max(slot.length, Label.nth(index).length)
        for index, node in enumerate(nodes)
        for slot, holder in legitimate_state(index, nodes).shortcuts.items()
        if world.subscribers[node].shortcuts.get(slot) != holder
    }


@pytest.mark.parametrize("mode", ["paper", "fixed", "fast"])
@pytest.mark.parametrize("n", [4, 8, 16, 64, 128])
def test_shortcuts_are_established_bottom_up_one_level_in_each_round(mode: str, n: int) -> None:
    """The text: "in a bottom-up fashion"; the ring is the bottom, and level 1 comes last."""
    running = simulation(without_shortcuts(n), mode=mode, scheduler="sync")
    running.run_round()  # the ring neighbours are introduced
    for level in range(levels(n), 0, -1):
        assert missing_levels(running.world) == set(range(1, level))
        running.run_round()
    assert is_legitimate(running.world)


@pytest.mark.parametrize("n", [16, 64, 256])
def test_shortcuts_are_established_within_about_log_n_rounds_in_random_order(n: int) -> None:
    report = simulation(without_shortcuts(n), max_rounds=levels(n) + 4).run()
    assert report.is_good, report.violations


def test_node_opens_slots_for_exactly_the_labels_it_should_hold() -> None:
    """Algorithm 4: "check and update u.shortcuts, s.t. it contains the correct labels" (C5)."""
    state = SubscriberState(
        label=label("01"),
        left=at("a@0011"),
        right=at("b@0101"),
        shortcuts={label("0"): "z", label("111"): "y"},
    )
    host = subscriber(state)
    said = host.tick()
    slots = {slot.bits: holder for slot, holder in host.machine.shortcuts.items()}
    assert slots == {"001": None, "0": "z", "011": None, "1": None}
    assert ("y", CheckLabel(at("m@01"), label("111"), EdgeKind.LINE)) in said  # probed, by R1
