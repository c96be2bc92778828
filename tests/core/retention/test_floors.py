"""Floors: rules 1 to 5 of decision 0057, and what happens if one of them is switched off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.retention.charter import Policy
from skipring.core.retention.floors import (
    NO_FLOORS,
    Floors,
    FloorsState,
    FloorStamps,
    FloorWindow,
    SizedRows,
)
from skipring.core.retention.stamp_index import StampIndex
from skipring.core.retention.topic_clock import TopicClock

S = 1_000_000
NOW, TOL, QUANTUM, AGE_S = 1_700_000_000 * S, 60 * S, 64 * S, 86_400
AGED = Policy(max_age_s=AGE_S)
FULL = Policy(max_count=16)
KEYS = Policy(compact=True, tombstones_s=AGE_S)
TIMED = [(AGED, "age"), (KEYS, "tombstones")]
EXPECTED = NOW - AGE_S * S  # where an exact clock would set the floor
STEP = AGE_S * S // 64  # the quantum of AGED and KEYS

Make = Callable[[], Floors]
numbers = st.integers(-(1 << 70), 1 << 70)


def clock_at(own: int, *neighbours: int) -> TopicClock:
    clock = TopicClock(TOL)
    clock.on_tick(own, 0)
    for number, each in enumerate(neighbours):
        clock.record(f"n{number}", each)
    return clock


def rows_at(*stamps: int) -> StampIndex:
    rows = StampIndex()
    for offset, stamp in enumerate(stamps):
        rows.add(stamp, offset, 1, 100)
    return rows


def new_floors() -> Floors:
    return Floors(QUANTUM)


def of(floors: Floors, name: str) -> int:
    return int(getattr(floors.stamps, name))


def received(name: str, stamp: int) -> FloorStamps:
    values = {"age": 0, "full": 0, "tombstones": 0} | {name: stamp}
    return FloorStamps(**values)


NO_ROWS = rows_at()

# -- one check for each rule, which holds for Floors and fails without the rule ------------------


def check_members_agree(make: Make) -> None:
    """Two members whose clocks differ have one floor after an exchange."""
    clocks, members = [clock_at(NOW), clock_at(NOW + STEP)], [make(), make()]
    for clock, each in zip(clocks, members, strict=True):
        each.justify(AGED, clock, NO_ROWS)
    assert members[0].stamps != members[1].stamps
    sent = [each.stamps for each in members]
    for each, clock, other in zip(members, clocks, reversed(sent), strict=True):
        neighbour = clock_at(clock.own, NOW + STEP, NOW + STEP)
        each.adopt(other, AGED, neighbour, NO_ROWS, from_ring_neighbour=True)
    assert members[0].stamps == members[1].stamps


def check_bound(make: Make) -> None:
    """No message raises a floor above the oldest row that the clock allows to retain."""
    for policy, name in TIMED:
        for is_neighbour in (True, False):
            floors = make()
            floors.adopt(
                received(name, NOW),
                policy,
                clock_at(NOW),
                NO_ROWS,
                from_ring_neighbour=is_neighbour,
            )
            assert of(floors, name) <= EXPECTED + TOL


def check_register_bound(make: Make) -> None:
    """A corrupted register above the bound is lowered at the next tick."""
    for policy, name in TIMED:
        floors = make()
        floors.load(FloorsState(**{name: NOW}))
        floors.justify(policy, clock_at(NOW), NO_ROWS)
        assert of(floors, name) <= EXPECTED


def check_justification(make: Make) -> None:
    """A member that lacks rows does not adopt the floor of a full one."""
    rows, floors = rows_at(*range(100, 110)), make()
    floors.adopt(received("full", 105), FULL, clock_at(NOW), rows, from_ring_neighbour=True)
    assert floors.stamps.full == 0


def check_quantum(make: Make) -> None:
    """Clocks that differ by a second give equal floors at most ticks."""
    first, second, equal = make(), make(), 0
    for tick in range(256):
        first.justify(AGED, clock_at(NOW + tick * S), NO_ROWS)
        second.justify(AGED, clock_at(NOW + tick * S + S), NO_ROWS)
        equal += first.stamps == second.stamps
    assert equal >= 250


def check_tie(make: Make) -> None:
    """Rows with the stamp at which the limit is reached stay."""
    floors = make()
    floors.justify(FULL, clock_at(NOW), rows_at(*[100] * 10, *[200] * 12))
    assert floors.stamps.full == 100


def check_slow_member_keeps_floor(make: Make) -> None:
    """A member with a slow clock does not lower an adopted floor at every tick."""
    floors, clock = make(), clock_at(NOW - 10 * STEP, NOW, NOW)
    goal = EXPECTED // STEP * STEP
    floors.adopt(received("age", goal), AGED, clock, NO_ROWS, from_ring_neighbour=True)
    floors.justify(AGED, clock, NO_ROWS)
    assert floors.stamps.age == goal


def check_own_clock_destroys(make: Make) -> None:
    """A tick destroys no row between the own bound and an adopted floor."""
    floors, clock = make(), clock_at(NOW - 10 * STEP, NOW, NOW)
    goal = received("age", EXPECTED // STEP * STEP)
    floors.adopt(goal, AGED, clock, NO_ROWS, from_ring_neighbour=True)
    assert floors.droppable(AGED, clock).age <= EXPECTED - 10 * STEP + TOL
    assert floors.droppable(AGED, clock, goal).age == goal.age


class OwnClockOnly(Floors):
    def adopt(self, *_: object, **__: object) -> None:  # type: ignore[override]
        """Adopt nothing."""


class NoBound(Floors):
    def _window(self, age_us: int, clock: TopicClock) -> FloorWindow:
        return FloorWindow(clock.earlier - age_us - TOL, 1 << 62, 1 << 62)


class NoJustification(Floors):
    @staticmethod
    def _full(own: int, received: int, policy: Policy, rows: SizedRows) -> int:
        return max(own, received, rows.full_floor(policy))


class NoQuantum(Floors):
    def _window(self, age_us: int, clock: TopicClock) -> FloorWindow:
        exact = clock.earlier - age_us
        return FloorWindow(exact - TOL, exact + TOL, exact + TOL)


class TieGoes(Floors):
    @staticmethod
    def _full(own: int, received: int, policy: Policy, rows: SizedRows) -> int:
        return rows.full_floor(policy) + 1


class NoAdopted(Floors):
    def justify(self, *values: object) -> None:  # type: ignore[override]
        self.load(replace(self.state(), adopted_age=0))
        super().justify(*values)  # type: ignore[arg-type]


class TicksDestroy(Floors):
    def droppable(self, *_: object) -> FloorStamps:  # type: ignore[override]
        return self.stamps


RULES: list[tuple[Callable[[Make], None], type[Floors]]] = [
    (check_members_agree, OwnClockOnly),
    (check_bound, NoBound),
    (check_register_bound, NoBound),
    (check_justification, NoJustification),
    (check_quantum, NoQuantum),
    (check_tie, TieGoes),
    (check_slow_member_keeps_floor, NoAdopted),
    (check_own_clock_destroys, TicksDestroy),
]
names = [f"{check.__name__}-{without.__name__}" for check, without in RULES]


@pytest.mark.parametrize(("check", "without"), RULES, ids=names)
def test_rule_holds_and_its_check_fails_without_it(
    check: Callable[[Make], None], without: type[Floors]
) -> None:
    check(new_floors)
    with pytest.raises(AssertionError):
        check(lambda: without(QUANTUM))


# -- other properties ----------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "name"), TIMED)
def test_floor_follows_the_clock_within_tolerance_and_quantum(policy: Policy, name: str) -> None:
    floors = new_floors()
    floors.justify(policy, clock_at(NOW), NO_ROWS)
    assert EXPECTED - TOL - STEP < of(floors, name) <= EXPECTED - TOL
    assert of(floors, name) % STEP == 0
    before = of(floors, name)
    floors.justify(policy, clock_at(NOW + 5 * STEP), NO_ROWS)
    assert of(floors, name) == before + 5 * STEP


def test_quantum_is_at_least_that_of_the_cluster() -> None:
    floors = new_floors()
    floors.justify(Policy(max_age_s=1), clock_at(NOW), NO_ROWS)
    assert floors.stamps.age % QUANTUM == 0


def test_only_a_ring_neighbour_raises_a_floor_above_the_own_bound() -> None:
    clock, goal = clock_at(NOW - 10 * STEP, NOW, NOW), received("age", EXPECTED // STEP * STEP)
    for is_neighbour in (True, False):
        floors = new_floors()
        floors.adopt(goal, AGED, clock, NO_ROWS, from_ring_neighbour=is_neighbour)
        assert (floors.stamps.age == goal.age) is is_neighbour


def test_floor_of_a_removed_limit_is_zero() -> None:
    floors = new_floors()
    floors.load(FloorsState(age=9, full=9, tombstones=9, adopted_age=9, adopted_tombstones=9))
    floors.adopt(FloorStamps(5, 5, 5), Policy(), clock_at(NOW), NO_ROWS, from_ring_neighbour=True)
    assert (floors.stamps, floors.state()) == (NO_FLOORS, FloorsState())


def test_without_a_clock_no_floor_of_age_rises() -> None:
    floors = new_floors()
    floors.adopt(FloorStamps(5, 0, 5), KEYS, TopicClock(TOL), NO_ROWS, from_ring_neighbour=True)
    assert floors.stamps == NO_FLOORS


def test_full_floor_rises_with_the_rows_and_falls_if_they_vanish() -> None:
    floors, clock = new_floors(), clock_at(NOW)
    rows = rows_at(*range(100, 117))  # 17/16 of the limit: not exceeded
    floors.justify(FULL, clock, rows)
    assert floors.stamps.full == 0
    rows.add(117, 17, 1, 100)
    floors.justify(FULL, clock, rows)
    assert floors.stamps.full == 102
    rows.remove(100, 0)
    rows.remove(101, 1)
    floors.justify(FULL, clock, rows)  # exactly the limit: remembered
    assert floors.stamps.full == 102
    rows.remove(117, 17)
    floors.justify(FULL, clock, rows)
    assert floors.stamps.full == 0


def test_full_floor_of_a_neighbour_is_adopted_once_the_rows_justify_it() -> None:
    floors, clock = new_floors(), clock_at(NOW)
    rows = rows_at(*range(100, 117))
    floors.adopt(received("full", 101), FULL, clock, rows, from_ring_neighbour=False)
    assert floors.stamps.full == 101


def test_without_rows_the_full_floor_does_not_change() -> None:
    floors = new_floors()
    floors.load(FloorsState(full=7))
    floors.adopt(received("full", 8), FULL, clock_at(NOW), None, from_ring_neighbour=True)
    assert floors.stamps.full == 7


@given(numbers, numbers, numbers, numbers, numbers, st.lists(st.integers(0, 60), max_size=40))
def test_corrupted_registers_destroy_no_row_that_clock_and_rows_retain(
    age: int, full: int, tombstones: int, adopted: int, sent: int, stamps: list[int]
) -> None:
    policy = Policy(max_age_s=AGE_S, max_count=16, compact=True, tombstones_s=AGE_S)
    floors, rows, clock = new_floors(), rows_at(*stamps), clock_at(NOW)
    corrupted = FloorsState(
        age=age, full=full, tombstones=tombstones, adopted_age=adopted, adopted_tombstones=adopted
    )
    floors.load(corrupted)
    floors.adopt(FloorStamps(sent, sent, sent), policy, clock, rows, from_ring_neighbour=True)
    floors.justify(policy, clock, rows)
    cut = floors.droppable(policy, clock)
    assert 0 <= cut.age <= EXPECTED + TOL
    assert 0 <= cut.tombstones <= EXPECTED + TOL
    assert sum(stamp >= cut.full for stamp in stamps) >= min(16, len(stamps))
    assert floors.stamps.age >= EXPECTED - TOL - STEP


def test_state_is_the_registers() -> None:
    state = FloorsState(age=1, full=2, tombstones=3, adopted_age=4, adopted_tombstones=5)
    floors = new_floors()
    floors.load(state)
    assert floors.state() == state
