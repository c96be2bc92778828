"""What processes say to each other; a closed set (Algorithms 1 to 4).

Each message is an array-like tagged struct, so the value a machine handles is what the codec
reads and writes. The tags are part of the wire format: never reuse one.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.labels import Label
from skipring.core.peers import Link, NodeId, Peer


class Subscribe(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """``node`` asks the supervisor to be let in (section 4.1)."""

    node: NodeId | None


class Unsubscribe(Struct, frozen=True, array_like=True, gc=False, tag=2):
    """``node`` asks the supervisor to be let out (section 4.1)."""

    node: NodeId | None


class GetConfiguration(Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Ask the supervisor to send ``node`` its configuration (section 3.2.1).

    The node with label 0 adds the digest of the whole ring (R14).
    """

    node: NodeId | None
    digest: int | None = None


class SetConfiguration(Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The receiver's place according to the supervisor: the paper's SetData (Algorithm 3).

    Without a label it says: you are not in my database.
    """

    pred: Peer | None
    label: Label | None
    succ: Peer | None


class CheckLabel(Struct, frozen=True, array_like=True, gc=False, tag=5):
    """``sender`` introduces itself and says which label it believes the receiver to have."""

    sender: Peer
    believed: Label | None
    link: Link


class Introduce(Struct, frozen=True, array_like=True, gc=False, tag=6):
    """Make the receiver aware of ``peer`` (Algorithm 2); first-hand if the peer itself says so."""

    peer: Peer
    link: Link
    first_hand: bool


class IntroduceShortcut(Struct, frozen=True, array_like=True, gc=False, tag=7):
    """Tell the receiver who holds a label it should have a shortcut to (Algorithm 4)."""

    peer: Peer


class RemoveConnections(Struct, frozen=True, array_like=True, gc=False, tag=8):
    """Let the receiver forget ``node`` (Algorithms 1 and 2)."""

    node: NodeId


class Digest(Struct, frozen=True, array_like=True, gc=False, tag=9):
    """The sum over the subtree of ``node``, sent to its parent in the tree (R14)."""

    node: NodeId
    digest: int


Message: TypeAlias = (
    Subscribe
    | Unsubscribe
    | GetConfiguration
    | SetConfiguration
    | CheckLabel
    | Introduce
    | IntroduceShortcut
    | RemoveConnections
    | Digest
)

MESSAGE_TYPES: Final[tuple[type[Message], ...]] = (
    Subscribe,
    Unsubscribe,
    GetConfiguration,
    SetConfiguration,
    CheckLabel,
    Introduce,
    IntroduceShortcut,
    RemoveConnections,
    Digest,
)

UNRECORDED: Final = SetConfiguration(None, None, None)
