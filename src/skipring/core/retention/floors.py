"""Floors of a topic: stamps below which it retains nothing (M3 of decision 0057).

A floor is a cache. A member keeps the highest floor that its own clock (age, tombstones) or its
own rows (full) justify, and adopts a received one only as far as they do. So no message and no
corrupted register removes a row that clock and rows do not release.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from skipring.core.batches import Number
from skipring.core.retention.charter import Policy
from skipring.core.retention.topic_clock import TopicClock

QUANTA: Final = 64  # Guess: a floor rises in steps of this part of the age.


class FloorStamps(Struct, frozen=True, array_like=True, gc=False):
    """Floors as stamps; 0: the policy has no such limit."""

    age: Number = 0
    full: Number = 0  # by count and bytes
    tombstones: Number = 0

    @property
    def rows(self) -> int:
        """Return the stamp below which rows may be removed."""
        return max(self.age, self.full)


NO_FLOORS: Final = FloorStamps()


class FloorsState(Struct, frozen=True, kw_only=True, gc=False):
    """Floors of a subscriber, and the last ones that it adopted from a ring neighbour."""

    age: int = 0
    full: int = 0
    tombstones: int = 0
    adopted_age: int = 0
    adopted_tombstones: int = 0


class SizedRows(Protocol):
    """Rows of a topic by stamp, with their sizes."""

    def full_floor(self, policy: Policy) -> int:
        """Return the floor that the rows justify because they exceed a limit; 0 for none."""

    def fill(self, policy: Policy, stamp: int) -> bool:
        """Return True if the rows from a stamp on reach a limit by themselves."""


class FloorWindow(NamedTuple):
    """Justified values of one floor by the clocks (rules 1 and 2)."""

    low: int
    high: int  # of this node's register, and of values from other senders than ring neighbours
    adopted: int  # highest value from a ring neighbour


class Floors:
    """Registers of one member in one topic."""

    __slots__ = ("_adopted", "_quantum_us", "stamps")

    def __init__(self, quantum_us: int) -> None:
        self._quantum_us = quantum_us  # the smallest
        self.stamps = NO_FLOORS
        self._adopted = NO_FLOORS

    def justify(self, policy: Policy, clock: TopicClock, rows: SizedRows | None) -> None:
        """Lower unjustified registers, and raise all to the values that clock and rows justify.

        Without rows, the register of full topics does not change: they are not known yet.
        """
        self._update(NO_FLOORS, policy, clock, rows, is_trusted=False)

    def adopt(
        self,
        received: FloorStamps,
        policy: Policy,
        clock: TopicClock,
        rows: SizedRows | None,
        *,
        from_ring_neighbour: bool,
    ) -> None:
        """Raise the registers to received floors, as far as clock and rows justify them."""
        self._update(received, policy, clock, rows, is_trusted=from_ring_neighbour)

    def droppable(
        self, policy: Policy, clock: TopicClock, confirmed: FloorStamps = NO_FLOORS
    ) -> FloorStamps:
        """Return the floors below which rows may be destroyed now (rule 3).

        These are the registers, but only as far as this node's clock justifies them, unless a ring
        neighbour confirms a floor in the message that the member handles.
        """
        own = self.stamps
        age, tombstones = own.age, own.tombstones
        if confirmed.age < age and policy.age_us is not None:
            age = min(age, self._window(policy.age_us, clock).high)
        if confirmed.tombstones < tombstones and policy.tombstones_us is not None:
            tombstones = min(tombstones, self._window(policy.tombstones_us, clock).high)
        return FloorStamps(age, own.full, tombstones)

    def _update(
        self,
        received: FloorStamps,
        policy: Policy,
        clock: TopicClock,
        rows: SizedRows | None,
        *,
        is_trusted: bool,
    ) -> None:
        own, adopted = self.stamps, self._adopted
        age, adopted_age = self._timed(
            (own.age, adopted.age, received.age), policy.age_us, clock, is_trusted=is_trusted
        )
        tombstones, adopted_tombstones = self._timed(
            (own.tombstones, adopted.tombstones, received.tombstones),
            policy.tombstones_us,
            clock,
            is_trusted=is_trusted,
        )
        full = own.full if rows is None else self._full(own.full, received.full, policy, rows)
        self.stamps = FloorStamps(age, full, tombstones)
        self._adopted = FloorStamps(adopted_age, 0, adopted_tombstones)

    def _timed(
        self,
        registers: tuple[int, int, int],
        age_us: int | None,
        clock: TopicClock,
        *,
        is_trusted: bool,
    ) -> tuple[int, int]:
        """Return the register and the adopted value of a floor that follows the clock (rule 3)."""
        if age_us is None:
            return 0, 0
        own, adopted, received = registers
        window = self._window(age_us, clock)
        bound = window.adopted if own == adopted else window.high
        register = max(window.low, own if own <= bound else 0)
        if not register <= received <= (window.adopted if is_trusted else window.high):
            return register, adopted
        return received, received if is_trusted else adopted

    @staticmethod
    def _full(own: int, received: int, policy: Policy, rows: SizedRows) -> int:
        """Return the highest floor by count and bytes that this node's rows justify (rule 4)."""
        best = rows.full_floor(policy)
        for floor in (own, received):
            if floor > best and rows.fill(policy, floor):
                best = floor
        return best

    def _window(self, age_us: int, clock: TopicClock) -> FloorWindow:
        quantum = max(age_us // QUANTA, self._quantum_us, 1)
        own, topic = clock.earlier - age_us, clock.topic - age_us
        low, high, adopted = own - clock.tolerance, own + clock.tolerance, topic + clock.tolerance
        if not clock.is_known:
            return FloorWindow(0, 0, 0)
        return FloorWindow(*(max(bound // quantum * quantum, 0) for bound in (low, high, adopted)))

    def state(self) -> FloorsState:
        """Return the registers as a value."""
        own, adopted = self.stamps, self._adopted
        return FloorsState(
            age=own.age,
            full=own.full,
            tombstones=own.tombstones,
            adopted_age=adopted.age,
            adopted_tombstones=adopted.tombstones,
        )

    def load(self, state: FloorsState) -> None:
        """Replace the registers; the next tick lowers those that are not justified."""
        self.stamps = FloorStamps(state.age, state.full, state.tombstones)
        self._adopted = FloorStamps(state.adopted_age, 0, state.adopted_tombstones)
