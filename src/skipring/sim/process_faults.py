"""Faults of processes: crashes, churn, wrong suspicion, a supervisor that loses its state.

The simulation applies each fault at the start of every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from random import Random
from typing import Final, Protocol

from msgspec import Struct

from skipring.core.peers import NodeId
from skipring.sim.engine import World

DRAIN_ROUNDS: Final = 32  # Guess: longer than the drain of a few thousand publications.


class Incident(Protocol):
    """Fault that can happen to processes."""

    @property
    def last_round(self) -> int:
        """Return the last round with this fault; convergence is not judged earlier."""

    def strike(self, world: World) -> None:
        """Apply the fault if it is due at the start of this round."""


class CrashWave(Struct, frozen=True):
    """Simultaneous crash of a share of the live subscribers, in each of the given rounds."""

    rounds: tuple[int, ...]
    share: float

    @property
    def last_round(self) -> int:
        """Return the last round with this fault."""
        return max(self.rounds, default=-1)

    def strike(self, world: World) -> None:
        """Crash a share of the subscribers if this round is listed; at least one survives."""
        if world.round not in self.rounds:
            return
        nodes = sorted(world.subscribers)
        victims = min(round(self.share * len(nodes)), len(nodes) - 1)
        for node in world.rng.sample(nodes, max(victims, 0)):
            world.crash(node)


class ClockJump(Struct, frozen=True):
    """Change of all wall clocks in each of the given rounds; ``offsets`` draws the new ones."""

    rounds: tuple[int, ...]
    offsets: Callable[[Sequence[NodeId], Random], dict[NodeId, int]]

    @property
    def last_round(self) -> int:
        """Return the last round with this fault."""
        return max(self.rounds, default=-1)

    def strike(self, world: World) -> None:
        """Set the clocks of all subscribers if this round is listed."""
        if world.round in self.rounds:
            world.set_clocks(self.offsets(sorted(world.subscribers), world.rng))


class DrainWave(Struct, frozen=True):
    """Departure of a share of the members with a drain, in each of the given rounds.

    Only members with neighbours drain: a node waits for its place in the ring first. A member
    leaves once its drain has ended, and DRAIN_ROUNDS later at the latest, as a node does after its
    time limit (decision 0049).
    """

    rounds: tuple[int, ...]
    share: float

    @property
    def last_round(self) -> int:
        """Return the last round in which a member may leave."""
        return max(self.rounds, default=-1 - DRAIN_ROUNDS) + DRAIN_ROUNDS

    def strike(self, world: World) -> None:
        """Drain a share of the members if this round is listed; let drained members leave."""
        is_late = world.round - DRAIN_ROUNDS in self.rounds
        members = {node: each for node, each in sorted(world.subscribers.items()) if each.wants}
        leaving = [node for node, each in members.items() if each.replication.is_leaving]
        for node in leaving:
            if is_late or node in world.drained:
                world.unsubscribe(node)
        if world.round in self.rounds:
            staying = [n for n, each in members.items() if n not in leaving and each.neighbours()]
            leavers = min(round(self.share * len(members)), len(staying) - 1)
            for node in world.rng.sample(staying, max(leavers, 0)):
                world.drain(node)


class Churn(Struct, frozen=True):
    """Crashes and joins: in each of the first rounds, both at a given rate per member."""

    rate: float
    rounds: int = 100

    @property
    def last_round(self) -> int:
        """Return the last round with this fault."""
        return self.rounds - 1 if self.rate > 0 else -1

    def strike(self, world: World) -> None:
        """Crash members and add newcomers."""
        if world.round > self.last_round:
            return
        members = sorted(node for node, machine in world.subscribers.items() if machine.wants)
        for node in members[1:]:  # one member always survives
            if world.rng.random() < self.rate:
                world.crash(node)
        joiners = sum(world.rng.random() < self.rate for _ in members)
        for node in islice(_new_names(world), joiners):
            world.subscribe(node)


def _new_names(world: World) -> Iterator[NodeId]:
    """Yield names that no node has or had: the world may already have seen churn."""
    for number in count():
        name = f"j{world.round:05d}-{number:04d}"
        if name not in world.subscribers and name not in world.crashed:
            yield name


class SupervisorRestart(Struct, frozen=True):
    """Restart of the supervisor with an empty database, in each of the given rounds."""

    rounds: tuple[int, ...]

    @property
    def last_round(self) -> int:
        """Return the last round with this fault."""
        return max(self.rounds, default=-1)

    def strike(self, world: World) -> None:
        """Restart the supervisor if this round is listed."""
        if world.round in self.rounds:
            world.restart_supervisor()


class WrongSuspicion(Struct, frozen=True):
    """Suspicion of live subscribers with a given probability, in each of the first rounds."""

    rate: float
    rounds: int

    @property
    def last_round(self) -> int:
        """Return the last round with this fault."""
        return self.rounds - 1

    def strike(self, world: World) -> None:
        """Suspect some live subscribers."""
        if world.round <= self.last_round:
            for node in sorted(world.subscribers):
                if world.rng.random() < self.rate:
                    world.suspect(node)


class PublishLoad(Struct, frozen=True):
    """Publications by random members in each of the first rounds, each of ``batch`` records."""

    rounds: int
    per_round: int
    batch: int = 1

    @property
    def last_round(self) -> int:
        """Return the last round with this fault."""
        return self.rounds - 1

    def strike(self, world: World) -> None:
        """Publish at random members."""
        if world.round > self.last_round:
            return
        members = sorted(node for node, machine in world.subscribers.items() if machine.wants)
        for number in range(self.per_round if members else 0):
            text = f"round {world.round} {number}"
            world.publish(world.rng.choice(members), *_payloads(text, self.batch))


def _payloads(text: str, count: int) -> list[bytes]:
    """Return different payloads of the records of a batch."""
    return [text.encode(), *(f"{text} {number}".encode() for number in range(1, count))]


class PublisherCrash(Struct, frozen=True):
    """Crash of a random member between sending and storing a publication, in given rounds."""

    rounds: tuple[int, ...]
    batch: int = 1  # records of the publication

    @property
    def last_round(self) -> int:
        """Return the last round with this fault."""
        return max(self.rounds, default=-1)

    def strike(self, world: World) -> None:
        """Publish and crash if this round is listed; at least one member survives."""
        members = sorted(node for node, machine in world.subscribers.items() if machine.wants)
        if world.round in self.rounds and len(members) > 1:
            payloads = _payloads(f"last of round {world.round}", self.batch)
            world.publish_and_crash(world.rng.choice(members), *payloads)


class OracleDetector(Struct, frozen=True):
    """Failure detector that suspects a crashed node ``delay_rounds`` rounds after its crash."""

    delay_rounds: int = 0

    @property
    def last_round(self) -> int:
        """Return -1: it suspects only crashed nodes, so convergence need not wait for it."""
        return -1

    def strike(self, world: World) -> None:
        """Suspect nodes that crashed long enough ago and are not suspected yet."""
        for node, crash_round in world.crashed.items():
            if world.round - crash_round >= self.delay_rounds and self._is_news(world, node):
                world.suspect(node)

    @staticmethod
    def _is_news(world: World, node: NodeId) -> bool:
        return node in world.roster or not world.supervisor.suspects(node)
