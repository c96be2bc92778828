"""Requests and responses between processes, in addition to the paper's messages.

They find members, detect crashes, publish on behalf of clients, read logs and report status. The
tags start at 64 and are part of the wire format: never reuse one. The sender of a request chooses
its number; the response repeats it.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, TypeGuard, get_args

from msgspec import Meta, Struct

from skipring.core.batches import RecordBatch
from skipring.core.labels import Word
from skipring.core.limits import NUMBER_MAX
from skipring.core.log_messages import (
    FetchLog,
    FetchRecords,
    GetLogInfo,
    LogInfo,
    LogPage,
    Number,
    Offsets,
    Reason,
    Refused,
)
from skipring.core.messages import MESSAGE_TYPES, Hops, Message
from skipring.core.name_registry import Conflict
from skipring.core.peers import Address as Address  # noqa: PLC0414  (exported from here, too)
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import PublicationId
from skipring.core.retention.charter import Charter
from skipring.core.retention.floors import NO_FLOORS, FloorStamps
from skipring.core.summaries import TrieDigest
from skipring.core.trie import Offset
from skipring.wire import limits
from skipring.wire.chaos import ChaosAck, Damage
from skipring.wire.handshake import NameMessage


class FindMembers(Struct, frozen=True, array_like=True, gc=False, tag=64):
    """Request to the supervisor for up to ``count`` members; answered by MemberList."""

    request: Number
    count: limits.MemberCount


class MemberList(Struct, frozen=True, array_like=True, gc=False, tag=65):
    """Some members of the topic and their addresses; empty if there are none."""

    request: Number
    members: limits.Members


class Publish(Struct, frozen=True, array_like=True, gc=False, tag=70):
    """Request from a client to a member to publish; answered by PublishAck or Refused.

    The client makes the batch. If it repeats a request after a lost answer, at this or another
    member, the batch and its id are the same, so it is published once. A member without a disk
    refuses, unless ``volatile`` accepts storage in memory.
    """

    request: Number
    batch: RecordBatch
    volatile: bool = False


class PublishAck(Struct, frozen=True, array_like=True, gc=False, tag=71):
    """Confirmation that the batch is durable at the sender, under this id, from an offset on.

    A batch that newer records of its keys have superseded has the end of the log. Retries are
    acknowledged after the policy of the topic has dropped the batch.
    """

    request: Number
    id: PublicationId
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
    entries: limits.Entries
    queue: limits.Queue
    conflicts: Annotated[
        tuple[Conflict, ...],
        Meta(max_length=limits.CONFLICTS_MAX, description="maps of name, holder and refused"),
    ] = ()


class GetNodeStatus(Struct, frozen=True, array_like=True, gc=False, tag=75):
    """Request for a node's variables in the topic; answered by NodeStatus or Refused."""

    request: Number


class TopicTerms(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Charter, floors and quarantine of one topic at a node (docs/retention.md)."""

    acting: Charter | None = None  # the effective charter
    newest: Charter | None = None  # the highest one of the node; it may not have begun
    floors: FloorStamps = NO_FLOORS
    dropped: Number = 0  # records that the policy has removed since the process started
    low: Offset = 0
    disk_bytes: Number = 0
    future: Number = 0  # stored batches in quarantine, with a stamp in the future
    returned: Number = 0  # quarantined batches that only stale members have held
    stale: bool = False
    # microseconds by which the node's clock is ahead of both neighbours; 0 within the tolerance
    ahead_us: Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)] = 0
    policy_delay_us: Number = 0
    confirmed: Number = 0  # when a fresh member last confirmed an equal trie; 0: never
    charters: Number = 0  # stored at the node


class NodeHealth(Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Condition of a node's process, as far as it concerns one topic."""

    time: Number = 0  # the node's clock, microseconds since 1970
    # ring neighbours: ticks since the last message
    silent: Annotated[dict[NodeId, Number], Meta(max_length=limits.SHORTCUTS_MAX)] = {}
    # ring neighbours without a connection
    unlinked: Annotated[tuple[NodeId, ...], Meta(max_length=limits.SHORTCUTS_MAX)] = ()
    not_ready: Reason = ""  # empty if the node is ready
    ahead: Number = 0  # incarnations of the node's name that are ahead of its clock
    quarantined: Number = 0  # records found damaged or missing since the process started
    disk_error: Reason = ""
    # batches with numbers of this process that arrived from others since it started
    overlapping: Number = 0
    # other processes that have claimed the node's name recently
    clones: Annotated[tuple[Address, ...], Meta(max_length=limits.CLONES_MAX)] = ()
    terms: TopicTerms = TopicTerms()


class NodeStatus(limits.RingVariables, frozen=True, array_like=True, gc=False, tag=76):
    """Variables of a subscriber, the extent of its log, and the condition of its process.

    It has ``count`` publications at offsets below ``end``, and its trie has the root ``root``;
    during a backfill ``root`` is that of an empty trie.
    """

    member: bool
    count: Number
    end: Offset
    root: TrieDigest
    health: Annotated[NodeHealth, Meta(description="condition of the process")] = NodeHealth()


class FetchChanges(Struct, frozen=True, array_like=True, gc=False, tag=79):
    """Request for recent changes of a node's variables; answered by ChangePage or Refused."""

    request: Number


class ChangeEntry(Struct, frozen=True, array_like=True, gc=False):
    """Change of a variable: its time, its cause and sender, and the rule that explains it."""

    tick: Number
    time: Number  # microseconds since the epoch at the node
    cause: limits.ChangeText
    sender: NodeId | None
    field: limits.ChangeText
    before: limits.ChangeText
    after: limits.ChangeText
    why: limits.ChangeText


class ChangePage(Struct, frozen=True, array_like=True, gc=False, tag=80):
    """Last changes of a node's variables, the oldest first; ``tick`` is the current tick."""

    request: Number
    tick: Number
    entries: Annotated[
        tuple[ChangeEntry, ...], Meta(max_length=limits.JOURNAL_MAX, description="changes")
    ]


# -- reading as a client -------------------------------------------------------------------


class FetchDeliveries(Struct, frozen=True, array_like=True, gc=False, tag=85):
    """Request for a node's deliveries of publications from offset ``start`` to before ``end``.

    Answered by DeliveryPage or Refused.
    """

    request: Number
    start: Offset
    end: Offset


class DeliveryPage(Struct, frozen=True, array_like=True, gc=False, tag=86):
    """Page of deliveries at the sender, in the order of offsets; ``next`` is where to continue.

    Each record has its offset, its id, its time of arrival (microseconds since the epoch, by the
    sender's clock), its number of hops, and its origin (one byte: the place in ``Origin``).
    """

    request: Number
    next: Offset | None
    offsets: Offsets
    times: limits.Times
    hops: limits.BytesOfEach
    origins: limits.BytesOfEach
    ids: limits.RecordIds


# -- monitoring ------------------------------------------------------------------------------


class GetSupervisorStatus(Struct, frozen=True, array_like=True, gc=False, tag=87):
    """Request for the status and topics of a supervisor; answered by SupervisorStatus.

    It concerns the supervisor, whatever the topic of the envelope. ``start`` counts topics.
    """

    request: Number
    start: Number


class TopicStatus(Struct, frozen=True, array_like=True, gc=False):
    """Topic of a supervisor: its members, and the protocol's requests about it since the start.

    It has no number of publications, because the supervisor does not know it.
    """

    topic: TopicId
    members: Number
    requests: Number


class SupervisorStatus(Struct, frozen=True, array_like=True, gc=False, tag=88):
    """State of a supervisor, and its topics sorted by name; the rest starts at ``next``.

    ``ticks`` counts its ticks, ``suspects`` the currently suspected members, ``evictions`` the
    evicted ones.
    """

    request: Number
    ticks: Number
    suspects: Number
    evictions: Number
    total: Number
    next: Number | None
    topics: Annotated[
        tuple[TopicStatus, ...],
        Meta(max_length=limits.TOPICS_MAX, description="[topic, members, requests] each"),
    ]


class FetchArrivals(Struct, frozen=True, array_like=True, gc=False, tag=89):
    """Request for publications that reached a node ``since`` a number; answered by ArrivalPage.

    A node records arrivals only while clients request them regularly.
    """

    request: Number
    since: Number


class Arrival(Struct, frozen=True, array_like=True, gc=False):
    """Arrival of a message with publications, or a publication of the node itself.

    It arrived at ``time`` (microseconds since the epoch) from ``sender`` over ``hops`` hops;
    ``origin`` is a place in ``Origin``. ``fresh`` of its ``count`` publications were new.
    ``publisher``, ``seq`` and ``published``, its time, identify the first of them.
    """

    time: Number
    sender: NodeId | None
    hops: Hops
    origin: Number
    count: Number
    fresh: Number
    publisher: NodeId
    seq: Number
    published: Number


class ArrivalPage(Struct, frozen=True, array_like=True, gc=False, tag=90):
    """Recorded arrivals in order; ``next`` is the number to continue with."""

    request: Number
    next: Number
    arrivals: Annotated[
        tuple[Arrival, ...], Meta(max_length=limits.ARRIVALS_MAX, description="arrivals")
    ]


# -- sets of messages --------------------------------------------------------------------------

Answer: TypeAlias = (
    MemberList
    | PublishAck
    | Refused
    | DatabasePage
    | NodeStatus
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
    | FetchChanges
    | GetLogInfo
    | FetchLog
    | FetchRecords
    | FetchDeliveries
    | GetSupervisorStatus
    | FetchArrivals
    | Damage
)
RuntimeMessage: TypeAlias = Request | Answer | NameMessage
WireMessage: TypeAlias = Message | RuntimeMessage

REQUEST_TYPES: Final = frozenset(get_args(Request))
RUNTIME_TYPES: Final[frozenset[type[RuntimeMessage]]] = frozenset(get_args(RuntimeMessage))


def tag_of(kind: type[WireMessage]) -> int:
    """Return the number that a message starts with."""
    tag = kind.__struct_config__.tag
    assert isinstance(tag, int), f"{kind.__name__} has no number for a tag"
    return tag


WIRE_TYPES: Final[tuple[type[WireMessage], ...]] = (
    *MESSAGE_TYPES,
    *sorted(RUNTIME_TYPES - frozenset(MESSAGE_TYPES), key=tag_of),
)


def is_request(message: WireMessage) -> TypeGuard[Request]:
    """Return True if the receiver answers a message under its request number."""
    return type(message) in REQUEST_TYPES


# Request number of a Refused that answers no request: the sender closes the connection after it.
CONNECTION_REQUEST: Final = 2**63 - 1
# Reason to refuse a request without work; the client may ask again.
BUSY: Final = "busy: too many requests wait at this node; ask again later"
# Reasons that clients match on.
NO_DISK: Final = "it keeps nothing on a disk"
