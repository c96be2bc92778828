"""Runner of a scenario: convergence to legitimacy, then closure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import chain, islice

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.effects import Origin
from skipring.core.messages import SUPERVISOR_REQUESTS
from skipring.sim.engine import MessageLimitError, World
from skipring.sim.process_faults import Incident
from skipring.sim.scenario import Scenario
from skipring.sim.schedulers import SCHEDULERS, ListedOrder, Scheduler
from skipring.world.legitimacy import (
    channel_violations,
    explicit_state,
    has_all_publications,
    is_legitimate,
    publication_violations,
    violations,
)
from skipring.world.snapshot import Snapshot

VIOLATIONS_REPORTED = 10


class Counters(Struct, frozen=True):
    """Cost of a run."""

    messages: int
    events: int
    supervisor_requests: int

    @classmethod
    def of(cls, world: World) -> Counters:
        """Read a world's counters."""
        requests = sum(world.sent[kind] for kind in SUPERVISOR_REQUESTS)
        return cls(world.messages, world.events, requests)

    def since(self, before: Counters) -> Counters:
        """Return the increase since earlier counters."""
        return Counters(
            self.messages - before.messages,
            self.events - before.events,
            self.supervisor_requests - before.supervisor_requests,
        )


class Report(Struct, frozen=True, kw_only=True):
    """Outcome of a run; a round is None if its condition was never reached."""

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
    published: int
    delivered_by_spreading: int
    delivered_by_repair: int
    duplicates: int
    hops_mean: float
    hops_max: int
    violations: list[str]

    @property
    def is_good(self) -> bool:
        """Return True if the run converged and closure held."""
        return self.converged and self.closure_ok is not False


class Since(Struct, frozen=True):
    """Round since which each predicate has held without interruption, or None."""

    explicit: int | None = None
    strict: int | None = None
    publications: int | None = None

    @property
    def is_converged(self) -> bool:
        """Return True if the ring is strictly legitimate and all members have all publications."""
        return self.strict is not None and self.publications is not None

    def judge(self, world: World, now: int) -> Since:
        """Return the updated values for the state of the world in round ``now``."""
        is_explicit = is_legitimate(world)
        is_strict = is_explicit and next(channel_violations(world), None) is None
        return Since(
            _since(self.explicit, now) if is_explicit else None,
            _since(self.strict, now) if is_strict else None,
            _since(self.publications, now) if has_all_publications(world) else None,
        )


def _ignore(world: World) -> None:
    """Ignore the world."""


class Simulation:
    """World of a scenario with its scheduler, faults and incidents."""

    def __init__(
        self,
        scenario: Scenario,
        start: Snapshot | None = None,
        *,
        in_flight_max: int | None = None,
    ) -> None:
        self.scenario = scenario
        self._adversary = scenario.adversary if start is None else None
        start = scenario.start(start)
        members = sum(state.member for state in start.subscribers.values())
        self._n = scenario.n if self._adversary is not None else members
        self.world = World(
            start,
            seed=scenario.seed,
            config=scenario.protocol,
            faults=scenario.faults(sorted(start.subscribers)),
            uses_up_start=self._adversary is not None,
            in_flight_max=in_flight_max,
        )
        self._scheduler: Scheduler = (
            ListedOrder(scenario.orders) if scenario.orders else SCHEDULERS[scenario.scheduler]()
        )
        self._incidents: tuple[Incident, ...] = scenario.incidents()

    def run_round(self) -> None:
        """Run one timeout interval, with its incidents."""
        self.world.begin_round()
        for incident in self._incidents:
            incident.strike(self.world)
        self._scheduler.run_round(self.world)
        self.world.end_round()

    def run(self, observe: Callable[[World], None] = _ignore) -> Report:
        """Run until the state has converged and all incidents are over, then check closure.

        A run ends unconverged at the message limit; then ``world.is_full`` is True.
        """
        for _ in range(self.scenario.warm_up_rounds):
            observe(self.world)
            self._try_round()
        before = Counters.of(self.world)
        since = self._converge(observe)
        spent = Counters.of(self.world).since(before)
        deliveries = self.world.deliveries
        reasons = [] if since.is_converged else self._reasons()
        changed = self._first_change() if since.is_converged else None
        if changed is not None:
            reasons = [f"closure: the explicit state changed in round {changed} of the closure"]
        is_judged = since.is_converged and self.scenario.closure > 0
        return Report(
            n=self._n,
            seed=self.scenario.seed,
            mode=self.scenario.mode,
            adversary=self._adversary,
            rounds_explicit=since.explicit,
            rounds_strict=since.strict,
            rounds_publications=since.publications,
            converged=since.is_converged,
            closure_ok=changed is None if is_judged else None,
            messages=spent.messages,
            events=spent.events,
            supervisor_requests=spent.supervisor_requests,
            published=deliveries.published,
            delivered_by_spreading=deliveries.by_origin[Origin.SPREAD],
            delivered_by_repair=deliveries.by_origin[Origin.REPAIR],
            duplicates=deliveries.duplicates,
            hops_mean=round(deliveries.hops_mean, 3),
            hops_max=deliveries.hops_max,
            violations=reasons,
        )

    def _converge(self, observe: Callable[[World], None]) -> Since:
        """Run until ring and publications have converged; return the rounds of convergence."""
        world, begin = self.world, self.world.round
        last_disturbed = self.scenario.last_disturbed_round
        since = Since()
        while True:
            observe(world)
            passed = world.round - begin
            since = since.judge(world, passed)
            if since.is_converged and world.round > last_disturbed:
                return since
            if passed >= self.scenario.max_rounds:
                # The state may be legitimate, but incidents are still due.
                return since if not since.is_converged else replace(since, strict=None)
            self._try_round()
            if world.is_full:
                return Since()

    def _try_round(self) -> None:
        """Run a round unless the channels exceed the message limit."""
        if not self.world.is_full:
            with suppress(MessageLimitError):
                self.run_round()

    def _first_change(self) -> int | None:
        """Return the first round of the closure in which the ring or a trie changes, or None."""
        before = self._closed_state()
        for number in range(1, self.scenario.closure + 1):
            self.run_round()
            if self._closed_state() != before:
                return number
        return None

    def _closed_state(self) -> Hashable:
        """Return the explicit state and every member's trie, which closure keeps constant."""
        members = (machine for machine in self.world.subscribers.values() if machine.wants)
        return explicit_state(self.world), tuple(machine.trie().root() for machine in members)

    def _reasons(self) -> list[str]:
        """Return the first violations, in words."""
        wrong = chain(
            violations(self.world),
            channel_violations(self.world),
            publication_violations(self.world),
        )
        found = [str(violation) for violation in islice(wrong, VIOLATIONS_REPORTED)]
        last = self.scenario.last_disturbed_round
        if self.world.round <= last:
            found.append(
                f"the run ended in round {self.world.round}; incidents are due until round {last}"
            )
        return found


def _since(began: int | None, now: int) -> int:
    return now if began is None else began
