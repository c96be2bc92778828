"""Topology of SR(n): its edges and the state of every node (section 2.1)."""

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.labels import Label
from skipring.core.state import SubscriberState, legitimate_state, legitimate_states
from skipring.core.topology import (
    chains_around,
    level,
    levels,
    neighbours_of,
    ring_edges,
    shortcut_edges,
)
from tests.support.machines import peer, unhurried

LETTERS = "abcdefghijklmnop"


@pytest.mark.parametrize(
    ("n", "expected"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)]
)
def test_number_of_levels_is_the_length_of_the_longest_label(n: int, expected: int) -> None:
    assert levels(n) == expected == max(Label.nth(index).length for index in range(n))


def test_ring_connects_all_labels_in_the_order_of_r() -> None:
    text = {(a.bits, b.bits) for a, b in ring_edges(5)}
    assert text == {("0", "001"), ("001", "01"), ("01", "1"), ("1", "11"), ("0", "11")}


def test_shortcuts_are_the_rings_over_shorter_labels() -> None:
    text = {(a.bits, b.bits) for a, b in shortcut_edges(8)}
    assert text == {("0", "1"), ("0", "01"), ("01", "1"), ("1", "11"), ("0", "11")}


def test_level_of_an_edge_is_the_length_of_its_longer_label() -> None:
    assert level((Label.nth(0), Label.nth(4))) == 3
    assert level((Label.nth(0), Label.nth(1))) == 1


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


# -- facts -------------------------------------------------------------------------------------


def test_ring_of_n_has_4n_minus_6_references() -> None:
    for n in range(2, 131):
        total = 0
        for index in range(n):
            before, after = (Label.nth(other) for other in neighbours_of(index, n))
            chains = chains_around(Label.nth(index), before, after)
            total += len({before, after, *chains.slots})
        assert total == 4 * n - 6, n


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16, 17, 31, 64, 100])
def test_no_two_nodes_are_farther_apart_than_log_n_hops(n: int) -> None:
    near: dict[Label, list[Label]] = {Label.nth(index): [] for index in range(n)}
    for a, b in ring_edges(n) | shortcut_edges(n):
        near[a].append(b)
        near[b].append(a)
    for start in near:
        hops, waiting = {start: 0}, deque([start])
        while waiting:
            here = waiting.popleft()
            for there in near[here]:
                if there not in hops:
                    hops[there] = hops[here] + 1
                    waiting.append(there)
        assert len(hops) == n
        assert max(hops.values()) <= levels(n)


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
