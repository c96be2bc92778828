"""SR(n): its edges, and the state of every node in it (section 2.1)."""

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
def test_there_are_as_many_levels_as_the_longest_label_has_bits(n: int, expected: int) -> None:
    assert levels(n) == expected == max(Label.nth(index).length for index in range(n))


def test_the_ring_runs_through_all_labels_in_the_order_of_r() -> None:
    text = {(a.bits, b.bits) for a, b in ring_edges(5)}
    assert text == {("0", "001"), ("001", "01"), ("01", "1"), ("1", "11"), ("0", "11")}


def test_the_shortcuts_are_the_rings_over_shorter_labels() -> None:
    text = {(a.bits, b.bits) for a, b in shortcut_edges(8)}
    assert text == {("0", "1"), ("0", "01"), ("01", "1"), ("1", "11"), ("0", "11")}


def test_the_level_of_an_edge_is_the_length_of_its_longer_label() -> None:
    assert level((Label.nth(0), Label.nth(4))) == 3
    assert level((Label.nth(0), Label.nth(1))) == 1


# -- neighbours --------------------------------------------------------------------------------


def test_S9_neighbours_by_bit_arithmetic_are_those_of_the_sorted_labels() -> None:
    for n in range(2, 201):
        order = sorted(range(n), key=Label.nth)
        for place, index in enumerate(order):
            expected = order[place - 1], order[(place + 1) % n]
            assert neighbours_of(index, n) == expected, (index, n)


@unhurried
@given(st.data(), st.integers(2, 1 << 48))
def test_S9_at_any_size_the_node_after_us_has_us_before_it(data: st.DataObject, n: int) -> None:
    index = data.draw(st.integers(0, n - 1))
    before, after = neighbours_of(index, n)
    assert 0 <= before < n
    assert 0 <= after < n
    assert neighbours_of(after, n)[0] == index == neighbours_of(before, n)[1]


# -- facts -------------------------------------------------------------------------------------


def test_there_are_4n_minus_6_references_in_a_ring_of_n() -> None:
    for n in range(2, 131):
        total = 0
        for index in range(n):
            before, after = (Label.nth(other) for other in neighbours_of(index, n))
            chains = chains_around(Label.nth(index), before, after)
            total += len({before, after, *chains.slots})
        assert total == 4 * n - 6, n


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16, 17, 31, 64, 100])
def test_nobody_is_farther_than_log_n_hops(n: int) -> None:
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


def test_one_node_alone_knows_nobody() -> None:
    assert legitimate_state(0, ["a"]) == SubscriberState(label=Label.nth(0))


def test_of_two_nodes_each_has_the_other_on_one_side_and_as_wrap_edge() -> None:
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


def test_shortcuts_lead_to_whom_the_labels_belong() -> None:
    states = dict(legitimate_states(LETTERS[:8]))
    named = Counter(
        (own.bits, node) for state in states.values() for own, node in state.shortcuts.items()
    )
    assert all(LETTERS[Label.parse(own).index] == node for own, node in named)
    assert sum(named.values()) == 10
