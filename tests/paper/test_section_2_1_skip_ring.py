"""Section 2.1: labels, the skip ring SR(n), its degrees and its diameter."""

from collections import defaultdict
from fractions import Fraction
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipring.core.labels import CIRCLE, Label
from skipring.core.peers import NodeId
from skipring.core.state import SubscriberState, legitimate_state
from skipring.core.topology import Edge, level, levels, ring_edges, shortcut_edges
from skipring.world.adversaries.builders import node_names

EVERY_N = range(2, 131)


def r(label: Label) -> Fraction:
    """Return the paper's r from the bits: the sum of y_i / 2^i."""
    return sum((Fraction(int(bit), 2**i) for i, bit in enumerate(label.bits, 1)), Fraction(0))


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


# -- labels ----------------------------------------------------------------------------------


def test_labels_are_generated_in_the_order_of_the_paper() -> None:
    """The text: "Labels are generated in the order: 0, 1, 01, 11, ..."."""
    generated = [Label.nth(x).bits for x in range(9)]
    assert generated == ["0", "1", "01", "11", "001", "011", "101", "111", "0001"]


@settings(deadline=None)
@given(st.integers(0, CIRCLE - 1))
def test_l_moves_the_leading_bit_to_the_units_place(x: int) -> None:
    """The definition of l, in its "intuitive" words."""
    binary = format(x, "b")
    assert Label.nth(x).bits == binary[1:] + binary[0]


def test_l_is_invertible_on_the_first_labels() -> None:
    """The text: "Note that l is invertible"."""
    labels = [Label.nth(x) for x in range(20_000)]
    assert [label.index for label in labels] == list(range(20_000))
    assert len(set(labels)) == 20_000


@settings(deadline=None)
@given(st.integers(0, CIRCLE - 1))
def test_l_is_invertible_both_ways(value: int) -> None:
    assert Label.nth(value).index == value
    assert Label.nth(Label(value).index) == Label(value)


@settings(deadline=None)
@given(st.integers(0, CIRCLE - 1))
def test_label_has_the_length_of_its_bits_and_the_position_r(x: int) -> None:
    """|label| is its number of bits; r maps it into [0, 1)."""
    label = Label.nth(x)
    assert label.length == len(label.bits)
    assert r(label) == Fraction(label.position, CIRCLE)
    assert Label.parse(label.bits) == label


@settings(deadline=None)
@given(st.integers(0, CIRCLE - 1), st.integers(0, CIRCLE - 1))
def test_order_of_labels_is_the_order_of_r(x: int, y: int) -> None:
    """The text: "The function r induces an ordering of all nodes in a ring"."""
    assert (Label.nth(x) < Label.nth(y)) == (r(Label.nth(x)) < r(Label.nth(y)))


@pytest.mark.parametrize("d", range(12))
def test_new_values_are_spread_uniformly_between_old_ones(d: int) -> None:
    """For x in 2^d .. 2^(d+1)-1 the r(l(x)) halve the gaps between all earlier values, in order."""
    old = sorted(r(Label.nth(y)) for y in range(2**d))
    new = [r(Label.nth(x)) for x in range(2**d, 2 ** (d + 1))]
    assert new == [(low + high) / 2 for low, high in pairwise([*old, Fraction(1)])]


# -- the figure: SR(16) ----------------------------------------------------------------------

FIGURE = [
    *((0, "0", "0"), (1, "1", "1/2"), (2, "01", "1/4"), (3, "11", "3/4")),
    *((4, "001", "1/8"), (5, "011", "3/8"), (6, "101", "5/8"), (7, "111", "7/8")),
    *((8, "0001", "1/16"), (9, "0011", "3/16"), (10, "0101", "5/16"), (11, "0111", "7/16")),
    *((12, "1001", "9/16"), (13, "1011", "11/16"), (14, "1101", "13/16"), (15, "1111", "15/16")),
]


def edges_between(*values: str) -> set[frozenset[Fraction]]:
    """Return the edges of the ring through these values of r, in order."""
    places = [Fraction(value) for value in values]
    return {frozenset(pair) for pair in zip(places, places[1:] + places[:1], strict=True)}


def places_of(edges: frozenset[Edge]) -> set[frozenset[Fraction]]:
    return {frozenset((r(a), r(b))) for a, b in edges}


@pytest.mark.parametrize(("x", "bits", "value"), FIGURE)
def test_figure_gives_the_triples_of_sr_16(x: int, bits: str, value: str) -> None:
    """The triples (x, l(x), r(l(x))) of the figure."""
    assert Label.nth(x).bits == bits
    assert r(Label.nth(x)) == Fraction(value)


def test_black_edges_of_the_figure_are_the_ring_of_level_4() -> None:
    assert places_of(ring_edges(16)) == edges_between(*(f"{i}/16" for i in range(16)))
    assert {level(edge) for edge in ring_edges(16)} == {4}


@pytest.mark.parametrize(
    ("k", "values"),
    [
        (3, ["0", "1/8", "1/4", "3/8", "1/2", "5/8", "3/4", "7/8"]),  # green
        (2, ["0", "1/4", "1/2", "3/4"]),  # red
        (1, ["0", "1/2"]),  # blue: a ring of two is one edge
    ],
)
def test_coloured_edges_of_the_figure_are_the_shortcuts_of_each_level(
    k: int, values: list[str]
) -> None:
    shortcuts = frozenset(edge for edge in shortcut_edges(16) if level(edge) == k)
    assert places_of(shortcuts) == edges_between(*values)


def test_figure_has_no_other_shortcuts() -> None:
    assert len(shortcut_edges(16)) == 8 + 4 + 1
    assert not shortcut_edges(16) & ring_edges(16)


# -- the definition --------------------------------------------------------------------------


def ring_over(labels: list[Label]) -> set[Edge]:
    """Return the sorted ring over some labels, by the definition."""
    line = sorted(labels, key=r)
    pairs = zip(line, line[1:] + line[:1], strict=True)
    return {(min(a, b), max(a, b)) for a, b in pairs if a != b}


@cache
def states(n: int) -> tuple[tuple[Label, SubscriberState], ...]:
    """Return the states of all nodes of SR(n), computed from the labels beside them."""
    nodes = node_names(n)
    return tuple((Label.nth(i), legitimate_state(i, nodes)) for i in range(n))


def edges_of(own: Label, others: list[Label]) -> set[Edge]:
    return {(min(own, other), max(own, other)) for other in others}


def ring_labels(state: SubscriberState) -> list[Label]:
    return [peer.label for peer in (state.left, state.right, state.ring) if peer is not None]


def test_edges_equal_those_of_the_definition() -> None:
    """E_R: consecutive in the order of r. E_S: the rings over K_i, i < ceil(log n)."""
    for n in EVERY_N:
        labels = [Label.nth(x) for x in range(n)]
        top = max(label.length for label in labels)
        assert ring_edges(n) == ring_over(labels), n
        rings = [ring_over([y for y in labels if y.length <= i]) for i in range(1, top)]
        assert shortcut_edges(n) == set().union(*rings), n


def test_each_node_computes_its_edges_from_the_labels_beside_it() -> None:
    """The text: "The decision whether two nodes are connected only depends on [their] labels"."""
    for n in EVERY_N:
        ring = set().union(*(edges_of(own, ring_labels(state)) for own, state in states(n)))
        shortcuts = set().union(*(edges_of(own, list(state.shortcuts)) for own, state in states(n)))
        assert ring == ring_edges(n), n
        assert shortcuts <= shortcut_edges(n), n
        assert shortcut_edges(n) - shortcuts <= ring, n  # already held as ring edges


def test_every_edge_is_known_to_both_its_ends() -> None:
    """The rings of all levels are bidirected."""
    for n in EVERY_N:
        known = {
            (own, other)
            for own, state in states(n)
            for other in [*ring_labels(state), *state.shortcuts]
        }
        assert known == {(b, a) for a, b in known}, n


def test_shortcuts_stay_on_one_semicircle() -> None:
    """Section 3.2.2: both ends lie within [0, 1/2], or within [1/2, 1], where 1 is label 0."""
    for n in EVERY_N:
        half = Fraction(1, 2)
        for a, b in shortcut_edges(n):
            low, high = sorted((r(a), r(b)))
            assert high <= half or half <= low or low == 0, n


def test_node_has_two_neighbours_on_each_level_from_its_own_up() -> None:
    """Sections 2.1, 3.2.2; the exception: 0 and 1 are alone on level 1 and have one."""
    for n in (4, 16, 64):
        for own, _ in states(n):
            for k in range(own.length, levels(n) + 1):
                ring = ring_over([Label.nth(x) for x in range(2**k)])
                assert sum(own in edge for edge in ring) == (2 if k > 1 else 1)


# -- the lemma on degrees --------------------------------------------------------------------


@cache
def neighbours(n: int) -> dict[Label, set[Label]]:
    found: dict[Label, set[Label]] = defaultdict(set)
    for a, b in ring_edges(n) | shortcut_edges(n):
        found[a].add(b)
        found[b].add(a)
    return found


def test_average_degree_is_constant_and_exactly_4_minus_6_by_n() -> None:
    """The lemma: constant on average, at most 4. The proof's 4n - 4 counts one edge twice."""
    for n in range(2, 301):
        directed = sum(len(others) for others in neighbours(n).values())
        assert directed == 4 * n - 6
        assert Fraction(directed, n) == 4 - Fraction(6, n) < 4


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64, 128, 256])
def test_count_of_the_proof_exceeds_the_edges_by_one_on_level_1(n: int) -> None:
    """The proof gives each node 2(log n - k + 1) edges; 0 and 1 share one edge on level 1."""
    by_proof = {Label.nth(x): 2 * (levels(n) - Label.nth(x).length + 1) for x in range(n)}
    assert sum(by_proof.values()) == 4 * n - 4
    for own, others in neighbours(n).items():
        assert len(others) == by_proof[own] - (1 if own.length == 1 else 0)


def test_degree_is_logarithmic_in_the_worst_case() -> None:
    """The lemma's 2 (log n - k + 1) with k = 1."""
    for n in range(2, 301):
        assert max(len(others) for others in neighbours(n).values()) <= 2 * levels(n)


@pytest.mark.parametrize("n", [4, 8, 16, 32, 64, 128, 256])
def test_older_nodes_have_more_shortcuts(n: int) -> None:
    """The sentence after the definition; it is exact if all labels of a length are taken."""
    degrees = [len(neighbours(n)[Label.nth(x)]) for x in range(n)]
    assert degrees == sorted(degrees, reverse=True)


# -- diameter --------------------------------------------------------------------------------


def eccentricity(start: Label, graph: dict[Label, set[Label]]) -> int:
    seen, frontier, steps = {start}, {start}, 0
    while frontier := set().union(*(graph[v] for v in frontier)) - seen:
        seen |= frontier
        steps += 1
    assert len(seen) == len(graph)
    return steps


def diameter(n: int) -> int:
    return max(eccentricity(start, neighbours(n)) for start in neighbours(n))


def test_diameter_is_at_most_log_n() -> None:
    """Sections 1.3, 4.3: "a skip ring of n nodes has diameter log n"."""
    assert [n for n in range(2, 129) if diameter(n) > levels(n)] == []


@pytest.mark.parametrize("n", [257, 500, 512])
def test_diameter_of_larger_rings_is_at_most_log_n(n: int) -> None:
    assert diameter(n) <= levels(n)
    assert diameter(n) == levels(n) or not is_power_of_two(n)


# -- arrivals and departures -----------------------------------------------------------------


def changed(before: dict[NodeId, SubscriberState], after: dict[NodeId, SubscriberState]) -> set:
    return {node for node in before.keys() & after.keys() if before[node] != after[node]}


def ring_of(nodes: list[NodeId]) -> dict[NodeId, SubscriberState]:
    return {node: legitimate_state(i, nodes) for i, node in enumerate(nodes)}


def named_by(state: SubscriberState) -> set[NodeId]:
    edges = [peer.node for peer in (state.left, state.right, state.ring) if peer is not None]
    return {*edges, *(node for node in state.shortcuts.values() if node is not None)}


def test_arrival_affects_only_the_neighbours_of_the_newcomer() -> None:
    """The text: "A[n] arrival/departure of a node only affects its neighbors"."""
    for n in range(1, 66):
        nodes = node_names(n + 1)
        larger = ring_of(nodes)
        assert changed(ring_of(nodes[:-1]), larger) == named_by(larger[nodes[-1]]), n


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16, 17, 33])
def test_departure_affects_only_neighbours_of_the_leaver_and_of_its_replacement(n: int) -> None:
    """The last node replaces the leaver (section 4.1), so both places have neighbours."""
    nodes = node_names(n)
    before = ring_of(nodes)
    for leaver in range(n):
        left_over = [*nodes[:leaver], nodes[-1], *nodes[leaver + 1 : -1]][: n - 1]
        affected = changed(before, ring_of(left_over))
        mover = nodes[-1]
        allowed = named_by(before[nodes[leaver]]) | named_by(before[mover]) | {mover}
        assert affected <= allowed
