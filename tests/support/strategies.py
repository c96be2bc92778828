"""Hypothesis strategies for the values of the core and for whole states of a topic.

``snapshots()`` draws arbitrary system states in the paper's sense: any variables, any messages in
the channels, as corrupted as a world file can hold them, with references to crashed nodes, the
supervisor and the node itself. Every draw is valid in ``skipring-world/1``, and simple states (few
nodes called a, b, c; short labels; empty channels) come first when an example shrinks.
"""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.labels import CIRCLE, Label, Word
from skipring.core.limits import NUMBER_MAX
from skipring.core.log_messages import (
    ChainValue,
    LogPage,
    Number,
    Reason,
    StoreId,
    SurveyDigests,
    TermsDigest,
)
from skipring.core.messages import (
    CHARTERS_MAX,
    HOPS_MAX,
    MESSAGE_TYPES,
    SESSION_MAX,
    AskedIds,
    CharterRows,
    IHave,
    Message,
    Session,
    Want,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId, Peer
from skipring.core.prefix import ALL, Prefix, apart
from skipring.core.publications import ID_BYTES
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


def records() -> SearchStrategy[BatchRecord]:
    """Draw records of a batch."""
    data, text = st.binary(max_size=8), st.text(max_size=4)
    return st.builds(
        BatchRecord,
        payload=data,
        time=st.integers(0, NUMBER_MAX),
        key=st.none() | data,
        headers=st.dictionaries(text, text, max_size=2),
    )


def publications() -> SearchStrategy[RecordBatch]:
    """Draw batches of any node: opaque, readable or not, under the right id or a wrong one."""
    numbers = {"publisher": node_names(), "first": st.integers(0, NUMBER_MAX)}
    flags = {"unordered": st.booleans(), "topic": st.just(TOPIC)}
    readable = st.builds(
        RecordBatch.of, st.lists(records(), min_size=1, max_size=3), **numbers, **flags
    )
    anything = st.builds(
        RecordBatch, **numbers, count=st.integers(1, 3), body=st.binary(max_size=8)
    ).map(lambda given: given.with_id(TOPIC))
    drawn = readable | anything
    wrong_ids = st.binary(min_size=ID_BYTES, max_size=ID_BYTES)
    return drawn | st.builds(lambda given, key: replace(given, id=key), drawn, wrong_ids)


def log_pages() -> SearchStrategy[LogPage]:
    """Draw pages of a log."""
    return st.builds(
        lambda request, following, batches: LogPage(
            request, following, tuple(range(len(batches))), batches
        ),
        sessions,
        st.none() | st.integers(0, 100),
        several(publications()),
    )


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


def values(  # noqa: PLR0911  (one for each kind of type)
    kind: Any,  # noqa: ANN401  (a type)
    leaves: Mapping[object, SearchStrategy[Any]],
) -> SearchStrategy[Any]:
    """Draw values of a type inside its constraints; ``leaves`` has the strategies of some types."""
    if kind in leaves:
        return leaves[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _constrained(*args, leaves)
    parts = [values(each, leaves) for each in args if each not in (Ellipsis, NoneType)]
    if origin in (Union, UnionType):
        return st.none() | parts[0]
    if origin is tuple:
        return several(parts[0]) if args[-1] is Ellipsis else st.tuples(*parts)
    if origin is dict:
        return st.dictionaries(*parts, max_size=3)
    if issubclass(kind, Struct):
        return st.builds(kind, **{f.name: values(f.type, leaves) for f in fields(kind)})
    return st.from_type(kind)


def _constrained(
    kind: object, meta: Meta, leaves: Mapping[object, SearchStrategy[Any]]
) -> SearchStrategy[Any]:
    if kind is int:
        return st.integers(meta.ge, meta.le)
    if kind is bytes:
        return st.binary(min_size=meta.min_length or 0, max_size=min(meta.max_length or 40, 40))
    return values(kind, leaves)


def message_leaves(nodes: Sequence[NodeId]) -> Mapping[object, SearchStrategy[Any]]:
    """Return the strategies of the parts of messages that name any of ``nodes``."""
    node = st.sampled_from(nodes)
    return {
        NodeId: node,
        Label: labels(),
        Word: digests,
        Session: sessions,
        Number: sessions,
        RangeSummary: claims(),
        RecordBatch: publications(),
        LogPage: log_pages(),
        AskedIds: whole_ids(),
        CharterRows: several(publications()).map(lambda rows: rows[:CHARTERS_MAX]),
        StoreId: st.sampled_from(["", "5eed"]),
        Reason: st.sampled_from(["busy", "not a member of the topic"]),
        ChainValue: st.sampled_from([b"", bytes(12)]),
        TermsDigest: st.sampled_from([b"", bytes(8)]),
        SurveyDigests: st.just(()),
        IHave: _about_ids(IHave, node),
        Want: _about_ids(Want, node),
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
    leaves = message_leaves(nodes)
    return st.one_of([values(kind, leaves) for kind in types])


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
