"""Requests and responses between processes, beside the paper's messages.

They find members, detect crashes, publish on behalf of clients, read logs and report status. The
tags start at 64 and are part of the wire format: never reuse one. The sender of a request chooses
its number; the response repeats it.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeGuard, get_args

from msgspec import Struct

from skipring.core.labels import Label, Word
from skipring.core.messages import MESSAGE_TYPES, Message, Number
from skipring.core.messages import FetchLog as FetchLog
from skipring.core.messages import GetLogInfo as GetLogInfo
from skipring.core.messages import LogInfo as LogInfo
from skipring.core.messages import LogPage as LogPage
from skipring.core.messages import Refused as Refused
from skipring.core.name_registry import Conflict
from skipring.core.peers import NodeId, Peer
from skipring.core.publications import Publication
from skipring.core.state import LivenessState
from skipring.core.trie import Offset
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
from skipring.wire.limits import MemberCount
from skipring.wire.monitor_rpc import (
    ArrivalPage,
    FetchArrivals,
    GetSupervisorStatus,
    SupervisorStatus,
)
from skipring.wire.name_messages import AskHolder, HolderReply, NameTaken

Address: TypeAlias = str  # "host:port"; a hint for finding a node, no part of its identity


class FindMembers(Struct, frozen=True, array_like=True, gc=False, tag=64):
    """Request to the supervisor for up to ``count`` members; answered by MemberList."""

    request: Number
    count: MemberCount


class MemberList(Struct, frozen=True, array_like=True, gc=False, tag=65):
    """Some members of the topic and their addresses; empty if there are none."""

    request: Number
    members: dict[NodeId, Address]


class Publish(Struct, frozen=True, array_like=True, gc=False, tag=70):
    """Request of a client to a member to publish; answered by PublishAck or Refused.

    A client that repeats a request after a lost answer gives the same publisher, seq and time: the
    id is then the same, and the member publishes it once. A member without a disk refuses, unless
    ``volatile`` accepts storage in memory.
    """

    request: Number
    publication: Publication
    volatile: bool = False


class PublishAck(Struct, frozen=True, array_like=True, gc=False, tag=71):
    """Confirmation that the publication is durable at the sender, under this id and offset."""

    request: Number
    id: bytes
    offset: Offset


# -- inspection ------------------------------------------------------------------------------


class FetchDatabase(Struct, frozen=True, array_like=True, gc=False, tag=73):
    """Request to the supervisor for a page of the topic's database; answered by DatabasePage.

    ``start`` counts the entries of the database first, then those of the queue.
    """

    request: Number
    start: Number


class DatabasePage(Struct, frozen=True, array_like=True, gc=False, tag=74):
    """Part of the supervisor's database, then of the queue of nodes that wait for an answer (R15).

    The next page begins at ``next``. The database is unchanged while ``total`` and ``digest`` are
    the same from page to page; ``cursor`` is the place of the round robin. ``conflicts`` lists the
    names of members that two live processes have.
    """

    request: Number
    total: Number
    digest: Word
    cursor: Number
    next: Number | None
    entries: tuple[tuple[str, NodeId | None], ...]
    queue: tuple[NodeId, ...]
    conflicts: tuple[Conflict, ...] = ()


class GetNodeStatus(Struct, frozen=True, array_like=True, gc=False, tag=75):
    """Request for a node's variables in the topic; answered by NodeStatus or Refused."""

    request: Number


class NodeHealth(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Condition of a node's process, as far as it concerns one topic."""

    time: int = 0  # the node's clock, microseconds since 1970
    silent: dict[NodeId, int] = {}  # ring neighbours: ticks since the last message
    unlinked: tuple[NodeId, ...] = ()  # ring neighbours without a connection
    not_ready: str = ""  # the reason; empty if the node is ready
    ahead: int = 0  # incarnations of the node's name that are ahead of its clock
    quarantined: int = 0  # damaged publications since the process started
    disk_error: str = ""
    clones: tuple[Address, ...] = ()  # other processes that have claimed the node's name lately


class NodeStatus(Struct, frozen=True, array_like=True, gc=False, tag=76):
    """Variables of a subscriber, the extent of its log, and the condition of its process.

    It has ``count`` publications at offsets below ``end``, and its trie has the root ``root``.
    """

    request: Number
    member: bool
    label: Label | None
    left: Peer | None
    right: Peer | None
    ring: Peer | None
    shortcuts: tuple[tuple[Label, NodeId | None], ...]
    silence: dict[NodeId, LivenessState]
    digests: dict[NodeId, int]
    count: Number
    end: Offset
    root: bytes
    health: NodeHealth = NodeHealth()


class FetchPublications(Struct, frozen=True, array_like=True, gc=False, tag=77):
    """Request for a node's publications at offsets from ``start`` to before ``end``.

    Answered by PublicationPage or Refused.
    """

    request: Number
    start: Offset
    end: Offset
    payloads: bool


class PublicationPage(Struct, frozen=True, array_like=True, gc=False, tag=78):
    """Stored publications in the order of their offsets, with ids; the rest starts at ``next``.

    Payload, key and headers are omitted unless the request asks for payloads.
    """

    request: Number
    next: Offset | None
    publications: tuple[Publication, ...]


class FetchChanges(Struct, frozen=True, array_like=True, gc=False, tag=79):
    """Request for recent changes of a node's variables; answered by ChangePage or Refused."""

    request: Number


class ChangeEntry(Struct, frozen=True, array_like=True, gc=False):
    """Change of a variable: its time, its cause and sender, and the rule that explains it."""

    tick: int
    time: int  # microseconds since the epoch at the node
    cause: str
    sender: NodeId | None
    field: str
    before: str
    after: str
    why: str


class ChangePage(Struct, frozen=True, array_like=True, gc=False, tag=80):
    """Last changes of a node's variables, the oldest first; ``tick`` is the current tick."""

    request: Number
    tick: Number
    entries: tuple[ChangeEntry, ...]


# -- reading as a client -------------------------------------------------------------------


class FetchDeliveries(Struct, frozen=True, array_like=True, gc=False, tag=85):
    """Request for how publications reached a node, from offset ``start`` to before ``end``.

    Answered by DeliveryPage or Refused.
    """

    request: Number
    start: Offset
    end: Offset


class DeliveryPage(Struct, frozen=True, array_like=True, gc=False, tag=86):
    """How publications reached the sender, in the order of their offsets; the rest from ``next``.

    For each: its offset, its id, its time of arrival (microseconds since the epoch, by the sender's
    clock), the number of hops, and its origin (one byte: the place in ``Origin``).
    """

    request: Number
    next: Offset | None
    offsets: tuple[int, ...]
    times: tuple[int, ...]
    hops: bytes
    origins: bytes
    ids: bytes


RuntimeMessage: TypeAlias = (
    FindMembers
    | MemberList
    | Publish
    | PublishAck
    | FetchDatabase
    | DatabasePage
    | GetNodeStatus
    | NodeStatus
    | FetchPublications
    | PublicationPage
    | FetchChanges
    | ChangePage
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
    Publish,
    PublishAck,
    FetchDatabase,
    DatabasePage,
    GetNodeStatus,
    NodeStatus,
    FetchPublications,
    PublicationPage,
    FetchChanges,
    ChangePage,
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
    """Return True if a message belongs to the processes, not to the protocol."""
    return type(message) in _RUNTIME  # faster than a check of thirty types


# The request of a Refused that answers none: the connection is refused, and closed after it.
CONNECTION_REQUEST: Final = 2**63 - 1
# Why a request is refused without work; the client may ask again.
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
    """Return True if the receiver answers a message under its request number."""
    return type(message) in REQUEST_TYPES


WIRE_TYPES: Final[tuple[type[WireMessage], ...]] = (*MESSAGE_TYPES, *RUNTIME_TYPES)
