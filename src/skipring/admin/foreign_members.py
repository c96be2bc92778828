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

ANSWER_S: Final = 1.0  # Guess: a running process on this machine answers within this time.


class ForeignView(Struct, frozen=True):
    """Topic to be judged; it shares the local machines, so that a large ring is not copied."""

    topic: TopicId
    roster: Roster
    subscribers: Mapping[NodeId, SubscriberView]
    crashed: Sequence[NodeId]

    def in_flight(self) -> Iterable[Parcel]:
        """Return nothing: messages between sockets cannot be seen."""
        return ()


def known_addresses(nodes: Iterable[NodeId], books: Sequence[AddressBook]) -> dict[NodeId, Address]:
    """Return the addresses of nodes, from the first book that has each; omit unknown nodes."""
    return {
        node: address
        for node in sorted(nodes)
        if (address := next(filter(None, (book.find(node) for book in books)), None))
    }


async def member_statuses(
    outsider: RpcClient, topic: TopicId, addresses: Mapping[NodeId, Address]
) -> dict[NodeId, NodeStatus]:
    """Ask members for their status, all at once; omit members that refuse or do not answer."""
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
    """Return the ring variables of a member, without its publications."""
    return SubscriberState(
        member=status.member,
        label=status.label,
        left=status.left,
        right=status.right,
        ring=status.ring,
        shortcuts=dict(status.shortcuts),
    )


def root_violations(tries: Mapping[NodeId, tuple[bytes, int]]) -> Iterator[Violation]:
    """Yield the members whose root differs from the most common one, given roots and sizes."""
    ranking = Counter(root for root, _ in tries.values()).most_common(1)
    for node, (root, count) in tries.items():
        if root != ranking[0][0]:
            yield Violation(
                Layer.PUBLICATIONS,
                f"{node} has {count} publications, and most members have others",
            )
