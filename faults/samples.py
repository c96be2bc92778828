"""Samples: one valid message of every wire type, as input for attacks and tests."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.labels import Label
from skipring.core.limits import CHAIN_BYTES
from skipring.core.log_messages import (
    FetchLog,
    FetchRecords,
    GetLogInfo,
    LogInfo,
    LogPage,
    RecordFilter,
    Refused,
)
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
    Terms,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import EdgeKind, NodeId, Peer
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import ID_BYTES
from skipring.core.retention.floors import FloorStamps
from skipring.core.state import LivenessState
from skipring.core.summaries import DIGEST_BYTES, RangeSummary, Summary
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
from skipring.wire.handshake import AskHolder, HolderReply, NameTaken
from skipring.wire.rpc import (
    Arrival,
    ArrivalPage,
    ChangeEntry,
    ChangePage,
    DatabasePage,
    DeliveryPage,
    FetchArrivals,
    FetchChanges,
    FetchDatabase,
    FetchDeliveries,
    FindMembers,
    GetNodeStatus,
    GetSupervisorStatus,
    MemberList,
    NodeHealth,
    NodeStatus,
    Publish,
    PublishAck,
    SupervisorStatus,
    TopicStatus,
    WireMessage,
)

ADDRESS: Final = "127.0.0.1:7400"


def _label(text: str) -> Label:
    """Return the label with these bits."""
    return Label.parse(text)


def _peer(text: str, node: NodeId) -> Peer:
    """Return a node with the label of these bits."""
    return Peer(Label.parse(text), node)


TOPIC: Final = "news"
RECORD: Final = BatchRecord(b"hello", 1, b"k", {"src": "web"})
BATCH: Final = RecordBatch.of([RECORD], publisher="a", first=7, topic=TOPIC)
LISTED: Final = replace(BATCH, body=b"")  # as a member lists it without contents
_CLAIM = RangeSummary.make(ALL, [Summary(Prefix.parse("01"), bytes(range(16)))])
_LEAVES = RangeSummary.make(Prefix.parse("1"), leaves=[b"12345678"])

SAMPLES: Final[tuple[WireMessage, ...]] = (
    Subscribe("a"),
    Unsubscribe(None),
    GetConfiguration("a", 2**64 - 1),
    SetConfiguration(_peer("0", "a"), _label("01"), None),
    CheckLabel(_peer("01", "a"), _label("1"), EdgeKind.LINE),
    Introduce(_peer("01", "a"), EdgeKind.WRAP, first_hand=True),
    IntroduceShortcut(_peer("1", "b")),
    RemoveConnections("b"),
    Digest("a", 258),
    CheckTrie("a", (_CLAIM,), 5, confirm=True, terms=bytes(range(8))),
    CheckAndPublish("a", (_CLAIM,), 5, (_LEAVES,), bytes(range(8))),
    Publications((BATCH, BATCH), 5),
    TrieEqual("a", bytes(16), bytes(range(8))),
    PublishNew(BATCH, 3),
    PublishMany((BATCH, BATCH), 3),
    IHave("a", b"12345678", b"\x03"),
    Want("a", b"", b""),
    CheckHeld("a", 9, (_CLAIM,), bytes(range(ID_BYTES))),
    Held("a", 9, True, (_CLAIM,), bytes(range(ID_BYTES)), bytes(ID_BYTES)),
    Draining("a", ("b",)),
    RequestHandover("a", 1),
    HandoverDone("a", 1, complete=True),
    Terms("a", (BATCH,), FloorStamps(1, 2, 3), 1_700_000_000_000_000, asks=True),
    FindMembers(1, 8),
    MemberList(1, {"a": ADDRESS, "b": "[::1]:7401"}),
    ReportUnresponsive("b"),
    Ping(9),
    Pong(9),
    ConfigurationAck(),
    Publish(2, BATCH),
    PublishAck(2, bytes(range(ID_BYTES)), 1000),
    Refused(2, "not a member of this topic"),
    FetchDatabase(3, 0),
    DatabasePage(3, 2, 258, 1, None, (("0", "a"), ("10", None)), ("b",)),
    GetNodeStatus(3),
    NodeStatus(
        request=3,
        member=True,
        label=_label("0"),
        left=None,
        right=_peer("01", "b"),
        ring=_peer("1", "c"),
        shortcuts=((_label("1"), "c"), (_label("011"), None)),
        silence={"b": LivenessState(1, 3, True)},
        digests={"d": 258},
        count=2,
        end=3,
        root=bytes(range(DIGEST_BYTES)),
        health=NodeHealth(
            time=1_700_000_000_000_000,
            silent={"b": 2},
            unlinked=("c",),
            not_ready="the backfill is not complete",
            ahead=1,
            quarantined=3,
            disk_error="no space left",
            overlapping=4,
            clones=(ADDRESS,),
        ),
    ),
    FetchChanges(3),
    ChangePage(3, 9, (ChangeEntry(8, 1, "Introduce", "b", "left", "none", "(0, b)", "why"),)),
    GetLogInfo(5, 1, 9),
    LogInfo(5, "5eed", 1, 2, 3, 3, (bytes(range(DIGEST_BYTES)), b""), bytes(CHAIN_BYTES), bytes(8)),
    FetchLog(5, "5eed", 1, 1, 1000, 4, 15, contents=True),
    FetchRecords(
        5,
        "5eed",
        1,
        1,
        1000,
        4,
        15,
        payloads=False,
        where=RecordFilter(("a",), (b"k", b""), (1, 2), (3, 4), b"\x01"),
    ),
    LogPage(5, 9, (1, 8), (BATCH, LISTED)),
    FetchDeliveries(5, 1, 1000),
    DeliveryPage(5, None, (1,), (2,), b"\x03", b"\x01", bytes(range(ID_BYTES))),
    GetSupervisorStatus(6, 0),
    SupervisorStatus(6, 99, 1, 2, 1, None, (TopicStatus("news", 16, 40),)),
    FetchArrivals(7, 3),
    ArrivalPage(7, 4, (Arrival(9, "b", 2, 1, 3, 2, "a", 7, 5),)),
    AskHolder(7, 2**62 - 1, ADDRESS),
    HolderReply(7, is_own=True),
    NameTaken(7, ADDRESS, refused=True),
    ChaosPing(4),
    Overwrite(
        request=4,
        label=_label("1"),
        left=_peer("01", "b"),
        right=None,
        ring=_peer("0", "c"),
        shortcuts=((_label("1"), "e"), (_label("011"), None)),
        silence={"b": LivenessState(1, -3, True)},
        digests={"d": 258},
    ),
    OverwriteDatabase(4, (("0", "a"), ("10", None)), 7, ("b",)),
    CorruptTrie(4, 2, 3, 5),
    Forge(4, b"\x00"),
    Isolate(4, ("a", "b"), 60),
    Crash(4),
    ChaosAck(4),
)

_END: Final = (1 << 40) - 1  # above every offset
# Requests that read or scan in other ways than those above.
SCANS: Final[tuple[WireMessage, ...]] = (
    FetchLog(5, "", 0, 0, _END, 8, 255, contents=True, by_publisher=True),
    FetchLog(5, "", 0, 0, _END, 8, 255, contents=False, departed=0),
    FetchRecords(5, "", 0, 0, _END, 0, 0, payloads=True, departed=0),
)
