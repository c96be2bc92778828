"""Strategies for encodable messages."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from faults.samples import ADDRESS, BATCH, LISTED, SAMPLES, SCANS, TOPIC
from skipring.core.batches import RecordBatch
from skipring.core.labels import CIRCLE, Label, Word
from skipring.core.limits import CHAIN_BYTES, NUMBER_MAX, REASON_CHARACTERS_MAX
from skipring.core.log_messages import ChainValue, LogPage, Name, Reason, StoreId, SurveyDigests
from skipring.core.messages import CharterRows, Publications, PublishMany, PublishNew, Terms
from skipring.core.peers import SUPERVISOR, Address, NodeId, TopicId
from skipring.core.state import LivenessState
from skipring.core.summaries import DIGEST_BYTES
from skipring.wire.framing import Frame, FrameReader
from skipring.wire.limits import ChangeText, DatabaseEntry
from skipring.wire.rpc import RUNTIME_TYPES, WireMessage, tag_of
from tests.support.strategies import (
    label_texts,
    labels,
    log_pages,
    messages,
    node_names,
    publications,
    several,
    values,
)

__all__ = [
    "ADDRESS",
    "BATCH",
    "LISTED",
    "SAMPLES",
    "SCANS",
    "TOPIC",
]  # of the package, and all below

NODES = ("a", "b", SUPERVISOR)


def frames_of(data: bytes) -> list[Frame]:
    """Return the frames in some bytes."""
    return FrameReader().feed(data)


def the_frame(data: bytes) -> Frame:
    """Return the only frame in some bytes."""
    (only,) = frames_of(data)
    return only


def travelling(batch: RecordBatch) -> RecordBatch:
    """Return a batch in the form of messages that publish: with a body."""
    return batch if batch.body else replace(batch, body=BATCH.body)


def _allowed(message: WireMessage) -> WireMessage:
    """Return a message of the core whose batches have bodies where the wire requires them."""
    match message:
        case PublishNew(publication=batch):
            return replace(message, publication=travelling(batch))
        case PublishMany(publications=batches) | Publications(publications=batches):
            return replace(message, publications=tuple(map(travelling, batches)))
        case Terms(charters=batches):
            return replace(message, charters=tuple(map(travelling, batches)))
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
        RecordBatch: publications().map(travelling),
        LogPage: log_pages(),
        CharterRows: several(publications()).map(lambda rows: tuple(map(travelling, rows[:2]))),
        Name: st.text("ABYZabyz019._-", min_size=1, max_size=64),
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
