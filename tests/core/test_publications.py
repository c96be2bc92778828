"""Publications: sequence numbers, which no process issues twice (decision 46)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.publications import (
    COUNTER_BITS,
    COUNTERS,
    INCARNATIONS_MAX,
    SEQ_BELIEVED_MAX,
    START_US,
    TOLERANCE_US,
    UNIT_US,
    OwnSequence,
    incarnation_at,
    newest_of,
    raise_newest,
)

NOW_US = START_US + 1000 * UNIT_US
CURRENT = incarnation_at(NOW_US, 7)
Newest = dict[int, int]


def seq_of(incarnation: int, counter: int) -> int:
    return incarnation << COUNTER_BITS | counter


def issued(own: OwnSequence, newest: Newest, count: int = 1) -> list[int]:
    return [own.issue(1, newest, NOW_US) for _ in range(count)]


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
    stored = newest_of([seq_of(CURRENT, 5), seq_of(CURRENT + 3, 1)])
    own = OwnSequence("ann", CURRENT)
    first, second = issued(own, stored, 2)
    assert first > seq_of(CURRENT + 3, COUNTERS - 1)
    assert second == first + 1


def test_processes_that_know_the_same_stored_numbers_issue_different_ones() -> None:
    """Neither knows the other: one process was killed before the other received its numbers."""
    for highest in (CURRENT + 99, incarnation_at(NOW_US + TOLERANCE_US) - 9):  # near the limit
        stored = newest_of([seq_of(highest, 5)])
        numbers = [
            OwnSequence("ann", incarnation_at(NOW_US, chance)).issue(1, dict(stored), NOW_US)
            for chance in range(99)
        ]
        assert len({*numbers, *stored.values()}) == 100


def test_forged_number_ahead_of_the_clock_is_ignored_and_counted() -> None:
    forged = {(1 << 40) - 1: SEQ_BELIEVED_MAX - 1}
    own = OwnSequence("ann", CURRENT)
    assert issued(own, forged) == [seq_of(CURRENT, 0)]
    assert own.ahead == 1
    restarted = OwnSequence("ann", CURRENT + 1)
    assert issued(restarted, forged) == [seq_of(CURRENT + 1, 0)]


def test_number_within_the_tolerance_of_the_clock_counts() -> None:
    soon = incarnation_at(NOW_US + TOLERANCE_US, 0)
    own = OwnSequence("ann", CURRENT)
    (number,) = issued(own, {soon: seq_of(soon, 0)})
    assert seq_of(soon, 0) < number < seq_of(incarnation_at(NOW_US + TOLERANCE_US) + 1, 0)


def test_publication_of_a_clone_under_the_same_incarnation_leads_to_a_new_one() -> None:
    own, newest = OwnSequence("ann", CURRENT), Newest()
    issued(own, newest, 2)
    clone = seq_of(CURRENT, 9)
    newest[CURRENT] = clone
    own.on_seen(clone)
    (number,) = issued(own, newest)
    assert number > seq_of(CURRENT, COUNTERS - 1)


def test_own_publication_that_returns_changes_nothing() -> None:
    own, newest = OwnSequence("ann", CURRENT), Newest()
    first, second = issued(own, newest, 2)
    own.on_seen(first)
    own.on_seen(second)
    assert issued(own, newest) == [second + 1]


def test_full_counter_leads_to_a_new_incarnation() -> None:
    own, newest = OwnSequence("ann", CURRENT), Newest()
    issued(own, newest)
    own._issued = seq_of(CURRENT, COUNTERS - 2)
    last, first = issued(own, newest, 2)
    assert last == seq_of(CURRENT, COUNTERS - 1)
    assert first >> COUNTER_BITS > CURRENT
    assert first % COUNTERS == 0


def test_numbers_of_one_call_are_consecutive() -> None:
    own, newest = OwnSequence("ann", CURRENT), Newest()
    assert own.issue(200, newest, NOW_US) == seq_of(CURRENT, 0)
    assert own.issue(3, newest, NOW_US) == seq_of(CURRENT, 200)
    assert newest == {CURRENT: seq_of(CURRENT, 202)}


@pytest.mark.parametrize("incarnation", [0, CURRENT])
@pytest.mark.parametrize(("room", "is_enough"), [(0, False), (2, False), (3, True), (4, True)])
def test_numbers_of_one_call_never_belong_to_two_incarnations(
    incarnation: int, room: int, is_enough: bool
) -> None:
    last = seq_of(incarnation, COUNTERS - 1 - room)
    own, newest = OwnSequence("ann", incarnation), Newest()
    first = own.issue(last - seq_of(incarnation, 0) + 1, newest, NOW_US)
    assert first == seq_of(incarnation, 0)
    first = own.issue(3, newest, NOW_US)
    assert first >> COUNTER_BITS == (first + 2) >> COUNTER_BITS
    assert (first >> COUNTER_BITS == incarnation) is is_enough
    assert first > last


def test_full_counter_of_incarnation_0_leads_to_new_numbers_after_each_start() -> None:
    newest = {0: COUNTERS - 2}
    for start in range(1, 4):
        own = OwnSequence("ann", 0)
        assert own.issue(3, newest, 0) == seq_of(start, 0)


def test_numbers_from_2_to_the_62_on_are_ignored() -> None:
    assert newest_of([SEQ_BELIEVED_MAX, 3, 2]) == {0: 3}


stored_numbers = st.integers(0, SEQ_BELIEVED_MAX - 1)


@given(stored_numbers, st.integers(1, (1 << 40) - 1), st.booleans(), st.integers(0, 9))
def test_corrupt_issuer_issues_new_numbers_below_the_clock(
    issued_last: int, incarnation: int, is_challenged: bool, ahead: int
) -> None:
    own, newest = OwnSequence("ann", CURRENT), Newest()
    known = set(issued(own, newest, 3))
    own._issued, own.incarnation = issued_last, incarnation
    own._is_challenged, own.ahead = is_challenged, ahead
    first, second = issued(own, newest, 2)
    assert first not in known
    if incarnation << COUNTER_BITS != issued_last + 1:  # else it looks like an unused incarnation
        assert first >> COUNTER_BITS <= incarnation_at(NOW_US + TOLERANCE_US) + 1
    assert second == first + 1


near_numbers = st.builds(seq_of, st.integers(CURRENT - 2, CURRENT + 2), st.integers(0, 999))
arrivals = st.lists(st.tuples(stored_numbers | near_numbers, st.integers(1, 300)), max_size=20)


@given(st.sampled_from([0, CURRENT]), st.lists(stored_numbers, max_size=20), arrivals)
def test_no_number_is_issued_twice_for_any_arrivals(
    incarnation: int, stored: list[int], arrives: list[tuple[int, int]]
) -> None:
    newest = newest_of(stored)
    own = OwnSequence("ann", incarnation)
    known = set(newest.values())
    for seq, count in [*arrives, (0, 1)]:
        first = own.issue(count, newest, NOW_US)
        made = set(range(first, first + count))
        assert not made & known
        assert first >> COUNTER_BITS == (first + count - 1) >> COUNTER_BITS
        known |= made
        if raise_newest(newest, seq):
            known.add(seq)
        own.on_seen(seq)


def test_full_incarnation_is_not_used_again_though_it_is_forgotten() -> None:
    limit = incarnation_at(NOW_US + TOLERANCE_US)
    own = OwnSequence("ann", limit - 5)
    ahead = newest_of(seq_of(limit + 1 + number, 0) for number in range(INCARNATIONS_MAX))
    first = own.issue(COUNTERS, ahead, NOW_US)
    following = own.issue(1, ahead, NOW_US)
    assert len(ahead) == INCARNATIONS_MAX
    assert first >> COUNTER_BITS == limit - 5 < following >> COUNTER_BITS


def test_incarnations_are_bounded_and_the_highest_are_known() -> None:
    numbers = [seq_of(incarnation, 7) for incarnation in range(4 * INCARNATIONS_MAX)]
    for order in (numbers, numbers[::-1], sorted(numbers, key=lambda seq: seq % 1009)):
        assert sorted(newest_of(order).values()) == numbers[-INCARNATIONS_MAX:]
