"""State of the machines as values, for world files, adversaries and the legitimacy check.

The fields have the paper's names, because the world file has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from skipring.core.batches import RecordBatch
from skipring.core.labels import Label, Word
from skipring.core.log import MemoryLog
from skipring.core.log_messages import TermsDigest
from skipring.core.messages import Hops
from skipring.core.peers import NodeId, Peer
from skipring.core.prefix import Prefix
from skipring.core.publications import PublicationId
from skipring.core.retention.member import TermsState
from skipring.core.summaries import RangeSummary, ShortId, TrieDigest
from skipring.core.topology import Chains, chains_around, line_and_wrap, neighbours_of
from skipring.core.trie import Offset, PublicationTrie


class LivenessState(Struct, frozen=True, array_like=True, gc=False):
    """Silence of a ring neighbour in ticks, and its timeout (R9)."""

    ticks: int
    threshold: int
    pending: bool


# -- variables that the paper does not name ----------------------------------------------------
#
# The default of every field is the value of a new machine. A derived value is None unless it is
# wrong.


class AnnouncementState(Struct, frozen=True, array_like=True, gc=False):
    """Announcement to send: hops of a publication, and the nodes that have it."""

    hops: Hops
    nodes: tuple[NodeId | None, ...]


class PendingWantState(Struct, frozen=True, array_like=True, gc=False):
    """Announced publication that is missing: announcing node, hops, and Flushes to wait."""

    node: NodeId
    hops: Hops
    flushes: int


class BroadcastState(Struct, frozen=True, kw_only=True, gc=False):
    """Broadcast state of a subscriber (section 4.3)."""

    calm_ticks: int = 0
    has_news: bool = False
    news_ticks: int = 0
    tree_edges: tuple[NodeId | None, ...] | None = None
    levels: int | None = None


class LazyPushState(Struct, frozen=True, kw_only=True, gc=False):
    """Lazy push state of a subscriber; the keys are short ids."""

    news: dict[ShortId, AnnouncementState] = {}
    missing: dict[ShortId, PendingWantState] = {}
    recent: tuple[ShortId, ...] = ()
    told: tuple[ShortId, ...] = ()


class RepairState(Struct, frozen=True, kw_only=True, gc=False):
    """Anti-entropy state of a subscriber (T8, T18)."""

    session: int = 0
    patience: int | None = None  # None: as configured
    open_ticks: int = 0
    quiet_ticks: int = 0
    period: int = 1
    claims: tuple[RangeSummary, ...] | None = None


class TransferState(Struct, frozen=True, kw_only=True, gc=False):
    """Bulk transfers from and to a subscriber; ``served``: session and ticks by receiver."""

    source: NodeId | None = None
    source_ticks: int = 0
    received_ticks: int = 0
    rest_ticks: int = 0
    served: dict[NodeId, tuple[int, int]] = {}


PATIENCE_TICKS: Final = 3  # Guess: a source without progress for longer is replaced.


class SourceProgress(Struct, frozen=True, gc=False):
    """Credit of one source of a backfill, in ticks."""

    credit: float = float(PATIENCE_TICKS)
    batches: int = 0  # that have counted
    known: int = 0  # of these, publications that the node already held


class LogExtent(Struct, frozen=True, array_like=True, gc=False):
    """Extent of a neighbour's log: offsets below ``end`` of a store in an epoch."""

    store: str
    epoch: int
    end: int
    count: int  # publications
    terms: TermsDigest = b""


class BackfillSourceState(Struct, frozen=True, kw_only=True, gc=False):
    """Neighbour that serves a backfill: the extent of its log, and the open request to it."""

    request: int
    extent: LogExtent | None = None  # None until the first response
    prefix: int | None = None  # prefix that this source reads
    start: int = 0  # offset of the next page
    is_held: bool = False  # the next page is not requested yet
    progress: SourceProgress = SourceProgress()
    pages: int = 0

    @property
    def is_asked(self) -> bool:
        """Return True while a response is outstanding."""
        return self.extent is None or (self.prefix is not None and not self.is_held)


class BackfillRunState(Struct, frozen=True, kw_only=True):
    """Backfill in progress."""

    sources: dict[NodeId, BackfillSourceState] = {}
    prefixes: tuple[int, ...] = ()  # not assigned to a source
    bits: int = 0  # length of the prefixes
    is_reading: bool = False
    held: int = 0  # publications of an earlier run
    ticks: int = 0  # since the start


class BackfillState(Struct, frozen=True, kw_only=True, gc=False):
    """Backfill of a subscriber."""

    expected: bool = False  # joined, without neighbours yet
    requests: int = 0  # number of the last request
    run: BackfillRunState | None = None


class SyncState(Struct, frozen=True, kw_only=True, gc=False):
    """Ring neighbours that have confirmed being in sync (T19)."""

    confirmed: tuple[NodeId, ...] = ()
    ask_ticks: int = 0
    period: int = 1


class HandoverState(Struct, frozen=True, array_like=True, gc=False):
    """Ranges and ids that one receiver has not confirmed (decision 0049)."""

    session: int
    ranges: tuple[Prefix, ...]
    ids: dict[PublicationId, int]  # with the number of times that each was sent
    request: int | None  # session of the receiver's request
    waiting: bool
    ticks: int


class HandoversState(Struct, frozen=True, kw_only=True, gc=False):
    """Handovers of a subscriber, by receiver."""

    session: int = 0
    to: dict[NodeId, HandoverState] = {}


class DrainState(Struct, frozen=True, kw_only=True, gc=False):
    """Drain of a subscriber, and the other members that leave."""

    ticks: int = 0  # for which the subscriber still counts as leaving
    receiver: NodeId | None = None
    ids: tuple[PublicationId, ...] = ()
    everything: bool = False
    takes_memory: bool = False  # a receiver without a disk is accepted
    told: dict[NodeId, NodeId] = {}  # remaining node -> leaver that named it
    passed: tuple[NodeId, ...] = ()
    absent: tuple[NodeId, ...] = ()
    leaving: dict[NodeId, int] = {}


class CompletenessState(Struct, frozen=True, kw_only=True, gc=False):
    """Completeness of a subscriber, and the neighbours that have handed everything over."""

    complete: bool = False
    age: int = 0
    session: int = 0
    asked: NodeId | None = None
    asked_times: int = 0
    confirmed: tuple[NodeId, ...] = ()


class ScrubState(Struct, frozen=True, kw_only=True, gc=False):
    """Progress of the scrub (T10 to T12)."""

    offset: int = 0
    end: int = 0
    ids: int = 0
    found: int = 0
    has_doubts: bool = False


class NumberState(Struct, frozen=True, array_like=True, gc=False):
    """Newest number of one incarnation of the node's own name (decision 46)."""

    incarnation: int
    seq: int | None  # None: no number is known


class ReplicaState(Struct, frozen=True, kw_only=True, gc=False):
    """Replica state of a subscriber, without the log."""

    numbers: tuple[NumberState, ...] = ()  # where the log has others
    spent: dict[NodeId, int] = {}
    unindexed: dict[PublicationId, Offset] = {}
    index: dict[
        PublicationId, Offset | None
    ] = {}  # where the trie differs; None: the id is not in it
    count: Offset | None = None
    scrubbed: int = 0


class ExchangeState(Struct, frozen=True, kw_only=True, gc=False):
    """Exchange of terms with other members: partners, and ticks in which they may compare."""

    equal: int = 0
    levels: int = 0
    met: dict[NodeId, int] = {}
    ticks: int = 0


# Id of a charter, or none.


class SubscriberMemory(Struct, frozen=True, kw_only=True, gc=False):
    """Variables of a subscriber that section 3.2 does not name."""

    audit_ticks: int = 0
    ask_ticks: int = 0  # D1
    chains: Chains | None = None
    weight: Word | None = None
    spreading: BroadcastState = BroadcastState()
    announcing: LazyPushState = LazyPushState()
    repair: RepairState = RepairState()
    histories: TransferState = TransferState()
    scrub: ScrubState | None = None
    holdings: ReplicaState = ReplicaState()
    handovers: HandoversState = HandoversState()
    drain: DrainState = DrainState()
    completeness: CompletenessState = CompletenessState()
    backfill: BackfillState = BackfillState()
    sync: SyncState = SyncState()
    unheard: dict[NodeId, int] | None = None
    exchange: ExchangeState | None = None
    terms: TermsState | None = None


class CaseState(Struct, frozen=True, gc=False):
    """Accusation of one member."""

    since: int
    newest: int
    accusers: tuple[NodeId, ...] = ()
    pinged: int = 0


class DetectorState(Struct, frozen=True, kw_only=True, gc=False):
    """Variables of the failure detector (section 3.3)."""

    cases: dict[NodeId, CaseState] = {}
    unanswered: dict[NodeId, int] = {}
    pings: int = 8
    reports: int = 64


class SupervisorMemory(Struct, frozen=True, kw_only=True, gc=False):
    """Variables of a supervisor that section 3.1 does not name."""

    ticks: int = 0
    calm_ticks: int = 0
    mismatches: int = 0
    refresh_ticks: int = 0
    answered: tuple[int, int] = (0, 0)  # members, other nodes
    told: dict[NodeId, int] = {}
    suspects: dict[NodeId, int] = {}
    digest: Word | None = None
    audited: int = 0
    audited_sum: int = 0
    index: dict[NodeId, int] | None = None
    detector: DetectorState = DetectorState()


# -- the machines -------------------------------------------------------------------------------


class SubscriberState(Struct, frozen=True, kw_only=True, gc=False):
    """Variables of a subscriber (section 3.2)."""

    member: bool = True
    label: Label | None = None
    left: Peer | None = None
    right: Peer | None = None
    ring: Peer | None = None
    shortcuts: dict[Label, NodeId | None] = {}
    silence: dict[NodeId, LivenessState] = {}
    digests: dict[NodeId, Word] = {}
    publications: tuple[RecordBatch, ...] = ()
    hashes: dict[Prefix, TrieDigest] = {}  # wrong digests of the trie
    memory: SubscriberMemory | None = None  # None: that of a new subscriber

    @property
    def chains(self) -> Chains | None:
        """Return the cached shortcut chains if they are wrong, else None."""
        return self.memory.chains if self.memory is not None else None

    def batches(self) -> tuple[RecordBatch, ...]:
        """Return the stored publications."""
        return self.publications

    def misplaced(self) -> int:
        """Return the number of ids in the trie whose offset does not hold their record."""
        index = self.memory.holdings.index if self.memory is not None else {}
        return sum(offset is not None for offset in index.values())

    def trie(self) -> PublicationTrie:
        """Build v.T: the trie of the publications, with the wrong digests."""
        terms = self.memory.terms if self.memory is not None else None
        hidden = terms.quarantine.hidden if terms is not None else {}
        entries = MemoryLog(self.publications).entries()
        trie = PublicationTrie()
        trie.add_many((key, at) for key, at in entries if hidden.get(key) != at)
        trie.corrupt(self.hashes)
        return trie


class SupervisorState(Struct, frozen=True, kw_only=True):
    """Variables of the supervisor (section 3.1).

    The database is the paper's multiset of (label, subscriber) pairs. It can represent every
    corruption that the paper names, including labels that l never produces.
    """

    database: tuple[tuple[str, NodeId | None], ...] = ()
    next: int = 0
    queue: tuple[NodeId, ...] = ()
    memory: SupervisorMemory | None = None  # None: that of a new supervisor


def legitimate_state(index: int, nodes: Sequence[NodeId]) -> SubscriberState:
    """Return the state of ``nodes[index]`` if the nodes form SR(n) in this order (section 2.1)."""
    own = Peer(Label.nth(index), nodes[index])
    if len(nodes) == 1:
        return SubscriberState(label=own.label)
    before, after = neighbours_of(index, len(nodes))
    pred, succ = Peer(Label.nth(before), nodes[before]), Peer(Label.nth(after), nodes[after])
    left, right, ring = line_and_wrap(own, pred, succ)
    slots = chains_around(own.label, pred.label, succ.label).slots
    return SubscriberState(
        label=own.label,
        left=left,
        right=right,
        ring=ring,
        shortcuts={label: nodes[label.index] for label in slots},
    )


def legitimate_states(nodes: Sequence[NodeId]) -> Iterator[tuple[NodeId, SubscriberState]]:
    """Yield every node's state if the nodes form SR(n) in this order."""
    for index, node in enumerate(nodes):
        yield node, legitimate_state(index, nodes)
