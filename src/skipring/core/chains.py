"""What a subscriber can work out from its own label and those beside it (section 3.2.2).

From each ring neighbour a chain of labels leads outwards, the distance doubling at every step,
until a label is no longer than one's own. The chains say which shortcuts to hold, which two
nodes to introduce to each other, and where the edges of the broadcast tree run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from msgspec import Struct

from skipring.core.labels import HALF_CIRCLE, Label
from skipring.core.peers import LEFT, RIGHT, Side

ROOT: Final = Label(0)


class Chains(Struct, frozen=True, gc=False):
    """The local topology around one label; the first three fields are what it follows from."""

    own: Label
    pred: Label | None
    succ: Label | None
    slots: tuple[Label, ...]
    left_end: Label | None
    right_end: Label | None
    children: tuple[Label, ...]
    parent: Label | None


def chain(own: Label, neighbour: Label, side: Side) -> tuple[Label, ...]:
    """Labels from a ring neighbour outwards, itself first, the last no longer than ours."""
    labels = [neighbour]
    far, distance, own_length = neighbour, side.distance(own, neighbour), own.length
    while far.length > own_length and 0 < distance < HALF_CIRCLE:  # doubles: at most 64 times
        distance *= 2
        far = Label.at(own.position + (distance if side is RIGHT else -distance))
        labels.append(far)
    return tuple(labels)


def tree_rank(label: Label) -> int:
    """Length of a label where the root of the tree counts as shorter than all others."""
    return label.length if label.position else 0


def chains_around(own: Label, pred: Label | None, succ: Label | None) -> Chains:
    """Work out the chains of a subscriber with these labels on its two sides."""
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
    """Chain elements whose other level neighbour is longer than we are: we are their parent."""
    rank = tree_rank(own)
    found: dict[Label, None] = {}
    for labels in (left, right):
        for near, far in pairwise(labels):
            if tree_rank(far) > rank:
                found[near] = None
        if own == ROOT and labels:
            found[labels[-1]] = None  # '1' hangs on '0', though both have length 1
    found.pop(own, None)
    return tuple(found)


def _parent(own: Label, left: tuple[Label, ...], right: tuple[Label, ...]) -> Label | None:
    """The shorter-labelled neighbour in the ring of our own level."""
    ends = [labels[-1] for labels in (left, right) if labels and labels[-1] != own]
    if own == ROOT or not ends:
        return None
    return min(ends, key=lambda label: (tree_rank(label), label))
