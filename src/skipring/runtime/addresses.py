"""Where nodes listen, as far as one has heard; hints outside the protocol's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from skipring.core.peers import NodeId, TopicId
from skipring.wire.runtime_messages import Address

ADDRESSES_MAX: Final = 100_000  # Limit of ours: the members of all topics of a process, and more.


class AddressBook:
    """Addresses by node; what a node says of itself counts more than what others say of it."""

    def __init__(self) -> None:
        self._said: dict[NodeId, Address] = {}  # by the node itself, in a greeting
        self._heard: dict[NodeId, Address] = {}  # from others, the newest last

    def find(self, node: NodeId) -> Address | None:
        """Where a node listens, or None if nobody has said."""
        return self._said.get(node, self._heard.get(node)) or None

    def greet(self, node: NodeId, address: Address) -> None:
        """A node has said itself where it listens; an empty address: nowhere."""
        _put(self._said, node, address)

    def hear(self, hints: Mapping[NodeId, Address]) -> None:
        """Somebody has said where others listen; older word of themselves may be outdated."""
        for node, address in hints.items():
            _put(self._heard, node, address)

    def doubt(self, node: NodeId) -> None:
        """Nobody answers where the node said it listens: believe others from now on."""
        self._said.pop(node, None)

    def hints(self, nodes: Iterable[NodeId]) -> dict[NodeId, Address]:
        """What we know of some nodes."""
        found = {node: self.find(node) for node in nodes}
        return {node: address for node, address in found.items() if address}


def _put(book: dict[NodeId, Address], node: NodeId, address: Address) -> None:
    book.pop(node, None)
    book[node] = address
    if len(book) > ADDRESSES_MAX:
        del book[next(iter(book))]


def supervisor_of(topic: TopicId, supervisors: Iterable[Address]) -> Address:
    """Which supervisor a topic belongs to: the highest hash wins (rendezvous hashing).

    When the list changes, only the topics of whoever came or went move.
    """
    return max(supervisors, key=lambda address: (_weight(topic, address), address))


def _weight(topic: TopicId, address: Address) -> bytes:
    text = f"{len(topic)}:{topic}{address}"
    return blake2b(text.encode(), digest_size=8, person=b"skipring topic").digest()
