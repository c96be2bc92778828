"""Hypothesis strategies for the values of the core and for whole states of a topic.

``snapshots()`` draws arbitrary system states in the paper's sense: any variables, any messages in
the channels, as corrupted as a world file can hold them, with references to crashed nodes, the
supervisor and the node itself. Every draw is valid in ``skipring-world/1``, and simple states (few
nodes called a, b, c; short labels; empty channels) come first when an example shrinks.
"""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import (
    HOPS_MAX,
    MESSAGE_TYPES,
    SESSION_MAX,
    CheckAndPublish,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    ConfigurationAck,
    Digest,
    Draining,
    FetchLog,
    GetConfiguration,
    GetLogInfo,
    HandoverDone,
    Held,
    IHave,
    Introduce,
    IntroduceShortcut,
    LogInfo,
    LogPage,
    Message,
    Ping,
    Pong,
    Publications,
    PublishMany,
    PublishNew,
    Refused,
    RemoveConnections,
    ReportUnresponsive,
    RequestHandover,
    SetConfiguration,
    Subscribe,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId, Peer
from skipring.core.prefix import ALL, Prefix, apart
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.state import LivenessState, SubscriberState, SupervisorState
from skipring.core.summaries import DIGEST_BYTES, SHORT_BYTES, RangeSummary, Summary
from skipring.world.adversaries.memory_states import with_memories
from skipring.world.snapshot import Parcel, Snapshot

T = TypeVar("T")

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOPIC = "news"  # topic of every snapshot

digests = st.integers(0, CIRCLE - 1)
trie_digests = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
short_ids = st.binary(min_size=SHORT_BYTES, max_size=SHORT_BYTES)
hop_counts = st.integers(0, HOPS_MAX)
sessions = st.just(0) | st.integers(0, SESSION_MAX)
links = st.sampled_from(EdgeKind)


def labels(near: int = 16) -> SearchStrategy[Label]:
    """Draw labels, half of them among the first ``near`` values of l, the others anywhere."""
    return st.integers(0, near - 1).map(Label.nth) | st.integers(0, CIRCLE - 1).map(Label)


def label_texts() -> SearchStrategy[str]:
    """Draw labels of a database, including text that l never produces, and over 64 bits."""
    too_long = st.integers(65, 80).map(lambda length: "1" * length)
    return labels().map(str) | st.text("01", max_size=8) | too_long


def node_names() -> SearchStrategy[NodeId]:
    """Draw names of nodes: mostly letters, sometimes any allowed text."""
    allowed = LETTERS + LETTERS.upper() + "0123456789._-"
    anything = st.text(allowed, min_size=1, max_size=64).filter(lambda name: name != SUPERVISOR)
    return st.sampled_from(LETTERS) | anything


def peers(nodes: Sequence[NodeId]) -> SearchStrategy[Peer]:
    """Draw references to any of ``nodes`` under any label."""
    return st.builds(Peer, labels(), st.sampled_from(nodes))


def several(values: SearchStrategy[T]) -> SearchStrategy[tuple[T, ...]]:
    """Draw a few of them, or none."""
    return st.lists(values, max_size=3).map(tuple)


def publications() -> SearchStrategy[Publication]:
    """Draw publications of any node, with or without payload, under the right id or a wrong one."""
    data, text = st.binary(max_size=8), st.text(max_size=4)
    settled = st.builds(
        Publication,
        publisher=node_names(),
        seq=st.integers(0, 2**63),
        payload=st.none() | data,
        time=st.integers(0, 2**63),
        key=st.none() | data,
        headers=st.dictionaries(text, text, max_size=2),
    ).map(lambda publication: publication.with_id(TOPIC))
    wrong_ids = st.binary(min_size=ID_BYTES, max_size=ID_BYTES)
    return settled | st.builds(lambda given, key: replace(given, id=key), settled, wrong_ids)


def prefixes(cover: Prefix = ALL, bits_max: int = 12) -> SearchStrategy[Prefix]:
    """Draw prefixes of ids that begin with another one."""
    return st.text("01", max_size=bits_max).map(lambda bits: cover.extended(Prefix.parse(bits)))


def any_prefixes() -> SearchStrategy[Prefix]:
    """Draw prefixes of ids, sometimes as long as an id."""
    return prefixes() | st.binary(min_size=ID_BYTES, max_size=ID_BYTES).map(Prefix.of_id)


def whole_ids() -> SearchStrategy[bytes]:
    """Draw a few ids, concatenated."""
    return several(st.binary(min_size=ID_BYTES, max_size=ID_BYTES)).map(b"".join)


@st.composite
def claims(draw: st.DrawFn) -> RangeSummary:
    """Draw range summaries of a trie, with whole or truncated digests."""
    cover = draw(prefixes())
    digest = draw(st.sampled_from([trie_digests, short_ids]))
    labels = apart(draw(several(prefixes(cover, bits_max=20))))
    nodes = [Summary(label, draw(digest)) for label in labels]
    return RangeSummary.make(cover, nodes, draw(several(short_ids)))


def _messages_by_type(nodes: Sequence[NodeId]) -> Mapping[type[Message], SearchStrategy[Message]]:
    node, peer = st.sampled_from(nodes), peers(nodes)
    subject, label, reference = st.none() | node, st.none() | labels(), st.none() | peer
    return {
        Subscribe: st.builds(Subscribe, subject),
        Unsubscribe: st.builds(Unsubscribe, subject),
        GetConfiguration: st.builds(GetConfiguration, subject, st.none() | digests),
        SetConfiguration: st.builds(SetConfiguration, reference, label, reference),
        CheckLabel: st.builds(CheckLabel, peer, label, links),
        Introduce: st.builds(Introduce, peer, links, st.booleans()),
        IntroduceShortcut: st.builds(IntroduceShortcut, peer),
        RemoveConnections: st.builds(RemoveConnections, node),
        Digest: st.builds(Digest, node, digests),
        CheckTrie: st.builds(CheckTrie, node, several(claims()), sessions, st.booleans()),
        CheckAndPublish: st.builds(
            CheckAndPublish, node, several(claims()), sessions, several(claims())
        ),
        Publications: st.builds(Publications, several(publications()), sessions),
        TrieEqual: st.builds(TrieEqual, node, trie_digests),
        PublishNew: st.builds(PublishNew, publications(), hop_counts),
        PublishMany: st.builds(
            PublishMany, st.lists(publications(), max_size=3).map(tuple), hop_counts
        ),
        IHave: _about_ids(IHave, node),
        Want: _about_ids(Want, node),
        CheckHeld: st.builds(CheckHeld, node, sessions, several(claims()), whole_ids()),
        Held: st.builds(
            Held, node, sessions, st.booleans(), several(claims()), whole_ids(), whole_ids()
        ),
        Draining: st.builds(Draining, node, several(node)),
        RequestHandover: st.builds(RequestHandover, node, sessions),
        HandoverDone: st.builds(HandoverDone, node, sessions, st.booleans()),
        ReportUnresponsive: st.builds(ReportUnresponsive, node),
        Ping: st.builds(Ping, sessions),
        Pong: st.builds(Pong, sessions),
        ConfigurationAck: st.just(ConfigurationAck()),
        GetLogInfo: st.builds(GetLogInfo, sessions, st.none(), st.none()),
        LogInfo: st.builds(
            LogInfo,
            sessions,
            st.just(""),
            st.just(0),
            sessions,
            sessions,
            sessions,
            st.just(()),
            st.binary(max_size=8),
        ),
        FetchLog: st.builds(
            FetchLog,
            sessions,
            st.just(""),
            st.just(0),
            sessions,
            sessions,
            st.just(1),
            st.integers(0, 1),
            st.booleans(),
        ),
        LogPage: st.builds(
            LogPage, sessions, st.none(), st.just(()), whole_ids(), st.binary(max_size=8)
        ),
        Refused: st.builds(Refused, sessions, st.sampled_from(["busy", "another store by now"])),
    }


def _about_ids(
    kind: type[IHave] | type[Want], node: SearchStrategy[NodeId]
) -> SearchStrategy[Message]:
    ids = st.lists(st.tuples(short_ids, st.integers(0, 255)), max_size=3)
    return st.builds(
        lambda sender, told: kind(
            sender, b"".join(short for short, _ in told), bytes(hops for _, hops in told)
        ),
        node,
        ids,
    )


def messages(
    nodes: Sequence[NodeId], types: Collection[type[Message]] = MESSAGE_TYPES
) -> SearchStrategy[Message]:
    """Draw messages of the given types that name any of ``nodes``."""
    by_type = _messages_by_type(nodes)
    return st.one_of([by_type[kind] for kind in types])


def parcels(nodes: Sequence[NodeId]) -> SearchStrategy[Parcel]:
    """Draw messages of any type in the channel of any of ``nodes``, without a sender."""
    return st.builds(Parcel, st.sampled_from(nodes), messages(nodes))


def subscriber_states(
    nodes: Sequence[NodeId], publications_max: int = 0
) -> SearchStrategy[SubscriberState]:
    """Draw variables of a subscriber that refer to any of ``nodes``.

    A subscriber with publications also has hashes, of prefixes that its trie keeps or not.
    """
    node, reference = st.sampled_from(nodes), st.none() | peers(nodes)
    counter = st.integers(-100, 100)  # R9 clamps the threshold to 8..64 on read
    silence = st.builds(LivenessState, counter, counter, st.booleans())
    return st.builds(
        SubscriberState,
        member=st.booleans(),
        label=st.none() | labels(),
        left=reference,
        right=reference,
        ring=reference,
        shortcuts=st.dictionaries(labels(), st.none() | node, max_size=4),
        silence=st.dictionaries(node, silence, max_size=3),
        digests=st.dictionaries(node, digests, max_size=3),
        publications=st.lists(publications(), max_size=publications_max).map(tuple),
        hashes=st.dictionaries(any_prefixes(), trie_digests, max_size=min(2, publications_max)),
    )


def supervisor_states(nodes: Sequence[NodeId]) -> SearchStrategy[SupervisorState]:
    """Draw variables of the supervisor, the database corrupted as in the paper."""
    node = st.sampled_from(nodes)
    record = st.tuples(label_texts(), st.none() | node)
    return st.builds(
        SupervisorState,
        database=st.lists(record, max_size=2 * len(nodes)).map(tuple),
        next=st.integers(0, 100) | st.integers(0, 10**30),
        queue=st.lists(node, unique=True).map(tuple),
    )


@st.composite
def snapshots(
    draw: st.DrawFn,
    nodes_max: int = 6,
    nodes_min: int = 0,
    crashed_max: int = 2,
    parcels_max: int = 12,
    publications_max: int = 0,
) -> Snapshot:
    """Draw states of a topic with ``nodes_min`` to ``nodes_max`` live subscribers."""
    names = st.lists(node_names(), unique=True, min_size=nodes_min, max_size=nodes_max)
    live = draw(names)
    dead = draw(st.lists(node_names(), unique=True, max_size=crashed_max))
    crashed = [node for node in dead if node not in live]
    nodes = [*live, *crashed, SUPERVISOR]
    state = subscriber_states(nodes, publications_max)
    snapshot = Snapshot(
        topic=TOPIC,
        supervisor=draw(supervisor_states(nodes)),
        subscribers={node: draw(state) for node in live},
        crashed=tuple(crashed),
        channels=tuple(draw(st.lists(parcels(nodes), max_size=parcels_max))),
    )
    seed = draw(st.none() | st.integers(0, 2**16))
    return with_memories(snapshot, Random(seed)) if seed is not None and live else snapshot
