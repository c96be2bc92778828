"""Snapshot of one topic: the variables of every process and every channel (section 1.1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

from skipring.core.batches import RecordBatch
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Introduce,
    IntroduceShortcut,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    SetConfiguration,
)
from skipring.core.peers import NodeId, Peer, TopicId
from skipring.core.roster import Roster
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.topology import Chains
from skipring.core.trie import PublicationTrie


class Parcel(Struct, frozen=True, gc=False):
    """Message in the channel of ``to``, with its sender and serial number if they are known."""

    to: NodeId
    message: Message
    sender: NodeId | None = None
    serial: int = -1  # -1: in the channel since the start


class Clocks(Struct, frozen=True, kw_only=True, gc=False):
    """Clocks of a world, in microseconds; without a time, nodes have no clocks."""

    now: int = 0
    step: int = 1_000_000  # in a round
    offsets: dict[NodeId, int] = {}  # of the wall clocks of nodes

    def of(self, node: NodeId) -> int:
        """Return the wall clock of a node; 0 if it has none."""
        return max(self.now + self.offsets.get(node, 0), 1) if self.now else 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """System state of one topic: the content of a world file."""

    topic: TopicId = "news"
    supervisor: SupervisorState = SupervisorState()
    subscribers: dict[NodeId, SubscriberState]
    crashed: tuple[NodeId, ...] = ()
    channels: tuple[Parcel, ...] = ()
    clocks: Clocks = Clocks()

    @property
    def roster(self) -> Roster:
        """Return the supervisor's database, not yet repaired."""
        roster, memory = Roster(), self.supervisor.memory
        roster.load(self.supervisor.database, self.supervisor.next)
        if memory is not None:
            roster.load_audit(memory.digest, memory.audited, memory.audited_sum, memory.index)
        return roster

    def in_flight(self) -> Iterable[Parcel]:
        """Return every message in a channel."""
        return self.channels

    @property
    def has_opaque(self) -> bool:
        """Return True if a subscriber holds a publication of which only the id is known."""
        return any(
            not batch.body for state in self.subscribers.values() for batch in state.publications
        )

    def explicit_edges(self) -> Iterator[tuple[NodeId, NodeId]]:
        """Yield (u, v) for each v whose reference u stores (section 1.1)."""
        for node, state in self.subscribers.items():
            for peer in (state.left, state.right, state.ring):
                if peer is not None:
                    yield node, peer.node
            for holder in state.shortcuts.values():
                if holder is not None:
                    yield node, holder

    def implicit_edges(self) -> Iterator[tuple[NodeId, NodeId]]:
        """Yield (u, v) for each v whose reference is in a message in u's channel (section 1.1)."""
        for parcel in self.channels:
            for peer in peers_in(parcel.message):
                yield parcel.to, peer.node


class SubscriberView(Protocol):
    """Readable part of a subscriber; a machine and a ``SubscriberState`` both provide it."""

    @property
    def member(self) -> bool: ...
    @property
    def label(self) -> Label | None: ...
    @property
    def left(self) -> Peer | None: ...
    @property
    def right(self) -> Peer | None: ...
    @property
    def ring(self) -> Peer | None: ...
    @property
    def shortcuts(self) -> Mapping[Label, NodeId | None]: ...
    @property
    def chains(self) -> Chains | None: ...
    def batches(self) -> tuple[RecordBatch, ...]: ...
    def misplaced(self) -> int: ...
    def trie(self) -> PublicationTrie: ...


class View(Protocol):
    """Readable part of a topic; a running world and a ``Snapshot`` both provide it."""

    @property
    def topic(self) -> TopicId: ...
    @property
    def roster(self) -> Roster: ...
    @property
    def subscribers(self) -> Mapping[NodeId, SubscriberView]: ...
    @property
    def crashed(self) -> Collection[NodeId]: ...
    def in_flight(self) -> Iterable[Parcel]: ...


def peers_in(message: Message) -> tuple[Peer, ...]:
    """Return every (label, node) pair that a message carries."""
    match message:
        case CheckLabel(sender=peer) | Introduce(peer=peer) | IntroduceShortcut(peer=peer):
            return (peer,)
        case SetConfiguration(pred=pred, succ=succ):
            return tuple(peer for peer in (pred, succ) if peer is not None)
        case _:
            return ()


# Message types that carry publications.


def publications_in(message: Message) -> tuple[RecordBatch, ...]:
    """Return every publication (a batch) that a message carries."""
    match message:
        case PublishNew(publication=publication):
            return (publication,)
        case PublishMany(publications=publications) | Publications(publications=publications):
            return publications
        case _:
            return ()
