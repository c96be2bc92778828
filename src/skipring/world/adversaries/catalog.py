"""The table of starting states that every test and experiment uses.

The codes are those of the study in which the states were found; its numbers have gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from skipring.core.labels import LABEL_BITS
from skipring.world.adversaries import (
    arbitrary,
    building,
    databases,
    departures,
    memories,
    rings,
    scattering,
)
from skipring.world.snapshot import Snapshot


class Adversary(Struct, frozen=True):
    """A way to start wrong: what it does to n subscribers, and when some of them crash."""

    code: str
    title: str
    build: Callable[[int, Random], Snapshot]
    crash_rounds: tuple[int, ...] = ()


_ALL: Final = (
    Adversary("A00", "Nobody is recorded, has a label or knows anybody", building.clean_world),
    Adversary("A01", "Database entries have lost their subscriber", databases.vacant_entries),
    Adversary("A02", "The database has subscribers twice", databases.duplicate_entries),
    Adversary("A03", "Database entries are missing", databases.missing_entries),
    Adversary(
        "A04", "Database labels are too large, too long or not canonical", databases.wrong_labels
    ),
    Adversary("A05", "The database is empty, the ring stands", databases.empty_database),
    Adversary(
        "A06", "The database is permuted against the subscribers", databases.permuted_database
    ),
    Adversary("A07", "One sorted ring of 60-bit labels, nobody recorded", rings.unrecorded_ring),
    Adversary(
        "A08",
        "Rings of about four with 60-bit labels, nobody recorded",
        rings.unrecorded_components,
    ),
    Adversary(
        "A09",
        "Two rings with equal labels, the one with the larger ids unrecorded",
        rings.twin_rings,
    ),
    Adversary(
        "A09b",
        "Two rings with equal labels, the one with the smaller ids unrecorded",
        partial(rings.twin_rings, unrecorded_first=True),
    ),
    Adversary("A10", "Neighbours are believed to have wrong labels", rings.mislabelled_neighbours),
    Adversary("A11", "Left, right and ring are permuted", rings.permuted_edges),
    Adversary("A12", "Shortcuts are stale, and there are too many", rings.stale_shortcuts),
    Adversary("A13", "Forged messages are in the channels", arbitrary.corrupted_messages),
    Adversary("A14", "All labels are equal", arbitrary.equal_labels),
    Adversary("A15", "Everything is arbitrary", arbitrary.arbitrary_world),
    Adversary(
        "A16",
        "Everything is arbitrary, with labels of up to 64 bits",
        partial(arbitrary.arbitrary_world, label_bits=LABEL_BITS),
    ),
    Adversary(
        "A17",
        "Everything is arbitrary, and a quarter of all references is to crashed nodes",
        arbitrary.arbitrary_world_with_crashed,
    ),
    Adversary(
        "A18",
        "Unrecorded nodes with long labels know only a dead left neighbour",
        departures.dead_left_neighbours,
    ),
    Adversary(
        "A18b",
        "Unrecorded nodes with long labels will wait far too long for a dead left neighbour",
        partial(departures.dead_left_neighbours, threshold=1024),
    ),
    Adversary(
        "A19", "Publications are scattered over a sound ring", scattering.scattered_publications
    ),
    Adversary("A20", "Left and right are exchanged", rings.reversed_list),
    Adversary(
        "A21",
        "Everybody knows only itself and the supervisor",
        rings.references_to_self_and_supervisor,
    ),
    Adversary(
        "A22",
        "Pairs know each other only as the other end of a ring",
        rings.pairs_linked_by_wrap_edges,
    ),
    Adversary(
        "A30",
        "Two rings with equal labels and all shortcuts, the one with the smaller ids unrecorded",
        partial(rings.twin_rings, unrecorded_first=True, shortcuts=True),
    ),
    Adversary("A31", "An eighth was wrongly evicted, one by one", databases.evicted_one_by_one),
    Adversary("A32", "The database is rotated by one index", databases.rotated_database),
    Adversary("A36", "A quarter has crashed at once", departures.quarter_crashed),
    Adversary("A37", "A quarter was wrongly evicted at once", databases.evicted_at_once),
    Adversary(
        "A41",
        "Three adjacent members are replaced in the database",
        partial(databases.adjacent_replaced, count=3),
    ),
    Adversary(
        "A42",
        "Five adjacent members are replaced in the database",
        partial(databases.adjacent_replaced, count=5),
    ),
    Adversary("A43", "Two database entries are swapped", databases.swapped_entries),
    Adversary("A44", "The round robin's next is huge, the database permuted", databases.huge_next),
    Adversary(
        "A45", "Permissions to leave are forged while a quarter leaves", departures.forged_grants
    ),
    Adversary(
        "A46",
        "Everything is arbitrary, and some crash while it heals",
        arbitrary.arbitrary_world,
        crash_rounds=(2, 4, 6, 8),
    ),
    Adversary(
        "A47",
        "As A19, with stored hashes and ids that are wrong and all roots alike",
        scattering.corrupted_caches,
    ),
    Adversary(
        "A60",
        "Two database entries are swapped, the sum over the database is that of before",
        memories.swapped_under_an_old_digest,
    ),
    Adversary(
        "A61", "The supervisor looks members up at wrong places of its list", memories.wrong_index
    ),
    Adversary(
        "A62",
        "As A43, with arbitrary counters, suspicions and answers of the supervisor",
        memories.arbitrary_supervisor_memory,
    ),
    Adversary(
        "A63",
        "As A19, with wrong chains, weights, tree edges, claims and indexes",
        memories.wrong_derived_values,
    ),
    Adversary(
        "A64", "As A19, with arbitrary counters of the subscribers", memories.arbitrary_counters
    ),
    Adversary(
        "A65",
        "As A19, with arbitrary publications to be kept, indexed and announced",
        memories.arbitrary_deferred_work,
    ),
    Adversary(
        "A66",
        "As A15, with publications, and all that machines remember is arbitrary",
        memories.arbitrary_memory,
    ),
)

ADVERSARIES: Final[Mapping[str, Adversary]] = MappingProxyType(
    {adversary.code: adversary for adversary in _ALL}
)
