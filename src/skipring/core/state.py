"""State of the machines as values, for world files, adversaries and the judge.

The fields have the paper's names, because the world file has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from skipring.core.labels import Label
from skipring.core.messages import IHave
from skipring.core.peers import NodeId, Peer
from skipring.core.prefix import Prefix
from skipring.core.publications import Publication
from skipring.core.summaries import RangeSummary
from skipring.core.topology import Chains, chains_around, line_and_wrap, neighbours_of
from skipring.core.trie import PublicationTrie


class LivenessState(Struct, frozen=True, array_like=True, gc=False):
    """How long a ring neighbour has not been heard, and when that is too long (R9)."""

    ticks: int
    threshold: int
    pending: bool


# -- what machines remember besides -------------------------------------------------------------
#
# Every field has the value of a new machine by default. A derived value is None unless it is not
# what it should be.


class AnnouncementState(Struct, frozen=True, array_like=True, gc=False):
    """What is to be announced: over how many hops it came, and which nodes have it."""

    hops: int
    nodes: tuple[NodeId | None, ...]


class ArrivalState(Struct, frozen=True, array_like=True, gc=False):
    """Publications that were delivered and are to be kept."""

    publications: tuple[Publication, ...]
    hops: int
    nodes: tuple[NodeId | None, ...]


class PendingWantState(Struct, frozen=True, array_like=True, gc=False):
    """What was only announced: by whom, over how many hops, and for how many Flushes to wait."""

    node: NodeId
    hops: int
    flushes: int


class BroadcastState(Struct, frozen=True, kw_only=True, gc=False):
    """What a subscriber remembers of the spreading of new publications (section 4.3)."""

    calm_ticks: int = 0
    has_news: bool = False
    news_ticks: int = 0
    put_off: int = 0
    arrivals: tuple[ArrivalState, ...] = ()
    tree_edges: tuple[NodeId | None, ...] | None = None
    levels: int | None = None


class LazyPushState(Struct, frozen=True, kw_only=True, gc=False):
    """What a subscriber remembers of its lazy edges; ids by their beginnings."""

    news: dict[bytes, AnnouncementState] = {}
    missing: dict[bytes, PendingWantState] = {}
    heard: tuple[IHave, ...] = ()
    recent: tuple[bytes, ...] = ()
    told: tuple[bytes, ...] = ()


class RepairState(Struct, frozen=True, kw_only=True, gc=False):
    """What a subscriber remembers of comparing tries (T8, T18)."""

    session: int = 0
    patience: int | None = None  # None: as configured
    open_ticks: int = 0
    quiet_ticks: int = 0
    period: int = 1
    claims: tuple[RangeSummary, ...] | None = None


class TransferState(Struct, frozen=True, kw_only=True, gc=False):
    """The histories that a subscriber takes part in: session and ticks of those it sends."""

    source: NodeId | None = None
    source_ticks: int = 0
    received_ticks: int = 0
    rest_ticks: int = 0
    served: dict[NodeId, tuple[int, int]] = {}


class HandoverState(Struct, frozen=True, array_like=True, gc=False):
    """What one receiver has not confirmed yet (decision 0049)."""

    session: int
    ranges: tuple[Prefix, ...]
    ids: dict[bytes, int]  # and how often each was sent
    request: int | None  # session of the receiver's request
    waiting: bool
    ticks: int


class HandoversState(Struct, frozen=True, kw_only=True, gc=False):
    """What a subscriber hands over, and to which nodes."""

    session: int = 0
    to: dict[NodeId, HandoverState] = {}


class DrainState(Struct, frozen=True, kw_only=True, gc=False):
    """How far a subscriber that leaves has come with handing over, and who else leaves."""

    ticks: int = 0  # for which it still leaves
    receiver: NodeId | None = None
    ids: tuple[bytes, ...] = ()
    everything: bool = False
    takes_memory: bool = False  # a receiver without a disk is accepted
    told: dict[NodeId, NodeId] = {}  # nodes that remain, and the leavers that have named them
    passed: tuple[NodeId, ...] = ()
    absent: tuple[NodeId, ...] = ()
    leaving: dict[NodeId, int] = {}


class CompletenessState(Struct, frozen=True, kw_only=True, gc=False):
    """Whether a subscriber was handed everything, and by which neighbours."""

    complete: bool = False
    age: int = 0
    session: int = 0
    asked: NodeId | None = None
    asked_times: int = 0
    confirmed: tuple[NodeId, ...] = ()


class ScrubState(Struct, frozen=True, kw_only=True, gc=False):
    """How far the scrub has come (T10 to T12)."""

    offset: int = 0
    end: int = 0
    ids: int = 0
    found: int = 0
    has_doubts: bool = False


class NumberState(Struct, frozen=True, array_like=True, gc=False):
    """The last number of one sequence: that of a publisher in one incarnation (decision 46)."""

    publisher: NodeId
    incarnation: int
    seq: int | None  # None: no number of it is known


class ReplicaState(Struct, frozen=True, kw_only=True, gc=False):
    """What a subscriber remembers of its publications beside their archive."""

    numbers: tuple[NumberState, ...] = ()  # where those of the archive differ
    spent: dict[NodeId, int] = {}
    unindexed: dict[bytes, int] = {}
    index: dict[bytes, int | None] = {}  # where the trie differs; None: the id is not in it
    count: int | None = None
    scrubbed: int = 0


class SubscriberMemory(Struct, frozen=True, kw_only=True, gc=False):
    """Every variable of a subscriber that section 3.2 does not name."""

    audit_ticks: int = 0
    chains: Chains | None = None
    weight: int | None = None
    spreading: BroadcastState = BroadcastState()
    announcing: LazyPushState = LazyPushState()
    repair: RepairState = RepairState()
    histories: TransferState = TransferState()
    scrub: ScrubState | None = None
    holdings: ReplicaState = ReplicaState()
    handovers: HandoversState = HandoversState()
    drain: DrainState = DrainState()
    completeness: CompletenessState = CompletenessState()


class SupervisorMemory(Struct, frozen=True, kw_only=True, gc=False):
    """Every variable of a supervisor that section 3.1 does not name."""

    ticks: int = 0
    calm_ticks: int = 0
    mismatches: int = 0
    refresh_ticks: int = 0
    answered: tuple[int, int] = (0, 0)  # members, strangers
    told: dict[NodeId, int] = {}
    suspects: dict[NodeId, int] = {}
    digest: int | None = None
    audited: int = 0
    audited_sum: int = 0
    index: dict[NodeId, int] | None = None


# -- the machines -------------------------------------------------------------------------------


class SubscriberState(Struct, frozen=True, kw_only=True, gc=False):
    """The variables of a subscriber (section 3.2)."""

    member: bool = True
    label: Label | None = None
    left: Peer | None = None
    right: Peer | None = None
    ring: Peer | None = None
    shortcuts: dict[Label, NodeId | None] = {}
    silence: dict[NodeId, LivenessState] = {}
    digests: dict[NodeId, int] = {}
    publications: tuple[Publication, ...] = ()
    hashes: dict[Prefix, bytes] = {}  # of the trie, where they are not what they should be
    memory: SubscriberMemory | None = None  # None: that of a new subscriber

    @property
    def chains(self) -> Chains | None:
        """The shortcut chains as remembered, if they are wrong."""
        return self.memory.chains if self.memory is not None else None

    @property
    def unkept(self) -> tuple[Publication, ...]:
        """The publications that were delivered and are to be kept."""
        arrivals = self.memory.spreading.arrivals if self.memory is not None else ()
        return tuple(each for arrival in arrivals for each in arrival.publications)

    @property
    def misplaced(self) -> int:
        """How many ids the trie has at an offset where the archive has no such row."""
        index = self.memory.holdings.index if self.memory is not None else {}
        return sum(offset is not None for offset in index.values())

    @property
    def trie(self) -> PublicationTrie:
        """v.T: the trie of the publications, with the hashes that are wrong."""
        trie = PublicationTrie()
        trie.add_many(
            (publication.id, place) for place, publication in enumerate(self.publications)
        )
        trie.corrupt(self.hashes)
        return trie


class SupervisorState(Struct, frozen=True, kw_only=True):
    """The variables of the supervisor (section 3.1).

    The database is the paper's multiset of (label, subscriber) pairs, so that it can hold every
    corruption the paper names, labels that l never produces among them.
    """

    database: tuple[tuple[str, NodeId | None], ...] = ()
    next: int = 0
    queue: tuple[NodeId, ...] = ()
    memory: SupervisorMemory | None = None  # None: that of a new supervisor


def legitimate_state(index: int, nodes: Sequence[NodeId]) -> SubscriberState:
    """The state of ``nodes[index]`` once the nodes form SR(n) in this order (section 2.1)."""
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
    """Every node's state once the nodes form SR(n) in this order."""
    for index, node in enumerate(nodes):
        yield node, legitimate_state(index, nodes)
