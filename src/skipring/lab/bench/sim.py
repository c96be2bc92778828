"""Speed and memory of the simulator, and rounds until recovery (``skipring bench sim``).

The protocol runs alternately with a skeleton that sends as many messages and ignores them; their
ratio is the cost of the protocol relative to that of Python's event handling.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from random import Random
from time import perf_counter, process_time
from typing import Final

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Send
from skipring.core.events import Event, Tick
from skipring.core.messages import CheckLabel
from skipring.core.peers import EdgeKind, NodeId, Peer
from skipring.lab.bench.report import Row, at_least, at_most, spread
from skipring.lab.usage import peak_bytes, resident_bytes, run_alone
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES, legitimate_world

EVENTS_PER_S: Final = 100_000  # minimum on one core at n = 1000
BYTES_PER_SUBSCRIBER: Final = 3 * 1024  # maximum at n = 100,000
# A member compares tries in rounds 1, 2, 4, ..., so later rounds cost less.
WARM_UP_ROUNDS: Final = 16
MEMORY_ROUNDS: Final = 5  # by then, the members have confirmed that they are in sync
ROUNDS: Final = 20
REPEATS: Final = 7
# Of a subscriber: 2 CheckLabel, 2 IntroduceShortcut, 1 Digest.
MESSAGES_PER_TICK: Final = 5
RECOVERY_N: Final = 1024
SEEDS: Final = 3
RECOVERY_PROCESSES: Final = 2  # rounds are counted, not timed
# Goals: maximum rounds at n = 1024; the states of two adversaries take longer to detect.
ROUNDS_GOAL: Final = 30
ROUNDS_GOAL_OF: Final[Mapping[str, int]] = {"A18b": 90, "A43": 50}


def measure(n: int, ring_n: int, recovery_n: int = RECOVERY_N, *, seed: int = 0) -> Iterator[Row]:
    """Yield one row per measurement, the ratios last."""
    memory = run_alone(_measure_memory, ring_n, seed)
    yield memory
    healing = run_alone(_measure_healing, ring_n, seed)
    yield healing
    speeds = _measure_speed(n, seed)
    yield from speeds
    recoveries = []
    for row in measure_recovery(recovery_n, seed=seed):
        recoveries.append(row)
        yield row
    yield {"ratios": _ratios(memory, healing, speeds) | recovery_ratios(recoveries)}


def _ratios(memory: Row, healing: Row, speeds: list[Row]) -> dict[str, float]:
    """Compare the simulator with its goals and with the skeleton."""
    real, skeleton = (row["events_per_s"] for row in speeds)
    name, peak_name = "bytes_per_subscriber", "peak_bytes_per_subscriber"
    return {
        **at_least("events_per_s", real, EVENTS_PER_S),
        "events_per_s_skipring_over_skeleton": round(real / skeleton, 2),
        **at_most(name, memory[name], BYTES_PER_SUBSCRIBER),
        **at_most(peak_name, healing[peak_name], BYTES_PER_SUBSCRIBER),
    }


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


def _measure_speed(n: int, seed: int) -> list[Row]:
    """Measure events per CPU second in a legitimate state, alternating protocol and skeleton."""
    worlds = {"skipring": subscriber_world(n, seed), "skeleton": skeleton_world(n, seed)}
    speeds: dict[str, list[float]] = {name: [] for name in worlds}
    for world in worlds.values():
        run_rounds(world, RandomOrder(), WARM_UP_ROUNDS)
    for _ in range(REPEATS):
        for name, world in worlds.items():
            before, begin = world.events, process_time()
            run_rounds(world, RandomOrder(), ROUNDS)
            speeds[name].append((world.events - before) / (process_time() - begin))
    return [
        {
            "job": "events",
            "system": name,
            "n": n,
            **spread("events_per_s", values, None),
            "repeats": REPEATS,
            "python": platform.python_version(),
        }
        for name, values in speeds.items()
    ]


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


def skeleton_world(n: int, seed: int) -> World:
    """Return a world with a skeleton in place of each subscriber."""
    world = subscriber_world(n, seed)
    nodes = list(world.subscribers)
    for index, node in enumerate(nodes):
        label = world.subscribers[node].label
        assert label is not None
        others = [nodes[(index + step + 1) % n] for step in range(MESSAGES_PER_TICK)]
        world.subscribers[node] = _Skeleton(Peer(label, node), others)  # type: ignore[assignment]
    return world


class _Skeleton:
    """Machine that sends as many messages as a subscriber and ignores what it receives."""

    __slots__ = ("_me", "_others")
    has_to_flush = False

    def __init__(self, me: Peer, others: list[NodeId]) -> None:
        self._me = me
        self._others = others

    def handle(self, event: Event) -> list[Effect]:
        if type(event) is not Tick:
            return []
        me = self._me
        return [Send(other, CheckLabel(me, me.label, EdgeKind.LINE)) for other in self._others]


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


def recovery_ratios(rows: Iterable[Row]) -> dict[str, float]:
    """Return the rounds of each adversary against its goal; 0 if a run did not converge."""
    found: dict[str, float] = {}
    for row in rows:
        adversary, rounds = row["adversary"], row["rounds"]
        name, goal = f"rounds_{adversary}", ROUNDS_GOAL_OF.get(adversary, ROUNDS_GOAL)
        found |= {f"{name}_reached": 0.0} if rounds is None else at_most(name, rounds, goal)
    return found
