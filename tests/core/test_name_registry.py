"""Name registry: one process per name, even after corruption of all its variables."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from skipring.core.name_registry import (
    CLAIMS_MAX,
    CONFLICT_TICKS,
    CONFLICTS_MAX,
    MISSES_MAX,
    PING_TICKS,
    Admit,
    Conflict,
    ConnectionEnded,
    Displace,
    ExpectAnswer,
    HolderAnswered,
    NameClaimed,
    NameRegistry,
    PingExpired,
    PingHolder,
    ProcessId,
    Refuse,
    RegistryEffect,
    RegistryEvent,
    RegistryTick,
)

OWNER = ProcessId(10, "10.0.0.1:7401")
CLONE = ProcessId(11, "10.0.0.2:7401")
OTHER = ProcessId(12, "10.0.0.3:7401")
DECISION_ROUNDS = 5


def registry_held_by(process: ProcessId, connection: int = 1) -> NameRegistry:
    registry = NameRegistry()
    assert registry.handle(NameClaimed("b", connection, process)) == [Admit("b", connection)]
    return registry


def test_first_process_of_a_name_is_admitted_at_once() -> None:
    registry_held_by(OWNER)


def test_holder_is_pinged_before_a_second_process_is_admitted() -> None:
    registry = registry_held_by(OWNER)
    effects = registry.handle(NameClaimed("b", 2, CLONE))
    assert effects == [ExpectAnswer("b", 2, 1), PingHolder("b", 1, 2)]


def test_second_process_is_refused_if_the_holder_answers() -> None:
    registry = registry_held_by(OWNER)
    registry.handle(NameClaimed("b", 2, CLONE))
    conflict = Conflict("b", OWNER, CLONE)
    assert registry.handle(HolderAnswered("b", 1, 2, is_own=False)) == [Refuse(2, conflict, 1)]
    assert registry.conflicts() == [conflict]


@pytest.mark.parametrize("claimed", [OWNER, CLONE], ids=["same-values", "other-values"])
def test_answer_decides_and_not_the_values_of_a_greeting(claimed: ProcessId) -> None:
    registry = registry_held_by(OWNER)
    for connection, is_own in ((2, True), (3, False)):
        asked = registry.handle(NameClaimed("b", connection, claimed))
        assert PingHolder("b", 1, connection) in asked
        (effect,) = registry.handle(HolderAnswered("b", 1, connection, is_own))
        assert isinstance(effect, Admit if is_own else Refuse)


def test_answer_of_a_connection_without_the_name_decides_nothing() -> None:
    registry = registry_held_by(OWNER)
    registry.handle(NameClaimed("b", 2, CLONE))
    assert registry.handle(HolderAnswered("b", 2, 2, is_own=True)) == []


def test_second_process_gets_the_name_if_the_holder_does_not_answer() -> None:
    registry = registry_held_by(OWNER)
    registry.handle(NameClaimed("b", 2, CLONE))
    assert registry.handle(PingExpired("b", 2, 1)) == [Admit("b", 2), Displace("b", 1)]
    assert registry.conflicts() == []


def test_second_process_gets_the_name_as_soon_as_the_connection_of_the_holder_ends() -> None:
    registry = registry_held_by(OWNER)
    registry.handle(NameClaimed("b", 2, CLONE))
    assert registry.handle(ConnectionEnded("b", 1)) == [Admit("b", 2)]


def test_first_of_several_claims_of_a_free_name_is_admitted() -> None:
    registry = registry_held_by(OWNER)
    for connection, process in ((2, CLONE), (3, OTHER), (4, CLONE)):
        registry.handle(NameClaimed("b", connection, process))
    effects = registry.handle(ConnectionEnded("b", 1))
    asked = [ExpectAnswer("b", 3, 2), PingHolder("b", 2, 3), ExpectAnswer("b", 4, 2)]
    assert effects == [Admit("b", 2), *asked, PingHolder("b", 2, 4)]
    assert registry.handle(PingExpired("b", 3, 1)) == []
    (refusal,) = registry.handle(HolderAnswered("b", 2, 3, is_own=False))
    assert refusal == Refuse(3, Conflict("b", CLONE, OTHER), 2)
    assert registry.handle(HolderAnswered("b", 2, 4, is_own=True)) == [Admit("b", 4)]


def test_connection_admitted_after_a_ping_is_pinged_before_the_name_is_lost() -> None:
    registry = registry_held_by(OWNER)
    registry.handle(NameClaimed("b", 2, OWNER))
    registry.handle(NameClaimed("b", 3, CLONE))
    registry.handle(HolderAnswered("b", 1, 2, is_own=True))
    effects = registry.handle(PingExpired("b", 3, 1))
    assert effects == [ExpectAnswer("b", 3, 2), PingHolder("b", 2, 3), Displace("b", 1)]


def test_deadline_of_an_earlier_ping_does_not_end_a_later_one() -> None:
    registry = registry_held_by(OWNER)
    registry.handle(NameClaimed("b", 2, CLONE))
    registry.handle(HolderAnswered("b", 1, 2, is_own=False))
    registry.handle(NameClaimed("b", 3, CLONE))
    assert registry.handle(PingExpired("b", 2, 1)) == []


def test_claim_whose_connection_ends_is_forgotten() -> None:
    registry = registry_held_by(OWNER)
    registry.handle(NameClaimed("b", 2, CLONE))
    assert registry.handle(ConnectionEnded("b", 2)) == []
    assert registry.handle(PingExpired("b", 2, 1)) == []


def test_number_of_waiting_claims_of_one_name_is_bounded() -> None:
    registry = registry_held_by(OWNER)
    for connection in range(2, CLAIMS_MAX + 2):
        registry.handle(NameClaimed("b", connection, CLONE))
    (refusal,) = registry.handle(NameClaimed("b", 99, CLONE))
    assert isinstance(refusal, Refuse)
    assert refusal.connection == 99


def test_conflicts_expire_and_their_number_is_bounded() -> None:
    registry = NameRegistry()
    for number in range(CONFLICTS_MAX + 1):
        name = f"n{number:05}"
        registry.handle(NameClaimed(name, 2 * number, OWNER))
        registry.handle(NameClaimed(name, 2 * number + 1, CLONE))
        registry.handle(HolderAnswered(name, 2 * number, 2 * number + 1, is_own=False))
    assert len(registry.conflicts()) == CONFLICTS_MAX
    for _ in range(CONFLICT_TICKS):
        registry.handle(RegistryTick())
    assert registry.conflicts() == []


def test_second_process_of_a_name_is_refused_after_two_audits() -> None:
    registry = NameRegistry()
    connections = {"b": {2: CLONE, 1: OWNER}}
    asked = registry.handle(RegistryTick(connections))
    assert asked == [PingHolder("b", 1, 2), PingHolder("b", 2, 1)]
    registry.handle(HolderAnswered("b", 1, 2, is_own=False))
    registry.handle(HolderAnswered("b", 2, 1, is_own=False))
    effects = registry.handle(RegistryTick(connections))
    assert effects == [Refuse(2, Conflict("b", OWNER, CLONE), 1)]


def test_connection_that_answers_no_audit_is_displaced_and_causes_no_conflict() -> None:
    registry = NameRegistry()
    connections = {"b": {1: OWNER, 2: OWNER}}
    for _ in range(MISSES_MAX):
        asked = registry.handle(RegistryTick(connections))
        assert asked == [PingHolder("b", 1, 2), PingHolder("b", 2, 1)]
        registry.handle(HolderAnswered("b", 1, 2, is_own=False))
    assert registry.handle(RegistryTick(connections)) == [Displace("b", 2)]
    assert registry.conflicts() == []


def test_connections_of_one_process_stay_after_many_audits() -> None:
    registry = NameRegistry()
    for _ in range(3 * MISSES_MAX):
        asked = registry.handle(RegistryTick({"b": {1: OWNER, 2: OWNER}}))
        assert asked == [PingHolder("b", 1, 2), PingHolder("b", 2, 1)]
        for connection, other in ((1, 2), (2, 1)):
            registry.handle(HolderAnswered("b", connection, other, is_own=True))


# -- simulated -------------------------------------------------------------------------------


class Processes:
    """Processes that claim one name at one registry, over channels with delays.

    A live process answers every ping. A process that is refused, or has lost its connection, dials
    again.
    """

    def __init__(self, seed: int, processes: list[ProcessId]) -> None:
        self.rng = Random(seed)
        self.registry = NameRegistry()
        self.alive = set(processes)
        self.claims: dict[int, ProcessId] = {}
        self.admitted: dict[int, ProcessId] = {}
        self.refused: set[ProcessId] = set()
        self._next = 1
        self._events: list[RegistryEvent] = []  # these may happen in any order
        self._ticks = 0
        self._since: dict[int, int] = {}

    def connection_of(self, process: ProcessId) -> int | None:
        both = {**self.claims, **self.admitted}
        return next((each for each, found in both.items() if found == process), None)

    def dial(self, process: ProcessId) -> None:
        connection, self._next = self._next, self._next + 1
        self.claims[connection] = process
        self._since[connection] = self._ticks
        self.give(NameClaimed("b", connection, process))

    def kill(self, process: ProcessId, *, is_noticed: bool) -> None:
        self.alive.discard(process)
        for connection, found in [*self.claims.items(), *self.admitted.items()]:
            if found == process and is_noticed:
                self.end(connection)

    def end(self, connection: int) -> None:
        self.claims.pop(connection, None)
        self.admitted.pop(connection, None)
        self.give(ConnectionEnded("b", connection))

    def give(self, event: RegistryEvent) -> None:
        for effect in self.registry.handle(event):
            self.apply(effect)

    def apply(self, effect: RegistryEffect) -> None:
        match effect:
            case PingHolder(connection=connection, claim=claim):
                process = self.admitted.get(connection)
                other = {**self.claims, **self.admitted}.get(claim)
                if process is None or other is None:
                    self.give(ConnectionEnded("b", connection if process is None else claim))
                elif process in self.alive:
                    answer = HolderAnswered("b", connection, claim, is_own=process == other)
                    self._events.append(answer)
            case ExpectAnswer(claim=claim, attempt=attempt):
                self._events.append(PingExpired("b", claim, attempt))
            case Admit(connection=connection):
                if connection in self.claims:
                    self.admitted[connection] = self.claims.pop(connection)
            case Refuse(connection=connection):
                found = self.claims.pop(connection, None) or self.admitted.pop(connection, None)
                if found is not None:
                    self.refused.add(found)
            case Displace(connection=connection):
                self.admitted.pop(connection, None)

    def round(self) -> None:
        """Run one interval: answers before deadlines, each in any order; all dial again."""
        self._ticks += 1
        answers = [each for each in self._events if isinstance(each, HolderAnswered)]
        deadlines = [each for each in self._events if not isinstance(each, HolderAnswered)]
        self._events = []
        for events in (answers, deadlines):
            self.rng.shuffle(events)
            for event in events:
                self.give(event)
        for process in sorted(self.alive, key=lambda each: each.incarnation):
            if self.connection_of(process) is None and self.rng.random() < 0.5:
                self.dial(process)
        for connection, since in list(self._since.items()):
            if connection in self.claims and self._ticks - since > DECISION_ROUNDS:
                self.end(connection)  # the host closes a connection without a decision
        connections = {"b": dict(self.admitted)} if self.admitted else {}
        self.give(RegistryTick(connections if self._ticks % 8 == 0 else None))

    def holders(self) -> set[ProcessId]:
        return {process for process in self.admitted.values() if process in self.alive}


def corrupt(world: Processes) -> None:
    """Overwrite every variable of the registry with a valid or an invalid value."""
    rng, registry = world.rng, world.registry
    wrong = [OWNER, CLONE, OTHER, ProcessId(2**40 - 1, "x:1"), ProcessId(0, "")]

    def some() -> dict[int, ProcessId]:
        return {rng.randrange(world._next + 3): rng.choice(wrong) for _ in range(rng.randrange(4))}

    registry._ticks = rng.choice([0, 7, 10**9])
    registry._holders = {"b": some()} if rng.random() < 0.8 else {}
    registry._answers = {"b": dict.fromkeys(some(), rng.random() < 0.5)}
    registry._denied = {"b": set(some())}
    registry._misses = dict.fromkeys(some(), rng.choice([-5, 10**12]))
    registry._conflicts = {"b": (rng.choice([0, 10**12]), Conflict("b", OTHER, OWNER))}
    claims = [each for found in registry._pending.values() for each in found.values()]
    if rng.random() < 0.5:  # under other connections, or none
        registry._pending = {"b": dict(zip(some(), claims, strict=False))}
    for pending in claims:
        pending.process = rng.choice(wrong)
        pending.since = rng.choice([-5, 10**12])
        pending.attempt = rng.randrange(3)
        pending.asked = tuple(some())


@pytest.mark.parametrize("seed", range(200))
def test_one_of_two_live_processes_holds_the_name_after_any_corruption(seed: int) -> None:
    world = Processes(seed, [OWNER, CLONE])
    world.dial(OWNER)
    for _ in range(world.rng.randrange(20)):
        world.round()
    corrupt(world)
    run_until(world, lambda: len(world.holders()) == 1)
    (holder,) = world.holders()
    world.refused.clear()
    for _ in range(4 * PING_TICKS):
        world.round()
        assert world.holders() == {holder}, "who holds the name does not change any more"
    assert world.refused == {OWNER, CLONE} - {holder}, "the other one knows"
    assert world.registry.conflicts()[0].holder == holder


@pytest.mark.parametrize("seed", range(100))
def test_corrupted_values_do_not_lock_out_the_owner(seed: int) -> None:
    world = Processes(seed, [OWNER])
    world.dial(OWNER)
    for _ in range(world.rng.randrange(20)):
        world.round()
    corrupt(world)
    run_until(world, lambda: world.holders() == {OWNER})
    for _ in range(CONFLICT_TICKS + 1):
        world.round()
    assert world.holders() == {OWNER}
    assert world.registry.conflicts() == []


@pytest.mark.parametrize("is_noticed", [True, False], ids=["closed", "half-open"])
@pytest.mark.parametrize("seed", range(50))
def test_restarted_process_gets_its_name_within_few_intervals(seed: int, is_noticed: bool) -> None:
    world = Processes(seed, [OWNER])
    world.dial(OWNER)
    world.round()
    world.kill(OWNER, is_noticed=is_noticed)
    world.alive.add(CLONE)
    world.dial(CLONE)
    run_until(world, lambda: world.holders() == {CLONE}, rounds=3)
    assert not world.refused


def run_until(world: Processes, holds: Callable[[], bool], rounds: int = 4 * PING_TICKS) -> None:
    """Run rounds until a condition holds for the duration of two audits."""
    since = 0
    for _ in range(rounds + 24):
        world.round()
        since = since + 1 if holds() else 0
    assert since >= 24, f"not within {rounds} rounds"
