"""Running a scenario: to legitimacy, then closure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice

from msgspec import Struct

from skipring.core.messages import GetConfiguration, Subscribe, Unsubscribe
from skipring.sim.engine import World
from skipring.sim.incidents import Incident
from skipring.sim.scenario import Scenario
from skipring.sim.schedulers import SCHEDULERS, Scheduler
from skipring.world.legitimacy import (
    channel_violations,
    explicit_state,
    is_legitimate,
    violations,
)
from skipring.world.snapshot import Snapshot

VIOLATIONS_REPORTED = 10


class Counters(Struct, frozen=True):
    """What a run has cost."""

    messages: int
    events: int
    supervisor_requests: int

    @classmethod
    def of(cls, world: World) -> Counters:
        """Read a world's counters."""
        requests = sum(world.sent[kind] for kind in (Subscribe, Unsubscribe, GetConfiguration))
        return cls(world.messages, world.events, requests)

    def since(self, before: Counters) -> Counters:
        """What came on top of earlier counters."""
        return Counters(
            self.messages - before.messages,
            self.events - before.events,
            self.supervisor_requests - before.supervisor_requests,
        )


class Report(Struct, frozen=True, kw_only=True):
    """The outcome of a run; rounds are None for what never came to be."""

    n: int
    seed: int
    mode: str
    adversary: str | None
    rounds_explicit: int | None
    rounds_strict: int | None
    rounds_publications: int | None
    converged: bool
    closure_ok: bool | None
    messages: int
    events: int
    supervisor_requests: int
    violations: list[str]

    @property
    def is_good(self) -> bool:
        """True if the run converged and stayed closed."""
        return self.converged and self.closure_ok is not False


def _ignore(world: World) -> None:
    """Observe nothing."""


class Simulation:
    """A world together with all that happens to it."""

    def __init__(self, scenario: Scenario, start: Snapshot | None = None) -> None:
        self.scenario = scenario
        self._adversary = scenario.adversary if start is None else None
        if start is None:
            start = scenario.start()
        members = sum(state.member for state in start.subscribers.values())
        self._n = scenario.n if self._adversary is not None else members
        self.world = World(
            start,
            seed=scenario.seed,
            config=scenario.config,
            faults=scenario.faults(sorted(start.subscribers)),
            uses_up_start=self._adversary is not None,
        )
        self._scheduler: Scheduler = SCHEDULERS[scenario.scheduler]()
        self._incidents: tuple[Incident, ...] = scenario.incidents()

    def run_round(self) -> None:
        """Let one timeout interval pass, with all that befalls the world in it."""
        self.world.begin_round()
        for incident in self._incidents:
            incident.strike(self.world)
        self._scheduler.run_round(self.world)
        self.world.end_round()

    def run(self, observe: Callable[[World], None] = _ignore) -> Report:
        """Run until the state is strictly legitimate and all incidents are over, then closure."""
        for _ in range(self.scenario.warm_up_rounds):
            observe(self.world)
            self.run_round()
        before = Counters.of(self.world)
        explicit, strict = self._converge(observe)
        spent = Counters.of(self.world).since(before)
        reasons = [] if strict is not None else self._reasons()
        changed = self._first_change() if strict is not None else None
        if changed is not None:
            reasons = [f"closure: the explicit state changed in round {changed} of the closure"]
        is_judged = strict is not None and self.scenario.closure > 0
        equal = self._has_equal_publications()
        return Report(
            n=self._n,
            seed=self.scenario.seed,
            mode=self.scenario.mode,
            adversary=self._adversary,
            rounds_explicit=explicit,
            rounds_strict=strict,
            rounds_publications=0 if equal else None,
            converged=strict is not None,
            closure_ok=changed is None if is_judged else None,
            messages=spent.messages,
            events=spent.events,
            supervisor_requests=spent.supervisor_requests,
            violations=reasons,
        )

    def _converge(self, observe: Callable[[World], None]) -> tuple[int | None, int | None]:
        """Run to strict legitimacy; since which round it was explicitly and strictly so."""
        world, begin = self.world, self.world.round
        last_disturbed = self.scenario.last_disturbed_round
        explicit = strict = None
        while True:
            observe(world)
            passed = world.round - begin
            is_explicit = is_legitimate(world)
            is_strict = is_explicit and next(channel_violations(world), None) is None
            explicit = _since(explicit, passed) if is_explicit else None
            strict = _since(strict, passed) if is_strict else None
            is_over = world.round > last_disturbed
            if is_strict and is_over:
                return explicit, strict
            if passed >= self.scenario.max_rounds:
                return explicit, None  # legitimate perhaps, but with more to come
            self.run_round()

    def _first_change(self) -> int | None:
        """The first round of the closure in which the explicit state does not stay the same."""
        before = explicit_state(self.world)
        for number in range(1, self.scenario.closure + 1):
            self.run_round()
            if explicit_state(self.world) != before:
                return number
        return None

    def _reasons(self) -> list[str]:
        """The first of what is wrong, in words."""
        wrong = chain(violations(self.world), channel_violations(self.world))
        found = [str(violation) for violation in islice(wrong, VIOLATIONS_REPORTED)]
        last = self.scenario.last_disturbed_round
        if self.world.round <= last:
            found.append(f"the run ended in round {self.world.round}, with more to come in {last}")
        return found

    def _has_equal_publications(self) -> bool:
        """True if all members hold the same publications; none spreads yet."""
        members = [machine for machine in self.world.subscribers.values() if machine.wants]
        held = [sorted((p.publisher, p.seq) for p in machine.publications) for machine in members]
        return all(publications == held[0] for publications in held)


def _since(began: int | None, now: int) -> int:
    return now if began is None else began
