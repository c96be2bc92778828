"""The tables of docs/simulation.md, measured again (``skipring bench sim --tables``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from random import Random
from statistics import median, stdev
from typing import Any, Final

from msgspec import Struct

from skipring.core.config import ProtocolConfig
from skipring.core.messages import GetConfiguration, Message
from skipring.lab.bench.markdown import header, row
from skipring.sim.engine import World
from skipring.sim.runner import Report, Simulation
from skipring.sim.scenario import make_scenario
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES, legitimate_world
from skipring.world.legitimacy import explicit_state

SIZES: Final = (16, 64, 256, 1024)
SEEDS: Final = 3
WEATHER_SIZE: Final = 64
LEGITIMATE_SIZE: Final = 256
LEGITIMATE_ROUNDS: Final = 3000

WEATHER: Final[Mapping[str, Mapping[str, Any]]] = {
    "calm, `random`": {},
    "`sync`": {"scheduler": "sync"},
    "`delay`": {"scheduler": "delay"},
    "`swizzle`": {"scheduler": "swizzle"},
    "loss 20 %": {"loss": 0.2},
    "loss 40 %": {"loss": 0.4},
    "duplication 20 %": {"duplicate": 0.2},
    "5 restarts, empty": {"supervisor_restarts": [3, 9, 15, 21, 27]},
    "¼ crashes, detector 10 late": {
        "crash": {"rounds": [1], "share": 0.25},
        "detector_delay": 10,
    },
    "churn 1 % for 100 rounds": {"churn": 0.01},
    "mode `fixed`": {"mode": "fixed"},
}


def tables() -> Iterator[str]:
    """Yield the lines of all tables, in Markdown."""
    yield from _healing_tables()
    yield ""
    yield from _weather_table()
    yield ""
    yield from _legitimate_table()


def _run(**values: object) -> Report:
    return Simulation(make_scenario({"closure": 0, **values})).run()


def _healing_tables() -> Iterator[str]:
    """Rounds, messages and requests against n, for every adversary."""
    cells: dict[tuple[str, int], list[Report]] = {}
    for adversary in ADVERSARIES:
        for n in SIZES:
            runs = [_run(n=n, adversary=adversary, seed=seed) for seed in range(SEEDS)]
            cells[adversary, n] = runs
    yield f"Rounds to strict legitimacy, worst of {SEEDS} seeds / messages per node /"
    yield "supervisor requests per node (medians), mode `fast`:"
    yield ""
    yield from header("adversary", [f"n = {n}" for n in SIZES])
    for adversary in ADVERSARIES:
        yield row(adversary, [_cell(cells[adversary, n], n) for n in SIZES])


def _cell(runs: Sequence[Report], n: int) -> str:
    if not all(run.converged for run in runs):
        return "not converged"
    rounds = max(run.rounds_strict or 0 for run in runs)
    messages = median(run.messages for run in runs) / n
    requests = median(run.supervisor_requests for run in runs) / n
    return f"{rounds} / {messages:.0f} / {requests:.1f}"


def _weather_table() -> Iterator[str]:
    """What schedulers and faults do to healing, over all adversaries."""
    yield f"All adversaries, n = {WEATHER_SIZE}, {SEEDS} seeds, rounds to strict legitimacy:"
    yield ""
    yield from header("weather", ["converged", "median", "90 %", "worst", "worst is"])
    for name, values in WEATHER.items():
        found: list[tuple[int, str]] = []
        runs = 0
        for adversary in ADVERSARIES:
            for seed in range(SEEDS):
                report = _run(n=WEATHER_SIZE, adversary=adversary, seed=seed, **values)
                runs += 1
                if report.rounds_strict is not None:
                    found.append((report.rounds_strict, adversary))
        found.sort()
        rounds = [count for count, _ in found]
        worst, adversary = found[-1]
        share = f"{len(found)}/{runs}"
        tenth = rounds[len(rounds) * 9 // 10]
        yield row(name, [share, f"{median(rounds):.0f}", str(tenth), str(worst), adversary])


class Costs(Struct, frozen=True):
    """What a legitimate state has cost over some rounds."""

    changes: int  # of the explicit state
    requests: list[int]  # in each round
    sent: Mapping[type[Message], int]

    @property
    def requests_mean(self) -> float:
        """Requests per round."""
        return sum(self.requests) / len(self.requests)

    @property
    def requests_error(self) -> float:
        """The standard error of that mean."""
        return stdev(self.requests) / sqrt(len(self.requests))


def legitimate_costs(n: int, rounds: int, *, seed: int) -> Costs:
    """Watch a legitimate ring for some rounds."""
    world = World(legitimate_world(n, Random(seed)), seed=seed, config=ProtocolConfig())
    scheduler, before = RandomOrder(), explicit_state(world)
    requests: list[int] = []
    changes = 0
    for _ in range(rounds):
        asked = world.sent[GetConfiguration]
        run_rounds(world, scheduler, 1)
        requests.append(world.sent[GetConfiguration] - asked)
        changes += explicit_state(world) != before
    return Costs(changes, requests, world.sent)


def _legitimate_table() -> Iterator[str]:
    """What a legitimate state costs, and that it does not change."""
    n, rounds = LEGITIMATE_SIZE, LEGITIMATE_ROUNDS
    costs = legitimate_costs(n, rounds, seed=1)
    yield f"Legitimate state, n = {n}, {rounds} rounds: {costs.changes} changes of state,"
    yield f"{costs.requests_mean:.3f} ± {costs.requests_error:.3f} requests per round."
    yield ""
    yield from header("message", ["per node and round"])
    for kind, count in sorted(costs.sent.items(), key=lambda item: -item[1]):
        yield row(kind.__name__, [f"{count / n / rounds:.4f}"])
