"""Speed and memory of the simulator, and rounds until recovery (``skipring bench sim``)."""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from random import Random
from time import perf_counter, process_time
from typing import Final

from skipring.core.config import ProtocolConfig
from skipring.lab.bench.report import Row, spread
from skipring.lab.usage import peak_bytes, resident_bytes, run_alone
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES, legitimate_world

# A member compares tries in rounds 1, 2, 4, ..., so later rounds cost less.
WARM_UP_ROUNDS: Final = 16
MEMORY_ROUNDS: Final = 5  # by then, the members have confirmed that they are in sync
ROUNDS: Final = 20
REPEATS: Final = 7
RECOVERY_N: Final = 1024
SEEDS: Final = 3
RECOVERY_PROCESSES: Final = 2  # rounds are counted, not timed


def measure(n: int, ring_n: int, recovery_n: int = RECOVERY_N, *, seed: int = 0) -> Iterator[Row]:
    """Yield one row per measurement."""
    yield run_alone(_measure_memory, ring_n, seed)
    yield run_alone(_measure_healing, ring_n, seed)
    yield _measure_speed(n, seed)
    yield from measure_recovery(recovery_n, seed=seed)


def _measure_memory(n: int, seed: int) -> Row:
    """Measure the memory per subscriber in a legitimate state, the supervisor included."""
    baseline = resident_bytes()
    world = subscriber_world(n, seed)
    run_rounds(world, RandomOrder(), MEMORY_ROUNDS)
    gc.collect()
    used = resident_bytes() - baseline
    return {
        "job": "memory",
        "system": "skipring",
        "n": n,
        "bytes_per_subscriber": round(used / n),
    }


def _measure_speed(n: int, seed: int) -> Row:
    """Measure events per CPU second in a legitimate state."""
    world, speeds = subscriber_world(n, seed), list[float]()
    run_rounds(world, RandomOrder(), WARM_UP_ROUNDS)
    for _ in range(REPEATS):
        before, begin = world.events, process_time()
        run_rounds(world, RandomOrder(), ROUNDS)
        speeds.append((world.events - before) / (process_time() - begin))
    return {
        "job": "events",
        "system": "skipring",
        "n": n,
        **spread("events_per_s", speeds, None),
        "repeats": REPEATS,
        "python": platform.python_version(),
    }


def _measure_healing(n: int, seed: int) -> Row:
    """Measure one run from an arbitrary state to a legitimate one."""
    baseline = resident_bytes()
    begin_cpu, begin = process_time(), perf_counter()
    scenario = make_scenario({"n": n, "adversary": "A15", "seed": seed, "closure": 0})
    report = Simulation(scenario).run()
    seconds = process_time() - begin_cpu
    return {
        "job": "healing",
        "system": "skipring",
        "n": n,
        "adversary": "A15",
        "converged": report.converged,
        "rounds_strict": report.rounds_strict,
        "events": report.events,
        "events_per_s": round(report.events / seconds),
        "cpu_s": round(seconds, 1),
        "wall_s": round(perf_counter() - begin, 1),
        "peak_bytes_per_subscriber": round((peak_bytes() - baseline) / n),
    }


def subscriber_world(n: int, seed: int) -> World:
    """Return a legitimate ring."""
    start = legitimate_world(n, Random(seed))
    return World(start, seed=seed, config=ProtocolConfig.live(), uses_up_start=True)


# -- recovery ----------------------------------------------------------------------------------


def measure_recovery(n: int, *, seed: int = 0) -> Iterator[Row]:
    """Yield one row per adversary: the worst of some seeds."""
    with ProcessPoolExecutor(RECOVERY_PROCESSES, mp_context=get_context("spawn")) as pool:
        counts = pool.map(partial(_rounds, n, range(seed, seed + SEEDS)), ADVERSARIES)
        for adversary, rounds in zip(ADVERSARIES, counts, strict=True):
            yield _recovery_row(n, adversary, rounds)


def _recovery_row(n: int, adversary: str, rounds: Sequence[int | None]) -> Row:
    found = [each for each in rounds if each is not None]
    return {
        "job": "recovery",
        "system": "skipring",
        "n": n,
        "adversary": adversary,
        "seeds": len(rounds),
        "converged": len(found),
        "rounds": max(found) if len(found) == len(rounds) else None,
        "rounds_min": min(found, default=None),
    }


def _rounds(n: int, seeds: Iterable[int], adversary: str) -> list[int | None]:
    """Return the rounds to convergence for each seed; None if a run did not converge."""
    chosen = {"n": n, "adversary": adversary, "closure": 0}
    return [
        Simulation(make_scenario(chosen | {"seed": seed})).run().rounds_strict for seed in seeds
    ]
