"""Topology of SR(n) (section 2.1), and the slots, pairs and tree around a label (section 3.2.2)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.labels import LABEL_BITS, Label
from skipring.core.peers import LEFT, RIGHT, SIDES, Side
from skipring.core.state import SubscriberState, legitimate_state, legitimate_states
from skipring.core.topology import (
    Chains,
    Edge,
    chain,
    chains_around,
    levels,
    neighbours_of,
    ring_edges,
    shortcut_edges,
)
from tests.support.machines import label, peer, unhurried
from tests.support.strategies import labels

LETTERS = "abcdefghijklmnop"


@pytest.mark.parametrize(
    ("n", "expected"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)]
)
def test_number_of_levels_is_the_length_of_the_longest_label(n: int, expected: int) -> None:
    assert levels(n) == expected == max(Label.nth(index).length for index in range(n))


# -- neighbours --------------------------------------------------------------------------------


def test_S9_neighbours_by_bit_arithmetic_equal_those_of_the_sorted_labels() -> None:
    for n in range(2, 201):
        order = sorted(range(n), key=Label.nth)
        for place, index in enumerate(order):
            expected = order[place - 1], order[(place + 1) % n]
            assert neighbours_of(index, n) == expected, (index, n)


@unhurried
@given(st.data(), st.integers(2, 1 << 48))
def test_S9_successor_has_the_node_as_predecessor_at_any_size(data: st.DataObject, n: int) -> None:
    index = data.draw(st.integers(0, n - 1))
    before, after = neighbours_of(index, n)
    assert 0 <= before < n
    assert 0 <= after < n
    assert neighbours_of(after, n)[0] == index == neighbours_of(before, n)[1]


# -- states ------------------------------------------------------------------------------------


def test_single_node_has_no_references() -> None:
    assert legitimate_state(0, ["a"]) == SubscriberState(label=Label.nth(0))


def test_each_of_two_nodes_has_the_other_on_one_side_and_as_wrap_edge() -> None:
    states = dict(legitimate_states(["a", "b"]))
    a, b = peer("0", "a"), peer("1", "b")
    assert states["a"] == SubscriberState(label=a.label, right=b, ring=b)
    assert states["b"] == SubscriberState(label=b.label, left=a, ring=a)


@pytest.mark.parametrize("n", range(3, 17))
def test_only_the_two_ends_of_the_line_have_a_wrap_edge(n: int) -> None:
    states = dict(legitimate_states(LETTERS[:n]))
    line = sorted(states, key=lambda node: states[node].label or Label(0))
    assert [node for node in line if states[node].ring is not None] == [line[0], line[-1]]
    assert [node for node in line if states[node].left is None] == [line[0]]
    assert [node for node in line if states[node].right is None] == [line[-1]]


def test_shortcuts_refer_to_the_owners_of_their_labels() -> None:
    states = dict(legitimate_states(LETTERS[:8]))
    named = Counter(
        (own.bits, node) for state in states.values() for own, node in state.shortcuts.items()
    )
    assert all(LETTERS[Label.parse(own).index] == node for own, node in named)
    assert sum(named.values()) == 10


# -- chains around a label (section 3.2.2) -----------------------------------------------------


SIZES = [*range(2, 18), 31, 32, 33, 64, 100, 130]


def bits(found: tuple[Label, ...]) -> list[str]:
    return [each.bits for each in found]


def ring_of(n: int) -> dict[Label, Chains]:
    """Return the chains of every label of SR(n)."""
    line = sorted(Label.nth(index) for index in range(n))
    around = zip(line[-1:] + line[:-1], line, line[1:] + line[:1], strict=True)
    return {own: chains_around(own, pred, succ) for pred, own, succ in around}


def ends(chains: Chains) -> tuple[Label | None, Label | None]:
    return chains.left_end, chains.right_end


def level_neighbours(own: Label, n: int) -> tuple[Label, Label]:
    """Return the neighbours of a label in the ring of its level (section 2.1)."""
    line = sorted(x for x in map(Label.nth, range(n)) if x.length <= own.length)
    place = line.index(own)
    return line[place - 1], line[(place + 1) % len(line)]


# -- chains ------------------------------------------------------------------------------------


def test_C2_neighbour_with_a_label_no_longer_than_the_own_one_is_the_whole_chain() -> None:
    assert bits(chain(label("011"), label("01"), LEFT)) == ["01"]
    assert bits(chain(label("1"), label("0"), RIGHT)) == ["0"]


def test_C2_chain_crosses_the_wrap_from_1_to_0() -> None:
    assert bits(chain(label("0"), label("1111"), LEFT)) == ["1111", "111", "11", "1"]
    assert bits(chain(label("11"), label("1101"), RIGHT)) == ["1101", "111", "0"]
    assert bits(chain(label("01"), label("0001"), LEFT)) == ["0001", "111", "1"]


@unhurried
@given(labels(), labels(), st.sampled_from(SIDES))
def test_C2_chains_are_bounded_and_lead_outwards(own: Label, neighbour: Label, side: Side) -> None:
    found = chain(own, neighbour, side)
    assert found[0] == neighbour
    assert len(found) <= LABEL_BITS + 1
    distances = [side.distance(own, each) for each in found]
    assert all(far == 2 * near for near, far in pairwise(distances[:-1]))
    assert all(each.length > own.length for each in found[:-1])


@pytest.mark.parametrize("n", SIZES)
def test_C2_ring_neighbours_and_slots_are_the_edges_of_the_papers_definition(n: int) -> None:
    ring, shortcuts = ring_edges(n), shortcut_edges(n)
    for own, chains in ring_of(n).items():
        assert set(chains.slots) <= ends_of(shortcuts, own)
        assert {*chains.slots, chains.pred, chains.succ} == ends_of(ring | shortcuts, own)


def ends_of(found: frozenset[Edge], own: Label) -> set[Label]:
    """Return the other ends of the edges at a label."""
    return {b if own == a else a for a, b in found if own in (a, b)}


# -- pairs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_C3_chain_ends_are_the_neighbours_in_the_ring_of_the_own_level(n: int) -> None:
    for own, chains in ring_of(n).items():
        assert ends(chains) == level_neighbours(own, n), own


def test_C4_no_pair_exists_while_one_side_is_unknown() -> None:
    own, other = label("01"), label("1")
    assert ends(chains_around(own, other, None))[1] is None
    assert ends(chains_around(own, None, other))[0] is None
    assert ends(chains_around(own, None, None)) == (None, None)


def test_chain_that_returns_to_the_node_opens_no_slot() -> None:
    own = label("0")
    assert own not in chains_around(own, own, own).slots


@unhurried
@given(labels(), labels(), labels())
def test_own_label_is_neither_a_slot_nor_a_tree_edge(own: Label, pred: Label, succ: Label) -> None:
    chains = chains_around(own, pred, succ)
    assert own not in chains.slots
    assert own not in chains.children
    assert chains.parent != own
    assert len(chains.slots) == len(set(chains.slots))


# -- the tree ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_R14_tree_spans_the_ring_and_both_ends_of_an_edge_know_it(n: int) -> None:
    ring = ring_of(n)
    root = label("0")
    assert [own for own, chains in ring.items() if chains.parent is None] == [root]
    for own, chains in ring.items():
        assert all(ring[child].parent == own for child in chains.children)
        assert chains.parent is None or own in ring[chains.parent].children
    assert sum(len(chains.children) for chains in ring.values()) == n - 1
    assert max(depth(own, ring) for own in ring) <= levels(n) + 1


def depth(own: Label, ring: dict[Label, Chains]) -> int:
    """Return the number of hops from a label to the root."""
    hops = 0
    while (parent := ring[own].parent) is not None:
        own, hops = parent, hops + 1
        assert hops <= len(ring), "a tree has no circles"
    return hops


@pytest.mark.parametrize("n", SIZES)
def test_R14_every_tree_edge_is_a_ring_edge_or_a_shortcut(n: int) -> None:
    known = ring_edges(n) | shortcut_edges(n)
    for own, chains in ring_of(n).items():
        for child in chains.children:
            assert (min(own, child), max(own, child)) in known
