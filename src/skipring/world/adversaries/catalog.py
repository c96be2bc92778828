"""Catalog of adversaries that every test and experiment uses.

The codes come from the study that found the states; their numbers have gaps.
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
    builders,
    database_states,
    memory_states,
    retention_states,
    ring_states,
)
from skipring.world.snapshot import Snapshot


class Adversary(Struct, frozen=True):
    """Corrupt initial state: its builder for n subscribers, and the rounds in which some crash."""

    code: str
    title: str
    builder: Callable[..., Snapshot]  # of n and a source of chance
    crash_rounds: tuple[int, ...] = ()
    has_publications: bool = False  # the builder has the option ``batch``

    def build(self, n: int, rng: Random, *, batch: int = 1) -> Snapshot:
        """Return the state of n subscribers; each publication has ``batch`` records."""
        return self.builder(n, rng, **({"batch": batch} if self.has_publications else {}))


_ALL: Final = (
    Adversary("A00", "No node is recorded, has a label or has references", builders.clean_world),
    Adversary("A01", "Database entries have lost their subscriber", database_states.vacant_entries),
    Adversary("A02", "The database has duplicate subscribers", database_states.duplicate_entries),
    Adversary("A03", "Database entries are missing", database_states.missing_entries),
    Adversary(
        "A04",
        "Database labels are too large, too long or not canonical",
        database_states.wrong_labels,
    ),
    Adversary("A05", "The database is empty, the ring is intact", database_states.empty_database),
    Adversary(
        "A06",
        "The database is a permutation of the subscribers' labels",
        database_states.permuted_database,
    ),
    Adversary(
        "A07", "One sorted ring of 60-bit labels, no node recorded", ring_states.unrecorded_ring
    ),
    Adversary(
        "A08",
        "Rings of about four with 60-bit labels, no node recorded",
        ring_states.unrecorded_components,
    ),
    Adversary(
        "A09",
        "Two rings with equal labels, the one with the larger ids unrecorded",
        ring_states.twin_rings,
    ),
    Adversary(
        "A09b",
        "Two rings with equal labels, the one with the smaller ids unrecorded",
        partial(ring_states.twin_rings, unrecorded_first=True),
    ),
    Adversary(
        "A10", "Nodes have wrong labels of their neighbours", ring_states.mislabelled_neighbours
    ),
    Adversary("A11", "Left, right and ring are permuted", ring_states.permuted_edges),
    Adversary("A12", "Shortcuts are stale, and there are too many", ring_states.stale_shortcuts),
    Adversary(
        "A13",
        "Forged messages are in the channels",
        arbitrary.corrupted_messages,
        has_publications=True,
    ),
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
        "Unrecorded nodes with long labels have only a dead left neighbour",
        ring_states.dead_left_neighbours,
    ),
    Adversary(
        "A18b",
        "As A18, with a timeout that is far too long",
        partial(ring_states.dead_left_neighbours, threshold=1024),
    ),
    Adversary(
        "A19",
        "Publications are scattered over a legitimate ring",
        builders.scattered_publications,
        has_publications=True,
    ),
    Adversary("A20", "Left and right are exchanged", ring_states.reversed_list),
    Adversary(
        "A21",
        "Each node has references only to itself and the supervisor",
        ring_states.references_to_self_and_supervisor,
    ),
    Adversary(
        "A22",
        "Pairs of nodes with references only by their wrap edges",
        ring_states.pairs_linked_by_wrap_edges,
    ),
    Adversary(
        "A30",
        "Two rings with equal labels and all shortcuts, the one with the smaller ids unrecorded",
        partial(ring_states.twin_rings, unrecorded_first=True, shortcuts=True),
    ),
    Adversary(
        "A31", "An eighth was wrongly evicted, one by one", database_states.evicted_one_by_one
    ),
    Adversary("A32", "The database is rotated by one index", database_states.rotated_database),
    Adversary("A36", "A quarter has crashed at once", ring_states.quarter_crashed),
    Adversary("A37", "A quarter was wrongly evicted at once", database_states.evicted_at_once),
    Adversary(
        "A41",
        "Three adjacent members are replaced in the database",
        partial(database_states.adjacent_replaced, count=3),
    ),
    Adversary(
        "A42",
        "Five adjacent members are replaced in the database",
        partial(database_states.adjacent_replaced, count=5),
    ),
    Adversary("A43", "Two database entries are swapped", database_states.swapped_entries),
    Adversary(
        "A44",
        "The round robin's next is huge, and the database is permuted",
        database_states.huge_next,
    ),
    Adversary(
        "A45", "Permissions to leave are forged while a quarter leaves", ring_states.forged_grants
    ),
    Adversary(
        "A46",
        "Everything is arbitrary, and some nodes crash while it heals",
        arbitrary.arbitrary_world,
        crash_rounds=(2, 4, 6, 8),
    ),
    Adversary(
        "A47",
        "As A19, with wrong stored hashes, ids and bodies, and equal roots",
        builders.corrupted_caches,
        has_publications=True,
    ),
    Adversary(
        "A50",
        "Members have arbitrary floors, under a charter",
        retention_states.arbitrary_floors,
        has_publications=True,
    ),
    Adversary(
        "A51",
        "Members have arbitrary clocks of their neighbours, and arbitrary floors",
        retention_states.arbitrary_neighbour_clocks,
        has_publications=True,
    ),
    Adversary(
        "A52",
        "Superseded, future and forged charters are scattered",
        retention_states.scattered_charters,
        has_publications=True,
    ),
    Adversary(
        "A53",
        "Expired and superseded publications are scattered",
        retention_states.scattered_expired_rows,
        has_publications=True,
    ),
    Adversary(
        "A54",
        "A quarter returns with values of keys that were deleted long ago",
        retention_states.returning_members,
        has_publications=True,
    ),
    Adversary(
        "A55",
        "Members have arbitrary confirmations of their tries",
        retention_states.arbitrary_confirmations,
        has_publications=True,
    ),
    Adversary(
        "A56",
        "Quarantines have publications that belong in the trie, and the reverse",
        retention_states.exchanged_quarantines,
        has_publications=True,
    ),
    Adversary(
        "A57",
        "Two clocks are ten years ahead and back",
        retention_states.broken_clocks,
        has_publications=True,
    ),
    Adversary(
        "A60",
        "Two database entries are swapped, the digest of the database is the old one",
        memory_states.swapped_under_an_old_digest,
    ),
    Adversary(
        "A61",
        "The supervisor's index of its members is wrong",
        memory_states.wrong_index,
    ),
    Adversary(
        "A62",
        "As A43, with arbitrary counters, suspicions and answers of the supervisor",
        memory_states.arbitrary_supervisor_memory,
    ),
    Adversary(
        "A63",
        "As A19, with wrong chains, weights, tree edges, claims and indexes",
        memory_states.wrong_derived_values,
        has_publications=True,
    ),
    Adversary(
        "A64",
        "As A19, with arbitrary counters of the subscribers",
        memory_states.arbitrary_counters,
        has_publications=True,
    ),
    Adversary(
        "A65",
        "As A19, with arbitrary publications to be indexed, announced and requested",
        memory_states.arbitrary_deferred_work,
        has_publications=True,
    ),
    Adversary(
        "A66",
        "As A15, with publications and arbitrary memory of the machines",
        memory_states.arbitrary_memory,
        has_publications=True,
    ),
)

ADVERSARIES: Final[Mapping[str, Adversary]] = MappingProxyType(
    {adversary.code: adversary for adversary in _ALL}
)
