"""Initial states with a wrong supervisor database (sections 3.1 and 3.3).

The subscribers form a correct ring in all of them. The first databases are recognizably corrupt;
the others are sound and only contradict the subscribers.
"""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec.structs import replace

from skipring.core.labels import Label
from skipring.core.peers import NodeId
from skipring.core.roster import Roster
from skipring.core.state import SubscriberState, legitimate_states
from skipring.world.adversaries.builders import (
    database_of,
    legitimate_world,
    permuted,
    recorded_nodes,
    share,
    shuffled_names,
    with_database,
    world_of,
)
from skipring.world.snapshot import Snapshot

_LONG_BITS: Final = 40  # Guess: above every n; half of these bit strings are values of l.
_HUGE_NEXT: Final = 10**18 + 7  # Guess: no counter of rounds reaches it.

# -- the four conditions of section 3.1 ------------------------------------------------------


def vacant_entries(n: int, rng: Random) -> Snapshot:
    """Remove the subscriber from a third of the entries (condition i)."""
    world = legitimate_world(n, rng)
    vacant = frozenset(rng.sample(range(n), share(n, 3)))
    database = [
        (label, None if index in vacant else node)
        for index, (label, node) in enumerate(world.supervisor.database)
    ]
    return with_database(world, database)


def duplicate_entries(n: int, rng: Random) -> Snapshot:
    """Record nodes under several labels, surplus ones and those of other nodes (condition ii)."""
    world = legitimate_world(n, rng)
    entries, nodes = dict(world.supervisor.database), recorded_nodes(world)
    for place in range(n):
        # One surplus label makes more entries than nodes, so at least one node is recorded twice.
        index = rng.randrange(n if place == 0 else 0, 3 * n)
        entries[Label.nth(index).bits] = rng.choice(nodes)
    return with_database(world, entries.items())


def missing_entries(n: int, rng: Random) -> Snapshot:
    """Remove a third of the entries (condition iii)."""
    world = legitimate_world(n, rng)
    count = share(n, 3)
    # Keep the last entries: removing them would only make the ring smaller.
    missing = frozenset(rng.sample(range(max(count, n - count)), count))
    database = [
        entry for index, entry in enumerate(world.supervisor.database) if index not in missing
    ]
    return with_database(world, database)


def wrong_labels(n: int, rng: Random) -> Snapshot:
    """Record all nodes under labels too large, too long or not canonical (condition iv)."""
    world = legitimate_world(n, rng)
    kinds = (_large_label, _long_label, _noncanonical_label)
    nodes = permuted(recorded_nodes(world), rng)
    database = [(kinds[place % 3](n, rng), node) for place, node in enumerate(nodes)]
    return with_database(world, database)


def _large_label(n: int, rng: Random) -> str:
    return Label.nth(rng.randrange(n, 3 * n)).bits


def _long_label(n: int, rng: Random) -> str:
    del n
    return format(rng.getrandbits(_LONG_BITS), f"0{_LONG_BITS}b")


def _noncanonical_label(n: int, rng: Random) -> str:
    return Label.nth(rng.randrange(n)).bits + "0"


# -- consistent, but different from what the subscribers know --------------------------------


def empty_database(n: int, rng: Random) -> Snapshot:
    """Empty the database."""
    return with_database(legitimate_world(n, rng), ())


def permuted_database(n: int, rng: Random) -> Snapshot:
    """Record the nodes in another order than the subscribers know."""
    world = legitimate_world(n, rng)
    return with_database(world, database_of(permuted(recorded_nodes(world), rng)))


def rotated_database(n: int, rng: Random) -> Snapshot:
    """Record each node one index too low: no label is correct, all neighbours are known."""
    world = legitimate_world(n, rng)
    nodes = recorded_nodes(world)
    return with_database(world, database_of(nodes[1:] + nodes[:1]))


def swapped_entries(n: int, rng: Random) -> Snapshot:
    """Swap two entries, so that each node finds its own neighbourhood correct."""
    world = legitimate_world(n, rng)
    nodes = recorded_nodes(world)
    if n > 1:
        # Prefer leaves: they have no shortcuts that would expose the swap.
        low = n // 2 if n - n // 2 > 1 else 0
        i, j = rng.sample(range(low, n), 2)
        nodes[i], nodes[j] = nodes[j], nodes[i]
    return with_database(world, database_of(nodes))


def huge_next(n: int, rng: Random) -> Snapshot:
    """Set the round robin cursor far out of range, in a database with errors to find."""
    world = permuted_database(n, rng)
    return replace(world, supervisor=replace(world.supervisor, next=_HUGE_NEXT))


# -- live members that were evicted ---------------------------------------------


def evicted_one_by_one(n: int, rng: Random) -> Snapshot:
    """Evict an eighth of the members one by one, without notification; the last fills each gap."""
    world = legitimate_world(n, rng)
    roster = _dense_roster(world)
    for node in rng.sample(recorded_nodes(world), share(n, 8)):
        roster.remove(node)
    return with_database(world, roster.database())


def evicted_at_once(n: int, rng: Random) -> Snapshot:
    """Evict a quarter of the members at once and close the gaps, without notification."""
    world = legitimate_world(n, rng)
    evicted = frozenset(rng.sample(recorded_nodes(world), share(n, 4)))
    left_over = [entry for entry in world.supervisor.database if entry[1] not in evicted]
    return with_database(world, _dense_roster(with_database(world, left_over)).database())


def _dense_roster(world: Snapshot) -> Roster:
    """Return the database after its repair."""
    roster = world.roster
    roster.repair()
    return roster


def adjacent_replaced(n: int, rng: Random, *, count: int) -> Snapshot:
    """Replace adjacent members in the database with nodes that have no label.

    A smaller ring has fewer replacements, the smallest none.
    """
    nodes = shuffled_names(n, rng)
    segment = _segment_between_leaves(n, count, rng)
    size = n - len(segment)
    ring, recorded, spares = nodes[:size], nodes[:size], nodes[size:]
    for place, (index, spare) in enumerate(zip(segment, spares, strict=True)):
        low, high = sorted((nodes[index], spare))
        # Ids break ties between equal labels. At both ends of the segment, the evicted node that
        # the outer neighbour knows must win against its replacement.
        ring[index], recorded[index] = (low, high) if place == 0 else (high, low)
    newcomers: list[NodeId] = [recorded[index] for index in segment]
    states = dict.fromkeys(newcomers, SubscriberState()) | dict(legitimate_states(ring))
    return world_of(states, recorded)


def _segment_between_leaves(n: int, count: int, rng: Random) -> list[int]:
    """Return indices of adjacent labels between two leaves, in a ring of all other nodes."""
    for length in range(count, 0, -1):
        order = sorted(range(max(0, n - length)), key=Label.nth)
        starts = [
            start
            for start in range(1, len(order) - length)
            if _is_leaf(order, start - 1) and _is_leaf(order, start + length)
        ]
        if starts:
            start = rng.choice(starts)
            return order[start : start + length]
    return []


def _is_leaf(order: list[int], place: int) -> bool:
    """Return True if both ring neighbours have shorter labels: no shortcuts start here."""
    before, own, after = (
        Label.nth(order[(place + step) % len(order)]).length for step in (-1, 0, 1)
    )
    return before < own > after
