"""Measure rule D1 (decision 0062): healing of all adversaries, and requests in a legitimate state.

``python tools/deterministic_rule.py`` prints a Markdown table; it takes about ten minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from random import Random

from skipring.core.config import Mode
from skipring.core.messages import SUPERVISOR_REQUESTS
from skipring.sim.runner import Simulation
from skipring.sim.scenario import Scenario, make_scenario
from skipring.sim.schedulers import SCHEDULERS
from skipring.world.adversaries import ADVERSARIES, legitimate_world, scatter
from skipring.world.adversaries.memory_states import with_counters

PUBLICATIONS = 20
ROUNDS = 4096  # Guess: rarer requests add less than 0.001 per interval.


def runs() -> Iterator[Scenario]:
    """Yield the runs: n = 5 and 32 under all schedulers, n = 128 under the random one."""
    for code in ADVERSARIES:
        for n, scheduler in (*product((5, 32), SCHEDULERS), (128, "random")):
            yield make_scenario(
                {
                    "n": n,
                    "adversary": code,
                    "scheduler": scheduler,
                    "mode": Mode.DETERMINISTIC,
                    "config": "eager",  # an oracle notices crashes, as in the paper
                    "max_rounds": 2000,
                }
            )


def healing() -> tuple[int, int, int, str]:
    """Return the runs, those that healed, the most rounds, and the run that took them."""
    count = healed = rounds_max = 0
    worst = ""
    for scenario in runs():
        chance = Random(f"deterministic/{count}")
        start = scatter(scenario.start(), PUBLICATIONS, chance)
        report = Simulation(scenario, with_counters(start, chance)).run()
        count += 1
        healed += report.is_good
        rounds = max(report.rounds_strict or 0, report.rounds_publications or 0)
        if rounds > rounds_max:
            rounds_max, worst = rounds, f"{scenario.adversary}, {scenario.scheduler}"
        if not report.is_good:
            sys.stderr.write(f"did not heal: {scenario}\n")
    return count, healed, rounds_max, worst


def requests(n: int) -> tuple[float, int]:
    """Return the requests per interval of a legitimate ring, and the most in one interval."""
    scenario = make_scenario({"n": n, "mode": Mode.DETERMINISTIC})
    simulation = Simulation(scenario, legitimate_world(n, Random(0)))
    world = simulation.world
    most = before = 0
    for _ in range(ROUNDS):
        simulation.run_round()
        total = sum(world.sent[kind] for kind in SUPERVISOR_REQUESTS)
        most, before = max(most, total - before), total
    return before / ROUNDS, most


def main() -> None:
    """Print the table."""
    count, healed, rounds_max, worst = healing()
    lines = ["| measured | |", "|---|---|"]
    lines.append(f"| runs that healed | {healed} of {count} |")
    lines.append(f"| most rounds | {rounds_max} ({worst}) |")
    for n in (16, 64, 256):
        rate, most = requests(n)
        lines.append(f"| requests per interval, n = {n} | {rate:.3f}, at most {most} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
