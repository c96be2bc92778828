"""Reader in an order: restarts at every point, starts, time, limits, memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.api.cursor import Cursor, Start
from skipring.api.ordered_reader import Item, OrderedReader, OrderPlan, order_plan
from skipring.api.reader import READ_AT_ONCE, DeliveredPublication
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.effects import Deliver, Origin
from skipring.core.log import MemoryLog
from skipring.core.publications import COUNTER_BITS
from skipring.errors import InputError
from skipring.order.gaps import Gap, GapReason, Order

TOPIC = "news"
NEVER = float("-inf")
START_US = 1_800_000_000_000_000
WAIT_S, STEP_S = 8.0, 1.0
BY_PUBLISHER = OrderPlan(Order.PUBLISHER, WAIT_S, STEP_S)
BY_TIME = OrderPlan(Order.TIME, WAIT_S, STEP_S)


class DurableLog(MemoryLog):
    """Log in memory with a durable mark that a test sets."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.durable_end = 0

    def commit(self) -> None:
        self.durable_end = self.end


class Desk:
    """A log with a reader that the test can restart from its last cursor."""

    def __init__(self, plan: OrderPlan = BY_PUBLISHER, start: Start = "all") -> None:
        self.plan = plan
        self.log = DurableLog()
        self.now_s = 0.0
        self.reader = self.opened(start)

    def opened(self, start: Start) -> OrderedReader:
        return OrderedReader(self.log, start, self.plan, self.clock_us)

    @property
    def clock_us(self) -> int:
        return START_US + int(self.now_s * 1_000_000)

    def arrive(
        self,
        publisher: str,
        first: int,
        count: int = 1,
        *,
        times: Sequence[int] = (),
        origin: Origin = Origin.SPREAD,
        unordered: bool = False,
    ) -> RecordBatch:
        """Store and deliver a batch; its records have the current time by default."""
        stamps = times or [self.clock_us] * count
        records = [BatchRecord(b"%d" % (first + place), time) for place, time in enumerate(stamps)]
        batch = RecordBatch.of(
            records, publisher=publisher, first=first, topic=TOPIC, unordered=unordered
        )
        self.store(batch, origin)
        return batch

    def store(self, batch: RecordBatch, origin: Origin = Origin.SPREAD) -> None:
        offset = self.log.append(batch)
        self.reader.on_deliver(
            Deliver((batch,), (batch.records(),), offset, self.log.end, origin, 1)
        )

    def tick(self, passed_s: float = STEP_S, *, is_confirmed: bool = False) -> None:
        self.now_s += passed_s
        confirmed_s = self.now_s if is_confirmed else NEVER
        self.reader.on_tick(self.now_s, self.clock_us, confirmed_s, is_history=False)

    def read(self, limit: int = 1 << 20) -> list[Item]:
        found: list[Item] = []
        while self.reader.is_available(self.reader.end) and len(found) < limit:
            found += self.reader.fetch_items(limit - len(found))
        return found

    def cursor(self, unread: Sequence[Item] = ()) -> Cursor:
        offset, saved = self.reader.position(self.log.durable_end, unread)
        return Cursor.parse(str(Cursor("5eed", TOPIC, 0, offset, bytes(12), saved)))

    def restart(self, cursor: Cursor) -> None:
        self.reader = self.opened(cursor)


def numbers(items: Sequence[Item]) -> list[int]:
    return [each.seq for each in items if isinstance(each, DeliveredPublication)]


def marked(items: Sequence[Item]) -> list[tuple[int, bool]]:
    return [(each.seq, each.late) for each in items if isinstance(each, DeliveredPublication)]


# -- order by publisher ------------------------------------------------------------------------


def test_repaired_publication_is_handed_out_in_its_place() -> None:
    desk = Desk()
    for first in (0, 2, 3):
        desk.arrive("a", first)
    assert numbers(desk.read()) == [0]
    assert (desk.reader.lag, desk.reader.held, desk.reader.is_waiting) == (2, 2, True)
    desk.arrive("a", 1, origin=Origin.REPAIR)
    found = desk.read()
    assert marked(found) == [(1, False), (2, False), (3, False)]
    assert [each.hops for each in found if not isinstance(each, Gap)] == [None, 1, 1]
    assert desk.reader.lag == 0


def test_gap_precedes_the_publication_behind_it_and_is_counted() -> None:
    desk = Desk()
    desk.arrive("a", 5, 2)
    assert desk.read() == []
    desk.tick()
    for _ in range(9):
        desk.tick(is_confirmed=True)
    found = desk.read()
    gap = Gap("a", 0, 0, 4, GapReason.ABSENT)
    assert found[0] == gap
    assert numbers(found) == [5, 6]
    assert (desk.reader.gaps.count, desk.reader.gaps.missing) == (1, 5)
    assert list(desk.reader.gaps.recent) == [gap]


def test_unread_predecessor_of_a_slow_reader_is_no_gap() -> None:
    desk = Desk()
    desk.arrive("a", 1)
    assert desk.read() == []
    for first in range(3 * READ_AT_ONCE):
        desk.arrive("b", first)
    desk.arrive("a", 0)
    for _ in range(99):
        desk.tick(is_confirmed=True)  # the reader reads nothing meanwhile
    found = desk.read()
    assert not any(isinstance(each, Gap) for each in found)
    assert numbers(
        [each for each in found if not isinstance(each, Gap) and each.publisher == "a"]
    ) == [0, 1]


def test_no_gap_is_reported_while_the_history_arrives() -> None:
    desk = Desk()
    desk.arrive("a", 1)
    desk.read()
    for _ in range(99):
        desk.now_s += 1
        desk.reader.on_tick(desk.now_s, desk.clock_us, desk.now_s, is_history=True)
    assert desk.read() == []
    for _ in range(2):
        desk.tick(is_confirmed=True)
    assert numbers(desk.read()) == [1]


@pytest.mark.parametrize(
    ("drops", "expected"), [(False, [(3, False), (1, True)]), (True, [(3, False)])]
)
def test_late_publication_is_marked_or_dropped(
    drops: bool, expected: list[tuple[int, bool]]
) -> None:
    desk = Desk(OrderPlan(Order.PUBLISHER, WAIT_S, STEP_S, drops_late=drops))
    desk.arrive("a", 3)
    desk.read()
    desk.tick(99)
    desk.arrive("a", 1, origin=Origin.REPAIR)
    assert marked(desk.read()) == expected
    assert (desk.reader.gaps.late, desk.reader.gaps.dropped) == (1, int(drops))


def test_publications_of_a_sink_are_handed_out_on_arrival() -> None:
    desk = Desk()
    for first in (700, 3, 99):
        desk.arrive("sink", first, unordered=True)
    assert numbers(desk.read()) == [700, 3, 99]
    assert not desk.reader.is_waiting


def test_batch_that_was_fetched_again_after_damage_is_marked() -> None:
    desk = Desk()
    batch = desk.arrive("a", 0, 2)
    desk.arrive("a", 2)
    assert numbers(desk.read()) == [0, 1, 2]
    desk.log.discard(0)
    desk.store(batch, Origin.REPAIR)
    assert marked(desk.read()) == [(0, True), (1, True)]


def test_datetime_start_skips_publications_without_gaps() -> None:
    desk = Desk(start=datetime.fromtimestamp(START_US / 1e6, UTC))
    desk.arrive("a", 0, 3, times=[START_US - 1, START_US, START_US - 1])
    desk.arrive("a", 3, times=[START_US - 5])
    desk.arrive("a", 4)
    assert numbers(desk.read()) == [1, 4]
    assert desk.reader.gaps.count == 0


def test_start_new_skips_repaired_history_and_begins_sequences_anywhere() -> None:
    desk = Desk(start="new")
    desk.arrive("a", 7, 2, times=[START_US - 2, START_US - 1], origin=Origin.REPAIR)
    desk.arrive("a", 9)
    assert numbers(desk.read()) == [9]
    desk.reader.end_history()
    desk.arrive("a", 10, times=[START_US - 1], origin=Origin.REPAIR)
    assert numbers(desk.read()) == [10]
    assert desk.reader.gaps.count == 0


def test_sequence_whose_start_was_trimmed_begins_without_a_gap() -> None:
    desk = Desk()
    for first in range(0, 12, 3):
        desk.arrive("a", first, 3)
    desk.log.trim(6)
    desk.reader = desk.opened("all")
    assert numbers(desk.read()) == [6, 7, 8, 9, 10, 11]
    desk.log.commit()
    desk.restart(desk.cursor())
    desk.arrive("b", 4)
    assert numbers(desk.read()) == [4]
    assert desk.reader.gaps.count == 0


# -- restarts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [BY_PUBLISHER, BY_TIME], ids=["publisher", "time"])
@pytest.mark.parametrize("seed", range(15))
def test_restart_after_every_publication_resumes_exactly_once(plan: OrderPlan, seed: int) -> None:
    rng = Random(seed)
    arrivals = [(who, first, 3) for who in "abc" for first in range(0, 30, 3)]
    rng.shuffle(arrivals)
    once, many = Desk(plan), Desk(plan)
    for desk in (once, many):
        for place, (who, first, count) in enumerate(arrivals):
            desk.now_s = first / 10
            if place % 7:
                desk.arrive(who, first, count)
    expected = finished(once)
    found: list[Item] = []
    for _ in range(300):
        many.log.commit()
        found += many.read(1)
        many.restart(many.cursor())
    found += finished(many)
    places = [(each.publisher, each.seq) for each in found if not isinstance(each, Gap)]
    assert sorted(places) == sorted(
        (each.publisher, each.seq) for each in expected if not isinstance(each, Gap)
    )
    if plan is BY_PUBLISHER:
        check_in_order(found)
    else:
        times = [each.time for each in found if not isinstance(each, Gap) and not each.late]
        assert times == sorted(times)


def finished(desk: Desk) -> list[Item]:
    """Return everything that the reader hands out until all waits are over."""
    desk.log.commit()
    found = desk.read()
    for _ in range(3):
        desk.tick(5 * WAIT_S)
        found += desk.read()
    return found


def check_in_order(found: Sequence[Item]) -> None:
    """Check that unmarked publications rise, and that what is skipped was reported as a gap."""
    following: dict[tuple[str, int], int] = {}
    for each in found:
        if isinstance(each, Gap):
            key = each.publisher, each.incarnation
            assert each.first == following.get(key, each.incarnation << COUNTER_BITS)
            following[key] = each.last + 1
        elif not each.late:
            key = each.publisher, each.seq >> COUNTER_BITS
            assert each.seq == following.get(key, key[1] << COUNTER_BITS)
            following[key] = each.seq + 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 29)),
        st.tuples(st.just("again"), st.integers(0, 29)),
        st.tuples(st.just("read"), st.integers(1, 5)),
        st.tuples(st.just("tick"), st.integers(1, 12)),
        st.tuples(st.just("confirmed"), st.integers(1, 12)),
        st.tuples(st.just("restart"), st.integers(0, 3)),
    ),
    max_size=80,
)


@given(STEPS)
def test_any_arrivals_repairs_and_restarts_keep_order_and_lose_nothing(
    steps: list[tuple[str, int]],
) -> None:
    desk = Desk()
    stored: dict[int, tuple[RecordBatch, int]] = {}
    repaired: set[tuple[str, int]] = set()
    found: list[Item] = []
    for kind, value in steps:
        match kind:
            case "arrive" if value not in stored:
                offset = desk.log.end
                publisher, first = "abc"[value % 3], (value % 2 << COUNTER_BITS) + value // 6 * 2
                stored[value] = desk.arrive(publisher, first, 2), offset
            case "again" if value in stored:  # the disk has damaged it, and it is fetched again
                batch, offset = stored[value]
                repaired |= {(batch.publisher, seq) for seq in range(batch.first, batch.end)}
                desk.log.discard(offset)
                stored[value] = batch, desk.log.end
                desk.store(batch, Origin.REPAIR)
            case "read":
                found += desk.read(value)
            case "tick" | "confirmed":
                desk.tick(value, is_confirmed=kind == "confirmed")
            case "restart":
                desk.log.commit()
                unread = desk.read(value)  # in a buffer of the caller, and lost with it
                desk.restart(desk.cursor(unread))
    found += finished(desk)
    check_in_order(found)
    places = [(each.publisher, each.seq) for each in found if not isinstance(each, Gap)]
    once = [place for place in places if place not in repaired]
    assert len(once) == len(set(once))
    arrived = {(b.publisher, seq) for b, _ in stored.values() for seq in range(b.first, b.end)}
    assert set(places) == arrived
    assert desk.reader.held == 0


def test_publications_beyond_the_durable_mark_come_again_in_order() -> None:
    desk = Desk()
    desk.arrive("a", 0, 2)
    desk.log.commit()
    desk.arrive("a", 2)
    assert numbers(desk.read()) == [0, 1, 2]
    desk.restart(desk.cursor())
    assert marked(desk.read()) == [(2, False)]


def test_gap_is_not_reported_again_after_a_restart() -> None:
    desk = Desk()
    desk.arrive("a", 5, 2)
    desk.read()
    desk.tick(99)
    assert isinstance(desk.read(1)[0], Gap)
    desk.log.commit()
    desk.restart(desk.cursor())
    assert marked(desk.read()) == [(5, False), (6, False)]
    assert desk.reader.gaps.count == 0


def test_plain_cursor_begins_sequences_anywhere() -> None:
    desk = Desk()
    desk.arrive("a", 0, 5)
    desk.restart(Cursor("5eed", TOPIC, 0, 3, bytes(12)))
    assert numbers(desk.read()) == [3, 4]


def test_wrong_state_loses_and_repeats_nothing() -> None:
    desk = Desk()
    for first in range(20):
        desk.arrive("a", first)
    desk.read(10)
    desk.log.commit()
    for wrong in (0, 5, 15, 1 << COUNTER_BITS):
        cursor = desk.cursor()
        assert cursor.saved is not None
        _, saved = cursor.offset, cursor.saved
        following = {("a", 0): wrong}
        state = type(saved)(saved.pending, following=following, from_start=True)
        again = Desk()
        again.log = desk.log
        again.restart(Cursor("5eed", TOPIC, 0, cursor.offset, bytes(12), state))
        assert numbers(finished(again)) == list(range(10, 20))


# -- order by time -----------------------------------------------------------------------------


def test_publications_are_handed_out_by_time() -> None:
    desk = Desk(BY_TIME)
    desk.arrive("a", 0, 3, times=[START_US + 5, START_US + 1, START_US + 3])
    desk.arrive("b", 0, times=[START_US + 2])
    assert desk.read() == []
    desk.tick(WAIT_S + 1)
    found = desk.read()
    assert [each.time - START_US for each in found if not isinstance(each, Gap)] == [1, 2, 3, 5]
    desk.arrive("b", 1, times=[START_US + 4])
    desk.tick(WAIT_S)
    assert marked(desk.read()) == [(1, True)]


def test_unread_publications_are_in_order_after_a_restart() -> None:
    desk = Desk(BY_TIME)
    desk.arrive("a", 0, 3, times=[START_US + 1, START_US + 2, START_US + 3])
    desk.read()
    desk.tick(99)
    found = desk.read(1)
    desk.log.commit()
    desk.restart(desk.cursor())
    desk.tick()
    assert marked([*found, *desk.read()]) == [(0, False), (1, False), (2, False)]


def test_publication_ahead_of_the_clock_is_marked_even_if_late_ones_are_dropped() -> None:
    desk = Desk(OrderPlan(Order.TIME, WAIT_S, STEP_S, drops_late=True))
    desk.arrive("a", 0, times=[START_US + 3_600_000_000])
    assert marked(desk.read()) == [(0, True)]
    assert (desk.reader.gaps.late, desk.reader.gaps.dropped) == (1, 0)


def test_unread_history_is_sorted_before_it_is_handed_out() -> None:
    desk = Desk(BY_TIME)
    times = [START_US - 1000 + place for place in range(500)]
    Random(2).shuffle(times)
    for place, time in enumerate(times):
        desk.arrive("abc"[place % 3], place // 3, times=[time])
    desk.now_s = 99
    found = desk.read()
    desk.tick()
    found += desk.read()
    assert [each.time for each in found if not isinstance(each, Gap)] == sorted(times)


# -- waiting -----------------------------------------------------------------------------------


async def test_waiting_caller_gets_what_a_tick_releases() -> None:
    desk = Desk()
    desk.arrive("a", 1)
    waiting = [asyncio.ensure_future(call()) for call in (desk.reader.next_item, desk.reader.next)]
    await asyncio.sleep(0)
    desk.tick(99)
    gap, publication = await asyncio.gather(*waiting)
    assert isinstance(gap, Gap)
    assert publication is not None
    assert publication.seq == 1


async def test_waiting_callers_end_after_the_timeout_or_when_closed() -> None:
    desk = Desk()
    desk.arrive("a", 1)
    assert await desk.reader.next(timeout_s=0.001) is None
    waiting = asyncio.ensure_future(desk.reader.next())
    await asyncio.sleep(0)
    assert desk.reader.is_available(desk.reader.end) is False
    desk.reader.close()
    assert await waiting is None


# -- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"order": "random"}, 'order: expected "arrival", "publisher" or "time"'),
        ({"order": "time", "late": "never"}, 'late: expected "mark" or "drop"'),
        ({"order": "time", "wait_s": 0}, "wait: expected a number of seconds above 0"),
        ({"order": "time", "wait_s": "2"}, "wait: expected a number of seconds above 0"),
        ({"order": "arrival", "wait_s": 2}, 'wait: the order "arrival" does not wait'),
    ],
)
def test_invalid_argument_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        order_plan(**{"wait_s": None, "late": "mark", "tick_s": 1.0, **arguments})


def test_default_waits_are_eight_ticks_and_two_seconds() -> None:
    def wait_s(order: str) -> float | None:
        plan = order_plan(order, wait_s=None, late="mark", tick_s=0.5)
        return None if plan is None else plan.wait_s

    assert [wait_s(order) for order in ("arrival", "publisher", "time")] == [None, 4.0, 2.0]
