"""Algebra of ``keep``: what members retain does not depend on the order of arrival."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.retention.charter import Policy
from skipring.core.retention.floors import NO_FLOORS, FloorStamps
from tests.support.rows import (
    KEYS,
    floors,
    kept,
    policies,
    put,
    record,
    rows,
    sets,
    sets_with_deletions,
)


@given(sets, sets, policies, floors)
def test_keep_of_kept_sets_is_keep_of_the_union(
    a: list[RecordBatch], b: list[RecordBatch], policy: Policy, cut: FloorStamps
) -> None:
    one, two, union = kept(a, policy, cut), kept(b, policy, cut), kept([*a, *b], policy, cut)
    assert kept(one | two, policy, cut) == union
    assert kept(one, policy, cut) == one
    assert one & union == (set(a) & union)  # dropped from a set: dropped from every superset


@given(sets_with_deletions, st.integers(0, 12), st.integers(0, 12))
def test_keep_is_idempotent_with_tombstones(
    found: list[RecordBatch], age: int, tombstones: int
) -> None:
    cut = FloorStamps(age, 0, tombstones)
    one = kept(found, KEYS, cut)
    assert kept(one, KEYS, cut) == one


def test_removal_of_a_tombstone_is_the_exception() -> None:
    value, deletion, cut = put(3), put(5, deleted=True, first=1), FloorStamps(0, 0, 9)
    assert kept([value, deletion], KEYS, cut) == set()
    assert kept(kept([value], KEYS, cut) | kept([deletion], KEYS, cut), KEYS, cut) == {value}


def test_older_record_in_a_retained_batch_keeps_the_tombstone() -> None:
    old, deletion = rows(record(3, b"k"), record(3, b"l")), put(5, deleted=True, first=9)
    cut = FloorStamps(0, 0, 9)
    assert kept([old, deletion], KEYS, cut) == {old, deletion}
    newer = put(6, b"l", first=10)
    assert kept([old, deletion, newer], KEYS, cut) == {newer}


def test_chain_of_tombstones_and_old_batches_is_removed_in_one_step() -> None:
    old = rows(record(1, b"k"), record(2, b"x", deleted=True))
    deletion = put(3, b"k", deleted=True, first=9)
    assert kept([old, deletion], KEYS, FloorStamps(0, 0, 9)) == set()


def test_records_of_two_clones_are_ordered_by_id() -> None:
    clones = [rows(BatchRecord(payload, 5, b"k")) for payload in (b"x", b"y")]
    assert kept(clones, KEYS, NO_FLOORS) == {max(clones, key=lambda each: each.id)}
