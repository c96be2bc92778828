"""Comparison of the skip ring with Chord and a skip graph: degree, balance, paths and congestion.

Section 1.3 compares the skip ring with both: "our network has a better congestion than these
networks". The paper does not define the word, so several possible measures are taken:

``degree_mean``, ``degree_max``
    Different neighbours of a node, in either direction. In a flood (section 4.3) a node sends over
    each of its edges once and receives over each of them once, so ``degree_mean`` is also the cost
    of a delivery by flooding, and ``degree_max`` the messages of the busiest node.
``gap_max``
    The longest arc between two nodes that are next to each other on the circle of positions, in
    units of 1/n: how balanced the distribution of the nodes is. 1 is even. A skip graph has no
    positions, so it has no gap.
``congestion``
    Random pairs of nodes exchange one request each, routed greedily. Congestion is n times the
    largest share of the requests that one node relays: the number that the busiest node forwards
    when every node sends one request. Sender and receiver of a request do not count as relays.
``path_mean``, ``path_max``
    Hops of these requests. Greedy paths are not the shortest.
``flood_hops_max``
    Hops until a flood from the worst of a few random publishers has reached all nodes; at most the
    diameter.

All three overlays get the same requests, as pairs of places in the order of the nodes round the
circle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from random import Random
from typing import Final, TypeAlias

from skipring.core.labels import CIRCLE, LABEL_BITS, Label
from skipring.core.topology import ring_edges, shortcut_edges

Adjacency: TypeAlias = Sequence[Sequence[int]]  # neighbours of each place, in their order
Hop: TypeAlias = Callable[[int, int], int]  # the next place on the way from one to another

# Guess: the busiest relay gets a few hundred requests, which gives an accuracy of 10 %.
REQUESTS_PER_NODE: Final = 4
PUBLISHERS: Final = 8  # Guess: enough to come within a hop or two of the diameter.
OVERLAYS: Final[Mapping[str, str]] = {
    "skip_ring": "skip ring",
    "chord": "Chord",
    "skip_graph": "skip graph",
}


def overlay_measures(n: int, seed: int) -> dict[str, float]:
    """Return degree, gap, congestion and path lengths of three overlays of n >= 2 nodes."""
    rng = Random(f"overlays/{n}/{seed}")
    publishers = rng.sample(range(n), min(n, PUBLISHERS))
    requests = [_pair(n, rng) for _ in range(REQUESTS_PER_NODE * n)]
    ids = sorted(4 * place for place in rng.sample(range(CIRCLE // 4), n))  # a range needs a len()
    vectors = [rng.getrandbits(LABEL_BITS) for _ in range(n)]
    labels = sorted(Label.nth(index).position for index in range(n))
    overlays = {
        "skip_ring": _skip_ring(n),
        "chord": _chord(ids),
        "skip_graph": _skip_graph(vectors),
    }
    gaps = {"skip_ring.gap_max": _gap_max(labels), "chord.gap_max": _gap_max(ids)}
    return gaps | {
        f"{name}.{key}": value
        for name, (edges, hop) in overlays.items()
        for key, value in (
            _degrees(edges) | _routed(edges, hop, requests) | _flooded(edges, publishers)
        ).items()
    }


def _pair(n: int, rng: Random) -> tuple[int, int]:
    """Return two different places out of n."""
    source, other = rng.randrange(n), rng.randrange(n - 1)
    return source, other + (other >= source)


def _gap_max(positions: Sequence[int]) -> float:
    after = [*positions[1:], positions[0] + CIRCLE]
    return max(b - a for a, b in zip(positions, after, strict=True)) * len(positions) / CIRCLE


def _degrees(edges: Adjacency) -> dict[str, float]:
    degrees = [len(neighbours) for neighbours in edges]
    return {"degree_mean": sum(degrees) / len(edges), "degree_max": float(max(degrees))}


def _routed(edges: Adjacency, hop: Hop, requests: Iterable[tuple[int, int]]) -> dict[str, float]:
    """Return congestion and path lengths of requests that are routed by ``hop``."""
    n = len(edges)
    relayed, lengths = [0] * n, []
    for source, target in requests:
        relays = _relays(source, target, hop, longest=n)
        lengths.append(len(relays) + 1)
        for place in relays:
            relayed[place] += 1
    return {
        "congestion": n * max(relayed) / len(lengths),
        "path_mean": sum(lengths) / len(lengths),
        "path_max": float(max(lengths)),
    }


def _flooded(edges: Adjacency, publishers: Iterable[int]) -> dict[str, float]:
    return {"flood_hops_max": float(max(_flood_hops(edges, place) for place in publishers))}


def _flood_hops(edges: Adjacency, publisher: int) -> int:
    """Return the hops from the publisher to the node that is farthest from it."""
    reached, hops, newest = {publisher}, 0, {publisher}
    while True:
        newest = {beside for place in newest for beside in edges[place]} - reached
        if not newest:
            return hops
        reached |= newest
        hops += 1


def _relays(source: int, target: int, hop: Hop, longest: int) -> list[int]:
    """Return the places between source and target; every hop is nearer, so none occurs twice."""
    relays: list[int] = []
    here = hop(source, target)
    while here != target:
        relays.append(here)
        assert len(relays) < longest, "greedy routing goes in a circle"
        here = hop(here, target)
    return relays


# --- the three overlays ----------------------------------------------------------------


@cache
def _skip_ring(n: int) -> tuple[Adjacency, Hop]:
    """Return SR(n), routed to the neighbour that is nearest to the target on the circle."""
    positions = sorted(Label.nth(index).position for index in range(n))
    places = {position: place for place, position in enumerate(positions)}
    pairs = [(places[a.position], places[b.position]) for a, b in ring_edges(n) | shortcut_edges(n)]
    edges = _adjacency(n, pairs)

    def hop(here: int, target: int) -> int:
        goal = positions[target]
        return min(edges[here], key=lambda place: _arc(positions[place], goal))

    return edges, hop


def _arc(a: int, b: int) -> int:
    """Return the shorter distance of two places on the circle."""
    way = (a - b) % CIRCLE
    return min(way, CIRCLE - way)


def _chord(ids: Sequence[int]) -> tuple[Adjacency, Hop]:
    """Return Chord: a finger to the first node at or after id + 2^k, routed clockwise."""
    n = len(ids)
    fingers = [
        sorted({(_first_after(ids, own + (1 << k)) - place) % n for k in range(LABEL_BITS)} - {0})
        for place, own in enumerate(ids)
    ]

    def hop(here: int, target: int) -> int:
        reach = bisect_right(fingers[here], (target - here) % n)
        return (here + fingers[here][reach - 1]) % n

    pairs = [(place, (place + step) % n) for place in range(n) for step in fingers[place]]
    return _adjacency(n, pairs), hop


def _first_after(ids: Sequence[int], position: int) -> int:
    return bisect_left(ids, position % CIRCLE) % len(ids)


def _skip_graph(vectors: Sequence[int]) -> tuple[Adjacency, Hop]:
    """Return a skip graph: nodes whose random vectors agree in i bits form a sorted list."""
    n = len(vectors)
    edges = _adjacency(n, _listed_pairs(vectors))

    def hop(here: int, target: int) -> int:
        """Return the farthest neighbour towards the target that does not pass it."""
        around = edges[here]
        return around[
            bisect_right(around, target) - 1 if target > here else bisect_left(around, target)
        ]

    return edges, hop


def _listed_pairs(vectors: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of neighbours in the lists of all levels."""
    lists = [list(range(len(vectors)))]
    for level in range(LABEL_BITS):
        for members in lists:
            yield from pairwise(members)
        halves = [
            [place for place in members if vectors[place] >> level & 1 == bit]
            for members in lists
            for bit in (0, 1)
        ]
        lists = [members for members in halves if len(members) > 1]


def _adjacency(n: int, pairs: Iterable[tuple[int, int]]) -> Adjacency:
    """Return the neighbours of each place; both ends know an edge."""
    edges: list[set[int]] = [set() for _ in range(n)]
    for a, b in pairs:
        edges[a].add(b)
        edges[b].add(a)
    return [sorted(neighbours) for neighbours in edges]
