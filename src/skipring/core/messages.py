"""Messages between processes: a closed set (Algorithms 1 to 5).

Each message is a tagged array-like struct: the codec reads and writes the value that a machine
handles. The tags are part of the wire format: never reuse one.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.labels import Label
from skipring.core.peers import EdgeKind, NodeId, Peer
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.summaries import DIGEST_BYTES, SHORT_BYTES, RangeSummary


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
    link: EdgeKind


class Introduce(Struct, frozen=True, array_like=True, gc=False, tag=6):
    """Make the receiver aware of ``peer`` (Algorithm 2); first-hand if the peer itself says so."""

    peer: Peer
    link: EdgeKind
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


class CheckTrie(Struct, frozen=True, array_like=True, gc=False, tag=10):
    """Compare your trie with what ``sender`` claims of its own (Algorithm 5).

    A session is all that follows from one question; ``confirm`` asks for an answer also if the
    tries are equal (T19).
    """

    sender: NodeId
    claims: tuple[RangeSummary, ...]
    session: int = 0
    confirm: bool = False


class CheckAndPublish(Struct, frozen=True, array_like=True, gc=False, tag=11):
    """CheckTrie, and send what is ``wanted`` (Algorithm 5).

    That is everything under a cover, or of it the publications with the given short ids.
    """

    sender: NodeId
    claims: tuple[RangeSummary, ...]
    session: int = 0
    wanted: tuple[RangeSummary, ...] = ()


class Publications(Struct, frozen=True, array_like=True, gc=False, tag=12):
    """Publications that the receiver was found to lack: the paper's Publish (Algorithm 5).

    The session is the one that ends with them, or 0.
    """

    publications: tuple[Publication, ...]
    session: int = 0


class TrieEqual(Struct, frozen=True, array_like=True, gc=False, tag=13):
    """The trie of ``sender`` has this root too (T19)."""

    sender: NodeId
    root: bytes

    def __post_init__(self) -> None:
        """Refuse what is no digest."""
        if len(self.root) != DIGEST_BYTES:
            message = f"no digest: {len(self.root)} bytes"
            raise ValueError(message)


class PublishNew(Struct, frozen=True, array_like=True, gc=False, tag=14):
    """A new publication on its way (section 4.3), and how many hops it has come."""

    publication: Publication
    hops: int = 0


class PublishMany(Struct, frozen=True, array_like=True, gc=False, tag=17):
    """Several new publications on their way together, as one message: PublishNew in a hurry."""

    publications: tuple[Publication, ...]
    hops: int = 0


HOPS_MAX: Final = 255  # are counted: one byte beside a short id
_SHORT: Final = Layout(f"{SHORT_BYTES}s")


class _ShortIds(Struct, frozen=True, array_like=True, gc=False):
    """What is said about publications by the beginnings of their ids.

    With each goes the number of hops it had come to whoever has it: who is asked for it need not
    remember.
    """

    sender: NodeId
    ids: bytes
    hops: bytes

    def __post_init__(self) -> None:
        """Refuse what cannot be cut into short ids, each with its hops."""
        if len(self.ids) != SHORT_BYTES * len(self.hops):
            message = f"{len(self.ids)} bytes of short ids with {len(self.hops)} hops"
            raise ValueError(message)

    def shorts(self) -> set[bytes]:
        """The beginnings."""
        return {short for (short,) in _SHORT.iter_unpack(self.ids)}

    def short_ids(self) -> list[tuple[bytes, int]]:
        """The beginnings, one by one, with their hops."""
        return [
            (self.ids[place * SHORT_BYTES : (place + 1) * SHORT_BYTES], hops)
            for place, hops in enumerate(self.hops)
        ]


class IHave(_ShortIds, frozen=True, array_like=True, gc=False, tag=15):
    """``sender`` has these publications, in case that they have not come by another way."""


class Want(_ShortIds, frozen=True, array_like=True, gc=False, tag=16):
    """``sender`` lacks these publications that the receiver said it has."""


def _check_ids(ids: bytes) -> None:
    """Refuse what cannot be cut into ids."""
    if len(ids) % ID_BYTES:
        message = f"{len(ids)} bytes of ids"
        raise ValueError(message)


def ids_in(ids: bytes) -> list[bytes]:
    """The ids that are packed one behind the other."""
    return [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]


class CheckHeld(Struct, frozen=True, array_like=True, gc=False, tag=18):
    """Ask whether the receiver holds what ``sender`` holds (decision 0049).

    Each claim has one digest, of everything under its cover; beside them stand single ids.
    """

    sender: NodeId
    session: int
    claims: tuple[RangeSummary, ...] = ()
    ids: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what cannot be cut into ids."""
        _check_ids(self.ids)


class Held(Struct, frozen=True, array_like=True, gc=False, tag=19):
    """Confirm what ``sender`` holds of a CheckHeld, after its disk has it if it is durable.

    A claim that is returned is confirmed; one without its digest differs.
    """

    sender: NodeId
    session: int
    durable: bool
    claims: tuple[RangeSummary, ...] = ()
    held: bytes = b""
    missing: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what cannot be cut into ids."""
        _check_ids(self.held)
        _check_ids(self.missing)


class Draining(Struct, frozen=True, array_like=True, gc=False, tag=20):
    """Announce that ``sender`` is about to leave: hand nothing over to it (decision 0049).

    It names some of its neighbours that have not announced to leave.
    """

    sender: NodeId
    remaining: tuple[NodeId, ...] = ()


class RequestHandover(Struct, frozen=True, array_like=True, gc=False, tag=21):
    """Ask the receiver to hand everything it holds over to ``sender`` (decision 0049)."""

    sender: NodeId
    session: int


class HandoverDone(Struct, frozen=True, array_like=True, gc=False, tag=22):
    """State that the receiver has confirmed everything ``sender`` held when it was asked.

    It answers the request with the same session. ``complete`` if the sender itself has been handed
    everything by another member before.
    """

    sender: NodeId
    session: int
    complete: bool


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
    | CheckTrie
    | CheckAndPublish
    | Publications
    | TrieEqual
    | PublishNew
    | PublishMany
    | IHave
    | Want
    | CheckHeld
    | Held
    | Draining
    | RequestHandover
    | HandoverDone
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
    CheckTrie,
    CheckAndPublish,
    Publications,
    TrieEqual,
    PublishNew,
    PublishMany,
    IHave,
    Want,
    CheckHeld,
    Held,
    Draining,
    RequestHandover,
    HandoverDone,
)

UNRECORDED: Final = SetConfiguration(None, None, None)
