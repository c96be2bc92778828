"""How fast the simulator is, and how large a ring it can hold (``skipring bench sim``).

The protocol is measured beside a skeleton that sends as many messages but thinks nothing of
them, in one interleaved run, so that their ratio says what the protocol costs on top of Python.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator
from random import Random
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, Send
from skipring.core.events import Event, Tick
from skipring.core.messages import CheckLabel
from skipring.core.peers import EdgeKind, NodeId, Peer
from skipring.lab.bench import recovery
from skipring.lab.bench.goals import at_least, at_most
from skipring.lab.bench.memory import alone, peak_bytes, resident_bytes
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import legitimate_world

EVENTS_PER_S: Final = 100_000  # the least we want on one core at n = 1000
BYTES_PER_SUBSCRIBER: Final = 3 * 1024  # the most we want at n = 100,000
WARM_UP_ROUNDS: Final = 5
ROUNDS: Final = 20
REPEATS: Final = 7
# Of a subscriber: 2 CheckLabel, 2 IntroduceShortcut, 1 Digest, 1 CheckTrie.
MESSAGES_PER_TICK: Final = 6


def measure(
    n: int, ring_n: int, recovery_n: int = recovery.N, *, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield one row a measurement, the ratios last."""
    memory = alone(_measure_memory, ring_n, seed)
    yield memory
    healing = alone(_measure_healing, ring_n, seed)
    yield healing
    speeds = _measure_speed(n, seed)
    yield from speeds
    recoveries = []
    for row in recovery.measure(recovery_n, seed=seed):
        recoveries.append(row)
        yield row
    yield {"ratios": _ratios(memory, healing, speeds) | recovery.ratios(recoveries)}


def _ratios(
    memory: dict[str, Any], healing: dict[str, Any], speeds: list[dict[str, Any]]
) -> dict[str, float]:
    """How far the simulator reaches what is wanted, and what it makes of the machine's speed."""
    real, skeleton = (row["events_per_s"] for row in speeds)
    name, peak_name = "bytes_per_subscriber", "peak_bytes_per_subscriber"
    return {
        **at_least("events_per_s", real, EVENTS_PER_S),
        "events_per_s_skipring_over_skeleton": round(real / skeleton, 2),
        **at_most(name, memory[name], BYTES_PER_SUBSCRIBER),
        **at_most(peak_name, healing[peak_name], BYTES_PER_SUBSCRIBER),
    }


def _measure_memory(n: int, seed: int) -> dict[str, Any]:
    """Resident memory a subscriber adds in a legitimate state, the supervisor's included."""
    baseline = resident_bytes()
    world = _world(n, seed)
    run_rounds(world, RandomOrder(), 1)
    gc.collect()
    used = resident_bytes() - baseline
    return {
        "job": "memory",
        "system": "skipring",
        "n": n,
        "bytes_per_subscriber": round(used / n),
    }


def _measure_speed(n: int, seed: int) -> list[dict[str, Any]]:
    """Events per second of CPU in a legitimate state, protocol and skeleton in turns."""
    worlds = {"skipring": _world(n, seed), "skeleton": _skeleton_world(n, seed)}
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
            "events_per_s": round(median(values)),
            "events_per_s_min": round(min(values)),
            "events_per_s_max": round(max(values)),
            "repeats": REPEATS,
            "python": platform.python_version(),
        }
        for name, values in speeds.items()
    ]


def _measure_healing(n: int, seed: int) -> dict[str, Any]:
    """From a state in which everything is arbitrary to legitimacy, in one process."""
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


def _world(n: int, seed: int) -> World:
    return World(legitimate_world(n, Random(seed)), seed=seed, config=ProtocolConfig())


def _skeleton_world(n: int, seed: int) -> World:
    """A world in which a skeleton stands in the place of every subscriber."""
    world = _world(n, seed)
    nodes = list(world.subscribers)
    for index, node in enumerate(nodes):
        label = world.subscribers[node].label
        assert label is not None
        others = [nodes[(index + step + 1) % n] for step in range(MESSAGES_PER_TICK)]
        world.subscribers[node] = _Skeleton(Peer(label, node), others)  # type: ignore[assignment]
    return world


class _Skeleton:
    """A machine that sends as much as a subscriber and ignores what it gets."""

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
