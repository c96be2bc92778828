"""What starting states are built from: names, whole rings, shares and permutations.

Nothing here depends on the order of a set: the same n and seed give the same state everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from skipring.core.labels import Label
from skipring.core.peers import NodeId, Peer, TopicId
from skipring.core.publications import Publication
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.topology import legitimate_states
from skipring.world.snapshot import Snapshot

T = TypeVar("T")

Database: TypeAlias = tuple[tuple[str, NodeId | None], ...]


def node_names(count: int) -> list[NodeId]:
    """Names of one width: ids are compared as strings, and this keeps the order of numbers."""
    width = max(4, len(str(count - 1)))
    return [f"n{number:0{width}d}" for number in range(count)]


def shuffled_names(count: int, rng: Random) -> list[NodeId]:
    """The names in random order: who gets which label must not depend on the id."""
    nodes = node_names(count)
    rng.shuffle(nodes)
    return nodes


def share(n: int, one_in: int) -> int:
    """How many one in so many are; at least one, or small worlds would not be corrupted."""
    return max(1, n // one_in)


def permuted(items: Sequence[T], rng: Random) -> list[T]:
    """The items in another order, if there is one."""
    given, order = list(items), list(items)
    rng.shuffle(order)
    # Only a list of equal items looks the same after a turn by one.
    return order if order != given else order[1:] + order[:1]


def database_of(nodes: Iterable[NodeId]) -> Database:
    """The database that records the nodes under l(0), l(1), ... in this order."""
    return tuple((Label.nth(index).bits, node) for index, node in enumerate(nodes))


def recorded_nodes(world: Snapshot) -> list[NodeId]:
    """The recorded nodes, in the order of the database."""
    return [node for _, node in world.supervisor.database if node is not None]


def world_of(states: Mapping[NodeId, SubscriberState], recorded: Iterable[NodeId] = ()) -> Snapshot:
    """A world of these subscribers, of which some are recorded in this order."""
    return Snapshot(
        supervisor=SupervisorState(database=database_of(recorded)),
        subscribers=dict(sorted(states.items())),
    )


def with_database(world: Snapshot, database: Iterable[tuple[str, NodeId | None]]) -> Snapshot:
    """The world with another database; the subscribers know nothing of it."""
    return replace(world, supervisor=replace(world.supervisor, database=tuple(database)))


def with_states(
    world: Snapshot, change: Callable[[NodeId, SubscriberState], SubscriberState]
) -> Snapshot:
    """The world with every subscriber's state changed."""
    states = {node: change(node, state) for node, state in world.subscribers.items()}
    return replace(world, subscribers=states)


def clean_world(n: int, rng: Random) -> Snapshot:
    """Nobody has a label or knows anybody; nobody is recorded."""
    del rng
    return world_of({node: SubscriberState() for node in node_names(n)})


def legitimate_world(n: int, rng: Random) -> Snapshot:
    """SR(n) over nodes in random order."""
    nodes = shuffled_names(n, rng)
    return world_of(dict(legitimate_states(nodes)), nodes)


def sorted_ring(peers: Iterable[Peer]) -> dict[NodeId, SubscriberState]:
    """The states of peers that form a sorted ring without shortcuts."""
    line = sorted(peers)
    first, last = line[0], line[-1]
    alone = len(line) == 1
    return {
        own.node: SubscriberState(
            label=own.label,
            left=line[place - 1] if own != first else None,
            right=line[place + 1] if own != last else None,
            ring=None if alone else last if own == first else first if own == last else None,
        )
        for place, own in enumerate(line)
    }


def made_publications(
    topic: TopicId, count: int, publishers: Sequence[NodeId], rng: Random
) -> list[Publication]:
    """So many publications by any of the publishers."""
    return [
        Publication(
            publisher=rng.choice(publishers), seq=seq, payload=f"news {seq}".encode()
        ).settled(topic)
        for seq in range(count)
    ]
