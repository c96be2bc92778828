"""How many rounds a ring needs to be legitimate again, from the state each adversary leaves.

Part of ``skipring bench sim``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

from skipring.lab.bench.goals import at_most
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries import ADVERSARIES

JOB: Final = "recovery"
N: Final = 1024
SEEDS: Final = 3
PROCESSES: Final = 2  # rounds are counted, not timed
# Rounds at n = 1024, at most; what two of the adversaries leave takes longer to be noticed.
ROUNDS_WANTED: Final = 30
ROUNDS_WANTED_OF: Final[Mapping[str, int]] = {"A18b": 90, "A43": 50}


def measure(n: int = N, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One row an adversary: the worst of some seeds."""
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        counts = pool.map(partial(_rounds, n, range(seed, seed + SEEDS)), ADVERSARIES)
        for adversary, rounds in zip(ADVERSARIES, counts, strict=True):
            yield _row(n, adversary, rounds)


def _row(n: int, adversary: str, rounds: Sequence[int | None]) -> dict[str, Any]:
    found = [each for each in rounds if each is not None]
    return {
        "job": JOB,
        "system": "skipring",
        "n": n,
        "adversary": adversary,
        "seeds": len(rounds),
        "converged": len(found),
        "rounds": max(found) if len(found) == len(rounds) else None,
        "rounds_min": min(found, default=None),
    }


def _rounds(n: int, seeds: Iterable[int], adversary: str) -> list[int | None]:
    """How many rounds it took, with each seed; None if it never came to an end."""
    chosen = {"n": n, "adversary": adversary, "closure": 0}
    return [
        Simulation(make_scenario(chosen | {"seed": seed})).run().rounds_strict for seed in seeds
    ]


def ratios(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The rounds of each adversary beside what is wanted; 0 is reached by who never recovers."""
    found: dict[str, float] = {}
    for row in rows:
        adversary, rounds = row["adversary"], row["rounds"]
        name, wanted = f"rounds_{adversary}", ROUNDS_WANTED_OF.get(adversary, ROUNDS_WANTED)
        found |= {f"{name}_reached": 0.0} if rounds is None else at_most(name, rounds, wanted)
    return found
