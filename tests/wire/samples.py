"""Strategies for encodable messages."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from skipring.core.labels import CIRCLE, Label, Word
from skipring.core.limits import CHAIN_BYTES, NUMBER_MAX, REASON_CHARACTERS_MAX
from skipring.core.log_messages import ChainValue, Reason, StoreId, SurveyDigests
from skipring.core.messages import Publications, PublishMany, PublishNew
from skipring.core.peers import SUPERVISOR, Address, NodeId, TopicId
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.state import LivenessState
from skipring.core.summaries import DIGEST_BYTES
from skipring.lab.faults.samples import ADDRESS, PUBLICATION, SAMPLES
from skipring.wire.framing import Frame, FrameReader
from skipring.wire.limits import ChangeText, DatabaseEntry, ListedPublications
from skipring.wire.rpc import RUNTIME_TYPES, WireMessage, tag_of
from tests.support.strategies import (
    label_texts,
    labels,
    messages,
    node_names,
    publications,
    several,
    values,
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
    """Return a message of the core whose publications are inside the limits of the wire."""
    match message:
        case PublishNew(publication=publication):
            return replace(message, publication=travelling(publication))
        case PublishMany(publications=several) | Publications(publications=several):
            return replace(message, publications=tuple(map(travelling, several)))
        case _:
            return message


def addresses() -> SearchStrategy[str]:
    """Return a strategy for listen addresses."""
    hosts = st.sampled_from(["127.0.0.1", "localhost", "a-b.example", "[::1]", "x" * 253])
    return st.builds("{}:{}".format, hosts, st.integers(1, 65535))


def _parts() -> Mapping[object, SearchStrategy[Any]]:
    """Return the strategies of the parts of messages that their types do not determine."""
    printable = st.characters(exclude_categories=("Cc", "Cs"))
    digest = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
    chain = st.binary(min_size=CHAIN_BYTES, max_size=CHAIN_BYTES)
    counter = st.integers(-NUMBER_MAX, NUMBER_MAX)
    return {
        NodeId: node_names(),
        TopicId: st.sampled_from(["news", "ü/#"]),
        Address: addresses(),
        Label: labels(),
        Word: st.integers(0, CIRCLE - 1),
        LivenessState: st.builds(LivenessState, counter, counter, st.booleans()),
        Publication: publications().map(travelling),
        ListedPublications: several(publications().map(listed)),
        Reason: st.text(printable, max_size=REASON_CHARACTERS_MAX),
        ChangeText: st.text(printable, max_size=20),
        StoreId: st.text("0123456789abcdef", max_size=64),
        DatabaseEntry: st.tuples(label_texts(), st.none() | node_names()),
        SurveyDigests: several(st.just(b"") | digest),
        ChainValue: st.just(b"") | chain,
    }


def wire_messages() -> SearchStrategy[WireMessage]:
    """Return a strategy for every encodable message."""
    parts = _parts()
    runtime = [values(kind, parts) for kind in sorted(RUNTIME_TYPES, key=tag_of)]
    return messages(NODES).map(_allowed) | st.one_of(runtime)


def topics() -> SearchStrategy[str]:
    """Return a strategy for topic names."""
    characters = st.characters(exclude_categories=("Cc", "Cs"))
    return st.sampled_from(["news", "x" * 255, "\u00e4" * 127]) | st.text(
        characters, min_size=1, max_size=63
    )
