"""Sequence numbers: incarnations, the next own number, and received numbers that raise it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skipring.core.publications import SEQ_BELIEVED_MAX
from skipring.core.sequences import (
    COUNTER_BITS,
    COUNTERS,
    START_US,
    TOLERANCE_US,
    UNIT_US,
    OwnSequence,
    SequenceId,
    incarnation_at,
    newest_of,
)

NOW_US = START_US + 1000 * UNIT_US
CURRENT = incarnation_at(NOW_US, 7)


def seq_of(incarnation: int, counter: int) -> int:
    return incarnation << COUNTER_BITS | counter


def issued(own: OwnSequence, newest: dict[SequenceId, int], count: int = 1) -> list[int]:
    return [own.next(newest, NOW_US) for _ in range(count)]


def test_incarnation_has_40_bits_and_rises_with_time() -> None:
    times = [0, START_US, NOW_US, NOW_US + UNIT_US, START_US << 20]
    incarnations = [incarnation_at(time, 0) for time in times]
    assert incarnations == sorted(incarnations)
    assert incarnation_at(START_US << 20) == (1 << 40) - 1
    assert seq_of((1 << 40) - 1, COUNTERS - 1) < SEQ_BELIEVED_MAX


def test_numbers_count_within_an_incarnation() -> None:
    own = OwnSequence("ann", CURRENT)
    assert issued(own, {}, 3) == [seq_of(CURRENT, counter) for counter in range(3)]


def test_run_without_a_disk_issues_other_numbers_than_the_run_before() -> None:
    before = issued(OwnSequence("ann", CURRENT), {}, 3)
    after = issued(OwnSequence("ann", incarnation_at(NOW_US, 8)), {}, 3)
    assert set(before) & set(after) == set()


def test_incarnation_is_above_all_stored_ones() -> None:
    stored = newest_of([("ann", seq_of(CURRENT, 5)), ("ann", seq_of(CURRENT + 3, 1)), ("bob", 9)])
    own = OwnSequence("ann", CURRENT)
    first, second = issued(own, stored, 2)
    assert first > seq_of(CURRENT + 3, COUNTERS - 1)
    assert second == first + 1


def test_processes_that_know_the_same_stored_numbers_issue_different_ones() -> None:
    """Neither knows the other: one process was killed before the other received its numbers."""
    for highest in (CURRENT + 99, incarnation_at(NOW_US + TOLERANCE_US) - 9):  # near the limit
        stored = newest_of([("ann", seq_of(highest, 5))])
        numbers = [
            OwnSequence("ann", incarnation_at(NOW_US, chance)).next(dict(stored), NOW_US)
            for chance in range(99)
        ]
        assert len({*numbers, *stored.values()}) == 100


def test_forged_number_ahead_of_the_clock_is_ignored_and_counted() -> None:
    forged = {("ann", (1 << 40) - 1): SEQ_BELIEVED_MAX - 1}
    own = OwnSequence("ann", CURRENT)
    assert issued(own, forged) == [seq_of(CURRENT, 0)]
    assert own.ahead == 1
    restarted = OwnSequence("ann", CURRENT + 1)
    assert issued(restarted, forged) == [seq_of(CURRENT + 1, 0)]


def test_number_within_the_tolerance_of_the_clock_counts() -> None:
    soon = incarnation_at(NOW_US + TOLERANCE_US, 0)
    own = OwnSequence("ann", CURRENT)
    (number,) = issued(own, {("ann", soon): seq_of(soon, 0)})
    assert seq_of(soon, 0) < number < seq_of(incarnation_at(NOW_US + TOLERANCE_US) + 1, 0)


def test_publication_of_a_clone_under_the_same_incarnation_leads_to_a_new_one() -> None:
    own, newest = OwnSequence("ann", CURRENT), {}
    issued(own, newest, 2)
    clone = seq_of(CURRENT, 9)
    newest["ann", CURRENT] = clone
    own.record("ann", clone)
    (number,) = issued(own, newest)
    assert number > seq_of(CURRENT, COUNTERS - 1)


def test_own_publication_that_returns_changes_nothing() -> None:
    own, newest = OwnSequence("ann", CURRENT), {}
    first, second = issued(own, newest, 2)
    own.record("ann", first)
    own.record("ann", second)
    own.record("bob", seq_of(CURRENT, 99))
    assert issued(own, newest) == [second + 1]


def test_full_counter_leads_to_a_new_incarnation() -> None:
    own, newest = OwnSequence("ann", CURRENT), {}
    issued(own, newest)
    own._issued = seq_of(CURRENT, COUNTERS - 2)
    last, first = issued(own, newest, 2)
    assert last == seq_of(CURRENT, COUNTERS - 1)
    assert first >> COUNTER_BITS > CURRENT
    assert first % COUNTERS == 0


def test_numbers_from_2_to_the_62_on_are_ignored() -> None:
    assert newest_of([("ann", SEQ_BELIEVED_MAX), ("ann", 3)]) == {("ann", 0): 3}


numbers = st.integers(0, SEQ_BELIEVED_MAX - 1)


@given(numbers, st.integers(1, (1 << 40) - 1), st.booleans(), st.integers(0, 9))
def test_corrupt_issuer_issues_new_numbers_below_the_clock(
    issued_last: int, incarnation: int, is_challenged: bool, ahead: int
) -> None:
    own, newest = OwnSequence("ann", CURRENT), {}
    known = set(issued(own, newest, 3))
    own._issued, own.incarnation = issued_last, incarnation
    own._is_challenged, own.ahead = is_challenged, ahead
    first, second = issued(own, newest, 2)
    assert first not in known
    if incarnation << COUNTER_BITS != issued_last + 1:  # else it looks like an unused incarnation
        assert first >> COUNTER_BITS <= incarnation_at(NOW_US + TOLERANCE_US) + 1
    assert second == first + 1


@given(st.lists(numbers, max_size=20), st.lists(numbers, max_size=20))
def test_no_number_is_issued_twice_whatever_arrives(stored: list[int], arrives: list[int]) -> None:
    newest = newest_of(("ann", seq) for seq in stored)
    own = OwnSequence("ann", CURRENT)
    known = set(newest.values())
    for seq in [*arrives, 0]:
        made = own.next(newest, NOW_US)
        assert made not in known
        known.add(made)
        sequence = "ann", seq >> COUNTER_BITS
        if newest.get(sequence, -1) < seq:
            newest[sequence] = seq
        own.record("ann", seq)
