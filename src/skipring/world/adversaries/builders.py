"""Builders of initial states: names, whole rings, shares, permutations.

No result depends on the order of a set: the same n and seed give the same state on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from skipring.core.labels import Label
from skipring.core.messages import Publications, PublishNew
from skipring.core.peers import NodeId, Peer, TopicId
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.state import SubscriberState, SupervisorState, legitimate_states
from skipring.core.summaries import DIGEST_BYTES
from skipring.world.snapshot import Parcel, Snapshot

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
        ).with_id(topic)
        for seq in range(count)
    ]


# Our guesses: enough for several buckets of a trie, in the hands of few.
_PUBLICATIONS: Final = 40
_HOLDERS_MAX: Final = 8
_IN_FLIGHT: Final = 1 / 4
_CORRUPTED: Final = 1 / 2


def scatter(world: Snapshot, count: int, rng: Random) -> Snapshot:
    """The world with publications that a few members hold each, or nobody yet but a channel."""
    members = [node for node, state in sorted(world.subscribers.items()) if state.member]
    if not count or not members:
        return world
    held: dict[NodeId, list[Publication]] = {}
    parcels: list[Parcel] = []
    for publication in made_publications(world.topic, count, members, rng):
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


def scattered_publications(n: int, rng: Random) -> Snapshot:
    """A legitimate ring in which everybody holds some other publications."""
    world = legitimate_world(n, rng)
    publications = made_publications(world.topic, _PUBLICATIONS, list(world.subscribers), rng)
    return with_states(
        world,
        lambda _, state: replace(
            state, publications=tuple(rng.sample(publications, rng.randint(0, _PUBLICATIONS)))
        ),
    )


def corrupted_caches(n: int, rng: Random) -> Snapshot:
    """Scattered publications, tries that all look equal, and rows under wrong ids.

    Everybody believes in the same root, so no comparison finds anything: only those who work
    their hashes out again can.
    """
    world = scattered_publications(n, rng)
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
        if node == keeper:  # what is wrong at all others must be right somewhere
            rows = tuple(everything.values())
        else:
            rows = tuple(_under_wrong_id(p, rng) for p in state.publications)
        trie = replace(state, publications=rows, hashes=hashes).trie
        # A trie of few ids keeps no hash but the root's.
        return replace(state, publications=rows, hashes=trie.wrong_digests())

    return with_states(world, corrupted)


def _under_wrong_id(publication: Publication, rng: Random) -> Publication:
    is_spared = rng.random() >= _CORRUPTED
    return publication if is_spared else replace(publication, id=rng.randbytes(ID_BYTES))
