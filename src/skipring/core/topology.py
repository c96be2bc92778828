"""Topology of SR(n): ring edges, shortcut chains, tree edges (section 2.1)."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.labels import HALF_CIRCLE, LABEL_BITS, Label, position_of
from skipring.core.peers import LEFT, RIGHT, Peer, Side

ROOT: Final = Label(0)


class Chains(Struct, frozen=True, gc=False):
    """Local topology around one label; it follows from the first three fields."""

    own: Label
    pred: Label | None
    succ: Label | None
    slots: tuple[Label, ...]
    left_end: Label | None
    right_end: Label | None
    children: tuple[Label, ...]
    parent: Label | None


def chain(own: Label, neighbour: Label, side: Side) -> tuple[Label, ...]:
    """Return the labels from a ring neighbour outwards, to the first no longer than ``own``."""
    labels = [neighbour]
    far, distance, own_length = neighbour, side.distance(own, neighbour), own.length
    while far.length > own_length and 0 < distance < HALF_CIRCLE:  # it doubles: at most 64 times
        distance *= 2
        far = Label.at(own.position + (distance if side is RIGHT else -distance))
        labels.append(far)
    return tuple(labels)


def tree_rank(label: Label) -> int:
    """Return the length of a label; 0 for the root of the tree."""
    return label.length if label.position else 0


def chains_around(own: Label, pred: Label | None, succ: Label | None) -> Chains:
    """Derive the chains of a subscriber with these labels on its two sides."""
    left = chain(own, pred, LEFT) if pred is not None else ()
    right = chain(own, succ, RIGHT) if succ is not None else ()
    slots = dict.fromkeys(left[1:] + right[1:])
    slots.pop(own, None)
    return Chains(
        own=own,
        pred=pred,
        succ=succ,
        slots=tuple(slots),
        left_end=left[-1] if left else None,
        right_end=right[-1] if right else None,
        children=_children(own, left, right),
        parent=_parent(own, left, right),
    )


def _children(own: Label, left: tuple[Label, ...], right: tuple[Label, ...]) -> tuple[Label, ...]:
    """Return the children: chain labels whose other level neighbour is longer than ``own``."""
    rank = tree_rank(own)
    found: dict[Label, None] = {}
    for labels in (left, right):
        for near, far in pairwise(labels):
            if tree_rank(far) > rank:
                found[near] = None
        if own == ROOT and labels:
            found[labels[-1]] = None  # '1' is a child of '0', though both have length 1
    found.pop(own, None)
    return tuple(found)


def _parent(own: Label, left: tuple[Label, ...], right: tuple[Label, ...]) -> Label | None:
    """Return the neighbour with the shorter label in the ring of ``own``'s level, or None."""
    ends = [labels[-1] for labels in (left, right) if labels and labels[-1] != own]
    if own == ROOT or not ends:
        return None
    return min(ends, key=lambda label: (tree_rank(label), label))


Edge: TypeAlias = tuple[Label, Label]  # undirected, the smaller label first


def levels(n: int) -> int:
    """Return the number of levels of SR(n), ceil(log2 n): the length of its longest label."""
    return max(1, (n - 1).bit_length())


def ring_edges(n: int) -> frozenset[Edge]:
    """Return E_R: consecutive labels in the order of r, and the edge that closes the ring."""
    return _sorted_ring([Label.nth(index) for index in range(n)])


def shortcut_edges(n: int) -> frozenset[Edge]:
    """Return E_S: the sorted rings over labels of at most i bits, for i below the top level."""
    edges: frozenset[Edge] = frozenset()
    for level in range(1, levels(n)):
        edges |= _sorted_ring([Label.nth(index) for index in range(min(n, 1 << level))])
    return edges


def level(edge: Edge) -> int:
    """Return the level of an edge: the length of its longer label."""
    return max(edge[0].length, edge[1].length)


def _sorted_ring(labels: list[Label]) -> frozenset[Edge]:
    labels.sort()
    return frozenset(
        (min(a, b), max(a, b))
        for a, b in zip(labels, labels[1:] + labels[:1], strict=True)
        if a != b
    )


def neighbours_of(index: int, n: int) -> tuple[int, int]:
    """Return the indices of the labels before and after l(index), for n >= 2, in O(1) (S9).

    The grid has 2^K places, K = ceil(log2 n). Every even place is taken. The labels of full length
    take the odd places from the left.
    """
    width = levels(n)
    size, half = 1 << width, 1 << (width - 1)
    full_length = n - half
    place = position_of(index) >> (LABEL_BITS - width)
    if place & 1:
        return _index_at(place - 1, width), _index_at((place + 1) % size, width)
    slot = place >> 1
    after = place + 1 if slot < full_length else place + 2
    before = place - 1 if (slot - 1) % half < full_length else place - 2
    return _index_at(before % size, width), _index_at(after % size, width)


def _index_at(place: int, width: int) -> int:
    """Return the index of the label at a place of the grid of 2^width."""
    if place == 0:
        return 0
    shift = (place & -place).bit_length() - 1
    return (1 << (width - shift - 1)) + (place >> (shift + 1))


def line_and_wrap(
    own: Peer, pred: Peer, succ: Peer
) -> tuple[Peer | None, Peer | None, Peer | None]:
    """Return left, right and ring for two circle neighbours; ring is set at the ends (B13)."""
    return (
        pred if pred < own else None,
        succ if succ > own else None,
        pred if pred > own else succ if succ < own else None,
    )
