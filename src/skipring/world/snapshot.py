"""Snapshot of one topic: the variables of every process and every channel (section 1.1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

from msgspec import Struct

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
from skipring.core.publications import Publication
from skipring.core.roster import Roster
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.topology import Chains
from skipring.core.trie import PublicationTrie


class Parcel(Struct, frozen=True, gc=False):
    """A message in the channel of ``to``; who sent it, and as the how-manieth, where known."""

    to: NodeId
    message: Message
    sender: NodeId | None = None
    serial: int = -1  # it has been there from the start


class Snapshot(Struct, frozen=True, kw_only=True):
    """A system state: what a world file holds."""

    topic: TopicId = "news"
    supervisor: SupervisorState = SupervisorState()
    subscribers: dict[NodeId, SubscriberState]
    crashed: tuple[NodeId, ...] = ()
    channels: tuple[Parcel, ...] = ()

    @property
    def roster(self) -> Roster:
        """The supervisor's database, not yet repaired."""
        roster, memory = Roster(), self.supervisor.memory
        roster.load(self.supervisor.database, self.supervisor.next)
        if memory is not None:
            roster.load_audit(memory.digest, memory.audited, memory.audited_sum, memory.index)
        return roster

    def in_flight(self) -> Iterable[Parcel]:
        """Every message in a channel."""
        return self.channels

    @property
    def has_opaque(self) -> bool:
        """True if somebody holds a publication of which only the id is known."""
        return any(
            publication.payload is None
            for state in self.subscribers.values()
            for publication in state.publications
        )

    def explicit_edges(self) -> Iterator[tuple[NodeId, NodeId]]:
        """(u, v) for each v whose reference u stores (section 1.1)."""
        for node, state in self.subscribers.items():
            for peer in (state.left, state.right, state.ring):
                if peer is not None:
                    yield node, peer.node
            for holder in state.shortcuts.values():
                if holder is not None:
                    yield node, holder

    def implicit_edges(self) -> Iterator[tuple[NodeId, NodeId]]:
        """(u, v) for each v whose reference is in a message in u's channel (section 1.1)."""
        for parcel in self.channels:
            for peer in peers_in(parcel.message):
                yield parcel.to, peer.node


class SubscriberView(Protocol):
    """What can be seen of a subscriber: a machine shows it, and so does its state as a value."""

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
    @property
    def publications(self) -> tuple[Publication, ...]: ...
    @property
    def unkept(self) -> tuple[Publication, ...]: ...
    @property
    def misplaced(self) -> int: ...
    @property
    def trie(self) -> PublicationTrie: ...


class View(Protocol):
    """What can be seen of a whole topic: a running world shows it, and so does a snapshot."""

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
    """Every (label, node) pair that a message carries."""
    match message:
        case CheckLabel(sender=peer) | Introduce(peer=peer) | IntroduceShortcut(peer=peer):
            return (peer,)
        case SetConfiguration(pred=pred, succ=succ):
            return tuple(peer for peer in (pred, succ) if peer is not None)
        case _:
            return ()


# Messages that bring publications.
CARRIERS: Final = frozenset({PublishNew, PublishMany, Publications})


def publications_in(message: Message) -> tuple[Publication, ...]:
    """Every publication that a message carries."""
    match message:
        case PublishNew(publication=publication):
            return (publication,)
        case PublishMany(publications=publications) | Publications(publications=publications):
            return publications
        case _:
            return ()
