"""Publications in all the wrong places: some here, some there, some on their way."""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec.structs import replace

from skipring.core.hashing import DIGEST_BYTES
from skipring.core.messages import Publications, PublishNew
from skipring.core.peers import NodeId
from skipring.core.prefixes import ALL, Prefix
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.state import SubscriberState
from skipring.world.adversaries.building import (
    legitimate_world,
    made_publications,
    with_states,
)
from skipring.world.snapshot import Parcel, Snapshot

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
