"""Nodes, peers and sides of the ring (section 1.1)."""

from __future__ import annotations

from enum import Enum, IntEnum
from hashlib import blake2b
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skipring.core.labels import CIRCLE, Label

# 1-64 characters of [A-Za-z0-9._-] without further structure. The codec checks names, because a
# pattern of msgspec takes longer. Measured: 0.7 microseconds for a name, a cached check 0.1.
NodeId: TypeAlias = Annotated[str, Meta(description="node")]
TopicId: TypeAlias = str
_PORT: Final = (
    "(?=[0-9]{1,5}$)0*(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}"
    "|655[0-2][0-9]|6553[0-5])"
)
# A host or an IP in ASCII (IPv6 in brackets), a colon and a port.
ADDRESS_PATTERN: Final = rf"\A(?:\[[0-9A-Fa-f:.]{{2,45}}\]|[A-Za-z0-9._-]{{1,253}}):{_PORT}\Z"
# "host:port"; a hint for finding a node, not part of its identity
Address: TypeAlias = Annotated[str, Meta(pattern=ADDRESS_PATTERN, description="address")]

GOLDEN_RATIO: Final = (5**0.5 - 1) / 2
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

    def has_on(self, side: Side, other: Peer) -> bool:
        """Return True if ``other`` may be a neighbour on a side; an equal label fits on both."""
        return other.label <= self.label if side is LEFT else other.label >= self.label


def golden_fraction(count: int) -> float:
    """Return the fraction of a multiple of the golden ratio; consecutive ones are far apart."""
    return count * GOLDEN_RATIO % 1.0


def is_farther(peer: Peer, than: Peer, side: Side) -> bool:
    """Return True unless ``peer`` is strictly nearer on ``side``: of equal labels the first stays.

    Algorithm 1 compares labels only, and delegates if ``label_v <= u.left`` (decision 0061).
    """
    return peer.label <= than.label if side is LEFT else than.label <= peer.label


def as_text(value: Label | Peer | None) -> str:
    """Return a label or a reference for a sentence."""
    if isinstance(value, Peer):
        return f"({value.label}, {value.node})"
    return str(value) if value is not None else "none"
