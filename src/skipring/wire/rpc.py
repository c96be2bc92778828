"""Requests and responses between processes, beside the paper's messages.

They find members, detect crashes, publish on behalf of clients, read logs and report status. The
tags start at 64 and are part of the wire format: never reuse one. The sender of a request chooses
its number; the response repeats it.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeGuard, get_args

from msgspec import Struct

from skipring.core.labels import Label
from skipring.core.messages import MESSAGE_TYPES, Message
from skipring.core.name_registry import Conflict
from skipring.core.peers import NodeId, Peer
from skipring.core.publications import Publication
from skipring.core.state import LivenessState
from skipring.wire.chaos import (
    ChaosAck,
    ChaosPing,
    CorruptTrie,
    Crash,
    Damage,
    Forge,
    Isolate,
    Overwrite,
    OverwriteDatabase,
)
from skipring.wire.monitor_rpc import (
    ArrivalPage,
    FetchArrivals,
    GetSupervisorStatus,
    SupervisorStatus,
)
from skipring.wire.name_messages import AskHolder, HolderReply, NameTaken

Address: TypeAlias = str  # "host:port"; a hint where to find a node, no part of its identity


class FindMembers(Struct, frozen=True, array_like=True, gc=False, tag=64):
    """Ask the supervisor for up to ``count`` members of the topic; answered by Members."""

    request: int
    count: int


class MemberList(Struct, frozen=True, array_like=True, gc=False, tag=65):
    """Some members of the topic and where they listen; none if there are none."""

    request: int
    members: dict[NodeId, Address]


class ReportUnresponsive(Struct, frozen=True, array_like=True, gc=False, tag=66):
    """The sender has not heard from its ring neighbour ``node`` for a while (section 3.3)."""

    node: NodeId


class Ping(Struct, frozen=True, array_like=True, gc=False, tag=67):
    """The supervisor asks a node that was reported silent for a sign of life."""

    nonce: int


class Pong(Struct, frozen=True, array_like=True, gc=False, tag=68):
    """The sign of life."""

    nonce: int


class ConfigurationAck(Struct, frozen=True, array_like=True, gc=False, tag=69):
    """A SetConfiguration has arrived at the sender: it is alive."""


class Publish(Struct, frozen=True, array_like=True, gc=False, tag=70):
    """Somebody who is no member asks one to publish for it; answered by Published or Refused.

    Whoever asks again after a lost answer gives the same publisher, seq and time: the id is then
    the same, and nothing is published twice. A member without a disk refuses, unless the sender
    is content with its memory.
    """

    request: int
    publication: Publication
    volatile: bool = False


class PublishAck(Struct, frozen=True, array_like=True, gc=False, tag=71):
    """The publication is durable at the sender, under this id and at this offset."""

    request: int
    id: bytes
    offset: int


class Refused(Struct, frozen=True, array_like=True, gc=False, tag=72):
    """A request was not carried out, and why in one sentence."""

    request: int
    reason: str


# -- being looked at -------------------------------------------------------------------------


class FetchDatabase(Struct, frozen=True, array_like=True, gc=False, tag=73):
    """Ask the supervisor for a page of the topic's database; answered by DatabasePage.

    ``start`` counts the entries of the database first, then those who wait.
    """

    request: int
    start: int


class DatabasePage(Struct, frozen=True, array_like=True, gc=False, tag=74):
    """A part of the supervisor's database, then of those who wait for an answer (R15).

    The page after it begins at ``next``. While ``total`` and ``digest`` stay the same from page to
    page, so does the database; ``cursor`` is the place of the round robin. Of members whose name
    two live processes have, ``conflicts`` says which.
    """

    request: int
    total: int
    digest: int
    cursor: int
    next: int | None
    entries: tuple[tuple[str, NodeId | None], ...]
    queue: tuple[NodeId, ...]
    conflicts: tuple[Conflict, ...] = ()


class GetNodeStatus(Struct, frozen=True, array_like=True, gc=False, tag=75):
    """Ask a node for its variables in the topic; answered by NodeStatus or Refused."""

    request: int


class NodeHealth(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The condition of a node's process, as far as it concerns one topic."""

    time: int = 0  # the node's clock, microseconds since 1970
    silent: dict[NodeId, int] = {}  # ring neighbours: ticks since the last message
    unlinked: tuple[NodeId, ...] = ()  # ring neighbours without a connection
    not_ready: str = ""  # the reason; empty if the node is ready
    ahead: int = 0  # incarnations of the node's name that are ahead of its clock
    quarantined: int = 0  # damaged publications since the process started
    disk_error: str = ""
    clones: tuple[Address, ...] = ()  # other processes that have claimed the node's name lately


class NodeStatus(Struct, frozen=True, array_like=True, gc=False, tag=76):
    """The variables of a subscriber, how much it has stored, and the condition of its process.

    It has ``count`` publications at offsets below ``end``, and its trie has this root.
    """

    request: int
    member: bool
    label: Label | None
    left: Peer | None
    right: Peer | None
    ring: Peer | None
    shortcuts: tuple[tuple[Label, NodeId | None], ...]
    silence: dict[NodeId, LivenessState]
    digests: dict[NodeId, int]
    count: int
    end: int
    root: bytes
    health: NodeHealth = NodeHealth()


class FetchPublications(Struct, frozen=True, array_like=True, gc=False, tag=77):
    """Ask a node what it has stored from offset ``start`` to before ``end``.

    Answered by PublicationPage or Refused.
    """

    request: int
    start: int
    end: int
    payloads: bool


class PublicationPage(Struct, frozen=True, array_like=True, gc=False, tag=78):
    """Stored publications in the order of their offsets, with their ids; the rest from ``next`` on.

    Unless payloads were asked for, payload, key and headers are left out.
    """

    request: int
    next: int | None
    publications: tuple[Publication, ...]


class FetchChanges(Struct, frozen=True, array_like=True, gc=False, tag=79):
    """Ask a node what has changed its place lately; answered by JournalPage or Refused."""

    request: int


class ChangeEntry(Struct, frozen=True, array_like=True, gc=False):
    """One change of a variable: when, by what and by whom, and which rule explains it."""

    tick: int
    time: int  # microseconds since the epoch at the node
    cause: str
    sender: NodeId | None
    field: str
    before: str
    after: str
    why: str


class ChangePage(Struct, frozen=True, array_like=True, gc=False, tag=80):
    """The last changes of a node's variables, the oldest first; ``tick`` is the present one."""

    request: int
    tick: int
    entries: tuple[ChangeEntry, ...]


# -- reading without being a member ------------------------------------------------------------


class GetLogInfo(Struct, frozen=True, array_like=True, gc=False, tag=81):
    """Ask a node how far it has stored the topic, and what; answered by Surveyed or Refused.

    Wanted are the digests of all 2^``bits`` prefixes that an id can begin with, or none; and the
    chain value at ``offset``, or at the end of what is durable.
    """

    request: int
    bits: int | None
    offset: int | None


class LogInfo(Struct, frozen=True, array_like=True, gc=False, tag=82):
    """The sender has ``count`` publications at offsets below ``end``, with these digests.

    Offsets are those of its ``store`` in this ``epoch``; below ``durable_end`` they are on its
    disk. A node without a disk has no store. A prefix without ids has a digest of no bytes. The
    value ``chain`` depends on all ids before the offset that was asked for, and on their order; it
    has no bytes if that is beyond ``durable_end``, or without a disk.
    """

    request: int
    store: str
    epoch: int
    durable_end: int
    end: int
    count: int
    digests: tuple[bytes, ...]
    chain: bytes


class FetchLog(Struct, frozen=True, array_like=True, gc=False, tag=83):
    """Ask a node for what it has stored: the paper's CheckAndPublish with nothing to compare.

    Wanted are publications at offsets from ``start`` to before ``end`` whose ids begin with the
    ``bits`` bits of ``prefix``; or, without ``contents``, only their ids. The offsets are those of
    a ``store`` in an ``epoch``: a node that has another one by now refuses. Answered by StoredPage
    or Refused.
    """

    request: int
    store: str
    epoch: int
    start: int
    end: int
    bits: int
    prefix: int
    contents: bool


class LogPage(Struct, frozen=True, array_like=True, gc=False, tag=84):
    """What is stored at these offsets, in their order; the rest from ``next`` on.

    The publications are an array in MessagePack, passed on as they lie in the store: whoever
    receives them works out their ids (T10), and believes none that has another one here.
    """

    request: int
    next: int | None
    offsets: tuple[int, ...]
    ids: bytes
    publications: bytes


class FetchDeliveries(Struct, frozen=True, array_like=True, gc=False, tag=85):
    """Ask a node how publications came to it, from offset ``start`` to before ``end``.

    Answered by DeliveryPage or Refused.
    """

    request: int
    start: int
    end: int


class DeliveryPage(Struct, frozen=True, array_like=True, gc=False, tag=86):
    """How publications came to the sender, in the order of their offsets; the rest from ``next``.

    For each: its offset, its id, when it came (microseconds since the epoch, by the sender's
    clock), over how many nodes, and in which way (one byte: the place in ``Origin``).
    """

    request: int
    next: int | None
    offsets: tuple[int, ...]
    times: tuple[int, ...]
    hops: bytes
    origins: bytes
    ids: bytes


RuntimeMessage: TypeAlias = (
    FindMembers
    | MemberList
    | ReportUnresponsive
    | Ping
    | Pong
    | ConfigurationAck
    | Publish
    | PublishAck
    | Refused
    | FetchDatabase
    | DatabasePage
    | GetNodeStatus
    | NodeStatus
    | FetchPublications
    | PublicationPage
    | FetchChanges
    | ChangePage
    | GetLogInfo
    | LogInfo
    | FetchLog
    | LogPage
    | FetchDeliveries
    | DeliveryPage
    | GetSupervisorStatus
    | SupervisorStatus
    | FetchArrivals
    | ArrivalPage
    | AskHolder
    | HolderReply
    | NameTaken
    | ChaosPing
    | Overwrite
    | OverwriteDatabase
    | CorruptTrie
    | Forge
    | Isolate
    | Crash
    | ChaosAck
)

RUNTIME_TYPES: Final[tuple[type[RuntimeMessage], ...]] = (
    FindMembers,
    MemberList,
    ReportUnresponsive,
    Ping,
    Pong,
    ConfigurationAck,
    Publish,
    PublishAck,
    Refused,
    FetchDatabase,
    DatabasePage,
    GetNodeStatus,
    NodeStatus,
    FetchPublications,
    PublicationPage,
    FetchChanges,
    ChangePage,
    GetLogInfo,
    LogInfo,
    FetchLog,
    LogPage,
    FetchDeliveries,
    DeliveryPage,
    GetSupervisorStatus,
    SupervisorStatus,
    FetchArrivals,
    ArrivalPage,
    AskHolder,
    HolderReply,
    NameTaken,
    ChaosPing,
    Overwrite,
    OverwriteDatabase,
    CorruptTrie,
    Forge,
    Isolate,
    Crash,
    ChaosAck,
)

WireMessage: TypeAlias = Message | RuntimeMessage

_RUNTIME: Final = frozenset(RUNTIME_TYPES)


def is_runtime(message: WireMessage) -> TypeGuard[RuntimeMessage]:
    """True if a message is not of the protocol but of the processes around it."""
    return type(message) in _RUNTIME  # sooner known than by going through thirty types


# The request of a Refused that answers none: the connection is refused, and closed after it.
CONNECTION_REQUEST: Final = 2**63 - 1
# Why a request is refused without work; the asker may ask again.
BUSY: Final = "busy: too many requests wait at this node; ask again later"
# Reasons that clients compare.
NO_DISK: Final = "it keeps nothing on a disk"
ANOTHER_STORE: Final = "another store by now"

Answer: TypeAlias = (
    MemberList
    | PublishAck
    | Refused
    | DatabasePage
    | NodeStatus
    | PublicationPage
    | ChangePage
    | LogInfo
    | LogPage
    | DeliveryPage
    | SupervisorStatus
    | ArrivalPage
    | ChaosAck
)
Request: TypeAlias = (
    FindMembers
    | Publish
    | FetchDatabase
    | GetNodeStatus
    | FetchPublications
    | FetchChanges
    | GetLogInfo
    | FetchLog
    | FetchDeliveries
    | GetSupervisorStatus
    | FetchArrivals
    | Damage
)
REQUEST_TYPES: Final = frozenset(get_args(Request))
ANSWER_TYPES: Final = frozenset(get_args(Answer))


def is_request(message: WireMessage) -> TypeGuard[Request]:
    """Return True if a message is answered by its receiver, under the number that it has."""
    return type(message) in REQUEST_TYPES


WIRE_TYPES: Final[tuple[type[WireMessage], ...]] = (*MESSAGE_TYPES, *RUNTIME_TYPES)
