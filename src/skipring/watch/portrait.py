"""A portrait of a topic: who stands where in the ring, and how well."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import Enum

from msgspec import Struct

from skipring.core.labels import Label
from skipring.core.peers import NodeId
from skipring.core.roster import Roster
from skipring.core.topology import Edge, legitimate_state
from skipring.world.snapshot import SubscriberView, View


class Mark(Enum):
    """How well a node stands; the worst last."""

    RIGHT = "right"
    EDGES = "label right, edges wrong"
    LABEL = "wrong label"


class Dot(Struct, frozen=True):
    """A node where it believes to stand; without a label it stands nowhere."""

    node: NodeId
    label: Label | None
    mark: Mark


class Portrait(Struct, frozen=True, kw_only=True):
    """What a drawing of a topic needs to know of it."""

    members: int
    recorded: int  # members whom the supervisor knows
    dots: tuple[Dot, ...]
    dead: tuple[Label, ...]  # places that the database gives to a crashed node
    sound: frozenset[Edge]  # edges that both ends know rightly

    @property
    def places(self) -> list[Label]:
        """The labels that this many members should have."""
        return [Label.nth(index) for index in range(self.members)]

    def count(self, mark: Mark) -> int:
        """How many nodes are marked so."""
        return sum(dot.mark is mark for dot in self.dots)

    @property
    def homeless(self) -> list[Dot]:
        """Nodes without a label."""
        return [dot for dot in self.dots if dot.label is None]


def portray(view: View) -> Portrait:
    """Look at a topic; nodes are held against the database as its repair will leave it."""
    roster = _repaired(view.roster)
    index = {node: i for i, node in enumerate(roster.nodes)}
    members = [node for node, seen in view.subscribers.items() if seen.member]
    return Portrait(
        members=len(members),
        recorded=sum(node in index for node in members),
        dots=tuple(
            Dot(node, seen.label, _judge(seen, index.get(node), roster.nodes, view.crashed))
            for node, seen in view.subscribers.items()
            if seen.member or seen.label is not None
        ),
        dead=tuple(Label.nth(i) for node, i in index.items() if node in view.crashed),
        sound=frozenset(_sound_edges(view, roster.nodes)),
    )


def _repaired(roster: Roster) -> Roster:
    copy = Roster()
    copy.load(roster.database(), roster.cursor)
    copy.repair()
    return copy


def _judge(
    seen: SubscriberView, index: int | None, nodes: Sequence[NodeId], crashed: Collection[NodeId]
) -> Mark:
    if index is None or not seen.member:
        return Mark.LABEL
    should = legitimate_state(index, nodes)
    if seen.label != should.label:
        return Mark.LABEL
    edges = (seen.left, seen.right, seen.ring, dict(seen.shortcuts))
    if edges != (should.left, should.right, should.ring, should.shortcuts):
        return Mark.EDGES
    # While the database holds a dead node, who leads to it is as recorded and yet not well.
    leads_to_dead = any(holder in crashed for _, holder in _references(seen))
    return Mark.EDGES if leads_to_dead else Mark.RIGHT


def _sound_edges(view: View, nodes: Sequence[NodeId]) -> Iterator[Edge]:
    """Edges between nodes that have their labels and know each other under them."""
    right: dict[Label, NodeId] = {}
    for index, node in enumerate(nodes):
        if node in view.subscribers and view.subscribers[node].label == Label.nth(index):
            right[Label.nth(index)] = node
    known = {label: _references(view.subscribers[node]) for label, node in right.items()}
    for label, node in right.items():
        for other, holder in known[label]:
            is_true = holder is not None and right.get(other) == holder
            if label < other and is_true and (label, node) in known[other]:
                yield label, other


def _references(seen: SubscriberView) -> set[tuple[Label, NodeId | None]]:
    peers = (seen.left, seen.right, seen.ring)
    ring = {(peer.label, peer.node) for peer in peers if peer is not None}
    return ring | set(seen.shortcuts.items())
