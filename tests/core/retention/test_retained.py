"""Index of retained rows: it does what ``keep`` states."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipring.core.batches import RECORDS_MAX, BatchRecord, RecordBatch
from skipring.core.log import MemoryLog
from skipring.core.retention.charter import Charter, Policy, charter_record
from skipring.core.retention.floors import NO_FLOORS, FloorStamps
from skipring.core.retention.retained import SLICE_RECORDS, RetainedRows
from skipring.core.retention.rows import keep, stamp_of
from tests.support.batches import opaque_batch, with_rows
from tests.support.rows import (
    KEYS,
    any_record,
    batches_of,
    floors,
    kept,
    put,
    record,
    rows,
    sets,
    sets_with_deletions,
    singles,
)


class Member:
    """Log and index of a member; dropped batches leave the log after each event."""

    def __init__(self, policy: Policy, stored: Iterable[RecordBatch] = ()) -> None:
        self.log = MemoryLog(stored)
        self.rows = RetainedRows(self.log, policy)

    def add(self, batch: RecordBatch) -> None:
        self.rows.add(self.log.end, batch, batch.records())
        self.log.append(batch)

    def trim(self, cut: FloorStamps, batches: int = 1000) -> int:
        """Drop what is not retained until nothing is left to do; return the number of slices."""
        for slices in count():
            assert slices < 200
            while not self.rows.is_complete:
                self.rows.build(batches)
            dropped = self.rows.drop(cut, batches)
            for each in dropped:
                assert self.log.read(each.offset) is not None
                self.log.remove(each.offset)
            if not dropped and self.rows.is_complete:
                return slices
        raise AssertionError

    @property
    def stored(self) -> set[RecordBatch]:
        return {entry.batch for entry in self.log.read_range(0, self.log.end)}


def distinct(found: Iterable[RecordBatch]) -> list[RecordBatch]:
    return list({each.id: each for each in found}.values())


@settings(max_examples=300)
@given(
    sets_with_deletions,
    sets_with_deletions,
    st.booleans(),
    st.lists(floors, min_size=2, max_size=2),
    st.integers(0, 12),
    st.sampled_from([1, 3, 1000]),
)
def test_index_drops_exactly_what_is_not_kept(
    stored: list[RecordBatch],
    later: list[RecordBatch],
    compact: bool,
    cuts: list[FloorStamps],
    tombstones: int,
    batches: int,
) -> None:
    policy = Policy(compact=compact, max_count=5)
    every = distinct([*stored, *later])
    first, rest = every[: len(stored)], every[len(stored) :]
    member = Member(policy, first)
    low, high = sorted(cuts, key=lambda each: each.rows)
    member.trim(low, batches)
    assert member.stored == set(keep(first, policy, low))
    high = FloorStamps(high.age, high.full, tombstones)
    expected = keep([*member.stored, *rest], policy, high)
    for each in rest:
        member.add(each)
    member.trim(high, batches)
    assert member.stored == set(expected)
    assert member.rows.stamps.records == sum(each.count for each in expected)
    assert member.rows.is_complete


@given(sets_with_deletions, batches_of(any_record), st.integers(0, 12), st.integers(0, 12))
def test_refused_batch_would_be_dropped(
    stored: list[RecordBatch], arriving: RecordBatch, age: int, tombstones: int
) -> None:
    cut = FloorStamps(age, 0, tombstones)
    member = Member(KEYS, distinct(stored))
    member.trim(cut)
    if arriving in member.stored:
        return
    expected = keep([*member.stored, arriving], KEYS, cut)
    is_refused = member.rows.refuses(arriving, arriving.records(), cut)
    if is_refused:
        assert set(expected) == member.stored
    if arriving.count == 1 and arriving not in expected and member.stored <= set(expected):
        assert is_refused


def test_older_record_counts_once_the_newer_one_is_below_the_floor() -> None:
    old, newer = rows(record(3, b"k"), record(9, b"l")), put(5, first=9)
    member = Member(KEYS, [old, newer])
    member.add(put(10, b"l", first=10))
    cut = FloorStamps(7)
    member.trim(cut)
    assert member.stored == {old, put(10, b"l", first=10)}
    refused = put(2, first=11)
    assert member.rows.refuses(refused, refused.records(), NO_FLOORS)


def test_tombstone_expires_after_the_last_older_record_is_dropped() -> None:
    member = Member(KEYS, [rows(record(3, b"k"), record(3, b"l")), put(5, deleted=True, first=9)])
    cut = FloorStamps(0, 0, 9)
    member.trim(cut)
    assert member.log.records == 3
    member.add(put(6, b"l", first=10))
    member.trim(cut)
    assert member.stored == {put(6, b"l", first=10)}


def test_only_the_newest_record_of_each_key_stays() -> None:
    member = Member(KEYS)
    for number in range(1000):
        member.add(put(number + 1, b"k%d" % (number % 10), first=number))
        if number % 100 == 99:
            member.trim(NO_FLOORS)
    assert (member.log.records, member.rows.keys) == (10, 10)


def test_nothing_is_dropped_before_the_log_is_indexed() -> None:
    member = Member(KEYS, [put(1), put(2, first=1), put(3, first=2)])
    member.rows.build(2)
    assert not member.rows.is_complete
    assert member.rows.drop(FloorStamps(9), 10) == []


def test_charters_are_never_below_a_floor_and_do_not_count() -> None:
    charter, member = rows(charter_record(Charter(stamp=1))), Member(Policy(max_count=1))
    member.add(charter)
    member.trim(FloorStamps(9))
    assert member.stored == {charter}
    assert (member.rows.stamps.records, len(member.rows.stamps)) == (0, 0)
    assert not member.rows.refuses(charter, charter.records(), FloorStamps(9))


def test_tombstone_that_hides_a_stored_value_is_not_refused() -> None:
    member = Member(KEYS, [put(3)])
    member.trim(NO_FLOORS)
    deletion = put(5, deleted=True, first=1)
    assert not member.rows.refuses(deletion, deletion.records(), FloorStamps(0, 0, 9))
    member.add(deletion)
    member.trim(FloorStamps(0, 0, 9))
    assert member.stored == set()


def test_opaque_and_unreadable_batches_have_no_keys() -> None:
    member = Member(KEYS, [opaque_batch(b"i" * 32), with_rows([[1]])])
    member.trim(NO_FLOORS)
    assert len(member.stored) == 2


def test_discarded_batch_is_forgotten() -> None:
    member = Member(KEYS, [put(3), put(4, b"l", first=1)])
    member.trim(NO_FLOORS)
    member.log.discard(0)
    member.rows.discard()
    member.trim(NO_FLOORS)
    assert (member.rows.keys, member.rows.stamps.records) == (1, 1)


def test_unreadable_batch_is_dropped_without_its_content() -> None:
    member = Member(Policy(max_count=1), [put(3)])
    member.trim(NO_FLOORS)
    member.log.discard(0)
    assert [(each.offset, each.batch) for each in member.rows.drop(FloorStamps(9), 5)] == [
        (0, None)
    ]


# -- slices ----------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of records of the batches that are decoded from now on."""
    found: list[int] = []
    records = RecordBatch.records

    def counted(batch: RecordBatch) -> object:
        found.append(batch.count)
        return records(batch)

    monkeypatch.setattr(RecordBatch, "records", counted)
    return found


def large(policy: Policy, batches: int = 64, size: int = 250) -> Member:
    """Return a member with batches of many records, whose keys are written twice."""
    half = batches // 2 * size
    return Member(
        policy,
        [
            rows(
                *(record(1 + first + k, b"%d" % ((first + k) % half)) for k in range(size)),
                first=first,
            )
            for first in range(0, batches * size, size)
        ],
    )


def test_slice_of_the_index_decodes_a_limited_number_of_records(decoded: list[int]) -> None:
    member = large(KEYS)
    slices = 0
    while not member.rows.is_complete:
        decoded.clear()
        member.rows.build(1024)
        slices += 1
        assert sum(decoded) <= SLICE_RECORDS + RECORDS_MAX
    assert slices == 4
    assert member.rows.keys == 32 * 250


def test_slice_of_drops_decodes_a_limited_number_of_records(decoded: list[int]) -> None:
    for cut in (NO_FLOORS, FloorStamps(1 << 40)):
        member = large(KEYS)
        while not member.rows.is_complete:
            member.rows.build(1024)
        dropped = 0
        while member.log.records > (32 * 250 if cut == NO_FLOORS else 0):
            decoded.clear()
            found = member.rows.drop(cut, 1024)
            assert sum(decoded) <= SLICE_RECORDS + 3 * RECORDS_MAX
            dropped += len(found)
            for each in found:
                member.log.remove(each.offset)
            while not member.rows.is_complete:
                member.rows.build(1024)
            assert found
            assert member.rows.has_backlog or member.log.records in (0, 32 * 250)
        assert dropped == (32 if cut == NO_FLOORS else 64)


def newest_rows(found: Iterable[RecordBatch], policy: Policy, age: int = 0) -> set[RecordBatch]:
    """Return what a policy keeps of batches, under the floors that they justify."""
    every = [each for each in distinct(found) if stamp_of(each.records()) >= age]
    rows = RetainedRows(MemoryLog(every), policy)
    while not rows.is_complete:
        rows.build(len(every))
    return kept(every, policy, FloorStamps(age, rows.stamps.full_floor(policy, slack=0)))


@pytest.mark.parametrize(
    "policy", [Policy(compact=True, max_count=50), Policy(compact=True, max_bytes=50 * 80)]
)
def test_superseded_rows_do_not_push_out_live_keys(policy: Policy) -> None:
    keys = [put(1 + k, b"%d" % k, first=k) for k in range(40)]
    member = Member(policy, keys)
    member.trim(NO_FLOORS)
    for number in range(1000):
        member.add(put(100 + number, b"hot", first=100 + number))
        assert not member.rows.is_over_limit
    floor = member.rows.stamps.full_floor(policy)
    member.trim(FloorStamps(0, floor))
    assert member.stored == {*keys, put(1099, b"hot", first=1099)}


def obey_the_algebra(
    a: list[RecordBatch], b: list[RecordBatch], policy: Policy, age: int = 0
) -> None:
    one, two = newest_rows(a, policy, age), newest_rows(b, policy, age)
    assert newest_rows(one | two, policy, age) == newest_rows([*a, *b], policy, age)
    assert newest_rows(one, policy, age) == one


def test_smaller_value_of_a_key_is_the_exception_of_a_limit_by_bytes() -> None:
    """A member that never had the large value keeps one row more, and the others fetch it."""
    old, small = put(1, b"l"), put(6, first=6)
    large = rows(BatchRecord(bytes(400), 5, b"k"), first=5)
    policy = Policy(compact=True, max_bytes=400)
    assert newest_rows([old, large], policy) == {large}
    assert newest_rows([*newest_rows([old, large], policy), small], policy) == {small}
    assert newest_rows([old, large, small], policy) == {old, small}


@given(sets_with_deletions, sets_with_deletions, st.integers(0, 12))
def test_tombstones_that_are_not_removed_obey_the_algebra(
    a: list[RecordBatch], b: list[RecordBatch], age: int
) -> None:
    cut = FloorStamps(age, 0, 0)
    assert kept(kept(a, KEYS, cut) | kept(b, KEYS, cut), KEYS, cut) == kept([*a, *b], KEYS, cut)


@given(sets, sets, st.integers(1, 9), st.booleans())
def test_limits_by_size_obey_the_algebra(
    a: list[RecordBatch], b: list[RecordBatch], limit: int, counts: bool
) -> None:
    policy = Policy(max_count=limit) if counts else Policy(max_bytes=70 * limit)
    obey_the_algebra(a, b, policy)


@given(singles, singles, st.integers(1, 6), st.integers(0, 12))
def test_compaction_with_a_limit_by_count_and_age_obeys_the_algebra(
    a: list[RecordBatch], b: list[RecordBatch], limit: int, age: int
) -> None:
    obey_the_algebra(a, b, Policy(compact=True, max_count=limit))
    obey_the_algebra(a, b, Policy(compact=True, max_count=limit, max_age_s=1), age)


@given(singles, singles, st.integers(1, 6))
def test_compaction_with_a_limit_by_bytes_obeys_the_algebra_if_values_have_one_size(
    a: list[RecordBatch], b: list[RecordBatch], limit: int
) -> None:
    same = [
        [each for each in found if each.size_bytes == put(1, first=9).size_bytes]
        for found in (a, b)
    ]
    obey_the_algebra(*same, Policy(compact=True, max_bytes=limit * put(1).size_bytes))
