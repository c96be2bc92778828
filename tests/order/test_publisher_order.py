"""Order of publishers: sequences, gaps, late publications, limits."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from skipring.core.publications import COUNTER_BITS, COUNTERS, Publication
from skipring.order.gaps import HELD, Backlog, Gap, GapReason, Release
from skipring.order.publisher_order import SEQUENCES_MAX, PublisherOrder

NEVER = float("-inf")
WAIT_S, STEP_S = 8.0, 1.0


def number(counter: int, incarnation: int = 0) -> int:
    return (incarnation << COUNTER_BITS) + counter


def publications(publisher: str, first: int, count: int = 1, size: int = 1) -> list[Publication]:
    return [
        Publication(publisher=publisher, seq=seq, payload=b"x" * size)
        for seq in range(first, first + count)
    ]


class Desk(Struct):
    """An order, and what it has released."""

    order: PublisherOrder[Publication]
    out: list[tuple[str, int, bool] | Gap] = []

    def add(self, publisher: str, first: int, count: int = 1, size: int = 1) -> None:
        self.extend(
            self.order.add(
                publisher, first, first + count, publications(publisher, first, count, size)
            )
        )

    def extend(self, released: Iterable[Release[Publication] | Gap]) -> None:
        for each in released:
            if isinstance(each, Gap):
                self.out.append(each)
            else:
                self.out += [(one.publisher, one.seq, each.is_late) for one in each.publications]

    def pass_time(self, until: float, confirmed_s: float = NEVER) -> None:
        self.order.on_time(until)
        self.extend(self.order.expire(until, confirmed_s))

    def numbers(self) -> list[int]:
        return [each[1] for each in self.out if not isinstance(each, Gap)]


def desk(*, from_start: bool = True, limits: Backlog = HELD, **following: int) -> Desk:
    sequences = {(publisher, seq >> COUNTER_BITS): seq for publisher, seq in following.items()}
    return Desk(
        PublisherOrder(
            wait_s=WAIT_S, step_s=STEP_S, from_start=from_start, following=sequences, limits=limits
        )
    )


def test_publications_in_order_are_released_at_once() -> None:
    at = desk()
    for first in (0, 1, 4):
        at.add("a", first, 3 if first == 1 else 1)
    assert at.numbers() == [0, 1, 2, 3, 4]
    assert (at.order.held_records, at.order.is_waiting) == (0, False)


def test_publication_waits_for_its_predecessor() -> None:
    at = desk()
    at.add("a", 2, 2)
    at.add("b", 0)
    assert at.out == [("b", 0, False)]
    assert (at.order.held_records, at.order.held_bytes) == (2, 2)
    at.add("a", 0, 2)
    assert at.out[1:] == [("a", seq, False) for seq in range(4)]
    assert (at.order.held_records, at.order.held_bytes) == (0, 0)


def test_incarnations_are_separate_sequences() -> None:
    at = desk()
    at.add("a", number(0, 2))
    at.add("a", number(1, 1))  # waits; it does not concern the others
    at.add("a", number(1, 2))
    assert at.numbers() == [number(0, 2), number(1, 2)]


def test_gap_is_absent_once_the_neighbours_have_confirmed_and_the_wait_is_over() -> None:
    at = desk()
    at.add("a", 3)
    at.pass_time(WAIT_S, confirmed_s=WAIT_S)  # missed for less than the wait
    at.pass_time(WAIT_S + STEP_S, confirmed_s=0)  # confirmed before it was missed
    assert at.out == []
    at.pass_time(WAIT_S + 2 * STEP_S, confirmed_s=STEP_S)
    assert at.out == [Gap("a", 0, 0, 2, GapReason.ABSENT), ("a", 3, False)]
    at.add("a", 4)
    assert at.out[-1] == ("a", 4, False)


def test_gap_is_a_timeout_after_four_waits_without_confirmations() -> None:
    at = desk()
    at.add("a", number(1, 9))
    at.pass_time(4 * WAIT_S)
    assert at.out == []
    at.pass_time(4 * WAIT_S + STEP_S)
    gap = Gap("a", 9, number(0, 9), number(0, 9), GapReason.TIMEOUT)
    assert at.out == [gap, ("a", number(1, 9), False)]


def test_a_lower_publication_that_arrives_meanwhile_does_not_prolong_the_wait() -> None:
    at = desk()
    at.add("a", 10)
    at.pass_time(7 * STEP_S)
    at.add("a", 7)
    at.pass_time(WAIT_S + STEP_S, confirmed_s=WAIT_S)
    assert [each for each in at.out if isinstance(each, Gap)] == [
        Gap("a", 0, 0, 6, GapReason.ABSENT),
        Gap("a", 0, 8, 9, GapReason.ABSENT),
    ]
    assert at.numbers() == [7, 10]


def test_publication_of_a_gap_is_late_when_it_arrives() -> None:
    at = desk()
    at.add("a", 2, 2)
    at.pass_time(99)
    at.add("a", 1)
    at.add("a", 4)
    assert at.out[1:] == [("a", 2, False), ("a", 3, False), ("a", 1, True), ("a", 4, False)]


def test_overlapping_numbers_are_late_and_the_rest_is_in_order() -> None:
    at = desk()
    at.add("a", 0, 3)
    at.add("a", 1, 4)  # a second batch with the numbers 1 and 2
    assert at.out[3:] == [("a", 1, True), ("a", 2, True), ("a", 3, False), ("a", 4, False)]


def test_skipped_publications_are_in_order_but_not_released() -> None:
    at = desk()
    at.extend(at.order.add("a", 0, 5, []))
    at.extend(at.order.add("a", 7, 9, []))
    assert at.order.held_records == 1
    at.add("a", 5, 2)
    at.add("a", 9)
    assert at.numbers() == [5, 6, 9]


def test_sequence_begins_with_its_first_publication_unless_read_from_the_start() -> None:
    at = desk(from_start=False)
    at.add("a", 7)
    at.add("a", 8)
    assert at.out == [("a", 7, False), ("a", 8, False)]


def test_saved_sequence_continues() -> None:
    at = desk(from_start=False, a=5)
    at.add("a", 6)
    assert at.out == []
    at.add("a", 5)
    assert at.numbers() == [5, 6]


def test_following_goes_back_to_publications_without_a_reader() -> None:
    at = desk()
    at.add("a", 0, 5)
    at.add("b", 0, 2)
    unread = [(0, "a", 4), (0, "a", 3), (0, "c", 0)]
    assert at.order.following(unread) == {("a", 0): 3, ("b", 0): 2}
    assert at.order.following() == {("a", 0): 5, ("b", 0): 2}


def test_flush_releases_everything_with_its_gaps() -> None:
    at = desk()
    at.add("a", 2)
    at.add("b", 1)
    at.extend(at.order.flush())
    assert at.numbers() == [2, 1]
    assert at.order.held_records == 0


# -- hostile publishers ------------------------------------------------------------------------


def test_hole_that_never_closes_is_given_up_at_the_limit() -> None:
    at = desk(limits=Backlog(10, 1000))
    for first in range(1, 30):
        at.add("a", first)
        assert at.order.held_records <= 10
    assert at.out[0] == Gap("a", 0, 0, 0, GapReason.FULL)
    assert at.numbers() == list(range(1, 30))


def test_large_publications_are_given_up_at_the_limit_of_bytes() -> None:
    at = desk(limits=Backlog(1000, 100))
    for first in range(1, 9):
        at.add("a", 2 * first, size=30)
        assert at.order.held_bytes <= 100
    at.extend(at.order.flush())
    assert at.numbers() == list(range(2, 18, 2))
    assert at.order.held_bytes == 0


def test_alternate_numbers_up_to_the_last_counter_are_released_in_order() -> None:
    at = desk(limits=Backlog(1000, 1 << 20))
    firsts = range(1, COUNTERS, 257)
    for first in firsts:
        at.add("a", first)
    at.add("a", COUNTERS - 1)
    assert at.order.held_records <= 1000
    at.pass_time(99)
    assert at.numbers() == [*firsts, COUNTERS - 1] if firsts[-1] != COUNTERS - 1 else [*firsts]
    gaps = [each for each in at.out if isinstance(each, Gap)]
    assert sum(each.count for each in gaps) + len(at.numbers()) == COUNTERS


def test_batch_beyond_the_last_counter_does_not_disturb_the_next_incarnation() -> None:
    at = desk()
    at.add("a", 0, COUNTERS - 1)
    at.add("a", COUNTERS - 1, 5)  # forged: a publisher starts a new incarnation instead
    at.add("a", number(0, 1))
    at.add("a", number(1, 1))
    assert [late for _, _, late in at.out[-7:]] == [False] * 7


def test_forged_last_counter_delays_later_incarnations_by_nothing() -> None:
    at = desk(a=number(3, 5))
    at.add("a", number(COUNTERS - 1, 5))  # forged
    at.pass_time(99)
    at.add("a", number(3, 5))  # genuine: late, not lost
    at.add("a", number(0, 6))  # the publisher has seen the forged number and continues here
    at.add("a", number(1, 6))
    genuine = [number(3, 5), number(0, 6), number(1, 6)]
    assert at.out[2:] == [("a", genuine[0], True), *(("a", seq, False) for seq in genuine[1:])]


def test_many_names_leave_memory_bounded_and_lose_nothing() -> None:
    at = desk(limits=Backlog(500, 1 << 20))
    names = 4 * SEQUENCES_MAX
    for place in range(names):
        at.add(f"p{place}", place % 3)
        assert at.order.held_records <= 500
    assert len(at.order.following()) == SEQUENCES_MAX
    at.extend(at.order.flush())
    assert len(at.numbers()) == names


def test_forgotten_sequence_releases_what_it_holds_back() -> None:
    at = desk()
    for place in range(2 * SEQUENCES_MAX):
        at.add(f"p{place}", 1)
    assert at.order.held_records == SEQUENCES_MAX
    assert at.out[0] == Gap("p0", 0, 0, 0, GapReason.FULL)
    at.extend(at.order.flush())
    assert len(at.numbers()) == 2 * SEQUENCES_MAX


def test_forgotten_sequence_is_reported_and_goes_on() -> None:
    at = desk()
    at.add("a", 0, 5)
    for place in range(SEQUENCES_MAX):
        at.add(f"p{place}", 0)
    at.out.clear()
    at.add("a", 5)
    at.pass_time(WAIT_S + STEP_S, confirmed_s=STEP_S)
    at.add("a", 6)
    assert at.out == [Gap("a", 0, 0, 4, GapReason.FORGOTTEN), ("a", 5, False), ("a", 6, False)]


def test_sequence_that_was_heard_recently_is_not_forgotten() -> None:
    at = desk()
    for place in range(3 * SEQUENCES_MAX):
        at.add(f"p{place}", 0)
        if place % 1000 == 0:
            at.add("a", place // 1000)
    assert ("a", 0) in at.order.following()
    assert not at.order.is_waiting


# -- any arrivals ------------------------------------------------------------------------------

BATCHES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(1, 3), st.booleans()),
    max_size=40,
)


@given(BATCHES, st.integers(0, 1 << 30), st.sampled_from([3, 10, 100]))
def test_any_arrivals_are_released_once_and_in_order_or_reported(
    made: list[tuple[str, int, int, bool]], seed: int, records_max: int
) -> None:
    rng = Random(seed)
    ends: dict[tuple[str, int], int] = {}
    arrivals: list[tuple[str, int, int]] = []
    for publisher, incarnation, count, is_lost in made:
        first = ends.get((publisher, incarnation), number(0, incarnation))
        ends[publisher, incarnation] = first + count
        if not is_lost:
            arrivals.append((publisher, first, count))
    rng.shuffle(arrivals)
    at = desk(limits=Backlog(records_max, 1 << 20))
    now = 0.0
    for arrival in arrivals:
        at.add(*arrival)
        now += rng.choice([0, 0, 1, 5])
        at.pass_time(now, confirmed_s=rng.choice([NEVER, now]))
    at.pass_time(now + 99)
    assert at.order.held_records == 0
    released = [each[:2] for each in at.out if not isinstance(each, Gap)]
    arrived = [(who, seq) for who, first, n in arrivals for seq in range(first, first + n)]
    assert sorted(released) == sorted(arrived)
    reported: set[tuple[str, int]] = set()
    following: dict[tuple[str, int], int] = {}
    for each in at.out:
        if isinstance(each, Gap):
            key = each.publisher, each.incarnation
            assert each.first == following.get(key, number(0, each.incarnation))
            reported |= {(each.publisher, seq) for seq in range(each.first, each.last + 1)}
            following[key] = each.last + 1
        elif each[2]:
            assert each[:2] in reported
        else:
            key = each[0], each[1] >> COUNTER_BITS
            assert each[1] == following.get(key, number(0, key[1]))
            following[key] = each[1] + 1


@pytest.mark.parametrize("seed", range(3))
def test_without_loss_and_with_time_nothing_is_late_and_no_gap_is_reported(seed: int) -> None:
    arrivals = [(who, first) for who in "abcd" for first in range(0, 300, 3)]
    Random(seed).shuffle(arrivals)
    at = desk()
    for who, first in arrivals:
        at.add(who, first, 3)
    assert all(not isinstance(each, Gap) and not each[2] for each in at.out)
    assert len(at.out) == 1200


def test_missing_publications_below_the_floor_have_expired() -> None:
    at = desk()
    at.add("a", 0)
    late = [Publication(publisher="a", seq=seq, payload=b"", time=1000 + seq) for seq in (5, 6)]
    at.extend(at.order.add("a", 5, 7, late))
    at.order.on_time(0.1, floor=1005)
    at.extend(at.order.expire(0.0, NEVER))
    assert at.numbers() == [0]
    at.order.on_time(0.1, floor=1006)
    at.extend(at.order.expire(0.0, NEVER))
    assert at.out[1] == Gap("a", 0, 1, 4, GapReason.EXPIRED)
    assert at.numbers() == [0, 5, 6]
