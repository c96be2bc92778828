"""Comparison of the skip ring with Chord and a skip graph."""

from __future__ import annotations

import pytest

from skipring.core.topology import levels, ring_edges, shortcut_edges
from skipring.lab.experiments.overlays import OVERLAYS, overlay_measures

SIZES = [2, 3, 5, 16, 37, 64, 256]


@pytest.mark.parametrize("n", SIZES)
def test_degree_of_a_skip_ring_equals_its_definition(n: int) -> None:
    measured = overlay_measures(n, seed=0)
    edges = ring_edges(n) | shortcut_edges(n)
    assert measured["skip_ring.degree_mean"] == pytest.approx(2 * len(edges) / n)
    ends = [label for edge in edges for label in edge]
    assert measured["skip_ring.degree_max"] == max(ends.count(label) for label in set(ends))


@pytest.mark.parametrize("n", SIZES)
def test_flood_and_routed_requests_stay_within_their_hop_bounds(n: int) -> None:
    measured = overlay_measures(n, seed=1)
    assert measured["skip_ring.flood_hops_max"] <= levels(n)
    for name in OVERLAYS:
        assert 1 <= measured[f"{name}.path_mean"] <= measured[f"{name}.path_max"] < max(n, 2)


def test_chord_nodes_have_the_fingers_of_the_definition() -> None:
    # Among three nodes each knows both others; the farther one is a relay only if some arc to the
    # nearer one is passed over by every power of two.
    measured = [overlay_measures(3, seed) for seed in range(20)]
    assert {one["chord.degree_mean"] for one in measured} == {2.0}
    assert {one["chord.path_max"] for one in measured} <= {1.0, 2.0}


@pytest.mark.parametrize("n", [64, 256])
def test_degree_grows_with_log_n_in_chord_and_skip_graph_only(n: int) -> None:
    measured = overlay_measures(n, seed=0)
    assert measured["skip_ring.degree_mean"] < 4
    assert levels(n) < measured["chord.degree_mean"] <= 2 * levels(n) + 1
    assert measured["skip_ring.degree_mean"] < measured["skip_graph.degree_mean"] <= 2 * levels(n)


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_one_node_of_a_skip_ring_relays_a_constant_share_of_all_requests(n: int) -> None:
    measured = overlay_measures(n, seed=0)
    assert 0.25 < measured["skip_ring.congestion"] / n < 0.4
    assert measured["chord.congestion"] < measured["skip_ring.congestion"]
    assert measured["skip_graph.congestion"] < measured["skip_ring.congestion"]


@pytest.mark.parametrize("n", [4, 16, 64])
def test_full_skip_ring_is_evenly_spaced_and_chord_is_not(n: int) -> None:
    measured = overlay_measures(n, seed=0)
    assert measured["skip_ring.gap_max"] == 1.0
    assert measured["chord.gap_max"] > 1.0
