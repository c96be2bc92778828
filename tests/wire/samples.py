"""Strategies for encodable messages."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from skipring.core.messages import (
    NUMBER_MAX,
    SESSION_MAX,
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    ConfigurationAck,
    Held,
    Ping,
    Pong,
    Publications,
    PublishMany,
    PublishNew,
    ReportUnresponsive,
)
from skipring.core.name_registry import Conflict, ProcessId
from skipring.core.peers import SUPERVISOR
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.state import LivenessState
from skipring.core.summaries import DIGEST_BYTES
from skipring.core.trie import OFFSET_MAX
from skipring.lab.faults.samples import ADDRESS, PUBLICATION, SAMPLES
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
from skipring.wire.framing import Frame, FrameReader
from skipring.wire.limits import CHAIN_BYTES, LOCATED_MAX, REASON_CHARACTERS_MAX, SURVEY_BITS_MAX
from skipring.wire.monitor_rpc import (
    Arrival,
    ArrivalPage,
    FetchArrivals,
    GetSupervisorStatus,
    SupervisorStatus,
    TopicStatus,
)
from skipring.wire.name_messages import AskHolder, HolderReply, NameTaken
from skipring.wire.rpc import (
    ChangeEntry,
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
    RuntimeMessage,
    WireMessage,
)
from tests.support.strategies import (
    label_texts,
    labels,
    messages,
    node_names,
    peers,
    publications,
    several,
)

__all__ = ["ADDRESS", "PUBLICATION", "SAMPLES"]  # of the package, and all below

TOPIC = "news"
NODES = ("a", "b", SUPERVISOR)


def frames_of(data: bytes) -> list[Frame]:
    """Return the frames in some bytes."""
    return FrameReader().feed(data)


def the_frame(data: bytes) -> Frame:
    """Return the only frame in some bytes."""
    (only,) = frames_of(data)
    return only


def travelling(publication: Publication) -> Publication:
    """Return a publication in encodable form: with a payload, without an id, bounded numbers."""
    return replace(
        publication,
        payload=publication.payload or b"",
        seq=min(publication.seq, NUMBER_MAX),
        time=min(publication.time, NUMBER_MAX),
        id=b"",
    )


def listed(publication: Publication) -> Publication:
    """Return a publication as listed for clients: with its id, complete or without contents."""
    bare = travelling(publication)
    if publication.payload is None:
        bare = replace(bare, payload=None, key=None, headers={})
    return replace(bare, id=bytes(ID_BYTES))


def _allowed(message: WireMessage) -> WireMessage:
    """Return a message of the core with its values inside the limits of the wire."""
    match message:
        case PublishNew(publication=publication, hops=hops):
            return PublishNew(travelling(publication), hops % 256)
        case PublishMany(publications=several, hops=hops):
            return PublishMany(tuple(map(travelling, several)), hops % 256)
        case Publications(publications=carried, session=session):
            return Publications(tuple(map(travelling, carried)), session & SESSION_MAX)
        case CheckTrie(session=session) | CheckAndPublish(session=session):
            return replace(message, session=session & SESSION_MAX)
        case CheckHeld(session=session) | Held(session=session):
            return replace(message, session=session & NUMBER_MAX)
        case _:
            return message


def addresses() -> SearchStrategy[str]:
    """Return a strategy for listen addresses."""
    hosts = st.sampled_from(["127.0.0.1", "localhost", "a-b.example", "[::1]", "x" * 253])
    return st.builds("{}:{}".format, hosts, st.integers(1, 65535))


def runtime_messages() -> SearchStrategy[RuntimeMessage]:
    """Return a strategy for the messages of the hosts."""
    printable = st.characters(exclude_categories=("Cc", "Cs"))
    reason = st.text(printable, max_size=REASON_CHARACTERS_MAX)
    number = st.integers(0, NUMBER_MAX)
    members = st.dictionaries(node_names(), addresses(), max_size=4)
    key = st.binary(min_size=ID_BYTES, max_size=ID_BYTES)
    return st.one_of(
        st.builds(FindMembers, number, st.integers(1, LOCATED_MAX)),
        st.builds(MemberList, number, members),
        st.builds(ReportUnresponsive, node_names()),
        st.builds(Ping, number),
        st.builds(Pong, number),
        st.just(ConfigurationAck()),
        st.builds(Publish, number, publications().map(travelling)),
        st.builds(PublishAck, number, key, st.integers(0, OFFSET_MAX)),
        st.builds(Refused, number, reason),
    )


def inspection_messages() -> SearchStrategy[RuntimeMessage]:
    """Return a strategy for requests of inspectors and their answers."""
    number, offset = st.integers(0, NUMBER_MAX), st.integers(0, OFFSET_MAX)
    any_node = st.none() | node_names()
    nodes = st.lists(node_names(), max_size=4).map(tuple)
    entries = several(st.tuples(label_texts(), any_node))
    digest, flag = st.integers(0, 2**64 - 1), st.booleans()
    peer_or_none = st.none() | peers(NODES)
    counter = st.integers(-NUMBER_MAX, NUMBER_MAX)
    watch = st.builds(LivenessState, counter, counter, flag)
    word = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20)
    change = st.builds(ChangeEntry, number, number, word, any_node, *(word,) * 4)
    processes = st.builds(ProcessId, st.integers(0, 2**40 - 1), st.just(ADDRESS))
    return st.one_of(
        st.builds(FetchDatabase, number, number),
        st.builds(
            DatabasePage,
            number,
            number,
            digest,
            number,
            st.none() | number,
            entries,
            nodes,
            several(st.builds(Conflict, node_names(), processes, processes)),
        ),
        st.builds(GetNodeStatus, number),
        st.builds(
            NodeStatus,
            number,
            flag,
            st.none() | labels(),
            peer_or_none,
            peer_or_none,
            peer_or_none,
            several(st.tuples(labels(), any_node)),
            st.dictionaries(node_names(), watch, max_size=3),
            st.dictionaries(node_names(), digest, max_size=3),
            number,
            offset,
            st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES),
        ),
        st.builds(FetchPublications, number, offset, offset, flag),
        st.builds(PublicationPage, number, st.none() | offset, several(publications().map(listed))),
        st.builds(FetchChanges, number),
        st.builds(ChangePage, number, number, several(change)),
    )


def reading_messages() -> SearchStrategy[RuntimeMessage]:
    """Return a strategy for requests of log readers and their answers."""
    number, offset = st.integers(0, NUMBER_MAX), st.integers(0, OFFSET_MAX)
    bits, data = st.integers(0, SURVEY_BITS_MAX), st.binary(max_size=40)
    store = st.text("0123456789abcdef", max_size=64)
    digest = st.just(b"") | st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
    chain = st.just(b"") | st.binary(min_size=CHAIN_BYTES, max_size=CHAIN_BYTES)
    after = st.none() | offset
    return st.one_of(
        st.builds(GetLogInfo, number, st.none() | bits, after),
        st.builds(LogInfo, number, store, number, offset, offset, number, several(digest), chain),
        st.builds(
            FetchLog,
            number,
            store,
            number,
            offset,
            offset,
            bits,
            st.integers(0, 255),
            st.booleans(),
        ),
        st.builds(LogPage, number, after, several(offset), data, data),
        st.builds(FetchDeliveries, number, offset, offset),
        st.builds(DeliveryPage, number, after, several(offset), several(number), data, data, data),
    )


def watching_messages() -> SearchStrategy[RuntimeMessage]:
    """Return a strategy for requests of monitors and their answers."""
    number = st.integers(0, NUMBER_MAX)
    topic = st.builds(TopicStatus, st.sampled_from(["news", "ü/#"]), number, number)
    arrival = st.builds(
        Arrival,
        number,
        st.none() | node_names(),
        st.integers(0, 255),
        *(number,) * 3,
        node_names(),
        *(number,) * 2,
    )
    return st.one_of(
        st.builds(GetSupervisorStatus, number, number),
        st.builds(SupervisorStatus, *(number,) * 5, st.none() | number, several(topic)),
        st.builds(FetchArrivals, number, number),
        st.builds(ArrivalPage, number, number, several(arrival)),
    )


def name_messages() -> SearchStrategy[RuntimeMessage]:
    """Return a strategy for messages about the name of one end of a connection."""
    number = st.integers(0, 2**40 - 1)
    incarnation, address = number, st.just(ADDRESS)
    return st.one_of(
        st.builds(AskHolder, number, number, st.none() | address),
        st.builds(HolderReply, number, st.booleans()),
        st.builds(NameTaken, incarnation, address, st.booleans()),
    )


def damages() -> SearchStrategy[RuntimeMessage]:
    """Return a strategy for chaos requests and their answer."""
    number = st.integers(0, NUMBER_MAX)
    any_node = st.none() | node_names()
    nodes = st.lists(node_names(), max_size=4).map(tuple)
    peer_or_none = st.none() | peers(NODES)
    counter = st.integers(-NUMBER_MAX, NUMBER_MAX)
    watch = st.builds(LivenessState, counter, counter, st.booleans())
    return st.one_of(
        st.builds(ChaosPing, number),
        st.builds(
            Overwrite,
            number,
            st.none() | labels(),
            peer_or_none,
            peer_or_none,
            peer_or_none,
            several(st.tuples(labels(), any_node)),
            st.dictionaries(node_names(), watch, max_size=3),
            st.dictionaries(node_names(), st.integers(0, 2**64 - 1), max_size=3),
        ),
        st.builds(
            OverwriteDatabase, number, several(st.tuples(label_texts(), any_node)), number, nodes
        ),
        st.builds(CorruptTrie, number, number, number, number),
        st.builds(Forge, number, st.binary(max_size=20)),
        st.builds(Isolate, number, nodes, number),
        st.builds(Crash, number),
        st.builds(ChaosAck, number),
    )


def wire_messages() -> SearchStrategy[WireMessage]:
    """Return a strategy for every encodable message."""
    known = messages(NODES).map(_allowed) | runtime_messages() | name_messages()
    return known | inspection_messages() | reading_messages() | watching_messages() | damages()


def topics() -> SearchStrategy[str]:
    """Return a strategy for topic names."""
    characters = st.characters(exclude_categories=("Cc", "Cs"))
    return st.sampled_from(["news", "x" * 255, "\u00e4" * 127]) | st.text(
        characters, min_size=1, max_size=63
    )
