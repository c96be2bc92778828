"""SR(n): the edges a legitimate ring has (section 2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from skipring.core.chains import chains_around
from skipring.core.labels import Label
from skipring.core.peers import NodeId, Peer
from skipring.core.state import SubscriberState

Edge: TypeAlias = tuple[Label, Label]  # undirected, the smaller label first


def levels(n: int) -> int:
    """Number of levels of SR(n), ceil(log2 n): the length of its longest label."""
    return max(1, (n - 1).bit_length())


def ring_edges(n: int) -> frozenset[Edge]:
    """E_R: consecutive labels in the order of r, and the edge that closes the ring."""
    return _sorted_ring([Label.nth(index) for index in range(n)])


def shortcut_edges(n: int) -> frozenset[Edge]:
    """E_S: the sorted rings over all labels of at most i bits, for each i below the top level."""
    edges: frozenset[Edge] = frozenset()
    for level in range(1, levels(n)):
        edges |= _sorted_ring([Label.nth(index) for index in range(min(n, 1 << level))])
    return edges


def level(edge: Edge) -> int:
    """The level of an edge: the length of its longer label."""
    return max(edge[0].length, edge[1].length)


def _sorted_ring(labels: list[Label]) -> frozenset[Edge]:
    labels.sort()
    return frozenset(
        (min(a, b), max(a, b))
        for a, b in zip(labels, labels[1:] + labels[:1], strict=True)
        if a != b
    )


def neighbours_of(index: int, n: int) -> tuple[int, int]:
    """Indices of the labels before and after l(index) in a ring of n >= 2, in O(1) (S9).

    On the grid of 2^K places, K = ceil(log2 n), every even place is taken and the odd ones are
    taken from the left up to the count of labels of full length.
    """
    width = levels(n)
    size, half = 1 << width, 1 << (width - 1)
    full_length = n - half
    place = Label.nth(index).position >> (64 - width)
    if place & 1:
        return _index_at(place - 1, width), _index_at((place + 1) % size, width)
    slot = place >> 1
    after = place + 1 if slot < full_length else place + 2
    before = place - 1 if (slot - 1) % half < full_length else place - 2
    return _index_at(before % size, width), _index_at(after % size, width)


def _index_at(place: int, width: int) -> int:
    """The index of the label at a place of the grid of 2^width."""
    if place == 0:
        return 0
    shift = (place & -place).bit_length() - 1
    return (1 << (width - shift - 1)) + (place >> (shift + 1))


def legitimate_state(index: int, nodes: Sequence[NodeId]) -> SubscriberState:
    """The state of ``nodes[index]`` once the nodes form SR(n) in this order (section 2.1)."""
    own = Peer(Label.nth(index), nodes[index])
    if len(nodes) == 1:
        return SubscriberState(label=own.label)
    before, after = neighbours_of(index, len(nodes))
    pred, succ = Peer(Label.nth(before), nodes[before]), Peer(Label.nth(after), nodes[after])
    left, right, ring = line_and_wrap(own, pred, succ)
    slots = chains_around(own.label, pred.label, succ.label).slots
    return SubscriberState(
        label=own.label,
        left=left,
        right=right,
        ring=ring,
        shortcuts={label: nodes[label.index] for label in slots},
    )


def line_and_wrap(
    own: Peer, pred: Peer, succ: Peer
) -> tuple[Peer | None, Peer | None, Peer | None]:
    """Which of left, right and ring hold the neighbours on the circle: ring at the ends (B13)."""
    return (
        pred if pred < own else None,
        succ if succ > own else None,
        pred if pred > own else succ if succ < own else None,
    )


def legitimate_states(nodes: Sequence[NodeId]) -> Iterator[tuple[NodeId, SubscriberState]]:
    """Every node's state once the nodes form SR(n) in this order."""
    for index, node in enumerate(nodes):
        yield node, legitimate_state(index, nodes)
