"""Own publications that wait for their commit, and are sent in order after it.

Several may wait for one commit. Publications to the same nodes then leave in one message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from skipring.core.effects import Effect, Send
from skipring.core.messages import Message, PublishMany, PublishNew
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication

TOGETHER_MAX: Final = 256  # Our guess: enough to share the cost of a message.
TOGETHER_BYTES_MAX: Final = 256 * 1024  # as a chunk of the core's

Perform = Callable[[TopicId, list[Effect]], None]


class _Parcel(Struct):
    """What goes to some nodes in one message; more may be put to it."""

    topic: TopicId
    nodes: tuple[NodeId, ...]
    message: Message
    publications: list[Publication]  # none if it is another message
    size_bytes: int = 0

    def take(self, other: _Parcel) -> bool:
        """Put another one's publications to ours; False if they do not belong together."""
        if (self.topic, self.nodes) != (other.topic, other.nodes):
            return False
        if not self.publications or not other.publications:
            return False
        if self.publications[0].publisher != other.publications[0].publisher:
            return False  # whose numbers rise: see ``Holdings.unseen_bytes``
        if len(self.publications) + len(other.publications) > TOGETHER_MAX:
            return False
        if self.size_bytes + other.size_bytes > TOGETHER_BYTES_MAX:
            return False
        self.publications += other.publications
        self.size_bytes += other.size_bytes
        self.message = PublishMany(tuple(self.publications), 0)
        return True

    def sends(self) -> list[Effect]:
        """What is to be done."""
        return [Send(node, self.message) for node in self.nodes]


class Outgoing:
    """What one node has published and not sent yet."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._waiting: deque[tuple[int, int, TopicId, list[Send]]] = deque()
        self._added = 0

    def add(self, topic: TopicId, sends: list[Send], commit: int) -> int:
        """Keep messages until a commit has ended; return the number to ``drop`` them by."""
        self._added += 1
        if sends:
            self._waiting.append((commit, self._added, topic, sends))
        return self._added

    def release(self, commit: int) -> None:
        """Send all that waits for a commit, or for one before it."""
        parcels: list[_Parcel] = []
        while self._waiting and self._waiting[0][0] <= commit:
            _, _, topic, sends = self._waiting.popleft()
            for parcel in _parcels(topic, sends):
                if not (parcels and parcels[-1].take(parcel)):
                    parcels.append(parcel)
        for parcel in parcels:
            self._perform(parcel.topic, parcel.sends())

    def drop(self, number: int) -> None:
        """What was added under a number could not be made durable: others get it by repair."""
        self._waiting = deque(each for each in self._waiting if each[1] != number)


def _parcels(topic: TopicId, sends: Iterable[Send]) -> list[_Parcel]:
    """Messages with those whom they go to."""
    nodes: dict[int, list[NodeId]] = {}  # by the message: one for all of them is the same object
    messages: dict[int, Message] = {}
    for send in sends:
        messages[id(send.message)] = send.message
        nodes.setdefault(id(send.message), []).append(send.to)
    return [_parcel(topic, tuple(nodes[key]), message) for key, message in messages.items()]


def _parcel(topic: TopicId, nodes: tuple[NodeId, ...], message: Message) -> _Parcel:
    match message:
        case PublishNew(publication=publication, hops=0):
            publications = [publication]
        case PublishMany(publications=several, hops=0):
            publications = list(several)
        case _:
            publications = []
    size_bytes = sum(publication.size_bytes for publication in publications)
    return _Parcel(topic, nodes, message, publications, size_bytes)
