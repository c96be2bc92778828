"""Faults of processes: crashes, churn, wrong suspicion, a supervisor that loses its state.

The simulation asks each fault at the start of every round.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Protocol

from msgspec import Struct

from skipring.core.peers import NodeId
from skipring.sim.engine import World


class Incident(Protocol):
    """Something that can happen to processes."""

    @property
    def last_round(self) -> int:
        """The last round in which it strikes; convergence is not judged before."""

    def strike(self, world: World) -> None:
        """Do what is due at the start of this round."""


class CrashWave(Struct, frozen=True):
    """In each of some rounds, a share of the live subscribers crashes at once."""

    rounds: tuple[int, ...]
    share: float

    @property
    def last_round(self) -> int:
        """The last round in which it strikes."""
        return max(self.rounds, default=-1)

    def strike(self, world: World) -> None:
        """Crash a share of the subscribers, if this is such a round; one is always left."""
        if world.round not in self.rounds:
            return
        nodes = sorted(world.subscribers)
        victims = min(round(self.share * len(nodes)), len(nodes) - 1)
        for node in world.rng.sample(nodes, max(victims, 0)):
            world.crash(node)


class Churn(Struct, frozen=True):
    """In each round every member crashes, and a newcomer joins, with some probability a member."""

    rate: float
    rounds: int = 100

    @property
    def last_round(self) -> int:
        """The last round in which it strikes."""
        return self.rounds - 1 if self.rate > 0 else -1

    def strike(self, world: World) -> None:
        """Let members crash and newcomers join."""
        if world.round > self.last_round:
            return
        members = sorted(node for node, machine in world.subscribers.items() if machine.wants)
        for node in members[1:]:  # one is always left
            if world.rng.random() < self.rate:
                world.crash(node)
        joiners = sum(world.rng.random() < self.rate for _ in members)
        for node in islice(_new_names(world), joiners):
            world.subscribe(node)


def _new_names(world: World) -> Iterator[NodeId]:
    """Names that nobody has, or had: a world may already have seen churn."""
    for number in count():
        name = f"j{world.round:05d}-{number:04d}"
        if name not in world.subscribers and name not in world.crashed:
            yield name


class SupervisorRestart(Struct, frozen=True):
    """In each of some rounds the supervisor comes back with an empty database."""

    rounds: tuple[int, ...]

    @property
    def last_round(self) -> int:
        """The last round in which it strikes."""
        return max(self.rounds, default=-1)

    def strike(self, world: World) -> None:
        """Restart the supervisor, if this is such a round."""
        if world.round in self.rounds:
            world.restart_supervisor()


class WrongSuspicion(Struct, frozen=True):
    """For some rounds the detector suspects each live subscriber with some probability."""

    rate: float
    rounds: int

    @property
    def last_round(self) -> int:
        """The last round in which it strikes."""
        return self.rounds - 1

    def strike(self, world: World) -> None:
        """Suspect some that are alive and well."""
        if world.round <= self.last_round:
            for node in sorted(world.subscribers):
                if world.rng.random() < self.rate:
                    world.suspect(node)


class PublishLoad(Struct, frozen=True):
    """In each of the first rounds some members publish."""

    rounds: int
    per_round: int

    @property
    def last_round(self) -> int:
        """The last round in which it strikes."""
        return self.rounds - 1

    def strike(self, world: World) -> None:
        """Let random members publish something of their own."""
        if world.round > self.last_round:
            return
        members = sorted(node for node, machine in world.subscribers.items() if machine.wants)
        for number in range(self.per_round if members else 0):
            world.publish(world.rng.choice(members), f"round {world.round} {number}".encode())


class OracleDetector(Struct, frozen=True):
    """The supervisor's failure detector: the dead are suspected some rounds after their crash."""

    delay_rounds: int = 0

    @property
    def last_round(self) -> int:
        """It only ever speaks the truth, so convergence need not wait for it."""
        return -1

    def strike(self, world: World) -> None:
        """Suspect whoever has been dead for long enough and is not suspected yet."""
        for node, crash_round in world.crashed.items():
            if world.round - crash_round >= self.delay_rounds and self._is_news(world, node):
                world.suspect(node)

    @staticmethod
    def _is_news(world: World, node: NodeId) -> bool:
        return node in world.roster or not world.supervisor.suspects(node)
