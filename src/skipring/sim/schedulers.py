"""Schedulers: the order of deliveries and Timeouts (section 1.1).

The paper demands fairness only. Each scheduler is fair and defines a round, the paper's timeout
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from skipring.core.messages import SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.sim.engine import World
from skipring.world.snapshot import Parcel


class Scheduler(Protocol):
    """Order of the steps of a round."""

    def run_round(self, world: World) -> None:
        """Run one timeout interval."""


def run_rounds(world: World, scheduler: Scheduler, rounds: int) -> None:
    """Run timeout intervals without faults of processes."""
    for _ in range(rounds):
        world.begin_round()
        scheduler.run_round(world)
        world.end_round()


class RandomOrder:
    """Delivery of all present messages and one Timeout of each process, in random order.

    Messages sent during the round take part, so new ones may overtake old ones.
    """

    def run_round(self, world: World) -> None:
        """Run one timeout interval."""
        channels, chance, first_new = world.channels, world.rng.random, world.next_serial
        waiting = world.processes()
        world.rng.shuffle(waiting)
        old = len(channels)
        while waiting or old:
            pick = int(chance() * (len(channels) + len(waiting)))
            if pick < len(waiting):
                world.tick(waiting.pop())
                continue
            pick -= len(waiting)
            parcel = channels[pick]
            channels[pick] = channels[-1]
            channels.pop()
            if parcel.serial < first_new:
                old -= 1
            world.deliver(parcel)


Step: TypeAlias = Parcel | NodeId  # delivery of a message, or Timeout of a process
OrderKey: TypeAlias = Callable[[Step], int]


def _is_configuration(step: Step) -> bool:
    return isinstance(step, Parcel) and type(step.message) is SetConfiguration


def _age(step: Step) -> int:
    return step.serial if isinstance(step, Parcel) else 0


# Keys by which a round of ``ListedOrder`` is sorted, after a shuffle.
ORDER_KEYS: Final[tuple[OrderKey, ...]] = (
    lambda _: 0,
    lambda step: isinstance(step, Parcel),  # Timeouts first
    lambda step: not isinstance(step, Parcel),
    _is_configuration,  # configurations last
    lambda step: not _is_configuration(step),
    lambda step: isinstance(step, Parcel) and step.to == SUPERVISOR,  # requests last
    _age,
    lambda step: -_age(step),
)


class ListedOrder:
    """Orders of the first rounds, each given by a number; later rounds are in random order.

    A round delivers all present messages and runs each Timeout once. The number selects one of
    ``ORDER_KEYS`` and the seed of the shuffle before it.
    """

    def __init__(self, orders: Sequence[int]) -> None:
        self._orders = list(reversed(orders))
        self._later = RandomOrder()

    def run_round(self, world: World) -> None:
        """Run one timeout interval."""
        if not self._orders:
            self._later.run_round(world)
            return
        order = self._orders.pop()
        steps: list[Step] = [*world.channels, *world.processes()]
        world.channels.clear()
        Random(f"order/{order}").shuffle(steps)
        for step in sorted(steps, key=ORDER_KEYS[order % len(ORDER_KEYS)]):
            if isinstance(step, Parcel):
                world.deliver(step)
            else:
                world.tick(step)


class Synchronous:
    """Delivery of all present messages, shuffled; then all Timeouts."""

    def run_round(self, world: World) -> None:
        """Run one timeout interval."""
        present = list(world.channels)
        world.channels.clear()
        world.rng.shuffle(present)
        for parcel in present:
            world.deliver(parcel)
        for node in world.processes():
            world.tick(node)


class Delaying:
    """Delivery of newest messages first, with long delays, longest for configurations.

    A round has as many Timeouts as there are processes, in any distribution over them.
    """

    DELIVERY: Final = 1 / 6
    CONFIGURATION_DELIVERY: Final = 1 / 18
    TIMEOUT: Final = 1 / 2

    def __init__(self) -> None:
        self._surplus = 0  # Timeouts of the last round that count for the next

    def run_round(self, world: World) -> None:
        """Run passes until there were enough Timeouts."""
        # Carry over at most one round of Timeouts; after a mass crash, more would leave the
        # survivors without any.
        self._surplus = min(self._surplus, len(world.subscribers))
        while self._surplus <= len(world.subscribers):
            self._surplus += self._run_pass(world)
        self._surplus -= len(world.subscribers) + 1

    def _run_pass(self, world: World) -> int:
        present = list(world.channels)
        world.channels.clear()
        delivered: list[Parcel] = []
        postponed: list[Parcel] = []
        for parcel in reversed(present):
            chosen = delivered if world.rng.random() < self._chance(parcel) else postponed
            chosen.append(parcel)
        world.channels.extend(reversed(postponed))
        for parcel in delivered:
            world.deliver(parcel)
        processes = world.processes()
        world.rng.shuffle(processes)
        awake = [node for node in processes if world.rng.random() < self.TIMEOUT]
        for node in awake:
            world.tick(node)
        return len(awake)

    def _chance(self, parcel: Parcel) -> float:
        configures = type(parcel.message) is SetConfiguration
        return self.CONFIGURATION_DELIVERY if configures else self.DELIVERY


class SwizzleClog:
    """Repeated cycles that clog subscribers one by one and release them in another order.

    No message reaches or leaves a clogged subscriber; its messages wait. About a quarter of the
    subscribers takes part in each cycle of 20 rounds.
    """

    CYCLE: Final = 20
    SHARE: Final = 1 / 4

    def __init__(self) -> None:
        self._round = 0
        self._to_clog: list[NodeId] = []
        self._to_free: list[NodeId] = []
        self.clogged: set[NodeId] = set()

    def run_round(self, world: World) -> None:
        """Update the clogged set; deliver the free messages, then run all Timeouts."""
        self._advance(world)
        held: list[Parcel] = []
        free: list[Parcel] = []
        for parcel in world.channels:
            is_held = parcel.to in self.clogged or parcel.sender in self.clogged
            (held if is_held else free).append(parcel)
        world.channels[:] = held
        world.rng.shuffle(free)
        for parcel in free:
            world.deliver(parcel)
        for node in world.processes():
            world.tick(node)

    def _advance(self, world: World) -> None:
        phase, half = self._round % self.CYCLE, self.CYCLE // 2
        self._round += 1
        if phase == 0:
            self._begin_cycle(world)
        if phase < half:
            count = -(-len(self._to_clog) // (half - phase))
            self.clogged.update(self._to_clog.pop() for _ in range(count))
        else:
            count = -(-len(self._to_free) // (self.CYCLE - phase))
            self.clogged.difference_update(self._to_free.pop() for _ in range(count))

    def _begin_cycle(self, world: World) -> None:
        chosen = [node for node in sorted(world.subscribers) if world.rng.random() < self.SHARE]
        self._to_clog = world.rng.sample(chosen, len(chosen))
        self._to_free = world.rng.sample(chosen, len(chosen))
        self.clogged.clear()


SCHEDULERS: Final[Mapping[str, Callable[[], Scheduler]]] = MappingProxyType(
    {"random": RandomOrder, "sync": Synchronous, "delay": Delaying, "swizzle": SwizzleClog}
)
