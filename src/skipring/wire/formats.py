"""Format of each message: the kind of its frame, and the types of its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Self

from msgspec import Struct

from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    ConfigurationAck,
    Digest,
    Draining,
    GetConfiguration,
    HandoverDone,
    Held,
    IHave,
    Introduce,
    IntroduceShortcut,
    Ping,
    Pong,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    ReportUnresponsive,
    RequestHandover,
    SetConfiguration,
    Subscribe,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import NodeId
from skipring.wire.chaos import (
    ChaosAck,
    ChaosPing,
    CorruptTrie,
    Crash,
    Forge,
    Isolate,
    Overwrite,
    OverwriteDatabase,
)
from skipring.wire.fields import (
    ADDRESS,
    ARRIVALS,
    ASKED_IDS,
    BITS,
    BYTES_OF_EACH,
    CHAIN,
    CLAIMS,
    CONFLICTS,
    COUNT,
    DATABASE,
    DIGEST,
    DIGESTS,
    ENTRIES,
    FLAG,
    FORGED,
    HEALTH,
    HOPS,
    HOPS_OF_EACH,
    ID,
    IDS,
    INCARNATION,
    JOURNAL,
    LABEL,
    LINK,
    LISTED,
    MEMBERS,
    NAMES,
    NODE,
    NUMBER,
    OFFSET,
    OFFSETS,
    PEER,
    PREFIX,
    PUBLICATION,
    PUBLICATIONS,
    REASON,
    REMAINING,
    ROOT,
    SESSION,
    SHORT_IDS,
    SHORTCUTS,
    SILENCE,
    STORE,
    STORED,
    SURVEY,
    TIMES,
    TOPICS,
    TRIE_DIGEST,
    WAITING,
    Check,
    FieldKind,
    Naming,
)
from skipring.wire.framing import CONTROL, CONTROL_BYTES_MAX, DATA, DATA_BYTES_MAX, FrameKind
from skipring.wire.monitor_rpc import (
    ArrivalPage,
    FetchArrivals,
    GetSupervisorStatus,
    SupervisorStatus,
)
from skipring.wire.name_messages import AskHolder, HolderReply, NameTaken
from skipring.wire.rpc import (
    ChangePage,
    DatabasePage,
    DeliveryPage,
    FetchChanges,
    FetchDatabase,
    FetchDeliveries,
    FetchLog,
    FetchPublications,
    FindMembers,
    GetLogInfo,
    GetNodeStatus,
    LogInfo,
    LogPage,
    MemberList,
    NodeStatus,
    PublicationPage,
    Publish,
    PublishAck,
    Refused,
    WireMessage,
)

# Limit of ours: to read a claim costs 1 microsecond a byte at worst, and whoever reads ignores
# what is longer than 64 KiB (twice the core's ``claims_bytes``).
CLAIMS_BYTES_MAX: Final = 80 * 1024
# Limit of ours: a page or status as long as can be, with a hint for every node it names.
PAGE_BYTES_MAX: Final = 256 * 1024


class MessageFormat(Struct, frozen=True):
    """How one type of message travels."""

    frame_kind: FrameKind
    body_bytes_max: int
    fields: Mapping[str, FieldKind]
    # The same as the functions that are called for every message.
    _checks: tuple[tuple[Callable[[Any], Any], Check], ...]
    _naming: tuple[tuple[Callable[[Any], Any], Naming], ...]

    @classmethod
    def of(
        cls, frame_kind: FrameKind, body_bytes_max: int, fields: Mapping[str, FieldKind]
    ) -> Self:
        """The format of a message with these fields."""
        getters = [(attrgetter(name), kind) for name, kind in fields.items()]
        return cls(
            frame_kind,
            body_bytes_max,
            fields,
            tuple((get, kind.check) for get, kind in getters if kind.check),
            tuple((get, kind.nodes) for get, kind in getters if kind.nodes),
        )

    def check(self, message: WireMessage) -> None:
        """Refuse a message with a value that is outside of what we accept."""
        for get, check in self._checks:
            check(get(message))

    def nodes(self, message: WireMessage) -> tuple[NodeId, ...]:
        """The nodes that a message names, as peers that its receiver may want to talk to."""
        return tuple(node for get, nodes in self._naming for node in nodes(get(message)))


def _control(**fields: FieldKind) -> MessageFormat:
    return MessageFormat.of(CONTROL, CONTROL_BYTES_MAX, fields)


def _data(**fields: FieldKind) -> MessageFormat:
    return MessageFormat.of(DATA, DATA_BYTES_MAX, fields)


def _claims(**fields: FieldKind) -> MessageFormat:
    return MessageFormat.of(DATA, CLAIMS_BYTES_MAX, fields)


def _page(**fields: FieldKind) -> MessageFormat:
    return MessageFormat.of(DATA, PAGE_BYTES_MAX, fields)


FORMATS: Final[Mapping[type[WireMessage], MessageFormat]] = {
    Subscribe: _control(node=NODE.or_none()),
    Unsubscribe: _control(node=NODE.or_none()),
    GetConfiguration: _control(node=NODE.or_none(), digest=DIGEST.or_none()),
    SetConfiguration: _control(pred=PEER.or_none(), label=LABEL.or_none(), succ=PEER.or_none()),
    CheckLabel: _control(sender=PEER, believed=LABEL.or_none(), link=LINK),
    Introduce: _control(peer=PEER, link=LINK, first_hand=FLAG),
    IntroduceShortcut: _control(peer=PEER),
    RemoveConnections: _control(node=NODE),
    Digest: _control(node=NODE, digest=DIGEST),
    CheckTrie: _claims(sender=NODE, claims=CLAIMS, session=SESSION, confirm=FLAG),
    CheckAndPublish: _claims(sender=NODE, claims=CLAIMS, session=SESSION, wanted=CLAIMS),
    Publications: _data(publications=PUBLICATIONS, session=SESSION),
    TrieEqual: _control(sender=NODE, root=TRIE_DIGEST),
    PublishNew: _data(publication=PUBLICATION, hops=HOPS),
    PublishMany: _data(publications=PUBLICATIONS, hops=HOPS),
    IHave: _control(sender=NODE, ids=SHORT_IDS, hops=HOPS_OF_EACH),
    Want: _control(sender=NODE, ids=SHORT_IDS, hops=HOPS_OF_EACH),
    CheckHeld: _claims(sender=NODE, session=NUMBER, claims=CLAIMS, ids=ASKED_IDS),
    Held: _claims(
        sender=NODE,
        session=NUMBER,
        durable=FLAG,
        claims=CLAIMS,
        held=ASKED_IDS,
        missing=ASKED_IDS,
    ),
    Draining: _control(sender=NODE, remaining=REMAINING),
    RequestHandover: _control(sender=NODE, session=NUMBER),
    HandoverDone: _control(sender=NODE, session=NUMBER, complete=FLAG),
    ReportUnresponsive: _control(node=NODE),
    Ping: _control(nonce=NUMBER),
    Pong: _control(nonce=NUMBER),
    ConfigurationAck: _control(),
    FindMembers: _control(request=NUMBER, count=COUNT),
    MemberList: _control(request=NUMBER, members=MEMBERS),
    Publish: _data(request=NUMBER, publication=PUBLICATION, volatile=FLAG),
    PublishAck: _control(request=NUMBER, id=ID, offset=OFFSET),
    Refused: _control(request=NUMBER, reason=REASON),
    FetchDatabase: _control(request=NUMBER, start=NUMBER),
    DatabasePage: _page(
        request=NUMBER,
        total=NUMBER,
        digest=DIGEST,
        cursor=NUMBER,
        next=NUMBER.or_none(),
        entries=ENTRIES,
        queue=WAITING,
        conflicts=CONFLICTS,
    ),
    GetNodeStatus: _control(request=NUMBER),
    NodeStatus: _page(
        request=NUMBER,
        member=FLAG,
        label=LABEL.or_none(),
        left=PEER.or_none(),
        right=PEER.or_none(),
        ring=PEER.or_none(),
        shortcuts=SHORTCUTS,
        silence=SILENCE,
        digests=DIGESTS,
        count=NUMBER,
        end=OFFSET,
        root=ROOT,
        health=HEALTH,
    ),
    FetchPublications: _control(request=NUMBER, start=OFFSET, end=OFFSET, payloads=FLAG),
    PublicationPage: _data(request=NUMBER, next=OFFSET.or_none(), publications=LISTED),
    FetchChanges: _control(request=NUMBER),
    ChangePage: _page(request=NUMBER, tick=NUMBER, entries=JOURNAL),
    GetLogInfo: _control(request=NUMBER, bits=BITS.or_none(), offset=OFFSET.or_none()),
    LogInfo: _control(
        request=NUMBER,
        store=STORE,
        epoch=NUMBER,
        durable_end=OFFSET,
        end=OFFSET,
        count=NUMBER,
        digests=SURVEY,
        chain=CHAIN,
    ),
    FetchLog: _control(
        request=NUMBER,
        store=STORE,
        epoch=NUMBER,
        start=OFFSET,
        end=OFFSET,
        bits=BITS,
        prefix=PREFIX,
        contents=FLAG,
    ),
    LogPage: _data(
        request=NUMBER, next=OFFSET.or_none(), offsets=OFFSETS, ids=IDS, publications=STORED
    ),
    FetchDeliveries: _control(request=NUMBER, start=OFFSET, end=OFFSET),
    DeliveryPage: _data(
        request=NUMBER,
        next=OFFSET.or_none(),
        offsets=OFFSETS,
        times=TIMES,
        hops=BYTES_OF_EACH,
        origins=BYTES_OF_EACH,
        ids=IDS,
    ),
    GetSupervisorStatus: _control(request=NUMBER, start=NUMBER),
    SupervisorStatus: _page(
        request=NUMBER,
        ticks=NUMBER,
        suspects=NUMBER,
        evictions=NUMBER,
        total=NUMBER,
        next=NUMBER.or_none(),
        topics=TOPICS,
    ),
    FetchArrivals: _control(request=NUMBER, since=NUMBER),
    ArrivalPage: _page(request=NUMBER, next=NUMBER, arrivals=ARRIVALS),
    AskHolder: _control(connection=NUMBER, nonce=NUMBER, address=ADDRESS.or_none()),
    HolderReply: _control(connection=NUMBER, is_own=FLAG),
    NameTaken: _control(incarnation=INCARNATION, address=ADDRESS, refused=FLAG),
    ChaosPing: _control(request=NUMBER),
    Overwrite: _page(
        request=NUMBER,
        label=LABEL.or_none(),
        left=PEER.or_none(),
        right=PEER.or_none(),
        ring=PEER.or_none(),
        shortcuts=SHORTCUTS,
        silence=SILENCE,
        digests=DIGESTS,
    ),
    OverwriteDatabase: _data(request=NUMBER, database=DATABASE, next=NUMBER, queue=NAMES),
    CorruptTrie: _control(request=NUMBER, hashes=NUMBER, publications=NUMBER, seed=NUMBER),
    Forge: _data(request=NUMBER, frames=FORGED),
    Isolate: _data(request=NUMBER, nodes=NAMES, ticks=NUMBER),
    Crash: _control(request=NUMBER),
    ChaosAck: _control(request=NUMBER),
}


def tag_of(message_type: type[WireMessage]) -> int:
    """The number that a message starts with."""
    tag = message_type.__struct_config__.tag
    assert isinstance(tag, int), f"{message_type.__name__} has no number for a tag"
    return tag
