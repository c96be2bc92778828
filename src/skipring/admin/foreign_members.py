"""Members of a topic that other processes run, as a cluster in one process sees them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from skipring.core.peers import NodeId, TopicId
from skipring.core.roster import Roster
from skipring.core.state import SubscriberState
from skipring.net.addresses import AddressBook
from skipring.rpc.client import RpcClient
from skipring.wire.rpc import Address, GetNodeStatus, NodeStatus
from skipring.world.legitimacy import Layer, Violation
from skipring.world.snapshot import Parcel, SubscriberView

ANSWER_S: Final = 1.0  # Guess: a process on this machine that runs at all answers within.


class ForeignView(Struct, frozen=True):
    """Topic to be judged: own machines as they are, so that a large ring is not copied."""

    topic: TopicId
    roster: Roster
    subscribers: Mapping[NodeId, SubscriberView]
    crashed: Sequence[NodeId]

    def in_flight(self) -> Iterable[Parcel]:
        """Return nothing: messages between sockets cannot be seen."""
        return ()


def known_addresses(nodes: Iterable[NodeId], books: Sequence[AddressBook]) -> dict[NodeId, Address]:
    """Return where nodes listen, by the first book that has each; omit those in no book."""
    return {
        node: address
        for node in sorted(nodes)
        if (address := next(filter(None, (book.find(node) for book in books)), None))
    }


async def member_statuses(
    outsider: RpcClient, topic: TopicId, addresses: Mapping[NodeId, Address]
) -> dict[NodeId, NodeStatus]:
    """Ask members for their status, all at once; omit those that refuse or do not answer."""
    outsider.book.learn(addresses)
    answers = await asyncio.gather(
        *(outsider.request(topic, node, GetNodeStatus, NodeStatus, ANSWER_S) for node in addresses)
    )
    return {
        node: answer
        for node, answer in zip(addresses, answers, strict=True)
        if isinstance(answer, NodeStatus)
    }


def ring_state(status: NodeStatus) -> SubscriberState:
    """Return the variables of a member that the ring consists of, without its publications."""
    return SubscriberState(
        member=status.member,
        label=status.label,
        left=status.left,
        right=status.right,
        ring=status.ring,
        shortcuts=dict(status.shortcuts),
    )


def root_violations(tries: Mapping[NodeId, tuple[bytes, int]]) -> Iterator[Violation]:
    """Name the members whose trie differs from that of most, given roots and sizes of all."""
    ranking = Counter(root for root, _ in tries.values()).most_common(1)
    for node, (root, count) in tries.items():
        if root != ranking[0][0]:
            yield Violation(
                Layer.PUBLICATIONS,
                f"{node} has {count} publications, and most members have others",
            )
