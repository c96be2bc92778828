"""Builders of initial states: names, whole rings, shares, permutations.

No result depends on the order of a set: the same n and seed give the same state on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.labels import Label
from skipring.core.messages import Publications, PublishNew
from skipring.core.peers import NodeId, Peer, TopicId
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import ID_BYTES
from skipring.core.state import SubscriberState, SupervisorState, legitimate_states
from skipring.core.summaries import DIGEST_BYTES
from skipring.world.snapshot import Parcel, Snapshot

T = TypeVar("T")

Database: TypeAlias = tuple[tuple[str, NodeId | None], ...]


def node_names(count: int) -> list[NodeId]:
    """Return names of equal width, so that their order as strings is their order as numbers."""
    width = max(4, len(str(count - 1)))
    return [f"n{number:0{width}d}" for number in range(count)]


def shuffled_names(count: int, rng: Random) -> list[NodeId]:
    """Return the names in random order, so that labels do not depend on ids."""
    nodes = node_names(count)
    rng.shuffle(nodes)
    return nodes


def share(n: int, one_in: int) -> int:
    """Return n // one_in, but at least 1, so that small worlds are corrupted too."""
    return max(1, n // one_in)


def permuted(items: Sequence[T], rng: Random) -> list[T]:
    """Return the items in another order if one exists."""
    given, order = list(items), list(items)
    rng.shuffle(order)
    # Only a list of equal items is unchanged by a rotation.
    return order if order != given else order[1:] + order[:1]


def database_of(nodes: Iterable[NodeId]) -> Database:
    """Return the database that records the nodes under l(0), l(1), ... in this order."""
    return tuple((Label.nth(index).bits, node) for index, node in enumerate(nodes))


def recorded_nodes(world: Snapshot) -> list[NodeId]:
    """Return the recorded nodes in the order of the database."""
    return [node for _, node in world.supervisor.database if node is not None]


def world_of(states: Mapping[NodeId, SubscriberState], recorded: Iterable[NodeId] = ()) -> Snapshot:
    """Return a world of these subscribers; the roster records ``recorded`` in this order."""
    return Snapshot(
        supervisor=SupervisorState(database=database_of(recorded)),
        subscribers=dict(sorted(states.items())),
    )


def with_database(world: Snapshot, database: Iterable[tuple[str, NodeId | None]]) -> Snapshot:
    """Return the world with another database; the subscribers do not change."""
    return replace(world, supervisor=replace(world.supervisor, database=tuple(database)))


def with_states(
    world: Snapshot, change: Callable[[NodeId, SubscriberState], SubscriberState]
) -> Snapshot:
    """Return the world with every subscriber's state changed."""
    states = {node: change(node, state) for node, state in world.subscribers.items()}
    return replace(world, subscribers=states)


def clean_world(n: int, rng: Random) -> Snapshot:
    """Return a world without labels, references and recorded nodes."""
    del rng
    return world_of({node: SubscriberState() for node in node_names(n)})


def legitimate_world(n: int, rng: Random) -> Snapshot:
    """Return SR(n) over nodes in random order."""
    nodes = shuffled_names(n, rng)
    return world_of(dict(legitimate_states(nodes)), nodes)


def sorted_ring(peers: Iterable[Peer]) -> dict[NodeId, SubscriberState]:
    """Return the states of peers that form a sorted ring without shortcuts."""
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
    topic: TopicId, count: int, publishers: Sequence[NodeId], rng: Random, *, batch: int = 1
) -> list[RecordBatch]:
    """Return ``count`` publications by random publishers, each of ``batch`` records."""
    return [
        RecordBatch.of(
            [BatchRecord(f"news {number}".encode()) for number in range(first, first + batch)],
            publisher=rng.choice(publishers),
            first=first,
            topic=topic,
        )
        for first in range(0, count * batch, batch)
    ]


# Guesses: enough for several buckets of a trie, held by few members.
_PUBLICATIONS: Final = 40
_HOLDERS_MAX: Final = 8
_IN_FLIGHT: Final = 1 / 4
_CORRUPTED: Final = 1 / 2


def scatter(world: Snapshot, count: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Add publications to a world; each has a few holders or is only in a channel."""
    members = [node for node, state in sorted(world.subscribers.items()) if state.member]
    if not count or not members:
        return world
    held: dict[NodeId, list[RecordBatch]] = {}
    parcels: list[Parcel] = []
    for publication in made_publications(world.topic, count, members, rng, batch=batch):
        if rng.random() < _IN_FLIGHT:
            message = rng.choice((PublishNew(publication), Publications((publication,))))
            parcels.append(Parcel(rng.choice(members), message))
            continue
        holders = rng.randint(1, min(_HOLDERS_MAX, len(members)))
        for node in rng.sample(members, holders):
            held.setdefault(node, []).append(publication)
    given = with_states(
        world,
        lambda node, state: replace(state, publications=(*state.publications, *held.get(node, ()))),
    )
    return replace(given, channels=(*given.channels, *parcels))


def scattered_publications(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Return a legitimate ring in which each member holds a random part of the publications."""
    world = legitimate_world(n, rng)
    nodes = list(world.subscribers)
    publications = made_publications(world.topic, _PUBLICATIONS, nodes, rng, batch=batch)
    return with_states(
        world,
        lambda _, state: replace(
            state, publications=tuple(rng.sample(publications, rng.randint(0, _PUBLICATIONS)))
        ),
    )


def corrupted_caches(n: int, rng: Random, *, batch: int = 1) -> Snapshot:
    """Scatter publications; give all tries the same root, and rows wrong ids or bodies.

    All members have the same root digest, so no comparison finds a difference. Only a member that
    recomputes its hashes can.
    """
    world = scattered_publications(n, rng, batch=batch)
    junk = rng.randbytes(DIGEST_BYTES)
    keeper = rng.choice(sorted(world.subscribers))
    everything = {
        publication.id: publication
        for state in world.subscribers.values()
        for publication in state.publications
    }

    def corrupted(node: NodeId, state: SubscriberState) -> SubscriberState:
        hashes = {ALL: junk}
        for bit in (0, 1):
            if rng.random() < _CORRUPTED:
                hashes[Prefix(1, bit)] = rng.randbytes(DIGEST_BYTES)
        if node == keeper:  # each publication must be intact at one member
            rows = tuple(everything.values())
        else:
            rows = tuple(_corrupted(p, rng, world.topic) for p in state.publications)
        trie = replace(state, publications=rows, hashes=hashes).trie()
        # A trie of few ids stores no hash except the root's.
        return replace(state, publications=rows, hashes=trie.wrong_digests())

    return with_states(world, corrupted)


def _corrupted(publication: RecordBatch, rng: Random, topic: TopicId) -> RecordBatch:
    """Return the publication, or one with a wrong id, a wrong body, or an unreadable body."""
    if rng.random() >= _CORRUPTED:
        return publication
    torn = replace(publication, body=publication.body[:-1])
    wrong_id = replace(publication, id=rng.randbytes(ID_BYTES))
    return rng.choice((wrong_id, torn, torn.with_id(topic)))
