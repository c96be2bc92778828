"""Search for bad schedules and starts: greedy orders, mutation of the worst, random restarts.

A schedule is a list of numbers, one for the order of the events in each round (``ListedOrder``).
Each round delivers all present messages and runs each Timeout once, so every schedule is fair and
its rounds compare with those of the random scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.sim.engine import IN_FLIGHT_PER_NODE_MAX
from skipring.sim.runner import Simulation
from skipring.sim.scenario import Scenario
from skipring.world.legitimacy import violations

ORDERS: Final = 1 << 16  # Guess: seeds of an order to choose from
GREEDY_ROUNDS: Final = 12  # Guess: a longer prefix costs more runs than it finds.
RESTART_RUNS: Final = 40  # Guess: mutations without a worse run before the search starts elsewhere
GREEDY_ORDERS: Final = 4  # orders that the greedy choice compares in each round


class Attempt(Struct, frozen=True):
    """Scenario, and the rounds until it converged; ``is_censored`` if it reached its limit."""

    scenario: Scenario
    rounds: int
    is_censored: bool = False


class Found(Struct, frozen=True, kw_only=True):
    """Outcome of a search: the worst run, and the same number of runs in random order."""

    worst: Attempt
    random_worst: Attempt
    random_median: float
    runs: int  # of the search; as many in random order

    @property
    def scenario_text(self) -> str:
        """Return the worst run as a scenario file."""
        found, worst = self.worst.scenario, self.worst
        outcome = (
            f"heals within {worst.rounds} rounds" if not worst.is_censored else "does not heal"
        )
        typical = f"{self.random_worst.rounds} at worst, {self.random_median:g} in the median"
        lines = [
            f"# Worst of {self.runs} runs of `skipring lab search`: {worst.rounds} rounds.",
            f"# As many runs in random order: {typical}.",
            f'title = "{outcome}: worst schedule found from {found.adversary}"',
            *(f"{name} = {getattr(found, name)}" for name in ("n", "seed", "max_rounds")),
            f'adversary = "{found.adversary}"',
            f'mode = "{found.mode}"',
            f'config = "{found.config}"',
            f"orders = {list(found.orders)}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def ratio(self) -> float:
        """Return the rounds of the worst run found, relative to the worst in random order."""
        return self.worst.rounds / max(self.random_worst.rounds, 1)

    @property
    def ratio_to_median(self) -> float:
        """Return the rounds of the worst run found, relative to the median in random order."""
        return self.worst.rounds / max(self.random_median, 1)


def search(base: Scenario, adversaries: Sequence[str], *, runs: int, seed: int) -> Found:
    """Return the worst of ``runs`` runs; equal arguments return equal results.

    A quarter of the runs samples starts in random order, a quarter builds greedy schedules from the
    worst of them, and the rest mutates the worst run so far; after ``RESTART_RUNS`` mutations
    without a worse run it continues from another start. As many runs again sample starts in random
    order, for comparison.
    """
    rng = Random(f"search/{seed}")
    sampled = [_tried(each) for each in _starts(base, adversaries, rng, -(-runs // 4))]
    attempts = sorted(sampled, key=_badness, reverse=True)
    spent = len(sampled)
    for start in list(attempts):
        if spent + GREEDY_ORDERS * GREEDY_ROUNDS >= runs // 2:
            break
        attempts.append(_tried(_greedy(start.scenario, rng)))
        spent += GREEDY_ORDERS * GREEDY_ROUNDS
    worst = max([*attempts, *_climbed(attempts, adversaries, rng, runs - spent)], key=_badness)
    compared = [_tried(each) for each in _starts(base, adversaries, rng, runs)]
    return Found(
        worst=worst,
        random_worst=max(compared, key=_badness),
        random_median=median(attempt.rounds for attempt in compared),
        runs=max(spent, runs),
    )


def _climbed(
    attempts: Sequence[Attempt], adversaries: Sequence[str], rng: Random, runs: int
) -> Iterator[Attempt]:
    """Yield mutations of the worst run, then of other starts; an equal run replaces the last."""
    current, unchanged = max(attempts, key=_badness), 0
    for _ in range(runs):
        if unchanged == RESTART_RUNS:
            (start,) = _starts(current.scenario, [rng.choice(adversaries)], rng, 1)
            current, unchanged = _tried(start), 0
        else:
            tried = _tried(_mutated(current.scenario, adversaries, rng))
            unchanged = 0 if _badness(tried) > _badness(current) else unchanged + 1
            current = max(tried, current, key=_badness)
        yield current


def _starts(
    base: Scenario, adversaries: Sequence[str], rng: Random, count: int
) -> Iterator[Scenario]:
    """Yield scenarios in random order, from each adversary in turn."""
    for number in range(count):
        code = adversaries[number % len(adversaries)]
        yield replace(base, adversary=code, seed=rng.randrange(ORDERS), orders=())


def _tried(scenario: Scenario) -> Attempt:
    limit = IN_FLIGHT_PER_NODE_MAX * scenario.n
    report = Simulation(scenario, in_flight_max=limit).run()
    reached = (report.rounds_strict, report.rounds_publications)
    if not report.converged or None in reached:
        return Attempt(scenario, scenario.max_rounds, is_censored=True)
    return Attempt(scenario, max(each for each in reached if each is not None))


def _badness(attempt: Attempt) -> tuple[bool, int]:
    return attempt.is_censored, attempt.rounds


def _greedy(scenario: Scenario, rng: Random) -> Scenario:
    """Choose in each round the order after which the most variables are wrong."""
    orders: tuple[int, ...] = ()
    for _ in range(GREEDY_ROUNDS):
        candidates = [(*orders, rng.randrange(ORDERS)) for _ in range(GREEDY_ORDERS)]
        orders = max(candidates, key=lambda each: _wrong(replace(scenario, orders=each)))
    return replace(scenario, orders=orders)


def _wrong(scenario: Scenario) -> int:
    """Return the number of violations after the last listed round."""
    simulation = Simulation(scenario)
    for _ in scenario.orders:
        simulation.run_round()
    return _count(violations(simulation.world))


def _count(found: Iterable[object]) -> int:
    return sum(1 for _ in found)


def _mutated(scenario: Scenario, adversaries: Sequence[str], rng: Random) -> Scenario:
    """Change one order, the end of the schedule, or the start."""
    orders, kind = list(scenario.orders), rng.randrange(8)
    if kind == 0:
        return replace(scenario, seed=rng.randrange(ORDERS), adversary=rng.choice(adversaries))
    if kind == 1 or not orders:
        orders.append(rng.randrange(ORDERS))
    elif kind == 2:  # noqa: PLR2004  (one of eight kinds)
        del orders[rng.randrange(len(orders)) :]
    else:
        orders[rng.randrange(len(orders))] = rng.randrange(ORDERS)
    return replace(scenario, orders=tuple(orders))
