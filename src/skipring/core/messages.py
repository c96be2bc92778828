"""Messages between processes: a closed set (Algorithms 1 to 5).

Each message is a tagged array-like struct: the codec reads and writes the value that a machine
handles. The tags are part of the wire format: never reuse one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from struct import Struct as Layout
from typing import Annotated, Any, Final, TypeAlias, get_args

from msgspec import Meta, Struct
from msgspec.structs import fields

from skipring.core.batches import RecordBatch
from skipring.core.labels import Label, Word
from skipring.core.log_messages import (
    FetchLog,
    GetLogInfo,
    LogInfo,
    LogPage,
    Number,
    Refused,
    TermsDigest,
)
from skipring.core.peers import EdgeKind, NodeId, Peer
from skipring.core.publications import ID_BYTES
from skipring.core.retention.floors import FloorStamps
from skipring.core.summaries import SHORT_BYTES, RangeSummary, TrieDigest

HOPS_MAX: Final = 255  # Limit: a hop count is one byte beside a short id.
SESSION_MAX: Final = (1 << 16) - 1  # Limit: a session is a small number in every message.
Session: TypeAlias = Annotated[int, Meta(ge=0, le=SESSION_MAX, description=f"0 to {SESSION_MAX}")]
Hops: TypeAlias = Annotated[int, Meta(ge=0, le=HOPS_MAX, description=f"0 to {HOPS_MAX}")]
Claims: TypeAlias = Annotated[tuple[RangeSummary, ...], Meta(description="claims")]
ShortIds: TypeAlias = Annotated[bytes, Meta(description=f"{SHORT_BYTES} bytes each")]
HopsOfEach: TypeAlias = Annotated[bytes, Meta(description="1 byte each")]
IDS_ASKED: Final = 512  # Guess: 16 KiB of ids in a question.
AskedIds: TypeAlias = Annotated[
    bytes, Meta(max_length=ID_BYTES * IDS_ASKED, description=f"{ID_BYTES} bytes each")
]
REMAINING_MAX: Final = 8  # Limit: remaining nodes in an announcement.
CHARTERS_MAX: Final = 2  # Limit: rows with a charter in one message.
CharterRows: TypeAlias = Annotated[
    tuple[RecordBatch, ...], Meta(max_length=CHARTERS_MAX, description="batches")
]
RemainingNodes: TypeAlias = Annotated[
    tuple[NodeId, ...], Meta(max_length=REMAINING_MAX, description="nodes")
]


class Subscribe(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Request from ``node`` to join the ring (section 4.1)."""

    node: NodeId | None


class Unsubscribe(Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Request from ``node`` to leave the ring (section 4.1)."""

    node: NodeId | None


class GetConfiguration(Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Request to send ``node`` its configuration (section 3.2.1).

    The node with label 0 adds the digest of the whole ring (R14).
    """

    node: NodeId | None
    digest: Word | None = None


class SetConfiguration(Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Configuration of the receiver: the paper's SetData (Algorithm 3).

    Without a label, the receiver is not recorded.
    """

    pred: Peer | None
    label: Label | None
    succ: Peer | None


class CheckLabel(Struct, frozen=True, array_like=True, gc=False, tag=5):
    """Introduction of ``sender``, with the label that it believes the receiver to have."""

    sender: Peer
    believed: Label | None
    link: EdgeKind


class Introduce(Struct, frozen=True, array_like=True, gc=False, tag=6):
    """Introduction of ``peer`` to the receiver (Algorithm 2); first-hand if the peer sent it."""

    peer: Peer
    link: EdgeKind
    first_hand: bool


class IntroduceShortcut(Struct, frozen=True, array_like=True, gc=False, tag=7):
    """Holder of a label to which the receiver should have a shortcut (Algorithm 4)."""

    peer: Peer


class RemoveConnections(Struct, frozen=True, array_like=True, gc=False, tag=8):
    """Request to forget ``node`` (Algorithms 1 and 2)."""

    node: NodeId


class Digest(Struct, frozen=True, array_like=True, gc=False, tag=9):
    """Sum over the subtree of ``node``, sent to its parent in the tree (R14)."""

    node: NodeId
    digest: Word


class CheckTrie(Struct, frozen=True, array_like=True, gc=False, tag=10):
    """Request to compare the receiver's trie with the claims of ``sender`` (Algorithm 5).

    A session is the exchange that one request starts. ``confirm`` requests an answer even if the
    tries are equal (T19). ``terms`` is a digest of charter and floors, empty without both; its last
    bit is set if the sender is stale (decision 0057).
    """

    sender: NodeId
    claims: Claims
    session: Session = 0
    confirm: bool = False
    terms: TermsDigest = b""


class CheckAndPublish(Struct, frozen=True, array_like=True, gc=False, tag=11):
    """CheckTrie that also requests publications (Algorithm 5).

    ``wanted`` requests everything under a cover, or only the publications with the listed short
    ids.
    """

    sender: NodeId
    claims: Claims
    session: Session = 0
    wanted: Claims = ()
    terms: TermsDigest = b""


class Publications(Struct, frozen=True, array_like=True, gc=False, tag=12):
    """Publications that the receiver is missing: the paper's Publish (Algorithm 5).

    The session is the session that this message ends, or 0. ``fresh`` is set if the sender had
    terms and was not stale when it sent this message (decision 0057).
    """

    publications: tuple[RecordBatch, ...]
    session: Session = 0
    fresh: bool = False


class TrieEqual(Struct, frozen=True, array_like=True, gc=False, tag=13):
    """Statement that the trie of ``sender`` has the same root, under the same terms (T19)."""

    sender: NodeId
    root: TrieDigest
    terms: TermsDigest = b""


class PublishNew(Struct, frozen=True, array_like=True, gc=False, tag=14):
    """New publication in the broadcast (section 4.3), with its number of hops so far."""

    publication: RecordBatch
    hops: Hops = 0


class PublishMany(Struct, frozen=True, array_like=True, gc=False, tag=17):
    """Several new publications in one message; a receiver handles each as in PublishNew."""

    publications: tuple[RecordBatch, ...]
    hops: Hops = 0


_SHORT: Final = Layout(f"{SHORT_BYTES}s")


class _ShortIds(Struct, frozen=True, array_like=True, gc=False):
    """Publications named by short ids, the first bytes of their ids.

    Each has the number of hops to the node that announced it. A request repeats this number, so
    the announcing node need not remember it.
    """

    sender: NodeId
    ids: ShortIds
    hops: HopsOfEach

    def __post_init__(self) -> None:
        """Raise ValueError unless each short id has a hop count."""
        if len(self.ids) != SHORT_BYTES * len(self.hops):
            message = f"{len(self.ids)} bytes of short ids with {len(self.hops)} hops"
            raise ValueError(message)

    def shorts(self) -> set[bytes]:
        """Return the set of short ids."""
        return {short for (short,) in _SHORT.iter_unpack(self.ids)}

    def short_ids(self) -> list[tuple[bytes, int]]:
        """Return the short ids in order, with their hops."""
        return [
            (self.ids[place * SHORT_BYTES : (place + 1) * SHORT_BYTES], hops)
            for place, hops in enumerate(self.hops)
        ]


class IHave(_ShortIds, frozen=True, array_like=True, gc=False, tag=15):
    """Announcement of publications at ``sender`` that the receiver may be missing (lazy push)."""


class Want(_ShortIds, frozen=True, array_like=True, gc=False, tag=16):
    """Request from ``sender`` for publications that the receiver announced (lazy push)."""


def _check_ids(ids: bytes) -> None:
    """Raise ValueError if the bytes are not a whole number of ids."""
    if len(ids) % ID_BYTES:
        message = f"{len(ids)} bytes of ids"
        raise ValueError(message)


def ids_in(ids: bytes) -> list[bytes]:
    """Split concatenated ids."""
    return [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]


class CheckHeld(Struct, frozen=True, array_like=True, gc=False, tag=18):
    """Question whether the receiver holds the publications of ``sender`` (decision 0049).

    Each claim has one digest over everything under its cover; ``ids`` lists single ids.
    """

    sender: NodeId
    session: Number
    claims: Claims = ()
    ids: AskedIds = b""

    def __post_init__(self) -> None:
        """Raise ValueError if the bytes are not a whole number of ids."""
        _check_ids(self.ids)


class Held(Struct, frozen=True, array_like=True, gc=False, tag=19):
    """Answer to CheckHeld: publications that ``sender`` holds, on disk if ``durable``.

    An unchanged claim is confirmed; a claim without its digest differs.
    """

    sender: NodeId
    session: Number
    durable: bool
    claims: Claims = ()
    held: AskedIds = b""
    missing: AskedIds = b""

    def __post_init__(self) -> None:
        """Raise ValueError if the bytes are not a whole number of ids."""
        _check_ids(self.held)
        _check_ids(self.missing)


class Draining(Struct, frozen=True, array_like=True, gc=False, tag=20):
    """Announcement that ``sender`` leaves: hand nothing over to it (decision 0049).

    ``remaining`` names some of its neighbours that have not announced their departure.
    """

    sender: NodeId
    remaining: RemainingNodes = ()


class RequestHandover(Struct, frozen=True, array_like=True, gc=False, tag=21):
    """Request to hand everything that the receiver holds over to ``sender`` (decision 0049)."""

    sender: NodeId
    session: Number


class HandoverDone(Struct, frozen=True, array_like=True, gc=False, tag=22):
    """Report that the receiver has confirmed everything ``sender`` held when it was asked.

    The session is that of the RequestHandover. ``complete`` is True if the sender is complete
    itself.
    """

    sender: NodeId
    session: Number
    complete: bool


class Terms(Struct, frozen=True, array_like=True, gc=False, tag=23):
    """Terms on which ``sender`` retains publications: charter, floors and clock (decision 0057).

    ``clock`` is 0 without a clock. ``asks`` requests the receiver's terms.
    """

    sender: NodeId
    charters: CharterRows
    floors: Annotated[FloorStamps, Meta(description="[age, full, tombstones]")]
    clock: Number
    asks: bool = False


class ReportUnresponsive(Struct, frozen=True, array_like=True, gc=False, tag=66):
    """Report that the ring neighbour ``node`` has not sent a message for a while (section 3.3)."""

    node: NodeId


class Ping(Struct, frozen=True, array_like=True, gc=False, tag=67):
    """Request from the supervisor to a member that was reported unresponsive; answered by Pong."""

    nonce: Number


class Pong(Struct, frozen=True, array_like=True, gc=False, tag=68):
    """Answer to a Ping, which shows that the sender is alive."""

    nonce: Number


class ConfigurationAck(Struct, frozen=True, array_like=True, gc=False, tag=69):
    """Acknowledgement of a SetConfiguration, which shows that the sender is alive (section 3.3)."""


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
    | Terms
    | ReportUnresponsive
    | Ping
    | Pong
    | ConfigurationAck
    | GetLogInfo
    | LogInfo
    | FetchLog
    | LogPage
    | Refused
)

MESSAGE_TYPES: Final[tuple[type[Message], ...]] = get_args(Message)
# Requests of subscribers to the supervisor; the paper bounds their number.
SUPERVISOR_REQUESTS: Final = (Subscribe, Unsubscribe, GetConfiguration)

# Messages that a member sends at every tick, even if nothing changes.
RoutineMessage: TypeAlias = CheckLabel | IntroduceShortcut | Digest
ROUTINE_TYPES: Final = frozenset(get_args(RoutineMessage))
CARRIERS: Final = frozenset({PublishNew, PublishMany, Publications})  # messages with publications

UNRECORDED: Final = SetConfiguration(None, None, None)


# -- claimed sender (decision 0045) ------------------------------------------------------------

Claim: TypeAlias = Callable[[Any, NodeId], bool]  # True if the message may come from this peer


def _claim_in(name: str) -> Claim:
    get = attrgetter(name)
    return lambda message, peer: get(message) == peer


def _claim_of(kind: type[Message]) -> Claim | None:
    """Return the claim of a type with a field ``sender``; None for other types."""
    for field in fields(kind):
        if field.name == "sender":
            return _claim_in("sender.node" if field.type is Peer else "sender")
    return None


# A message without a field ``sender`` that names its sender, or names it in some cases, has a row.
CLAIMS: Final[Mapping[type, Claim]] = {
    Subscribe: _claim_in("node"),
    Unsubscribe: _claim_in("node"),
    # Without a digest, any peer may ask about any node.
    GetConfiguration: lambda message, peer: message.digest is None or message.node == peer,
    Introduce: lambda message, peer: not message.first_hand or message.peer.node == peer,
    RemoveConnections: _claim_in("node"),
    Digest: _claim_in("node"),
    **{kind: claim for kind in MESSAGE_TYPES if (claim := _claim_of(kind)) is not None},
}


def names_another(message: object, peer: NodeId) -> bool:
    """Return True if a message names another sender than the peer that sent it."""
    claim = CLAIMS.get(type(message))
    return claim is not None and not claim(message, peer)
