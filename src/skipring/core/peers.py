"""Nodes, peers and sides of the ring (section 1.1)."""

from __future__ import annotations

from enum import Enum, IntEnum
from hashlib import blake2b
from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.labels import CIRCLE, Label

NodeId: TypeAlias = str  # 1-64 characters of [A-Za-z0-9._-]; no part of it has a meaning
TopicId: TypeAlias = str

SUPERVISOR: Final[NodeId] = "supervisor"  # "assumed to be hard-coded" (section 3.2)


class Side(IntEnum):
    """Direction on the ring: the value that differs where the paper says "analogously"."""

    LEFT = 0
    RIGHT = 1

    @property
    def opposite(self) -> Side:
        """Return the other direction."""
        return RIGHT if self is LEFT else LEFT

    def distance(self, start: Label, end: Label) -> int:
        """Return the distance from ``start`` to ``end`` in this direction (B11)."""
        if self is LEFT:
            return (start.position - end.position) % CIRCLE
        return (end.position - start.position) % CIRCLE


LEFT: Final = Side.LEFT
RIGHT: Final = Side.RIGHT
SIDES: Final = (LEFT, RIGHT)


class EdgeKind(Enum):
    """Kind of an edge: on the sorted line, or the edge that closes the line into a ring."""

    LINE = "LIN"
    WRAP = "CYC"


class Peer(Struct, frozen=True, order=True, array_like=True, gc=False):
    """Node and the label it is believed to have; the belief may be stale.

    Peers are ordered by label, then node: the total order of the ring.
    """

    label: Label
    node: NodeId

    @property
    def weight(self) -> int:
        """Return H(label, id), the summand of this member in the digest of the ring (R14)."""
        data = self.label.position.to_bytes(8, "big") + self.node.encode()
        return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")

    def side_of(self, other: Peer) -> Side:
        """Return the side of this peer on which ``other`` is."""
        return LEFT if other < self else RIGHT


def farther(peer: Peer, than: Peer, side: Side) -> bool:
    """Return True if ``peer`` is strictly farther out on ``side`` than the other peer."""
    return peer < than if side is LEFT else than < peer
