"""Faults of the network: values that decide the fate of one message.

A verdict is the list of delays, in rounds, of the copies that arrive: none for a lost message, two
for a duplicated one. Faults compose: each one decides about every copy that the previous faults
let through.
"""

from __future__ import annotations

from random import Random
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from skipring.core.peers import NodeId
from skipring.world.snapshot import Parcel

Verdict: TypeAlias = tuple[int, ...]

DELIVERED: Final[Verdict] = (0,)
LOST: Final[Verdict] = ()
DOUBLED: Final[Verdict] = (0, 0)


class Fault(Protocol):
    """Fault that can happen to a message in flight."""

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        """Decide the fate of one message that is sent in round ``now``."""


class Loss(Struct, frozen=True):
    """Loss of each message with a given probability."""

    probability: float

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        """Decide the fate of one message."""
        del parcel, now
        return LOST if rng.random() < self.probability else DELIVERED


class Duplication(Struct, frozen=True):
    """Duplication of each message with a given probability."""

    probability: float

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        """Decide the fate of one message."""
        del parcel, now
        return DOUBLED if rng.random() < self.probability else DELIVERED


class Delay(Struct, frozen=True):
    """Delay of each message, with a given probability, by up to ``rounds_max`` rounds."""

    probability: float
    rounds_max: int

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        """Decide the fate of one message."""
        del parcel, now
        if rng.random() >= self.probability:
            return DELIVERED
        return (rng.randint(1, self.rounds_max),)


class Partition(Struct, frozen=True):
    """Cut between an island and the rest, from ``from_round`` until before ``to_round``."""

    island: frozenset[NodeId]
    from_round: int
    to_round: int

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        """Decide the fate of one message."""
        del rng
        if not self.from_round <= now < self.to_round:
            return DELIVERED
        return LOST if (parcel.sender in self.island) != (parcel.to in self.island) else DELIVERED
