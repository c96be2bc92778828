"""Effects: a closed set of requests from a machine to its host, applied in order."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from skipring.core.messages import GetConfiguration, Message
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.publications import Encoded, Publication


class Send(Struct, frozen=True, gc=False):
    """Put ``message`` into the channel of ``to``."""

    to: NodeId
    message: Message


class Unsubscribed(Struct, frozen=True, gc=False):
    """The supervisor has let this node go: the topic's machine may be removed (section 4)."""


class Origin(StrEnum):
    """How a publication has come to a node."""

    OWN = "own"
    SPREAD = "spread"  # as new, over the tree or a flood (section 4.3)
    REPAIR = "repair"  # because tries were compared (section 4.2)

    __hash__ = str.__hash__  # the enum's own is looked up by name, and each delivery needs it


class Store(Struct, frozen=True, gc=False):
    """Keep publications in the archive, from an offset on, before anything that follows is sent."""

    offset: int
    publications: tuple[Publication, ...]
    size_bytes: int = 0  # about what they take in a message, if somebody has counted
    encoded: Encoded | None = None  # the same as they are to be stored, if the host had them so


class Discard(Struct, frozen=True, gc=False):
    """What is stored at an offset is not what was stored there: put it aside (T12)."""

    offset: int


class Deliver(Struct, frozen=True, gc=False):
    """Hand publications to the application; they are stored from an offset on, or will be soon."""

    publications: tuple[Publication, ...]
    offset: int
    origin: Origin
    hops: int
    size_bytes: int = 0  # about what they take in a message, if somebody has counted


class PeerInSync(Struct, frozen=True, gc=False):
    """A node that was asked has all that we have: its root is ours (T19)."""

    node: NodeId
    root: bytes


class SendSynced(Struct, frozen=True, gc=False):
    """Send ``message`` once everything that is stored now is on the disk; commit early for it.

    A host without a disk sends it at once.
    """

    to: NodeId
    message: Message


class HeldBy(Struct, frozen=True, gc=False):
    """A member has confirmed that it holds the publications with these ids (decision 0049)."""

    node: NodeId
    ids: tuple[bytes, ...]
    durable: bool  # on its disk, not only in its memory


class Drained(Struct, frozen=True, gc=False):
    """The drain is over: ``node`` has confirmed everything, or no member remains (None)."""

    node: NodeId | None
    absent: bool = False  # there are members that have not announced to leave, but are unreachable


Effect: TypeAlias = (
    Send | Unsubscribed | Store | Discard | Deliver | PeerInSync | SendSynced | HeldBy | Drained
)


class Outbox:
    """Collects the effects of one event, in order."""

    __slots__ = ("effects",)

    def __init__(self) -> None:
        self.effects: list[Effect] = []

    def send(self, to: NodeId, message: Message) -> None:
        """Send ``message`` to a node."""
        self.effects.append(Send(to, message))

    def request_configuration(self, about: NodeId) -> None:
        """Ask the supervisor to send ``about`` its configuration."""
        self.effects.append(Send(SUPERVISOR, GetConfiguration(about)))
