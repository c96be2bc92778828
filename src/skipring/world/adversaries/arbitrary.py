"""Arbitrary initial states, and the source of their values (section 1.1).

An arbitrary state is any content of a corrupted memory or channel: every variable and every message
has a value of its type, and every named node exists or has existed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.labels import LABEL_BITS, Label
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.messages import (
    CHARTERS_MAX,
    MESSAGE_TYPES,
    SUPERVISOR_REQUESTS,
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
    Message,
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
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId, Peer
from skipring.core.prefix import ALL, Prefix, apart
from skipring.core.publications import ID_BYTES
from skipring.core.retention.floors import FloorsState, FloorStamps
from skipring.core.retention.member import TermsState
from skipring.core.retention.quarantine import QuarantineState
from skipring.core.retention.topic_clock import ClockState, NeighbourClock
from skipring.core.state import (
    ExchangeState,
    LivenessState,
    SubscriberState,
    SupervisorState,
)
from skipring.core.summaries import DIGEST_BYTES, SHORT_BYTES, RangeSummary, Summary
from skipring.world.adversaries.builders import (
    Database,
    legitimate_world,
    made_publications,
    node_names,
    share,
)
from skipring.world.snapshot import Parcel, Snapshot

T = TypeVar("T")

# All are guesses: enough to matter at every node without flooding it.
_ENTRIES_MAX: Final = 5  # in each map of a subscriber
_PUBLICATIONS: Final = 8  # available to forged messages
_PREFIX_BITS: Final = 12
_COUNTER_MAX: Final = 1024  # beyond every threshold that R9 accepts
_MESSAGES_PER_NODE: Final = 4
_OFFSETS: Final = 1 << 40
_FORGED_PER_NODE: Final = 6  # if forged messages are the only fault

_LINKS: Final = tuple(EdgeKind)


class Arbitrary:
    """Generator of values that name given nodes and have labels up to a given length.

    Half of the references it draws carry the node's real label, if ``labels`` has it: a reference
    that is half correct is harder to detect.
    """

    def __init__(
        self,
        rng: Random,
        nodes: Sequence[NodeId],
        *,
        label_bits: int | None = None,
        labels: Mapping[NodeId, Label | None] = MappingProxyType({}),
        truth: float = 0.5,
        publications: Sequence[RecordBatch] = (),
    ) -> None:
        self.rng = rng
        self.nodes = nodes
        # A little longer than the labels of a ring of this size.
        self.label_bits = label_bits or len(nodes).bit_length() + 2
        self.labels = labels
        self.truth = truth
        self.publications = publications
        self._drawn: dict[int, Label] = {}  # short labels repeat often: share one object

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < probability

    def maybe(self, probability: float, draw: Callable[[], T]) -> T | None:
        """Return a drawn value with the given probability, else None."""
        return draw() if self.chance(probability) else None

    def bits(self) -> str:
        """Return a bit string, canonical or not."""
        width = self.rng.randint(1, self.label_bits)
        return format(self.rng.getrandbits(width), f"0{width}b")

    def label(self) -> Label:
        """Return any label; all lengths are about equally likely."""
        bits = self.bits()
        position = int(bits, 2) << (LABEL_BITS - len(bits))
        return self._drawn.setdefault(position, Label(position))

    def node(self) -> NodeId:
        """Return any node."""
        return self.rng.choice(self.nodes)

    def subject(self) -> NodeId | None:
        """Return the node that a request names; in 20 % of cases None or the supervisor."""
        return self.rng.choice((None, SUPERVISOR)) if self.chance(0.2) else self.node()

    def peer(self) -> Peer:
        """Return any node under its own or any other label."""
        node = self.node()
        label = self.labels.get(node)
        if label is None or not self.chance(self.truth):
            label = self.label()
        return Peer(label, node)

    def link(self) -> EdgeKind:
        """Return any kind of edge."""
        return self.rng.choice(_LINKS)

    def digest(self) -> int:
        """Return any digest (R14)."""
        return self.rng.getrandbits(64)

    def silence(self) -> LivenessState:
        """Return any counters of R9, including thresholds that no machine sets."""
        return LivenessState(
            ticks=self.rng.randrange(_COUNTER_MAX),
            threshold=self.rng.randint(-_COUNTER_MAX, _COUNTER_MAX),
            pending=self.chance(0.5),
        )

    def some(self, draw: Callable[[], T]) -> list[T]:
        """Return 0 to 5 drawn values."""
        return [draw() for _ in range(self.rng.randint(0, _ENTRIES_MAX))]

    def few(self, draw: Callable[[], T]) -> list[T]:
        """Return an empty list with probability 1/2, else 0 to 5 drawn values."""
        return self.some(draw) if self.chance(0.5) else []

    def state(self, label: Label | None) -> SubscriberState:
        """Return an arbitrary subscriber with the given label."""
        return SubscriberState(
            label=label,
            left=self.maybe(0.7, self.peer),
            right=self.maybe(0.7, self.peer),
            ring=self.maybe(0.7, self.peer),
            shortcuts={slot: self.maybe(0.8, self.node) for slot in self.some(self.label)},
            silence={node: self.silence() for node in self.few(self.node)},
            digests={node: self.digest() for node in self.few(self.node)},
        )

    def database(self) -> Database:
        """Return any multiset of pairs, with every corruption that section 3.1 names."""
        entries = self.rng.randint(0, 2 * len(self.nodes))
        return tuple((self.bits(), self.maybe(0.9, self.node)) for _ in range(entries))

    def supervisor(self) -> SupervisorState:
        """Return an arbitrary supervisor."""
        return SupervisorState(
            database=self.database(),
            next=self.rng.getrandbits(32),
            queue=tuple(self.rng.choices(self.nodes, k=self.rng.randint(0, len(self.nodes)))),
        )

    def prefix(self, cover: Prefix = ALL) -> Prefix:
        """Return a prefix that begins with another one."""
        bits = self.rng.randint(1, _PREFIX_BITS)
        return cover.extended(Prefix(bits, self.rng.getrandbits(bits)))

    def claim(self) -> RangeSummary:
        """Return any claim about a trie."""
        cover = self.maybe(0.7, self.prefix) or ALL
        labels = apart(self.few(lambda: self.prefix(cover)))
        nodes = [Summary(label, self.rng.randbytes(DIGEST_BYTES)) for label in labels]
        return RangeSummary.make(cover, nodes, self.few(self.short_id))

    def claims(self) -> tuple[RangeSummary, ...]:
        """Return up to two claims."""
        return tuple(self.claim() for _ in range(self.rng.randrange(3)))

    def short_id(self) -> bytes:
        """Return any short id, half of the time of an existing publication."""
        if self.publications and self.chance(0.5):
            return self.rng.choice(self.publications).id[:SHORT_BYTES]
        return self.rng.randbytes(SHORT_BYTES)

    def short_ids(self) -> tuple[bytes, bytes]:
        """Return a few short ids with their hops, packed as in messages."""
        ids = self.some(self.short_id)
        return b"".join(ids), self.rng.randbytes(len(ids))

    def terms(self) -> tuple[Any, ...]:
        """Return the fields of Terms with any clock and floors, and rows that are no charters."""
        stamps = [self.rng.choice((0, self.rng.getrandbits(63))) for _ in range(4)]
        charters = tuple(self.half())[:CHARTERS_MAX]
        return self.node(), charters, FloorStamps(*stamps[:3]), stamps[3], self.chance(0.5)

    def terms_state(self, counter: Callable[[], int]) -> TermsState:
        """Return arbitrary clocks, floors and quarantines, without a charter."""
        known = {node: NeighbourClock(counter(), counter()) for node in self.some(self.node)}
        hidden = {key: self.rng.randrange(_OFFSETS) for key in self.some(self.whole_id)}
        early = {key: counter() for key in [*hidden, *self.some(self.whole_id)] if self.chance(0.5)}
        return TermsState(
            clock=ClockState(own=counter(), monotonic=counter(), neighbours=known),
            floors=FloorsState(
                age=counter(),
                full=counter(),
                tombstones=counter(),
                adopted_age=counter(),
                adopted_tombstones=counter(),
            ),
            quarantine=QuarantineState(hidden=hidden, early=early),
            last_confirmed=counter(),
            newest=counter(),
            rows_ticks=counter(),
            charters=tuple(sorted({counter() for _ in range(3)})),
            begins={key: counter() for key in self.some(self.whole_id)},
            confirmed=self.rng.randbytes(ID_BYTES),
        )

    def exchange_state(self, counter: Callable[[], int]) -> ExchangeState:
        """Return arbitrary partners and counters of an exchange of terms."""
        return ExchangeState(
            equal=counter(),
            levels=counter(),
            met={node: counter() for node in self.some(self.node)},
            ticks=counter(),
        )

    def whole_id(self) -> bytes:
        """Return any id, half of the time of an existing publication."""
        if self.publications and self.chance(0.5):
            return self.rng.choice(self.publications).id
        return self.rng.randbytes(ID_BYTES)

    def batch(self) -> RecordBatch:
        """Return an existing publication, or one of which only an arbitrary id is known."""
        if self.publications and self.chance(0.5):
            return self.rng.choice(self.publications)
        return RecordBatch(self.nodes[0], 0, 1, b"", id=self.rng.randbytes(ID_BYTES))

    def half(self) -> tuple[RecordBatch, ...]:
        """Return half of the publications, in any order."""
        return tuple(self.rng.sample(self.publications, len(self.publications) // 2))

    def log_page(self) -> tuple[int, None, tuple[int, ...], tuple[RecordBatch, ...]]:
        """Return the fields of any page of a log."""
        session, batches = self.session(), self.some(self.batch)
        return session, None, tuple(range(len(batches))), tuple(batches)

    def whole_ids(self) -> bytes:
        """Return a few ids, packed as in messages."""
        return b"".join(self.some(self.whole_id))

    def session(self) -> int:
        """Return any session number."""
        return self.rng.getrandbits(16)

    def parcels(self, count: int, receivers: Sequence[NodeId]) -> tuple[Parcel, ...]:
        """Return messages of every type in turn, so that a small count still covers all types."""
        # All members must receive a publication in flight, so forging PublishNew needs a
        # publication.
        known = [kind for kind in MESSAGE_TYPES if kind is not PublishNew or self.publications]
        kinds = (known[number % len(known)] for number in range(count))
        return tuple(
            Parcel(self._receiver(kind, receivers), kind(*MESSAGES[kind](self))) for kind in kinds
        )

    def _receiver(self, kind: type[Message], subscribers: Sequence[NodeId]) -> NodeId:
        """Return the receiver of a message; in 10 % of cases the wrong kind of process."""
        astray = self.chance(0.1)
        return (
            SUPERVISOR if (kind in SUPERVISOR_REQUESTS) != astray else self.rng.choice(subscribers)
        )


# The fields of each message; their order is the order of the draws, so it is part of the result.
MESSAGES: Final[Mapping[type[Message], Callable[[Arbitrary], tuple[Any, ...]]]] = MappingProxyType(
    {
        Subscribe: lambda draw: (draw.subject(),),
        Unsubscribe: lambda draw: (draw.subject(),),
        GetConfiguration: lambda draw: (draw.subject(), draw.maybe(0.5, draw.digest)),
        SetConfiguration: lambda draw: (
            draw.maybe(0.8, draw.peer),
            draw.maybe(0.5, draw.label),
            draw.maybe(0.8, draw.peer),
        ),
        CheckLabel: lambda draw: (draw.peer(), draw.maybe(0.9, draw.label), draw.link()),
        Introduce: lambda draw: (draw.peer(), draw.link(), draw.chance(0.5)),
        IntroduceShortcut: lambda draw: (draw.peer(),),
        RemoveConnections: lambda draw: (draw.node(),),
        Digest: lambda draw: (draw.node(), draw.digest()),
        CheckTrie: lambda draw: (draw.node(), draw.claims(), draw.session(), draw.chance(0.5)),
        CheckAndPublish: lambda draw: (draw.node(), draw.claims(), draw.session(), draw.claims()),
        Publications: lambda draw: (draw.half(), (session := draw.session()), session % 2 == 1),
        TrieEqual: lambda draw: (draw.node(), draw.rng.randbytes(DIGEST_BYTES)),
        PublishNew: lambda draw: (draw.rng.choice(draw.publications), draw.rng.getrandbits(10)),
        PublishMany: lambda draw: (draw.half(), draw.rng.getrandbits(10)),
        IHave: lambda draw: (draw.node(), *draw.short_ids()),
        Want: lambda draw: (draw.node(), *draw.short_ids()),
        CheckHeld: lambda draw: (draw.node(), draw.session(), draw.claims(), draw.whole_ids()),
        Held: lambda draw: (
            *(draw.node(), draw.session(), draw.chance(0.5), draw.claims()),
            *(draw.whole_ids(), draw.whole_ids()),
        ),
        Draining: lambda draw: (draw.node(), tuple(draw.few(draw.node))[:8]),
        RequestHandover: lambda draw: (draw.node(), draw.session()),
        HandoverDone: lambda draw: (draw.node(), draw.session(), draw.chance(0.5)),
        Terms: lambda draw: draw.terms(),
        ReportUnresponsive: lambda draw: (draw.node(),),
        Ping: lambda draw: (draw.session(),),
        Pong: lambda draw: (draw.session(),),
        ConfigurationAck: lambda _: (),
        GetLogInfo: lambda draw: (draw.session(), None, None),
        LogInfo: lambda draw: (draw.session(), "", 0, 0, draw.session(), draw.session(), (), b""),
        FetchLog: lambda draw: (
            *(draw.session(), "", 0, draw.session(), draw.session(), 1),
            *(draw.rng.getrandbits(1), draw.chance(0.5)),
        ),
        LogPage: lambda draw: draw.log_page(),
        Refused: lambda draw: (draw.session(), "busy"),
    }
)


# -- worlds ----------------------------------------------------------------------------------


def corrupted_messages(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Return a legitimate state with forged messages of every type in the channels."""
    world = legitimate_world(n, rng)
    nodes = list(world.subscribers)
    labels = {node: state.label for node, state in world.subscribers.items()}
    forged = made_publications(world.topic, _PUBLICATIONS, nodes, rng, batch=batch)
    draw = Arbitrary(rng, nodes, labels=labels, publications=forged)
    return replace(world, channels=draw.parcels(_FORGED_PER_NODE * n, nodes))


def equal_labels(n: int, rng: Random) -> Snapshot:
    """Give all subscribers the same label, known to all; the rest is arbitrary."""
    nodes = node_names(n)
    label = Arbitrary(rng, nodes).label()
    draw = Arbitrary(rng, nodes, labels=dict.fromkeys(nodes, label), truth=1.0)
    return Snapshot(
        supervisor=draw.supervisor(), subscribers={node: draw.state(label) for node in nodes}
    )


def arbitrary_world(n: int, rng: Random, *, label_bits: int | None = None) -> Snapshot:
    """Return a world with arbitrary variables and channels."""
    return _arbitrary(node_names(n), (), rng, label_bits)


def arbitrary_world_with_crashed(n: int, rng: Random) -> Snapshot:
    """Return an arbitrary world in which a quarter of the known nodes is dead."""
    dead = share(n, 3)
    nodes = node_names(n + dead)
    crashed = sorted(rng.sample(nodes, dead))
    removed = frozenset(crashed)
    return _arbitrary([node for node in nodes if node not in removed], crashed, rng, None)


def _arbitrary(
    live: Sequence[NodeId], crashed: Sequence[NodeId], rng: Random, label_bits: int | None
) -> Snapshot:
    known = [*live, *crashed]
    blind = Arbitrary(rng, known, label_bits=label_bits)
    labels = {node: blind.maybe(0.9, blind.label) for node in live}
    draw = Arbitrary(rng, known, label_bits=label_bits, labels=labels)
    return Snapshot(
        supervisor=draw.supervisor(),
        subscribers={node: draw.state(labels[node]) for node in live},
        crashed=tuple(crashed),
        channels=draw.parcels(_MESSAGES_PER_NODE * len(live), live),
    )
